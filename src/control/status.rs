//! How the process is doing, in numbers: `/status`, and in words on the index of the debug port.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};

use super::Published;
use crate::invariant;
use crate::lease::{Position, ShardState};
use crate::store::Count;
use crate::time::Clock;

/// What there is to tell. A handle: clones share everything.
#[derive(Clone)]
pub struct Status {
    /// When the process began, and how long it took to serve.
    pub start: Start,
    /// The rules and how loading them went.
    pub published: Arc<Published>,
    /// Where the counts live.
    pub store: String,
    /// How the shards do that have been asked.
    pub shards: Arc<dyn Fn() -> Vec<ShardState> + Send + Sync>,
    /// What has happened since the process began, by name; those of one name add up.
    pub counts: Arc<dyn Fn() -> Vec<Count> + Send + Sync>,
}

/// When the process began, and how long it took until it served. A handle: clones share it.
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

    /// From now on calls are served. Returns how long that took; only the first time counts.
    pub fn note_serving(&self) -> Duration {
        *self.served_after.get_or_init(|| self.uptime())
    }

    fn uptime(&self) -> Duration {
        self.clock.now().since(Default::default())
    }
}

// === impl Status ===

impl Status {
    /// As `/status` shows it: an object.
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
            },
            "shards": (self.shards)().iter().map(shard).collect::<Vec<_>>(),
            "invariant_violations": invariant::violations(),
            "counts": self.counts(),
        })
    }

    /// As the index shows it: a line each.
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
            self.counts().get("keys").unwrap_or(&0),
            self.store,
            self.start.uptime().as_secs(),
            invariant::violations(),
        );
        for state in (self.shards)() {
            let ShardState { shard, opened, round_trip, .. } = state;
            let breaker = position(state.breaker);
            // Writing to a string cannot fail.
            let _ = writeln!(
                lines,
                "shard {shard}: breaker {breaker}, opened {opened} times; {round_trip:?} away"
            );
        }
        for (name, count) in self.counts() {
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "{}: {count}", name.replace('_', " "));
        }
        lines
    }

    /// What has happened since the process began, by name.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for (name, count) in (self.counts)() {
            let sum: &mut u64 = counts.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
        counts
    }
}

fn shard(state: &ShardState) -> Value {
    json!({
        "shard": state.shard,
        "breaker": position(state.breaker),
        "opened": state.opened,
        "round_trip_ms": state.round_trip.as_secs_f64() * 1e3,
    })
}

fn position(breaker: Position) -> &'static str {
    match breaker {
        Position::Closed => "closed",
        Position::Open => "open",
        Position::Probing => "probing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Rules;

    fn status() -> Status {
        Status {
            start: Start::new(Clock::start()),
            published: Arc::default(),
            store: "memory".to_owned(),
            shards: Arc::new(|| {
                let (breaker, round_trip) = (Position::Open, Duration::from_millis(2));
                vec![ShardState { shard: 3, breaker, opened: 4, round_trip }]
            }),
            counts: Arc::new(|| vec![("keys", 3), ("task_restarts", 1), ("task_restarts", 4)]),
        }
    }

    #[test]
    fn counts_of_one_name_add_up_and_nothing_is_left_out() {
        let status = status();
        let told = status.json();
        assert_eq!(told["counts"], json!({"keys": 3, "task_restarts": 5}));
        assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(told["store"], "memory");
        let shard = json!({"shard": 3, "breaker": "open", "opened": 4, "round_trip_ms": 2.0});
        assert_eq!(told["shards"], json!([shard]));
        assert_eq!(told["started_after_ms"], Value::Null, "not yet");
        assert!(told["invariant_violations"].is_u64() && told["uptime_seconds"].is_f64());
        let after = status.start.note_serving();
        assert_eq!(status.start.note_serving(), after, "only once");
        assert_eq!(
            u128::from(status.json()["started_after_ms"].as_u64().unwrap()),
            after.as_millis()
        );
        let lines = status.lines();
        let shard = "shard 3: breaker open, opened 4 times; 2ms away";
        for line in
            [shard, "keys held: 3", "task restarts: 5", "rules version: none", "store: memory"]
        {
            assert!(lines.lines().any(|it| it == line), "{line} in {lines}");
        }
    }

    #[test]
    fn rules_of_a_snapshot_are_told_as_such_until_others_are_loaded() {
        let status = status();
        status.published.refuse("no such directory".to_owned());
        status.published.publish_snapshot(Arc::new(Rules::default()));
        let rules = status.json()["rules"].clone();
        assert_eq!(rules["from_snapshot"], true);
        assert_eq!(rules["last_fault"], "no such directory");
        assert_eq!((&rules["loads_ok"], &rules["loads_failed"]), (&json!(0), &json!(1)));
        assert!(status.lines().contains(" (of the snapshot)\n"), "{}", status.lines());
        status.published.publish(Arc::default());
        let rules = status.json()["rules"].clone();
        assert_eq!((&rules["from_snapshot"], &rules["last_fault"]), (&json!(false), &Value::Null));
        assert!(!status.lines().contains("snapshot"), "{}", status.lines());
    }
}
