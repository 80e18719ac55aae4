//! Shrinks a failing plan by named steps: a shrunk plan is its seed and the steps taken.

use crate::plan::{FleetEvent, Mood, Plan, Spread};
use crate::rule::RulePlan;
use crate::run::run;
use crate::weather::Weather;
use crate::world::Wrong;

/// A plan that was shrunk.
pub struct Shrunk {
    pub plan: Plan,
    /// The steps, in the order in which they were taken.
    pub steps: Vec<String>,
    pub wrong: Wrong,
}

/// Steps that each change one thing, for any plan; those that remove most come first.
const STEPS: [&str; 24] = [
    "no-failovers",
    "no-changes",
    "no-trouble",
    "no-bursts",
    "half-span",
    "one-value",
    "one-descriptor",
    "no-refunds",
    "no-cancels",
    "no-looks",
    "no-overrides",
    "no-stale",
    "no-skews",
    "no-jitter",
    "one-shard",
    "even-spread",
    "plain-leases",
    "enforced-rules",
    "single-hits",
    "half-demand",
    "never-at-once",
    "timely-ends",
    "ends-at-home",
    "small-costs",
];

/// Maximum number of runs to shrink one plan.
const RUNS_MAX: usize = 400;

/// Takes every step after which `plan` still fails in the same way.
pub fn shrink(plan: Plan, wrong: Wrong) -> Shrunk {
    let mut shrunk = Shrunk { plan, steps: Vec::new(), wrong };
    let mut runs = 0;
    loop {
        let before = shrunk.steps.len();
        for step in candidates(&shrunk.plan) {
            let mut plan = shrunk.plan.clone();
            if runs == RUNS_MAX || !take(&step, &mut plan) {
                continue;
            }
            runs += 1;
            if let Err(wrong) = run(plan.clone())
                && wrong.kind() == shrunk.wrong.kind()
            {
                shrunk.steps.push(step);
                (shrunk.plan, shrunk.wrong) = (plan, wrong);
            }
        }
        if shrunk.steps.len() == before {
            return shrunk;
        }
    }
}

/// Steps that may be taken next. Steps with a number count from the end, so that a step taken does
/// not change the numbers of those that follow.
fn candidates(plan: &Plan) -> Vec<String> {
    let numbered = |name: &str, count: usize| -> Vec<String> {
        (0..count).rev().map(|at| format!("{name}:{at}")).collect()
    };
    let mut steps: Vec<String> = STEPS.iter().map(ToString::to_string).collect();
    steps.extend(numbered("drop-stretch", plan.weather.stretches.len()));
    steps.extend(numbered("drop-failover", plan.failovers.len()));
    steps.extend(numbered("drop-change", plan.changes.len()));
    steps.extend(numbered("drop-rule", plan.rules.len()));
    steps.extend(numbered("drop-event", plan.fleet.len()));
    steps
}

/// Takes one step. Returns false if it does not apply to the plan.
pub fn take(step: &str, plan: &mut Plan) -> bool {
    if let Some((name, at)) = step.split_once(':') {
        return at.parse().is_ok_and(|at| drop_one(name, at, plan));
    }
    let demand = &mut plan.demand;
    match step {
        "no-failovers" => clear(&mut plan.failovers),
        "no-changes" => clear(&mut plan.changes),
        "no-trouble" => clear(&mut plan.weather.stretches),
        "no-bursts" => clear(&mut plan.bursts),
        "no-skews" => clear(&mut plan.skews_us),
        // An audited run ends in peace.
        "half-span" => plan.mood != Mood::Audit && halve(&mut plan.span_ms, 100),
        "half-demand" => halve(&mut demand.requests_per_second, 2),
        "one-value" => set(&mut demand.values, 1),
        "one-descriptor" => set(&mut demand.descriptors_max, 1),
        "single-hits" => set(&mut demand.hits_max, 1),
        "no-refunds" => set(&mut demand.refunds_percent, 0),
        "no-cancels" => set(&mut demand.cancels_percent, 0),
        "no-looks" => set(&mut demand.looks_percent, 0),
        "no-overrides" => set(&mut demand.overrides_percent, 0),
        "no-stale" => set(&mut demand.stale_percent, 0),
        "never-at-once" => set(&mut demand.at_once_percent, 0),
        "one-shard" => set(&mut plan.shards, 1),
        "no-jitter" => set(&mut plan.weather.jitter_ms, 0),
        "even-spread" => {
            let uneven = !matches!(demand.spread, Spread::Even);
            demand.spread = Spread::Even;
            uneven
        }
        "plain-leases" => change_rules(plan, |rule| {
            let plain = rule.shards == 1 && rule.lease.is_empty();
            (rule.shards, rule.lease) = (1, String::new());
            !plain
        }),
        "timely-ends" => {
            let ends = &mut demand.ends;
            let rare = [&mut ends.never_percent, &mut ends.twice_percent, &mut ends.early_percent];
            rare.into_iter().filter_map(|percent| set(percent, 0).then_some(())).count() > 0
        }
        "ends-at-home" => set(&mut demand.ends.elsewhere_percent, 0),
        "small-costs" => halve(&mut demand.ends.cost_max, 1),
        "enforced-rules" => change_rules(plan, |rule| !std::mem::take(&mut rule.mode).is_empty()),
        _ => false,
    }
}

fn drop_one(name: &str, at: usize, plan: &mut Plan) -> bool {
    let Weather { stretches, .. } = &mut plan.weather;
    match name {
        "drop-stretch" => remove(stretches, at),
        "drop-failover" => remove(&mut plan.failovers, at),
        "drop-change" => remove(&mut plan.changes, at),
        "drop-event" => {
            let joins = |event: &&(u64, FleetEvent)| matches!(event, (0, FleetEvent::Join));
            let last = plan.fleet.iter().filter(joins).count() == 1;
            let is_last = last && plan.fleet.get(at).is_some_and(|event| joins(&event));
            !is_last && remove(&mut plan.fleet, at)
        }
        "drop-rule" => {
            for (_, rules) in &mut plan.changes {
                remove(rules, at);
            }
            plan.rules.len() > 1 && remove(&mut plan.rules, at)
        }
        _ => false,
    }
}

fn change_rules(plan: &mut Plan, change: impl Fn(&mut RulePlan) -> bool) -> bool {
    let changed = plan.changes.iter_mut().flat_map(|(_, rules)| rules);
    plan.rules.iter_mut().chain(changed).filter_map(|rule| change(rule).then_some(())).count() > 0
}

fn clear<T>(list: &mut Vec<T>) -> bool {
    !std::mem::take(list).is_empty()
}

fn remove<T>(list: &mut Vec<T>, at: usize) -> bool {
    at < list.len() && {
        list.remove(at);
        true
    }
}

fn set(field: &mut u64, to: u64) -> bool {
    std::mem::replace(field, to) != to
}

fn halve(field: &mut u64, least: u64) -> bool {
    let half = (*field / 2).max(least);
    half < *field && set(field, half)
}
