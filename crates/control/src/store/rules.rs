//! The rules of the draft, and what changed in them.

use serde_json::{Map, Value, json};
use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Executor, Row};

use super::page::PageQuery;
use super::write::{Cell, bound};
use super::{Store, StoreResult, Write};
use crate::document::{Document, Entry, Record, RuleId, difference};

/// The columns of a rule, in the order that [`StoredRule::read`] needs.
const COLUMNS: &str = "id, domain, entries, settings, position, revision, updated_at, updated_by";

/// The order of rules.
const ORDER: &str = "domain, position, id";

/// A rule of the draft.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRule {
    /// Its id.
    pub id: RuleId,
    /// Its domain.
    pub domain: String,
    /// Its entries and settings.
    pub record: Record,
    /// Its place in the domain: lower ones come first.
    pub position: i64,
    /// The number of its last change.
    pub revision: i64,
    /// When that was, in milliseconds since the Unix epoch.
    pub updated_at: i64,
    /// Who made it.
    pub updated_by: String,
}

/// Which rules are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleFilter {
    /// Of these domains; `None` for all.
    pub domains: Option<Vec<String>>,
    /// Whose first entry has this key.
    pub scope: Option<String>,
    /// Whose first entry has this value; empty for none.
    pub scope_value: Option<String>,
    /// Whose entries or settings contain this text.
    pub text: Option<String>,
}

/// Where a page of rules ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulePosition {
    /// The domain of the last rule.
    pub domain: String,
    /// Its position.
    pub position: i64,
    /// Its id.
    pub id: String,
}

/// Some rules, by domain and position.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RulePage {
    /// The rules.
    pub rules: Vec<StoredRule>,
    /// Where the next page begins; `None` if there is none.
    pub next: Option<RulePosition>,
}

// === impl Store ===

impl Store {
    /// The rule of this id in the draft.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn rule(&self, id: &str) -> StoreResult<Option<StoredRule>> {
        find(&self.pool, id).await
    }

    /// At most `limit` rules of the draft, which begin after `after`.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn rules(
        &self,
        filter: &RuleFilter,
        after: Option<&RulePosition>,
        limit: usize,
    ) -> StoreResult<RulePage> {
        let (from, cells) = list_query(filter, after);
        let texts = &["entries", "settings"];
        let query = PageQuery { columns: COLUMNS, from, order: ORDER, texts, cells, limit };
        let (rows, has_more) = query.fetch(&self.pool).await?;
        let rules = rows.iter().map(StoredRule::read).collect::<StoreResult<Vec<_>>>()?;
        let next = rules.last().filter(|_| has_more).map(|last| RulePosition {
            domain: last.domain.clone(),
            position: last.position,
            id: last.id.to_string(),
        });
        Ok(RulePage { rules, next })
    }

    /// All rules of the draft of a domain, which a ceiling bounds.
    pub(super) async fn rules_of(&self, domain: &str) -> StoreResult<Vec<StoredRule>> {
        let filter = RuleFilter { domains: Some(vec![domain.to_owned()]), ..RuleFilter::default() };
        select(&self.pool, &filter).await
    }
}

/// The rule of this id.
async fn find<'e>(
    executor: impl Executor<'e, Database = Any>,
    id: &str,
) -> StoreResult<Option<StoredRule>> {
    let sql = AssertSqlSafe(format!("SELECT {COLUMNS} FROM rules WHERE id = $1"));
    let row = sqlx::query(sql).bind(id.to_owned()).fetch_optional(executor).await?;
    row.as_ref().map(StoredRule::read).transpose()
}

/// The rules that a filter finds.
async fn select<'e>(
    executor: impl Executor<'e, Database = Any>,
    filter: &RuleFilter,
) -> StoreResult<Vec<StoredRule>> {
    let (from, cells) = list_query(filter, None);
    let sql = format!("SELECT {COLUMNS} FROM {from} ORDER BY {ORDER}");
    let rows = bound(&sql, cells).fetch_all(executor).await?;
    rows.iter().map(StoredRule::read).collect()
}

