//! Matching, by number of rules, and loading.

use std::cell::LazyCell;
use std::hint::black_box;

use criterion::{Criterion, criterion_group};
use ratelease::request::Entry;
use ratelease::rules::{self, Rules, Source};

criterion_group!(benches, find, load);

/// `count` rules for a value each, below one level, and one for all other values.
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
    let options = rules::Options { merge_domains: false };
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

fn load(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("load");
    group.sample_size(10);
    let source = LazyCell::new(|| source(100_000));
    group.bench_function("100 000 rules", |bencher| bencher.iter(|| compile(&source)));
    group.finish();
}
