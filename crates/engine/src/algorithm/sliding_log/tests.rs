//! Compares the log with a recount of every token that was ever lent.

use proptest::prelude::*;
use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Unit};

use super::*;

const NOON: u64 = 1_700_000_000_250_000;

fn limit(requests_per_unit: u64, unit: Unit) -> Limit {
    Limit { algorithm: Algorithm::SlidingLog, ..Limit::fixed_window(requests_per_unit, unit) }
}

fn ask(limit: Limit, want: u64) -> Ask {
    Ask { want, charge_denied: true, ..Ask::look(Key::for_test(0), limit) }
}

fn lent_back(tokens: u64, epoch: u64) -> Option<Return> {
    Some(Return { tokens, epoch: Some(epoch) })
}

type Step = (u64, u64, u64, bool, Option<(u64, Option<usize>)>);

/// Pauses in thousandths of a window; returns of an earlier grant, counted back from the last one.
fn any_history() -> impl Strategy<Value = (Limit, Vec<Step>)> {
    let amount = || prop_oneof![8 => 0..6u64, 1 => any::<u64>()];
    let pause = prop_oneof![Just(0), 0..400u64, 0..1_500u64];
    let back = proptest::option::of((amount(), proptest::option::of(0..4usize)));
    let step = (pause, amount(), amount(), any::<bool>(), back);
    let unit = proptest::sample::select(Unit::ALL.to_vec());
    let limits = (prop_oneof![8 => 0..20u64, 1 => any::<u64>()], unit);
    (limits.prop_map(|(n, unit)| limit(n, unit)), proptest::collection::vec(step, 1..60))
}

proptest! {
    #[test]
    fn agrees_with_a_recount((limit, history) in any_history()) {
        let most = usize::try_from(limit.requests_per_unit.min(ENTRIES_MAX)).unwrap();
        let window_us = limit.window_seconds() * 1_000_000;
        let (mut now, mut state) = (NOON, State::default());
        // Every token that was spent and has not been returned.
        let mut spent: Vec<u64> = Vec::new();
        let mut epochs: Vec<u64> = Vec::new();
        for (pause, want, need, charge_denied, back) in history {
            now += window_us / 1_000 * pause;
            let back = back.map(|(tokens, before)| {
                let of = |before| epochs.iter().rev().nth(before).copied().unwrap_or(now + 1);
                Return { tokens, epoch: before.map(of) }
            });
            let by = Ask { need, charge_denied, back, ..ask(limit, want) };
            let grant = step(&mut state, now, &by);
            let live = |spent: &[u64]| spent.iter().filter(|at| now < *at + window_us).count();
            for _ in 0..back.map_or(0, |back| back.tokens.min(20_000)) {
                let epoch = back.and_then(|back| back.epoch);
                let is_of = |at: &u64| epoch.is_none_or(|of| *at == of) && now < at + window_us;
                let Some(at) = spent.iter().rposition(is_of) else { break };
                spent.remove(at);
            }
            let left = (most - live(&spent)) as u64;
            let tokens = if need <= left { want.max(need).min(left) } else { 0 };
            let charged = if need > left && charge_denied { left } else { tokens };
            spent.extend((0..charged).map(|_| now));
            epochs.push(grant.epoch);
            let after = most - live(&spent);
            prop_assert_eq!((grant.tokens, grant.left), (tokens, after as u64));
            prop_assert_eq!(grant.overdrawn, after == 0);
            prop_assert_eq!(grant.epoch, now);
        }
    }

    #[test]
    fn no_span_of_a_window_admits_more_than_the_limit((limit, history) in any_history()) {
        let window_us = limit.window_seconds() * 1_000_000;
        let (mut now, mut state) = (NOON, State::default());
        let mut lent: Vec<(u64, u64)> = Vec::new();
        for (pause, want, need, charge_denied, _) in history {
            now += window_us / 1_000 * pause;
            let grant = step(&mut state, now, &Ask { need, charge_denied, ..ask(limit, want) });
            lent.push((now, grant.tokens));
            let within = lent.iter().filter(|(at, _)| now - at < window_us);
            let sum: u64 = within.map(|(_, tokens)| tokens).sum();
            prop_assert!(sum <= limit.requests_per_unit);
        }
    }

    #[test]
    fn a_token_comes_when_it_was_said_to((limit, history) in any_history()) {
        let limit = Limit { requests_per_unit: limit.requests_per_unit.max(1), ..limit };
        let (mut now, mut state) = (NOON, State::default());
        let window_us = limit.window_seconds() * 1_000_000;
        for (pause, want, need, charge_denied, _) in history {
            now += window_us / 1_000 * pause;
            let grant = step(&mut state, now, &Ask { need, charge_denied, ..ask(limit, want) });
            let left = |at| step(&mut state.clone(), at, &ask(limit, 0)).left;
            let after = |span: Duration| now + u64::try_from(span.as_micros()).unwrap();
            if grant.left == 0 {
                prop_assert!(left(after(grant.retry_after)) > 0);
                prop_assert_eq!(left(after(grant.retry_after) - 1), 0);
            }
            let full = limit_of(limit);
            prop_assert_eq!(left(after(grant.reset_after)), full);
            if grant.left < full {
                prop_assert!(left(after(grant.reset_after) - 1) < full);
            }
        }
    }
}

