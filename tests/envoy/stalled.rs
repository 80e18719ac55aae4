//! A pod that stalls: Envoy resets each of its streams, thousands a second, which must not make it
//! count as an attacker.

use std::time::Duration;

use crate::stand::{MACHINE, Rules, before, file, rule};
use crate::support::envoy::{Envoy, EnvoyOptions};
use crate::support::load::Load;
use crate::support::ratelease::Ratelease;

/// A stall as long as the CPU quota of a busy node, or the migration of a machine, may cause.
const STALL: Duration = Duration::from_secs(2);

/// Connections to Envoy, each of which waits for its answer: this many streams time out at once.
const CLIENTS: usize = 64;

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_whose_streams_all_time_out_keeps_its_connections() {
    let _alone = MACHINE.write().await;
    for timeout in [Duration::from_millis(20), Duration::from_millis(1)] {
        let rules = Rules::new(&file("stalled", &[rule("path", Some("/any"), 1_000_000)]));
        let pod = Ratelease::start(rules.path(), &[], &[]).await;
        let options = EnvoyOptions { timeout, ..before("stalled", &[&pod]) };
        let envoy = Envoy::start(options).await;
        let load = envoy.load(Load::new("/any", CLIENTS, 20_000));
        pod.process.signal("STOP");
        tokio::time::sleep(STALL).await; // the stall
        pod.process.signal("CONT");
        let tally = load.finish().await;
        let resets = envoy.counter("cluster.ratelease.upstream_rq_tx_reset").await;
        let cut = envoy.counter("cluster.ratelease.upstream_cx_destroy_remote").await;
        println!("{timeout:?}: {tally:?}, {resets} streams were reset, {cut} connections cut");
        assert!(resets > 1_000, "{resets} resets");
        assert_eq!((cut, pod.count("connections_calmed")), (0, 0));
        pod.is_unharmed();
    }
}
