//! Versions: the rules that are published, and that were. Also the audit log of all actions.

use serde::Serialize;
use sqlx::any::AnyRow;
use sqlx::{Any, Error, Executor, Row};
use utoipa::ToSchema;

use super::query::{Cell, bound};
use super::write::PageQuery;
use super::{Rollout, Stage, Store, StoreError, StoreResult, Write, as_time};

/// Domains that a version names.
const NAMED_MAX: i64 = 20;

/// Maximum number of texts that are read together.
pub const TEXTS_MAX: usize = 250;

/// A version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = VersionView)]
pub struct VersionRow {
    /// Its number.
    #[serde(rename = "version")]
    pub number: i64,
    /// When it was published.
    #[serde(serialize_with = "as_time")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
    /// Which token.
    pub author: String,
    /// Why.
    pub reason: String,
    /// The version that it brings back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restores: Option<i64>,
    /// The rollout that it is a step of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<i64>,
    /// The domains that it changes, or that its rollout is about: by name, 20 at most.
    pub domains: Vec<String>,
    /// Number of these domains.
    pub domain_count: i64,
}

/// A change of a domain by a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionChange {
    /// The version.
    pub version: i64,
    /// When it was published, in milliseconds since the Unix epoch.
    pub at: i64,
    /// The domain.
    pub domain: String,
    /// The text of its rules; `None` if it has none.
    pub hash: Option<String>,
}

/// The rules of a domain that are to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedText {
    /// The domain.
    pub domain: String,
    /// The number of the last change of the draft that the text was made of.
    pub changed: i64,
    /// The text of the rule file; `None` if the domain has no rules.
    pub yaml: Option<String>,
    /// Number of rules.
    pub rules: usize,
}

// === impl Store ===

