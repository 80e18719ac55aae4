-- What a rollout is to do, step by step, as JSON; null in rows of earlier releases, which had a stage
-- `shadow`, unless they began with `enforced`, and a stage `enforced`.
ALTER TABLE rollouts ADD COLUMN plan TEXT;
-- Seconds without a step after which it ends by itself; null for never.
ALTER TABLE rollouts ADD COLUMN time_limit BIGINT;
-- Seconds of the longest window of the limits that change: counts that begin empty say less before.
ALTER TABLE rollouts ADD COLUMN longest_window BIGINT NOT NULL DEFAULT 0;

-- What the other pods count in the stage shadow: the published rules that the draft changes.
ALTER TABLE rollout_domains ADD COLUMN others TEXT;

-- The number of the plan's step, from 1, and its percentage of the pods.
ALTER TABLE rollout_steps ADD COLUMN number BIGINT;
ALTER TABLE rollout_steps ADD COLUMN percent BIGINT;

-- Which part of the pods that serve a domain a step has chosen.
CREATE TABLE rollout_shares (
    version BIGINT NOT NULL REFERENCES rollout_steps (version),
    domain TEXT NOT NULL,
    -- A pod is chosen if the hash of the rollout and its node's id is not greater; -1 chooses none.
    threshold BIGINT NOT NULL,
    -- The pods that served the domain then, and how many of these were chosen.
    pods BIGINT NOT NULL,
    chosen BIGINT NOT NULL,
    PRIMARY KEY (version, domain)
);

-- The rollouts that chose the pod, each number after a line break, with one at the end.
ALTER TABLE pods ADD COLUMN chosen TEXT NOT NULL DEFAULT '';
-- Hits that were left out of the comparison.
ALTER TABLE rollout_counts ADD COLUMN left_out BIGINT NOT NULL DEFAULT 0;
