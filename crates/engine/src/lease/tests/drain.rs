//! The end of a lease client: queued asks are answered, and no unavailable shard holds the others
//! up.

use std::sync::atomic::AtomicBool;

use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{self as rules, Source};
use smallvec::smallvec;
use tokio::sync::Semaphore;

use super::*;
use crate::limiter::{Limiter, Options};

#[tokio::test]
async fn closing_answers_what_has_queued_and_takes_no_more() {
    let mut rig = Rig::new(|_| Fate::After(ms(1)));
    rig.client.queue(ask(0, 0));
    rig.client.queue(ask(1, 1));
    rig.client.close().await;
    assert!(rig.replies.try_recv().is_ok());
    assert!(rig.replies.try_recv().is_ok());
    rig.client.queue(ask(2, 0));
    assert_eq!(rig.replies.try_recv().unwrap().outcome, Err(StoreError::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_away_is_not_waited_for_long() {
    let mut rig = Rig::new(|ask| if ask.want == 0 { Fate::Never } else { Fate::After(ms(200)) });
    let clock = Clock::start();
    rig.client.queue(ask(0, 0));
    rig.client.queue(ask(1, 1));
    rig.start(2).await;
    rig.client.wait_for_replies().await;
    assert_eq!(rig.replies.try_recv().unwrap().ask, ask(1, 1), "the other was waited for");
    assert!(clock.now() < Time::default() + ms(260), "{:?}", clock.now());
    rig.client.queue(ask(2, 1));
    rig.client.close().await;
    assert_eq!(rig.replies.try_recv().unwrap().ask, ask(2, 1));
}

#[tokio::test(start_paused = true)]
async fn settling_ends_within_a_second_and_closing_waits_for_a_shard_that_is_only_slow() {
    let mut rig = Rig::new(|_| Fate::After(ms(3_000)));
    *rig.store.silence.lock() = Some(Duration::ZERO);
    let clock = Clock::start();
    rig.client.queue(ask(0, 0));
    rig.start(1).await;
    rig.client.wait_for_replies().await;
    assert!(clock.now() < Time::default() + ms(1_002), "{:?}", clock.now());
    rig.client.queue(ask(1, 0));
    rig.client.close().await;
    assert_eq!(rig.replies(2).await.len(), 2);
    assert!(clock.now() >= Time::default() + ms(4_000), "{:?}", clock.now());
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_stands_still_delays_a_return_only_briefly() {
    let mut rig = Rig::new(|_| Fate::Gated);
    *rig.store.silence.lock() = Some(Duration::ZERO);
    (0..4 * BATCH_MAX as u64).for_each(|key| rig.client.queue(ask(key, 0)));
    rig.start(4 * BATCH_MAX).await;
    (0..QUEUE_MAX as u64).for_each(|key| rig.client.queue(ask(key, 0)));
    let clock = Clock::start();
    rig.client.send_wait(ask(0, 0)).await;
    assert!(clock.now() < Time::default() + ms(252), "{:?}", clock.now());
}

/// The store of a pod whose first shard hangs. Heartbeats wait at the gate and are recorded.
struct HalfStuck {
    memory: MemoryStore,
    is_stuck: AtomicBool,
    gate: Semaphore,
    beats: Mutex<Vec<bool>>,
    begun: mpsc::UnboundedSender<()>,
    tokens_back: AtomicU64,
}

impl Store for HalfStuck {
    fn shard(&self, ask: &Ask) -> usize {
        usize::from(ask.limit.unit == Unit::Hour)
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        Box::pin(async move {
            if self.shard(ask) == 0 && self.is_stuck.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if let Some(back) = ask.back {
                self.tokens_back.fetch_add(back.tokens, Ordering::Relaxed);
            }
            self.memory.lend(ask).await
        })
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        Box::pin(async move {
            self.begun.send(()).unwrap();
            if !beat.leaves {
                self.gate.acquire().await.unwrap().forget();
            }
            self.beats.lock().push(beat.leaves);
            self.memory.beat(beat).await
        })
    }

    fn describe(&self) -> String {
        "half stuck".into()
    }
}

fn half_stuck() -> (Arc<HalfStuck>, mpsc::UnboundedReceiver<()>) {
    let (begun, has_begun) = mpsc::unbounded_channel();
    let (memory, gate, beats) = (MemoryStore::system(), Semaphore::new(0), Mutex::default());
    let (is_stuck, tokens_back) = Default::default();
    (Arc::new(HalfStuck { memory, is_stuck, gate, beats, begun, tokens_back }), has_begun)
}

#[tokio::test(start_paused = true)]
async fn a_pod_gives_its_leases_back_though_one_shard_is_stuck() {
    let (store, _begun) = half_stuck();
    let pod = Limiter::new(store.clone(), Clock::start(), Options::default());
    let yaml = "domain: d
descriptors:
  - {key: stuck, rate_limit: {unit: minute, requests_per_unit: 100000}}
  - {key: healthy, rate_limit: {unit: hour, requests_per_unit: 100000}}
";
    let source = Source { name: "d.yaml".into(), text: yaml.into() };
    let rules = rules::load(&[source], rules::Options::default()).unwrap().rules;
    let decide = async |key: &str| {
        let entries = smallvec![Entry { key, value: "v" }];
        let descriptors = smallvec![Descriptor { entries, ..Descriptor::default() }];
        let request = Request { domain: "d", descriptors, hits_addend: 0 };
        let _ = pod.decided(&rules, &request).await;
    };
    decide("healthy").await;
    store.is_stuck.store(true, Ordering::Relaxed);
    decide("stuck").await;
    let clock = Clock::start();
    pod.close().await;
    assert!(store.tokens_back.load(Ordering::Relaxed) > 0);
    assert!(clock.now() < Time::default() + ms(1_000), "{:?}", clock.now());
    let beats = store.beats.lock();
    assert!(!beats.is_empty() && beats.iter().all(|leaves| *leaves), "{beats:?}");
}

#[tokio::test(start_paused = true)]
async fn no_beat_arrives_after_the_one_that_says_that_the_pod_leaves() {
    let (store, mut begun) = half_stuck();
    let pod = Limiter::new(store.clone(), Clock::start(), Options::default());
    let beating = tokio::spawn({
        let pod = pod.clone();
        async move { pod.run_heartbeats().await }
    });
    begun.recv().await.unwrap();
    pod.close().await;
    store.gate.add_permits(100);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let beats = store.beats.lock();
    assert!(!beats.is_empty() && beats.iter().all(|leaves| *leaves), "{beats:?}");
    beating.abort();
}

#[tokio::test(start_paused = true)]
async fn a_desk_that_is_dropped_ends_its_tasks() {
    let mut rig = Rig::new(|_| Fate::Never);
    rig.client.queue(ask(0, 0));
    rig.start(1).await;
    drop(rig.client);
    yield_now().await;
    assert_eq!(Arc::strong_count(&rig.store), 1);
}
