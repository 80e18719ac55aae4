-- The content of each draft as a number: the sum of a hash of each rule, below 2^62. Drafts with other
-- numbers differ. It counts only if 'summed' is the number of the last change of the draft: a release
-- that does not keep it may write meanwhile.
ALTER TABLE domains ADD COLUMN content BIGINT NOT NULL DEFAULT 0;
ALTER TABLE domains ADD COLUMN summed BIGINT NOT NULL DEFAULT -1;
-- The same number of the published rules; null if it is not known.
ALTER TABLE domains ADD COLUMN published_content BIGINT;
-- When the draft was last changed, in milliseconds since the Unix epoch (0: not known), and the tokens
-- that changed it since it was published, as a JSON list, the latest first.
ALTER TABLE domains ADD COLUMN changed_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE domains ADD COLUMN changed_by TEXT NOT NULL DEFAULT '[]';
