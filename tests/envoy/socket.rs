//! gRPC on a Unix socket, behind Envoy's `pipe`.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::logs::logging;
use crate::stand::{MACHINE, PATIENT, Rules, before, clear_of_midnight, file, rule};
use crate::support::envoy::{Envoy, EnvoyOptions};
use crate::support::load::{Load, Tally};
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;

#[tokio::test]
async fn a_pod_serves_on_a_unix_socket_and_takes_the_place_of_a_dead_one_only() {
    const L: u64 = 100;
    let _shared = MACHINE.read().await;
    clear_of_midnight().await;
    let rules = Rules::new(&file("socket", &[rule("path", None, L)]));
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("ratelease.sock");
    let first = spawn(&rules, &socket);
    first.ready().await;
    let pipes = vec![socket.clone()];
    let options = EnvoyOptions { pipes, healthy: 1, ..before("socket", &[]) };
    let envoy = Envoy::start(logging(options, "0.02s")).await;
    let half_passes = Tally { statuses: [(200, L), (429, L)].into(), broken: 0 };
    assert_eq!(envoy.load(Load::new("/first", 4, 2 * L)).finish().await, half_passes);
    let (logged, denied) = ("log_entries_end_unknown", "log_entries_denied");
    let has_log = async || (first.count(logged), first.count(denied)) == (L, L);
    first.process.until("told of each end", Duration::from_secs(10), has_log).await;

    let second = spawn(&rules, &socket);
    assert_eq!(second.process.exit(Duration::from_secs(10)).await, 1);
    let expected = format!(
        "ratelease: cannot listen on {} for gRPC: another process listens on it; \
         set GRPC_UDS to a path that can be made\n",
        socket.display()
    );
    assert_eq!(second.process.log(), expected);
    assert_eq!(envoy.get("/live", &[]).await.status, 200);

    first.process.signal("KILL");
    first.process.exit(Duration::from_secs(10)).await;
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket(), "left by the dead");
    let third = spawn(&rules, &socket);
    third.ready().await;
    let answers = async || envoy.get("/live", &[]).await.status == 200;
    third.process.until("asked by Envoy", Duration::from_secs(10), answers).await;
    assert_eq!(envoy.load(Load::new("/third", 4, 2 * L)).finish().await, half_passes);
    assert_eq!(third.stop().await, 0);
}

fn spawn(rules: &Rules, socket: &Path) -> Ratelease {
    let socket = socket.to_str().expect("a path in UTF-8");
    let env = [PATIENT[0], PATIENT[1], ("GRPC_UDS", socket), ("KEY_SECRET", "pepper")];
    Ratelease::spawn(rules.path(), &Cluster::shared().places(), &env)
}
