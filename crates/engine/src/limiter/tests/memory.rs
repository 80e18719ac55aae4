//! Bounded memory: floods of keys, and how keys without room are handled.

use std::mem::size_of;

use futures_util::future::join_all;
use ratelease_rules::key::OverflowScope;

use super::*;
use crate::algorithm::step;
use crate::buffer::table::Table;

/// Number of distinct keys in the flood, unless `RATELEASE_TEST_KEYS` sets it: ten million take a
/// quarter of an hour without optimisation.
const FLOOD_KEYS: u64 = 50_000;

/// Bytes for some fifty keys.
const TINY: usize = 6 << 10;

/// Lends to every key as to a new one, except keys with a limit a day, which it counts. It keeps no
/// state for the flood, so the remaining memory is the limiter's.
struct Forgetful {
    counted: MemoryStore,
    clock: Clock,
}

impl Store for Forgetful {
    fn shard(&self, _ask: &Ask) -> usize {
        0
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        let now = START + self.clock.now().since(Time::default());
        let micros = u64::try_from(now.as_micros()).unwrap();
        let reply = match ask.limit.unit {
            Unit::Day => self.counted.take(ask),
            _ => Ok(step(None, micros, ask).1),
        };
        Box::pin(std::future::ready(reply))
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.counted.beat(beat)
    }

    fn describe(&self) -> String {
        "forgetful".into()
    }
}

/// A rig with no round trip to its store: the last tokens are lent one in each trip, and hundreds
/// of requests wait for them.
fn near(yaml: &str) -> Rig {
    let rig = Rig::new(yaml);
    *rig.store.round_trip.lock() = Duration::ZERO;
    rig
}

fn count(pod: &Limiter, counter: Counter) -> u64 {
    pod.counts().into_iter().find(|(other, _)| *other == counter).map(|(_, count)| count).unwrap()
}

/// A request for `a` with this value.
fn of_value(value: &str) -> Request<'_> {
    let mut request = request(&["a"]);
    request.descriptors[0].entries[0].value = value;
    request
}

fn texts(numbers: std::ops::Range<u64>) -> Vec<String> {
    numbers.map(|n| n.to_string()).collect()
}

/// The number of requests that pass, among requests for `a` with each of these values at once.
async fn passed_at_once(pod: &Limiter, rules: &Rules, values: std::ops::Range<u64>) -> u64 {
    let values = texts(values);
    let requests: Vec<_> = values.iter().map(|value| of_value(value)).collect();
    let decided = join_all(requests.iter().map(|request| decide(pod, rules, request))).await;
    decided.iter().filter(|(passed, _)| *passed).count() as u64
}

