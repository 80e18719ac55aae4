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
        let sql = "INSERT INTO audit (number, at, author, action, subject, reason) \
                   VALUES ($1, $2, $3, $4, $5, $6)";
        let number = self.take_numbers(1).await?;
        let query = sqlx::query(sql)
            .bind(number)
            .bind(self.at)
            .bind(self.author.name.clone())
            .bind(action.to_owned())
            .bind(subject.to_owned())
            .bind(self.author.reason.clone());
        query.execute(&mut *self.tx).await?;
        Ok(())
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
