//! `ratectl key` on a real Redis, and with real pods.

use std::path::Path;
use std::time::Duration;

use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::{Heartbeat, Store};
use serde_json::Value;

use super::{Ran, files, run_in};
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{Connection, request_of_entry};
use crate::support::redis::Single;
use crate::support::wait_for;

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
    assert!(state["note"].as_str().unwrap().contains("0 pods hold tokens of it"), "{state}");
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
fn a_key_without_a_count_is_shown_as_such() {
    let single = Single::start();
    let dir = files(&[("rules/shop.yaml", RULES)]);
    let redis = format!("127.0.0.1:{}", single.server.port());
    let show = |more: &[&str]| {
        let common = ["key", "show", "--rules", "rules", "--domain", "shop", "--redis-url", &redis];
        run_in(dir.path(), &[&common, more, &["user=alice"]].concat(), &[])
    };
    let ran = show(&[]);
    assert!(ran.out.contains("s\n           nothing is counted"), "{}", ran.out);
    assert!(ran.out.contains("pods     none is registered: none is connected"), "{}", ran.out);
    let hash = show(&["--json"]).ended(0).json()["keys"][0]["key"]["hash"].clone();
    let name = format!("rl:{{{}}}", hash.as_str().unwrap());
    let year = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / (365 * 86_400);
    single.server.command::<String>(&["SET", &name, &format!("{year}{:010}", 2)]);
    let ran = show(&[]);
    assert!(ran.out.contains("3 of 5 left"), "{}", ran.out);
    assert!(!ran.out.contains("nothing is counted"), "{}", ran.out);
    let state = &show(&["--json"]).ended(0).json()["keys"][0]["key"];
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

/// Starts a pod with the rules of a directory and this secret on a Redis, and waits until it is
/// registered.
async fn pod(rules: &Path, redis: &Single, secret: &str) -> Ratelease {
    let url = format!("127.0.0.1:{}", redis.server.port());
    let env = [("REDIS_TYPE", "single"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &url)];
    let before = registered(redis).len();
    let pod = Ratelease::start(rules, &[], &[&env[..], &[("KEY_SECRET", secret)]].concat()).await;
    wait_for("the pod is registered", Duration::from_secs(10), || {
        (registered(redis).len() > before).then_some(())
    });
    pod
}

/// The records of pods that have rules.
fn registered(redis: &Single) -> Vec<String> {
    let names = redis.server.keys().into_iter().filter(|name| name.starts_with("rl:pod:"));
    // One may have lapsed since.
    let records = names.filter_map(|name| redis.server.try_command(&["GET", &name]).ok());
    records.filter(|record: &String| record.contains(" keys=")).collect()
}

/// Runs `ratectl key` for the domain `shop` with these rules.
fn key(dir: &Path, redis: &Single, secret: &str, rules: &str, args: &[&str]) -> Ran {
    let url = format!("127.0.0.1:{}", redis.server.port());
    let common = ["--rules", rules, "--redis-url", &url];
    let env = [("KEY_SECRET", secret), ("USER", "alice")];
    run_in(dir, &[&["key"], args, &common].concat(), &env)
}

const BLOCK: [&str; 6] = ["block", "--for", "1h", "--domain", "shop", "user=mallory"];

#[tokio::test(flavor = "multi_thread")]
async fn an_order_for_a_key_that_no_pod_makes_is_refused() {
    let others = RULES.replace("unit: year", "unit: day");
    let amounts = RULES.replace("requests_per_unit: 5", "requests_per_unit: 500");
    let dir = files(&[
        ("rules/shop.yaml", RULES),
        ("others/shop.yaml", &others),
        ("amounts/shop.yaml", &amounts),
    ]);
    let redis = Single::start();
    let _pods = [
        pod(&dir.path().join("rules"), &redis, "fleet").await,
        pod(&dir.path().join("rules"), &redis, "fleet").await,
    ];
    let run = |secret, rules, args: &[&str]| key(dir.path(), &redis, secret, rules, args);
    for (secret, rules, says) in [
        ("", "rules", "a KEY_SECRET is set at 2 pods ("),
        ("other", "rules", "another KEY_SECRET is set at 2 pods ("),
        ("fleet", "others", ") with other rules of the domain 'shop' than others has, or none"),
    ] {
        for args in [&BLOCK[..], &["show", "--domain", "shop", "user=mallory"]] {
            let ran = run(secret, rules, args);
            assert!(ran.ended(2).err.contains(says), "{}", ran.err);
            assert!(ran.err.contains("nothing was done"), "{}", ran.err);
        }
    }
    assert_eq!(redis.server.command::<i64>(&["EXISTS", "rl:orders"]), 0);
    let ran = run("fleet", "amounts", &BLOCK);
    assert!(ran.ended(0).out.contains("pods     2 of 2 have confirmed it"), "{}", ran.out);
    // Nothing of the secret is in the records.
    let records = registered(&redis);
    assert!(records.iter().all(|record| !record.contains("fleet")), "{records:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_confirmed_and_listed_with_who_gave_them() {
    let dir = files(&[("rules/shop.yaml", RULES)]);
    let redis = Single::start();
    let pods = [
        pod(&dir.path().join("rules"), &redis, "fleet").await,
        pod(&dir.path().join("rules"), &redis, "fleet").await,
    ];
    let run = |args: &[&str]| key(dir.path(), &redis, "fleet", "rules", args);
    assert_eq!(run(&["list"]).ended(0).out, "no key is blocked\n");
    let ran = run(&BLOCK);
    assert!(ran.ended(0).out.contains("2 of 2 have confirmed it"), "{}", ran.out);
    let by_default = format!("by alice@{}, at 20", hostname());
    assert!(ran.out.contains(&by_default), "{by_default} in {}", ran.out);
    let ran =
        run(&["block", "--for", "2h", "--by", "ops: ticket 7", "--domain", "shop", "user=eve"]);
    assert!(ran.ended(0).out.contains(", by ops: ticket 7, at 20"), "{}", ran.out);

    let listed = run(&["list", "--json"]).ended(0).json();
    let by = |at: usize| listed["blocked"][at]["blocked_by"].as_str().unwrap();
    assert_eq!([by(0), by(1)], [&format!("alice@{}", hostname()), "ops: ticket 7"]);
    let ran = run(&["list"]);
    assert!(ran.ended(0).out.starts_with("2 keys are blocked\n  "), "{}", ran.out);
    assert!(ran.out.contains(", by ops: ticket 7\n"), "{}", ran.out);
    let hash = listed["blocked"][1]["hash"].as_str().unwrap();
    assert!(ran.out.contains(hash), "{hash} in {}", ran.out);
    let shown = run(&["show", "--json", "--domain", "shop", "user=eve"]).ended(0).json();
    let state = &shown["keys"][0]["key"];
    assert_eq!((&state["hash"], &state["blocked_by"]), (&hash.into(), &"ops: ticket 7".into()));
    for pod in &pods {
        let line = pod.logs("a key is blocked by order").await;
        assert!(line.contains("by="), "{line}");
        pod.logs("ops: ticket 7").await;
    }

    // One that is stopped cannot confirm.
    pods[1].process.signal("STOP");
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pods[1].process.pid()));
        stat.expect("it runs").contains(") T ").then_some(())
    };
    wait_for("a pod that is stopped", Duration::from_secs(20), is_stopped);
    let ran = run(&["unblock", "--domain", "shop", "user=eve"]);
    pods[1].process.signal("CONT");
    assert!(ran.ended(1).out.contains("1 of 2 have confirmed it"), "{}", ran.out);
    assert_eq!(run(&["list", "--json"]).ended(0).json()["blocked"].as_array().unwrap().len(), 1);
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

