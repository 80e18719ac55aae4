//! **The database**: the draft, every version, and who did what. PostgreSQL or SQLite.
//!
//! ```text
//! Write ── a transaction: counters first, so that writes happen one after the other
//!   ├ rules: the draft, and its history      ├ answers: idempotency keys
//!   ├ versions: publish, roll back           ├ audit, tokens
//!   ├ rollouts: versions for some pods       ├ rollout_counts: hits that pods report
//!   └ ceiling: the size of drafts            └ quota: what a token may add
//! Store ── reads: rules, drafts, versions, pods
//! ```
//! Both databases are used through the types and the SQL that they share; `schema` has the few
//! statements that differ. A write is acknowledged after its commit, and a connection that is
//! dropped before rolls back.

mod answers;
mod audit;
mod ceiling;
mod drafts;
mod error;
mod history;
mod page;
mod pods;
mod quota;
mod rollout_counts;
mod rollouts;
mod rules;
mod schema;
mod tokens;
mod versions;
mod write;

use std::fmt;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyConnection, AnyPool, Executor};
use tokio::sync::Semaphore;

pub use answers::{Answer, AnswerKey, Earlier};
pub use audit::AuditRow;
pub use drafts::{Draft, DraftDomain};
pub use error::{StoreError, StoreResult};
pub use history::ChangeRow;
pub use pods::PodRow;
pub use rollout_counts::{CountKey, HitCount, ReplicaCount};
pub use rollouts::{
    Bound, Choice, LABEL_BYTES_MAX, NewRollout, Rollout, RolloutDomain, RolloutStep, Stage,
};
pub use rules::{RuleFilter, RulePage, RulePosition, StoredRule};
pub use tokens::{NewToken, TokenRow};
pub use versions::{PublishedText, VersionChange, VersionRow};
pub use write::{Author, PublisherLock, Write};

/// Maximum number of connections of this process for requests.
const CONNECTIONS_MAX: u32 = 12;

/// Connections beside them, for the check of tokens and for the follower of the versions.
const RESERVED_MAX: u32 = 4;

/// Writes at a time. They happen one after the other, so that more would only hold connections.
const WRITES_MAX: usize = 2;

/// Maximum time that a request waits for a connection.
const ACQUIRE_MAX: Duration = Duration::from_secs(3);

/// The channel on which PostgreSQL announces new versions.
pub(crate) const CHANNEL: &str = "ratelease_control";

/// Which database it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// PostgreSQL, which several replicas may share.
    Postgres,
    /// A file of this machine.
    Sqlite,
}

/// Where the database is.
#[derive(Clone, PartialEq, Eq)]
pub enum Database {
    /// A PostgreSQL URL. It may hold a password, so it is never shown.
    Postgres(String),
    /// The file of a SQLite database, which is made if it is not there.
    Sqlite(PathBuf),
}

/// A database whose schema is the present one.
#[derive(Debug, Clone)]
pub struct Store {
    pool: AnyPool,
    /// Connections that no request waits for a lock with.
    reserved: AnyPool,
    writes: Arc<Semaphore>,
    backend: Backend,
}

/// Without the URL.
impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres(_) => f.write_str("Postgres(…)"),
            Self::Sqlite(path) => f.debug_tuple("Sqlite").field(path).finish(),
        }
    }
}

// === impl Store ===

impl Store {
    /// Connects, and brings the schema up to date.
    ///
    /// # Errors
    /// Fails if the database cannot be reached or written, or has a schema of a later release.
    pub async fn open(database: &Database) -> StoreResult<Self> {
        sqlx::any::install_default_drivers();
        let (backend, url) = match database {
            Database::Postgres(url) => (Backend::Postgres, url.clone()),
            Database::Sqlite(path) => (Backend::Sqlite, sqlite_url(path)?),
        };
        let options = |max| {
            AnyPoolOptions::new()
                .max_connections(max)
                .acquire_timeout(ACQUIRE_MAX)
                .after_connect(move |connection, _| Box::pin(prepare(connection, backend)))
        };
        let pool = options(CONNECTIONS_MAX).connect(&url).await?;
        schema::migrate(&pool, backend).await?;
        let reserved = options(RESERVED_MAX).connect_lazy(&url)?;
        Ok(Self { pool, reserved, writes: Arc::new(Semaphore::new(WRITES_MAX)), backend })
    }

    /// Which database it is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The same database, through connections that requests cannot use up. For short reads.
    pub(crate) fn reserved(&self) -> Self {
        Self { pool: self.reserved.clone(), ..self.clone() }
    }

    /// Asks the database for an answer.
    ///
    /// # Errors
    /// Fails if it gives none.
    pub async fn ping(&self) -> StoreResult<()> {
        sqlx::query("SELECT 1").execute(&self.pool).await?;
        Ok(())
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
        self.reserved.close().await;
    }
}

/// The URL of a file, which is made with rights for its owner alone: it holds hashes of tokens.
fn sqlite_url(path: &Path) -> StoreResult<String> {
    let made = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    made.map_err(|error| StoreError::File(path.to_owned(), error))?;
    let absolute = path.canonicalize().map_err(|error| StoreError::File(path.to_owned(), error))?;
    let text = absolute.to_string_lossy();
    let escaped: String = text
        .bytes()
        .map(|byte| match byte {
            b'/' | b'.' | b'-' | b'_' => char::from(byte).to_string(),
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    Ok(format!("sqlite://{escaped}"))
}

/// Prepares a new connection. A client that stops in the middle of a write, or a database that is
/// slow, must not hold the others up.
async fn prepare(connection: &mut AnyConnection, backend: Backend) -> sqlx::Result<()> {
    let statements = match backend {
        Backend::Postgres => {
            "SET statement_timeout = '30s'; SET lock_timeout = '10s'; \
             SET idle_in_transaction_session_timeout = '60s'"
        }
        Backend::Sqlite => {
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000"
        }
    };
    connection.execute(sqlx::raw_sql(statements)).await?;
    Ok(())
}
