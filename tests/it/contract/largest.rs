//! The largest amount of a rule, 2^53 - 1, through every door and page of a pod, to the hit.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{Case, Pod, World};
use crate::support::http::{self, Client};

const MOST: u64 = (1 << 53) - 1;

const RULES: &str = "
domain: default
descriptors:
  - {key: most, rate_limit: {unit: year, requests_per_unit: 9007199254740991}}
  - {key: slides, rate_limit: {unit: year, requests_per_unit: 9007199254740991, algorithm: sliding_window}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 9007199254740991}}
";

const HEADERS: [(&str, &str); 2] =
    [("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("HOT_KEYS_SAMPLE", "1")];

/// Charges hits, and returns whether they pass and the answer.
async fn charge(client: &mut Client, key: &str, hits: u64) -> (u16, Value) {
    let entries = json!([{"key": key, "value": "x"}]);
    let body =
        json!({"domain": "default", "descriptors": [{"entries": entries, "hitsAddend": hits}]});
    let answer = client.send("POST", "/json", &[], body.to_string()).await.unwrap();
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

async fn page(addr: SocketAddr, path: &str) -> String {
    http::get(addr, path).await.unwrap().body
}

async fn is_counted_to_the_hit(world: World) {
    let mut pod = Pod::start(world, &[("default.yaml", RULES)], &HEADERS).await;
    let mut client = Client::connect(pod.http()).await.unwrap();
    for key in ["most", "slides"] {
        let mut left = MOST;
        for hits in [0, 1, 4_294_967_296, MOST / 2, MOST / 2 - 4_294_967_297, 1] {
            let (code, answer) = charge(&mut client, key, hits).await;
            left -= hits;
            let status = &answer["statuses"][0];
            assert_eq!((code, &status["currentLimit"]["requestsPerUnit"]), (200, &json!(MOST)));
            let remaining = status.get("limitRemaining").cloned().unwrap_or(json!(0));
            assert_eq!(remaining, json!(left), "{key} after {hits}");
            let headers = &answer["responseHeadersToAdd"];
            assert_eq!(headers[0]["value"], json!(MOST.to_string()), "{key}");
            assert_eq!(headers[1]["value"], json!(left.to_string()), "{key}");
        }
        assert_eq!(left, 0);
        assert_eq!(charge(&mut client, key, 1).await.0, 429, "{key}: none is left");
    }
    // What the protocol has 32 bits for is cut to them.
    let cut = "OK 4294967295/4294967295 YEAR";
    pod.check("default", &[Case("a look", "(most,$)+0", cut), Case("a hit", "(most,$)+1", cut)])
        .await;
    shown_on_pages(pod.ratelease.debug).await;
}

async fn shown_on_pages(debug: SocketAddr) {
    assert!(page(debug, "/rlconfig").await.contains("requests_per_unit=9007199254740991"));
    let metrics = page(debug, "/metrics").await;
    let within = metrics.lines().find(|line| {
        line.starts_with("ratelimit_service_rate_limit_within_limit{") && line.contains("\"most\"")
    });
    // All but the hit that was denied, and a hit of another value.
    let within = within.unwrap_or_else(|| panic!("no hits in {metrics}"));
    assert!(within.ends_with(" 9007199254740992"), "{within}");
    let status: Value = serde_json::from_str(&page(debug, "/status").await).unwrap();
    assert!(status.to_string().contains("\"9007199254740991 / year\""), "{status}");
}

#[tokio::test]
async fn the_largest_limit_is_counted_to_the_hit_and_shown_everywhere() {
    is_counted_to_the_hit(World::Memory).await;
}

#[tokio::test]
async fn the_largest_limit_is_counted_to_the_hit_and_shown_everywhere_on_a_cluster() {
    is_counted_to_the_hit(World::Cluster).await;
}

#[tokio::test]
async fn the_largest_cost_is_charged_by_scope_whole_or_not_at_all() {
    let pod = Pod::start(World::Memory, &[("default.yaml", RULES)], &[]).await;
    let mut client = Client::connect(pod.http()).await.unwrap();
    for (cost, code, remaining) in [(MOST - 1, 200, 1), (MOST, 429, 0), (MOST + 1, 400, 0)] {
        let body = json!({"scope": "user", "scope_value": "a", "api": "/", "cost": cost});
        let answer = client.send("POST", "/shouldAllow", &[], body.to_string()).await.unwrap();
        assert_eq!(answer.status, code, "{answer:?}");
        let numbers: Value = serde_json::from_str(&answer.body).unwrap();
        if code != 400 {
            assert_eq!(
                (&numbers["limit"], &numbers["remaining"]),
                (&json!(MOST), &json!(remaining))
            );
        }
    }
}
