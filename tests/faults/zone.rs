//! R24: the loss of a zone, with a master, the replica of another master, and a pod.

use std::time::Duration;

use crate::masters::{FAILOVER_MAX, RESUME_MAX, is_writable, judge_failover, shard_of_most};
use crate::row::Row;
use crate::stage::{Plan, judge_errors, scripts, time_until, turn};
use crate::support::now;
use crate::support::redis::Cluster;
use crate::support::redis_server::Server;

const MASTERS: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn r24_a_zone_with_two_nodes_and_a_pod_is_lost() {
    let _turn = turn().await;
    let promise = "0 errors once Envoy knows that the pod is dead; leases resume within 1 s of the \
                   slot being writable; at most 2 L";
    let fault = "kill -9 of a zone: a master, another master's replica and a pod of three";
    let mut row = Row::new("R24", fault, promise);
    let cluster = Cluster::start(MASTERS, 1);
    let mut stage = Plan { pods: 3, ..Plan::new("r24", &cluster) }.start().await;
    let load = stage.load(&cluster).await;
    let victim = shard_of_most(&stage, &cluster);
    // Replicas stand behind the masters, in the same order.
    let replica_of = |master: usize| MASTERS + master % MASTERS;
    let (dies, heir) = (&cluster.nodes[victim], &cluster.nodes[replica_of(victim)]);
    let neighbour = &cluster.nodes[replica_of(victim + 1)];
    for replica in [heir, neighbour] {
        let in_sync = time_until(FAILOVER_MAX, async || is_in_sync(replica)).await;
        assert!(in_sync.is_some(), "a replica is not in sync, and could not take over");
    }
    let key = dies.keys().into_iter().find(|key| key.contains("rl:{")).expect("a warm key");

    let dead = stage.pods.remove(0);
    let errors = stage.errors().await;
    let killed = now();
    dies.kill();
    neighbour.kill();
    dead.process.signal("KILL");
    dead.process.exit(Duration::from_secs(5)).await;
    let left = Some(stage.pods.len() as u64);
    let knows = async || stage.envoy.stat("cluster.ratelease.membership_healthy").await == left;
    let noticed = time_until(FAILOVER_MAX, knows).await;
    let (known, borne) = (now(), stage.errors().await - errors);
    let writable = time_until(FAILOVER_MAX, async || is_writable(heir, &key)).await;
    let at_first = scripts(heir);
    let resumed = time_until(FAILOVER_MAX, async || scripts(heir) > at_first).await;
    let samples = load.stop_after(Duration::from_secs(1)).await;
    let ended = now();

    row.recovered(resumed.unwrap_or(FAILOVER_MAX), stage.scale.pick(2, 1) * RESUME_MAX);
    judge_failover(&mut row, writable);
    // Envoy calls a dead pod until it notices, and had requests under way there.
    row.holds(noticed.is_some(), "Envoy goes on calling the dead pod");
    let took = known - killed;
    row.note(&format!("{borne} errors at Envoy in the {took:.1?} until it knew of the pod"));
    let later = stage.errors().await - borne;
    judge_errors(&mut row, &samples.between(known, ended), later);
    row.admitted(samples.of(|path| path == 0).passed(), 2 * stage.tight);
    stage.judge_latency(&mut row, &samples, known, ended);
    stage.stop(&mut row).await;
    row.end();
}

fn is_in_sync(replica: &Server) -> bool {
    replica.info("replication").get("master_link_status").is_some_and(|state| state == "up")
}
