//! Properties that hold for every algorithm.

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use ratelease_rules::Unit;
use ratelease_rules::key::Key;

use super::*;
use crate::store::{Return, Slots};

pub(super) fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let burst = prop_oneof![0..50u64, any::<u32>().prop_map(u64::from), any::<u64>()];
    let delay = prop_oneof![0..50u32, any::<u32>()];
    (proptest::sample::select(&Algorithm::ALL), burst, delay).prop_map(
        |(algorithm, burst, max_delay_us)| {
            algorithm.with_burst(burst).with_max_delay_us(max_delay_us)
        },
    )
}

pub(super) fn any_limit() -> impl Strategy<Value = Limit> {
    let requests = prop_oneof![0..50u64, any::<u32>().prop_map(u64::from), any::<u64>()];
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
    let slots =
        proptest::option::of((0..4u64, any_amount(), (any::<u32>(), any::<u32>(), any_amount())));
    let flags = (any::<bool>(), any::<bool>());
    let owed = prop_oneof![3 => Just(0), 1 => any_amount()];
    (any_amount(), any_amount(), owed, flags, back, ttl, slots).prop_map(
        move |(want, need, owed, (charge_denied, carry_debt), back, ttl, slots)| {
            let back = back.map(|(tokens, epoch)| Return { tokens, epoch });
            let slots = slots.map(|(pod, held, (order, since, received))| Slots {
                pod,
                held,
                order,
                since,
                received,
            });
            let look = Ask::look(Key::for_test(0), limit);
            Ask { want, need, charge_denied, owed, carry_debt, ttl, back, slots, ..look }
        },
    )
}

/// The largest number of tokens that may be available at once.
fn most(limit: Limit) -> u64 {
    match limit.algorithm {
        Algorithm::LeakyBucket { .. } => gcra::Pace::of(limit).tokens_max,
        _ => limit.capacity().min(AMOUNT_MAX),
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
                prop_assert!(next.ends_at(&ask) < 1 << 53);
            }
            state = Some(next);
        }
    }

    #[test]
    fn a_look_leaves_nothing_to_keep(limit in any_limit(), now in any_time()) {
        let look = Ask::look(Key::for_test(0), limit);
        let (state, grant) = step(None, now, &look);
        prop_assert_eq!(state.ends_at(&look), 0);
        prop_assert_eq!(grant.tokens, 0);
    }

    #[test]
    fn a_state_that_has_ended_says_no_more_than_none(
        limit in any_limit(), now in 1_700_000_000_000_000..1_700_000_003_000_000u64,
        want in 0..20u64, owed in 0..200u64, carry_debt: bool, later in 0..5_000_000u64,
    ) {
        let look = Ask::look(Key::for_test(0), limit);
        let ask = Ask { want, owed, carry_debt, ..look };
        let (state, _) = step(None, now, &ask);
        let ends_us = state.ends_at(&ask) * MICROS_PER_SECOND;
        let after = ends_us.max(now) + later;
        // The store forgets the key, whatever the limit is by then.
        for requests_per_unit in [limit.requests_per_unit, 1, 1_000] {
            // A smaller limit pays off the carried debt in more windows.
            let requests_per_unit = if carry_debt { limit.requests_per_unit } else { requests_per_unit };
            let look = Ask { limit: Limit { requests_per_unit, ..limit }, carry_debt, ..look };
            let (_, with) = step(Some(state.clone()), after, &look);
            let (_, without) = step(None, after, &look);
            prop_assert_eq!(with, without);
        }
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

/// A delay of so many 300 microseconds.
fn delay(amount: u64) -> u32 {
    u32::try_from(amount * 300).unwrap()
}

/// Limits of one key: they differ in their amounts only.
fn any_limits() -> impl Strategy<Value = Vec<Limit>> {
    let amount = || prop_oneof![1..20u64, 1..5_000u64, 1..=9_999u64];
    let windowed = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.has_window());
    let algorithm = proptest::sample::select(windowed.collect::<Vec<_>>());
    let unit = proptest::sample::select(vec![Unit::Second, Unit::Hour, Unit::Year]);
    (algorithm, unit).prop_flat_map(move |(algorithm, unit)| {
        let limit = (amount(), amount()).prop_map(move |(requests_per_unit, amount)| {
            let algorithm = match algorithm {
                // Rules refuse a bucket that takes more than a hundred years to fill, and the part
                // of a token that it may owe beyond them is forgotten.
                Algorithm::TokenBucket { .. } => {
                    Algorithm::token_bucket(amount.min(99 * requests_per_unit))
                }
                // As much as a slot, so that delays weigh in every unit.
                Algorithm::LeakyBucket { .. } => {
                    Algorithm::LeakyBucket { max_delay_us: delay(amount) }
                }
                other => other,
            };
            Limit { algorithm, ..Limit::fixed_window(requests_per_unit, unit) }
        });
        proptest::collection::vec(limit, 2..4)
    })
}

