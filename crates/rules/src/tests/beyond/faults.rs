//! Faults in the settings that the reference does not have, each at its place.

use super::super::faults::{expected, refuses};
use crate::limit::Algorithm;
use crate::options::MapKind;

/// The algorithms that a rule may name.
fn algorithms() -> String {
    format!("expected one of {}", Algorithm::ALL.map(Algorithm::name).join(", "))
}

#[test]
fn a_window_of_nothing_and_one_above_ten_years() {
    let long = "'unit_multiplier' makes a window of more than ten years; for unit";
    refuses(
        "window.yaml",
        &[
            "3:77: 'unit_multiplier' must be at least 1, found 0",
            &format!("4:78: {long} year it must be at most 10, found 11"),
            &format!("5:80: {long} second it must be at most 315360000, found 315360001"),
            &format!("6:78: {long} week it must be at most 521, found 4294967295"),
            "7:77: error loading config file: 'unit_multiplier' must be a whole number from 1 to",
            "8:33: invalid rate limit unit 'dya'",
            "8:77: 'unit_multiplier' must be at least 1, found 0",
        ],
    );
}

#[test]
fn an_algorithm_that_is_none_and_one_that_cannot_count_so_many() {
    let algorithms = algorithms();
    refuses(
        "algorithm.yaml",
        &[
            &format!(
                "3:71: unknown algorithm 'token-bucket'; {algorithms}; did you mean 'token_bucket'?"
            ),
            // The rule's other settings may fit the algorithm that was meant, so they are not
            // reported.
            &format!("4:71: unknown algorithm 'off'; {algorithms}"),
            "5:71: error loading config file: 'algorithm' must be text, found a list",
            "6:57: 'requests_per_unit' must be at most 10000 with sliding_log, which keeps the \
             time of each; sliding_window does not; found 10001",
            "7:57: 'requests_per_unit' must be at most 4294967295 with leaky_bucket, whose slots are \
             counted in 32 bits; token_bucket takes more; found 4294967296",
        ],
    );
}

#[test]
fn a_window_and_a_lease_of_slots_and_no_hold() {
    let why = "concurrency counts the requests that are in progress and has no window; remove";
    refuses(
        "concurrency.yaml",
        &[
            "2:23: concurrency cannot be a default; write it in each 'rate_limit'",
            &format!("4:57: {why} 'unit'"),
            &format!("8:13: {why} 'unit'"),
            &format!("9:24: {why} 'unit_multiplier'"),
            "11:39: concurrency gives slots back after 'for'; remove 'unless_settled'",
            &format!("13:58: {why} 'lease'"),
            &format!("14:58: {why} 'lease'"),
            "15:58: 'burst' belongs to token_bucket, and this limit is a concurrency; ",
            "16:62: 'max_delay' belongs to leaky_bucket, and this limit is a concurrency; ",
            "17:59: concurrency lends each slot to one pod and cannot be split; remove 'shards'",
            "18:26: concurrency needs a 'hold', which says how long a request may last at most; \
             add one, such as 'hold: {for: 5m}'",
            "19:102: 'carry_debt' belongs to fixed_window, and this limit is a concurrency",
        ],
    );
}

#[test]
fn a_burst_of_nothing_of_another_algorithm_and_one_that_never_fills() {
    let nothing = "'burst' must be at least 1, found 0; left out, it is requests_per_unit";
    let slow = "takes more than a hundred years to fill at";
    refuses(
        "burst.yaml",
        &[
            &format!("3:92: {nothing}"),
            "4:67: 'burst' belongs to token_bucket, and this limit is a fixed_window; write \
             'algorithm: token_bucket', or remove it",
            "5:92: 'burst' belongs to token_bucket, and this limit is a leaky_bucket; ",
            &format!("6:93: a burst of 101 {slow} 1 a window; lower it, or raise"),
            &format!("7:92: a burst of 1 {slow} 0 a window; "),
            "8:92: error checking config: 'burst' must be a whole number from 1 to 9007199254740991",
            "9:71: unknown algorithm 'tokenbucket'",
            &format!("9:91: {nothing}"),
        ],
    );
}

#[test]
fn a_delay_of_another_algorithm_too_long_or_none_at_all() {
    let form = "'max_delay' must be a duration with its unit, such as 50ms, found";
    refuses(
        "max_delay.yaml",
        &[
            "3:71: 'max_delay' belongs to leaky_bucket, and this limit is a fixed_window; write \
             'algorithm: leaky_bucket', or remove it",
            "4:96: 'max_delay' belongs to leaky_bucket, and this limit is a token_bucket; ",
            "5:96: 'max_delay' must be from 0 to 60s, found 61s",
            &format!("6:96: error loading config file: {form} the number 50"),
            &format!("7:96: error loading config file: {form} the text 'soon'"),
            &format!("8:96: error checking config: {form} the number 1.5"),
            &format!("9:96: error loading config file: {form} a map"),
            &format!("10:96: error loading config file: {form} the text '-1s'"),
        ],
    );
}

