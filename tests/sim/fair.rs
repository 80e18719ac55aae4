//! Invariants of the cost and fairness of a calm run.

use std::time::Duration;

use ratelease_engine::algorithm::{Token, counting};

use crate::ledger::spread;
use crate::plan::Plan;
use crate::run::Outcome;

/// Asks allowed in addition to one per decision, which `lease: off` takes: for each pod and key, a
/// look at the start, and returns at the end of windows.
const ASKS_EXTRA: u64 = 4;

/// Minimum number of requests that the fleet admits, as a percentage of those that one exact server
/// admits.
const ADMITTED_PERCENT_MIN: u64 = 95;

/// Maximum tokens of one fixed window that may remain unused.
const STRANDED_MAX: u64 = 2;

/// Number of round trips that a slot must be allowed to wait to be fetched in time: the ask under
/// way, and one more.
const ROUND_TRIPS: u32 = 3;

/// Checks the cost and the fairness of a calm run that broke no bound.
pub fn check(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    check_cost(plan, outcome)?;
    check_admitted(plan, outcome)
}

fn check_cost(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    let asks: u64 = outcome.asks.iter().map(|asks| u64::from(*asks)).sum();
    let extra = ASKS_EXTRA * plan.pods_max() * outcome.fairness.len() as u64;
    if asks > outcome.requests + extra {
        let requests = outcome.requests;
        return Err(format!("{asks} asks for {requests} requests, which could have asked each"));
    }
    Ok(())
}

/// Checks that the fleet admits as much as one server would, apart from tokens left in pods that
/// did not use them. Slots that may not wait pass while they are fetched, so those runs are not
/// checked.
fn check_admitted(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    let spaced = counting(plan.rules[0].limit()).token == Token::Slot;
    let fetched = (ROUND_TRIPS * plan.weather.round_trip_max()).max(Duration::from_millis(1));
    if spaced && plan.rules[0].max_delay() < fetched {
        return Ok(());
    }
    for (exact, admitted) in &outcome.fairness {
        let floor = exact * ADMITTED_PERCENT_MIN / 100;
        if admitted + stranded(plan) + held(plan, outcome) < floor {
            let (rule, name) = (&plan.rules[0], plan.rules[0].algorithm);
            return Err(format!(
                "{name}: {admitted} admitted where one server admits {exact}: {rule:?}"
            ));
        }
    }
    Ok(())
}

/// Tokens that pods may still use when the run ends within a fixed window, as many as they may hold
/// when a request is denied: a run that ended 83 ms after the first denial, and a third of a second
/// after the demand had moved, left 39 of 400 tokens with ten pods.
fn held(plan: &Plan, outcome: &Outcome) -> u64 {
    let limit = plan.rules[0].limit();
    let of_window = counting(limit).token == Token::OfWindow;
    if of_window { outcome.held.min(spread(limit, plan.pods_max())) } else { 0 }
}

/// Single tokens that remain in pods when a window or a lease ends. Near its end, a fixed window is
/// leased token by token, to requests that wait.
fn stranded(plan: &Plan) -> u64 {
    let limit = plan.rules[0].limit();
    let window_ms = limit.window_seconds() * 1_000;
    if counting(limit).token == Token::OfWindow || !limit.algorithm.is_leased() {
        return STRANDED_MAX * (plan.span_ms / window_ms + 1);
    }
    (plan.span_ms / window_ms + 1) * plan.pods_max().div_ceil(2)
}
