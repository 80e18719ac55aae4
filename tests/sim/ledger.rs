//! What callers asked and were answered, held to what they were promised.

mod tally;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease::key::{Key, KeyHasher, Part};
use ratelease::rules::{Algorithm, Limit, Rules};
use ratelease::store::StoreError;
use ratelease::time::Time;
use ratelease::verdict::{Code, Verdict};

use crate::fleet::Pod;
use crate::network::Network;
use crate::plan::Mood;
use crate::rule::{self, DOMAIN};
use crate::world::{World, tell};
use tally::Tally;
pub use tally::Use;

/// Every request of a run.
pub struct Ledger {
    world: Arc<World>,
    hasher: KeyHasher,
    tally: Mutex<Tally>,
}

/// A request on its way.
#[derive(Debug, Clone)]
pub struct Call {
    pub pod: u64,
    pub begun_at: Time,
    /// It is answered within this.
    pub patience: Duration,
    pub charges: Vec<Charge>,
}

/// One descriptor of a request.
#[derive(Debug, Clone)]
pub struct Charge {
    pub name: &'static str,
    pub value: &'static str,
    /// 0 looks.
    pub hits: u64,
    pub refund: bool,
    /// What it is counted as; `None` if nothing limits it.
    pub count: Option<(Key, Limit)>,
}

/// How many requests came to what.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub requests: u64,
    pub admitted: u64,
    pub denied: u64,
    pub errors: u64,
    /// Of those denied, though their tokens lay somewhere.
    pub falsely_denied: u64,
}

/// Whoever waits for so many round trips has an answer: one for the batch that is on its way, and
/// some for the leases of those before it in the queue. The defaults are 5 ms for about 0.5 ms.
const ROUND_TRIPS: u32 = 10;

/// A breaker probes at least so often, and some for the probe.
const BREAKER_WAIT_MAX: Duration = Duration::from_secs(3);

/// Of a limit that more is asked of, this much is used in each window, but for so many tokens that
/// each pod may hold when it ends: the last lease was sized by what it knew of the rest.
const USE_PERCENT_MIN: u64 = 98;
const UNUSED_MAX: u64 = 1;

/// A pod counts its leases from before it asked, and may take one for ended that has not.
const END_MARGIN: Duration = Duration::from_millis(20);

// === impl Ledger ===

impl Ledger {
    pub fn new(world: &Arc<World>) -> Self {
        let hasher = KeyHasher::new("");
        Self { world: Arc::clone(world), hasher, tally: Mutex::default() }
    }

    /// A request to `pod` begins now.
    pub fn begin(&self, pod: &Pod, rules: &Rules, mut charges: Vec<Charge>) -> Call {
        let now = self.world.now();
        let mut delay = Duration::ZERO;
        for charge in &mut charges {
            charge.count = rule::limit_of(rules, charge.name).map(|limit| {
                let part = (charge.name, Part::Value(charge.value));
                (self.hasher.key(DOMAIN, limit.identity(), std::iter::once(part)), limit)
            });
            if let Some((_, Limit { algorithm: Algorithm::LeakyBucket { max_delay_us }, .. })) =
                charge.count
            {
                delay = delay.max(Duration::from_micros(max_delay_us.into()));
            }
        }
        let patience = self.world.plan.max_wait + delay;
        let call = Call { pod: pod.id, begun_at: now, patience, charges };
        self.note_begun(&call);
        call
    }

    fn note_begun(&self, call: &Call) {
        let mut state = self.world.state();
        let mut tally = self.tally.lock();
        tally.counts.requests += 1;
        let wall_us = state.wall_at(call.begun_at);
        for charge in &call.charges {
            let Some((key, limit)) = charge.count else { continue };
            if charge.refund {
                state.purse(call.pod, key).refund(charge.hits, call.begun_at);
                tally.refund(key, charge.hits);
            } else {
                tally.offer(key, limit, charge.hits, wall_us);
            }
        }
    }

    /// The answer to `call` is there.
    pub fn answer(&self, call: &Call, answer: Result<Verdict, StoreError>, network: &Network) {
        let now = self.world.now();
        let took = now.since(call.begun_at);
        if took > call.patience {
            self.world.fault(format!("answered after {took:?} of {:?}: {call:?}", call.patience));
        }
        tell(&self.world.plan, now, || {
            let word = answer.as_ref().map(|verdict| verdict.code);
            let charges: Vec<_> =
                call.charges.iter().map(|c| (c.name, c.value, c.hits, c.refund)).collect();
            format!("pod {} {charges:?}: {word:?} after {took:?}", call.pod)
        });
        let word = match &answer {
            Ok(verdict) if verdict.code == Code::Ok => 0,
            Ok(_) => 1,
            Err(_) => 2,
        };
        self.world.state().trace.note(now, &(call.pod, call.begun_at.nanos(), word));
        match answer {
            Ok(verdict) if verdict.code == Code::Ok => self.admit(call, now),
            Ok(_) => self.deny(call, now),
            Err(error) => self.excuse(call, &error, network),
        }
    }

