//! Tests of limits that move, over two stores in memory.

mod in_flight;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::rng::mixed;
use crate::store::memory::MemoryStore;
use crate::store::{GrantFuture, Heartbeat, PodCountFuture};
use ratelease_rules::Unit;
use ratelease_rules::key::Key;

/// The requests of each window.
const LIMIT: u32 = 40;
/// A window, in milliseconds.
const WINDOW_MS: u64 = 1000;

/// A store whose time the test sets, and which can fail.
struct Fake {
    memory: MemoryStore,
    fails: std::sync::atomic::AtomicBool,
    /// The ask after so many fails, once.
    asks_until_failure: AtomicU64,
}

impl Fake {
    fn new(now_ms: &Arc<AtomicU64>, ahead_ms: u64) -> Self {
        let now_ms = Arc::clone(now_ms);
        let now =
            move || Duration::from_millis(now_ms.load(Ordering::Relaxed).saturating_add(ahead_ms));
        let memory = MemoryStore::new(Arc::new(now), 100);
        Self { memory, fails: false.into(), asks_until_failure: u64::MAX.into() }
    }

    fn left(&self, ask: &Ask) -> u64 {
        self.memory.take(&Ask::look(ask.key, ask.limit)).unwrap().left
    }
}

impl Store for Fake {
    fn shard(&self, _ask: &Ask) -> usize {
        0
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        let fails = self.fails.load(Ordering::Relaxed);
        if fails || self.asks_until_failure.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Box::pin(std::future::ready(Err(StoreError::Refused("test".into()))));
        }
        self.memory.lend(ask)
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.memory.beat(beat)
    }

    fn describe(&self) -> String {
        "fake".into()
    }
}

fn limit(algorithm: Algorithm) -> Limit {
    Limit { algorithm, ..Limit::fixed_window(LIMIT, Unit::Second) }
}

fn ask(limit: Limit, want: u64, need: u64) -> Ask {
    let ttl = Duration::from_millis(WINDOW_MS / 4);
    Ask { want, need, ttl, ..Ask::look(Key::for_test(7), limit) }
}

/// A clock in milliseconds since the Unix epoch, and two stores that follow it.
fn stores() -> (Arc<AtomicU64>, Fake, Fake) {
    let now = Arc::new(AtomicU64::new(90_000));
    let (from, to) = (Fake::new(&now, 0), Fake::new(&now, 0));
    (now, from, to)
}

/// Which stores a pod asks, by the rules that it has.
#[derive(Debug, Clone, Copy)]
enum Pod {
    Before,
    Moving,
    After,
}

/// The pods of a fleet while it moves, by the window: some learn of the move in window 1, all know
/// of it by window 3, and some hear in window 5 that it is over.
fn pod_in(window: u64, random: u64) -> Pod {
    match (window, random % 2) {
        (0, _) | (1 | 2, 0) => Pod::Before,
        (1..=4, _) | (5 | 6, 0) => Pod::Moving,
        _ => Pod::After,
    }
}

/// Lets pods with different rules draw on one key over eight windows. Returns what they spent: the
/// time in milliseconds since the start, and the tokens.
async fn drawn(algorithm: Algorithm, seed: u64) -> Vec<(u64, u64)> {
    let (now, from, to) = stores();
    let start = now.load(Ordering::Relaxed);
    let mut spent = Vec::new();
    for step in 0..8 * WINDOW_MS / 5 {
        let at = step * 5;
        now.store(start + at, Ordering::Relaxed);
        let random = mixed(seed ^ mixed(step));
        let ask = ask(limit(algorithm), 1 + random / 8 % 4, random / 64 % 2);
        let pod = pod_in(at / WINDOW_MS, random);
        let granted = match pod {
            Pod::Before => from.lend(&ask).await,
            Pod::Moving => Moving { from: &from, to: &to }.lend(&ask).await,
            Pod::After => to.lend(&ask).await,
        }
        .unwrap();
        // A part of some leases goes back, at once.
        let unspent = if (random / 128).is_multiple_of(4) { granted.tokens / 2 } else { 0 };
        spent.push((at, granted.tokens - unspent));
        let back = Some(Return { tokens: unspent, epoch: Some(granted.epoch) });
        let back = Ask { back, ..Ask::look(ask.key, ask.limit) };
        let back = Ask { ttl: ask.ttl, ..back };
        match pod {
            Pod::Before => from.lend(&back).await,
            Pod::Moving => Moving { from: &from, to: &to }.lend(&back).await,
            Pod::After => to.lend(&back).await,
        }
        .unwrap();
    }
    spent
}

/// The most that was spent in any span of this length that begins at a time for which `begins`
/// holds.
fn most(spent: &[(u64, u64)], span_ms: u64, begins: impl Fn(u64) -> bool) -> u64 {
    let within = |start: u64| {
        let times = start..start + span_ms;
        spent.iter().filter(|(at, _)| times.contains(at)).map(|(_, tokens)| tokens).sum::<u64>()
    };
    spent.iter().map(|(at, _)| *at).filter(|at| begins(*at)).map(within).max().unwrap_or(0)
}

#[tokio::test]
async fn no_window_admits_more_than_the_limit_whichever_rules_pods_have_while_it_moves() {
    for seed in 0..20 {
        let spent = drawn(Algorithm::FixedWindow, seed).await;
        let most_of_window = most(&spent, WINDOW_MS, |at| at % WINDOW_MS == 0);
        assert_eq!(most_of_window, u64::from(LIMIT), "seed {seed}: all of it and no more");
    }
}

