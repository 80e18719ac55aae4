//! Plans of runs that account for each token: no window ends, no lease ends, no reply is lost.

use std::time::Duration;

use super::super::{Demand, FleetEvent, Mood, Plan, Spread, WALL_US};
use crate::dice::Dice;
use crate::rule::RulePlan;
use crate::weather::{Stretch, Trouble, Weather};

/// Time after the last fault in which breakers close and returns arrive.
const PEACE_MS: u64 = 1_500;

pub fn plan(seed: u64, dice: &mut Dice) -> Plan {
    let span_ms = dice.pick(&[2_500, 3_500]);
    let rules: Vec<_> = (0..dice.within(1..4)).map(|_| rule(dice)).collect();
    let pods = dice.pick(&[1, 2, 4, 8]);
    let (demand, weather) = (demand(&rules, span_ms, dice), weather(span_ms, dice));
    let max_wait = Duration::from_millis(dice.pick(&[5, 20]));
    let fleet = fleet(pods, span_ms, dice);
    let changes = if dice.percent(40) { changes(&rules, span_ms, dice) } else { Vec::new() };
    Plan {
        seed,
        mood: Mood::Audit,
        // No hour ends during the run.
        wall_start_us: WALL_US + 600_000_000,
        max_wait,
        wait_limit: Duration::from_millis(15),
        shards: dice.within(1..4),
        changes,
        fleet,
        weather,
        rules: rules.clone(),
        ..Plan::calm(pods, rules[0].clone(), demand, span_ms)
    }
}

fn rule(dice: &mut Dice) -> RulePlan {
    let requests_per_unit = dice.pick(&[7, 20, 50, 200, 1_000, 10_000]);
    let mut rule = RulePlan::fixed_window(requests_per_unit, "hour");
    rule.failure_mode = dice.pick(&["error", "local", "local", "deny", "allow"]);
    terms(&mut rule, dice);
    rule
}

/// Draws how tokens are leased, without leases that end.
fn terms(rule: &mut RulePlan, dice: &mut Dice) {
    rule.roll_terms(dice);
    if rule.lease.contains("ttl") {
        rule.lease.clear();
    }
}

fn demand(rules: &[RulePlan], span_ms: u64, dice: &mut Dice) -> Demand {
    let limit = rules.iter().map(|rule| rule.requests_per_unit).max().unwrap_or(1);
    let percent = dice.pick(&[30, 90, 200]);
    let hits = limit * percent / 100;
    // Some hundreds of requests, of a few hits each where the limit is large.
    let hits_mean = hits.div_ceil(400).max(1);
    let sometimes = |percent, dice: &mut Dice| if dice.percent(50) { percent } else { 0 };
    let even = Demand::even((hits / hits_mean * 1_000 / span_ms).max(20));
    Demand {
        spread: dice.pick(&[Spread::Even, Spread::Hot { moves_ms: Some(400) }]),
        values: dice.pick(&[1, 2, 5]),
        hits_max: 2 * hits_mean - 1,
        descriptors_max: dice.within(1..4),
        looks_percent: sometimes(10, dice),
        refunds_percent: sometimes(10, dice),
        cancels_percent: sometimes(15, dice),
        at_once_percent: dice.pick(&[0, 100, 100]),
        caller: dice.pick(&[None, Some(Duration::from_millis(20))]),
        ..even
    }
}

fn weather(span_ms: u64, dice: &mut Dice) -> Weather {
    let stretches = (0..dice.below(3)).map(|_| stretch(span_ms, dice)).collect();
    let way_ms = dice.pick(&[0, 1, 2]);
    Weather { way_ms, jitter_ms: dice.below(way_ms + 1), gives_up_ms: 5_000, stretches }
}

fn stretch(span_ms: u64, dice: &mut Dice) -> Stretch {
    let from_ms = dice.below(span_ms - PEACE_MS);
    let trouble = match dice.below(3) {
        0 => Trouble::Slow { ms: dice.pick(&[5, 20, 100]) },
        1 => Trouble::Stuck { percent: dice.pick(&[1, 10]), ms: 250 },
        _ => Trouble::Away { silent: false },
    };
    Stretch {
        from_ms,
        until_ms: dice.within(from_ms..span_ms - PEACE_MS),
        only: dice.percent(30).then(|| dice.below(2)),
        only_shard: dice.percent(30).then(|| dice.index(3)),
        trouble,
    }
}

/// Draws pods that join, and leave without faults.
fn fleet(pods: u32, span_ms: u64, dice: &mut Dice) -> Vec<(u64, FleetEvent)> {
    let mut events = vec![(0, FleetEvent::Join); pods as usize];
    for _ in 0..dice.below(3) {
        events.push((dice.below(span_ms), FleetEvent::Join));
        let peace = span_ms - PEACE_MS / 2..span_ms;
        events.push((dice.within(peace), FleetEvent::Leave(dice.index(64))));
    }
    events.sort_by_key(|(at_ms, _)| *at_ms);
    events
}

/// Draws changes of amounts, shards and leases; counts continue.
fn changes(rules: &[RulePlan], span_ms: u64, dice: &mut Dice) -> Vec<(u64, Vec<RulePlan>)> {
    let mut rules = rules.to_vec();
    let mut at_ms = 0;
    (0..dice.within(1..3))
        .map(|_| {
            at_ms += dice.below(span_ms / 2);
            for rule in &mut rules {
                match dice.below(3) {
                    0 => *rule = rule.of_requests(dice.pick(&[7, 50, 1_000])),
                    1 => terms(rule, dice),
                    _ => {}
                }
            }
            (at_ms, rules.clone())
        })
        .collect()
}
