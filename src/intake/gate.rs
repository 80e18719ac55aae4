//! The way in: so many calls at once and no more, and a panic in one ends that one alone.
//!
//! What unfinished messages take is bounded beside it (`gate/held.rs`).
//!
//! Calls that wait (for a lease, a slot, the rest of their message) are what may pile up here.
//! Those that wait for the CPU do so before they come here, and are bounded by the streams of their
//! connections. Refusing these by the length of their queue left nothing decided at all (tried
//! once, at three times the load that saturates): a refusal may well cost as much as a decision.

mod held;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use futures_util::FutureExt;
use tracing::{info, warn};

pub use held::Held;

use super::Refusal;
use crate::store::Count;

/// Counts the calls under way, and refuses those above its ceiling. A handle: clones share it.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    calls_max: usize,
    under_way: AtomicUsize,
    /// Bytes of messages that are not whole yet.
    held: AtomicUsize,
    shed: AtomicU64,
    panics: AtomicU64,
    /// Calls were refused, and not yet few since: so that an overload is told once.
    is_crowded: AtomicBool,
}

/// A place among the calls under way, for as long as it lives.
struct Place<'a>(&'a Shared);

// === impl Gate ===

impl Gate {
    /// For `calls_max` calls at once.
    pub(super) fn new(calls_max: usize) -> Self {
        let shared = Shared {
            calls_max,
            under_way: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            shed: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            is_crowded: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sees `call` through, unless too many are under way: then it is dropped, not yet begun.
    pub(super) async fn pass<T>(&self, call: impl Future<Output = T>) -> Result<T, Refusal> {
        let _place = self.shared.enter()?;
        // What the call shares with others, it shares through locks and atomics that a panic
        // leaves usable; what it held itself is dropped, which gives it back.
        let passed = AssertUnwindSafe(call).catch_unwind().await;
        passed.map_err(|_| {
            self.shared.panics.fetch_add(1, Ordering::Relaxed);
            Refusal::Panicked
        })
    }

    /// As [`Gate::pass`], for a call that never waits: it takes no place among those that do, and
    /// touches nothing that calls of other cores touch. A crowd shuts it out all the same.
    pub(super) fn pass_at_once<T>(
        &self,
        call: impl FnOnce() -> Option<Result<T, Refusal>>,
    ) -> Option<Result<T, Refusal>> {
        if self.shared.under_way.load(Ordering::Relaxed) >= self.shared.calls_max {
            return None; // to be refused and counted where it asks next
        }
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
            self.shared.panics.fetch_add(1, Ordering::Relaxed);
            Some(Err(Refusal::Panicked))
        })
    }

    pub(super) fn counts(&self) -> Vec<Count> {
        let Shared { under_way, shed, panics, .. } = &*self.shared;
        vec![
            ("calls_under_way", under_way.load(Ordering::Relaxed) as u64),
            ("shed", shed.load(Ordering::Relaxed)),
            ("request_panics", panics.load(Ordering::Relaxed)),
        ]
    }
}

// === impl Shared ===

impl Shared {
    fn enter(&self) -> Result<Place<'_>, Refusal> {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        let place = Place(self);
        if before >= self.calls_max {
            self.shed.fetch_add(1, Ordering::Relaxed);
            if !self.is_crowded.swap(true, Ordering::Relaxed) {
                warn!("calls are refused: {before} are under way, as many as MAX_IN_FLIGHT says");
            }
            return Err(Refusal::Overloaded);
        }
        if before <= self.calls_max / 2 && self.is_crowded.load(Ordering::Relaxed) {
            self.note_relief();
        }
        Ok(place)
    }

    #[cold]
    fn note_relief(&self) {
        if self.is_crowded.swap(false, Ordering::Relaxed) {
            let shed = self.shed.load(Ordering::Relaxed);
            info!("all calls are taken again; {shed} were refused since the start");
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(gate: &Gate, name: &str) -> u64 {
        gate.counts().into_iter().find_map(|(it, count)| (it == name).then_some(count)).unwrap()
    }

    #[tokio::test]
    async fn calls_above_the_ceiling_are_refused_at_once_and_places_come_back() {
        let gate = Gate::new(2);
        for _ in 0..2 {
            let mut first = Box::pin(gate.pass(std::future::pending::<()>()));
            let mut second = Box::pin(gate.pass(std::future::pending::<()>()));
            assert!(futures_util::poll!(&mut first).is_pending());
            assert!(futures_util::poll!(&mut second).is_pending());
            assert_eq!(gate.pass(async {}).await, Err(Refusal::Overloaded));
            assert_eq!(count(&gate, "calls_under_way"), 2);
            drop(first);
            assert_eq!(gate.pass(async { 7 }).await, Ok(7));
        }
        assert_eq!((count(&gate, "calls_under_way"), count(&gate, "shed")), (0, 2));
    }

    #[tokio::test]
    async fn a_panic_ends_its_own_call_only_and_is_counted() {
        let gate = Gate::new(1);
        for _ in 0..3 {
            let told = gate.pass(async { panic!("told to") }).await;
            assert_eq!(told, Err::<(), _>(Refusal::Panicked));
            assert_eq!(gate.pass(async {}).await, Ok(()));
        }
        assert_eq!((count(&gate, "calls_under_way"), count(&gate, "request_panics")), (0, 3));
    }

    #[tokio::test]
    async fn an_overload_is_over_once_calls_are_few() {
        let gate = Gate::new(1);
        let mut long = Box::pin(gate.pass(std::future::pending::<()>()));
        assert!(futures_util::poll!(&mut long).is_pending());
        assert!(gate.pass(async {}).await.is_err());
        assert!(gate.shared.is_crowded.load(Ordering::Relaxed));
        drop(long);
        assert!(gate.pass(async {}).await.is_ok());
        assert!(!gate.shared.is_crowded.load(Ordering::Relaxed));
    }
}
