-- The domains that a pod is limited to, each after a line break, with one at the end; '*' if it gets
-- all. Empty in rows of earlier releases, which only tokens of all domains see.
ALTER TABLE pods ADD COLUMN domains TEXT NOT NULL DEFAULT '';
