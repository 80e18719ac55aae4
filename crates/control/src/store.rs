//! **The database**: the draft, every version, and who did what. PostgreSQL or SQLite.
//!
//! ```text
//! Write ── a transaction: counters first, so that writes happen one after the other
//!   ├ change sets: changes of one author beside the draft
//!   ├ rules: the draft, its history, and how large it may be
//!   ├ versions: publish, roll back; and the audit log
//!   ├ rollouts: versions for some pods, and the hits that pods report
//!   ├ approvals: who has to agree before a draft is published, and who did
//!   ├ sessions: people who are signed in
//!   └ tokens: what each may add, and the answers to repeated writes
//! DatabaseClock ── the time that replicas compare
//! Store ── reads: rules, drafts, versions, rollouts, pods, tokens
//! ```
//! Both databases are used through the types and the SQL that they share, but for some migrations.
//! A write is acknowledged after its commit, and a connection that is dropped before rolls back.

mod approvals;
mod change_sets;
mod clock;
mod contents;
mod pods;
mod query;
mod rollout;
mod rollout_plan;
mod rollouts;
mod rules;
mod sessions;
mod tokens;
mod versions;
mod write;

use std::borrow::Cow;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

pub use approvals::{APPROVALS_MAX, ApprovalRow, DraftApprovals, DraftAuthor};
pub use change_sets::{ChangeSet, SetChange, SetReader};
pub use clock::DatabaseClock;
use contents::Compared;
use jiff::Timestamp;
pub use pods::{CHANGES_MAX, PodRow};
#[cfg(test)]
pub use rollout::RolloutDomain;
pub use rollout::{Bound, Choice, LABEL_BYTES_MAX, Rollout, RolloutStep, plan_of_one_stage};
pub use rollout_plan::{Draw, PlanStep, Share, Stage, positive, wanted};
pub use rollouts::{
    CountKey, HitCount, Hits, NewRollout, ReplicaCount, RolloutTexts, StepHits, percent, share,
};
pub use rules::{ChangeRow, DraftDomain, Replacement, RuleFilter, RulePosition, StoredRule};
use serde::Serializer;
pub use sessions::{NewSession, Person, SessionRow};
use sqlx::any::AnyPoolOptions;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AnyConnection, AnyPool, Connection, Error, Executor, SqlSafeStr};
use thiserror::Error as ThisError;
pub use tokens::{Answer, AnswerKey, Earlier, NewToken, TokenRow};
use tokio::time::{sleep, timeout};
pub use versions::TEXTS_MAX;
pub use versions::{AuditFilter, AuditRow, PublishedText, VersionChange, VersionRow};
use write::WriteTurns;
pub use write::{Author, Identity, Write};

/// Maximum number of connections of this process for writes, and for requests about whole domains.
/// Both are bounded in number: a write at a time of tokens and one of operators, four long
/// requests, and the lock of publishers.
const CONNECTIONS_MAX: u32 = 10;

/// Connections for requests that only read a few rows, so that they take none from writes.
pub const LIST_CONNECTIONS_MAX: u32 = 6;

/// Connections beside them, for the check of tokens and for the follower of the versions.
const RESERVED_MAX: u32 = 4;

/// Maximum time of a statement of PostgreSQL that reads a list. A statement whose request has gone
/// holds its connection no longer. SQLite has no such limit, so that lists are bounded in rows.
const LIST_STATEMENT_SECONDS: u32 = 5;

/// Maximum time of any other statement of PostgreSQL.
const STATEMENT_SECONDS: u32 = 30;

/// Maximum time that a request waits for a connection.
const ACQUIRE_MAX: Duration = Duration::from_secs(3);

/// Maximum time of the first connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The channel on which PostgreSQL announces new versions.
pub const CHANNEL: &str = "ratelease_control";

/// Writes a time in milliseconds since the Unix epoch as RFC 3339 has it.
fn as_time<S: Serializer>(at: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Timestamp::from_millisecond(*at).unwrap_or_default())
}

/// The kind of database.
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

/// The key of PostgreSQL's advisory lock: "ratelob" in ASCII. The process that has the lock follows
/// the objects.
const LEADER_KEY: i64 = 0x0072_6174_656C_6F62;

/// Pause before a process that waits for the lock tries again.
const LEADER_PAUSE: Duration = Duration::from_secs(1);

/// Maximum time of an attempt to get the lock.
const LEADER_MAX: Duration = Duration::from_secs(10);