impl Store {
    /// At most `limit` versions before the number `before` that change one of these domains, the
    /// latest first; `None` for any domain. Each names the domains of `seen` that it changes.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn versions(
        &self,
        domains: Option<&[String]>,
        seen: Option<&[String]>,
        before: i64,
        limit: usize,
    ) -> StoreResult<Vec<VersionRow>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut cells = vec![Cell::Int(before), Cell::Int(limit)];
        let of_domains = of_domains(domains, &mut cells, |places| {
            format!(
                "(EXISTS (SELECT 1 FROM version_domains d \
                 WHERE d.version = versions.number AND d.domain IN ({places})) \
                 OR EXISTS (SELECT 1 FROM rollout_domains r \
                 WHERE r.rollout = versions.rollout AND r.domain IN ({places})))"
            )
        });
        let sql = format!(
            "SELECT number, at, author, reason, restores, rollout FROM versions WHERE number < $1\
             {of_domains} ORDER BY number DESC LIMIT $2"
        );
        let rows = bound(&sql, cells).fetch_all(&self.pool).await?;
        let mut versions = rows.iter().map(VersionRow::read).collect::<StoreResult<Vec<_>>>()?;
        self.name_domains(&mut versions, seen).await?;
        Ok(versions)
    }

    /// Adds to versions the domains of `seen` that they change; `None` for all.
    async fn name_domains(
        &self,
        versions: &mut [VersionRow],
        seen: Option<&[String]>,
    ) -> StoreResult<()> {
        if versions.is_empty() {
            return Ok(());
        }
        let mut cells = vec![Cell::Int(NAMED_MAX)];
        cells.extend(versions.iter().map(|it| Cell::Int(it.number)));
        let numbers = places(2, versions.len());
        let of_seen = of_domains(seen, &mut cells, |places| format!("domain IN ({places})"));
        let sql = format!(
            "SELECT version, domain, found FROM (SELECT version, domain, \
             COUNT(*) OVER (PARTITION BY version) AS found, \
             ROW_NUMBER() OVER (PARTITION BY version ORDER BY domain) AS place FROM \
             (SELECT version, domain FROM version_domains WHERE version IN ({numbers}) \
             UNION SELECT s.version, d.domain FROM rollout_steps s \
             JOIN rollout_domains d ON d.rollout = s.rollout WHERE s.version IN ({numbers})) own \
             WHERE 1 = 1{of_seen}) ranked WHERE place <= $1 ORDER BY version, domain"
        );
        for row in bound(&sql, cells).fetch_all(&self.pool).await? {
            let number: i64 = row.try_get(0)?;
            if let Some(version) = versions.iter_mut().find(|it| it.number == number) {
                version.domains.push(row.try_get(1)?);
                version.domain_count = row.try_get(2)?;
            }
        }
        Ok(())
    }

    /// The number of the last version; 0 if there is none.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn last_version(&self) -> StoreResult<i64> {
        last_version(&self.pool).await
    }

    /// The last version until `version` that changes one of these domains, or is a step of a
    /// rollout of one; 0 if there is none.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn last_version_of(&self, domains: &[String], version: i64) -> StoreResult<i64> {
        if domains.is_empty() {
            return Ok(0);
        }
        let places = places(2, domains.len());
        let sql = format!(
            "SELECT COALESCE(MAX(version), 0) FROM \
             (SELECT version FROM version_domains WHERE domain IN ({places}) AND version <= $1 \
             UNION ALL SELECT s.version FROM rollout_steps s \
             JOIN rollout_domains d ON d.rollout = s.rollout \
             WHERE d.domain IN ({places}) AND s.version <= $1) own"
        );
        let mut cells = vec![Cell::Int(version)];
        cells.extend(domains.iter().cloned().map(Cell::Text));
        Ok(bound(&sql, cells).fetch_one(&self.pool).await?.try_get(0)?)
    }

    /// The number of the last version, and when it was published, in milliseconds since the Unix
    /// epoch; 0 and 0 if there is none.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn last_version_at(&self) -> StoreResult<(i64, i64)> {
        let sql = "SELECT c.version, COALESCE(v.at, 0) FROM counters c \
                   LEFT JOIN versions v ON v.number = c.version WHERE c.id = 1";
        Ok(sqlx::query_as(sql).fetch_one(&self.pool).await?)
    }

    /// When a version was published, in milliseconds since the Unix epoch; 0 for the number 0, with
    /// which a database begins.
    ///
    /// # Errors
    /// Fails if the database is not available, or has no such version.
    pub async fn version_time(&self, number: i64) -> StoreResult<i64> {
        if number == 0 {
            return Ok(0);
        }
        let query = sqlx::query_as("SELECT at FROM versions WHERE number = $1").bind(number);
        let (at,): (i64,) = query.fetch_one(&self.pool).await?;
        Ok(at)
    }

    /// The changes by the versions after `known`, in their order. One statement reads them, so that
    /// no version is read in part.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn changes_since(&self, known: i64) -> StoreResult<Vec<VersionChange>> {
        self.version_changes("d.version > $1 ORDER BY d.version, d.domain", known).await
    }

    /// The domains of a version and the texts of their rules; those that it removes have none.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn state_at(&self, version: i64) -> StoreResult<Vec<VersionChange>> {
        let last = "SELECT MAX(o.version) FROM version_domains o \
                    WHERE o.domain = d.domain AND o.version <= $1";
        self.version_changes(&format!("d.version = ({last}) ORDER BY d.domain"), version).await
    }

    async fn version_changes(&self, of: &str, version: i64) -> StoreResult<Vec<VersionChange>> {
        let sql = format!(
            "SELECT d.version, v.at, d.domain, d.hash FROM version_domains d \
             JOIN versions v ON v.number = d.version WHERE {of}"
        );
        let rows = bound(&sql, vec![Cell::Int(version)]).fetch_all(&self.pool).await?;
        rows.iter().map(VersionChange::read).collect()
    }

    /// The texts of some of these hashes, of which at most `TEXTS_MAX` are asked for: as many as
    /// have 4 MiB together, and at least one.
    ///
    /// # Errors
    /// Fails if there is none.
    pub async fn texts(&self, hashes: &[&str]) -> StoreResult<Vec<(String, String)>> {
        let query = PageQuery {
            columns: "hash, yaml",
            from: format!("texts WHERE hash IN ({})", places(1, hashes.len())),
            order: "hash",
            texts: &["yaml"],
            cells: hashes.iter().map(|it| Cell::Text((*it).to_owned())).collect(),
            limit: TEXTS_MAX,
        };
        let (rows, _) = query.fetch(&self.pool).await?;
        if rows.is_empty() {
            return Err(Error::RowNotFound.into());
        }
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// The text of this hash.
    ///
    /// # Errors
    /// Fails if there is none.
    pub async fn text(&self, hash: &str) -> StoreResult<String> {
        let query = sqlx::query_as("SELECT yaml FROM texts WHERE hash = $1").bind(hash.to_owned());
        let (yaml,): (String,) = query.fetch_one(&self.pool).await?;
        Ok(yaml)
    }
}

