//! Compares the arithmetic with a bucket in exact fractions.

use proptest::prelude::*;
use ratelease_rules::key::Key;
use ratelease_rules::{AMOUNT_MAX, Algorithm, Limit, Unit};

use super::*;

const NOON: u64 = 1_700_000_000_250_000;

fn limit(requests_per_unit: u64, burst: u64, unit: Unit) -> Limit {
    let algorithm = Algorithm::token_bucket(burst);
    Limit { algorithm, ..Limit::fixed_window(requests_per_unit, unit) }
}

fn ask(limit: Limit, want: u64) -> Ask {
    let ttl = Duration::from_secs(2);
    Ask { want, ttl, charge_denied: true, ..Ask::look(Key::for_test(0), limit) }
}

/// A bucket whose content is counted in parts of a token: with as many parts as the window has
/// microseconds, a microsecond adds exactly `requests_per_unit` parts.
struct Exact {
    parts: u128,
    at_us: u64,
    limit: Limit,
    burst: u64,
}

impl Exact {
    fn full(limit: Limit) -> Self {
        let mut exact = Self { parts: 0, at_us: 0, limit, burst: limit.capacity() };
        exact.parts = exact.most();
        exact
    }

    fn token(&self) -> u128 {
        u128::from(self.limit.window_seconds()) * 1_000_000
    }

    fn most(&self) -> u128 {
        u128::from(self.burst) * self.token()
    }

    /// The content that corresponds to a debt of this many nanoseconds.
    fn of_nanos(&self, nanos: u128) -> u128 {
        (nanos * u128::from(self.limit.requests_per_unit)).div_ceil(1_000)
    }

    fn refill(&mut self, now_us: u64) {
        let earned = u128::from(now_us - self.at_us) * u128::from(self.limit.requests_per_unit);
        self.add(earned);
        self.at_us = now_us;
    }

    fn add(&mut self, parts: u128) {
        self.parts = (self.parts + parts).min(self.most());
    }
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let unit = proptest::sample::select(Unit::ALL.to_vec());
    let requests = prop_oneof![1..20u64, 1..2_000_000u64, Just(u32::MAX.into()), Just(AMOUNT_MAX)];
    (requests, prop_oneof![1..20u64, 1..100_000u64, 1..=AMOUNT_MAX], unit).prop_map(
        |(requests, burst, unit)| {
            // A bucket that takes longer to fill is cut.
            let most = (100 * Unit::Year.seconds() / unit.seconds()).saturating_mul(requests);
            limit(requests, burst.min(most), unit)
        },
    )
}

/// Microseconds since the previous ask: thousandths of the time that a token takes, and more.
fn any_pause() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..5_000u64, 0..200_000u64]
}

type Step = (u64, u64, u64, bool, Option<u64>);

fn any_history() -> impl Strategy<Value = (Limit, Vec<Step>)> {
    let amount = || prop_oneof![4 => 0..6u64, 1 => 0..100_000u64];
    let step = (any_pause(), amount(), amount(), any::<bool>(), proptest::option::of(amount()));
    (any_limit(), proptest::collection::vec(step, 1..80))
}

fn pause_us(limit: Limit, thousandths: u64) -> u64 {
    let token_us = limit.window_seconds() * 1_000_000 / limit.requests_per_unit;
    // At most the time until the year 2255, after which times do not fit.
    (token_us.max(1) * thousandths / 1_000).min(10_000_000_000_000)
}

