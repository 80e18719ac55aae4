//! The handshakes in progress, of which there is a maximum: each may hold a client's message of 64
//! KiB that is not complete yet, and clients that are never authenticated can begin as many as they
//! like.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Maximum number of handshakes in progress, of all connections. One takes two round trips. A crowd
/// has to begin this many within that time before an honest client's handshake is given up.
pub(super) const MAX: usize = 256;

/// The handshakes in progress.
#[derive(Debug, Default)]
pub(super) struct Handshakes(Arc<Mutex<InProgress>>);

#[derive(Debug, Default)]
struct InProgress {
    next: u64,
    /// By number, so in the order in which they began. Dropping the sender gives one up.
    begun: VecDeque<(u64, oneshot::Sender<Infallible>)>,
}

/// The place of a handshake, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    all: Arc<Mutex<InProgress>>,
    number: u64,
}

// === impl Handshakes ===

impl Handshakes {
    /// Begins a handshake. The receiver is closed when it is to be given up for another.
    pub(super) fn begin(&self) -> (Place, oneshot::Receiver<Infallible>) {
        let (keep, kept) = oneshot::channel();
        let mut in_progress = self.0.lock();
        let number = in_progress.next;
        in_progress.next += 1;
        in_progress.begun.push_back((number, keep));
        if in_progress.begun.len() > MAX {
            in_progress.begun.pop_front();
        }
        (Place { all: Arc::clone(&self.0), number }, kept)
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        let begun = &mut self.all.lock().begun;
        if let Ok(at) = begun.binary_search_by_key(&self.number, |(number, _)| *number) {
            begun.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn the_handshake_that_began_first_is_given_up_for_the_newest() {
        let handshakes = Handshakes::default();
        let mut begun: Vec<_> = (0..MAX).map(|_| handshakes.begin()).collect();
        begun.remove(7); // one that ends leaves its place to another
        begun.push(handshakes.begin());
        let mut given_up = || {
            let ended =
                |kept: &mut oneshot::Receiver<_>| kept.try_recv() == Err(TryRecvError::Closed);
            begun.iter_mut().map(|(_, kept)| ended(kept)).collect::<Vec<_>>()
        };
        assert_eq!(given_up(), [false; MAX]);
        let newest = handshakes.begin();
        assert_eq!(given_up().iter().position(|it| *it), Some(0), "the first");
        assert_eq!(given_up().iter().filter(|it| **it).count(), 1, "and no other");
        drop((begun, newest));
        assert_eq!(handshakes.0.lock().begun.len(), 0);
    }
}
