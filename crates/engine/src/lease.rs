//! The lease client: the only path from a request to the store.
//!
//! Asks queue by shard. Asks that queue while the last batch of a shard is out are sent together,
//! so batches grow with the load. Each reply is delivered as soon as it arrives, so no ask delays
//! another. A shard that fails or stalls opens its breaker: asks are refused at once until a probe
//! succeeds. Late replies of a shard that still replies are no failures. As the budget of asks of a
//! shard runs out, asks ahead are dropped first, then probes of empty keys, and others never.
//! Replies go to the function that the lease client was opened with.
//!
//! The limiter decides how much to ask for, with [`size`]; the client does not.

mod hot_shard_key;
mod shard;
pub mod size;

use std::collections::HashMap;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Future;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use ratelease_rules::key::Key;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Sleep, sleep_until, timeout};

use crate::counter::{Count, Counter};
use crate::lease::shard::{Shard, Silence};
use crate::order::Follow;
use crate::span_context;
use crate::store::stores::SHARDS_OF_ALL_MAX;
use crate::store::{Ask, Grant, Heartbeat, Store, StoreError};
use crate::time::{Clock, Time};

pub use hot_shard_key::HotKey;
pub use shard::{BreakerState, ShardCounters, ShardSnapshot};

/// The largest number of asks in a batch.
pub const BATCH_MAX: usize = 256;

/// The largest number of asks that wait for one shard: 16 batches. Further asks are refused at
/// once.
pub const QUEUE_MAX: usize = 16 * BATCH_MAX;

/// The longest time for one ask. The store has shorter deadlines of its own; this one holds even if
/// the store misses them. Requests have their own, much shorter deadlines.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);

/// How long [`LeaseClient::wait_for_replies`] waits. Queues of unavailable shards end sooner.
const REPLIES_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long [`LeaseClient::send_wait`] waits for room in the queue. A shard that serves asks
/// makes room within a few milliseconds.
const ROOM_WAIT_MAX: Duration = Duration::from_millis(250);

/// Timeout of the heartbeat that announces that the pod leaves.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// Number of pods that share the budget of asks until [`LeaseClient::set_pods`] sets it.
const PODS_FIRST: u32 = 16;

/// Sends asks to the store, and the store's replies to the function that the lease client was
/// opened with.
pub struct LeaseClient {
    queues: Mutex<Queues>,
    shared: Arc<Shared>,
}

/// The reply to one ask.
#[derive(Debug)]
pub struct Reply {
    /// The ask that this answers.
    pub ask: Ask,
    /// The time just before the ask was sent: durations in the grant count from here.
    pub asked_at: Time,
    /// The shard that was asked.
    pub shard: usize,
    /// The key is the hot key of its shard. It should be asked for less often, with larger leases
    /// and rarer probes.
    pub hot: bool,
    /// The store's reply.
    pub outcome: Result<Grant, StoreError>,
}

/// Receives replies, so it must be short and must not block. It is called in the shard's task; or,
/// for an ask that is refused at once, in the thread that calls [`LeaseClient::queue`], which must
/// hold no lock that this takes.
pub type OnReply = Box<dyn Fn(Reply) + Send + Sync>;

struct Queues {
    /// At most [`SHARDS_OF_ALL_MAX`] queues; `None` once the lease client is closed.
    open: Option<OpenQueues>,
    /// The state of each shard, which outlives the shard's queues.
    shards: HashMap<usize, Arc<Shard>>,
    tasks: JoinSet<()>,
    /// Where the tasks of the shards run, so that they do not take turns with the connections of
    /// the thread that asks first; `None` for the runtime of that thread.
    runtime: Option<Handle>,
}

/// Queues that accept asks.
struct OpenQueues {
    senders: HashMap<usize, mpsc::Sender<Queued>>,
    guard: DrainGuard,
    /// Closed once every task has dropped its guard.
    drained: mpsc::Receiver<Infallible>,
}

