//! Bad requests over `/json`: 400 and the reason, as the reference; and 413 above 1 MiB.

use super::pod;
use crate::support::http::{Answer, Client};

/// Of `/json`: 1 MiB.
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
        ("nothing", vec![], "EOF while parsing"),
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
        ("deep nesting", format!(r#"{{"hitsAddend":{}"#, "[".repeat(10_000)).into(), "recursion"),
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
            "1000 descriptors in one request; at most 256",
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
        let answer = client.send(method, "/json", &[], "").await.unwrap();
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
