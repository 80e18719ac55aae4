//! Fleets of 100 and 1000 pods on short windows: the hits that they admit, and their asks to the
//! store.
//!
//! With `RATELEASE_SIM_FLEET` in the environment, which `scripts/simulate --fleet` sets, a separate
//! test prints the asks of one saturated key in one window, by limit and number of pods.

use std::ops::Range;

use crate::plan::{Demand, Mood, Plan, Spread};
use crate::rule::RulePlan;
use crate::run::{Outcome, run};

/// Maximum asks a second, over all pods, for a key that is used up.
const PROBES_MAX: u64 = 50;

fn run_or_panic(plan: Plan) -> Outcome {
    run(plan).unwrap_or_else(|wrong| panic!("{wrong:?}"))
}

/// One key, requested for three windows at a rate a third above its limit.
fn saturated(pods: u32, limit: u64, window_seconds: u64) -> Plan {
    let rule =
        RulePlan { unit_multiplier: window_seconds, ..RulePlan::fixed_window(limit, "second") };
    let demand = Demand::even((limit * 4 / 3).div_ceil(window_seconds));
    let mut plan = Plan::calm(pods, rule, demand, 3_000 * window_seconds);
    // Windows begin with the run, and at whole seconds.
    plan.wall_start_us -= plan.wall_start_us % (window_seconds * 1_000_000);
    plan
}

fn asks(outcome: &Outcome, millis: Range<u64>) -> u64 {
    let [from, until] = [millis.start, millis.end].map(|at| usize::try_from(at).unwrap());
    outcome.asks.iter().take(until).skip(from).map(|asks| u64::from(*asks)).sum()
}

/// Checks that a saturated key is used up in each window, and that few requests are denied before.
fn check_saturated(name: &str, plan: Plan) {
    let limit = plan.rules[0].requests_per_unit;
    let outcome = run_or_panic(plan);
    let window = asks(&outcome, 1_000..2_000);
    let used: Vec<u64> = outcome.used.windows.iter().map(|window| window.used).collect();
    let denied_percent = denied_too_soon_percent(&outcome);
    println!("{name}: {used:?} of {limit}, {denied_percent:.2} % denied too soon, {window} asks");
    check_use(name, &outcome, limit);
}

/// Checks that at least 0.99 of the limit is used in each window, and that at most 1.5 % of the
/// requests are denied before the limit is reached. The first window, with its cold start, does not
/// count.
fn check_use(name: &str, outcome: &Outcome, limit: u64) {
    let (used, denied_percent) = (least_used(outcome), denied_too_soon_percent(outcome));
    assert!(used * 100 >= limit * 99, "{name}: {used} of {limit} used in a window");
    assert!(denied_percent <= 1.5, "{name}: {denied_percent:.2} % denied too soon");
}

fn least_used(outcome: &Outcome) -> u64 {
    outcome.used.windows.iter().skip(1).map(|window| window.used).min().unwrap_or(0)
}

fn denied_too_soon_percent(outcome: &Outcome) -> f64 {
    outcome.falsely_denied as f64 * 100.0 / outcome.requests as f64
}

#[test]
fn a_hundred_pods_use_a_limit_of_ten_tokens_each() {
    for limit in [1_000, 10_000] {
        check_saturated(&format!("100 pods, {limit}"), saturated(100, limit, 1));
        let mut skewed = saturated(100, limit, 1);
        skewed.demand.spread = Spread::Hot { moves_ms: None };
        check_saturated(&format!("100 pods, skewed, {limit}"), skewed);
    }
}

#[test]
fn a_thousand_pods_use_a_limit_of_ten_tokens_each() {
    check_saturated("1000 pods, 10000", saturated(1_000, 10_000, 1));
}

#[test]
fn three_busy_pods_of_a_thousand_ask_little_more_than_three_alone() {
    let [alone, of_many] = [(0, 3), (997, 1_000)].map(|(idle_pods, pods_expected)| {
        let plan = Plan { idle_pods, pods_expected, ..saturated(3, 10_000, 5) };
        asks(&run_or_panic(plan), 5_000..10_000)
    });
    println!("{alone} asks alone, {of_many} of a thousand");
    assert!(of_many * 2 <= alone * 3, "{of_many} asks of 3 of 1000 pods, {alone} of 3 alone");
}

