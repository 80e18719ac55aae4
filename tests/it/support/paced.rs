//! An open-loop load: requests are sent at a given rate whatever the state of earlier ones, and an
//! answer's latency counts from when its request was due. A closed loop would send less exactly
//! when answers are slow, and hide it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::http::Client;
use super::load::Tally;
use super::now;

/// The requests to send, and their rate.
#[derive(Debug, Clone)]
pub(crate) struct Paced {
    /// Used in turn. `{n}` in a path stands for the request's number, which makes each path new.
    pub(crate) paths: Vec<String>,
    /// Requests a second.
    pub(crate) rate: u32,
    /// Maximum number of concurrent requests; beyond it, requests wait, and their latency includes
    /// that.
    pub(crate) connections: usize,
}

/// A load under way; aborted when dropped.
pub(crate) struct RunningPaced {
    load: Arc<Shared>,
    connections: JoinSet<Vec<Sample>>,
}

/// One request and its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// When the request was due.
    pub(crate) due: Instant,
    /// From `due` to the end of the answer.
    pub(crate) latency: Duration,
    /// 0 if there was no answer.
    pub(crate) status: u16,
    /// Position of its path in [`Paced::paths`].
    pub(crate) path: usize,
}

/// The samples, in no order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(pub(crate) Vec<Sample>);

struct Shared {
    plan: Paced,
    addr: SocketAddr,
    start: Instant,
    next: AtomicU64,
    answered: AtomicU64,
    is_over: AtomicBool,
}

// === impl Paced ===

impl Paced {
    pub(crate) fn new(paths: &[String], rate: u32) -> Self {
        Self { paths: paths.to_vec(), rate, connections: 32 }
    }

    /// Starts to send, on the caller's runtime.
    pub(crate) fn start(self, addr: SocketAddr) -> RunningPaced {
        let connections = self.connections;
        let load = Arc::new(Shared {
            plan: self,
            addr,
            start: now(),
            next: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let mut running = JoinSet::new();
        for _ in 0..connections {
            running.spawn(Arc::clone(&load).send());
        }
        RunningPaced { load, connections: running }
    }
}

// === impl RunningPaced ===

impl RunningPaced {
    /// Number of requests that have been answered, or failed, so far.
    pub(crate) fn answered(&self) -> u64 {
        self.load.answered.load(Ordering::Relaxed)
    }

    /// Stops sending, and waits for the answers under way.
    pub(crate) async fn stop(self) -> Samples {
        self.load.is_over.store(true, Ordering::Relaxed);
        Samples(self.connections.join_all().await.into_iter().flatten().collect())
    }

    /// Continues for `span`, then stops as [`RunningPaced::stop`] does.
    pub(crate) async fn stop_after(self, span: Duration) -> Samples {
        tokio::time::sleep(span).await;
        self.stop().await
    }
}

// === impl Shared ===

impl Shared {
    async fn send(self: Arc<Self>) -> Vec<Sample> {
        let mut samples = Vec::new();
        let mut open = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let due = self.start + Duration::from_secs(number) / self.plan.rate;
            tokio::time::sleep_until(due.into()).await;
            let turn = number % self.plan.paths.len() as u64;
            let path = usize::try_from(turn).expect("below a length");
            let text = self.plan.paths[path].replace("{n}", &number.to_string());
            let status = self.ask(&text, &mut open).await;
            self.answered.fetch_add(1, Ordering::Relaxed);
            samples.push(Sample { due, latency: now().duration_since(due), status, path });
        }
        samples
    }

    async fn ask(&self, path: &str, open: &mut Option<Client>) -> u16 {
        let mut client = match open.take() {
            Some(client) => client,
            None => match Client::connect(self.addr).await {
                Ok(client) => client,
                Err(_) => return 0,
            },
        };
        let Ok(answer) = client.get(path, &[]).await else { return 0 };
        *open = Some(client);
        answer.status
    }
}

// === impl Samples ===

impl Samples {
    /// The samples that were due between two instants.
    pub(crate) fn between(&self, from: Instant, to: Instant) -> Self {
        self.only(|sample| (from..to).contains(&sample.due))
    }

    /// The samples of some paths, by position.
    pub(crate) fn of(&self, is_of: impl Fn(usize) -> bool) -> Self {
        self.only(|sample| is_of(sample.path))
    }

    /// The samples for which `keep` returns true.
    pub(crate) fn only(&self, keep: impl Fn(&Sample) -> bool) -> Self {
        Self(self.0.iter().filter(|sample| keep(sample)).copied().collect())
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for sample in &self.0 {
            match sample.status {
                0 => tally.broken += 1,
                status => *tally.statuses.entry(status).or_default() += 1,
            }
        }
        tally
    }

    pub(crate) fn passed(&self) -> u64 {
        self.tally().passed()
    }

    /// The given percentile of the answers' latency. Fails the test if there are no answers, since
    /// nothing would have been measured.
    #[track_caller]
    pub(crate) fn latency(&self, percent: usize) -> Duration {
        assert!(!self.0.is_empty(), "no request was sent in the time that is judged");
        let mut latencies: Vec<_> = self.0.iter().map(|sample| sample.latency).collect();
        latencies.sort_unstable();
        let at = (latencies.len() * percent).div_ceil(100).saturating_sub(1);
        latencies[at]
    }
}
