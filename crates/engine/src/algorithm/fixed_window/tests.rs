//! Compares the arithmetic with an oracle that keeps every hit.

use std::mem::take;

use proptest::prelude::*;
use ratelease_rules::key::Key;
use ratelease_rules::{AMOUNT_MAX, Limit, Unit};

use super::*;
use crate::store::Return;

const NOON: u64 = 1_700_000_000_250_000;

fn ask(requests_per_unit: u64, want: u64, need: u64) -> Ask {
    let limit = Limit::fixed_window(requests_per_unit, Unit::Second);
    Ask { want, need, charge_denied: true, ..Ask::look(Key::for_test(0), limit) }
}

/// A pile of single tokens, handled one at a time: slow, and too simple to be wrong.
#[derive(Default)]
struct Pile {
    window: u64,
    tokens: Vec<()>,
    overdrawn: bool,
    /// Tokens of the next window.
    next: Vec<()>,
}

impl Pile {
    fn take(&mut self, now_us: u64, ask: &Ask) -> (u64, u64, bool) {
        let limit = usize::try_from(ask.limit.requests_per_unit).unwrap();
        let window = now_us / 1_000_000 / ask.limit.unit.seconds();
        if window != self.window {
            let begins = window == self.window + 1 && self.window > 0;
            let tokens = if begins { take(&mut self.next) } else { vec![(); limit] };
            *self = Pile { window, tokens, overdrawn: false, next: vec![(); limit] };
        }
        if let Some(back) = ask.back {
            let ahead = back.epoch == Some(window + 1);
            if back.epoch.is_none() || back.epoch == Some(window) {
                self.overdrawn = false;
                put_back(&mut self.tokens, back.tokens, limit);
            } else if ahead {
                put_back(&mut self.next, back.tokens, limit);
            }
        }
        let tokens = if ask.next_window { &mut self.next } else { &mut self.tokens };
        let mut taken = 0;
        if (tokens.len() as u64) < ask.need {
            if ask.charge_denied && !ask.next_window {
                tokens.clear();
                self.overdrawn = true;
            }
        } else {
            while taken < ask.want.max(ask.need) && tokens.pop().is_some() {
                taken += 1;
            }
        }
        let left = if ask.next_window { &self.next } else { &self.tokens };
        (taken, left.len() as u64, self.overdrawn && !ask.next_window)
    }
}

fn put_back(tokens: &mut Vec<()>, back: u64, limit: usize) {
    for _ in 0..back {
        if tokens.len() == limit {
            break;
        }
        tokens.push(());
    }
}

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..8u64, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

/// An ask in a history: microseconds since the one before, and how many windows before the next
/// window the one lies that its return names.
fn any_step(limit: u64, unit: Unit) -> impl Strategy<Value = (u64, Ask, Option<u64>)> {
    let back = proptest::option::of((amount(), proptest::option::of(0..4u64)));
    let pause = 0..unit.seconds() * 400_000;
    (pause, amount(), amount(), any::<(bool, bool)>(), back).prop_map(
        move |(pause, want, need, (charge_denied, ahead), back)| {
            let mut ask = Ask { next_window: ahead, ..ask(limit, want, need) };
            ask.limit.unit = unit;
            ask.charge_denied = charge_denied;
            ask.back = back.map(|(tokens, _)| Return { tokens, epoch: None });
            (pause, ask, back.and_then(|(_, behind)| behind))
        },
    )
}

fn any_unit() -> impl Strategy<Value = Unit> {
    proptest::sample::select(Unit::ALL.to_vec())
}

fn any_history() -> impl Strategy<Value = Vec<(u64, Ask, Option<u64>)>> {
    (0..20u64, any_unit())
        .prop_flat_map(|(limit, unit)| proptest::collection::vec(any_step(limit, unit), 1..60))
}

