//! Pods with the memory limit of the chart: what they cannot load is refused, and what the control
//! plane publishes is loaded.

use envoy_types::pb::google::protobuf::Any;
use ratelease_xds::RulesResource;
use serde_json::json;
use tempfile::TempDir;

use super::{has_limit, shop, spawn_with};
use crate::support::control::Control;
use crate::support::files::dir_of;
use crate::support::memory_group::MemoryGroup;
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::raw_grpc::{Connection, request_of_entry};
use crate::support::xds_server::{
    CONFIG_TYPE, RULES_TYPE, XdsServer, any, config, nonce, response,
};

/// The memory limit of the chart and of injected sidecars.
const LIMIT: usize = 64 << 20;

/// What a pod of an unoptimized build has more than one of the image.
const DEBUG_BYTES: usize = if cfg!(debug_assertions) { 18 << 20 } else { 0 };

/// What a pod is told so that it takes rule files.
const OWN_RULES: (&str, &str) = ("CONFIG_GRPC_XDS_RATELEASE", "true");

/// Starts a pod in a group of its own with the chart's limit.
async fn pod(server: &str, env: &[(&str, &str)]) -> (MemoryGroup, Ratelease, Connection, TempDir) {
    let group = MemoryGroup::make(LIMIT + DEBUG_BYTES).expect("root, and control groups");
    let none = dir_of(&[]);
    let binary = std::env::var_os("RATELEASE_BIN").unwrap_or_else(|| BINARY.into());
    let mut command = group.command(binary);
    command.args(["serve", "--rules"]).arg(none.path());
    let pod = spawn_with(command, server, env);
    pod.ready().await;
    let connection = Connection::open(pod.grpc).await;
    (group, pod, connection, none)
}

fn rules(domain: &str, list: &str) -> Any {
    let yaml = format!("domain: {domain}\ndescriptors:\n{list}").into();
    any(RULES_TYPE, &RulesResource { name: domain.to_owned(), yaml })
}

/// A limit that no test reaches, of `user` in the domain `shop`.
fn shop_rules() -> Any {
    rules("shop", "- {key: user, rate_limit: {unit: year, requests_per_unit: 1000000}}\n")
}

/// A field of protocol buffers.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    [&bytes, content].concat()
}

/// A `RateLimitConfig` with one descriptor, which has these fields.
fn crafted(descriptor: &[u8]) -> Any {
    let descriptor = [&field(1, b"k"), descriptor].concat();
    let value = [field(1, b"a"), field(2, b"a"), field(3, &descriptor)].concat();
    Any { type_url: CONFIG_TYPE.to_owned(), value }
}

