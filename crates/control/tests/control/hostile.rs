//! Input of strangers and of broken clients: each is refused with a reason, and nothing of it is
//! kept.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::support::{Call, Place, SOON, Server, hourly, places, rule};

const SQL: &str = "'; DROP TABLE rules; --";

fn post(path: &str, body: &[u8]) -> Call<'static> {
    Call::new("POST", path).body("application/json", body)
}

/// A rule with this text in the place of its limit.
fn limited(limit: &str) -> Vec<u8> {
    let entries = json!([{"key": "user", "value": "1"}]);
    format!("{{\"domain\":\"shop\",\"entries\":{entries},\"rate_limit\":{limit}}}").into_bytes()
}

async fn refuses(server: &Server, what: &str, call: Call<'_>, expected: &[u16]) {
    let answer = server.send(call).await;
    assert!(expected.contains(&answer.status), "{what}: {answer:?}");
    answer.fields(); // is a problem
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(!detail.is_empty(), "{what}: {answer:?}");
}

#[tokio::test]
async fn a_body_that_cannot_be_a_rule_is_refused_with_a_reason() {
    for place in places().await {
        let server = place.serve().await;
        let deep = [b"{\"rate_limit\":", "[".repeat(100_000).as_bytes()].concat();
        let nested = format!("{}1{}", "{\"a\":".repeat(120), "}".repeat(120));
        let number =
            |text: &str| limited(&format!("{{\"unit\":\"hour\",\"requests_per_unit\":{text}}}"));
        for (what, body, expected) in [
            ("invalid UTF-8", b"{\"domain\":\"\xff\xfe\"}".to_vec(), 400),
            ("no JSON", b"{".to_vec(), 400),
            ("nothing", Vec::new(), 400),
            ("deep JSON", deep, 400),
            ("a deep limit", limited(&nested), 422),
            ("more after the JSON", b"{} {}".to_vec(), 400),
            ("a number out of range", number("1e400"), 400),
            ("a number above all limits", number("99999999999999999999"), 422),
            ("a negative number", number("-1"), 422),
            ("a broken number", number("1.5"), 422),
            (
                "NUL in the domain",
                json!({"domain": "a\0b", "entries": [{"key": "k"}]}).to_string().into(),
                422,
            ),
            (
                "NUL in a key",
                json!({"domain": "a", "entries": [{"key": "k\0"}]}).to_string().into(),
                422,
            ),
            (
                "a long domain",
                json!({"domain": "d".repeat(2000), "entries": [{"key": "k"}]}).to_string().into(),
                422,
            ),
            (
                "a million entries",
                json!({"domain": "a", "entries": vec![json!({"key": "k"}); 20_000]})
                    .to_string()
                    .into(),
                422,
            ),
        ] {
            refuses(&server, what, post("/v1/rules", &body), &[expected]).await;
        }
        let long = "x".repeat(60_000);
        for (what, method, path) in [
            ("a limit of 0", "GET", "/v1/rules?limit=0".to_owned()),
            ("a huge limit", "GET", "/v1/rules?limit=99999999999999999999".to_owned()),
            ("a huge number", "GET", "/v1/audit?before=1e30".to_owned()),
            ("a cursor of another list", "GET", "/v1/rules?cursor=e30".to_owned()),
            ("NUL in the query", "GET", "/v1/rules?q=%00".to_owned()),
            ("NUL in the path", "GET", "/v1/rules/%00".to_owned()),
            ("invalid UTF-8 in the path", "GET", "/v1/rules/%ff".to_owned()),
            ("a reason of 60 kB", "POST", format!("/v1/publish?reason={}", &long[..20_000])),
        ] {
            refuses(&server, what, Call::new(method, &path), &[400, 422]).await;
        }
        let policy = json!({"keyType": "user", "ratePerSec": 1e308}).to_string();
        let call = Call::new("PUT", "/v1/policies/a").body("application/json", policy.as_bytes());
        refuses(&server, "a huge rate", call, &[422]).await;
        let yaml = Call::new("POST", "/v1/import").body("application/yaml", b"domain: \xff\xfe");
        refuses(&server, "a file of invalid UTF-8", yaml, &[422]).await;
        assert_eq!(server.json("/v1/rules").await["rules"], json!([]));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_rule_and_a_search_have_their_sizes() {
    for place in places().await {
        let server = place.serve().await;
        let large = json!({"domain": "a", "entries": [{"key": "k"}],
            "rate_limit": {"unit": "day", "requests_per_unit": 1},
            "metadata": {"long": "m".repeat(100_000)}});
        let body = large.to_string().into_bytes();
        refuses(&server, "100 kB of metadata", post("/v1/rules", &body), &[422]).await;
        let search = format!("/v1/rules?q={}", "q".repeat(129));
        refuses(&server, "a long search", Call::new("GET", &search), &[422]).await;
        server.stop().await;
    }
}

#[tokio::test]
async fn sql_is_text_in_every_field() {
    for place in places().await {
        let server = place.serve().await;
        let encoded = "%27%3B%20DROP%20TABLE%20rules%3B%20--";
        let reason = format!("/v1/rules?reason={encoded}");
        let made = server.post(&reason, &rule(SQL, SQL, SQL, 5)).await;
        assert_eq!(made.status, 201, "{made:?}");
        for query in ["domain", "scope", "value", "q"] {
            let list = server.json(&format!("/v1/rules?{query}={encoded}")).await;
            assert_eq!(list["rules"][0]["domain"], SQL, "{query}: {list}");
        }
        for path in ["/v1/rules/", "/rules/", "/v1/policies/"] {
            assert_eq!(server.get(&format!("{path}{encoded}")).await.status, 404, "{path}");
        }
        assert_eq!(server.get(&format!("/v1/rules?cursor={encoded}")).await.status, 422);
        let call = Call::new("POST", "/v1/publish").header("if-match", SQL);
        assert_eq!(server.send(call).await.status, 412);
        let call = Call::new("POST", "/v1/publish").header("idempotency-key", SQL);
        assert_eq!(server.send(call).await.status, 200);
        let audit = server.json("/v1/audit").await;
        assert!(
            audit["actions"].as_array().unwrap().iter().any(|it| it["reason"] == SQL),
            "{audit}"
        );
        assert_eq!(server.json("/v1/versions").await["versions"][0]["version"], 1);
        server.stop().await;
    }
}

#[tokio::test]
async fn if_match_is_a_list_of_strong_tags() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let (added, tag) = server.add(&rule("shop", "user", "7", 5)).await;
    let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
    let put = async |header: &str| {
        let body = json!({"rate_limit": hourly(6)});
        server.send(Call::new("PUT", &path).header("if-match", header).json(&body)).await.status
    };
    assert_eq!(put("\"1\", \"nothing\"").await, 412);
    assert_eq!(put(&format!("W/{tag}")).await, 412);
    assert_eq!(put(&format!("\"0\" , {tag}")).await, 200);
    assert_eq!(put(&tag).await, 412, "it is another one now");
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_given_up() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let head = |length: usize| {
        format!(
            "POST /v1/rules HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
             content-length: {length}\r\n\r\n{{\"domain\":",
            server.token
        )
    };
    let mut slow = TcpStream::connect(server.http).await.unwrap();
    slow.write_all(head(100).as_bytes()).await.unwrap();
    // Half of a body, and then the end.
    let mut half = TcpStream::connect(server.http).await.unwrap();
    half.write_all(head(100).as_bytes()).await.unwrap();
    half.shutdown().await.unwrap();
    let mut rest = Vec::new();
    timeout(SOON, half.read_to_end(&mut rest)).await.expect("an end").unwrap();
    let mut answer = vec![0; 4096];
    let read = timeout(SOON, slow.read(&mut answer)).await.expect("an answer").unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    assert_eq!(server.json("/v1/rules").await["rules"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn a_key_of_idempotency_is_of_one_author_and_one_request() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let other = super::tokens::token(&place, &["create", "--name", "b", "--access", "write"]);
    let other = other.await.unwrap();
    let post = |path: &str, value: &str| {
        let call = Call::new("POST", path).header("idempotency-key", "one");
        call.json(&rule("shop", "user", value, 5))
    };
    assert_eq!(server.send(post("/v1/rules", "1")).await.status, 201);
    for (path, value) in [("/v1/rules", "2"), ("/v1/rules?publish=true", "1")] {
        let refused = server.send(post(path, value)).await;
        assert_eq!((refused.status, refused.fields()), (422, vec!["Idempotency-Key".to_owned()]));
    }
    assert_eq!(server.send(post("/v1/rules", "3").token(&other)).await.status, 201);
    let found = server.json("/v1/rules").await;
    assert_eq!(found["rules"].as_array().unwrap().len(), 2, "{found}");
    // A removal that is repeated is answered as the first one.
    let (added, _) = server.add(&rule("shop", "user", "4", 5)).await;
    let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
    let delete = || {
        let call = Call::new("DELETE", &path).header("if-match", "*");
        call.header("idempotency-key", "two")
    };
    let statuses = [server.send(delete()).await.status, server.send(delete()).await.status];
    assert_eq!(statuses, [204, 204]);
    server.stop().await;
}

/// A rule of some 60 kB, which is nearly the most that the compiler allows.
fn heavy(value: &str) -> Value {
    let mut rule = rule("shop", "user", value, 5);
    rule["metadata"] = json!({"note": "x".repeat(60_000)});
    rule
}

#[tokio::test]
async fn pages_and_drafts_are_bounded_by_bytes() {
    for place in places().await {
        let server = place.serve().await;
        for value in 0..80 {
            server.add(&heavy(&value.to_string())).await;
        }
        let (mut path, mut pages) = ("/v1/rules".to_owned(), Vec::new());
        loop {
            let page = server.json(&path).await;
            pages.push(page["rules"].as_array().unwrap().len());
            let Some(next) = page["next"].as_str() else { break };
            path = format!("/v1/rules?cursor={next}");
        }
        // A page has 4 MiB, and none more than 100 rules unless that is asked for.
        assert_eq!(pages, [70, 10]);
        // Near the ceiling, which a test cannot fill.
        sqlx::any::install_default_drivers();
        let url = match &place.postgres {
            Some(postgres) => postgres.url(),
            None => format!("sqlite://{}", place.dir.path().join("rules.db").display()),
        };
        let pool = sqlx::AnyPool::connect(&url).await.unwrap();
        let sql = "SELECT rules, bytes FROM domains WHERE name = 'shop'";
        let (rules, bytes): (i64, i64) = sqlx::query_as(sql).fetch_one(&pool).await.unwrap();
        assert!(rules == 80 && (4_800_000..4_900_000).contains(&bytes), "{rules}, {bytes}");
        let sql = "UPDATE domains SET bytes = 33554432 - 30000 WHERE name = 'shop'";
        sqlx::query(sql).execute(&pool).await.unwrap();
        let refused = server.post("/v1/rules", &heavy("80")).await;
        assert_eq!((refused.status, refused.fields()), (409, vec![]), "{refused:?}");
        assert!(refused.text.contains("at most 33554432"), "{refused:?}");
        let list = server.json("/v1/rules?value=5").await;
        let path = format!("/v1/rules/{}", list["rules"][0]["id"].as_str().unwrap());
        let removed = server.send(Call::new("DELETE", &path).header("if-match", "*")).await;
        assert_eq!(removed.status, 204, "{removed:?}");
        assert_eq!(server.post("/v1/rules", &heavy("80")).await.status, 201);
        pool.close().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_token_sees_the_versions_of_its_domains() {
    for place in places().await {
        let server = place.serve().await;
        for domain in ["shop", "bank", "shop"] {
            let value = format!("{:?}", super::support::now());
            let publish = "/v1/rules?publish=true";
            assert_eq!(server.post(publish, &rule(domain, "user", &value, 5)).await.status, 201);
        }
        for (domains, expected) in
            [("shop", json!([3, 1])), ("bank", json!([2])), ("none", json!([]))]
        {
            let create = ["create", "--name", "x", "--domains", domains];
            let token = super::tokens::token(&place, &create).await.unwrap();
            let list = server.send(Call::new("GET", "/v1/versions").token(&token)).await.json();
            let found = list["versions"].as_array().unwrap().iter();
            let found: Vec<_> = found.map(|it| it["version"].clone()).collect();
            assert_eq!(json!(found), expected, "{domains}");
        }
        server.stop().await;
    }
}
