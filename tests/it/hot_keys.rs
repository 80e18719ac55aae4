//! The hottest keys, as the debug port shows them.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::files::dir_of;
use crate::support::http::{self, Client};
use crate::support::ratelease::Ratelease;

/// A year's window does not end while a test runs.
const RULES: &str = "
domain: shop
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 1000}
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
";

/// Sends `times` requests, one after the other.
async fn ask(pod: &Ratelease, times: usize, key: &str, value: &str) {
    let entries = [json!({"key": key, "value": value})];
    let body = json!({"domain": "shop", "descriptors": [{"entries": entries}]});
    let mut client = Client::connect(pod.http).await.unwrap();
    for _ in 0..times {
        let answer = client.send("POST", "/json", &[], body.to_string()).await.unwrap();
        assert!([200, 429].contains(&answer.status), "{answer:?}");
    }
}

async fn reported(pod: &Ratelease) -> Value {
    let page = http::get(pod.debug, "/hotkeys").await.unwrap();
    assert_eq!(page.status, 200);
    serde_json::from_str(&page.body).unwrap()
}

/// The data of each of these keys.
fn lines(keys: &Value) -> Vec<String> {
    let line = |key: &Value| format!("{} {} {}", key["values"], key["count"], key["share"]);
    keys.as_array().unwrap().iter().map(line).collect()
}

async fn pod(env: &[(&str, &str)]) -> (TempDir, Ratelease) {
    let rules = dir_of(&[("shop.yaml", RULES)]);
    // This test is not about waiting, and the machine may be compiling.
    let env = [&[("LEASE_MAX_WAIT", "5s")], env].concat();
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    (rules, pod)
}

#[tokio::test]
async fn a_quiet_rule_shows_its_keys_beside_a_loud_one() {
    let (_rules, pod) = pod(&[("HOT_KEYS_VALUES", "true"), ("HOT_KEYS_SAMPLE", "1")]).await;
    for n in 0..20 {
        ask(&pod, 10, "ip", &format!("10.0.0.{n}")).await;
    }
    for (user, times) in [("alice", 5), ("bob", 3), ("eve", 2)] {
        ask(&pod, times, "user", user).await;
    }
    let reported = reported(&pod).await;
    let all = reported["all"]["requested"].as_array().unwrap();
    assert_eq!(all.len(), 10);
    assert!(all.iter().all(|key| key["rule"] == "shop.ip"), "{all:?}");
    let [ip, user] = &reported["rules"].as_array().unwrap()[..] else { panic!("{reported}") };
    assert_eq!((&ip["rule"], &ip["requests"]), (&json!("shop.ip"), &json!(200)));
    assert_eq!((&user["rule"], &user["requests"]), (&json!("shop.user"), &json!(10)));
    let requested = [r#""user=alice" 5 0.5"#, r#""user=bob" 3 0.3"#, r#""user=eve" 2 0.2"#];
    assert_eq!(lines(&user["requested"]), requested);
    assert_eq!((&user["denials"], &ip["denials"]), (&json!(2), &json!(0)));
    assert_eq!(lines(&user["denied"]), [r#""user=alice" 2 1.0"#]);
    assert_eq!(user["denied"][0]["key"], user["requested"][0]["key"]);
}

#[tokio::test]
async fn values_show_only_where_enabled_and_nothing_where_hot_keys_are_off() {
    let (_rules, hashes) = pod(&[("HOT_KEYS_SAMPLE", "1")]).await;
    ask(&hashes, 1, "user", "alice").await;
    let by_hash = reported(&hashes).await;
    let key = &by_hash["rules"][0]["requested"][0];
    assert_eq!((&key["values"], &key["count"]), (&Value::Null, &json!(1)));
    assert_eq!(key["key"].as_str().map(str::len), Some(22), "{key}");
    assert!(!by_hash.to_string().contains("alice"), "{by_hash}");
    let (_rules, off) = pod(&[("HOT_KEYS", "false")]).await;
    ask(&off, 1, "user", "alice").await;
    let nothing = json!({"all": {"requested": [], "denied": []}, "rules": []});
    assert_eq!(reported(&off).await, nothing);
}
