//! The draft: the rules of each domain, what changed in them, how another document takes their
//! place, and how large they may be.

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Executor, Row};
use utoipa::ToSchema;

use super::contents::{Change, Comparison, DRAFT_STATE, DraftState, state_of};
use super::query::{Cell, bound};
use super::versions::{of_domains, places, text_hash};
use super::write::{PageQuery, Writer};
use super::{Store, StoreError, StoreResult, Write, as_time};
use crate::document::{Content, Document, Entry, Record, RuleChange, RuleId, difference, render};
use crate::work::heavy;

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
    /// The id of the rule.
    pub id: RuleId,
    /// The domain of the rule.
    pub domain: String,
    /// The entries and settings of the rule.
    pub record: Record,
    /// The place of the rule in the domain: lower places come first.
    pub position: i64,
    /// The number of its last change.
    pub revision: i64,
    /// When the rule was last changed, in milliseconds since the Unix epoch.
    pub updated_at: i64,
    /// The author of the last change.
    pub updated_by: String,
}

/// The conditions of a list of rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleFilter {
    /// Rules of these domains; `None` for all.
    pub domains: Option<Vec<String>>,
    /// Rules whose first entry has this key.
    pub scope: Option<String>,
    /// Rules whose first entry has this value; empty for none.
    pub scope_value: Option<String>,
    /// Rules whose entries or settings, without the metadata, contain this text in whatever case.
    pub text: Option<String>,
}

/// The end of a page of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulePosition {
    /// The domain of the last rule.
    pub domain: String,
    /// The position of the last rule.
    pub position: i64,
    /// The id of the last rule.
    pub id: String,
}

/// A page of rules, ordered by domain and position.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RulePage {
    /// The rules.
    pub rules: Vec<StoredRule>,
    /// The end of this page, from which the next one begins; `None` if there is no next page.
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
        let mut rules = Vec::new();
        let mut last = None;
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

    /// The rules of the shared draft with these ids.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn rules_of_ids(&self, ids: &[&str]) -> StoreResult<Vec<StoredRule>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!("SELECT {COLUMNS} FROM rules WHERE id IN ({})", places(1, ids.len()));
        let cells = ids.iter().map(|it| Cell::Text((*it).to_owned())).collect();
        let rows = bound(&sql, cells).fetch_all(&self.pool).await?;
        rows.iter().map(StoredRule::read).collect()
    }

    /// All rules of the draft of a domain, which a ceiling bounds.
    async fn rules_of(&self, domain: &str) -> StoreResult<Vec<StoredRule>> {
        let filter = RuleFilter { domains: Some(vec![domain.to_owned()]), ..RuleFilter::default() };
        let rows = select(&self.pool, &filter).await?;
        // There may be half a million.
        heavy(move |_| rows.iter().map(StoredRule::read).collect()).await?
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
    let of_domains = of_domains(domains, &mut cells, |places| format!("domain IN ({places})"));
    let sql = format!("SELECT {COLUMNS} FROM rules WHERE id = $1{of_domains}");
    let row = bound(&sql, cells).fetch_optional(executor).await?;
    row.as_ref().map(StoredRule::read).transpose()
}

/// The rows of the rules that a filter finds.
async fn select<'e>(
    executor: impl Executor<'e, Database = Any>,
    filter: &RuleFilter,
) -> StoreResult<Vec<AnyRow>> {
    let (from, cells) = list_query(filter, None);
    let sql = format!("SELECT {COLUMNS} FROM {from} ORDER BY {ORDER}");
    Ok(bound(&sql, cells).fetch_all(executor).await?)
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
        let position = place(Cell::Int(*position));
        let id = place(Cell::Text(id.clone()));
        all.push(format!("(domain, position, id) > ({domain}, {position}, {id})"));
    }
    (format!("rules WHERE {}", all.join(" AND ")), cells)
}

// === impl Write ===

impl Write {
    /// The rule of this id in the draft.
    pub async fn rule(&mut self, id: &str) -> StoreResult<Option<StoredRule>> {
        find(&mut *self.tx, id, None).await
    }

    /// Adds a rule at the end of its domain. [`StoreError::Duplicate`](super::StoreError) if there
    /// is one of its address.
    pub async fn add_rule(&mut self, domain: &str, record: &Record) -> StoreResult<StoredRule> {
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
        let content = Change::By(rule.record.content());
        self.resize(domain, 1, rule.bytes(), content).await?;
        self.insert(StoredRule::INTO, vec![rule.cells()]).await?;
        self.note_change(domain, &rule.id, None, Some(&record.settings)).await?;
        Ok(rule)
    }

