//! A database of release 0.2 is upgraded in place, and nothing of it is lost.

use std::borrow::Cow;

use serde_json::json;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AnyPool, AssertSqlSafe, Executor, Row, SqlSafeStr};

use super::support::{Call, Place, Server, places};

/// The first migration of release 0.2.
const SCHEMA: &str = include_str!("../../migrations/0001_schema.sql");

/// The second migration, of SQLite and of PostgreSQL.
const APPEND_ONLY: [&str; 2] = [
    include_str!("../../migrations/0002_append_only.sqlite.sql"),
    include_str!("../../migrations/0002_append_only.postgres.sql"),
];

/// The rows that it wrote.
const ROWS: &str = include_str!("upgrade/0.2.sql");

/// The tables of that release, with their columns.
const TABLES: [(&str, &str); 10] = [
    ("answers", "author idempotency_key request status headers body at"),
    ("audit", "number at author action subject reason"),
    ("changes", "number domain rule before after at author reason"),
    ("counters", "id change version"),
    ("domains", "name defaults changed published hash"),
    (
        "rules",
        "id domain entries scope scope_value settings position revision updated_at updated_by",
    ),
    ("texts", "hash yaml bytes rules"),
    ("tokens", "id name hash access domains created_at expires_at revoked_at"),
    ("version_domains", "version domain hash"),
    ("versions", "number at author reason restores"),
];

/// The first token of the fixture, of access admin.
const ADMIN: &str = "rlc_fffdbc4ee6c0_FHrHPw5ra9FhttgvJ0cJBNiq1CUBH97A8LI-le0Z_Hw";

/// A token of the fixture that may write in `shop`.
const CI: &str = "rlc_8d70273aaa76_JIP_gACrVUVnvoOk9MfH4ybeVz_V12FtDSUqk2y6FUM";

/// Makes the database of a place as release 0.2 did.
async fn fill(place: &Place) -> AnyPool {
    sqlx::any::install_default_drivers();
    let url = match &place.postgres {
        Some(postgres) => postgres.url(),
        None => format!("sqlite://{}?mode=rwc", place.dir.path().join("rules.db").display()),
    };
    let pool = AnyPool::connect(&url).await.unwrap();
    let append_only = APPEND_ONLY[usize::from(place.postgres.is_some())];
    let migration = |number, name: &'static str, sql: &'static str| {
        let (name, kind) = (Cow::Borrowed(name), MigrationType::Simple);
        Migration::new(number, name, kind, sql.into_sql_str(), false)
    };
    let all = vec![migration(1, "schema", SCHEMA), migration(2, "append only", append_only)];
    Migrator::with_migrations(all).run(&pool).await.unwrap();
    pool.execute("DELETE FROM counters").await.unwrap();
    pool.execute(sqlx::raw_sql(AssertSqlSafe(ROWS))).await.unwrap();
    std::fs::write(place.token_file(), ADMIN).unwrap();
    pool
}

/// All rows as they were then.
async fn rows(pool: &AnyPool) -> Vec<String> {
    let mut all = Vec::new();
    for (table, columns) in TABLES {
        let texts = columns.split(' ').map(|it| format!("COALESCE(CAST({it} AS TEXT), 'null')"));
        let row = texts.collect::<Vec<_>>().join(" || ' ' || ");
        let sql = format!("SELECT {row} FROM {table} ORDER BY 1");
        let found = pool.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
        let shown = |row| format!("{table}: {}", Row::get::<String, _>(row, 0));
        all.extend(found.iter().map(shown));
    }
    all
}

async fn actions(server: &Server, domain: &str) -> Vec<String> {
    let log = server.json(&format!("/v1/audit?domain={domain}")).await;
    let log = log["actions"].as_array().unwrap().clone();
    log.iter().map(|it| it["action"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_database_of_release_0_2_is_upgraded_and_loses_nothing() {
    for place in places().await {
        let pool = fill(&place).await;
        let before = rows(&pool).await;
        assert_eq!(before.len(), 30, "{before:#?}");
        ratelease_control::Store::open(&place.database()).await.unwrap().close().await;
        // An answer belongs to a token, and no longer to a name.
        let of = |it: &String| it.replace("answers: admin/fffdbc4ee6c0", "answers: fffdbc4ee6c0");
        assert_eq!(rows(&pool).await, before.iter().map(of).collect::<Vec<_>>());
        pool.close().await;
        let server = place.serve().await;
        let rules = server.json("/v1/rules").await;
        assert_eq!(rules["rules"].as_array().unwrap().len(), 4);
        let versions = server.json("/v1/versions").await;
        assert_eq!(versions["versions"][1]["reason"], "first");
        let differences = server.json("/v1/differences?domain=shop").await;
        assert!(differences.to_string().contains("coupon"), "{differences}");
        // The audit log has the domains of actions before the upgrade.
        assert_eq!(actions(&server, "shop").await, ["rule.add", "version.publish", "rules.import"]);
        assert_eq!(actions(&server, "bank").await, ["version.publish", "rule.add"]);
        // The authors of the draft are known: the one of 0.2 cannot approve it, the other one can.
        let body = json!({"domain": "shop", "approvals": 1});
        let set = server.send(Call::new("PUT", "/v1/approvals").json(&body)).await;
        assert_eq!(set.status, 200, "{set:?}");
        let state = server.json("/v1/approvals").await["domains"][0].clone();
        assert_eq!(state["authors"], json!(["admin/fffdbc4ee6c0"]));
        for (token, status) in [(ADMIN, 403), (CI, 200)] {
            let call = Call::new("POST", "/v1/approvals").token(token);
            let call = call.header("if-match", state["etag"].as_str().unwrap());
            let answer = server.send(call.json(&json!({"domain": "shop"}))).await;
            assert_eq!(answer.status, status, "{answer:?}");
        }
        assert_eq!(server.publish().await, 3);
        server.stop().await;
    }
}
