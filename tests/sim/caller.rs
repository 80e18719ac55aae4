//! The callers: what they ask, of whom, and when.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ratelease::key::Key;
use ratelease::request::{Descriptor, Entry, Request};

use crate::dice::Dice;
use crate::fleet::{Fleet, Pod};
use crate::ledger::{Call, Charge, Ledger};
use crate::plan::{Spread, Tamper};
use crate::rule::{DOMAIN, NAMES};
use crate::world::World;

/// Makes requests, a few each millisecond.
pub struct Callers {
    world: Arc<World>,
    ledger: Arc<Ledger>,
    dice: Dice,
    /// Thousandths of a request that are due.
    due: u64,
    /// Hits asked for in a window of a key, where that is bounded.
    offered: HashMap<(Key, u64), u64>,
}

/// Past its promised end by more than this, a request is taken for never answered.
const GRACE: Duration = Duration::from_secs(2);

static VALUES: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..1_000).map(|value| value.to_string()).collect());

// === impl Callers ===

impl Callers {
    pub fn new(world: &Arc<World>, ledger: &Arc<Ledger>) -> Self {
        let dice = Dice::new(world.plan.seed, &[3]);
        let (world, ledger) = (Arc::clone(world), Arc::clone(ledger));
        Self { world, ledger, dice, due: 0, offered: HashMap::new() }
    }

    /// How many requests the next millisecond has.
    pub fn due(&mut self) -> u64 {
        // Twice the mean at most, none at the least: bursts of a few are part of it.
        self.due += self.dice.below(2 * self.world.plan.demand.requests_per_second + 1);
        let calls = self.due / 1_000;
        self.due %= 1_000;
        calls
    }

    /// So many requests, now.
    pub fn call(&mut self, calls: u64, ms: u64, fleet: &mut Fleet) {
        for _ in 0..calls {
            let place = self.place(ms, fleet.len());
            self.ask(ms, fleet.pod(place));
        }
    }

    /// Which pod is called.
    fn place(&mut self, ms: u64, pods: usize) -> usize {
        match self.world.plan.demand.spread {
            Spread::Hot { moves_ms } if self.dice.percent(60) => {
                moves_ms.map_or(0, |each_ms| usize::try_from(ms / each_ms).unwrap())
            }
            _ => self.dice.index(pods),
        }
    }

    fn ask(&mut self, ms: u64, pod: &mut Pod) {
        let descriptors = self.descriptors();
        let rules = pod.rules(ms);
        let call = self.ledger.begin(pod, &rules, descriptors);
        if !self.is_within_offer(&call) {
            return;
        }
        let (world, ledger) = (Arc::clone(&self.world), Arc::clone(&self.ledger));
        let cancels = self.dice.percent(world.plan.demand.cancels_percent);
        let patience = cancels.then(|| Duration::from_millis(self.dice.below(5)));
        let (limiter, network) = (pod.limiter.clone(), Arc::clone(&pod.network));
        pod.requests.spawn(async move {
            let request = request(&call);
            let longest = patience.unwrap_or(call.patience + GRACE);
            let decided = tokio::time::timeout(longest, limiter.decide(&rules, &request)).await;
            if world.plan.tamper == Some(Tamper::AnswersLate) {
                tokio::time::sleep(call.patience + Duration::from_millis(1)).await;
            }
            match decided {
                Ok(answer) => ledger.answer(&call, answer, &network),
                // Its caller gave up: nothing is spent, and nobody is told.
                Err(_) if patience.is_some() => {}
                Err(_) => world.fault(format!("no answer, ever, to {call:?}")),
            }
        });
        pod.forget_ended(&self.world);
    }

    fn descriptors(&mut self) -> Vec<Charge> {
        let plan = &self.world.plan;
        let demand = &plan.demand;
        let dice = &mut self.dice;
        (0..1 + dice.below(demand.descriptors_max))
            .map(|_| {
                let hot = dice.percent(demand.hot_percent);
                let value =
                    if hot { 0 } else { dice.index(usize::try_from(demand.values).unwrap()) };
                let look = dice.percent(demand.looks_percent);
                Charge {
                    name: NAMES[dice.index(plan.rules.len())],
                    value: &VALUES[value],
                    hits: if look { 0 } else { dice.within(1..demand.hits_max + 1) },
                    refund: !look && dice.percent(demand.refunds_percent),
                    count: None,
                }
            })
            .collect()
    }

    /// Whether a bound on what is asked for leaves room, which this takes.
    fn is_within_offer(&mut self, call: &Call) -> bool {
        let Some(permille) = self.world.plan.demand.offered_permille_max else { return true };
        let wall_us = self.world.state().wall_at(self.world.now());
        call.charges.iter().all(|charge| {
            let Some((key, limit)) = charge.count else { return true };
            let window = wall_us / (limit.window_seconds() * 1_000_000);
            let offered = self.offered.entry((key, window)).or_default();
            *offered += charge.hits;
            *offered * 1_000 <= u64::from(limit.requests_per_unit) * permille
        })
    }
}

fn request(call: &Call) -> Request<'static> {
    let descriptor = |charge: &Charge| Descriptor {
        entries: [Entry { key: charge.name, value: charge.value }].into_iter().collect(),
        limit: None,
        hits_addend: Some(charge.hits),
        refund: charge.refund,
    };
    let descriptors = call.charges.iter().map(descriptor).collect();
    Request { domain: DOMAIN, descriptors, hits_addend: 0 }
}
