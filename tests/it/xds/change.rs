//! One rule of many changes: the whole set is compiled again, and no call fails meanwhile.
//!
//! With `RATELEASE_BIN` naming an optimized build and `--nocapture`, each test has 100 000 rules,
//! prints the processor time of a change and what calls took before changes and during them, and
//! holds both to their bounds.

use std::fmt::Write;
use std::time::Duration;

use envoy_types::pb::google::protobuf::Any;
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use serde_json::Value;

use super::large::{load, load_rules};
use super::stream::Rules;
use super::{SOON, has_limit, pod, spawn};
use crate::support::now;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::{Connection, request_of_entry};
use crate::support::xds_server::{CONFIG_TYPE, RULES_TYPE, XdsServer, any, config as small};

/// Limit for the acceptance of a set by a debug build on a busy machine.
const ACCEPTED_MAX: Duration = Duration::from_secs(60);

/// Changes whose processor time is measured.
const CHANGES: u32 = 6;

/// Bound on the processor time of a change of one rule of 100 000.
const CPU_MAX: Duration = Duration::from_secs(1);

/// Bound on the p99 of calls during changes, as a multiple of what it is without them.
const P99_FACTOR_MAX: f64 = 3.0;

/// Rules in domains of equal size, all of one type.
#[derive(Clone, Copy)]
struct Shape {
    domains: u64,
    rules: u64,
    type_url: &'static str,
}

// === impl Shape ===

impl Shape {
    /// The resources, of which one rule has another limit.
    fn set(self, odd: u64) -> Vec<Any> {
        let each = self.rules / self.domains;
        let resource = |domain: u64| {
            let name = format!("large-{domain}");
            let limits = (0..each).map(|rule| (rule, limit(domain * each + rule == odd)));
            match self.type_url {
                RULES_TYPE => any(RULES_TYPE, &rule_file(name, limits)),
                _ => any(CONFIG_TYPE, &config(name, limits)),
            }
        };
        let resources = (0..self.domains).map(resource);
        resources.chain([self.load_rules()]).collect()
    }

    /// The rules of [`load`].
    fn load_rules(self) -> Any {
        if self.type_url == CONFIG_TYPE {
            return load_rules();
        }
        let yaml = "domain: shop\ndescriptors:\n- key: user_id\n  rate_limit: {unit: year, \
                    requests_per_unit: 4000000000}\n";
        any(RULES_TYPE, &Rules { name: "shop".into(), yaml: yaml.into() })
    }

    /// Whether the rule has the other limit: the answer tells the limit.
    async fn is_odd(self, connection: &Connection, rule: u64) -> bool {
        let each = self.rules / self.domains;
        let domain = format!("large-{}", rule / each);
        let value = format!("customer-{:06}", rule % each);
        let reply = connection.call(&request_of_entry(&domain, "customer", &value)).await;
        assert!(reply.is_over_limit().is_some(), "{reply:?}");
        let varint = varint(limit(true).into());
        reply.message.windows(varint.len()).any(|bytes| bytes == varint)
    }
}

const fn limit(is_odd: bool) -> u32 {
    if is_odd { 2_345_678 } else { 1_000_000 }
}

/// A number as protocol buffers encode it.
fn varint(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(number, &mut bytes);
    bytes
}

fn config(name: String, limits: impl Iterator<Item = (u64, u32)>) -> RateLimitConfig {
    const YEAR: i32 = 6;
    let descriptors = limits.map(|(rule, requests_per_unit)| RateLimitDescriptor {
        key: "customer".into(),
        value: format!("customer-{rule:06}"),
        rate_limit: Some(RateLimitPolicy { unit: YEAR, requests_per_unit, ..Default::default() }),
        ..RateLimitDescriptor::default()
    });
    RateLimitConfig { domain: name.clone(), name, descriptors: descriptors.collect() }
}