    /// Replaces the settings of a rule.
    pub async fn change_rule(
        &mut self,
        rule: &StoredRule,
        settings: Map<String, Value>,
    ) -> StoreResult<StoredRule> {
        self.touch_domain(&rule.domain).await?;
        let before = &rule.record.settings;
        let number = self.number();
        let changed = StoredRule {
            record: Record { entries: rule.record.entries.clone(), settings },
            revision: number,
            updated_at: self.at,
            updated_by: self.author.name.clone(),
            ..rule.clone()
        };
        let content = changed.record.content().without(rule.record.content());
        let bytes = changed.bytes() - rule.bytes();
        self.resize(&rule.domain, 0, bytes, Change::By(content)).await?;
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
    pub async fn remove_rule(&mut self, rule: &StoredRule) -> StoreResult<()> {
        self.touch_domain(&rule.domain).await?;
        let content = Content::default().without(rule.record.content());
        self.resize(&rule.domain, -1, -rule.bytes(), Change::By(content)).await?;
        let query = sqlx::query("DELETE FROM rules WHERE id = $1").bind(rule.id.to_string());
        query.execute(&mut *self.tx).await?;
        self.note_change(&rule.domain, &rule.id, Some(&rule.record.settings), None).await
    }

    /// The rules of a domain whose first entry is this one.
    pub async fn rules_of_scope(
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
        let rows = select(&mut *self.tx, &filter).await?;
        rows.iter().map(StoredRule::read).collect()
    }
}

// === impl StoredRule ===

impl StoredRule {
    pub const INTO: &str = "rules (id, domain, entries, settings, position, revision, \
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
        let domain = self.domain.clone();
        let id = self.id.to_string();
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
    pub fn bytes(&self) -> i64 {
        // The entries and settings of the rule.
        let bytes = self.cells().get(2..4).into_iter().flatten().map(Cell::bytes).sum::<usize>();
        i64::try_from(bytes).unwrap_or(i64::MAX)
    }

    pub fn cells(&self) -> Vec<Cell> {
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

// The draft, domain by domain.

/// A domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = DraftDomainView)]
pub struct DraftDomain {
    /// Its name.
    #[serde(rename = "domain")]
    pub name: String,
    /// The number of the last change of its draft.
    #[serde(skip)]
    pub changed: i64,
    /// Number of rules of its draft.
    pub rules: i64,
    /// Whether the draft differs from the published rules.
    pub is_changed: bool,
    /// When the draft was last changed; absent if that is not known, or if it does not differ.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_known_time")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub changed_at: Option<i64>,
    /// The tokens that changed the draft since it was published, the latest first; absent as
    /// `changed_at` is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub changed_by: Vec<String>,
    /// How many people besides its authors have to approve a draft before it is published.
    pub approvals: i64,
    /// The object of Kubernetes that defines it, as NAMESPACE/NAME; absent if the database does.
    #[serde(rename = "object", skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The hash of the text that is published, if any is.
    #[serde(skip)]
    pub hash: Option<String>,
}

fn as_known_time<S: Serializer>(at: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    as_time(&at.unwrap_or_default(), serializer)
}

/// The draft of a domain.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// The rules of the draft.
    pub document: Document,
    /// The number of its last change.
    pub changed: i64,
}

/// The draft of a domain as it is stored.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredDraft {
    /// The number of its last change; `None` if the domain has no draft.
    pub changed: Option<i64>,
    /// The `defaults` of the draft.
    pub defaults: Map<String, Value>,
    /// The rules of the draft, in their order.
    pub rules: Vec<StoredRule>,
}

/// Tokens that are known to have changed a draft.
const AUTHORS_MAX: usize = 16;

/// Attempts to read a draft that does not change meanwhile.
const ATTEMPTS_MAX: usize = 5;

/// The largest draft that a list compares with the published rules at once: that takes some 10 ms.
const COMPARED_RULES_MAX: i64 = 1000;

/// A larger one is compared so long after its last change.
const COMPARED_AFTER_MILLIS: i64 = 2000;

// === impl Store ===

impl Store {
    /// All domains, by name. A large draft counts as changed while it changes.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn domains(&self) -> StoreResult<Vec<DraftDomain>> {
        let rows = domain_rows(&self.pool, "ORDER BY name", Vec::new()).await?;
        let mut domains = self.with_states(rows).await?;
        // Databases order texts by the rules of a language, or by their bytes.
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(domains)
    }

