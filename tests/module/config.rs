use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::stand::{Options, Rules, file, rule};
use crate::support::envoy::validate;
use crate::support::module::library;

fn options() -> (Rules, Options) {
    let rules = Rules::new(&file("checked", &[rule("path", 3, "")]));
    let options = Options::new("checked", &rules);
    (rules, options)
}

/// Checks that Envoy refuses the configuration and says these words.
fn refused(options: &Options, words: &[&str]) {
    let (is_valid, log) = options.validate();
    assert!(!is_valid, "{log}");
    for words in words {
        assert!(log.contains(words), "{words:?} in {log}");
    }
}

#[test]
fn a_configuration_is_checked_without_an_engine() {
    let (_rules, options) = options();
    let (is_valid, log) = options.validate();
    assert!(is_valid, "{log}");
    assert!(log.contains("ABI version v0.2.0 matched"), "{log}");
    assert!(!log.contains("within this process"), "no engine was started: {log}");
}

#[test]
fn every_fault_of_the_filter_is_told_with_its_place() {
    let (_rules, options) = options();
    let faulty = options.filter(json!({"stage": 11, "request_type": "x"}));
    refused(&faulty, &["stage: 11; expected 0 to 10", "request_type: \"x\"; expected internal"]);
}

#[test]
fn a_misspelt_name_of_the_filter_or_the_extension_is_told() {
    let (_rules, options) = options();
    let files = TempDir::new().unwrap();
    let bootstrap = options.bootstrap(files.path()).to_string();
    for name in ["filter_name", "extension_name"] {
        let written = |value: &str| format!("\"{name}\":\"{value}\"");
        assert!(bootstrap.contains(&written("ratelease")), "{bootstrap}");
        let misspelt = bootstrap.replace(&written("ratelease"), &written("ratelaese"));
        let (is_valid, log) = validate(&misspelt, &[]);
        assert!(!is_valid, "{log}");
        let fault = format!("{name}: \"ratelaese\"; the module has no other than ratelease");
        assert!(log.contains(&fault), "{log}");
    }
}

#[test]
fn faults_of_a_route_are_told_with_their_places() {
    let (_rules, mut options) = options();
    options.rate_limits = json!([{"actions": [{"source_cluster": {}}]}]);
    refused(&options, &["rate_limits[0].actions[0].source_cluster"]);
}

#[test]
fn settings_that_are_faulty_or_unknown_are_told() {
    let (_rules, options) = options();
    let faulty = options.set("DRAIN_TIMEOUT", "soon").set("REDIS_URLS", "x");
    refused(&faulty, &["DRAIN_TIMEOUT: expected", "REDIS_URLS: no setting has this name"]);
}

#[test]
fn a_secret_in_the_extension_is_refused_and_not_repeated() {
    let (_rules, options) = options();
    let url = "redis://:hunter2@127.0.0.1:1";
    for (name, value) in [("KEY_SECRET", "hunter2"), ("REDIS_URL", url)] {
        let (is_valid, log) = options.clone().set(name, value).validate();
        assert!(!is_valid && !log.contains("hunter2"), "{log}");
        let fault = format!("{name}: a secret in extension_config shows in Envoy's /config_dump");
        assert!(log.contains(&fault) && log.contains(&format!("{name}_FILE")), "{log}");
    }
    let files = TempDir::new().unwrap();
    let bootstrap = options.bootstrap(files.path()).to_string();
    let (is_valid, log) = validate(&bootstrap, &[("KEY_SECRET", "hunter2")]);
    assert!(is_valid, "{log}");
}

#[test]
fn two_extensions_have_the_same_settings() {
    let (_rules, options) = options();
    for (timeout, expected) in [("1s", true), ("2s", false)] {
        let files = TempDir::new().unwrap();
        let mut bootstrap = options.clone().set("DRAIN_TIMEOUT", "1s").bootstrap(files.path());
        let mut second = bootstrap["bootstrap_extensions"][0].clone();
        second["typed_config"]["extension_config"]["value"]["DRAIN_TIMEOUT"] = json!(timeout);
        bootstrap["bootstrap_extensions"].as_array_mut().unwrap().push(second);
        let (is_valid, log) = validate(&bootstrap.to_string(), &[]);
        assert_eq!(is_valid, expected, "{log}");
        assert_eq!(log.contains("one Envoy has one engine"), !expected, "{log}");
    }
}

/// The module with some of its bytes replaced by as many others.
fn altered(from: &str, to: &str) -> (TempDir, std::path::PathBuf) {
    assert_eq!(from.len(), to.len());
    let directory = TempDir::new().unwrap();
    let mut bytes = std::fs::read(library()).unwrap();
    let is_there = |at: &usize| bytes[*at..].starts_with(from.as_bytes());
    let places: Vec<_> = (0..bytes.len()).filter(is_there).collect();
    assert!(!places.is_empty(), "the module has no {from}");
    for place in places {
        bytes[place..place + to.len()].copy_from_slice(to.as_bytes());
    }
    let path = directory.path().join("libratelease.so");
    std::fs::write(&path, bytes).unwrap();
    (directory, path)
}

fn validate_with(options: &Options, library_at: &Path) -> (bool, String) {
    let files = TempDir::new().unwrap();
    let text = options.bootstrap(files.path()).to_string();
    let (from, to) = (library(), library_at.to_owned());
    validate(&text.replace(from.to_str().unwrap(), to.to_str().unwrap()), &[])
}

#[test]
fn a_module_of_another_version_of_the_interface_is_told() {
    let (_rules, options) = options();
    let (_directory, library) = altered("v0.2.0\0", "v0.1.0\0");
    let (_, log) = validate_with(&options, &library);
    assert!(log.contains("ABI version v0.1.0 is deprecated"), "{log}");
}

#[test]
fn a_module_that_lacks_a_hook_is_refused() {
    let (_rules, options) = options();
    let hook = "envoy_dynamic_module_on_http_filter_scheduled";
    let (_directory, library) = altered(hook, &hook.replace("scheduled", "schedulex"));
    let (is_valid, log) = validate_with(&options, &library);
    assert!(!is_valid && log.contains(hook), "{log}");
}
