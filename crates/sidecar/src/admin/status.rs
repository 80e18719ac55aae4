//! The state of the process in stats: `/status`, and as text on the index of the debug port.

#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ratelease_cli::settings::EffectiveSetting;
use ratelease_engine::lease::{BreakerState, ShardCounters, ShardSnapshot};
use ratelease_engine::order::Blocked;
use ratelease_engine::time::Clock;
use ratelease_engine::{counter as engine, invariant};
use ratelease_rules::{Allowance, Limit, Rule};
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::hot_keys::{HotKey, HottestKeys, RuleHotKeys};
use ratelease_server::metrics::counter::{Count, Counter};
use ratelease_server::metrics::{Calls, RuleTotals};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::admin::history::{History, micros};
use crate::rule_source::xds::XdsStatus;

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
    /// The keys that are blocked by order, those that are blocked for longest first.
    pub blocked: Arc<dyn Fn() -> Vec<Blocked> + Send + Sync>,
    /// Event counts since the process began, and present levels; counts of one counter are added
    /// up.
    pub counts: Arc<dyn Fn() -> Vec<Count> + Send + Sync>,
    /// Counts of decisions since the process began.
    pub stats: Arc<dyn Stats>,
    /// The decisions in each of the last seconds.
    pub history: History,
    /// The settings of the process.
    pub settings: Arc<[EffectiveSetting]>,
    /// Whether hot keys have the entries of clients, where they were kept (`HOT_KEYS_VALUES`).
    pub shows_values: bool,
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
            "blocked": blocked(&(self.blocked)()),
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
            let ShardSnapshot { store, shard, server, opened, round_trip, last_failure, .. } =
                state;
            let server = server.map(|at| format!(" at {at}")).unwrap_or_default();
            let failure = last_failure.map(|why| format!("; last failure: {why}"));
            let breaker = breaker_name(state.breaker);
            // Writing to a string cannot fail.
            let _ = writeln!(
                lines,
                "shard {shard} of {store}{server}: breaker {breaker}, opened {opened} times; \
                 {round_trip:?} away{}",
                failure.unwrap_or_default()
            );
        }
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "keys blocked by order: {}", (self.blocked)().len());
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
        "server": state.server,
        "breaker": breaker_name(state.breaker),
        "opened": state.opened,
        "round_trip_ms": state.round_trip.as_secs_f64() * 1e3,
        "last_failure": state.last_failure,
        "hot_key": hot_key,
    })
}

/// The number of keys that are blocked by order, and the first of them.
fn blocked(keys: &[Blocked]) -> Value {
    let of_key = |Blocked { key, lasts, note }: &Blocked| {
        json!({
            "key": key.to_string(),
            "seconds": lasts.as_secs_f64(),
            "by": note.by,
            "given_unix_seconds": note.given.as_secs(),
        })
    };
    let listed = keys.iter().take(BLOCKED_MAX).map(of_key);
    json!({"count": keys.len(), "keys": listed.collect::<Value>()})
}

fn breaker_name(breaker: BreakerState) -> &'static str {
    match breaker {
        BreakerState::Closed => "closed",
        BreakerState::Open => "open",
        BreakerState::Probing => "probing",
    }
}

// Decisions, as `/status` shows them.

/// Maximum number of rules listed. A page shows no more in one view, and they are sent each second.
const RULES_MAX: usize = 200;

/// Maximum number of blocked keys listed, of some 150 bytes each: they too are sent each second, and
/// `ratectl key list` has all of them.
const BLOCKED_MAX: usize = 100;

/// Number of keys in each list of hot keys.
const HOT_KEYS_MAX: usize = 10;

// === impl Status ===

impl Status {
    /// The number of decisions and how they were made; how long those of the last minute took.
    fn decisions(&self) -> Value {
        let calls = self.stats.calls();
        let is_counted = calls.is_some();
        let (ok, over_limit, errors) = match calls {
            Some(Calls { ok, over_limit, errors, .. }) => (ok, over_limit, errors),
            None => Default::default(),
        };
        let by_how =
            self.stats.by_how().into_iter().map(|(name, count)| (name.to_owned(), count.into()));
        let recently = self.history.recently();
        json!({
            "counted": is_counted,
            "ok": ok,
            "over_limit": over_limit,
            "errors": errors,
            "by_how": Value::Object(by_how.collect()),
            "p50_us": recently.as_ref().and_then(|took| micros(took, 0.5)),
            "p99_us": recently.as_ref().and_then(|took| micros(took, 0.99)),
        })
    }

