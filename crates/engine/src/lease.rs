//! The lease desk: the only way from a request to the store.
//!
//! Asks queue by shard. What queued while the last batch of a shard was out travels together, so
//! that batches grow with the load, and each reply is handed over once it is in, so that no ask
//! delays another. A shard that errs or stalls opens its breaker: asks are refused at once until a
//! probe succeeds. A shard that is slow and replies is congested: asks that no request waits for
//! are dropped once the budget of asks is spent. Replies go to the function that the desk was
//! opened with.

mod beats;
mod breaker;
mod budget;
pub mod demand;
mod dispatch;
mod heat;
mod queue;
mod silence;
pub mod size;
mod tally;

pub use breaker::Position;
pub use heat::HotKey;
pub use queue::ShardState;
pub use tally::ShardTally;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use beats::Beats;
use dispatch::DrainGuard;
use queue::ShardQueue;

use crate::span_context;
use crate::store::{Ask, Beat, Count, Grant, SHARDS_MAX, Store, StoreError};
use crate::time::{Clock, Time};

/// Asks that travel together at most.
pub const BATCH_MAX: usize = 256;

/// Asks that wait for one shard at most: 16 batches. More are refused at once.
pub const QUEUE_MAX: usize = 16 * BATCH_MAX;

/// How long an ask may take in all. The store keeps shorter deadlines of its own; this one holds
/// whatever it does. Requests have their own, far shorter.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);

/// How long [`Desk::settle`] waits for replies at most. Queues of shards that are away end sooner.
const SETTLE_MAX: Duration = Duration::from_secs(1);

/// How long [`Desk::ask_patiently`] waits for room at most. A shard that serves asks makes room
/// within a few milliseconds.
const ROOM_WAIT_MAX: Duration = Duration::from_millis(250);

/// How long the heartbeat that says that the pod leaves may take.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// Pods that share the budget of asks until [`Desk::set_pods`] says how many do.
const PODS_FIRST: u32 = 16;

/// Sends asks to the store and its replies to the function that it was opened with.
pub struct Desk {
    queues: Mutex<Queues>,
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
    /// The key is the hot key of its shard, which is to be asked for less often: with larger leases
    /// and rarer probes.
    pub hot: bool,
    /// What the store said.
    pub outcome: Result<Grant, StoreError>,
}

/// Where replies go. Called in the shard's task: short, and never waiting.
pub type OnReply = Box<dyn Fn(Reply) + Send + Sync>;

struct Queues {
    /// At most [`SHARDS_MAX`]; `None` once the desk is closed.
    open: Option<Open>,
    /// How each shard does, whichever of its queues is open.
    states: HashMap<usize, Arc<ShardQueue>>,
    tasks: JoinSet<()>,
}

/// Queues that take asks.
struct Open {
    senders: HashMap<usize, mpsc::Sender<Ask>>,
    guard: DrainGuard,
    /// Closed once every task has dropped its guard.
    drained: mpsc::Receiver<std::convert::Infallible>,
}

/// Where one ask goes.
struct Way {
    queue: Arc<ShardQueue>,
    sender: mpsc::Sender<Ask>,
}

struct Shared {
    store: Arc<dyn Store>,
    on_reply: OnReply,
    clock: Clock,
    max_wait: Duration,
    /// Pods alive, that share the budget of asks.
    pods: AtomicU32,
    beats: Beats,
    /// Of the store and of the function that takes the replies; each failed its own ask alone.
    panics: AtomicU64,
    /// Asks that a breaker kept back.
    kept_back: AtomicU64,
    /// Asks that were dropped for want of budget.
    shed: AtomicU64,
    /// Replies that said that their key is hot.
    relieved: AtomicU64,
}

// === impl Desk ===

impl Desk {
    /// Opens the desk. Queues are made when their shard is first asked.
    ///
    /// `max_wait` is what a request waits for its reply at most: a shard is not taken for stalled
    /// before that.
    pub fn open(
        store: Arc<dyn Store>,
        clock: Clock,
        max_wait: Duration,
        on_reply: OnReply,
    ) -> Self {
        let queues =
            Queues { open: Some(Open::new()), states: HashMap::new(), tasks: JoinSet::new() };
        let (panics, kept_back, shed, relieved) = Default::default();
        let (pods, beats) = (AtomicU32::new(PODS_FIRST), Beats::default());
        let shared = Shared {
            store,
            on_reply,
            clock,
            max_wait,
            pods,
            beats,
            panics,
            kept_back,
            shed,
            relieved,
        };
        Self { queues: Mutex::new(queues), shared: Arc::new(shared) }
    }

