-- Each write begins with this row, so that none is under way while sizes are counted.
UPDATE counters SET version = version WHERE id = 1;

-- The number of the last change of the draft by a release that keeps its size. If it is not the number
-- of the last change, the size is counted again.
ALTER TABLE domains ADD COLUMN sized BIGINT NOT NULL DEFAULT 0;
UPDATE domains SET
    sized = changed,
    rules = (SELECT COUNT(*) FROM rules r WHERE r.domain = domains.name),
    bytes = (SELECT COALESCE(SUM(OCTET_LENGTH(r.entries) + OCTET_LENGTH(r.settings)), 0)
        FROM rules r WHERE r.domain = domains.name);
