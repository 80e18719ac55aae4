//! One run: pods, callers and faults as planned, and the checks after each step.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::time::Time;

use crate::caller::Callers;
use crate::fair;
use crate::fleet::Fleet;
use crate::ledger::{Ledger, Use};
use crate::plan::{FleetEvent, Mood, Plan};
use crate::rng::Rng;
use crate::rule;
use crate::trace::Trace;
use crate::world::{World, Wrong};

/// The results of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub mood: Mood,
    pub trace: Trace,
    pub requests: u64,
    pub admitted: u64,
    pub denied: u64,
    pub errors: u64,
    /// Requests that were denied while tokens for them remained somewhere, if that is checked.
    pub falsely_denied: u64,
    /// Tokens beyond a bound that failovers excuse.
    pub excused: u64,
    /// Settlements, those among them of requests that held something, and their costs.
    pub settled: (u64, u64, u64),
    /// Use of the limits whose demand exceeded them.
    pub used: Use,
    /// Requests that a failure mode answered.
    pub failure_modes: u64,
    /// The algorithm of the first rule.
    pub algorithm: &'static str,
    /// The hits that one exact server would have admitted and the hits that the fleet admitted, by
    /// key, if nothing failed.
    pub fairness: Vec<(u64, u64)>,
    /// Tokens of live leases that pods hold in the end.
    pub held: u64,
    /// Maximum wait of an ask for a busy master.
    pub backlog: Duration,
    /// Number of times that a pod's breaker opened.
    pub breakers_opened: u64,
    /// Asks that the store took in each millisecond.
    pub asks: Vec<u32>,
}

/// Runs a plan to its end, or to its first failure.
pub fn run(plan: Plan) -> Result<Outcome, Wrong> {
    // Tasks that the run leaves unfinished end with its runtime.
    let ran = panic::catch_unwind(AssertUnwindSafe(|| run_to_its_end(plan)));
    ran.unwrap_or_else(|_| Err(Wrong { what: "panicked: see above".into(), at: Duration::ZERO }))
}

fn run_to_its_end(plan: Plan) -> Result<Outcome, Wrong> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async { Run::new(plan).until_its_end().await })
}

struct Run {
    world: Arc<World>,
    ledger: Arc<Ledger>,
    fleet: Fleet,
    callers: Callers,
    /// Draws the milliseconds that pods take to receive new rules.
    rng: Rng,
    /// Numbers of the plan's events that have happened.
    done: Done,
}

#[derive(Default)]
struct Done {
    fleet: usize,
    failovers: usize,
    changes: usize,
}

/// Interval between two runs of the slow checks.
const INSPECTION_MS: u64 = 25;

// === impl Run ===

impl Run {
    fn new(plan: Plan) -> Self {
        let rng = Rng::new(plan.seed, &[2]);
        let world = World::new(plan);
        let ledger = Arc::new(Ledger::new(&world));
        let fleet = Fleet::new(&world, &ledger);
        let callers = Callers::new(&world, &ledger);
        Self { world, ledger, fleet, callers, rng, done: Done::default() }
    }

    async fn until_its_end(mut self) -> Result<Outcome, Wrong> {
        let (span_ms, ends_ms) = (self.world.plan.span_ms, self.world.plan.ends_ms());
        let mut now_ms = 0;
        for ms in 0..ends_ms {
            let plan = &self.world.plan;
            let calls = if ms < span_ms { self.callers.due() + plan.burst_at(ms) } else { 0 };
            let idle = calls == 0 && !self.is_due(ms) && !self.callers.is_due(ms);
            if idle && ms % INSPECTION_MS > 0 {
                continue; // each sleep costs real time
            }
            tokio::time::sleep(Duration::from_millis(ms - now_ms)).await;
            now_ms = ms;
            self.happen(ms);
            self.callers.end(ms, &mut self.fleet);
            self.callers.call(calls, ms, &mut self.fleet);
            if ms % INSPECTION_MS == 0 {
                self.fleet.inspect();
            }
            self.stop_if_wrong()?;
        }
        tokio::time::sleep(Duration::from_millis(ends_ms - now_ms)).await;
        if matches!(self.world.plan.mood, Mood::Audit | Mood::Costs | Mood::Slots) {
            self.fleet.leave_all().await;
        }
        let used = self.ledger.close();
        self.stop_if_wrong()?;
        let outcome = self.outcome(used);
        let plan = &self.world.plan;
        let unfair = if plan.mood.is_calm() { fair::check(plan, &outcome) } else { Ok(()) };
        let at = Duration::from_millis(ends_ms);
        unfair.map(|()| outcome).map_err(|what| Wrong { what, at })
    }

    /// Whether the plan has an event for this millisecond.
    fn is_due(&self, ms: u64) -> bool {
        let (plan, done) = (&self.world.plan, &self.done);
        plan.fleet.get(done.fleet).is_some_and(|(at, _)| *at <= ms)
            || plan.failovers.get(done.failovers).is_some_and(|(at, _)| *at <= ms)
            || plan.changes.get(done.changes).is_some_and(|(at, _)| *at <= ms)
    }

    /// Applies the plan's events of this millisecond.
    fn happen(&mut self, ms: u64) {
        let world = Arc::clone(&self.world);
        let plan = &world.plan;
        while let Some((_, event)) = plan.fleet.get(self.done.fleet).filter(|(at, _)| *at <= ms) {
            self.done.fleet += 1;
            match *event {
                FleetEvent::Join => self.fleet.join(),
                FleetEvent::Leave(place) => self.fleet.leave(place),
                FleetEvent::Crash(place) => self.fleet.crash(place),
            }
        }
        let failovers = &plan.failovers;
        while let Some((_, it)) = failovers.get(self.done.failovers).filter(|(at, _)| *at <= ms) {
            self.done.failovers += 1;
            world.fail_over(it);
        }
        while let Some((_, it)) = plan.changes.get(self.done.changes).filter(|(at, _)| *at <= ms) {
            self.done.changes += 1;
            self.fleet.reload(&Arc::new(rule::load(it)), &mut self.rng);
        }
    }

    fn stop_if_wrong(&self) -> Result<(), Wrong> {
        self.world.state().wrong().map_or(Ok(()), |wrong| Err(wrong.clone()))
    }

    fn outcome(&self, used: Use) -> Outcome {
        let counts = self.ledger.counts();
        let state = self.world.state();
        let excused = state.excused();
        let mut trace = state.trace;
        trace.note(Time::default(), &(counts.admitted, counts.denied, counts.errors, excused));
        Outcome {
            mood: self.world.plan.mood,
            trace,
            requests: counts.requests,
            admitted: counts.admitted,
            denied: counts.denied,
            errors: counts.errors,
            falsely_denied: counts.falsely_denied,
            excused,
            settled: self.ledger.settled(),
            used,
            failure_modes: counts.failure_modes,
            algorithm: self.world.plan.rules[0].algorithm,
            backlog: state.backlog,
            fairness: self.ledger.fairness(),
            held: state.live(self.world.now()),
            breakers_opened: self.fleet.breakers_opened(),
            asks: state.asks.clone(),
        }
    }
}
