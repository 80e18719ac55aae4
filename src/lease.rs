//! The lease desk: the only way from a request to the store.
//!
//! Asks queue in a lane for each shard. A lane has one batch on the way at a time and takes
//! whatever queued meanwhile as the next, so that batches grow with the load and a slow shard
//! delays no other. A shard that errs or stalls opens its lane's breaker: asks are refused at once
//! until a probe succeeds. Replies go to the function that the desk was opened with.

mod breaker;
mod heat;
mod lane;
pub mod size;
mod tally;

pub use breaker::Position;
pub use heat::HotKey;
pub use lane::ShardState;
pub use tally::ShardTally;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use lane::Lane;

use crate::store::{Ask, Beat, Count, Grant, SHARDS_MAX, Store, StoreError};
use crate::telemetry::trace;
use crate::time::{Clock, Time};

/// Asks that travel together at most (`design.md`, Leases).
pub const BATCH_MAX: usize = 256;

/// Asks that wait for one shard at most: 16 batches. More are refused at once.
pub const QUEUE_MAX: usize = 16 * BATCH_MAX;

/// How long a batch may take in all. The store keeps shorter deadlines of its own; this one holds
/// whatever it does. Requests have their own, far shorter.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);

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
    /// The shard that was asked.
    pub shard: usize,
    /// The key makes up so much of its shard's asks that it is to ask less often.
    pub hot: bool,
    /// What the store said.
    pub outcome: Result<Grant, StoreError>,
}

/// Where replies go. Called in the lane's task: short, and never waiting.
pub type OnReply = Box<dyn Fn(Reply) + Send + Sync>;

#[derive(Default)]
struct Lanes {
    /// At most [`SHARDS_MAX`]; `None` once the desk is closed.
    open: Option<HashMap<usize, mpsc::Sender<Ask>>>,
    /// How each shard does, whichever of its lanes is open.
    states: HashMap<usize, Arc<Lane>>,
    tasks: JoinSet<()>,
}

struct Shared {
    store: Arc<dyn Store>,
    on_reply: OnReply,
    clock: Clock,
    patience: Duration,
    /// Of the store and of whoever takes the replies; each failed its own ask alone.
    panics: AtomicU64,
    /// Asks that a breaker kept back.
    kept_back: AtomicU64,
}

// === impl Desk ===

impl Desk {
    /// Opens the desk. Lanes are made when their shard is first asked.
    ///
    /// `patience` is what a request waits for its reply at most: a shard is not taken for stalled
    /// before that.
    pub fn open(
        store: Arc<dyn Store>,
        clock: Clock,
        patience: Duration,
        on_reply: OnReply,
    ) -> Self {
        let lanes = Lanes { open: Some(HashMap::new()), ..Lanes::default() };
        let (panics, kept_back) = Default::default();
        let shared = Shared { store, on_reply, clock, patience, panics, kept_back };
        Self { lanes: Mutex::new(lanes), shared: Arc::new(shared) }
    }

    /// Queues `ask` for its shard; never waits. An ask that finds the breaker open, the queue full
    /// or the desk closed gets its reply at once. Where a request that is traced sends it, it bears
    /// that one's span.
    pub fn ask(&self, ask: Ask) {
        let ask = Ask { cause: trace::current(), ..ask };
        let refused = match self.lane(&ask) {
            Ok(lane) => lane.try_send(ask).err().map(|_| StoreError::Overloaded),
            Err(refused) => Some(refused),
        };
        if let Some(refused) = refused {
            let asked_at = self.shared.clock.now();
            let shard = self.shared.store.shard(&ask);
            let outcome = Err(refused);
            self.shared.reply(Reply { ask, asked_at, shard, hot: false, outcome });
        }
    }

    /// Queues `ask`, waiting for room. For tokens that go back with nobody waiting for the reply:
    /// where the breaker is open, or the desk closed, they end with their window.
    pub async fn ask_patiently(&self, ask: Ask) {
        if let Ok(lane) = self.lane(&ask) {
            // A lane that is gone meanwhile is one of a desk that was closed.
            let _ = lane.send(ask).await;
        }
    }

    /// The shard that `ask` would go to.
    pub fn shard(&self, ask: &Ask) -> usize {
        self.shared.store.shard(ask).min(SHARDS_MAX - 1)
    }

    /// Whether an ask that gives tokens back would be sent now.
    pub fn takes(&self, _ask: &Ask) -> bool {
        true
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

    /// How the shards do that have been asked, in order of their numbers.
    pub fn shards(&self) -> Vec<ShardState> {
        let now = self.shared.clock.now();
        let lanes = self.lanes.lock();
        let mut states: Vec<_> = lanes.states.values().map(|lane| lane.state(now)).collect();
        states.sort_by_key(|state| state.shard);
        states
    }

    /// What the asks of each shard have come to, in order of their numbers.
    pub fn tallies(&self) -> Vec<ShardTally> {
        let lanes: Vec<_> = self.lanes.lock().states.values().cloned().collect();
        let mut tallies: Vec<_> = lanes.iter().map(|lane| lane.tally()).collect();
        tallies.sort_by_key(|tally| tally.shard);
        tallies
    }

    /// What has happened here and at the store, by name.
    pub fn counts(&self) -> Vec<Count> {
        let Shared { store, panics, kept_back, .. } = &*self.shared;
        let mut counts = store.counts();
        counts.extend([
            ("asks_kept_back", kept_back.load(Ordering::Relaxed)),
            ("breaker_opened", self.shards().iter().map(|shard| shard.opened).sum()),
            ("lease_panics", panics.load(Ordering::Relaxed)),
        ]);
        counts
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

    /// The queue for `ask`, or why it is refused.
    fn lane(&self, ask: &Ask) -> Result<mpsc::Sender<Ask>, StoreError> {
        let shard = self.shared.store.shard(ask).min(SHARDS_MAX - 1);
        let mut lanes = self.lanes.lock();
        let Lanes { open, states, tasks } = &mut *lanes;
        let open = open.as_mut().ok_or(StoreError::Overloaded)?;
        let state = states.entry(shard).or_insert_with(|| Lane::new(shard));
        if !state.admits(self.shared.clock.now()) {
            self.shared.kept_back.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError::Away);
        }
        let lane = open.entry(shard).or_insert_with(|| {
            let (lane, asks) = mpsc::channel(QUEUE_MAX);
            tasks.spawn(Arc::clone(state).run(Arc::clone(&self.shared), asks));
            lane
        });
        Ok(lane.clone())
    }
}

// === impl Shared ===

impl Shared {
    /// A panic there must not end the lane.
    fn reply(&self, reply: Reply) {
        if catch_unwind(AssertUnwindSafe(|| (self.on_reply)(reply))).is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
