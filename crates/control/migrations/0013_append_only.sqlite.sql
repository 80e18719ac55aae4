CREATE TRIGGER rollout_shares_no_update BEFORE UPDATE ON rollout_shares BEGIN
    SELECT RAISE(ABORT, 'rows of rollout_shares are never edited');
END;
CREATE TRIGGER rollout_shares_no_delete BEFORE DELETE ON rollout_shares BEGIN
    SELECT RAISE(ABORT, 'rows of rollout_shares are never edited');
END;