/// Pause in thousandths of the first limit's token, the limit that asks, want, need, and whether a
/// denial is charged.
type ChangingStep = (u64, proptest::sample::Index, u64, u64, bool);

fn any_changing_history() -> impl Strategy<Value = (Vec<Limit>, Vec<ChangingStep>)> {
    let pause = prop_oneof![2 => Just(0), 2 => 0..3_000u64, 1 => 0..90_000u64];
    let amount = || prop_oneof![4 => 0..6u64, 1 => 0..9_000u64];
    let step = (pause, any::<proptest::sample::Index>(), amount(), amount(), any::<bool>());
    (any_limits(), proptest::collection::vec(step, 1..60))
}

const NOON: u64 = 1_700_000_000_250_000;
/// The year 2150. A state holds times until 2554, and a debt takes up to a hundred years.
const LAST_NOON: u64 = 5_680_000_000_250_000;

fn after_pause(now: u64, pause: u64, limits: &[Limit]) -> u64 {
    (now + token_us(limits[0]).max(1) * pause / 1_000).min(LAST_NOON)
}

fn token_us(limit: Limit) -> u64 {
    window_us(limit) / limit.requests_per_unit
}

/// The most tokens that may be lent from `from` to `to` (microseconds), both included, if one limit
/// had the largest amounts of `limits`.
fn most_between(limits: &[Limit], from: u64, to: u64) -> u128 {
    let most = |amount: fn(&Limit) -> u64| u128::from(limits.iter().map(amount).max().unwrap());
    let rate = most(|limit| limit.requests_per_unit);
    let window_us = u128::from(window_us(limits[0]));
    let span = u128::from(to - from);
    match limits[0].algorithm {
        Algorithm::TokenBucket { .. } => most(|limit| limit.capacity()) + span * rate / window_us,
        Algorithm::LeakyBucket { .. } => 1 + span * rate / window_us,
        Algorithm::SlidingLog if span < window_us => rate,
        Algorithm::SlidingLog => u128::MAX,
        // Windows are aligned.
        _ if u128::from(from) / window_us == u128::from(to) / window_us => rate,
        _ => u128::MAX,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Pods in the middle of a reload, or of a rollout, ask one key under different limits.
    #[test]
    fn limits_that_alternate_lend_no_more_than_one_of_the_largest_amounts(
        (limits, history) in any_changing_history()
    ) {
        let (mut now, mut state) = (NOON, None);
        let mut lent: Vec<(u64, u64)> = Vec::new();
        for (pause, which, want, need, charge_denied) in history {
            now = after_pause(now, pause, &limits);
            let limit = *which.get(&limits);
            // Slots are recorded one by one, so they must be few.
            let is_slotted = matches!(limit.algorithm, Algorithm::LeakyBucket { .. });
            let few = if is_slotted { 6 } else { u64::MAX };
            let (want, need) = (want.min(few), need.min(few));
            let ask = Ask { want, need, charge_denied, ..Ask::look(Key::for_test(0), limit) };
            let (next, grant) = step(state, now, &ask);
            state = Some(next);
            if is_slotted {
                // A slot ends at the next one, and begins when it was said to, to the microsecond.
                let starts = u64::try_from(grant.starts_after.as_micros()).unwrap();
                let rate = limit.requests_per_unit;
                let slots = (0..grant.tokens)
                    .map(|nth| now + starts + nth * window_us(limit) / rate);
                lent.extend(slots.map(|at| (at, 1)));
            } else {
                lent.push((now, grant.tokens));
            }
            let mut sum = 0;
            let to = lent.last().map_or(now, |(at, _)| *at);
            for (from, tokens) in lent.iter().rev() {
                sum += u128::from(*tokens);
                // Starts were cut to whole microseconds.
                let slack = u64::from(is_slotted);
                let most = most_between(&limits, *from, to + 2 * slack);
                prop_assert!(sum <= most, "{} of {} since {}", sum, most, from);
            }
        }
    }

    /// The limit is changed and changed back, as often as one likes, while no time passes.
    #[test]
    fn a_limit_that_is_changed_keeps_its_count(
        limits in any_limits(), spent in any::<proptest::sample::Index>(), turns in 1..4usize,
        looks: bool,
    ) {
        let first = limits[0];
        let look = |limit| Ask::look(Key::for_test(0), limit);
        let spent = 1 + spent.index(usize::try_from(most(first)).unwrap()) as u64;
        let (state, grant) = step(None, NOON, &Ask { want: spent, ..look(first) });
        prop_assert_eq!(grant.tokens, spent);
        let mut state = Some(state);
        for _ in 0..turns {
            for limit in limits.iter().copied().rev() {
                let need = if looks { 0 } else { u64::MAX };
                let (next, grant) = step(state, NOON, &Ask { need, ..look(limit) });
                state = Some(next);
                if !matches!(limit.algorithm, Algorithm::LeakyBucket { .. }) {
                    // The part of a token by which a debit was rounded up stays.
                    let left = limit.capacity().saturating_sub(spent);
                    prop_assert!(
                        grant.left <= left && grant.left + 1 >= left,
                        "{} left of {} after {}", grant.left, limit.capacity(), spent
                    );
                }
            }
        }
    }

    /// Whatever asked before: an operator may look at a count as a draft of the rules would.
    #[test]
    fn a_look_leaves_the_state_as_it_is((limits, history) in any_changing_history()) {
        let (mut now, mut state) = (NOON, None);
        for (pause, which, want, need, _) in history {
            now = after_pause(now, pause, &limits);
            let ask = Ask { want, need, ..Ask::look(Key::for_test(0), *which.get(&limits)) };
            let (next, _) = step(state, now, &ask);
            for limit in &limits {
                let (seen, _) = step(Some(next.clone()), now, &Ask::look(ask.key, *limit));
                prop_assert_eq!(&seen, &next, "{:?}", limit);
            }
            state = Some(next);
        }
    }

    /// A pod that has loaded another limit, or not yet, gives back tokens that it leased.
    #[test]
    fn tokens_that_return_under_another_limit_count_as_under_the_one_that_was_asked_last(
        limits in any_limits(), spent in any::<proptest::sample::Index>(), returned in 1..9u64,
    ) {
        let (asked_last, other) = (limits[0], limits[1]);
        if !matches!(asked_last.algorithm, Algorithm::TokenBucket { .. }) {
            return Ok(());
        }
        let look = |limit| Ask::look(Key::for_test(0), limit);
        let spent = 1 + spent.index(usize::try_from(most(asked_last)).unwrap()) as u64;
        let (state, _) = step(None, NOON, &Ask { want: spent, ..look(asked_last) });
        let back = Some(Return { tokens: returned.min(spent), epoch: None });
        let (state, _) = step(Some(state), NOON, &Ask { back, ..look(other) });
        let State::TokenBucket(kept) = &state else { panic!("{state:?}") };
        prop_assert_eq!(kept.requests, asked_last.requests_per_unit);
        let left = asked_last.capacity() - spent + returned.min(spent);
        let seen = step(Some(state), NOON, &look(asked_last)).1.left;
        prop_assert!(seen <= left && seen + 1 >= left, "{} of {}", seen, left);
    }

    /// A token bucket's next token comes within the time of one token of the limit that asks, or of
    /// two if a larger bucket was in debt with more than this one holds. That is so whatever the
    /// earlier limits were. The token does not come before the announced time.
    #[test]
    fn a_changed_limit_acts_at_once_and_says_when(
        (limits, history) in any_changing_history(), others in 0..3u64,
    ) {
        let (mut now, mut state, mut conversions) = (NOON, None, 0);
        let mut before = limits[0];
        let request = |limit| Ask { need: 1, ..Ask::look(Key::for_test(0), limit) };
        for (pause, which, want, ..) in history {
            now = after_pause(now, pause, &limits);
            let limit = *which.get(&limits);
            conversions += u64::from(limit != before);
            before = limit;
            let look = Ask::look(Key::for_test(0), limit);
            // A look writes nothing, so the debt would go on under the limit before.
            let (next, grant) = step(state, now, &Ask { want, ..request(limit) });
            state = Some(next);
            if grant.left > 0 {
                continue;
            }
            let micros = |span: Duration| u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap();
            let after = micros(grant.retry_after);
            if let Algorithm::TokenBucket { .. } = limit.algorithm {
                let is_larger = |other: &Limit| other.capacity() > limit.capacity();
                let tokens = if limits.iter().any(is_larger) { 2 } else { 1 };
                // Each conversion rounds up to a microsecond of the other rate.
                let rate = |limit: &Limit| limit.requests_per_unit;
                let rounded = limits.iter().map(rate).max().unwrap() / rate(&limit);
                let most = tokens * token_us(limit) + 3 + (1 + conversions) * rounded;
                prop_assert!(after <= most, "{} of {}", after, most);
            }
            let mut state = state.clone();
            // Requests that come too early are denied, and do not put it off.
            for other in 1..=others {
                let at = now + after / (others + 1) * other;
                if at < now + after {
                    let (next, grant) = step(state, at, &request(limit));
                    prop_assert_eq!(grant.left, 0);
                    state = Some(next);
                }
            }
            prop_assert_eq!(step(state.clone(), now + after - 1, &look).1.left, 0);
            prop_assert!(step(state, now + after, &look).1.left > 0, "after {}", after);
        }
    }
}

#[test]
fn a_state_is_small() {
    assert!(size_of::<State>() <= 40, "{} bytes", size_of::<State>());
}
