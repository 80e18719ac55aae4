//! The cost of counting the hottest keys in a decision.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group};
use ratelease_cli::settings;
use ratelease_engine::time::{Clock, Time};
use ratelease_engine::verdict::{
    AppliedLimit, Code, Counted, Decision, DecisionSource, Status, Verdict,
};
use ratelease_rules::key::{Key, KeyHasher};
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{Limit, Unit};
use ratelease_server::hot_keys::HotKeys;
use smallvec::smallvec;

criterion_group!(benches, note);

/// Number of keys in turn: one, as many as have counters, and far more.
const KEYS: [usize; 3] = [1, 100, 100_000];

fn note(criterion: &mut Criterion) {
    let options = |sample, values| settings::HotKeys { is_on: true, sample, values };
    let every = NonZeroU32::MIN;
    let sample = NonZeroU32::new(4).expect("the default of HOT_KEYS_SAMPLE");
    let mut group = criterion.benchmark_group("hot/note");
    group.throughput(Throughput::Elements(1));
    for (name, options) in [
        ("off", None),
        ("sampled", Some(options(sample, false))),
        ("sampled_values", Some(options(sample, true))),
        ("every", Some(options(every, false))),
    ] {
        let make = |options| HotKeys::new(options, Clock::start());
        let hot = options.map(make).unwrap_or_default();
        for count in KEYS {
            let verdicts = verdicts(count);
            let mut turn = verdicts.iter().cycle();
            let request = request();
            group.bench_function(format!("{name}/{count}"), |bencher| {
                bencher.iter(|| {
                    let verdict = turn.next().expect("a cycle");
                    let (took, now) = (Duration::ZERO, Time::default());
                    hot.note(black_box(&Decision { request: &request, verdict, took, now }));
                });
            });
        }
    }
    group.finish();
}

fn request() -> Request<'static> {
    let entries = smallvec![Entry { key: "user", value: "user-00000001" }];
    let descriptor = Descriptor { entries, ..Descriptor::default() };
    Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 1 }
}

/// One verdict for each key; every fourth is a denial.
fn verdicts(count: usize) -> Vec<Verdict<'static>> {
    let hasher = KeyHasher::new("bench");
    let verdict = |n: u64| {
        let key: Key = hasher.key("d", n, std::iter::empty());
        let over = n.is_multiple_of(4);
        let code = if over { Code::OverLimit } else { Code::Ok };
        let status = Status {
            code,
            limit: Some(AppliedLimit { limit: Limit::fixed_window(1, Unit::Minute), rule: None }),
            remaining: 0,
            reset_after: None,
            counted: Some(Counted { key, hits: 1, fitted: 0, over, how: DecisionSource::Local }),
        };
        Verdict {
            code,
            statuses: smallvec![status],
            tightest: Some(0),
            shadowed: false,
            metadata: None,
            started: None,
        }
    };
    (0..count as u64).map(verdict).collect()
}
