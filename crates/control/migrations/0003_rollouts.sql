-- Gradual changes: versions that some pods run before the others.

-- The rollout that a version is a step of. Versions of rollouts need not change a domain.
ALTER TABLE versions ADD COLUMN rollout BIGINT;

CREATE TABLE rollouts (
    id BIGINT PRIMARY KEY,
    -- Which pods are chosen: a percentage, or a key and a value of the metadata of their nodes.
    percent BIGINT,
    label_key TEXT,
    label_value TEXT,
    -- The largest share of hits that may be denied, and the hits from which on it counts.
    denied_share DOUBLE PRECISION,
    hits_min BIGINT
);

CREATE TABLE rollout_domains (
    rollout BIGINT NOT NULL REFERENCES rollouts (id),
    domain TEXT NOT NULL,
    -- The number of the last change of the draft that the texts were made of.
    changed BIGINT NOT NULL,
    -- What chosen pods get in the stage shadow, and then; without a hash they have no such domain.
    shadow TEXT REFERENCES texts (hash),
    hash TEXT REFERENCES texts (hash),
    PRIMARY KEY (rollout, domain)
);

-- The stages of rollouts, each of which is a version.
CREATE TABLE rollout_steps (
    version BIGINT PRIMARY KEY REFERENCES versions (number),
    rollout BIGINT NOT NULL REFERENCES rollouts (id),
    stage TEXT NOT NULL
);
CREATE INDEX rollout_steps_by_rollout ON rollout_steps (rollout, version);

-- Hits of a domain while pods ran a step, as they reported them.
CREATE TABLE rollout_counts (
    version BIGINT NOT NULL,
    domain TEXT NOT NULL,
    -- 1 for the pods that the rollout chose, 0 for the others.
    chosen BIGINT NOT NULL,
    -- 0 for all hits; else when they were reported, in steps of 5 s since the Unix epoch.
    bucket BIGINT NOT NULL,
    hits BIGINT NOT NULL,
    denied BIGINT NOT NULL,
    shadow BIGINT NOT NULL,
    PRIMARY KEY (version, domain, chosen, bucket)
);

-- The rollout that chose the pod, or 0; and whether it reports hits.
ALTER TABLE pods ADD COLUMN chosen_by BIGINT NOT NULL DEFAULT 0;
ALTER TABLE pods ADD COLUMN reports BIGINT NOT NULL DEFAULT 0;