/// Keepalives of the session that has the lock: PostgreSQL releases the lock if the client is
/// silent for some 25 seconds.
const LEADER_KEEPALIVES: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
     SET tcp_keepalives_count = 3";

/// While this is held, and its connection lives, no other process follows objects. SQLite has one
/// process only.
pub struct Lead(Option<AnyConnection>);

// === impl Backend ===

impl Backend {
    /// The time by the database's clock, as an expression: milliseconds since the Unix epoch.
    const fn clock(self) -> &'static str {
        match self {
            Self::Postgres => "CAST(EXTRACT(EPOCH FROM CLOCK_TIMESTAMP()) * 1000 AS BIGINT)",
            Self::Sqlite => "CAST(ROUND((JULIANDAY('now') - 2440587.5) * 86400000) AS INTEGER)",
        }
    }
}

impl Backend {
    /// Who an author is, as an expression: what follows the shown name, which has no slash.
    const fn identity(self) -> &'static str {
        match self {
            Self::Postgres => "SUBSTR(author, STRPOS(author, '/') + 1)",
            Self::Sqlite => "SUBSTR(author, INSTR(author, '/') + 1)",
        }
    }

    /// Has texts ordered by their bytes and not by the rules of a language. Stands after a column.
    const fn by_bytes(self) -> &'static str {
        match self {
            Self::Postgres => "COLLATE \"C\"",
            Self::Sqlite => "COLLATE BINARY",
        }
    }
}

// === impl Lead ===