#[tokio::test]
async fn a_log_admits_no_more_than_the_limit_in_any_window_while_it_moves() {
    for seed in 0..20 {
        let spent = drawn(Algorithm::SlidingLog, seed).await;
        let most_of_window = most(&spent, WINDOW_MS, |_| true);
        assert!(most_of_window <= u64::from(LIMIT), "seed {seed}: {most_of_window}");
    }
}

/// The most that was spent in any span, less what flows into a bucket in that span, in thousandths
/// of a token: the level of a leaky bucket that the spent tokens are poured into.
fn most_above_the_rate(spent: &[(u64, u64)]) -> u64 {
    let (mut level, mut since, mut most) = (0_u64, 0, 0);
    for (at, tokens) in spent {
        // A rate by the second is in tokens a second, hence in thousandths a millisecond.
        level = level.saturating_sub((at - since) * u64::from(LIMIT)) + tokens * 1000;
        (since, most) = (*at, most.max(level));
    }
    most
}

#[tokio::test]
async fn a_bucket_admits_no_more_than_its_burst_and_what_flows_in_while_it_moves() {
    // They fill in a fifth of a window, and in two.
    for burst in [LIMIT / 5, 2 * LIMIT] {
        for seed in 0..20 {
            let spent = drawn(Algorithm::TokenBucket { burst }, seed).await;
            // The two stores may be a part of a token apart.
            let (most, bound) = (most_above_the_rate(&spent), (u64::from(burst) + 1) * 1000);
            assert!(
                most <= bound,
                "seed {seed}: {most} thousandths above the rate, {bound} at most"
            );
        }
    }
}

#[tokio::test]
async fn what_one_store_lends_and_the_other_does_not_goes_back() {
    let (_now, from, to) = stores();
    let all = ask(limit(Algorithm::FixedWindow), 30, 0);
    to.lend(&all).await.unwrap();
    let moving = Moving { from: &from, to: &to };
    let grant = moving.lend(&ask(all.limit, 25, 0)).await.unwrap();
    assert_eq!((grant.tokens, grant.left), (10, 0), "the new store has ten");
    assert_eq!((from.left(&all), to.left(&all)), (30, 0), "fifteen went back");
    let denied = moving.lend(&ask(all.limit, 1, 1)).await.unwrap();
    assert_eq!((denied.tokens, denied.left), (0, 0));
    assert_eq!(from.left(&all), 30);
}

#[tokio::test]
async fn an_error_of_the_new_store_costs_no_token_and_never_says_that_nothing_was_applied() {
    let (_now, from, to) = stores();
    to.fails.store(true, Ordering::Relaxed);
    let moving = Moving { from: &from, to: &to };
    let want = ask(limit(Algorithm::FixedWindow), 5, 0);
    let error = moving.lend(&want).await.unwrap_err();
    assert!(!error.is_not_applied(), "{error}");
    assert_eq!(from.left(&want), u64::from(LIMIT));
    from.fails.store(true, Ordering::Relaxed);
    let error = moving.lend(&want).await.unwrap_err();
    assert_eq!(error, StoreError::Refused("test".into()), "neither has applied it");
}

#[tokio::test]
async fn tokens_of_different_windows_are_not_lent() {
    let now = Arc::new(AtomicU64::new(90_000));
    let (from, to) = (Fake::new(&now, 0), Fake::new(&now, WINDOW_MS));
    let want = ask(limit(Algorithm::FixedWindow), 5, 0);
    let moving = Moving { from: &from, to: &to };
    let error = moving.lend(&want).await.unwrap_err();
    assert!(matches!(error, StoreError::RedirectFailed(_)), "{error}");
    let all = u64::from(LIMIT);
    assert_eq!((from.left(&want), to.left(&want)), (all, all), "all went back");
}

#[tokio::test]
async fn an_error_after_the_old_store_has_credited_never_says_that_nothing_was_applied() {
    let now = Arc::new(AtomicU64::new(90_000));
    let (from, to) = (Fake::new(&now, 0), Fake::new(&now, WINDOW_MS));
    let want = ask(limit(Algorithm::FixedWindow), 5, 0);
    let lent = from.lend(&want).await.unwrap();
    let back = Some(Return { tokens: 5, epoch: Some(lent.epoch) });
    // The first attempt lends, then gives back since the windows differ; the second one fails.
    from.asks_until_failure.store(2, Ordering::Relaxed);
    let moving = Moving { from: &from, to: &to };
    let error = moving.lend(&Ask { back, ..want }).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
    assert_eq!(from.left(&want), u64::from(LIMIT), "the return was credited");
}

#[tokio::test]
async fn slots_begin_where_both_stores_have_them() {
    let (_now, from, to) = stores();
    let leaky = limit(Algorithm::LeakyBucket { max_delay_us: 500_000 });
    let ahead = from.lend(&ask(leaky, 4, 0)).await.unwrap();
    let grant = Moving { from: &from, to: &to }.lend(&ask(leaky, 1, 1)).await.unwrap();
    assert_eq!(grant.tokens, 1);
    assert!(grant.starts_after >= Duration::from_millis(4 * WINDOW_MS / u64::from(LIMIT)));
    assert!(grant.starts_after > ahead.starts_after);
}
