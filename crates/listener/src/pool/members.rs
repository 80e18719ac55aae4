//! The connections of a pool, and the choice of which one closes to make room.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::watch;

/// The open connections, by their numbers, which only grow.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) open: HashMap<u64, Arc<Member>>,
    pub(super) by_peer: HashMap<Peer, usize>,
}

/// The client of a connection. Processes of one machine cannot be distinguished: an Envoy and an
/// attacker beside it have one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// On this machine.
    Local,
    /// At this IPv4 address.
    Address(IpAddr),
    /// The network part of an IPv6 address: a host may use any number of addresses within it.
    Network(u64),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) number: u64,
    pub(super) peer: Peer,
    /// Whether part of an answer was ever sent.
    pub(super) was_answered: AtomicBool,
    /// The number of the newest connection when this one was accepted or last sent part of an
    /// answer.
    pub(super) last_answer: AtomicU64,
    /// Age of the connection in seconds, as far as they are counted, and its age at the last
    /// answer.
    pub(super) second: AtomicU32,
    pub(super) last_answer_second: AtomicU32,
    /// Number of streams that may be quiet without a time limit.
    pub(super) long_lived: AtomicUsize,
    /// Number of requests that were handed on incomplete.
    pub(super) incomplete: AtomicUsize,
    pub(super) close: watch::Sender<Close>,
}

/// Whether and how a connection has to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Close {
    No,
    /// After its calls have finished.
    Gracefully,
    AtOnce,
}

/// Seconds without an answer after which a connection may be asked to go away for another. One that
/// is used more often would reconnect at once, and displace the next one.
pub(super) const IDLE_MIN: u32 = 5;

// === impl Members ===

impl Members {
    pub(super) fn add(&mut self, peer: Peer, accepted: u64) -> Arc<Member> {
        let member = Arc::new(Member {
            number: accepted,
            peer,
            was_answered: AtomicBool::new(false),
            last_answer: AtomicU64::new(accepted),
            second: AtomicU32::new(0),
            last_answer_second: AtomicU32::new(0),
            long_lived: AtomicUsize::new(0),
            incomplete: AtomicUsize::new(0),
            close: watch::Sender::new(Close::No),
        });
        self.open.insert(accepted, Arc::clone(&member));
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

    /// The connection to close for another: one that has not been asked to close this way yet, of
    /// the peer that has more than half of all connections if there is one; among these, the one
    /// that came or was last answered the longest ago. So a new connection has as long for its
    /// first request as it takes to fill the pool, and an Envoy that calls stays; one that is idle
    /// loses no call and reconnects.
    pub(super) fn next_to_close(&self, how: Close) -> Option<&Arc<Member>> {
        let crowd = self.by_peer.iter().find(|(_, count)| **count * 2 > self.open.len());
        let is_of_crowd = |member: &Member| crowd.is_none_or(|(peer, _)| member.peer == *peer);
        let candidates = self.open.values().filter(|member| {
            let asked = *member.close.borrow();
            let is_idle = how > Close::Gracefully || member.idle_seconds() >= IDLE_MIN;
            asked < how && is_idle && (asked == Close::Gracefully || is_of_crowd(member))
        });
        candidates.min_by_key(|member| {
            let was_asked = *member.close.borrow() == Close::Gracefully;
            (!was_asked, member.last_answer.load(Ordering::Relaxed), member.number)
        })
    }

    /// At most `most` connections that were never answered, the oldest first. None while one still
    /// closes that was asked to close at once.
    pub(super) fn unanswered(&self, most: usize) -> Vec<&Arc<Member>> {
        let mut found = Vec::new();
        for member in self.open.values() {
            if *member.close.borrow() == Close::AtOnce {
                return Vec::new();
            }
            if !member.was_answered.load(Ordering::Relaxed) {
                found.push(member);
            }
        }
        if found.len() > most {
            found.select_nth_unstable_by_key(most, |member| member.number);
            found.truncate(most);
        }
        found
    }
}

// === impl Member ===

impl Member {
    /// Seconds since the connection came or last sent part of an answer, as far as they are
    /// counted.
    pub(super) fn idle_seconds(&self) -> u32 {
        let used = self.last_answer_second.load(Ordering::Relaxed);
        self.second.load(Ordering::Relaxed).saturating_sub(used)
    }
}

// === impl Peer ===

impl Peer {
    /// The client at this address; `None` for one on a Unix socket.
    pub fn of(address: Option<IpAddr>) -> Self {
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
    /// Asks the connection to close; returns false if it had been asked to close this way, or
    /// sooner, before.
    pub(super) fn ask_to_close(&self, how: Close) -> bool {
        self.close.send_if_modified(|asked| {
            let is_new = *asked < how;
            *asked = how.max(*asked);
            is_new
        })
    }
}
