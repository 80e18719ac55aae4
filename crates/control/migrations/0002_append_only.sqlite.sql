-- What was done, and what was published, is added to and never edited.
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN
    SELECT RAISE(ABORT, 'rows of audit are never edited');
END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN
    SELECT RAISE(ABORT, 'rows of audit are never edited');
END;
CREATE TRIGGER changes_no_update BEFORE UPDATE ON changes BEGIN
    SELECT RAISE(ABORT, 'rows of changes are never edited');
END;
CREATE TRIGGER changes_no_delete BEFORE DELETE ON changes BEGIN
    SELECT RAISE(ABORT, 'rows of changes are never edited');
END;
CREATE TRIGGER texts_no_update BEFORE UPDATE ON texts BEGIN
    SELECT RAISE(ABORT, 'rows of texts are never edited');
END;
CREATE TRIGGER texts_no_delete BEFORE DELETE ON texts BEGIN
    SELECT RAISE(ABORT, 'rows of texts are never edited');
END;
CREATE TRIGGER versions_no_update BEFORE UPDATE ON versions BEGIN
    SELECT RAISE(ABORT, 'rows of versions are never edited');
END;
CREATE TRIGGER versions_no_delete BEFORE DELETE ON versions BEGIN
    SELECT RAISE(ABORT, 'rows of versions are never edited');
END;
CREATE TRIGGER version_domains_no_update BEFORE UPDATE ON version_domains BEGIN
    SELECT RAISE(ABORT, 'rows of version_domains are never edited');
END;
CREATE TRIGGER version_domains_no_delete BEFORE DELETE ON version_domains BEGIN
    SELECT RAISE(ABORT, 'rows of version_domains are never edited');
END;
