//! The limiter over the embedded store, in virtual time.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::{Descriptor, Entry};
use ratelease_rules::{self as rules, FailureMode, Limit, Source, Unit};
use smallvec::smallvec;

use super::*;
use crate::lease::BreakerState;
use crate::store::memory::MemoryStore;
use crate::store::{GrantFuture, Heartbeat, PodCountFuture};
use crate::verdict::{Code, Modes};

mod algorithms;
mod bursts;
mod calendar;
mod costs_and_slots;
mod demand;
mod ends;
mod failure_mode;
mod heartbeats;
mod holds;
mod leases;
mod memory;
mod next_window;
mod overrides;
mod pools;
mod replaced;
mod settlements;
mod slots;
mod stores;
mod transaction;

/// The largest number of keys in the store.
const STORE_KEYS_MAX: usize = 10_000;

/// Bytes of a pod's buffers.
const BUFFER_BYTES_MAX: usize = 8 << 20;

/// The longest time that a request waits for a lease.
const MAX_WAIT: Duration = Duration::from_millis(5);

/// Half a minute into a window of each of the units above.
const START: Duration = Duration::from_secs(365 * 86_400 * 50 + 30);

/// The embedded store, one round trip away. It counts its asks, and fails or hangs on demand.
struct Distant {
    memory: MemoryStore,
    round_trip: Mutex<Duration>,
    /// Added to the round trip for limits of a day, which are on a shard of their own.
    days_late: Mutex<Duration>,
    /// Added to the round trip of what only states slots.
    statements_late: Mutex<Duration>,
    asks: AtomicUsize,
    /// The number of asks for pools among them.
    pool_asks: AtomicUsize,
    /// Asks that a request waits for.
    awaited_asks: AtomicUsize,
    hangs: AtomicBool,
    fails: AtomicBool,
    fails_for_days: AtomicBool,
    /// Another program's values lie under the keys of limits of a day.
    has_foreign_days: AtomicBool,
    panics: AtomicBool,
    panics_in_requests: AtomicBool,
}

impl Store for Distant {
    fn shard(&self, ask: &Ask) -> usize {
        assert!(!self.panics_in_requests.load(Ordering::Relaxed), "by the test");
        usize::from(ask.limit.unit == Unit::Day)
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        Box::pin(async move {
            self.asks.fetch_add(1, Ordering::Relaxed);
            self.pool_asks.fetch_add(usize::from(ask.pool.is_some()), Ordering::Relaxed);
            let is_awaited = ask.purpose == Purpose::Request;
            self.awaited_asks.fetch_add(usize::from(is_awaited), Ordering::Relaxed);
            let one_way = *self.round_trip.lock() / 2;
            tokio::time::sleep(one_way).await;
            let is_daily = ask.limit.unit == Unit::Day;
            if is_daily {
                let late = *self.days_late.lock();
                tokio::time::sleep(late).await;
            }
            if ask.slots.is_some() && ask.want == 0 {
                let late = *self.statements_late.lock();
                tokio::time::sleep(late).await;
            }
            assert!(!self.panics.load(Ordering::Relaxed), "by the test");
            if self.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.fails.load(Ordering::Relaxed) {
                return Err(StoreError::Unreachable("gone".into()));
            }
            let reply = if is_daily && self.fails_for_days.load(Ordering::Relaxed) {
                Err(StoreError::Unreachable("half of it is gone".into()))
            } else if is_daily && self.has_foreign_days.load(Ordering::Relaxed) {
                Err(StoreError::ForeignValue)
            } else {
                self.memory.take(ask)
            };
            tokio::time::sleep(one_way).await;
            reply
        })
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.memory.beat(beat)
    }

    fn describe(&self) -> String {
        "distant".into()
    }
}

struct Rig {
    store: Arc<Distant>,
    clock: Clock,
    rules: Arc<Rules>,
}

impl Rig {
    fn new(yaml: &str) -> Self {
        Self::slow(yaml, Duration::from_micros(500))
    }