proptest! {
    /// Never more than the exact bucket, and at most a tick less for each ask.
    #[test]
    fn agrees_with_exact_fractions((limit, history) in any_history()) {
        let (mut now, mut state, mut exact) = (NOON, None, Exact::full(limit));
        exact.at_us = now;
        let tick_ns = u128::from(Pace::of(limit).tick_ns);
        for (asks, (pause, want, need, charge_denied, back)) in (1..).zip(history) {
            now += pause_us(limit, pause);
            exact.refill(now);
            let back = back.map(|tokens| Return { tokens, epoch: None });
            let by = Ask { need, charge_denied, back, ..ask(limit, want) };
            let (next, grant) = step(state, now, &by);
            let back = u128::from(back.map_or(0, |back| back.tokens)) * exact.token();
            exact.add(back);
            // Spends in the exact bucket as many tokens as were spent in the tested one.
            let spent = if charge_denied && grant.tokens == 0 && need > 0 && grant.left == 0 {
                let before = Ask { want: u64::MAX, need: 0, ..by };
                step(state, now, &before).1.tokens
            } else {
                grant.tokens
            };
            let cost = u128::from(spent) * exact.token();
            prop_assert!(cost <= exact.parts, "{} were spent of {}", spent, exact.parts);
            exact.parts -= cost;
            prop_assert!(u128::from(grant.left) * exact.token() <= exact.parts);
            // A credit may be rounded too.
            let lost = exact.of_nanos(2 * asks * tick_ns);
            let least = exact.parts.saturating_sub(lost) / exact.token();
            prop_assert!(u128::from(grant.left) >= least, "{} < {}", grant.left, least);
            state = Some(next);
        }
    }

    /// The bucket's guarantee: over any span, at most burst + rate · span.
    #[test]
    fn no_span_admits_more_than_burst_and_rate((limit, history) in any_history()) {
        let (mut now, mut state) = (NOON, None);
        let mut spent: Vec<(u64, u64)> = Vec::new();
        for (pause, want, need, charge_denied, _) in history {
            now += pause_us(limit, pause);
            let by = Ask { need, charge_denied, ..ask(limit, want) };
            let (next, grant) = step(state, now, &by);
            state = Some(next);
            spent.push((now, grant.tokens));
            let window_us = u128::from(limit.window_seconds()) * 1_000_000;
            let mut sum = 0;
            for (at, tokens) in spent.iter().rev() {
                sum += u128::from(*tokens);
                let rate = u128::from(now - at) * u128::from(limit.requests_per_unit);
                let most = u128::from(limit.capacity()) * window_us + rate;
                prop_assert!(sum * window_us <= most, "{} since {}", sum, at);
            }
        }
    }

    #[test]
    fn a_token_comes_when_it_was_said_to((limit, history) in any_history()) {
        let (mut now, mut state) = (NOON, None);
        for (pause, want, ..) in history {
            now += pause_us(limit, pause);
            let (next, grant) = step(state, now, &ask(limit, want));
            state = Some(next);
            let look = ask(limit, 0);
            let micros = |span: Duration| u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap();
            let after = |span| now + micros(span);
            if grant.left == 0 {
                let due = after(grant.retry_after);
                prop_assert!(step(state, due, &look).1.left >= 1);
                prop_assert_eq!(step(state, due - 1, &look).1.left, 0);
            }
            let full = step(state, after(grant.reset_after), &look).1;
            prop_assert_eq!(full.left, limit.capacity());
        }
    }
}

#[test]
fn earns_a_token_at_a_time() {
    let limit = limit(10, 5, Unit::Second);
    let (state, grant) = step(None, NOON, &ask(limit, 9));
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (5, 0, true));
    assert_eq!((grant.epoch, grant.starts_after), (NOON, Duration::ZERO));
    assert_eq!(grant.ends_after, Duration::from_secs(2));
    assert_eq!(grant.retry_after, Duration::from_millis(100));
    assert_eq!(grant.reset_after, Duration::from_millis(500));
    assert_eq!(state.tat_ns, NOON * 1_000 + 500_000_000);
    let (_, grant) = step(Some(state), NOON + 99_999, &ask(limit, 0));
    assert_eq!((grant.left, grant.overdrawn), (0, true));
    let (_, grant) = step(Some(state), NOON + 100_000, &ask(limit, 0));
    assert_eq!((grant.left, grant.overdrawn, grant.retry_after), (1, false, Duration::ZERO));
}

#[test]
fn a_return_is_credited_as_long_as_its_lease_could_last() {
    let limit = limit(1, 10, Unit::Hour);
    let (state, lent) = step(None, NOON, &ask(limit, 10));
    let back = |epoch, now| {
        let back = Some(Return { tokens: 4, epoch });
        step(Some(state), now, &Ask { back, ..ask(limit, 0) }).1.left
    };
    assert_eq!(back(Some(lent.epoch), NOON + 2_000_000), 4);
    assert_eq!(back(Some(lent.epoch), NOON + 2_000_001), 0, "late");
    // The clock was set back a little: two seconds more are owed than the bucket holds, so that one
    // token is beyond it, and is paid first.
    assert_eq!(back(Some(lent.epoch), NOON - 2_000_000), 3);
    for absurd in [0, NOON + 2_000_001, u64::MAX] {
        assert_eq!(back(Some(absurd), NOON), 0, "{absurd}");
    }
    assert_eq!(back(None, NOON + 900_000_000), 4, "a refund is never late");
    let all = Some(Return { tokens: u64::MAX, epoch: None });
    let (state, grant) = step(Some(state), NOON, &Ask { back: all, ..ask(limit, 0) });
    assert_eq!((grant.left, grant.reset_after), (10, Duration::ZERO));
    assert_eq!(state.tat_ns, NOON * 1_000);
}

