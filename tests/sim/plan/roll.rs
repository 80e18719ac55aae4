//! Draws a plan from a seed.

mod audit;
mod costs;

use std::time::Duration;

use super::{Demand, Ends, FailoverPlan, FleetEvent, Mood, Plan, Spread, WALL_US};
use crate::rng::Rng;
use crate::rule::RulePlan;
use crate::weather::{Stretch, Trouble, Weather};

/// Approximate number of requests of one run: many short runs find more than a few long ones.
const REQUESTS_MAX: u64 = 300;

const SPAN_MS: [u64; 4] = [1_200, 1_200, 2_200, 2_200];

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mood = match Rng::new(seed, &[0]).below(10) {
            0 | 1 => Mood::Under,
            2 | 3 => Mood::Over,
            4 => Mood::Audit,
            5 => Mood::Costs,
            6 => Mood::Slots,
            _ => Mood::Rough,
        };
        Self::of_mood(seed, mood)
    }

    pub fn of_mood(seed: u64, mood: Mood) -> Self {
        let mut rng = Rng::new(seed, &[0, 1]);
        let plan = match mood {
            Mood::Audit => audit::plan(seed, &mut rng),
            Mood::Costs => costs::plan(seed, &mut rng),
            Mood::Slots => costs::plan_of_slots(seed, &mut rng),
            _ => Self::of_dice(seed, mood, &mut rng),
        };
        let plan = costs::add(plan, &mut Rng::new(seed, &[0, 3]));
        // A calm run is compared with one server that sees each request at once.
        let is_bursty = !mood.is_calm();
        let drawn = || bursts(plan.span_ms, &mut Rng::new(seed, &[0, 2]));
        Self { bursts: if is_bursty { drawn() } else { Vec::new() }, ..plan }
    }

    fn of_dice(seed: u64, mood: Mood, rng: &mut Rng) -> Self {
        let span_ms = rng.pick(&SPAN_MS);
        let rough = mood == Mood::Rough;
        let crowded = rough && rng.percent(15);
        let rules: Vec<_> = (0..if rough { rng.within(1..4) } else { 1 })
            .map(|_| {
                let requests_per_unit = requests_per_unit(mood, rng);
                RulePlan::draw(rng, requests_per_unit, !rough)
            })
            .collect();
        let failovers = if rough && rng.percent(30) { failovers(span_ms, rng) } else { Vec::new() };
        // After a clock was set back, some callers keep asking until it has caught up, so asks must
        // take time.
        let way_ms = if failovers.is_empty() { rng.pick(&[0, 1, 1, 2]) } else { rng.pick(&[1, 2]) };
        let weather = Weather {
            way_ms,
            jitter_ms: rng.below(way_ms + 1),
            gives_up_ms: rng.pick(&[20, 50, 200]),
            stretches: if rough { stretches(span_ms, rng) } else { Vec::new() },
        };
        let demand = demand(mood, &rules, span_ms, crowded, rng);
        let fleet = fleet(mood, span_ms, rng);
        let changes = if rough && rng.percent(30) { changes(&rules, span_ms, rng) } else { vec![] };
        let wait_min = Duration::from_millis(if rough { rng.pick(&[5, 20, 50]) } else { 50 });
        let shards = rng.within(1..4);
        let mut plan = Self {
            seed,
            mood,
            span_ms,
            // At some moment in the last three seconds of a minute.
            wall_start_us: WALL_US - rng.below(3_000_000),
            skews_us: Vec::new(),
            asks_per_ms: None,
            wait_min,
            wait_max: wait_min.max(Duration::from_millis(15)),
            pods_expected: rng.pick(&[1, 4, 16, 64]),
            idle_pods: 0,
            // A crowded table has room for some eighty keys.
            pod_bytes_max: if crowded { 24 << 10 } else { 8 << 20 },
            store_keys_max: if crowded { rng.pick(&[100, 2_000]) } else { 10_000 },
            shards,
            changes,
            rules,
            fleet,
            demand,
            bursts: Vec::new(),
            weather,
            failovers,
            tamper: None,
            tells_story: false,
        };
        if rough && rng.percent(20) {
            plan.skews_us = skews(&plan, rng);
        }
        plan
    }
}

