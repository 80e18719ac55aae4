//! Compares a pool with a pile of tokens, each with its own end.

use proptest::prelude::*;
use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit, Unit};

use super::*;
use crate::ask::{Deposit, Return};

const NOON: u64 = 1_700_000_000_250_000;

/// A second, for the lengths of leases.
const SECOND: Duration = Duration::from_secs(1);

fn look(algorithm: Algorithm) -> Ask {
    let limit = Limit { algorithm, ..Limit::fixed_window(10, Unit::Minute) };
    Ask { pool: Some(0), ..Ask::look(Key::for_test(0), limit) }
}

fn windowed() -> Ask {
    look(Algorithm::FixedWindow)
}

fn timed() -> Ask {
    look(Algorithm::token_bucket(5))
}

fn putting(ask: Ask, tokens: u64, epoch: u64, lasts: Duration) -> Ask {
    Ask { deposit: Some(Deposit { tokens, epoch, lasts }), ..ask }
}

fn any_step() -> impl Strategy<Value = (u64, Ask)> {
    let amount = || prop_oneof![8 => 0..9u64, 1 => Just(u64::MAX), 1 => any::<u64>()];
    let lasts = prop_oneof![8 => 0..3_000_000u64, 1 => any::<u64>()];
    let deposit = proptest::option::of((amount(), 0..4u64, lasts));
    (0..900_000u64, amount(), amount(), deposit, any::<bool>()).prop_map(
        |(pause, want, need, deposit, charge_denied)| {
            let deposit = deposit.map(|(tokens, epoch, lasts)| Deposit {
                tokens,
                epoch,
                lasts: Duration::from_micros(lasts),
            });
            (pause, Ask { want, need, deposit, charge_denied, ..windowed() })
        },
    )
}

proptest! {
    /// Tokens are put in with an end and an epoch. No token is lent twice, or may be spent after
    /// its end, and with windows none is lent under another epoch.
    #[test]
    fn lends_what_was_put_in_and_never_beyond_its_end(
        steps in proptest::collection::vec(any_step(), 1..60), windowed: bool,
    ) {
        // Tokens put in, as (epoch, end), and the most of each that may still be lent.
        let mut owned: Vec<(u64, u64, u64)> = Vec::new();
        let (mut now, mut state) = (NOON, None);
        for (pause, mut ask) in steps {
            now += pause;
            if !windowed {
                ask.limit = timed().limit;
            }
            if let Some(put) = put(&ask) {
                let ends = now.saturating_add(put.lasts_ms * 1_000);
                owned.push((put.epoch, ends, put.tokens));
            }
            let (next, grant) = step(state, now, &ask);
            prop_assert!(grant.tokens <= ask.want.max(ask.need));
            prop_assert!(grant.tokens == 0 || grant.tokens >= ask.need);
            prop_assert!(!grant.overdrawn);
            let ends = now + u64::try_from(grant.ends_after.as_micros()).unwrap_or(u64::MAX - now);
            let fits = |of: &(u64, u64, u64)| {
                of.1 >= ends && if windowed { of.0 == grant.epoch } else { of.0 >= grant.epoch }
            };
            let mut out = grant.tokens;
            owned.sort_by_key(|of| of.1);
            for of in owned.iter_mut().filter(|of| fits(of)) {
                let taken = of.2.min(out);
                (of.2, out) = (of.2 - taken, out - taken);
            }
            prop_assert_eq!(out, 0, "{:?} of {:?}", grant, owned);
            state = Some(next);
        }
    }

    #[test]
    fn any_state_and_any_ask_give_a_sane_grant(
        now: u64, epoch: u64, ends_us: u64, tokens in 0..=AMOUNT_MAX, want: u64, need: u64,
        deposit: Option<(u64, u64, Duration)>, windowed: bool, ttl: Duration,
    ) {
        let deposit = deposit.map(|(tokens, epoch, lasts)| Deposit { tokens, epoch, lasts });
        let look = if windowed { self::windowed() } else { timed() };
        let ask = Ask { want, need, deposit, ttl, ..look };
        let (state, grant) = step(Some(State { epoch, ends_us, tokens }), now, &ask);
        prop_assert!(grant.tokens + grant.left <= AMOUNT_MAX);
        prop_assert!(grant.tokens == 0 || grant.tokens >= need);
        prop_assert!(grant.ends_after <= ttl);
        prop_assert_eq!(state.tokens, grant.left);
        prop_assert_eq!(state.ends_at() > 0, grant.left > 0);
    }
}

