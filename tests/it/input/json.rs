//! Bad requests over `/json`: 400 and the reason, as in the reference; 413 above 1 MiB; and
//! requests that a page of another origin could make a browser send.

use std::net::SocketAddr;

use super::{pod, pod_with};
use crate::support::http::{Answer, Client};

/// Maximum body of `/json`: 1 MiB.
const BODY_BYTES_MAX: usize = 1024 * 1024;

fn request(entries: &str, more: &str) -> String {
    format!(r#"{{"domain":"test","descriptors":[{{"entries":[{entries}]{more}}}]}}"#)
}

fn good() -> String {
    request(r#"{"key":"plenty","value":"good"}"#, "")
}

async fn post(client: &mut Client, body: impl AsRef<[u8]>) -> Answer {
    client.send("POST", "/json", &[], body).await.expect("the connection lives")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_no_request_gets_its_reason_and_the_connection_lives() {
    let (pod, _rules) = pod().await;
    let mut client = Client::connect(pod.http).await.unwrap();
    let mut neighbour = Client::connect(pod.http).await.unwrap();
    let entry = r#"{"key":"k","value":"v"}"#;
    let many = |count: usize, of: &str| vec![of; count].join(",");
    let descriptors = many(1_000, &format!(r#"{{"entries":[{entry}]}}"#));
    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("blanks", vec![b' '], "EOF while parsing"),
        ("a stray brace", b"}".to_vec(), "expected value at line 1 column 1"),
        ("half a request", good()[..40].into(), "EOF while parsing"),
        ("two requests", good().repeat(2).into(), "trailing characters"),
        ("a text", b"\"test\"".to_vec(), "invalid type"),
        ("a number", b"1".to_vec(), "invalid type"),
        ("no UTF-8", b"{\"domain\":\"\xFF\"}".to_vec(), "invalid unicode"),
        ("half a surrogate", br#"{"domain":"\ud800"}"#.to_vec(), "hex escape"),
        ("an unknown field", br#"{"domian":"test"}"#.to_vec(), "unknown field `domian`"),
        ("a number for a text", br#"{"domain":1}"#.to_vec(), "expected a string"),
        ("very deep nesting", b"[".repeat(100_000), "invalid type: sequence"),
        ("deep nesting", format!(r#"{{"hitsAddend":{}"#, "[".repeat(10_000)).into(), "sequence"),
        ("an empty domain", br#"{"domain":""}"#.to_vec(), "domain must not be empty"),
        ("no descriptors", br#"{"domain":"test"}"#.to_vec(), "list must not be empty"),
        ("no unit", request(entry, r#","limit":{"unit":0}"#).into(), "0 is not a unit"),
        (
            "a unit that is none",
            request(entry, r#","limit":{"unit":99}"#).into(),
            "99 is not a unit",
        ),
        ("hits below 0", request(entry, r#","hitsAddend":-1"#).into(), "-1 is not a number"),
        ("hits above 64 bits", request(entry, r#","hitsAddend":1e300"#).into(), "not a number"),
        ("65 entries", request(&many(65, entry), "").into(), "more entries than the 64"),
        (
            "a thousand descriptors",
            format!(r#"{{"domain":"test","descriptors":[{descriptors}]}}"#).into(),
            "more descriptors than the 256 that are accepted",
        ),
    ];
    for (name, body, reason) in cases {
        let answer = post(&mut client, body).await;
        assert_eq!(answer.status, 400, "{name}: {answer:?}");
        assert!(answer.body.contains(reason), "{name}: {answer:?}");
        assert_eq!(answer.body.lines().count(), 1, "{name}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"), "{name}");
        for client in [&mut client, &mut neighbour] {
            assert_eq!(post(client, good()).await.status, 200, "after {name}");
        }
    }
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_method_does_not_matter_and_long_bodies_are_refused() {
    let (pod, _rules) = pod().await;
    let mut client = Client::connect(pod.http).await.unwrap();
    for method in ["GET", "PUT", "DELETE", "BREW"] {
        let answer = client.send(method, "/json", &[], good()).await.unwrap();
        assert_eq!(answer.status, 200, "{method}: {answer:?}");
        let answer = client.send(method, "/json", &[], " ").await.unwrap();
        assert_eq!(answer.status, 400, "{method}: {answer:?}");
    }
    let length_of_rest = request(r#"{"key":"three","value":""}"#, "").len();
    let padded = |length: usize| {
        let value = "v".repeat(length - length_of_rest);
        request(&format!(r#"{{"key":"three","value":"{value}"}}"#), "")
    };
    for status in [200, 200, 200, 429] {
        let answer = post(&mut client, padded(BODY_BYTES_MAX)).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    for length in [BODY_BYTES_MAX + 1, 2 * BODY_BYTES_MAX] {
        let mut client = Client::connect(pod.http).await.unwrap();
        let answer = post(&mut client, padded(length)).await;
        assert_eq!(answer.status, 413, "{length}: {answer:?}");
        assert!(answer.body.contains("limit"), "{length}: {answer:?}");
    }
    assert_eq!(post(&mut client, good()).await.status, 200);
    pod.is_unharmed();
}

/// Content types that a page may send anywhere without permission: forms, text, none; and some that
/// only look like JSON.
const OTHER_TYPES: [&str; 8] = [
    "",
    "content-type: text/plain\r\n",
    "content-type: application/x-www-form-urlencoded\r\n",
    "content-type: multipart/form-data; boundary=application/json\r\n",
    "content-type: text/plain; application/json\r\n",
    "content-type: text/plain, application/json\r\n",
    "content-type: application/jsonx\r\n",
    "content-type: application/json\r\ncontent-type: text/plain\r\n",
];

/// Sends `body` with `head`: lines that end with `\r\n`.
async fn post_with(http: SocketAddr, path: &str, head: &str, body: &str) -> Answer {
    let mut client = Client::connect(http).await.unwrap();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n{head}");
    client.write(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
    client.answer().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_another_type_is_415_if_a_browser_may_have_sent_it_and_charges_nothing() {
    let (pod, _rules) = pod().await;
    let three = request(r#"{"key":"three","value":"typed"}"#, "");
    for (path, body) in [("/json", &*three), ("/shouldAllow", "{}")] {
        for of_browser in [
            "origin: http://test\r\n",
            "sec-fetch-site: same-origin\r\n",
            "sec-fetch-mode: no-cors\r\n",
            "user-agent: Mozilla/5.0 (X11; Linux x86_64)\r\n",
        ] {
            for content_type in OTHER_TYPES {
                let head = format!("{content_type}{of_browser}");
                let answer = post_with(pod.http, path, &head, body).await;
                assert_eq!(answer.status, 415, "{path} {head}: {answer:?}");
                assert!(answer.body.contains("-H 'content-type: application/json'"), "{answer:?}");
            }
        }
    }
    let mut client = Client::connect(pod.http).await.unwrap();
    for (content_type, status) in [
        ("application/json", 200),
        ("Application/JSON ; charset=utf-8", 200),
        ("application/json;charset=utf-8", 200),
        ("application/json", 429),
    ] {
        let headers = [("content-type", content_type)];
        let answer = client.send("POST", "/json", &headers, &three).await.unwrap();
        assert_eq!(answer.status, status, "{content_type}: {answer:?}");
    }
}

/// As `curl -d` sends it: with the type of a form.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_any_type_is_accepted_from_a_client_that_is_no_browser() {
    let (pod, _rules) = pod().await;
    for agent in
        ["", "user-agent: curl/8.5.0\r\naccept: */*\r\n", "user-agent: Go-http-client/1.1\r\n"]
    {
        for content_type in OTHER_TYPES {
            let head = format!("{agent}{content_type}");
            let answer = post_with(pod.http, "/json", &head, &good()).await;
            assert_eq!(answer.status, 200, "{head}: {answer:?}");
            let scoped = r#"{"scope":"user","scope_value":"one","api":"/"}"#;
            let answer = post_with(pod.http, "/shouldAllow", &head, scoped).await;
            assert_eq!(answer.status, 200, "{head}: {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_read_json_is_405_and_names_the_method() {
    let (pod, _rules) = pod().await;
    let mut client = Client::connect(pod.http).await.unwrap();
    let answer = client.send("GET", "/json", &[], "").await.unwrap();
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")), "{answer:?}");
    assert!(answer.body.contains("POST"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_charges_nothing() {
    let (pod, _rules) = pod().await;
    let three = request(r#"{"key":"three","value":"foreign"}"#, "");
    let asked = async |host: &str, headers: &[(&str, &str)]| {
        let headers: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = three.len();
        let head = format!(
            "POST /json HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{headers}\r\n"
        );
        let mut client = Client::connect(pod.http).await.unwrap();
        client.write([head.as_bytes(), three.as_bytes()].concat().as_slice()).await.unwrap();
        client.answer().await.unwrap()
    };
    for (host, headers) in [
        ("localhost", &[("origin", "http://evil.example")][..]),
        ("localhost", &[("origin", "null")]),
        ("localhost", &[("sec-fetch-site", "cross-site")]),
        // A submitted form is a navigation, like a link.
        (
            "localhost",
            &[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "document"),
            ],
        ),
        // A foreign name that resolves to this server: the browser considers it the page's own
        // origin.
        ("evil.example:8080", &[("origin", "http://evil.example:8080")]),
        ("evil.example", &[]),
    ] {
        let answer = asked(host, headers).await;
        assert_eq!(answer.status, 403, "{host} {headers:?}: {answer:?}");
        assert!(answer.header("access-control-allow-origin").is_none(), "{answer:?}");
    }
    for (host, origin) in
        [("localhost:8080", "http://localhost:8080"), ("10.1.2.3", "http://10.1.2.3")]
    {
        assert_eq!(asked(host, &[("origin", origin)]).await.status, 200, "{host}");
    }
    assert_eq!(asked("ratelimit.shop.svc.cluster.local:8080", &[]).await.status, 200);
    assert_eq!(asked("localhost", &[]).await.status, 429, "three were charged, and no more");
    let allowed = [("ALLOWED_HOSTS", "limits.example.com")];
    let (pod, _rules) = pod_with(&allowed).await;
    let mut client = Client::connect(pod.http).await.unwrap();
    let head = "GET /healthcheck HTTP/1.1\r\nhost: probe.example.com\r\n\r\n";
    client.write(head.as_bytes()).await.unwrap();
    assert_eq!(client.answer().await.unwrap().status, 200, "probes are asked by any name");
    for (host, status) in [("limits.example.com", 200), ("other.example.com", 403)] {
        let body = good();
        let head = format!(
            "POST /json HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.write(head.as_bytes()).await.unwrap();
        assert_eq!(client.answer().await.unwrap().status, status, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_are_given_back_only_where_that_is_allowed() {
    let three = |more| request(r#"{"key":"three","value":"back"}"#, more);
    let refund = three(r#","hitsAddend":9,"isNegativeHits":true"#);
    for allowed in [false, true] {
        let (pod, _rules) = pod_with(&[("JSON_REFUNDS", &allowed.to_string())]).await;
        let mut client = Client::connect(pod.http).await.unwrap();
        for status in [200, 200, 200, 429] {
            assert_eq!(post(&mut client, three("")).await.status, status);
        }
        let answer = post(&mut client, &refund).await;
        assert_eq!(answer.status, if allowed { 200 } else { 403 }, "{answer:?}");
        assert!(allowed || answer.body.contains("set JSON_REFUNDS=true"), "{answer:?}");
        let status = if allowed { 200 } else { 429 };
        assert_eq!(post(&mut client, three("")).await.status, status, "allowed: {allowed}");
        pod.is_unharmed();
    }
}
