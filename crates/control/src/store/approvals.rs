//! Approvals: domains whose drafts are published only after others than their authors have agreed.
//!
//! An approval is of a draft as it was at one change, which has a number: with the next change of
//! the draft it counts no more.

use serde::Serialize;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use utoipa::ToSchema;

use super::query::{Cell, bound};
use super::write::{Identity, Writer};
use super::{PublishedText, Store, StoreError, StoreResult, Write, as_time};

/// Maximum number of approvals that a domain may ask for.
pub const APPROVALS_MAX: i64 = 5;

/// An approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ApprovalView)]
pub struct ApprovalRow {
    /// The id of the person or token.
    #[serde(skip)]
    pub approver: String,
    /// Who approved.
    pub author: String,
    /// When.
    #[serde(serialize_with = "as_time")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
}

/// Someone who changed a draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftAuthor {
    /// The name, as history shows it.
    pub name: String,
    /// Who is responsible, as ISSUER#SUBJECT or the id of a token; empty if it was the program
    /// itself.
    pub person: String,
}

/// The approvals of a draft.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DraftApprovals {
    /// Approvals that the domain asks for.
    pub needed: i64,
    /// The number of the last change of the draft.
    pub changed: i64,
    /// The object of Kubernetes that defines the domain; empty if the database does.
    pub owner: String,
    /// The people and tokens that changed the draft since it was published.
    pub authors: Vec<DraftAuthor>,
    /// The approvals of this draft, the oldest first.
    pub given: Vec<ApprovalRow>,
}

/// The row of the domain.
const HEAD: &str = "SELECT approvals, changed, owner FROM domains WHERE name = $1";

/// The authors of a draft, whose changes came after the publication.
const AUTHORS: &str = "SELECT a.author, a.person FROM draft_authors a \
                       JOIN domains d ON d.name = a.domain WHERE a.domain = $1 \
                       AND a.number > d.published ORDER BY a.number, a.author, a.person";

/// The approvals of a draft as it was at one change. One whose giver was revoked counts no more.
const GIVEN: &str = "SELECT a.approver, a.author, a.at FROM approvals a \
                     JOIN tokens t ON t.id = a.given_by AND t.revoked_at IS NULL \
                     WHERE a.domain = $1 AND a.changed = $2 ORDER BY a.at, a.approver";

// === impl Store ===

impl Store {
    /// The approvals of the draft of a domain; `None` if there is no such domain.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn approvals(&self, domain: &str) -> StoreResult<Option<DraftApprovals>> {
        DraftApprovals::of(&mut *self.pool.acquire().await?, domain).await
    }
}

// === impl Write ===

impl Write {
    /// Notes that this write changes the draft of a domain.
    pub async fn note_draft_author(&mut self, domain: &str) -> StoreResult<()> {
        self.note_draft_author_of(domain, &self.draft_author()).await
    }

    /// Notes that this write puts a change of another author into the draft of a domain.
    pub async fn note_draft_author_of(
        &mut self,
        domain: &str,
        author: &DraftAuthor,
    ) -> StoreResult<()> {
        let sql = "INSERT INTO draft_authors (domain, person, author, number) \
                   VALUES ($1, $2, $3, $4) ON CONFLICT (domain, person, author) \
                   DO UPDATE SET number = excluded.number";
        let query = sqlx::query(sql).bind(domain.to_owned()).bind(author.person.clone());
        let query = query.bind(author.name.clone()).bind(self.number());
        query.execute(&mut *self.tx).await?;
        Ok(())
    }

    /// Who writes, as an author of a draft.
    pub fn draft_author(&self) -> DraftAuthor {
        DraftAuthor { name: self.author.name.clone(), person: self.identity.person.clone() }
    }

    /// The approvals of the draft of a domain; `None` if there is no such domain.
    pub async fn approvals(&mut self, domain: &str) -> StoreResult<Option<DraftApprovals>> {
        DraftApprovals::of(&mut self.tx, domain).await
    }

    /// Has drafts of a domain need so many approvals. Makes the domain if there is none.
    pub async fn set_approvals(&mut self, domain: &str, needed: i64) -> StoreResult<()> {
        let sql = "INSERT INTO domains (name, defaults, changed, published, sized, approvals) \
                   VALUES ($1, '{}', 0, 0, 0, $2) \
                   ON CONFLICT (name) DO UPDATE SET approvals = excluded.approvals";
        let query = sqlx::query(sql).bind(domain.to_owned()).bind(needed);
        query.execute(&mut *self.tx).await?;
        self.noted.domains.insert(domain.to_owned());
        self.note_kept(domain.len());
        Ok(())
    }

