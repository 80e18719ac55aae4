-- The header 'Location' of an answer that is kept; empty if it has none.
ALTER TABLE answers ADD COLUMN location TEXT NOT NULL DEFAULT '';