/// The table and the condition of a list, and its parameters.
fn list_query(filter: &RuleFilter, after: Option<&RulePosition>) -> (String, Vec<Cell>) {
    let mut cells = Vec::new();
    let mut place = |cell: Cell| {
        cells.push(cell);
        format!("${}", cells.len())
    };
    let mut all = vec!["1 = 1".to_owned()];
    if let Some(domains) = &filter.domains {
        let places = domains.iter().map(|name| place(Cell::Text(name.clone())));
        let places = places.collect::<Vec<_>>().join(",");
        all.push(if places.is_empty() { "1 = 0".into() } else { format!("domain IN ({places})") });
    }
    for (column, wanted) in [("scope", &filter.scope), ("scope_value", &filter.scope_value)] {
        if let Some(wanted) = wanted {
            all.push(format!("{column} = {}", place(Cell::Text(wanted.clone()))));
        }
    }
    if let Some(text) = &filter.text {
        let escaped = text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        let (one, other) = (format!("%{escaped}%"), format!("%{escaped}%"));
        let (one, other) = (place(Cell::Text(one)), place(Cell::Text(other)));
        all.push(format!("(entries LIKE {one} ESCAPE '\\' OR settings LIKE {other} ESCAPE '\\')"));
    }
    if let Some(RulePosition { domain, position, id }) = after {
        let domain = place(Cell::Text(domain.clone()));
        let (position, id) = (place(Cell::Int(*position)), place(Cell::Text(id.clone())));
        all.push(format!("(domain, position, id) > ({domain}, {position}, {id})"));
    }
    (format!("rules WHERE {}", all.join(" AND ")), cells)
}

// === impl Write ===

impl Write {
    /// The rule of this id in the draft.
    pub(crate) async fn rule(&mut self, id: &str) -> StoreResult<Option<StoredRule>> {
        find(&mut *self.tx, id).await
    }

    /// Adds a rule at the end of its domain. [`StoreError::Duplicate`](super::StoreError) if there
    /// is one of its address.
    pub(crate) async fn add_rule(
        &mut self,
        domain: &str,
        record: &Record,
    ) -> StoreResult<StoredRule> {
        self.touch_domain(domain).await?;
        let number = self.number();
        let rule = StoredRule {
            id: record.id(domain),
            domain: domain.to_owned(),
            record: record.clone(),
            // Numbers grow, so that this is after all others.
            position: number,
            revision: number,
            updated_at: self.at,
            updated_by: self.author.name.clone(),
        };
        self.resize(domain, 1, rule.bytes()).await?;
        self.insert(StoredRule::INTO, vec![rule.cells()]).await?;
        self.note_change(domain, &rule.id, None, Some(&record.settings)).await?;
        Ok(rule)
    }

    /// Replaces the settings of a rule.
    pub(crate) async fn change_rule(
        &mut self,
        rule: &StoredRule,
        settings: Map<String, Value>,
    ) -> StoreResult<StoredRule> {
        self.touch_domain(&rule.domain).await?;
        let (before, number) = (&rule.record.settings, self.number());
        let changed = StoredRule {
            record: Record { entries: rule.record.entries.clone(), settings },
            revision: number,
            updated_at: self.at,
            updated_by: self.author.name.clone(),
            ..rule.clone()
        };
        self.resize(&rule.domain, 0, changed.bytes() - rule.bytes()).await?;
        let sql = "UPDATE rules SET settings = $1, revision = $2, updated_at = $3, \
                   updated_by = $4 WHERE id = $5";
        let query = sqlx::query(sql)
            .bind(json!(changed.record.settings).to_string())
            .bind(number)
            .bind(self.at)
            .bind(changed.updated_by.clone())
            .bind(rule.id.to_string());
        query.execute(&mut *self.tx).await?;
        let after = Some(&changed.record.settings);
        self.note_change(&rule.domain, &rule.id, Some(before), after).await?;
        Ok(changed)
    }

    /// Removes a rule.
    pub(crate) async fn remove_rule(&mut self, rule: &StoredRule) -> StoreResult<()> {
        self.touch_domain(&rule.domain).await?;
        self.resize(&rule.domain, -1, -rule.bytes()).await?;
        let query = sqlx::query("DELETE FROM rules WHERE id = $1").bind(rule.id.to_string());
        query.execute(&mut *self.tx).await?;
        self.note_change(&rule.domain, &rule.id, Some(&rule.record.settings), None).await
    }

