//! A request that waits for its answer: it is decided in the engine's thread, which then wakes its
//! stream.

use std::sync::Arc;

use parking_lot::Mutex;
use ratelease_envoy_abi::Scheduler;
use ratelease_server::request::{RequestError, Transport};
use ratelease_server::service::{Answer, Caller};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::answer::{Outcome, Shown};
use crate::config::FilterConfig;
use crate::engine::Engine;
use crate::owned::OwnedRequest;

/// The event that says that an answer is there.
pub const ANSWERED: u64 = 1;

/// A request that waits. If it is dropped, nothing is charged unless the answer was there already,
/// and the stream is woken no more: so Envoy's worker outlives every use of its scheduler.
#[derive(Debug)]
pub struct Wait {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    /// `None` once the stream is over.
    scheduler: Mutex<Option<Scheduler>>,
    outcome: Mutex<Option<Result<Outcome, RequestError>>>,
}

/// Wakes the stream when it is dropped: a task that panics or is cancelled too lets no stream wait
/// for ever.
struct WakeOnDrop(Arc<Shared>);

// === impl Wait ===

impl Wait {
    /// Decides `request` in the engine's thread, within the time that the filter's configuration
    /// gives.
    pub fn start(
        engine: &Arc<Engine>,
        config: &FilterConfig,
        scheduler: Scheduler,
        request: OwnedRequest,
        shown: Shown,
    ) -> Self {
        let outcome = Mutex::new(None);
        let shared = Arc::new(Shared { scheduler: Mutex::new(Some(scheduler)), outcome });
        let wake = WakeOnDrop(Arc::clone(&shared));
        let (engine, limit) = (Arc::clone(engine), config.timeout);
        let runtime = engine.runtime.clone();
        let task = runtime.spawn(async move {
            let request = request.request();
            let transport = Transport::Grpc;
            let caller = Caller { transport, peer: &engine.peer, patience: Some(limit) };
            let make = |answer: &Answer<'_>| Outcome::of(answer, &shown);
            let answered = engine.service.answer(&caller, &request, make);
            let answered = engine.service.catch_panic(transport, answered);
            let outcome = match timeout(limit, answered).await {
                Ok(answered) => answered.unwrap_or_else(Err),
                Err(_) => Err(RequestError::Overloaded),
            };
            *wake.0.outcome.lock() = Some(outcome);
        });
        Self { shared, task: task.abort_handle() }
    }

    /// The answer; an error if the task has ended without one.
    pub fn take(self) -> Result<Outcome, RequestError> {
        let outcome = self.shared.outcome.lock().take();
        outcome.unwrap_or(Err(RequestError::Panicked))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.shared.scheduler.lock().take();
        self.task.abort();
    }
}

// === impl WakeOnDrop ===

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        // Under the lock, so that the stream does not end meanwhile.
        if let Some(scheduler) = &*self.0.scheduler.lock() {
            scheduler.wake(ANSWERED);
        }
    }
}
