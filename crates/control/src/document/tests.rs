//! Unit tests: what a rule file says survives the way through records and back.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use ratelease_rules::{Loaded, MapKind, Options, Source, load};
use serde_json::{Map, Value, json};

use super::*;

fn source(text: &str) -> Source {
    Source { name: "a.yaml".into(), text: text.into() }
}

fn document(text: &str) -> Document {
    read(&[source(text)]).unwrap().remove(0)
}

fn loaded(text: &str) -> Loaded {
    load(&[source(text)], Options::default()).unwrap_or_else(|faults| panic!("{faults}\n{text}"))
}

/// All that decides requests, as text.
fn meaning(text: &str) -> (Vec<String>, Vec<(String, Vec<String>)>) {
    let rules = loaded(text).rules;
    (rules.iter().map(|rule| format!("{rule:?}")).collect(), rules.patterns())
}

/// The rule files of the sidecar's own tests, and the samples.
fn files() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for dir in ["config/rules", "tests/rules/ok"] {
        for entry in fs::read_dir(root.join(dir)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|it| it == "yaml" || it == "yml") {
                found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 5, "only {} files were found", found.len());
    found
}

#[test]
fn every_rule_file_means_the_same_after_the_way_through_records() {
    for (name, text) in files() {
        let Ok(mut documents) = read(&[source(&text)]) else {
            panic!("{name} is refused");
        };
        let document = documents.remove(0);
        let written = render(&document).text;
        assert_eq!(meaning(&written), meaning(&text), "{name} became\n{written}");
        assert_eq!(self::document(&written), document, "{name} became\n{written}");
    }
}

/// The options are those of the table: a new one is kept without a change here.
#[test]
fn every_option_that_a_descriptor_may_have_is_kept() {
    let structure = ["key", "value", "descriptors"];
    let options = MapKind::Descriptor.options().map(|option| option.name);
    for name in options.filter(|name| !structure.contains(name)) {
        let value = match name {
            "rate_limit" => "{unit: day, requests_per_unit: 1}",
            "metadata" => "{a: b}",
            _ => "true",
        };
        let text = format!("domain: d\ndescriptors: [{{key: k, value: '*', {name}: {value}}}]\n");
        let kept = &document(&text).records[0].settings;
        assert!(kept.get(name).is_some_and(|it| !it.is_null()), "{name}: {kept:?}");
    }
}

#[test]
fn what_a_document_cannot_hold_is_refused_and_not_dropped() {
    for (line, name) in [("store: default", "store"), ("unit: day", "unit")] {
        let text = format!("domain: d\n{line}\ndescriptors: [{{key: k}}]\n");
        let message = format!("'{name}' cannot stand beside 'domain' here; remove it");
        assert_eq!(read(&[source(&text)]), Err(ReadFaults::Document("a.yaml".to_owned(), message)));
    }
}

#[test]
fn a_document_is_written_as_a_person_would() {
    let text = "domain: shop\ndefaults:\n  algorithm: token_bucket\ndescriptors:\n  \
                - key: user_id\n    rate_limit:\n      unit: minute\n      \
                requests_per_unit: 100\n    descriptors:\n      - key: path\n        \
                value: \"*\"\n        rate_limit:\n          unlimited: true\n        \
                shadow_mode: true\n";
    // Quotes only where the text may be something else.
    assert_eq!(
        render(&document(text)).text.replace("\"token_bucket\"", "token_bucket"),
        text.replace("unit: minute", "unit: \"minute\"")
    );
}

#[test]
fn nodes_without_a_limit_are_kept_where_they_shield_others() {
    let text = "domain: d\ndescriptors:\n- key: path\n  value: /health\n- key: path\n  \
                value: '*'\n  rate_limit: {unit: hour, requests_per_unit: 1}\n";
    let document = document(text);
    assert_eq!(document.records.len(), 2);
    assert_eq!(document.records[0].entries, [Entry::new("path", "/health")]);
    assert!(document.records[0].settings.is_empty());
}

#[test]
fn each_fault_names_its_rule_and_field() {
    let record = |key: &str, settings: Value| Record {
        entries: vec![Entry::new("up", ""), Entry::new(key, "")],
        settings: settings.as_object().unwrap().clone(),
    };
    let good = json!({"rate_limit": {"unit": "hour", "requests_per_unit": 1}});
    for (settings, field, message) in [
        (
            json!({"rate_limit": {"unit": "fortnight", "requests_per_unit": 1}}),
            "rate_limit.unit",
            "invalid rate limit unit 'fortnight'",
        ),
        (
            json!({"rate_limit": {"unit": "hour", "requests_per_unit": -1}}),
            "rate_limit.requests_per_unit",
            "'requests_per_unit' must be",
        ),
        (
            json!({"rate_limit": {"unit": "hour", "requests_per_unit": 1, "brust": 2}}),
            "rate_limit.brust",
            "unknown key 'brust'",
        ),
        (json!({"rate_limt": {}}), "rate_limt", "unknown key 'rate_limt'"),
        (json!({"shadow_mode": "perhaps"}), "shadow_mode", "'shadow_mode' must be"),
        (
            json!({"rate_limit": {"unit": "hour", "requests_per_unit": 1, "lease": {"max": 0}}}),
            "rate_limit.lease",
            "'max' must be",
        ),
    ] {
        let records = vec![record("a", good.clone()), record("b", settings.clone())];
        let document = Document { domain: "d".into(), records, ..Document::default() };
        let faults = compile(std::slice::from_ref(&document), usize::MAX).unwrap_err();
        let [fault] = &faults[..] else { panic!("{settings}: {faults:?}") };
        assert_eq!(fault.field, field, "{fault:?}");
        assert_eq!(fault.rule, Some(document.records[1].id("d").to_string()), "{fault:?}");
        assert!(fault.message.contains(message), "{fault:?}");
    }
}