impl Lead {
    /// Checks that the lock is still held.
    ///
    /// # Errors
    /// Fails if its connection was lost, and the lock with it.
    pub async fn check(&mut self) -> StoreResult<()> {
        if let Some(connection) = &mut self.0 {
            connection.ping().await?;
        }
        Ok(())
    }
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
    /// Whether the domains that objects define are theirs alone.
    follows_objects: bool,
    compared: Compared,
    clock: DatabaseClock,
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
        migrate(&pool, backend).await?;
        let lists = options(LIST_CONNECTIONS_MAX, LIST_STATEMENT_SECONDS).connect_lazy(&url)?;
        let reserved = options(RESERVED_MAX, STATEMENT_SECONDS).connect_lazy(&url)?;
        let turns = WriteTurns::default();
        let compared = Compared::default();
        let clock = DatabaseClock::new(backend);
        let follows_objects = false;
        let store =
            Self { pool, lists, reserved, turns, backend, follows_objects, compared, clock };
        store.read_clock().await?;
        Ok(store)
    }

    /// A handle of this database. If `follows_objects`, the domains that objects of Kubernetes
    /// define may be changed by the objects alone.
    pub fn following_objects(self, follows_objects: bool) -> Self {
        Self { follows_objects, ..self }
    }

    /// Waits until this process is the one of those that share the database that follows objects.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn lead(&self) -> StoreResult<Lead> {
        if self.backend == Backend::Sqlite {
            return Ok(Lead(None));
        }
        let silent = |_| StoreError::Unavailable(format!("no answer within {LEADER_MAX:?}"));
        let mut connection = self.reserved.acquire().await?.detach();
        let set = connection.execute(sqlx::raw_sql(LEADER_KEEPALIVES));
        timeout(LEADER_MAX, set).await.map_err(silent)??;
        loop {
            let query = sqlx::query_as("SELECT pg_try_advisory_lock($1)").bind(LEADER_KEY);
            let found = query.fetch_one(&mut connection);
            let (is_leader,): (bool,) = timeout(LEADER_MAX, found).await.map_err(silent)??;
            if is_leader {
                return Ok(Lead(Some(connection)));
            }
            sleep(LEADER_PAUSE).await;
        }
    }

    /// The uid of the cluster whose objects define domains; `None` if none ever did.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn cluster(&self) -> StoreResult<Option<String>> {
        let query = sqlx::query_as("SELECT uid FROM cluster WHERE id = 1");
        let found: Option<(String,)> = query.fetch_optional(&self.pool).await?;
        Ok(found.map(|(uid,)| uid))
    }

    /// From now on the objects of this cluster define domains.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn set_cluster(&self, uid: &str) -> StoreResult<()> {
        let sql = "INSERT INTO cluster (id, uid) VALUES (1, $1) \
                   ON CONFLICT (id) DO UPDATE SET uid = excluded.uid";
        sqlx::query(sql).bind(uid.to_owned()).execute(&self.pool).await?;
        Ok(())
    }

    /// The kind of this database.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// A handle of this database with the connections for requests that read a few rows.
    pub fn lists(&self) -> Self {
        Self { pool: self.lists.clone(), ..self.clone() }
    }

    /// A handle of this database with connections that requests cannot use up. For short reads.
    pub fn reserved(&self) -> Self {
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

// Errors of the database.

/// The result of a call of the database.
pub type StoreResult<T> = Result<T, StoreError>;

/// The reason why the database refused or could not do a call.
#[derive(Debug, ThisError)]
pub enum StoreError {
    /// The database cannot be reached, or is too slow. Nothing was written, unless it happened at
    /// the commit.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The database refuses to be used by this program.
    #[error("the database cannot be used: {0}")]
    Refused(String),
    /// The file of the database cannot be opened.
    #[error("{path}: {1}", path = .0.display())]
    File(PathBuf, #[source] io::Error),
    /// There is one of that address or name already.
    #[error("there is one already")]
    Duplicate,
    /// The draft changed between the check and the write.
    #[error("the draft of {0} changed meanwhile")]
    Moved(String),
    /// An object of Kubernetes defines the domain.
    #[error("the domain {domain} is defined by the object {owner}")]
    Owned {
        /// The domain.
        domain: String,
        /// The object, as NAMESPACE/NAME.
        owner: String,
    },
    /// A draft would exceed a ceiling.
    #[error("{0}")]
    TooLarge(String),
    /// There would be more of something than there may be.
    #[error("{0}")]
    TooMany(String),
    /// A value is too long for an index of the database.
    #[error("a value is too long for the database: {0}")]
    TooLong(String),
    /// The token was revoked, or has expired, while the request waited.
    #[error("the token is expired or revoked")]
    TokenEnded,
    /// The draft of a domain lacks approvals.
    #[error("{given} of {needed} approvals of the draft of {domain}")]
    NotApproved {
        /// The domain.
        domain: String,
        /// Approvals that the draft needs.
        needed: i64,
        /// Approvals that the draft has.
        given: i64,
    },
    /// The token has kept as much as it may.
    #[error("the token has kept {written} bytes; expected at most {max}")]
    QuotaUsed {
        /// Bytes that its writes have kept.
        written: i64,
        /// Bytes that they may keep.
        max: i64,
    },
    /// A fault of this program or of the database's content.
    #[error("internal error: {0}")]
    Internal(String),
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match &error {
            Error::PoolTimedOut | Error::PoolClosed | Error::WorkerCrashed | Error::Io(_) => {
                Self::Unavailable(error.to_string())
            }
            Error::Tls(_) | Error::BeginFailed => Self::Unavailable(error.to_string()),
            Error::Protocol(why) => Self::Unavailable(why.clone()),
            Error::Database(fault) if fault.is_unique_violation() => Self::Duplicate,
            Error::Database(fault) => {
                let code = fault.code().unwrap_or_default().into_owned();
                let why = fault.message().to_owned();
                match &*code {
                    code if is_passing(code) => Self::Unavailable(why),
                    // The class of exceeded limits of PostgreSQL.
                    code if code.len() == 5 && code.starts_with("54") => Self::TooLong(why),
                    _ => Self::Internal(why),
                }
            }
            _ => Self::Internal(error.to_string()),
        }
    }
}

/// Whether an error of this code passes, so that the call may succeed later.
fn is_passing(code: &str) -> bool {
    // SQLSTATE's classes of connections, resources, operators, the system and aborted transactions.
    const CLASSES: [&str; 5] = ["08", "53", "57", "58", "40"];

    // SQLSTATE's codes of locks, time-outs and read-only transactions, then SQLite's BUSY, LOCKED,
    // IOERR and FULL, and two kinds of BUSY.
    const CODES: [&str; 9] = ["55P03", "25P03", "25006", "5", "6", "10", "13", "261", "517"];
    CODES.contains(&code) || code.len() == 5 && CLASSES.iter().any(|class| code.starts_with(class))
}

/// A value of the database that this program cannot have written.
impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::Internal(format!("a value of the database: {error}"))
    }
}

// The migrations, which are part of the binary.

