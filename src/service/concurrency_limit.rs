//! Limits the number of calls that wait at once, and confines a panic to the call that panics.
//!
//! A call takes its place once its message is complete; the memory of incomplete messages is
//! bounded separately (`room.rs`). The calls that can accumulate here wait for a lease or a slot.
//! Calls that wait for the CPU do so before they come here, and are bounded by the streams of their
//! connections. Refusing these by the length of their queue left nothing decided at all (tried
//! once, at three times the saturating load): a error may well cost as much as a decision.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use futures_util::FutureExt;
use tracing::{info, warn};

use super::RequestError;
use super::body_budget::Peer;

/// One in this many places is reserved for connections that have few of them: a connection that
/// fills the others shuts out only itself.
const KEPT_PART: usize = 4;

/// Number of waiting calls below which a connection may take one of the reserved places.
const FEW: usize = 8;

/// Counts the calls that wait, and refuses those above the maximum. A cheap handle: clones share
/// all state.
#[derive(Debug, Clone)]
pub(super) struct ConcurrencyLimit {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    calls_max: usize,
    /// The setting that the maximum comes from, for the log.
    said_by: &'static str,
    waiting: AtomicUsize,
    shed: AtomicU64,
    panics: AtomicU64,
    /// Set while overloaded, so that each overload is logged once.
    is_crowded: AtomicBool,
}

/// A place among the calls that wait, held until it is dropped.
struct Place<'a> {
    shared: &'a Shared,
    peer: &'a Peer,
}

// === impl ConcurrencyLimit ===

impl ConcurrencyLimit {
    /// Creates a gate for `calls_max` calls at once, a number that `said_by` sets.
    pub(super) fn new(calls_max: usize, said_by: &'static str) -> Self {
        let shared = Shared {
            calls_max,
            said_by,
            waiting: AtomicUsize::new(0),
            shed: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            is_crowded: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `call` of `peer`, unless too many wait: then drops it without polling it.
    pub(super) async fn pass<T>(
        &self,
        peer: &Peer,
        call: impl Future<Output = T>,
    ) -> Result<T, RequestError> {
        let _place = self.shared.enter(peer)?;
        self.contain(call).await
    }

    /// Runs `call`, and returns an error if it panics.
    pub(super) async fn contain<T>(
        &self,
        call: impl Future<Output = T>,
    ) -> Result<T, RequestError> {
        // State that the call shares with others is behind locks and atomics that a panic leaves
        // usable; state that the call owns is dropped, which releases it.
        let passed = AssertUnwindSafe(call).catch_unwind().await;
        passed.map_err(|_| self.panicked())
    }

    /// Like [`ConcurrencyLimit::contain`], for a call that never waits and takes no place: it
    /// touches no state that calls on other cores touch, and it runs even when too many calls wait.
    pub(super) fn contain_at_once<T>(
        &self,
        call: impl FnOnce() -> Option<Result<T, RequestError>>,
    ) -> Option<Result<T, RequestError>> {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Some(Err(self.panicked())))
    }

    fn panicked(&self) -> RequestError {
        self.shared.panics.fetch_add(1, Ordering::Relaxed);
        RequestError::Panicked
    }

    /// Number of calls that wait.
    pub(super) fn waiting(&self) -> u64 {
        self.shared.waiting.load(Ordering::Relaxed) as u64
    }

    /// Number of calls that were refused.
    pub(super) fn shed(&self) -> u64 {
        self.shared.shed.load(Ordering::Relaxed)
    }

    /// Number of calls that panicked.
    pub(super) fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }
}

// === impl Shared ===

impl Shared {
    fn enter<'a>(&'a self, peer: &'a Peer) -> Result<Place<'a>, RequestError> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let of_peer = peer.waiting().fetch_add(1, Ordering::Relaxed);
        let place = Place { shared: self, peer };
        let kept = if of_peer < FEW { 0 } else { self.calls_max / KEPT_PART };
        if before + kept >= self.calls_max {
            self.shed.fetch_add(1, Ordering::Relaxed);
            if !self.is_crowded.swap(true, Ordering::Relaxed) {
                let of = self.said_by;
                warn!("calls are refused: {before} wait, of at most {} ({of})", self.calls_max);
            }
            return Err(RequestError::Overloaded);
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
        self.peer.waiting().fetch_sub(1, Ordering::Relaxed);
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::pending;
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn calls_above_the_ceiling_are_refused_at_once_and_places_come_back() {
        let (gate, peer) = (ConcurrencyLimit::new(2, "a test"), Peer::new());
        for _ in 0..2 {
            let mut first = Box::pin(gate.pass(&peer, pending::<()>()));
            let mut second = Box::pin(gate.pass(&peer, pending::<()>()));
            assert!(poll!(&mut first).is_pending());
            assert!(poll!(&mut second).is_pending());
            assert_eq!(gate.pass(&peer, async {}).await, Err(RequestError::Overloaded));
            assert_eq!(gate.contain_at_once(|| Some(Ok(7))), Some(Ok(7)), "it does not wait");
            assert_eq!(gate.waiting(), 2);
            drop(first);
            assert_eq!(gate.pass(&peer, async { 7 }).await, Ok(7));
        }
        assert_eq!((gate.waiting(), gate.shed()), (0, 2));
        assert_eq!(peer.waiting().load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_connection_that_fills_the_gate_leaves_places_for_others() {
        const PLACES: usize = 100;
        let (gate, crowd, other) =
            (ConcurrencyLimit::new(PLACES, "a test"), Peer::new(), Peer::new());
        let mut calls: Vec<_> =
            (0..PLACES).map(|_| Box::pin(gate.pass(&crowd, pending::<()>()))).collect();
        for call in &mut calls {
            let _ = poll!(call);
        }
        assert_eq!(gate.waiting(), 75, "a quarter is kept");
        let mut few: Vec<_> =
            (0..FEW).map(|_| Box::pin(gate.pass(&other, pending::<()>()))).collect();
        for call in &mut few {
            assert!(poll!(call).is_pending(), "it has a place");
        }
        assert_eq!(
            gate.pass(&other, async {}).await,
            Err(RequestError::Overloaded),
            "no longer few"
        );
    }

    #[tokio::test]
    async fn a_panic_ends_its_own_call_only_and_is_counted() {
        let (gate, peer) = (ConcurrencyLimit::new(1, "a test"), Peer::new());
        for _ in 0..3 {
            let told = gate.pass(&peer, async { panic!("told to") }).await;
            assert_eq!(told, Err::<(), _>(RequestError::Panicked));
            assert_eq!(gate.pass(&peer, async {}).await, Ok(()));
        }
        assert_eq!((gate.waiting(), gate.panics()), (0, 3));
    }

    #[tokio::test]
    async fn an_overload_is_over_once_calls_are_few() {
        let (gate, peer) = (ConcurrencyLimit::new(1, "a test"), Peer::new());
        let mut long = Box::pin(gate.pass(&peer, pending::<()>()));
        assert!(poll!(&mut long).is_pending());
        assert!(gate.pass(&peer, async {}).await.is_err());
        assert!(gate.shared.is_crowded.load(Ordering::Relaxed));
        drop(long);
        assert!(gate.pass(&peer, async {}).await.is_ok());
        assert!(!gate.shared.is_crowded.load(Ordering::Relaxed));
    }
}
