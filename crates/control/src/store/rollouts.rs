//! Rollouts: versions that some pods run before the others. Rows are added and never edited; the
//! last step of a rollout is its stage.

use std::fmt;
use std::str::FromStr;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use super::versions::places;
use super::write::{Cell, bound};
use super::{PublishedText, Store, StoreError, StoreResult, VersionRow, Write};

/// Maximum bytes of a label's key and of its value.
pub const LABEL_BYTES_MAX: usize = 1024;

/// How far a rollout is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Chosen pods run the changed rules in shadow mode, and count what they would deny.
    Shadow,
    /// Chosen pods enforce the changed rules.
    Enforced,
    /// All pods enforce them: they are published.
    All,
    /// A token ended it; all pods run what is published.
    Aborted,
    /// The control plane ended it, because too much was denied.
    RolledBack,
}

/// Which pods are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// So many of a hundred, 1 to 100, by a hash of the rollout and the node's id.
    Percent(u8),
    /// Those whose nodes have this key and value in their metadata.
    Label(String, String),
}

/// When a rollout is rolled back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// The largest share of a domain's hits that chosen pods may deny, 0 to 1.
    pub denied_share: f64,
    /// Hits of a domain below which its share does not count.
    pub hits_min: i64,
}

/// A domain of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutDomain {
    /// Its name.
    pub domain: String,
    /// The number of the last change of the draft that the texts were made of.
    pub changed: i64,
    /// The hash of the text for the stage `shadow`; `None` if there are no rules.
    pub shadow: Option<String>,
    /// The hash of the text that is to be published; `None` if the domain leaves.
    pub hash: Option<String>,
}

/// A step of a rollout, which is a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutStep {
    /// The version.
    pub version: i64,
    /// What it leads to.
    pub stage: Stage,
    /// When, in milliseconds since the Unix epoch.
    pub at: i64,
    /// Who took it.
    pub author: String,
    /// Why.
    pub reason: String,
}

/// A rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// Its number, from 1.
    pub id: i64,
    /// Which pods are chosen.
    pub choice: Choice,
    /// When it is rolled back, if it may be.
    pub bound: Option<Bound>,
    /// What it changes, by name.
    pub domains: Vec<RolloutDomain>,
    /// What was done, in order; there is at least one.
    pub steps: Vec<RolloutStep>,
}

/// A rollout that begins.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRollout {
    /// Which pods are chosen.
    pub choice: Choice,
    /// When it is rolled back, if it may be.
    pub bound: Option<Bound>,
    /// Its first stage.
    pub stage: Stage,
    /// For each domain the text for the stage `shadow`, and the one that is to be published.
    pub texts: Vec<(PublishedText, PublishedText)>,
}

// === impl Stage ===

impl Stage {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Enforced => "enforced",
            Self::All => "all",
            Self::Aborted => "aborted",
            Self::RolledBack => "rolled_back",
        }
    }

    /// Whether pods run different rules.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Shadow | Self::Enforced)
    }
}

impl FromStr for Stage {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let all = [Self::Shadow, Self::Enforced, Self::All, Self::Aborted, Self::RolledBack];
        let found = all.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| StoreError::Internal(format!("there is no stage '{text}'")))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent} % of the pods"),
            Self::Label(key, value) => write!(f, "pods of {key}={value}"),
        }
    }
}

// === impl Rollout ===

impl Rollout {
    /// The last step. `None` only for rows that this program cannot have written.
    pub fn last(&self) -> Option<&RolloutStep> {
        self.steps.last()
    }

    /// The last step in which pods ran different rules.
    pub fn last_open(&self) -> Option<&RolloutStep> {
        self.steps.iter().rev().find(|step| step.stage.is_open())
    }

    /// The hashes of the texts that chosen pods have in `stage`, by domain.
    pub fn hashes(&self, stage: Stage) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.domains.iter().map(move |it| {
            let hash = if stage == Stage::Shadow { &it.shadow } else { &it.hash };
            (&*it.domain, hash.as_deref())
        })
    }
}

// === impl Store ===

