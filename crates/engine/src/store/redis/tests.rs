//! The arguments that are sent, and the replies that are accepted.

use super::*;
use crate::store::{Deposit, Return};
use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit, Unit};

const NOON: i64 = 1_700_000_000_250_000;

fn ask(algorithm: Algorithm) -> Ask {
    let limit = Limit { algorithm, ..Limit::fixed_window(10, Unit::Minute) };
    Ask { want: 4, need: 2, charge_denied: true, ..Ask::look(Key::for_test(0), limit) }
}

fn read(ask: &Ask, values: &[i64]) -> Result<Grant, Fault> {
    grant(ask, &Value::Array(values.iter().copied().map(Value::Int).collect()))
}

fn packed(ask: &Ask) -> String {
    let command = call(ask, "k".into(), NOON.unsigned_abs()).by_name();
    String::from_utf8(command.get_packed_command()).unwrap()
}

fn refuses(ask: &Ask, replies: &[&[i64]]) {
    for garbled in replies {
        assert_eq!(read(ask, garbled).unwrap_err().kind, Kind::MalformedReply, "{garbled:?}");
    }
    for reply in [Value::Nil, Value::Int(4), Value::Array(vec![Value::Int(4)])] {
        assert_eq!(grant(ask, &reply).unwrap_err().kind, Kind::MalformedReply, "{reply:?}");
    }
}

#[test]
fn amounts_are_cut_to_what_a_double_counts() {
    let back = Some(Return { tokens: u64::MAX, epoch: None });
    for algorithm in [
        Algorithm::FixedWindow,
        Algorithm::token_bucket(5),
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ] {
        let most = u64::MAX;
        let ask = Ask { want: most, need: most, owed: most, back, ..ask(algorithm) };
        let packed = packed(&ask);
        assert_eq!(packed.matches("$16\r\n9007199254740992\r\n").count(), 4, "{packed}");
        assert!(packed.ends_with("9007199254740992\r\n"), "a refund names no epoch: {packed}");
    }
}

#[test]
fn nothing_comes_back_to_a_leaky_bucket_and_a_denial_costs_it_nothing() {
    let ask = ask(Algorithm::LeakyBucket { max_delay_us: 1 });
    let with = Ask { back: Some(Return { tokens: 3, epoch: None }), ..ask };
    assert_eq!(packed(&with), packed(&Ask { charge_denied: false, ..ask }));
}

#[test]
fn only_what_a_fixed_window_can_say_is_a_grant() {
    let ask = ask(Algorithm::FixedWindow);
    let window = NOON / 60_000_000;
    let grant = read(&ask, &[4, NOON, window, 4, 0, 0, 0]).unwrap();
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (4, 6, false));
    assert_eq!(grant.reset_after, Duration::from_micros(39_750_000));
    assert!(read(&Ask { need: 0, ..ask }, &[0, NOON, window, 10, 0, 0, 1]).unwrap().overdrawn);
    let ahead = read(&ask, &[4, NOON, window + 1, 4, 0, 0, 0]).unwrap();
    assert_eq!(ahead.reset_after, Duration::from_micros(99_750_000));
    refuses(
        &ask,
        &[
            &[5, NOON, window, 5, 0, 0, 0],     // more than wanted
            &[1, NOON, window, 1, 0, 0, 0],     // less than needed
            &[4, NOON, window, 3, 0, 0, 0],     // not debited
            &[4, NOON, window, 11, 0, 0, 0],    // more than the limit
            &[4, NOON, window - 1, 4, 0, 0, 0], // a window that has ended
            &[4, NOON, window + 2, 4, 0, 0, 0], // a window far off
            &[-1, NOON, window, 4, 0, 0, 0],
            &[4, NOON, window, 4, 0],
            &[4, NOON, window, 4],
            &[4, NOON, window, 4, (1 << 53) + 1, 0, 0], // more than any limit
            &[4, NOON, window, 4, 0, 0, 1],             // a mark below the limit
            &[4, NOON, window, 4, 0, 5, 0],             // what pays for nothing
        ],
    );
}

#[test]
fn only_what_the_next_window_can_say_is_a_grant() {
    let ask = Ask { next_window: true, ..ask(Algorithm::FixedWindow) };
    let window = NOON / 60_000_000;
    let grant = read(&ask, &[4, NOON, window, 9, 4, 0, 0]).unwrap();
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (4, 6, false));
    assert_eq!(grant.starts_after, Duration::from_micros(39_750_000));
    assert_eq!(grant.ends_after, Duration::from_micros(99_750_000));
    read(&ask, &[4, NOON, window + 1, 0, 4, 0, 0])
        .expect("a clock that was ahead began a window early");
    refuses(
        &ask,
        &[
            &[4, NOON, window - 1, 0, 4, 0, 0], // a window that has ended
            &[4, NOON, window + 2, 0, 4, 0, 0], // a window far off
            &[4, NOON, window, 4, 3, 0, 0],     // not debited
            &[4, NOON, window, 0, 11, 0, 0],    // more than the limit
            &[0, NOON, window, 0, (1 << 53) + 1, 0, 0], // more than any limit
            &[4, NOON, window, 4],
        ],
    );
    assert_ne!(packed(&ask), packed(&Ask { next_window: false, ..ask }));
}