proptest! {
    #[test]
    fn agrees_with_a_pile_of_tokens(history in any_history()) {
        let (mut now, mut state, mut pile) = (NOON, None, Pile::default());
        for (pause, mut ask, behind) in history {
            now += pause;
            let window = now / 1_000_000 / ask.limit.unit.seconds();
            if let (Some(back), Some(behind)) = (&mut ask.back, behind) {
                back.epoch = Some(window + 1 - behind);
            }
            let (next, grant) = step(state, now, &ask);
            prop_assert_eq!((grant.tokens, grant.left, grant.overdrawn), pile.take(now, &ask));
            prop_assert_eq!(grant.epoch, window + u64::from(ask.next_window));
            state = Some(next);
        }
    }

    #[test]
    fn tokens_out_never_exceed_the_limit(
        limit in 0..50u64,
        steps in proptest::collection::vec((0..400_000u64, 0..40u64, 0..4u64, 0..40u64), 1..200),
    ) {
        // Pods give back only tokens that they hold, so the tokens held in a window stay within the
        // limit.
        let (mut now, mut state, mut out, mut of) = (NOON, None, 0, 0);
        for (pause, want, need, back) in steps {
            now += pause;
            let window = now / 1_000_000;
            let mut ask = ask(limit, want, need);
            let back = back.min(out);
            ask.back = Some(Return { tokens: back, epoch: Some(of) });
            let (next, grant) = step(state, now, &ask);
            out = if window == of { out - back } else { 0 } + grant.tokens;
            prop_assert!(out <= limit, "{} out of {}", out, limit);
            (state, of) = (Some(next), window);
        }
    }

    #[test]
    fn any_input_gives_a_sane_grant(
        now: u64, (window, count, next) in any::<(u64, u64, u64)>(), limit: u64,
        want: u64, need: u64,
        (charge_denied, ahead, same_window) in any::<(bool, bool, bool)>(),
        (is_marked, pays, carry_debt) in any::<(bool, u64, bool)>(),
        back: Option<(u64, Option<u64>)>, unit in any_unit(),
    ) {
        let limit = Limit::fixed_window(limit, unit);
        let back = back.map(|(tokens, window)| Return { tokens, epoch: window });
        let look = Ask::look(Key::for_test(0), limit);
        let ask = Ask { want, need, charge_denied, back, next_window: ahead, ..look };
        let window = if same_window { now / 1_000_000 / unit.seconds() } else { window };
        let ask = Ask { carry_debt, ..ask };
        let state = State { window, count, next, is_marked, pays };
        let (state, grant) = step(Some(state), now, &ask);
        let most = limit.requests_per_unit.min(AMOUNT_MAX);
        prop_assert!(grant.tokens <= want.max(need) && grant.tokens <= most);
        prop_assert!(grant.tokens == 0 || grant.tokens >= need);
        prop_assert!(grant.left + grant.tokens <= most);
        prop_assert!(grant.reset_after > Duration::ZERO && grant.reset_after <= 3 * limit.window());
        let is_overdrawn = state.count > most || state.is_overdrawn_by_mark(most);
        prop_assert_eq!(grant.overdrawn, is_overdrawn && !ahead);
        prop_assert_eq!(grant.epoch, state.window.saturating_add(ahead.into()));
        prop_assert!(grant.starts_after < grant.ends_after);
    }
}

#[test]
fn grants_no_more_than_is_left() {
    let (state, grant) = step(None, NOON, &ask(10, 4, 0));
    assert_eq!((grant.tokens, grant.left), (4, 6));
    assert_eq!(grant.epoch, 1_700_000_000);
    assert_eq!(grant.reset_after, Duration::from_micros(750_000));
    let (_, grant) = step(Some(state), NOON, &ask(10, u64::MAX, 0));
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (6, 0, false));
}

#[test]
fn a_denied_charge_overdraws_only_where_it_may() {
    let denied = ask(10, 0, 11);
    let (state, grant) = step(None, NOON, &denied);
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (0, 0, true));
    assert_eq!((state.count, state.is_marked), (10, true));
    let (state, grant) = step(None, NOON, &Ask { charge_denied: false, ..denied });
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (0, 10, false));
    assert_eq!(state.count, 0);
}

#[test]
fn the_last_microsecond_belongs_to_the_window() {
    let (state, grant) = step(None, 1_999_999, &ask(3, 3, 0));
    assert_eq!((grant.epoch, grant.reset_after), (1, Duration::from_micros(1)));
    let (_, grant) = step(Some(state), 2_000_000, &ask(3, 1, 0));
    assert_eq!((grant.epoch, grant.left, grant.reset_after), (2, 2, Duration::from_secs(1)));
}

#[test]
fn a_limit_of_zero_grants_nothing_and_a_look_at_it_is_no_charge() {
    let (_, grant) = step(None, NOON, &ask(0, 5, 0));
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (0, 0, false));
    let (_, grant) = step(None, NOON, &ask(0, 1, 1));
    assert!(grant.overdrawn);
}

