-- The object of Kubernetes that defines the domain, as NAMESPACE/NAME; empty if the database does.
ALTER TABLE domains ADD COLUMN owner TEXT NOT NULL DEFAULT '';
