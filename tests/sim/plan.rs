//! The plan that a seed determines before its run: rules, pods, demand, faults.

mod roll;

use std::time::Duration;

use ratelease_rules::key::Key;

use crate::rule::RulePlan;
use crate::weather::Weather;

/// A wall clock of 2020, at the start of a week as counted from the epoch.
const WALL_US: u64 = 2_608 * 7 * 86_400 * 1_000_000;

/// Time reserved for the answer to reach its caller (`limiter.rs`).
const ANSWER_MARGIN: Duration = Duration::from_millis(5);

/// The plan of one run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub mood: Mood,
    /// How long requests are sent.
    pub span_ms: u64,
    /// The store's clock at the start, in microseconds since the Unix epoch.
    pub wall_start_us: u64,
    /// How far each master's clock is ahead of the first one's, in microseconds; masters beyond the
    /// list have the clock of the first.
    pub skews_us: Vec<u64>,
    /// From the given millisecond on, each master takes this many asks a millisecond, and the rest
    /// queue. `None` means no limit.
    pub asks_per_ms: Option<(u64, u64)>,
    /// [`ratelease_engine::limiter::Options::wait_min`].
    pub wait_min: Duration,
    /// [`ratelease_engine::limiter::Options::wait_max`].
    pub wait_max: Duration,
    /// [`ratelease_engine::limiter::Options::pods_expected`].
    pub pods_expected: u32,
    /// Number of live pods that never ask for anything, in addition to the pods of the run.
    pub idle_pods: u32,
    /// [`ratelease_engine::limiter::Options::buffer_bytes_max`].
    pub pod_bytes_max: usize,
    pub store_keys_max: usize,
    /// Number of masters of the store.
    pub shards: u64,
    pub rules: Vec<RulePlan>,
    /// The changes of rules: the time, and the new rules. Each pod receives them within
    /// [`Plan::RELOAD_MS`].
    pub changes: Vec<(u64, Vec<RulePlan>)>,
    /// When pods start and end, in order.
    pub fleet: Vec<(u64, FleetEvent)>,
    pub demand: Demand,
    /// When many requests come at once, in addition to the demand, and how many.
    pub bursts: Vec<(u64, u64)>,
    pub weather: Weather,
    /// Failovers, in order.
    pub failovers: Vec<(u64, FailoverPlan)>,
    pub tamper: Option<Tamper>,
    /// Whether to print what happens.
    pub tells_story: bool,
}

/// The purpose of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mood {
    /// Nothing fails, and at most 0.95 of each limit is requested: no request is denied.
    Under,
    /// Nothing fails, and more than each limit is requested: hardly a token is left over.
    Over,
    /// Anything may happen, and the bounds hold all the same.
    Rough,
    /// Asks may be slow or refused, but none is lost and no lease ends: each token is accounted
    /// for.
    Audit,
    /// No ask is lost, pods come, leave and crash, and costs are known afterwards. The use is at
    /// most the limit plus the bound on answers under way.
    Costs,
    /// Pods behave as under [`Mood::Costs`], and requests have slots while they run.
    Slots,
}

#[derive(Debug, Clone, Copy)]
pub enum FleetEvent {
    Join,
    /// The pod at this place (modulo their number) drains and gives back the tokens that it holds.
    Leave(usize),
    /// The pod at this place disappears, and with it the tokens that it held.
    Crash(usize),
}

#[derive(Debug, Clone, Copy)]
pub struct FailoverPlan {
    /// The length of the last period whose steps the replica has not received.
    pub lost_ms: u64,
    /// How far its clock is ahead.
    pub jump_us: i64,
}

/// The requests of the callers.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Requests a second, over all pods.
    pub requests_per_second: u64,
    pub spread: Spread,
    /// Number of values in descriptors of one rule; each value is a key of its own.
    pub values: u64,
    /// Percentage of requests that the first value gets in addition to its share.
    pub hot_percent: u64,
    /// A charge is from 1 to this number of hits.
    pub hits_max: u64,
    pub descriptors_max: u64,
    pub looks_percent: u64,
    pub refunds_percent: u64,
    /// Percentage of callers that give up before the answer.
    pub cancels_percent: u64,
    /// Percentage of requests that get a task only once they wait, as in the server.
    pub at_once_percent: u64,
    /// Percentage of these that read the clock up to [`Demand::STALE_MS`] before.
    pub stale_percent: u64,
    /// Percentage of descriptors with a limit of their own.
    pub overrides_percent: u64,
    /// The deadline that callers send; `None` if they send none.
    pub caller: Option<Duration>,
    /// Maximum hits requested in a window of a limit, in thousandths of the limit.
    pub offered_permille_max: Option<u64>,
    pub ends: Ends,
}

