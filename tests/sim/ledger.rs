//! The requests of callers and their answers, checked against the promises to callers.

mod call;
mod costs;
mod local;
mod slots;
mod tally;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::algorithm::{Token, counting};
use ratelease_engine::store::StoreError;
use ratelease_engine::time::Time;
use ratelease_engine::verdict::{Code, DecisionSource, Verdict};
use ratelease_rules::key::{Key, KeyHasher};
use ratelease_rules::{FailureMode, Limit, Rules};

use crate::network::Network;
use crate::oracle::Oracle;
use crate::plan::Mood;
use crate::purse::Purse;
use crate::rule::{self, NAMES};
use crate::world::{self, World, tell};
pub use call::{Call, Charge};
use costs::{Costs, Freed, Moment};
use local::Locals;
use slots::Slots;
use tally::Tally;
pub use tally::{Counts, Use};

/// Every request of a run.
pub struct Ledger {
    world: Arc<World>,
    hasher: KeyHasher,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    tally: Tally,
    locals: Locals,
    oracle: Oracle,
    costs: Costs,
    slots: Slots,
    /// Pods that leave or have gone: nothing ends there any more.
    leaving: BTreeSet<u64>,
}

/// A wait of this many round trips always brings an answer: one for the batch under way, and some
/// for the leases of batches before it in the queue. The defaults are 5 ms for about 0.5 ms.
const ROUND_TRIPS: u32 = 10;

/// Maximum interval between two probes of a breaker, and some time for the probe.
const BREAKER_WAIT_MAX: Duration = Duration::from_secs(3);

/// Minimum share of a limit that is used in each window where demand exceeds it, apart from
/// [`UNUSED_MAX`].
const USE_PERCENT_MIN: u64 = 98;

/// Tokens that each pod may still hold when such a window ends: the pod sized its last lease by its
/// own, older view of the tokens that were left.
const UNUSED_MAX: u64 = 1;

/// A pod reports a cost to the store, and hears the answer, within this many round trips (of the
/// ask that is out, and of the next one) and [`REPORT_WAIT`].
const REPORT_TRIPS: u32 = 3;

/// The part of that time that does not depend on the round trip.
const REPORT_WAIT: Duration = Duration::from_millis(5);

/// A pod counts a lease's time from before its ask, and may consider a live lease ended.
const END_MARGIN: Duration = Duration::from_millis(20);

// === impl Ledger ===

impl Ledger {
    pub fn new(world: &Arc<World>) -> Self {
        let hasher = KeyHasher::new("");
        Self { world: Arc::clone(world), hasher, books: Mutex::default() }
    }

    /// Records a request to `pod` that begins at `begun_at`.
    pub fn begin(&self, pod: u64, rules: &Rules, begun_at: Time, charges: Vec<Charge>) -> Call {
        let mut charges = charges;
        let mut delay = Duration::ZERO;
        for charge in &mut charges {
            charge.resolve(rules, &self.hasher);
            delay = delay.max(charge.max_delay());
        }
        let patience = self.world.plan.patience(self.world.plan.demand.caller) + delay;
        let pause = self.world.now().since(begun_at);
        Call { pod, begun_at, pause, patience, charges, passed: Arc::default() }
    }

    /// Records that the request is sent.
    pub fn note_begun(&self, call: &mut Call) {
        let calm = self.world.plan.mood.is_calm();
        let now = self.world.now();
        let walls: Vec<_> = call.counts().map(|(at, ..)| self.wall_of(call, at)).collect();
        let mut state = self.world.state();
        let Books { tally, oracle, .. } = &mut *self.books.lock();
        tally.counts.requests += 1;
        let counts: Vec<_> = call.counts().collect();
        for ((at, key, limit), wall_us) in counts.into_iter().zip(walls) {
            let Charge { hits, refund, .. } = call.charges[at];
            state.note_key(key);
            if refund {
                // Leases that came since the caller read the clock can take it.
                state.refund(call.pod, key, hits, now);
                tally.refund(key, hits);
            } else {
                call.charges[at].order = tally.offer(key, limit, hits, wall_us);
            }
            if calm && hits > 0 {
                oracle.offer(key, limit, hits, wall_us);
            }
        }
    }