#[test]
fn the_largest_limit_can_be_overdrawn() {
    let (state, grant) = step(None, NOON, &ask(AMOUNT_MAX, 0, u64::MAX));
    assert!(grant.overdrawn);
    assert_eq!((state.count, state.is_marked), (AMOUNT_MAX, true));
}

#[test]
fn a_master_whose_clock_is_behind_keeps_to_the_window_it_finds() {
    let ahead = State { window: 1_700_000_001, count: 7, next: 0, is_marked: false, pays: 0 };
    let (state, grant) = step(Some(ahead), NOON, &ask(10, 1, 0));
    assert_eq!((state.count, grant.left, grant.epoch), (8, 2, ahead.window));
    assert_eq!(grant.reset_after, Duration::from_micros(1_750_000));
    let far = State { window: 1_700_000_002, count: 7, next: 0, is_marked: false, pays: 0 };
    assert_eq!(step(Some(far), NOON, &ask(10, 1, 0)).1.left, 9, "a clock gone wrong");
}

fn ahead(ask: Ask) -> Ask {
    Ask { next_window: true, ..ask }
}

#[test]
fn the_next_window_starts_at_what_was_lent_ahead() {
    let (state, grant) = step(None, NOON, &ahead(ask(10, 4, 0)));
    assert_eq!((grant.tokens, grant.left, grant.epoch), (4, 6, 1_700_000_001));
    assert_eq!(grant.starts_after, Duration::from_millis(750));
    assert_eq!(grant.ends_after, Duration::from_millis(1_750));
    assert_eq!((grant.reset_after, grant.overdrawn), (grant.ends_after, false));
    let (state, grant) = step(Some(state), NOON, &ask(10, 7, 0));
    assert_eq!((grant.tokens, grant.left, grant.epoch), (7, 3, 1_700_000_000), "the present one");
    assert_eq!(grant.starts_after, Duration::ZERO);
    let (state, grant) = step(Some(state), NOON + 750_000, &ask(10, u64::MAX, 0));
    assert_eq!((grant.tokens, grant.left, grant.epoch), (6, 0, 1_700_000_001));
    assert_eq!(
        state,
        State { window: 1_700_000_001, count: 10, next: 0, is_marked: false, pays: 0 }
    );
    let (_, grant) = step(Some(state), NOON + 1_750_000, &ask(10, 0, 0));
    assert_eq!(grant.left, 10, "two windows on, nothing is left of either");
}

#[test]
fn a_lease_ahead_lasts_no_longer_than_it_may_from_its_start() {
    let ttl = Duration::from_millis(20);
    let (_, grant) = step(None, NOON, &Ask { ttl, ..ahead(ask(10, 4, 0)) });
    assert_eq!(grant.ends_after, Duration::from_millis(770));
}

#[test]
fn a_return_goes_to_the_window_that_it_names() {
    let (state, _) = step(None, NOON, &ask(10, 4, 0));
    let (state, _) = step(Some(state), NOON, &ahead(ask(10, 4, 0)));
    for (behind, count, next) in [(0, 4, 1), (1, 1, 4), (2, 4, 4)] {
        let back = Some(Return { tokens: 3, epoch: Some(1_700_000_001 - behind) });
        let (after, _) = step(Some(state), NOON, &Ask { back, ..ask(10, 0, 0) });
        assert_eq!((after.count, after.next), (count, next));
    }
    let refund = Some(Return { tokens: u64::MAX, epoch: None });
    let (after, _) = step(Some(state), NOON, &Ask { back: refund, ..ahead(ask(10, 0, 0)) });
    assert_eq!((after.count, after.next), (0, 4), "a refund is of the present window");
}

#[test]
fn a_denial_ahead_marks_neither_window() {
    let (state, _) = step(None, NOON, &ahead(ask(10, 4, 0)));
    let (state, grant) = step(Some(state), NOON, &ahead(ask(10, 0, 7)));
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (0, 6, false));
    assert_eq!(grant.retry_after, Duration::ZERO);
    assert_eq!((state.count, state.next), (0, 4));
    let (state, grant) = step(Some(state), NOON, &ask(10, 0, 11));
    assert_eq!((state.count, state.next), (10, 4), "a denial now marks the present one");
    assert!(grant.overdrawn);
    let (state, grant) = step(Some(state), NOON, &ahead(ask(10, 6, 0)));
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (6, 0, false));
    assert_eq!(grant.retry_after, Duration::from_millis(1_750));
    let (_, grant) = step(Some(state), NOON + 750_000, &ask(10, 0, 0));
    assert_eq!((grant.left, grant.overdrawn), (0, false));
}

