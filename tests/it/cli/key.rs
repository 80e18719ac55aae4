//! `ratectl key` on a real Redis.

use serde_json::Value;

use super::{files, run_in};
use crate::support::redis::Single;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 5}
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
    assert!(state["note"].as_str().unwrap().starts_with("nothing is counted under this key"));
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
fn a_key_without_a_count_is_shown_with_what_that_may_mean() {
    let single = Single::start();
    let dir = files(&[("rules/shop.yaml", RULES)]);
    let redis = format!("127.0.0.1:{}", single.server.port());
    let show = |secret: &str, more: &[&str]| {
        let common = ["key", "show", "--rules", "rules", "--domain", "shop", "--redis-url", &redis];
        let args = [&common, more, &["user=alice"]].concat();
        run_in(dir.path(), &args, &[("KEY_SECRET", secret)])
    };
    let hash = show("fleet", &["--json"]).ended(0).json()["keys"][0]["key"]["hash"].clone();
    let name = format!("rl:{{{}}}", hash.as_str().unwrap());
    let year = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / (365 * 86_400);
    single.server.command::<String>(&["SET", &name, &format!("{year}{:010}", 2)]);
    let ran = show("fleet", &[]);
    assert!(ran.out.contains("3 of 5 left"), "{}", ran.out);
    assert!(!ran.out.contains("nothing is counted"), "{}", ran.out);
    for (secret, note) in [
        ("other", "was not used lately, or the pods have another KEY_SECRET, CACHE_KEY_PREFIX"),
        ("", "KEY_SECRET is not set: pods that have one count under another key"),
    ] {
        let ran = show(secret, &[]);
        assert!(ran.out.contains("5 of 5 left") && ran.out.contains(note), "{}", ran.out);
        let state = &show(secret, &["--json"]).ended(0).json()["keys"][0]["key"];
        assert!(state["note"].as_str().unwrap().contains(note), "{state}");
    }
    let state = &show("fleet", &["--json"]).ended(0).json()["keys"][0]["key"];
    assert_eq!((&state["left"], &state["note"]), (&Value::from(3), &Value::Null));
}

#[test]
fn a_user_without_the_rights_of_orders_is_told_which_and_how_to_grant_them() {
    let single = Single::start();
    let acl = include_str!("../../../deploy/redis-acl.conf");
    let rights =
        acl.lines().find(|line| line.starts_with("user ")).and_then(|it| it.split_once(" ~rl:*"));
    let (_, rights) = rights.expect("a user");
    let login = ["ACL", "SETUSER", "pods", "on", ">secret", "~rl:*"];
    // As pods had them before there were orders.
    let rights = rights.split_whitespace().filter(|right| !right.starts_with("+x"));
    let words: Vec<_> = login.into_iter().chain(rights).collect();
    single.server.command::<String>(&words);
    let dir = files(&[("rules/shop.yaml", RULES)]);
    let url = format!("redis://pods:secret@127.0.0.1:{}", single.server.port());
    let key = |action: &[&str]| {
        let common = ["--rules", "rules", "--domain", "shop", "user=alice"];
        run_in(dir.path(), &[&["key"], action, &common].concat(), &[("REDIS_URL", &url)])
    };
    key(&["show"]).ended(0);
    let grant = "ACL SETUSER pods +xadd +xrange +xdel +del +pexpireat +time ~rl:*";
    for action in [&["reset"][..], &["block", "--for", "1h"], &["unblock"]] {
        let ran = key(action);
        assert!(ran.ended(2).err.contains(&format!("on each node: {grant}")), "{}", ran.err);
        assert!(ran.err.contains("can't run") || ran.err.contains("'xrange'"), "{}", ran.err);
    }
    let words: Vec<_> = grant.split(' ').collect();
    single.server.command::<String>(&words);
    for action in [&["reset"][..], &["block", "--for", "1h"], &["unblock"]] {
        key(action).ended(0);
    }
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
