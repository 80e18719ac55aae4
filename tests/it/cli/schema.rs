//! `ratectl schema`, and the schema of rule files beside the loader.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{files, ran, root, run_in};

const SCHEMA: &str = "config/rules.schema.json";

/// Files of `tests/rules/bad` that are valid under the schema, with what only the loader finds.
const NOT_STRUCTURAL: [(&str, &str); 3] = [
    ("defaults_applied.yaml", "a default that a rule's algorithm does not allow"),
    ("duplicate_key.yaml", "two descriptors of the same key and value"),
    ("second_document.yaml", "a second document, which a schema does not see"),
];

/// All files that end in `.yaml` below a directory.
fn rule_files(dir: &str) -> Vec<String> {
    let (mut found, mut left) = (Vec::new(), vec![PathBuf::from(dir)]);
    while let Some(path) = left.pop() {
        let full = root().join(&path);
        if full.is_dir() {
            let names = fs::read_dir(&full).unwrap().map(|entry| entry.unwrap().file_name());
            left.extend(names.map(|name| path.join(name)));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path.to_str().unwrap().to_owned());
        }
    }
    found.sort();
    assert!(!found.is_empty(), "{dir} has no rule files");
    found
}

/// What a validator of Python says of each file: the reason for which it is not valid.
#[track_caller]
fn validated(dir: &Path, schema: &Path, files: &[String]) -> BTreeMap<String, Option<String>> {
    let mut python = Command::new("python3");
    python.arg("-B").arg(root().join("tests/rules/validate.py")).arg(schema).args(files);
    let ran = ran(python.current_dir(dir));
    assert_eq!(
        ran.ended(0).err,
        "",
        "python3 needs jsonschema and yaml: scripts/test installs them"
    );
    serde_json::from_str(&ran.out).expect("JSON")
}

#[test]
fn every_rule_file_that_loads_is_valid_and_those_with_structural_faults_are_not() {
    let schema = root().join(SCHEMA);
    let good = [rule_files("config"), rule_files("tests/rules/ok")].concat();
    for (file, fault) in validated(root(), &schema, &good) {
        assert_eq!(fault, None, "{file}");
    }
    let bad = validated(root(), &schema, &rule_files("tests/rules/bad"));
    let valid = bad.iter().filter(|(_, fault)| fault.is_none()).map(|(file, _)| file.as_str());
    let valid: Vec<_> = valid.filter_map(|file| file.rsplit('/').next()).collect();
    assert_eq!(valid, NOT_STRUCTURAL.map(|(file, _)| file));
}

#[test]
fn the_tool_prints_the_schema_of_the_repository() {
    let printed = run_in(root(), &["schema"], &[]);
    let written = fs::read_to_string(root().join(SCHEMA)).unwrap();
    assert_eq!(printed.ended(0).out, written);
    let schema: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
}

#[test]
fn a_key_that_is_misspelt_or_misplaced_is_found_where_the_loader_finds_it() {
    let limit = "{unit: Hour, requests_per_unit: 1}";
    let rules = |descriptor: &str| format!("domain: d\ndescriptors: [{descriptor}]\n");
    let good = rules(&format!("{{key: a, rate_limit: {limit}}}"));
    let cases = [
        ("good.yaml", good.clone(), None),
        ("misspelt.yaml", good.replace("rate_limit", "ratelimit"), Some("ratelimit")),
        ("misplaced.yaml", good.replace("key: a", "key: a, unit: hour"), Some("unit")),
        ("unit.yaml", good.replace("Hour", "fortnight"), Some("rate_limit")),
        ("without_unit.yaml", rules("{key: a, rate_limit: {name: b}}"), Some("rate_limit")),
        ("without_key.yaml", rules("{value: a}"), Some("'key' is a required property")),
        ("shared.yaml", rules("{key: a, value: b, share_threshold: true}"), Some("descriptors")),
        ("shared_good.yaml", rules("{key: a, value: b*, share_threshold: true}"), None),
        ("unlimited.yaml", rules("{key: a, rate_limit: {unlimited: true}}"), None),
        (
            "lease.yaml",
            rules("{key: a, rate_limit: {unit: day, requests_per_unit: 1, lease: {max: 0}}}"),
            Some("lease"),
        ),
        (
            "off.yaml",
            rules("{key: a, rate_limit: {unit: day, requests_per_unit: 1, lease: off}}"),
            None,
        ),
    ];
    let written: Vec<_> = cases.iter().map(|(name, text, _)| (*name, text.as_str())).collect();
    let dir = files(&written);
    let names: Vec<_> = cases.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let found = validated(dir.path(), &root().join(SCHEMA), &names);
    for (name, text, expected) in &cases {
        let fault = &found[*name];
        match expected {
            None => assert_eq!(fault, &None, "{name}: {text}"),
            Some(part) => {
                let fault = fault.as_deref().unwrap_or_else(|| panic!("{name} is valid: {text}"));
                assert!(fault.contains(part), "{name}: {fault}");
            }
        }
        // The schema is never stricter about these than the loader.
        let loads = run_in(dir.path(), &["check", "--strict", name], &[]).status == 0;
        assert_eq!(loads, expected.is_none(), "{name}: {text}");
    }
}