/// Draws the masters' clocks. All shards of a split key count by one clock, so that the fleet has
/// one sequence of windows; two clocks may be several windows apart.
fn skews(plan: &Plan, rng: &mut Rng) -> Vec<u64> {
    if plan.all_rules().any(|rule| rule.shards > 1) || plan.has_failovers() {
        return Vec::new();
    }
    (0..plan.shards).map(|_| rng.pick(&[0, 300_000, 2_500_000, 200_000_000])).collect()
}

fn requests_per_unit(mood: Mood, rng: &mut Rng) -> u64 {
    match mood {
        Mood::Rough => rng.pick(&[0, 1, 3, 7, 20, 50, 200, 1_000, 10_000, 100_000]),
        _ => rng.pick(&[20, 50, 100, 200, 400]),
    }
}

fn demand(mood: Mood, rules: &[RulePlan], span_ms: u64, crowded: bool, rng: &mut Rng) -> Demand {
    let limit = rules.iter().map(|rule| rule.requests_per_unit).max().unwrap_or(1);
    // Percentage of the largest limit, per second.
    let percent = match mood {
        Mood::Under => rng.pick(&[50, 95, 120]),
        Mood::Over => rng.pick(&[150, 250]),
        _ => rng.pick(&[30, 90, 150, 300, 1_000]),
    };
    let hits_a_second = (limit * percent / 100).max(5);
    let rough = mood == Mood::Rough;
    let requests_max = if rough { REQUESTS_MAX * 1_000 / span_ms } else { u64::MAX };
    let hits_mean = hits_a_second.div_ceil(requests_max);
    // A few large charges or many small ones add up to the same demand.
    let hits_mean = if rough { hits_mean * rng.pick(&[1, 1, 1, 3]) } else { hits_mean };
    let sometimes = |percent, rng: &mut Rng| if rough && rng.percent(25) { percent } else { 0 };
    Demand {
        requests_per_second: (hits_a_second / hits_mean).clamp(5, requests_max),
        spread: match rng.below(3) {
            0 => Spread::Even,
            1 => Spread::Hot { moves_ms: None },
            _ if mood == Mood::Under => Spread::Even,
            _ => Spread::Hot { moves_ms: Some(rng.within(100..1_000)) },
        },
        values: if crowded {
            300
        } else if rough {
            rng.pick(&[1, 1, 2, 5])
        } else {
            1
        },
        hot_percent: if crowded { 20 } else { 60 },
        hits_max: 2 * hits_mean - 1,
        descriptors_max: if rough { rng.within(1..4) } else { 1 },
        looks_percent: sometimes(10, rng),
        refunds_percent: sometimes(10, rng),
        cancels_percent: sometimes(10, rng),
        at_once_percent: rng.pick(&[0, 50, 100, 100]),
        stale_percent: sometimes(20, rng),
        overrides_percent: sometimes(20, rng),
        caller: (rough && rng.percent(50)).then(|| Duration::from_millis(rng.pick(&[10, 20]))),
        offered_permille_max: (mood == Mood::Under).then_some(950),
        ends: Ends::default(),
    }
}

/// Draws up to three bursts, of a few requests or of more than a limit.
fn bursts(span_ms: u64, rng: &mut Rng) -> Vec<(u64, u64)> {
    (0..rng.below(4))
        .map(|_| (rng.below(span_ms), rng.pick(&[5, 20, 20, 100, 400, 1_000])))
        .collect()
}

fn stretches(span_ms: u64, rng: &mut Rng) -> Vec<Stretch> {
    let count = rng.below(4);
    (0..count)
        .map(|_| {
            let from_ms = rng.below(span_ms);
            let trouble = match rng.below(6) {
                0 | 1 => Trouble::Lossy { percent: rng.pick(&[5, 20, 60]) },
                2 => Trouble::Slow { ms: rng.pick(&[5, 50, 1_500]) },
                3 => Trouble::Away { silent: true },
                4 => Trouble::Stuck { percent: rng.pick(&[1, 10]), ms: 250 },
                _ => Trouble::Away { silent: false },
            };
            Stretch {
                from_ms,
                until_ms: from_ms + rng.within(10..span_ms),
                only: rng.percent(30).then(|| rng.below(2)),
                only_shard: rng.percent(30).then(|| rng.index(3)),
                trouble,
            }
        })
        .collect()
}