    /// Makes the draft of a domain this document. Rules that do not change keep their revision.
    /// Returns the number of rules that changed.
    pub(crate) async fn replace_domain(&mut self, document: &Document) -> StoreResult<usize> {
        let domain = &document.domain;
        self.touch_domain(domain).await?;
        let sql = "UPDATE domains SET defaults = $1 WHERE name = $2";
        let defaults = json!(document.defaults).to_string();
        let query = sqlx::query(sql).bind(defaults).bind(domain.clone());
        query.execute(&mut *self.tx).await?;
        let filter = RuleFilter { domains: Some(vec![domain.clone()]), ..RuleFilter::default() };
        let former = select(&mut *self.tx, &filter).await?;
        let (rules, bytes) = (former.len(), former.iter().map(StoredRule::bytes).sum::<i64>());
        let rules = i64::try_from(rules).unwrap_or(i64::MAX);
        let records = former.iter().map(|rule| rule.record.clone()).collect();
        let before = Document { domain: domain.clone(), records, ..Document::default() };
        let changes = difference(&before, document).rules;
        let number = self.number();
        self.note_changes(domain, &changes).await?;
        let count = i64::try_from(document.records.len()).unwrap_or(i64::MAX);
        let first = self.take_numbers(count).await?;
        let mut unchanged: std::collections::HashMap<RuleId, StoredRule> =
            former.into_iter().map(|rule| (rule.id.clone(), rule)).collect();
        let cells = document.records.iter().zip(first..).map(|(record, position)| {
            let id = record.id(domain);
            let same = unchanged.remove(&id).filter(|it| it.record == *record);
            let rule = same.map(|it| StoredRule { position, ..it });
            let rule = rule.unwrap_or_else(|| StoredRule {
                id,
                domain: domain.clone(),
                record: record.clone(),
                position,
                revision: number,
                updated_at: self.at,
                updated_by: self.author.name.clone(),
            });
            rule.cells()
        });
        let cells: Vec<_> = cells.collect();
        let size = |cells: &Vec<Cell>| StoredRule::bytes_of(cells);
        let bytes = cells.iter().map(size).sum::<i64>() - bytes;
        self.resize(domain, count - rules, bytes).await?;
        let query = sqlx::query("DELETE FROM rules WHERE domain = $1").bind(domain.clone());
        query.execute(&mut *self.tx).await?;
        self.insert(StoredRule::INTO, cells).await?;
        Ok(changes.len())
    }

    /// The rules of a domain whose first entry is this one.
    pub(crate) async fn rules_of_scope(
        &mut self,
        domain: &str,
        scope: &str,
        value: &str,
    ) -> StoreResult<Vec<StoredRule>> {
        let filter = RuleFilter {
            domains: Some(vec![domain.to_owned()]),
            scope: Some(scope.to_owned()),
            scope_value: Some(value.to_owned()),
            text: None,
        };
        select(&mut *self.tx, &filter).await
    }
}

// === impl StoredRule ===

impl StoredRule {
    const INTO: &str = "rules (id, domain, entries, settings, position, revision, updated_at, \
                        updated_by, scope, scope_value)";

    fn read(row: &AnyRow) -> StoreResult<Self> {
        let entries: String = row.try_get(2)?;
        let settings: String = row.try_get(3)?;
        Ok(Self {
            id: RuleId::from(row.try_get::<String, _>(0)?),
            domain: row.try_get(1)?,
            record: Record {
                entries: serde_json::from_str(&entries)?,
                settings: serde_json::from_str(&settings)?,
            },
            position: row.try_get(4)?,
            revision: row.try_get(5)?,
            updated_at: row.try_get(6)?,
            updated_by: row.try_get(7)?,
        })
    }

    /// The bytes that count for the ceilings of drafts.
    fn bytes(&self) -> i64 {
        Self::bytes_of(&self.cells())
    }

    /// The same of a row: its entries and settings.
    fn bytes_of(cells: &[Cell]) -> i64 {
        let bytes = cells.get(2..4).into_iter().flatten().map(Cell::bytes);
        i64::try_from(bytes.sum::<usize>()).unwrap_or(i64::MAX)
    }

    fn cells(&self) -> Vec<Cell> {
        let first = self.record.entries.first();
        let scope = first.map(|it| it.key.clone()).unwrap_or_default();
        let value = first.and_then(|it| it.value.clone()).unwrap_or_default();
        vec![
            Cell::Text(self.id.to_string()),
            Cell::Text(self.domain.clone()),
            Cell::Text(Entry::list_to_text(&self.record.entries)),
            Cell::Text(json!(self.record.settings).to_string()),
            Cell::Int(self.position),
            Cell::Int(self.revision),
            Cell::Int(self.updated_at),
            Cell::Text(self.updated_by.clone()),
            Cell::Text(scope),
            Cell::Text(value),
        ]
    }
}