const SLOTS: &str = "
domain: shop
descriptors:
  - key: stream
    rate_limit: {algorithm: concurrency, requests_per_unit: 5, hold: {for: 5m}}
";

/// Whether a pod lets a request of this id begin.
async fn begins(connection: &Connection, id: &str) -> bool {
    let reply = connection.call(&request_of_entry("shop", "stream", id)).await;
    !reply.is_over_limit().expect("a verdict")
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_shown_by_pod_and_for_how_long() {
    let dir = files(&[("rules/shop.yaml", SLOTS)]);
    let redis = Single::start();
    let rules = dir.path().join("rules");
    let pods = [pod(&rules, &redis, "fleet").await, pod(&rules, &redis, "fleet").await];
    for (pod, ids) in [(0, &["a", "b"][..]), (1, &["c"])] {
        let connection = Connection::open(pods[pod].grpc).await;
        for id in ids {
            assert!(begins(&connection, id).await);
        }
    }
    let run = |args: &[&str]| {
        let common = ["--domain", "shop", "stream=any"];
        key(dir.path(), &redis, "fleet", "rules", &[args, &common].concat())
    };
    let shown = wait_for("both pods say since when", Duration::from_secs(40), || {
        let state = run(&["show", "--json"]).ended(0).json()["keys"][0]["key"].clone();
        let slots = state["slots"].as_array().unwrap();
        let is_known = slots.len() == 2 && slots.iter().all(|it| !it["held_seconds"].is_null());
        is_known.then_some(state)
    });
    assert_eq!((&shown["left"], &shown["of"]), (&2.into(), &5.into()));
    for (at, slots) in [(0, 2), (1, 1)] {
        let one = &shown["slots"][at];
        assert_eq!((&one["slots"], &one["name"]), (&slots.into(), &hostname().into()));
    }
    let ran = run(&["show"]);
    let line = format!("slots    2 of {}, the oldest for about ", hostname());
    assert!(ran.ended(0).out.contains(&line), "{line} in {}", ran.out);
}

/// Whichever pods free slots at a reset, and whichever state them again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_of_slots_says_how_many_are_free() {
    let dir = files(&[("rules/shop.yaml", SLOTS)]);
    let redis = Single::start();
    let pod = pod(&dir.path().join("rules"), &redis, "fleet").await;
    let connection = Connection::open(pod.grpc).await;
    for id in ["a", "b", "c", "d", "e"] {
        assert!(begins(&connection, id).await);
    }
    assert!(!begins(&connection, "f").await, "all are in use");
    let args = ["reset", "--json", "--domain", "shop", "stream=any"];
    let ran = key(dir.path(), &redis, "fleet", "rules", &args);
    let state = ran.ended(0).json()["keys"][0]["key"].clone();
    assert_eq!(state["pods"]["confirmed"], 1);
    let left = state["left"].as_u64().expect("a number");
    let mut began = 0;
    for id in ["g", "h", "i", "j", "k"] {
        began += u64::from(begins(&connection, id).await);
    }
    assert_eq!(began, left, "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_an_older_version_are_noted_and_the_order_is_given() {
    let dir = files(&[("rules/shop.yaml", RULES)]);
    let redis = Single::start();
    let store = RedisStore::spawn(redis.config(), "");
    let lasts = Duration::from_secs(60);
    store.beat(Heartbeat { pod: 1, lasts, leaves: false, domain: None }).await.unwrap();
    // One that has ended without a word.
    let lapsed = Duration::from_millis(1);
    store.beat(Heartbeat { pod: 2, lasts: lapsed, leaves: false, domain: None }).await.unwrap();
    let older = "1 pod of an older version, or not connected: not known";
    let ran = key(dir.path(), &redis, "any", "rules", &BLOCK);
    assert!(ran.ended(0).out.contains(&format!("pods     {older}")), "{}", ran.out);
    let _pod = pod(&dir.path().join("rules"), &redis, "any").await;
    let ran = key(dir.path(), &redis, "any", "rules", &BLOCK);
    let both = format!("pods     1 of 1 have confirmed it\n           {older}\n");
    assert!(ran.ended(0).out.contains(&both), "{}", ran.out);
}