    /// Records that a settlement is sent.
    pub fn note_settlement(&self, call: &Call) {
        self.advance();
        let mut state = self.world.state();
        call.counts().for_each(|(_, key, _)| state.note_key(key));
        self.books.lock().tally.counts.requests += 1;
    }

    /// Checks the answer to a settlement: it passes.
    pub fn settle(&self, call: &Call, answer: Result<Verdict<'_>, StoreError>) {
        let now = self.world.now();
        let charge = &call.charges[0];
        let verdict = match answer {
            Ok(verdict) if verdict.code == Code::Ok => verdict,
            Ok(_) => return self.world.fault(format!("a settlement is denied: {call:?}")),
            Err(error) => return self.world.fault(format!("{error} to a settlement: {call:?}")),
        };
        let counted = verdict.statuses[0].counted.map(|trace| trace.key).zip(charge.count);
        let Some((key, (_, limit))) = counted else {
            return self.settle_without_rule(charge, call.pod, now);
        };
        if is_of_slots(limit) {
            return self.books.lock().slots.end(charge, call.pod);
        }
        let moment = self.moment(call, key, limit, now);
        let carries = self.carries(charge);
        let (freed, due) = self.books.lock().costs.settle(charge, key, carries, moment);
        tell(&self.world.plan, now, || {
            let key = key.bits() % 1_000;
            format!(
                "pod {}: {} of {key} costs {}: {} back, {due} due",
                call.pod, charge.id, charge.hits, freed.hits
            )
        });
        self.free(&[freed], now);
        self.world.state().note_due(call.pod, key, due);
    }

    /// Enters a settlement that no rule limits any more. The settlement ends the slots and
    /// the hold of its request.
    fn settle_without_rule(&self, charge: &Charge, pod: u64, now: Time) {
        if !charge.is_marked || charge.id.is_empty() {
            return;
        }
        self.books.lock().slots.end(charge, pod);
        let settled = self.books.lock().costs.settle_without_rule(charge, pod);
        if let Some((freed, due)) = settled {
            self.free(&[freed], now);
            self.world.state().note_due(pod, freed.key, due);
        }
    }

    /// Ends the holds that nothing has settled.
    fn advance(&self) {
        let now = self.world.now();
        let freed = self.books.lock().costs.advance(now);
        self.free(&freed, now);
    }

    fn free(&self, freed: &[Freed], now: Time) {
        for Freed { pod, key, hits } in freed.iter().filter(|freed| freed.hits > 0) {
            self.world.state().purse(*pod, *key).release(*hits, now);
            self.books.lock().tally.refund(*key, *hits);
        }
    }

    fn moment(&self, call: &Call, key: Key, limit: Limit, now: Time) -> Moment {
        let wall = |at| self.world.wall_of(key, limit, at);
        let is_leaving = self.books.lock().leaving.contains(&call.pod);
        let wall_us = (wall(call.begun_at), wall(now));
        Moment { pod: call.pod, is_leaving, now, wall_us }
    }

    /// Whether the rule of `charge` carries its debt, as far as the rules at the start say.
    fn carries(&self, charge: &Charge) -> bool {
        let rules = &self.world.plan.rules;
        let at = NAMES.iter().position(|name| *name == charge.name);
        at.and_then(|at| rules.get(at)).is_some_and(|rule| rule.carry_debt)
    }

    /// Records that a pod leaves, or has gone.
    pub fn forget_pod(&self, pod: u64) {
        self.advance();
        let mut books = self.books.lock();
        books.costs.forget_pod(pod, self.world.now());
        books.slots.forget_pod(pod);
        books.leaving.insert(pod);
    }

    /// Checks the pod's counters of requests that hold something: their number, their hits, and the
    /// number of those that the pod had no room for.
    pub fn check_held(&self, pod: u64, counts: [u64; 3]) {
        if self.world.plan.mood == Mood::Slots {
            return; // the slots in use are counted
        }
        self.advance();
        if let Err(what) = self.books.lock().costs.check_held(pod, counts) {
            self.world.fault(format!("pod {pod}: {what}"));
        }
    }