    /// At most `limit` of these domains whose names come after `after`, by name; `None` for all.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn domains_after(
        &self,
        of: Option<&[String]>,
        after: &str,
        limit: usize,
    ) -> StoreResult<Vec<DraftDomain>> {
        self.some_domains("", of, (after, limit)).await
    }

    /// At most `limit` of these domains that ask for approvals and whose names come after `after`,
    /// by name; `None` for all domains.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn domains_with_approvals(
        &self,
        of: Option<&[String]>,
        after: &str,
        limit: usize,
    ) -> StoreResult<Vec<DraftDomain>> {
        self.some_domains(" AND approvals > 0", of, (after, limit)).await
    }

    async fn some_domains(
        &self,
        condition: &str,
        of: Option<&[String]>,
        (after, limit): (&str, usize),
    ) -> StoreResult<Vec<DraftDomain>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut cells = vec![Cell::Text(after.to_owned()), Cell::Int(limit)];
        let of = of_domains(of, &mut cells, |places| format!("name IN ({places})"));
        let by_bytes = self.backend.by_bytes();
        let condition =
            format!("WHERE name {by_bytes} > $1{condition}{of} ORDER BY name {by_bytes} LIMIT $2");
        let rows = domain_rows(&self.pool, &condition, cells).await?;
        self.with_states(rows).await
    }

    /// Notes for each domain whether its draft differs from the published rules.
    async fn with_states(
        &self,
        rows: Vec<(DraftDomain, DraftState)>,
    ) -> StoreResult<Vec<DraftDomain>> {
        let mut domains = Vec::with_capacity(rows.len());
        let now = self.now();
        for (domain, state) in rows {
            let is_changed = match self.compared.is_changed(&domain.name, &state) {
                Some(known) => known,
                None if state.hash.is_none() => domain.rules > 0,
                None if domain.is_at_work(now) => true,
                None => match self.is_changed(&domain.name, &state).await {
                    // Other writers change it all the time.
                    Err(StoreError::Moved(_)) => true,
                    compared => compared?,
                },
            };
            domains.push(domain.with_state(is_changed));
        }
        if !self.follows_objects {
            domains.iter_mut().for_each(|it| it.owner = None);
        }
        Ok(domains)
    }

    /// The number of the last change of anything.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn last_change(&self) -> StoreResult<i64> {
        let query = sqlx::query_as("SELECT change FROM counters WHERE id = 1");
        let (change,): (i64,) = query.fetch_one(&self.pool).await?;
        Ok(change)
    }

    /// The draft of a domain; an empty one if there is none.
    ///
    /// # Errors
    /// `StoreError::Moved` if others change it all the time.
    pub async fn draft(&self, domain: &str) -> StoreResult<Draft> {
        let StoredDraft { changed, defaults, rules } = self.stored_draft(domain).await?;
        let records = rules.into_iter().map(|rule| rule.record).collect();
        let document = Document { domain: domain.to_owned(), defaults, records };
        Ok(Draft { document, changed: changed.unwrap_or_default() })
    }

    /// The draft of a domain, with all that is stored of its rules.
    ///
    /// # Errors
    /// `StoreError::Moved` if others change it all the time.
    pub async fn stored_draft(&self, domain: &str) -> StoreResult<StoredDraft> {
        for _ in 0..ATTEMPTS_MAX {
            let (changed, defaults) = self.draft_head(domain).await?;
            let rules = self.rules_of(domain).await?;
            if self.draft_head(domain).await?.0 == changed {
                return Ok(StoredDraft { changed, defaults, rules });
            }
        }
        Err(StoreError::Moved(domain.to_owned()))
    }

    /// The `defaults` of a domain's draft.
    pub async fn defaults(&self, domain: &str) -> StoreResult<Map<String, Value>> {
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

/// The domains of a condition, in its order, and the states of their drafts.
async fn domain_rows<'e>(
    executor: impl Executor<'e, Database = Any>,
    condition: &str,
    cells: Vec<Cell>,
) -> StoreResult<Vec<(DraftDomain, DraftState)>> {
    let sql = format!(
        "SELECT {DRAFT_STATE}, name, {DRAFT_RULES}, owner, changed_at, changed_by, approvals \
         FROM domains {condition}"
    );
    let rows = bound(&sql, cells).fetch_all(executor).await?;
    let read = |row: &AnyRow| {
        let state = DraftState::read(row)?;
        Ok((DraftDomain::read(row, &state)?, state))
    };
    rows.iter().map(read).collect()
}

// === impl DraftDomain ===

impl DraftDomain {
    /// Whether the draft is large and changed a moment ago: a comparison would be out of date soon,
    /// and lists of other tenants would wait for it after each change.
    fn is_at_work(&self, now: i64) -> bool {
        let age = now.saturating_sub(self.changed_at.unwrap_or_default());
        self.rules > COMPARED_RULES_MAX && age < COMPARED_AFTER_MILLIS
    }

