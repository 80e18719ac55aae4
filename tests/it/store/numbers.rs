//! What the scripts write for small and for large numbers, while pods of two versions share a store.

use ratelease_engine::algorithm::{State, fixed_window, pool, sliding_window, step};
use ratelease_engine::store::{Ask, Deposit, Return};
use ratelease_rules::{AMOUNT_MAX, Algorithm, Limit, Unit};

use std::time::Duration;

use super::model::time_of;
use super::{ask_by, connected, granted, patient};
use crate::support::redis::Single;

/// The text under a key of the store.
fn text(single: &Single, ask: &Ask) -> String {
    single.server.command(&["GET", &ask.counter().in_store("")])
}

fn of(algorithm: Algorithm, requests_per_unit: u64) -> Ask {
    let ask = ask_by((algorithm.with_burst(requests_per_unit), Unit::Year), 0, 0);
    Ask { limit: Limit { requests_per_unit, ..ask.limit }, ..ask }
}

fn is_digits(text: &str, count: usize) -> bool {
    text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Version 0.2 wrote ten digits of a fixed window and of a pool, nine of a sliding window, and the
/// requests of a bucket behind a colon.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_an_older_version_can_hold_is_read_and_written_in_its_form() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let set = |ask: &Ask, text: &str| {
        single.server.command::<()>(&["SET", &ask.counter().in_store(""), text]);
    };

    let ask = of(Algorithm::FixedWindow, u32::MAX.into());
    let window = granted(&*store, ask).await.epoch;
    set(&ask, &format!("{window}{:010}:{:010}", 4_294_967_290_u64, 9));
    let grant = granted(&*store, Ask { want: 3, ..ask }).await;
    let state =
        fixed_window::State { window, count: 4_294_967_290, next: 9, is_marked: false, pays: 0 };
    let asked = Ask { want: 3, ..ask };
    let expected = step(Some(State::FixedWindow(state)), time_of(&grant, &asked), &asked).1;
    assert_eq!((grant, grant.left), (expected, 2));
    assert_eq!(text(&single, &ask), format!("{window}4294967293:0000000009"));

    let ask = of(Algorithm::SlidingWindow, 999_999_999);
    let window = granted(&*store, ask).await.epoch;
    let digit = window % 8 + 1;
    set(&ask, &format!("{digit}{:09}{:09}", 999_999_000, 0));
    let grant = granted(&*store, Ask { want: 999, ..ask }).await;
    assert_eq!((grant.tokens, grant.left, grant.epoch), (999, 0, window));
    assert_eq!(text(&single, &ask), format!("{digit}999999999000000000"));

    let ask = of(Algorithm::token_bucket(0), u32::MAX.into());
    granted(&*store, Ask { want: 1_000, ..ask }).await;
    let written = text(&single, &ask);
    let (time, requests) = written.split_once(':').expect("a colon");
    assert!(is_digits(time, 19) && requests == "ffffffff", "{written}");

    let ask = Ask { pool: Some(1), ..of(Algorithm::FixedWindow, u32::MAX.into()) };
    let deposit = Deposit { tokens: 4, epoch: 7, lasts: Duration::from_secs(60) };
    granted(&*store, Ask { deposit: Some(deposit), ..ask }).await;
    assert_eq!(text(&single, &ask), "7:0000000004");
}

/// Else an older version would read other counts from their digits.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_an_older_version_cannot_hold_is_a_foreign_value_to_it() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let spent = AMOUNT_MAX - 2;

    let ask = of(Algorithm::FixedWindow, AMOUNT_MAX);
    let grant = granted(&*store, Ask { want: spent, ..ask }).await;
    assert_eq!((grant.tokens, grant.left), (spent, 2));
    let ahead = granted(&*store, Ask { want: 5, next_window: true, ..ask }).await;
    assert_eq!((ahead.tokens, ahead.left), (5, AMOUNT_MAX - 5));
    assert_eq!(text(&single, &ask), format!("{}={spent}:5", grant.epoch));

    let ask = of(Algorithm::SlidingWindow, AMOUNT_MAX);
    let grant = granted(&*store, Ask { want: spent, ..ask }).await;
    assert_eq!((grant.tokens, grant.left), (spent, 2));
    assert_eq!(text(&single, &ask), format!("{}={spent}:0", grant.epoch % 8 + 1));

    let ask = of(Algorithm::token_bucket(0), AMOUNT_MAX);
    assert_eq!(granted(&*store, Ask { want: spent, ..ask }).await.tokens, spent);
    let written = text(&single, &ask);
    let (time, requests) = written.split_once('=').expect("no colon");
    assert!(is_digits(time, 19) && requests == "1fffffffffffff", "{written}");
    // A debt of a small bucket.
    let ask = of(Algorithm::token_bucket(0), u32::MAX.into());
    granted(&*store, Ask { owed: 1 << 33, ..ask }).await;
    assert!(text(&single, &ask).contains("=ffffffff:0:"), "{}", text(&single, &ask));

    let ask = Ask { pool: Some(1), ..of(Algorithm::FixedWindow, AMOUNT_MAX) };
    let deposit = Deposit { tokens: spent, epoch: 7, lasts: Duration::from_secs(60) };
    let grant = granted(&*store, Ask { deposit: Some(deposit), want: 1, ..ask }).await;
    assert_eq!((grant.tokens, grant.left), (1, spent - 1));
    assert_eq!(text(&single, &ask), format!("7:{}", spent - 1));
}