/// Where to queue one ask.
struct ShardSender {
    shard: Arc<Shard>,
    sender: mpsc::Sender<Queued>,
    other: Option<Arc<Shard>>,
}

/// An ask that the shard admits.
struct Queued {
    ask: Ask,
    /// The shard of the other name that the ask visits ([`Store::other_name`]), if that is another.
    other: Option<Arc<Shard>>,
}

struct Shared {
    store: Arc<dyn Store>,
    on_reply: OnReply,
    clock: Clock,
    wait_min: Duration,
    /// Number of live pods that share the budget of asks.
    pods: AtomicU32,
    beats: HeartbeatGate,
    /// Panics of the store and of `on_reply`; each failed only its own ask.
    panics: AtomicU64,
    /// Asks that an open breaker refused.
    rejected_open: AtomicU64,
    /// Asks that were dropped because the budget was spent.
    shed: AtomicU64,
    /// Replies that flagged their key as hot.
    relieved: AtomicU64,
}

// === impl LeaseClient ===

impl LeaseClient {
    /// Opens the lease client. The queue of a shard is made when the shard is first asked, and its
    /// task runs in the runtime that this is called in, if there is one.
    ///
    /// `wait_min` is the time that every request may wait for its reply: no shorter silence of a
    /// shard is a stall.
    pub fn open(
        store: Arc<dyn Store>,
        clock: Clock,
        wait_min: Duration,
        on_reply: OnReply,
    ) -> Self {
        let queues = Queues {
            open: Some(OpenQueues::new()),
            shards: HashMap::new(),
            tasks: JoinSet::new(),
            runtime: Handle::try_current().ok(),
        };
        let shared = Shared {
            store,
            on_reply,
            clock,
            wait_min,
            pods: AtomicU32::new(PODS_FIRST),
            beats: HeartbeatGate::default(),
            panics: AtomicU64::default(),
            rejected_open: AtomicU64::default(),
            shed: AtomicU64::default(),
            relieved: AtomicU64::default(),
        };
        Self { queues: Mutex::new(queues), shared: Arc::new(shared) }
    }

    /// Divides the fleet's budget of asks by `pods`.
    pub fn set_pods(&self, pods: u32) {
        self.shared.pods.store(pods, Ordering::Relaxed);
    }

    /// Queues `ask` for its shard; never waits. If the breaker is open, the budget spent, the queue
    /// full or the lease client closed, the ask is answered at once. An ask of a traced request
    /// carries the span of that request.
    pub fn queue(&self, ask: Ask) {
        let ask = Ask { cause: span_context::current(), ..ask };
        let Some(ShardSender { shard, sender, other }) = self.sender_of(&ask) else {
            let (asked_at, shard) = (self.shared.clock.now(), self.shard(&ask));
            let outcome = Err(StoreError::Closed);
            return self.shared.reply(Reply { ask, asked_at, shard, hot: false, outcome });
        };
        // Reserve room first: an ask that the breaker admits may be its only probe, which has to
        // leave.
        let sent = match sender.try_reserve() {
            Ok(room) => {
                let admitted = self.shared.admit(&shard, other.as_deref(), &ask);
                admitted.map(|()| room.send(Queued { ask, other }))
            }
            Err(_) if shard.has_breaker_closed() => Err(StoreError::QueueFull),
            Err(_) => {
                self.shared.rejected_open.fetch_add(1, Ordering::Relaxed);
                Err(StoreError::Unavailable)
            }
        };
        if let Err(refused) = sent {
            self.shared.refuse(ask, &shard, refused);
        }
    }

    /// Whether [`LeaseClient::queue`] would send `ask` now: the client is open, the breaker closed,
    /// and the queue has room. The budget is not checked, since it never drops an ask that gives
    /// tokens back.
    pub fn takes(&self, ask: &Ask) -> bool {
        let (number, other) = (self.shard(ask), self.shared.other_shard(ask));
        let now = self.shared.clock.now();
        let queues = self.queues.lock();
        let Some(open) = &queues.open else { return false };
        let other = other.and_then(|other| queues.shards.get(&other));
        other.is_none_or(|other| other.admits_visit(now))
            && queues.shards.get(&number).is_none_or(|shard| shard.has_breaker_closed())
            && open.senders.get(&number).is_none_or(|sender| sender.capacity() > 0)
    }

