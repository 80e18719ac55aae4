//! The cost of a decision: round trips to Redis, and time.

use std::collections::BTreeMap;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::task::JoinSet;

use crate::stand::{Asker, MACHINE, PATIENT, Rules, before, clear_of_midnight, file, rule};
use crate::support::envoy::{Envoy, EnvoyOptions, Verdicts};
use crate::support::load::Load;
use crate::support::now;
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;

/// Envoy's default for its filter.
const ENVOY_TIMEOUT: Duration = Duration::from_millis(20);

/// Commands that a lease causes: the script, and its inner calls. Replicas repeat each SET, and
/// count it.
const OURS: [&str; 6] = ["eval", "evalsha", "script|load", "time", "get", "set"];

#[tokio::test]
async fn a_thousand_decisions_on_a_hot_key_cost_redis_fewer_than_five_commands() {
    const DECISIONS: u64 = 50_000;
    let _shared = MACHINE.read().await;
    clear_of_midnight().await;
    // A cluster of its own, so that every command there belongs to this test.
    let cluster = Cluster::start(3, 1);
    let rules = Rules::new(&file("trips", &[rule("hot", None, 1_000_000)]));
    let pod = Ratelease::start(rules.path(), &cluster.places(), &PATIENT).await;
    let asker = Asker::connect(&pod).await;
    let (before, start) = (calls(&cluster), now());
    assert_eq!(decide(&asker, DECISIONS).await, DECISIONS);
    let took = start.elapsed();
    let made = made(&before, &calls(&cluster));

    let of_a_thousand = |commands: u64| commands as f64 * 1000.0 / DECISIONS as f64;
    let ours = of_a_thousand(OURS.iter().filter_map(|&name| made.get(name)).sum());
    let all = of_a_thousand(made.values().sum());
    println!("{DECISIONS} decisions in {took:?}; commands on six nodes: {made:?}");
    println!("for 1000 decisions: {ours:.2} by leases, {all:.2} with what the nodes do themselves");
    assert!(ours > 0.0, "whose commands were counted?");
    assert!(ours < 5.0, "{ours:.2} commands for 1000 decisions: {made:?}");
}

/// Number of rounds that must have no error, and of rounds in all: other work on the machine may
/// stall a process for 20 ms now and then, and a fault of ours would show in every round.
const CLEAN_MIN: usize = 3;
const ROUNDS_MAX: usize = 20;

#[tokio::test]
async fn on_warm_keys_no_answer_misses_envoys_default_timeout() {
    const REQUESTS: u64 = 2_000;
    let _alone = MACHINE.write().await;
    clear_of_midnight().await;
    let rules = Rules::new(&file("timeout", &[rule("path", Some("/warm"), 1_000_000)]));
    let pod = Ratelease::start(rules.path(), &Cluster::shared().places(), &[]).await;
    let envoy = Envoy::start(EnvoyOptions { timeout: ENVOY_TIMEOUT, ..before("timeout", &[&pod]) });
    let envoy = envoy.await;
    envoy.load(Load::new("/warm", 2, 500)).finish().await;
    let mut errors: Vec<u64> = Vec::new();
    let clean = |errors: &[u64]| errors.iter().filter(|errors| **errors == 0).count();
    while clean(&errors) < CLEAN_MIN && errors.len() < ROUNDS_MAX {
        let (warm, start) = (envoy.verdicts().await, now());
        let tally = envoy.load(Load::new("/warm", 2, REQUESTS)).finish().await;
        let took = start.elapsed();
        let Verdicts { ok, error, over_limit, .. } = envoy.verdicts().await;
        assert_eq!((tally.passed(), over_limit), (ok - warm.ok, 0), "{tally:?}");
        errors.push(error - warm.error);
        println!("warm, {ENVOY_TIMEOUT:?} at most: {tally:?} in {took:?}");
    }
    // Where a health check is late, Envoy has no pod to ask.
    let late = envoy.counter("cluster.ratelease.upstream_rq_timeout").await
        + envoy.counter("cluster.ratelease.upstream_cx_none_healthy").await;
    println!("errors by round: {errors:?}, of them late {late}");
    let clean = clean(&errors);
    assert!(clean >= CLEAN_MIN, "{clean} rounds without an error: {errors:?}");
    let sum: u64 = errors.iter().sum();
    assert!(sum <= late, "{sum} errors, of which {late} are late answers");
}

/// Number of decisions on one key that pass, of `decisions`.
async fn decide(asker: &Asker, decisions: u64) -> u64 {
    const AT_ONCE: u64 = 50;
    let mut asking = JoinSet::new();
    for _ in 0..AT_ONCE {
        let asker = asker.clone();
        asking.spawn(async move {
            let mut passed = 0;
            for _ in 0..decisions / AT_ONCE {
                let answer = asker.ask("trips", &[("hot", "key")], 1).await;
                passed += u64::from(answer.overall_code == i32::from(Code::Ok));
            }
            passed
        });
    }
    asking.join_all().await.into_iter().sum()
}

/// Calls of each command, including those on the replicas.
fn calls(cluster: &Cluster) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (name, calls) in cluster.nodes.iter().flat_map(|node| node.command_calls()) {
        *all.entry(name).or_default() += calls;
    }
    all
}

/// The calls between the two counts, without those of the counting.
fn made(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let made = after
        .iter()
        .map(|(name, calls)| (name.clone(), calls - before.get(name).copied().unwrap_or(0)));
    made.filter(|(name, calls)| *calls > 0 && name != "info").collect()
}
