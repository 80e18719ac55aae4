//! Tokens, of which only the hash is known; the limit of the bytes that the writes of each token
//! may keep; and the answers to writes that are repeated.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{Any, Executor, Row};

use super::query::Cell;
use super::write::PageQuery;
use super::{Store, StoreError, StoreResult, Write};

/// A token that is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// The id of the token, which is part of the token's text.
    pub id: String,
    /// The name of the token. It is the author of all actions with the token.
    pub name: String,
    /// The hash of its secret.
    pub hash: String,
    /// The access that the token gives.
    pub access: String,
    /// The domains that it may do it with; `None` for all.
    pub domains: Option<Vec<String>>,
    /// The end of the token, in milliseconds since the Unix epoch.
    pub expires_at: Option<i64>,
    /// The person or token responsible for the token, as ISSUER#SUBJECT or the id of a token; empty
    /// if the command line made it.
    pub made_by: String,
    /// The row of the token or person who had the API make it; empty if the command line made it.
    pub maker: String,
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// The values with which the token was made.
    pub token: NewToken,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at: i64,
    /// When it was revoked, in milliseconds since the Unix epoch.
    pub revoked_at: Option<i64>,
    /// Bytes that the token's writes have added to the database.
    pub written: i64,
    /// The provider of a person who signs in; empty for a token.
    pub issuer: String,
    /// The subject by which the provider knows the person; empty for a token.
    pub subject: String,
    /// The domains that the token may change, as a JSON list; null for all. `None` for a person who
    /// has not signed in since a release that keeps this list.
    pub writable: Option<Value>,
}

const COLUMNS: &str = "id, name, hash, access, domains, expires_at, created_at, revoked_at, \
                       written, made_by, issuer, subject, maker, writable";

// === impl Store ===

impl Store {
    /// The token of this id.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn token(&self, id: &str) -> StoreResult<Option<TokenRow>> {
        let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM tokens WHERE id = $1"));
        let row = sqlx::query(sql).bind(id.to_owned()).fetch_optional(&self.pool).await?;
        row.as_ref().map(TokenRow::read).transpose()
    }

    /// All tokens, and people who have signed in, the oldest first.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn tokens(&self) -> StoreResult<Vec<TokenRow>> {
        let sql = format!("SELECT {COLUMNS} FROM tokens ORDER BY created_at, id");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&self.pool).await?;
        rows.iter().map(TokenRow::read).collect()
    }

    /// At most `limit` of them, the latest first, which were made before `before`: a time in
    /// milliseconds since the Unix epoch, and an id.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn latest_tokens(
        &self,
        before: Option<(i64, String)>,
        limit: usize,
    ) -> StoreResult<(Vec<TokenRow>, bool)> {
        let (at, id) = before.unwrap_or((i64::MAX, String::new()));
        let query = PageQuery {
            columns: COLUMNS,
            from: "tokens WHERE created_at < $1 OR (created_at = $1 AND id < $2)".to_owned(),
            order: "created_at DESC, id DESC",
            texts: &["domains", "name"],
            cells: vec![Cell::Int(at), Cell::Text(id)],
            limit,
        };
        let (rows, has_more) = query.fetch(&self.pool).await?;
        Ok((rows.iter().map(TokenRow::read).collect::<StoreResult<_>>()?, has_more))
    }
}

// === impl Write ===

impl Write {
    /// Whether there is any token, revoked or not.
    pub async fn has_tokens(&mut self) -> StoreResult<bool> {
        let sql = "SELECT COUNT(*) FROM tokens";
        let (count,): (i64,) = sqlx::query_as(sql).fetch_one(&mut *self.tx).await?;
        Ok(count > 0)
    }