/// How callers end the requests whose costs are known afterwards.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ends {
    /// A request lasts at most this long.
    pub after_ms: u64,
    /// A cost is at most this.
    pub cost_max: u64,
    /// Percentage of requests that never end.
    pub never_percent: u64,
    /// Percentage of the requests with an end that end twice.
    pub twice_percent: u64,
    /// Percentage of the requests with an end that end at another pod.
    pub elsewhere_percent: u64,
    /// Percentage of the requests with an end that end with a cost of 0.
    pub nothing_percent: u64,
    /// Percentage of the requests with an end that end within 2 ms, though the start may not be
    /// answered yet.
    pub early_percent: u64,
}

/// How requests are distributed over the pods.
#[derive(Debug, Clone, Copy)]
pub enum Spread {
    Even,
    /// One pod gets 60 percent; which one changes at this interval in milliseconds, if at all.
    Hot {
        moves_ms: Option<u64>,
    },
}

/// Deliberate faults, to check that the simulation detects them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tamper {
    /// Replies contain twice the tokens that were debited.
    TellsOfMore,
    /// Replies contain leases that last beyond their end.
    TellsOfLongerLeases,
    /// Replies report that nothing was leased.
    TellsOfNone,
    /// The store applies limits that are half as high again.
    LendsTooMuch,
    /// The store credits returned tokens twice.
    RepeatsReturns,
    /// The server delays answers for longer than promised.
    AnswersLate,
}

// === impl Mood ===

impl Mood {
    /// Whether nothing fails.
    pub fn is_calm(self) -> bool {
        matches!(self, Self::Under | Self::Over)
    }
}

// === impl Demand ===

impl Demand {
    /// Maximum time between reading the clock and using it.
    pub const STALE_MS: u64 = 50;

    /// The given requests a second for one value of each rule, one hit each, spread evenly.
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
            ends: Ends::default(),
        }
    }
}

// === impl Plan ===

impl Plan {
    /// Maximum time until every pod has received new rules.
    pub const RELOAD_MS: u64 = 30;

    /// Time in which the last requests that have slots end.
    pub const REST_MS: u64 = 3_000;

    /// Whether some failover changes a clock or a count of the store.
    pub fn has_failovers(&self) -> bool {
        !self.failovers.is_empty()
    }

    /// A run without faults, of `pods` pods that exist from the start and one rule.
    pub fn calm(pods: u32, rule: RulePlan, demand: Demand, span_ms: u64) -> Self {
        Self {
            seed: 1,
            mood: Mood::Over,
            span_ms,
            wall_start_us: WALL_US,
            skews_us: Vec::new(),
            asks_per_ms: None,
            wait_min: Duration::from_millis(50),
            wait_max: Duration::from_millis(50),
            pods_expected: pods,
            idle_pods: 0,
            pod_bytes_max: 8 << 20,
            store_keys_max: 10_000,
            shards: 1,
            rules: vec![rule],
            changes: Vec::new(),
            fleet: vec![(0, FleetEvent::Join); pods as usize],
            demand,
            bursts: Vec::new(),
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

    /// How far this master's clock is ahead of the first one's, in microseconds.
    pub fn skew_us(&self, shard: usize) -> u64 {
        self.skews_us.get(shard).copied().unwrap_or(0)
    }

    /// Every rule of the run, including changed ones.
    pub fn all_rules(&self) -> impl Iterator<Item = &RulePlan> {
        self.rules.iter().chain(self.changes.iter().flat_map(|(_, rules)| rules))
    }

    /// Maximum wait for a lease of a request whose caller waits for `caller`.
    pub fn patience(&self, caller: Option<Duration>) -> Duration {
        let until = caller.map(|caller| caller.saturating_sub(ANSWER_MARGIN).min(self.wait_max));
        until.unwrap_or_default().max(self.wait_min)
    }

    /// Number of requests that come at once in this millisecond.
    pub fn burst_at(&self, ms: u64) -> u64 {
        self.bursts.iter().filter(|(at_ms, _)| *at_ms == ms).map(|(_, calls)| calls).sum()
    }

    /// Number of pods that ever join.
    pub fn pods_max(&self) -> u64 {
        self.fleet.iter().filter(|(_, event)| matches!(event, FleetEvent::Join)).count() as u64
    }

    /// The latest time at which requests may be in flight.
    pub fn ends_ms(&self) -> u64 {
        let delay = self.all_rules().map(RulePlan::max_delay).max().unwrap_or_default();
        let patience = self.patience(self.demand.caller) + delay;
        let rest_ms = if self.mood == Mood::Slots { Self::REST_MS } else { 10 };
        self.span_ms + u64::try_from(patience.as_millis()).unwrap() + rest_ms
    }
}
