//! Matching, by number of rules, and loading.

use std::cell::LazyCell;
use std::hint::black_box;

use criterion::{Criterion, criterion_group};
use ratelease_rules::request::Entry;
use ratelease_rules::{self as rules, Rules, Source};

criterion_group!(benches, find, wild, load);

/// Returns the text of the pattern with this number.
type Pattern = fn(usize) -> String;

/// `count` rules for single values, below one level, and one for all other values.
fn source(count: usize) -> Source {
    let mut text = String::from(
        "domain: d\ndescriptors:\n- key: tenant\n  descriptors:\n  - key: user\n    \
         rate_limit: {unit: minute, requests_per_unit: 1}\n",
    );
    for user in 0..count {
        text += &format!(
            "  - key: user\n    value: user-{user:08}\n    \
             rate_limit: {{unit: minute, requests_per_unit: 100}}\n"
        );
    }
    Source { name: "bench.yaml".into(), text: text.into() }
}

fn compile(source: &Source) -> Rules {
    let options = rules::Options::default();
    rules::load(std::slice::from_ref(source), options).expect("good rules").rules
}

fn find(criterion: &mut Criterion) {
    for count in [10, 10_000, 100_000] {
        let rules = LazyCell::new(|| compile(&source(count)));
        for (name, user) in [("value", "user-00000003"), ("key alone", "nobody")] {
            let entries =
                [Entry { key: "tenant", value: "shop" }, Entry { key: "user", value: user }];
            criterion.bench_function(&format!("find/{count} rules, by {name}"), |bencher| {
                bencher.iter(|| black_box(rules.find("d", black_box(&entries))));
            });
        }
    }
}

/// One level of `count` patterns, with texts from `pattern`.
fn wild_source(count: usize, pattern: Pattern) -> Source {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for at in 0..count {
        let (key, value) = ("path", pattern(at));
        text += &format!(
            "- {{key: {key}, value: '{value}', rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"
        );
    }
    Source { name: "bench.yaml".into(), text: text.into() }
}

/// A lookup among patterns: of a typical value, and of one of 60 KB, which none matches.
fn wild(criterion: &mut Criterion) {
    let kinds: [(&str, usize, Pattern); 6] = [
        ("3 prefixes", 3, |at| format!("/api/v{at}/*")),
        ("3 pieces", 3, |at| format!("*/v{at}/*")),
        ("1000 prefixes", 1000, |at| format!("/api/{at}/*")),
        ("1000 suffixes", 1000, |at| format!("*.{at}.example.com")),
        ("1000 pieces", 1000, |at| format!("*needle{at:04}*")),
        ("1000 of two pieces", 1000, |at| format!("*api*needle{at:04}*")),
    ];
    let long = "/api/items/0123456789/".repeat(2_800);
    for (name, count, pattern) in kinds {
        let rules = LazyCell::new(|| compile(&wild_source(count, pattern)));
        for (length, value) in [("20 B", "/api/items/012345678"), ("60 KB", &long)] {
            let entries = [Entry { key: "path", value }];
            criterion.bench_function(&format!("wild/{name}, {length}"), |bencher| {
                bencher.iter(|| black_box(rules.find("d", black_box(&entries))));
            });
        }
    }
}

fn load(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("load");
    group.sample_size(10);
    let source = LazyCell::new(|| source(100_000));
    group.bench_function("100 000 rules", |bencher| bencher.iter(|| compile(&source)));
    let text = String::from("domain: d\n") + &"descriptor: 1\n".repeat(300_000);
    let refused = Source { name: "bench.yaml".into(), text: text.into() };
    group.bench_function("300 000 unknown keys", |bencher| {
        bencher.iter(|| rules::load(std::slice::from_ref(&refused), rules::Options::default()));
    });
    group.finish();
}
