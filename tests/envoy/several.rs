//! Several descriptors in one request, and hits and limits that Envoy itself sets.

use serde_json::{Value, json};

use crate::stand::{Asker, MACHINE, Rules, before, file, pod, rule};
use crate::support::envoy::{Envoy, EnvoyOptions, filter};
use crate::support::load::{Load, Tally};

#[tokio::test]
async fn a_denied_request_spends_nothing_on_its_other_descriptors() {
    const NARROW: u64 = 5;
    const WIDE: u64 = 1_000;
    let _shared = MACHINE.read().await;
    let narrow = rule("path", Some("/narrow"), NARROW);
    let all = rule("generic_key", Some("all"), WIDE);
    let rules = Rules::new(&file("several", &[narrow, rule("user", None, WIDE / 2), all]));
    let pod = pod(&rules).await;
    let envoy = Envoy::start(before("several", &[&pod])).await;
    let asker = Asker::connect(&pod).await;
    let bob = |path: &str, requests| {
        let headers = vec![("x-user".to_owned(), "bob".to_owned())];
        envoy.load(Load { headers, ..Load::new(path, 4, requests) })
    };
    let left = async || {
        let of = |key, value| asker.remaining("several", (key, value));
        [of("path", "/narrow").await, of("user", "bob").await, of("generic_key", "all").await]
            .map(u64::from)
    };

    // Denied and admitted requests run side by side: the tokens that a denied request holds for a
    // moment are not lost.
    let (narrow, wide) = (bob("/narrow", 300), bob("/wide", 200));
    assert_eq!(narrow.finish().await, tally(NARROW, 300 - NARROW));
    assert_eq!(wide.finish().await, tally(200, 0));
    let spent = NARROW + 200;
    assert_eq!(left().await, [0, WIDE / 2 - spent, WIDE - spent]);

    // The last of three descriptors denies as well as the first: this spends exactly what is left
    // for bob.
    let rest = WIDE / 2 - spent;
    assert_eq!(bob("/wide", 2 * rest).finish().await, tally(rest, rest));
    assert_eq!(left().await, [0, 0, WIDE / 2]);
    println!("passed {}, each spent once: {:?} left", WIDE / 2, left().await);
}

#[tokio::test]
async fn hits_and_limits_that_envoy_sends_are_kept() {
    let _shared = MACHINE.read().await;
    let rules = Rules::new(&file("sent", &[rule("path", None, 100)]));
    let pod = pod(&rules).await;
    let header = json!({"header_name": ":path", "descriptor_key": "path"});
    let by_path = json!({"actions": [{"request_headers": header}], "hits_addend": {"number": 7}});
    // No rule limits this one: its limit comes from the request's metadata.
    let metadata = json!({"metadata_key": {"key": "sent", "path": [{"key": "limit"}]}});
    let own = json!({
        "actions": [{"generic_key": {"descriptor_value": "own"}}],
        "limit": {"dynamic_metadata": metadata},
    });
    let limit = json!({"limit": {"requests_per_unit": 10, "unit": "DAY"}});
    let options = EnvoyOptions {
        filters: vec![set_metadata("sent", &limit)],
        // Not in the route, where Envoy ignores `hits_addend`.
        filter: json!({"rate_limits": [by_path, own]}),
        ..before("sent", &[&pod])
    };
    let envoy = Envoy::start(options).await;
    let asker = Asker::connect(&pod).await;

    assert_eq!(envoy.load(Load::new("/a", 1, 4)).finish().await, tally(4, 0));
    assert_eq!(asker.remaining("sent", ("path", "/a")).await, 100 - 4 * 7);
    assert_eq!(envoy.load(Load::new("/b", 1, 10)).finish().await, tally(6, 4));
    assert_eq!(asker.remaining("sent", ("path", "/b")).await, 100 - 6 * 7);
    let answer = envoy.get("/c", &[]).await;
    let limits = answer.header("x-ratelimit-limit");
    assert_eq!((answer.status, limits), (429, Some("10, 100;w=86400, 10;w=86400")));
}

/// A filter that adds this metadata to every request, under a name.
fn set_metadata(name: &str, value: &Value) -> Value {
    let kind = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config";
    let metadata = json!([{"metadata_namespace": name, "value": value}]);
    filter("set_metadata", json!({"@type": kind, "metadata": metadata}))
}

fn tally(passed: u64, limited: u64) -> Tally {
    let counts = [(200, passed), (429, limited)].into_iter().filter(|(_, count)| *count > 0);
    Tally { statuses: counts.collect(), broken: 0 }
}