impl Store {
    /// At most `limit` rollouts of one of these domains before the number `before`, the latest
    /// first; `None` for any domain.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn rollouts(
        &self,
        domains: Option<&[String]>,
        before: i64,
        limit: usize,
    ) -> StoreResult<Vec<Rollout>> {
        let mut connection = self.pool.acquire().await?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut cells = vec![Cell::Int(before), Cell::Int(limit)];
        let of_domains = match domains {
            None => String::new(),
            Some([]) => "AND 1 = 0".to_owned(),
            Some(domains) => {
                cells.extend(domains.iter().cloned().map(Cell::Text));
                format!(
                    "AND EXISTS (SELECT 1 FROM rollout_domains d WHERE d.rollout = rollouts.id \
                     AND d.domain IN ({}))",
                    places(3, domains.len())
                )
            }
        };
        let sql =
            format!("SELECT id FROM rollouts WHERE id < $1 {of_domains} ORDER BY id DESC LIMIT $2");
        let ids = bound(&sql, cells).fetch_all(&mut *connection).await?;
        let mut rollouts = Vec::new();
        for row in ids {
            rollouts.extend(read(&mut connection, row.try_get(0)?).await?);
        }
        Ok(rollouts)
    }

    /// The rollout of this number.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn rollout(&self, id: i64) -> StoreResult<Option<Rollout>> {
        read(&mut *self.pool.acquire().await?, id).await
    }

    /// The rollout that is under way. There is at most one.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn open_rollout(&self) -> StoreResult<Option<Rollout>> {
        open(&mut *self.pool.acquire().await?).await
    }
}

// === impl Write ===

impl Write {
    /// The rollout that is under way.
    pub(crate) async fn open_rollout(&mut self) -> StoreResult<Option<Rollout>> {
        open(&mut self.tx).await
    }

    /// The rollout of this number.
    pub(crate) async fn rollout(&mut self, id: i64) -> StoreResult<Option<Rollout>> {
        read(&mut self.tx, id).await
    }

    /// Begins a rollout. The caller has made sure that none is under way.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if the draft of a domain changed since its text was made.
    pub(crate) async fn begin_rollout(&mut self, new: &NewRollout) -> StoreResult<VersionRow> {
        let query = sqlx::query_as("SELECT COALESCE(MAX(id), 0) + 1 FROM rollouts");
        let (id,): (i64,) = query.fetch_one(&mut *self.tx).await?;
        let (percent, key, value, label_bytes) = match &new.choice {
            Choice::Percent(percent) => (Some(i64::from(*percent)), None, None, 0),
            Choice::Label(key, value) => {
                (None, Some(key.clone()), Some(value.clone()), key.len() + value.len())
            }
        };
        let sql = "INSERT INTO rollouts (id, percent, label_key, label_value, denied_share, \
                   hits_min) VALUES ($1, $2, $3, $4, $5, $6)";
        let query = sqlx::query(sql).bind(id).bind(percent).bind(key).bind(value);
        let query = query.bind(new.bound.map(|it| it.denied_share));
        query.bind(new.bound.map(|it| it.hits_min)).execute(&mut *self.tx).await?;
        self.note_kept(label_bytes);
        let mut rows = Vec::new();
        for (shadow, text) in &new.texts {
            if self.draft_state(&text.domain).await?.1 != text.changed {
                return Err(StoreError::Moved(text.domain.clone()));
            }
            let hashes = (shadow.hash(), text.hash());
            self.keep_text(shadow, hashes.0.as_deref()).await?;
            self.keep_text(text, hashes.1.as_deref()).await?;
            let domain = Cell::Text(text.domain.clone());
            let (shadow, hash) = (Cell::Nullable(hashes.0), Cell::Nullable(hashes.1));
            rows.push(vec![Cell::Int(id), domain, Cell::Int(text.changed), shadow, hash]);
        }
        let into = "rollout_domains (rollout, domain, changed, shadow, hash)";
        self.keep(into, rows).await?;
        self.add_step(id, new.stage).await
    }