#[test]
fn only_what_a_pool_can_say_is_a_grant() {
    let ask = Ask { pool: Some(0), ..ask(Algorithm::token_bucket(5)) };
    let grant = read(&ask, &[4, 3, NOON, 250]).unwrap();
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (4, 3, false));
    assert_eq!(i64::try_from(grant.epoch), Ok(NOON));
    assert_eq!(grant.ends_after, Duration::from_millis(250));
    read(&ask, &[0, 0, 0, 0]).expect("an empty pool");
    refuses(
        &ask,
        &[
            &[5, 3, NOON, 250],       // more than wanted
            &[1, 3, NOON, 250],       // less than needed
            &[4, 3, NOON, 0],         // tokens without an end
            &[0, 0, NOON, 250],       // an end without tokens
            &[4, 1 << 53, NOON, 250], // more than it holds
            &[4, 3, -1, 250],
        ],
    );
}

#[test]
fn a_deposit_is_cut_to_what_a_double_counts_and_what_comes_back_is_not_sent() {
    let deposit = Deposit { tokens: u64::MAX, epoch: u64::MAX, lasts: Duration::MAX };
    let back = Some(Return { tokens: 3, epoch: None });
    let pool = Ask { pool: Some(0), ..ask(Algorithm::FixedWindow) };
    let packed_deposit = packed(&Ask { deposit: Some(deposit), back, ..pool });
    let sent = ["$16\r\n9007199254740991\r\n$16\r\n9007199254740991\r\n", "4503599627370496"];
    assert!(sent.iter().all(|number| packed_deposit.contains(number)), "{packed_deposit}");
    let nothing = Deposit { tokens: 9, epoch: 1, lasts: Duration::from_micros(999) };
    assert_eq!(packed(&Ask { deposit: Some(nothing), ..pool }), packed(&pool));
}

#[test]
fn only_what_a_bucket_can_say_is_a_grant() {
    let ask = ask(Algorithm::token_bucket(5));
    let token = 6_000_000_000;
    let grant = read(&ask, &[4, NOON, 0, 4 * token]).unwrap();
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (4, 1, false));
    assert_eq!(grant.reset_after, Duration::from_secs(24));
    assert!(read(&ask, &[0, NOON, 0, 5 * token]).unwrap().overdrawn, "a denial spends");
    let owes = read(&ask, &[0, NOON, 9 * token, 9 * token]).unwrap();
    assert_eq!(owes.retry_after, Duration::from_secs(30), "five are earned before one is left");
    refuses(
        &ask,
        &[
            &[4, NOON, 0, 0],                     // not debited
            &[4, NOON, 0, 4 * token - 1],         // not whole
            &[4, NOON, token + 1, 5 * token + 1], // more than there was
            &[0, NOON, 1, 0],                     // a credit that came after
            &[0, NOON, 0, (1 << 52) + 1],         // beyond what any costs may owe
            &[4, NOON, -1, 4 * token],
        ],
    );
    let leaky = Ask { need: 1, ..self::ask(Algorithm::LeakyBucket { max_delay_us: 6_000_000 }) };
    let grant = read(&leaky, &[1, NOON, token, 2 * token]).unwrap();
    assert_eq!((grant.left, grant.starts_after), (0, Duration::from_secs(6)));
    refuses(&leaky, &[&[1, NOON, token + 1, 2 * token + 1]]); // too late a slot
}

#[test]
fn only_what_a_sliding_window_can_say_is_a_grant() {
    let ask = ask(Algorithm::SlidingWindow);
    let window = NOON / 60_000_000;
    let grant = read(&ask, &[4, NOON, window, 4, 0]).unwrap();
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (4, 6, false));
    refuses(
        &ask,
        &[
            &[4, NOON, window, 3, 0],     // not debited
            &[4, NOON, window, 11, 0],    // more than the limit
            &[4, NOON, window - 1, 4, 0], // a window that has ended
            &[0, NOON, window, 0, (1 << 53) + 1],
        ],
    );
}

#[test]
fn only_what_a_sliding_log_can_say_is_a_grant() {
    let ask = ask(Algorithm::SlidingLog);
    let grant = read(&ask, &[4, NOON, NOON, 10, NOON, NOON - 9]).unwrap();
    assert_eq!((grant.tokens, grant.left, grant.overdrawn), (4, 0, true));
    assert_eq!(grant.retry_after, Duration::from_micros(59_999_991));
    refuses(
        &ask,
        &[
            &[4, NOON, NOON, 3, NOON, 0],         // not debited
            &[4, NOON, NOON, 11, NOON, NOON],     // more than the limit
            &[4, NOON, NOON, 4, NOON - 1, 0],     // not entered
            &[4, NOON, NOON - 1, 4, NOON - 1, 0], // entered out of order
            &[0, NOON, NOON, 10_001, NOON, 0],
            &[0, NOON, NOON, 10, NOON, NOON + 1],
        ],
    );
}