    /// Reads the columns after the state.
    fn read(row: &AnyRow, state: &DraftState) -> StoreResult<Self> {
        let owner: String = row.try_get(8)?;
        let changed_at: i64 = row.try_get(9)?;
        let changed_by: String = row.try_get(10)?;
        Ok(Self {
            name: row.try_get(6)?,
            changed: state.changed,
            rules: row.try_get(7)?,
            is_changed: true,
            changed_at: Some(changed_at).filter(|it| *it > 0),
            changed_by: serde_json::from_str(&changed_by)?,
            owner: Some(owner).filter(|it| !it.is_empty()),
            hash: state.hash.clone(),
            approvals: row.try_get(11)?,
        })
    }

    /// Keeps the authors only of a draft that differs.
    fn with_state(mut self, is_changed: bool) -> Self {
        self.is_changed = is_changed;
        if !is_changed {
            self.changed_at = None;
            self.changed_by.clear();
        }
        self
    }
}

// === impl Write ===

impl Write {
    /// The domains of these names, as the write leaves them.
    pub async fn domains(&mut self, names: Vec<String>) -> StoreResult<Vec<DraftDomain>> {
        let condition = format!("WHERE name IN ({})", places(1, names.len()));
        let cells = names.into_iter().map(Cell::Text).collect();
        let rows = domain_rows(&mut *self.tx, &condition, cells).await?;
        let with_state = |(domain, state): (DraftDomain, DraftState)| {
            let is_changed = self.compared.is_changed(&domain.name, &state).unwrap_or(true);
            domain.with_state(is_changed)
        };
        Ok(rows.into_iter().map(with_state).collect())
    }

    /// Notes that the draft of a domain changes, and makes the domain if there is none.
    ///
    /// # Errors
    /// [`StoreError::Owned`] if an object defines the domain, and this is not the write of objects.
    async fn touch_domain(&mut self, domain: &str) -> StoreResult<()> {
        let sql = "INSERT INTO domains (name, defaults, changed, published, sized, summed, \
                   published_content, changed_at, changed_by) \
                   VALUES ($1, '{}', $2, 0, $2, $2, 0, $3, $4) \
                   ON CONFLICT (name) DO UPDATE SET changed = excluded.changed, sized = \
                   CASE WHEN domains.sized = domains.changed THEN excluded.changed \
                   ELSE domains.sized END, summed = \
                   CASE WHEN domains.summed = domains.changed THEN excluded.changed \
                   ELSE domains.summed END, changed_at = excluded.changed_at, changed_by = \
                   CASE WHEN domains.changed_by = '[]' THEN excluded.changed_by \
                   ELSE domains.changed_by END RETURNING owner, changed_by";
        let query = sqlx::query_as(sql).bind(domain.to_owned()).bind(self.number()).bind(self.at);
        let query = query.bind(json!([self.author.name]).to_string());
        let (owner, authors): (String, String) = query.fetch_one(&mut *self.tx).await?;
        if !owner.is_empty() && self.writer == Writer::Guarded {
            return Err(StoreError::Owned { domain: domain.to_owned(), owner });
        }
        if !owner.is_empty() && self.writer == Writer::Unguarded {
            self.set_owner(domain, None).await?;
        }
        self.note_draft_author(domain).await?;
        self.noted.domains.insert(domain.to_owned());
        // A domain keeps its row. One that has it already is counted as well, for so few bytes.
        self.note_kept(domain.len());
        self.note_author(domain, &authors).await
    }

    /// Puts the author of this write first among those who changed a draft, a JSON list.
    async fn note_author(&mut self, domain: &str, authors: &str) -> StoreResult<()> {
        let mut authors: Vec<String> = serde_json::from_str(authors)?;
        if authors.first() == Some(&self.author.name) {
            return Ok(());
        }
        authors.retain(|it| *it != self.author.name);
        authors.insert(0, self.author.name.clone());
        authors.truncate(AUTHORS_MAX);
        let query = sqlx::query("UPDATE domains SET changed_by = $1 WHERE name = $2");
        let query = query.bind(json!(authors).to_string()).bind(domain.to_owned());
        query.execute(&mut *self.tx).await?;
        Ok(())
    }

    /// Notes which object defines a domain; `None` for the database.
    pub async fn set_owner(&mut self, domain: &str, owner: Option<&str>) -> StoreResult<()> {
        let query = sqlx::query("UPDATE domains SET owner = $1 WHERE name = $2");
        let query = query.bind(owner.unwrap_or_default().to_owned()).bind(domain.to_owned());
        query.execute(&mut *self.tx).await?;
        Ok(())
    }

    /// Whether a domain has changes that are not published, and the number of the last one. A draft
    /// that only its text tells from the published rules has to be compared before
    /// ([`Store::compare`]).
    pub async fn draft_state(&mut self, domain: &str) -> StoreResult<(bool, i64)> {
        let state = state_of(&mut *self.tx, domain).await?.unwrap_or_default();
        let is_changed = self.compared.is_changed(domain, &state).unwrap_or(true);
        Ok((is_changed, state.changed))
    }