    pub fn settled(&self) -> (u64, u64, u64) {
        self.books.lock().costs.settled()
    }

    /// Records that the caller of a request gave up. Nothing is spent, unless a refund was on its
    /// way: then the request stands, and holds the hits that it took.
    pub fn cancel(&self, call: &Call) {
        self.note_unheard(call);
        if !call.charges.iter().any(|charge| charge.refund) {
            return;
        }
        self.advance();
        for (at, key, limit) in call.counts() {
            let charge = &call.charges[at];
            let moment = self.moment(call, key, limit, self.world.now());
            let carries = self.carries(charge);
            self.books.lock().costs.start_perhaps(charge, carries, moment);
        }
    }

    /// Records that the caller of a request does not hear whether its refunds took effect: they may
    /// have been on their way.
    fn note_unheard(&self, call: &Call) {
        for (at, key, _) in call.counts().filter(|(at, ..)| call.charges[*at].refund) {
            self.books.lock().tally.flow(key).unheard += call.charges[at].hits;
        }
    }

    /// The time of the master's clock when the call began, for the charge at position `at`.
    fn wall_of(&self, call: &Call, at: usize) -> u64 {
        let (key, limit) = call.charges[at].count.unwrap();
        self.world.wall_of(key, limit, call.begun_at)
    }

    /// Checks the answer to `call`.
    pub fn answer(&self, call: &Call, answer: Result<Verdict<'_>, StoreError>, network: &Network) {
        let now = self.world.now();
        let took = now.since(call.begun_at);
        if took > call.patience + call.pause {
            self.world.fault(format!("answered after {took:?} of {:?}: {call:?}", call.patience));
        }
        tell(&self.world.plan, now, || {
            let word = answer.as_ref().map(|verdict| verdict.code);
            format!("pod {} {}: {word:?} after {took:?}", call.pod, call.story())
        });
        let word = match &answer {
            Ok(verdict) if verdict.code == Code::Ok => 0,
            Ok(_) => 1,
            Err(_) => 2,
        };
        self.world.state().trace.note(now, &(call.pod, call.begun_at.nanos(), word));
        if word != 0 && took >= self.world.plan.wait_min {
            self.undo_local(call);
        }
        match answer {
            Ok(verdict) => {
                if verdict.code == Code::Ok {
                    self.admit(call, &verdict, now);
                } else {
                    self.deny(call, now);
                }
                let failed = |how| matches!(how, DecisionSource::Failure(_));
                let mut counted = verdict.statuses.iter().filter_map(|status| status.counted);
                if counted.clone().any(|trace| trace.how == DecisionSource::Shed) {
                    self.excuse(call, &StoreError::NoRoom, network);
                }
                if counted.any(|trace| failed(trace.how)) {
                    self.books.lock().tally.counts.failure_modes += 1;
                    self.excuse(call, &StoreError::Unavailable, network);
                }
            }
            Err(error) => {
                self.books.lock().tally.counts.errors += 1;
                if { call.charges.iter() }.all(|it| it.failure_mode != FailureMode::Error) {
                    self.world.fault(format!("{error}, though no rule says so: {call:?}"));
                }
                self.excuse(call, &error, network);
            }
        }
    }

    /// Records that a request did not pass whose charges `local` may have admitted meanwhile.
    fn undo_local(&self, call: &Call) {
        let charges = call.counts().map(|(at, key, _)| (&call.charges[at], key));
        let of_local =
            |charge: &Charge| charge.failure_mode == FailureMode::Local && !charge.refund;
        let mut books = self.books.lock();
        for (charge, key) in charges.filter(|(charge, _)| of_local(charge)) {
            books.tally.flow(key).undone += charge.hits;
        }
    }

