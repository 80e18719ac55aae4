//! Tokens of the next fixed window.

use ratelease_engine::algorithm::{State, fixed_window, step};
use ratelease_engine::store::{Ask, Return, Store, StoreError};
use ratelease_rules::Unit;

use std::time::Duration;

use super::model::time_of;
use super::{ask, connected, granted, one, patient, within};
use crate::support::redis::Single;

pub async fn keeps_the_contract(store: &dyn Store) {
    lends_from_the_next_window_alone(store).await;
    a_denial_ahead_marks_nothing(store).await;
    a_return_goes_to_the_window_that_it_names(store).await;
    a_refund_is_of_the_present_window(store).await;
    the_next_window_starts_at_what_was_lent_ahead(store).await;
}

fn ahead(ask: Ask) -> Ask {
    Ask { next_window: true, ..ask }
}

fn returning(ask: Ask, tokens: u64, epoch: u64) -> Ask {
    Ask { want: 0, need: 0, back: Some(Return { tokens, epoch: Some(epoch) }), ..ask }
}

async fn lends_from_the_next_window_alone(store: &dyn Store) {
    let ask = ask(10, 4, 0);
    let present = granted(store, ask).await;
    let next = granted(store, ahead(ask)).await;
    assert_eq!((next.tokens, next.left, next.overdrawn), (4, 6, false));
    assert_eq!(next.epoch, present.epoch + 1);
    assert!(next.starts_after <= present.reset_after && !next.starts_after.is_zero());
    assert_eq!(next.reset_after, next.starts_after + ask.limit.window());
    assert_eq!(next.ends_after, next.reset_after);
    let ttl = Duration::from_secs(2);
    let short = granted(store, Ask { ttl, want: 50, ..ahead(ask) }).await;
    assert_eq!((short.tokens, short.left, short.retry_after), (6, 0, short.reset_after));
    assert_eq!(short.ends_after, short.starts_after + ttl);
    let present = granted(store, Ask { want: 50, ..ask }).await;
    assert_eq!((present.tokens, present.left, present.starts_after), (6, 0, Duration::ZERO));
}

async fn a_denial_ahead_marks_nothing(store: &dyn Store) {
    let ask = ask(10, 0, 11);
    let denied = granted(store, ahead(ask)).await;
    assert_eq!((denied.tokens, denied.left, denied.overdrawn), (0, 10, false));
    let look = Ask { need: 0, ..ask };
    assert_eq!(granted(store, look).await.left, 10);
    assert!(granted(store, ask).await.overdrawn);
    let next = granted(store, ahead(look)).await;
    assert_eq!((next.left, next.overdrawn), (10, false), "a denial now marks this window alone");
}

async fn a_return_goes_to_the_window_that_it_names(store: &dyn Store) {
    let ask = ask(10, 8, 0);
    let present = granted(store, ask).await.epoch;
    let next = granted(store, ahead(ask)).await.epoch;
    let look = Ask { want: 0, ..ask };
    for (epoch, left) in [(present, (5, 2)), (next, (5, 5)), (next + 1, (5, 5)), (0, (5, 5))] {
        // Whether the ask itself is for the present window or the next makes no difference.
        let ask = if epoch % 2 == 0 { ask } else { ahead(ask) };
        granted(store, returning(ask, 3, epoch)).await;
        let lefts = (granted(store, look).await.left, granted(store, ahead(look)).await.left);
        assert_eq!(lefts, left, "of {epoch}");
    }
    granted(store, returning(ask, u64::MAX, next)).await;
    assert_eq!(granted(store, ahead(look)).await.left, 10, "never more than the limit");
}

async fn a_refund_is_of_the_present_window(store: &dyn Store) {
    let ask = ask(10, 8, 0);
    granted(store, ask).await;
    granted(store, ahead(ask)).await;
    let back = Some(Return { tokens: u64::MAX, epoch: None });
    assert_eq!(granted(store, Ask { want: 0, back, ..ahead(ask) }).await.left, 2);
    assert_eq!(granted(store, Ask { want: 0, ..ask }).await.left, 10);
}