#[test]
fn a_clock_behind_distinguishes_a_lease_ahead_from_a_window_that_has_begun() {
    // Lent ahead of a window by a master whose clock is right; a master whose clock is a window
    // behind takes over.
    let (state, _) = step(None, NOON, &ahead(ask(10, 4, 0)));
    let (state, grant) = step(Some(state), NOON - 1_000_000, &ask(10, 1, 0));
    assert_eq!((grant.left, grant.epoch), (9, 1_700_000_000), "the window it found goes on");
    let (state, grant) = step(Some(state), NOON - 1_000_000, &ahead(ask(10, 1, 0)));
    assert_eq!((grant.left, grant.epoch), (5, 1_700_000_001));
    let (_, grant) = step(Some(state), NOON + 1_000_000, &ask(10, 0, 0));
    assert_eq!((grant.left, grant.epoch), (5, 1_700_000_001));
}

#[test]
fn a_debt_is_carried_over_a_window_that_only_leases_from_before_drew_on() {
    let window = NOON / 1_000_000;
    let state = State { window, count: 150, next: 100, is_marked: false, pays: 100 };
    let ask = Ask { carry_debt: true, ..ask(100, 100, 0) };
    // Window + 1 was charged 100 (leased ahead) and the 50 carried: 50 are left for window + 2.
    let step_by_step = step(
        Some(step(Some(state), NOON + 1_000_000, &Ask { want: 0, ..ask }).0),
        NOON + 2_000_000,
        &ask,
    )
    .1;
    let at_once = step(Some(state), NOON + 2_000_000, &ask).1;
    assert_eq!(step_by_step.tokens, 50);
    assert_eq!(at_once.tokens, 50);
}

#[test]
fn a_debt_with_tokens_leased_ahead_is_kept_until_it_is_paid() {
    let window = NOON / 1_000_000;
    let state = State { window, count: 150, next: 100, is_marked: false, pays: 100 };
    let ask = Ask { carry_debt: true, ..ask(100, 0, 0) };
    assert_eq!(state.ends_at(&ask), window + 3, "150 and 100 take three windows");
}

/// Then the store forgets it, whatever remains.
#[test]
fn a_debt_that_is_not_paid_in_a_century_is_forgotten_with_its_last_window() {
    let limit = Limit {
        unit_multiplier: 20_345_807.try_into().unwrap(),
        ..Limit::fixed_window(1, Unit::Second)
    };
    let look = Ask { carry_debt: true, ..Ask::look(Key::for_test(0), limit) };
    let (state, _) = step(None, NOON, &Ask { owed: 156, ..look });
    let end = state.ends_at(&look) * 1_000_000;
    let left = |at| step(Some(state), at, &look).1.left;
    assert_eq!([left(end - 1), left(end)], [0, 1]);
}

#[test]
fn a_reply_that_does_not_count_what_is_owed_is_refused() {
    let window = NOON / 1_000_000;
    let ask = Ask { owed: 50, ..ask(10, 0, 0) };
    assert!(reply(&ask, &[0, NOON, window, 0, 0, 0, 0]).is_none());
}

#[test]
fn a_cost_of_one_beyond_the_limit_stays_counted_when_tokens_come_back() {
    let owed = |owed| Ask { owed, ..ask(10, 0, 0) };
    let back = |tokens| {
        let back = Some(Return { tokens, epoch: Some(NOON / 1_000_000) });
        Ask { back, ..ask(10, 0, 0) }
    };
    for (asks, left) in [
        (vec![ask(10, 10, 0), owed(1), back(3)], 2),
        (vec![ask(10, 10, 0), owed(1), ask(10, 0, 1), back(3)], 2),
        (vec![ask(10, 10, 0), owed(1), ahead(ask(10, 2, 0)), back(3)], 2),
        (vec![ask(10, 10, 0), Ask { owed: 1, ..back(0) }, back(3)], 2),
        (vec![ask(10, 10, 0), ask(10, 0, 1), owed(1), back(3)], 2),
        (vec![ask(10, 10, 0), ask(10, 0, 1), owed(2), back(3)], 1),
        (vec![ask(10, 10, 0), ask(10, 0, 1), back(3)], 3),
    ] {
        let stepped = asks.iter().fold(None, |state: Option<(State, Grant)>, ask| {
            Some(step(state.map(|(state, _)| state), NOON, ask))
        });
        assert_eq!(stepped.unwrap().1.left, left, "{asks:?}");
    }
}