    /// Checks that each token of an admission belongs to a live lease, or to the pod's own part
    /// where the store did not answer; and that no window has more of them than its limit.
    fn admit(&self, call: &Call, verdict: &Verdict<'_>, now: Time) {
        self.advance();
        call.passed.store(true, Ordering::Relaxed);
        self.books.lock().tally.counts.admitted += 1;
        for (at, key, limit) in call.counts() {
            let charge = &call.charges[at];
            let Some(trace) = verdict.statuses[at].counted else {
                self.world.fault(format!("charge {at} was not counted: {call:?}"));
                continue;
            };
            // An overflow key replaces keys that the table has no room for.
            let of_overflow = trace.key != key;
            if trace.over {
                continue;
            }
            if is_of_slots(limit) {
                let Moment { is_leaving, .. } = self.moment(call, trace.key, limit, now);
                let started = self.books.lock().slots.start(charge, call.pod, now);
                if is_leaving {
                    self.books.lock().slots.forget_pod(call.pod);
                } else if let Err(what) = started {
                    self.world.fault(format!("pod {}: {what}: {call:?}", call.pod));
                }
                continue;
            }
            if charge.costs != rule::Costs::Known {
                let moment = self.moment(call, trace.key, limit, now);
                let carries = self.carries(charge);
                self.books.lock().costs.start(charge, trace.key, carries, moment);
                self.check_held_within(trace.key, now);
            }
            if charge.hits == 0 {
                continue;
            }
            if charge.refund {
                self.books.lock().tally.flow(key).refunded += charge.hits;
                continue;
            }
            let outcome = match trace.how {
                DecisionSource::Failure(FailureMode::Local) => self.admit_alone(call, at, now),
                DecisionSource::Failure(FailureMode::Allow) => {
                    self.books.lock().tally.flow(key).alone += charge.hits;
                    Ok(())
                }
                how @ (DecisionSource::Failure(_) | DecisionSource::Shed) => {
                    Err(format!("{how:?} admitted"))
                }
                DecisionSource::Local | DecisionSource::Leased => {
                    self.admit_leased(call, (trace.key, limit, charge.hits), of_overflow, now)
                }
            };
            if let Err(what) = outcome {
                self.world.fault(format!("pod {}: {what}: {call:?}", call.pod));
            }
            let freed = self.books.lock().costs.end_late(charge, call.pod);
            self.free(freed.as_slice(), now);
        }
    }

    fn admit_leased(
        &self,
        call: &Call,
        (key, limit, hits): (Key, Limit, u64),
        of_overflow: bool,
        now: Time,
    ) -> Result<(), String> {
        let began = self.world.wall_of(key, limit, call.begun_at);
        let ended = self.world.wall_of(key, limit, now);
        let spend = |purse: &mut Purse| purse.spend(hits, call.begun_at, now);
        self.world.state().pay(call.pod, key, spend)?;
        let mut books = self.books.lock();
        books.oracle.admit(key, hits);
        books.tally.flow(key).leased += hits;
        if of_overflow {
            return Ok(());
        }
        let within = books.tally.admit(key, limit, hits, (began, ended));
        if self.world.plan.has_failovers() { Ok(()) } else { within }
    }

    /// Checks a charge that the pod admitted locally: within its part of the limit, or paid by a
    /// lease.
    fn admit_alone(&self, call: &Call, at: usize, now: Time) -> Result<(), String> {
        let (Some((key, limit)), hits) = (call.charges[at].count, call.charges[at].hits) else {
            return Ok(());
        };
        self.books.lock().tally.flow(key).alone += hits;
        let wall_us = self.world.wall_of(key, limit, now);
        let Some(window) = local::Window::of(&self.world, call.pod, (key, limit), wall_us) else {
            return Ok(());
        };
        let part = window.part(&self.world, now);
        let excess = self.books.lock().locals.admit(window, part, hits);
        let mut state = self.world.state();
        // Without refunds, a pod that admits 200, is refunded 128 and admits them again would seem
        // to have spent tokens that were never leased.
        let paid = state.purse(call.pod, key).spend_alone(excess, call.begun_at, now);
        paid.map_err(|what| format!("admitted {excess} beyond its part of {part}, and {what}"))
    }

