//! The runtimes that serve connections: one of a single thread for each core. A connection stays on
//! the core that it was given to, so that no request is handed from one thread to another.
//!
//! ```text
//! accept ─▶ the core with the fewest connections ─▶ a task for each connection, on that core alone
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};

/// Number of tasks that a busy thread polls before it checks for new I/O events. One poll may take
/// half a millisecond when a client sends as fast as it can: with tokio's default of 61, a call on
/// another connection waits 30 ms before its arrival is noticed.
const EVENT_INTERVAL: u32 = 16;

/// Number of tasks that a busy thread polls before it takes one that another thread has woken:
/// requests that wait for a lease are woken by the thread that receives it.
const GLOBAL_QUEUE_INTERVAL: u32 = 2;

/// The name of the threads that a runtime starts for blocking work: at most 15 bytes, as Linux
/// shows it.
const BLOCKING_THREAD_NAME: &str = "ratelease-block";

/// Returns the settings of a runtime of one thread, on which connections are served. The caller
/// names the thread and runs it.
pub fn runtime_builder() -> Builder {
    let mut builder = Builder::new_current_thread();
    builder
        .enable_all()
        .thread_name(BLOCKING_THREAD_NAME)
        .event_interval(EVENT_INTERVAL)
        .global_queue_interval(GLOBAL_QUEUE_INTERVAL);
    builder
}

/// The runtimes that serve connections, and the number of connections on each. A cheap handle:
/// clones share all state.
#[derive(Debug, Clone)]
pub struct Cores(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    cores: Vec<Core>,
    /// The core that is looked at first, for the next connection.
    next: AtomicUsize,
}

#[derive(Debug)]
struct Core {
    runtime: Handle,
    connections: AtomicUsize,
}

/// Counts one connection on its core until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    cores: Cores,
    core: usize,
}

// === impl Cores ===

impl Cores {
    /// Creates cores that serve on these runtimes, of which there is at least one.
    pub fn new(runtimes: Vec<Handle>) -> Self {
        let core = |runtime| Core { runtime, connections: AtomicUsize::new(0) };
        let cores = runtimes.into_iter().map(core).collect();
        Self(Arc::new(Shared { cores, next: AtomicUsize::new(0) }))
    }

    /// Serves all connections on the runtime that this is called in.
    ///
    /// # Panics
    ///
    /// Panics outside of a runtime.
    pub fn current() -> Self {
        Self::new(vec![Handle::current()])
    }

    /// The runtimes, in the order of [`Slot::core`].
    pub(super) fn runtimes(&self) -> impl Iterator<Item = &Handle> {
        self.0.cores.iter().map(|core| &core.runtime)
    }

    /// Takes a slot on the core that has the fewest connections, among those for which `has_room`
    /// returns true, or among all if there is none. Cores with equally many take turns.
    pub(super) fn slot(&self, has_room: impl Fn(usize) -> bool) -> Slot {
        let Shared { cores, next } = &*self.0;
        let first = next.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..cores.len()).map(|step| first.wrapping_add(step) % cores.len());
        let connections =
            |at: usize| cores.get(at).map(|it| it.connections.load(Ordering::Relaxed));
        let core = in_turn.min_by_key(|at| (!has_room(*at), connections(*at))).unwrap_or_default();
        if let Some(core) = cores.get(core) {
            core.connections.fetch_add(1, Ordering::Relaxed);
        }
        Slot { cores: self.clone(), core }
    }
}

// === impl Slot ===

impl Slot {
    /// The number of the core, from 0.
    pub(super) fn core(&self) -> usize {
        self.core
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(core) = self.cores.0.cores.get(self.core) {
            core.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_connection_goes_to_the_core_with_the_fewest_and_equals_take_turns() {
        let cores = Cores::new(vec![Handle::current(), Handle::current(), Handle::current()]);
        let slot = || cores.slot(|_| true);
        let mut slots: Vec<_> = (0..6).map(|_| slot()).collect();
        assert_eq!(slots.iter().map(Slot::core).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        slots.retain(|slot| slot.core() != 1);
        let next = [slot(), slot()];
        assert_eq!(next.each_ref().map(Slot::core), [1, 1]);
        let other = cores.slot(|core| core == 2);
        assert_eq!(other.core(), 2, "the others have no room");
        drop((next, other));
        drop(slots);
        let counts = cores.0.cores.iter().map(|core| core.connections.load(Ordering::Relaxed));
        assert_eq!(counts.sum::<usize>(), 0);
    }
}