    /// Divides the fleet's budget of asks by `pods`.
    pub fn set_pods(&self, pods: u32) {
        self.shared.pods.store(pods, Ordering::Relaxed);
    }

    /// Queues `ask` for its shard; never waits. An ask that finds the breaker open, the budget
    /// spent, the queue full or the desk closed gets its reply at once. Where a request that is
    /// traced sends it, it bears that one's span.
    pub fn ask(&self, ask: Ask) {
        let ask = Ask { cause: span_context::current(), ..ask };
        let shard = self.shard(&ask);
        let Some(Way { queue, sender }) = self.way(shard) else {
            let asked_at = self.shared.clock.now();
            let outcome = Err(StoreError::Overloaded);
            return self.shared.reply(Reply { ask, asked_at, shard, hot: false, outcome });
        };
        // Room first: an ask that the breaker admits may be its only probe.
        let room = sender.try_reserve();
        let refused = match self.shared.admit(&queue, &ask, room.is_ok()) {
            Ok(()) => room.map(|room| room.send(ask)).err().map(|_| StoreError::Overloaded),
            Err(refused) => Some(refused),
        };
        if let Some(refused) = refused {
            self.shared.refuse(ask, &queue, refused);
        }
    }

    /// Whether `ask` would be sent, were it given to [`Desk::ask`] now: the desk is open, the
    /// breaker closed, and the queue has room. It says nothing about the budget, which drops no ask
    /// that gives tokens back.
    pub fn takes(&self, ask: &Ask) -> bool {
        let shard = self.shard(ask);
        let queues = self.queues.lock();
        let Some(open) = &queues.open else { return false };
        queues.states.get(&shard).is_none_or(|queue| queue.is_closed())
            && open.senders.get(&shard).is_none_or(|sender| sender.capacity() > 0)
    }

    /// Queues `ask`, waiting for room, but not for long. For tokens that go back while no request
    /// waits for the reply: where the breaker is open, or the desk closed, they end with their
    /// window.
    pub async fn ask_patiently(&self, ask: Ask) {
        let Some(Way { queue, sender }) = self.way(self.shard(&ask)) else { return };
        // It fails for a desk that was closed meanwhile, and for a queue that stands still. Room
        // first: an ask that the breaker admits may be its only probe.
        if let Ok(Ok(room)) = timeout(ROOM_WAIT_MAX, sender.reserve()).await
            && self.shared.admit(&queue, &ask, true).is_ok()
        {
            room.send(ask);
        }
    }

    /// Tells the store that a pod is alive, or that it leaves; returns how many are, within a
    /// bounded time. None that says that the pod is alive arrives after one that says it leaves.
    ///
    /// # Errors
    ///
    /// The store did not say, or the pod has left.
    pub async fn beat(&self, beat: Beat) -> Result<u32, StoreError> {
        let Shared { store, beats, .. } = &*self.shared;
        if beat.leaves {
            beats.end().await;
            let beaten = timeout(LEAVE_MAX, store.beat(beat)).await;
            return beaten.unwrap_or(Err(StoreError::TimedOut));
        }
        let beaten = beats.unless_left(timeout(EXCHANGE_MAX, async { store.beat(beat).await }));
        let beaten = beaten.await.ok_or(StoreError::Overloaded)?;
        beaten.unwrap_or(Err(StoreError::TimedOut))
    }

    /// How the shards do that have been asked, in order of their numbers.
    pub fn shards(&self) -> Vec<ShardState> {
        let now = self.shared.clock.now();
        let mut states: Vec<_> = self.queues().iter().map(|queue| queue.state(now)).collect();
        states.sort_by_key(|state| state.shard);
        states
    }

    /// What the asks of each shard have come to, in order of their numbers.
    pub fn tallies(&self) -> Vec<ShardTally> {
        let mut tallies: Vec<_> = self.queues().iter().map(|queue| queue.tally()).collect();
        tallies.sort_by_key(|tally| tally.shard);
        tallies
    }