    /// The number of the last change of a draft; `None` if there is none.
    pub async fn last_change(&mut self, domain: &str) -> StoreResult<Option<i64>> {
        Ok(state_of(&mut *self.tx, domain).await?.map(|it| it.changed))
    }
}

// The comparison of drafts with the published rules.

// === impl Store ===

impl Store {
    /// Compares the drafts of these domains with the published rules, before a write that asks.
    ///
    /// # Errors
    /// As [`draft`](Self::draft).
    pub async fn compare(&self, domains: &[&str]) -> StoreResult<()> {
        for domain in domains {
            if let Some(state) = state_of(&self.pool, domain).await? {
                self.is_changed(domain, &state).await?;
            }
        }
        Ok(())
    }

    /// Whether the draft of a domain differs from the published rules.
    pub async fn is_changed(&self, domain: &str, state: &DraftState) -> StoreResult<bool> {
        if let Some(known) = self.compared.is_changed(domain, state) {
            return Ok(known);
        }
        let Draft { document, changed } = self.draft(domain).await?;
        let hash = heavy(move |_| {
            let text = (!document.records.is_empty()).then(|| render(&document).text);
            text.map(|it| text_hash(&it))
        });
        let differs = hash.await? != state.hash;
        let hash = state.hash.clone();
        self.compared.note(domain, Comparison { changed, hash, differs });
        Ok(differs)
    }
}

// === impl Write ===

impl Write {
    /// Counts the number of a draft's content, which an earlier release wrote.
    pub async fn count_content(&mut self, domain: &str) -> StoreResult<()> {
        let domains = Some(vec![domain.to_owned()]);
        let rows = select(&mut *self.tx, &RuleFilter { domains, ..RuleFilter::default() }).await?;
        let rules: Vec<_> = rows.iter().map(StoredRule::read).collect::<StoreResult<_>>()?;
        let content = Content::of(rules.iter().map(|it| &it.record));
        let sql = "UPDATE domains SET content = $1, summed = changed, \
                   published_content = CASE WHEN changed = published THEN $1 END WHERE name = $2";
        let query = sqlx::query(sql).bind(content.number()).bind(domain.to_owned());
        query.execute(&mut *self.tx).await?;
        Ok(())
    }
}

// Changes of the rules of the draft.

/// A change of a rule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ChangeView)]
pub struct ChangeRow {
    /// Its number.
    pub number: i64,
    /// When.
    #[serde(serialize_with = "as_time")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
    /// Which token.
    pub author: String,
    /// Why.
    pub reason: String,
    /// The settings before; null if the rule was added.
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    /// The settings after; null if it was removed.
    #[schema(value_type = Option<Object>)]
    pub after: Option<Value>,
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
        let of_domains = of_domains(domains, &mut cells, |places| format!("domain IN ({places})"));
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
    async fn note_change(
        &mut self,
        domain: &str,
        id: &RuleId,
        before: Option<&Map<String, Value>>,
        after: Option<&Map<String, Value>>,
    ) -> StoreResult<()> {
        let entries = Vec::new();
        let before = before.cloned();
        let after = after.cloned();
        let change = RuleChange { id: id.clone(), entries, before, after };
        self.note_changes(domain, &[change]).await
    }

