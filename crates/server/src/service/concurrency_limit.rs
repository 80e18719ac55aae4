//! Limits the number of calls that wait at once, and confines a panic to the call that panics.
//!
//! A call takes a permit once its message is complete; the memory of incomplete messages is bounded
//! separately (`body_budget.rs`). The calls that can accumulate here wait for a lease or a slot.
//! Calls that wait for the CPU do so before they come here, and are bounded by the streams of their
//! connections. Refusing these by the length of their queue left nothing decided at all (tried
//! once, at three times the saturating load): an error may well cost as much as a decision.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use futures_util::FutureExt;
use tracing::{info, warn};

use super::RequestError;
use super::body_budget::Peer;

/// One in this many permits is reserved for connections that have few of them: a connection that
/// takes all others shuts out only itself.
const RESERVED_DIVISOR: usize = 4;

/// Number of waiting calls below which a connection may take one of the reserved permits.
const FEW_CALLS: usize = 8;

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
    setting: &'static str,
    waiting: AtomicUsize,
    shed: AtomicU64,
    panics: AtomicU64,
    /// Set while overloaded, so that each overload is logged once.
    is_overloaded: AtomicBool,
}

/// Lets one call wait, until it is dropped.
struct Permit<'a> {
    shared: &'a Shared,
    peer: &'a Peer,
}

// === impl ConcurrencyLimit ===

impl ConcurrencyLimit {
    /// Creates a limit of `calls_max` calls at once, a number that `setting` sets.
    pub(super) fn new(calls_max: usize, setting: &'static str) -> Self {
        let shared = Shared {
            calls_max,
            setting,
            waiting: AtomicUsize::new(0),
            shed: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            is_overloaded: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `call` of `peer`, unless too many wait: then drops it without polling it.
    pub(super) async fn run<T>(
        &self,
        peer: &Peer,
        call: impl Future<Output = T>,
    ) -> Result<T, RequestError> {
        let _permit = self.shared.acquire(peer)?;
        self.catch_panic(call).await
    }

    /// Runs `call`, and returns an error if it panics.
    pub(super) async fn catch_panic<T>(
        &self,
        call: impl Future<Output = T>,
    ) -> Result<T, RequestError> {
        // State that the call shares with others is behind locks and atomics that a panic leaves
        // usable; state that the call owns is dropped, which releases it.
        let result = AssertUnwindSafe(call).catch_unwind().await;
        result.map_err(|_| self.panicked())
    }

    /// Like [`ConcurrencyLimit::catch_panic`], for a call that never waits and takes no permit: it
    /// touches no state that calls on other cores touch, and it runs even when too many calls wait.
    pub(super) fn catch_panic_sync<T>(
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
    fn acquire<'a>(&'a self, peer: &'a Peer) -> Result<Permit<'a>, RequestError> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let of_peer = peer.waiting().fetch_add(1, Ordering::Relaxed);
        let permit = Permit { shared: self, peer };
        let reserved = if of_peer < FEW_CALLS { 0 } else { self.calls_max / RESERVED_DIVISOR };
        if before + reserved >= self.calls_max {
            self.shed.fetch_add(1, Ordering::Relaxed);
            if !self.is_overloaded.swap(true, Ordering::Relaxed) {
                let setting = self.setting;
                let max = self.calls_max;
                warn!("calls are refused: {before} are waiting, of at most {max} ({setting})");
            }
            return Err(RequestError::Overloaded);
        }
        if before <= self.calls_max / 2 && self.is_overloaded.load(Ordering::Relaxed) {
            self.note_recovery();
        }
        Ok(permit)
    }

    #[cold]
    fn note_recovery(&self) {
        if self.is_overloaded.swap(false, Ordering::Relaxed) {
            let shed = self.shed.load(Ordering::Relaxed);
            info!("calls are accepted again; {shed} were refused since the start");
        }
    }
}

impl Drop for Permit<'_> {
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
    async fn calls_above_the_limit_are_refused_at_once_and_permits_are_released() {
        let (limit, peer) = (ConcurrencyLimit::new(2, "a test"), Peer::new());
        for _ in 0..2 {
            let mut first = Box::pin(limit.run(&peer, pending::<()>()));
            let mut second = Box::pin(limit.run(&peer, pending::<()>()));
            assert!(poll!(&mut first).is_pending());
            assert!(poll!(&mut second).is_pending());
            assert_eq!(limit.run(&peer, async {}).await, Err(RequestError::Overloaded));
            assert_eq!(limit.catch_panic_sync(|| Some(Ok(7))), Some(Ok(7)), "it does not wait");
            assert_eq!(limit.waiting(), 2);
            drop(first);
            assert_eq!(limit.run(&peer, async { 7 }).await, Ok(7));
        }
        assert_eq!((limit.waiting(), limit.shed()), (0, 2));
        assert_eq!(peer.waiting().load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_connection_with_many_waiting_calls_leaves_permits_for_others() {
        const CALLS_MAX: usize = 100;
        let (limit, crowd, other) =
            (ConcurrencyLimit::new(CALLS_MAX, "a test"), Peer::new(), Peer::new());
        let mut calls: Vec<_> =
            (0..CALLS_MAX).map(|_| Box::pin(limit.run(&crowd, pending::<()>()))).collect();
        for call in &mut calls {
            let _ = poll!(call);
        }
        assert_eq!(limit.waiting(), 75, "a quarter is reserved");
        let mut few: Vec<_> =
            (0..FEW_CALLS).map(|_| Box::pin(limit.run(&other, pending::<()>()))).collect();
        for call in &mut few {
            assert!(poll!(call).is_pending(), "it has a permit");
        }
        assert_eq!(
            limit.run(&other, async {}).await,
            Err(RequestError::Overloaded),
            "no longer few"
        );
    }

    #[tokio::test]
    async fn a_panic_ends_its_own_call_only_and_is_counted() {
        let (limit, peer) = (ConcurrencyLimit::new(1, "a test"), Peer::new());
        for _ in 0..3 {
            let result = limit.run(&peer, async { panic!("result to") }).await;
            assert_eq!(result, Err::<(), _>(RequestError::Panicked));
            assert_eq!(limit.run(&peer, async {}).await, Ok(()));
        }
        assert_eq!((limit.waiting(), limit.panics()), (0, 3));
    }

    #[tokio::test]
    async fn an_overload_is_over_once_calls_are_few() {
        let (limit, peer) = (ConcurrencyLimit::new(1, "a test"), Peer::new());
        let mut long = Box::pin(limit.run(&peer, pending::<()>()));
        assert!(poll!(&mut long).is_pending());
        assert!(limit.run(&peer, async {}).await.is_err());
        assert!(limit.shared.is_overloaded.load(Ordering::Relaxed));
        drop(long);
        assert!(limit.run(&peer, async {}).await.is_ok());
        assert!(!limit.shared.is_overloaded.load(Ordering::Relaxed));
    }
}
