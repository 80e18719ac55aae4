-- Bytes that the writes of a token have added to what is kept.
ALTER TABLE tokens ADD COLUMN written BIGINT NOT NULL DEFAULT 0;