    /// Adds a token. Returns whether it did: if there is one of this id, revoked or not, that one
    /// stays as it is.
    pub async fn add_token(&mut self, token: &NewToken) -> StoreResult<bool> {
        let sql = "INSERT INTO tokens (id, name, hash, access, domains, created_at, expires_at, \
                   made_by, maker) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
                   ON CONFLICT (id) DO NOTHING";
        let domains = token.domains.as_ref().map(|it| json!(it).to_string());
        let query = sqlx::query(sql)
            .bind(token.id.clone())
            .bind(token.name.clone())
            .bind(token.hash.clone())
            .bind(token.access.clone())
            .bind(domains)
            .bind(self.at)
            .bind(token.expires_at)
            .bind(token.made_by.clone())
            .bind(token.maker.clone());
        self.noted.domains.extend(token.domains.iter().flatten().cloned());
        Ok(query.execute(&mut *self.tx).await?.rows_affected() > 0)
    }

    /// Revokes a token or a person, with all tokens that it had the API make, and the tokens that
    /// these made. A revoked maker writes nothing more, so that it makes no token after this. Notes
    /// the action. Returns whether any of them was valid.
    pub async fn revoke_token(&mut self, id: &str) -> StoreResult<bool> {
        let sql = "WITH RECURSIVE made (id) AS (SELECT id FROM tokens WHERE id = $1 \
                   UNION SELECT t.id FROM tokens t JOIN made m ON t.maker = m.id) \
                   UPDATE tokens SET revoked_at = $2 WHERE revoked_at IS NULL \
                   AND id IN (SELECT id FROM made) RETURNING id";
        let query = sqlx::query_as(sql).bind(id.to_owned()).bind(self.at);
        let revoked: Vec<(String,)> = query.fetch_all(&mut *self.tx).await?;
        if revoked.is_empty() {
            return Ok(false);
        }
        let mut made: Vec<_> = revoked.into_iter().map(|it| it.0).filter(|it| it != id).collect();
        made.sort_unstable();
        let subject = match made.is_empty() {
            true => id.to_owned(),
            false => format!("{id}, and what it had made: {}", made.join(", ")),
        };
        self.note_action("token.revoke", &subject).await?;
        Ok(true)
    }
}

// === impl TokenRow ===

impl TokenRow {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        let domains: Option<String> = row.try_get(4)?;
        let domains: Option<Vec<String>> =
            domains.map(|it| serde_json::from_str(&it)).transpose()?;
        let issuer: String = row.try_get(10)?;
        let of_person: Option<String> = row.try_get(13)?;
        let writable = match of_person.as_deref() {
            // A token may change all domains that it may use.
            _ if issuer.is_empty() => Some(json!(domains)),
            Some("") => None,
            Some(list) => Some(serde_json::from_str(list)?),
            None => Some(Value::Null),
        };
        Ok(Self {
            token: NewToken {
                id: row.try_get(0)?,
                name: row.try_get(1)?,
                hash: row.try_get(2)?,
                access: row.try_get(3)?,
                domains,
                expires_at: row.try_get(5)?,
                made_by: row.try_get(9)?,
                maker: row.try_get(12)?,
            },
            created_at: row.try_get(6)?,
            revoked_at: row.try_get(7)?,
            written: row.try_get(8)?,
            issuer,
            subject: row.try_get(11)?,
            writable,
        })
    }
}

// The limit of the bytes that the writes of a token may add to the database: history, texts of
// versions, the audit log, and answers of idempotency keys.
//
// All of that but the answers is kept for good, so that a bound of a rate would only delay a full
// disk. The bound is of a token and not of a domain, because the audit log and answers are of no
// domain, and a token of all domains may make new ones; tokens are made by an operator alone. So
// the database grows by at most this bound for each token, and a token that has reached it keeps
// no other one from writing. A write is counted when it ends: the last one may exceed the bound.

/// Bytes that are counted for a row beside its texts: numbers, times and places in indexes.
const ROW_BYTES: usize = 128;

// === impl Write ===

