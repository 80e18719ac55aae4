//! The lease desk: the only way from a request to the store.
//!
//! Asks queue in a lane for each shard. A lane has one batch on the way at a time and takes
//! whatever queued meanwhile as the next, so that batches grow with the load and a slow shard
//! delays no other. Replies go to the function that the desk was opened with.

pub mod size;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::store::{Ask, Beat, Grant, SHARDS_MAX, Store, StoreError};
use crate::time::{Clock, Time};

/// Asks that travel together at most (`design.md`, Leases).
pub const BATCH_MAX: usize = 256;

/// Asks that wait for one shard at most: 16 batches. More are refused at once.
pub const QUEUE_MAX: usize = 16 * BATCH_MAX;

/// How long a batch may take in all. The store keeps shorter deadlines of its own; this one holds
/// whatever it does. Requests have their own, far shorter.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);

/// What a round trip is taken for before the first was measured.
const ROUND_TRIP_FIRST: Duration = Duration::from_millis(1);

/// Sends asks to the store and its replies to whoever opened the desk.
pub struct Desk {
    lanes: Mutex<Lanes>,
    shared: Arc<Shared>,
}

/// The reply to one ask.
#[derive(Debug)]
pub struct Reply {
    /// What was asked.
    pub ask: Ask,
    /// Just before it was sent: durations in the grant count from here.
    pub asked_at: Time,
    /// What the store said.
    pub outcome: Result<Grant, StoreError>,
}

/// Where replies go. Called in the lane's task: short, and never waiting.
pub type OnReply = Box<dyn Fn(Reply) + Send + Sync>;

#[derive(Default)]
struct Lanes {
    /// At most [`SHARDS_MAX`]; `None` once the desk is closed.
    open: Option<HashMap<usize, mpsc::Sender<Ask>>>,
    tasks: JoinSet<()>,
}

struct Shared {
    store: Arc<dyn Store>,
    on_reply: OnReply,
    clock: Clock,
    /// A moving average, in nanoseconds.
    round_trip: AtomicU64,
}

// === impl Desk ===

impl Desk {
    /// Opens the desk. Lanes are made when their shard is first asked.
    pub fn open(store: Arc<dyn Store>, clock: Clock, on_reply: OnReply) -> Self {
        let round_trip = AtomicU64::new(nanos(ROUND_TRIP_FIRST));
        let lanes = Lanes { open: Some(HashMap::new()), tasks: JoinSet::new() };
        Self {
            lanes: Mutex::new(lanes),
            shared: Arc::new(Shared { store, on_reply, clock, round_trip }),
        }
    }

    /// Queues `ask` for its shard; never waits. An ask that finds the queue full, or the desk
    /// closed, gets its reply at once.
    pub fn ask(&self, ask: Ask) {
        let refused = match self.lane(&ask) {
            Some(lane) => lane.try_send(ask).is_err(),
            None => true,
        };
        if refused {
            let asked_at = self.shared.clock.now();
            (self.shared.on_reply)(Reply { ask, asked_at, outcome: Err(StoreError::Overloaded) });
        }
    }

    /// Queues `ask`, waiting for room. For tokens that go back with nobody waiting for the reply.
    pub async fn ask_patiently(&self, ask: Ask) {
        if let Some(lane) = self.lane(&ask) {
            // The lane is gone only when the desk is closed: the tokens end with their window then.
            let _ = lane.send(ask).await;
        }
    }

    /// Tells the store that a pod is alive; returns how many are, within a bounded time.
    ///
    /// # Errors
    ///
    /// The store did not say.
    pub async fn beat(&self, beat: Beat) -> Result<u32, StoreError> {
        let beaten = tokio::time::timeout(EXCHANGE_MAX, self.shared.store.beat(beat)).await;
        beaten.unwrap_or(Err(StoreError::TimedOut))
    }

    /// What a round trip to the store takes at present.
    pub fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.shared.round_trip.load(Ordering::Relaxed))
    }

    /// Returns once the asks that queued so far have been answered. Takes further ones.
    pub async fn settle(&self) {
        self.end_lanes(Some(HashMap::new())).await;
    }

    /// Takes no more asks and returns once those that queued have been answered.
    pub async fn close(&self) {
        self.end_lanes(None).await;
    }

    /// Puts `open` in the place of the present lanes, which end once they are empty.
    async fn end_lanes(&self, open: Option<HashMap<usize, mpsc::Sender<Ask>>>) {
        let mut tasks = {
            let mut lanes = self.lanes.lock();
            lanes.open = open;
            std::mem::take(&mut lanes.tasks)
        };
        while tasks.join_next().await.is_some() {}
    }

    fn lane(&self, ask: &Ask) -> Option<mpsc::Sender<Ask>> {
        let shard = self.shared.store.shard(ask).min(SHARDS_MAX - 1);
        let mut lanes = self.lanes.lock();
        let Lanes { open, tasks } = &mut *lanes;
        let lane = open.as_mut()?.entry(shard).or_insert_with(|| {
            let (lane, asks) = mpsc::channel(QUEUE_MAX);
            tasks.spawn(Arc::clone(&self.shared).run_lane(asks));
            lane
        });
        Some(lane.clone())
    }
}

// === impl Shared ===

impl Shared {
    async fn run_lane(self: Arc<Self>, mut asks: mpsc::Receiver<Ask>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while asks.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let asked_at = self.clock.now();
            let exchange = self.store.exchange(&batch);
            let outcomes = tokio::time::timeout(EXCHANGE_MAX, exchange).await.unwrap_or_default();
            self.note_round_trip(self.clock.now().since(asked_at));
            let mut outcomes = outcomes.into_iter();
            for ask in batch.drain(..) {
                let outcome = outcomes.next().unwrap_or(Err(StoreError::TimedOut));
                (self.on_reply)(Reply { ask, asked_at, outcome });
            }
        }
    }

    /// An eighth of the news at a time, as TCP smooths its round trip (RFC 6298). Lanes race here
    /// and one may lose its part, which an average bears.
    fn note_round_trip(&self, measured: Duration) {
        let average = self.round_trip.load(Ordering::Relaxed);
        let next = average - average / 8 + nanos(measured) / 8;
        self.round_trip.store(next, Ordering::Relaxed);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