/// A million keys take at most 108 million bytes: their slots, their names, the heads of
/// their chains, and their share of the chunks' frames.
#[test]
fn a_key_takes_less_than_108_bytes() {
    assert_eq!(size_of::<KeyState>(), 88);
    for budget in [64 << 20, 108_000_000, 1 << 30] {
        let keys = Table::<KeyState>::new(budget, 0).len_max();
        println!("{keys} keys in {budget} bytes, {:.1} each", budget as f64 / keys as f64);
        assert!(keys * 108 >= budget, "{keys} keys in {budget} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_of_many_keys_lets_other_tasks_have_their_turn() {
    /// A sweep of so many keys is one turn.
    const FEW: u64 = 1_000;
    /// A sweep of so many keys has several turns.
    const MANY: u64 = 9_000;
    let two = "unit: hour, requests_per_unit: 2";
    let rig = near(&limits(two, two));
    let pod = rig.pod_of(4 << 20);
    for (keys, is_one_turn) in [(0..FEW, true), (FEW..MANY, false)] {
        for from in keys.clone().step_by(20) {
            assert_eq!(passed_at_once(&pod, &rig.rules, from..from + 20).await, 20);
        }
        let mut sweep = std::pin::pin!(pod.evict_expired());
        let is_over = futures_util::poll!(&mut sweep).is_ready();
        assert_eq!(is_over, is_one_turn, "{keys:?}");
        if !is_over {
            sweep.await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_keys_stays_in_its_budget_and_leaves_a_hot_key_exact() {
    let keys = std::env::var("RATELEASE_TEST_KEYS").ok().and_then(|keys| keys.parse().ok());
    let keys: u64 = keys.unwrap_or(FLOOD_KEYS);
    let limit = u32::try_from(keys / 40).unwrap();
    let b = format!("unit: day, requests_per_unit: {limit}");
    let rig = Rig::new(&limits("unit: hour, requests_per_unit: 1", &b));
    let wall = Arc::new(move || START + rig.clock.now().since(Time::default()));
    let store = Forgetful { counted: MemoryStore::new(wall, 8), clock: rig.clock };
    let budget = 400 << 10;
    let pod = rig.pod_on(Arc::new(store), budget);
    let (mut flood, mut hot) = (0, 0);
    for from in (0..keys).step_by(20) {
        flood += passed_at_once(&pod, &rig.rules, from..from + 20).await;
        hot += u32::from(decide(&pod, &rig.rules, &request(&["b"])).await.0);
        let bytes = count(&pod, Counter::BufferBytes);
        assert!(bytes <= budget as u64, "{bytes} bytes after {from} keys");
    }
    assert_eq!((flood, hot), (keys, limit), "of twice as many hits on the hot key");
    assert!(count(&pod, Counter::BufferEvictions) > keys - 5_000);
    assert_eq!(count(&pod, Counter::BufferOverflows), 0);
    assert_eq!(count(&pod, Counter::BufferWaitingBytes), 0);
}

#[tokio::test(start_paused = true)]
async fn keys_that_find_every_entry_busy_share_an_overflow_of_their_rule() {
    let rig = near(&per_hour(10, 1));
    let pod = rig.pod_of(TINY);
    let passed = passed_at_once(&pod, &rig.rules, 0..800).await;
    let overflows = count(&pod, Counter::BufferOverflows);
    let own = 800 - overflows;
    assert!((20..100).contains(&own), "{own} keys had an entry");
    assert_eq!(passed, own + 10, "each on its own, and the rest together as one");
    // The keys that caused the overflow cannot evict the overflow key.
    for value in texts(1_000..1_500) {
        assert!(decide(&pod, &rig.rules, &of_value(&value)).await.0);
    }
    let passed = passed_at_once(&pod, &rig.rules, 2_000..2_800).await;
    let overflows = count(&pod, Counter::BufferOverflows) - overflows;
    assert_eq!(passed, 800 - overflows, "nothing is left of the overflow");
}

#[tokio::test(start_paused = true)]
async fn overrides_overflow_by_their_limit() {
    let rig = near(&per_hour(10, 1));
    let pod = rig.pod_of(TINY);
    let values = texts(0..600);
    let requests = values.iter().enumerate().map(|(at, value)| {
        let mut request = of_value(value);
        let requests_per_unit = if at % 2 == 0 { 3 } else { 5 };
        request.descriptors[0].limit = Some(Limit::fixed_window(requests_per_unit, Unit::Hour));
        request
    });
    let requests: Vec<_> = requests.collect();
    let decided = join_all(requests.iter().map(|request| decide(&pod, &rig.rules, request))).await;
    let passed = decided.iter().filter(|(passed, _)| *passed).count() as u64;
    assert_eq!(passed, 600 - count(&pod, Counter::BufferOverflows) + 3 + 5);
}

#[tokio::test(start_paused = true)]
async fn what_an_overflow_holds_goes_back_when_the_pod_closes() {
    let rig = Rig::new(&per_hour(1_000, 1));
    let pod = rig.pod_of(TINY);
    passed_at_once(&pod, &rig.rules, 0..100).await;
    let taken = count(&pod, Counter::BufferOverflows);
    assert!(taken > 0);
    pod.close().await;
    let limit = Limit::fixed_window(1_000, Unit::Hour);
    let key = KeyHasher::new("").overflow_key(OverflowScope::Rule("d.a"), limit.identity());
    let left = rig.store.memory.take(&Ask::look(key, limit)).unwrap().left;
    assert_eq!(left, 1_000 - taken);
}