/// Draws changes of most of the rules.
fn changes(rules: &[RulePlan], span_ms: u64, rng: &mut Rng) -> Vec<(u64, Vec<RulePlan>)> {
    let mut at_ms = 0;
    let mut rules = rules.to_vec();
    (0..rng.within(1..4))
        .map(|_| {
            at_ms += rng.below(span_ms / 2);
            for rule in &mut rules {
                change(rule, rng);
            }
            (at_ms, rules.clone())
        })
        .collect()
}

/// Gives a rule another amount, other terms, or another algorithm or window.
fn change(rule: &mut RulePlan, rng: &mut Rng) {
    match rng.below(10) {
        0..4 => *rule = rule.of_requests(requests_per_unit(Mood::Rough, rng)),
        4 | 5 => rule.draw_terms(rng),
        6 => rule.draw_algorithm(rng),
        7 => rule.unit = rng.pick(&["second", "minute"]),
        8 => rule.draw_burst(rng),
        _ => {}
    }
    if rule.algorithm == "leaky_bucket" {
        rule.shards = 1;
    }
    if rule.algorithm == "sliding_log" {
        rule.lease.clear();
    }
    if rule.requests_per_unit == 0 {
        rule.burst = None;
    }
}

fn fleet(mood: Mood, span_ms: u64, rng: &mut Rng) -> Vec<(u64, FleetEvent)> {
    let first = match mood {
        Mood::Rough => rng.pick(&[1, 2, 4, 8]),
        _ => rng.pick(&[1, 2, 4, 10]),
    };
    let mut events = vec![(0, FleetEvent::Join); first];
    if mood == Mood::Rough {
        match rng.below(10) {
            0 => churn(span_ms, rng, &mut events),
            1..6 => come_and_go(span_ms, rng, &mut events),
            _ => {}
        }
    }
    events.sort_by_key(|(at_ms, _)| *at_ms);
    events
}

/// Grows the fleet to forty pods and shrinks it back to four.
fn churn(span_ms: u64, rng: &mut Rng, events: &mut Vec<(u64, FleetEvent)>) {
    *events = vec![(0, FleetEvent::Join); 4];
    for _ in 0..36 {
        events.push((rng.within(span_ms / 4..span_ms / 3), FleetEvent::Join));
        events.push((rng.within(span_ms / 2..span_ms * 3 / 4), departure(rng)));
    }
}

fn come_and_go(span_ms: u64, rng: &mut Rng, events: &mut Vec<(u64, FleetEvent)>) {
    for _ in 0..rng.within(1..6) {
        let event = if rng.percent(50) { FleetEvent::Join } else { departure(rng) };
        events.push((rng.below(span_ms), event));
    }
}

fn departure(rng: &mut Rng) -> FleetEvent {
    let place = rng.index(64);
    if rng.percent(50) { FleetEvent::Leave(place) } else { FleetEvent::Crash(place) }
}

fn failovers(span_ms: u64, rng: &mut Rng) -> Vec<(u64, FailoverPlan)> {
    let mut failovers: Vec<_> = (0..rng.within(1..3))
        .map(|_| {
            let far = rng.pick(&[1_000, 500_000, 500_000, 3_000_000]);
            let jump_us = i64::try_from(rng.below(far)).unwrap();
            let jump_us = if rng.percent(50) { jump_us } else { -jump_us };
            let lost_ms = rng.pick(&[0, 1, 5, 20, 100]);
            (rng.within(100..span_ms), FailoverPlan { lost_ms, jump_us })
        })
        .collect();
    failovers.sort_by_key(|(at_ms, _)| *at_ms);
    failovers
}
