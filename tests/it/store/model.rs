//! Random asks, each compared with the pure arithmetic.

use ratelease_engine::algorithm::{State, Token, counting, fixed_window, sliding_window, step};
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::store::{Ask, Grant, Return, Slots, Store};
use ratelease_rules::key::Key;
use ratelease_rules::{AMOUNT_MAX, Algorithm, Limit, Unit};

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use super::{ask_by, connected, exchange, fresh_key, granted, patient};
use crate::support::redis::{Cluster, Single};
use crate::support::rng::Rng;

/// Number of keys of each algorithm.
const KEYS: usize = 20;
const ROUNDS: usize = 200;
/// Around the digits that the states have room for, and up to the largest.
const LIMITS: [u64; 11] = [
    0,
    1,
    7,
    100,
    1_000_000,
    1_000_000_000,
    u32::MAX as u64,
    10_000_000_000,
    1 << 45,
    AMOUNT_MAX - 6,
    AMOUNT_MAX,
];
const BURSTS: [u64; 9] =
    [1, 2, 7, 100, 3_000_000, u32::MAX as u64, 1 << 33, AMOUNT_MAX - 1, AMOUNT_MAX];
const DELAYS_US: [u32; 5] = [0, 1, 20_000, 3_000_000, u32::MAX];
const MULTIPLIERS: [u32; 4] = [1, 2, 7, 10];
const TTLS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(20), Duration::from_secs(2), Duration::MAX];
/// Pause between rounds, so that they last for some windows of a second.
const PAUSE: Duration = Duration::from_millis(15);

/// A count, and its state by the arithmetic.
struct Count {
    key: Key,
    limit: Limit,
    carries_debt: bool,
    state: Option<State>,
    /// Epochs of its last grants.
    epochs: [u64; 2],
}

