//! Ticks, their rounding, and the largest values.

use std::num::NonZeroU32;

use proptest::prelude::*;
use ratelease_rules::{Algorithm, Unit};

use super::*;

fn bucket(requests_per_unit: u64, burst: u64, unit: Unit) -> Pace {
    let algorithm = Algorithm::token_bucket(burst);
    Pace::of(Limit { algorithm, ..Limit::fixed_window(requests_per_unit, unit) })
}

fn any_amount() -> impl Strategy<Value = u64> {
    prop_oneof![1..=u64::from(u32::MAX), 1..=AMOUNT_MAX, Just(AMOUNT_MAX)]
}

#[test]
fn the_tick_is_a_nanosecond_unless_the_bucket_takes_too_long_to_fill() {
    assert_eq!(bucket(10, 10, Unit::Second).tick_ns, 1);
    assert_eq!(bucket(1_000_000, 10, Unit::Year).tick_ns, 1, "the capacity counts, not the window");
    let slow = bucket(10, 10, Unit::Year);
    assert_eq!((slow.tick_ns, slow.debt_max), (1_000, 365 * 86_400 * 1_000_000));
}

#[test]
fn a_bucket_of_more_than_a_hundred_years_holds_a_hundred_years() {
    let pace = bucket(1, 1_000, Unit::Year);
    assert_eq!((pace.debt_max, pace.tokens_max), (DEBT_MAX_US, 100));
    assert_eq!((pace.left(0), pace.left(DEBT_MAX_US)), (100, 0));
}

#[test]
fn a_token_may_take_less_than_a_tick() {
    let most = u64::from(u32::MAX);
    let pace = bucket(most, most, Unit::Second);
    assert_eq!(pace.left(0), most);
    assert_eq!((pace.cost(1), pace.cost(5), pace.debt_max), (1, 2, 1_000_000_000));
    // In the last nanosecond 4.29 tokens are earned, and one token was not lent that could have
    // been.
    assert_eq!((pace.left(pace.debt_max - 1), pace.left(1)), (4, most - 5));
}

proptest! {
    /// A double represents exactly every debt that a step can leave.
    #[test]
    fn every_number_is_one_that_a_script_counts_exactly(
        requests in any_amount(), amount in any_amount(), unit in proptest::sample::select(Unit::ALL.to_vec()),
        units in 1..=u32::MAX, leaky: bool, spend: u64,
    ) {
        let algorithm = if leaky {
            Algorithm::LeakyBucket { max_delay_us: u32::try_from(amount).unwrap_or(u32::MAX) }
        } else {
            Algorithm::token_bucket(amount)
        };
        let unit_multiplier = NonZeroU32::new(units).unwrap();
        let of_unit = Limit::fixed_window(requests, unit);
        let limit = Limit { unit_multiplier, algorithm, ..of_unit };
        let pace = Pace::of(limit);
        let exact = 1u64 << 53;
        prop_assert!(pace.debt_max < exact && pace.room.0 <= pace.debt_max);
        prop_assert!(pace.tick_ns == 1_000 || pace.debt_max <= TICKS_MAX);
        prop_assert!(pace.tokens_max <= AMOUNT_MAX);
        let by = Move { want: spend, need: 0, charge_denied: false, owed: 0, back: 0 };
        let (state, moved) = pace.step(None, 1_700_000_000_000_000, by);
        prop_assert!(moved.after <= pace.longest(), "{:?} {:?}", pace, moved);
        prop_assert!(state.tat_ns < 1 << 63);
    }

    #[test]
    fn what_is_left_is_what_can_be_paid(
        requests in any_amount(), burst in any_amount(), debt: u64,
        unit in proptest::sample::select(Unit::ALL.to_vec()),
    ) {
        let pace = bucket(requests, burst, unit);
        let debt = debt % (pace.debt_max + 1);
        let (left, window) = (pace.left(debt), u128::from(pace.window));
        let owed = u128::from(debt) * u128::from(pace.requests);
        let most = u128::from(pace.tokens_max) * window;
        prop_assert!(u128::from(left) * window + owed <= most.max(owed));
        prop_assert!(u128::from(left + 1) * window + owed > most);
        prop_assert!(debt + pace.cost(left) <= pace.debt_max);
    }
}