    /// Adds changes to the history. Takes a number for each change.
    async fn note_changes(&mut self, domain: &str, changes: &[RuleChange]) -> StoreResult<()> {
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

// Makes the draft of a domain another document. The difference is found before the transaction,
// which writes that alone: all other writes wait for it.

/// Distance between the positions of two rules, so that others fit between them later.
const GAP: i64 = 64;

/// Rules that one statement deletes.
const DELETED_MAX: usize = 500;

/// The difference between the draft of a domain and a document.
#[derive(Debug)]
pub struct Replacement {
    domain: String,
    /// The number of the last change of the draft that was compared; `None` if there is no draft.
    base: Option<i64>,
    /// The `defaults`, if they differ.
    defaults: Option<Map<String, Value>>,
    /// The changes that history will have.
    changes: Vec<RuleChange>,
    /// The rules whose rows are deleted: those that are removed, changed or moved.
    delete: Vec<RuleId>,
    /// The rules whose rows are written.
    put: Vec<Put>,
    /// The change of the number of rules.
    /// The change of the bytes of the rules.
    rules: i64,
    bytes: i64,
    /// The content of the draft afterwards.
    content: Content,
}

/// A rule that is written.
#[derive(Debug)]
struct Put {
    rule: StoredRule,
    position: Position,
    /// Whether its settings change too, or it is added.
    is_changed: bool,
}

/// The place of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// This position.
    At(i64),
    /// After all that there are, with so many before it.
    Last(i64),
}

// === impl Replacement ===

impl Replacement {
    /// Compares a draft with the document that it is to be. Takes some seconds for a large one.
    pub fn new(draft: StoredDraft, document: &Document) -> Self {
        let domain = document.domain.clone();
        let records = draft.rules.iter().map(|rule| rule.record.clone()).collect();
        let before = Document { domain: domain.clone(), records, ..Document::default() };
        let mut this = Self {
            base: draft.changed,
            defaults: (draft.defaults != document.defaults).then(|| document.defaults.clone()),
            changes: difference(&before, document).rules,
            delete: Vec::new(),
            put: Vec::new(),
            rules: count(document.records.len()) - count(draft.rules.len()),
            bytes: 0,
            content: Content::of(&document.records),
            domain,
        };
        let former = draft.rules.into_iter().map(|rule| (rule.record.entries.clone(), rule));
        let mut former: HashMap<_, _> = former.collect();
        let known: Vec<_> = document
            .records
            .iter()
            .map(|record| former.get(&record.entries).map(|rule| rule.position))
            .collect();
        for ((record, known), position) in
            document.records.iter().zip(&known).zip(positions(&known))
        {
            let former = former.remove(&record.entries);
            let is_changed = former.as_ref().is_none_or(|it| it.record != *record);
            if !is_changed && known.map(Position::At) == Some(position) {
                continue;
            }
            this.remove_row(former.as_ref());
            let (revision, updated_at, updated_by) = former.map_or_else(
                || (0, 0, String::new()),
                |it| (it.revision, it.updated_at, it.updated_by),
            );
            let rule = StoredRule {
                id: record.id(&this.domain),
                domain: this.domain.clone(),
                record: record.clone(),
                position: 0,
                revision,
                updated_at,
                updated_by,
            };
            this.bytes += rule.bytes();
            this.put.push(Put { rule, position, is_changed });
        }
        former.values().for_each(|rule| this.remove_row(Some(rule)));
        this
    }

    fn remove_row(&mut self, rule: Option<&StoredRule>) {
        if let Some(rule) = rule {
            self.bytes -= rule.bytes();
            self.delete.push(rule.id.clone());
        }
    }

    /// The rows that it writes and deletes.
    pub fn rows(&self) -> usize {
        self.put.len() + self.delete.len()
    }