/// The number of each migration, its name, and its SQL for PostgreSQL and SQLite. A released
/// migration is never edited: the database knows the hash of each migration that it has run.
const MIGRATIONS: [(i64, &str, [&str; 2]); 19] = [
    (1, "schema", shared(include_str!("../migrations/0001_schema.sql"))),
    (
        2,
        "append only",
        [
            include_str!("../migrations/0002_append_only.postgres.sql"),
            include_str!("../migrations/0002_append_only.sqlite.sql"),
        ],
    ),
    (
        3,
        "rollouts",
        [
            concat!(
                include_str!("../migrations/0003_rollouts.sql"),
                "\n",
                include_str!("../migrations/0003_append_only.postgres.sql")
            ),
            concat!(
                include_str!("../migrations/0003_rollouts.sql"),
                "\n",
                include_str!("../migrations/0003_append_only.sqlite.sql")
            ),
        ],
    ),
    (4, "draft sizes", shared(include_str!("../migrations/0004_draft_sizes.sql"))),
    (5, "pod domains", shared(include_str!("../migrations/0005_pod_domains.sql"))),
    (6, "draft sizes known", shared(include_str!("../migrations/0006_draft_sizes_known.sql"))),
    (7, "token bytes", shared(include_str!("../migrations/0007_token_bytes.sql"))),
    (8, "answer locations", shared(include_str!("../migrations/0008_answer_locations.sql"))),
    (9, "owners", shared(include_str!("../migrations/0009_owners.sql"))),
    (10, "fleets", shared(include_str!("../migrations/0010_fleets.sql"))),
    (11, "cluster", shared(include_str!("../migrations/0011_cluster.sql"))),
    (12, "pod places", shared(include_str!("../migrations/0012_pod_places.sql"))),
    (
        13,
        "rollout steps",
        [
            concat!(
                include_str!("../migrations/0013_rollout_steps.sql"),
                "\n",
                include_str!("../migrations/0013_append_only.postgres.sql")
            ),
            concat!(
                include_str!("../migrations/0013_rollout_steps.sql"),
                "\n",
                include_str!("../migrations/0013_append_only.sqlite.sql")
            ),
        ],
    ),
    (15, "draft contents", shared(include_str!("../migrations/0015_draft_contents.sql"))),
    (16, "change sets", shared(include_str!("../migrations/0016_change_sets.sql"))),
    (
        17,
        "people",
        [
            concat!(
                include_str!("../migrations/0017_people.sql"),
                "\n",
                include_str!("../migrations/0017_append_only.postgres.sql")
            ),
            concat!(
                include_str!("../migrations/0017_people.sql"),
                "\n",
                include_str!("../migrations/0017_append_only.sqlite.sql")
            ),
        ],
    ),
    (18, "approvals", shared(include_str!("../migrations/0018_approvals.sql"))),
    (19, "identities", shared(include_str!("../migrations/0019_identities.sql"))),
    (20, "draws", shared(include_str!("../migrations/0020_draws.sql"))),
];

/// Pairs the SQL with itself, for both databases.
const fn shared(sql: &'static str) -> [&'static str; 2] {
    [sql, sql]
}

/// Runs the migrations that the database has not run, each in a transaction.
async fn migrate(pool: &AnyPool, backend: Backend) -> StoreResult<()> {
    migrator(backend, i64::MAX).run(pool).await.map_err(|error| match error {
        MigrateError::Execute(error) => error.into(),
        MigrateError::VersionMissing(version) => StoreError::Refused(format!(
            "it has migration {version}, which a later release of ratelease-control made. Nothing \
             was changed: use that release or a later one, or restore the backup of the database \
             that was made before the upgrade"
        )),
        error => StoreError::Internal(format!("migration of the database: {error}")),
    })
}

