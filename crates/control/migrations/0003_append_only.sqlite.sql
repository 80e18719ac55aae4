CREATE TRIGGER rollouts_no_update BEFORE UPDATE ON rollouts BEGIN
    SELECT RAISE(ABORT, 'rows of rollouts are never edited');
END;
CREATE TRIGGER rollouts_no_delete BEFORE DELETE ON rollouts BEGIN
    SELECT RAISE(ABORT, 'rows of rollouts are never edited');
END;
CREATE TRIGGER rollout_domains_no_update BEFORE UPDATE ON rollout_domains BEGIN
    SELECT RAISE(ABORT, 'rows of rollout_domains are never edited');
END;
CREATE TRIGGER rollout_domains_no_delete BEFORE DELETE ON rollout_domains BEGIN
    SELECT RAISE(ABORT, 'rows of rollout_domains are never edited');
END;
CREATE TRIGGER rollout_steps_no_update BEFORE UPDATE ON rollout_steps BEGIN
    SELECT RAISE(ABORT, 'rows of rollout_steps are never edited');
END;
CREATE TRIGGER rollout_steps_no_delete BEFORE DELETE ON rollout_steps BEGIN
    SELECT RAISE(ABORT, 'rows of rollout_steps are never edited');
END;
