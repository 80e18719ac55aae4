//! `ratectl explain`, with and without a Redis Cluster.

use std::net::SocketAddr;
use std::time::Duration;

use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::{Ask, Deposit, Store};
use ratelease_rules::key::{KeyHasher, KeyPart};
use ratelease_rules::{Limit, Unit};
use serde_json::{Value, json};

use super::{files, root, run_in};
use crate::support::http;
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;

fn taken(descriptor: &Value) -> Vec<&Value> {
    let levels = descriptor["levels"].as_array().unwrap().iter();
    let candidates = levels.flat_map(|level| level["candidates"].as_array().unwrap());
    candidates.filter(|candidate| candidate["taken"] == true).collect()
}

#[test]
fn each_level_says_what_was_taken_and_why_not_the_rest() {
    let args = ["explain", "--domain", "shop", "path=/api/v1/search"];
    let ran = run_in(root(), &args, &[]);
    for line in [
        "shop: (path, /api/v1/search)",
        "    pattern  path: /api/*/search            taken",
        "    pattern  path: *.pdf                    does not match",
        "  rule        shop.path_/api/*/search",
        "  file        config/rules/shop.yaml:38:5",
        "  allows      20 requests in each window of one second, aligned to the Unix epoch",
        "  stats key   shop.path_/api/*/search",
    ] {
        assert!(ran.ended(0).out.lines().any(|it| it == line), "{line:?} not in\n{}", ran.out);
    }
}

#[test]
fn json_shows_levels_settings_and_key() {
    let args = ["explain", "--json", "--domain", "shop", "plan=free,user_id=7", "user_id=x"];
    let report = run_in(root(), &args, &[]).ended(0).json();
    let first = &report["descriptors"][0];
    assert_eq!(first["rule"], "shop.plan_free.user_id");
    assert_eq!(first["settings"]["requests_per_unit"], 1000);
    let place = json!({ "file": "config/rules/shop.yaml", "line": 57, "column": 9 });
    assert_eq!(first["place"], place);
    let taken: Vec<_> = taken(first).iter().map(|taken| taken["by"].clone()).collect();
    assert_eq!(taken, ["value", "key"]);
    let key = KeyHasher::new("").key(
        "shop",
        Limit::fixed_window(1000, Unit::Day).identity(),
        [("plan", KeyPart::Value("free")), ("user_id", KeyPart::Value("7"))].into_iter(),
    );
    assert_eq!(first["count"]["redis_key"], key.in_store(""));
    assert_eq!(report["descriptors"][1]["rule"], "shop.user_id");
}

#[test]
fn secret_and_prefix_make_the_key_that_the_pods_make() {
    let args = ["explain", "--json", "--domain", "shop", "user_id=x"];
    let key = |env: &[(&str, &str)]| {
        let report = run_in(root(), &args, env).ended(0).json();
        report["descriptors"][0]["count"]["redis_key"].as_str().unwrap().to_owned()
    };
    let env = [("KEY_SECRET", "sesame"), ("CACHE_KEY_PREFIX", "p:")];
    let limit = Limit::fixed_window(100, Unit::Minute);
    let parts = [("user_id", KeyPart::Value("x"))].into_iter();
    let expected = KeyHasher::new("sesame").key("shop", limit.identity(), parts).in_store("p:");
    assert_eq!(key(&env), expected);
    assert_ne!(key(&[]), expected);
}

#[test]
fn a_secret_that_replaces_itself_is_a_fault() {
    let args = ["explain", "--domain", "shop", "user_id=x"];
    for (secret, previous) in [("sesame", "sesame"), ("", "none")] {
        let env = [("KEY_SECRET", secret), ("KEY_SECRET_PREVIOUS", previous)];
        let ran = run_in(root(), &args, &env);
        let fault = "KEY_SECRET_PREVIOUS: KEY_SECRET is the same";
        assert!(ran.ended(2).err.contains(fault), "{}", ran.err);
        assert!(!ran.err.contains("sesame"), "{}", ran.err);
    }
    run_in(root(), &args, &[("KEY_SECRET", "new"), ("KEY_SECRET_PREVIOUS", "none")]).ended(0);
}