/// A rule file as the control plane writes it.
fn rule_file(name: String, limits: impl Iterator<Item = (u64, u32)>) -> Rules {
    let mut yaml = format!("domain: {name}\ndescriptors:\n");
    for (rule, limit) in limits {
        write!(
            yaml,
            "  - key: customer\n    value: customer-{rule:06}\n    rate_limit:\n      unit: \
             year\n      requests_per_unit: {limit}\n"
        )
        .unwrap();
    }
    Rules { name, yaml }
}

/// The processor time of a process so far, of which the kernel counts hundredths of a second.
fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running process");
    // The name, in brackets, may have spaces.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number of ticks");
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// A pod that has accepted a shape.
struct Scene {
    server: XdsServer,
    pod: Ratelease,
    shape: Shape,
    version: u64,
    _dirs: [tempfile::TempDir; 2],
}

// === impl Scene ===

impl Scene {
    async fn start(shape: Shape) -> Self {
        let server = XdsServer::start().await;
        server.set_of(shape.type_url, "load", vec![shape.load_rules()]);
        let kept = tempfile::tempdir().unwrap();
        let snapshot = kept.path().join("snapshot");
        let own_rules = if shape.type_url == RULES_TYPE { "true" } else { "false" };
        let env = [
            ("CONFIG_GRPC_XDS_RATELEASE", own_rules),
            ("RULES_SNAPSHOT", snapshot.to_str().unwrap()),
        ];
        let (pod, dir) = spawn(&server.addr.to_string(), &env);
        pod.ready().await;
        // The set that made it ready is counted after it is in force.
        let accepted = async || pod.count("xds_accepted") == 1;
        pod.process.until("accepting the first set", SOON, accepted).await;
        let mut scene = Self { server, pod, shape, version: 0, _dirs: [kept, dir] };
        scene.change(u64::MAX).await;
        scene
    }

    /// Sends a set of which one rule has another limit, and waits until it is accepted. Returns
    /// how long that took.
    async fn change(&mut self, odd: u64) -> Duration {
        self.send(self.shape.set(odd)).await
    }

    async fn send(&mut self, set: Vec<Any>) -> Duration {
        self.version += 1;
        let before = self.pod.count("xds_accepted");
        let sent = now();
        self.server.set_of(self.shape.type_url, &self.version.to_string(), set);
        let accepted = async || self.pod.count("xds_accepted") > before;
        self.pod.process.until("accepting the set", ACCEPTED_MAX, accepted).await;
        sent.elapsed()
    }

    /// Prints what a change takes, and checks its bounds.
    async fn measure(&mut self) {
        // Made before, since a debug build of this test takes long for that.
        let sets = [self.shape.set(self.shape.rules / 2), self.shape.set(u64::MAX)];
        let mut other = Self::start(self.shape).await;
        tokio::time::sleep(Duration::from_secs(2)).await; // what the first set began has ended
        let before = cpu(self.pod.process.pid());
        let took = self.changes(&sets).await;
        let used = (cpu(self.pod.process.pid()) - before) / CHANGES;
        let target = self.pod.grpc.to_string();
        let calm = load(&target, 8).await;
        // The server of a change and its pod share the machine with the calls, whosever they are.
        let beside = load_during(&target, other.changes(&sets)).await;
        let during = load_during(&target, self.changes(&sets)).await;
        let Shape { domains, rules, type_url } = self.shape;
        println!(
            "{domains} x {} rules of {}: {used:.1?} of CPU, in force after {took:.1?}; RSS {} MiB",
            rules / domains,
            type_url.rsplit('.').next().unwrap_or_default(),
            self.pod.process.memory("VmRSS") >> 20
        );
        let of = |report: &Value, name: &str| report["latency_us"][name].as_f64().unwrap_or(0.0);
        for (name, report) in [("calm", &calm), ("another pod", &beside), ("this pod", &during)] {
            let [p50, p99, p999] = ["p50", "p99", "p99.9"].map(|name| of(report, name));
            println!("  {name}: p50 {p50:.0} us, p99 {p99:.0} us, p99.9 {p999:.0} us");
            assert_eq!(report["requests"], report["ok"], "{report}");
        }
        assert!(used <= CPU_MAX, "{used:?} of CPU for a change");
        // What a change at another pod does to the calls is the machine's, not this pod's.
        let without = f64::max(of(&calm, "p99"), of(&beside, "p99"));
        assert!(of(&during, "p99") <= P99_FACTOR_MAX * without, "calm {calm}, during {during}");
    }

