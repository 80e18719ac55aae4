//! Texts of resources, and the fields that their lines belong to.

use ratelease_rules::{Options, Source, load};

use super::super::wire::RateLimitReplace;
use super::*;

fn descriptor(key: &str, below: Vec<RateLimitDescriptor>) -> RateLimitDescriptor {
    RateLimitDescriptor { key: key.into(), descriptors: below, ..Default::default() }
}

fn limited(key: &str, unit: i32, requests_per_unit: u32) -> RateLimitDescriptor {
    let policy = RateLimitPolicy { unit, requests_per_unit, ..Default::default() };
    RateLimitDescriptor { key: key.into(), rate_limit: Some(policy), ..Default::default() }
}

fn config(descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: "shop".into(), domain: "shop".into(), descriptors }
}

fn source(text: &str) -> Source {
    Source { name: "x".into(), text: text.into() }
}

/// The faults of a resource, one line each, with the path of each instead of its line.
fn faults(config: &RateLimitConfig) -> Vec<String> {
    let text = text_of(config).unwrap();
    let found = load(&[source(&text)], Options::default()).expect_err("faults");
    found.iter().map(|it| format!("{}: {}", path_of(&text, it.line), it.message)).collect()
}

#[test]
fn everything_that_a_resource_can_say_is_in_its_text() {
    let team = wire::Value { kind: Some(Kind::StringValue("a\"b".into())) };
    let metadata = Struct { fields: [("team".into(), team)].into() };
    let policy = RateLimitPolicy {
        unit: 7,
        requests_per_unit: 5,
        unlimited: false,
        name: "weekly".into(),
        replaces: vec![RateLimitReplace { name: "other".into() }],
    };
    let inner = RateLimitDescriptor {
        value: "x y*".into(),
        rate_limit: Some(policy),
        shadow_mode: true,
        detailed_metric: true,
        quota_mode: true,
        metadata: Some(metadata),
        ..descriptor("b\n# c", Vec::new())
    };
    let unlimited = RateLimitPolicy { unlimited: true, ..Default::default() };
    let free = RateLimitDescriptor { rate_limit: Some(unlimited), ..descriptor("d", Vec::new()) };
    let text = text_of(&config(vec![descriptor("a", vec![inner]), free])).unwrap();
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    let expected = [
        r#"domain: "shop""#,
        r"descriptors:",
        r#"- key: "a""#,
        r"  descriptors:",
        r#"  - key: "b\n# c""#,
        r#"    value: "x y*""#,
        concat!(
            r#"    rate_limit: {"unit":"week","requests_per_unit":5,"name":"weekly","#,
            r#""replaces":[{"name":"other"}]}"#
        ),
        r"    shadow_mode: true",
        r"    detailed_metric: true",
        r"    quota_mode: true",
        r#"    metadata: {"team":"a\"b"}"#,
        r#"- key: "d""#,
        r#"  rate_limit: {"unlimited":true}"#,
    ];
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, expected) in lines.iter().zip(expected) {
        // The order of the fields of an object depends on a feature of serde_json.
        let (found, expected) = (line.split_once(": ").unwrap_or((line, "null")), expected);
        let expected = expected.split_once(": ").unwrap_or((expected, "null"));
        assert_eq!(found.0, expected.0, "{text}");
        let [found, expected] = [found.1, expected.1].map(serde_json::from_str::<Value>);
        assert_eq!(found.expect("JSON"), expected.expect("JSON"), "{text}");
    }
    assert_eq!(load(&[source(&text)], Options::default()).expect("good rules").rules.len(), 2);
}

#[test]
fn faults_name_the_field_of_the_descriptor() {
    let nested = descriptor("a", vec![limited("b", 2, 1), limited("", 2, 1)]);
    let list = vec![descriptor("x", Vec::new()), nested, limited("c", 0, 1), limited("d", 99, 1)];
    let found = faults(&config(list));
    let expected = [
        "descriptors[1].descriptors[1].key: ",
        "descriptors[2].rate_limit: ",
        "descriptors[3].rate_limit: ",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
    let no_domain = RateLimitConfig { domain: String::new(), ..config(Vec::new()) };
    assert!(faults(&no_domain)[0].starts_with("domain: "), "{:?}", faults(&no_domain));
}

#[test]
fn every_unit_has_its_name_in_files() {
    for unit in 1..=7 {
        let text = text_of(&config(vec![limited("a", unit, 1)])).unwrap();
        assert!(load(&[source(&text)], Options::default()).is_ok(), "unit {unit}");
    }
}
