//! Rules of the control plane, enforced by real pods.

use std::process::Command;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use futures_util::future::join_all;
use prost::Message;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{SOON, has_limit, pod_with, spawn};
use crate::support::control::Control;
use crate::support::files::dir_of;
use crate::support::now;
use crate::support::papers::Papers;
use crate::support::proxy::Proxy;
use crate::support::ratectl::ratectl;
use crate::support::ratelease::{Ratelease, inherited};
use crate::support::raw_grpc::{self, Connection, descriptor};
use crate::support::redis::Single;
use crate::support::tls_files::{TlsFiles, text, write};
use crate::support::xds_server::config;

/// What a pod is told so that it takes rule files.
const OWN_RULES: (&str, &str) = ("CONFIG_GRPC_XDS_RATELEASE", "true");

/// The variables that set the scale of the measurement, and the scale without them.
const PODS: (&str, usize) = ("RATELEASE_PUSH_PODS", 3);
const CHANGES: (&str, usize) = ("RATELEASE_PUSH_CHANGES", 10);

/// The limit of the first version; that of each further one is higher by one.
const FIRST_LIMIT: u32 = 1_000_000;

/// Pause between two requests to a pod.
const ASK_PAUSE: Duration = Duration::from_millis(1);

/// A pod, and a connection to it.
struct Pod {
    pod: Ratelease,
    connection: Connection,
    _dir: TempDir,
}

/// A limit that no test reaches.
fn rule(domain: &str, key: &str) -> Value {
    let limit = json!({
        "unit": "year", "requests_per_unit": 1_000_000, "algorithm": "token_bucket"
    });
    json!({"domain": domain, "entries": [{"key": key}], "rate_limit": limit})
}

/// What a pod is told so that it trusts a control plane, and shows no certificate.
fn trusting(files: &TlsFiles) -> Vec<(&str, &str)> {
    vec![
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", text(&files.root)),
    ]
}

/// Starts pods that follow the control plane.
async fn pods(control: &Control, count: usize, env: &[(&str, &str)]) -> Vec<Pod> {
    let env = [&[OWN_RULES], env].concat();
    let pods: Vec<_> = (0..count).map(|_| spawn(&control.pods.to_string(), &env)).collect();
    let mut ready = Vec::new();
    for (pod, dir) in pods {
        pod.ready().await;
        let connection = Connection::open(pod.grpc).await;
        ready.push(Pod { pod, connection, _dir: dir });
    }
    ready
}

impl Pod {
    /// Waits until requests of a key are limited, or no longer are.
    async fn limits(&self, domain: &str, key: &str, expected: bool) {
        let is = async || has_limit(&self.connection, domain, key).await == expected;
        self.pod.process.until(&format!("limiting {key}: {expected}"), SOON, is).await;
    }
}

fn scale((name, default): (&str, usize)) -> usize {
    std::env::var(name).map_or(default, |it| it.parse().expect("a number"))
}

/// The limits that one answer shows for two keys that each version limits alike.
async fn limits_of_pair(connection: &Connection) -> Vec<u32> {
    let pair = raw_grpc::request("shop", &[descriptor("one", "a"), descriptor("other", "a")]);
    let reply = connection.call(&pair).await;
    let response = RateLimitResponse::decode(&*reply.message).expect("an answer");
    let limits = response.statuses.iter().map(|it| it.current_limit.as_ref());
    limits.map(|it| it.map_or(0, |it| it.requests_per_unit)).collect()
}

/// Publishes a version in which both keys have this limit.
async fn publish_pair(control: &Control, limit: u32) {
    let limit = format!("rate_limit: {{unit: year, requests_per_unit: {limit}}}");
    let yaml =
        format!("domain: shop\ndescriptors: [{{key: one, {limit}}}, {{key: other, {limit}}}]");
    let files = json!({"files": [{"name": "shop.yaml", "yaml": yaml}]});
    control.call("POST", "/v1/import?publish=true", &files).await;
}

