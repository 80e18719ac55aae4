//! Decision samples in the log.

use serde_json::Value;

use super::{PATIENT, SECRET, decide, decide_json, request, rules};
use crate::support::ratelease::Ratelease;

/// The samples in the log of a pod that has admitted one request, denied two of the same key (the
/// first by the store's reply), and admitted one that no rule limits.
async fn samples(env: &[(&str, &str)]) -> Vec<Value> {
    let mut all = vec![("LOG_FORMAT", "json"), ("LOG_LEVEL", "error")];
    all.extend(PATIENT);
    all.extend(env);
    let rules = rules();
    let pod = Ratelease::start(rules.path(), &[], &all).await;
    for _ in 0..3 {
        decide(&pod, request("test", "once"), &[]).await;
    }
    assert_eq!(decide_json(&pod, "unknown", &[]).await, 200);
    assert_eq!(pod.stop().await, 0);
    let log = pod.process.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "ratelease::decision").collect()
}

#[tokio::test]
async fn a_sample_says_what_was_decided_how_and_how_fast_but_not_for_whom() {
    let samples = samples(&[("DECISION_SAMPLE_RATE", "1")]).await;
    let [first, second, third, free] = &samples[..] else { panic!("{samples:#?}") };
    for (sample, verdict, how) in
        [(first, "ok", "leased"), (second, "over_limit", "leased"), (third, "over_limit", "local")]
    {
        assert_eq!((&sample["domain"], &sample["rule"]), (&"test".into(), &"test.once".into()));
        assert_eq!((&sample["verdict"], &sample["how"]), (&verdict.into(), &how.into()));
        assert_eq!((&sample["hits"], &sample["remaining"]), (&1.into(), &0.into()));
        assert_eq!(sample["level"], "info");
        // A key's hash, as in the store.
        assert_eq!(sample["key"].as_str().unwrap().len(), 22);
        assert!(sample["took_us"].as_u64().unwrap() < 10_000_000, "{sample}");
    }
    assert_eq!((&first["key"], &second["key"]), (&second["key"], &third["key"]));
    assert_eq!((&free["rule"], &free["verdict"]), (&"none".into(), &"ok".into()));
    assert!(free["key"].is_null() && free["how"].is_null(), "nothing was counted: {free}");
    assert!(!format!("{samples:?}").contains(SECRET), "{samples:?}");
}

#[tokio::test]
async fn values_show_where_they_are_asked_for() {
    let env = [("DECISION_SAMPLE_RATE", "1"), ("LOG_VALUES", "true")];
    let samples = samples(&env).await;
    assert_eq!(samples.len(), 4, "{samples:#?}");
    assert_eq!(samples[0]["values"], format!("once={SECRET}"));
    assert_eq!(samples[3]["values"], format!("unknown={SECRET}"));
}

#[tokio::test]
async fn there_are_none_unless_asked_for() {
    assert_eq!(samples(&[("LOG_VALUES", "true")]).await, Vec::<Value>::new());
}
