//! The content of `/status` and of the index.

use ratelease_engine::latency::Buckets;
use ratelease_engine::lease::{HotKey as ShardHotKey, ShardCounters};
use ratelease_engine::order::Note;
use ratelease_rules::Rules;
use ratelease_rules::key::Key;

use super::*;
use ratelease_server::hot_keys::{HotKey, HottestKeys, RuleHotKeys};
use ratelease_server::metrics::{Calls, Meters, RuleTotals};

/// Stats that do not change.
pub(in crate::admin) struct Fixed {
    pub(in crate::admin) calls: Calls,
    pub(in crate::admin) by_how: Vec<(&'static str, u64)>,
    pub(in crate::admin) rules: Vec<RuleTotals>,
    pub(in crate::admin) hot_keys: HottestKeys,
    pub(in crate::admin) hot_keys_by_rule: Vec<RuleHotKeys>,
}

impl Default for Fixed {
    /// All counts are zero.
    fn default() -> Self {
        let calls = Meters::default().calls();
        let (by_how, rules, hot_keys, hot_keys_by_rule) = Default::default();
        Self { calls, by_how, rules, hot_keys, hot_keys_by_rule }
    }
}

impl Stats for Fixed {
    fn calls(&self) -> Option<Calls> {
        Some(self.calls.clone())
    }

    fn by_how(&self) -> Vec<(&'static str, u64)> {
        self.by_how.clone()
    }

    fn rules(&self, max: usize) -> Vec<RuleTotals> {
        self.rules.iter().take(max).cloned().collect()
    }

    fn hot_keys(&self, _max: usize) -> HottestKeys {
        self.hot_keys.clone()
    }

    fn hot_keys_by_rule(&self, _max: usize) -> Vec<RuleHotKeys> {
        self.hot_keys_by_rule.clone()
    }

    fn leases(&self) -> Vec<ShardCounters> {
        let took = self.calls.took.clone();
        let tally = |shard, asks| ShardCounters {
            store: "default".into(),
            shard,
            asks,
            grants: 1,
            returns: 2,
            failures: 0,
            tokens_granted: 100,
            tokens_returned: 40,
            took: took.clone(),
        };
        vec![tally(0, 5), tally(3, 6)]
    }
}

pub(in crate::admin) fn status_of(stats: Fixed) -> Status {
    let setting = |name: &str, value: &str, is_default| EffectiveSetting {
        name: name.to_owned(),
        value: value.to_owned(),
        is_default,
    };
    Status {
        start: Start::new(Clock::start()),
        published: Arc::default(),
        xds: None,
        store: "memory".to_owned(),
        shards: Arc::new(|| {
            let (breaker, round_trip) = (BreakerState::Open, Duration::from_millis(2));
            let hot_key = Some(ShardHotKey { key: Key::for_test(7), share: 0.25, relieved: 9 });
            vec![ShardSnapshot {
                store: "default".into(),
                shard: 3,
                server: Some("10.0.0.1:6379".to_owned()),
                breaker,
                opened: 4,
                round_trip,
                last_failure: Some("it broke".to_owned()),
                hot_key,
            }]
        }),
        blocked: Arc::new(|| {
            let block = |n| Blocked {
                key: Key::for_test(n),
                lasts: Duration::from_secs(90),
                note: Note::new("alice@ops", Duration::from_secs(1_700_000_000)),
            };
            (0..150).map(block).collect()
        }),
        counts: Arc::new(|| {
            vec![
                (Counter::Engine(engine::Counter::Keys), 3),
                (Counter::TaskRestarts, 1),
                (Counter::TaskRestarts, 4),
            ]
        }),
        stats: Arc::new(stats),
        history: History::default(),
        settings: Arc::new([setting("log-level", "info", true)]),
        shows_values: true,
    }
}

fn status() -> Status {
    status_of(Fixed::default())
}

#[test]
fn counts_of_one_name_add_up_and_nothing_is_left_out() {
    let status = status();
    let json = status.json();
    assert_eq!(json["counts"], json!({"keys": 3, "task_restarts": 5}));
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["store"], "memory");
    let shard = json!({
        "store": "default", "shard": 3, "server": "10.0.0.1:6379", "breaker": "open", "opened": 4, "round_trip_ms": 2.0,
        "last_failure": "it broke",
        "hot_key": {"key": Key::for_test(7).to_string(), "share": 0.25, "relieved": 9},
    });
    assert_eq!(json["shards"], json!([shard]));
    let blocked = json!({
        "key": Key::for_test(0).to_string(), "seconds": 90.0, "by": "alice@ops",
        "given_unix_seconds": 1_700_000_000,
    });
    assert_eq!((&json["blocked"]["count"], &json["blocked"]["keys"][0]), (&150.into(), &blocked));
    assert_eq!(json["blocked"]["keys"].as_array().map(Vec::len), Some(100), "bounded");
    assert_eq!(json["started_after_ms"], Value::Null, "not yet");
    assert!(json["invariant_violations"].is_u64() && json["uptime_seconds"].is_f64());
    let after = status.start.note_serving();
    assert_eq!(status.start.note_serving(), after, "only once");
    let millis = status.json()["started_after_ms"].as_u64().unwrap();
    assert_eq!(u128::from(millis), after.as_millis());
    let lines = status.lines();
    let shard = "shard 3 of default at 10.0.0.1:6379: breaker open, opened 4 times; 2ms away; last failure: it broke";
    for line in [shard, "keys held: 3", "task restarts: 5", "rules version: none", "store: memory"]
    {
        assert!(lines.lines().any(|it| it == line), "{line} in {lines}");
    }
}

