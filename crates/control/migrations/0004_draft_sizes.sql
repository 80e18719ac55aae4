-- The size of each draft, so that its ceiling is checked without reading its rules.
ALTER TABLE domains ADD COLUMN rules BIGINT NOT NULL DEFAULT 0;
ALTER TABLE domains ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
UPDATE domains SET
    rules = (SELECT COUNT(*) FROM rules r WHERE r.domain = domains.name),
    bytes = (SELECT COALESCE(SUM(OCTET_LENGTH(r.entries) + OCTET_LENGTH(r.settings)), 0)
        FROM rules r WHERE r.domain = domains.name);
