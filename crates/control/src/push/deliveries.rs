//! Responses on their way to pods: their bytes are bounded, and a pod that does not answer is
//! disconnected.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use prost::Message;
use ratelease_listener::Peer;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use tracing::debug;

use super::connections::ConnectedPod;
use crate::permits::{Permit, Permits};

/// Maximum KiB of all unanswered responses. A response stays in memory until the pod has read it,
/// so that further responses wait.
const UNANSWERED_KIB_MAX: u32 = 256 << 10;

/// Maximum KiB of unanswered responses to one client, so that a client that does not answer leaves
/// room to others.
const UNANSWERED_OF_PEER_KIB_MAX: u32 = UNANSWERED_KIB_MAX / 4;

/// Time that a pod has to answer a response, besides the time for its size.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Speed of a link of 2 Mbit/s, in bytes a second: a response has further time for its size at this
/// speed.
const BYTES_PER_SECOND: u64 = 256 << 10;

/// Time that a pod has instead of [`ANSWER_MAX`] while responses to other clients wait for room:
/// pods that do not answer must not hold all of the room for minutes.
const PRESSED_MAX: Duration = Duration::from_secs(10);

/// Speed that replaces [`BYTES_PER_SECOND`] while responses to other clients wait for room.
const PRESSED_BYTES_PER_SECOND: u64 = 1 << 20;

/// The KiB that may be on their way. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct Deliveries {
    permits: Permits<Peer>,
}

/// A wait for room, which resolves once there is some.
pub struct RoomWait {
    bytes: usize,
    room: MaybeDone<BoxFuture<'static, Room>>,
}

/// Room for a response.
#[derive(Debug)]
pub struct Room {
    _permit: Permit<Peer>,
    /// Number of responses that wait for room of other clients than their own.
    waiting: watch::Receiver<usize>,
}

/// A response that is not answered yet.
#[derive(Debug)]
pub struct Unanswered(oneshot::Sender<()>);

// === impl Deliveries ===

impl Default for Deliveries {
    fn default() -> Self {
        Self::new(UNANSWERED_KIB_MAX, UNANSWERED_OF_PEER_KIB_MAX)
    }
}

impl Deliveries {
    /// At most so many KiB of all responses, and of those to one client.
    pub fn new(kib_max: u32, of_peer_kib_max: u32) -> Self {
        Self { permits: Permits::new(kib_max as usize, of_peer_kib_max) }
    }

    /// Begins to wait until a response of this size to this client may be made. The largest one
    /// waits until the client has no other.
    pub fn wait(&self, peer: Peer, bytes: usize) -> RoomWait {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).saturating_add(1);
        let waiting = self.permits.waiting();
        let room = self.permits.take_many(peer, kib).map(|_permit| Room { _permit, waiting });
        RoomWait { bytes, room: maybe_done(room.boxed()) }
    }
}

// === impl RoomWait ===

impl RoomWait {
    /// Whether the room is enough for a response of this size.
    pub fn is_for(&self, bytes: usize) -> bool {
        bytes <= self.bytes
    }

    /// The room, or this again if there is none yet.
    pub fn take(mut self) -> Result<Room, Self> {
        // The next poll of the wait has the task woken.
        let _ = (&mut self).now_or_never();
        Pin::new(&mut self.room).take_output().ok_or(self)
    }
}

impl Future for RoomWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.room).poll(cx)
    }
}

// === impl Room ===

impl Room {
    /// Keeps the room until the pod has answered `response`, or its connection has ended. If that
    /// takes too long, the connection is closed. The end of the stream alone frees nothing: what
    /// the pod has not read is still held.
    pub fn deliver(self, response: &impl Message, pod: &ConnectedPod) -> Unanswered {
        let (sender, answer) = oneshot::channel();
        let bytes = u64::try_from(response.encoded_len()).unwrap_or(u64::MAX);
        let pod = pod.clone();
        tokio::spawn(async move {
            let Self { _permit, waiting } = self;
            let answered = async {
                if answer.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = answered => {}
                () = pod.client.connection.ended() => {}
                () = late(bytes, waiting) => {
                    debug!(peer = %pod.client.address, "a pod is disconnected: it did not answer");
                    pod.client.connection.close();
                }
            }
        });
        Unanswered(sender)
    }
}

/// Resolves once a pod has taken too long to answer a response of so many bytes, while this number
/// of others wait for room.
async fn late(bytes: u64, mut waiting: watch::Receiver<usize>) {
    let max = ANSWER_MAX + Duration::from_secs(bytes / BYTES_PER_SECOND);
    let pressed_max = PRESSED_MAX + Duration::from_secs(bytes / PRESSED_BYTES_PER_SECOND);
    sleep(pressed_max).await;
    tokio::select! {
        // An error means that nothing can wait any more.
        Ok(_) = waiting.wait_for(|number| *number > 0) => {}
        () = sleep(max.saturating_sub(pressed_max)) => {}
    }
}

// === impl Unanswered ===

impl Unanswered {
    /// Notes that the pod has answered, and so read the response.
    pub fn answered(self) {
        // An error means that the connection has ended.
        let _ = self.0.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ratelease_engine::time::{Clock, Time};

    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::of(Some(IpAddr::from([192, 0, 2, last])))
    }

    #[tokio::test]
    async fn a_client_that_answers_nothing_leaves_room_to_others() {
        let deliveries = Deliveries::default();
        let quarter = (UNANSWERED_OF_PEER_KIB_MAX as usize - 1) << 10;
        let hostile = deliveries.wait(peer(1), quarter).take().ok();
        assert!(hostile.is_some());
        let mut waiting = deliveries.wait(peer(1), 1).take().expect_err("it waits");
        assert!(waiting.is_for(1) && !waiting.is_for(2));
        let other = deliveries.wait(peer(2), quarter).take().ok();
        assert!(other.is_some(), "another client does not");
        drop(hostile);
        (&mut waiting).await;
        assert!(waiting.take().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_does_not_answer_has_less_time_while_others_wait_for_room() {
        let deliveries = Deliveries::new(4, 4);
        let took = async |waits_after: Option<u64>, of: u8| {
            let room = deliveries.wait(peer(1), 4 << 10).take().ok().unwrap();
            let clock = Clock::start();
            let late = late(1 << 20, room.waiting.clone());
            let other = async {
                let Some(after) = waits_after else { return };
                sleep(Duration::from_secs(after)).await;
                let waits = deliveries.wait(peer(of), 1).take().expect_err("there is no room");
                sleep(Duration::from_secs(1)).await;
                drop(waits);
            };
            tokio::join!(late, other);
            clock.now().since(Time::default()).as_secs()
        };
        assert_eq!(took(None, 2).await, 64);
        assert_eq!(took(Some(10), 2).await, 11);
        assert_eq!(took(Some(30), 2).await, 31);
        // A response that waited before, and waits no more.
        assert_eq!(took(Some(5), 2).await, 64);
        // One that waits for the room of its own client, which keeps none from others.
        assert_eq!(took(Some(10), 1).await, 64);
    }
}
