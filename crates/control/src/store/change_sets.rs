//! Change sets: changes of rules that their author keeps beside the shared draft until they are
//! submitted to it.

use serde::Serialize;
use serde_json::{Map, Value, json};
use sqlx::any::AnyRow;
use sqlx::{Any, Executor, Row};
use utoipa::ToSchema;

use super::approvals::DraftAuthor;
use super::query::{Cell, bound};
use super::versions::places;
use super::write::Identity;
use super::{Store, StoreError, StoreResult, Write, as_time};
use crate::document::{Entry, RuleId};

/// Maximum number of change sets of one author.
const SETS_MAX: i64 = 20;

/// Maximum number of change sets of all authors.
const ALL_SETS_MAX: i64 = 2000;

/// Maximum number of rules that a set changes.
const RULES_MAX: i64 = 200;

/// Maximum bytes of their entries and settings.
const BYTES_MAX: i64 = 1 << 20;

/// A change set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ChangeSetView)]
pub struct ChangeSet {
    /// The id.
    pub id: String,
    /// The name that its author gives it.
    pub name: String,
    /// The token or person that made it.
    pub author: String,
    /// The id of that token or person, whatever the name.
    #[serde(skip)]
    pub owner: String,
    /// Who is responsible for it, as ISSUER#SUBJECT or the id of a token.
    #[serde(skip)]
    pub person: String,
    /// When.
    #[serde(serialize_with = "as_time")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
    /// The domains whose rules it changes.
    pub domains: Vec<String>,
    /// Number of rules that it changes.
    pub rules: i64,
}

/// The reader of a list of change sets. A token or person sees the sets whose rules are all of
/// domains that it may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetReader {
    /// The id of the token or person.
    pub id: String,
    /// Whether the reader sees sets without rules that others made. Its own ones it always sees.
    pub sees_empty: bool,
    /// The domains that it may use; `None` for all.
    pub domains: Option<Vec<String>>,
}

/// A change of one rule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = SetChangeView)]
pub struct SetChange {
    /// The rule.
    pub rule: RuleId,
    /// The domain.
    pub domain: String,
    /// The entries of the rule.
    pub entries: Vec<Entry>,
    /// The base: the settings in the shared draft when the change was made; null if there was no such
    /// rule.
    #[schema(value_type = Option<Object>)]
    pub before: Option<Map<String, Value>>,
    /// The settings that it is to have; null to remove it.
    #[schema(value_type = Option<Object>)]
    pub after: Option<Map<String, Value>>,
    /// Who put it into the set; `None` for the author of the set.
    #[serde(skip)]
    pub put_by: Option<DraftAuthor>,
}

// === impl Store ===

impl Store {
    /// At most `limit` change sets that a reader sees, the latest first, which were made before
    /// `before`: a time in milliseconds since the Unix epoch, and an id.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn change_sets(
        &self,
        reader: &SetReader,
        before: (i64, String),
        limit: usize,
    ) -> StoreResult<Vec<ChangeSet>> {
        let (at, id) = before;
        let limit = Cell::Int(i64::try_from(limit).unwrap_or(i64::MAX));
        let owner = Cell::Text(reader.id.clone());
        let sees_empty = Cell::Int(i64::from(reader.sees_empty));
        let mut cells = vec![Cell::Int(at), Cell::Text(id), limit, owner, sees_empty];
        let rules = "SELECT 1 FROM change_set_rules r WHERE r.change_set = s.id";
        let of_others = format!(" AND (s.owner = $4 OR $5 = 1 OR EXISTS ({rules}))");
        let of_domains = match &reader.domains {
            None => String::new(),
            Some(domains) if domains.is_empty() => format!(" AND NOT EXISTS ({rules})"),
            Some(domains) => {
                let places = places(cells.len() + 1, domains.len());
                cells.extend(domains.iter().cloned().map(Cell::Text));
                format!(" AND NOT EXISTS ({rules} AND r.domain NOT IN ({places}))")
            }
        };
        let from = format!(
            "(SELECT s.* FROM change_sets s WHERE (s.created_at < $1 OR (s.created_at = $1 \
             AND s.id < $2)){of_others}{of_domains} \
             ORDER BY s.created_at DESC, s.id DESC LIMIT $3)"
        );
        change_sets(&self.pool, &from, "", cells).await
    }

    /// The change set of this id.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn change_set(&self, id: &str) -> StoreResult<Option<ChangeSet>> {
        let cells = vec![Cell::Text(id.to_owned())];
        Ok(change_sets(&self.pool, "change_sets", "WHERE s.id = $1", cells).await?.pop())
    }

    /// The changes of a set, by domain and entries.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn set_changes(&self, id: &str) -> StoreResult<Vec<SetChange>> {
        set_changes(&self.pool, id).await
    }
}