/// Asks a pod again and again until an answer shows the limit, and returns the number of answers.
/// Each shows one version: the same limit for both keys, and never an earlier one than before.
async fn enforces(pod: &Pod, limit: u32) -> u32 {
    let (end, mut last) = (now() + SOON, 0);
    for asked in 1.. {
        let limits = limits_of_pair(&pod.connection).await;
        assert!(matches!(*limits, [one, other] if one == other), "mixed: {limits:?}");
        assert!((last..=limit).contains(&limits[0]), "{} after {last}", limits[0]);
        last = limits[0];
        if last == limit {
            return asked;
        }
        assert!(now() < end, "{last} in place of {limit} after {SOON:?}");
        tokio::time::sleep(ASK_PAUSE).await;
    }
    unreachable!("the loop returns or panics")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_enforced_on_all_pods_within_a_second_and_answers_mix_no_versions() {
    let control = Control::start().await;
    publish_pair(&control, FIRST_LIMIT).await;
    let pods = pods(&control, scale(PODS), &[]).await;
    let (mut times, mut answers) = (Vec::new(), 0);
    for limit in (FIRST_LIMIT + 1..).take(scale(CHANGES)) {
        // The clock runs from the answer to the publisher, while the pods are asked all along.
        let publishing = async {
            publish_pair(&control, limit).await;
            now()
        };
        let enforcing = join_all(pods.iter().map(|pod| async move {
            let asked = enforces(pod, limit).await;
            (now(), asked)
        }));
        let (committed, enforced) = tokio::join!(publishing, enforcing);
        answers += enforced.iter().map(|(_, asked)| asked).sum::<u32>();
        times.extend(enforced.iter().map(|(at, _)| at.saturating_duration_since(committed)));
    }
    times.sort();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    let (median, p99, last) = (at(50), at(99), at(100));
    let (count, changes) = (pods.len(), scale(CHANGES));
    eprintln!(
        "{changes} changes on {count} pods, from the answer to the publisher until a pod enforces \
         it: p50 {median:?}, p99 {p99:?}, max {last:?}; {answers} answers, none of them mixed"
    );
    // A debug build, on a machine that also compiles; the median tells a poll from a push.
    assert!(median < Duration::from_secs(1), "{times:?}");
    let version = json!(changes + 1);
    // A pod enforces a version before its answer has reached the database.
    let are_shown = async || {
        let shown = control.call("GET", "/v1/pods", &Value::Null).await;
        let current = shown["pods"].as_array().unwrap().iter();
        let current = current.filter(|it| it["accepted"] == version && it["agent"] == "ratelease");
        current.count() >= count
    };
    control.process.until("showing what the pods run", SOON, are_shown).await;
    assert!(pods.iter().all(|pod| pod.pod.count("xds_refused") == 0));
    let ended = join_all(pods.iter().map(|pod| pod.pod.stop())).await;
    assert!(ended.iter().all(|status| *status == 0), "{ended:?}");
}

#[tokio::test]
async fn pods_keep_their_rules_while_the_control_plane_is_away() {
    let control = Control::start().await;
    control.call("POST", "/v1/rules?publish=true", &rule("shop", "user")).await;
    let kept = tempfile::tempdir().unwrap();
    let path = kept.path().join("snapshot");
    let env = [("RULES_SNAPSHOT", path.to_str().unwrap())];
    let first = pods(&control, 1, &env).await.remove(0);
    first.limits("shop", "user", true).await;
    let written = async || first.pod.count("snapshots_written") > 0;
    first.pod.process.until("writing the snapshot", SOON, written).await;
    // A pod that runs is unaffected, and one that starts meanwhile has the rules of its snapshot.
    control.process.signal("STOP");
    assert!(has_limit(&first.connection, "shop", "user").await);
    assert_eq!(first.pod.stop().await, 0);
    let second = pods(&control, 1, &env).await.remove(0);
    assert!(has_limit(&second.connection, "shop", "user").await);
    control.process.signal("CONT");
    // Versions go on where they were, and the pod follows again.
    let control = control.restart().await;
    let done = control.call("POST", "/v1/rules?publish=true", &rule("shop", "path")).await;
    assert_eq!(done["entries"][0]["key"], "path");
    second.limits("shop", "path", true).await;
    let versions = control.call("GET", "/v1/versions", &Value::Null).await;
    assert_eq!(versions["versions"][0]["version"], 2);
    control.call("POST", "/v1/rollback", &json!({"version": 1})).await;
    second.limits("shop", "path", false).await;
    second.limits("shop", "user", true).await;
    assert_eq!(second.pod.stop().await, 0);
}

/// Attempts to connect that a pod makes while the control plane is gone: as many as an hour has
/// with the longest wait, 60 s.
const ATTEMPTS: u64 = 60;

#[tokio::test]
async fn pods_that_start_while_the_control_plane_is_gone_for_long_have_their_snapshot() {
    let control = Control::start().await;
    control.call("POST", "/v1/rules?publish=true", &rule("shop", "user")).await;
    let kept = tempfile::tempdir().unwrap();
    let path = kept.path().join("snapshot");
    let longest = [("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "100ms")];
    let env = [&longest[..], &[("RULES_SNAPSHOT", path.to_str().unwrap())]].concat();
    let first = pods(&control, 1, &env).await.remove(0);
    let written = async || first.pod.count("snapshots_written") > 0;
    first.pod.process.until("writing the snapshot", SOON, written).await;
    let (addr, gone) = (control.pods, control.gone());
    // Nothing listens there: a pod that runs keeps its rules, attempt after attempt.
    let silent = Proxy::on(std::net::TcpListener::bind(addr).unwrap(), 0);
    silent.connection_after(ATTEMPTS).await;
    assert!(has_limit(&first.connection, "shop", "user").await);
    // One that starts now serves the rules of the snapshot, and keeps them.
    let (second, _dir) = spawn(&addr.to_string(), &[&[OWN_RULES], &env[..]].concat());
    second.ready().await;
    let connection = Connection::open(second.grpc).await;
    assert!(has_limit(&connection, "shop", "user").await);
    silent.connection_after(silent.accepted() + ATTEMPTS / 10).await;
    assert!(has_limit(&connection, "shop", "user").await);
    drop(silent);
    // Both follow the control plane when it is back.
    let control = gone.back().await;
    control.call("POST", "/v1/rules?publish=true", &rule("shop", "path")).await;
    first.limits("shop", "path", true).await;
    let follows = async || has_limit(&connection, "shop", "path").await;
    second.process.until("following again", SOON, follows).await;
    assert_eq!(second.stop().await, 0);
    assert_eq!(first.pod.stop().await, 0);
}

#[tokio::test]
async fn a_pod_needs_a_certificate_and_new_ones_are_taken_up() {
    let (papers, strangers) = (Papers::new("127.0.0.1"), Papers::new("127.0.0.1"));
    let (files, others) = (TlsFiles::of(&papers), TlsFiles::of(&strangers));
    let control = Control::tls(&files).await;
    control.call("POST", "/v1/rules?publish=true", &rule("shop", "user")).await;
    let mut env = trusting(&files);
    let (nobody, _dir) = spawn(&control.pods.to_string(), &env);
    nobody.logs("no rules from the xDS server").await;
    env.push(("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", text(&files.client.0)));
    env.push(("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", text(&files.client.1)));
    let known = pods(&control, 1, &env).await.remove(0);
    known.limits("shop", "user", true).await;
    let shown = control.call("GET", "/v1/pods", &Value::Null).await;
    let peers: Vec<_> = shown["pods"].as_array().unwrap().iter().map(|it| &it["peer"]).collect();
    assert!(peers.iter().all(|it| it.as_str().unwrap().starts_with("127.0.0.1:")), "{shown}");
    // All files are replaced by those of another authority, whose pods are then let in.
    std::fs::write(&files.root, &strangers.root).unwrap();
    write(files.dir.path(), "tls", &strangers.server);
    let mut env = trusting(&others);
    env.push(("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", text(&others.client.0)));
    env.push(("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", text(&others.client.1)));
    let next = pods(&control, 1, &env).await.remove(0);
    next.limits("shop", "user", true).await;
    // The stream that was open goes on.
    control.call("POST", "/v1/rules?publish=true", &rule("shop", "path")).await;
    known.limits("shop", "path", true).await;
    assert!(nobody.process.exited().is_none(), "it waits for its first rules");
    assert_eq!(known.pod.stop().await, 0);
    assert_eq!(next.pod.stop().await, 0);
}

/// Runs `ratectl key block` for a user of `shop`, by the rules of a directory.
fn block(rules: &TempDir, url: &str) -> std::process::Output {
    let mut command = Command::new(ratectl());
    command.args(["key", "block", "--for", "1h", "--domain", "shop", "user_id=eve", "--rules"]);
    command.arg(rules.path()).env_clear().envs(inherited());
    command.env("KEY_SECRET", "fleet").env("REDIS_URL", url).output().expect("it runs")
}

/// Waits until a pod has said in Redis by which rules it makes its keys.
async fn is_registered(pod: &Ratelease, redis: &Single) {
    let is_registered = async || {
        let mut names = redis.server.keys().into_iter().filter(|it| it.starts_with("rl:pod:"));
        names.any(|it| redis.server.command::<String>(&["GET", &it]).contains(" keys="))
    };
    pod.process.until("registered", SOON, is_registered).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_acted_on_by_the_rules_that_a_control_plane_exports() {
    let control = Control::start().await;
    let yaml = std::fs::read_to_string("config/rules/shop.yaml").expect("the demo's rules");
    let files = json!({"files": [{"name": "shop.yaml", "yaml": yaml}]});
    control.call("POST", "/v1/import?publish=true", &files).await;
    control.call("POST", "/v1/rules?publish=true", &rule("shop", "coupon")).await;
    let redis = Single::start();
    let url = format!("127.0.0.1:{}", redis.server.port());
    let env = [
        ("REDIS_TYPE", "single"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &*url),
        ("KEY_SECRET", "fleet"),
    ];
    let pod = pods(&control, 1, &env).await.remove(0);
    is_registered(&pod.pod, &redis).await;
    let ran = block(&dir_of(&[("shop.yaml", &yaml)]), &url);
    let why = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "the coupon is missing: {why}");
    assert!(why.contains("GET /v1/export?domain=shop"), "{why}");
    let exported = control.text("/v1/export?domain=shop").await;
    let ran = block(&dir_of(&[("shop.yaml", &exported)]), &url);
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && out.contains("1 of 1 have confirmed it"), "{out}");
    assert_eq!(pod.pod.stop().await, 0);

    // Rules in the reference's messages, which have no file.
    let (server, of_reference, _connection, _dir) =
        pod_with(vec![config("shop", "shop", &[("user_id", 7)])], &env).await;
    redis.server.command::<()>(&["FLUSHALL"]);
    is_registered(&of_reference, &redis).await;
    let rules = "domain: shop\ndescriptors: [{key: user_id, rate_limit: {unit: year, \
                 requests_per_unit: 7}}]\n";
    let ran = block(&dir_of(&[("shop.yaml", rules)]), &url);
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && out.contains("1 of 1 have confirmed it"), "{out}");
    assert_eq!(of_reference.stop().await, 0);
    drop(server);
}