async fn last_version<'e>(executor: impl Executor<'e, Database = Any>) -> StoreResult<i64> {
    let query = sqlx::query_as("SELECT version FROM counters WHERE id = 1");
    let (version,): (i64,) = query.fetch_one(executor).await?;
    Ok(version)
}

/// The `condition` that a row belongs to one of these domains, given the places of their
/// parameters; the parameters are added to `cells`. `None` has no condition.
pub fn of_domains(
    domains: Option<&[String]>,
    cells: &mut Vec<Cell>,
    condition: impl FnOnce(String) -> String,
) -> String {
    match domains {
        None => String::new(),
        Some([]) => " AND 1 = 0".to_owned(),
        Some(domains) => {
            let places = places(cells.len() + 1, domains.len());
            cells.extend(domains.iter().cloned().map(Cell::Text));
            format!(" AND {}", condition(places))
        }
    }
}

/// The places of so many parameters, of which the first has this number.
pub fn places(first: usize, count: usize) -> String {
    let places = (first..).take(count).map(|place| format!("${place}"));
    places.collect::<Vec<_>>().join(",")
}

// === impl Write ===

impl Write {
    /// The number of the last version; 0 if there is none.
    pub async fn last_version(&mut self) -> StoreResult<i64> {
        last_version(&mut *self.tx).await
    }

    /// Publishes these texts as one version, and returns its number and the domains that it
    /// changes. Domains whose text is the published one already are left out; `None` if that
    /// leaves nothing.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if the draft of a domain changed since its text was made.
    /// [`StoreError::NotApproved`] if the domain asks for approvals that it lacks.
    pub async fn publish(
        &mut self,
        texts: &[PublishedText],
        restores: Option<i64>,
    ) -> StoreResult<Option<(i64, Vec<String>)>> {
        let mut changes = Vec::new();
        for text in texts {
            if self.draft_state(&text.domain).await?.1 != text.changed {
                return Err(StoreError::Moved(text.domain.clone()));
            }
            let hash = text.hash();
            self.need_approvals(text, restores.is_some()).await?;
            if self.note_published(&text.domain, text.changed, hash.as_deref()).await? {
                changes.push((text, hash));
            }
        }
        if changes.is_empty() {
            return Ok(None);
        }
        let VersionRow { number, .. } = self.add_version(restores, None).await?;
        let domains = changes.iter().map(|(text, _)| text.domain.clone()).collect();
        self.add_changes(number, changes).await?;
        self.notify(number).await?;
        Ok(Some((number, domains)))
    }

