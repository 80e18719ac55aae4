//! When heartbeats are sent, and how long they last.

use super::*;

/// The embedded store, which notes when each heartbeat for all domains came, and how long it lasts,
/// in seconds.
struct Noting {
    memory: MemoryStore,
    clock: Clock,
    beats: Mutex<Vec<(u64, u64)>>,
}

impl Store for Noting {
    fn shard(&self, ask: &Ask) -> usize {
        self.memory.shard(ask)
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        self.memory.lend(ask)
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        if beat.domain.is_none() {
            let at = self.clock.now().since(Time::default()).as_secs();
            self.beats.lock().push((at, beat.lasts.as_secs()));
        }
        self.memory.beat(beat)
    }

    fn describe(&self) -> String {
        "noting".into()
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_pod_sends_few_heartbeats_that_last_longer_until_a_request_waits() {
    let rig = Rig::new(&per_hour(5, 1));
    let memory = MemoryStore::new(Arc::new(|| START), STORE_KEYS_MAX);
    let store = Arc::new(Noting { memory, clock: rig.clock, beats: Mutex::default() });
    let pod = rig.pod_on(Arc::clone(&store) as _, BUFFER_BYTES_MAX);
    let kept = pod.clone();
    tokio::spawn(async move { kept.run_heartbeats().await });
    let until = |second: u64| rig.clock.instant(Time::from_nanos(second * 1_000_000_000));
    let half = Duration::from_millis(500);
    tokio::time::sleep_until(until(21) + half).await;
    let beats = std::mem::take(&mut *store.beats.lock());
    let busy: Vec<_> = (0..10).map(|second| (second, 3)).collect();
    assert_eq!(beats[..10], busy, "as long as it may be busy");
    assert_eq!(beats[10..], [(10, 12), (12, 12), (16, 12), (20, 12)]);
    decide(&pod, &rig.rules, &request(&["a"])).await;
    tokio::time::sleep_until(until(23) + half).await;
    assert_eq!(*store.beats.lock(), [(21, 3), (22, 3), (23, 3)]);
}