    /// A fleet with this round trip to the store.
    fn slow(yaml: &str, round_trip: Duration) -> Self {
        Self::on(Clock::start(), yaml, round_trip)
    }

    /// A fleet with this round trip to the store; store and pods follow this clock.
    fn on(clock: Clock, yaml: &str, round_trip: Duration) -> Self {
        let wall = Arc::new(move || START + clock.now().since(Time::default()));
        let store = Distant {
            memory: MemoryStore::new(wall, STORE_KEYS_MAX),
            round_trip: Mutex::new(round_trip),
            days_late: Mutex::default(),
            statements_late: Mutex::default(),
            asks: AtomicUsize::new(0),
            pool_asks: AtomicUsize::new(0),
            awaited_asks: AtomicUsize::new(0),
            hangs: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            fails_for_days: AtomicBool::new(false),
            has_foreign_days: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            panics_in_requests: AtomicBool::new(false),
        };
        Self { store: Arc::new(store), clock, rules: Arc::new(compile(yaml)) }
    }

    fn pod(&self) -> Limiter {
        self.pod_of(BUFFER_BYTES_MAX)
    }

    /// A pod with this number.
    fn pod_numbered(&self, pod: u64) -> Limiter {
        let unix_start = START;
        let options = Options { pod, wait_min: MAX_WAIT, unix_start, ..Options::default() };
        Limiter::new(Arc::clone(&self.store) as _, self.clock, options)
    }

    /// A pod whose buffers take this many bytes.
    fn pod_of(&self, buffer_bytes_max: usize) -> Limiter {
        self.pod_on(Arc::clone(&self.store) as _, buffer_bytes_max)
    }

    /// A pod on this store, whose buffers take this many bytes.
    fn pod_on(&self, store: Arc<dyn Store>, buffer_bytes_max: usize) -> Limiter {
        let hasher = KeyHasher::new("");
        let modes = Modes::default();
        let unix_start = Duration::from_secs(1_700_000_000);
        let wait_min = MAX_WAIT;
        let options = Options {
            wait_min,
            buffer_bytes_max,
            pod: 0,
            hasher,
            modes,
            unix_start,
            ..Options::default()
        };
        let pod = Limiter::new(store, self.clock, options);
        pod.shared.pods.set(1);
        pod
    }

    fn asks(&self) -> usize {
        self.store.asks.load(Ordering::Relaxed)
    }

    /// Tokens of `a` that the store has left and no pod holds.
    async fn left(&self, limit: u64) -> u64 {
        let verdict = self.pod().decided(&self.rules, &look("a")).await.unwrap();
        assert_eq!(verdict.statuses[0].limit.as_ref().unwrap().limit.requests_per_unit, limit);
        verdict.statuses[0].remaining
    }
}

fn compile(yaml: &str) -> Rules {
    let source = Source { name: "test.yaml".into(), text: yaml.into() };
    rules::load(&[source], rules::Options::default()).unwrap().rules
}

/// Rules for the keys `a` and `b` of domain `d`.
fn limits(a: &str, b: &str) -> String {
    format!(
        "domain: d\ndefaults: {{failure_mode: error}}\ndescriptors:\n\
         - {{key: a, rate_limit: {{{a}}}}}\n\
         - {{key: b, rate_limit: {{{b}}}}}\n"
    )
}

fn per_hour(a: u64, b: u64) -> String {
    let limit = |n| format!("unit: hour, requests_per_unit: {n}");
    limits(&limit(a), &limit(b))
}

fn descriptor(key: &str) -> Descriptor<'_> {
    Descriptor { entries: smallvec![Entry { key, value: "x" }], ..Descriptor::default() }
}

fn request<'a>(keys: &[&'a str]) -> Request<'a> {
    let descriptors = keys.iter().map(|key| descriptor(key)).collect();
    Request { domain: "d", descriptors, hits_addend: 0 }
}