async fn change_sets<'e>(
    executor: impl Executor<'e, Database = Any>,
    from: &str,
    condition: &str,
    cells: Vec<Cell>,
) -> StoreResult<Vec<ChangeSet>> {
    let sql = format!(
        "SELECT s.id, s.name, s.author, s.created_at, c.domain, COUNT(c.rule) AS rules, s.owner, \
         s.person \
         FROM {from} s LEFT JOIN change_set_rules c ON c.change_set = s.id {condition} \
         GROUP BY s.id, s.name, s.author, s.created_at, s.owner, s.person, c.domain \
         ORDER BY s.created_at DESC, s.id DESC, c.domain"
    );
    let mut sets: Vec<ChangeSet> = Vec::new();
    for row in bound(&sql, cells).fetch_all(executor).await? {
        let id: String = row.try_get(0)?;
        if sets.last().is_none_or(|it| it.id != id) {
            let (name, author) = (row.try_get(1)?, row.try_get(2)?);
            let (created_at, owner, person) = (row.try_get(3)?, row.try_get(6)?, row.try_get(7)?);
            let domains = Vec::new();
            sets.push(ChangeSet { id, name, author, owner, person, created_at, domains, rules: 0 });
        }
        let domain: Option<String> = row.try_get(4)?;
        if let (Some(set), Some(domain)) = (sets.last_mut(), domain) {
            set.domains.push(domain);
            set.rules += row.try_get::<i64, _>(5)?;
        }
    }
    Ok(sets)
}

async fn set_changes<'e>(
    executor: impl Executor<'e, Database = Any>,
    id: &str,
) -> StoreResult<Vec<SetChange>> {
    let sql = "SELECT rule, domain, entries, before, after, author, person FROM change_set_rules \
               WHERE change_set = $1 ORDER BY domain, entries";
    let rows = bound(sql, vec![Cell::Text(id.to_owned())]).fetch_all(executor).await?;
    rows.iter().map(SetChange::read).collect()
}

// === impl SetChange ===

impl SetChange {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        let settings = |text: Option<String>| text.map(|it| serde_json::from_str(&it)).transpose();
        let entries: String = row.try_get(2)?;
        let put_by = DraftAuthor { name: row.try_get(5)?, person: row.try_get(6)? };
        Ok(Self {
            rule: RuleId::from(row.try_get::<String, _>(0)?),
            domain: row.try_get(1)?,
            entries: serde_json::from_str(&entries)?,
            before: settings(row.try_get(3)?)?,
            after: settings(row.try_get(4)?)?,
            put_by: Some(put_by).filter(|it| !it.name.is_empty()),
        })
    }
}

// === impl Write ===

impl Write {
    /// The change set of this id.
    pub async fn change_set(&mut self, id: &str) -> StoreResult<Option<ChangeSet>> {
        let cells = vec![Cell::Text(id.to_owned())];
        Ok(change_sets(&mut *self.tx, "change_sets", "WHERE s.id = $1", cells).await?.pop())
    }

    /// The changes of a set, by domain and entries.
    pub async fn set_changes(&mut self, id: &str) -> StoreResult<Vec<SetChange>> {
        set_changes(&mut *self.tx, id).await
    }

