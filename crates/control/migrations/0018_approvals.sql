-- How many people besides its authors have to approve a draft before it is published.
ALTER TABLE domains ADD COLUMN approvals BIGINT NOT NULL DEFAULT 0;

-- Who changed a draft, and the number of the last change of each. Those after the number that is
-- published are the authors of the draft.
CREATE TABLE draft_authors (
    domain TEXT NOT NULL,
    author TEXT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (domain, author)
);
INSERT INTO draft_authors (domain, author, number)
    SELECT c.domain, c.author, MAX(c.number) FROM changes c JOIN domains d ON d.name = c.domain
    WHERE c.number > d.published GROUP BY c.domain, c.author;

-- Who approved which draft: its last change had this number. The last approval of each.
CREATE TABLE approvals (
    domain TEXT NOT NULL,
    -- The id of the person or token.
    approver TEXT NOT NULL,
    author TEXT NOT NULL,
    changed BIGINT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (domain, approver)
);