#[tokio::test]
async fn memory_agrees_with_the_arithmetic() {
    agrees_with_the_arithmetic(&MemoryStore::system()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_agrees_with_the_arithmetic() {
    // The test checks sums, not speed: it fills logs of 10 000 entries on a machine that may be
    // busy.
    let store = connected(patient(Cluster::shared().config())).await;
    agrees_with_the_arithmetic(&*store).await;
}

/// 20 000 asks. A grant names the store's time to the microsecond, or its window and the rest of
/// it: the arithmetic at that time must give exactly the same grant.
async fn agrees_with_the_arithmetic(store: &dyn Store) {
    let mut rng = Rng::new();
    let mut counts: Vec<_> =
        (0..KEYS).flat_map(|_| Algorithm::ALL).map(|one| Count::new(&mut rng, one)).collect();
    let mut windows = BTreeSet::new();
    for _ in 0..ROUNDS {
        let asks: Vec<_> = counts.iter().map(|count| count.ask(&mut rng)).collect();
        let replies = exchange(store, &asks).await;
        for ((ask, reply), count) in asks.iter().zip(replies).zip(&mut counts) {
            let grant = reply.unwrap_or_else(|error| panic!("{ask:?}: {error}"));
            if is_aligned(ask) && ask.limit.window_seconds() == 1 {
                windows.insert(grant.epoch);
            }
            let before = count.state.clone();
            let (after, expected) = step(count.state.take(), time_of(&grant, ask), ask);
            assert_eq!(grant, expected, "{ask:?} on {before:?}");
            count.state = Some(after);
            count.epochs = [grant.epoch, count.epochs[0]];
        }
        tokio::time::sleep(PAUSE).await;
    }
    let windows = windows.len();
    assert!(windows >= 3, "it saw {windows} windows of a second");
}

/// Amounts whose product with a token's part of a tick has up to 106 bits and is very close to a whole
/// number of ticks, so that a product rounded to a double would be on the wrong side of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_multiplies_exactly() {
    /// Primes, so that every part of a tick has an inverse: below 2^32, 2^33, 2^50 and 2^53.
    const PRIMES: [u64; 4] =
        [4_294_967_291, 8_589_934_583, 1_125_899_906_842_597, 9_007_199_254_740_881];
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for (prime, seconds) in PRIMES.into_iter().flat_map(|prime| (1..=30).map(move |s| (prime, s))) {
        let unit_multiplier = NonZeroU32::new(seconds).unwrap();
        let limit = Limit::fixed_window(prime, Unit::Second);
        let algorithm = Algorithm::token_bucket(prime);
        let limit = Limit { unit_multiplier, algorithm, ..limit };
        let part = limit.window_seconds() * 1_000_000_000 % prime;
        for hair in [1, 2, 700, prime - 1, prime - 700] {
            let want = times(inverse(part, prime), hair, prime);
            let ask = Ask { want, ..Ask::look(fresh_key(), limit) };
            let grant = granted(&*store, ask).await;
            assert_eq!(grant, step(None, grant.epoch, &ask).1, "{ask:?}");
        }
    }
}

fn times(one: u64, other: u64, modulus: u64) -> u64 {
    u64::try_from(u128::from(one) * u128::from(other) % u128::from(modulus)).unwrap()
}

/// The inverse by Fermat: `of` to the power of `prime - 2`.
fn inverse(of: u64, prime: u64) -> u64 {
    let bits = (0..64).rev().map(|bit| (prime - 2) >> bit & 1);
    bits.fold(1, |power, bit| {
        let square = times(power, power, prime);
        if bit == 1 { times(square, of, prime) } else { square }
    })
}

/// Weighs the counts of a previous window: the test writes states that it could not wait for.
#[tokio::test(flavor = "multi_thread")]
async fn a_sliding_window_weighs_the_counts_of_long_windows() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let mut rng = Rng::new();
    for unit in [Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Year] {
        for nth in 0..40 {
            let algorithm = Algorithm::SlidingWindow;
            let most = rng.pick(&[999_999_999, AMOUNT_MAX]);
            let limit = Limit { algorithm, ..Limit::fixed_window(most, unit) };
            let ask = Ask::look(fresh_key(), limit);
            let window = granted(&*store, ask).await.epoch;
            let previous = most - rng.below(1_000 * nth + 1);
            let count = rng.below(1_000_000);
            let of = window % 8 + 1;
            let text = match most {
                AMOUNT_MAX => format!("{of}={count}:{previous}"),
                _ => format!("{of}{count:09}{previous:09}"),
            };
            single.server.command::<()>(&["SET", &ask.key.in_store(""), &text]);
            let grant = granted(&*store, ask).await;
            let state = State::SlidingWindow(sliding_window::State { window, count, previous });
            let (_, expected) = step(Some(state), time_of(&grant, &ask), &ask);
            assert_eq!(grant, expected, "{ask:?} on {text}");
        }
    }
}

/// A master whose clock was ahead began the next window; one whose clock is behind finds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_lies_ahead_is_gone_on_with() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let ahead = |algorithm, window| match algorithm {
        Algorithm::FixedWindow => State::FixedWindow(fixed_window::State {
            window,
            count: 7,
            next: 0,
            is_marked: false,
            pays: 0,
        }),
        _ => State::SlidingWindow(sliding_window::State { window, count: 7, previous: 2 }),
    };
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        for windows in [1, 2] {
            let ask = ask_by((algorithm, Unit::Year), 0, 0);
            let window = granted(&*store, ask).await.epoch + windows;
            let text = match algorithm {
                Algorithm::FixedWindow => format!("{window}{:010}", 7),
                _ => format!("{}{:09}{:09}", window % 8 + 1, 7, 2),
            };
            single.server.command::<()>(&["SET", &ask.key.in_store(""), &text]);
            for want in [0, 1] {
                let ask = Ask { want, ..ask };
                let grant = granted(&*store, ask).await;
                let state = Some(ahead(algorithm, window));
                assert_eq!(grant, step(state, time_of(&grant, &ask), &ask).1, "{text}");
                assert_eq!(grant.epoch == window, windows == 1, "{text}");
            }
        }
    }
}