    /// Whether the draft is the document already.
    fn is_empty(&self) -> bool {
        self.base.is_some()
            && self.defaults.is_none()
            && self.delete.is_empty()
            && self.put.is_empty()
    }
}

/// The positions of rules in their order, of which some have one already. Most of these keep it;
/// the others come between them, or if there is no room all are placed again.
fn positions(known: &[Option<i64>]) -> Vec<Position> {
    let kept = longest_increasing(known);
    let mut positions = Vec::with_capacity(known.len());
    let mut before: Option<i64> = None;
    for (at, position) in kept.iter().copied().chain([(known.len(), i64::MAX)]) {
        let missing = count(at - positions.len());
        let is_end = at == known.len();
        // Each of the missing ones gets a part of the room.
        let step = match before {
            _ if is_end => 0,
            None => GAP,
            Some(before) => ((position - before) / (missing + 1)).min(GAP),
        };
        if missing > 0 && step == 0 && !is_end {
            return (0..count(known.len())).map(Position::Last).collect();
        }
        positions.extend((0..missing).map(|nth| match (is_end, before) {
            (true, _) => Position::Last(nth),
            (false, Some(before)) => Position::At(before + step * (nth + 1)),
            (false, None) => Position::At(position - step * (missing - nth)),
        }));
        if !is_end {
            positions.push(Position::At(position));
            before = Some(position);
        }
    }
    positions
}

/// The most of these positions that are in their order: each with its place in the list.
fn longest_increasing(known: &[Option<i64>]) -> Vec<(usize, i64)> {
    // For each length the list's place of the least position that ends a run of this length.
    let mut ends: Vec<(usize, i64)> = Vec::new();
    let mut earlier: Vec<Option<usize>> = vec![None; known.len()];
    for (at, position) in known.iter().enumerate() {
        let Some(position) = *position else { continue };
        let length = ends.partition_point(|(_, end)| *end < position);
        let before = length.checked_sub(1).and_then(|it| ends.get(it)).map(|(at, _)| *at);
        if let Some(slot) = earlier.get_mut(at) {
            *slot = before;
        }
        match ends.get_mut(length) {
            Some(end) => *end = (at, position),
            None => ends.push((at, position)),
        }
    }
    let mut kept = Vec::with_capacity(ends.len());
    let mut last = ends.last().map(|(at, _)| *at);
    while let Some(at) = last {
        kept.extend(known.get(at).copied().flatten().map(|position| (at, position)));
        last = earlier.get(at).copied().flatten();
    }
    kept.reverse();
    kept
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

// === impl Write ===

impl Write {
    /// Makes a draft what its replacement says. Rules that do not change keep their revision.
    /// Returns the number of rules that were added, changed or removed.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if the draft is not the one that was compared.
    pub async fn replace(&mut self, replacement: &Replacement) -> StoreResult<usize> {
        let Replacement { domain, base, defaults, changes, rules, bytes, .. } = replacement;
        if self.last_change(domain).await? != *base {
            return Err(StoreError::Moved(domain.clone()));
        }
        if replacement.is_empty() {
            return Ok(0);
        }
        self.touch_domain(domain).await?;
        if let Some(defaults) = defaults {
            let sql = "UPDATE domains SET defaults = $1 WHERE name = $2";
            let query = sqlx::query(sql).bind(json!(defaults).to_string()).bind(domain.clone());
            query.execute(&mut *self.tx).await?;
        }
        let number = self.number();
        self.note_changes(domain, changes).await?;
        self.resize(domain, *rules, *bytes, Change::To(replacement.content)).await?;
        self.delete_rules(&replacement.delete).await?;
        self.put_rules(number, &replacement.put).await?;
        Ok(changes.len())
    }

    async fn delete_rules(&mut self, ids: &[RuleId]) -> StoreResult<()> {
        for ids in ids.chunks(DELETED_MAX) {
            let places = places(1, ids.len());
            let sql = format!("DELETE FROM rules WHERE id IN ({places})");
            let cells = ids.iter().map(|id| Cell::Text(id.to_string())).collect();
            bound(&sql, cells).execute(&mut *self.tx).await?;
        }
        Ok(())
    }

    async fn put_rules(&mut self, number: i64, put: &[Put]) -> StoreResult<()> {
        let is_last = |put: &&Put| matches!(put.position, Position::Last(_));
        // Numbers only grow, so that these positions are after all others.
        let first = self.take_numbers(GAP * count(put.iter().filter(is_last).count())).await?;
        let mut rows = Vec::with_capacity(put.len());
        for Put { rule, position, is_changed } in put {
            let position = match *position {
                Position::At(position) => position,
                Position::Last(nth) => first + GAP * nth,
            };
            let mut rule = StoredRule { position, ..rule.clone() };
            if *is_changed {
                rule.revision = number;
                rule.updated_at = self.at;
                rule.updated_by = self.author.name.clone();
            } else {
                // The rule leaves no history, and takes as much time as one that does.
                self.note_kept(0);
            }
            rows.push(rule.cells());
        }
        self.insert(StoredRule::INTO, rows).await
    }
}

// The ceilings of drafts. A token that may write could otherwise fill the database, and the memory
// of the process that reads drafts.

/// Maximum number of rules of the draft of a domain. A pod loads all rules of a domain.
const DOMAIN_RULES_MAX: i64 = 500_000;

/// Maximum bytes of the entries and settings of the rules of the draft of a domain.
const DOMAIN_BYTES_MAX: i64 = 32 << 20;

/// Maximum number of rules of all drafts. All domains of a token that is for some domains have
/// together at most the rules of one domain, so that a tenant leaves three quarters to the others.
const RULES_MAX: i64 = 4 * DOMAIN_RULES_MAX;

/// Maximum bytes of the entries and settings of the rules of all drafts.
const BYTES_MAX: i64 = 4 * DOMAIN_BYTES_MAX;

/// Maximum number of domains.
const DOMAINS_MAX: i64 = 10_000;

/// The number of rules of the draft of a row of `domains`. While replicas are replaced one by one,
/// a release that does not keep the number may change the draft: then the rules are counted.
const DRAFT_RULES: &str = "CASE WHEN sized = changed THEN rules ELSE \
     (SELECT COUNT(*) FROM rules r WHERE r.domain = domains.name) END";

/// The bytes of the rules of the draft of a row of `domains`. If a release that does not keep them
/// has changed the draft, they are summed.
const DRAFT_BYTES: &str = "CASE WHEN sized = changed THEN bytes ELSE \
     (SELECT COALESCE(SUM(OCTET_LENGTH(r.entries) + OCTET_LENGTH(r.settings)), 0) \
     FROM rules r WHERE r.domain = domains.name) END";

/// The number of domains of a condition, of their rules and of the bytes of these. A domain of
/// which all was removed keeps its row and its history, and is not counted.
fn sizes(condition: &str) -> String {
    format!(
        "SELECT COUNT(CASE WHEN rules > 0 OR hash IS NOT NULL THEN 1 END), \
         CAST(COALESCE(SUM(rules), 0) AS BIGINT), CAST(COALESCE(SUM(bytes), 0) AS BIGINT) \
         FROM (SELECT hash, {DRAFT_RULES} AS rules, {DRAFT_BYTES} AS bytes FROM domains \
         {condition}) sizes"
    )
}

// === impl Write ===

impl Write {
    /// Notes how many rules and bytes the draft of a domain will have more, or fewer, and how its
    /// content changes. The caller changes its rules after this.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] if it grows above a ceiling. One that is too large may shrink.
    async fn resize(
        &mut self,
        domain: &str,
        rules: i64,
        bytes: i64,
        content: Change,
    ) -> StoreResult<()> {
        let (set, content) = match content {
            Change::By(content) => {
                (format!("content = (content + $4) % {}", Content::END), content)
            }
            Change::To(content) => ("content = $4, summed = changed".to_owned(), content),
        };
        let sql = format!(
            "UPDATE domains SET rules = {DRAFT_RULES} + $1, bytes = {DRAFT_BYTES} + $2, \
             sized = changed, {set} WHERE name = $3 RETURNING rules, bytes"
        );
        let query = sqlx::query(AssertSqlSafe(sql)).bind(rules).bind(bytes).bind(domain.to_owned());
        let query = query.bind(content.number());
        let row = query.fetch_one(&mut *self.tx).await?;
        if rules <= 0 && bytes <= 0 {
            return Ok(());
        }
        let shown = ratelease_rules::excerpt(domain);
        let of_domain = format!("the draft of '{shown}'");
        within(&of_domain, "rules", row.try_get(0)?, DOMAIN_RULES_MAX)?;
        within(&of_domain, "bytes", row.try_get(1)?, DOMAIN_BYTES_MAX)?;
        if let Some(own) = self.kept.domains.clone() {
            let sql = sizes(&format!("WHERE name IN ({})", places(1, own.len())));
            let cells = own.into_iter().map(Cell::Text).collect();
            let row = bound(&sql, cells).fetch_one(&mut *self.tx).await?;
            let own = "the drafts of the token's domains together";
            within(own, "rules", row.try_get(1)?, DOMAIN_RULES_MAX)?;
            within(own, "bytes", row.try_get(2)?, DOMAIN_BYTES_MAX)?;
        }
        // Objects change many domains in one write, which looks at the sum once.
        if self.writer == Writer::Objects { Ok(()) } else { self.check_all_drafts().await }
    }

    /// Refuses drafts that are too large together.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] if they are.
    pub async fn check_all_drafts(&mut self) -> StoreResult<()> {
        let row = sqlx::query(AssertSqlSafe(sizes(""))).fetch_one(&mut *self.tx).await?;
        let all = "all drafts together";
        within(all, "domains", row.try_get(0)?, DOMAINS_MAX)?;
        within(all, "rules", row.try_get(1)?, RULES_MAX)?;
        within(all, "bytes", row.try_get(2)?, BYTES_MAX)
    }
}

fn within(what: &str, unit: &str, found: i64, max: i64) -> StoreResult<()> {
    if found <= max {
        return Ok(());
    }
    Err(StoreError::TooLarge(format!("{what} would have {found} {unit}; expected at most {max}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The positions after a replacement, of which new ones begin at 1000.
    fn placed(known: &[Option<i64>]) -> Vec<i64> {
        let at = |position: Position| match position {
            Position::At(position) => position,
            Position::Last(nth) => 1000 + GAP * nth,
        };
        positions(known).into_iter().map(at).collect()
    }

    #[test]
    fn rules_between_others_take_positions_between_theirs() {
        assert_eq!(placed(&[None, Some(64), Some(128)]), [0, 64, 128]);
        assert_eq!(placed(&[Some(64), None, None, Some(128)]), [64, 85, 106, 128]);
        assert_eq!(placed(&[Some(64), Some(128), None]), [64, 128, 1000]);
        assert_eq!(placed(&[Some(128), Some(64), Some(192)])[2], 192, "one moves");
        assert_eq!(placed(&[Some(1), None, Some(2)]), [1000, 1064, 1128], "there is no room");
        assert_eq!(placed(&[]), Vec::<i64>::new());
    }

    proptest! {
        #[test]
        fn positions_are_in_order_and_those_in_order_already_stay(
            known in prop::collection::vec(prop::option::of(0_i64..900), 0..40),
        ) {
            let mut seen = std::collections::HashSet::new();
            let known = known.into_iter().map(|it| it.filter(|it| seen.insert(*it)));
            let known: Vec<_> = known.collect();
            let placed = placed(&known);
            prop_assert_eq!(placed.len(), known.len());
            prop_assert!(placed.is_sorted_by(|a, b| a < b), "{:?} {:?}", known, placed);
            let present: Vec<_> = known.iter().copied().flatten().collect();
            let mut rest = known.iter().skip_while(|it| it.is_some());
            if present.is_sorted() && rest.all(Option::is_none) {
                prop_assert!(placed.starts_with(&present));
            }
        }
    }
}