#[test]
fn decisions_count_since_the_start_and_latency_covers_the_last_minute() {
    let calls = |ok, over_limit, errors| {
        let bounds = vec![Duration::from_micros(100)];
        let counts = vec![ok + over_limit, 0];
        let took = Buckets { bounds, counts, sum: Duration::ZERO };
        Calls { ok, over_limit, errors, took }
    };
    let hot = |values: Option<&str>| HotKey {
        key: "1b".to_owned(),
        rule: "shop.user".to_owned(),
        domain: Some("shop".to_owned()),
        count: 4,
        share: 0.5,
        values: values.map(str::to_owned),
    };
    let hot_keys = HottestKeys { requested: vec![hot(None)], denied: vec![hot(Some("user=7"))] };
    let by_how = vec![("local", 7), ("failure_deny", 3)];
    let fixed = Fixed { calls: calls(7, 3, 1), by_how, hot_keys, ..Fixed::default() };
    let status = status_of(fixed);
    assert_eq!(status.json()["decisions"]["p50_us"], Value::Null, "no second is over");
    status.history.note(Duration::ZERO, calls(0, 0, 0));
    status.history.note(Duration::from_secs(1), calls(4, 0, 0));
    let json = status.json();
    let expected = json!({
        "counted": true, "ok": 7, "over_limit": 3, "errors": 1,
        "by_how": {"local": 7, "failure_deny": 3}, "p50_us": 50.0, "p99_us": 99.0,
    });
    assert_eq!(json["decisions"], expected);
    let hot = |values: Value| {
        let rule = "shop.user";
        json!({"key": "1b", "rule": rule, "count": 4, "share": 0.5, "values": values})
    };
    let expected = json!({
        "asks": 11, "grants": 2, "returns": 4, "failures": 0, "tokens_granted": 200,
        "tokens_returned": 80,
    });
    assert_eq!(json["leases"], expected);
    let expected = json!({"requested": [hot(Value::Null)], "denied": [hot("user=7".into())]});
    assert_eq!(json["hot_keys"], expected);
    let setting = json!({"name": "log-level", "value": "info", "default": true});
    assert_eq!(json["settings"], json!([setting]));
}

#[test]
fn hot_keys_are_listed_in_total_and_by_rule() {
    let hot = |key: &str, share| HotKey {
        key: key.to_owned(),
        rule: "shop.user".to_owned(),
        domain: Some("shop".to_owned()),
        count: 4,
        share,
        values: None,
    };
    let top = |share| HottestKeys { requested: vec![hot("1b", share)], denied: Vec::new() };
    let rule = "shop.user".to_owned();
    let of_rule = RuleHotKeys { rule, requests: 8, denials: 0, top: top(0.5) };
    let hot_keys_by_rule = vec![of_rule];
    let status = status_of(Fixed { hot_keys: top(0.01), hot_keys_by_rule, ..Fixed::default() });
    let hot = |share| {
        let rule = "shop.user";
        json!({"key": "1b", "rule": rule, "count": 4, "share": share, "values": null})
    };
    let expected = json!({
        "all": {"requested": [hot(0.01)], "denied": []},
        "rules": [{
            "rule": "shop.user", "requests": 8, "denials": 0,
            "requested": [hot(0.5)], "denied": [],
        }],
    });
    assert_eq!(status.hot_keys_by_rule(), expected);
    assert_eq!(status.json()["hot_keys"], expected["all"]);
}

#[test]
fn rules_of_a_snapshot_are_marked_until_others_are_loaded() {
    let status = status();
    status.published.refuse("no such directory".to_owned());
    status.published.put_snapshot_in_force(Arc::new(Rules::default()));
    let rules = status.json()["rules"].clone();
    assert_eq!(rules["from_snapshot"], true);
    assert_eq!(rules["last_fault"], "no such directory");
    assert_eq!((&rules["loads_ok"], &rules["loads_failed"]), (&json!(0), &json!(1)));
    assert!(status.lines().contains(" (of the snapshot)\n"), "{}", status.lines());
    status.published.put_in_force(Arc::default());
    let rules = status.json()["rules"].clone();
    assert_eq!((&rules["from_snapshot"], &rules["last_fault"]), (&json!(false), &Value::Null));
    assert!(!status.lines().contains("snapshot"), "{}", status.lines());
}
