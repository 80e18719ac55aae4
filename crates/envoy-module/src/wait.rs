//! A request that waits for its answer: it is decided in the engine's thread, which then wakes its
//! stream.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_envoy_abi::Scheduler;
use ratelease_server::request::{RequestError, Transport};
use ratelease_server::service::{Answer, BodyReservation, Caller, Owner};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::answer::{Outcome, Shown};
use crate::config::FilterConfig;
use crate::engine::Engine;
use crate::owned::OwnedRequest;

/// The event for an answer that is there.
pub const ANSWERED: u64 = 1;

/// A request that waits. If it is dropped, the stream is woken no more, so that Envoy's worker
/// outlives every use of its scheduler; and nothing is charged unless the answer was there already,
/// nor held or in use in any case.
#[derive(Debug)]
pub struct Wait {
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// The state that the stream and the engine's thread share.
struct Shared {
    engine: Arc<Engine>,
    request: OwnedRequest,
    /// Counts the request's memory until the stream and the thread have both dropped it.
    _reservation: BodyReservation,
    progress: Mutex<Progress>,
}

struct Progress {
    /// `None` after the stream has ended.
    scheduler: Option<Scheduler>,
    /// The outcome for the stream. The code that takes it out settles the request's holds.
    outcome: Option<Result<Outcome, RequestError>>,
}

/// Wakes the stream when it is dropped, so that no stream waits for a task that panicked or was
/// cancelled.
struct WakeOnDrop(Arc<Shared>);

// === impl Wait ===

impl Wait {
    /// Decides `request` in the engine's thread, within the time that the filter's configuration
    /// gives.
    ///
    /// # Errors
    ///
    /// The requests that wait have used up their memory.
    pub fn start(
        engine: &Arc<Engine>,
        config: &FilterConfig,
        scheduler: Scheduler,
        request: OwnedRequest,
        shown: Shown,
    ) -> Result<Self, RequestError> {
        let _reservation = engine.reserve(request.bytes())?;
        let progress = Mutex::new(Progress { scheduler: Some(scheduler), outcome: None });
        let engine = Arc::clone(engine);
        let runtime = engine.runtime.clone();
        let shared = Arc::new(Shared { engine, request, _reservation, progress });
        let wake = WakeOnDrop(Arc::clone(&shared));
        let (limit, begun_at) = (config.timeout, wake.0.engine.service.now());
        let task = runtime.spawn(async move {
            // The thread may have had others to decide first.
            let late = wake.0.engine.service.now().since(begun_at);
            let outcome = wake.0.decide(limit.saturating_sub(late), &shown).await;
            wake.0.conclude(outcome);
        });
        Ok(Self { shared, task: task.abort_handle() })
    }

    /// The answer, and the ends of the slots that the request has taken; an error if the task has
    /// ended without one.
    pub fn take(self) -> (Result<Outcome, RequestError>, Option<OwnedRequest>) {
        let outcome = self.shared.progress.lock().outcome.take();
        let outcome = outcome.unwrap_or(Err(RequestError::Panicked));
        let ends = OwnedRequest::ends_of_slots(&self.shared.request.request(), &outcome);
        (outcome, ends)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let outcome = {
            let mut progress = self.shared.progress.lock();
            progress.scheduler.take();
            progress.outcome.take()
        };
        // Does not stop a poll that is running: `conclude` then finds that the stream has ended.
        self.task.abort();
        if let Some(outcome) = outcome {
            self.shared.end(outcome);
        }
    }
}

// === impl Shared ===

impl Shared {
    async fn decide(&self, limit: Duration, shown: &Shown) -> Result<Outcome, RequestError> {
        if limit.is_zero() {
            return Err(RequestError::Overloaded);
        }
        let request = self.request.request();
        let (transport, service) = (Transport::Grpc, &self.engine.service);
        let caller = Caller {
            transport,
            peer: &self.engine.peer,
            patience: Some(limit),
            owner: Owner::THIS_PROCESS,
        };
        let make = |answer: &Answer<'_>| Outcome::of(answer, shown);
        let answered = service.answer(&caller, &request, make);
        match timeout(limit, service.catch_panic(transport, answered)).await {
            Ok(answered) => answered.unwrap_or_else(Err),
            Err(_) => Err(RequestError::Overloaded),
        }
    }

    /// Leaves the outcome to the stream, if it still waits.
    fn conclude(&self, outcome: Result<Outcome, RequestError>) {
        let mut progress = self.progress.lock();
        if progress.scheduler.is_some() {
            progress.outcome = Some(outcome);
            return;
        }
        drop(progress);
        self.end(outcome);
    }

    /// Ends the holds of a request whose stream is over: the request has cost nothing.
    fn end(&self, outcome: Result<Outcome, RequestError>) {
        let Ok(Outcome { slots, held, .. }) = outcome else { return };
        let begun = slots.into_iter().chain(held);
        if let Some(ends) = OwnedRequest::ends_of(&self.request.request(), begun, Some(0)) {
            self.engine.settle(ends);
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("request", &self.request).finish_non_exhaustive()
    }
}

// === impl WakeOnDrop ===

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        // Under the lock, so that the stream does not end meanwhile.
        if let Some(scheduler) = &self.0.progress.lock().scheduler {
            scheduler.wake(ANSWERED);
        }
    }
}
