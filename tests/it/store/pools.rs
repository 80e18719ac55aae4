//! Pools of split keys: tokens put in are leased once, and not after their own lease ends.

use ratelease_engine::algorithm::pool::State;
use ratelease_engine::algorithm::{pool, step};
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::store::{Ask, Deposit, Grant, Return, Store, StoreError};
use ratelease_rules::key::Key;
use ratelease_rules::{AMOUNT_MAX, Algorithm, Limit, Unit};

use std::time::{Duration, Instant};

use super::{ask_by, connected, exchange, fresh_key, granted, one, patient, until};
use crate::support::now;
use crate::support::redis::{Cluster, Single};
use crate::support::rng::Rng;

/// The algorithms that have pools.
const ALGORITHMS: [(Algorithm, Unit); 3] = [
    (Algorithm::FixedWindow, Unit::Year),
    (Algorithm::token_bucket(10), Unit::Year),
    (Algorithm::SlidingWindow, Unit::Year),
];
const MINUTE: Duration = Duration::from_secs(60);

pub async fn keep_the_contract(store: &dyn Store) {
    for by in ALGORITHMS {
        let ask = Ask { pool: Some(2), ..ask_by(by, 0, 0) };
        lends_what_was_put_in(store, ask).await;
        lends_a_need_whole_or_not_at_all_and_never_denies(store, ask).await;
        is_apart_from_its_key_and_from_other_pools(store, ask).await;
        a_pool_ends_with_its_lease(store, ask).await;
        tokens_end_no_later_than_the_earliest_of_their_leases(store, ask).await;
        what_comes_back_is_ignored(store, ask).await;
        takes_the_largest_numbers(store, ask).await;
    }
    tokens_of_an_older_window_give_way(store).await;
    tokens_of_all_times_go_together(store).await;
}

fn anew(ask: Ask) -> Ask {
    Ask { key: fresh_key(), ..ask }
}

fn putting(ask: Ask, tokens: u64, epoch: u64, lasts: Duration) -> Ask {
    Ask { deposit: Some(Deposit { tokens, epoch, lasts }), ..ask }
}

async fn lends_what_was_put_in(store: &dyn Store, ask: Ask) {
    let ask = anew(ask);
    let empty = granted(store, Ask { want: 3, ..ask }).await;
    assert_eq!((empty.tokens, empty.left, empty.overdrawn, empty.epoch), (0, 0, false, 0));
    assert_eq!(empty.ends_after, Duration::ZERO);
    let grant = granted(store, Ask { want: 3, ..putting(ask, 8, 7, MINUTE) }).await;
    assert_eq!((grant.tokens, grant.left, grant.epoch), (3, 5, 7), "put in, then lent");
    assert_eq!((grant.ends_after, grant.starts_after), (MINUTE, Duration::ZERO));
    assert_eq!((grant.reset_after, grant.retry_after), (Duration::ZERO, Duration::ZERO));
    assert_eq!(granted(store, putting(ask, 4, 7, MINUTE)).await.left, 9);
    let last = granted(store, Ask { want: 50, ..ask }).await;
    assert_eq!((last.tokens, last.left, last.epoch), (9, 0, 7));
    assert!(last.ends_after > MINUTE / 2 && last.ends_after <= MINUTE, "{last:?}");
    assert_eq!(granted(store, Ask { want: 50, ..ask }).await.tokens, 0);
}

async fn lends_a_need_whole_or_not_at_all_and_never_denies(store: &dyn Store, ask: Ask) {
    let ask = anew(ask);
    granted(store, putting(ask, 8, 7, MINUTE)).await;
    let denied = granted(store, Ask { need: 9, charge_denied: true, ..ask }).await;
    assert_eq!((denied.tokens, denied.left, denied.overdrawn), (0, 8, false));
    let grant = granted(store, Ask { need: 5, want: 2, ..ask }).await;
    assert_eq!((grant.tokens, grant.left), (5, 3));
}

async fn is_apart_from_its_key_and_from_other_pools(store: &dyn Store, ask: Ask) {
    let ask = anew(ask);
    granted(store, putting(ask, 8, 7, MINUTE)).await;
    for pool in [0, 1, 3, 63] {
        let other = Ask { pool: Some(pool), want: 1, ..ask };
        assert_eq!(granted(store, other).await.tokens, 0, "pool {pool}");
    }
    let home = Ask { pool: None, ..ask };
    assert_eq!(granted(store, Ask { want: 4, ..home }).await.left, 6, "the limit is whole");
    assert_eq!(granted(store, ask).await.left, 8);
}

