//! Plans of runs that account for each token: no window ends, no lease ends, no reply is lost.

use std::time::Duration;

use super::super::{Demand, FleetEvent, Mood, Plan, Spread, WALL_US};
use crate::rng::Rng;
use crate::rule::RulePlan;
use crate::weather::{Stretch, Trouble, Weather};

/// Time after the last fault in which breakers close and returns arrive.
const PEACE_MS: u64 = 1_500;

pub fn plan(seed: u64, rng: &mut Rng) -> Plan {
    let span_ms = rng.pick(&[2_500, 3_500]);
    let rules: Vec<_> = (0..rng.within(1..4)).map(|_| rule(rng)).collect();
    let pods = rng.pick(&[1, 2, 4, 8]);
    let (demand, weather) = (demand(&rules, span_ms, rng), weather(span_ms, rng));
    let wait_min = Duration::from_millis(rng.pick(&[5, 20]));
    let fleet = fleet(pods, span_ms, rng);
    let changes = if rng.percent(40) { changes(&rules, span_ms, rng) } else { Vec::new() };
    Plan {
        seed,
        mood: Mood::Audit,
        // No hour ends during the run.
        wall_start_us: WALL_US + 600_000_000,
        wait_min,
        wait_max: Duration::from_millis(15),
        shards: rng.within(1..4),
        changes,
        fleet,
        weather,
        rules: rules.clone(),
        ..Plan::calm(pods, rules[0].clone(), demand, span_ms)
    }
}

fn rule(rng: &mut Rng) -> RulePlan {
    let requests_per_unit = rng.pick(&[7, 20, 50, 200, 1_000, 10_000]);
    let mut rule = RulePlan::fixed_window(requests_per_unit, "hour");
    rule.failure_mode = rng.pick(&["error", "local", "local", "deny", "allow"]);
    terms(&mut rule, rng);
    rule
}

/// Draws how tokens are leased, without leases that end.
fn terms(rule: &mut RulePlan, rng: &mut Rng) {
    rule.draw_terms(rng);
    if rule.lease.contains("ttl") {
        rule.lease.clear();
    }
}

fn demand(rules: &[RulePlan], span_ms: u64, rng: &mut Rng) -> Demand {
    let limit = rules.iter().map(|rule| rule.requests_per_unit).max().unwrap_or(1);
    let percent = rng.pick(&[30, 90, 200]);
    let hits = limit * percent / 100;
    // Some hundreds of requests, of a few hits each where the limit is large.
    let hits_mean = hits.div_ceil(400).max(1);
    let sometimes = |percent, rng: &mut Rng| if rng.percent(50) { percent } else { 0 };
    let even = Demand::even((hits / hits_mean * 1_000 / span_ms).max(20));
    Demand {
        spread: rng.pick(&[Spread::Even, Spread::Hot { moves_ms: Some(400) }]),
        values: rng.pick(&[1, 2, 5]),
        hits_max: 2 * hits_mean - 1,
        descriptors_max: rng.within(1..4),
        looks_percent: sometimes(10, rng),
        refunds_percent: sometimes(10, rng),
        cancels_percent: sometimes(15, rng),
        at_once_percent: rng.pick(&[0, 100, 100]),
        caller: rng.pick(&[None, Some(Duration::from_millis(20))]),
        ..even
    }
}

fn weather(span_ms: u64, rng: &mut Rng) -> Weather {
    let stretches = (0..rng.below(3)).map(|_| stretch(span_ms, rng)).collect();
    let way_ms = rng.pick(&[0, 1, 2]);
    Weather { way_ms, jitter_ms: rng.below(way_ms + 1), gives_up_ms: 5_000, stretches }
}

fn stretch(span_ms: u64, rng: &mut Rng) -> Stretch {
    let from_ms = rng.below(span_ms - PEACE_MS);
    let trouble = match rng.below(3) {
        0 => Trouble::Slow { ms: rng.pick(&[5, 20, 100]) },
        1 => Trouble::Stuck { percent: rng.pick(&[1, 10]), ms: 250 },
        _ => Trouble::Away { silent: false },
    };
    Stretch {
        from_ms,
        until_ms: rng.within(from_ms..span_ms - PEACE_MS),
        only: rng.percent(30).then(|| rng.below(2)),
        only_shard: rng.percent(30).then(|| rng.index(3)),
        trouble,
    }
}

/// Draws pods that join, and leave without faults.
fn fleet(pods: u32, span_ms: u64, rng: &mut Rng) -> Vec<(u64, FleetEvent)> {
    let mut events = vec![(0, FleetEvent::Join); pods as usize];
    for _ in 0..rng.below(3) {
        events.push((rng.below(span_ms), FleetEvent::Join));
        let peace = span_ms - PEACE_MS / 2..span_ms;
        events.push((rng.within(peace), FleetEvent::Leave(rng.index(64))));
    }
    events.sort_by_key(|(at_ms, _)| *at_ms);
    events
}

/// Draws changes of amounts, shards and leases; counts continue.
fn changes(rules: &[RulePlan], span_ms: u64, rng: &mut Rng) -> Vec<(u64, Vec<RulePlan>)> {
    let mut rules = rules.to_vec();
    let mut at_ms = 0;
    (0..rng.within(1..3))
        .map(|_| {
            at_ms += rng.below(span_ms / 2);
            for rule in &mut rules {
                match rng.below(3) {
                    0 => *rule = rule.of_requests(rng.pick(&[7, 50, 1_000])),
                    1 => terms(rule, rng),
                    _ => {}
                }
            }
            (at_ms, rules.clone())
        })
        .collect()
}
