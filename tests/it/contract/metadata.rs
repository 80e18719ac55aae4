//! METADATA and V15: what Envoy receives about a request in addition to its verdict.

use serde_json::{Value, json};

use super::{Pod, World, in_every_world};

const METADATA: &str = include_str!("../../rules/ok/metadata.yaml");

const OVERLAP: &str = "
domain: d
descriptors:
  - key: first
    metadata: {owner: first, deep: {a: 1, b: {x: first}}}
    rate_limit: {unit: hour, requests_per_unit: 1000}
  - key: second
    metadata: {owner: second, deep: {a: 2, b: {y: second}, c: 3}, list: [2]}
    rate_limit: {unit: hour, requests_per_unit: 1000}
  - {key: over, metadata: {over: true}, rate_limit: {unit: hour, requests_per_unit: 0}}
  - key: shadow
    shadow_mode: true
    metadata: {shadow: true}
    rate_limit: {unit: hour, requests_per_unit: 0}
  - {key: free, metadata: {free: true}, rate_limit: {unlimited: true}}
  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 1000}}
";

const ENABLED: (&str, &str) = ("RESPONSE_DYNAMIC_METADATA", "true");

in_every_world!(metadata_of_what_passes_is_merged, metadata_names_the_request);

/// The merged metadata of an answer; null if there is none.
async fn merged(pod: &mut Pod, domain: &str, request: &str) -> Value {
    let metadata = pod.ask(domain, request).await.unwrap().metadata.unwrap();
    metadata.get("metadata").cloned().unwrap_or_default()
}

async fn metadata_of_what_passes_is_merged(world: World) {
    let rules = [("metadata.yaml", METADATA), ("overlap.yaml", OVERLAP)];
    let mut pod = Pod::start(world, &rules, &[ENABLED]).await;
    let named = merged(&mut pod, "test-domain", "(key1,value1)(subkey1,x)").await;
    assert_eq!(named, json!({"name": "service_1"}));
    let quota = merged(&mut pod, "test-domain", "(key2,x)").await;
    assert_eq!(quota["service_with_quota"]["name"], "service_2");

    let first = json!({"owner": "first", "deep": {"a": 1.0, "b": {"x": "first"}}});
    let union = json!({
        "owner": "first",
        "deep": {"a": 1.0, "b": {"x": "first", "y": "second"}, "c": 3.0},
        "list": [2.0],
    });
    for (request, expected) in [
        ("(first,a)", &first),
        ("(first,a); (second,a)", &union),
        // The reference merges into the rule itself, and this would return the union from now on.
        ("(first,a)", &first),
        ("(first,a); (over,a)", &first),
        ("(over,a)", &Value::Null),
        ("(shadow,a)", &json!({"shadow": true})),
        ("(first,a)@9/DAY", &Value::Null),
        ("(plain,a); (nowhere,a); (free,a)", &Value::Null),
    ] {
        let reported = merged(&mut pod, "d", request).await;
        assert_eq!(as_floats(reported), *expected, "{request}");
    }
}

async fn metadata_names_the_request(world: World) {
    let mut pod = Pod::start(world, &[("overlap.yaml", OVERLAP)], &[ENABLED]).await;
    let answer = pod.ask("d", "(plain,a)(b,)+3; ()-0@10/DAY; (nowhere,c) x4").await.unwrap();
    let expected = json!({
        "domain": "d",
        "descriptors": [
            {"entries": ["plain=a", "b="], "hitsAddend": 3.0},
            {"entries": [], "limit": "requests_per_unit:10 unit:DAY", "hitsAddend": 0.0},
            {"entries": ["nowhere=c"]},
        ],
        "hitsAddend": 4.0,
    });
    assert_eq!(answer.metadata.map(as_floats), Some(expected));

    let mut pod = Pod::start(world, &[("overlap.yaml", OVERLAP)], &[]).await;
    assert_eq!(pod.ask("d", "(first,a)").await.unwrap().metadata, None);
}

/// A `Struct` has only floats; JSON may write them shorter.
fn as_floats(value: Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(values) => values.into_iter().map(as_floats).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, as_floats(value))).collect()
        }
        other => other,
    }
}
