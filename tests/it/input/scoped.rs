//! Bad requests to `/shouldAllow` and `/api/v1/rate_limit`: each gets every fault with its field,
//! as `application/problem+json`, and charges nothing.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::files::dir_of;
use crate::support::http::{Answer, Client};
use crate::support::ratelease::Ratelease;

/// Maximum body: 1 MiB.
const BODY_BYTES_MAX: usize = 1024 * 1024;

const GET: &str = "/api/v1/rate_limit";

/// One request is all that the user `one` has.
const GOOD: &str = r#"{"scope":"user","scope_value":"one","api":"/"}"#;
const GOOD_QUERY: &str = "/api/v1/rate_limit?user_id=one&endpoint=/";

async fn pod() -> (Ratelease, TempDir) {
    let rules = dir_of(&[(
        "default.yaml",
        "domain: default\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: \
         1}}]\n",
    )]);
    (Ratelease::start(rules.path(), &[], &[]).await, rules)
}

async fn post(client: &mut Client, body: impl AsRef<[u8]>) -> Answer {
    client.send("POST", "/shouldAllow", &[], body).await.expect("the connection lives")
}

/// The problem of an answer with this status and kind.
fn problem(answer: &Answer, status: u16, kind: &str) -> Value {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    let problem: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(problem["type"], format!("urn:ratelease:problem:{kind}"), "{answer:?}");
    assert_eq!(problem["status"], status, "{answer:?}");
    assert!(problem["title"].is_string() && problem["detail"].is_string(), "{answer:?}");
    problem
}