    /// Adds a version that changes nothing yet.
    pub async fn add_version(
        &mut self,
        restores: Option<i64>,
        rollout: Option<i64>,
    ) -> StoreResult<VersionRow> {
        let sql = "UPDATE counters SET version = version + 1 WHERE id = 1 RETURNING version";
        let (number,): (i64,) = sqlx::query_as(sql).fetch_one(&mut *self.tx).await?;
        let version = VersionRow {
            number,
            at: self.at,
            author: self.author.name.clone(),
            reason: self.author.reason.clone(),
            restores,
            rollout,
            domains: Vec::new(),
            domain_count: 0,
        };
        let sql = "INSERT INTO versions (number, at, author, reason, restores, rollout) \
                   VALUES ($1, $2, $3, $4, $5, $6)";
        let query = sqlx::query(sql).bind(number).bind(self.at).bind(version.author.clone());
        let query = query.bind(version.reason.clone()).bind(restores).bind(rollout);
        query.execute(&mut *self.tx).await?;
        self.note_kept(version.author.len() + version.reason.len());
        Ok(version)
    }

    /// Adds the domains that a version changes, each with the hash of its text.
    async fn add_changes(
        &mut self,
        number: i64,
        changes: Vec<(&PublishedText, Option<String>)>,
    ) -> StoreResult<()> {
        for (text, hash) in &changes {
            self.keep_text(text, hash.as_deref()).await?;
        }
        let rows = changes.into_iter().map(|(text, hash)| {
            vec![Cell::Int(number), Cell::Text(text.domain.clone()), Cell::Nullable(hash)]
        });
        self.keep("version_domains (version, domain, hash)", rows.collect()).await
    }

    /// Notes that the draft of a domain is published as it was at its change `changed`. Returns
    /// whether its text changes.
    pub async fn note_published(
        &mut self,
        domain: &str,
        changed: i64,
        hash: Option<&str>,
    ) -> StoreResult<bool> {
        let former = self.published_hash(domain).await?;
        self.noted.domains.insert(domain.to_owned());
        // If the draft has gone on since a rollout began, only the text is known.
        let sql = "UPDATE domains SET published = $1, hash = $2, published_content = \
                   CASE WHEN changed = $1 AND summed = changed THEN content END, changed_by = \
                   CASE WHEN changed = $1 THEN '[]' ELSE changed_by END WHERE name = $3 \
                   RETURNING CAST(CASE WHEN changed = $1 AND summed <> changed THEN 1 ELSE 0 END \
                   AS BIGINT)";
        let query = sqlx::query(sql).bind(changed).bind(hash.map(str::to_owned));
        let row = query.bind(domain.to_owned()).fetch_optional(&mut *self.tx).await?;
        let is_uncounted = row.map_or(Ok(0), |it| it.try_get::<i64, _>(0))? == 1;
        if is_uncounted {
            self.count_content(domain).await?;
        }
        Ok(former.as_deref() != hash)
    }

    /// The hash of the text of a domain that is published, if any is.
    pub async fn published_hash(&mut self, domain: &str) -> StoreResult<Option<String>> {
        let query = sqlx::query_as("SELECT hash FROM domains WHERE name = $1");
        let row = query.bind(domain.to_owned()).fetch_optional(&mut *self.tx).await?;
        let (hash,): (Option<String>,) = row.unwrap_or_default();
        Ok(hash)
    }

    pub async fn keep_text(&mut self, text: &PublishedText, hash: Option<&str>) -> StoreResult<()> {
        let (Some(yaml), Some(hash)) = (&text.yaml, hash) else { return Ok(()) };
        let sql = "INSERT INTO texts (hash, yaml, bytes, rules) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (hash) DO NOTHING";
        let size = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let query = sqlx::query(sql).bind(hash.to_owned()).bind(yaml.clone());
        let query = query.bind(size(yaml.len())).bind(size(text.rules));
        if query.execute(&mut *self.tx).await?.rows_affected() > 0 {
            self.note_kept(hash.len() + yaml.len());
        }
        Ok(())
    }
}

/// The hash by which a text is stored.
pub fn text_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

// === impl PublishedText ===

impl PublishedText {
    /// The hash by which the text is stored.
    pub fn hash(&self) -> Option<String> {
        self.yaml.as_deref().map(text_hash)
    }
}

