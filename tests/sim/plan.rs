//! What one seed decides before its run: rules, pods, demand, trouble.

mod roll;

use std::time::Duration;

use ratelease_rules::key::Key;

use crate::rule::RulePlan;
use crate::weather::Weather;

/// A wall clock of 2020, at the start of a week by the epoch's count of them.
const WALL_US: u64 = 2_608 * 7 * 86_400 * 1_000_000;

/// What the answer takes to reach its caller (`limiter.rs`).
const ANSWER_MARGIN: Duration = Duration::from_millis(5);

/// One run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub mood: Mood,
    /// How long there is traffic.
    pub span_ms: u64,
    /// The store's clock at the start, in microseconds since the Unix epoch.
    pub wall_start_us: u64,
    /// Microseconds that each master's clock is ahead of the first one's; masters beyond the list
    /// have the clock of the first.
    pub skews_us: Vec<u64>,
    /// From this millisecond on, each master takes so many asks in one; more of them queue. `None`
    /// is no limit.
    pub asks_per_ms: Option<(u64, u64)>,
    /// [`ratelease_engine::limiter::Options::max_wait`].
    pub max_wait: Duration,
    /// [`ratelease_engine::limiter::Options::wait_limit`].
    pub wait_limit: Duration,
    /// [`ratelease_engine::limiter::Options::pods_expected`].
    pub pods_expected: u32,
    /// Pods that are alive and never asked for anything, beside those of the run.
    pub idle_pods: u32,
    /// [`ratelease_engine::limiter::Options::buffer_bytes_max`].
    pub pod_bytes_max: usize,
    pub store_keys_max: usize,
    /// Masters of the store.
    pub shards: u64,
    pub rules: Vec<RulePlan>,
    /// When some rule changes, and to what; each pod hears of it within [`Plan::RELOAD_MS`].
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
    /// Asks may be slow or refused, but none is lost and no lease ends: each token is accounted
    /// for.
    Audit,
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
    /// Callers that try [`ratelease_engine::limiter::Limiter::decide_at_once`] first, as the doors
    /// do.
    pub at_once_percent: u64,
    /// Of these, callers that read the clock up to [`Demand::STALE_MS`] before.
    pub stale_percent: u64,
    /// Descriptors that name a limit of their own.
    pub overrides_percent: u64,
    /// How long callers say that they wait; `None` says nothing.
    pub caller: Option<Duration>,
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

// === impl Mood ===

impl Mood {
    /// Nothing fails.
    pub fn is_calm(self) -> bool {
        matches!(self, Self::Under | Self::Over)
    }
}

// === impl Demand ===

impl Demand {
    /// So much time passes at most between reading the clock and using it.
    pub const STALE_MS: u64 = 50;

    /// So many requests a second for one value of each rule, a hit each, spread evenly.
    pub fn even(requests_per_second: u64) -> Self {
        Self {
            requests_per_second,
            spread: Spread::Even,
            values: 1,
            hot_percent: 0,
            hits_max: 1,
            descriptors_max: 1,
            looks_percent: 0,
            refunds_percent: 0,
            cancels_percent: 0,
            at_once_percent: 100,
            stale_percent: 0,
            overrides_percent: 0,
            caller: None,
            offered_permille_max: None,
        }
    }
}

// === impl Plan ===

impl Plan {
    /// Pods have heard of new rules after this.
    pub const RELOAD_MS: u64 = 30;

    /// Whether some clock or count of the store is not what it was.
    pub fn has_failovers(&self) -> bool {
        !self.failovers.is_empty()
    }

    /// A run in which nothing fails, of so many pods that are there from the start and one rule.
    pub fn calm(pods: u32, rule: RulePlan, demand: Demand, span_ms: u64) -> Self {
        Self {
            seed: 1,
            mood: Mood::Over,
            span_ms,
            wall_start_us: WALL_US,
            skews_us: Vec::new(),
            asks_per_ms: None,
            max_wait: Duration::from_millis(50),
            wait_limit: Duration::from_millis(50),
            pods_expected: pods,
            idle_pods: 0,
            pod_bytes_max: 8 << 20,
            store_keys_max: 10_000,
            shards: 1,
            rules: vec![rule],
            changes: Vec::new(),
            fleet: vec![(0, FleetEvent::Join); pods as usize],
            demand,
            weather: Weather { way_ms: 1, jitter_ms: 0, gives_up_ms: 50, stretches: Vec::new() },
            failovers: Vec::new(),
            tamper: None,
            tells_story: false,
        }
    }

    /// The master that owns a count.
    pub fn shard_of(&self, counter: Key) -> usize {
        usize::try_from(counter.bits() % self.shards).unwrap()
    }

    /// Microseconds that this master's clock is ahead of the first one's.
    pub fn skew_us(&self, shard: usize) -> u64 {
        self.skews_us.get(shard).copied().unwrap_or(0)
    }

    /// Every rule of the run, changed ones among them.
    pub fn all_rules(&self) -> impl Iterator<Item = &RulePlan> {
        self.rules.iter().chain(self.changes.iter().flat_map(|(_, rules)| rules))
    }

    /// How long a request may wait for a lease whose caller waits for `caller`.
    pub fn patience(&self, caller: Option<Duration>) -> Duration {
        let until = caller.map(|caller| caller.saturating_sub(ANSWER_MARGIN).min(self.wait_limit));
        until.unwrap_or_default().max(self.max_wait)
    }

    /// Pods that ever join.
    pub fn pods_max(&self) -> u64 {
        self.fleet.iter().filter(|(_, event)| matches!(event, FleetEvent::Join)).count() as u64
    }

    /// When requests may be in flight at the latest.
    pub fn ends_ms(&self) -> u64 {
        let delay = self.all_rules().map(RulePlan::max_delay).max().unwrap_or_default();
        let patience = self.patience(self.demand.caller) + delay;
        self.span_ms + u64::try_from(patience.as_millis()).unwrap() + 10
    }
}
