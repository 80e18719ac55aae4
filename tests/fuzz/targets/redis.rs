//! Replies of Redis: to scripts, and to CLUSTER SLOTS.

use std::time::Duration;

use ratelease_engine::store::Ask;
use ratelease_engine::store::redis::{Address, SLOTS, Slots, grant};
use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit, Unit};

use crate::rng::Rng;
use crate::run;

/// Tokens that an ask wants and needs.
const WANT: u64 = 10;
const NEED: u64 = 3;

const WORDS: [&str; 16] = [
    "*4\r\n",
    "*0\r\n",
    "*-1\r\n",
    ":16383\r\n",
    ":0\r\n",
    "$-1\r\n",
    "$0\r\n\r\n",
    "$1\r\n?\r\n",
    "_\r\n",
    "%1\r\n",
    "~1\r\n",
    "-MOVED 1 10.0.0.2:7001\r\n",
    "+OK\r\n",
    "#t\r\n",
    "(18446744073709551616\r\n",
    ",1.5\r\n",
];

#[test]
fn any_reply_to_a_script_grants_what_was_asked_for_or_nothing() {
    run::mutated("replies", &WORDS, 20_000, |reply| {
        script_reply(reply).is_some_and(|tokens| tokens > 0)
    });
}

/// Numbers that a script could have returned, in a random order.
#[test]
fn any_numbers_grant_what_was_asked_for_or_nothing() {
    let number = |rng: &mut Rng| match rng.below(6) {
        0 => rng.below(24),
        1 => 1_763_812_345_000_000 + rng.below(3),
        2 => 29_396_872 + rng.below(3),
        3 => rng.pick(&[u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 32, u64::from(u32::MAX)]),
        4 => rng.next_u64() >> rng.below(64),
        _ => 0,
    };
    let reply = |rng: &mut Rng| {
        let count = rng.within(3..9);
        let numbers = (0..count).map(|_| format!(":{}\r\n", number(rng).cast_signed()));
        format!("*{count}\r\n{}", numbers.collect::<String>()).into_bytes()
    };
    run::generated("numbers", 5000, reply, |reply| {
        script_reply(reply).is_some_and(|tokens| tokens > 0)
    });
}

#[test]
fn any_reply_to_cluster_slots_names_masters_or_none() {
    run::mutated("slots", &WORDS, 2000, |reply| cluster_slots(reply).is_some());
}

/// Ranges that overlap, run backwards or lie beyond the last slot, with few or many masters.
#[test]
fn any_ranges_of_slots_lead_to_masters_that_were_named() {
    let slot = |rng: &mut Rng| rng.pick(&[0, 1, 5_460, 5_461, 16_383, 16_384, u64::MAX >> 1]);
    let range = |rng: &mut Rng| {
        let (first, last) = (slot(rng), slot(rng));
        let host =
            rng.pick(&["$8\r\n10.0.0.2\r\n", "$-1\r\n", "$0\r\n\r\n", "$1\r\n?\r\n", "+a\r\n"]);
        let port = rng.pick(&[0, 6379, 65_535, 65_536]) + rng.below(3);
        format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n{host}:{port}\r\n")
    };
    let reply = |rng: &mut Rng| {
        let count = rng.below(6);
        let ranges = (0..count).map(|_| range(rng)).collect::<String>();
        format!("*{count}\r\n{ranges}").into_bytes()
    };
    run::generated("ranges", 2000, reply, |reply| {
        cluster_slots(reply).is_some_and(|owned| owned > 0)
    });
}

/// Reads a reply to an ask of each algorithm. Returns `None` if it is not a reply; otherwise the
/// most tokens that any of the algorithms reads from it, which is never more than was asked for.
fn script_reply(bytes: &[u8]) -> Option<u64> {
    let reply = redis::parse_redis_value(bytes).ok()?;
    let read = Algorithm::ALL.into_iter().flat_map(|algorithm| {
        let algorithm = algorithm.with_burst(20).with_max_delay_us(1_000_000);
        let limit = Limit { algorithm, ..Limit::fixed_window(20, Unit::Minute) };
        let look = Ask::look(Key::for_test(0), limit);
        let ask = Ask { want: WANT, need: NEED, ttl: Duration::from_secs(2), ..look };
        let ahead = Ask { next_window: true, ..ask };
        let pool = Ask { pool: Some(1), ..ask };
        [ask, ahead, pool].map(|ask| grant(&ask, &reply).map_or(0, |grant| grant.tokens))
    });
    let most = read.max();
    assert!(most <= Some(WANT.max(NEED)), "{most:?} tokens of a reply that grants fewer");
    most
}

/// Reads a reply to CLUSTER SLOTS twice, as two successive maps. Returns `None` if it is not a
/// reply or lists no slots; otherwise the number of slots that have an owner, each of which is a
/// master.
fn cluster_slots(bytes: &[u8]) -> Option<usize> {
    let reply = redis::parse_redis_value(bytes).ok()?;
    let from = Address::Tcp("10.0.0.1".to_owned(), 6379);
    let slots = Slots::parse(&reply, &from, None).ok()?;
    let again = Slots::parse(&reply, &from, Some(&slots)).ok()?;
    let owners = |slots: &Slots| -> Vec<Option<Address>> {
        let owner = |slot| slots.owner(slot).and_then(|at| slots.masters().get(at).cloned()?);
        (0..SLOTS).map(owner).collect()
    };
    let (owners, owners_again) = (owners(&slots), owners(&again));
    assert_eq!(owners, owners_again, "a map that has not changed redirects to another node");
    Some(owners.iter().flatten().count())
}