    /// Queues `ask`, and waits for room for a limited time. This is for tokens that go back while
    /// no request waits for the reply. If the breaker is open or the lease client closed, the ask
    /// is dropped and its tokens end with their window.
    pub async fn send_wait(&self, ask: Ask) {
        let Some(ShardSender { shard, sender, other }) = self.sender_of(&ask) else { return };
        // This fails if the lease client was closed meanwhile, or if the queue does not move. Room
        // comes first: an ask that the breaker admits may be its only probe.
        if let Ok(Ok(room)) = timeout(ROOM_WAIT_MAX, sender.reserve()).await
            && self.shared.admit(&shard, other.as_deref(), &ask).is_ok()
        {
            room.send(Queued { ask, other });
        }
    }

    /// Tells the store that a pod is alive, or that it leaves, and returns the number of live pods,
    /// within a bounded time. No heartbeat that says that the pod is alive arrives after the one
    /// that says that it leaves.
    ///
    /// # Errors
    ///
    /// The store did not answer with a number, or the pod has left.
    pub async fn beat(&self, beat: Heartbeat) -> Result<u32, StoreError> {
        let Shared { store, beats, .. } = &*self.shared;
        if beat.leaves {
            beats.end().await;
            let beaten = timeout(LEAVE_MAX, store.beat(beat)).await;
            return beaten.unwrap_or(Err(StoreError::TimedOut));
        }
        let beaten = beats.unless_left(timeout(EXCHANGE_MAX, async { store.beat(beat).await }));
        let beaten = beaten.await.ok_or(StoreError::Closed)?;
        beaten.unwrap_or(Err(StoreError::TimedOut))
    }

    /// Follows the orders of operators for single keys; never returns.
    pub async fn follow_orders(&self, follow: Follow<'_>) {
        self.shared.store.follow_orders(follow).await;
    }

    /// The states of the shards that have been asked, in order of their numbers.
    pub fn shards(&self) -> Vec<ShardSnapshot> {
        let Shared { store, clock, .. } = &*self.shared;
        let now = clock.now();
        let snapshot = |shard: &Arc<Shard>| shard.snapshot(store.server(shard.number()), now);
        self.all_shards().iter().map(snapshot).collect()
    }

    /// The counters of each shard's asks, in order of the shards' numbers.
    pub fn shard_counters(&self) -> Vec<ShardCounters> {
        self.all_shards().iter().map(|shard| shard.counters()).collect()
    }

    /// Event counters of the client and of the store.
    pub fn counts(&self) -> Vec<Count> {
        let Shared { store, panics, rejected_open, shed, relieved, .. } = &*self.shared;
        let mut counts = store.counts();
        counts.extend([
            (Counter::AsksRejectedOpen, rejected_open.load(Ordering::Relaxed)),
            (Counter::AsksShed, shed.load(Ordering::Relaxed)),
            (Counter::BreakerOpened, self.shards().iter().map(|shard| shard.opened).sum()),
            (Counter::HotKeyRelieved, relieved.load(Ordering::Relaxed)),
            (Counter::LeasePanics, panics.load(Ordering::Relaxed)),
        ]);
        counts
    }

    /// Returns once the asks that queued so far have been answered, or after a second. For
    /// unavailable shards it waits a quarter of a second. The lease client accepts further asks.
    pub async fn wait_for_replies(&self) {
        // Replies to the other asks may still arrive later.
        let _ = timeout(REPLIES_WAIT_MAX, self.end_queues(Some(OpenQueues::new()))).await;
    }

