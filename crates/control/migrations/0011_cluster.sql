-- The Kubernetes cluster whose objects define domains here: the uid of its namespace kube-system.
CREATE TABLE cluster (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    uid TEXT NOT NULL
);
