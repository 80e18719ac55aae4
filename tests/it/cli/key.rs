//! `ratectl key` on a real Redis.

use serde_json::Value;

use super::{files, run_in};
use crate::support::redis::Single;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 5}
  - key: free
    rate_limit: {unlimited: true}
";

#[test]
fn a_key_is_shown_blocked_freed_and_reset() {
    let single = Single::start();
    let dir = files(&[("rules/shop.yaml", RULES)]);
    let redis = format!("127.0.0.1:{}", single.server.port());
    let key = |action: &[&str], descriptor: &str| {
        let common = ["--rules", "rules", "--domain", "shop", "--redis-url", &redis, descriptor];
        run_in(dir.path(), &[&["key"], action, &common].concat(), &[])
    };
    let shown = key(&["show", "--json"], "user=alice").ended(0).json();
    let state = &shown["keys"][0]["key"];
    assert_eq!((&state["left"], &state["of"]), (&Value::from(5), &Value::from(5)));
    assert_eq!(state["blocked_seconds"], Value::Null);
    let name = format!("rl:{{{}}}", state["hash"].as_str().unwrap());

    let ran = key(&["block", "--for", "10m"], "user=alice");
    assert!(ran.ended(0).out.contains("blocked\n"), "{}", ran.out);
    let shown = key(&["show", "--json"], "user=alice").ended(0).json();
    let seconds = shown["keys"][0]["key"]["blocked_seconds"].as_f64().unwrap();
    assert!((500.0..=600.0).contains(&seconds), "{seconds}");
    let ran = key(&["show"], "user=bob");
    assert!(!ran.ended(0).out.contains("blocked"), "{}", ran.out);
    let ran = key(&["unblock"], "user=alice");
    assert!(ran.ended(0).out.contains("no longer blocked\n"), "{}", ran.out);
    let shown = key(&["show", "--json"], "user=alice").ended(0).json();
    assert_eq!(shown["keys"][0]["key"]["blocked_seconds"], Value::Null);

    single.server.command::<String>(&["SET", &name, "00000000000000000001"]);
    let ran = key(&["reset"], "user=alice");
    assert!(ran.ended(0).out.contains("now      5 of 5 left"), "{}", ran.out);
    assert_eq!(single.server.command::<i64>(&["EXISTS", &name]), 0);
}

#[test]
fn what_cannot_be_done_says_why_and_what_to_set() {
    let dir = files(&[("rules/shop.yaml", RULES)]);
    let key = |action: &[&str], more: &[&str]| {
        let common = ["--rules", "rules", "--domain", "shop"];
        run_in(dir.path(), &[&["key"], action, &common, more].concat(), &[])
    };
    let ran = key(&["reset"], &["user=alice"]);
    assert!(ran.ended(2).err.contains("set REDIS_URL to that of the pods"), "{}", ran.err);
    let ran = key(&["block"], &["user=alice"]);
    assert!(ran.ended(2).err.contains("--for <DURATION>"), "{}", ran.err);
    let ran = key(&["block", "--for", "0s"], &["user=alice"]);
    assert!(ran.ended(2).err.contains("as in 30m"), "{}", ran.err);
    let ran = key(&["reset", "--for", "1h"], &["user=alice"]);
    assert!(ran.ended(2).err.contains("--for: only block takes a time"), "{}", ran.err);
    let single = Single::start();
    let redis = format!("127.0.0.1:{}", single.server.port());
    let ran = key(&["show"], &["--redis-url", "127.0.0.1:1", "user=alice"]);
    assert!(ran.ended(2).out.contains("now      unknown: "), "{}", ran.out);
    let ran = key(&["show"], &["--redis-url", &redis, "free=x"]);
    assert!(ran.ended(1).out.contains("no rule limits it"), "{}", ran.out);
}
