//! Slots that move, rolling restarts, and error replies.

use std::time::{Duration, Instant};

use crate::row::Row;
use crate::stage::{Plan, TIGHT, count, paths, scripts, time_until, turn};
use crate::stand::PATIENT;
use crate::support::now;
use crate::support::redis_cluster::{Cluster, ClusterOptions};
use crate::support::redis_server::Server;

/// From the end of a fault until leases are as before, see `slow`.
const RECOVERED_MAX: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn r9_the_hot_slot_moves_to_a_node_without_the_script() {
    let _turn = turn().await;
    let promise = "0 errors; the sum of debits is what passed, to the token; ASK was followed";
    let mut row = Row::new("R9", "migration of the hot slot, script absent on the target", promise);
    let cluster = Cluster::start(3, 0);
    // Long waits, so that every token that passed was leased: a request that does not wait for its
    // lease because the machine is busy would be answered without one. Small leases, so that many
    // are asked for.
    let stage = Plan {
        options: ", lease: {max: 5}",
        env: PATIENT.to_vec(),
        envoy_timeout: Some(Duration::from_secs(8)),
        exact: true,
        ..Plan::new("r9", &cluster)
    };
    let stage = stage.start().await;
    let hot = stage.learn("/hot", &cluster).await;
    let tight = stage.learn(TIGHT, &cluster).await;
    let mut hot_paths = paths();
    hot_paths.extend((0..4).map(|_| "/hot".to_owned()));
    let load = stage.load_of(&hot_paths, &cluster).await;
    let (slot, from) = (cluster.slot(&hot), cluster.slot_owner(0, &hot));
    let to = (from + 1) % 3;

    cluster.begin_move(slot, from, to);
    cluster.nodes[to].command::<()>(&["SCRIPT", "FLUSH"]);
    let (asking, began) = (cluster.nodes[to].calls("asking"), now());
    cluster.move_keys(slot, from, to);
    let redirected = async || cluster.nodes[to].calls("asking") >= asking + 5;
    time_until(Duration::from_secs(20), redirected).await;
    let asked = cluster.nodes[to].calls("asking") - asking;
    cluster.finish_move(slot, from, to);
    let others = (0..16_384).filter(|at| *at != slot && first_owner(*at) == from);
    let more = stage.scale.pick(50, 1000);
    others.take(more).for_each(|slot| cluster.move_slot(slot, from, to));
    let moved = now();
    let at_first = scripts(&cluster.nodes[to]);
    let again = async || scripts(&cluster.nodes[to]) > at_first + 5;
    let resumed = time_until(3 * RECOVERED_MAX, again).await;
    let samples = load.stop_after(Duration::from_secs(1)).await;

    row.recovered(resumed.unwrap_or(3 * RECOVERED_MAX), Duration::from_secs(1));
    let took = moved.duration_since(began);
    row.note(&format!("{asked} asks by ASK; {more} more slots moved, {took:.1?} in all"));
    row.holds(asked > 0, "ASK was not followed");
    stage.judge(&mut row, &samples, stage.tight).await;
    stage.stop(&mut row).await;
    let (spent, passed) = (stage.spent(&cluster, &tight), samples.passed() + 2);
    row.note(&format!("{spent} debited, {passed} passed"));
    row.holds(spent == passed, "tokens were lost, or spent twice");
    row.end();
}

