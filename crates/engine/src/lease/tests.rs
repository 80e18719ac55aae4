//! The lease client on a store that follows a script.

mod budget;
mod drain;
mod stall;

use std::collections::BTreeMap;
use std::sync::Arc;

use ratelease_rules::key::Key;
use ratelease_rules::{Limit, Unit};
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::store::memory::MemoryStore;
use crate::store::{GrantFuture, PodCountFuture, Purpose};

/// The fate of an ask.
#[derive(Debug, Clone, PartialEq)]
enum Fate {
    /// The ask is answered once the gate lets it pass, one permit each.
    Gated,
    /// The ask is answered after this long.
    After(Duration),
    /// The ask fails after this long.
    Fails(Duration, StoreError),
    /// The ask is never answered.
    Never,
}

type FateOf = Box<dyn Fn(&Ask) -> Fate + Send + Sync>;

/// A store whose shards are numbered by `want`, and that reports each ask that starts.
struct Scripted {
    memory: MemoryStore,
    gate: Semaphore,
    fate: FateOf,
    started: mpsc::UnboundedSender<Ask>,
    silence: Mutex<Option<Duration>>,
}

impl Store for Scripted {
    fn shard(&self, ask: &Ask) -> usize {
        usize::try_from(ask.want).unwrap()
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        Box::pin(async move {
            let _ = self.started.send(*ask);
            match (self.fate)(ask) {
                Fate::Gated => self.gate.acquire().await.unwrap().forget(),
                Fate::After(wait) if wait.is_zero() => {}
                Fate::After(wait) => tokio::time::sleep(wait).await,
                Fate::Fails(wait, error) => {
                    tokio::time::sleep(wait).await;
                    return Err(error);
                }
                Fate::Never => std::future::pending().await,
            }
            self.memory.take(ask)
        })
    }

    fn silence(&self, _shard: usize) -> Option<Duration> {
        *self.silence.lock()
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.memory.beat(beat)
    }

    fn describe(&self) -> String {
        "scripted".into()
    }
}

struct Rig {
    client: LeaseClient,
    store: Arc<Scripted>,
    started: mpsc::UnboundedReceiver<Ask>,
    replies: mpsc::UnboundedReceiver<Reply>,
}

impl Rig {
    fn new(fate: impl Fn(&Ask) -> Fate + Send + Sync + 'static) -> Self {
        let (started, has_started) = mpsc::unbounded_channel();
        let (reply, replies) = mpsc::unbounded_channel();
        let store = Arc::new(Scripted {
            memory: MemoryStore::system(),
            gate: Semaphore::new(0),
            fate: Box::new(fate),
            started,
            silence: Mutex::default(),
        });
        let on_reply = Box::new(move |answer| reply.send(answer).unwrap());
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let client = LeaseClient::open(shared, Clock::start(), Duration::ZERO, on_reply);
        Self { client, store, started: has_started, replies }
    }

    /// Returns the next `count` replies.
    async fn replies(&mut self, count: usize) -> Vec<Reply> {
        let mut replies = Vec::new();
        while replies.len() < count {
            replies.push(self.replies.recv().await.unwrap());
        }
        replies
    }

    async fn start(&mut self, count: usize) {
        for _ in 0..count {
            self.started.recv().await.unwrap();
        }
    }

    fn opened(&self) -> u64 {
        self.client.shards().iter().map(|shard| shard.opened).sum()
    }

