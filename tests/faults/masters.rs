//! Masters that are killed or frozen. While a shard is unavailable, each pod admits ⌈L/n⌉ locally
//! in addition to the tokens that Redis leases: L in all, hence 2 L.

use std::time::Duration;

use crate::row::Row;
use crate::stage::{Plan, Stage, scripts, time_until, turn};
use crate::support::now;
use crate::support::paced::Paced;
use crate::support::redis_cluster::{Cluster, ClusterOptions};
use crate::support::redis_server::Server;

/// Maximum time for a replica to take over, which takes some 4 s.
pub const FAILOVER_MAX: Duration = Duration::from_secs(12);

/// From the moment the slot is writable to its next lease, at full scale.
pub const RESUME_MAX: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn r1_a_master_killed_under_load() {
    let promise = "0 errors; leases resume within 1 s of the slot being writable; at most 2 L";
    let row = Row::new("R1", "kill -9 of a master", promise);
    kill_a_master(row, "r1", &ClusterOptions::new(3, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r2_a_master_killed_where_all_slots_go_down_with_it() {
    let promise = "0 errors through the CLUSTERDOWN of all shards; leases resume within 1 s";
    let row = Row::new("R2", "kill -9 of a master, full coverage required", promise);
    let options = ClusterOptions { full_coverage: true, ..ClusterOptions::new(3, 1) };
    kill_a_master(row, "r2", &options).await;
}

async fn kill_a_master(mut row: Row, domain: &str, options: &ClusterOptions) {
    let _turn = turn().await;
    let cluster = Cluster::start_with(options);
    let stage = Plan::new(domain, &cluster).start().await;
    let load = stage.load(&cluster).await;
    // A warm key of this shard, for which asks are sure to continue.
    let victim = shard_of_most(&stage, &cluster);
    let (dies, heir) = (&cluster.nodes[victim], &cluster.nodes[victim + options.masters]);
    let key = dies.keys().into_iter().find(|key| key.contains("rl:{")).expect("a warm key");

    dies.kill();
    let killed = now();
    let writable = time_until(FAILOVER_MAX, async || is_writable(heir, &key)).await;
    let at_first = scripts(heir);
    let resumed = time_until(FAILOVER_MAX, async || scripts(heir) > at_first).await;
    let samples = load.stop_after(Duration::from_secs(1)).await;

    row.recovered(resumed.unwrap_or(FAILOVER_MAX), stage.scale.pick(2, 1) * RESUME_MAX);
    judge_failover(&mut row, writable);
    stage.judge(&mut row, &samples, 2 * stage.tight).await;
    stage.judge_latency(&mut row, &samples, killed, now());
    stage.stop(&mut row).await;
    row.end();
}

/// A key that is requested only during the stall, so that almost nothing of it is leased, and the
/// maximum that one lease of it may hold.
const COLD: &str = "/cold";
const LEASE: u64 = 5;

/// Asks that were under way when the masters froze, and probes since then, are debited after the
/// thaw: one at a time for each pod until its breaker opens, and some probes. The requests are not,
/// since the failure mode has answered them by then.
const LATE_MAX: u64 = 2 * 6 * LEASE;

#[tokio::test(flavor = "multi_thread")]
async fn r4_all_masters_frozen_under_load() {
    let _turn = turn().await;
    let promise = "0 errors; p99 < 5 ms in the stall; nothing that Redis did not lend is charged \
                   after it; at most 2 L";
    let mut row = Row::new("R4", "SIGSTOP of all masters for 3 s", promise);
    // Long, so that the frozen masters do not consider each other dead.
    let options = ClusterOptions { node_timeout_ms: 15_000, ..ClusterOptions::new(3, 0) };
    let cluster = Cluster::start_with(&options);
    let more = format!(
        "- {{key: path, value: {COLD}, \
            rate_limit: {{unit: day, requests_per_unit: 100000, lease: {{max: {LEASE}}}}}}}\n"
    );
    let stage = Plan { more, ..Plan::new("r4", &cluster) }.start().await;
    let cold = stage.learn(COLD, &cluster).await;
    let load = stage.load(&cluster).await;

    let lent = stage.debited(&cluster)[&cold];
    let frozen = now();
    cluster.nodes.iter().for_each(Server::stop);
    let cold_load = Paced::new(&[COLD.to_owned()], stage.scale.rate / 4);
    let unlent = cold_load.start(stage.envoy.ingress).stop_after(Duration::from_secs(3)).await;
    let thawed = now();
    cluster.nodes.iter().for_each(Server::cont);
    let asked: u64 = cluster.nodes.iter().map(scripts).sum();
    let again = async || cluster.nodes.iter().map(scripts).sum::<u64>() > asked + 20;
    let resumed = time_until(FAILOVER_MAX, again).await;
    let samples = load.stop_after(Duration::from_secs(1)).await;

    row.recovered(resumed.unwrap_or(FAILOVER_MAX), Duration::from_secs(3));
    stage.judge(&mut row, &samples, 2 * stage.tight).await;
    stage.judge_latency(&mut row, &samples, frozen, thawed);
    stage.stop(&mut row).await;
    let late = stage.debited(&cluster)[&cold].saturating_sub(lent);
    let passed = unlent.passed();
    row.note(&format!("of {passed} passed without a lease, {late} tokens debited after the thaw"));
    row.holds(passed > 2 * LATE_MAX, "too few to tell a late charge");
    row.holds(unlent.tally().faults() == 0, "errors on a cold key");
    row.holds(late <= LATE_MAX, "charged late");
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn r3_a_master_and_its_replica_killed() {
    let _turn = turn().await;
    let promise = "0 errors; at most 10 connects a second and pod; leases resume within 3 s of the \
                   master's return; at most 2 L";
    let mut row = Row::new("R3", "kill -9 of a master and its replica", promise);
    let mut cluster = Cluster::start_with(&ClusterOptions::new(3, 1).proxied());
    let stage = Plan::new("r3", &cluster).start().await;
    let load = stage.load(&cluster).await;
    let pair = [0, 3];
    let keys = cluster.nodes[0].keys();
    let key = keys.into_iter().find(|key| key.contains("rl:{")).expect("a warm key");
    let connects = |cluster: &Cluster| pair.map(|at| cluster.proxies[at].accepted()).iter().sum();

    let before: u64 = connects(&cluster);
    let killed = now();
    pair.iter().for_each(|at| cluster.nodes[*at].kill());
    tokio::time::sleep(stage.scale.pick(Duration::from_secs(4), Duration::from_mins(1))).await;
    let gone = killed.elapsed();
    let storm: u64 = connects(&cluster) - before;
    let last = now();
    cluster.nodes[0].start_again();
    let writable = time_until(FAILOVER_MAX, async || is_writable(&cluster.nodes[0], &key)).await;
    let at_first = scripts(&cluster.nodes[0]);
    let again = async || scripts(&cluster.nodes[0]) > at_first;
    let resumed = time_until(FAILOVER_MAX, again).await;
    let samples = load.stop_after(Duration::from_secs(1)).await;

    let rate = storm as f64 / gone.as_secs_f64() / stage.pods.len() as f64;
    row.note(&format!("{rate:.1} connects a second and pod"));
    row.holds(rate <= 10.0, "a storm of connects");
    row.recovered(resumed.unwrap_or(FAILOVER_MAX), Duration::from_secs(3));
    judge_failover(&mut row, writable);
    stage.judge(&mut row, &samples, 2 * stage.tight).await;
    stage.judge_latency(&mut row, &samples, killed, last);
    stage.stop(&mut row).await;
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn r5_a_frozen_master_wakes_after_its_replica_took_over() {
    let _turn = turn().await;
    let promise = "0 errors; the stale master lends nothing; leases resume within 1 s of the slot \
                   being writable; at most 2 L";
    let mut row = Row::new("R5", "SIGSTOP of a master until a replica has taken over", promise);
    let cluster = Cluster::start(3, 1);
    let stage = Plan::new("r5", &cluster).start().await;
    let load = stage.load(&cluster).await;
    let victim = shard_of_most(&stage, &cluster);
    let (stale, heir) = (&cluster.nodes[victim], &cluster.nodes[victim + 3]);
    let key = stale.keys().into_iter().find(|key| key.contains("rl:{")).expect("a warm key");

    let frozen = now();
    stale.stop();
    let writable = time_until(FAILOVER_MAX, async || is_writable(heir, &key)).await;
    let at_first = scripts(heir);
    let resumed = time_until(FAILOVER_MAX, async || scripts(heir) > at_first).await;
    tokio::time::sleep(stage.scale.pick(Duration::ZERO, Duration::from_secs(5))).await;
    stale.cont();
    let follows = async || stale.info("replication").get("role").is_some_and(|it| it == "slave");
    let demoted = time_until(FAILOVER_MAX, follows).await;
    let samples = load.stop_after(Duration::from_secs(1)).await;

    row.recovered(resumed.unwrap_or(FAILOVER_MAX), stage.scale.pick(2, 1) * RESUME_MAX);
    judge_failover(&mut row, writable);
    row.holds(demoted.is_some(), "the stale master stays one");
    let role = heir.info("replication")["role"].clone();
    row.holds(role == "master", "the new master lost its slots again");
    stage.judge(&mut row, &samples, 2 * stage.tight).await;
    stage.judge_latency(&mut row, &samples, frozen, now());
    stage.stop(&mut row).await;
    row.end();
}

pub fn judge_failover(row: &mut Row, writable: Option<Duration>) {
    row.note(&format!("slot writable after {:.1} s", writable.unwrap_or_default().as_secs_f64()));
    row.holds(writable.is_some(), "the slot stays away: the row shows nothing");
}

/// Position of the master that owns the most keys of the stage.
pub fn shard_of_most(stage: &Stage, cluster: &Cluster) -> usize {
    let mut keys = [0; 3];
    for key in stage.debited(cluster).keys() {
        keys[cluster.slot_owner(0, key)] += 1;
    }
    (0..keys.len()).max_by_key(|at| keys[*at]).expect("a master")
}

/// Whether the node accepts a write to the slot of `key`; the key itself does not change.
pub fn is_writable(node: &Server, key: &str) -> bool {
    let tag = key.split(['{', '}']).nth(1).expect("a tag");
    node.try_command::<()>(&["SET", &format!("probe:{{{tag}}}"), "1", "PX", "1000"]).is_ok()
}
