//! The periodic work of a kubelet, a Prometheus and an Envoy: request `/livez` and `/readyz`, and
//! open connections on every port. Each probe is a new connection, and must be answered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::foe::Foes;
use crate::messages::message;
use crate::support::frames::{DATA, END_STREAM, GOAWAY, HEADERS, Raw, call};
use crate::support::{http, now};

/// Interval between two rounds.
const EVERY: Duration = Duration::from_millis(100);

/// Generous, so that a noisy machine passes.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Results of probes.
#[derive(Debug, Default)]
pub struct Probed {
    ends: Mutex<Vec<(Instant, &'static str, bool)>>,
}

/// Sends probes until this future is dropped.
pub async fn run(foes: Foes, probed: Arc<Probed>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut under_way = JoinSet::new();
    loop {
        ticks.tick().await;
        while under_way.try_join_next().is_some() {}
        for name in ["/livez", "/readyz", "debug", "prometheus", "grpc"] {
            let (foes, probed) = (foes.clone(), Arc::clone(&probed));
            under_way.spawn(async move {
                let begun = now();
                let answered = tokio::time::timeout(ANSWER_MAX, probe(name, &foes)).await;
                probed.ends.lock().push((begun, name, answered == Ok(true)));
            });
        }
    }
}

/// Whether a probe got the expected answer.
async fn probe(name: &str, foes: &Foes) -> bool {
    match name {
        "debug" => answered(foes.debug, "/none").await.is_some(),
        "prometheus" => answered(foes.prometheus, "/none").await.is_some(),
        "grpc" => decided(foes.grpc).await,
        path => answered(foes.http, path).await == Some(200),
    }
}

async fn answered(server: SocketAddr, path: &str) -> Option<u16> {
    http::get(server, path).await.ok().map(|answer| answer.status)
}

/// Opens a new gRPC connection, and makes a call on it.
async fn decided(server: SocketAddr) -> bool {
    // The support module's connection fails the test if there is no server; here that is a result.
    if tokio::net::TcpStream::connect(server).await.is_err() {
        return false;
    }
    let call = call(1, &message("plenty", "probe"));
    let asked = tokio::spawn(async move {
        let mut raw = Raw::open(server, &[]).await;
        raw.send(&call).await;
        while let Some(frame) = raw.next().await {
            match frame.kind {
                DATA => return frame.payload.get(5..7) == Some(&[0x08, 1]),
                HEADERS if frame.flags & END_STREAM != 0 => return false,
                GOAWAY => return false,
                _ => {}
            }
        }
        false
    });
    asked.await.unwrap_or(false)
}

// === impl Probed ===

impl Probed {
    /// Number of probes that began between two instants, and of those that failed, by name.
    pub fn between(&self, from: Instant, to: Instant) -> (usize, BTreeMap<&'static str, usize>) {
        let ends = self.ends.lock();
        let within = ends.iter().filter(|(begun, ..)| (from..to).contains(begun));
        let mut failed = BTreeMap::new();
        for (_, name, _) in within.clone().filter(|(.., answered)| !answered) {
            *failed.entry(*name).or_default() += 1;
        }
        (within.count(), failed)
    }
}