impl Write {
    /// Counts what this write keeps for the token of this id and these domains. A token that was
    /// revoked, or that has expired since the request began, writes nothing: a revocation is a
    /// write too, so that it is seen here if it was committed before. The same goes for a session.
    ///
    /// # Errors
    /// [`StoreError::TokenEnded`] for such a token.
    /// [`StoreError::QuotaUsed`] if earlier writes of the token have kept `bytes_max`; `None` for
    /// no bound.
    pub async fn count_for(
        &mut self,
        (token, session): (&str, Option<&str>),
        domains: Option<&[String]>,
        bytes_max: Option<i64>,
    ) -> StoreResult<()> {
        if let Some(session) = session
            && !self.has_session(session).await?
        {
            return Err(StoreError::TokenEnded);
        }
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

    /// Inserts rows that stay in the database, and counts their bytes.
    pub async fn keep(&mut self, into: &str, rows: Vec<Vec<Cell>>) -> StoreResult<()> {
        for row in &rows {
            self.note_kept(row.iter().map(Cell::bytes).sum());
        }
        self.insert(into, rows).await
    }

    /// Counts a row that is kept, with texts of so many bytes.
    pub fn note_kept(&mut self, bytes: usize) {
        self.kept.bytes += ROW_BYTES + bytes;
    }

    /// Adds the bytes of this write to the bytes of its token.
    pub async fn count_kept(&mut self) -> StoreResult<()> {
        let Some(token) = self.kept.token.take() else { return Ok(()) };
        let bytes = i64::try_from(self.kept.bytes).unwrap_or(i64::MAX);
        let sql = "UPDATE tokens SET written = written + $1 WHERE id = $2";
        sqlx::query(sql).bind(bytes).bind(token).execute(&mut *self.tx).await?;
        Ok(())
    }
}

// Idempotency keys: a write that is repeated gets the answer of the first one.

/// How long an answer is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The identity of a repeated write.
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
    /// The `Location` of an added object; empty if the answer has none.
    pub location: String,
    /// The body.
    pub body: String,
}

/// The earlier use of an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Earlier {
    /// The key is new.
    New,
    /// The key was used with this request, and this answer was given.
    Same(Answer),
    /// The key was used with another request.
    Other,
}

// === impl Store ===

impl Store {
    /// The answer to a write with this key, by the token or person of this id.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn earlier(&self, id: &str, key: &AnswerKey) -> StoreResult<Earlier> {
        earlier(&self.pool, id, key, self.now()).await
    }
}

async fn earlier<'e>(
    executor: impl Executor<'e, Database = Any>,
    id: &str,
    key: &AnswerKey,
    now: i64,
) -> StoreResult<Earlier> {
    let sql = "SELECT request, status, headers, location, body FROM answers \
               WHERE author = $1 AND idempotency_key = $2 AND at > $3";
    let query = sqlx::query(sql).bind(id.to_owned()).bind(key.key.clone());
    let row = query.bind(kept_since(now)).fetch_optional(executor).await?;
    let Some(row) = row else { return Ok(Earlier::New) };
    if row.try_get::<String, _>(0)? != key.request {
        return Ok(Earlier::Other);
    }
    let status = u16::try_from(row.try_get::<i64, _>(1)?).unwrap_or(200);
    let etag = row.try_get(2)?;
    let location = row.try_get(3)?;
    let body = row.try_get(4)?;
    Ok(Earlier::Same(Answer { status, etag, location, body }))
}

/// The time at which the oldest answer that is kept was given.
fn kept_since(now: i64) -> i64 {
    now - i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX)
}

// === impl Write ===

impl Write {
    /// The answer to a write with this key, by the same token or person.
    pub async fn earlier(&mut self, key: &AnswerKey) -> StoreResult<Earlier> {
        earlier(&mut *self.tx, &self.identity.id, key, self.at).await
    }

    /// Keeps the answer to this write, and drops old ones.
    pub async fn keep_answer(&mut self, key: &AnswerKey, answer: &Answer) -> StoreResult<()> {
        let query = sqlx::query("DELETE FROM answers WHERE at <= $1").bind(kept_since(self.at));
        query.execute(&mut *self.tx).await?;
        let row = vec![
            Cell::Text(self.identity.id.clone()),
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