// === impl VersionRow ===

impl VersionRow {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        Ok(Self {
            number: row.try_get(0)?,
            at: row.try_get(1)?,
            author: row.try_get(2)?,
            reason: row.try_get(3)?,
            restores: row.try_get(4)?,
            rollout: row.try_get(5)?,
            domains: Vec::new(),
            domain_count: 0,
        })
    }
}

// === impl VersionChange ===

impl VersionChange {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        Ok(Self {
            version: row.try_get(0)?,
            at: row.try_get(1)?,
            domain: row.try_get(2)?,
            hash: row.try_get(3)?,
        })
    }
}

// The audit log. The database refuses to edit it.

/// A filter of the audit log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// The domain of the actions.
    pub domain: Option<String>,
    /// A text within the author; SQLite ignores its case.
    pub author: Option<String>,
    /// Who the author is: the id of a token, or ISSUER#SUBJECT.
    pub author_id: Option<String>,
    /// The first time, in milliseconds since the Unix epoch.
    pub since: Option<i64>,
    /// The end of the time, in milliseconds since the Unix epoch.
    pub until: Option<i64>,
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ActionView)]
pub struct AuditRow {
    /// Its number.
    pub number: i64,
    /// When.
    #[serde(serialize_with = "as_time")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
    /// Which token or command.
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
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        before: i64,
        limit: usize,
    ) -> StoreResult<(Vec<AuditRow>, bool)> {
        let mut cells = vec![Cell::Int(before)];
        let mut from = "audit WHERE number < $1".to_owned();
        let mut add = |condition: &str, cell: Cell| {
            cells.push(cell);
            from.push_str(&condition.replace("$0", &format!("${}", cells.len())));
        };
        if let Some(domain) = &filter.domain {
            let of = " AND number IN (SELECT action FROM audit_domains WHERE domain = $0)";
            add(of, Cell::Text(domain.clone()));
        }
        if let Some(author) = &filter.author {
            let escaped = author.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            add(" AND author LIKE $0 ESCAPE '\\'", Cell::Text(format!("%{escaped}%")));
        }
        if let Some(id) = &filter.author_id {
            add(&format!(" AND {} = $0", self.backend.identity()), Cell::Text(id.clone()));
        }
        if let Some(since) = filter.since {
            add(" AND at >= $0", Cell::Int(since));
        }
        if let Some(until) = filter.until {
            add(" AND at < $0", Cell::Int(until));
        }
        let query = PageQuery {
            columns: "number, at, author, action, subject, reason",
            from,
            order: "number DESC",
            texts: &["subject", "reason"],
            cells,
            limit,
        };
        let (rows, has_more) = query.fetch(&self.pool).await?;
        Ok((rows.iter().map(AuditRow::read).collect::<StoreResult<_>>()?, has_more))
    }
}

// === impl Write ===

impl Write {
    /// Adds to the audit log what this write does.
    pub async fn note_action(&mut self, action: &str, subject: &str) -> StoreResult<()> {
        let number = self.take_numbers(1).await?;
        self.noted.actions.push(number);
        let row = vec![
            Cell::Int(number),
            Cell::Int(self.at),
            Cell::Text(self.author.name.clone()),
            Cell::Text(action.to_owned()),
            Cell::Text(subject.to_owned()),
            Cell::Text(self.author.reason.clone()),
        ];
        self.keep("audit (number, at, author, action, subject, reason)", vec![row]).await
    }

    /// Adds a step of a rollout to the audit log.
    pub async fn note_rollout(
        &mut self,
        rollout: &Rollout,
        stage: Stage,
        version: i64,
    ) -> StoreResult<()> {
        let domains: Vec<_> = rollout.domains.iter().map(|it| &*it.domain).collect();
        self.noted.domains.extend(domains.iter().map(|it| (*it).to_owned()));
        let id = rollout.id;
        let domains = domains.join(", ");
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