    fn count(&self, counter: Counter) -> u64 {
        self.client.counts().into_iter().find(|(other, _)| *other == counter).unwrap().1
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn ask(key: u64, shard: u64) -> Ask {
    let limit = Limit::fixed_window(1_000, Unit::Minute);
    let key = Key::for_test(key);
    Ask { want: shard, charge_denied: true, ..Ask::look(key, limit) }
}

/// Shard 0 waits at the gate.
fn gated(ask: &Ask) -> Fate {
    if ask.want == 0 { Fate::Gated } else { Fate::After(Duration::ZERO) }
}

#[tokio::test(start_paused = true)]
async fn what_queues_behind_a_batch_travels_together() {
    let mut rig = Rig::new(|_| Fate::After(ms(2)));
    for key in 0..BATCH_MAX as u64 + 6 {
        rig.client.queue(ask(key, 0));
    }
    let mut batches: BTreeMap<Time, usize> = BTreeMap::new();
    for reply in rig.replies(BATCH_MAX + 6).await {
        *batches.entry(reply.asked_at).or_default() += 1;
    }
    assert_eq!(batches.into_values().collect::<Vec<_>>(), [BATCH_MAX, 6]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_leaves_with_the_first_reply_of_the_last_or_a_millisecond_after_it() {
    let begun = Clock::start();
    for (first, leaves) in [(Duration::from_micros(300), ms(1)), (ms(10), ms(2))] {
        let mut rig = Rig::new(move |ask| {
            Fate::After(if ask.key == Key::for_test(0) { first } else { ms(10) })
        });
        rig.client.queue(ask(0, 0));
        rig.client.queue(ask(1, 0));
        rig.start(2).await;
        let at = begun.now();
        rig.client.queue(ask(2, 0));
        rig.client.queue(ask(3, 0));
        rig.start(2).await;
        assert!(begun.now().since(at) <= leaves, "{:?}", begun.now().since(at));
        rig.replies(4).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_ask_delays_no_other_of_its_shard() {
    let slow = |ask: &Ask| Fate::After(if ask.key == Key::for_test(0) { ms(250) } else { ms(1) });
    let mut rig = Rig::new(slow);
    let begun = Clock::start();
    for key in 0..10 {
        rig.client.queue(ask(key, 0));
    }
    for reply in rig.replies(9).await {
        assert_ne!(reply.ask.key, Key::for_test(0));
    }
    assert!(begun.now() < Time::default() + ms(5), "{:?}", begun.now());
    rig.client.queue(ask(10, 0));
    assert_eq!(rig.replies(1).await[0].ask, ask(10, 0), "nor of those that follow");
    assert!(begun.now() < Time::default() + ms(9), "{:?}", begun.now());
    assert_eq!(rig.replies(1).await[0].ask, ask(0, 0));
}

#[tokio::test(start_paused = true)]
async fn asks_of_one_shard_that_are_out_have_a_ceiling_and_so_have_those_that_queue() {
    let mut rig = Rig::new(|_| Fate::Gated);
    let out = 4 * BATCH_MAX;
    for key in 0..out as u64 {
        rig.client.queue(ask(key, 0));
    }
    rig.start(out).await;
    for key in 0..QUEUE_MAX as u64 {
        rig.client.queue(ask(key, 0));
    }
    tokio::time::advance(ms(10)).await;
    assert!(rig.started.try_recv().is_err() && rig.replies.try_recv().is_err());
    rig.client.queue(ask(7, 0));
    let refused = rig.replies.try_recv().unwrap();
    assert_eq!((refused.ask, refused.outcome), (ask(7, 0), Err(StoreError::QueueFull)));
    rig.store.gate.add_permits(1);
    rig.start(1).await;
}

#[tokio::test]
async fn a_stuck_shard_delays_no_other() {
    let mut rig = Rig::new(gated);
    rig.client.queue(ask(0, 0));
    rig.start(1).await;
    rig.client.queue(ask(1, 1));
    assert_eq!(rig.replies.recv().await.unwrap().ask, ask(1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_ask_that_is_never_answered_is_given_up() {
    let mut rig = Rig::new(|_| Fate::Never);
    rig.client.queue(ask(0, 0));
    assert_eq!(rig.replies.recv().await.unwrap().outcome, Err(StoreError::TimedOut));
}

#[tokio::test(start_paused = true)]
async fn replies_of_a_hot_key_say_so_until_it_cools() {
    let mut rig = Rig::new(|_| Fate::After(Duration::ZERO));
    let hot = |replies: Vec<Reply>| replies[0].hot;
    for n in 0..198 {
        rig.client.queue(ask(if n % 2 == 0 { 1_000 } else { n }, 0));
        assert!(!hot(rig.replies(1).await), "{n}");
    }
    rig.client.queue(ask(1_000, 0));
    assert!(hot(rig.replies(1).await), "its hundredth");
    rig.client.queue(ask(1, 0));
    assert!(!hot(rig.replies(1).await), "another key");
    let hot_key = |rig: &Rig| rig.client.shards()[0].hot_key;
    let flagged = HotKey { key: Key::for_test(1_000), share: 0.5, relieved: 1 };
    assert_eq!((hot_key(&rig), rig.count(Counter::HotKeyRelieved)), (Some(flagged), 1));
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(hot_key(&rig), None);
    rig.client.queue(ask(1_000, 0));
    assert!(!hot(rig.replies(1).await));
}
