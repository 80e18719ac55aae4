//! Compares the estimate with exact fractions, and checks the times that grants name.

use proptest::prelude::*;
use ratelease_rules::key::Key;
use ratelease_rules::{AMOUNT_MAX, Algorithm, Unit};

use super::*;
use crate::store::Return;

/// A quarter of the way into a window of a second.
const NOON: u64 = 1_700_000_000_250_000;

fn limit(requests_per_unit: u64, unit: Unit) -> Limit {
    Limit { algorithm: Algorithm::SlidingWindow, ..Limit::fixed_window(requests_per_unit, unit) }
}

fn ask(limit: Limit, want: u64) -> Ask {
    Ask { want, charge_denied: true, ..Ask::look(Key::for_test(0), limit) }
}

/// Counts of all windows so far, and the estimate in exact arithmetic.
#[derive(Default)]
struct Exact {
    counts: std::collections::BTreeMap<u64, u64>,
}

impl Exact {
    fn count(&self, window: u64) -> u64 {
        self.counts.get(&window).copied().unwrap_or(0)
    }

    /// Limit less estimate, in parts of a token; a token has as many parts as the window's length.
    /// The present is rounded to whole seconds if the window is longer than a day.
    fn left(&self, limit: Limit, now_us: u64) -> u64 {
        let window_us = limit.window_seconds() * 1_000_000;
        let fine = limit.window_seconds() <= 86_400;
        let now_us = if fine { now_us } else { now_us / 1_000_000 * 1_000_000 };
        let window = now_us / window_us;
        let rest = u128::from((window + 1) * window_us - now_us);
        let whole = u128::from(window_us);
        let weighed = u128::from(self.count(window - 1)) * rest;
        let estimate = u128::from(self.count(window)) * whole + weighed;
        let most = u128::from(limit.requests_per_unit) * whole;
        u64::try_from(most.saturating_sub(estimate) / whole).unwrap()
    }
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let unit = proptest::sample::select(Unit::ALL.to_vec());
    (prop_oneof![0..20u64, 0..2_000_000_000u64, 0..=AMOUNT_MAX], unit)
        .prop_map(|(requests, unit)| limit(requests, unit))
}

type Step = (u64, u64, u64, bool, Option<(u64, Option<u64>)>);

/// Pauses in thousandths of a window.
fn any_history() -> impl Strategy<Value = (Limit, Vec<Step>)> {
    let amount =
        || prop_oneof![4 => 0..6u64, 1 => any::<u32>().prop_map(u64::from), 1 => any::<u64>()];
    let pause = prop_oneof![Just(0), 0..400u64, 0..4_000u64];
    let back = proptest::option::of((amount(), proptest::option::of(0..3u64)));
    let step = (pause, amount(), amount(), any::<bool>(), back);
    (any_limit(), proptest::collection::vec(step, 1..60))
}

proptest! {
    #[test]
    fn agrees_with_exact_fractions((limit, history) in any_history()) {
        let (mut now, mut state, mut exact) = (NOON, None, Exact::default());
        for (pause, want, need, charge_denied, back) in history {
            now += limit.window_seconds() * 1_000 * pause;
            let window = now / 1_000_000 / limit.window_seconds();
            let back = back.map(|(tokens, behind)| {
                Return { tokens, epoch: behind.map(|behind| window - behind) }
            });
            let by = Ask { need, charge_denied, back, ..ask(limit, want) };
            let (next, grant) = step(state, now, &by);
            if let Some(back) = back && back.epoch.is_none_or(|of| of == window) {
                let count = exact.counts.entry(window).or_default();
                *count = count.saturating_sub(back.tokens);
            }
            let left = exact.left(limit, now);
            let tokens = if need <= left { want.max(need).min(left) } else { 0 };
            let spent = if need > left && charge_denied { left } else { tokens };
            *exact.counts.entry(window).or_default() += spent;
            prop_assert_eq!((grant.tokens, grant.left), (tokens, exact.left(limit, now)));
            prop_assert_eq!(grant.epoch, window);
            prop_assert_eq!(grant.overdrawn, grant.left == 0);
            state = Some(next);
        }
    }

    #[test]
    fn a_token_comes_when_it_was_said_to((limit, history) in any_history()) {
        let (mut now, mut state) = (NOON, None);
        let limit = Limit { requests_per_unit: limit.requests_per_unit.max(1), ..limit };
        for (pause, want, ..) in history {
            now += limit.window_seconds() * 1_000 * pause;
            let (next, grant) = step(state, now, &ask(limit, want));
            if grant.left == 0 {
                prop_assert!(grant.retry_after <= 2 * limit.window());
                let due = now + u64::try_from(grant.retry_after.as_micros()).unwrap();
                prop_assert!(step(Some(next), due, &ask(limit, 0)).1.left > 0);
                prop_assert_eq!(step(Some(next), due - 1, &ask(limit, 0)).1.left, 0);
            }
            state = Some(next);
        }
    }

    #[test]
    fn no_window_admits_more_than_its_limit((limit, history) in any_history()) {
        let (mut now, mut state) = (NOON, None);
        let mut lent = std::collections::BTreeMap::<u64, u64>::new();
        for (pause, want, need, ..) in history {
            now += limit.window_seconds() * 1_000 * pause;
            let (next, grant) = step(state, now, &Ask { need, ..ask(limit, want) });
            *lent.entry(grant.epoch).or_default() += grant.tokens;
            prop_assert!(lent[&grant.epoch] <= limit.requests_per_unit);
            state = Some(next);
        }
    }
}

