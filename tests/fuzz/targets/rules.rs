//! YAML to rules.

use ratelease_rules::request::Entry;
use ratelease_rules::{self as rules, Lookup, Options, Source};

use crate::run;

const WORDS: [&str; 26] = [
    "descriptors:",
    "- key: a",
    "value: '*'",
    "rate_limit:",
    "unit: minute",
    "requests_per_unit:",
    "unlimited: true",
    "replaces:",
    "name:",
    "shadow_mode: true",
    "share_threshold: true",
    "metadata:",
    "defaults:",
    "lease: {ttl: 1s}",
    "algorithm: token_bucket",
    "burst:",
    "shards: 8",
    "store: default",
    "store_from:",
    "&a",
    "*a",
    "<<: *a",
    "!!binary",
    "---\n",
    "\n  ",
    "{}",
];

#[test]
fn any_file_is_rules_or_faults_with_their_places() {
    run::mutated("rules", &WORDS, 6000, |text| {
        let source = Source { name: "f.yaml".into(), text: text.into() };
        match rules::load(std::slice::from_ref(&source), Options::default()) {
            Ok(loaded) => {
                look(&loaded.rules);
                let again = rules::load(&[source], Options::default()).unwrap().rules;
                assert_eq!(again.version(), loaded.rules.version());
                true
            }
            Err(faults) => {
                assert!(faults.count() > 0);
                for fault in faults.iter() {
                    assert!(fault.line > 0 && fault.column > 0, "{fault}");
                    let line = fault.to_string();
                    assert!(!line.contains(char::is_control), "{line:?}");
                }
                false
            }
        }
    });
}

/// Checks that each rule is found by its path, and that each lookup describes itself.
fn look(rules: &rules::Rules) {
    for rule in rules.iter() {
        assert_eq!(rules.by_path(&rule.path).map(|it| &it.path), Some(&rule.path));
        let mut steps = rule.path_parts();
        let domain = steps.next().unwrap_or_default();
        let entries: Vec<_> = steps
            .map(|step| step.split_once('_').unwrap_or((step, "")))
            .map(|(key, value)| Entry { key, value })
            .collect();
        let trace = rules.trace(domain, &entries);
        let found = match rules.find(domain, &entries) {
            Lookup::Rule(found) => Some(found),
            Lookup::NoRule | Lookup::UnknownDomain => None,
        };
        assert_eq!(trace.and_then(|trace| trace.rule).map(|it| &it.path), found.map(|it| &it.path));
        let _ = rule.stats_key(domain, &entries);
    }
    let _ = (rules.patterns(), rules.domains().count());
}