/// The faulty fields of an answer, joined by blanks.
fn fields(answer: &Answer) -> String {
    let problem = problem(answer, 400, "faults");
    let errors = problem["errors"].as_array().expect("faults");
    assert!(errors.iter().all(|it| it["message"].as_str().is_some_and(|it| !it.is_empty())));
    errors.iter().filter_map(|it| it["field"].as_str()).collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_a_body_is_reported_at_once() {
    let (pod, _rules) = pod().await;
    let mut client = Client::connect(pod.http).await.unwrap();
    let long = "v".repeat(8193);
    let cases: &[(&[u8], &str)] = &[
        (b" ", "body"),
        (b"}", "body"),
        (b"[]", "body"),
        (b"null", "body"),
        (b"{\"scope\":\"\xFF\"}", "body"),
        (&GOOD.repeat(2).into_bytes(), "body"),
        (&b"[".repeat(100_000), "body"),
        (b"{}", "scope scope_value api"),
        (br#"{"scope":"users","scope_value":"","api":7,"cost":0}"#, "scope scope_value api cost"),
        (br#"{"scope":null,"scope_value":[],"api":{},"cost":"1"}"#, "scope scope_value api cost"),
        (&GOOD.replace('}', r#","cost":-1}"#).into_bytes(), "cost"),
        (&GOOD.replace('}', r#","cost":9007199254740992}"#).into_bytes(), "cost"),
        (
            &GOOD.replace('}', r#","cost":1.5,"price":1,"scope":"ip"}"#).into_bytes(),
            "price scope cost",
        ),
        (&GOOD.replace("one", &long).into_bytes(), "scope_value"),
    ];
    for (body, expected) in cases {
        let answer = post(&mut client, body).await;
        assert_eq!(fields(&answer), *expected, "{answer:?}");
        assert!(answer.body.len() < 2_048, "{answer:?}");
    }
    assert_eq!(post(&mut client, GOOD).await.status, 200, "nothing was charged");
    assert_eq!(post(&mut client, GOOD).await.status, 429);
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_a_query_is_reported_at_once() {
    let (pod, _rules) = pod().await;
    let mut client = Client::connect(pod.http).await.unwrap();
    for (query, expected) in [
        ("", "user_id endpoint"),
        ("?", "user_id endpoint"),
        ("?tier=free", "user_id endpoint"),
        ("?user_id=one", "endpoint"),
        ("?user_id=&ip=&endpoint=&tier=", "user_id ip endpoint tier"),
        ("?user_id=one&endpoint=/&user_id=two", "user_id"),
        ("?user_id=one&endpoint=/&cost=2&userid=1", "cost userid"),
        ("?user_id=%ff&ip=%zz&endpoint=%2", "user_id ip endpoint"),
        ("?user_id=one&endpoint=/&%ff=1&=1", "%ff ''"),
    ] {
        let answer = client.get(&format!("{GET}{query}"), &[]).await.unwrap();
        assert_eq!(fields(&answer), expected, "{query}: {answer:?}");
    }
    let many: String = (0..1_000).map(|nth| format!("&{nth}")).collect();
    let answer = client.get(&format!("{GET}?{many}"), &[]).await.unwrap();
    assert_eq!(fields(&answer).split(' ').count(), 20, "{answer:?}");
    // Longer ones are refused before any route is looked for.
    let long = "v".repeat(9_000);
    let mut refused = Client::connect(pod.http).await.unwrap();
    let answer = refused.get(&format!("{GOOD_QUERY}{long}"), &[]).await.unwrap();
    assert!([414, 431].contains(&answer.status), "{answer:?}");
    assert_eq!(client.get(GOOD_QUERY, &[]).await.unwrap().status, 200, "nothing was charged");
    assert_eq!(client.get(GOOD_QUERY, &[]).await.unwrap().status, 429);
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_method_type_or_length_is_a_problem() {
    let (pod, _rules) = pod().await;
    // A body that is not read may end its connection.
    let refused = async |method: &str, path: &str, headers: &[(&str, &str)]| {
        let mut client = Client::connect(pod.http).await.unwrap();
        client.send(method, path, headers, GOOD).await.unwrap()
    };
    for (path, other, expected) in [("/shouldAllow", "GET", "POST"), (GOOD_QUERY, "POST", "GET")] {
        for method in [other, "PUT", "DELETE", "BREW"] {
            let answer = refused(method, path, &[]).await;
            problem(&answer, 405, "method-not-allowed");
            assert_eq!(answer.header("allow"), Some(expected), "{method}: {answer:?}");
        }
    }
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx"] {
        let headers = [("content-type", content_type), ("user-agent", "Mozilla/5.0")];
        let answer = refused("POST", "/shouldAllow", &headers).await;
        problem(&answer, 415, "content-type");
    }
    let mut other = Client::connect(pod.http).await.unwrap();
    let answer = post(&mut other, " ".repeat(BODY_BYTES_MAX + 1)).await;
    problem(&answer, 413, "too-large");
    let mut slow = Client::connect(pod.http).await.unwrap();
    let head = "POST /shouldAllow HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
                content-length: 40\r\n\r\n{";
    slow.write(head.as_bytes()).await.unwrap();
    problem(&slow.answer().await.unwrap(), 408, "too-slow");
    let padded = format!("{GOOD}{}", " ".repeat(BODY_BYTES_MAX - GOOD.len()));
    let mut client = Client::connect(pod.http).await.unwrap();
    assert_eq!(post(&mut client, padded).await.status, 200, "nothing was charged");
    pod.is_unharmed();
}

/// A browser sends any query that a page of another site names, as an image for example.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_in_a_browser_charges_nothing() {
    let (pod, _rules) = pod().await;
    let mut client = Client::connect(pod.http).await.unwrap();
    let firefox = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";
    for headers in [
        &[("user-agent", firefox)][..],
        &[("sec-fetch-mode", "no-cors")],
        &[
            ("sec-fetch-site", "none"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ],
    ] {
        problem(&client.get(GOOD_QUERY, headers).await.unwrap(), 403, "forbidden");
    }
    for headers in [&[("origin", "http://evil.example")][..], &[("host", "evil.example")]] {
        assert_eq!(client.get(GOOD_QUERY, headers).await.unwrap().status, 403, "{headers:?}");
        let answer = client.send("POST", "/shouldAllow", headers, GOOD).await.unwrap();
        assert_eq!(answer.status, 403, "{headers:?}");
    }
    let curl = [("user-agent", "curl/8.14.1")];
    assert_eq!(client.get(GOOD_QUERY, &curl).await.unwrap().status, 200, "nothing was charged");
}