fn charge(key: &str, hits: u64) -> Request<'_> {
    let descriptor = Descriptor { hits_addend: Some(hits), ..descriptor(key) };
    Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 }
}

fn look(key: &str) -> Request<'_> {
    charge(key, 0)
}

fn refund(key: &str, hits: u64) -> Request<'_> {
    let mut request = charge(key, hits);
    request.descriptors[0].refund = true;
    request
}

/// The number of `requests` for `key`, one after the other, that pass.
async fn passed_of(pod: &Limiter, rules: &Rules, key: &str, requests: u32) -> u32 {
    let mut passed = 0;
    for _ in 0..requests {
        let verdict = pod.decided(rules, &request(&[key])).await.unwrap();
        passed += u32::from(verdict.code == Code::Ok);
    }
    passed
}

impl Limiter {
    /// The verdict for a caller without a deadline, which may wait.
    pub(crate) async fn decided<'r>(
        &self,
        rules: &'r Rules,
        request: &Request<'_>,
    ) -> Result<Verdict<'r>, StoreError> {
        self.decide(rules, request, self.clock().now(), None, Owner::UNKNOWN, || Ok(())).await
    }
}

/// Decides, and returns whether it passed and what remained of the first descriptor.
async fn decide(pod: &Limiter, rules: &Rules, request: &Request<'_>) -> (bool, u64) {
    let verdict = pod.decided(rules, request).await.unwrap();
    (verdict.code == Code::Ok, verdict.statuses[0].remaining)
}

