//! R22: pods that start and stop.

use std::time::Duration;

use crate::row::Row;
use crate::stage::{Plan, scripts, status, time_until, turn};
use crate::stand::PATIENT;
use crate::support::envoy::{Envoy, EnvoyOptions};
use crate::support::now;
use crate::support::paced::Paced;
use crate::support::ports::free_port;
use crate::support::ratelease::Ratelease;
use crate::support::redis::Cluster;

#[tokio::test(flavor = "multi_thread")]
async fn r22_pods_come_and_go() {
    let _turn = turn().await;
    let promise = "0 errors; at most L; nearly all of L, whatever the pods that went had held";
    let mut row = Row::new("R22", "pods 4 → 12 → 4 (→ 40 → at full scale) in seconds", promise);
    let cluster = Cluster::shared();
    // Long waits: a request that was answered without its lease would not count.
    let timeout = Duration::from_secs(8);
    let env = PATIENT.to_vec();
    let plan = Plan {
        pods: 4,
        env,
        envoy_timeout: Some(timeout),
        exact: true,
        ..Plan::new("r22", cluster)
    };
    let stage = Plan { tight: stage_limit(), ..plan }.start().await;
    let more = stage.scale.pick(8, 36);
    let ports: Vec<_> = (0..more).map(|_| free_port()).collect();
    let mut addrs: Vec<_> = stage.pods.iter().map(|pod| pod.grpc).collect();
    addrs.extend(ports.iter().map(|port| std::net::SocketAddr::from(([127, 0, 0, 1], *port))));
    let options = EnvoyOptions { timeout, healthy: 4, ..EnvoyOptions::new("r22", &addrs) };
    let envoy = Envoy::start(options).await;
    let paths = [crate::stage::TIGHT.to_owned(), "/warm-{n}".to_owned()];
    let load = Paced::new(&paths, stage.scale.rate).start(envoy.ingress);

    let (start, asked) = (now(), cluster.nodes.iter().map(scripts).sum::<u64>());
    let mut extra = Vec::new();
    for port in &ports {
        let port = port.to_string();
        let mut env = PATIENT.to_vec();
        env.extend([("GRPC_PORT", port.as_str()), ("CACHE_KEY_PREFIX", "r22-")]);
        extra.push(Ratelease::spawn(stage.rules.path(), &cluster.places(), &env));
    }
    for pod in &extra {
        pod.ready().await;
    }
    envoy.healthy(4 + more).await;
    // Each holds tokens when it goes.
    let holds = async |pod: &Ratelease| {
        let page = status(pod).await.unwrap_or_default();
        page["leases"]["grants"].as_u64().is_some_and(|grants| grants >= LEASES)
    };
    for pod in &extra {
        let lent = time_until(Duration::from_secs(20), async || holds(pod).await).await;
        row.holds(lent.is_some(), "a pod got no tokens: the row shows nothing");
    }
    // A graceful end, one soon after the other, as Kubernetes scales down.
    extra.iter().for_each(|pod| pod.process.signal("TERM"));
    for pod in &extra {
        row.holds(pod.process.exit(Duration::from_secs(15)).await == 0, "a pod ended badly");
    }
    let samples = load.stop_after(Duration::from_secs(3)).await;
    let asks = cluster.nodes.iter().map(scripts).sum::<u64>() - asked;

    let rate = asks as f64 / start.elapsed().as_secs_f64();
    row.note(&format!("{rate:.0} scripts a second for {} requests", samples.0.len()));
    let verdicts = envoy.verdicts().await;
    row.errors(verdicts.error + samples.tally().faults());
    let admitted = samples.of(|path| path == 0).passed();
    row.admitted(admitted, stage.tight);
    let offered = samples.of(|path| path == 0).0.len() as u64;
    row.holds(admitted >= stage.tight.min(offered) * 95 / 100, "tokens are stranded");
    stage.stop(&mut row).await;
    row.end();
}

/// Number of leases of a pod before it goes: some more than one, which may have been spent at once.
const LEASES: u64 = 20;

/// The limit of the key that is used up: high enough that all pods have started before.
fn stage_limit() -> u64 {
    crate::stage::Scale::of_env().pick(600, 12_000)
}
