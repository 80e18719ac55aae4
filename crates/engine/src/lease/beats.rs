//! The order of heartbeats: none arrives after the one that says that the pod leaves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

/// Heartbeats that are out at once: one a domain. More wait for their turn.
const BEATS_MAX: u32 = 64;

/// How long the last heartbeat waits for those before it to be withdrawn, which takes one turn of
/// the task that sends them.
const END_MAX: Duration = Duration::from_millis(100);

/// Keeps heartbeats from arriving after the one that says that the pod leaves.
#[derive(Debug)]
pub(super) struct Beats {
    permits: Semaphore,
    has_left: AtomicBool,
    leaves: Notify,
}

// === impl Beats ===

impl Beats {
    /// The result of `beat`; none if the pod has left or leaves meanwhile: then it is withdrawn.
    pub(super) async fn unless_left<T>(&self, beat: impl Future<Output = T>) -> Option<T> {
        let leaves = self.leaves.notified();
        let permitted = async {
            let _permit = self.permits.acquire().await.ok()?;
            // After `leaves` was made: from now on, that tells.
            if self.has_left.load(Ordering::SeqCst) { None } else { Some(beat.await) }
        };
        tokio::select! {
            biased;
            () = leaves => None,
            result = permitted => result,
        }
    }

    /// Withdraws the beats that are out, and keeps back further ones.
    pub(super) async fn end(&self) {
        self.has_left.store(true, Ordering::SeqCst);
        self.leaves.notify_waiters();
        // What was sent before is ahead on the connection; nothing follows it.
        let _ = timeout(END_MAX, self.permits.acquire_many(BEATS_MAX)).await;
    }
}

impl Default for Beats {
    fn default() -> Self {
        let permits = Semaphore::new(BEATS_MAX as usize);
        Self { permits, has_left: AtomicBool::new(false), leaves: Notify::new() }
    }
}
