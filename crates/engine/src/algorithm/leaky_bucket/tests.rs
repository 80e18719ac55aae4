//! Checks the slots one by one.

use std::time::Duration;

use proptest::prelude::*;
use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit, Unit};

use super::*;
use crate::store::Return;

const NOON: u64 = 1_700_000_000_250_000;

fn limit(requests_per_unit: u64, max_delay_us: u32, unit: Unit) -> Limit {
    let algorithm = Algorithm::LeakyBucket { max_delay_us };
    Limit { algorithm, ..Limit::fixed_window(requests_per_unit, unit) }
}

fn ask(limit: Limit, want: u64) -> Ask {
    Ask { want, ..Ask::look(Key::for_test(0), limit) }
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let unit = proptest::sample::select(Unit::ALL.to_vec());
    let delay = prop_oneof![Just(0), 0..1_000_000u32, any::<u32>()];
    (prop_oneof![1..20u64, 1..2_000_000u64], delay, unit)
        .prop_map(|(requests, delay, unit)| limit(requests, delay, unit))
}

type Step = (u64, u64, u64, bool);

fn any_history() -> impl Strategy<Value = (Limit, Vec<Step>)> {
    let amount = || prop_oneof![4 => 0..6u64, 1 => 0..300u64];
    let step = (prop_oneof![Just(0), 0..10_000u64], amount(), amount(), any::<bool>());
    (any_limit(), proptest::collection::vec(step, 1..60))
}

fn slot_ns(limit: Limit, at: u64) -> u128 {
    u128::from(at) * limit.window().as_nanos() / u128::from(limit.requests_per_unit)
}

proptest! {
    /// Every slot of a history, in the order they were lent.
    #[test]
    fn slots_are_spaced_and_none_is_later_than_it_may((limit, history) in any_history()) {
        let (mut now, mut state, mut last) = (NOON, None, None);
        let most_ns = match limit.algorithm {
            Algorithm::LeakyBucket { max_delay_us } => u128::from(max_delay_us) * 1_000,
            _ => unreachable!("{limit:?}"),
        };
        for (thousandths, want, need, charge_denied) in history {
            now += u64::try_from(slot_ns(limit, thousandths) / 1_000_000).unwrap();
            let by = Ask { need, charge_denied, ..ask(limit, want) };
            let (next, grant) = step(state, now, &by);
            for at in 0..grant.tokens {
                let delay = grant.starts_after.as_nanos() + slot_ns(limit, at);
                prop_assert!(delay <= most_ns, "slot {} begins after {} ns", at, delay);
                let begins = u128::from(now) * 1_000 + delay;
                if let Some(last) = last {
                    // Each of the two may have lost a fraction of a nanosecond.
                    prop_assert!(begins + 1 >= last + slot_ns(limit, 1), "{} {}", last, begins);
                }
                last = Some(begins);
                let ends = grant.starts_after.as_nanos() + slot_ns(limit, at + 1);
                prop_assert!(grant.ends_after.as_nanos() >= ends + slot_ns(limit, 1));
            }
            state = Some(next);
        }
    }

    #[test]
    fn every_slot_within_the_delay_is_lent((limit, history) in any_history()) {
        let (mut now, mut state) = (NOON, None);
        let pace = Pace::of(limit);
        for (thousandths, want, ..) in history {
            now += u64::try_from(slot_ns(limit, thousandths) / 1_000_000).unwrap();
            let (next, grant) = step(state, now, &ask(limit, want));
            state = Some(next);
            // The first slot that is no longer available would begin too late.
            let first = grant.reset_after.as_nanos() + slot_ns(limit, grant.left);
            let too_late = u128::from(pace.room.0) * u128::from(pace.tick_ns);
            if grant.left < u64::from(u32::MAX) {
                prop_assert!(first + 1 > too_late, "{:?}", grant);
            }
            let (_, then) = step(
                state,
                now + u64::try_from(grant.retry_after.as_nanos().div_ceil(1_000)).unwrap(),
                &ask(limit, 0),
            );
            prop_assert!(then.left >= 1);
        }
    }
}

#[test]
fn lends_a_slot_at_a_time_within_the_delay() {
    let limit = limit(10, 250_000, Unit::Second);
    let (state, grant) = step(None, NOON, &ask(limit, 2));
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (2, 1, false));
    assert_eq!((grant.epoch, grant.starts_after), (NOON, Duration::ZERO));
    assert_eq!(grant.ends_after, Duration::from_millis(300));
    assert_eq!(grant.reset_after, Duration::from_millis(200));
    assert_eq!(grant.retry_after, Duration::ZERO);
    let (state, grant) = step(Some(state), NOON, &ask(limit, 5));
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (1, 0, true));
    assert_eq!(grant.starts_after, Duration::from_millis(200));
    assert_eq!(grant.retry_after, Duration::from_millis(50));
    let (_, grant) = step(Some(state), NOON + 50_000, &ask(limit, 1));
    assert_eq!((grant.tokens, grant.starts_after), (1, Duration::from_millis(250)));
}

#[test]
fn without_a_delay_it_is_one_slot_at_once() {
    let limit = limit(10, 0, Unit::Second);
    let (state, grant) = step(None, NOON, &ask(limit, 7));
    assert_eq!((grant.tokens, grant.left), (1, 0));
    assert_eq!(step(Some(state), NOON + 99_999, &ask(limit, 1)).1.tokens, 0);
    assert_eq!(step(Some(state), NOON + 100_000, &ask(limit, 1)).1.tokens, 1);
}

#[test]
fn a_slot_goes_by_whatever_comes_back_or_is_denied() {
    let limit = limit(10, 250_000, Unit::Second);
    let (state, lent) = step(None, NOON, &ask(limit, 2));
    for epoch in [None, Some(lent.epoch)] {
        let back = Some(Return { tokens: 2, epoch });
        let (after, grant) = step(Some(state), NOON, &Ask { back, ..ask(limit, 0) });
        assert_eq!((after, grant.left), (state, 1));
    }
    let denied = Ask { need: 2, charge_denied: true, ..ask(limit, 0) };
    let (after, grant) = step(Some(state), NOON, &denied);
    assert_eq!((after, grant.tokens, grant.left), (state, 0, 1));
}

#[test]
fn a_rate_of_none_has_no_slot_ever() {
    let limit = limit(0, 250_000, Unit::Minute);
    let (_, grant) = step(None, NOON, &Ask { need: 1, ..ask(limit, 1) });
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (0, 0, true));
    assert_eq!((grant.retry_after, grant.reset_after), (limit.window(), limit.window()));
}
