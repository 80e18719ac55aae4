//! The callers: their requests, the pods that they call, and when.

mod ends;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Waker};
use std::time::Duration;

use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::store::StoreError;
use ratelease_engine::time::Time;
use ratelease_rules::key::Key;
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{FailureMode, Limit, Rules, SETTLE_KEY, Unit};

use crate::fleet::{Fleet, Pod};
use crate::ledger::{Call, Charge, Ledger};
use crate::plan::{Demand, Spread, Tamper};
use crate::rng::Rng;
use crate::rule::{Costs, DOMAIN, ID, NAMES};
use crate::world::World;
use ends::Ends;

/// Makes requests, a few each millisecond.
pub struct Callers {
    world: Arc<World>,
    ledger: Arc<Ledger>,
    rng: Rng,
    /// Accumulated requests, in thousandths.
    due: u64,
    /// Hits requested in a window of a key, where these are bounded.
    offered: HashMap<(Key, u64), u64>,
    ends: Ends,
    /// Number of requests that had an id.
    ids: usize,
}

/// A request that exceeds its promised end by more than this counts as never answered.
const GRACE: Duration = Duration::from_secs(2);

static VALUES: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..100_000).map(|value| value.to_string()).collect());

// === impl Callers ===

impl Callers {
    pub fn new(world: &Arc<World>, ledger: &Arc<Ledger>) -> Self {
        let rng = Rng::new(world.plan.seed, &[3]);
        let (world, ledger) = (Arc::clone(world), Arc::clone(ledger));
        Self { world, ledger, rng, due: 0, offered: HashMap::new(), ends: Ends::default(), ids: 0 }
    }

    /// Number of requests in the next millisecond.
    pub fn due(&mut self) -> u64 {
        // Between none and twice the mean, so that small bursts occur.
        self.due += self.rng.below(2 * self.world.plan.demand.requests_per_second + 1);
        let calls = self.due / 1_000;
        self.due %= 1_000;
        calls
    }

    /// Sends `calls` requests now.
    pub fn call(&mut self, calls: u64, ms: u64, fleet: &mut Fleet) {
        for _ in 0..calls {
            let place = self.place(ms, fleet.len());
            self.ask(ms, fleet.pod(place));
        }
    }

    /// Chooses the pod to call.
    fn place(&mut self, ms: u64, pods: usize) -> usize {
        match self.world.plan.demand.spread {
            Spread::Hot { moves_ms } if self.rng.percent(60) => {
                moves_ms.map_or(0, |each_ms| usize::try_from(ms / each_ms).unwrap())
            }
            _ => self.rng.index(pods),
        }
    }

    fn ask(&mut self, ms: u64, pod: &mut Pod) {
        let descriptors = self.descriptors();
        let rules = pod.rules(ms);
        let demand = &self.world.plan.demand;
        let at_once = self.rng.percent(demand.at_once_percent);
        let stale = at_once && self.rng.percent(demand.stale_percent);
        let cancels = self.rng.percent(demand.cancels_percent);
        let pause = if stale { self.rng.below(Demand::STALE_MS.min(ms) + 1) } else { 0 };
        let cancels_after = Duration::from_millis(if cancels { self.rng.below(5) } else { 0 });
        let begun_at = Time::from_nanos(self.world.now().nanos() - pause * 1_000_000);
        let mut call = self.ledger.begin(pod.id, &rules, begun_at, descriptors);
        if !self.is_within_offer(&call) {
            return;
        }
        self.ledger.note_begun(&mut call);
        self.plan_ends(&call, ms);
        let mut answered =
            Box::pin(self.answer(call, pod, rules, cancels.then_some(cancels_after)));
        let mut cx = Context::from_waker(Waker::noop());
        if !at_once || answered.as_mut().poll(&mut cx).is_pending() {
            pod.requests.spawn(answered);
        }
        pod.forget_ended(&self.world);
    }