#[tokio::test]
async fn rules_that_need_more_memory_than_a_pod_has_are_refused_and_the_last_ones_stay() {
    let server = XdsServer::start().await;
    server.set_of(RULES_TYPE, "1", vec![shop_rules(), rules("b", "- key: k\n")]);
    let (group, pod, connection, _dir) = pod(&server.addr.to_string(), &[OWN_RULES]).await;
    server.accepted("1").await;
    let flat: String = (0..200_000).map(|at| format!("- key: k{at:05}\n")).collect();
    let json: String = (0..60_000).map(|at| format!("{{key: k{at:05}}},")).collect();
    let wild: String = (0..60_000).map(|at| format!("- key: 'k*{at:05}*'\n")).collect();
    for (version, list) in
        [("2", flat), ("3", format!("  [{json}]\n")), ("4", wild), ("5", "x".repeat(14 << 20))]
    {
        server.set_of(RULES_TYPE, version, vec![shop_rules(), rules("b", &list)]);
        // An unoptimized build takes a while for them.
        let before = version.parse::<u64>().unwrap() - 1;
        // What is refused for now is tried again meanwhile.
        let refused = async || pod.status()["rules"]["loads_failed"].as_u64() >= Some(before);
        pod.process.until("refusing them", super::SOON * 18, refused).await;
        let (_, refusal) = server.answer_to(&nonce(version)).await;
        let (_, message) = refusal.expect("a refusal");
        println!("{version}: {message}; {} MiB", group.peak() >> 20);
        // More patterns than a level may have, and a file that is no rules, have faults of their
        // own.
        assert!(message.contains("MiB of memory") || version > "3", "{message}");
        assert!(has_limit(&connection, "shop", "user").await);
    }
    server.set_of(RULES_TYPE, "6", vec![shop_rules(), rules("b", "- key: k2\n")]);
    server.accepted("6").await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn rules_that_were_refused_for_lack_of_memory_are_in_force_once_there_is_enough() {
    let list: String = (0..60_000).map(|at| format!("- key: k{at:05}\n")).collect();
    let server = XdsServer::start().await;
    server.set_of(RULES_TYPE, "1", vec![shop_rules(), rules("b", "- key: k\n")]);
    let (pushed_to, pushed, connection, _none) = pod(&server.addr.to_string(), &[OWN_RULES]).await;
    server.accepted("1").await;
    let reading = MemoryGroup::make(LIMIT + DEBUG_BYTES).expect("root, and control groups");
    let dir = dir_of(&[("b.yaml", "domain: b\ndescriptors:\n- key: k\n")]);
    let binary = std::env::var_os("RATELEASE_BIN").unwrap_or_else(|| BINARY.into());
    let mut command = reading.command(binary);
    command.args(["serve", "--rules"]).arg(dir.path());
    let reader = Ratelease::run(command, &[], &[]);
    reader.ready().await;
    // So little that the reserve alone is more than what is left.
    for group in [&pushed_to, &reading] {
        group.limit(LIMIT / 4 + DEBUG_BYTES).unwrap();
    }
    server.set_of(RULES_TYPE, "2", vec![shop_rules(), rules("b", &list)]);
    std::fs::write(dir.path().join("b.yaml"), format!("domain: b\ndescriptors:\n{list}")).unwrap();
    for pod in [&pushed, &reader] {
        let refused = async || pod.status()["rules"]["loads_failed"].as_u64() > Some(0);
        pod.process.until("refusing them", super::SOON * 6, refused).await;
        let fault = pod.status()["rules"].to_string();
        assert!(fault.contains("MiB of memory"), "{fault}");
    }
    let (_, refusal) = server.answer_to(&nonce("2")).await;
    assert!(refusal.is_some());
    // Nothing is sent or written from here on.
    for group in [&pushed_to, &reading] {
        group.limit(4 * LIMIT).unwrap();
    }
    for pod in [&pushed, &reader] {
        let runs = async || pod.status()["rules"]["loads_ok"].as_u64() > Some(1);
        pod.process.until("running them", super::SOON * 6, runs).await;
        assert_eq!(pod.status()["rules"]["last_fault"], serde_json::Value::Null);
    }
    // The refusal came first, to the same response.
    let accepted = async || server.answer_to(&nonce("2")).await.1.is_none();
    pushed.process.until("acknowledging them", super::SOON * 6, accepted).await;
    assert!(has_limit(&connection, "shop", "user").await);
    for pod in [pushed, reader] {
        assert_eq!(pod.stop().await, 0);
    }
}

#[tokio::test]
async fn messages_that_would_fill_the_memory_of_a_pod_are_refused_before_they_are_decoded() {
    let server = XdsServer::start().await;
    server.set("1", vec![shop()]);
    let (group, pod, connection, _dir) = pod(&server.addr.to_string(), &[]).await;
    server.accepted("1").await;
    let replaces = |count| crafted(&field(3, &field(5, &[]).repeat(count)));
    let list = |count| field(6, &field(1, &[]).repeat(count));
    let entry = |count| [field(1, b"l"), field(2, &list(count))].concat();
    let metadata = |count| crafted(&field(8, &field(1, &entry(count))));
    let nested = |count: usize| crafted(&field(4, &[]).repeat(count));
    let attacks = [replaces(20_000), metadata(2_000_000), nested(600_000), replaces(7_000_000)];
    for (version, attack) in ["2", "3", "4", "5"].into_iter().zip(attacks) {
        let bytes = attack.value.len();
        server.send(&response(CONFIG_TYPE, version, vec![attack]));
        let (_, refusal) = server.answer_to(&nonce(version)).await;
        let (_, message) = refusal.expect("a refusal");
        println!("{bytes} bytes: {message}; {} MiB", group.peak() >> 20);
        // A few names fit; that they are empty is a fault.
        let is_small = bytes < 1 << 20;
        assert!(message.contains("bytes of memory") || is_small, "{message}");
        assert!(has_limit(&connection, "shop", "user").await);
    }
    server.set("9", vec![config("shop", "shop", &[("path", 1_000_000)])]);
    server.accepted("9").await;
    assert_eq!(pod.stop().await, 0);
}

/// Rules of 4 domains, with so many each.
fn files(rules: usize, limit: u32) -> serde_json::Value {
    let file = |domain: usize| {
        let limit = format!("{{unit: hour, requests_per_unit: {limit}}}");
        let rule = |at| format!("- key: user\n  value: user-{at:07}\n  rate_limit: {limit}\n");
        let list: String = (0..rules).map(rule).collect();
        let text = format!("domain: d{domain}\ndescriptors:\n{list}");
        json!({"name": format!("d{domain}.yaml"), "yaml": text})
    };
    json!({"files": (0..4).map(file).collect::<Vec<_>>()})
}

#[tokio::test]
async fn the_largest_set_that_can_be_published_is_loaded_and_replaced_in_the_memory_of_a_pod() {
    let control = Control::start().await;
    let (mut good, mut bad) = (0, 20_000);
    while bad - good > 100 {
        let next = usize::midpoint(good, bad);
        match control.publish(&files(next, 5)).await {
            (200, _) => good = next,
            (422 | 409, reason) if reason.contains("MiB of memory") => bad = next,
            (status, reason) => panic!("{next} rules: {status} {reason}"),
        }
    }
    println!("{good} rules in each of 4 domains are published, {bad} are not");
    assert!(good > 2000, "{good}");
    let (group, pod, connection, _dir) = pod(&control.pods.to_string(), &[OWN_RULES]).await;
    for limit in [6, 7] {
        let (status, answer) = control.publish(&files(good, limit)).await;
        assert_eq!(status, 200, "{answer}");
        let runs = async || {
            let rules = pod.status()["rules"].clone();
            assert_eq!(rules["loads_failed"], 0, "{rules}");
            rules["loads_ok"].as_u64() >= Some(u64::from(limit) - 4)
        };
        pod.process.until("running them", super::SOON * 6, runs).await;
    }
    println!("{} MiB", group.peak() >> 20);
    let reply = connection.call(&request_of_entry("d3", "user", "user-0000000")).await;
    assert!(reply.message.len() > 6, "{reply:?}");
    assert_eq!(pod.stop().await, 0);
}
