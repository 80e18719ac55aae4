//! People who have signed in, and their sessions. A person has a row of `tokens` without a secret,
//! which counts the bytes of the person's writes, and which an administrator can revoke.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::query::{Cell, bound};
use super::{Store, StoreResult, Write};

/// Maximum number of sessions of one person; a further one ends the oldest.
const SESSIONS_OF_PERSON_MAX: i64 = 10;

/// Maximum number of sessions of all; a further one ends the oldest.
const SESSIONS_MAX: i64 = 10_000;

/// A person, as the provider of OpenID Connect knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// Identifies the row: a hash of issuer and subject.
    pub id: String,
    /// The provider.
    pub issuer: String,
    /// Who it is for the provider, for good.
    pub subject: String,
    /// The present name, without a slash.
    pub name: String,
}

/// A session that begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// The id, which is part of the cookie.
    pub id: String,
    /// The hash of its secret.
    pub hash: String,
    /// The access of the person.
    pub access: String,
    /// The domains that the person may use; `None` for all.
    pub domains: Option<Vec<String>>,
    /// The domains that the person may change; `None` for all.
    pub writable: Option<Vec<String>>,
    /// A hash of the settings that the rights follow from.
    pub roles: String,
    /// The end of the session, in milliseconds since the Unix epoch.
    pub expires_at: i64,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// The session as it began.
    pub session: NewSession,
    /// The person whose session it is.
    pub person: Person,
    /// Whether an administrator revoked the person.
    pub is_revoked: bool,
}

// === impl Store ===

impl Store {
    /// The session of this id.
    ///
    /// # Errors
    /// Fails if the database is not available.
    pub async fn session(&self, id: &str) -> StoreResult<Option<SessionRow>> {
        let sql = "SELECT s.id, s.hash, s.access, s.domains, s.writable, s.roles, s.expires_at, \
                   t.id, t.issuer, t.subject, t.name, t.revoked_at \
                   FROM sessions s JOIN tokens t ON t.id = s.person WHERE s.id = $1";
        let query = sqlx::query(sql).bind(id.to_owned());
        query.fetch_optional(&self.pool).await?.as_ref().map(SessionRow::read).transpose()
    }
}

// === impl Write ===

impl Write {
    /// Begins a session of a person, whose name and rights the row has from now on. Ends sessions
    /// that have expired, and the oldest of too many. Returns `None` if the person was revoked;
    /// else whether the person is new, or has other rights than at the last time.
    pub async fn sign_in(
        &mut self,
        person: &Person,
        session: &NewSession,
    ) -> StoreResult<Option<bool>> {
        let list =
            |it: &Option<Vec<String>>| it.as_ref().map(|it| serde_json::json!(it).to_string());
        let (domains, writable) = (list(&session.domains), list(&session.writable));
        let sql = "SELECT access, domains, writable, revoked_at FROM tokens WHERE id = $1";
        let query = sqlx::query(sql).bind(person.id.clone());
        let known = query.fetch_optional(&mut *self.tx).await?;
        let rights = (session.access.clone(), domains.clone(), writable.clone());
        let is_new = match &known {
            Some(row) if row.try_get::<Option<i64>, _>(3)?.is_some() => return Ok(None),
            Some(row) => (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?) != rights,
            None => true,
        };
        let sql = "INSERT INTO tokens (id, name, hash, access, domains, created_at, issuer, \
                   subject, writable) VALUES ($1, $2, '', $3, $4, $5, $6, $7, $8) \
                   ON CONFLICT (id) DO UPDATE SET name = excluded.name, \
                   access = excluded.access, domains = excluded.domains, \
                   writable = excluded.writable";
        let query = sqlx::query(sql).bind(person.id.clone()).bind(person.name.clone());
        let query = query.bind(session.access.clone()).bind(domains.clone()).bind(self.at);
        let query = query.bind(person.issuer.clone()).bind(person.subject.clone());
        let query = query.bind(writable.clone());
        query.execute(&mut *self.tx).await?;
        self.end_sessions(&person.id).await?;
        let row = vec![
            Cell::Text(session.id.clone()),
            Cell::Text(session.hash.clone()),
            Cell::Text(person.id.clone()),
            Cell::Text(session.access.clone()),
            Cell::Nullable(domains),
            Cell::Nullable(writable),
            Cell::Text(session.roles.clone()),
            Cell::Int(self.at),
            Cell::Int(session.expires_at),
        ];
        let into = "sessions (id, hash, person, access, domains, writable, roles, created_at, \
                    expires_at)";
        self.insert(into, vec![row]).await?;
        Ok(Some(is_new))
    }

