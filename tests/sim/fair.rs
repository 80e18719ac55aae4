//! Cost and fairness of a calm run, as invariants.

use ratelease::rules::Algorithm;

use crate::plan::Plan;
use crate::run::Outcome;

/// On top of one ask a decision, which `lease: off` takes: for each pod and key, a look at the
/// start, and returns at the end of windows.
const ASKS_EXTRA: u64 = 4;

/// Of what one exact server admits of the same requests.
const ADMITTED_PERCENT_MIN: u64 = 95;

/// What is wrong with a calm run that broke no bound.
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

/// The fleet admits what one server would, but for what lies with pods that did not use it.
fn check_admitted(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    for (exact, admitted) in &outcome.fairness {
        let floor = exact * ADMITTED_PERCENT_MIN / 100;
        if admitted + stranded(plan) < floor {
            let rule = &plan.rules[0];
            return Err(format!("{admitted} admitted where one server admits {exact}: {rule:?}"));
        }
    }
    Ok(())
}

/// Single tokens that lie with pods when a window ends, or a lease.
fn stranded(plan: &Plan) -> u64 {
    let window_ms = plan.rules[0].limit().window_seconds() * 1_000;
    let spaced = matches!(plan.rules[0].limit().algorithm, Algorithm::LeakyBucket { .. });
    let windows = if spaced { 0 } else { plan.span_ms / window_ms + 1 };
    windows * plan.pods_max().div_ceil(2)
}
