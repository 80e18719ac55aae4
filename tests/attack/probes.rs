//! The periodic work of a kubelet, a Prometheus and an Envoy: request `/livez` and `/readyz`, and
//! open connections on every port. Each probe is a new connection, and must be answered.

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

/// Interval at which the probing thread notes that it runs.
const WATCH_EVERY: Duration = Duration::from_millis(5);

/// A longer time without a note is a stall of the probing thread: the machine had no core for it.
/// Meanwhile a crowd may fill a pool of connections, and a connection without a request gives way.
const STALL_MIN: Duration = Duration::from_millis(50);

/// Results of probes.
#[derive(Debug, Default)]
pub struct Probed {
    ends: Mutex<Vec<End>>,
    /// Beginning and end of each stall of the probing thread.
    stalls: Mutex<Vec<(Instant, Instant)>>,
}

/// The probes of a period.
#[derive(Debug)]
pub struct Ended {
    pub count: usize,
    /// The longest time that one of them took.
    pub slowest: Duration,
    /// The names of those that failed, and how long they took.
    pub failed: Vec<(&'static str, Duration)>,
}

/// The result of one probe.
#[derive(Debug)]
struct End {
    name: &'static str,
    begun: Instant,
    ended: Instant,
    is_answered: bool,
}

/// Sends probes until this future is dropped.
pub async fn run(foes: Foes, probed: Arc<Probed>) {
    tokio::join!(send(foes, Arc::clone(&probed)), watch_for_stalls(&probed));
}

async fn watch_for_stalls(probed: &Probed) {
    let mut last = now();
    loop {
        tokio::time::sleep(WATCH_EVERY).await;
        let this = now();
        if this - last >= STALL_MIN {
            probed.stalls.lock().push((last, this));
        }
        last = this;
    }
}

async fn send(foes: Foes, probed: Arc<Probed>) {
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
                let (ended, is_answered) = (now(), answered == Ok(true));
                probed.ends.lock().push(End { name, begun, ended, is_answered });
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
    /// The probes that began between two instants. A failed probe does not count if the probing
    /// thread stalled while it was under way.
    pub fn between(&self, from: Instant, to: Instant) -> Ended {
        let ends = self.ends.lock();
        let is_excused =
            |end: &End| !end.is_answered && self.has_stalled_within(end.begun, end.ended);
        let within = ends.iter().filter(|end| (from..to).contains(&end.begun));
        let counted: Vec<_> = within.filter(|end| !is_excused(end)).collect();
        let failed = counted.iter().filter(|end| !end.is_answered);
        Ended {
            count: counted.len(),
            slowest: counted.iter().map(|end| end.ended - end.begun).max().unwrap_or_default(),
            failed: failed.map(|end| (end.name, end.ended - end.begun)).collect(),
        }
    }

    /// Whether the probing thread, which is the neighbour's too, stalled at any time between two
    /// instants.
    pub fn has_stalled_within(&self, from: Instant, to: Instant) -> bool {
        let overlaps = |(began, over): &(Instant, Instant)| *began < to && from < *over;
        self.stalls.lock().iter().any(overlaps)
    }
}
