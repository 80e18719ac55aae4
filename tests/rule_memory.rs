//! Memory of a rule for one value, in force and during loading. A test binary of its own, since it
//! counts all allocations.
#![cfg(test)]
#![allow(clippy::unwrap_used)]

use std::fmt::Write;

use ratelease_rules::{self as rules, Options, Source};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const RULES: usize = 10_000;
/// Bytes of a rule in force: itself, its path, its value in the tree, and the references to each.
const IN_FORCE_MAX: usize = 320;
/// Bytes of a rule while its file is loaded: itself, its YAML as a tree, and its share of the state
/// kept until all files are read. The file's text, some 94 bytes, is added to that.
const LOADING_MAX: usize = 1200;

#[test]
fn a_rule_for_a_value_takes_few_bytes_in_force_and_not_many_more_while_it_is_loaded() {
    let mut text = "domain: d\ndescriptors:\n- key: tenant\n  descriptors:\n".to_owned();
    for user in 0..RULES {
        writeln!(text, "  - key: user\n    value: user-{user:08}").unwrap();
        writeln!(text, "    rate_limit: {{unit: minute, requests_per_unit: 100}}").unwrap();
    }
    let sources = [Source { name: "a.yaml".to_owned(), text: text.into() }];
    let profiler = dhat::Profiler::builder().testing().build();
    let loaded = rules::load(&sources, Options::default()).unwrap();
    let heap = dhat::HeapStats::get();
    assert_eq!(loaded.rules.len(), RULES);
    let (in_force, loading) = (heap.curr_bytes / RULES, heap.max_bytes / RULES);
    println!("a rule takes {in_force} bytes in force, {loading} while it is loaded");
    assert!(in_force <= IN_FORCE_MAX, "{in_force} bytes a rule");
    assert!(loading <= LOADING_MAX, "{loading} bytes a rule while it is loaded");
    drop(profiler);
}
