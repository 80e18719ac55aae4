//! Texts of resources, the fields that their lines belong to, and resources of rule files.

use ratelease_rules::{MapKind, Options, load};

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
    let text = text_of(config, false, usize::MAX).unwrap();
    let found = load(&[source(&text)], Options::default()).expect_err("faults");
    found.iter().map(|it| format!("{}: {}", path_of(&text, it.line), it.message)).collect()
}

#[test]
fn everything_that_a_resource_can_say_is_in_its_text() {
    let team = WireValue { kind: Some(Kind::StringValue("a\"b".into())) };
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
    let text =
        text_of(&config(vec![descriptor("a", vec![inner]), free]), false, usize::MAX).unwrap();
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
        let text = text_of(&config(vec![limited("a", unit, 1)]), false, usize::MAX).unwrap();
        assert!(load(&[source(&text)], Options::default()).is_ok(), "unit {unit}");
    }
}

fn config_of_file(text: &str) -> Result<RateLimitConfig, String> {
    load(&[source(text)], Options::default()).unwrap_or_else(|faults| panic!("{faults}"));
    config_of(&source(text))
}

#[test]
fn what_the_type_says_is_the_tree_of_the_file() {
    let text = "domain: d\ndescriptors:\n- key: a\n  value: x\n  rate_limit: {unit: hour, \
                requests_per_unit: 5, name: n, replaces: [{name: m}]}\n  shadow_mode: true\n  \
                descriptors:\n  - key: b\n    metadata: {k: [1, {l: null}]}\n    rate_limit: \
                {unlimited: true}\n- key: c\n";
    let config = config_of_file(text).unwrap();
    assert_eq!((&*config.name, &*config.domain), ("d", "d"));
    let [a, c] = &config.descriptors[..] else { panic!("{config:?}") };
    let limit = a.rate_limit.as_ref().unwrap();
    assert_eq!((&*a.key, &*a.value, a.shadow_mode), ("a", "x", true));
    assert_eq!((limit.unit, limit.requests_per_unit), (RateLimitUnit::Hour as i32, 5));
    assert_eq!((&*limit.name, &*limit.replaces[0].name), ("n", "m"));
    let b = &a.descriptors[0];
    assert!(b.rate_limit.as_ref().is_some_and(|it| it.unlimited));
    assert!(b.metadata.as_ref().is_some_and(|it| it.fields.contains_key("k")));
    assert_eq!((&*c.key, &c.rate_limit), ("c", &None));
}

#[test]
fn a_resource_is_the_same_after_the_way_through_its_text() {
    let inner = RateLimitDescriptor { value: "y".into(), quota_mode: true, ..limited("x", 3, 9) };
    let config =
        config(vec![descriptor("a", vec![inner, limited("007", 1, 0)]), limited("b", 7, 1)]);
    let text = text_of(&config, false, usize::MAX).unwrap();
    assert_eq!(config_of_file(&text), Ok(config), "{text}");
}

#[test]
fn what_the_type_cannot_say_is_named() {
    let with = |limit: &str| {
        let text = format!(
            "domain: d\ndescriptors:\n- key: a\n  rate_limit: {{unit: hour, requests_per_unit: 5, \
             {limit}}}\n"
        );
        config_of_file(&text)
    };
    assert!(with("algorithm: fixed_window, unit_multiplier: 1, charge_denied: true").is_ok());
    for (limit, field) in [
        ("unit_multiplier: 2", "unit_multiplier"),
        ("algorithm: sliding_log", "algorithm"),
        ("charge_denied: false", "charge_denied"),
        ("unit: calendar_month", "unit"),
    ] {
        let why = with(limit).unwrap_err();
        assert!(why.starts_with(&format!("d: rate_limit.{field}: ")), "{why}");
    }
    let why = config_of_file("domain: d\ndefaults: {shards: 2}\n").unwrap_err();
    assert!(why.starts_with("d: defaults.shards: "), "{why}");
}

/// A new option that the reference has is not left out without a word.
#[test]
fn every_flag_of_a_descriptor_is_in_the_resource_or_refused() {
    let flags = Flags::ROWS
        .iter()
        .filter(|row| MapKind::Descriptor.options().any(|option| option.name == row.option.name));
    for row in flags {
        let (name, other) = (row.option.name, !row.default);
        let text = format!(
            "domain: d\ndescriptors:\n- key: a\n  {name}: {other}\n  rate_limit: {{unit: hour, \
             requests_per_unit: 5}}\n"
        );
        let is_kept = |config| {
            text_of(&config, false, usize::MAX).unwrap().contains(&format!("{name}: {other}"))
        };
        assert!(config_of_file(&text).map_or(true, is_kept), "{name}");
    }
}
