-- The types are those that PostgreSQL and SQLite share. Times are milliseconds since the Unix epoch.

-- One row. Each write begins with an update of it, so that writes happen one after the other, and
-- the order of the numbers is that of the commits.
CREATE TABLE counters (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    change BIGINT NOT NULL,
    version BIGINT NOT NULL
);
INSERT INTO counters (id, change, version) VALUES (1, 0, 0);

CREATE TABLE domains (
    name TEXT PRIMARY KEY,
    defaults TEXT NOT NULL,
    -- The number of the last change of the draft, and the one that the last version of it has.
    changed BIGINT NOT NULL,
    published BIGINT NOT NULL,
    -- The text that is published; null if the domain is not.
    hash TEXT
);

-- The draft.
CREATE TABLE rules (
    id TEXT PRIMARY KEY,
    domain TEXT NOT NULL REFERENCES domains (name),
    entries TEXT NOT NULL,
    scope TEXT NOT NULL,
    scope_value TEXT NOT NULL,
    settings TEXT NOT NULL,
    position BIGINT NOT NULL,
    -- The number of its last change.
    revision BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL,
    UNIQUE (domain, entries)
);
CREATE INDEX rules_in_order ON rules (domain, position, id);
CREATE INDEX rules_by_scope ON rules (scope, scope_value);

-- Who changed which rule of the draft, when, why, and from what to what.
CREATE TABLE changes (
    number BIGINT PRIMARY KEY,
    domain TEXT NOT NULL,
    rule TEXT NOT NULL,
    before TEXT,
    after TEXT,
    at BIGINT NOT NULL,
    author TEXT NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX changes_of_rule ON changes (rule, number);

-- Rule files as pods get them.
CREATE TABLE texts (
    hash TEXT PRIMARY KEY,
    yaml TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    rules BIGINT NOT NULL
);

CREATE TABLE versions (
    number BIGINT PRIMARY KEY,
    at BIGINT NOT NULL,
    author TEXT NOT NULL,
    reason TEXT NOT NULL,
    -- The version that it brings back, if it does.
    restores BIGINT
);

-- The domains that a version changes; without a hash, it removes the domain.
CREATE TABLE version_domains (
    version BIGINT NOT NULL REFERENCES versions (number),
    domain TEXT NOT NULL,
    hash TEXT REFERENCES texts (hash),
    PRIMARY KEY (domain, version)
);
CREATE INDEX version_domains_by_version ON version_domains (version);

-- All that was done, by whom.
CREATE TABLE audit (
    number BIGINT PRIMARY KEY,
    at BIGINT NOT NULL,
    author TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    reason TEXT NOT NULL
);

CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    hash TEXT NOT NULL,
    access TEXT NOT NULL,
    -- A JSON list; null for every domain.
    domains TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
);

-- Answers to writes that were given an idempotency key.
CREATE TABLE answers (
    author TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    request TEXT NOT NULL,
    status BIGINT NOT NULL,
    headers TEXT NOT NULL,
    body TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (author, idempotency_key)
);
CREATE INDEX answers_by_time ON answers (at);

-- The streams of pods, by the replica of the control plane that they are connected to.
CREATE TABLE pods (
    replica TEXT NOT NULL,
    stream BIGINT NOT NULL,
    node TEXT NOT NULL,
    peer TEXT NOT NULL,
    agent TEXT NOT NULL,
    type TEXT NOT NULL,
    connected_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    sent BIGINT NOT NULL,
    accepted BIGINT NOT NULL,
    refused BIGINT NOT NULL,
    fault TEXT NOT NULL,
    PRIMARY KEY (replica, stream)
);
