//! A closed-loop load: each connection sends its next request when the last one is answered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;

use super::http::Client;

/// The requests to send.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) connections: usize,
    /// Total number; `u64::MAX` for a load that runs until [`RunningLoad::stop`].
    pub(crate) requests: u64,
}

/// A load under way; aborted when dropped.
pub(crate) struct RunningLoad {
    left: Arc<AtomicU64>,
    connections: JoinSet<Tally>,
}

/// The results.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Number of answers by status.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Requests without a valid answer: refused, cut off, malformed or too late.
    pub(crate) broken: u64,
}

// === impl Load ===

impl Load {
    /// A load of `requests` for `path` over `connections`, without headers.
    pub(crate) fn new(path: &str, connections: usize, requests: u64) -> Self {
        Self { path: path.to_owned(), headers: Vec::new(), connections, requests }
    }

    /// Starts to send, on the caller's runtime.
    pub(crate) fn start(self, addr: SocketAddr) -> RunningLoad {
        let left = Arc::new(AtomicU64::new(self.requests));
        let mut connections = JoinSet::new();
        for _ in 0..self.connections {
            connections.spawn(send(self.clone(), addr, Arc::clone(&left)));
        }
        RunningLoad { left, connections }
    }
}

// === impl RunningLoad ===

impl RunningLoad {
    /// Waits for the last answer.
    pub(crate) async fn finish(self) -> Tally {
        let mut all = Tally::default();
        for tally in self.connections.join_all().await {
            all.add(tally);
        }
        all
    }

    /// Stops sending, and waits for the answers under way.
    pub(crate) async fn stop(self) -> Tally {
        self.left.store(0, Ordering::Relaxed);
        self.finish().await
    }
}

// === impl Tally ===

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        for (status, answers) in other.statuses {
            *self.statuses.entry(status).or_default() += answers;
        }
        self.broken += other.broken;
    }

    pub(crate) fn count(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    pub(crate) fn passed(&self) -> u64 {
        self.count(200)
    }

    pub(crate) fn limited(&self) -> u64 {
        self.count(429)
    }

    /// Requests that neither passed nor were limited; a healthy system has none.
    pub(crate) fn faults(&self) -> u64 {
        self.broken + self.statuses.values().sum::<u64>() - self.passed() - self.limited()
    }
}

async fn send(load: Load, addr: SocketAddr, left: Arc<AtomicU64>) -> Tally {
    let headers: Vec<_> = load.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let mut tally = Tally::default();
    let mut open = None;
    let take = |left: u64| left.checked_sub(1);
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
        let mut client = match open.take() {
            Some(client) => client,
            None => match Client::connect(addr).await {
                Ok(client) => client,
                Err(_) => {
                    tally.broken += 1;
                    continue;
                }
            },
        };
        match client.get(&load.path, &headers).await {
            Ok(answer) => {
                *tally.statuses.entry(answer.status).or_default() += 1;
                // An Envoy that drains says so.
                let closes = answer.header("connection") == Some("close");
                open = (!closes).then_some(client);
            }
            Err(_) => tally.broken += 1,
        }
    }
    tally
}
