//! The bodies that are arriving, and the memory that all of them may take together. The largest one
//! has to go when there is too much, so a client that sends half of a body does not
//! keep others out.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// All bodies.
#[derive(Debug)]
pub(super) struct Bodies {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    bytes: usize,
    arriving: BTreeMap<u64, (usize, Arc<Notify>)>,
}

/// One body; its bytes are given back once this is dropped.
#[derive(Debug)]
pub(super) struct Arriving<'b> {
    bodies: &'b Bodies,
    id: u64,
    has_to_go: Arc<Notify>,
}

// === impl Bodies ===

impl Bodies {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default() }
    }

    /// Begins a body without any bytes.
    pub(super) fn begin(&self) -> Arriving<'_> {
        let has_to_go = Arc::new(Notify::new());
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        state.arriving.insert(id, (0, Arc::clone(&has_to_go)));
        drop(state);
        Arriving { bodies: self, id, has_to_go }
    }
}

// === impl State ===

impl State {
    fn remove(&mut self, id: u64) -> Option<Arc<Notify>> {
        let (bytes, has_to_go) = self.arriving.remove(&id)?;
        self.bytes -= bytes;
        Some(has_to_go)
    }

    fn largest(&self) -> Option<u64> {
        let largest = self.arriving.iter().max_by_key(|(_, (bytes, _))| *bytes);
        largest.map(|(id, _)| *id)
    }
}

// === impl Arriving ===

impl Arriving<'_> {
    /// Adds bytes. While all bodies together are too large, the largest one has to go. Returns
    /// whether this one may go on.
    pub(super) fn grow(&self, bytes: usize) -> bool {
        let mut state = self.bodies.state.lock();
        let Some((of_this, _)) = state.arriving.get_mut(&self.id) else { return false };
        *of_this += bytes;
        state.bytes += bytes;
        while state.bytes > self.bodies.bytes_max {
            let Some(has_to_go) = state.largest().and_then(|largest| state.remove(largest)) else {
                break;
            };
            has_to_go.notify_one();
        }
        state.arriving.contains_key(&self.id)
    }

    /// Resolves once this body has to go.
    pub(super) async fn evicted(&self) {
        self.has_to_go.notified().await;
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.bodies.state.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_body_has_to_go() {
        let bodies = Bodies::new(100);
        let (small, large) = (bodies.begin(), bodies.begin());
        assert!(small.grow(10) && large.grow(80));
        assert!(small.grow(20), "it is not the largest");
        assert!(!large.grow(0), "it had to go");
        assert!(!bodies.begin().grow(101), "it is too large alone");
        drop(small);
        assert!(bodies.begin().grow(100), "all bytes are given back");
    }
}
