//! Idempotency keys: a write that is repeated gets the answer of the first one.

use std::time::Duration;

use sqlx::Row;

use super::{StoreResult, Write};

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

// === impl Write ===

impl Write {
    /// What was answered to a write of this author with this key.
    pub(crate) async fn earlier(&mut self, key: &AnswerKey) -> StoreResult<Earlier> {
        let sql = "SELECT request, status, headers, body FROM answers \
                   WHERE author = $1 AND idempotency_key = $2 AND at > $3";
        let query = sqlx::query(sql).bind(self.author.name.clone()).bind(key.key.clone());
        let row = query.bind(self.kept_since()).fetch_optional(&mut *self.tx).await?;
        let Some(row) = row else { return Ok(Earlier::New) };
        if row.try_get::<String, _>(0)? != key.request {
            return Ok(Earlier::Other);
        }
        let status = u16::try_from(row.try_get::<i64, _>(1)?).unwrap_or(200);
        Ok(Earlier::Same(Answer { status, etag: row.try_get(2)?, body: row.try_get(3)? }))
    }

    /// Keeps the answer to this write, and drops old ones.
    pub(crate) async fn keep_answer(
        &mut self,
        key: &AnswerKey,
        answer: &Answer,
    ) -> StoreResult<()> {
        let query = sqlx::query("DELETE FROM answers WHERE at <= $1").bind(self.kept_since());
        query.execute(&mut *self.tx).await?;
        let sql = "INSERT INTO answers (author, idempotency_key, request, status, headers, body, \
                   at) VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let query = sqlx::query(sql)
            .bind(self.author.name.clone())
            .bind(key.key.clone())
            .bind(key.request.clone())
            .bind(i64::from(answer.status))
            .bind(answer.etag.clone())
            .bind(answer.body.clone())
            .bind(self.at);
        query.execute(&mut *self.tx).await?;
        Ok(())
    }

    fn kept_since(&self) -> i64 {
        self.at - i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX)
    }
}
