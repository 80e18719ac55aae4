//! The order of heartbeats: none arrives after the heartbeat that says that the pod leaves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

/// The largest number of heartbeats that are out at once; each domain sends one. More wait for
/// their turn.
const HEARTBEATS_MAX: u32 = 64;

/// How long the last heartbeat waits until the heartbeats before it are withdrawn. Withdrawing
/// takes one poll of the task that sends them.
const END_MAX: Duration = Duration::from_millis(100);

/// Keeps heartbeats from arriving after the one that says that the pod leaves.
#[derive(Debug)]
pub(super) struct HeartbeatGate {
    permits: Semaphore,
    has_left: AtomicBool,
    leaves: Notify,
}

// === impl HeartbeatGate ===

impl HeartbeatGate {
    /// Returns the result of `beat`, or `None` if the pod has left or leaves meanwhile: then the
    /// beat is withdrawn.
    pub(super) async fn unless_left<T>(&self, beat: impl Future<Output = T>) -> Option<T> {
        let leaves = self.leaves.notified();
        let permitted = async {
            let _permit = self.permits.acquire().await.ok()?;
            // This comes after `leaves` was made, which from now on reports that the pod leaves.
            if self.has_left.load(Ordering::SeqCst) { None } else { Some(beat.await) }
        };
        tokio::select! {
            biased;
            () = leaves => None,
            result = permitted => result,
        }
    }

    /// Withdraws the heartbeats that are out, and prevents further ones.
    pub(super) async fn end(&self) {
        self.has_left.store(true, Ordering::SeqCst);
        self.leaves.notify_waiters();
        // Heartbeats sent before are ahead on the connection; none follows.
        let _ = timeout(END_MAX, self.permits.acquire_many(HEARTBEATS_MAX)).await;
    }
}

impl Default for HeartbeatGate {
    fn default() -> Self {
        let permits = Semaphore::new(HEARTBEATS_MAX as usize);
        Self { permits, has_left: AtomicBool::new(false), leaves: Notify::new() }
    }
}