#[tokio::test(start_paused = true)]
async fn one_pod_counts_down_to_the_limit_and_denies_from_there() {
    for limit in [0, 1, 7, 20, 1_000] {
        let rig = Rig::new(&per_hour(limit, 1));
        let pod = rig.pod();
        for hit in 0..limit + 20 {
            let expected = (hit < limit, limit.saturating_sub(hit + 1));
            assert_eq!(decide(&pod, &rig.rules, &request(&["a"])).await, expected, "hit {hit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_window_begins_with_the_whole_limit() {
    let rig = Rig::new(&limits("unit: second, requests_per_unit: 3", "unlimited: true"));
    let pod = rig.pod();
    for second in 0..3 {
        for hit in 0..5_u64 {
            let expected = (hit < 3, 2_u64.saturating_sub(hit));
            let seen = decide(&pod, &rig.rules, &request(&["a"])).await;
            assert_eq!(seen, expected, "second {second}, hit {hit}");
        }
        let next = Duration::from_secs(second + 1) - rig.clock.now().since(Time::default());
        tokio::time::sleep(next).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_by_one_rule_spends_nothing_on_the_others() {
    for keys in [["a", "b"], ["b", "a"]] {
        let rig = Rig::new(&per_hour(20, 10));
        let pod = rig.pod();
        for hit in 0..15 {
            let verdict = pod.decided(&rig.rules, &request(&keys)).await.unwrap();
            let a = verdict.statuses[keys.iter().position(|key| *key == "a").unwrap()];
            let remaining = if hit < 10 { 19 - hit } else { 10 };
            assert_eq!((a.code, a.remaining), (Code::Ok, remaining), "{keys:?}, hit {hit}");
            assert_eq!(verdict.code == Code::Ok, hit < 10);
        }
        assert_eq!(decide(&pod, &rig.rules, &request(&["a"])).await, (true, 9));
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_charge_spends_what_is_left_of_its_own_key() {
    let rig = Rig::new(&per_hour(10, 1));
    let pod = rig.pod();
    assert_eq!(decide(&pod, &rig.rules, &charge("a", 5)).await, (true, 5));
    assert_eq!(decide(&pod, &rig.rules, &charge("a", 6)).await, (false, 0));
    assert_eq!(decide(&pod, &rig.rules, &charge("a", 1)).await, (false, 0));
}

#[tokio::test(start_paused = true)]
async fn a_denied_charge_spends_nothing_where_the_rule_says_so() {
    let a = "unit: hour, requests_per_unit: 10, charge_denied: false";
    let rig = Rig::new(&limits(a, "unlimited: true"));
    let pod = rig.pod();
    assert_eq!(decide(&pod, &rig.rules, &charge("a", 5)).await, (true, 5));
    assert_eq!(decide(&pod, &rig.rules, &charge("a", 6)).await, (false, 5));
    assert_eq!(decide(&pod, &rig.rules, &charge("a", 5)).await, (true, 0));
}

#[tokio::test(start_paused = true)]
async fn a_charge_larger_than_any_lease_is_granted_whole() {
    let rig = Rig::new(&per_hour(1_000, 1));
    let pod = rig.pod();
    assert_eq!(decide(&pod, &rig.rules, &charge("a", 900)).await, (true, 100));
    assert_eq!(decide(&pod, &rig.rules, &charge("a", u64::MAX)).await, (false, 0));
}

/// The token quotas of the reference implementation: look first, and afterwards charge the hits
/// that were let through.
#[tokio::test(start_paused = true)]
async fn looks_pass_at_the_limit_and_not_beyond_it() {
    let rig = Rig::new(&per_hour(2, 1));
    let pod = rig.pod();
    for _ in 0..3 {
        assert!(decide(&pod, &rig.rules, &look("a")).await.0);
        decide(&pod, &rig.rules, &charge("a", 1)).await;
    }
    assert_eq!(decide(&pod, &rig.rules, &look("a")).await, (false, 0));
}

#[tokio::test(start_paused = true)]
async fn a_look_spends_nothing() {
    let rig = Rig::new(&per_hour(5, 1));
    let pod = rig.pod();
    for _ in 0..10 {
        assert_eq!(decide(&pod, &rig.rules, &look("a")).await, (true, 5));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refund_gives_tokens_back_and_never_more_than_were_spent() {
    let rig = Rig::new(&per_hour(10, 1));
    let pod = rig.pod();
    assert_eq!(decide(&pod, &rig.rules, &charge("a", 8)).await, (true, 2));
    assert_eq!(decide(&pod, &rig.rules, &refund("a", 3)).await, (true, 5));
    assert_eq!(decide(&pod, &rig.rules, &refund("a", u64::MAX)).await, (true, 10));
    assert_eq!(decide(&pod, &rig.rules, &charge("a", 10)).await, (true, 0));
}

#[tokio::test(start_paused = true)]
async fn a_refund_reaches_a_key_that_this_pod_does_not_know() {
    let rig = Rig::new(&per_hour(10, 1));
    assert_eq!(decide(&rig.pod(), &rig.rules, &charge("a", 8)).await, (true, 2));
    assert_eq!(decide(&rig.pod(), &rig.rules, &refund("a", 3)).await, (true, 5));
    assert_eq!(rig.left(10).await, 5);
}

#[tokio::test(start_paused = true)]
async fn replaced_and_unlimited_rules_are_not_counted() {
    let rig = Rig::new(
        "domain: d\ndescriptors:\n\
         - {key: a, rate_limit: {name: base, unit: hour, requests_per_unit: 1}}\n\
         - {key: b, rate_limit: {unit: hour, requests_per_unit: 2, replaces: [{name: base}]}}\n\
         - {key: c, rate_limit: {unlimited: true}}\n",
    );
    let pod = rig.pod();
    for hit in 0..3 {
        let verdict = pod.decided(&rig.rules, &request(&["a", "b", "c"])).await.unwrap();
        assert_eq!(verdict.code == Code::Ok, hit < 2);
        let limited: Vec<_> = verdict.statuses.iter().map(|s| s.limit.is_some()).collect();
        assert_eq!(limited, [false, true, false]);
        assert_eq!(verdict.statuses[2].remaining, u64::from(u32::MAX));
    }
    assert_eq!(decide(&pod, &rig.rules, &request(&["a"])).await, (true, 0));
}
