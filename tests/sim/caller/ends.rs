//! The ends of requests whose costs are known afterwards: when each comes, where, and its cost.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::store::StoreError;

use super::{Callers, request};
use crate::fleet::Fleet;
use crate::ledger::{Call, Charge};
use crate::rng::Rng;
use crate::rule::Costs;

/// Ends to come, by millisecond and in the order of their starts.
#[derive(Default)]
pub struct Ends {
    due: BTreeMap<(u64, u64), End>,
    planned: u64,
}

/// The end of a request.
struct End {
    settlement: Charge,
    /// The pod that its start asked.
    pod: u64,
    /// The place of the pod that is asked instead.
    elsewhere: Option<usize>,
    /// Whether the start passed.
    passed: Arc<AtomicBool>,
    /// `true`: the end does not wait for the answer to its start.
    early: bool,
    /// `true`: the end has waited for the answer to its start.
    is_late: bool,
}

/// A request is answered within this time.
const ANSWERED_MS: u64 = 60;

// === impl Ends ===

impl Ends {
    pub fn is_due(&self, ms: u64) -> bool {
        self.due.first_key_value().is_some_and(|((at_ms, _), _)| *at_ms <= ms)
    }

    fn add(&mut self, at_ms: u64, end: End) {
        self.planned += 1;
        self.due.insert((at_ms, self.planned), end);
    }
}

impl Callers {
    /// Draws the ends of `call`, which begins now.
    pub(super) fn plan_ends(&mut self, call: &Call, ms: u64) {
        let plan = self.world.plan.demand.ends;
        for charge in &call.charges {
            let begins = charge.costs == Costs::Settled || !charge.id.is_empty() && charge.hits > 0;
            if !begins || self.rng.percent(plan.never_percent) {
                continue;
            }
            let early = self.rng.percent(plan.early_percent);
            let after_ms = if early { 2 } else { plan.after_ms };
            let at_ms = ms + self.rng.within(1..after_ms + 1);
            let times = if self.rng.percent(plan.twice_percent) { 2 } else { 1 };
            let settlement = settlement(charge, self.world.plan.demand.ends, &mut self.rng);
            let elsewhere = self.rng.percent(plan.elsewhere_percent);
            let elsewhere = elsewhere.then(|| self.rng.index(64));
            for nth in 0..times {
                let again_ms = if nth == 0 { 0 } else { self.rng.below(100) };
                let (settlement, passed) = (settlement.clone(), Arc::clone(&call.passed));
                let end =
                    End { settlement, pod: call.pod, elsewhere, passed, early, is_late: false };
                self.ends.add(at_ms + again_ms, end);
            }
        }
    }

    /// Whether some request ends in this millisecond.
    pub fn is_due(&self, ms: u64) -> bool {
        self.ends.is_due(ms)
    }

    /// Ends the requests whose time has come.
    pub fn end(&mut self, ms: u64, fleet: &mut Fleet) {
        while self.ends.is_due(ms) {
            let Some((_, end)) = self.ends.due.pop_first() else { return };
            if end.early || end.passed.load(Ordering::Relaxed) {
                self.settle(end, ms, fleet);
            } else if !end.is_late {
                // The start may not be answered yet.
                self.ends.add(ms + ANSWERED_MS, End { is_late: true, ..end });
            }
        }
    }

    /// Sends a settlement, which has to be answered at once.
    fn settle(&self, end: End, ms: u64, fleet: &mut Fleet) {
        let End { settlement, pod, elsewhere, .. } = end;
        let pod = fleet.pod_of(pod, elsewhere);
        let rules = pod.rules(ms);
        let now = self.world.now();
        let call = self.ledger.begin(pod.id, &rules, now, vec![settlement]);
        self.ledger.note_settlement(&call);
        let request = request(&call);
        let admit = || Ok::<_, StoreError>(());
        let decision = pod.limiter.decide(&rules, &request, now, None, Owner::UNKNOWN, admit);
        match pin!(decision).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => self.ledger.settle(&call, answer),
            Poll::Pending => self.world.fault(format!("a settlement waits: {call:?}")),
        }
    }
}

/// The settlement of `charge`. Without the entry that marks it, a cost of 0 would be a look.
fn settlement(charge: &Charge, plan: crate::plan::Ends, rng: &mut Rng) -> Charge {
    let is_nothing = rng.percent(plan.nothing_percent);
    let hits = if is_nothing { 0 } else { rng.within(1..plan.cost_max.max(1) + 1) };
    let is_marked = rng.percent(50) || hits == 0 || charge.costs != Costs::Settled;
    Charge { hits, is_marked, refund: false, ..charge.clone() }
}
