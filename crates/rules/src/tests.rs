//! The reference's contract as tables, checked with the fixtures in `tests/rules/`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::request::Entry;

mod beyond;
mod faults;
mod fields;
mod fingerprint;
mod holds;
mod hostile;
mod lookup;
mod oracle;
mod places;
mod schema;
mod stats;
mod trace;
mod version;
mod warnings;

const MERGE: Options = Options { merge_domains: true, ..NO_MERGE };
const NO_MERGE: Options = Options {
    merge_domains: false,
    stores: StoreNames::NONE,
    domain_stores: DomainStores::NONE,
    calendar_months: false,
};

fn fixtures(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/rules").join(kind)
}

/// Reads the named files of `tests/rules/<kind>`.
fn sources(kind: &str, names: &[&str]) -> Vec<Source> {
    let read = |name: &&str| Source {
        name: (*name).to_owned(),
        text: std::fs::read(fixtures(kind).join(name)).unwrap(),
    };
    names.iter().map(read).collect()
}

fn source(text: &str) -> Source {
    Source { name: "a.yaml".to_owned(), text: text.as_bytes().to_vec() }
}

/// Loads the named good fixtures.
fn rules(names: &[&str], options: Options) -> Rules {
    load(&sources("ok", names), options).unwrap().rules
}

/// Loads `text` and returns its rules and warnings.
fn compile(text: &str) -> Loaded {
    load(&[source(text)], NO_MERGE).unwrap()
}

/// Parses entries from `key=value` pairs, separated by spaces.
fn entries(text: &str) -> Vec<Entry<'_>> {
    let entry = |pair| {
        let (key, value) = str::split_once(pair, '=').unwrap();
        Entry { key, value }
    };
    text.split_whitespace().map(entry).collect()
}

fn find<'r>(rules: &'r Rules, domain: &str, descriptor: &str) -> Option<&'r Arc<Rule>> {
    match rules.find(domain, &entries(descriptor)) {
        Lookup::Rule(rule) => Some(rule),
        Lookup::NoRule | Lookup::UnknownDomain => None,
    }
}

/// Formats the limit of a descriptor: `5 SECOND`, `unlimited`, or `none`.
fn allowed(rules: &Rules, domain: &str, descriptor: &str) -> String {
    match find(rules, domain, descriptor).map(|rule| rule.allowance) {
        None => "none".to_owned(),
        Some(Allowance::Unlimited) => "unlimited".to_owned(),
        Some(Allowance::Limited(Limit { requests_per_unit, unit, .. })) => {
            format!("{requests_per_unit} {}", unit.name())
        }
    }
}

/// Returns all faults of a load that must fail, as `file:line:column: message`.
fn refusal(sources: &[Source], options: Options) -> Vec<String> {
    load(sources, options).unwrap_err().iter().map(ToString::to_string).collect()
}