    /// Accepts no more asks and returns once those that queued have been answered. For unavailable
    /// shards it waits a short time only.
    pub async fn close(&self) {
        self.end_queues(None).await;
    }

    /// Replaces the present queues by `open`. The present queues end once they are empty.
    async fn end_queues(&self, open: Option<OpenQueues>) {
        let ended = std::mem::replace(&mut self.queues.lock().open, open);
        let Some(OpenQueues { senders, guard, mut drained }) = ended else { return };
        drop((senders, guard));
        // Nothing is ever sent: `recv` returns `None` once the last guard is dropped.
        while drained.recv().await.is_some() {}
    }

    /// All shards, in order of their numbers: the shards of one store stand together.
    fn all_shards(&self) -> Vec<Arc<Shard>> {
        let mut shards: Vec<_> = self.queues.lock().shards.values().cloned().collect();
        shards.sort_by_key(|shard| shard.number());
        shards
    }

    /// The shard to which `ask` would be sent.
    pub fn shard(&self, ask: &Ask) -> usize {
        self.shared.shard(ask)
    }

    /// The shard of `ask`, the sender of its queue, and the shard of the ask's other name; `None`
    /// once the lease client is closed.
    fn sender_of(&self, ask: &Ask) -> Option<ShardSender> {
        let (number, other) = (self.shard(ask), self.shared.other_shard(ask));
        let Queues { open, shards, tasks, runtime } = &mut *self.queues.lock();
        let OpenQueues { senders, guard, .. } = open.as_mut()?;
        let mut shard_of = |number| {
            let name = || self.shared.store.store_name(number);
            Arc::clone(shards.entry(number).or_insert_with(|| Shard::new(number, name())))
        };
        let (shard, other) = (shard_of(number), other.map(shard_of));
        let sender = senders.entry(number).or_insert_with(|| {
            while tasks.try_join_next().is_some() {} // tasks of queues that have ended
            let (sender, asks) = mpsc::channel(QUEUE_MAX);
            let shared = Arc::clone(&self.shared);
            let task = run_dispatch(Arc::clone(&shard), shared, asks, guard.clone());
            match runtime {
                Some(runtime) => tasks.spawn_on(task, runtime),
                None => tasks.spawn(task),
            };
            sender
        });
        Some(ShardSender { shard, sender: sender.clone(), other })
    }
}

// === impl OpenQueues ===

impl OpenQueues {
    fn new() -> Self {
        let (guard, drained) = mpsc::channel(1);
        Self { senders: HashMap::new(), guard, drained }
    }
}

// === impl Shared ===

impl Shared {
    fn shard(&self, ask: &Ask) -> usize {
        self.store.shard(ask).min(SHARDS_OF_ALL_MAX - 1)
    }

    /// The shard of the other name that `ask` visits, if that is another.
    fn other_shard(&self, ask: &Ask) -> Option<usize> {
        let key = self.store.other_name(ask)?;
        Some(self.shard(&Ask { key, ..*ask })).filter(|other| *other != self.shard(ask))
    }

    /// Whether `ask` may be sent, which visits a name at the shard `other` too.
    fn admit(&self, shard: &Shard, other: Option<&Shard>, ask: &Ask) -> Result<(), StoreError> {
        let now = self.clock.now();
        // Asked first: an ask that the breaker of its own shard admits may be its only probe.
        let admitted = if other.is_none_or(|other| other.admits_visit(now)) {
            shard.admit(ask, self.pods.load(Ordering::Relaxed), now)
        } else {
            Err(StoreError::Unavailable)
        };
        match admitted {
            Ok(()) => other.into_iter().for_each(|other| other.begin_visit(now)),
            Err(StoreError::Unavailable) => _ = self.rejected_open.fetch_add(1, Ordering::Relaxed),
            Err(StoreError::Shed) => _ = self.shed.fetch_add(1, Ordering::Relaxed),
            _ => {}
        }
        admitted
    }