    /// What has happened here and at the store, by name.
    pub fn counts(&self) -> Vec<Count> {
        let Shared { store, panics, kept_back, shed, relieved, .. } = &*self.shared;
        let mut counts = store.counts();
        counts.extend([
            ("asks_kept_back", kept_back.load(Ordering::Relaxed)),
            ("asks_shed", shed.load(Ordering::Relaxed)),
            ("breaker_opened", self.shards().iter().map(|shard| shard.opened).sum()),
            ("hot_key_relieved", relieved.load(Ordering::Relaxed)),
            ("lease_panics", panics.load(Ordering::Relaxed)),
        ]);
        counts
    }

    /// Returns once the asks that queued so far have been answered, or a second has passed. Shards
    /// that are away are waited for a quarter of that. Takes further asks.
    pub async fn settle(&self) {
        // What is not answered by then may still be.
        let _ = timeout(SETTLE_MAX, self.end_queues(Some(Open::new()))).await;
    }

    /// Takes no more asks and returns once those that queued have been answered. Shards that are
    /// away are not waited for long.
    pub async fn close(&self) {
        self.end_queues(None).await;
    }

    /// Puts `open` in the place of the present queues, which end once they are empty.
    async fn end_queues(&self, open: Option<Open>) {
        let ended = std::mem::replace(&mut self.queues.lock().open, open);
        let Some(Open { senders, guard, mut drained }) = ended else { return };
        drop((senders, guard));
        // Nothing is ever sent: it ends with the last guard.
        while drained.recv().await.is_some() {}
    }

    fn queues(&self) -> Vec<Arc<ShardQueue>> {
        self.queues.lock().states.values().cloned().collect()
    }

    /// The shard that `ask` would go to.
    pub fn shard(&self, ask: &Ask) -> usize {
        self.shared.store.shard(ask).min(SHARDS_MAX - 1)
    }

    /// The way to `shard`; none once the desk is closed.
    fn way(&self, shard: usize) -> Option<Way> {
        let Queues { open, states, tasks } = &mut *self.queues.lock();
        let Open { senders, guard, .. } = open.as_mut()?;
        let queue = Arc::clone(states.entry(shard).or_insert_with(|| ShardQueue::new(shard)));
        let sender = senders.entry(shard).or_insert_with(|| {
            while tasks.try_join_next().is_some() {} // those of queues that have ended
            let (sender, asks) = mpsc::channel(QUEUE_MAX);
            let (queue, shared) = (Arc::clone(&queue), Arc::clone(&self.shared));
            tasks.spawn(dispatch::run(queue, shared, asks, guard.clone()));
            sender
        });
        Some(Way { queue, sender: sender.clone() })
    }
}

// === impl Open ===

impl Open {
    fn new() -> Self {
        let (guard, drained) = mpsc::channel(1);
        Self { senders: HashMap::new(), guard, drained }
    }
}

// === impl Shared ===

impl Shared {
    /// Whether `ask` may be sent, for which there `is_room`.
    fn admit(&self, queue: &ShardQueue, ask: &Ask, is_room: bool) -> Result<(), StoreError> {
        if !is_room && queue.is_closed() {
            return Err(StoreError::Overloaded);
        }
        let admitted = queue.admit(ask, self.pods.load(Ordering::Relaxed), self.clock.now());
        match admitted {
            Err(StoreError::Away) => _ = self.kept_back.fetch_add(1, Ordering::Relaxed),
            Err(StoreError::Shed) => _ = self.shed.fetch_add(1, Ordering::Relaxed),
            _ => {}
        }
        admitted
    }

    /// Answers an ask that is not sent.
    fn refuse(&self, ask: Ask, queue: &ShardQueue, why: StoreError) {
        let now = self.clock.now();
        let hot = queue.is_hot(ask.key, now);
        self.reply(Reply { ask, asked_at: now, shard: queue.shard(), hot, outcome: Err(why) });
    }

    /// A panic there must not end the shard's task.
    fn reply(&self, reply: Reply) {
        self.relieved.fetch_add(u64::from(reply.hot), Ordering::Relaxed);
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
