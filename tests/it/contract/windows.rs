//! Windows of several units, which the reference does not have, and their form in an answer.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{Pod, World, in_every_world};
use crate::support::http::Client;
use crate::support::raw_grpc::{Connection, bytes_field, descriptor, number_field, request};

const RULES: &str = "
domain: d
descriptors:
  - {key: one, rate_limit: {name: n, unit: day, requests_per_unit: 5, unit_multiplier: 1}}
  - {key: many, rate_limit: {name: n, unit: day, requests_per_unit: 5, unit_multiplier: 300}}
";

const DAY: u64 = 86_400;

/// Maximum seconds for an answer, on a machine that also compiles.
const SLACK: u64 = 30;

/// Seconds until the end of the present window; windows are aligned to the Unix epoch.
fn left_of(window: u64) -> u64 {
    // Windows follow the wall clock, in memory and in this machine's Redis.
    #[allow(clippy::disallowed_methods)]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    window - now % window
}

in_every_world!(a_window_of_several_units_counts);

async fn a_window_of_several_units_counts(world: World) {
    let mut pod = Pod::start(world, &[("d.yaml", RULES)], &[]).await;
    for (asked, days, remaining, passes) in [
        ("(many,v)+4", 300, 1, true),
        // An override has a single unit, and so another window.
        ("(many,v)@7/DAY", 1, 6, true),
        ("(many,v)", 300, 0, true),
        ("(many,v)", 300, 0, false),
        ("(one,v)+4", 1, 1, true),
    ] {
        let mut response = pod.ask("d", asked).await.unwrap().response;
        let status = response.statuses.remove(0);
        let left = left_of(days * DAY);
        let reset = status.duration_until_reset.unwrap().seconds.unsigned_abs();
        assert_eq!((status.limit_remaining, status.code == 1), (remaining, passes), "{asked}");
        assert!(reset.abs_diff(left) < SLACK, "{asked}: {reset} s, not {left} s");
    }
}

/// The bytes of `current_limit` in a status: Envoy's message, then the fields `added` to it.
fn current_limit(name: &str, added: &[u8]) -> Vec<u8> {
    let name = if name.is_empty() { Vec::new() } else { bytes_field(3, name) };
    bytes_field(2, [&number_field(1, 5)[..], &number_field(2, 4), &name, added].concat())
}

#[tokio::test]
async fn field_4_has_the_units_if_there_are_several_and_no_byte_otherwise() {
    let pod = Pod::start(World::Memory, &[("d.yaml", RULES)], &[]).await;
    let connection = Connection::open(pod.ratelease.grpc).await;
    let multiplier = bytes_field(4, number_field(1, 300));
    assert_eq!(multiplier, [0x22, 3, 0x08, 0xac, 0x02]);
    let overridden = bytes_field(2, [number_field(1, 5), number_field(2, 4)].concat());
    for (key, more, expected) in [
        ("many", &[][..], current_limit("n", &multiplier)),
        ("one", &[], current_limit("n", &[])),
        ("many", &overridden, current_limit("", &[])),
    ] {
        let message = request("d", &[[&descriptor(key, "v"), more].concat()]);
        let reply = connection.call(&message).await;
        assert_eq!(reply.is_over_limit(), Some(false), "{key}: {reply:?}");
        let found = reply.message.windows(expected.len()).any(|bytes| bytes == expected);
        assert!(found, "{key}: no {expected:02x?} in {:02x?}", reply.message);
    }
}

#[tokio::test]
async fn json_has_the_units_as_a_number() {
    let pod = Pod::start(World::MemoryOverHttp, &[("d.yaml", RULES)], &[]).await;
    let mut client = Client::connect(pod.ratelease.http).await.unwrap();
    let limit = json!({"name": "n", "unit": "DAY", "requestsPerUnit": 5});
    let mut many = limit.clone();
    many["unitMultiplier"] = 300.into();
    for (key, limit) in [("one", limit), ("many", many)] {
        let entries = json!([{"key": key, "value": "v"}]);
        let body = json!({"domain": "d", "descriptors": [{"entries": entries}]}).to_string();
        let answer = client.send("POST", "/json", &[], &body).await.unwrap();
        let reported: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(reported["statuses"][0]["currentLimit"], limit);
    }
}
