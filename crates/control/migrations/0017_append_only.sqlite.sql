CREATE TRIGGER audit_domains_no_update BEFORE UPDATE ON audit_domains BEGIN
    SELECT RAISE(ABORT, 'rows of audit_domains are never edited');
END;
CREATE TRIGGER audit_domains_no_delete BEFORE DELETE ON audit_domains BEGIN
    SELECT RAISE(ABORT, 'rows of audit_domains are never edited');
END;