    /// Answers an ask that is not sent.
    fn refuse(&self, ask: Ask, shard: &Shard, why: StoreError) {
        let now = self.clock.now();
        let hot = shard.is_hot(ask.key, now);
        self.reply(Reply { ask, asked_at: now, shard: shard.number(), hot, outcome: Err(why) });
    }

    /// Tells the shard of the other name that an ask visited the outcome there.
    fn note_visit(&self, other: &Shard, reply: &Reply) {
        let is_there = |key: &Key| self.shard(&Ask { key: *key, ..reply.ask }) == other.number();
        let outcome = match &reply.outcome {
            Ok(_) => Some(Ok(())),
            Err(StoreError::Elsewhere { at, fault, .. }) if at.as_ref().is_some_and(is_there) => {
                Some(Err(&**fault))
            }
            Err(_) => None,
        };
        other.note_visit(outcome, self.clock.now());
    }

    /// A panic in `on_reply` must not end the shard's task.
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

// The task of one shard: it sends the asks that queue, and delivers each reply as it arrives.
//
// Asks are sent in batches of those that queued while the last batch was out. The next batch
// leaves once the first reply to the last one has arrived, or [`GAP_MAX`] after the last one left,
// so that no slow reply holds it back.

/// The largest number of a shard's asks that are out at once; more wait in the queue.
const OUT_MAX: usize = 4 * BATCH_MAX;

/// A batch leaves at most this long after the one before, even if no reply has come: asks of a
/// distant shard do not wait for a round trip.
const GAP_MAX: Duration = Duration::from_millis(1);

/// How long to wait for the end of a queue whose shard is stalled or has its breaker open.
const DRAIN_AWAY_MAX: Duration = Duration::from_millis(250);

/// Each task holds one until its queue is drained, or the wait for the queue's end is over.
type DrainGuard = mpsc::Sender<Infallible>;

/// An ask that is sent.
struct Sent {
    queued: Queued,
    /// The number of its batch.
    batch: u64,
    sent_at: Time,
    is_hot: bool,
}

/// When the next batch may leave.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    batch: u64,
    /// A reply to the last batch has arrived, or no batch was sent yet.
    is_open: bool,
    /// From this time on the next batch may leave in any case.
    opens: Time,
}

/// Sends a shard's asks.
struct Dispatch<'a, S, F> {
    shard: &'a Shard,
    shared: &'a Shared,
    asks: mpsc::Receiver<Queued>,
    send: S,
    out: FuturesUnordered<F>,
    /// Asks received and not sent yet; at most a batch.
    batch_to_send: Vec<Queued>,
    pace: Pace,
    silence: Silence,
    drain: Drain,
}

/// State of the end of a queue.
struct Drain {
    /// `None` once the end of the queue is no longer waited for.
    guard: Option<DrainGuard>,
    /// When the lease client dropped the queue; it may still hold asks from before that.
    since: Option<Time>,
}

/// A timer that is reset only to fire sooner.
struct Alarm<'a> {
    sleep: Pin<&'a mut Sleep>,
    at: Option<Time>,
}

/// Sends the asks that queue in `asks` until the lease client drops the queue and all of them have
/// been answered.
async fn run_dispatch(
    shard: Arc<Shard>,
    shared: Arc<Shared>,
    asks: mpsc::Receiver<Queued>,
    guard: DrainGuard,
) {
    let send = |sent| lend(&shared, shard.number(), sent);
    let sleep = pin!(sleep_until(shared.clock.instant(Time::default())));
    let dispatch = Dispatch {
        shard: &shard,
        shared: &shared,
        asks,
        send,
        out: FuturesUnordered::new(),
        batch_to_send: Vec::with_capacity(BATCH_MAX),
        pace: Pace { is_open: true, ..Pace::default() },
        silence: Silence::default(),
        drain: Drain { guard: Some(guard), since: None },
    };
    dispatch.run(Alarm { sleep, at: None }).await;
}

