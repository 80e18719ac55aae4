//! JSON: `/json` as curl receives it: status, headers and body.

use serde_json::{Value, json};

use super::{Pod, World};
use crate::support::http::{Answer, Client};

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: n, unit: year, requests_per_unit: 2}}
  - {key: over, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
";

const TEXT: &str = "text/plain; charset=utf-8";

async fn send(client: &mut Client, method: &str, body: &str) -> Answer {
    client.send(method, "/json", &[], body).await.unwrap()
}

#[tokio::test]
async fn what_is_no_request_is_400_with_a_reason() {
    let pod = Pod::start(World::Memory, &[("d.yaml", RULES)], &[]).await;
    let mut client = Client::connect(pod.ratelease.http).await.unwrap();
    let entry = r#"{"key":"k","value":"v"}"#;
    for (body, reason) in [
        (" ", "EOF"),
        ("}", "expected value"),
        ("[]", "expected an object"),
        ("null", "expected an object"),
        ("{}", "rate limit domain must not be empty"),
        (r#"{"domain":"d"}"#, "rate limit descriptor list must not be empty"),
        (r#"{"domain":"d","descriptors":null}"#, "rate limit descriptor list must not be empty"),
        (r#"{"domain":"d","descriptor":[]}"#, "unknown field `descriptor`"),
        (r#"{"domain":"d","domain":"e"}"#, "duplicate field `domain`"),
        (r#"{"domain":"d","descriptors":[{"hitsAddend":-1}]}"#, "-1 is not a number in range"),
        (r#"{"domain":"d","descriptors":[{"limit":{"unit":"WEAK"}}]}"#, "is not a unit"),
        (
            &format!(r#"{{"domain":"d","descriptors":[{{"entries":{entry}}}]}}"#),
            "expected a sequence",
        ),
        (&"[".repeat(100_000), "Bad Request"),
    ] {
        let answer = send(&mut client, "POST", body).await;
        let start = &body[..body.len().min(80)];
        assert_eq!((answer.status, answer.header("content-type")), (400, Some(TEXT)), "{start}");
        assert!(answer.body.contains(reason) && answer.body.ends_with('\n'), "{}", answer.body);
    }
    let good = format!(r#"{{"domain":"d","descriptors":[{{"entries":[{entry}]}}]}}"#);
    assert_eq!(send(&mut client, "POST", &good).await.status, 200);
}

#[tokio::test]
async fn any_method_decides_and_the_status_is_the_verdict() {
    let pod = Pod::start(World::Memory, &[("d.yaml", RULES)], &[]).await;
    let mut client = Client::connect(pod.ratelease.http).await.unwrap();
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    for (method, status) in [("GET", 200), ("PUT", 200), ("POST", 429), ("DELETE", 429)] {
        let answer = send(&mut client, method, body).await;
        let content_type = answer.header("content-type");
        assert_eq!((answer.status, content_type), (status, Some("application/json")), "{method}");
    }
}

#[tokio::test]
async fn the_body_is_protobufs_json() {
    let env = [("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_RESET_HEADER", "x-reset")];
    let pod = Pod::start(World::Memory, &[("d.yaml", RULES)], &env).await;
    let mut client = Client::connect(pod.ratelease.http).await.unwrap();
    let body = r#"{"domain":"d","descriptors":[
        {"entries":[{"key":"k","value":"v"}]}, {"entries":[{"key":"free"}]},
        {"entries":[]}, {"entries":[{"value":"only"}]}]}"#;
    let answer = send(&mut client, "POST", body).await;
    let mut reported: Value = serde_json::from_str(&answer.body).unwrap();
    let span = reported["statuses"][0]["durationUntilReset"].take();
    let seconds = span.as_str().and_then(|span| span.strip_suffix('s')).unwrap().to_owned();
    assert!((1..=365 * 86_400).contains(&seconds.parse().unwrap()), "{span}");
    let header = |key: &str, value: &str| json!({ "key": key, "value": value });
    let expected = json!({
        "overallCode": "OK",
        "statuses": [
            {
                "code": "OK",
                "currentLimit": {"name": "n", "requestsPerUnit": 2, "unit": "YEAR"},
                "limitRemaining": 1,
                "durationUntilReset": null,
            },
            {"code": "OK", "limitRemaining": 4_294_967_295_u32},
            {"code": "OK"},
            {"code": "OK"},
        ],
        "responseHeadersToAdd": [
            header("RateLimit-Limit", "2"),
            header("RateLimit-Remaining", "1"),
            header("x-reset", &seconds),
        ],
    });
    assert_eq!(reported, expected);

    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"over","value":"v"}]}]}"#;
    let reported: Value =
        serde_json::from_str(&send(&mut client, "POST", body).await.body).unwrap();
    assert_eq!(reported["overallCode"], "OVER_LIMIT");
    assert_eq!(reported["statuses"][0]["currentLimit"], json!({"unit": "DAY"}));
    assert_eq!(reported["statuses"][0].get("limitRemaining"), None);
}

/// As protobuf's JSON mapping requires: both spellings, numbers in strings, null for a default.
#[tokio::test]
async fn every_spelling_that_protobuf_reads_is_read() {
    let pod = Pod::start(World::Memory, &[("d.yaml", RULES)], &[]).await;
    let mut client = Client::connect(pod.ratelease.http).await.unwrap();
    for (at, fields) in [
        r#""hitsAddend":1"#,
        r#""hits_addend":1"#,
        r#""hitsAddend":"1""#,
        r#""hitsAddend":1.0"#,
        r#""hitsAddend":1e0"#,
        r#""hitsAddend":null"#,
        r#""limit":null,"isNegativeHits":null"#,
        r#""isNegativeHits":false,"limit":{"unit":6,"requests_per_unit":"2"}"#,
        r#""limit":{"unit":"YEAR","requestsPerUnit":2.0}"#,
    ]
    .iter()
    .enumerate()
    {
        let body = format!(
            r#"{{"domain":"d","hitsAddend":null,"descriptors":[
                {{"entries":[{{"key":"k","value":"v{at}"}}],{fields}}},{{"entries":null}},
                {{"entries":[{{"key":"nowhere","value":null}}]}}]}}"#
        );
        let answer = send(&mut client, "POST", &body).await;
        assert_eq!(answer.status, 200, "{fields}: {}", answer.body);
        let reported: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(reported["statuses"][0]["limitRemaining"], 1, "{fields}");
    }
}
