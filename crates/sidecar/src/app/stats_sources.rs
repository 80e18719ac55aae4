//! The sources of the counts that the debug port shows.

use ratelease_engine::lease::ShardCounters;
use ratelease_engine::limiter::Limiter;

use crate::admin::status::stats::Stats;
use ratelease_server::hot_keys::{HotKeys, HottestKeys, RuleHotKeys};
use ratelease_server::metrics::{Calls, Meters, RuleTotals};
use ratelease_server::observe::Observers;
use ratelease_server::samples::Samples;
use ratelease_server::trace::Tracer;

/// The counters of decisions, of hot keys and of leases.
pub(super) struct StatsSources {
    pub(super) meters: Option<Meters>,
    pub(super) hot_keys: HotKeys,
    pub(super) limiter: Limiter,
}

// === impl StatsSources ===

impl StatsSources {
    /// Observers that record each decision: these sources, `samples` and `tracer`.
    pub(super) fn observers(&self, samples: Samples, tracer: Tracer) -> Observers {
        let observers = Observers::default().with_samples(samples).with_tracer(tracer);
        let observers = observers.with_hot_keys(self.hot_keys.clone());
        match &self.meters {
            Some(meters) => observers.with_meters(meters.clone()),
            None => observers,
        }
    }
}

impl Stats for StatsSources {
    fn calls(&self) -> Option<Calls> {
        self.meters.as_ref().map(Meters::calls)
    }

    fn by_how(&self) -> Vec<(&'static str, u64)> {
        self.meters.as_ref().map(Meters::by_how).unwrap_or_default()
    }

    fn rules(&self, max: usize) -> Vec<RuleTotals> {
        self.meters.as_ref().map(|meters| meters.by_rule(max)).unwrap_or_default()
    }

    fn hot_keys(&self, max: usize) -> HottestKeys {
        self.hot_keys.top(max)
    }

    fn hot_keys_by_rule(&self, max: usize) -> Vec<RuleHotKeys> {
        self.hot_keys.by_rule(max)
    }

    fn leases(&self) -> Vec<ShardCounters> {
        self.limiter.shard_counters()
    }
}