    /// Makes room for one more session of a person.
    async fn end_sessions(&mut self, person: &str) -> StoreResult<()> {
        let query = sqlx::query("DELETE FROM sessions WHERE expires_at <= $1").bind(self.at);
        query.execute(&mut *self.tx).await?;
        let all = "SELECT id FROM sessions ORDER BY created_at DESC, id LIMIT $1";
        let of_person = "SELECT id FROM sessions WHERE person = $2 \
                         ORDER BY created_at DESC, id LIMIT $1";
        let sql = format!("DELETE FROM sessions WHERE id NOT IN ({all})");
        bound(&sql, vec![Cell::Int(SESSIONS_MAX - 1)]).execute(&mut *self.tx).await?;
        let sql = format!("DELETE FROM sessions WHERE person = $2 AND id NOT IN ({of_person})");
        let cells = vec![Cell::Int(SESSIONS_OF_PERSON_MAX - 1), Cell::Text(person.to_owned())];
        bound(&sql, cells).execute(&mut *self.tx).await?;
        Ok(())
    }

    /// Ends a session.
    pub async fn sign_out(&mut self, id: &str) -> StoreResult<()> {
        let query = sqlx::query("DELETE FROM sessions WHERE id = $1").bind(id.to_owned());
        query.execute(&mut *self.tx).await?;
        Ok(())
    }

    /// Whether a session has not ended.
    pub async fn has_session(&mut self, id: &str) -> StoreResult<bool> {
        let sql = "SELECT COUNT(*) FROM sessions WHERE id = $1 AND expires_at > $2";
        let query = sqlx::query_as(sql).bind(id.to_owned()).bind(self.at);
        let (count,): (i64,) = query.fetch_one(&mut *self.tx).await?;
        Ok(count > 0)
    }
}

// === impl SessionRow ===

impl SessionRow {
    fn read(row: &AnyRow) -> StoreResult<Self> {
        let list = |at: usize| -> StoreResult<Option<Vec<String>>> {
            let text: Option<String> = row.try_get(at)?;
            Ok(text.map(|it| serde_json::from_str(&it)).transpose()?)
        };
        Ok(Self {
            session: NewSession {
                id: row.try_get(0)?,
                hash: row.try_get(1)?,
                access: row.try_get(2)?,
                domains: list(3)?,
                writable: list(4)?,
                roles: row.try_get(5)?,
                expires_at: row.try_get(6)?,
            },
            person: Person {
                id: row.try_get(7)?,
                issuer: row.try_get(8)?,
                subject: row.try_get(9)?,
                name: row.try_get(10)?,
            },
            is_revoked: row.try_get::<Option<i64>, _>(11)?.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Author, Database};

    #[tokio::test]
    async fn a_sign_in_tells_whether_domains_to_change_are_new() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&Database::Sqlite(dir.path().join("rules.db"))).await.unwrap();
        let text = |it: &str| it.to_owned();
        let (issuer, subject) = (text("https://login.example"), text("ann"));
        let person = Person { id: text("p-1"), issuer, subject, name: text("Ann") };
        let one = || Some(vec![text("shop")]);
        for (at, (writable, expected)) in
            [(one(), true), (one(), false), (None, true), (None, false), (one(), true)]
                .into_iter()
                .enumerate()
        {
            let session = NewSession {
                id: at.to_string(),
                hash: text("x"),
                access: text("write"),
                domains: None,
                writable,
                roles: text("r"),
                expires_at: i64::MAX,
            };
            let mut write = store.begin(&Author::default()).await.unwrap();
            assert_eq!(write.sign_in(&person, &session).await.unwrap(), Some(expected), "{at}");
            write.commit().await.unwrap();
        }
        store.close().await;
    }
}