/// The migrations up to the number `last`.
fn migrator(backend: Backend, last: i64) -> Migrator {
    let migrations = MIGRATIONS.into_iter().filter(|it| it.0 <= last);
    let migrations = migrations.map(|(version, name, [postgres, sqlite])| {
        let sql = if backend == Backend::Postgres { postgres } else { sqlite };
        let kind = MigrationType::Simple;
        Migration::new(version, Cow::Borrowed(name), kind, sql.into_sql_str(), false)
    });
    Migrator::with_migrations(migrations.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_rollout_of_an_earlier_release_goes_on_after_the_upgrade() {
        sqlx::any::install_default_drivers();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules.db");
        let old = AnyPoolOptions::new().connect(&sqlite_url(&path).unwrap()).await.unwrap();
        migrator(Backend::Sqlite, 11).run(&old).await.unwrap();
        let sql = "INSERT INTO versions (number, at, author, reason) VALUES (1, 1000, 'ci', 'x'); \
                   INSERT INTO rollouts (id, percent) VALUES (1, 10); \
                   INSERT INTO rollout_domains (rollout, domain, changed) VALUES (1, 'shop', 3); \
                   INSERT INTO rollout_steps (version, rollout, stage) VALUES (1, 1, 'shadow'); \
                   INSERT INTO rollout_counts VALUES (1, 'shop', 1, -2, 7, 2, 1); \
                   UPDATE counters SET version = 1";
        old.execute(sqlx::raw_sql(sql)).await.unwrap();
        old.close().await;
        let store = Store::open(&Database::Sqlite(path)).await.unwrap();
        let rollout = store.open_rollouts().await.unwrap().remove(0);
        let step = |stage| PlanStep { stage, percent: Some(10), wait: None };
        assert_eq!(rollout.plan, [step(Stage::Shadow), step(Stage::Enforced)]);
        assert_eq!((rollout.number(), rollout.ends_at(), rollout.next_at()), (1, None, None));
        let key = CountKey { version: 1, domain: "shop".to_owned(), is_chosen: true };
        let expected = HitCount { hits: 7, denied: 2, shadow: 1, left_out: 0 };
        assert_eq!(store.hits(1).await.unwrap().all[&key], expected);
        let author = Author { name: "test".to_owned(), reason: String::new() };
        let mut write = store.begin(&author).await.unwrap();
        write.take_step(&rollout, 2, &[PodRow::default()]).await.unwrap();
        write.commit().await.unwrap();
        let rollout = store.open_rollouts().await.unwrap().remove(0);
        assert_eq!((rollout.number(), rollout.last().shares[0].chosen), (2, 1));
        // Pods keep their places, which follow from the rollout's number and their ids.
        let threshold = rollout.last().shares[0].threshold;
        assert_eq!((rollout.seed, threshold), (None, 3_190_837_713_222_167_121));
    }

    #[tokio::test]
    async fn who_wrote_and_approved_before_the_upgrade_is_known_by_identity() {
        sqlx::any::install_default_drivers();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules.db");
        let old = AnyPoolOptions::new().connect(&sqlite_url(&path).unwrap()).await.unwrap();
        migrator(Backend::Sqlite, 18).run(&old).await.unwrap();
        // Ann had another name when she wrote; Bob had a token made, and was revoked.
        let sql = "INSERT INTO tokens (id, name, hash, access, created_at, revoked_at, issuer, \
                   subject, made_by) VALUES ('p-ann', 'Ann', '', 'write', 1, NULL, 'https://i', \
                   'users/0123456789ab', ''), ('p-bob', 'Bob', '', 'admin', 1, 7, 'https://i', \
                   'bob', ''), ('0123456789ab', 'ci', 'x', 'write', 1, NULL, '', '', ''), \
                   ('00000000000b', 'bot', 'x', 'write', 1, NULL, '', '', 'https://i#bob'); \
                   INSERT INTO domains (name, defaults, changed, published, approvals) \
                   VALUES ('shop', '{}', 5, 0, 1); \
                   INSERT INTO draft_authors VALUES \
                   ('shop', 'Mrs Ann/https://i#users/0123456789ab', 3), \
                   ('shop', 'bot/00000000000b', 4), ('shop', 'kubernetes', 5); \
                   INSERT INTO approvals VALUES ('shop', '0123456789ab', 'ci/0123456789ab', 5, 9), \
                   ('shop', 'https://i#bob', 'bot/00000000000b', 5, 9); \
                   INSERT INTO change_sets VALUES \
                   ('s', 'mine', 'Mrs Ann/https://i#users/0123456789ab', 2); \
                   INSERT INTO answers (author, idempotency_key, request, status, headers, body, \
                   at) VALUES ('ci/0123456789ab', 'k', 'r', 201, '', '{}', 9000000000000)";
        old.execute(sqlx::raw_sql(sql)).await.unwrap();
        old.close().await;
        let store = Store::open(&Database::Sqlite(path)).await.unwrap();
        let found = store.approvals("shop").await.unwrap().unwrap();
        let people: Vec<_> = found.authors.iter().map(|it| &*it.person).collect();
        assert_eq!(people, ["https://i#users/0123456789ab", "https://i#bob", ""]);
        let given: Vec<_> = found.given.iter().map(|it| &*it.approver).collect();
        assert_eq!(given, ["0123456789ab"], "the other one was revoked");
        assert_eq!(store.token("00000000000b").await.unwrap().unwrap().revoked_at, Some(7));
        let set = store.change_set("s").await.unwrap().unwrap();
        assert_eq!((&*set.owner, &*set.person), ("p-ann", "https://i#users/0123456789ab"));
        let key = AnswerKey { key: "k".to_owned(), request: "r".to_owned() };
        let known = store.earlier("0123456789ab", &key).await.unwrap();
        assert!(matches!(known, Earlier::Same(_)), "{known:?}");
    }

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
