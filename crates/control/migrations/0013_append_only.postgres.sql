CREATE TRIGGER rollout_shares_are_append_only BEFORE UPDATE OR DELETE ON rollout_shares
    FOR EACH ROW EXECUTE FUNCTION refuse_edit();