/// In real time: of each window of a second, seven tokens are leased ahead, and three are left.
async fn the_next_window_starts_at_what_was_lent_ahead(store: &dyn Store) {
    let mut ask = ask(10, 7, 0);
    ask.limit.unit = Unit::Second;
    let mut seen = 0;
    within(30, "three windows begin", async {
        while seen < 3 {
            let lent = granted(store, ahead(ask)).await;
            tokio::time::sleep(lent.starts_after + Duration::from_millis(1)).await;
            let present = granted(store, Ask { want: 50, ..ask }).await;
            // A machine that stalls for a second has skipped the window.
            if present.epoch == lent.epoch {
                assert_eq!((lent.tokens, present.tokens), (7, 3));
                seen += 1;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_holds_the_next_window_only_while_tokens_of_it_are_lent() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let ask = ask(10, 4, 0);
    let key = ask.key.in_store("");
    let cost = || single.server.command::<u64>(&["MEMORY", "USAGE", &key]);
    let present = granted(&*store, ask).await.epoch;
    let plain = cost();
    // The next window's count follows a colon.
    let value = || single.server.command::<String>(&["GET", &key]);
    let is_plain = || value().bytes().all(|byte| byte.is_ascii_digit());
    assert!(is_plain(), "{}", value());
    let expires = || single.server.command::<u64>(&["PEXPIRETIME", &key]);
    let year = ask.limit.window_seconds();
    assert_eq!(expires(), ((present + 1) * year + 1) * 1_000);
    granted(&*store, ahead(ask)).await;
    println!("a key costs {plain} bytes, and {} while it lends ahead", cost());
    assert!(cost() <= plain + 40, "{} and {plain}", cost());
    assert!(value().contains(':'), "{}", value());
    assert_eq!(expires(), ((present + 2) * year + 1) * 1_000, "a second past the next window");
    granted(&*store, returning(ask, 4, present + 1)).await;
    assert!(is_plain(), "{}", value());
    assert!(cost() <= plain + 8, "{} and {plain}", cost());
    assert_eq!(expires(), ((present + 1) * year + 1) * 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_ahead_makes_no_key_and_writes_nothing() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let ask = ask(10, 4, 0);
    granted(&*store, ahead(Ask { want: 0, ..ask })).await;
    granted(&*store, ahead(Ask { want: 0, need: 11, ..ask })).await;
    assert_eq!(single.server.keys(), [""; 0]);
    let window = granted(&*store, ahead(ask)).await.epoch - 1;
    single.server.command::<()>(&["CONFIG", "RESETSTAT"]);
    granted(&*store, ahead(Ask { want: 0, ..ask })).await;
    granted(&*store, Ask { want: 0, ..ask }).await;
    // As if the window after the one that leased ahead had begun.
    let key = ask.key.in_store("");
    single.server.command::<()>(&["SET", &key, &format!("{}{:010}:{:010}", window - 1, 9, 4)]);
    let rolled = granted(&*store, Ask { want: 0, ..ask }).await;
    assert_eq!((rolled.left, single.server.calls("set")), (6, 1), "the test's own");
}

/// The test writes states that it could not wait for.
#[tokio::test(flavor = "multi_thread")]
async fn every_state_with_a_next_count_is_read_as_the_arithmetic_reads_it() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for far in [-2_i64, -1, 0, 1, 2] {
        for (next, is_ahead, lent_in) in [
            (0, false, None),
            (3, true, None),
            (3, false, Some(0)),
            (3, false, Some(1)),
            (3, true, Some(2)),
            (u64::from(u32::MAX), false, Some(1)),
        ] {
            let look = ask(10, 0, 0);
            let present = granted(&*store, look).await.epoch;
            let window = present.checked_add_signed(far).unwrap();
            let text = format!("{window}{:010}:{next:010}", 7);
            single.server.command::<()>(&["SET", &look.key.in_store(""), &text]);
            let back = lent_in.map(|after| Return { tokens: 2, epoch: Some(present + after) });
            let mut state = Some(State::FixedWindow(fixed_window::State {
                window,
                count: 7,
                next,
                is_marked: false,
                pays: 0,
            }));
            for want in [0, 1, 50] {
                let ask = Ask { want, next_window: is_ahead, back, ..look };
                let grant = granted(&*store, ask).await;
                let (after, expected) = step(state, time_of(&grant, &ask), &ask);
                assert_eq!(grant, expected, "{text}, {present} is the present");
                state = Some(after);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_value_of_nearly_the_same_form_is_refused() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let ask = ask(10, 1, 0);
    let key = ask.key.in_store("");
    for foreign in ["550000000007:", "550000000007:000000003", "550000000007:0000000003:0", ":"] {
        single.server.command::<()>(&["SET", &key, foreign]);
        assert_eq!(one(&*store, ask).await, Err(StoreError::ForeignValue), "{foreign}");
    }
}