    /// Approves the draft of a domain as it is at the change of this number. A person has one
    /// approval, with whatever token.
    pub async fn approve(&mut self, domain: &str, changed: i64) -> StoreResult<()> {
        let sql = "INSERT INTO approvals (domain, approver, author, changed, at, given_by) \
                   VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (domain, approver) DO UPDATE SET \
                   author = excluded.author, changed = excluded.changed, at = excluded.at, \
                   given_by = excluded.given_by";
        let Identity { id, person } = self.identity.clone();
        let query = sqlx::query(sql).bind(domain.to_owned()).bind(person);
        let query = query.bind(self.author.name.clone()).bind(changed).bind(self.at).bind(id);
        query.execute(&mut *self.tx).await?;
        self.noted.domains.insert(domain.to_owned());
        Ok(())
    }

    /// Refuses to publish the text of a draft that lacks approvals, unless an administrator has
    /// this write skip them, which the audit log then shows. If this is a roll back, a text that
    /// the domain had before the present one needs no approvals: one person may undo the last
    /// change alone, and not undo that again.
    ///
    /// # Errors
    /// [`StoreError::NotApproved`] if it lacks approvals.
    pub async fn need_approvals(
        &mut self,
        text: &PublishedText,
        is_roll_back: bool,
    ) -> StoreResult<()> {
        let domain = &text.domain;
        let sql = "SELECT approvals, hash FROM domains WHERE name = $1";
        let query = sqlx::query_as(sql).bind(domain.clone()).fetch_optional(&mut *self.tx);
        let (needed, present): (i64, Option<String>) = query.await?.unwrap_or_default();
        let hash = text.hash();
        if needed == 0 || hash == present {
            return Ok(());
        }
        if is_roll_back && self.is_last_undone(domain, &present, &hash).await? {
            return Ok(());
        }
        let query = bound(GIVEN, vec![Cell::Text(domain.clone()), Cell::Int(text.changed)]);
        let given = query.fetch_all(&mut *self.tx).await?.len();
        let given = i64::try_from(given).unwrap_or(i64::MAX);
        if given >= needed && self.writer != Writer::Objects {
            return Ok(());
        }
        if !self.skips_approvals {
            return Err(StoreError::NotApproved { domain: domain.clone(), needed, given });
        }
        self.noted.domains.insert(domain.clone());
        self.note_action("approval.skip", &format!("{domain}: {given} of {needed}")).await
    }

    /// Whether a text, by its hash, undoes the last change of a domain, and that has undone none.
    async fn is_last_undone(
        &mut self,
        domain: &str,
        present: &Option<String>,
        hash: &Option<String>,
    ) -> StoreResult<bool> {
        let sql = "SELECT hash FROM version_domains WHERE domain = $1 \
                   ORDER BY version DESC LIMIT 2 OFFSET 1";
        let query = sqlx::query_as(sql).bind(domain.to_owned());
        let rows: Vec<(Option<String>,)> = query.fetch_all(&mut *self.tx).await?;
        let mut former = rows.into_iter().map(|(hash,)| hash);
        // A domain without a former version had no rules.
        let is_former = former.next().unwrap_or_default() == *hash;
        Ok(is_former && former.next().is_none_or(|it| it != *present))
    }
}

// === impl DraftApprovals ===

impl DraftApprovals {
    /// Reads the approvals of a domain's draft; `None` if there is no such domain.
    async fn of(connection: &mut AnyConnection, domain: &str) -> StoreResult<Option<Self>> {
        let query = bound(HEAD, vec![Cell::Text(domain.to_owned())]);
        let Some(row) = query.fetch_optional(&mut *connection).await? else { return Ok(None) };
        let mut found = Self::read(&row)?;
        let query = bound(AUTHORS, vec![Cell::Text(domain.to_owned())]);
        found.authors = authors(&query.fetch_all(&mut *connection).await?)?;
        let cells = vec![Cell::Text(domain.to_owned()), Cell::Int(found.changed)];
        found.given = given(&bound(GIVEN, cells).fetch_all(connection).await?)?;
        Ok(Some(found))
    }

    fn read(row: &AnyRow) -> StoreResult<Self> {
        let (needed, changed) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Self { needed, changed, owner: row.try_get(2)?, ..Self::default() })
    }
}

fn authors(rows: &[AnyRow]) -> StoreResult<Vec<DraftAuthor>> {
    let read = |row: &AnyRow| Ok(DraftAuthor { name: row.try_get(0)?, person: row.try_get(1)? });
    rows.iter().map(read).collect()
}

fn given(rows: &[AnyRow]) -> StoreResult<Vec<ApprovalRow>> {
    let read = |row: &AnyRow| {
        let (approver, author, at) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        Ok(ApprovalRow { approver, author, at })
    };
    rows.iter().map(read).collect()
}