    /// Adds an empty change set of the author of this write.
    ///
    /// # Errors
    /// [`StoreError::TooMany`] if the author has as many as one may have, or all together.
    pub async fn add_change_set(&mut self, id: &str, name: &str) -> StoreResult<ChangeSet> {
        let sql = "SELECT COUNT(*), COUNT(CASE WHEN owner = $1 THEN 1 END) FROM change_sets";
        let query = sqlx::query_as(sql).bind(self.identity.id.clone());
        let (all, own): (i64, i64) = query.fetch_one(&mut *self.tx).await?;
        if own >= SETS_MAX || all >= ALL_SETS_MAX {
            return Err(StoreError::TooMany(format!(
                "there are {own} change sets of this author and {all} of all; expected at most \
                 {SETS_MAX} and {ALL_SETS_MAX}. Submit or remove some"
            )));
        }
        let row = vec![
            Cell::Text(id.to_owned()),
            Cell::Text(name.to_owned()),
            Cell::Text(self.author.name.clone()),
            Cell::Int(self.at),
            Cell::Text(self.identity.id.clone()),
            Cell::Text(self.identity.person.clone()),
        ];
        let into = "change_sets (id, name, author, created_at, owner, person)";
        self.keep(into, vec![row]).await?;
        let Identity { id: owner, person } = self.identity.clone();
        let (id, name, author) = (id.to_owned(), name.to_owned(), self.author.name.clone());
        let (created_at, domains) = (self.at, Vec::new());
        Ok(ChangeSet { id, name, author, owner, person, created_at, domains, rules: 0 })
    }

    /// Puts a change into a set, in place of the one that it has of this rule.
    ///
    /// # Errors
    /// [`StoreError::TooMany`] if the set would be too large.
    pub async fn put_set_change(&mut self, set: &str, change: &SetChange) -> StoreResult<()> {
        self.remove_set_change(set, change.rule.as_str()).await?;
        let settings = |it: &Option<Map<_, _>>| it.as_ref().map(|it| json!(it).to_string());
        let row = vec![
            Cell::Text(set.to_owned()),
            Cell::Text(change.rule.to_string()),
            Cell::Text(change.domain.clone()),
            Cell::Text(Entry::list_to_text(&change.entries)),
            Cell::Nullable(settings(&change.before)),
            Cell::Nullable(settings(&change.after)),
            Cell::Text(self.author.name.clone()),
            Cell::Text(self.identity.person.clone()),
        ];
        let into =
            "change_set_rules (change_set, rule, domain, entries, before, after, author, person)";
        self.keep(into, vec![row]).await?;
        let sql = "SELECT COUNT(*), CAST(COALESCE(SUM(OCTET_LENGTH(entries) \
                   + COALESCE(OCTET_LENGTH(before), 0) + COALESCE(OCTET_LENGTH(after), 0)), 0) \
                   AS BIGINT) FROM change_set_rules WHERE change_set = $1";
        let query = sqlx::query_as(sql).bind(set.to_owned());
        let (rules, bytes): (i64, i64) = query.fetch_one(&mut *self.tx).await?;
        if rules <= RULES_MAX && bytes <= BYTES_MAX {
            return Ok(());
        }
        Err(StoreError::TooMany(format!(
            "the change set would have {rules} rules and {bytes} bytes; expected at most \
             {RULES_MAX} and {BYTES_MAX}. Submit it first, or import a rule file"
        )))
    }

    /// Takes the change of a rule out of a set. Returns whether it had one.
    pub async fn remove_set_change(&mut self, set: &str, rule: &str) -> StoreResult<bool> {
        let sql = "DELETE FROM change_set_rules WHERE change_set = $1 AND rule = $2";
        let query = sqlx::query(sql).bind(set.to_owned()).bind(rule.to_owned());
        Ok(query.execute(&mut *self.tx).await?.rows_affected() > 0)
    }

    /// Removes a change set.
    pub async fn remove_change_set(&mut self, id: &str) -> StoreResult<()> {
        for sql in [
            "DELETE FROM change_set_rules WHERE change_set = $1",
            "DELETE FROM change_sets WHERE id = $1",
        ] {
            sqlx::query(sql).bind(id.to_owned()).execute(&mut *self.tx).await?;
        }
        Ok(())
    }
}