// === impl Count ===

impl Count {
    fn new(rng: &mut Rng, algorithm: Algorithm) -> Self {
        let unit = if rng.below(2) > 0 { Unit::Second } else { rng.pick(&Unit::ALL) };
        let multiplier = if rng.below(2) > 0 { 1 } else { rng.pick(&MULTIPLIERS) };
        let limit = Limit {
            unit_multiplier: NonZeroU32::new(multiplier).unwrap(),
            ..Limit::fixed_window(rng.pick(&LIMITS), unit)
        };
        let limit = Limit { algorithm: drawn(rng, algorithm), ..limit };
        let carries_debt = rng.below(3) == 0;
        Self { key: fresh_key(), limit, carries_debt, state: None, epochs: [0; 2] }
    }

    fn ask(&self, rng: &mut Rng) -> Ask {
        Ask {
            want: amount(rng),
            need: if rng.below(3) > 0 { 0 } else { amount(rng) },
            charge_denied: rng.below(4) == 0,
            owed: if rng.below(4) == 0 { amount(rng) } else { 0 },
            carry_debt: self.carries_debt && rng.below(4) > 0,
            next_window: rng.below(3) == 0 && counting(self.limit).token == Token::OfWindow,
            ttl: rng.pick(&TTLS),
            back: self.back(rng),
            slots: self.slots(rng),
            ..Ask::look(self.key, self.sometimes_another(rng))
        }
    }

    /// A rule may change while its key is in use, except in properties that give it another key.
    fn sometimes_another(&self, rng: &mut Rng) -> Limit {
        if rng.below(5) > 0 {
            return self.limit;
        }
        let algorithm = drawn(rng, self.limit.algorithm);
        Limit { requests_per_unit: rng.pick(&LIMITS), algorithm, ..self.limit }
    }

    /// What one of a few pods holds, for a count of slots; sometimes none, for a look.
    fn slots(&self, rng: &mut Rng) -> Option<Slots> {
        let is_held = counting(self.limit).token == Token::Permit && rng.below(8) > 0;
        is_held.then(|| {
            let pod = rng.pick(&[0, 1, 1 << 32, u64::MAX]);
            let [order, since] = [0; 2].map(|_| rng.pick(&[0, 0, 0, 1, u32::MAX]));
            Slots { pod, held: amount(rng), order, since, received: amount(rng) }
        })
    }

    fn back(&self, rng: &mut Rng) -> Option<Return> {
        let epoch = match rng.below(8) {
            0 => None,
            1 => Some(rng.next_u64()),
            2..5 => Some(rng.pick(&self.epochs)),
            _ => return None,
        };
        Some(Return { tokens: amount(rng), epoch })
    }
}

/// The algorithm with amounts that are drawn.
fn drawn(rng: &mut Rng, algorithm: Algorithm) -> Algorithm {
    let (burst, max_delay_us) = (rng.pick(&BURSTS), rng.pick(&DELAYS_US));
    algorithm.with_burst(burst).with_max_delay_us(max_delay_us)
}

fn amount(rng: &mut Rng) -> u64 {
    match rng.below(40) {
        0 => u64::MAX,
        1 => rng.next_u64() >> rng.below(64),
        2 => 1 << 32,
        3 => AMOUNT_MAX - rng.below(9),
        4..8 => rng.below(5_000_000),
        _ => rng.below(9),
    }
}

fn is_aligned(ask: &Ask) -> bool {
    counting(ask.limit).is_windowed
}

pub(super) fn time_of(grant: &Grant, ask: &Ask) -> u64 {
    if !is_aligned(ask) {
        return grant.epoch;
    }
    let ends = ask.limit.window_starts(grant.epoch + 1);
    ends - u64::try_from(grant.reset_after.as_micros()).unwrap()
}