    /// Checks a denial: if less than the limit is requested, the tokens that remain anywhere are no
    /// more than the pods may hold. The refunds of a denied request do not count.
    fn deny(&self, call: &Call, now: Time) {
        for (at, key, _) in call.counts().filter(|(at, ..)| call.charges[*at].refund) {
            let hits = call.charges[at].hits;
            self.world.state().take_refund_back(call.pod, key, hits);
            self.books.lock().tally.take_refund_back(key, hits);
        }
        self.books.lock().tally.counts.denied += 1;
        if !self.world.plan.mood.is_calm() {
            return;
        }
        for (at, key, limit) in call.counts().filter(|(at, ..)| call.charges[*at].hits > 0) {
            let walls = (self.wall_of(call, at), self.world.wall_of(key, limit, now));
            let Charge { hits, order, .. } = call.charges[at];
            if counting(limit).token == Token::OfWindow {
                // Requests that are decided at once overtake those that ask the store, by a round
                // trip.
                let plan = &self.world.plan;
                let trip_ms = u64::try_from(plan.weather.round_trip_max().as_millis()).unwrap();
                let overtaken = plan.demand.requests_per_second * trip_ms / 1_000;
                let out_of_turn = order + overtaken <= limit.requests_per_unit;
                self.books.lock().tally.counts.falsely_denied += u64::from(out_of_turn);
            }
            let left = self.books.lock().tally.could_have_paid(key, limit, hits, walls);
            let under = self.world.plan.mood == Mood::Under;
            let most = spread(limit, self.world.plan.pods_max());
            if under && left.is_some_and(|left| left > most) {
                self.world.fault(format!("denied with {left:?} tokens left: {call:?}"));
            }
        }
    }

    /// Checks that an error has a reason: the weather, a table without room for one more key, or a
    /// maximum wait that is too short for a few round trips.
    fn excuse(&self, call: &Call, error: &StoreError, network: &Network) {
        self.note_unheard(call);
        let plan = &self.world.plan;
        let crowded = plan.pod_bytes_max < 1 << 20 || plan.store_keys_max < 10_000;
        let full = crowded
            && matches!(
                error,
                StoreError::QueueFull
                    | StoreError::NoRoom
                    | StoreError::Closed
                    | StoreError::Full(_)
                    | StoreError::Unavailable
            );
        let patience = plan.patience(plan.demand.caller);
        // A refund that no lease here can take is sent once the charges have passed, and waits in
        // its turn: of 400 requests at once to keys of several limits, one had a round trip or two
        // left of ten.
        let waits_of = |is_refund| call.charges.iter().any(|charge| charge.refund == is_refund);
        let waits = u32::from(waits_of(false)) + u32::from(waits_of(true));
        let hurried = patience < waits * ROUND_TRIPS * plan.weather.round_trip_max();
        let confused = self.world.ran_back(call.begun_at);
        // A breaker that the weather has opened closes some time after it.
        let memory =
            if *error == StoreError::Unavailable { BREAKER_WAIT_MAX } else { Duration::ZERO };
        let since = call.begun_at.since(Time::default()).saturating_sub(memory);
        let struck = network.was_struck(Time::default() + since);
        let congested = plan.asks_per_ms.is_some();
        if !(full || hurried || confused || struck || congested) {
            self.world.fault(format!("{error} on a calm day: {call:?}"));
        }
    }

    /// Checks that a pod that left without trouble holds nothing.
    pub fn check_left(&self, pod: u64) {
        let plan = &self.world.plan;
        let burns = plan.all_rules().any(|rule| rule.charge_denied);
        // Slots pass, whether they are used or not.
        let spaced = plan.all_rules().any(|rule| rule.algorithm == "leaky_bucket");
        let refunds = plan.demand.refunds_percent > 0 || plan.demand.overrides_percent > 0;
        let troubled = !plan.weather.stretches.is_empty() || plan.has_failovers();
        // Admissions while an ask was out are paid for by its lease.
        let owes = plan.all_rules().any(|rule| ["local", "allow"].contains(&rule.failure_mode));
        let settles = plan.all_rules().any(|rule| rule.costs != rule::Costs::Known);
        if troubled || burns || spaced || refunds || owes || settles {
            return;
        }
        let now = self.world.now();
        let live = self.world.state().live_of(pod, now + END_MARGIN);
        if !live.is_empty() {
            self.world.fault(format!("pod {pod} left and kept tokens, by key: {live:?}"));
        }
    }

