//! The parts of a decision: match, key, take.

use std::cell::LazyCell;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group};
use ratelease_engine::buffer::{Buffer, LeaseKind, LeasedTokens, Refill, Take};
use ratelease_engine::time::Time;
use ratelease_rules::key::{KeyHasher, KeyPart};
use ratelease_rules::request::Entry;

use super::{compile, wide};

criterion_group!(benches, find, key, take);

fn find(criterion: &mut Criterion) {
    for count in [10, 10_000, 1_000_000] {
        let rules = LazyCell::new(|| compile(&wide(count)));
        for (name, user) in [("the first", "user-00000003"), ("none", "user-99999999")] {
            let entries =
                [Entry { key: "tenant", value: "shop-0" }, Entry { key: "user", value: user }];
            criterion.bench_function(&format!("match/{count} rules, {name}"), |bencher| {
                bencher.iter(|| black_box(rules.find("d", black_box(&entries))));
            });
        }
    }
}

fn key(criterion: &mut Criterion) {
    let hasher = KeyHasher::new("secret");
    let names: Vec<String> = (0..8).map(|entry| format!("part_{entry}")).collect();
    for count in [1, 2, 4, 8] {
        criterion.bench_function(&format!("key/{count} entries"), |bencher| {
            bencher.iter(|| {
                let parts = names[..count].iter().map(|key| (key.as_str(), VALUE));
                hasher.key("d", 60, black_box(parts))
            });
        });
    }
    let long = "x".repeat(20_000);
    criterion.bench_function("key/20 kB value", |bencher| {
        bencher
            .iter(|| hasher.key("d", 60, black_box([("user", KeyPart::Value(&long))]).into_iter()));
    });
}

const VALUE: KeyPart<'_> = KeyPart::Value("user-12345678");

/// Takes from a buffer that holds enough. It is refilled when it does not, once in a million takes.
fn take(criterion: &mut Criterion) {
    const TOKENS: u64 = 1_000_000;
    let (now, ends) = (Time::default(), Time::default() + Duration::from_secs(60));
    let lease = LeasedTokens { tokens: TOKENS, epoch: 1, starts: now, ends };
    let refill = Refill {
        lease,
        left: u64::MAX,
        overdrawn: false,
        is_sure: true,
        known_until: ends,
        resets: ends,
        fresh_until: ends,
    };
    let mut buffer = Buffer::default();
    criterion.bench_function("take/from a buffer", |bencher| {
        bencher.iter(|| match buffer.take(1, true, LeaseKind::Windowed, black_box(now)) {
            Take::Taken(lease) => lease.tokens,
            Take::Short | Take::Denied => {
                buffer.refill(refill, LeaseKind::Windowed, now);
                0
            }
        });
    });
}
