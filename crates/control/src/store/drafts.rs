//! The draft, domain by domain.

use serde_json::{Map, Value};
use sqlx::{AssertSqlSafe, Row};

use super::ceiling::DRAFT_RULES;
use super::{Store, StoreResult, StoredRule, Write};
use crate::document::Document;

/// A domain of the draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftDomain {
    /// Its name.
    pub name: String,
    /// The number of the last change of its draft.
    pub changed: i64,
    /// Whether something of it is not published.
    pub is_changed: bool,
    /// Number of its rules.
    pub rules: i64,
}

/// The draft of a domain.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// Its rules.
    pub document: Document,
    /// The number of its last change.
    pub changed: i64,
}

/// The draft of a domain as it is stored.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredDraft {
    /// The number of its last change; `None` if the domain has no draft.
    pub changed: Option<i64>,
    /// Its `defaults`.
    pub defaults: Map<String, Value>,
    /// Its rules, in their order.
    pub rules: Vec<StoredRule>,
}

/// Attempts to read a draft that does not change meanwhile.
const ATTEMPTS_MAX: usize = 5;

// === impl Store ===

impl Store {
    /// All domains, by name.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn domains(&self) -> StoreResult<Vec<DraftDomain>> {
        let sql =
            format!("SELECT name, changed, published, {DRAFT_RULES} FROM domains ORDER BY name");
        let query = sqlx::query_as(AssertSqlSafe(sql));
        let rows: Vec<(String, i64, i64, i64)> = query.fetch_all(&self.pool).await?;
        let domain = |(name, changed, published, rules)| DraftDomain {
            name,
            changed,
            is_changed: changed != published,
            rules,
        };
        Ok(rows.into_iter().map(domain).collect())
    }

    /// The draft of a domain; an empty one if there is none.
    ///
    /// # Errors
    /// [`StoreError::Moved`](super::StoreError) if others change it all the time.
    pub async fn draft(&self, domain: &str) -> StoreResult<Draft> {
        let StoredDraft { changed, defaults, rules } = self.stored_draft(domain).await?;
        let records = rules.into_iter().map(|rule| rule.record).collect();
        let document = Document { domain: domain.to_owned(), defaults, records };
        Ok(Draft { document, changed: changed.unwrap_or_default() })
    }

    /// The draft of a domain, with all that is stored of its rules.
    ///
    /// # Errors
    /// [`StoreError::Moved`](super::StoreError) if others change it all the time.
    pub async fn stored_draft(&self, domain: &str) -> StoreResult<StoredDraft> {
        for _ in 0..ATTEMPTS_MAX {
            let (changed, defaults) = self.draft_head(domain).await?;
            let rules = self.rules_of(domain).await?;
            if self.draft_head(domain).await?.0 == changed {
                return Ok(StoredDraft { changed, defaults, rules });
            }
        }
        Err(super::StoreError::Moved(domain.to_owned()))
    }

    /// The `defaults` of a domain's draft.
    pub(crate) async fn defaults(&self, domain: &str) -> StoreResult<Map<String, Value>> {
        Ok(self.draft_head(domain).await?.1)
    }

    async fn draft_head(&self, domain: &str) -> StoreResult<(Option<i64>, Map<String, Value>)> {
        let sql = "SELECT changed, defaults FROM domains WHERE name = $1";
        let row = sqlx::query(sql).bind(domain.to_owned()).fetch_optional(&self.pool).await?;
        let Some(row) = row else { return Ok((None, Map::new())) };
        let defaults: String = row.try_get(1)?;
        Ok((Some(row.try_get(0)?), serde_json::from_str(&defaults)?))
    }
}

// === impl Write ===

impl Write {
    /// Notes that the draft of a domain changes, and makes the domain if there is none.
    pub(super) async fn touch_domain(&mut self, domain: &str) -> StoreResult<()> {
        let sql = "INSERT INTO domains (name, defaults, changed, published, sized) \
                   VALUES ($1, '{}', $2, 0, $2) \
                   ON CONFLICT (name) DO UPDATE SET changed = excluded.changed, sized = \
                   CASE WHEN domains.sized = domains.changed THEN excluded.changed \
                   ELSE domains.sized END";
        let query = sqlx::query(sql).bind(domain.to_owned()).bind(self.number());
        query.execute(&mut *self.tx).await?;
        // A domain keeps its row. One that has it already is counted as well, for so few bytes.
        self.note_kept(domain.len());
        Ok(())
    }

    /// Whether a domain has changes that are not published, and the number of the last one.
    pub(crate) async fn draft_state(&mut self, domain: &str) -> StoreResult<(bool, i64)> {
        let (changed, published) = self.draft_numbers(domain).await?.unwrap_or_default();
        Ok((changed != published, changed))
    }

    /// The number of the last change of a draft; `None` if there is none.
    pub(super) async fn last_change(&mut self, domain: &str) -> StoreResult<Option<i64>> {
        Ok(self.draft_numbers(domain).await?.map(|(changed, _)| changed))
    }

    async fn draft_numbers(&mut self, domain: &str) -> StoreResult<Option<(i64, i64)>> {
        let sql = "SELECT changed, published FROM domains WHERE name = $1";
        let query = sqlx::query_as(sql).bind(domain.to_owned());
        Ok(query.fetch_optional(&mut *self.tx).await?)
    }
}