#[test]
fn an_id_is_of_the_address_alone() {
    let id = |domain: &str, entries: &[(&str, &str)]| {
        let entries: Vec<_> = entries.iter().map(|(key, value)| Entry::new(*key, *value)).collect();
        RuleId::of(domain, &entries)
    };
    let one = id("shop", &[("user_id", "")]);
    // Ids are stored, so they must never change.
    assert_eq!(one.as_str(), "41a8f569-82e2-81b7-99bb-9d3fe3ca9c33");
    let others = [
        id("shop2", &[("user_id", "")]),
        id("shop", &[("user_id", "7")]),
        id("shop", &[("user_id", ""), ("7", "")]),
        id("sho", &[("puser_id", "")]),
        id("shop", &[("user", "_id")]),
    ];
    assert!(!others.contains(&one));
}

#[test]
fn addresses_that_cannot_be_stored_are_refused() {
    let long = "x".repeat(9000);
    for (entries, fields) in [
        (vec![], vec!["entries"]),
        (vec![Entry::new("a", ""); 25], vec!["entries"]),
        (
            vec![Entry::new("", "a"), Entry::new(&*long, "\0")],
            vec!["entries[0].key", "entries[1].key", "entries[1].value"],
        ),
    ] {
        let faults = check_entries(&mut entries.clone()).unwrap_err();
        assert_eq!(faults.iter().map(|it| &*it.field).collect::<Vec<_>>(), fields);
    }
    let mut entries = [Entry { key: "a".into(), value: Some(String::new()) }];
    check_entries(&mut entries).unwrap();
    assert_eq!(entries[0].value, None);
}

#[test]
fn a_difference_has_each_change_once() {
    let limit = |n: u32| format!("rate_limit: {{unit: hour, requests_per_unit: {n}}}");
    let of = |items: &[(&str, u32)]| {
        let items = items.iter().map(|(key, n)| format!("- key: {key}\n  {}\n", limit(*n)));
        document(&format!("domain: d\ndescriptors:\n{}", items.collect::<String>()))
    };
    let found =
        difference(&of(&[("a", 1), ("b", 2), ("c", 3)]), &of(&[("d", 4), ("a", 1), ("b", 5)]));
    let shown = found.rules.iter().map(|change| {
        let amount = |it: &Option<Map<String, Value>>| {
            it.as_ref().map(|it| it["rate_limit"]["requests_per_unit"].as_u64().unwrap())
        };
        (&*change.entries[0].key, amount(&change.before), amount(&change.after))
    });
    let expected = [("d", None, Some(4)), ("b", Some(2), Some(5)), ("c", Some(3), None)];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    assert!(!found.defaults_or_order);
    assert!(difference(&of(&[("a", 1), ("b", 2)]), &of(&[("b", 2), ("a", 1)])).defaults_or_order);
    assert!(difference(&of(&[("a", 1)]), &of(&[("a", 1)])).is_empty());
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,4}",
        "[ -~]{1,8}",
        "\\PC{1,4}",
        proptest::collection::vec(any::<char>(), 1..4).prop_map(|it| it.into_iter().collect()),
        Just("yes".to_owned()),
        Just("007".to_owned()),
        Just("~".to_owned()),
        Just("- a: #b".to_owned()),
    ]
    .prop_filter("the database cannot store it", |text: &String| !text.contains('\0'))
}

fn metadata() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        text().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(text(), inner, 0..4)
                .prop_map(|it| Value::Object(it.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_text_survives(
        domain in text(),
        keys in proptest::collection::vec((text(), proptest::option::of(text())), 1..5),
        name in text(),
        extra in proptest::collection::btree_map(text(), metadata(), 1..4),
    ) {
        let entries = keys.into_iter().map(|(key, value)| Entry { key, value }).collect();
        let extra: Map<String, Value> = extra.into_iter().collect();
        let limit = json!({"unit": "hour", "requests_per_unit": 1, "name": name});
        let settings = json!({"rate_limit": limit, "metadata": extra}).as_object().unwrap().clone();
        let records = vec![Record { entries, settings }];
        let before = Document { domain, defaults: Map::new(), records };
        let written = render(&before).text;
        // A few texts are refused by the compiler, such as a pattern with too many stars.
        if let Ok(after) = read(&[source(&written)]) {
            prop_assert_eq!(&after[0], &before, "{}", written);
        } else {
            let faults = compile(&[before], usize::MAX).unwrap_err();
            prop_assert!(faults.iter().all(|it| it.message.contains('*')), "{faults:?}\n{written}");
        }
    }
}

/// Each leaf has the text of all above it: 12 000 of them below a key of 250 000 bytes would take 3 GB.
#[test]
fn long_keys_above_many_rules_are_refused_before_they_are_copied() {
    let leaves = |count: u32| (0..count).map(|n| format!("  - key: k{n}\n")).collect::<String>();
    let text = |key: &str, count| {
        format!("domain: evil\ndescriptors:\n- key: {key}\n  descriptors:\n{}", leaves(count))
    };
    for (key, count, expected) in [
        ("k".repeat(250_000), 12_000, "entries[0].key: 250000 bytes; expected at most 8192"),
        ("k".repeat(8_192), 12_000, "have more than 33554432 bytes together"),
    ] {
        let found = read(&[source(&text(&key, count))]);
        let Err(ReadFaults::Document(_, message)) = found else { panic!("{found:?}") };
        assert!(message.contains(expected), "{message}");
    }
    assert!(read(&[source(&text(&"k".repeat(8_192), 3_000))]).is_ok());
}
