//! The fingerprint of a domain changes with all that names its counts, and with nothing else.

use super::*;

const LIMIT: &str = "unit: minute, requests_per_unit: 5";

fn fingerprint(text: &str) -> Option<u64> {
    let source = Source { name: "a.yaml".to_owned(), text: text.as_bytes().to_vec() };
    load(&[source], NO_MERGE).unwrap().rules.fingerprint("d")
}

fn of(descriptors: &str) -> u64 {
    fingerprint(&format!("domain: d\ndescriptors:\n{descriptors}")).unwrap()
}

fn of_rule(options: &str) -> u64 {
    of(&format!("- {{key: a, {options}}}\n"))
}

#[test]
fn amounts_and_answers_do_not_change_it() {
    let own = of_rule(&format!("rate_limit: {{{LIMIT}}}"));
    for options in [
        "rate_limit: {unit: minute, requests_per_unit: 7}",
        "rate_limit: {unit: second, unit_multiplier: 60, requests_per_unit: 5}",
        &format!("rate_limit: {{{LIMIT}, failure_mode: deny, lease: off}}"),
        &format!("rate_limit: {{{LIMIT}}}, shadow_mode: true, metadata: {{x: y}}"),
        &format!("detailed_metric: true, rate_limit: {{{LIMIT}}}"),
    ] {
        assert_eq!(of_rule(options), own, "{options}");
    }
    let two = ["- {key: a}\n", "- {key: b, value: c}\n"];
    assert_eq!(of(&two.concat()), of(&[two[1], two[0]].concat()), "the order of the file");
}

#[test]
fn whatever_names_a_count_changes_it() {
    let rules = [
        "- {key: a}\n".to_owned(),
        "- {key: b}\n".to_owned(),
        "- {key: a, value: b}\n".to_owned(),
        "- {key: a, descriptors: [{key: b}]}\n".to_owned(),
        "- {key: a}\n- {key: b}\n".to_owned(),
        format!("- {{key: a, rate_limit: {{{LIMIT}}}}}\n"),
        "- {key: a, rate_limit: {unlimited: true}}\n".to_owned(),
        "- {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}\n".to_owned(),
        format!("- {{key: a, rate_limit: {{{LIMIT}, algorithm: sliding_log}}}}\n"),
        format!("- {{key: a, rate_limit: {{{LIMIT}, name: n}}}}\n"),
        format!("- {{key: a, rate_limit: {{{LIMIT}, replaces: [{{name: n}}]}}}}\n"),
        format!("- {{key: a, rate_limit: {{{LIMIT}, shards: 2}}}}\n"),
        format!("- {{key: a, rate_limit: {{{LIMIT}, settle: true}}}}\n"),
        format!("- {{key: a, value: b*, rate_limit: {{{LIMIT}}}}}\n"),
        format!("- {{key: a, value: b*, share_threshold: true, rate_limit: {{{LIMIT}}}}}\n"),
        "- {key: a, value: b*}\n- {key: a, value: '*c'}\n".to_owned(),
        "- {key: a, value: '*c'}\n- {key: a, value: b*}\n".to_owned(),
    ];
    let all = rules.map(|rules| (of(&rules), rules));
    for (at, (one, text)) in all.iter().enumerate() {
        let same = all[..at].iter().find(|(other, _)| other == one);
        assert_eq!(same, None, "{text}");
    }
}

#[test]
fn it_is_fixed_so_that_pods_of_two_releases_agree() {
    assert_eq!(fingerprint("domain: other"), None);
    let rules = format!("- {{key: a, rate_limit: {{{LIMIT}}}}}\n");
    assert_eq!(of(&rules), 4_719_941_727_995_668_764);
}
