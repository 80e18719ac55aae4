//! Responses on their way to pods: their bytes are bounded, and a pod that does not answer is
//! disconnected.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::sleep;
use tracing::debug;

use super::connections::ConnectedPod;
use super::wire::DiscoveryResponse;

/// Maximum bytes of all responses that are not answered yet, in KiB: what a pod has not read is
/// held here. Further responses wait.
const UNANSWERED_KIB_MAX: u32 = 256 << 10;

/// A pod has this long to answer a response, and further time for its size: that of a link of 2
/// Mbit/s.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND: u64 = 256 << 10;

/// The bytes that may be on their way. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub(super) struct Deliveries(Arc<Semaphore>);

/// Room for a response.
#[derive(Debug)]
pub(super) struct Room(OwnedSemaphorePermit);

/// A response that is not answered yet.
#[derive(Debug)]
pub(super) struct Unanswered(oneshot::Sender<()>);

// === impl Deliveries ===

impl Default for Deliveries {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(UNANSWERED_KIB_MAX as usize)))
    }
}

impl Deliveries {
    /// Waits until a response of this size may be made; `None` if `closed` resolves before.
    pub(super) async fn room(
        &self,
        bytes: usize,
        closed: impl Future<Output = ()>,
    ) -> Option<Room> {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).saturating_add(1);
        // The largest one waits until half of all is free.
        let kib = kib.min(UNANSWERED_KIB_MAX / 2);
        tokio::select! {
            permit = Arc::clone(&self.0).acquire_many_owned(kib) => permit.ok().map(Room),
            () = closed => None,
        }
    }
}

// === impl Room ===

impl Room {
    /// Keeps the room until the pod has answered `response`, or its connection has ended. If that
    /// takes too long, the connection is closed. The end of the stream alone frees nothing: what
    /// the pod has not read is still held.
    pub(super) fn deliver(self, response: &DiscoveryResponse, pod: &ConnectedPod) -> Unanswered {
        let (sender, answer) = oneshot::channel();
        let bytes = u64::try_from(response.encoded_len()).unwrap_or(u64::MAX);
        let max = ANSWER_MAX + Duration::from_secs(bytes / BYTES_PER_SECOND);
        let pod = pod.clone();
        tokio::spawn(async move {
            let _room = self.0;
            let answered = async {
                if answer.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = answered => {}
                () = pod.ended() => {}
                () = sleep(max) => {
                    debug!(peer = %pod.address, "a pod is disconnected: it did not answer");
                    pod.close();
                }
            }
        });
        Unanswered(sender)
    }
}

// === impl Unanswered ===

impl Unanswered {
    /// Notes that the pod has answered, and so read the response.
    pub(super) fn answered(self) {
        // An error means that the connection has ended.
        let _ = self.0.send(());
    }
}
