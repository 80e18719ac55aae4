//! Idempotency keys: a write that is repeated gets the answer of the first one.

use std::time::Duration;

use jiff::Timestamp;
use sqlx::{Any, Executor, Row};

use super::write::Cell;
use super::{Store, StoreResult, Write};

/// How long an answer is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// What identifies a repeated write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerKey {
    /// The key that the client chose.
    pub key: String,
    /// A hash of the request, because a key is for one request only.
    pub request: String,
}

/// An answer that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The `ETag`; empty if it has none.
    pub etag: String,
    /// The `Location` of what was added; empty if it has none.
    pub location: String,
    /// The body.
    pub body: String,
}

/// What is known of an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Earlier {
    /// Nothing.
    New,
    /// It was given with this request, and this was answered.
    Same(Answer),
    /// It was given with another request.
    Other,
}

// === impl Store ===

impl Store {
    /// What was answered to a write of this author with this key.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub(crate) async fn earlier(&self, author: &str, key: &AnswerKey) -> StoreResult<Earlier> {
        earlier(&self.pool, author, key, Timestamp::now().as_millisecond()).await
    }
}

async fn earlier<'e>(
    executor: impl Executor<'e, Database = Any>,
    author: &str,
    key: &AnswerKey,
    now: i64,
) -> StoreResult<Earlier> {
    let sql = "SELECT request, status, headers, location, body FROM answers \
               WHERE author = $1 AND idempotency_key = $2 AND at > $3";
    let query = sqlx::query(sql).bind(author.to_owned()).bind(key.key.clone());
    let row = query.bind(kept_since(now)).fetch_optional(executor).await?;
    let Some(row) = row else { return Ok(Earlier::New) };
    if row.try_get::<String, _>(0)? != key.request {
        return Ok(Earlier::Other);
    }
    let status = u16::try_from(row.try_get::<i64, _>(1)?).unwrap_or(200);
    let (etag, location, body) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
    Ok(Earlier::Same(Answer { status, etag, location, body }))
}

/// The time at which the oldest answer that is kept was given.
fn kept_since(now: i64) -> i64 {
    now - i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX)
}

// === impl Write ===

impl Write {
    /// What was answered to a write of this author with this key.
    pub(crate) async fn earlier(&mut self, key: &AnswerKey) -> StoreResult<Earlier> {
        earlier(&mut *self.tx, &self.author.name, key, self.at).await
    }

    /// Keeps the answer to this write, and drops old ones.
    pub(crate) async fn keep_answer(
        &mut self,
        key: &AnswerKey,
        answer: &Answer,
    ) -> StoreResult<()> {
        let query = sqlx::query("DELETE FROM answers WHERE at <= $1").bind(kept_since(self.at));
        query.execute(&mut *self.tx).await?;
        let row = vec![
            Cell::Text(self.author.name.clone()),
            Cell::Text(key.key.clone()),
            Cell::Text(key.request.clone()),
            Cell::Int(i64::from(answer.status)),
            Cell::Text(answer.etag.clone()),
            Cell::Text(answer.location.clone()),
            Cell::Text(answer.body.clone()),
            Cell::Int(self.at),
        ];
        let into =
            "answers (author, idempotency_key, request, status, headers, location, body, at)";
        self.keep(into, vec![row]).await
    }
}