#[test]
fn deposits_add_up_until_the_earlier_end() {
    for look in [windowed(), timed()] {
        let (state, grant) = step(None, NOON, &Ask { want: 1, ..putting(look, 5, 7, 2 * SECOND) });
        assert_eq!((grant.tokens, grant.left, grant.epoch), (1, 4, 7));
        assert_eq!((grant.ends_after, grant.reset_after), (2 * SECOND, Duration::ZERO));
        let (state, grant) = step(Some(state), NOON, &putting(look, 3, 7, SECOND));
        assert_eq!((grant.tokens, grant.left, grant.ends_after), (0, 7, SECOND));
        let (state, grant) = step(Some(state), NOON, &putting(look, 3, 7, 9 * SECOND));
        assert_eq!((grant.left, grant.ends_after), (10, SECOND));
        let (_, grant) = step(Some(state), NOON + 999_001, &Ask { want: 1, ..look });
        assert_eq!((grant.tokens, grant.left, grant.epoch), (0, 0, 0), "it has expired");
        assert_eq!((grant.ends_after, grant.overdrawn), (Duration::ZERO, false));
    }
}

#[test]
fn a_newer_window_replaces_an_older_one_and_a_newer_time_does_not() {
    let put = |look, epoch, lasts| putting(look, 5, epoch, lasts);
    let (state, _) = step(None, NOON, &put(windowed(), 7, SECOND));
    let (state, grant) = step(Some(state), NOON, &put(windowed(), 8, 9 * SECOND));
    assert_eq!((grant.left, grant.epoch, grant.ends_after), (5, 8, 9 * SECOND));
    let (_, grant) = step(Some(state), NOON, &put(windowed(), 7, SECOND));
    assert_eq!((grant.left, grant.epoch, grant.ends_after), (5, 8, 9 * SECOND), "a late one");
    let (state, _) = step(None, NOON, &put(timed(), 8, 9 * SECOND));
    let (_, grant) = step(Some(state), NOON, &put(timed(), 7, SECOND));
    assert_eq!((grant.left, grant.epoch, grant.ends_after), (10, 7, SECOND));
}

#[test]
fn a_need_is_lent_whole_or_not_at_all_and_a_pool_denies_nothing() {
    let (state, _) = step(None, NOON, &putting(windowed(), 5, 7, SECOND));
    let denied = Ask { need: 6, charge_denied: true, ..windowed() };
    let (state, grant) = step(Some(state), NOON, &denied);
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (0, 5, false));
    let (state, grant) = step(Some(state), NOON, &Ask { need: 3, want: 1, ..denied });
    assert_eq!((grant.tokens, grant.left), (3, 2));
    let (state, grant) = step(Some(state), NOON, &Ask { want: 9, ..windowed() });
    assert_eq!((grant.tokens, grant.left, grant.epoch, grant.ends_after), (2, 0, 7, SECOND));
    assert_eq!(state.ends_at(), 0, "an empty pool is as none");
}

#[test]
fn what_comes_back_is_not_for_a_pool() {
    let (state, _) = step(None, NOON, &putting(windowed(), 5, 7, SECOND));
    for epoch in [None, Some(7)] {
        let back = Some(Return { tokens: 3, epoch });
        assert_eq!(
            step(Some(state), NOON, &Ask { back, ..windowed() }),
            step(Some(state), NOON, &windowed())
        );
    }
}

#[test]
fn nothing_is_put_in_without_tokens_or_for_less_than_a_millisecond() {
    let (state, _) = step(None, NOON, &putting(windowed(), 5, 7, SECOND));
    for (tokens, lasts) in [(0, SECOND), (3, Duration::ZERO), (3, Duration::from_micros(999))] {
        let (after, grant) = step(Some(state), NOON, &putting(windowed(), tokens, 9, lasts));
        assert_eq!((after, grant.left), (state, 5));
    }
}