#[test]
fn a_lease_by_terms_that_are_none() {
    let fraction = "'fraction' must be above 0 and at most 1, found";
    let form = "error loading config file: 'lease' must be off, on, or a map such as {max: 1000}";
    let never = "sliding_log is never leased; remove 'lease', or write 'lease: off'";
    refuses(
        "lease.yaml",
        &[
            &format!("3:78: {fraction} 0.0"),
            "3:86: 'max' must be at least 1, found 0; to lease nothing write 'lease: off'",
            "3:94: 'ttl' must be from 100ms to 60s, found 99ms",
            &format!("4:78: {fraction} 1.01"),
            "4:89: 'ttl' must be from 100ms to 60s, found 61s",
            &format!("5:78: {fraction} NaN"),
            "5:89: error loading config file: 'ttl' must be a duration with its unit, such as 2s",
            "6:78: error loading config file: 'fraction' must be a number above 0 and at most 1",
            "6:90: error loading config file: 'max' must be a whole number from 1 to 9007199254740991",
            &format!("7:78: {fraction} 1e-60"),
            "7:85: unknown key 'maximum'; expected one of fraction, max, ttl",
            "8:68: unknown key 'tll'; expected one of fraction, max, ttl; did you mean 'ttl'?",
            "8:77: 'unit' cannot stand here; it belongs to 'rate_limit'",
            &format!("9:67: {form}, found the text 'never'"),
            &format!("10:67: {form}, found the number 5"),
            &format!("11:67: {form}, found a list"),
            &format!("12:67: {never}"),
            &format!("13:67: {never}"),
        ],
    );
}

#[test]
fn shards_out_of_range_and_a_queue_that_cannot_be_split() {
    refuses(
        "shards.yaml",
        &[
            "3:69: 'shards' must be from 1 to 64, found 0",
            "4:69: 'shards' must be from 1 to 64, found 65",
            "5:69: 'shards' must be from 1 to 64, found 257",
            "6:69: error loading config file: 'shards' must be a whole number from 1 to",
            "7:69: leaky_bucket is one queue and cannot be split; remove 'shards'",
        ],
    );
}

#[test]
fn defaults_are_checked_themselves_and_hold_nothing_else() {
    let (algorithms, defaults) = (algorithms(), expected(MapKind::Defaults));
    refuses(
        "defaults.yaml",
        &[
            &format!("3:14: unknown algorithm 'fixed'; {algorithms}"),
            "4:14: 'max_delay' must be from 0 to 60s, found 120s",
            "5:21: 'fraction' must be above 0 and at most 1, found 2.0",
            "6:11: 'shards' must be from 1 to 64, found 0",
            "7:18: error loading config file: 'charge_denied' must be true or false",
            "8:3: 'unit' cannot stand here; it belongs to 'rate_limit'",
            "9:3: 'burst' cannot stand here; it belongs to 'rate_limit'",
            "10:17: unknown failure mode 'open'; expected one of local, allow, deny, error",
            &format!("11:3: unknown key 'failuremode'; {defaults}; did you mean 'failure_mode'?"),
            "14:14: 'algorithm' cannot stand here; it belongs to 'rate_limit' or 'defaults'",
            "14:39: 'defaults' cannot stand here; it belongs to the file's top level",
        ],
    );
    refuses(
        "defaults_list.yaml",
        &[
            "2:11: error loading config file: 'defaults' must be a map, found a list",
            "3:1: 'lease' cannot stand here; it belongs to 'rate_limit' or 'defaults'",
        ],
    );
}

#[test]
fn a_rule_is_held_to_the_algorithm_that_it_has_by_default() {
    refuses(
        "defaults_applied.yaml",
        &[
            "4:57: 'requests_per_unit' must be at most 10000 with sliding_log",
            "5:71: 'max_delay' belongs to leaky_bucket, and this limit is a sliding_log; ",
            "6:67: sliding_log is never leased; remove 'lease', or write 'lease: off'",
        ],
    );
}

#[test]
fn what_cannot_owe_cannot_settle_and_only_a_fixed_window_carries_a_debt() {
    let settle = |name| format!("'settle' cannot be used with {name}, which ");
    refuses(
        "settle.yaml",
        &[
            &format!("3:60: {}", settle("leaky_bucket")),
            &format!("4:59: {}", settle("sliding_log")),
            "5:64: 'carry_debt' belongs to fixed_window, and this limit is a token_bucket; remove",
            "6:35: error loading config file: 'settle' must be true or false",
        ],
    );
}