    /// Decides `call`, which may wait for the store.
    fn answer(
        &self,
        call: Call,
        pod: &Pod,
        rules: Arc<Rules>,
        cancels: Option<Duration>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (world, ledger) = (Arc::clone(&self.world), Arc::clone(&self.ledger));
        let (limiter, network) = (pod.limiter.clone(), Arc::clone(&pod.network));
        async move {
            let request = request(&call);
            let longest = cancels.unwrap_or(call.patience + GRACE);
            let caller = world.plan.demand.caller;
            let admit = || Ok::<_, StoreError>(());
            let decision =
                limiter.decide(&rules, &request, call.begun_at, caller, Owner::UNKNOWN, admit);
            let decided = tokio::time::timeout(longest, decision).await;
            if world.plan.tamper == Some(Tamper::AnswersLate) {
                tokio::time::sleep(call.patience + Duration::from_millis(1)).await;
            }
            match decided {
                Ok(answer) => ledger.answer(&call, answer, &network),
                // The caller gave up: nothing is spent.
                Err(_) if cancels.is_some() => ledger.cancel(&call),
                Err(_) => world.fault(format!("no answer, ever, to {call:?}")),
            }
        }
    }

    fn descriptors(&mut self) -> Vec<Charge> {
        let count = 1 + self.rng.below(self.world.plan.demand.descriptors_max);
        (0..count).map(|_| self.descriptor()).collect()
    }

    fn descriptor(&mut self) -> Charge {
        let plan = &self.world.plan;
        let demand = &plan.demand;
        let rng = &mut self.rng;
        let hot = rng.percent(demand.hot_percent);
        let value = if hot { 0 } else { rng.index(usize::try_from(demand.values).unwrap()) };
        let look = rng.percent(demand.looks_percent);
        let overrides = rng.percent(demand.overrides_percent);
        let requests = rng.pick(&[3, 20, 200]);
        let of_rule = rng.index(plan.rules.len());
        let costs = plan.rules[of_rule].costs;
        let hits = if look { 0 } else { rng.within(1..demand.hits_max + 1) };
        let refund = !look && rng.percent(demand.refunds_percent);
        let mut charge = Charge {
            name: NAMES[of_rule],
            value: &VALUES[value],
            hits: if costs == Costs::Settled { 0 } else { hits },
            refund: refund && costs == Costs::Known,
            limit: overrides.then(|| Limit::fixed_window(requests, Unit::Second)),
            count: None,
            order: 0,
            failure_mode: FailureMode::default(),
            costs,
            id: "",
            is_marked: false,
            hold: None,
        };
        if costs != Costs::Known {
            charge.limit = None;
        }
        if matches!(costs, Costs::Held { .. }) {
            charge.id = &VALUES[self.ids];
            self.ids += 1;
        }
        charge
    }

    /// Counts the request's hits; returns whether the bound on requested hits allows them.
    fn is_within_offer(&mut self, call: &Call) -> bool {
        let Some(permille) = self.world.plan.demand.offered_permille_max else { return true };
        call.charges.iter().all(|charge| {
            let Some((key, limit)) = charge.count else { return true };
            let wall_us = self.world.wall_of(key, limit, call.begun_at);
            let window = wall_us / (limit.window_seconds() * 1_000_000);
            let offered = self.offered.entry((key, window)).or_default();
            *offered += charge.hits;
            *offered * 1_000 <= limit.requests_per_unit * permille
        })
    }
}

/// The request that the pod gets.
fn request(call: &Call) -> Request<'static> {
    let entries = |charge: &Charge| {
        let id = (!charge.id.is_empty()).then_some(Entry { key: ID, value: charge.id });
        let mark = charge.is_marked.then_some(Entry { key: SETTLE_KEY, value: "1" });
        let first = Entry { key: charge.name, value: charge.value };
        [first].into_iter().chain(id).chain(mark).collect()
    };
    let descriptor = |charge: &Charge| Descriptor {
        entries: entries(charge),
        limit: charge.limit,
        hits_addend: Some(charge.hits),
        refund: charge.refund,
    };
    let descriptors = call.charges.iter().map(descriptor).collect();
    Request { domain: DOMAIN, descriptors, hits_addend: 0 }
}
