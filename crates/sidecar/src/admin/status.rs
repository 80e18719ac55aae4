//! The state of the process in stats: `/status`, and as text on the index of the debug port.

mod decided;
pub mod stats;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ratelease_cli::settings::EffectiveSetting;
use ratelease_engine::counter as engine;
use ratelease_engine::invariant;
use ratelease_engine::lease::{BreakerState, ShardSnapshot};
use ratelease_engine::time::Clock;
use ratelease_rules::Compilation;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::history::History;
use crate::rule_source::xds::XdsStatus;
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::metrics::counter::{Count, Counter};
use stats::Stats;

/// The sources of the status. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct Status {
    /// When the process began, and how long it took until it served.
    pub start: Start,
    /// The rules and the results of loading them.
    pub published: Arc<CurrentRules>,
    /// The xDS stream that the rules come from; `None` if they come from files.
    pub xds: Option<XdsStatus>,
    /// Description of the store of the counts.
    pub store: String,
    /// The state of each shard that has been asked.
    pub shards: Arc<dyn Fn() -> Vec<ShardSnapshot> + Send + Sync>,
    /// Event counts since the process began, and present levels; counts of one counter are added
    /// up.
    pub counts: Arc<dyn Fn() -> Vec<Count> + Send + Sync>,
    /// Counts of decisions since the process began.
    pub stats: Arc<dyn Stats>,
    /// The decisions in each of the last seconds.
    pub history: History,
    /// The settings of the process.
    pub settings: Arc<[EffectiveSetting]>,
}

/// When the process began, and how long it took until it served. A cheap handle: clones share it.
#[derive(Debug, Clone)]
pub struct Start {
    clock: Clock,
    served_after: Arc<OnceLock<Duration>>,
}

// === impl Start ===

impl Start {
    /// `clock` was started with the process.
    pub fn new(clock: Clock) -> Self {
        Self { clock, served_after: Arc::default() }
    }

    /// Records that calls are served from now on. Returns how long that took; only the first call
    /// has an effect.
    pub fn note_serving(&self) -> Duration {
        *self.served_after.get_or_init(|| self.uptime())
    }

    /// Time since the process began.
    pub fn uptime(&self) -> Duration {
        self.clock.now().since(Default::default())
    }

    /// The next multiple of `period` since then.
    pub(super) fn next_multiple(&self, period: Duration) -> Instant {
        self.clock.next_multiple(period)
    }
}

// === impl Status ===

impl Status {
    /// The status as the JSON object of `/status`.
    pub fn json(&self) -> Value {
        let rules = self.published.current();
        let version = rules.as_ref().map(|rules| format!("{:016x}", rules.version()));
        let Compilation { compiled, patched, reused } = self.published.compilation();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_seconds": self.start.uptime().as_secs_f64(),
            "started_after_ms": self.start.served_after.get().map(Duration::as_millis)
                .and_then(|millis| u64::try_from(millis).ok()),
            "store": self.store,
            "rules": {
                "version": version,
                "count": rules.map_or(0, |rules| rules.len()),
                "loads_ok": self.published.loads_ok(),
                "loads_failed": self.published.loads_failed(),
                "compiled": {
                    "whole": compiled,
                    "patched": patched,
                    "reused": reused,
                },
                "last_fault": self.published.last_fault(),
                "from_snapshot": self.published.is_from_snapshot(),
                "source": self.source(),
                "xds": self.xds.as_ref().map(XdsStatus::json),
                "age_seconds": self.published.in_force_for().map(|age| age.as_secs_f64()),
            },
            "decisions": self.decisions(),
            "leases": self.leases(),
            "rules_busiest": self.rules_busiest(),
            "hot_keys": self.hot_keys(),
            "shards": (self.shards)().iter().map(shard).collect::<Value>(),
            "invariant_violations": invariant::violations(),
            "counts": self.counts_by_name(),
            "settings": self.settings_json(),
        })
    }

    /// Where the rules in force come from.
    pub(super) fn source(&self) -> &'static str {
        match &self.xds {
            _ if self.published.is_from_snapshot() => "snapshot",
            Some(_) => "xds",
            None => "files",
        }
    }

    /// The status as the lines of the index.
    pub fn lines(&self) -> String {
        let rules = self.published.current();
        let version = rules.as_ref().map(|rules| format!("{:016x}", rules.version()));
        let origin = if self.published.is_from_snapshot() { " (of the snapshot)" } else { "" };
        let mut lines = format!(
            "rules version: {}{origin}\nrules: {}\nloads accepted: {}\nloads refused: {}\n\
             last fault: {}\nkeys held: {}\nstore: {}\nup for: {} s\ninvariants violated: {}\n\n",
            version.as_deref().unwrap_or("none"),
            rules.map_or(0, |rules| rules.len()),
            self.published.loads_ok(),
            self.published.loads_failed(),
            self.published.last_fault().as_deref().unwrap_or("none"),
            self.counts().get(&engine::Counter::Keys.into()).unwrap_or(&0),
            self.store,
            self.start.uptime().as_secs(),
            invariant::violations(),
        );
        for state in (self.shards)() {
            let ShardSnapshot { store, shard, opened, round_trip, last_failure, .. } = state;
            let failure = last_failure.map(|why| format!("; last failure: {why}"));
            let breaker = breaker_name(state.breaker);
            // Writing to a string cannot fail.
            let _ = writeln!(
                lines,
                "shard {shard} of {store}: breaker {breaker}, opened {opened} times; \
                 {round_trip:?} away{}",
                failure.unwrap_or_default()
            );
        }
        for (counter, count) in self.counts() {
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "{}: {count}", counter.name().replace('_', " "));
        }
        lines
    }

    fn counts_by_name(&self) -> BTreeMap<&'static str, u64> {
        self.counts().into_iter().map(|(counter, count)| (counter.name(), count)).collect()
    }

    /// Event counts since the process began, and present levels.
    pub(super) fn counts(&self) -> BTreeMap<Counter, u64> {
        let mut counts = BTreeMap::new();
        for (counter, count) in (self.counts)() {
            let sum: &mut u64 = counts.entry(counter).or_default();
            *sum = sum.saturating_add(count);
        }
        counts
    }
}

fn shard(state: &ShardSnapshot) -> Value {
    let hot_key = state.hot_key.as_ref().map(
        |hot| json!({"key": hot.key.to_string(), "share": hot.share, "relieved": hot.relieved}),
    );
    json!({
        "store": &*state.store,
        "shard": state.shard,
        "breaker": breaker_name(state.breaker),
        "opened": state.opened,
        "round_trip_ms": state.round_trip.as_secs_f64() * 1e3,
        "last_failure": state.last_failure,
        "hot_key": hot_key,
    })
}

fn breaker_name(breaker: BreakerState) -> &'static str {
    match breaker {
        BreakerState::Closed => "closed",
        BreakerState::Open => "open",
        BreakerState::Probing => "probing",
    }
}

#[cfg(test)]
pub(super) mod tests;
