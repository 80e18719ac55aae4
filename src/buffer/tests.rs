//! The states of a buffer, one by one.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn at(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

fn refill(tokens: u64, left: u64) -> Refill {
    let ends = Time::from_nanos(10 * SECOND);
    Refill { tokens, left, overdrawn: false, window: 5, ends, fresh_until: at(100) }
}

fn live(tokens: u64, left: u64) -> Buffer {
    let mut buffer = Buffer::default();
    buffer.refill(refill(tokens, left), at(0));
    buffer
}

#[test]
fn a_cold_buffer_cannot_tell() {
    let mut buffer = Buffer::default();
    assert_eq!(buffer.take(3, true, at(0)), Take::Short { need: 3 });
    assert_eq!(buffer.take(0, true, at(0)), Take::Short { need: 0 });
}

#[test]
fn pays_from_its_tokens_and_counts_what_the_store_has_as_remaining() {
    let mut buffer = live(5, 10);
    assert_eq!(buffer.take(2, true, at(1)), Take::Taken { remaining: 13 });
    assert_eq!(buffer.take(3, true, at(1)), Take::Taken { remaining: 10 });
    assert_eq!(buffer.take(1, true, at(1)), Take::Short { need: 1 });
}

#[test]
fn asks_only_for_what_is_missing() {
    assert_eq!(live(5, 10).take(9, true, at(1)), Take::Short { need: 4 });
}

#[test]
fn no_token_outlives_its_window() {
    let mut buffer = live(5, 10);
    assert_eq!(buffer.take(1, true, at(9_999)), Take::Taken { remaining: 14 });
    assert_eq!(buffer.take(1, true, at(10_000)), Take::Short { need: 1 });
    assert_eq!(buffer.drain(at(10_000)), None);
}

#[test]
fn the_first_denial_goes_to_the_store_and_the_next_is_local_while_its_word_is_fresh() {
    let mut buffer = live(0, 0);
    assert_eq!(buffer.take(1, true, at(1)), Take::Short { need: 1 });
    buffer.refill(Refill { overdrawn: true, ..refill(0, 0) }, at(2));
    assert_eq!(buffer.take(1, true, at(3)), Take::Denied);
    assert_eq!(buffer.take(1, true, at(100)), Take::Short { need: 1 });
}

#[test]
fn a_denied_charge_spends_what_is_left_of_its_key() {
    let mut buffer = live(3, 0);
    buffer.refill(Refill { overdrawn: true, ..refill(0, 0) }, at(1));
    assert_eq!(buffer.take(4, true, at(2)), Take::Denied);
    assert_eq!(buffer.take(1, true, at(3)), Take::Denied);
}

#[test]
fn a_denied_charge_spends_nothing_where_the_rule_says_so() {
    let mut buffer = live(3, 0);
    assert_eq!(buffer.take(4, false, at(2)), Take::Denied);
    assert_eq!(buffer.take(3, false, at(3)), Take::Taken { remaining: 0 });
}

#[test]
fn a_look_passes_at_the_limit_and_not_beyond_it() {
    assert_eq!(live(0, 0).take(0, true, at(1)), Take::Taken { remaining: 0 });
    let mut buffer = live(0, 0);
    buffer.refill(Refill { overdrawn: true, ..refill(0, 0) }, at(1));
    assert_eq!(buffer.take(0, true, at(2)), Take::Denied);
    assert_eq!(buffer.take(0, true, at(100)), Take::Short { need: 0 });
}

#[test]
fn a_grant_of_another_window_replaces_what_was_held() {
    let mut buffer = live(5, 10);
    let next = Refill { window: 6, ends: at(20_000), fresh_until: at(10_100), ..refill(2, 90) };
    buffer.refill(next, at(10_001));
    assert_eq!(buffer.take(1, true, at(10_002)), Take::Taken { remaining: 91 });
}

#[test]
fn a_late_grant_of_an_older_window_is_void() {
    let mut buffer = live(5, 10);
    buffer.refill(Refill { window: 4, ..refill(100, 0) }, at(1));
    assert_eq!(buffer.tokens(), 5);
    assert_eq!(buffer.left(at(1)), Some(10));
}

#[test]
fn grants_of_one_window_add_up() {
    let mut buffer = live(5, 10);
    buffer.refill(refill(4, 6), at(1));
    assert_eq!(buffer.remaining(), 15);
}

#[test]
fn tokens_come_back_to_their_own_window_only() {
    let mut buffer = live(5, 10);
    buffer.take(5, true, at(1));
    buffer.put_back(3, 4, at(2));
    assert_eq!(buffer.tokens(), 0);
    buffer.put_back(3, 5, at(2));
    assert_eq!(buffer.tokens(), 3);
    buffer.put_back(3, 5, at(10_000));
    assert_eq!(buffer.tokens(), 3);
}

#[test]
fn a_refund_never_lifts_a_key_above_its_limit() {
    let mut buffer = live(5, 10);
    assert!(buffer.refund(3, 20, at(1)));
    assert_eq!(buffer.remaining(), 18);
    assert!(buffer.refund(u64::MAX, 20, at(1)));
    assert_eq!(buffer.remaining(), 20);
    assert!(!buffer.refund(1, 20, at(10_000)));
}

#[test]
fn draining_takes_every_token_once() {
    let mut buffer = live(5, 10);
    assert_eq!(buffer.drain(at(1)), Some((5, 5)));
    assert_eq!(buffer.drain(at(1)), None);
}
