//! Rules for costs that are known afterwards, and how their callers end.

use std::time::Duration;

use super::super::{Demand, Ends, Mood, Plan, Spread, WALL_US};
use super::come_and_go;
use crate::plan::FleetEvent;
use crate::rng::Rng;
use crate::rule::{Costs, RulePlan, takes_costs};
use crate::weather::Weather;

/// Percentage of the rules of rough and audited runs that are for such costs.
const RULES_PERCENT: u64 = 40;

/// The slots of a pod that is gone are back after this time.
const SLOTS_BACK_MS: u64 = 5_000;

/// Makes some rules of a plan that may have them rules for costs that are known afterwards.
pub fn add(mut plan: Plan, rng: &mut Rng) -> Plan {
    if !matches!(plan.mood, Mood::Rough | Mood::Audit) {
        return plan;
    }
    for at in 0..plan.rules.len() {
        if !rng.percent(RULES_PERCENT) {
            continue;
        }
        let rule = &mut plan.rules[at];
        rule.draw_costs(rng);
        if plan.mood == Mood::Audit {
            // An audit has no hits that a pod admits alone: a lease may pay for them, or not.
            (rule.failure_mode, rule.charge_denied) = (rng.pick(&["error", "deny"]), false);
        }
        let RulePlan { costs, carry_debt, charge_denied, .. } = *rule;
        let failure_mode = rule.failure_mode;
        for (_, rules) in &mut plan.changes {
            let rule = &mut rules[at];
            if !takes_costs(rule.algorithm) {
                rule.algorithm = "fixed_window";
                (rule.burst, rule.max_delay_ms) = (None, None);
            }
            (rule.costs, rule.carry_debt, rule.charge_denied) = (costs, carry_debt, charge_denied);
            rule.failure_mode = failure_mode;
        }
    }
    let limit = plan.rules.iter().map(|rule| rule.requests_per_unit).max().unwrap_or(1);
    plan.demand.ends = ends(limit, plan.demand.hits_max, rng);
    plan
}

/// A plan in which nothing fails, except pods.
pub fn plan(seed: u64, rng: &mut Rng) -> Plan {
    let span_ms = rng.pick(&[2_200, 3_500, 4_500]);
    let mut rule = rule(rng);
    rule.draw_costs(rng);
    (rule.failure_mode, rule.charge_denied) = ("error", false);
    let pods = rng.pick(&[1, 2, 4, 8]);
    let mut fleet = vec![(0, FleetEvent::Join); pods as usize];
    if rng.percent(50) {
        come_and_go(span_ms, rng, &mut fleet);
        fleet.sort_by_key(|(at_ms, _)| *at_ms);
    }
    let demand = demand(rule.requests_per_unit, rng);
    let way_ms = rng.pick(&[0, 1, 2]);
    let jitter_ms = rng.below(way_ms + 1);
    Plan {
        seed,
        mood: Mood::Costs,
        wall_start_us: WALL_US - rng.below(3_000_000),
        shards: rng.within(1..4),
        weather: Weather { way_ms, jitter_ms, gives_up_ms: 5_000, stretches: Vec::new() },
        wait_min: Duration::from_millis(50),
        fleet,
        ..Plan::calm(pods, rule, demand, span_ms)
    }
}

/// A plan of requests that have slots while they run. Pods go early enough for their slots to come
/// back before the last request, and every request has ended in the end.
pub fn plan_of_slots(seed: u64, rng: &mut Rng) -> Plan {
    let plan = plan(seed, rng);
    let slots = rng.pick(&[1, 3, 10, 50, 1_000]);
    let lasts_ms = rng.pick(&[1_000, 1_500, 60_000]);
    let rule = RulePlan {
        algorithm: "concurrency",
        costs: Costs::Held { lasts_ms, releases: true },
        ..RulePlan::fixed_window(slots, "second")
    };
    let hits_max = rng.pick(&[1, 1, 1 + slots / 10]);
    let mut fleet = vec![(0, FleetEvent::Join); usize::try_from(rng.within(1..9)).unwrap()];
    if rng.percent(60) {
        come_and_go(2_000, rng, &mut fleet);
        fleet.sort_by_key(|(at_ms, _)| *at_ms);
    }
    let mut ends = ends(slots, hits_max, rng);
    ends.after_ms = rng.pick(&[20, 200, 800]);
    if lasts_ms > 1_500 {
        (ends.never_percent, ends.early_percent, ends.elsewhere_percent) = (0, 0, 0);
    }
    // The longest way leaves a request no time for one ask after another.
    let way_ms = rng.pick(&[0, 1, 2, 10]);
    let jitter_ms = rng.below(way_ms + 1);
    let weather = Weather { way_ms, jitter_ms, ..plan.weather };
    let requests_per_second = rng.pick(&[50, 100, 2 * slots.min(100)]).max(20);
    let demand = Demand { requests_per_second, values: 1, hits_max, ends, ..plan.demand };
    let (mood, span_ms) = (Mood::Slots, 2_000 + SLOTS_BACK_MS);
    Plan { mood, span_ms, rules: vec![rule], fleet, demand, weather, ..plan }
}

fn rule(rng: &mut Rng) -> RulePlan {
    let unit = rng.pick(&["second", "second", "minute", "hour"]);
    let mut rule = RulePlan::fixed_window(rng.pick(&[20, 100, 1_000, 10_000]), unit);
    rule.unit_multiplier = if unit == "second" { rng.within(1..4) } else { 1 };
    rule.algorithm = rng.pick(&["fixed_window", "fixed_window", "token_bucket", "sliding_window"]);
    rule.draw_burst(rng);
    rule.draw_terms(rng);
    rule
}

fn demand(limit: u64, rng: &mut Rng) -> Demand {
    let hits_max = 1 + limit / rng.pick(&[10, 40, 100]);
    let even = Demand::even(rng.pick(&[30, 100, 200]));
    Demand {
        spread: rng.pick(&[Spread::Even, Spread::Hot { moves_ms: Some(400) }]),
        values: rng.pick(&[1, 1, 3]),
        hits_max,
        at_once_percent: rng.pick(&[0, 100, 100]),
        cancels_percent: rng.pick(&[0, 0, 10]),
        caller: rng.pick(&[None, Some(Duration::from_millis(20))]),
        ends: ends(limit, hits_max, rng),
        ..even
    }
}

fn ends(limit: u64, hits_max: u64, rng: &mut Rng) -> Ends {
    let mut sometimes = |percent| if rng.percent(40) { percent } else { 0 };
    let (never_percent, twice_percent) = (sometimes(20), sometimes(10));
    let (elsewhere_percent, nothing_percent) = (sometimes(20), sometimes(20));
    let early_percent = sometimes(10);
    Ends {
        after_ms: rng.pick(&[20, 200, 800, 1_500]),
        cost_max: rng.pick(&[hits_max, hits_max, 3 * hits_max, 1 + limit / 10, 1 + 2 * limit]),
        never_percent,
        twice_percent,
        elsewhere_percent,
        nothing_percent,
        early_percent,
    }
}
