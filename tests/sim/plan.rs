//! What one seed decides before its run: rules, pods, demand, trouble.

mod roll;

use std::time::Duration;

use crate::rule::RulePlan;
use crate::weather::Weather;

/// One run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub mood: Mood,
    /// How long there is traffic.
    pub span_ms: u64,
    /// The store's clock at the start, in microseconds since the Unix epoch.
    pub wall_start_us: u64,
    /// [`ratelease::limiter::Options::max_wait`].
    pub max_wait: Duration,
    /// [`ratelease::limiter::Options::buffer_bytes_max`].
    pub pod_bytes_max: usize,
    pub store_keys_max: usize,
    pub shards: u64,
    pub rules: Vec<RulePlan>,
    /// When some limit changes, and to what; each pod hears of it within [`Plan::RELOAD_MS`].
    pub changes: Vec<(u64, Vec<RulePlan>)>,
    /// When pods come and go, in order.
    pub fleet: Vec<(u64, FleetEvent)>,
    pub demand: Demand,
    pub weather: Weather,
    /// In order.
    pub failovers: Vec<(u64, FailoverPlan)>,
    pub tamper: Option<Tamper>,
    /// Prints what happens.
    pub tells_story: bool,
}

/// What a run is after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mood {
    /// Nothing fails, and at most 0.95 of each limit is asked for: nobody is denied.
    Under,
    /// Nothing fails, and more than each limit is asked for: hardly a token is left over.
    Over,
    /// Anything may happen: the bounds hold all the same.
    Rough,
}

#[derive(Debug, Clone, Copy)]
pub enum FleetEvent {
    Join,
    /// The pod at this place, counted round, drains and gives back what it holds.
    Leave(usize),
    /// The pod at this place is gone, and with it what it held.
    Crash(usize),
}

#[derive(Debug, Clone, Copy)]
pub struct FailoverPlan {
    /// The last steps that the replica has not heard of.
    pub lost_ms: u64,
    /// How far its clock is ahead.
    pub jump_us: i64,
}

/// Who asks for what.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Requests of all pods in a second.
    pub requests_per_second: u64,
    pub spread: Spread,
    /// Values that descriptors of one rule have; each is a key of its own.
    pub values: u64,
    /// The first value gets so many of a hundred on top of its part.
    pub hot_percent: u64,
    /// A charge is from 1 to this.
    pub hits_max: u64,
    pub descriptors_max: u64,
    pub looks_percent: u64,
    pub refunds_percent: u64,
    /// Callers that give up before the answer.
    pub cancels_percent: u64,
    /// No more than so many thousandths of a limit are asked for in one of its windows.
    pub offered_permille_max: Option<u64>,
}

/// How requests spread over the pods.
#[derive(Debug, Clone, Copy)]
pub enum Spread {
    Even,
    /// One takes 60 of a hundred; another one each so many milliseconds, if ever.
    Hot {
        moves_ms: Option<u64>,
    },
}

/// What is wrong on purpose, so that it is seen to be caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tamper {
    /// Replies tell of twice the tokens that were debited.
    TellsOfMore,
    /// Replies tell of leases that last beyond their end.
    TellsOfLongerLeases,
    /// Replies tell that nothing was lent.
    TellsOfNone,
    /// The store holds counts to half as much again.
    LendsTooMuch,
    /// The store credits what is given back twice.
    RepeatsReturns,
    /// The door holds answers back for longer than is promised.
    AnswersLate,
}

// === impl Plan ===

impl Plan {
    /// Pods have heard of new rules after this.
    pub const RELOAD_MS: u64 = 30;

    /// Whether some clock or count of the store is not what it was.
    pub fn has_failovers(&self) -> bool {
        !self.failovers.is_empty()
    }

    /// Pods that ever join.
    pub fn pods_max(&self) -> u64 {
        self.fleet.iter().filter(|(_, event)| matches!(event, FleetEvent::Join)).count() as u64
    }

    /// When requests may be in flight at the latest.
    pub fn ends_ms(&self) -> u64 {
        let delay = self.rules.iter().map(RulePlan::max_delay).max().unwrap_or_default();
        let patience = self.max_wait + delay;
        self.span_ms + u64::try_from(patience.as_millis()).unwrap() + 10
    }
}
