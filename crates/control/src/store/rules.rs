//! The rules of the draft, and what changed in them.

use serde_json::{Map, Value, json};
use sqlx::any::AnyRow;
use sqlx::{Any, Executor, Row};

use super::page::PageQuery;
use super::versions::of_domains;
use super::write::{Cell, bound};
use super::{Store, StoreResult, Write};
use crate::document::{Entry, Record, RuleId};

/// The columns of a rule, in the order that [`StoredRule::read`] needs.
const COLUMNS: &str = "id, domain, entries, settings, position, revision, updated_at, updated_by";

/// The order of rules.
const ORDER: &str = "domain, position, id";

/// Maximum number of rules that one page of a search looks at. It looks for the text itself: LIKE
/// takes time in proportion to the bytes of both texts, and goes on when its request has gone.
const SEARCHED_MAX: usize = 5000;

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
    /// Whose entries or settings, but for the metadata, contain this text in whatever case.
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
    /// The rule of this id in the draft, if it is of one of these domains; `None` for any.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn rule(
        &self,
        id: &str,
        domains: Option<&[String]>,
    ) -> StoreResult<Option<StoredRule>> {
        find(&self.pool, id, domains).await
    }

    /// At most `limit` rules of the draft, which begin after `after`. A search looks at a bounded
    /// number of rules, so that a page of one may have none although there are further ones.
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
        let sought = filter.text.as_ref().map(|it| it.to_ascii_lowercase());
        let rows_max = if sought.is_some() { SEARCHED_MAX } else { limit };
        let query =
            PageQuery { columns: COLUMNS, from, order: ORDER, texts, cells, limit: rows_max };
        let (rows, mut has_more) = query.fetch(&self.pool).await?;
        let (mut rules, mut last) = (Vec::new(), None);
        for row in &rows {
            if rules.len() == limit {
                has_more = true;
                break;
            }
            let rule = StoredRule::read(row)?;
            last = Some(rule.place());
            if sought.as_ref().is_none_or(|text| rule.has_text(text)) {
                rules.push(rule);
            }
        }
        Ok(RulePage { rules, next: last.filter(|_| has_more) })
    }

    /// All rules of the draft of a domain, which a ceiling bounds.
    pub(super) async fn rules_of(&self, domain: &str) -> StoreResult<Vec<StoredRule>> {
        let filter = RuleFilter { domains: Some(vec![domain.to_owned()]), ..RuleFilter::default() };
        select(&self.pool, &filter).await
    }
}

/// The rule of this id, of one of these domains. One of another domain is not even read, so that
/// time does not tell it from one that is not there.
async fn find<'e>(
    executor: impl Executor<'e, Database = Any>,
    id: &str,
    domains: Option<&[String]>,
) -> StoreResult<Option<StoredRule>> {
    let mut cells = vec![Cell::Text(id.to_owned())];
    let of_domains = of_domains(domains, &mut cells);
    let sql = format!("SELECT {COLUMNS} FROM rules WHERE id = $1{of_domains}");
    let row = bound(&sql, cells).fetch_optional(executor).await?;
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
        find(&mut *self.tx, id, None).await
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
    pub(super) const INTO: &str = "rules (id, domain, entries, settings, position, revision, \
                        updated_at, updated_by, scope, scope_value)";

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

    fn place(&self) -> RulePosition {
        let (domain, id) = (self.domain.clone(), self.id.to_string());
        RulePosition { domain, position: self.position, id }
    }

    /// Whether the entries or settings contain a text, which is in lower case.
    fn has_text(&self, text: &str) -> bool {
        let is_in = |of: String| of.to_ascii_lowercase().contains(text);
        let settings = self.record.settings.iter().filter(|(name, _)| *name != "metadata");
        is_in(Entry::list_to_text(&self.record.entries)) || { settings }
            .any(|(name, value)| is_in(format!("\"{name}\":{value}")))
    }

    /// The bytes that count for the ceilings of drafts.
    pub(super) fn bytes(&self) -> i64 {
        // Its entries and settings.
        let bytes = self.cells().get(2..4).into_iter().flatten().map(Cell::bytes).sum::<usize>();
        i64::try_from(bytes).unwrap_or(i64::MAX)
    }

    pub(super) fn cells(&self) -> Vec<Cell> {
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
