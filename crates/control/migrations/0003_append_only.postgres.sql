CREATE TRIGGER rollouts_are_append_only BEFORE UPDATE OR DELETE ON rollouts
    FOR EACH ROW EXECUTE FUNCTION refuse_edit();
CREATE TRIGGER rollout_domains_are_append_only BEFORE UPDATE OR DELETE ON rollout_domains
    FOR EACH ROW EXECUTE FUNCTION refuse_edit();
CREATE TRIGGER rollout_steps_are_append_only BEFORE UPDATE OR DELETE ON rollout_steps
    FOR EACH ROW EXECUTE FUNCTION refuse_edit();
