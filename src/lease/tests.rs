//! The lease desk before a store that waits for permission.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::key::Key;
use crate::rules::{Limit, Unit};
use crate::store::memory::MemoryStore;
use crate::store::{Beat, Beaten, Replies};

/// A store whose exchanges wait for permission, and that notes the size of each batch by shard.
struct Gated {
    gate: Semaphore,
    batches: Mutex<BTreeMap<usize, Vec<usize>>>,
    started: mpsc::UnboundedSender<usize>,
}

impl Store for Gated {
    fn shard(&self, ask: &Ask) -> usize {
        usize::try_from(ask.want).unwrap()
    }

    fn exchange<'a>(&'a self, asks: &'a [Ask]) -> Replies<'a> {
        Box::pin(async move {
            let shard = self.shard(&asks[0]);
            self.batches.lock().entry(shard).or_default().push(asks.len());
            self.started.send(shard).unwrap();
            if shard == 0 {
                self.gate.acquire().await.unwrap().forget();
            }
            asks.iter().map(|_| Err(StoreError::TimedOut)).collect()
        })
    }

    fn beat(&self, _beat: Beat) -> Beaten<'_> {
        Box::pin(std::future::ready(Ok(1)))
    }

    fn describe(&self) -> String {
        "gated".into()
    }
}

struct Rig {
    desk: Desk,
    store: Arc<Gated>,
    started: mpsc::UnboundedReceiver<usize>,
    replies: mpsc::UnboundedReceiver<Reply>,
}

fn rig() -> Rig {
    let (started, has_started) = mpsc::unbounded_channel();
    let (reply, replies) = mpsc::unbounded_channel();
    let store = Arc::new(Gated { gate: Semaphore::new(0), batches: Mutex::default(), started });
    let on_reply = Box::new(move |told| reply.send(told).unwrap());
    let desk =
        Desk::open(Arc::clone(&store) as Arc<dyn Store>, Clock::start(), Duration::ZERO, on_reply);
    Rig { desk, store, started: has_started, replies }
}

fn ask(key: u64, shard: u64) -> Ask {
    let limit = Limit::fixed_window(10, Unit::Minute);
    let key = Key::for_test(key);
    Ask { want: shard, charge_denied: true, ..Ask::look(key, limit) }
}

#[tokio::test]
async fn asks_that_queue_behind_a_batch_travel_together() {
    let mut rig = rig();
    rig.desk.ask(ask(0, 0));
    rig.started.recv().await.unwrap();
    for key in 1..=BATCH_MAX as u64 + 5 {
        rig.desk.ask(ask(key, 0));
    }
    rig.store.gate.add_permits(10);
    for _ in 0..BATCH_MAX + 6 {
        rig.replies.recv().await.unwrap();
    }
    assert_eq!(rig.store.batches.lock()[&0], [1, BATCH_MAX, 5]);
}

#[tokio::test]
async fn a_stuck_shard_delays_no_other() {
    let mut rig = rig();
    rig.desk.ask(ask(0, 0));
    rig.started.recv().await.unwrap();
    rig.desk.ask(ask(1, 1));
    assert_eq!(rig.replies.recv().await.unwrap().ask, ask(1, 1));
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let mut rig = rig();
    rig.desk.ask(ask(0, 0));
    rig.started.recv().await.unwrap();
    for key in 1..=QUEUE_MAX as u64 {
        rig.desk.ask(ask(key, 0));
    }
    assert!(rig.replies.try_recv().is_err());
    rig.desk.ask(ask(7, 0));
    let refused = rig.replies.try_recv().unwrap();
    assert_eq!((refused.ask, refused.outcome), (ask(7, 0), Err(StoreError::Overloaded)));
}

#[tokio::test]
async fn closing_answers_what_has_queued_and_takes_no_more() {
    let mut rig = rig();
    rig.desk.ask(ask(0, 0));
    rig.desk.ask(ask(1, 1));
    rig.store.gate.add_permits(10);
    rig.desk.close().await;
    assert!(rig.replies.try_recv().is_ok());
    assert!(rig.replies.try_recv().is_ok());
    rig.desk.ask(ask(2, 0));
    assert_eq!(rig.replies.try_recv().unwrap().outcome, Err(StoreError::Overloaded));
}

#[tokio::test(start_paused = true)]
async fn an_exchange_that_never_ends_is_given_up() {
    let mut rig = rig();
    rig.desk.ask(ask(0, 0));
    assert_eq!(rig.replies.recv().await.unwrap().outcome, Err(StoreError::TimedOut));
}

#[tokio::test(start_paused = true)]
async fn a_key_with_much_of_a_shards_asks_is_flagged_until_they_end() {
    let (reply, mut replies) = mpsc::unbounded_channel();
    let on_reply = Box::new(move |told| reply.send(told).unwrap());
    let store = Arc::new(MemoryStore::system());
    let desk = Desk::open(store, Clock::start(), Duration::ZERO, on_reply);
    for n in 0..300 {
        desk.ask(ask(if n % 2 == 0 { 1_000 } else { n }, 0));
        replies.recv().await.unwrap();
    }
    let hot_keys = || desk.shards().into_iter().map(|it| it.hot_key).collect::<Vec<_>>();
    assert_eq!(hot_keys(), [Some(HotKey { key: Key::for_test(1_000), share: 0.5 })]);
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(hot_keys(), [None]);
}

/// A process that was stopped finds its timers due and its replies unread, in any order.
#[tokio::test(start_paused = true)]
async fn a_reply_that_this_process_was_too_late_to_read_is_no_stall() {
    let mut rig = rig();
    for (held_up, opened) in [(true, 0), (false, 1)] {
        rig.desk.ask(ask(0, 0));
        rig.started.recv().await.unwrap();
        let span = if held_up { 1_000 } else { 51 };
        tokio::time::advance(Duration::from_millis(span)).await;
        tokio::task::yield_now().await;
        rig.store.gate.add_permits(1);
        rig.replies.recv().await.unwrap();
        assert_eq!(rig.desk.shards()[0].opened, opened, "held up: {held_up}");
    }
}
