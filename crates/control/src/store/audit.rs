//! The audit log. The database refuses to edit it.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::page::PageQuery;
use super::write::Cell;
use super::{Rollout, Stage, Store, StoreResult, Write};

/// One action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Its number.
    pub number: i64,
    /// When, in milliseconds since the Unix epoch.
    pub at: i64,
    /// Who.
    pub author: String,
    /// What, as in `rule.change`.
    pub action: String,
    /// To what.
    pub subject: String,
    /// Why.
    pub reason: String,
}

// === impl Store ===

impl Store {
    /// At most `limit` actions before the number `before`, the latest first, and whether there are
    /// more.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn audit(&self, before: i64, limit: usize) -> StoreResult<(Vec<AuditRow>, bool)> {
        let query = PageQuery {
            columns: "number, at, author, action, subject, reason",
            from: "audit WHERE number < $1".to_owned(),
            order: "number DESC",
            texts: &["subject", "reason"],
            cells: vec![Cell::Int(before)],
            limit,
        };
        let (rows, has_more) = query.fetch(&self.pool).await?;
        Ok((rows.iter().map(AuditRow::read).collect::<StoreResult<_>>()?, has_more))
    }
}

// === impl Write ===

impl Write {
    /// Adds to the audit log what this write does.
    pub(crate) async fn note_action(&mut self, action: &str, subject: &str) -> StoreResult<()> {
        let row = vec![
            Cell::Int(self.take_numbers(1).await?),
            Cell::Int(self.at),
            Cell::Text(self.author.name.clone()),
            Cell::Text(action.to_owned()),
            Cell::Text(subject.to_owned()),
            Cell::Text(self.author.reason.clone()),
        ];
        self.keep("audit (number, at, author, action, subject, reason)", vec![row]).await
    }

    /// Adds a step of a rollout to the audit log.
    pub(crate) async fn note_rollout(
        &mut self,
        rollout: &Rollout,
        stage: Stage,
        version: i64,
    ) -> StoreResult<()> {
        let domains: Vec<_> = rollout.domains.iter().map(|it| &*it.domain).collect();
        let (id, domains) = (rollout.id, domains.join(", "));
        let subject = format!("{id}: {domains}: {}, version {version}", rollout.choice);
        self.note_action(&format!("rollout.{}", stage.name()), &subject).await
    }
}

// === impl AuditRow ===

impl AuditRow {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        Ok(Self {
            number: row.try_get(0)?,
            at: row.try_get(1)?,
            author: row.try_get(2)?,
            action: row.try_get(3)?,
            subject: row.try_get(4)?,
            reason: row.try_get(5)?,
        })
    }
}