async fn a_pool_ends_with_its_lease(store: &dyn Store, ask: Ask) {
    let ask = anew(ask);
    let put_at = now();
    let lasts = Duration::from_millis(300);
    assert_eq!(granted(store, putting(ask, 8, 7, lasts)).await.ends_after, lasts);
    until(10, "the pool expires", async || granted(store, ask).await.left == 0).await;
    // The precision of a clock in milliseconds, and of the tick at which Redis reads it.
    assert!(put_at.elapsed() + Duration::from_millis(4) >= lasts, "{:?}", put_at.elapsed());
    let anew = granted(store, putting(ask, 2, 5, MINUTE)).await;
    assert_eq!((anew.left, anew.epoch, anew.ends_after), (2, 5, MINUTE), "nothing is left of it");
}

async fn tokens_end_no_later_than_the_earliest_of_their_leases(store: &dyn Store, ask: Ask) {
    let ask = anew(ask);
    for (lasts, ends) in [(MINUTE, MINUTE), (MINUTE / 2, MINUTE / 2), (2 * MINUTE, MINUTE / 2)] {
        let grant = granted(store, putting(ask, 8, 7, lasts)).await;
        assert!(grant.ends_after <= ends && grant.ends_after > ends / 2, "{grant:?}");
    }
    assert_eq!(granted(store, ask).await.left, 24);
    let ttl = Duration::from_millis(9);
    assert_eq!(granted(store, Ask { ttl, want: 1, ..ask }).await.ends_after, ttl);
}

async fn what_comes_back_is_ignored(store: &dyn Store, ask: Ask) {
    let ask = anew(ask);
    granted(store, putting(ask, 8, 7, MINUTE)).await;
    for epoch in [None, Some(7)] {
        let back = Some(Return { tokens: 3, epoch });
        assert_eq!(granted(store, Ask { back, ..ask }).await.left, 8);
    }
}

async fn takes_the_largest_numbers(store: &dyn Store, ask: Ask) {
    let ask = Ask { ttl: Duration::MAX, ..anew(ask) };
    let all = putting(ask, u64::MAX, u64::MAX, Duration::MAX);
    let most = AMOUNT_MAX;
    for _ in 0..2 {
        let grant = granted(store, all).await;
        assert_eq!((grant.tokens, grant.left, grant.epoch), (0, most, (1 << 53) - 1));
    }
    let grant = granted(store, Ask { want: u64::MAX, ..ask }).await;
    assert_eq!((grant.tokens, grant.left), (most, 0));
    assert!(grant.ends_after > 1_000_000 * MINUTE, "{grant:?}");
}

async fn tokens_of_an_older_window_give_way(store: &dyn Store) {
    for by in [ALGORITHMS[0], ALGORITHMS[2]] {
        let ask = Ask { pool: Some(0), ..ask_by(by, 0, 0) };
        granted(store, putting(ask, 8, 7, MINUTE / 2)).await;
        let newer = granted(store, putting(ask, 3, 8, MINUTE)).await;
        assert_eq!((newer.left, newer.epoch, newer.ends_after), (3, 8, MINUTE), "{by:?}");
        let late = granted(store, putting(ask, 8, 7, MINUTE)).await;
        assert_eq!((late.left, late.epoch), (3, 8), "{by:?}");
    }
}

async fn tokens_of_all_times_go_together(store: &dyn Store) {
    let ask = Ask { pool: Some(0), ..ask_by(ALGORITHMS[1], 0, 0) };
    for (epoch, left, oldest) in [(8, 3, 8), (9, 6, 8), (7, 9, 7)] {
        let grant = granted(store, putting(ask, 3, epoch, MINUTE)).await;
        assert_eq!((grant.left, grant.epoch), (left, oldest));
    }
}