    /// Each token of an admission is one of a live lease, and no window has more of them than its
    /// limit.
    fn admit(&self, call: &Call, now: Time) {
        let mut state = self.world.state();
        let mut tally = self.tally.lock();
        tally.counts.admitted += 1;
        let wall_us = (state.wall_at(call.begun_at), state.wall_at(now));
        for charge in call.charges.iter().filter(|charge| charge.hits > 0 && !charge.refund) {
            let Some((key, limit)) = charge.count else { continue };
            if let Err(what) = state.purse(call.pod, key).spend(charge.hits, call.begun_at, now) {
                state.fault(now, format!("pod {}: {what}: {call:?}", call.pod));
            }
            let within = tally.admit(key, limit, charge.hits, wall_us);
            if let Err(what) = within
                && !self.world.plan.has_failovers()
            {
                state.fault(now, format!("{what}: {call:?}"));
            }
        }
    }

    /// With less asked for than the limit, nobody is denied while more tokens lie somewhere than
    /// the pods may hold.
    fn deny(&self, call: &Call, now: Time) {
        let mut state = self.world.state();
        let mut tally = self.tally.lock();
        tally.counts.denied += 1;
        if self.world.plan.mood != Mood::Under {
            return;
        }
        let wall_us = (state.wall_at(call.begun_at), state.wall_at(now));
        for (key, limit, hits) in call.counted() {
            if let Some(left) = tally.could_have_paid(key, limit, hits, wall_us)
                && left > spread(limit, self.world.plan.pods_max())
            {
                state.fault(now, format!("denied with {left} tokens left: {call:?}"));
            }
        }
    }

    /// An error needs a reason: the weather, a table without room for one more key, or patience
    /// that is too short for a few round trips.
    fn excuse(&self, call: &Call, error: &StoreError, network: &Network) {
        self.tally.lock().counts.errors += 1;
        let plan = &self.world.plan;
        let crowded = plan.pod_bytes_max < 1 << 20 || plan.store_keys_max < 10_000;
        let full = crowded && matches!(error, StoreError::Overloaded | StoreError::Full(_));
        let hurried = plan.max_wait < ROUND_TRIPS * plan.weather.round_trip_max();
        let confused = self.world.ran_back(call.begun_at);
        // A breaker that the weather has opened closes a while after it.
        let memory = if *error == StoreError::Away { BREAKER_WAIT_MAX } else { Duration::ZERO };
        let since = call.begun_at.since(Time::default()).saturating_sub(memory);
        let struck = network.was_struck(Time::default() + since);
        if !(full || hurried || confused || struck) {
            self.world.fault(format!("{error} on a calm day: {call:?}"));
        }
    }

    /// A pod that left in peace holds nothing.
    pub fn check_left(&self, pod: u64) {
        let plan = &self.world.plan;
        let burns = plan.rules.iter().any(|rule| rule.charge_denied);
        // Slots go by, whether they are used or not.
        let spaced = plan.rules.iter().any(|rule| rule.terms.contains("leaky_bucket"));
        let refunds = plan.demand.refunds_percent > 0;
        let troubled = !plan.weather.stretches.is_empty() || plan.has_failovers();
        if troubled || burns || spaced || refunds {
            return;
        }
        let now = self.world.now();
        let live = self.world.state().live_of(pod, now + END_MARGIN);
        if !live.is_empty() {
            self.world.fault(format!("pod {pod} left and kept tokens, by key: {live:?}"));
        }
    }

    /// The run is over: how much of the limits it used, where more was asked for.
    pub fn close(&self) -> Use {
        let plan = &self.world.plan;
        if plan.mood != Mood::Over {
            return Use::default();
        }
        let ends_us = plan.wall_start_us + plan.span_ms * 1_000;
        let pods = plan.pods_max();
        let made = self.tally.lock().use_of(plan.wall_start_us, ends_us);
        for window in &made.windows {
            let floor = window.tokens * USE_PERCENT_MIN / 100;
            if window.used + UNUSED_MAX * pods < floor {
                self.world.fault(format!("of a window too little was used: {window:?}"));
            }
        }
        made
    }

    pub fn counts(&self) -> Counts {
        self.tally.lock().counts
    }
}

/// What so many pods may hold unspent when somebody is denied: tokens that each asked ahead, and a
/// tenth of the limit in leases sized by a demand that moved on. Seldom: in 4000 runs, two had more
/// than half of it.
fn spread(limit: Limit, pods: u64) -> u64 {
    u64::from(limit.requests_per_unit) / 10 + 2 * pods
}

// === impl Call ===

impl Call {
    /// The charges that spend.
    fn counted(&self) -> impl Iterator<Item = (Key, Limit, u64)> {
        let spending = self.charges.iter().filter(|charge| charge.hits > 0 && !charge.refund);
        spending.filter_map(|charge| charge.count.map(|(key, limit)| (key, limit, charge.hits)))
    }
}
