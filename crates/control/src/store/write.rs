//! A write: one transaction, one number, one author. And the pages of rows that reads return.

use std::collections::BTreeSet;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::AnyRow;
use sqlx::{Any, AssertSqlSafe, Executor, Row, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::contents::Compared;
use super::query::{Cell, bound};
use super::{Backend, CHANNEL, Store, StoreError, StoreResult};
use crate::permits::{Permit, Permits};

/// Rows that one statement inserts. SQLite allows 32 766 parameters, PostgreSQL 65 535, but SQLite
/// finds each by a search through those before it: the import of 100 000 rules takes 4.1 s with 50
/// rows and 11.6 s with 500. PostgreSQL takes 3.3 s with both.
const ROWS_MAX: usize = 50;

/// The key of PostgreSQL's advisory lock that publishers hold: "ratelcp" in ASCII.
const PUBLISHERS_KEY: i64 = 0x0072_6174_656C_6370;

/// Maximum time that a write of a token waits for the writes before it.
const TURN_MAX: Duration = Duration::from_secs(8);

/// Maximum time that a write of an operator waits for the writes before it.
const OPERATOR_TURN_MAX: Duration = Duration::from_secs(30);

/// The order of writes, which happen one after the other. Writes that wait hold no connection. Each
/// token has one write that waits for its turn among those of the other tokens, so that it delays
/// them by one write. A write of an operator waits for the present write, and for one write of a
/// token at most.
#[derive(Debug, Clone)]
pub struct WriteTurns {
    tokens: Permits,
    present: Arc<Semaphore>,
}

/// While this is held, others wait.
type WriteTurn = (OwnedSemaphorePermit, Option<Permit>);

/// The author of a write, and the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Author {
    /// The name of the token, or of the command.
    pub name: String,
    /// The reason that the author gives; may be empty.
    pub reason: String,
}

/// The identity of a caller, whatever name is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The id of the token, or of the person who signed in.
    pub id: String,
    /// The person or token that is responsible, as ISSUER#SUBJECT or the id of the token.
    pub person: String,
}

/// A transaction that writes. Dropping it rolls back.
#[derive(Debug)]
pub struct Write {
    pub tx: Transaction<'static, Any>,
    pub author: Author,
    /// The identity for which the transaction writes; empty for the program itself.
    pub identity: Identity,
    /// When the transaction began, in milliseconds since the Unix epoch by the database's clock.
    pub at: i64,
    /// The number of its last change.
    number: i64,
    backend: Backend,
    pub writer: Writer,
    pub kept: Kept,
    pub compared: Compared,
    pub noted: Noted,
    /// Whether an administrator has it publish drafts that lack approvals.
    pub skips_approvals: bool,
    /// Held until it ends.
    _turn: WriteTurn,
}

/// The domains that a write may change: some domains are defined by objects of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Domains that no object defines: the other domains follow the objects.
    Guarded,
    /// All domains: nothing follows the objects, and a domain that changes is the database's again.
    Unguarded,
    /// All domains, for the objects that define them.
    Objects,
}

/// The bytes that a write adds to the database, and the token that it counts for.
#[derive(Debug, Default)]
pub struct Kept {
    /// The id of the token; `None` for writes of the program itself.
    pub token: Option<String>,
    /// The domains that the token is for; `None` for all.
    pub domains: Option<Vec<String>>,
    pub bytes: usize,
}

/// The actions of a write, and the domains that it changes or publishes: its end notes that the
/// actions are of these domains.
#[derive(Debug, Default)]
pub struct Noted {
    pub actions: Vec<i64>,
    pub domains: BTreeSet<String>,
}

/// While this is held, no other replica publishes. Other writes go on.
#[derive(Debug)]
pub struct PublisherLock {
    /// The end of the transaction releases the lock. `None` with SQLite, which has one process
    /// only.
    _tx: Option<Transaction<'static, Any>>,
}

async fn in_time(
    max: Duration,
    turn: impl Future<Output = Option<WriteTurn>>,
) -> StoreResult<WriteTurn> {
    let turn = timeout(max, turn).await.ok().flatten();
    turn.ok_or_else(|| StoreError::Unavailable(format!("other writes took longer than {max:?}")))
}

// === impl WriteTurns ===

impl Default for WriteTurns {
    fn default() -> Self {
        Self { tokens: Permits::new(1, 1), present: Arc::new(Semaphore::new(1)) }
    }
}

impl WriteTurns {
    async fn of_operator(&self) -> Option<WriteTurn> {
        // The semaphore is never closed.
        Arc::clone(&self.present).acquire_owned().await.ok().map(|present| (present, None))
    }

