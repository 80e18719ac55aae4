//! Properties that hold for every algorithm.

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use ratelease_rules::Unit;
use ratelease_rules::key::Key;

use super::*;
use crate::store::Return;

pub(super) fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let amount = || prop_oneof![0..50u32, any::<u32>()];
    prop_oneof![
        Just(Algorithm::FixedWindow),
        amount().prop_map(|burst| Algorithm::TokenBucket { burst }),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::SlidingLog),
        amount().prop_map(|max_delay_us| Algorithm::LeakyBucket { max_delay_us }),
    ]
}

pub(super) fn any_limit() -> impl Strategy<Value = Limit> {
    let requests = prop_oneof![0..50u32, any::<u32>()];
    let units = prop_oneof![1..10u32, any::<u32>()];
    let unit = proptest::sample::select(Unit::ALL.to_vec());
    (requests, unit, units, any_algorithm()).prop_map(
        |(requests_per_unit, unit, units, algorithm)| Limit {
            unit_multiplier: NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN),
            algorithm,
            ..Limit::fixed_window(requests_per_unit, unit)
        },
    )
}

fn any_time() -> impl Strategy<Value = u64> {
    let near = 1_700_000_000_000_000..1_700_000_003_000_000u64;
    prop_oneof![8 => near, 1 => 0..10_000_000u64, 1 => any::<u64>()]
}

fn any_amount() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..9u64, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn any_ask(limit: Limit) -> impl Strategy<Value = Ask> {
    let back = proptest::option::of((any_amount(), proptest::option::of(any_time())));
    let ttl = prop_oneof![Just(Duration::from_secs(2)), Just(Duration::MAX)];
    (any_amount(), any_amount(), any::<bool>(), back, ttl).prop_map(
        move |(want, need, charge_denied, back, ttl)| {
            let back = back.map(|(tokens, epoch)| Return { tokens, epoch });
            let look = Ask::look(Key::for_test(0), limit);
            Ask { want, need, charge_denied, ttl, back, ..look }
        },
    )
}

/// The largest number of tokens that may be available at once.
fn most(limit: Limit) -> u64 {
    match limit.algorithm {
        Algorithm::LeakyBucket { .. } => gcra::Pace::of(limit).tokens_max,
        _ => limit.capacity(),
    }
}

proptest! {
    /// Clocks that jump, limits that a rule should have refused, and extreme amounts.
    #[test]
    fn any_history_gives_sane_grants(
        steps in (any_limit(), any_limit()).prop_flat_map(|(one, other)| {
            let ask = prop_oneof![any_ask(one), any_ask(other)];
            proptest::collection::vec((any_time(), ask), 1..20)
        })
    ) {
        let mut state = None;
        for (now, ask) in steps {
            let (next, grant) = step(state, now, &ask);
            prop_assert!(grant.tokens <= ask.want.max(ask.need));
            prop_assert!(grant.tokens == 0 || grant.tokens >= ask.need);
            prop_assert!(!(grant.overdrawn && grant.left > 0));
            prop_assert!(grant.left > 0 || grant.retry_after > Duration::ZERO);
            prop_assert!(grant.left == 0 || grant.retry_after == Duration::ZERO);
            // A leaky bucket may have more slots left than one grant can lend.
            let left = match ask.limit.algorithm {
                Algorithm::LeakyBucket { .. } => 0,
                _ => grant.left,
            };
            let most = most(ask.limit);
            prop_assert!(grant.left <= most && grant.tokens.saturating_add(left) <= most);
            if now < 1 << 53 {
                prop_assert!(next.ends_at(ask.limit) < 1 << 53);
            }
            state = Some(next);
        }
    }

    #[test]
    fn a_look_leaves_nothing_to_keep(limit in any_limit(), now in any_time()) {
        let (state, grant) = step(None, now, &Ask::look(Key::for_test(0), limit));
        prop_assert_eq!(state.ends_at(limit), 0);
        prop_assert_eq!(grant.tokens, 0);
    }

    #[test]
    fn a_state_that_has_ended_says_no_more_than_none(
        limit in any_limit(), now in 1_700_000_000_000_000..1_700_000_003_000_000u64,
        want in 0..20u64, later in 0..5_000_000u64,
    ) {
        let look = Ask::look(Key::for_test(0), limit);
        let (state, _) = step(None, now, &Ask { want, ..look });
        let ends_us = state.ends_at(limit) * MICROS_PER_SECOND;
        let after = ends_us.max(now) + later;
        let (_, with) = step(Some(state), after, &look);
        let (_, without) = step(None, after, &look);
        prop_assert_eq!(with, without);
    }

    /// Holds for any earlier charges, in this window or the one before.
    #[test]
    fn no_refund_makes_more_available_than_a_fresh_key_has(
        (limit, asks) in any_limit().prop_flat_map(|limit| {
            (Just(limit), proptest::collection::vec((0..3_000_000u64, any_ask(limit)), 0..9))
        }),
        tokens in any_amount(), ahead: bool,
    ) {
        let (mut now, mut state) = (1_700_000_000_000_000, None);
        for (pause, ask) in asks {
            now += pause;
            state = Some(step(state, now, &Ask { next_window: ahead, ..ask }).0);
        }
        let look = Ask::look(Key::for_test(0), limit);
        let back = Some(Return { tokens, epoch: None });
        let fresh = step(None, now, &look).1.left;
        let (_, grant) = step(state.clone(), now, &Ask { back, ..look });
        prop_assert!(grant.left <= fresh, "{:?}, {} of a fresh key", grant, fresh);
        let (_, grant) = step(state, now, &Ask { back, want: u64::MAX, ..look });
        prop_assert!(grant.tokens <= fresh, "{:?}, {} of a fresh key", grant, fresh);
    }
}

#[test]
fn a_state_is_small() {
    assert!(size_of::<State>() <= 32, "{} bytes", size_of::<State>());
}