#[test]
fn each_token_counts_for_a_windows_length() {
    let limit = limit(3, Unit::Second);
    let mut state = State::default();
    let first = step(&mut state, NOON, &ask(limit, 2));
    assert_eq!((first.tokens, first.left, first.epoch), (2, 1, NOON));
    assert_eq!((first.ends_after, first.reset_after), (limit.window(), limit.window()));
    let second = step(&mut state, NOON + 400_000, &ask(limit, 2));
    assert_eq!((second.tokens, second.left, second.overdrawn), (1, 0, true));
    assert_eq!(second.retry_after, Duration::from_millis(600));
    assert_eq!(second.reset_after, Duration::from_secs(1));
    assert_eq!(step(&mut state, NOON + 999_999, &ask(limit, 0)).left, 0);
    assert_eq!(step(&mut state, NOON + 1_000_000, &ask(limit, 0)).left, 2);
}

#[test]
fn a_second_return_and_a_late_one_credit_nothing() {
    let limit = limit(10, Unit::Second);
    let mut state = State::default();
    let one = step(&mut state, NOON, &ask(limit, 4));
    step(&mut state, NOON + 1, &ask(limit, 4));
    let back = |tokens, epoch| Ask { back: lent_back(tokens, epoch), ..ask(limit, 0) };
    assert_eq!(step(&mut state, NOON + 2, &back(4, one.epoch)).left, 6);
    assert_eq!(step(&mut state, NOON + 2, &back(4, one.epoch)).left, 6, "a second time");
    assert_eq!(step(&mut state, NOON + 1_000_001, &back(4, NOON + 1)).left, 10, "late");
    let refund = Ask { back: Some(Return { tokens: 1, epoch: None }), ..ask(limit, 0) };
    step(&mut state, NOON + 2_000_000, &ask(limit, 2));
    assert_eq!(step(&mut state, NOON + 2_000_000, &refund).left, 9);
}

#[test]
fn entries_keep_their_order_when_the_clock_is_set_back() {
    let limit = limit(4, Unit::Second);
    let mut state = State::default();
    step(&mut state, NOON + 500_000, &ask(limit, 1));
    let earlier = step(&mut state, NOON, &ask(limit, 1));
    assert_eq!((earlier.left, earlier.epoch), (2, NOON + 500_000));
    assert_eq!(step(&mut state, NOON - 400_000, &ask(limit, 0)).left, 2);
    assert_eq!(step(&mut state, NOON - 500_001, &ask(limit, 0)).left, 4, "more than a window");
}

#[test]
fn a_limit_beyond_what_a_log_holds_is_cut() {
    let limit = limit(u64::MAX, Unit::Second);
    let mut state = State::default();
    let grant = step(&mut state, NOON, &ask(limit, u64::MAX));
    assert_eq!((grant.tokens, grant.left), (ENTRIES_MAX, 0));
    assert_eq!(step(&mut state, NOON, &ask(limit, 1)).tokens, 0);
}

#[test]
fn a_lowered_limit_waits_for_as_many_to_leave() {
    let mut state = State::default();
    for at in 0..5 {
        step(&mut state, NOON + at * 100_000, &ask(limit(5, Unit::Second), 1));
    }
    let grant = step(&mut state, NOON + 400_000, &ask(limit(2, Unit::Second), 1));
    assert_eq!((grant.left, grant.retry_after), (0, Duration::from_millis(900)));
    let none = step(&mut state, NOON + 400_000, &ask(limit(0, Unit::Second), 1));
    assert_eq!((none.left, none.retry_after), (0, Duration::from_secs(1)));
}