    async fn of_token(&self, id: &str) -> Option<WriteTurn> {
        let place = self.tokens.take(id).await;
        self.of_operator().await.map(|(present, _)| (present, Some(place)))
    }
}

// === impl Store ===

impl Store {
    /// Begins a write of an operator or of the program itself, after those that began before have
    /// ended.
    ///
    /// # Errors
    /// Fails if the database is not available, or others write for too long.
    pub async fn begin(&self, author: &Author) -> StoreResult<Write> {
        let turn = in_time(OPERATOR_TURN_MAX, self.turns.of_operator()).await?;
        self.begin_in(turn, author).await
    }

    /// Begins a write of the token or person of this id, in its turn.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn begin_of_token(&self, author: &Author, id: &str) -> StoreResult<Write> {
        let turn = in_time(TURN_MAX, self.turns.of_token(id)).await?;
        self.begin_in(turn, author).await
    }

    async fn begin_in(&self, turn: WriteTurn, author: &Author) -> StoreResult<Write> {
        let mut write = Write {
            tx: self.pool.begin().await?,
            author: author.clone(),
            identity: Identity::default(),
            at: 0,
            number: 0,
            backend: self.backend,
            writer: if self.follows_objects { Writer::Guarded } else { Writer::Unguarded },
            kept: Kept::default(),
            compared: self.compared.clone(),
            noted: Noted::default(),
            skips_approvals: false,
            _turn: turn,
        };
        (write.number, write.at) = write.count(1).await?;
        Ok(write)
    }
}

impl Store {
    /// Waits until no replica publishes.
    ///
    /// # Errors
    /// Fails if the database is not available, or another replica publishes for too long.
    pub async fn lock_publishers(&self) -> StoreResult<PublisherLock> {
        if self.backend == Backend::Sqlite {
            return Ok(PublisherLock { _tx: None });
        }
        let mut tx = self.pool.begin().await?;
        // The time of the request bounds the wait: another replica may publish for longer than a
        // statement may take otherwise.
        for limit in ["SET LOCAL lock_timeout = 0", "SET LOCAL statement_timeout = 0"] {
            sqlx::query(limit).execute(&mut *tx).await?;
        }
        let query = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(PUBLISHERS_KEY);
        query.execute(&mut *tx).await?;
        Ok(PublisherLock { _tx: Some(tx) })
    }
}

// === impl Write ===

impl Write {
    /// Lets the write change what objects define.
    pub fn of_objects(&mut self) {
        self.writer = Writer::Objects;
    }

    /// The number of the write's last change, greater than the number of each earlier write.
    pub fn number(&self) -> i64 {
        self.number
    }

    /// Takes `count` further numbers, and returns the first of them.
    pub async fn take_numbers(&mut self, count: i64) -> StoreResult<i64> {
        let (last, _) = self.count(count).await?;
        self.number = last;
        Ok(last - count + 1)
    }

    /// Adds to the counter of changes, which others then wait for. Returns it, and the time.
    async fn count(&mut self, count: i64) -> StoreResult<(i64, i64)> {
        let clock = self.backend.clock();
        let sql = AssertSqlSafe(format!(
            "UPDATE counters SET change = change + $1 WHERE id = 1 RETURNING change, {clock}"
        ));
        Ok(sqlx::query_as(sql).bind(count).fetch_one(&mut *self.tx).await?)
    }

    /// Commits. Only after this is the write to be acknowledged.
    ///
    /// # Errors
    /// Fails if the database is lost meanwhile; then it is not known whether the write was done.
    pub async fn commit(mut self) -> StoreResult<()> {
        self.keep_noted().await?;
        self.count_kept().await?;
        self.tx.commit().await.map_err(|error| match StoreError::from(error) {
            StoreError::Unavailable(why) => StoreError::Unavailable(format!(
                "{why}, at the commit: the write may have been done. A repeat with the same \
                 Idempotency-Key is safe"
            )),
            error => error,
        })
    }

    /// Notes the domains of its actions.
    async fn keep_noted(&mut self) -> StoreResult<()> {
        let Noted { actions, domains } = take(&mut self.noted);
        for action in actions {
            let row = |domain: &String| vec![Cell::Text(domain.clone()), Cell::Int(action)];
            let rows = domains.iter().map(row).collect();
            self.keep("audit_domains (domain, action)", rows).await?;
        }
        Ok(())
    }

    /// Tells all replicas of a new version, once it is committed.
    pub async fn notify(&mut self, version: i64) -> StoreResult<()> {
        if self.backend == Backend::Postgres {
            let sql = "SELECT pg_notify($1, $2)";
            let query = sqlx::query(sql).bind(CHANNEL).bind(version.to_string());
            query.execute(&mut *self.tx).await?;
        }
        Ok(())
    }