    /// Adds a step to a rollout that is under way, and returns its version. The last one publishes
    /// what was rolled out.
    pub(crate) async fn step_rollout(
        &mut self,
        rollout: &Rollout,
        stage: Stage,
    ) -> StoreResult<VersionRow> {
        let version = self.add_step(rollout.id, stage).await?;
        if stage == Stage::All {
            let mut rows = Vec::new();
            for it in &rollout.domains {
                self.note_published(&it.domain, it.changed, it.hash.as_deref()).await?;
                let (domain, hash) =
                    (Cell::Text(it.domain.clone()), Cell::Nullable(it.hash.clone()));
                rows.push(vec![Cell::Int(version.number), domain, hash]);
            }
            self.keep("version_domains (version, domain, hash)", rows).await?;
        }
        Ok(version)
    }

    async fn add_step(&mut self, rollout: i64, stage: Stage) -> StoreResult<VersionRow> {
        let version = self.add_version(None, Some(rollout)).await?;
        let sql = "INSERT INTO rollout_steps (version, rollout, stage) VALUES ($1, $2, $3)";
        let query = sqlx::query(sql).bind(version.number).bind(rollout);
        query.bind(stage.name().to_owned()).execute(&mut *self.tx).await?;
        self.notify(version.number).await?;
        Ok(version)
    }
}

/// The rollout that is under way: that of the last step, unless that ended it.
async fn open(connection: &mut AnyConnection) -> StoreResult<Option<Rollout>> {
    let sql = "SELECT rollout, stage FROM rollout_steps ORDER BY version DESC LIMIT 1";
    let row = sqlx::query(sql).fetch_optional(&mut *connection).await?;
    let Some(row) = row else { return Ok(None) };
    let stage: Stage = row.try_get::<String, _>(1)?.parse()?;
    if stage.is_open() { read(connection, row.try_get(0)?).await } else { Ok(None) }
}

async fn read(connection: &mut AnyConnection, id: i64) -> StoreResult<Option<Rollout>> {
    let sql = "SELECT percent, label_key, label_value, denied_share, hits_min FROM rollouts \
               WHERE id = $1";
    let row = sqlx::query(sql).bind(id).fetch_optional(&mut *connection).await?;
    let Some(row) = row else { return Ok(None) };
    let percent: Option<i64> = row.try_get(0)?;
    let choice = match percent {
        Some(percent) => Choice::Percent(u8::try_from(percent).unwrap_or(100)),
        None => Choice::Label(row.try_get(1)?, row.try_get(2)?),
    };
    let bound = match row.try_get::<Option<f64>, _>(3)? {
        Some(denied_share) => Some(Bound { denied_share, hits_min: row.try_get(4)? }),
        None => None,
    };
    let sql = "SELECT domain, changed, shadow, hash FROM rollout_domains WHERE rollout = $1 \
               ORDER BY domain";
    let rows = sqlx::query(sql).bind(id).fetch_all(&mut *connection).await?;
    let domains = rows.iter().map(RolloutDomain::read).collect::<StoreResult<_>>()?;
    let sql = "SELECT s.version, s.stage, v.at, v.author, v.reason FROM rollout_steps s \
               JOIN versions v ON v.number = s.version WHERE s.rollout = $1 ORDER BY s.version";
    let rows = sqlx::query(sql).bind(id).fetch_all(&mut *connection).await?;
    let steps = rows.iter().map(RolloutStep::read).collect::<StoreResult<_>>()?;
    Ok(Some(Rollout { id, choice, bound, domains, steps }))
}

// === impl RolloutDomain ===

impl RolloutDomain {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        Ok(Self {
            domain: row.try_get(0)?,
            changed: row.try_get(1)?,
            shadow: row.try_get(2)?,
            hash: row.try_get(3)?,
        })
    }
}

// === impl RolloutStep ===

impl RolloutStep {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        Ok(Self {
            version: row.try_get(0)?,
            stage: row.try_get::<String, _>(1)?.parse()?,
            at: row.try_get(2)?,
            author: row.try_get(3)?,
            reason: row.try_get(4)?,
        })
    }
}
