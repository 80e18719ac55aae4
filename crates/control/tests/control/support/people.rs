//! People who have signed in, by rows of the database alone: no provider takes part.

use ratelease_control::settings::SignIn;
use serde_json::json;
use sqlx::{AnyPool, AssertSqlSafe, Executor};

use super::{Call, Place};

/// The origin of the page.
const ORIGIN: &str = "http://localhost";

/// The provider.
const ISSUER: &str = "https://login.example";

/// The client of the provider.
const CLIENT: &str = "limits";

/// A person in a session: of access admin for all domains, or else for `shop`.
pub(crate) struct Person {
    /// The id of the row.
    pub(crate) id: String,
    cookie: String,
}

/// A control plane to which people sign in.
pub(crate) fn sign_in() -> SignIn {
    SignIn {
        origin: ORIGIN.to_owned(),
        is_secure: false,
        issuer: ISSUER.to_owned(),
        client_id: CLIENT.to_owned(),
        client_secret: Default::default(),
        scopes: "openid".to_owned(),
        roles: Default::default(),
        roots: None,
    }
}

/// Runs SQL on the database of a place, whose control plane serves.
pub(crate) async fn run_sql(place: &Place, sql: String) {
    sqlx::any::install_default_drivers();
    let url = match &place.postgres {
        Some(postgres) => postgres.url(),
        None => format!("sqlite://{}", place.dir.path().join("rules.db").display()),
    };
    let pool = AnyPool::connect(&url).await.unwrap();
    pool.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    pool.close().await;
}

// === impl Person ===

impl Person {
    /// Starts a session of a new person.
    pub(crate) async fn sign_in(place: &Place, name: &str, subject: &str, access: &str) -> Self {
        let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex()[..32].to_owned();
        let id = format!("p-{}", hash(subject));
        let (session, secret) =
            (&hash(name)[..12], format!("{}{}", &hash(name)[..32], "A".repeat(11)));
        let roles = hash(&json!([ISSUER, CLIENT, sign_in().roles]).to_string());
        let context = "ratelease 2026-11 token of the control plane";
        let secret_hash =
            blake3::Hasher::new_derive_key(context).update(secret.as_bytes()).finalize().to_hex();
        let domains = if access == "admin" { "NULL" } else { "'[\"shop\"]'" };
        let sql = format!(
            "INSERT INTO tokens (id, name, hash, access, domains, created_at, issuer, subject, \
             writable) VALUES ('{id}', '{name}', '', '{access}', {domains}, 1, '{ISSUER}', \
             '{subject}', {domains}); \
             INSERT INTO sessions (id, hash, person, access, domains, writable, roles, created_at, \
             expires_at) VALUES ('{session}', '{secret_hash}', '{id}', '{access}', {domains}, \
             {domains}, '{roles}', 1, 9000000000000)"
        );
        run_sql(place, sql).await;
        let cookie = format!("ratelease-session=rlc_{session}_{secret}");
        Self { id, cookie }
    }

    /// A call from the page of the person.
    pub(crate) fn call<'c>(&self, method: &'c str, path: &str) -> Call<'c> {
        Call::new(method, path).header("cookie", &self.cookie).header("origin", ORIGIN)
    }

    /// Has the provider give the person another name.
    pub(crate) async fn rename(&self, place: &Place, name: &str) {
        run_sql(place, format!("UPDATE tokens SET name = '{name}' WHERE id = '{}'", self.id)).await;
    }
}
