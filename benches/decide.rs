//! A decision in this process, on the embedded store: by entries, rules, keys and threads.

pub(crate) mod frame;
pub(crate) mod parts;

use std::cell::{Cell, LazyCell, RefCell};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group};
use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::store::StoreError;
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{self as rules, Rules, SETTLE_KEY, Source};
use smallvec::smallvec;
use tokio::runtime::Runtime;

criterion_group!(benches, by_entries, by_holds, by_keys, by_replaced, by_rules, by_threads);

/// Maximum number of rules for single values in one source: a source is at most 16 MiB.
const SOURCE_RULES_MAX: usize = 100_000;

/// Decisions between two turns of the runtime, in which leases are fetched and returned.
const TURN: usize = 1024;

thread_local! {
    static DECIDED: Cell<usize> = const { Cell::new(0) };
    /// Time is an argument of a decision: it is read once per turn.
    static NOW: Cell<Time> = const { Cell::new(Time::from_nanos(0)) };
}

/// The inputs of a decision, and a runtime for the leases behind it.
struct Bench {
    runtime: Runtime,
    limiter: Limiter,
    rules: Rules,
}

/// The names of `count` users.
pub(crate) fn users(count: usize) -> Vec<String> {
    (0..count).map(|user| format!("user-{user:08}")).collect()
}

/// A limit on `user`, below `levels` levels, that no bench reaches.
fn deep(levels: usize) -> Vec<Source> {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for level in 0..levels {
        let indent = "    ".repeat(level);
        text += &format!("{indent}- key: part_{level}\n{indent}  descriptors:\n");
    }
    let indent = "    ".repeat(levels);
    text += &format!(
        "{indent}- key: user\n{indent}  rate_limit: {{unit: year, requests_per_unit: 4000000000}}\n"
    );
    vec![source("deep.yaml", text)]
}

/// Rules like [`deep`], with `count` additional rules for single values, under (tenant, shop-0),
/// (tenant, shop-1) and so on; all are for user-00000000 and up.
pub(crate) fn wide(count: usize) -> Vec<Source> {
    let sources = count.div_ceil(SOURCE_RULES_MAX).max(1);
    let of_tenant = |tenant: usize| {
        let mut text = format!(
            "domain: d\ndescriptors:\n- key: tenant\n  value: shop-{tenant}\n  descriptors:\n"
        );
        let first = tenant * SOURCE_RULES_MAX;
        for user in first..count.min(first + SOURCE_RULES_MAX) {
            text += &format!(
                "  - key: user\n    value: user-{user:08}\n    \
                 rate_limit: {{unit: year, requests_per_unit: 4000000000}}\n"
            );
        }
        source(&format!("wide-{tenant}.yaml"), text)
    };
    (0..sources).map(of_tenant).collect()
}

fn source(name: &str, text: String) -> Source {
    Source { name: name.into(), text: text.into() }
}

pub(crate) fn compile(sources: &[Source]) -> Rules {
    rules::load(sources, rules::Options { merge_domains: true, ..Default::default() })
        .expect("good rules")
        .rules
}

fn request<'a>(entries: &[Entry<'a>]) -> Request<'a> {
    let descriptor = Descriptor { entries: entries.into(), ..Descriptor::default() };
    Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 }
}

fn by_entries(criterion: &mut Criterion) {
    let names: Vec<String> = (0..8).map(|level| format!("part_{level}")).collect();
    for count in [1, 2, 4, 8] {
        let bench = LazyCell::new(|| Bench::new(&deep(count - 1)));
        let mut entries: Vec<_> =
            names[..count - 1].iter().map(|key| Entry { key, value: "all" }).collect();
        entries.push(Entry { key: "user", value: "user-00000000" });
        let request = request(&entries);
        criterion.bench_function(&format!("decide/entries/{count}"), |bencher| {
            let _entered = bench.runtime.enter();
            bencher.iter(|| bench.decide(black_box(&request)));
        });
    }
}