#[test]
fn a_rule_that_another_replaces_says_by_which() {
    let args = ["explain", "--json", "--domain", "shop", "path=/checkout", "campaign=summer"];
    let report = run_in(root(), &args, &[]).ended(0).json();
    let first = &report["descriptors"][0];
    assert_eq!(
        (&first["result"], &first["rule"]),
        (&json!("replaced"), &json!("shop.path_/checkout"))
    );
    assert_eq!(first["replaced_by"], "shop.campaign_summer");
    assert_eq!(report["descriptors"][1]["result"], "counted");
}

#[test]
fn what_finds_no_rule_ends_with_1_and_says_what_there_is() {
    let ran = run_in(root(), &["explain", "--domain", "shop", "nope=1", "plan=free"], &[]);
    let keys = "nothing matches; keys here: campaign, country, path, plan, user_id";
    assert!(ran.ended(1).out.contains(keys), "{}", ran.out);
    let ran = run_in(root(), &["explain", "--domain", "other", "a=b"], &[]);
    assert!(ran.ended(1).out.contains("no rule file names this domain"), "{}", ran.out);
}

#[test]
fn what_cannot_be_explained_ends_with_2() {
    let ran = run_in(root(), &["explain", "--domain", "shop", "user_id"], &[]);
    assert!(ran.ended(2).err.contains("no '=' in \"user_id\""), "{}", ran.err);
    run_in(root(), &["explain", "--domain", "", "user_id=1"], &[]).ended(2);
    let dir = files(&[("a.yaml", "domain: d\nx: y\n")]);
    let ran = run_in(dir.path(), &["explain", "--rules", ".", "--domain", "d", "a=b"], &[]);
    assert!(ran.ended(2).err.contains("the rules are faulty"), "{}", ran.err);
    let args =
        ["explain", "--domain", "shop", "--redis-url", "redis:1", "--redis-type", "ring", "a=b"];
    assert!(run_in(root(), &args, &[]).ended(2).err.contains("REDIS_TYPE: expected"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_explains_by_its_own_rules_and_secret_and_says_what_it_holds() {
    let text = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, \
                requests_per_unit: 2, failure_mode: deny}}\n  - {key: user, value: free, \
                rate_limit: {unlimited: true}}\n";
    let dir = files(&[("a.yaml", text)]);
    // The machine may be compiling.
    let env = [("KEY_SECRET", "sesame"), ("LEASE_MAX_WAIT", "5s")];
    let pod = Ratelease::start(dir.path(), &[], &env).await;
    let debug = pod.debug.to_string();
    let explain = |entry: &str, env: &[(&str, &str)]| {
        run_in(root(), &["explain", "--pod", &debug, "--domain", "shop", entry], env)
    };
    let before = explain("user=a", &[]).ended(0).out.clone();
    assert!(before.contains("  rule        shop.user\n"), "{before}");
    assert!(before.contains("  failure_mode deny\n"), "{before}");
    assert!(before.contains("knows nothing of the key"), "{before}");
    let parts = [("user", KeyPart::Value("a"))].into_iter();
    let identity = Limit::fixed_window(2, Unit::Year).identity();
    let key = KeyHasher::new("sesame").key("shop", identity, parts);
    assert!(before.contains(&format!("  key         {key}\n")), "{before}");

    let body =
        r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#;
    let mut client = http::Client::connect(pod.http).await.unwrap();
    for status in [200, 200, 429] {
        assert_eq!(client.send("POST", "/json", &[], body).await.unwrap().status, status);
    }
    let after = explain("user=a", &[]).ended(0).out.clone();
    assert!(after.contains("holds 0 tokens; 0 of 2 left in Redis when it last replied"), "{after}");
    assert!(after.contains("; it denies until then"), "{after}");
    assert!(explain("user=free", &[]).ended(0).out.contains("everything passes"));
    let none = explain("nope=1", &[]);
    assert!(none.ended(1).out.contains("whose keys here are: user; it passes"), "{}", none.out);

    let args = ["explain", "--json", "--pod", &debug, "--domain", "shop", "user=a,b", "user=b"];
    assert!(run_in(root(), &args, &[]).ended(2).err.contains("no '=' in \"b\""));
    let args = ["explain", "--json", "--pod", &debug, "--domain", "shop", "user=%&?", "user=a"];
    let report = run_in(root(), &args, &[]).ended(0).json();
    assert_eq!(report["descriptors"][0]["count"]["held"], Value::Null);
    assert_eq!(report["descriptors"][1]["count"]["held"]["left"], 0);
    assert_eq!(report["version"], pod.status()["rules"]["version"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_large_settings_is_bounded_and_says_what_it_leaves_out() {
    let note = "m".repeat(60_000);
    let text = format!(
        "domain: shop\ndescriptors:\n  - {{key: user, rate_limit: {{unit: year, \
         requests_per_unit: 2, failure_mode: deny}}, metadata: {{note: {note}}}}}\n"
    );
    let dir = files(&[("a.yaml", &text)]);
    let pod = Ratelease::start(dir.path(), &[], &[]).await;
    let debug = pod.debug.to_string();
    let users: Vec<_> = (0..40).map(|user| format!("user={user}")).collect();
    let users = users.iter().map(String::as_str);
    let args: Vec<_> = ["explain", "--json", "--pod", &debug, "--domain", "shop"].into();
    let args: Vec<_> = args.into_iter().chain(users).collect();
    let ran = run_in(root(), &args, &[]);
    let report = ran.ended(0).json();
    assert!(ran.out.len() < 1 << 20, "{} bytes", ran.out.len());
    let each = report["descriptors"].as_array().unwrap();
    assert_eq!(each.len(), 40);
    assert_eq!(each[0]["settings"]["metadata"]["note"], note.as_str(), "there is room for it");
    assert!(each.iter().all(|one| one["settings"]["failure_mode"] == "deny"), "it is small");
    let left_out = each[39]["settings"]["metadata"].as_str().unwrap();
    assert!(left_out.starts_with("left out: its 60011 bytes of JSON"), "{left_out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_cannot_explain_says_why() {
    let dir = files(&[("a.yaml", "domain: shop\ndescriptors: []\n")]);
    let pod = Ratelease::start(dir.path(), &[], &[("DEBUG_TOKEN", "hunter2")]).await;
    let (debug, http) = (pod.debug.to_string(), pod.http.to_string());
    let explain = |pod: &str, env: &[(&str, &str)]| {
        run_in(root(), &["explain", "--pod", pod, "--domain", "shop", "user=a"], env)
    };
    assert!(explain(&debug, &[]).ended(2).err.contains("set DEBUG_TOKEN or DEBUG_TOKEN_FILE"));
    let token = [("DEBUG_TOKEN", "hunter2")];
    assert!(explain(&debug, &token).ended(1).out.contains("no rule of the pod matches"));
    assert!(explain(&http, &[]).ended(2).err.contains("is it the debug port?"));
    assert!(explain("127.0.0.1:1", &[]).ended(2).err.contains("cannot be reached"));
    let answer = http::get(pod.debug, "/explain").await.unwrap();
    assert_eq!(answer.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_looked_at_and_nothing_is_taken() {
    let cluster = Cluster::shared();
    let rule = "rate_limit: {unit: year, requests_per_unit: 100";
    let split = "{key: split, rate_limit: {unit: year, requests_per_unit: 10, shards: 3}}";
    let text = format!("domain: looked\ndescriptors:\n  - {{key: k, {rule}}}}}\n  - {split}\n");
    let dir = files(&[("a.yaml", &text)]);
    let limit = Limit::fixed_window(100, Unit::Year);
    let parts = [("k", KeyPart::Value("v"))].into_iter();
    let key = KeyHasher::new("").key("looked", limit.identity(), parts);
    let store = RedisStore::spawn(cluster.config(), "");
    store.ready().await;
    let taken = store.lend(&Ask { want: 3, need: 3, ..Ask::look(key, limit) }).await;
    assert_eq!(taken.map(|grant| grant.tokens), Ok(3));
    // Two tokens of the split key are leased, and lie in its last pool.
    let limit = Limit::fixed_window(10, Unit::Year);
    let parts = [("split", KeyPart::Value("v"))].into_iter();
    let key = KeyHasher::new("").key("looked", limit.identity(), parts);
    let look = Ask::look(key, limit);
    let lent = store.lend(&Ask { want: 2, ..look }).await.unwrap();
    let lasts = Duration::from_secs(60);
    let deposit = Some(Deposit { tokens: lent.tokens, epoch: lent.epoch, lasts });
    let put = store.lend(&Ask { pool: Some(2), deposit, ..look }).await;
    assert_eq!(put.map(|grant| grant.left), Ok(2));

    // What pods with a secret count is not found without it, nor with another.
    let limit = Limit::fixed_window(100, Unit::Year);
    let parts = [("k", KeyPart::Value("secret"))].into_iter();
    let secret = KeyHasher::new("sesame").key("looked", limit.identity(), parts);
    let taken = store.lend(&Ask { want: 3, need: 3, ..Ask::look(secret, limit) }).await;
    assert_eq!(taken.map(|grant| grant.tokens), Ok(3));

    let places: Vec<String> = cluster.places().iter().map(SocketAddr::to_string).collect();
    let nodes = places.join(",");
    let args = ["explain", "--rules", ".", "--domain", "looked", "--redis-type", "cluster"];
    let args = [&args[..], &["--redis-url", &nodes, "--json", "k=v", "split=v"]].concat();
    for _ in 0..2 {
        let report = run_in(dir.path(), &args, &[]).ended(0).json();
        let count = &report["descriptors"][0]["count"];
        assert_eq!((&count["now"]["left"], &count["now"]["of"]), (&json!(97), &json!(100)));
        let name = count["redis_key"].as_str().unwrap();
        assert_eq!(count["slot"], cluster.slot(name));
        let port = count["server"].as_str().unwrap().rsplit_once(':').unwrap().1;
        assert_eq!(port, cluster.owner(name).port().to_string());
        let count = &report["descriptors"][1]["count"];
        assert_eq!((&count["now"]["left"], &count["now"]["of"]), (&json!(8), &json!(10)));
        let pools = count["pools"].as_array().unwrap();
        let held: Vec<_> = pools.iter().map(|pool| pool["now"]["tokens"].clone()).collect();
        assert_eq!(held, [0, 0, 2]);
        let ends = pools[2]["now"]["ends_after_seconds"].as_f64().unwrap();
        assert!(ends > 0.0 && ends <= 60.0, "{ends}");
        for pool in pools {
            assert_eq!(pool["slot"], cluster.slot(pool["redis_key"].as_str().unwrap()));
        }
    }
    let args = [&args[..7], &["--redis-url", &nodes, "k=secret"]].concat();
    for (env, expected) in [
        (&[("KEY_SECRET", "sesame")][..], None),
        (&[("KEY_SECRET", "other")], Some("or the pods have another KEY_SECRET")),
        (&[], Some("KEY_SECRET is not set: pods that have one count under another key")),
    ] {
        let ran = run_in(dir.path(), &args, env);
        let mut lines = ran.ended(0).out.lines();
        let note = lines.find(|line| line.contains("nothing is counted under this key"));
        assert_eq!(note.is_some(), expected.is_some(), "{env:?}: {}", ran.out);
        assert!(note.is_none_or(|note| note.contains(expected.unwrap())), "{}", ran.out);
        let report = run_in(dir.path(), &[&args[..], &["--json"]].concat(), env).ended(0).json();
        let note = &report["descriptors"][0]["count"]["now"]["note"];
        assert_eq!(note.is_string(), expected.is_some(), "{env:?}: {report}");
    }
}

#[test]
fn a_store_that_is_unavailable_is_reported_and_the_rest_explained() {
    // A port without a listener: it was free a moment ago.
    let port = crate::support::ports::free_port();
    let url = format!("127.0.0.1:{port}");
    let args = ["explain", "--json", "--domain", "shop", "--redis-url", &url, "user_id=x"];
    let report = run_in(root(), &args, &[]).ended(0).json();
    let count = &report["descriptors"][0]["count"];
    let error = count["now"]["error"].as_str().unwrap();
    assert!(error.contains("cannot be reached"), "{error}");
    assert_eq!(report["descriptors"][0]["rule"], "shop.user_id");
}
