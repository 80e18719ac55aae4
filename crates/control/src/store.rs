//! **The database**: the draft, every version, and who did what. PostgreSQL or SQLite.
//!
//! ```text
//! Write ── a transaction: counters first, so that writes happen one after the other
//!   ├ rules: the draft, and its history      ├ answers: idempotency keys
//!   ├ replace: a draft as a whole            │
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
mod replace;
mod rollout_counts;
mod rollouts;
mod rules;
mod schema;
mod tokens;
mod versions;
mod write;

use std::fmt;
use std::fs::OpenOptions;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use sqlx::any::AnyPoolOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AnyConnection, AnyPool, Connection, Executor};
use tokio::time::timeout;

pub use answers::{Answer, AnswerKey, Earlier};
pub use audit::AuditRow;
pub use drafts::{Draft, DraftDomain, StoredDraft};
pub use error::{StoreError, StoreResult};
pub use history::ChangeRow;
pub use pods::PodRow;
pub use replace::Replacement;
pub use rollout_counts::{CountKey, HitCount, ReplicaCount};
pub use rollouts::{
    Bound, Choice, LABEL_BYTES_MAX, NewRollout, Rollout, RolloutDomain, RolloutStep, Stage,
};
pub use rules::{RuleFilter, RulePage, RulePosition, StoredRule};
pub use tokens::{NewToken, TokenRow};
pub use versions::{PublishedText, VersionChange, VersionRow};
use write::WriteTurns;
pub use write::{Author, PublisherLock, Write};

/// Maximum number of connections of this process for writes, and for requests about whole domains.
/// Both are bounded in number: a write at a time of tokens and one of operators, four long
/// requests, and the lock of publishers.
const CONNECTIONS_MAX: u32 = 10;

/// Connections for requests that only read a few rows, so that they take none from writes.
pub(crate) const LIST_CONNECTIONS_MAX: u32 = 6;

/// Connections beside them, for the check of tokens and for the follower of the versions.
const RESERVED_MAX: u32 = 4;

/// Maximum time of a statement of PostgreSQL: of a list, and of others. One whose request has gone
/// holds its connection no longer. SQLite has no such time, so that lists are bounded in rows.
const LIST_STATEMENT_SECONDS: u32 = 5;
const STATEMENT_SECONDS: u32 = 30;

/// Maximum time that a request waits for a connection.
const ACQUIRE_MAX: Duration = Duration::from_secs(3);

/// Maximum time of the first connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

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
    lists: AnyPool,
    /// Connections that no request waits for a lock with.
    reserved: AnyPool,
    turns: WriteTurns,
    backend: Backend,
}

impl Database {
    /// The host of a PostgreSQL to which the connection may be in plain text although nothing asks
    /// for that. `None` for one of this machine.
    pub fn host_without_tls(&self) -> Option<String> {
        let Self::Postgres(url) = self else { return None };
        let options = PgConnectOptions::from_str(url).ok()?;
        let host = options.get_host();
        let is_local = options.get_socket().is_some()
            || host.starts_with('/')
            || host == "localhost"
            || host
                .trim_matches(['[', ']'])
                .parse::<IpAddr>()
                .is_ok_and(|it| it.to_canonical().is_loopback());
        let may_be_plain = matches!(options.get_ssl_mode(), PgSslMode::Allow | PgSslMode::Prefer);
        (may_be_plain && !is_local).then(|| host.to_owned())
    }
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
        let options = |max, seconds| {
            AnyPoolOptions::new()
                .max_connections(max)
                .acquire_timeout(ACQUIRE_MAX)
                .after_connect(move |connection, _| Box::pin(prepare(connection, backend, seconds)))
        };
        if backend == Backend::Postgres {
            first_connection(&url).await?;
        }
        let pool = options(CONNECTIONS_MAX, STATEMENT_SECONDS).connect(&url).await?;
        schema::migrate(&pool, backend).await?;
        let lists = options(LIST_CONNECTIONS_MAX, LIST_STATEMENT_SECONDS).connect_lazy(&url)?;
        let reserved = options(RESERVED_MAX, STATEMENT_SECONDS).connect_lazy(&url)?;
        Ok(Self { pool, lists, reserved, turns: WriteTurns::default(), backend })
    }

    /// Which database it is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The same database, through the connections for requests that read a few rows.
    pub(crate) fn lists(&self) -> Self {
        Self { pool: self.lists.clone(), ..self.clone() }
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
        self.lists.close().await;
        self.reserved.close().await;
    }
}

/// Connects once, for the error of the database: a pool would only say that it timed out.
async fn first_connection(url: &str) -> StoreResult<()> {
    let place = PgConnectOptions::from_str(url).map_or_else(
        |_| "PostgreSQL".to_owned(),
        |options| match options.get_socket() {
            Some(socket) => format!("PostgreSQL at {}", socket.display()),
            None => format!("PostgreSQL at {}:{}", options.get_host(), options.get_port()),
        },
    );
    let setting = "DATABASE_URL, --database-url or --database-url-file has the address";
    let connected = timeout(CONNECT_MAX, AnyConnection::connect(url)).await;
    let connection = connected.map_err(|_| {
        StoreError::Unavailable(format!("{place}: no answer within {CONNECT_MAX:?}; {setting}"))
    })?;
    match connection.map_err(StoreError::from) {
        Ok(connection) => Ok(connection.close().await?),
        Err(StoreError::Unavailable(why)) => {
            Err(StoreError::Unavailable(format!("{place}: {why}; {setting}")))
        }
        Err(StoreError::Internal(why)) => {
            Err(StoreError::Refused(format!("{place}: {why}; {setting}")))
        }
        Err(error) => Err(error),
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
async fn prepare(
    connection: &mut AnyConnection,
    backend: Backend,
    statement_seconds: u32,
) -> sqlx::Result<()> {
    let statements = match backend {
        Backend::Postgres => format!(
            "SET statement_timeout = '{statement_seconds}s'; SET lock_timeout = '10s'; \
             SET idle_in_transaction_session_timeout = '60s'"
        ),
        Backend::Sqlite => {
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000"
                .to_owned()
        }
    };
    connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(statements))).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_postgres_elsewhere_has_tls_unless_the_url_says_otherwise() {
        let host = |url: &str| Database::Postgres(url.to_owned()).host_without_tls();
        for url in ["postgres://u:p@db.example/x", "postgres://u@10.0.0.1/x?sslmode=prefer"] {
            assert!(host(url).is_some(), "{url}");
        }
        for url in [
            "postgres://u@127.0.0.1/x",
            "postgres://u@localhost/x",
            "postgres://u@[::1]/x",
            "postgres:///x?host=/run/postgresql",
            "postgres://u@db.example/x?sslmode=verify-full",
            "postgres://u@db.example/x?sslmode=disable",
        ] {
            assert_eq!(host(url), None, "{url}");
        }
        assert_eq!(Database::Sqlite("x".into()).host_without_tls(), None);
    }
}
