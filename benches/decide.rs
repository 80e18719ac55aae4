//! A decision in process, on the embedded store: one hot key, and many keys in turn.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group};
use ratelease::key::{KeyHasher, Part};
use ratelease::limiter::{Limiter, Options};
use ratelease::request::{Descriptor, Entry, Request};
use ratelease::rules::{self, Rules, Source};
use ratelease::store::memory::MemoryStore;
use ratelease::time::Clock;
use ratelease::verdict::Modes;
use smallvec::smallvec;

criterion_group!(benches, key, decide);

const RULES: &str = "
domain: d
descriptors:
  - key: tenant
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 4000000000}
";

fn compiled() -> Rules {
    let source = Source { name: "bench.yaml".into(), text: RULES.into() };
    rules::load(&[source], rules::Options { merge_domains: false }).expect("good rules").rules
}

fn request(user: &str) -> Request<'_> {
    let tenant = Entry { key: "tenant", value: "shop" };
    let user = Entry { key: "user", value: user };
    let descriptor = Descriptor { entries: smallvec![tenant, user], ..Descriptor::default() };
    Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 }
}

fn key(criterion: &mut Criterion) {
    let hasher = KeyHasher::new("secret");
    let long = "x".repeat(20_000);
    for (name, value) in [("short", "user-12345678"), ("20 kB", long.as_str())] {
        criterion.bench_function(&format!("key/{name} value"), |bencher| {
            bencher.iter(|| {
                let parts = [("tenant", Part::Value("shop")), ("user", Part::Value(value))];
                hasher.key("d", 60, black_box(parts).into_iter())
            });
        });
    }
}

fn decide(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("one");
    let options = Options {
        max_wait: Duration::from_secs(1),
        buffer_bytes_max: 64 << 20,
        pod: 0,
        hasher: KeyHasher::new("secret"),
        modes: Modes::default(),
        unix_start: Duration::ZERO,
    };
    let rules = compiled();
    let limiter = Limiter::new(Arc::new(MemoryStore::system()), Clock::start(), options);
    let users: Vec<_> = (0..10_000).map(|user| format!("user-{user:08}")).collect();
    for (name, users) in [("one hot key", &users[..1]), ("10 000 keys in turn", &users[..])] {
        let mut next = users.iter().cycle();
        criterion.bench_function(&format!("decide/{name}"), |bencher| {
            bencher.iter(|| {
                let request = request(next.next().expect("a cycle"));
                runtime.block_on(limiter.decide(&rules, &request)).expect("the store is here")
            });
        });
    }
}
