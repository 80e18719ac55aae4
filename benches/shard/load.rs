//! Sends asks: in a closed loop with a number of them under way, or at a fixed rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::{Ask, Store};
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::interval;

use crate::kind::Kind;
use crate::rig::Rig;
use crate::support::now;

/// The work done in a time span.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    pub calls: u64,
    pub took: Duration,
    /// CPU time of the Redis process.
    pub cpu: Duration,
}

impl Served {
    pub fn per_second(self) -> f64 {
        self.calls as f64 / self.took.as_secs_f64()
    }

    pub fn cpu_us(self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.calls as f64
    }

    /// Number of cores that Redis used.
    pub fn cores(self) -> f64 {
        self.cpu.as_secs_f64() / self.took.as_secs_f64()
    }
}

/// Length of a tick; the calls of one tick are sent together.
const TICK: Duration = Duration::from_micros(100);

/// Maximum latency that is recorded, in microseconds.
const TOOK_MAX_US: u64 = 60_000_000;

/// Sends each of `asks` once, `in_flight` at a time, and calls `progress` with the number done.
pub async fn all(
    rig: &Rig,
    count: u64,
    in_flight: usize,
    ask: impl Fn(u64) -> Ask + Clone + Send + 'static,
    progress: impl Fn(u64),
) {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for store in stores(rig, in_flight) {
        let (next, ask) = (Arc::clone(&next), ask.clone());
        tasks.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return;
                }
                one(&store, ask(n)).await;
            }
        });
    }
    let mut ticks = interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(ended) => ended.expect("no ask fails"),
                None => return,
            },
            _ = ticks.tick() => progress(next.load(Ordering::Relaxed).min(count)),
        }
    }
}

/// Sends calls on the first `keys` keys in a closed loop, with `in_flight` under way.
pub async fn closed(rig: &Rig, kind: Kind, keys: u64, in_flight: usize, span: Duration) -> Served {
    let (calls, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for (seed, store) in stores(rig, in_flight).enumerate() {
        let (calls, is_over) = (Arc::clone(&calls), Arc::clone(&is_over));
        let mut draw = draw(seed as u64, keys);
        tasks.spawn(async move {
            while is_over.load(Ordering::Relaxed) == 0 {
                one(&store, kind.ask(draw())).await;
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(span / 10).await; // warm-up
    let (cpu, before, start) = (rig.cpu(), calls.load(Ordering::Relaxed), now());
    tokio::time::sleep(span).await;
    let (after, took) = (calls.load(Ordering::Relaxed), start.elapsed());
    let served = Served { calls: after - before, took, cpu: rig.cpu().saturating_sub(cpu) };
    is_over.store(1, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no ask fails");
    }
    served
}

/// Sends calls at `rate` a second, without waiting for earlier calls. Returns their latencies, each
/// counted from the time when its call was sent.
pub async fn open(rig: &Rig, kind: Kind, keys: u64, rate: f64, span: Duration) -> Histogram<u64> {
    let took = Histogram::new_with_bounds(1, TOOK_MAX_US, 3).expect("three digits");
    let took = Arc::new(Mutex::new(took));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    let calls = (rate * span.as_secs_f64()) as u64;
    let stores = rig.stores.clone();
    let recorded = Arc::clone(&took);
    let sent = spawn_blocking(move || {
        let (start, runtime, mut draw) = (now(), Handle::current(), draw(7, keys));
        let mut tasks = JoinSet::new();
        for (n, store) in (0..calls).zip(stores.iter().cycle()) {
            // A thread sleeps far more precisely than a timer of the runtime.
            while (start.elapsed().as_secs_f64() * rate) < n as f64 {
                std::thread::sleep(TICK);
                while let Some(ended) = tasks.try_join_next() {
                    ended.expect("no ask fails");
                }
            }
            let (store, took, ask) = (Arc::clone(store), Arc::clone(&recorded), kind.ask(draw()));
            let call = async move {
                let sent = now();
                one(&store, ask).await;
                let micros = sent.elapsed().as_micros().try_into().unwrap_or(u64::MAX);
                took.lock().saturating_record(micros);
            };
            tasks.spawn_on(call, &runtime);
        }
        tasks
    });
    let mut tasks = sent.await.expect("no ask fails");
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no ask fails");
    }
    let took = took.lock();
    took.clone()
}

async fn one(store: &RedisStore, ask: Ask) {
    let grant = store.lend(&ask).await.unwrap_or_else(|error| panic!("an ask failed: {error}"));
    assert!(grant.tokens == ask.want || ask.want == 1, "a key is not new: {ask:?}: {grant:?}");
}

/// `count` handles, on all connections in turn.
fn stores(rig: &Rig, count: usize) -> impl Iterator<Item = Arc<RedisStore>> + '_ {
    rig.stores.iter().cycle().take(count).cloned()
}

/// Draws numbers below `keys`, by SplitMix64.
fn draw(seed: u64, keys: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % keys
    }
}
