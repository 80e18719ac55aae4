//! Tokens, of which only the hash is known.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::{Store, StoreResult, Write};

/// A token that is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// Its id, which is part of the token.
    pub id: String,
    /// What it is called; the author of what is done with it.
    pub name: String,
    /// The hash of its secret.
    pub hash: String,
    /// What it may do.
    pub access: String,
    /// The domains that it may do it with; `None` for all.
    pub domains: Option<Vec<String>>,
    /// Until when, in milliseconds since the Unix epoch.
    pub expires_at: Option<i64>,
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// What it was made as.
    pub token: NewToken,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at: i64,
    /// When it was revoked, in milliseconds since the Unix epoch.
    pub revoked_at: Option<i64>,
    /// Bytes that its writes have added to what is kept.
    pub written: i64,
}

const COLUMNS: &str = "id, name, hash, access, domains, expires_at, created_at, revoked_at, \
                       written";

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

    /// All tokens, the oldest first.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn tokens(&self) -> StoreResult<Vec<TokenRow>> {
        let sql = format!("SELECT {COLUMNS} FROM tokens ORDER BY created_at, id");
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&self.pool).await?;
        rows.iter().map(TokenRow::read).collect()
    }
}

// === impl Write ===

impl Write {
    /// Whether there is any token, revoked or not.
    pub(crate) async fn has_tokens(&mut self) -> StoreResult<bool> {
        let sql = "SELECT COUNT(*) FROM tokens";
        let (count,): (i64,) = sqlx::query_as(sql).fetch_one(&mut *self.tx).await?;
        Ok(count > 0)
    }

    /// Adds a token. Returns whether it did: if there is one of this id, revoked or not, that one
    /// stays as it is.
    pub(crate) async fn add_token(&mut self, token: &NewToken) -> StoreResult<bool> {
        let sql = "INSERT INTO tokens (id, name, hash, access, domains, created_at, expires_at) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING";
        let domains = token.domains.as_ref().map(|it| serde_json::json!(it).to_string());
        let query = sqlx::query(sql)
            .bind(token.id.clone())
            .bind(token.name.clone())
            .bind(token.hash.clone())
            .bind(token.access.clone())
            .bind(domains)
            .bind(self.at)
            .bind(token.expires_at);
        Ok(query.execute(&mut *self.tx).await?.rows_affected() > 0)
    }

    /// Revokes a token. Returns whether there was a valid one of this id.
    pub(crate) async fn revoke_token(&mut self, id: &str) -> StoreResult<bool> {
        let sql = "UPDATE tokens SET revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL";
        let query = sqlx::query(sql).bind(self.at).bind(id.to_owned());
        Ok(query.execute(&mut *self.tx).await?.rows_affected() > 0)
    }
}

// === impl TokenRow ===

impl TokenRow {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        let domains: Option<String> = row.try_get(4)?;
        Ok(Self {
            token: NewToken {
                id: row.try_get(0)?,
                name: row.try_get(1)?,
                hash: row.try_get(2)?,
                access: row.try_get(3)?,
                domains: domains.map(|it| serde_json::from_str(&it)).transpose()?,
                expires_at: row.try_get(5)?,
            },
            created_at: row.try_get(6)?,
            revoked_at: row.try_get(7)?,
            written: row.try_get(8)?,
        })
    }
}
