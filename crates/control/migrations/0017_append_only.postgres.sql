CREATE TRIGGER audit_domains_are_append_only BEFORE UPDATE OR DELETE ON audit_domains
    FOR EACH ROW EXECUTE FUNCTION refuse_edit();