/// Measures two plain decisions, and a request that holds 3 hits until its end reports that it
/// cost 2. Ids are as long as `x-request-id`. They are few, so that the requests stay in the core's
/// caches like a request that was just read.
fn by_holds(criterion: &mut Criterion) {
    let ids: Vec<_> = (0..64).map(|n| format!("{n:08x}-3f0a-4c51-9d2e-6b1d7c0a94e5")).collect();
    let named =
        |id| [Entry { key: "user", value: "user-00000000" }, Entry { key: "id", value: id }];
    let mark = Entry { key: SETTLE_KEY, value: "1" };
    let of_hits = |entries: &[Entry<'static>], hits| {
        let descriptor = Descriptor {
            entries: entries.into(),
            hits_addend: Some(hits),
            ..Descriptor::default()
        };
        Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 }
    };
    let ids: &'static [String] = ids.leak();
    let pairs = ids.iter().map(|id| {
        let [user, id] = named(id.as_str());
        (of_hits(&[user, id], 3), of_hits(&[user, id, mark], 2))
    });
    let pairs: Vec<_> = pairs.collect();
    let limit = "unit: year, requests_per_unit: 4000000000";
    let text = format!(
        "domain: d\ndescriptors:\n- key: user\n  descriptors: [{{key: id, rate_limit: {{{limit}, \
         hold: {{for: 2m}}}}}}]\n"
    );
    let plain = two_entries("part_0", "all", "user-00000000");
    let without = LazyCell::new(|| Bench::new(&deep(1)));
    let two_without = || (0..2).for_each(|_| without.decide(black_box(&plain)));
    criterion.bench_function("decide/holds/two without", |bencher| {
        let _entered = without.runtime.enter();
        bencher.iter(two_without);
    });
    let holding = LazyCell::new(|| Bench::new(&[source("holds.yaml", text)]));
    let next = RefCell::new(pairs.iter().cycle());
    let start_and_end = || {
        let (start, end) = next.borrow_mut().next().expect("a cycle");
        holding.decide(start);
        holding.decide(end);
    };
    criterion.bench_function("decide/holds/start and end", |bencher| {
        let _entered = holding.runtime.enter();
        bencher.iter(start_and_end);
    });
    let ratio = paired(
        || {
            let _entered = without.runtime.enter();
            (0..PAIRED).for_each(|_| two_without());
        },
        || {
            let _entered = holding.runtime.enter();
            (0..PAIRED).for_each(|_| start_and_end());
        },
    );
    println!(
        "decide/holds: start and end take {ratio:.2} times two without (median of {PAIRS} pairs)"
    );
}

/// Pairs that are compared.
const PAIRS: usize = 2001;

/// Calls in each half of a pair: about a quarter of a millisecond.
const PAIRED: usize = 256;

/// How many times as long `second` takes as `first`: the median over pairs that run one directly
/// after the other, since the speed of a shared core changes by a factor of two between seconds.
#[allow(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn paired(first: impl Fn(), second: impl Fn()) -> f64 {
    let timed = |run: &dyn Fn()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    let ratio = |_| {
        let of_first = timed(&first);
        timed(&second) / of_first
    };
    let mut ratios: Vec<f64> = (0..PAIRS).map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios[PAIRS / 2]
}

fn by_keys(criterion: &mut Criterion) {
    for count in [1, 10_000, 100_000] {
        let bench = LazyCell::new(|| Bench::new(&deep(1)));
        let users = users(count);
        let requests: Vec<_> =
            users.iter().map(|user| two_entries("part_0", "all", user)).collect();
        let mut next = requests.iter().cycle();
        criterion.bench_function(&format!("decide/keys/{count}"), |bencher| {
            let _entered = bench.runtime.enter();
            // Every key gets a buffer.
            requests.iter().for_each(|request| bench.decide(request));
            bencher.iter(|| bench.decide(next.next().expect("a cycle")));
        });
    }
}

/// A request of 256 descriptors under a rule that replaces this many names, none of them its own.
fn by_replaced(criterion: &mut Criterion) {
    let users = users(256);
    let entries = users.iter().map(|user| [Entry { key: "user", value: user }]);
    let descriptors = entries.map(|it| Descriptor { entries: it[..].into(), ..Default::default() });
    let request = Request { domain: "d", descriptors: descriptors.collect(), hits_addend: 0 };
    for count in [0, 200] {
        let names: Vec<_> = (0..count).map(|at| format!("{{name: other-rule-{at:03}}}")).collect();
        let text = format!(
            "domain: d\ndescriptors:\n- key: user\n  rate_limit: {{name: per-user-rule, \
             unit: year, requests_per_unit: 4000000000, replaces: [{}]}}\n",
            names.join(", ")
        );
        let bench = LazyCell::new(|| Bench::new(&[source("replaces.yaml", text)]));
        criterion.bench_function(&format!("decide/256 descriptors, replaced/{count}"), |bencher| {
            let _entered = bench.runtime.enter();
            bencher.iter(|| bench.decide(black_box(&request)));
        });
    }
}

