//! Cost and fairness of a calm run, as invariants.

use std::time::Duration;

use ratelease_rules::Algorithm;

use crate::plan::Plan;
use crate::run::Outcome;

/// On top of one ask a decision, which `lease: off` takes: for each pod and key, a look at the
/// start, and returns at the end of windows.
const ASKS_EXTRA: u64 = 4;

/// Of what one exact server admits of the same requests.
const ADMITTED_PERCENT_MIN: u64 = 95;

/// Tokens of one fixed window.
const STRANDED_MAX: u64 = 2;

/// A slot that may be waited for this long is fetched in time: a trip that is out, and one more.
const ROUND_TRIPS: u32 = 3;

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

/// The fleet admits what one server would, but for what lies with pods that did not use it. Slots
/// that may not be waited for go by while they are fetched: of those it cannot.
fn check_admitted(plan: &Plan, outcome: &Outcome) -> Result<(), String> {
    let spaced = matches!(plan.rules[0].limit().algorithm, Algorithm::LeakyBucket { .. });
    let fetched = (ROUND_TRIPS * plan.weather.round_trip_max()).max(Duration::from_millis(1));
    if spaced && plan.rules[0].max_delay() < fetched {
        return Ok(());
    }
    for (exact, admitted) in &outcome.fairness {
        let floor = exact * ADMITTED_PERCENT_MIN / 100;
        if admitted + stranded(plan) < floor {
            let (rule, name) = (&plan.rules[0], plan.rules[0].algorithm);
            return Err(format!(
                "{name}: {admitted} admitted where one server admits {exact}: {rule:?}"
            ));
        }
    }
    Ok(())
}

/// Single tokens that lie with pods when a window ends, or a lease. Near its end a fixed window is
/// lent token by token, to requests that wait.
fn stranded(plan: &Plan) -> u64 {
    let limit = plan.rules[0].limit();
    let window_ms = limit.window_seconds() * 1_000;
    if matches!(limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingLog) {
        return STRANDED_MAX * (plan.span_ms / window_ms + 1);
    }
    (plan.span_ms / window_ms + 1) * plan.pods_max().div_ceil(2)
}
