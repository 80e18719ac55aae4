//! What changed in the rules of the draft.

use serde_json::{Map, Value, json};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::page::PageQuery;
use super::versions::of_domains;
use super::write::Cell;
use super::{Store, StoreResult, Write};
use crate::document::{RuleChange, RuleId};

/// A change of a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangeRow {
    /// Its number.
    pub number: i64,
    /// The settings before; `None` if the rule was added.
    pub before: Option<Value>,
    /// The settings after; `None` if it was removed.
    pub after: Option<Value>,
    /// When, in milliseconds since the Unix epoch.
    pub at: i64,
    /// Who.
    pub author: String,
    /// Why.
    pub reason: String,
}

// === impl Store ===

impl Store {
    /// At most `limit` changes of a rule that are before the number `before`, the latest first, and
    /// whether there are more. None if the rule is of another domain than these; `None` for any.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn changes(
        &self,
        id: &str,
        domains: Option<&[String]>,
        before: i64,
        limit: usize,
    ) -> StoreResult<(Vec<ChangeRow>, bool)> {
        let mut cells = vec![Cell::Text(id.to_owned()), Cell::Int(before)];
        let of_domains = of_domains(domains, &mut cells);
        let query = PageQuery {
            columns: "number, before, after, at, author, reason",
            from: format!("changes WHERE rule = $1 AND number < $2{of_domains}"),
            order: "number DESC",
            texts: &["before", "after", "reason"],
            cells,
            limit,
        };
        let (rows, has_more) = query.fetch(&self.pool).await?;
        let json = |text: Option<String>| text.map(|it| serde_json::from_str(&it)).transpose();
        let read = |row: &AnyRow| {
            Ok(ChangeRow {
                number: row.try_get(0)?,
                before: json(row.try_get(1)?)?,
                after: json(row.try_get(2)?)?,
                at: row.try_get(3)?,
                author: row.try_get(4)?,
                reason: row.try_get(5)?,
            })
        };
        let changes = rows.iter().map(read).collect::<StoreResult<_>>()?;
        Ok((changes, has_more))
    }
}

// === impl Write ===

impl Write {
    /// Adds a change of one rule to the history.
    pub(super) async fn note_change(
        &mut self,
        domain: &str,
        id: &RuleId,
        before: Option<&Map<String, Value>>,
        after: Option<&Map<String, Value>>,
    ) -> StoreResult<()> {
        let entries = Vec::new();
        let (before, after) = (before.cloned(), after.cloned());
        let change = RuleChange { id: id.clone(), entries, before, after };
        self.note_changes(domain, &[change]).await
    }

    /// Adds changes to the history. Takes a number for each change.
    pub(super) async fn note_changes(
        &mut self,
        domain: &str,
        changes: &[RuleChange],
    ) -> StoreResult<()> {
        let first = self.take_numbers(i64::try_from(changes.len()).unwrap_or(i64::MAX)).await?;
        let text = |of: &Option<Map<String, Value>>| {
            Cell::Nullable(of.as_ref().map(|settings| json!(settings).to_string()))
        };
        let rows = changes.iter().zip(first..).map(|(change, number)| {
            vec![
                Cell::Int(number),
                Cell::Text(domain.to_owned()),
                Cell::Text(change.id.to_string()),
                text(&change.before),
                text(&change.after),
                Cell::Int(self.at),
                Cell::Text(self.author.name.clone()),
                Cell::Text(self.author.reason.clone()),
            ]
        });
        let rows = rows.collect();
        let into = "changes (number, domain, rule, before, after, at, author, reason)";
        self.keep(into, rows).await
    }
}