#[test]
fn a_key_that_is_used_up_is_probed_at_a_constant_rate_of_the_fleet() {
    let rule = RulePlan::fixed_window(1_000, "minute");
    let plan = Plan::calm(1_000, rule, Demand::even(4_000), 6_000);
    let outcome = run_or_panic(plan);
    let probes = asks(&outcome, 3_000..6_000) / 3;
    println!("{probes} asks a second for a key that is used up");
    assert!(probes <= PROBES_MAX, "{probes} asks a second for a key that is used up");
}

/// Checks the start of a window of 20 s, when every pod needs a lease of every key. Each master
/// serves `asks_per_ms` asks a millisecond.
fn window_edge(
    pods: u32,
    keys: u64,
    asks_per_ms: u64,
    requests_per_second: u64,
    edge_ms: u64,
) -> Plan {
    let mut demand = Demand::even(requests_per_second);
    demand.values = keys;
    let limit = 20 * requests_per_second / keys;
    let mut rule = RulePlan { unit_multiplier: 20, ..RulePlan::fixed_window(limit, "second") };
    rule.failure_mode = "local";
    let mut plan = Plan::calm(pods, rule, demand, edge_ms + 1_000);
    plan.mood = Mood::Rough;
    plan.wall_start_us -= plan.wall_start_us % 20_000_000 + edge_ms * 1_000;
    // Pods that start all at once ask for each key a few times before they know their demand.
    plan.asks_per_ms = Some((edge_ms - 100, asks_per_ms));
    plan.shards = 3;
    plan.wait_min = std::time::Duration::from_millis(5);
    plan
}

fn check_window_edge(plan: Plan, edge_ms: usize) {
    let outcome = run_or_panic(plan);
    let by_100_ms: Vec<u32> = outcome.asks.chunks(100).map(|asks| asks.iter().sum()).collect();
    println!("asks by 100 ms: {by_100_ms:?}");
    let peak = outcome.asks.iter().skip(edge_ms - 100).max();
    let opened = outcome.breakers_opened;
    println!("{peak:?} asks a millisecond at the most, {opened} breakers opened");
    println!("an ask waited {:?} for its master at the most", outcome.backlog);
    println!("{} of {} answered by a failure mode", outcome.failure_modes, outcome.requests);
    assert_eq!(opened, 0, "breakers of a store that answers");
}

#[test]
fn a_windows_start_opens_no_breaker() {
    check_window_edge(window_edge(100, 50, 5, 50_000, 1_500), 1_500);
}

/// The larger runs, and the table of asks by limit and pods; does nothing without the variable.
#[test]
fn the_table_of_asks() {
    if std::env::var_os("RATELEASE_SIM_FLEET").is_none() {
        return;
    }
    println!("asks of one saturated key in one window of 10 s, of those that follow the first;");
    println!("the least of the limit that was used in a window, and denials too soon");
    println!("{:>9} {:>24} {:>24} {:>24}", "limit", "4 pods", "100", "1000");
    for limit in [20, 100, 1_000, 10_000, 100_000] {
        let [few, many, most] = [4, 100, 1_000].map(|pods| row(pods, limit));
        println!("{limit:>9} {few:>24} {many:>24} {most:>24}");
    }
}

/// Where each pod has ten tokens, the share that is used is checked too.
fn row(pods: u32, limit: u64) -> String {
    let outcome = run_or_panic(saturated(pods, limit, 10));
    if limit >= 10 * u64::from(pods) {
        check_use(&format!("{pods} pods, {limit}"), &outcome, limit);
    }
    let used = least_used(&outcome) as f64 / limit as f64;
    let too_soon = denied_too_soon_percent(&outcome);
    format!("{} {used:.4} {too_soon:.2} %", asks(&outcome, 10_000..20_000))
}

/// The masters serve 100 000 asks, one a pod and key, in 0.3 s.
#[test]
fn a_windows_start_of_a_thousand_pods_and_a_hundred_keys_opens_no_breaker() {
    if std::env::var_os("RATELEASE_SIM_FLEET").is_none() {
        return;
    }
    check_window_edge(window_edge(1_000, 100, 111, 1_000_000, 3_500), 3_500);
}
