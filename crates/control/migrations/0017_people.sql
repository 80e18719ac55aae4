-- People who sign in with OpenID Connect have a row of `tokens`, without a secret: what their writes
-- keep is counted there. Of other rows issuer and subject are empty.
ALTER TABLE tokens ADD COLUMN issuer TEXT NOT NULL DEFAULT '';
ALTER TABLE tokens ADD COLUMN subject TEXT NOT NULL DEFAULT '';
-- The id of the person or token that had the API make it; empty if the command line made it.
ALTER TABLE tokens ADD COLUMN made_by TEXT NOT NULL DEFAULT '';

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    hash TEXT NOT NULL,
    person TEXT NOT NULL REFERENCES tokens (id),
    access TEXT NOT NULL,
    -- The domains that the person may use, and those of them that may be changed: JSON lists; null
    -- for every domain.
    domains TEXT,
    writable TEXT,
    -- A hash of the settings that the rights follow from.
    roles TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX sessions_of_person ON sessions (person, created_at);
CREATE INDEX sessions_by_end ON sessions (expires_at);

-- The domains of each action of the audit log.
CREATE TABLE audit_domains (
    domain TEXT NOT NULL,
    action BIGINT NOT NULL REFERENCES audit (number),
    PRIMARY KEY (domain, action)
);
-- What one write did has one time and one author.
INSERT INTO audit_domains (domain, action)
    SELECT c.domain, a.number FROM audit a JOIN changes c ON c.at = a.at AND c.author = a.author
    UNION
    SELECT d.domain, a.number FROM audit a JOIN versions v ON v.at = a.at AND v.author = a.author
        JOIN version_domains d ON d.version = v.number
    UNION
    SELECT r.domain, a.number FROM audit a JOIN versions v ON v.at = a.at AND v.author = a.author
        JOIN rollout_domains r ON r.rollout = v.rollout;