#[test]
fn a_debt_that_a_later_window_begins_with_is_no_mark() {
    let ask = Ask { carry_debt: true, ..ask(10, 0, 0) };
    let (state, _) = step(None, NOON, &Ask { owed: 21, ..ask });
    let later = NOON + 1_000_000;
    let back = Some(Return { tokens: 3, epoch: Some(later / 1_000_000) });
    let (state, _) = step(Some(state), later, &ask);
    assert_eq!(step(Some(state), later, &Ask { back, ..ask }).1.left, 2, "11 of 10, and 3 back");
}

#[test]
fn the_mark_of_a_denial_is_not_carried_into_the_next_window() {
    let carry = |ask| Ask { carry_debt: true, ..ask };
    let (state, _) = step(None, NOON, &carry(ask(1, 1, 0)));
    let denied = carry(ask(1, 0, 1));
    let (state, grant) = step(Some(state), NOON, &denied);
    assert!(grant.overdrawn);
    assert_eq!(step(Some(state), NOON, &carry(ahead(ask(1, 1, 0)))).1.tokens, 1);
    let (state, grant) = step(Some(state), NOON + 1_000_000, &denied);
    assert_eq!((grant.tokens, grant.overdrawn), (1, false), "{state:?}");
}

#[test]
fn a_lease_of_a_larger_limit_stays_counted_when_a_cost_comes() {
    let (state, _) = step(None, NOON, &ask(10, 3, 0));
    let (state, _) = step(Some(state), NOON, &Ask { owed: 1, ..ask(2, 0, 0) });
    assert_eq!(step(Some(state), NOON, &ask(10, 0, 0)).1.left, 6);
}

#[test]
fn a_return_under_a_lowered_limit_frees_no_more_than_came_back() {
    for (lowered, left) in [(100, 1), (99, 0), (98, 0)] {
        let (state, _) = step(None, NOON, &ask(100, 100, 0));
        let back = Some(Return { tokens: 1, epoch: Some(NOON / 1_000_000) });
        let (_, grant) = step(Some(state), NOON, &Ask { back, ..ask(lowered, 0, 0) });
        assert_eq!(grant.left, left, "{lowered}");
    }
}

#[test]
fn the_mark_of_a_denial_takes_no_token_of_a_raised_limit() {
    let (state, _) = step(None, NOON, &ask(10, 10, 0));
    let (state, grant) = step(Some(state), NOON, &ask(10, 0, 1));
    assert!(grant.overdrawn);
    let (state, grant) = step(Some(state), NOON, &ask(20, 0, 0));
    assert_eq!((grant.left, grant.overdrawn), (10, false));
    assert!(step(Some(state), NOON, &ask(10, 0, 0)).1.overdrawn, "a look has changed nothing");
}

fn carrying(ask: Ask) -> Ask {
    Ask { carry_debt: true, ..ask }
}

fn at_window(windows: u64) -> u64 {
    NOON + windows * 1_000_000
}

#[test]
fn a_denial_names_the_window_in_which_a_debt_leaves_a_token() {
    for (owed, windows) in [(10, 1), (15, 1), (19, 1), (20, 2), (100, 10), (105, 10)] {
        let ask = carrying(ask(10, 0, 0));
        let (state, grant) = step(None, NOON, &Ask { owed, ..ask });
        let until = Duration::from_micros(windows * 1_000_000 - 250_000);
        assert_eq!((grant.left, grant.retry_after), (0, until), "{owed}");
        assert_eq!(grant.reset_after, Duration::from_micros(750_000), "the window's end");
        let left = |windows| step(Some(state), at_window(windows), &ask).1.left;
        assert!(left(windows) > 0 && left(windows - 1) == 0, "{owed}");
    }
}