    /// Inserts rows, as [`insert`] does.
    pub async fn insert(&mut self, into: &str, rows: Vec<Vec<Cell>>) -> StoreResult<()> {
        insert(&mut self.tx, into, rows).await
    }
}

/// Inserts rows, many with each statement. `into` is a table with the names of its columns, of
/// which each row has one cell.
pub async fn insert(
    tx: &mut Transaction<'static, Any>,
    into: &str,
    rows: Vec<Vec<Cell>>,
) -> StoreResult<()> {
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        let chunk: Vec<_> = rows.by_ref().take(ROWS_MAX).collect();
        let mut next = 0;
        let places = chunk.iter().map(|row| {
            let places = row.iter().map(|cell| {
                if let Cell::Expression(sql) = cell {
                    return (*sql).to_owned();
                }
                next += 1;
                format!("${next}")
            });
            format!("({})", places.collect::<Vec<_>>().join(","))
        });
        let places = places.collect::<Vec<_>>().join(",");
        let sql = format!("INSERT INTO {into} VALUES {places}");
        let cells = chunk.into_iter().flatten().collect();
        bound(&sql, cells).execute(&mut **tx).await?;
    }
    Ok(())
}

// Pages of rows that are bounded by bytes as well as by number: a row may have a megabyte.

/// Maximum bytes of the texts of a page. Its first row is there whatever its size.
const PAGE_BYTES_MAX: i64 = 4 << 20;

/// The rows of a page.
#[derive(Debug)]
pub struct PageQuery<'q> {
    /// The columns, separated by commas.
    pub columns: &'q str,
    /// The table and the condition.
    pub from: String,
    /// The order, in which no two rows are equal.
    pub order: &'q str,
    /// The columns whose texts may be long.
    pub texts: &'q [&'q str],
    /// The parameters of the condition.
    pub cells: Vec<Cell>,
    /// Maximum number of rows.
    pub limit: usize,
}

// === impl PageQuery ===

impl PageQuery<'_> {
    /// The rows, and whether there are more.
    pub async fn fetch<'e>(
        self,
        executor: impl Executor<'e, Database = Any>,
    ) -> StoreResult<(Vec<AnyRow>, bool)> {
        let Self { columns, from, order, texts, mut cells, limit } = self;
        // One row more than wanted tells whether there is a next page.
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        cells.extend([Cell::Int(limit.saturating_add(1)), Cell::Int(PAGE_BYTES_MAX)]);
        let limit_at = cells.len() - 1;
        let bytes_at = cells.len();
        let size = texts.iter().map(|text| format!("COALESCE(OCTET_LENGTH({text}), 0)"));
        let size = size.collect::<Vec<_>>().join(" + ");
        let sql = format!(
            "SELECT {columns}, row_count FROM (SELECT p.*, COUNT(*) OVER () AS row_count, \
             SUM(row_bytes) OVER (ORDER BY {order}) AS bytes_so_far FROM \
             (SELECT {columns}, {size} AS row_bytes FROM {from} ORDER BY {order} \
             LIMIT ${limit_at}) p) q WHERE bytes_so_far - row_bytes < ${bytes_at} ORDER BY {order}"
        );
        let mut rows = bound(&sql, cells).fetch_all(executor).await?;
        let count = columns.split(',').count();
        let found: i64 = rows.first().map_or(Ok(0), |row| row.try_get(count))?;
        let has_more = i64::try_from(rows.len()).unwrap_or(i64::MAX) < found || found > limit;
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok((rows, has_more))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_token_delays_others_by_one_write_and_an_operator_by_one_more() {
        let turns = WriteTurns::default();
        let present = turns.of_token("a").await;
        let mut second = Box::pin(turns.of_token("a"));
        let mut third = Box::pin(turns.of_token("a"));
        let mut other = Box::pin(turns.of_token("b"));
        let mut operator = Box::pin(turns.of_operator());
        for waits in [&mut second, &mut third, &mut other] {
            assert!(waits.now_or_never().is_none());
        }
        assert!((&mut operator).now_or_never().is_none());
        drop(present);
        // The operator waited for the present write alone: writes of tokens wait for each other.
        drop((&mut operator).now_or_never().expect("the operator's turn"));
        assert!((&mut second).now_or_never().is_none(), "the other token is before it");
        let present = (&mut other).now_or_never().expect("the turn of the other token");
        drop(present);
        let present = (&mut second).now_or_never().expect("its second turn");
        assert!((&mut third).now_or_never().is_none());
        drop(present);
        assert!(third.now_or_never().is_some());
    }
}
