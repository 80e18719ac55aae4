-- The number of the last change of the draft by a release that keeps its size. If it is not the number
-- of the last change, the size is counted again.
ALTER TABLE domains ADD COLUMN sized BIGINT NOT NULL DEFAULT 0;