#[test]
fn a_limit_of_zero_forgets_no_debt() {
    for (owed_before, owed_meanwhile) in [(100, 0), (100, 1), (0, 100), (5, 100)] {
        let usual = carrying(ask(10, 0, 0));
        let zero = carrying(ask(0, 0, 0));
        let (state, _) = step(None, NOON, &Ask { owed: owed_before, ..usual });
        let suspended =
            |windows| Ask { owed: if windows == 2 { owed_meanwhile } else { 0 }, ..zero };
        let state = (1..=3).fold(state, |state, windows| {
            let ask = Ask { need: 1, ..suspended(windows) };
            let (state, grant) = step(Some(state), at_window(windows), &ask);
            assert_eq!(grant.left, 0);
            state
        });
        let (state, grant) = step(Some(state), at_window(4), &Ask { need: 1, ..usual });
        assert_eq!((grant.tokens, grant.left), (0, 0), "{owed_before} and {owed_meanwhile}");
        let ends = state.ends_at(&usual);
        assert!((at_window(9)..=at_window(16)).contains(&(ends * 1_000_000)), "{ends}");
    }
}

#[test]
fn an_ask_that_carries_no_debt_leaves_that_of_the_rule() {
    for requests in [0, 3, 10, 50] {
        let rule = carrying(ask(10, 0, 0));
        let (state, _) = step(None, NOON, &Ask { owed: 100, ..rule });
        let (state, _) = step(Some(state), at_window(1), &Ask { want: 1, ..ask(requests, 1, 1) });
        let (state, _) = step(Some(state), at_window(2), &Ask { owed: 1, ..ask(requests, 0, 0) });
        let left = |windows| step(Some(state), at_window(windows), &rule).1.left;
        assert_eq!([left(3), left(9)], [0, 0], "{requests}");
        assert!(left(11) > 0, "{requests}: each window pays ten");
    }
}

#[test]
fn what_was_charged_without_a_debt_to_carry_ends_with_its_window() {
    let (state, _) = step(None, NOON, &Ask { owed: 100, ..ask(10, 0, 0) });
    assert_eq!(step(Some(state), at_window(1), &ask(10, 0, 0)).1.left, 10);
    assert_eq!(state.ends_at(&ask(10, 0, 0)), NOON / 1_000_000 + 1);
}

#[test]
fn a_rule_that_begins_to_carry_debts_carries_its_present_count() {
    let (state, _) = step(None, NOON, &Ask { owed: 100, ..ask(10, 0, 0) });
    let (state, grant) = step(Some(state), NOON, &carrying(ask(10, 1, 1)));
    assert_eq!(grant.retry_after, Duration::from_micros(9_750_000));
    assert_eq!(step(Some(state), at_window(9), &carrying(ask(10, 0, 0))).1.left, 0);
}

proptest! {
    /// Whatever the limits were meanwhile.
    #[test]
    fn a_look_in_each_window_changes_no_debt(
        asks in proptest::collection::vec((0..30u64, 0..200u64, any::<bool>(), 0..3u64), 1..8),
        limit in 0..30u64, later in 0..40u64,
    ) {
        let (mut now, mut state) = (NOON, None);
        for (limit, owed, carry_debt, pause) in asks {
            now += pause * 1_000_000;
            state = Some(step(state, now, &Ask { owed, carry_debt, ..ask(limit, 1, 0) }).0);
        }
        let look = carrying(ask(limit, 0, 0));
        let at_once = step(state, now + later * 1_000_000, &look).1;
        for _ in 0..later {
            state = Some(step(state, now, &look).0);
            now += 1_000_000;
        }
        prop_assert_eq!(step(state, now, &look).1, at_once);
    }

    #[test]
    fn a_token_is_left_when_a_denial_says_and_not_before(
        asks in proptest::collection::vec((1..30u64, 0..200u64, any::<bool>(), 0..3u64), 1..8),
        limit in 1..30u64, carry_debt: bool,
    ) {
        let (mut now, mut state) = (NOON, None);
        for (limit, owed, carry_debt, pause) in asks {
            now += pause * 1_000_000;
            state = Some(step(state, now, &Ask { owed, carry_debt, ..ask(limit, 1, 0) }).0);
        }
        let charge = Ask { carry_debt, charge_denied: false, ..ask(limit, 1, 1) };
        let (state, grant) = step(state, now, &charge);
        if grant.left == 0 {
            let after = u64::try_from(grant.retry_after.as_micros()).unwrap();
            let left = |at| step(Some(state), at, &Ask { want: 0, need: 0, ..charge }).1.left;
            prop_assert!(left(now + after) > 0, "{state:?}");
            prop_assert_eq!(left(now + after - 1), 0, "{:?}", state);
        }
    }
}
