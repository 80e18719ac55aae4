-- Changes that one person makes beside the shared draft, until they are submitted to it.
CREATE TABLE change_sets (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    author TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX change_sets_of_author ON change_sets (author, created_at);

-- What a set changes: the settings of a rule as the shared draft had them when the change was made, and
-- as they are to be; null for a rule that is not there.
CREATE TABLE change_set_rules (
    change_set TEXT NOT NULL REFERENCES change_sets (id),
    rule TEXT NOT NULL,
    domain TEXT NOT NULL,
    entries TEXT NOT NULL,
    before TEXT,
    after TEXT,
    PRIMARY KEY (change_set, rule)
);