/// Position of the master that initially owns a slot in a cluster of three.
fn first_owner(slot: u16) -> usize {
    (0..3).rev().find(|at| usize::from(slot) >= 16_384 * at / 3).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn r10_every_node_is_restarted_in_turn() {
    let _turn = turn().await;
    let promise = "0 errors; leases resume unaided within 1 s; at most 2 L";
    let mut row = Row::new("R10", "rolling restart of all 6 nodes", promise);
    let mut cluster = Cluster::start(3, 1);
    let stage = Plan::new("r10-roll", &cluster).start().await;
    let load = stage.load(&cluster).await;
    for (leaves, takes_over) in [(0, 3), (1, 4), (2, 5), (3, 0), (4, 1), (5, 2)] {
        hand_over(&cluster.nodes[takes_over]).await;
        cluster.nodes[leaves].start_again();
        let in_step = async || {
            let replication = cluster.nodes[leaves].info("replication");
            replication.get("master_link_status").is_some_and(|link| link == "up")
        };
        let synced = time_until(Duration::from_secs(10), in_step).await;
        row.holds(synced.is_some(), "a restarted node did not come into step");
    }
    let all = || cluster.nodes.iter().map(scripts).sum::<u64>();
    let at_first = all();
    let resumed = time_until(3 * RECOVERED_MAX, async || all() > at_first + 5).await;
    let samples = load.stop_after(Duration::from_secs(1)).await;
    row.recovered(resumed.unwrap_or(3 * RECOVERED_MAX), Duration::from_secs(1));
    stage.judge(&mut row, &samples, 2 * stage.tight).await;
    stage.stop(&mut row).await;
    row.end();
}

/// Promotes a replica to master by a manual failover.
async fn hand_over(replica: &Server) {
    let role = |role: &str| replica.info("replication").get("role").is_some_and(|it| it == role);
    let mut asked = None::<Instant>;
    let done = async || {
        // Refused until all nodes know it as a replica in sync; Redis gives up after 5 s.
        if role("slave") && asked.is_none_or(|at| at.elapsed() > Duration::from_secs(5)) {
            let taken = replica.try_command::<()>(&["CLUSTER", "FAILOVER"]).is_ok();
            asked = taken.then(now);
        }
        role("master")
    };
    let took = time_until(Duration::from_secs(20), done).await;
    took.expect("a replica that takes over");
}

#[tokio::test(flavor = "multi_thread")]
async fn r10_the_counts_are_flushed() {
    let _turn = turn().await;
    let promise = "0 errors; at most 2 L in the window";
    let mut row = Row::new("R10", "FLUSHALL and SCRIPT FLUSH on every master", promise);
    // A cluster of its own: other tests keep their counts.
    let cluster = &Cluster::start(3, 0);
    let stage = Plan::new("r10-flush", cluster).start().await;
    let load = stage.load(cluster).await;
    let scripts_at = || cluster.nodes.iter().map(scripts).sum::<u64>();
    for words in [&["FLUSHALL"][..], &["SCRIPT", "FLUSH"]] {
        cluster.nodes.iter().take(3).for_each(|node| node.command::<()>(words));
    }
    let at_first = scripts_at();
    let resumed = time_until(3 * RECOVERED_MAX, async || scripts_at() > at_first + 5).await;
    let samples = load.stop_after(Duration::from_secs(3)).await;
    row.recovered(resumed.unwrap_or(3 * RECOVERED_MAX), Duration::from_secs(1));
    stage.judge(&mut row, &samples, 2 * stage.tight).await;
    stage.stop(&mut row).await;
    row.end();
}

/// An error that every master returns for a while: the commands that start and stop it, and its
/// count.
type Refusal = (&'static str, &'static [&'static str], &'static [&'static str], &'static str);

const REFUSALS: [Refusal; 2] = [
    (
        "maxmemory reached (OOM)",
        &["CONFIG", "SET", "maxmemory", "1"],
        &["CONFIG", "SET", "maxmemory", "0"],
        "redis_oom",
    ),
    (
        "the ACL user removed",
        &["ACL", "DELUSER", "rl"],
        &["ACL", "SETUSER", "rl", "on", ">secret", "~*", "+@all"],
        "redis_denied",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn r10_redis_refuses() {
    let _turn = turn().await;
    let promise = "0 errors; counted by its kind; leases resume unaided within 3 s; at most 2 L";
    let cluster = Cluster::start_with(&ClusterOptions::new(3, 0));
    for (what, begin, end, counted) in REFUSALS {
        let mut row = Row::new("R10", what, promise);
        cluster.nodes.iter().for_each(|node| node.command::<()>(REFUSALS[1].2));
        let domain = format!("r10-{counted}");
        let env = vec![("REDIS_AUTH", "rl:secret")];
        let stage = Plan { env, ..Plan::new(&domain, &cluster) }.start().await;
        let load = stage.load(&cluster).await;
        let all = || cluster.nodes.iter().map(scripts).sum::<u64>();
        cluster.nodes.iter().for_each(|node| node.command::<()>(begin));
        let is_counted = async || count(&stage.pods[0], counted).await > 0;
        let refused = time_until(Duration::from_secs(10), is_counted).await;
        row.holds(refused.is_some(), &format!("{counted} is 0"));
        cluster.nodes.iter().for_each(|node| node.command::<()>(end));
        let at_first = all();
        let resumed = time_until(3 * RECOVERED_MAX, async || all() > at_first + 20).await;
        let samples = load.stop_after(Duration::from_millis(500)).await;
        row.recovered(resumed.unwrap_or(3 * RECOVERED_MAX), RECOVERED_MAX);
        stage.judge(&mut row, &samples, 2 * stage.tight).await;
        stage.stop(&mut row).await;
        row.end();
    }
}
