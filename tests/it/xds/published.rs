//! Rules of the control plane, enforced by real pods.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{SOON, has_limit, spawn};
use crate::support::control::Control;
use crate::support::now;
use crate::support::papers::Papers;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::Connection;
use crate::support::tls_files::{TlsFiles, text, write};

/// What a pod is told so that it takes rule files.
const OWN_RULES: (&str, &str) = ("CONFIG_GRPC_XDS_RATELEASE", "true");

/// The variables that set the scale of the measurement, and the scale without them.
const PODS: (&str, usize) = ("RATELEASE_PUSH_PODS", 3);
const CHANGES: (&str, usize) = ("RATELEASE_PUSH_CHANGES", 10);

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

#[tokio::test]
async fn a_published_change_is_enforced_on_all_pods_within_a_second() {
    let control = Control::start().await;
    control.call("POST", "/v1/rules?publish=true", &rule("shop", "first")).await;
    let pods = pods(&control, scale(PODS), &[]).await;
    let mut times = Vec::new();
    for change in 0..scale(CHANGES) {
        let key = format!("key{change}");
        control.call("POST", "/v1/rules?publish=true", &rule("shop", &key)).await;
        let committed = now();
        for pod in &pods {
            pod.limits("shop", &key, true).await;
        }
        times.push(committed.elapsed());
    }
    times.sort();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    let (median, p99, last) = (at(50), at(99), at(100));
    let (count, changes) = (pods.len(), times.len());
    eprintln!("{changes} changes on {count} pods: p50 {median:?}, p99 {p99:?}, max {last:?}");
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
    for pod in pods {
        assert_eq!(pod.pod.count("xds_refused"), 0);
        assert_eq!(pod.pod.stop().await, 0);
    }
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
