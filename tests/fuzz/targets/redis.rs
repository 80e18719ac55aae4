//! Replies of Redis: to scripts, and to CLUSTER SLOTS.

use crate::rng::Rng;
use crate::run;

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
        ratelease_engine::fuzzing::script_reply(reply).is_some_and(|tokens| tokens > 0)
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
        let count = rng.within(3..8);
        let numbers = (0..count).map(|_| format!(":{}\r\n", number(rng).cast_signed()));
        format!("*{count}\r\n{}", numbers.collect::<String>()).into_bytes()
    };
    run::generated("numbers", 5000, reply, |reply| {
        ratelease_engine::fuzzing::script_reply(reply).is_some_and(|tokens| tokens > 0)
    });
}

#[test]
fn any_reply_to_cluster_slots_names_masters_or_none() {
    run::mutated("slots", &WORDS, 2000, |reply| {
        ratelease_engine::fuzzing::cluster_slots(reply).is_some()
    });
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
        ratelease_engine::fuzzing::cluster_slots(reply).is_some_and(|owned| owned > 0)
    });
}