/// Sends one ask to `shard`. A timeout of the ask or a panic of the store fails this ask alone.
/// Returns the number of its batch with the reply.
async fn lend(shared: &Shared, shard: usize, sent: Sent) -> (u64, Reply) {
    let Sent { queued: Queued { ask, other }, batch, sent_at, is_hot } = sent;
    let lent = AssertUnwindSafe(async { shared.store.lend(&ask).await }).catch_unwind();
    let outcome = match timeout(EXCHANGE_MAX, lent).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => {
            shared.panics.fetch_add(1, Ordering::Relaxed);
            Err(StoreError::MalformedReply("the store panicked".into()))
        }
        Err(_) => Err(StoreError::TimedOut),
    };
    let reply = Reply { ask, asked_at: sent_at, shard, hot: is_hot, outcome };
    if let Some(other) = other {
        shared.note_visit(&other, &reply);
    }
    (batch, reply)
}

// === impl Dispatch ===

impl<S, F> Dispatch<'_, S, F>
where
    S: Fn(Sent) -> F,
    F: Future<Output = (u64, Reply)>,
{
    async fn run(mut self, mut alarm: Alarm<'_>) {
        while !self.is_done() {
            let now = self.shared.clock.now();
            if self.may_send(now) {
                self.send_batch(now);
            }
            self.drain.note(self.shard, now);
            let receives = self.receives();
            let room = self.room();
            alarm.set(self.due(now), self.shared);
            tokio::select! {
                biased;
                Some((batch, reply)) = self.out.next(), if !self.out.is_empty() => {
                    self.deliver(batch, reply);
                }
                received = self.asks.recv_many(&mut self.batch_to_send, room), if receives => {
                    if received == 0 {
                        self.drain.since = Some(self.shared.clock.now());
                    }
                }
                () = &mut alarm.sleep, if alarm.at.is_some() => {
                    alarm.at = None;
                    self.check_for_stall().await;
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.drain.since.is_some() && self.batch_to_send.is_empty() && self.out.is_empty()
    }

    /// The number of asks that may be sent with the next batch.
    fn room(&self) -> usize {
        BATCH_MAX.min(OUT_MAX.saturating_sub(self.out.len()))
    }

    /// Whether to receive from the queue. A queued ask wakes this task only if the ask can be sent
    /// or a timer must be set for it.
    fn receives(&self) -> bool {
        self.batch_to_send.is_empty() && self.room() > 0 && self.drain.since.is_none()
    }

    fn may_send(&self, now: Time) -> bool {
        !self.batch_to_send.is_empty()
            && self.room() > 0
            && (self.pace.is_open || self.pace.opens <= now)
    }

    /// When the task next has to act, even if nothing arrives.
    fn due(&self, now: Time) -> Option<Time> {
        let leaves = (!self.batch_to_send.is_empty() && self.room() > 0).then_some(self.pace.opens);
        let stalls = || self.silence.due(self.shard.stall_after(self.shared.wait_min));
        let stalls = (!self.out.is_empty()).then(stalls).flatten();
        let drained = self.drain.due().filter(|due| *due > now);
        [leaves, stalls, drained].into_iter().flatten().min()
    }

    fn send_batch(&mut self, now: Time) {
        while self.batch_to_send.len() < self.room() {
            let Ok(ask) = self.asks.try_recv() else { break };
            self.batch_to_send.push(ask);
        }
        self.silence.sent(self.out.is_empty(), now);
        let batch = self.pace.begin(now);
        for queued in self.batch_to_send.drain(..) {
            let is_hot = self.shard.note_sent(&queued.ask, now);
            self.out.push((self.send)(Sent { queued, batch, sent_at: now, is_hot }));
        }
    }

    fn deliver(&mut self, batch: u64, reply: Reply) {
        let now = self.shared.clock.now();
        self.pace.replied(batch);
        let stall_after = self.shard.stall_after(self.shared.wait_min);
        let is_congested = self.silence.ended_since(reply.asked_at, stall_after, now);
        if is_reply(&reply.outcome) {
            self.silence.heard(now);
        }
        self.shard.note(&reply, is_congested, now);
        self.shared.reply(reply);
    }

    /// On a stall, answers the queued asks at once, since waiting would only delay the same answer.
    async fn check_for_stall(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let now = self.shared.clock.now();
        let span = self.shard.stall_after(self.shared.wait_min);
        let silence = || self.shared.store.silence(self.shard.number());
        if !self.silence.stalls(span, now, silence) {
            return;
        }
        self.shard.stall(now);
        let mut batch = std::mem::take(&mut self.batch_to_send);
        batch.drain(..).for_each(|queued| self.refuse_stalled(queued));
        self.batch_to_send = batch;
        // Asks that queued before the stall: a later one may be the breaker's probe.
        for refused in 1..=self.asks.len() {
            let Ok(queued) = self.asks.try_recv() else { break };
            self.refuse_stalled(queued);
            // Each may wake a request in another thread: other shards have their turn.
            if refused % BATCH_MAX == 0 {
                yield_now().await;
            }
        }
    }

    /// Answers an ask that had queued before the stall.
    fn refuse_stalled(&self, Queued { ask, other }: Queued) {
        if let Some(other) = other {
            other.note_visit(None, self.shared.clock.now());
        }
        self.shared.refuse(ask, self.shard, StoreError::Unavailable);
    }
}

/// Whether the shard's server replied, so that it is not silent.
fn is_reply(outcome: &Result<Grant, StoreError>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(StoreError::Unreachable(_) | StoreError::TimedOut | StoreError::Elsewhere { .. }) => {
            false
        }
        Err(_) => true,
    }
}

// === impl Pace ===

impl Pace {
    /// Starts a batch and returns its number.
    fn begin(&mut self, now: Time) -> u64 {
        *self = Self { batch: self.batch + 1, is_open: false, opens: now + GAP_MAX };
        self.batch
    }

    /// Notes that an ask of `batch` has its outcome.
    fn replied(&mut self, batch: u64) {
        self.is_open |= batch == self.batch;
    }
}

// === impl Drain ===

impl Drain {
    /// When to stop waiting for the queue's end, if its shard stays unavailable.
    fn due(&self) -> Option<Time> {
        let since = self.since.filter(|_| self.guard.is_some())?;
        Some(since + DRAIN_AWAY_MAX)
    }

    fn note(&mut self, shard: &Shard, now: Time) {
        if self.due().is_some_and(|due| due <= now) && !shard.has_breaker_closed() {
            self.guard = None;
        }
    }
}

// === impl Alarm ===

impl Alarm<'_> {
    /// Makes the alarm fire at `due` or before.
    fn set(&mut self, due: Option<Time>, shared: &Shared) {
        let Some(due) = due.filter(|due| self.at.is_none_or(|at| *due < at)) else { return };
        self.sleep.as_mut().reset(shared.clock.instant(due));
        self.at = Some(due);
    }
}

// === The order of heartbeats: none arrives after the heartbeat that says that the pod leaves ===

/// The largest number of heartbeats that are out at once; each domain sends one. More wait for
/// their turn.
const HEARTBEATS_MAX: u32 = 64;

/// How long the last heartbeat waits until the heartbeats before it are withdrawn. Withdrawing
/// takes one poll of the task that sends them.
const END_MAX: Duration = Duration::from_millis(100);

/// Keeps heartbeats from arriving after the one that says that the pod leaves.
#[derive(Debug)]
struct HeartbeatGate {
    permits: Semaphore,
    has_left: AtomicBool,
    leaves: Notify,
}

// === impl HeartbeatGate ===

impl HeartbeatGate {
    /// Returns the result of `beat`, or `None` if the pod has left or leaves meanwhile: then the
    /// beat is withdrawn.
    async fn unless_left<T>(&self, beat: impl Future<Output = T>) -> Option<T> {
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
    async fn end(&self) {
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

#[cfg(test)]
mod tests;
