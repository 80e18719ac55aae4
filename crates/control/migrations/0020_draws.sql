-- A random number that a rollout draws its pods with; null in rows of earlier releases, whose order of
-- pods follows from the number of the rollout and the node's id.
ALTER TABLE rollouts ADD COLUMN seed BIGINT;
-- The origins of several pods, each with a threshold of its own, as JSON; empty if there are none.
ALTER TABLE rollout_shares ADD COLUMN crowds TEXT NOT NULL DEFAULT '';
-- A hash of what the pod cannot choose freely; 0 in rows of replicas of earlier releases.
ALTER TABLE pods ADD COLUMN origin BIGINT NOT NULL DEFAULT 0;