    /// The asks of all shards together, and their results.
    fn leases(&self) -> Value {
        let shard_counters = self.stats.leases();
        let sum = |of: fn(&ShardCounters) -> u64| shard_counters.iter().map(of).sum::<u64>();
        json!({
            "asks": sum(|tally| tally.asks),
            "grants": sum(|tally| tally.grants),
            "returns": sum(|tally| tally.returns),
            "failures": sum(|tally| tally.failures),
            "tokens_granted": sum(|tally| tally.tokens_granted),
            "tokens_returned": sum(|tally| tally.tokens_returned),
        })
    }

    /// The rules that decided most; if there is room, also those that decided nothing yet.
    fn rules_busiest(&self) -> Value {
        let rules = self.published.current().unwrap_or_default();
        let busiest = self.stats.rules(RULES_MAX);
        let listed: HashSet<_> = busiest.iter().map(|counts| counts.rule.as_str()).collect();
        let idle = rules.iter().filter(|rule| !listed.contains(&*rule.path));
        let idle =
            idle.take(RULES_MAX.saturating_sub(busiest.len())).map(|rule| rule_json(rule, None));
        let seen = busiest.iter().map(|counts| match rules.by_path(&counts.rule) {
            Some(rule) => rule_json(rule, Some(counts)),
            None => counts_json(&counts.rule, Some(counts)),
        });
        seen.chain(idle).collect()
    }

    fn hot_keys(&self) -> Value {
        let HottestKeys { requested, denied } = self.stats.hot_keys(HOT_KEYS_MAX);
        json!({"requested": self.hot_keys_json(&requested), "denied": self.hot_keys_json(&denied)})
    }

    fn hot_keys_json(&self, hot: &[HotKey]) -> Value {
        hot.iter().map(|hot| self.hot_key(hot)).collect()
    }

    fn hot_key(&self, hot: &HotKey) -> Value {
        let HotKey { key, rule, count, share, values, .. } = hot;
        let values = values.as_ref().filter(|_| self.shows_values);
        json!({"key": key, "rule": rule, "count": count, "share": share, "values": values})
    }

    /// The object of `/hotkeys`. Separate from `/status`, which is sent each second.
    pub(in crate::admin) fn hot_keys_by_rule(&self) -> Value {
        let rules = self.stats.hot_keys_by_rule(HOT_KEYS_MAX);
        let of_rule = |RuleHotKeys { rule, requests, denials, top }: &RuleHotKeys| {
            json!({
                "rule": rule,
                "requests": requests,
                "denials": denials,
                "requested": self.hot_keys_json(&top.requested),
                "denied": self.hot_keys_json(&top.denied),
            })
        };
        json!({"all": self.hot_keys(), "rules": rules.iter().map(of_rule).collect::<Value>()})
    }

    fn settings_json(&self) -> Value {
        let rule_json = self.settings.iter();
        rule_json
            .map(|it| json!({"name": it.name, "value": it.value, "default": it.is_default}))
            .collect()
    }
}

/// A rule and its counts.
fn rule_json(rule: &Rule, counts: Option<&RuleTotals>) -> Value {
    let mut object = counts_json(&rule.path, counts);
    object["path"] = rule.path_parts().collect();
    object["shadow_mode"] = rule.flags.shadow_mode.into();
    (object["limit"], object["algorithm"]) = match rule.allowance {
        Allowance::Limited(limit) => (limit_text(limit).into(), limit.algorithm.name().into()),
        Allowance::Unlimited => ("unlimited".into(), Value::Null),
    };
    object
}

/// The counts of a path that belongs to no rule, or to none that is in force.
fn counts_json(path: &str, counts: Option<&RuleTotals>) -> Value {
    let of = |count: fn(&RuleTotals) -> u64| counts.map_or(0, count);
    json!({
        "rule": path,
        "ok": of(|counts| counts.ok),
        "over_limit": of(|counts| counts.over_limit),
        "near_limit": of(|counts| counts.near_limit),
        "shadow": of(|counts| counts.shadow),
    })
}

