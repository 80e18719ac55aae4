-- What was done, and what was published, is added to and never edited.
CREATE FUNCTION refuse_edit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never edited', TG_TABLE_NAME;
END;
$$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION refuse_edit();
CREATE TRIGGER changes_are_append_only BEFORE UPDATE OR DELETE ON changes
    FOR EACH ROW EXECUTE FUNCTION refuse_edit();
CREATE TRIGGER texts_are_append_only BEFORE UPDATE OR DELETE ON texts
    FOR EACH ROW EXECUTE FUNCTION refuse_edit();
CREATE TRIGGER versions_are_append_only BEFORE UPDATE OR DELETE ON versions
    FOR EACH ROW EXECUTE FUNCTION refuse_edit();
CREATE TRIGGER version_domains_are_append_only BEFORE UPDATE OR DELETE ON version_domains
    FOR EACH ROW EXECUTE FUNCTION refuse_edit();