/// Version 0.2 reads past the zeros that tell the mark of a denial from a cost of one beyond the limit,
/// and takes a count of one beyond it for the mark.
#[tokio::test(flavor = "multi_thread")]
async fn a_cost_of_one_beyond_the_limit_is_told_from_the_mark_of_a_denial() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    for next in [0, 2] {
        let ask = of(Algorithm::FixedWindow, 10);
        granted(&*store, Ask { want: next, next_window: true, ..ask }).await;
        let window = granted(&*store, Ask { want: 10, ..ask }).await.epoch;
        let ahead = if next > 0 { format!(":{next:010}") } else { String::new() };
        let denied = Ask { need: 1, charge_denied: true, ..ask };
        granted(&*store, Ask { owed: 1, ..ask }).await;
        granted(&*store, denied).await;
        assert_eq!(text(&single, &ask), format!("{window}{:010}{ahead}", 11));
        let back = Some(Return { tokens: 3, epoch: Some(window) });
        assert_eq!(granted(&*store, Ask { back, ..ask }).await.left, 2);
        assert_eq!(text(&single, &ask), format!("{window}{:010}{ahead}", 8));
        granted(&*store, Ask { want: 2, ..ask }).await;
        granted(&*store, denied).await;
        assert_eq!(text(&single, &ask), format!("00{window}{:010}{ahead}", 11));
        granted(&*store, Ask { owed: 1, ..ask }).await;
        assert_eq!(text(&single, &ask), format!("{window}{:010}{ahead}", 11));
    }
}

/// An older version would forget the debt when its window ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_carried_debt_is_a_foreign_value_to_older_versions() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let ask = Ask { carry_debt: true, ..of(Algorithm::FixedWindow, 10) };
    let window = granted(&*store, Ask { owed: 10, ..ask }).await.epoch;
    assert_eq!(text(&single, &ask), format!("{window}{:010}", 10));
    granted(&*store, Ask { owed: 15, ..ask }).await;
    assert_eq!(text(&single, &ask), format!("{window}=25:0:10"));
    let back = Some(Return { tokens: 15, epoch: Some(window) });
    granted(&*store, Ask { back, ..ask }).await;
    assert_eq!(text(&single, &ask), format!("{window}{:010}", 10));
}

/// What a script says is cut to what the arithmetic counts.
#[test]
fn states_of_the_largest_numbers_overflow_nowhere() {
    let most = State::FixedWindow(fixed_window::State {
        window: 0,
        count: 1 << 53,
        next: 1 << 53,
        is_marked: false,
        pays: 0,
    });
    let ask = Ask { carry_debt: true, ..of(Algorithm::FixedWindow, AMOUNT_MAX) };
    let year_us = ask.limit.window_starts(1);
    assert_eq!(step(Some(most), year_us, &ask).1.left, 0);
    let most =
        State::SlidingWindow(sliding_window::State { window: 0, count: 1 << 53, previous: 9 });
    assert_eq!(step(Some(most), year_us, &of(Algorithm::SlidingWindow, AMOUNT_MAX)).1.left, 0);
    let most = State::Pool(pool::State { epoch: 1, ends_us: u64::MAX, tokens: AMOUNT_MAX });
    let ask = Ask { pool: Some(0), want: u64::MAX, ..of(Algorithm::FixedWindow, AMOUNT_MAX) };
    assert_eq!(step(Some(most), 0, &ask).1.tokens, AMOUNT_MAX);
}
