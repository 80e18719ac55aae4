//! V3: connections that are opened and left idle, on a pod that may open 1024 files, until it
//! accepts no more. Half of them send nothing, and half have sent the HTTP/2 preface.

use std::net::SocketAddr;
use std::time::Duration;

use crate::foe::{Foes, Reading};
use crate::scene::{Plan, Scene};
use crate::support::frames::{PING, frame};

/// The file limit of a container that sets none.
const FILES: u32 = 1_024;

const STAY: Duration = Duration::from_secs(60);

/// Opens `count` connections and keeps them.
pub async fn crowded(plan: Plan<'_>, count: usize, port: fn(&Foes) -> SocketAddr) {
    let scene = Scene::start(Plan { nofile: Some(FILES), ..plan }).await;
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let idle = match nth % 2 {
                0 => foes.connect(port(foes), Reading::Bytes).await,
                _ => foes.greet(port(foes), &[], Reading::Frames).await,
            };
            if let Some(mut foe) = idle {
                foe.stay(STAY).await;
            }
        };
        foes.crowd(count, client).await;
    });
    attacked.await.row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn v3a_idle_connections_on_port_leave_probes_alone() {
    crowded(Plan::new("V3a", "600 idle connections on PORT"), 600, |foes| foes.http).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn v3b_idle_connections_on_the_debug_port_leave_probes_alone() {
    crowded(Plan::new("V3b", "600 idle connections on the debug port"), 600, |foes| foes.debug)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn v3c_idle_connections_on_the_prometheus_port_leave_probes_alone() {
    crowded(Plan::new("V3c", "600 idle connections on PROMETHEUS_ADDR"), 600, |foes| {
        foes.prometheus
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn v3d_idle_connections_on_the_grpc_port_leave_envoys_alone() {
    crowded(Plan::new("V3d", "800 idle connections on the gRPC port"), 800, |foes| foes.grpc).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn v3e_connections_that_come_and_go_leave_all_ports_alone() {
    come_and_go(Plan::new("V3e", "connections opened and reset")).await;
}

/// A limit on idle time that counts bytes would never find these connections idle.
#[tokio::test(flavor = "multi_thread")]
async fn v3f_connections_that_only_ping_leave_probes_alone() {
    ping(Plan::new("V3f", "2 × 600 connections that only ping")).await;
}

/// Each connection is accepted and lost at once; it ends with a reset.
pub async fn come_and_go(plan: Plan<'_>) {
    let scene = Scene::start(Plan { nofile: Some(FILES), ..plan }).await;
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let to = [foes.grpc, foes.http, foes.debug, foes.prometheus][nth % 4];
            while let Some(foe) = foes.connect(to, Reading::Reset).await {
                drop(foe);
            }
        };
        foes.crowd(4, client).await;
    });
    attacked.await.row.end();
}

/// Keeps connections open with pings, half of them on `PORT`.
async fn ping(plan: Plan<'_>) {
    let scene = Scene::start(Plan { nofile: Some(FILES), ..plan }).await;
    let attacked = scene.attack(async |foes, _| {
        let client = async |foes: &Foes, nth: usize| {
            let to = if nth.is_multiple_of(2) { foes.http } else { foes.grpc };
            let Some(mut foe) = foes.greet(to, &[], Reading::Frames).await else { return };
            while !foe.is_gone() && foe.send(&frame(PING, 0, 0, &[7; 8])).await {
                foe.stay(Duration::from_millis(300)).await;
            }
        };
        foes.crowd(1_200, client).await;
    });
    attacked.await.row.end();
}
