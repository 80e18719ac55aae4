//! The open connections, in the order of their last use: a new one closes the oldest idle one when
//! all places are taken, so that idle clients cannot keep others out.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// All open connections.
#[derive(Debug)]
pub(super) struct Connections {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The next place in the order.
    next: u64,
    /// By the place in the order of use.
    open: BTreeMap<u64, watch::Sender<bool>>,
}

/// One connection, whose place is free once this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    all: Arc<Connections>,
    place: Mutex<u64>,
    is_unwanted: watch::Receiver<bool>,
    has_called: watch::Sender<bool>,
}

// === impl Connections ===

impl Connections {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, state: Mutex::default() })
    }

    /// Takes a place; if none is free, that of the connection whose last use is the oldest.
    pub(super) fn open(self: &Arc<Self>) -> Arc<Connection> {
        let (unwanted, is_unwanted) = watch::channel(false);
        let mut state = self.state.lock();
        while state.open.len() >= self.max {
            let Some((_, oldest)) = state.open.pop_first() else { break };
            // The connection may be ending by itself.
            let _ = oldest.send(true);
        }
        let place = Mutex::new(state.insert(unwanted));
        drop(state);
        let all = Arc::clone(self);
        Arc::new(Connection { all, place, is_unwanted, has_called: watch::Sender::new(false) })
    }
}

// === impl State ===

impl State {
    fn insert(&mut self, unwanted: watch::Sender<bool>) -> u64 {
        let place = self.next;
        self.next += 1;
        self.open.insert(place, unwanted);
        place
    }
}

// === impl Connection ===

impl Connection {
    /// Notes that a call has arrived.
    pub(super) fn used(&self) {
        let mut state = self.all.state.lock();
        let mut place = self.place.lock();
        if let Some(unwanted) = state.open.remove(&place) {
            *place = state.insert(unwanted);
        }
        self.has_called.send_replace(true);
    }

    /// Whether a call has arrived.
    pub(super) fn has_called(&self) -> bool {
        *self.has_called.borrow()
    }

    /// Resolves once the place belongs to another connection.
    pub(super) async fn lost(&self) {
        // An error means the same: the place was given up.
        let _ = self.is_unwanted.clone().wait_for(|is_unwanted| *is_unwanted).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.all.state.lock();
        state.open.remove(self.place.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_that_was_used_last_keeps_its_place() {
        let all = Connections::new(2);
        let (first, second) = (all.open(), all.open());
        first.used();
        let third = all.open();
        let is_lost = |one: &Connection| *one.is_unwanted.borrow();
        assert_eq!((is_lost(&first), is_lost(&second), is_lost(&third)), (false, true, false));
        drop(third);
        let _fourth = all.open();
        assert!(!is_lost(&first), "a place was free");
        let (_fifth, _sixth) = (all.open(), all.open());
        assert!(is_lost(&first));
        first.used();
        assert!(is_lost(&first), "it is not taken back");
    }
}
