//! R8: a master that is cut off from the rest of its cluster, but not from the pods.
//!
//! Until the master notices, which takes its node timeout, it continues to lease, and none of that
//! reaches the replica that takes its place: the count returns to its value at the cut. No client
//! can detect this. The bound holds because the isolated master also leases at most L.

use std::time::Duration;

use crate::masters::{FAILOVER_MAX, RESUME_MAX, is_writable, judge_failover};
use crate::row::Row;
use crate::stage::{Plan, count_at, scripts, time_until, turn};
use crate::support::paced::Paced;
use crate::support::redis_cluster::{Cluster, ClusterOptions};

/// Requested from the cut on: the only key whose count has two masters.
const SPLIT: &str = "/split";

#[tokio::test(flavor = "multi_thread")]
async fn r8_a_master_is_alone_with_the_pods() {
    let _turn = turn().await;
    let promise = "0 errors; the lone master lends until its node timeout is over; leases resume \
                   within 1 s of the slot being writable at its heir; at most 2 L";
    let fault = "a master cut off from all other nodes, and not from the pods";
    let mut row = Row::new("R8", fault, promise);
    let cluster = Cluster::start_with(&ClusterOptions::new(3, 1).that_can_part());
    let limit = crate::stage::Scale::of_env().pick(100, 1_000);
    let more = format!(
        "- {{key: path, value: {SPLIT}, \
            rate_limit: {{unit: day, requests_per_unit: {limit}, failure_mode: deny}}}}\n"
    );
    let stage = Plan { more, ..Plan::new("r8-lone", &cluster) }.start().await;
    let known = stage.debited(&cluster);
    // Denied while its lease is late.
    let passes = async || stage.envoy.get(SPLIT, &[]).await.status == 200;
    time_until(FAILOVER_MAX, passes).await.expect("a first lease");
    let keys = stage.debited(&cluster).into_keys();
    let key = { keys }.find(|key| !known.contains_key(key)).expect("a new key");
    let load = stage.load(&cluster).await;
    let alone = cluster.slot_owner(0, &key);
    let (lone, heir) = (&cluster.nodes[alone], &cluster.nodes[alone + 3]);

    cluster.part(alone);
    let split = Paced::new(&[SPLIT.to_owned()], stage.scale.rate / 4).start(stage.envoy.ingress);
    // The master does not return its count once it has stopped serving: this keeps the last one.
    let mut forgotten = 0;
    let heir_writes = async || {
        forgotten = count_at(lone, &key).unwrap_or(forgotten);
        is_writable(heir, &key)
    };
    let writable = time_until(FAILOVER_MAX, heir_writes).await;
    let at_first = scripts(heir);
    let resumed = time_until(2 * FAILOVER_MAX, async || scripts(heir) > at_first).await;
    let gave_up = time_until(FAILOVER_MAX, async || !is_writable(lone, &key)).await;
    let split = split.stop_after(Duration::from_secs(1)).await;
    cluster.join();
    let follows = async || lone.info("replication").get("role").is_some_and(|it| it == "slave");
    let demoted = time_until(FAILOVER_MAX, follows).await;
    let samples = load.stop().await;

    row.recovered(resumed.unwrap_or(2 * FAILOVER_MAX), stage.scale.pick(15, 1) * RESUME_MAX);
    judge_failover(&mut row, writable);
    row.holds(gave_up.is_some(), "the lone master goes on lending");
    row.holds(demoted.is_some(), "the lone master does not follow its heir after it");
    stage.judge(&mut row, &samples, 2 * stage.tight).await;
    row.note(&format!("{forgotten} lent by the lone master of the key that counts here"));
    row.holds(forgotten > 1, "the lone master lent nothing: the row shows nothing");
    row.holds(split.tally().faults() == 0, "errors on the key of two masters");
    row.admitted(split.passed() + 1, 2 * limit);
    stage.stop(&mut row).await;
    row.end();
}
