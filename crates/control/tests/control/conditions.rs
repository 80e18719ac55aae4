//! Two editors, repeated writes, and many writes at a time.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::support::{Call, Place, Server, hourly, places, rule};

#[tokio::test]
async fn the_second_editor_learns_what_changed() {
    for place in places().await {
        let server = place.serve().await;
        let (added, tag) = server.add(&rule("shop", "user", "7", 5)).await;
        let path = format!("/v1/rules/{}?reason=first", added["id"].as_str().unwrap());
        let put =
            |requests: u32| Call::new("PUT", &path).json(&json!({"rate_limit": hourly(requests)}));
        let without = server.send(put(6)).await;
        assert_eq!(without.status, 428, "{without:?}");
        let first = server.send(put(6).header("if-match", &tag)).await;
        assert_eq!(first.status, 200, "{first:?}");
        let second = server.send(put(7).header("if-match", &tag)).await;
        assert_eq!(second.status, 412, "{second:?}");
        let problem = second.json();
        assert_eq!(problem["current"], first.json());
        assert_eq!(problem["last_change"]["reason"], "first");
        assert_eq!(problem["last_change"]["before"]["rate_limit"], hourly(5));
        let delete = Call::new("DELETE", &path).header("if-match", &tag);
        assert_eq!(server.send(delete).await.status, 412);
        let forced = server.send(put(8).header("if-match", "*")).await;
        assert_eq!(forced.status, 200, "{forced:?}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_write_that_is_repeated_happens_once() {
    for place in places().await {
        let server = place.serve().await;
        let post = |requests: u32| {
            let call = Call::new("POST", "/v1/rules").header("idempotency-key", "one");
            call.json(&rule("shop", "user", "7", requests))
        };
        let first = server.send(post(5)).await;
        assert_eq!((first.status, first.header("idempotency-replayed")), (201, None));
        let again = server.send(post(5)).await;
        assert_eq!((again.status, &again.text), (201, &first.text));
        let place = format!("/v1/rules/{}", first.json()["id"].as_str().unwrap());
        assert_eq!(first.header("location"), Some(place));
        for name in ["etag", "location"] {
            assert_eq!(again.header(name), first.header(name), "{name}");
        }
        assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"));
        let other = server.send(post(6)).await;
        assert_eq!((other.status, other.fields()), (422, vec!["Idempotency-Key".to_owned()]));
        let audit = server.json("/v1/audit").await;
        let added = audit["actions"].as_array().unwrap().iter();
        assert_eq!(added.filter(|it| it["action"] == "rule.add").count(), 1, "{audit}");
        server.stop().await;
    }
}

#[tokio::test]
async fn writes_at_the_same_time_are_all_done_and_one_of_equal_ones_wins() {
    for place in places().await {
        let server = place.serve().await;
        let server = &server;
        let writer = |number: usize| async move {
            for at in 0..10 {
                server.add(&rule("shop", "user", &format!("{number}-{at}"), 1)).await;
            }
            // All of them add this one.
            server.post("/v1/rules", &rule("shop", "shared", "", 1)).await.status
        };
        let statuses = futures_util::future::join_all((0..6).map(writer)).await;
        assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 1, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 5, "{statuses:?}");
        let list = server.json("/v1/rules?limit=1000").await;
        let rules = list["rules"].as_array().unwrap();
        assert_eq!(rules.len(), 61);
        let revisions: BTreeSet<_> = rules.iter().map(|it| it["revision"].as_i64()).collect();
        assert_eq!(revisions.len(), 61, "two changes have one number");
        // Publishers too: one version has the changes, and the others nothing left to do.
        let versions = (0..4).map(|_| server.post("/v1/publish", &Value::Null));
        for answer in futures_util::future::join_all(versions).await {
            assert_eq!((answer.status, &answer.json()["version"]), (200, &json!(1)), "{answer:?}");
        }
    }
}

/// The database of a place, beside its control plane.
pub(crate) async fn database(place: &Place) -> sqlx::AnyPool {
    sqlx::any::install_default_drivers();
    let url = match &place.postgres {
        Some(postgres) => postgres.url(),
        None => format!("sqlite://{}", place.dir.path().join("rules.db").display()),
    };
    sqlx::AnyPool::connect(&url).await.unwrap()
}

#[tokio::test]
async fn sizes_of_drafts_are_right_beside_a_release_that_does_not_keep_them() {
    for place in places().await {
        let server = place.serve().await;
        let pool = database(&place).await;
        let run = async |sql: &str| {
            sqlx::query(sqlx::AssertSqlSafe(sql.to_owned())).execute(&pool).await.unwrap();
        };
        let rules = async || server.json("/v1/domains").await["domains"][0]["rules"].clone();
        let size = async || {
            let query = sqlx::query_as("SELECT rules, bytes FROM domains");
            let size: (i64, i64) = query.fetch_one(&pool).await.unwrap();
            size
        };
        server.add(&rule("shop", "user", "1", 5)).await;
        let (_, of_one) = size().await;
        // Adds and removes rules as that release does.
        run("INSERT INTO rules SELECT 'other', domain, '[]', scope, scope_value, settings, \
             position, revision, updated_at, updated_by FROM rules")
        .await;
        run("UPDATE domains SET changed = changed + 1").await;
        run("UPDATE counters SET change = change + 1").await;
        assert_eq!(rules().await, 2);
        server.add(&rule("shop", "user", "2", 5)).await;
        assert_eq!(rules().await, 3);
        let (count, bytes) = size().await;
        assert_eq!(count, 3, "it is counted again at the first write");
        assert!(bytes > 2 * of_one, "{bytes} for two of {of_one} and one without entries");
        run("DELETE FROM rules WHERE id = 'other'").await;
        run("UPDATE domains SET changed = changed + 1").await;
        run("UPDATE counters SET change = change + 1").await;
        assert_eq!(rules().await, 2);
        server.add(&rule("shop", "user", "3", 5)).await;
        assert_eq!(size().await, (3, 3 * of_one));
        // A domain that the other release made.
        run("INSERT INTO domains (name, defaults, changed, published) VALUES ('bank', '{}', 1, 0)")
            .await;
        server.add(&rule("bank", "user", "1", 5)).await;
        assert_eq!(rules().await, 1);
        pool.close().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn history_and_versions_cannot_be_edited() {
    for place in places().await {
        let server = place.serve().await;
        server.add(&rule("shop", "user", "7", 5)).await;
        server.publish().await;
        server.stop().await;
        let pool = database(&place).await;
        let tables = ["audit", "audit_domains", "changes", "texts", "versions", "version_domains"];
        for table in tables {
            let column = match table {
                "texts" => "hash",
                "audit_domains" => "domain",
                "version_domains" => "version",
                _ => "number",
            };
            let update = format!("UPDATE {table} SET {column} = {column}");
            for sql in [format!("DELETE FROM {table}"), update] {
                let done = sqlx::query(sqlx::AssertSqlSafe(sql.clone())).execute(&pool).await;
                let why = done.unwrap_err().to_string();
                assert!(why.contains(&format!("rows of {table} are never edited")), "{sql}: {why}");
            }
        }
        pool.close().await;
    }
}

/// The steps back to a database before the migration 15.
const BEFORE_15: [&str; 6] = [
    "ALTER TABLE domains DROP COLUMN content",
    "ALTER TABLE domains DROP COLUMN summed",
    "ALTER TABLE domains DROP COLUMN published_content",
    "ALTER TABLE domains DROP COLUMN changed_at",
    "ALTER TABLE domains DROP COLUMN changed_by",
    "DELETE FROM _sqlx_migrations WHERE version = 15",
];

#[tokio::test]
async fn drafts_of_an_older_database_are_compared_by_content() {
    for place in places().await {
        let server = place.serve().await;
        let (cart, _) = server.add(&rule("shop", "cart", "", 5)).await;
        server.add(&rule("bank", "card", "", 5)).await;
        server.publish().await;
        let path = format!("/v1/rules/{}", cart["id"].as_str().unwrap());
        let change = async |server: &Server, requests: u32| {
            let put = Call::new("PUT", &path).json(&json!({"rate_limit": hourly(requests)}));
            assert_eq!(server.send(put.header("if-match", "*")).await.status, 200);
        };
        change(&server, 7).await;
        server.stop().await;
        let pool = database(&place).await;
        for sql in BEFORE_15 {
            sqlx::query(sql).execute(&pool).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
        pool.close().await;
        let server = place.serve().await;
        let shop = async || server.json("/v1/domains").await["domains"][1].clone();
        assert_eq!(shop().await["is_changed"], true);
        change(&server, 5).await;
        assert_eq!(shop().await["is_changed"], false, "the draft of the older release is undone");
        change(&server, 6).await;
        assert_eq!(shop().await["is_changed"], true);
        server.publish().await;
        change(&server, 5).await;
        change(&server, 6).await;
        assert_eq!(shop().await["is_changed"], false);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_database_of_a_later_release_is_left_alone() {
    let place = Place::sqlite();
    place.serve().await.stop().await;
    let pool = database(&place).await;
    let sql = "INSERT INTO _sqlx_migrations (version, description, success, checksum, \
               execution_time) VALUES (99, 'later', 1, x'00', 0)";
    sqlx::query(sql).execute(&pool).await.unwrap();
    pool.close().await;
    let opened = ratelease_control::Store::open(&place.database()).await;
    let why = opened.unwrap_err().to_string();
    let cure = "use that release or a later one, or restore the backup";
    assert!(why.contains("migration 99") && why.contains(cure), "{why}");
    assert!(!why.contains("internal error"), "{why}");
}

#[tokio::test]
async fn a_database_whose_pods_have_no_index_is_upgraded() {
    for place in places().await {
        place.serve().await.stop().await;
        let pool = database(&place).await;
        let drop_index = "DROP INDEX pods_by_place";
        for sql in [drop_index, "DELETE FROM _sqlx_migrations WHERE version = 12"] {
            sqlx::query(sql).execute(&pool).await.unwrap();
        }
        let server = place.serve().await;
        assert_eq!(server.json("/v1/pods").await["pods"], json!([]));
        server.stop().await;
        sqlx::query(drop_index).execute(&pool).await.expect("the index is there again");
        pool.close().await;
    }
}