/// Formats a limit, such as `100 / 5 minutes`, `100 / calendar month` or `100 at a time`.
fn limit_text(limit: Limit) -> String {
    if limit.window_unit().is_none() {
        return format!("{} at a time", limit.requests_per_unit);
    }
    let unit = limit.unit_name().replace('_', " ");
    match limit.unit_multiplier.get() {
        1 => format!("{} / {unit}", limit.requests_per_unit),
        many => format!("{} / {many} {unit}s", limit.requests_per_unit),
    }
}

// The source of the stats of `/status` and the live page.

/// Counts of decisions and leases.
pub trait Stats: Send + Sync {
    /// Every call since the process began; `None` if decisions are not counted. Called once a
    /// second, even while no client watches; the other methods are called only while one does.
    fn calls(&self) -> Option<Calls>;

    /// Descriptors, by how they were decided.
    fn by_how(&self) -> Vec<(&'static str, u64)>;

    /// The rules that decided most, busiest first, at most `max`.
    fn rules(&self, max: usize) -> Vec<RuleTotals>;

    /// The hottest keys of the last one to two minutes, at most `max` of each kind.
    fn hot_keys(&self, max: usize) -> HottestKeys;

    /// The hottest keys of each of the busiest rules.
    fn hot_keys_by_rule(&self, max: usize) -> Vec<RuleHotKeys>;

    /// The results of the asks of each shard.
    fn leases(&self) -> Vec<ShardCounters>;
}

#[cfg(test)]
mod decided_tests {
    use std::sync::Arc;

    use super::tests::{Fixed, status_of};
    use super::*;
    use ratelease_rules::{Options, Rules, Source, load};

    fn rules(text: &str) -> Arc<Rules> {
        let source = Source { name: "a.yaml".to_owned(), text: text.as_bytes().to_vec() };
        Arc::new(load(&[source], Options::default()).unwrap().rules)
    }

    fn counts(path: &str, ok: u64) -> RuleTotals {
        RuleTotals { rule: path.to_owned(), ok, over_limit: 2, near_limit: 3, shadow: 1 }
    }

    #[test]
    fn rules_are_sorted_by_decisions() {
        let status = status_of(Fixed {
            rules: vec![counts("shop.path_/x.pdf", 5), counts("override", 4)],
            ..Fixed::default()
        });
        let text = "domain: shop\ndescriptors:\n  - key: idle\n    shadow_mode: true\n    \
                    rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 100, \
                    algorithm: token_bucket}\n  - key: path\n    value: /x.pdf\n    rate_limit: \
                    {unlimited: true}\n";
        status.published.put_in_force(rules(text));
        let expected = json!([
            {
                "rule": "shop.path_/x.pdf", "path": ["shop", "path_/x.pdf"], "ok": 5,
                "over_limit": 2, "near_limit": 3, "shadow": 1, "shadow_mode": false,
                "limit": "unlimited", "algorithm": null,
            },
            {"rule": "override", "ok": 4, "over_limit": 2, "near_limit": 3, "shadow": 1},
            {
                "rule": "shop.idle", "path": ["shop", "idle"], "ok": 0, "over_limit": 0,
                "near_limit": 0, "shadow": 0, "shadow_mode": true, "limit": "100 / 5 minutes",
                "algorithm": "token_bucket",
            },
        ]);
        assert_eq!(status.json()["rules_busiest"], expected);
    }

    #[test]
    fn the_list_of_rules_is_bounded() {
        let text: String = (0..=RULES_MAX)
            .map(|n| {
                format!("  - key: k{n}\n    rate_limit: {{unit: day, requests_per_unit: 1}}\n")
            })
            .collect();
        let busiest = |count| (0..count).map(|n| counts(&format!("shop.k{n}"), 1)).collect();
        for count in [0, 7, RULES_MAX] {
            let status = status_of(Fixed { rules: busiest(count), ..Fixed::default() });
            status.published.put_in_force(rules(&format!("domain: shop\ndescriptors:\n{text}")));
            let listed = status.json()["rules_busiest"].clone();
            assert_eq!(listed.as_array().map(Vec::len), Some(RULES_MAX), "{count} busy");
        }
    }
}
