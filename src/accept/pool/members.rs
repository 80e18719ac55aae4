//! The connections of a pool, and which of them goes to make room.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::watch;

/// Those that are open, by their numbers, which only grow.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) open: HashMap<u64, Arc<Member>>,
    pub(super) by_peer: HashMap<Peer, usize>,
}

/// Who is at the other end. Processes of one machine are not told apart: an Envoy and an attacker
/// beside it have one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    Local,
    Address(IpAddr),
    /// The network part of an IPv6 address, of which a host may have as many as it likes.
    Network(u64),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) number: u64,
    pub(super) peer: Peer,
    /// When it came, or part of an answer was last sent: the number of the newest connection then.
    pub(super) used: AtomicU64,
    /// Seconds that the connection has lived, as far as it is told, and those at its last answer.
    pub(super) second: AtomicU32,
    pub(super) used_second: AtomicU32,
    /// Streams that may be quiet for as long as they like.
    pub(super) lasting: AtomicUsize,
    /// Requests that were handed on before they were whole.
    pub(super) halves: AtomicUsize,
    pub(super) close: watch::Sender<Close>,
}

/// Whether a connection is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Close {
    No,
    /// Its calls may finish.
    Gracefully,
    AtOnce,
}

/// Seconds without an answer after which a connection may be told to go for another. One that is
/// used more often would come back at once, and have the next one go.
pub(super) const IDLE_MIN: u32 = 5;

// === impl Members ===

impl Members {
    pub(super) fn add(&mut self, peer: Peer, came: u64) -> Arc<Member> {
        let member = Arc::new(Member {
            number: came,
            peer,
            used: AtomicU64::new(came),
            second: AtomicU32::new(0),
            used_second: AtomicU32::new(0),
            lasting: AtomicUsize::new(0),
            halves: AtomicUsize::new(0),
            close: watch::Sender::new(Close::No),
        });
        self.open.insert(came, Arc::clone(&member));
        *self.by_peer.entry(peer).or_default() += 1;
        member
    }

    pub(super) fn remove(&mut self, member: &Member) {
        self.open.remove(&member.number);
        if let Some(count) = self.by_peer.get_mut(&member.peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&member.peer);
            }
        }
    }

    /// The connection to close for another: one that has not been told so yet, of the peer that has
    /// more than half of all if there is one; the one that came or was last answered the longest
    /// ago. So a connection that comes has as long for its first request as it takes to fill the
    /// pool, and an Envoy that calls stays; one that is idle loses no call and connects again.
    pub(super) fn next_to_go(&self, how: Close) -> Option<&Arc<Member>> {
        let crowd = self.by_peer.iter().find(|(_, count)| **count * 2 > self.open.len());
        let is_of_crowd = |member: &Member| crowd.is_none_or(|(peer, _)| member.peer == *peer);
        let candidates = self.open.values().filter(|member| {
            let asked = *member.close.borrow();
            let is_idle = how > Close::Gracefully || member.idle_seconds() >= IDLE_MIN;
            asked < how && is_idle && (asked == Close::Gracefully || is_of_crowd(member))
        });
        candidates.min_by_key(|member| {
            let was_asked = *member.close.borrow() == Close::Gracefully;
            (!was_asked, member.used.load(Ordering::Relaxed), member.number)
        })
    }
}

// === impl Member ===

impl Member {
    /// Seconds since it came or part of an answer was last sent, as far as they are counted.
    pub(super) fn idle_seconds(&self) -> u32 {
        let used = self.used_second.load(Ordering::Relaxed);
        self.second.load(Ordering::Relaxed).saturating_sub(used)
    }
}

// === impl Peer ===

impl Peer {
    pub(super) fn of(address: Option<IpAddr>) -> Self {
        let Some(address) = address.map(|address| address.to_canonical()) else {
            return Self::Local;
        };
        match address {
            address if address.is_loopback() => Self::Local,
            IpAddr::V4(_) => Self::Address(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::Network(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
        }
    }
}

// === impl Member ===

impl Member {
    /// Whether that is news.
    pub(super) fn ask_to_close(&self, how: Close) -> bool {
        self.close.send_if_modified(|asked| {
            let is_new = *asked < how;
            *asked = how.max(*asked);
            is_new
        })
    }
}
