//! The handshakes in progress, of which there is a maximum: each may hold a client's message of 64
//! KiB that is not complete yet, and clients that are never authenticated can begin as many as they
//! like.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::time::Time;
use tokio::sync::oneshot;

use crate::pool::Peer;

/// Maximum number of handshakes in progress, of all connections. One takes two round trips. A crowd
/// of the same address has to begin this many within that time before an honest client's handshake
/// is given up.
pub(super) const MAX: usize = 256;

/// A handshake that takes longer than this is given up before any other: few honest ones do, and
/// those that a crowd of many addresses leaves unfinished do.
const SLOW: Duration = Duration::from_secs(1);

/// The handshakes in progress.
#[derive(Debug, Default)]
pub(super) struct Handshakes(Arc<Mutex<InProgress>>);

#[derive(Debug, Default)]
struct InProgress {
    next: u64,
    /// By number, so in the order in which they began.
    begun: VecDeque<Handshake>,
}

#[derive(Debug)]
struct Handshake {
    number: u64,
    peer: Peer,
    at: Time,
    /// Dropping it gives the handshake up.
    _keep: oneshot::Sender<Infallible>,
}

/// The place of a handshake, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    all: Arc<Mutex<InProgress>>,
    number: u64,
}

// === impl Handshakes ===

impl Handshakes {
    /// Begins a handshake with this client at the time `now`. The receiver is closed when it is to
    /// be given up for another.
    pub(super) fn begin(&self, peer: Peer, now: Time) -> (Permit, oneshot::Receiver<Infallible>) {
        let (keep, kept) = oneshot::channel();
        let mut in_progress = self.0.lock();
        let number = in_progress.next;
        in_progress.next += 1;
        in_progress.begun.push_back(Handshake { number, peer, at: now, _keep: keep });
        if in_progress.begun.len() > MAX {
            in_progress.give_up(now);
        }
        (Permit { all: Arc::clone(&self.0), number }, kept)
    }
}

// === impl InProgress ===

impl InProgress {
    /// Gives up the handshake that began first, if it is slow. Otherwise gives up the first of the
    /// client that has the most handshakes.
    fn give_up(&mut self, now: Time) {
        if self.begun.front().is_some_and(|first| now.since(first.at) > SLOW) {
            self.begun.pop_front();
            return;
        }
        let mut counts = HashMap::new();
        for handshake in &self.begun {
            *counts.entry(handshake.peer).or_insert(0) += 1;
        }
        // The last of several maxima is found, so the search is from the newest to the oldest.
        let at = (0..self.begun.len())
            .rev()
            .max_by_key(|at| self.begun.get(*at).and_then(|handshake| counts.get(&handshake.peer)));
        at.and_then(|at| self.begun.remove(at));
    }
}

// === impl Permit ===

impl Drop for Permit {
    fn drop(&mut self) {
        let begun = &mut self.all.lock().begun;
        if let Ok(at) = begun.binary_search_by_key(&self.number, |it| it.number) {
            begun.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    const NOW: Time = Time::from_nanos(5_000_000_000);

    type Begun = (Permit, oneshot::Receiver<Infallible>);

    fn peer(last: u8) -> Peer {
        Peer::of(Some(Ipv4Addr::new(10, 0, 0, last).into()))
    }

    /// The indexes of those that are to be given up.
    fn given_up(begun: &mut [Begun]) -> Vec<usize> {
        let ended = |it: &mut Begun| it.1.try_recv() == Err(TryRecvError::Closed);
        begun.iter_mut().enumerate().filter_map(|(at, it)| ended(it).then_some(at)).collect()
    }

    #[test]
    fn the_handshake_that_began_first_is_given_up_for_the_newest() {
        let handshakes = Handshakes::default();
        let mut begun: Vec<_> = (0..MAX).map(|_| handshakes.begin(peer(1), NOW)).collect();
        begun.remove(7); // one that ends leaves its place to another
        begun.push(handshakes.begin(peer(1), NOW));
        assert!(given_up(&mut begun).is_empty());
        let newest = handshakes.begin(peer(1), NOW);
        assert_eq!(given_up(&mut begun), [0], "the first, and no other");
        drop((begun, newest));
        assert_eq!(handshakes.0.lock().begun.len(), 0);
    }

    #[test]
    fn a_crowd_of_one_address_gives_up_its_own_handshakes() {
        let handshakes = Handshakes::default();
        let mut begun = vec![handshakes.begin(peer(1), NOW), handshakes.begin(peer(2), NOW)];
        begun.extend((0..MAX).map(|_| handshakes.begin(peer(3), NOW)));
        assert_eq!(given_up(&mut begun), [2, 3]);
        begun.push(handshakes.begin(peer(2), NOW));
        assert_eq!(given_up(&mut begun), [2, 3, 4], "for another address too");
    }

    #[test]
    fn the_oldest_is_given_up_where_each_address_has_one() {
        let handshakes = Handshakes::default();
        let addresses = (0..=MAX).map(|nth| u32::try_from(nth).unwrap());
        let peers = addresses.map(|nth| Peer::of(Some(Ipv4Addr::from(nth).into())));
        let mut begun: Vec<_> = peers.map(|peer| handshakes.begin(peer, NOW)).collect();
        assert_eq!(given_up(&mut begun), [0]);
    }

    #[test]
    fn a_slow_handshake_is_given_up_before_those_of_the_client_that_has_the_most() {
        let handshakes = Handshakes::default();
        let mut begun = vec![handshakes.begin(peer(1), NOW)];
        let later = NOW + SLOW + Duration::from_millis(1);
        begun.extend((0..MAX).map(|_| handshakes.begin(peer(2), later)));
        assert_eq!(given_up(&mut begun), [0]);
        begun.push(handshakes.begin(peer(3), later));
        assert_eq!(given_up(&mut begun), [0, 1], "none is slow any more");
    }
}
