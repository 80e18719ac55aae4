//! Rows that concern connections, with TLS on the gRPC port. `scripts/attack --tls` runs every row
//! that way, with a release build. V1e and V3f are not among these: 300 connections of 255 calls,
//! or the handshakes of 600 clients that come back at once, both sides of them, take all of the
//! machine in a debug build, and probes wait.

use crate::scene::Plan;
use crate::{halves, idle};

#[tokio::test(flavor = "multi_thread")]
async fn half_open_calls_over_tls_refuse_no_call() {
    halves::half_open(Plan::new("V1b", "half-open calls over TLS").over_tls()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_with_tls_leave_envoys_alone() {
    let plan = Plan::new("V3d", "800 idle connections over TLS").over_tls();
    idle::crowded(plan, 800, |foes| foes.grpc).await;
}

/// Each connection costs the pod a handshake.
#[tokio::test(flavor = "multi_thread")]
async fn connections_with_tls_that_come_and_go_leave_all_ports_alone() {
    idle::come_and_go(Plan::new("V3e", "connections over TLS, opened and reset").over_tls()).await;
}
