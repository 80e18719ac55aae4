//! The store of all pods, in virtual time, and the record of its steps.

mod flow;
mod state;

use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use ratelease_engine::store::{Ask, Grant, Heartbeat, PodCountFuture, Store, StoreError};
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::Limit;
use ratelease_rules::key::Key;

use crate::book::{self, Failover, Step};
use crate::plan::{FailoverPlan, Plan, Tamper};
pub use flow::Flow;
use state::Entry;
pub use state::{State, Wrong};

/// State that all pods of a run share.
pub struct World {
    pub plan: Plan,
    pub clock: Clock,
    state: Mutex<State>,
}

// === impl World ===

impl World {
    /// Creates a world; call it within the run's runtime, whose clock it follows.
    pub fn new(plan: Plan) -> Arc<Self> {
        let state = State::new(&plan);
        Arc::new(Self { plan, clock: Clock::start(), state: Mutex::new(state) })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Milliseconds since the run began.
    pub fn millis(&self) -> u64 {
        self.now().nanos() / 1_000_000
    }

    /// The time of the clock of the master that counts `key` at `at`, in microseconds since the
    /// Unix epoch.
    pub fn wall_of(&self, key: Key, limit: Limit, at: Time) -> u64 {
        let shard = self.plan.shard_of(Ask::look(key, limit).counter());
        self.state().wall_at(at, shard)
    }

    /// Waits for the asks that reached the same master earlier, if the plan limits its rate.
    pub async fn queue(&self, ask: &Ask) {
        let Some((from_ms, asks_per_ms)) = self.plan.asks_per_ms else { return };
        if self.millis() < from_ms {
            return;
        }
        let shard = self.plan.shard_of(ask.counter());
        let served = self.state().queue(shard, self.now(), asks_per_ms);
        tokio::time::sleep_until(self.clock.instant(served)).await;
    }

    /// Applies `ask` to the store, now.
    pub fn take(&self, ask: &Ask) -> Result<Grant, StoreError> {
        let now = self.now();
        let shard = self.plan.shard_of(ask.counter());
        let mut state = self.state();
        state.note_ask(now);
        let wall_us = state.wall_at(now, shard);
        let entry = Entry { at: now, wall_us, shard, ask: *ask };
        let outcome = state.play(&self.lax(entry));
        state.trace.note(now, &(ask.counter().bits(), ask.want, ask.need, wall_us));
        tell(&self.plan, now, || story(ask, &outcome));
        let Ok(grant) = outcome else {
            state.note_lost(ask);
            return outcome;
        };
        if self.plan.tamper == Some(Tamper::RepeatsReturns) && ask.back.is_some() {
            state.credit_again(&entry);
        }
        if self.plan.has_failovers() {
            state.keep(entry);
        }
        let step = Step { at: now, wall_us, ask: *ask, grant };
        state.trace.note(now, &(grant.tokens, grant.left, grant.ends_after));
        let kept = book::check_contract(&step).and_then(|()| state.enter(&step));
        if let Err(what) = kept {
            state.fault(now, format!("the store: {what} (by {ask:?}, {grant:?})"));
        }
        let keys = state.keys();
        if keys > self.plan.store_keys_max {
            state.fault(now, format!("the store holds {keys} keys"));
        }
        Ok(grant)
    }

    /// Raises the limit of an ask for a store that leases too much, a deliberate fault.
    fn lax(&self, entry: Entry) -> Entry {
        let mut entry = entry;
        if self.plan.tamper == Some(Tamper::LendsTooMuch) {
            entry.ask.limit.requests_per_unit += entry.ask.limit.requests_per_unit / 2 + 1;
        }
        entry
    }

    /// The tokens that the store has left of a key.
    pub fn left(&self, key: Key, limit: Limit) -> Option<u64> {
        let now = self.now();
        let ask = Ask::look(key, limit);
        let shard = self.plan.shard_of(ask.counter());
        let mut state = self.state();
        let wall_us = state.wall_at(now, shard);
        state.play(&Entry { at: now, wall_us, shard, ask }).ok().map(|grant| grant.left)
    }

    /// The store's number of living pods.
    pub fn beat(&self, beat: Heartbeat) -> Result<u32, StoreError> {
        let memory = self.state().first_master(self.now());
        let beaten: PodCountFuture<'_> = memory.beat(beat);
        beaten.now_or_never().unwrap().map(|pods| pods + self.plan.idle_pods)
    }

    /// Fails the store over to replicas that lack the last steps and have clocks of their own.
    pub fn fail_over(&self, plan: &FailoverPlan) {
        let now = self.now();
        let mut state = self.state();
        let kept_until = Time::from_nanos(now.nanos().saturating_sub(plan.lost_ms * 1_000_000));
        let before = state.wall_at(now, 0);
        state.replay(&self.plan, kept_until);
        state.jump(plan.jump_us);
        let failover = Failover { kept_until, wall_us: (before, state.wall_at(now, 0)) };
        state.note_failover(&failover);
        state.trace.note(now, &("failover", plan.lost_ms, plan.jump_us));
    }

    /// Whether, at some time since `since`, the store's clock had been set back and not yet caught
    /// up: pods then hold leases of windows that have not begun, and accept no other.
    pub fn ran_back(&self, since: Time) -> bool {
        let (since_us, now_us) = (since.nanos() / 1_000, self.now().nanos() / 1_000);
        self.plan.failovers.iter().any(|(at_ms, failover)| {
            let at_us = at_ms * 1_000;
            let span_us = u64::try_from(-failover.jump_us).unwrap_or(0) + 1;
            at_us <= now_us && since_us < at_us + span_us
        })
    }

    /// Records a failure at the present time.
    pub fn fault(&self, what: String) {
        let now = self.now();
        self.state().fault(now, what);
    }
}

/// Prints what happens, if the plan asks for a story.
pub fn tell(plan: &Plan, now: Time, what: impl FnOnce() -> String) {
    if plan.tells_story {
        println!("{:>9.3} ms  {}", now.since(Time::default()).as_secs_f64() * 1_000.0, what());
    }
}

fn story(ask: &Ask, outcome: &Result<Grant, StoreError>) -> String {
    let Ask { want, need, back, pool, deposit, next_window, .. } = ask;
    let back = back.map_or_else(String::new, |back| format!(" gives back {}", back.tokens));
    let pool = pool.map_or_else(String::new, |pool| format!(" of pool {pool}"));
    let deposit = deposit.map_or_else(String::new, |it| format!(" deposits {}", it.tokens));
    let ahead = if *next_window { " ahead" } else { "" };
    let key = ask.counter().bits() % 1_000;
    let asked = format!("store: {key}{pool} wants {want}{ahead}, needs {need}{back}{deposit}");
    match outcome {
        Ok(Grant { tokens, left, .. }) => format!("{asked}: lends {tokens}, has {left}"),
        Err(error) => format!("{asked}: {error}"),
    }
}
