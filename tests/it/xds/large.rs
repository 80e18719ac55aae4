//! A set of 100 000 rules that arrives while calls are made. With `RATELEASE_BIN` naming another
//! build and `--nocapture` it prints what the calls took, before and during the change.

use std::time::Duration;

use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use serde_json::Value;
use tokio::process::Command;

use super::pod_with;
use crate::support::now;
use crate::support::ratectl;
use crate::support::xds_server::{CONFIG_TYPE, any, config};

const RULES: u64 = 100_000;

/// Requests a second.
const RATE: &str = "2000";

/// A set of so many rules for values of one key, besides that of the load.
fn large() -> Vec<envoy_types::pb::google::protobuf::Any> {
    const YEAR: i32 = 6;
    let descriptor = |number: u64| RateLimitDescriptor {
        key: "customer".into(),
        value: format!("customer-{number:06}"),
        rate_limit: Some(RateLimitPolicy {
            unit: YEAR,
            requests_per_unit: 1_000_000,
            ..RateLimitPolicy::default()
        }),
        ..RateLimitDescriptor::default()
    };
    let descriptors = (0..RULES).map(descriptor).collect();
    let large = RateLimitConfig { name: "large".into(), domain: "large".into(), descriptors };
    vec![load_rules(), any(CONFIG_TYPE, &large)]
}

/// The rules of [`load`].
pub(super) fn load_rules() -> envoy_types::pb::google::protobuf::Any {
    config("shop", "shop", &[("user_id", 4_000_000_000)])
}

/// The report of a load of one entry, for so long.
pub(super) async fn load(target: &str, seconds: u64) -> Value {
    let lasts = format!("{seconds}s");
    let mut command = Command::new(ratectl::load());
    command.args(["--target", target, "--rate", RATE, "--entries", "1"]);
    command.args(["--keys", "100", "--warmup", "1s", "--duration", &lasts, "--json"]);
    let output = command.kill_on_drop(true).output().await.expect("the load runs");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_rules_come_into_force_and_no_call_fails() {
    let (server, pod, _connection, _dir) = pod_with(vec![load_rules()], &[]).await;
    let target = pod.grpc.to_string();
    let calm = load(&target, 5).await;
    let during = tokio::spawn(async move { load(&target, 10).await });
    tokio::time::sleep(Duration::from_secs(2)).await; // the load has its warm-up first
    let pushed = now();
    server.set("2", large());
    // A debug build takes longer than the server waits for an answer otherwise.
    let accepted = async || pod.count("xds_accepted") == 2;
    pod.process.until("accepting the set", Duration::from_secs(60), accepted).await;
    let took = pushed.elapsed();
    let during = during.await.expect("a load");
    let p99 = |report: &Value| report["latency_us"]["p99"].as_f64().expect("a p99");
    println!(
        "{RULES} rules in force after {took:.2?}; p99 {:.0} µs before, {:.0} µs during; RSS {} MiB",
        p99(&calm),
        p99(&during),
        pod.process.memory("VmRSS") >> 20
    );
    for report in [&calm, &during] {
        assert_eq!(report["requests"], report["ok"], "{report}");
    }
    assert_eq!(pod.status()["rules"]["count"], RULES + 1);
    assert_eq!(pod.stop().await, 0);
}
