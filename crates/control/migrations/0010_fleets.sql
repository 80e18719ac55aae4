-- What the pods of each replica say of their domains and hot keys, added up, as JSON.
CREATE TABLE fleets (
    replica TEXT PRIMARY KEY,
    -- When the replica wrote it, in milliseconds since the Unix epoch.
    seen_at BIGINT NOT NULL,
    sums TEXT NOT NULL
);