fn by_rules(criterion: &mut Criterion) {
    for count in [10, 10_000, 1_000_000] {
        let bench = LazyCell::new(|| Bench::new(&wide(count)));
        let request = two_entries("tenant", "shop-0", "user-00000003");
        criterion.bench_function(&format!("decide/rules/{count}"), |bencher| {
            let _entered = bench.runtime.enter();
            bencher.iter(|| bench.decide(black_box(&request)));
        });
    }
}

/// All threads use the same keys, in different orders; on one key, they compete for its lock. The
/// time is the total divided by the decisions of all threads: half of one thread's where two do not
/// hinder each other.
fn by_threads(criterion: &mut Criterion) {
    let users = users(10_000);
    let requests: Vec<_> = users.iter().map(|user| two_entries("part_0", "all", user)).collect();
    let mut group = criterion.benchmark_group("decide/threads");
    group.throughput(Throughput::Elements(1));
    for (keys, threads) in [(10_000, 1), (10_000, 2), (1, 1), (1, 2)] {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let bench = LazyCell::new(|| Bench::on(builder.worker_threads(1), &deep(1)));
        group.bench_function(format!("{threads}, keys {keys}"), |bencher| {
            bencher.iter_custom(|iterations| {
                let each = usize::try_from(iterations).expect("a count").div_ceil(threads);
                bench.run(&requests[..keys], threads, each)
            });
        });
    }
    group.finish();
}

fn two_entries<'a>(key: &'a str, value: &'a str, user: &'a str) -> Request<'a> {
    request(&[Entry { key, value }, Entry { key: "user", value: user }])
}

// === impl Bench ===

impl Bench {
    /// Call it on the thread that decides.
    fn new(sources: &[Source]) -> Self {
        Self::on(&mut tokio::runtime::Builder::new_current_thread(), sources)
    }

    fn on(runtime: &mut tokio::runtime::Builder, sources: &[Source]) -> Self {
        let options = Options {
            wait_min: Duration::from_secs(1),
            hasher: KeyHasher::new("secret"),
            ..Options::default()
        };
        Self {
            runtime: runtime.enable_all().build().expect("a runtime"),
            limiter: Limiter::new(Arc::new(MemoryStore::system()), Clock::start(), options),
            rules: compile(sources),
        }
    }

    /// Makes one decision. Nearly all are made at once; otherwise the runtime, which has to be
    /// entered, waits for a lease.
    fn decide(&self, request: &Request<'_>) {
        let decided = DECIDED.replace(DECIDED.get().wrapping_add(1));
        if decided.is_multiple_of(TURN) {
            self.runtime.block_on(tokio::task::yield_now());
            NOW.set(self.limiter.clock().now());
        }
        let admit = || Ok::<_, StoreError>(());
        let decided =
            pin!(self.limiter.decide(&self.rules, request, NOW.get(), None, Owner::UNKNOWN, admit));
        let decided = self.when_polled(decided);
        black_box(decided.expect("the store is here"));
    }

    /// Polls `future` in place, as a connection does. If it waits, the runtime runs meanwhile.
    fn when_polled<F: Future>(&self, mut future: Pin<&mut F>) -> F::Output {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => self.runtime.block_on(future),
        }
    }

    /// The time of `threads` threads for `each` decisions per thread.
    #[allow(clippy::disallowed_methods, reason = "a bench reads the clock")]
    fn run(&self, requests: &[Request<'_>], threads: usize, each: usize) -> Duration {
        let start = Instant::now();
        thread::scope(|scope| {
            for at in 0..threads {
                let from = at * requests.len() / threads;
                let mine = requests.iter().cycle().skip(from).take(each);
                scope.spawn(move || {
                    let _entered = self.runtime.enter();
                    mine.for_each(|request| self.decide(request));
                });
            }
        });
        start.elapsed()
    }
}
