-- The row of the token or person who had the API make a token; empty if the command line made it.
-- `made_by` is the person who is responsible.
ALTER TABLE tokens ADD COLUMN maker TEXT NOT NULL DEFAULT '';
UPDATE tokens SET maker = COALESCE((SELECT MIN(m.id) FROM tokens m WHERE m.id = tokens.made_by
    OR (m.issuer <> '' AND m.issuer || '#' || m.subject = tokens.made_by)), '')
    WHERE made_by <> '';
CREATE INDEX tokens_of_maker ON tokens (maker);
-- A revocation also ends the tokens that the revoked one made. Earlier revocations do so now.
UPDATE tokens SET revoked_at = (SELECT m.revoked_at FROM tokens m WHERE m.id = tokens.maker)
    WHERE revoked_at IS NULL AND maker <> '';

-- The domains that a person may change, a JSON list; null for every domain. They are not known of
-- earlier sign-ins, so that the next sign-in notes its rights in the audit log.
ALTER TABLE tokens ADD COLUMN writable TEXT;
UPDATE tokens SET writable = '' WHERE issuer <> '';

-- Who changed a draft: the person, beside the name that is shown. If a name fits several people, all
-- of them are authors. The person is empty if the program itself wrote.
ALTER TABLE draft_authors RENAME TO former_draft_authors;
CREATE TABLE draft_authors (
    domain TEXT NOT NULL,
    person TEXT NOT NULL,
    author TEXT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (domain, person, author)
);
INSERT INTO draft_authors (domain, person, author, number)
    SELECT DISTINCT a.domain, COALESCE(CASE WHEN t.issuer <> '' THEN t.issuer || '#' || t.subject
        WHEN t.made_by <> '' THEN t.made_by ELSE t.id END, ''), a.author, a.number
    FROM former_draft_authors a LEFT JOIN tokens t
        ON (t.issuer = '' AND a.author = t.name || '/' || t.id)
        OR (t.issuer <> '' AND LENGTH(a.author) > LENGTH(t.issuer || '#' || t.subject)
            AND SUBSTR(a.author, LENGTH(a.author) - LENGTH(t.issuer || '#' || t.subject))
                = '/' || t.issuer || '#' || t.subject);
DROP TABLE former_draft_authors;

-- The row of the token or person who gave an approval: `approver` is the person.
ALTER TABLE approvals ADD COLUMN given_by TEXT NOT NULL DEFAULT '';
UPDATE approvals SET given_by = COALESCE(
    (SELECT MIN(t.id) FROM tokens t WHERE t.issuer = '' AND approvals.author = t.name || '/' || t.id),
    (SELECT MIN(t.id) FROM tokens t WHERE t.id = approvals.approver
        OR (t.issuer <> '' AND t.issuer || '#' || t.subject = approvals.approver)), '');

-- Who owns a change set: the row of the token or person, and the person. And who put each change.
ALTER TABLE change_sets ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE change_sets ADD COLUMN person TEXT NOT NULL DEFAULT '';
UPDATE change_sets SET owner = COALESCE((SELECT MIN(t.id) FROM tokens t
    WHERE (t.issuer = '' AND change_sets.author = t.name || '/' || t.id)
    OR (t.issuer <> '' AND LENGTH(change_sets.author) > LENGTH(t.issuer || '#' || t.subject)
        AND SUBSTR(change_sets.author,
            LENGTH(change_sets.author) - LENGTH(t.issuer || '#' || t.subject))
            = '/' || t.issuer || '#' || t.subject)), '');
UPDATE change_sets SET person = COALESCE((SELECT CASE WHEN t.issuer <> ''
    THEN t.issuer || '#' || t.subject WHEN t.made_by <> '' THEN t.made_by ELSE t.id END
    FROM tokens t WHERE t.id = change_sets.owner), '');
CREATE INDEX change_sets_of_owner ON change_sets (owner);
ALTER TABLE change_set_rules ADD COLUMN author TEXT NOT NULL DEFAULT '';
ALTER TABLE change_set_rules ADD COLUMN person TEXT NOT NULL DEFAULT '';

-- An answer belongs to a row of `tokens`, and no longer to a name that may change.
UPDATE answers SET author = COALESCE((SELECT MIN(t.id) FROM tokens t
    WHERE (t.issuer = '' AND answers.author = t.name || '/' || t.id)
    OR (t.issuer <> '' AND answers.author = t.name || '/' || t.issuer || '#' || t.subject)),
    author);
