//! Rows 1-16 of the contract, and further faults that are refused here, each at its place.

use super::*;
use crate::options::MapKind;

/// Loads a bad fixture and checks for exactly these faults: `line:column: start of the message`.
#[track_caller]
pub(super) fn refuses(name: &str, expected: &[&str]) {
    let found = refusal(&sources("bad", &[name]), NO_MERGE);
    for (found, expected) in found.iter().zip(expected) {
        let expected = format!("{name}:{expected}");
        assert!(found.starts_with(&expected), "\nexpected {expected}\n   found {found}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn row_1_syntax() {
    refuses("syntax.yaml", &["3:1: error loading config file: "]);
    refuses("tab.yaml", &["3:2: error loading config file: tabs disallowed within this context"]);
    refuses(
        "alias.yaml",
        &["4:12: error loading config file: while parsing node, found \
                 unknown anchor; a value that starts with '*' needs quotes, such as"],
    );
    refuses(
        "self_alias.yaml",
        &["4:18: error loading config file: the anchor's value contains itself"],
    );
    refuses(
        "merge_of_text.yaml",
        &["4:9: error loading config file: '<<' needs a map or a list of maps, found the number 5"],
    );
    refuses("tag.yaml", &["1:9: error loading config file: cannot decode 'five' as a !!int"]);
    refuses(
        "latin1.yaml",
        &["1:12: error loading config file: invalid UTF-8, found byte 0xe9; save it as UTF-8"],
    );
    refuses(
        "nul.yaml",
        &["2:13: error loading config file: control characters are not allowed, found U+0000"],
    );
}

/// The end of a refusal of a key that no map has: the options of this one.
pub(super) fn expected(map: MapKind) -> String {
    let names: Vec<_> = map.options().map(|option| option.name).collect();
    format!("expected one of {}", names.join(", "))
}

#[test]
fn row_2_unknown_key_with_the_nearest_known_one() {
    let [descriptor, limit] = [MapKind::Descriptor, MapKind::RateLimit].map(expected);
    refuses(
        "unknown_key.yaml",
        &[
            &format!("4:5: unknown key 'ratelimit'; {descriptor}; did you mean 'rate_limit'?"),
            &format!(
                "8:7: unknown key 'requestsperunit'; {limit}; did you mean 'requests_per_unit'?"
            ),
            &format!("9:7: unknown key 'on_failure'; {limit}"),
        ],
    );
}

#[test]
fn row_3_key_that_is_not_text() {
    refuses(
        "key_not_text.yaml",
        &[
            "4:5: key is not of type string: 0.25; ",
            "5:5: key is not of type string: yes; ",
            "6:5: key is not of type string: ~; ",
            "7:5: key is not of type string: a list",
        ],
    );
}

#[test]
fn row_4_list_item_that_is_not_a_map() {
    refuses(
        "list_of_text.yaml",
        &[
            "3:5: yaml file contains list of type other than map: a; expected '- key: …'",
            "4:4: yaml file contains list of type other than map: nothing; expected '- key: …'",
            "6:62: yaml file contains list of type other than map: x; expected '- name: …'",
        ],
    );
}

#[test]
fn row_5_float_outside_metadata() {
    refuses(
        "float.yaml",
        &[
            "1:9: error checking config: 'domain' is the number 1.5; put it in quotes",
            "4:12: error checking config: 'value' is the number 08; put it in quotes",
            "5:48: error checking config: 'requests_per_unit' must be a whole number",
            "6:10: error checking config: 'key' is the number 18446744073709551615; ",
        ],
    );
}

#[test]
fn row_6_wrong_type() {
    let number = "error loading config file: 'requests_per_unit' must be a whole number from 0 to \
                  9007199254740991 without quotes, found";
    refuses(
        "wrong_type.yaml",
        &[
            "3:10: error loading config file: 'key' must be text, found a list",
            "4:12: error loading config file: 'value' must be text, found a map",
            "5:18: error loading config file: 'shadow_mode' must be true or false without quotes, \
             found the text 'true'",
            &format!("6:48: {number} the text '5'"),
            &format!("8:48: {number} the number -1"),
            &format!("11:48: {number} the number 9007199254740992"),
            "13:17: error loading config file: 'rate_limit' must be a map, found the number 5",
            "14:15: error loading config file: 'metadata' must be a map, found a list",
            "15:18: error loading config file: 'descriptors' must be a list of maps, found a map",
            &format!("17:48: {number} the boolean yes"),
            "17:64: error loading config file: 'unlimited' must be true or false without quotes, \
             found the number 1",
        ],
    );
    refuses(
        "root_list.yaml",
        &["1:1: error loading config file: the file must be a map, found a list"],
    );
}

#[test]
fn a_number_or_limit_of_another_form_is_refused_with_what_to_write() {
    let requests =
        "'requests_per_unit' must be a whole number from 0 to 9007199254740991 without quotes";
    for (written, found) in [
        ("1.5", "the number 1.5; write 1 or 2; 'unit_multiplier' makes the unit longer"),
        ("1e3", "the number 1e3; write 1000"),
        ("-1", "the number -1; for no limit write 'unlimited: true', without a unit"),
        ("'100'", "the text '100'; write 100"),
        ("1,000", "the text '1,000'; write 1000"),
        ("5/min", "the text '5/min'; write 5, and beside it 'unit: minute'"),
        ("9007199254740992", "the number 9007199254740992; for no limit write 'unlimited: true'"),
        (".inf", "the number .inf; for no limit write 'unlimited: true'"),
        ("some", "the text 'some'"),
    ] {
        let text = format!(
            "domain: d\ndescriptors:\n- key: k\n  rate_limit:\n    unit: day\n    \
             requests_per_unit: {written}\n"
        );
        let faults = refusal(&[source(&text)], NO_MERGE);
        let expected = format!("{requests}, found {found}");
        assert!(faults.len() == 1 && faults[0].contains(&expected), "{expected}\n{faults:#?}");
    }
    for (written, form) in [
        ("5/minute", "{unit: minute, requests_per_unit: 5}"),
        ("10 per hour", "{unit: hour, requests_per_unit: 10}"),
        ("3/s", "{unit: second, requests_per_unit: 3}"),
        ("unlimited", "{unlimited: true}"),
        ("8", "{unit: minute, requests_per_unit: 8}"),
        ("[7]", "{unit: minute, requests_per_unit: 5}"),
    ] {
        let text = format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {written}\n");
        let refused = load(&[source(&text)], NO_MERGE).unwrap_err();
        assert_eq!(refused.warnings(), [], "{written}");
        let found = refused.to_string();
        assert!(
            found.contains(" must be a map, found ") && found.contains(&format!("; write {form}")),
            "{found}"
        );
    }
}

#[test]
fn descriptors_that_others_replace_are_judged_by_their_shape_only() {
    let limit = "{unit: day, requests_per_unit: 1}";
    let text = format!(
        "domain: d\ndescriptors:\n- {{key: '', rate_limit: 5}}\n- key: a\n  descriptors: [{{kye: \
         b}}]\n  descriptors: []\n- 7\ndescriptors: [{{key: c, rate_limit: {limit}}}]\n"
    );
    assert_eq!(
        refusal(&[source(&text)], NO_MERGE),
        [
            "a.yaml:3:25: error loading config file: 'rate_limit' must be a map, found the \
             number 5; write {unit: minute, requests_per_unit: 5}",
            &format!(
                "a.yaml:5:18: unknown key 'kye'; {}; did you mean 'key'?",
                expected(MapKind::Descriptor)
            ),
            "a.yaml:7:3: yaml file contains list of type other than map: 7; expected '- key: …'",
        ]
    );
    let twins = format!("[{{key: a, rate_limit: {limit}}}, {{key: a, rate_limit: {limit}}}]");
    let text = format!("domain: d\ndescriptors: {twins}\ndescriptors:\n");
    assert!(compile(&text).rules.is_empty(), "none of them is compiled");
}

#[test]
fn row_7_empty_domain() {
    refuses("empty_domain.yaml", &["1:1: config file cannot have empty domain"]);
    refuses("empty_domain_text.yaml", &["1:9: config file cannot have empty domain"]);
    refuses("empty_file.yaml", &["1:1: config file cannot have empty domain"]);
}

#[test]
fn row_8_duplicate_domain_blames_the_later_name() {
    let found = refusal(&sources("ok", &["merge_second.yaml", "merge_first.yaml"]), NO_MERGE);
    let expected = "merge_second.yaml:1:9: duplicate domain 'test-domain' in config file; \
                    merge_first.yaml:1 has it already: rename one, or set MERGE_DOMAIN_CONFIG=true";
    assert_eq!(found, [expected]);
}

#[test]
fn row_9_empty_key() {
    let message = "descriptor has empty key; add 'key: …'";
    let expected = ["3:5", "4:10", "7:9"].map(|place| format!("{place}: {message}"));
    refuses("empty_key.yaml", &expected.each_ref().map(String::as_str));
}

#[test]
fn row_10_duplicate_key_and_value_on_one_level() {
    refuses(
        "duplicate_key.yaml",
        &[
            "7:14: duplicate descriptor composite key 'a.k_v.sub'; ",
            "9:10: duplicate descriptor composite key 'a.k_v'; ",
        ],
    );
    let mut twice = sources("ok", &["merge_first.yaml", "merge_first.yaml"]);
    twice[1].name = "z.yaml".to_owned();
    let found = refusal(&twice, MERGE);
    assert!(
        found[0].starts_with(
            "z.yaml:3:10: duplicate descriptor composite key 'test-domain.key1_value1'"
        )
    );
    assert!(
        found[1]
            .starts_with("z.yaml:6:11: duplicate descriptor composite key 'test-domain.shared_a*'")
    );
    assert_eq!(found.len(), 2);
}

#[test]
fn row_11_unit() {
    let units = "expected one of second, minute, hour, day, week, month, year, calendar_day, \
                 calendar_week, calendar_month, calendar_year";
    refuses(
        "unit.yaml",
        &[
            &format!("3:34: invalid rate limit unit 'foo'; {units}"),
            &format!("4:27: invalid rate limit unit ''; {units}"),
            &format!("5:34: invalid rate limit unit 'unknown'; {units}"),
            &format!("6:34: invalid rate limit unit 'minutes'; {units}; did you mean 'minute'?"),
            &format!("7:27: invalid rate limit unit ''; {units}"),
        ],
    );
}

#[test]
fn rows_12_to_15() {
    refuses("unlimited_unit.yaml", &["3:51: should not specify rate limit unit when unlimited; "]);
    refuses(
        "replaces.yaml",
        &[
            "3:89: should not have an empty replaces entry; ",
            "3:94: should not have an empty replaces entry; ",
            "3:105: replaces should not contain name of same descriptor; 'me' is this one",
        ],
    );
    let share =
        "share_threshold can only be used with wildcard values (containing '*'), but found key";
    refuses(
        "share_threshold.yaml",
        &[&format!("3:41: {share} 'a_b'"), &format!("4:31: {share} 'c'")],
    );
}

#[test]
fn row_16_metadata() {
    refuses(
        "metadata.yaml",
        &["4:23: error parsing metadata: .inf", "7:16: error parsing metadata: a key must be text"],
    );
}

#[test]
fn every_fault_of_every_file_is_reported_in_order() {
    refuses(
        "many.yaml",
        &[
            "2:1: config file cannot have empty domain",
            "4:24: invalid rate limit unit 'dya'; expected one of second, minute, hour, day, week, \
             month, year, calendar_day, calendar_week, calendar_month, calendar_year; did you mean 'day'?",
            "4:29: unknown key 'request_per_unit'",
            "5:5: descriptor has empty key",
            "5:48: error loading config file: 'requests_per_unit' must be",
            "6:5: unknown key 'Shadow_mode'",
        ],
    );
    let found =
        refusal(&sources("bad", &["syntax.yaml", "many.yaml", "empty_file.yaml"]), NO_MERGE);
    let files: Vec<_> = found.iter().map(|fault| fault.split(':').next().unwrap()).collect();
    assert_eq!(files[..2], ["empty_file.yaml", "many.yaml"]);
    assert_eq!(files[files.len() - 1], "syntax.yaml");
    assert_eq!(files.len(), 8);
}

#[test]
fn every_bad_fixture_is_refused_and_every_good_one_loads() {
    let names = |kind| -> Vec<String> {
        let entries = std::fs::read_dir(fixtures(kind)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    for name in names("bad") {
        assert!(load(&sources("bad", &[&name]), NO_MERGE).is_err(), "{name}");
    }
    for name in names("ok") {
        let loaded = load(&sources("ok", &[&name]), NO_MERGE).unwrap();
        assert_eq!(loaded.warnings, [], "{name}");
    }
}

#[test]
fn one_fault_refuses_the_load_and_columns_count_characters() {
    let sources = [
        source("domain: good"),
        Source { name: "é.yaml".into(), text: "domain: d\nédition: 1".into() },
    ];
    let found = refusal(&sources, NO_MERGE);
    let expected = "é.yaml:2:1: unknown key 'édition'; expected one of domain, descriptors, \
                    defaults, store";
    assert_eq!(found, [expected]);
    let found = refusal(&[source("\u{feff}{é: 1, domain: ''}\r\n")], NO_MERGE);
    assert!(found[0].starts_with("a.yaml:1:2: unknown key 'é'"), "{found:?}");
    assert!(found[1].starts_with("a.yaml:1:16: config file cannot have empty domain"), "{found:?}");
}

#[test]
fn a_domain_of_more_than_1024_bytes_is_refused() {
    let source = |bytes: usize| Source {
        name: "long.yaml".to_owned(),
        text: format!("domain: {}\n", ".".repeat(bytes)).into_bytes(),
    };
    assert!(load(&[source(1024)], NO_MERGE).is_ok());
    let found = refusal(&[source(1025)], NO_MERGE);
    assert!(found[0].starts_with("long.yaml:1:9: the domain has 1025 bytes"), "{found:#?}");
}