#[test]
fn the_last_window_counts_by_what_is_covered_of_it() {
    let limit = limit(10, Unit::Second);
    let (state, grant) = step(None, NOON, &ask(limit, 8));
    assert_eq!((grant.tokens, grant.left, grant.epoch), (8, 2, 1_700_000_000));
    assert_eq!(grant.reset_after, Duration::from_millis(750));
    // A quarter of the way into the next window, three quarters of the eight count.
    let (state, grant) = step(Some(state), NOON + 1_000_000, &ask(limit, 4));
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (4, 0, true));
    assert_eq!(state, State { window: 1_700_000_001, count: 4, previous: 8 });
    // With 0.625 s left, the eight weigh five: then one token is available again.
    assert_eq!(grant.retry_after, Duration::from_millis(125));
    let (state, grant) = step(Some(state), NOON + 3_000_000, &ask(limit, 0));
    assert_eq!((grant.left, state.previous), (10, 0));
}

#[test]
fn a_full_window_waits_for_the_next() {
    let limit = limit(10, Unit::Second);
    let (_, grant) = step(None, NOON, &ask(limit, 10));
    assert_eq!((grant.left, grant.retry_after), (0, Duration::from_millis(850)));
}

#[test]
fn a_master_whose_clock_is_behind_keeps_to_the_window_it_finds() {
    let limit = limit(10, Unit::Second);
    let ahead = State { window: 1_700_000_001, count: 3, previous: 4 };
    let (state, grant) = step(Some(ahead), NOON, &ask(limit, 1));
    assert_eq!((grant.left, grant.epoch), (2, 1_700_000_001));
    assert_eq!(state, State { count: 4, ..ahead });
    assert_eq!(grant.reset_after, Duration::from_millis(1_750));
    let far = State { window: 1_700_000_002, ..ahead };
    assert_eq!(step(Some(far), NOON, &ask(limit, 0)).1.left, 10);
}

#[test]
fn what_comes_back_goes_to_the_window_it_is_of() {
    let limit = limit(10, Unit::Second);
    let (state, lent) = step(None, NOON, &ask(limit, 8));
    let back = |epoch, now| {
        let back = Some(Return { tokens: 3, epoch });
        step(Some(state), now, &Ask { back, ..ask(limit, 0) }).0
    };
    assert_eq!(back(Some(lent.epoch), NOON).count, 5);
    assert_eq!(back(None, NOON).count, 5);
    let next = State { window: lent.epoch + 1, count: 0, previous: 8 };
    assert_eq!(back(Some(lent.epoch), NOON + 1_000_000), next, "late");
    assert_eq!(back(None, NOON + 1_000_000), next, "the present window lent none");
}

#[test]
fn a_limit_beyond_what_is_counted_is_cut() {
    let limit = limit(u64::MAX, Unit::Second);
    let (state, grant) = step(None, NOON, &ask(limit, u64::MAX));
    assert_eq!((grant.tokens, grant.left), (AMOUNT_MAX, 0));
    assert_eq!(state.count, AMOUNT_MAX);
}

#[test]
fn a_limit_of_zero_grants_nothing() {
    let (state, grant) = step(None, NOON, &Ask { need: 1, ..ask(limit(0, Unit::Second), 1) });
    assert_eq!((grant.tokens, grant.left, grant.overdrawn, state.count), (0, 0, true, 0));
    assert_eq!(grant.retry_after, Duration::from_millis(750));
}
