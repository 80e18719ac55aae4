//! How much the writes of a token may add to what is kept: history, texts of versions, the audit
//! log, and answers of idempotency keys.
//!
//! All of that but the answers is kept for good, so that a bound of a rate would only delay a full
//! disk. The bound is of a token and not of a domain, because the audit log and answers are of no
//! domain, and a token of all domains may make new ones; tokens are made by an operator alone. So
//! the database grows by at most this bound for each token, and a token that has reached it keeps
//! no other one from writing. A write is counted when it ends: the last one may exceed the bound.

use super::write::Cell;
use super::{StoreError, StoreResult, Write};

/// Bytes that are counted for a row beside its texts: numbers, times and places in indexes.
const ROW_BYTES: usize = 128;

// === impl Write ===

impl Write {
    /// Counts what this write keeps for the token of this id and these domains. A token that was
    /// revoked, or that has expired since the request began, writes nothing: a revocation is a
    /// write too, so that it is seen here if it was committed before.
    ///
    /// # Errors
    /// [`StoreError::TokenEnded`] for such a token.
    /// [`StoreError::QuotaUsed`] if earlier writes of the token have kept `bytes_max`; `None` for
    /// no bound.
    pub(crate) async fn count_for(
        &mut self,
        token: &str,
        domains: Option<&[String]>,
        bytes_max: Option<i64>,
    ) -> StoreResult<()> {
        let sql = "SELECT written FROM tokens WHERE id = $1 AND revoked_at IS NULL \
                   AND (expires_at IS NULL OR expires_at > $2)";
        let query = sqlx::query_as(sql).bind(token.to_owned()).bind(self.at);
        let row: Option<(i64,)> = query.fetch_optional(&mut *self.tx).await?;
        let (written,) = row.ok_or(StoreError::TokenEnded)?;
        if let Some(max) = bytes_max.filter(|max| written >= *max) {
            return Err(StoreError::QuotaUsed { written, max });
        }
        self.kept.token = Some(token.to_owned());
        self.kept.domains = domains.map(<[_]>::to_vec);
        Ok(())
    }

    /// Inserts rows of what is kept.
    pub(super) async fn keep(&mut self, into: &str, rows: Vec<Vec<Cell>>) -> StoreResult<()> {
        for row in &rows {
            self.note_kept(row.iter().map(Cell::bytes).sum());
        }
        self.insert(into, rows).await
    }

    /// Counts a row that is kept, with texts of so many bytes.
    pub(super) fn note_kept(&mut self, bytes: usize) {
        self.kept.bytes += ROW_BYTES + bytes;
    }

    /// Adds what this write kept to that of its token.
    pub(super) async fn count_kept(&mut self) -> StoreResult<()> {
        let Some(token) = self.kept.token.take() else { return Ok(()) };
        let bytes = i64::try_from(self.kept.bytes).unwrap_or(i64::MAX);
        let sql = "UPDATE tokens SET written = written + $1 WHERE id = $2";
        sqlx::query(sql).bind(bytes).bind(token).execute(&mut *self.tx).await?;
        Ok(())
    }
}