    /// Sends these sets by turns, and returns after how long they are in force, on average.
    async fn changes(&mut self, sets: &[Vec<Any>]) -> Duration {
        let mut took = Duration::ZERO;
        for set in sets.iter().cycle().take(CHANGES as usize) {
            took += self.send(set.clone()).await;
            tokio::time::sleep(Duration::from_millis(500)).await; // the snapshot is written
        }
        took / CHANGES
    }
}

/// Loads a pod, and makes changes meanwhile.
async fn load_during(target: &str, changes: impl Future<Output = Duration>) -> Value {
    let after_warm_up = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        changes.await
    };
    tokio::join!(load(target, 8), after_warm_up).0
}

async fn check(domains: u64, type_url: &'static str) {
    let is_measured = std::env::var_os("RATELEASE_BIN").is_some();
    let rules = if is_measured { 100_000 } else { 5000 };
    let mut scene = Scene::start(Shape { domains, rules, type_url }).await;
    let connection = Connection::open(scene.pod.grpc).await;
    if is_measured {
        scene.measure().await;
        scene.change(u64::MAX).await;
    }
    let odd = rules - 1;
    assert!(!scene.shape.is_odd(&connection, odd).await);
    scene.change(odd).await;
    assert!(scene.shape.is_odd(&connection, odd).await, "the change is in force");
    assert!(!scene.shape.is_odd(&connection, 0).await);
    assert_eq!(scene.pod.status()["rules"]["count"], rules + 1);
    assert_eq!(scene.pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_one_large_domain_one_rule_changes() {
    check(1, CONFIG_TYPE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_one_large_rule_file_one_rule_changes() {
    check(1, RULES_TYPE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_domains_one_rule_of_one_changes() {
    check(100, CONFIG_TYPE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_rule_files_one_rule_of_one_changes() {
    check(100, RULES_TYPE).await;
}

#[tokio::test]
async fn each_set_that_follows_another_one_is_in_force_as_a_whole() {
    let shop = |name: &str, limit| small(name, name, &[("user", limit)]);
    let server = XdsServer::start().await;
    server.set("1", vec![shop("a", 1000), shop("b", 1000), shop("c", 1000)]);
    let (pod, connection, _dir) = pod(&server, &[]).await;
    server.accepted("1").await;
    server.set("2", vec![shop("a", 1000), shop("b", 2000), shop("c", 1000)]);
    server.accepted("2").await;
    let all = || vec![shop("a", 1000), shop("b", 2000), shop("c", 1000), shop("d", 1000)];
    server.set("3", all());
    server.accepted("3").await;
    assert_eq!(pod.status()["rules"]["count"], 4, "one was added");
    let no_key = small("d", "d", &[("", 1)]);
    server.set("4", vec![shop("a", 1), shop("b", 2), shop("c", 3), no_key]);
    let (version, refusal) = server.answer_to("nonce-4").await;
    assert_eq!(version, "3");
    assert!(refusal.is_some_and(|(_, why)| why.starts_with("xds:d: descriptors[0].key: ")));
    assert_eq!(pod.status()["rules"]["count"], 4, "one was refused");
    let version = |pod: &Ratelease| pod.status()["rules"]["version"].clone();
    let before = version(&pod);
    server.set("5", all().into_iter().rev().collect());
    server.accepted("5").await;
    assert_eq!(version(&pod), before, "the order of a set has no meaning");
    server.set("6", vec![shop("a", 1000), shop("b", 2000), shop("d", 1000)]);
    server.accepted("6").await;
    let is_gone = async || pod.status()["rules"]["count"] == 3;
    pod.process.until("removing what was not sent again", SOON, is_gone).await;
    for domain in ["a", "b", "d"] {
        assert!(has_limit(&connection, domain, "user").await, "{domain}");
    }
    assert!(!has_limit(&connection, "c", "user").await);
    assert_eq!(pod.stop().await, 0);
}