#[test]
fn a_denied_charge_spends_what_is_left_only_where_it_may() {
    let limit = limit(10, 5, Unit::Minute);
    let denied = Ask { need: 6, ..ask(limit, 0) };
    let (state, grant) = step(None, NOON, &denied);
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (0, 0, true));
    assert_eq!(state.tat_ns, (NOON + 30_000_000) * 1_000);
    let (_, grant) = step(None, NOON, &Ask { charge_denied: false, ..denied });
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (0, 5, false));
}

#[test]
fn a_clock_that_was_set_back_leaves_an_empty_bucket_and_no_more() {
    let limit = limit(10, 5, Unit::Second);
    let (state, _) = step(None, NOON + 3_600_000_000, &ask(limit, 5));
    let (_, grant) = step(Some(state), NOON, &ask(limit, 1));
    assert_eq!((grant.tokens, grant.reset_after), (0, Duration::from_millis(500)));
}

#[test]
fn a_return_under_a_larger_bucket_leaves_what_costs_owe_to_a_smaller_one() {
    let [large, small] = [24, 5].map(|burst| limit(10, burst, Unit::Second));
    let (state, _) = step(None, NOON, &Ask { owed: 26, ..ask(large, 0) });
    let back = Some(Return { tokens: 2, epoch: Some(NOON) });
    let (mut state, grant) = step(Some(state), NOON, &Ask { back, ..ask(large, 0) });
    assert_eq!(grant.left, 0, "24 are owed");
    for (after_us, lent) in [(1_000_000, 0), (1_800_000, 0), (1_900_000, 0), (2_000_000, 1)] {
        let wants = Ask { charge_denied: false, ..ask(small, 1) };
        let grant;
        (state, grant) = step(Some(state), NOON + after_us, &wants);
        assert_eq!(grant.tokens, lent, "after {after_us} us");
    }
}

#[test]
fn a_rate_or_a_bucket_of_none_has_nothing_ever() {
    for limit in [limit(0, 5, Unit::Minute), limit(5, 0, Unit::Minute)] {
        let (state, grant) = step(None, NOON, &Ask { need: 1, ..ask(limit, 1) });
        assert_eq!((grant.tokens, grant.left, grant.overdrawn), (0, 0, true));
        assert_eq!((grant.retry_after, grant.reset_after), (limit.window(), limit.window()));
        assert_eq!(state.tat_ns, 0);
    }
}

/// Neither a limit that lends nothing, nor one whose largest debt of 52 days is less.
#[test]
fn a_limit_in_between_cuts_no_debt_and_keeps_no_key_longer() {
    let day = |requests| ask(limit(requests, requests, Unit::Day), 0);
    for (other, owed) in [(0, 0), (0, 40), (0, 1_000), (1, 1_000), (10, 5_000), (99, 5_200)] {
        let (state, before) = step(None, NOON, &Ask { want: 100, owed, ..day(100) });
        let denied = Ask { need: 1, ..day(other) };
        let (meanwhile, grant) = step(Some(state), NOON + 1, &denied);
        assert_eq!((grant.tokens, grant.left), (0, 0));
        assert_eq!(meanwhile.ends_at(86_400), state.ends_at(86_400), "{other}, {owed}");
        let (_, after) = step(Some(meanwhile), NOON + 2, &Ask { need: 1, ..day(100) });
        let difference = before.retry_after.abs_diff(after.retry_after);
        assert!(difference <= Duration::from_micros(3), "{other}, {owed}: {before:?}, {after:?}");
    }
}

#[test]
fn costs_under_a_limit_of_zero_are_added_to_the_debt() {
    let day = |requests| ask(limit(requests, requests, Unit::Day), 0);
    for owed in [0, 40, 1_000] {
        let (state, _) = step(None, NOON, &Ask { want: 100, owed, ..day(100) });
        let (state, _) = step(Some(state), NOON, &Ask { owed: 200, ..day(0) });
        let back = Some(Return { tokens: 50, epoch: None });
        let (state, _) = step(Some(state), NOON, &Ask { back, ..day(0) });
        let (_, grant) = step(Some(state), NOON, &Ask { need: 1, ..day(100) });
        let days = (owed.max(100) + 200 - 50 - 99) as f64 / 100.0;
        let error = grant.retry_after.as_secs_f64() - days * 86_400.0;
        assert!(error.abs() < 0.001, "{owed}: {grant:?}");
    }
}

#[test]
fn a_clock_set_back_leaves_no_longer_debt_to_a_slower_limit() {
    let day = |requests| ask(limit(requests, requests, Unit::Day), 0);
    let (state, _) = step(None, NOON, &Ask { owed: 1_000, ..day(100) });
    let year_us = 365 * 86_400_000_000;
    let (state, _) = step(Some(state), NOON - year_us, &Ask { need: 1, ..day(1) });
    assert!(state.ends_at(86_400) <= (NOON - year_us) / 1_000_000 + 11 * 86_400);
}