#[tokio::test]
async fn memory_agrees_with_the_arithmetic() {
    agrees_with_the_arithmetic(&MemoryStore::system()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_agrees_with_the_arithmetic() {
    let store = connected(patient(Cluster::shared().config())).await;
    agrees_with_the_arithmetic(&*store).await;
}

const POOLS: usize = 60;
const ROUNDS: usize = 250;
/// The precision of the clock by which keys expire, and of the tick at which Redis reads it.
const GRAIN: Duration = Duration::from_millis(2);

/// A pool, and its state by the arithmetic.
struct Pool {
    ask: Ask,
    /// Epoch and tokens, if it holds any.
    held: Option<(u64, u64)>,
    /// The earliest and the latest time at which it expires.
    ends: (Instant, Instant),
}

/// 15 000 asks. A grant says to the millisecond how long the pool lasts: the arithmetic on a pool
/// that lasts as long must give exactly the same grant, and the span must agree with the test's own
/// clock.
async fn agrees_with_the_arithmetic(store: &dyn Store) {
    let mut rng = Rng::new();
    let mut pools: Vec<_> = (0..POOLS).map(|_| Pool::new(&mut rng)).collect();
    let (mut lent, mut expired) = (0, 0);
    for _ in 0..ROUNDS {
        let asks: Vec<_> = pools.iter().map(|pool| pool.ask(&mut rng)).collect();
        let before = now();
        let replies = exchange(store, &asks).await;
        let span = (before, now());
        for ((ask, reply), pool) in asks.iter().zip(replies).zip(&mut pools) {
            let grant = reply.unwrap_or_else(|error| panic!("{ask:?}: {error}"));
            lent += u64::from(grant.tokens > 0);
            expired += u64::from(pool.agrees(ask, &grant, span));
        }
        tokio::time::sleep(Duration::from_millis(rng.below(6))).await;
    }
    assert!(lent > 1_000 && expired > 20, "{lent} lent, {expired} expired");
}

// === impl Pool ===

impl Pool {
    fn new(rng: &mut Rng) -> Self {
        let (algorithm, _) = rng.pick(&ALGORITHMS);
        let limit = Limit { algorithm, ..Limit::fixed_window(10, rng.pick(&Unit::ALL)) };
        let pool = Some(rng.pick(&[0, 1, 7, 63]));
        let ask = Ask { pool, ..Ask::look(fresh_key(), limit) };
        Self { ask, held: None, ends: (now(), now()) }
    }

    fn ask(&self, rng: &mut Rng) -> Ask {
        let deposit = (rng.below(3) == 0).then(|| Deposit {
            tokens: amount(rng),
            epoch: 1_700_000_000_000_000 + rng.below(3),
            lasts: Duration::from_micros(match rng.below(9) {
                0 => rng.below(2_000),
                1 => rng.next_u64(),
                2..7 => rng.below(30_000),
                _ => rng.below(400_000),
            }),
        });
        let need = if rng.below(3) > 0 { 0 } else { amount(rng) };
        let charge_denied = rng.below(4) == 0;
        Ask { want: amount(rng), need, deposit, charge_denied, ..self.ask }
    }

    /// Checks `grant`, of a step between two times, against the arithmetic. Returns whether the
    /// tokens held had expired.
    fn agrees(&mut self, ask: &Ask, grant: &Grant, (before, after): (Instant, Instant)) -> bool {
        const NOW: u64 = 1_700_000_000_000_000;
        let lasts = grant.ends_after;
        let least = self.ends.0.saturating_duration_since(after + GRAIN);
        let most = self.ends.1.saturating_duration_since(before) + GRAIN;
        let of = |lasts: Duration| {
            let (epoch, tokens) = self.held?;
            let lasts_us = u64::try_from(lasts.as_millis()).unwrap() * 1_000;
            Some(State { epoch, tokens, ends_us: NOW + lasts_us })
        };
        // It lasts as the grant says, or was replaced by the tokens put in, or has expired.
        let mut found = vec![];
        if (least..=most).contains(&lasts) {
            found.push(of(lasts));
        }
        if ask.deposit.is_some() {
            found.push(of(most));
        }
        if self.held.is_none() || least.is_zero() {
            found.push(None);
        }
        let agrees = |found: &Option<State>| pool::step(*found, NOW, ask).1 == *grant;
        let found = found.into_iter().find(agrees);
        let found = found.unwrap_or_else(|| {
            panic!("{grant:?} of {ask:?} on {:?}, lasting {least:?} to {most:?}", self.held)
        });
        let (state, _) = pool::step(found, NOW, ask);
        let expired = self.held.is_some() && found.is_none();
        self.held = (state.tokens > 0).then_some((state.epoch, state.tokens));
        self.ends = (before + lasts, after + lasts + GRAIN);
        expired
    }
}

fn amount(rng: &mut Rng) -> u64 {
    match rng.below(20) {
        0 => u64::MAX,
        1 => rng.next_u64(),
        2 => AMOUNT_MAX - rng.below(3),
        3 => 9_999_999_990 + rng.below(20),
        _ => rng.below(9),
    }
}

/// A pool and its key must not be in one slot, or splitting the key would move no load.
#[test]
fn pools_have_keys_of_their_own() {
    let home = Ask::look(Key::for_test(1), Limit::fixed_window(10, Unit::Hour));
    let mut names: Vec<_> =
        (0..64).map(|pool| Ask { pool: Some(pool), ..home }.counter().to_string()).collect();
    names.push(home.counter().to_string());
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 65, "neither that of another pool nor the key's own");
    for pool in 0..=u8::MAX {
        assert_ne!(Ask { pool: Some(pool), ..home }.counter(), home.counter());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_one_small_key_that_goes_when_it_is_empty() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let ask = Ask { pool: Some(63), ..ask_by(ALGORITHMS[1], 0, 0) };
    let key = ask.counter().in_store("");
    granted(&*store, Ask { want: 1, ..ask }).await;
    assert_eq!(single.server.keys(), [""; 0], "an ask of no pool makes none");
    granted(&*store, putting(ask, u64::MAX, 1_700_000_000_000_000, MINUTE)).await;
    assert_eq!(single.server.keys(), [key.as_str()]);
    let ttl: u64 = single.server.command(&["PTTL", &key]);
    assert!((50_000..=60_000).contains(&ttl), "{ttl}");
    let bytes: u64 = single.server.command(&["MEMORY", "USAGE", &key]);
    println!("a pool costs {bytes} bytes");
    assert!(bytes <= 136, "{bytes}");
    let ends: u64 = single.server.command(&["PEXPIRETIME", &key]);
    for _ in 0..200 {
        granted(&*store, Ask { want: 1, ..ask }).await;
    }
    let same: u64 = single.server.command(&["PEXPIRETIME", &key]);
    assert_eq!(same, ends, "what is lent does not put the end off");
    single.server.command::<()>(&["CONFIG", "RESETSTAT"]);
    granted(&*store, ask).await;
    assert_eq!(single.server.calls("set") + single.server.calls("del"), 0, "a look writes nothing");
    granted(&*store, Ask { want: u64::MAX, ..ask }).await;
    assert_eq!(single.server.keys(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_value_under_a_pools_key_is_refused_and_kept() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let ask = Ask { pool: Some(0), ..ask_by(ALGORITHMS[0], 1, 0) };
    let key = ask.counter().in_store("");
    for foreign in ["mine", "17", "1:2", "17000000000000005", "12345678901234567:0000000005"] {
        single.server.command::<()>(&["SET", &key, foreign]);
        assert_eq!(one(&*store, putting(ask, 5, 7, MINUTE)).await, Err(StoreError::ForeignValue));
        assert_eq!(single.server.command::<String>(&["GET", &key]), foreign);
    }
    single.server.command::<()>(&["DEL", &key]);
    single.server.command::<()>(&["RPUSH", &key, "mine"]);
    assert_eq!(one(&*store, ask).await, Err(StoreError::ForeignValue));
    // A value without an expiry leases nothing: the end of its leases is unknown.
    single.server.command::<()>(&["DEL", &key]);
    single.server.command::<()>(&["SET", &key, "7:0000000005"]);
    assert_eq!(granted(&*store, ask).await.tokens, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_that_pools_need() {
    let single = Single::start();
    let rights = "reset on >pw ~rl:* resetchannels -@all +auth +evalsha +eval +get +set \
                  +pttl +del";
    let words = ["ACL", "SETUSER", "pools"].into_iter().chain(rights.split_whitespace());
    single.server.command::<()>(&words.collect::<Vec<_>>());
    let mut config = single.config();
    config.login.auth.username = Some("pools".into());
    config.login.auth.password = Some(ratelease_engine::secret::Secret::from("pw"));
    let store = connected(patient(config)).await;
    let ask = Ask { pool: Some(0), ..ask_by(ALGORITHMS[0], 2, 0) };
    for _ in 0..2 {
        granted(&*store, putting(ask, 3, 7, MINUTE)).await;
    }
    assert_eq!(granted(&*store, Ask { want: 9, ..ask }).await.tokens, 2);
}

/// The memory store applies the same arithmetic to a pool as [`step`] does.
#[test]
fn the_step_of_an_ask_that_names_a_pool_is_the_pools() {
    let limit = Limit::fixed_window(10, Unit::Minute);
    let look = Ask { pool: Some(0), want: 2, ..Ask::look(fresh_key(), limit) };
    let ask = putting(look, 5, 7, MINUTE);
    assert_eq!(step(None, 0, &ask).1, pool::step(None, 0, &ask).1);
}