    /// Ends the run. Returns how much of each limit was used where demand exceeded it.
    pub fn close(&self) -> Use {
        let plan = &self.world.plan;
        match plan.mood {
            Mood::Audit => self.audit(),
            Mood::Costs => self.check_costs(),
            Mood::Slots => self.check_slots(),
            Mood::Over => return self.use_of_windows(),
            Mood::Under | Mood::Rough => {}
        }
        Use::default()
    }

    fn use_of_windows(&self) -> Use {
        let plan = &self.world.plan;
        let ends_us = plan.wall_start_us + plan.span_ms * 1_000;
        let pods = plan.pods_max();
        let made = self.books.lock().tally.use_of(plan.wall_start_us, ends_us);
        for window in &made.windows {
            let floor = window.tokens * USE_PERCENT_MIN / 100;
            if window.used + UNUSED_MAX * pods < floor {
                self.world.fault(format!("of a window too little was used: {window:?}"));
            }
        }
        made
    }

    /// Checks, once every pod has left, that each token that the store leased was spent or
    /// returned.
    fn audit(&self) {
        let mut flows: Vec<_> =
            self.world.state().flows.iter().map(|(key, flow)| (*key, *flow)).collect();
        flows.sort_by_key(|(key, _)| *key);
        let keys: Vec<_> = self.books.lock().costs.keys();
        for (key, flow) in flows {
            if let Some((_, limit)) = keys.iter().find(|(of, _)| *of == key) {
                self.check_sums(key, *limit, &flow);
                continue;
            }
            let door = *self.books.lock().tally.flow(key);
            if let Err(what) = door.check(&flow) {
                let key = key.bits() % 1_000;
                self.world.fault(format!("key {key}: {what}: {flow:?}, {door:?}"));
            }
        }
    }

    /// Checks that the store has counted the hits that were used, to the token.
    fn check_sums(&self, key: Key, limit: Limit, flow: &world::Flow) {
        let plan = &self.world.plan;
        let left = plan.changes.is_empty().then(|| self.world.left(key, limit)).flatten();
        if let Err(what) = self.books.lock().costs.check_sums(key, flow, left) {
            let key = key.bits() % 1_000;
            self.world.fault(format!("key {key}: {what}: {flow:?}"));
        }
    }

    /// Checks, once every request has ended and every pod has left, that all slots are free.
    fn check_slots(&self) {
        for (key, limit) in self.books.lock().slots.keys() {
            let slots = limit.requests_per_unit;
            let left = self.world.left(key, limit);
            if left != Some(slots) {
                self.world.fault(format!("{left:?} slots are free of {slots}"));
            }
        }
    }

    /// Checks, where nothing fails, that the hits of all holds together are within the limit.
    fn check_held_within(&self, key: Key, now: Time) {
        let plan = &self.world.plan;
        if plan.mood != Mood::Costs {
            return;
        }
        let costs = &self.books.lock().costs;
        if let Err(what) = costs.check_held_within(key, now, plan.wall_start_us) {
            self.world.fault(format!("key {}: {what}", key.bits() % 1_000));
        }
    }

    fn check_costs(&self) {
        let plan = &self.world.plan;
        let margin = REPORT_TRIPS * plan.weather.round_trip_max() + REPORT_WAIT;
        if let Err(what) = self.books.lock().costs.check_bounds(margin, plan.wall_start_us) {
            self.world.fault(what);
        }
    }

    pub fn counts(&self) -> Counts {
        self.books.lock().tally.counts
    }

    /// The hits that one exact server would have admitted and the hits that the fleet admitted, by
    /// key.
    pub fn fairness(&self) -> Vec<(u64, u64)> {
        self.books.lock().oracle.sums()
    }
}

fn is_of_slots(limit: Limit) -> bool {
    counting(limit).token == Token::Permit
}

/// Maximum number of tokens that `pods` pods may hold unspent when a request is denied: those that
/// each asked ahead, and a tenth of the limit in leases sized by a demand that has moved. That is
/// rare: in 4000 runs, two had more than half of it.
pub fn spread(limit: Limit, pods: u64) -> u64 {
    limit.requests_per_unit / 10 + 2 * pods
}
