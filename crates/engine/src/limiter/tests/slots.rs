//! Requests in progress (`algorithm: concurrency`): pods that share one store, in virtual time.

use ratelease_rules::SETTLE_KEY;
use tokio::task::JoinHandle;

use super::*;
use crate::rng::mixed;

/// A fleet of pods under a limit of so many requests at a time.
struct Fleet {
    rig: Rig,
    pods: Vec<(Limiter, JoinHandle<()>)>,
}

// === impl Fleet ===

impl Fleet {
    fn new(slots: u32, pods: u64, more: &str) -> Self {
        let mut fleet = Self { rig: Rig::new(&rules_of(slots, more)), pods: Vec::new() };
        (1..=pods).for_each(|pod| fleet.join(pod));
        fleet
    }

    /// A further pod, with its maintenance.
    fn join(&mut self, number: u64) {
        let pod = self.rig.pod_numbered(number << 32 | 7);
        let maintained = pod.clone();
        let task = tokio::spawn(async move { maintained.run().await });
        self.pods.push((pod, task));
    }

    async fn decided(&self, pod: usize, request: &Request<'_>) -> bool {
        decide(&self.pods[pod].0, &self.rig.rules, request).await.0
    }

    async fn starts(&self, pod: usize, id: &str) -> bool {
        self.decided(pod, &of_request(id, 1, false)).await
    }

    async fn ends(&self, pod: usize, id: &str) {
        assert!(self.decided(pod, &of_request(id, 1, true)).await, "an end is never denied");
    }

    /// Starts as many of these requests as pass.
    async fn started(&self, pod: usize, ids: std::ops::Range<u32>) -> usize {
        let mut started = 0;
        for id in ids {
            started += usize::from(self.starts(pod, &format!("{pod}-{id}")).await);
        }
        started
    }

    /// How long it takes until `pod` may start one more.
    async fn waits(&self, pod: usize, id: &str) -> Duration {
        let begun = self.rig.clock.now();
        while !self.starts(pod, id).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert!(self.rig.clock.now().since(begun) < Duration::from_secs(100), "it never may");
        }
        self.rig.clock.now().since(begun)
    }
}

fn rules_of(slots: u32, more: &str) -> String {
    format!(
        "domain: d\ndescriptors:\n- key: user\n  descriptors: [{{key: id, rate_limit: {{algorithm: \
         concurrency, requests_per_unit: {slots}, hold: {{for: 1m}}, {more}}}}}]\n"
    )
}

/// A request with this id, or its end.
fn of_request(id: &str, hits: u64, ends: bool) -> Request<'_> {
    let mut entries: Few<_> =
        [("user", "x"), ("id", id)].into_iter().map(|(key, value)| Entry { key, value }).collect();
    if ends {
        entries.push(Entry { key: SETTLE_KEY, value: "1" });
    }
    let descriptor = Descriptor {
        entries: entries.into_iter().collect(),
        hits_addend: Some(hits),
        ..Descriptor::default()
    };
    Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 }
}

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[tokio::test(start_paused = true)]
async fn as_many_requests_run_as_the_limit_says_and_one_starts_when_another_ends() {
    let fleet = Fleet::new(3, 1, "");
    assert_eq!(fleet.started(0, 0..5).await, 3);
    for id in 0..20 {
        assert!(!fleet.starts(0, "more").await);
        fleet.ends(0, &format!("0-{id}")).await;
        assert!(fleet.starts(0, &format!("0-{}", id + 3)).await, "{id}");
        pause(100).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_comes_twice_or_without_a_start_and_a_refund_free_nothing() {
    let fleet = Fleet::new(3, 1, "");
    assert_eq!(fleet.started(0, 0..5).await, 3);
    for _ in 0..3 {
        fleet.ends(0, "unknown").await;
        let mut refund = of_request("0-1", 2, false);
        refund.descriptors[0].refund = true;
        fleet.decided(0, &refund).await;
        assert!(!fleet.starts(0, "more").await);
    }
    fleet.ends(0, "0-1").await;
    fleet.ends(0, "0-1").await;
    assert!(fleet.starts(0, "one").await);
    assert!(!fleet.starts(0, "two").await);
}

#[tokio::test(start_paused = true)]
async fn a_request_may_take_several_slots_and_gives_all_of_them_back() {
    let fleet = Fleet::new(5, 2, "");
    assert!(fleet.decided(0, &of_request("large", 4, false)).await);
    assert!(!fleet.decided(1, &of_request("other", 2, false)).await, "a denial takes nothing");
    assert!(fleet.decided(1, &of_request("other", 1, false)).await);
    fleet.ends(0, "large").await;
    assert!(fleet.waits(1, "next").await <= Duration::from_millis(300));
    pause(2_000).await;
    assert!(fleet.decided(0, &of_request("large", 3, false)).await);
    assert!(!fleet.starts(0, "more").await);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_one_pod_frees_is_taken_by_another_soon() {
    for (slots, each) in [(1, 1), (8, 4)] {
        let fleet = Fleet::new(slots, 2, "");
        let mut started = fleet.started(0, 0..each).await;
        started += fleet.started(1, 0..20).await;
        assert_eq!(started, slots as usize, "no slot is lost between pods");
        for id in 0..each.min(slots) {
            fleet.ends(0, &format!("0-{id}")).await;
            let waits = fleet.waits(1, &format!("1-next-{id}")).await;
            assert!(waits <= Duration::from_millis(400), "{slots} slots: {waits:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn idle_slots_of_a_pod_without_demand_are_all_lent_to_another_within_two_seconds() {
    let fleet = Fleet::new(1_000, 2, "");
    assert_eq!(fleet.started(0, 0..1_000).await, 1_000);
    for id in 0..1_000 {
        fleet.ends(0, &format!("0-{id}")).await;
    }
    pause(2_000).await;
    assert_eq!(fleet.started(1, 0..1_100).await, 1_000);
}

#[tokio::test(start_paused = true)]
async fn slots_in_use_stay_with_their_pod_and_those_of_a_dead_pod_come_back_in_five_seconds() {
    let fleet = Fleet::new(10, 2, "");
    assert_eq!(fleet.started(0, 0..9).await, 9);
    assert_eq!(fleet.started(1, 0..9).await, 1);
    for _ in 0..300 {
        assert!(!fleet.starts(1, "more").await);
        pause(100).await;
    }
    fleet.pods[0].1.abort();
    let waits = fleet.waits(1, "next").await;
    assert!(waits >= Duration::from_secs(2) && waits <= Duration::from_secs(5), "{waits:?}");
    assert_eq!(fleet.started(1, 100..120).await, 8);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_nothing_ends_gives_its_slot_back_after_the_hold() {
    let fleet = Fleet::new(1, 1, "");
    assert!(fleet.starts(0, "endless").await);
    let waits = fleet.waits(0, "next").await;
    assert!(waits >= Duration::from_secs(60) && waits <= Duration::from_secs(62), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_closes_leaves_no_idle_slot_behind() {
    let fleet = Fleet::new(4, 2, "");
    assert_eq!(fleet.started(0, 0..9).await, 4);
    for id in 0..3 {
        fleet.ends(0, &format!("0-{id}")).await;
    }
    fleet.pods[0].1.abort();
    fleet.pods[0].0.close().await;
    assert_eq!(fleet.started(1, 0..9).await, 3, "one is in use");
}

#[tokio::test(start_paused = true)]
async fn without_the_store_the_failure_mode_decides_and_what_runs_is_stated_when_it_is_back() {
    for (mode, alone) in [("local", 2), ("allow", 20), ("deny", 0)] {
        let fleet = Fleet::new(8, 2, &format!("failure_mode: {mode}"));
        for pod in [0, 1] {
            assert!(fleet.starts(pod, "early").await, "so that it is counted");
            fleet.ends(pod, "early").await;
        }
        pause(2_000).await;
        assert_eq!(fleet.started(0, 0..2).await, 2);
        fleet.rig.store.fails.store(true, Ordering::Relaxed);
        pause(6_000).await;
        let mut admitted = fleet.started(0, 10..30).await;
        assert_eq!(admitted, alone, "{mode}: two run already");
        fleet.ends(0, "0-0").await;
        admitted += fleet.started(0, 30..31).await;
        assert_eq!(admitted, alone + usize::from(alone > 0), "{mode}: one has ended");
        fleet.rig.store.fails.store(false, Ordering::Relaxed);
        pause(3_000).await;
        let run = 1 + admitted;
        assert_eq!(fleet.started(1, 0..20).await, 8_usize.saturating_sub(run), "{mode}");
    }
}

/// A slot that is freed goes to the request that waits in the same pod, whatever the store says.
#[tokio::test(start_paused = true)]
async fn a_waiting_request_takes_the_slot_that_is_freed_in_its_pod() {
    let fleet = Fleet::new(1, 1, "");
    assert!(fleet.starts(0, "first").await);
    pause(300).await; // the next start has to ask
    *fleet.rig.store.round_trip.lock() = Duration::from_millis(4);
    let begun = fleet.rig.clock.now();
    let (passed, ()) = tokio::join!(fleet.starts(0, "second"), async {
        pause(1).await;
        fleet.ends(0, "first").await;
    });
    let took = fleet.rig.clock.now().since(begun);
    assert!(passed && took < Duration::from_millis(3), "{passed} after {took:?}");
}

/// The requests of a pod of a fleet that run.
#[derive(Default)]
struct Running {
    ids: Vec<String>,
}

/// Pods start and end requests at random, and replies are late or missing. The store answers again
/// before the leases of idle slots end.
#[tokio::test(start_paused = true)]
async fn never_more_requests_run_than_the_limit_says_and_hardly_fewer_where_more_want_to() {
    let seed = std::env::var("RATELEASE_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(36_u64);
    println!("run again with RATELEASE_TEST_SEED={seed}");
    let mut drawn = seed;
    let mut below = |end: usize| {
        drawn = drawn.wrapping_add(1);
        usize::try_from(mixed(drawn) % end as u64).unwrap()
    };
    for (slots, pods) in [(1_u32, 3_usize), (10, 4), (100, 4)] {
        let fleet = Fleet::new(slots, pods as u64, "failure_mode: deny");
        let mut running: Vec<Running> = (0..pods).map(|_| Running::default()).collect();
        let (mut used, mut ticks, mut serial) = (0, 0, 0);
        for tick in 0..4_000 {
            // One tick in forty ends a request; each tick has more starts than may pass.
            for (at, of_pod) in running.iter_mut().enumerate() {
                let mut kept = Vec::new();
                for id in of_pod.ids.drain(..) {
                    if below(300) == 0 {
                        fleet.ends(at, &id).await;
                    } else {
                        kept.push(id);
                    }
                }
                of_pod.ids = kept;
            }
            for _ in 0..1 + slots / 20 {
                let at = below(pods);
                serial += 1;
                let id = format!("{serial}");
                if fleet.starts(at, &id).await {
                    running[at].ids.push(id);
                }
            }
            let is_away = tick % 1_000 >= 900;
            fleet.rig.store.fails.store(is_away && below(2) == 0, Ordering::Relaxed);
            pause(10).await;
            let sum: usize = running.iter().map(|pod| pod.ids.len()).sum();
            assert!(sum <= slots as usize, "{sum} of {slots} in tick {tick}");
            if tick >= 1_000 && !is_away {
                (used, ticks) = (used + sum, ticks + 1);
            }
        }
        let part = used as f64 / (ticks * slots as usize) as f64;
        println!("{part:.4} of {slots} slots were in use at {pods} pods");
        assert!(part >= 0.9, "{part} of {slots}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_without_an_id_is_denied_and_takes_no_slot() {
    let fleet = Fleet::new(2, 1, "");
    for _ in 0..9 {
        assert!(!fleet.starts(0, "").await, "nothing could end it");
    }
    // Two of one request: the first is not left behind.
    let mut both = of_request("both", 1, false);
    both.descriptors.extend(of_request("", 1, false).descriptors);
    assert!(!fleet.decided(0, &both).await);
    assert_eq!(fleet.started(0, 0..9).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_start_without_room_among_the_holds_is_denied_until_another_ends() {
    let fleet = Fleet::new(1 << 20, 1, "");
    let (mut started, mut denied) = (0, 0);
    while denied < 99 {
        let passes = fleet.starts(0, &started.to_string()).await;
        (started, denied) = if passes { (started + 1, 0) } else { (started, denied + 1) };
    }
    assert!(started > 80_000, "{started} are in progress");
    for id in 0..started {
        fleet.ends(0, &id.to_string()).await;
    }
    assert_eq!(fleet.started(0, 0..9).await, 9);
}

/// Requests that a failure mode admitted beyond the limit end, and their slots are not used again.
#[tokio::test(start_paused = true)]
async fn after_an_outage_no_more_requests_start_than_the_limit_says() {
    let fleet = Fleet::new(20, 2, "failure_mode: allow");
    fleet.rig.store.fails.store(true, Ordering::Relaxed);
    assert_eq!(fleet.started(0, 0..60).await + fleet.started(1, 0..60).await, 120);
    fleet.rig.store.fails.store(false, Ordering::Relaxed);
    pause(2_000).await;
    let mut running = 120;
    for id in 0..60 {
        for pod in [0, 1] {
            fleet.ends(pod, &format!("{pod}-{id}")).await;
            running -= 1;
            if fleet.starts(pod, &format!("{pod}-again-{id}")).await {
                running += 1;
                assert!(running <= 20, "{running} after {id}");
            }
            pause(10).await;
        }
    }
    pause(2_000).await;
    running += fleet.started(0, 100..130).await;
    assert_eq!(running, 20, "all of them are used again");
}

/// A return of slots was once overtaken by the pod's next ask, whose slots then counted as free.
#[tokio::test(start_paused = true)]
async fn no_more_requests_run_than_the_limit_says_while_it_changes_and_asks_are_slow() {
    for slots in [900, 1200] {
        let mut fleet = Fleet::new(1_000, 2, "failure_mode: deny");
        let mut running = fleet.started(0, 0..600).await;
        for id in 0..400 {
            fleet.ends(0, &format!("0-{id}")).await;
        }
        running -= 400;
        *fleet.rig.store.statements_late.lock() = Duration::from_millis(200);
        fleet.rig.rules = Arc::new(compile(&rules_of(slots, "failure_mode: deny")));
        let (pod, rules) = (fleet.pods[0].0.clone(), Arc::clone(&fleet.rig.rules));
        let applied = tokio::spawn(async move { pod.apply_rules(&rules).await });
        running += fleet.started(0, 1_000..1_300).await;
        pause(250).await;
        for round in 0..40 {
            running += fleet.started(1, 100 * round..100 * (round + 1)).await;
            assert!(running <= slots as usize, "{running} of {slots} run in round {round}");
            pause(10).await;
        }
        applied.await.unwrap();
        assert_eq!(running, slots as usize, "all slots are used");
    }
}

/// The result of a crowd of callers.
#[derive(Debug, Default)]
struct Crowd {
    running: AtomicUsize,
    most: AtomicUsize,
    passed: AtomicUsize,
}

impl Crowd {
    /// Starts requests of one caller one after the other, and ends each after about so long.
    async fn call(self: Arc<Self>, fleet: Arc<Fleet>, caller: u64, lasts_ms: u64) {
        let at = usize::try_from(caller).unwrap() % fleet.pods.len();
        for nth in 0..200 {
            if nth == 100 {
                pause(5_000).await; // all come back at once, and know little of what is left
            }
            let id = format!("{caller}-{nth}");
            let drawn = mixed(caller << 32 | nth);
            let request = of_request(&id, 1, false);
            let patience = Some(Duration::from_millis(20)); // as Envoy by default
            let (pod, now) = (&fleet.pods[at].0, fleet.rig.clock.now());
            let admit = || Ok::<_, StoreError>(());
            let decided =
                pod.decide(&fleet.rig.rules, &request, now, patience, Owner::UNKNOWN, admit);
            let verdict = decided.await;
            if verdict.unwrap().code == Code::OverLimit {
                pause(1 + drawn % 25).await;
                continue;
            }
            let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(running, Ordering::Relaxed);
            self.passed.fetch_add(1, Ordering::Relaxed);
            pause(lasts_ms / 2 + drawn % lasts_ms).await;
            self.running.fetch_sub(1, Ordering::Relaxed);
            fleet.ends(at, &id).await;
        }
    }
}

/// A start once waited for the reply to the statement of the end before it, and then for its own.
#[tokio::test(start_paused = true)]
async fn a_store_that_answers_each_ask_within_the_wait_leaves_nothing_to_failure_modes() {
    for (round_trip_ms, late_ms) in [(0, 0), (5, 0), (10, 0), (14, 0), (6, 8)] {
        for (callers, lasts_ms) in [(4, 100), (8, 25), (8, 100), (16, 25), (16, 100)] {
            let fleet = Arc::new(Fleet::new(8, 4, ""));
            *fleet.rig.store.round_trip.lock() = Duration::from_millis(round_trip_ms);
            *fleet.rig.store.statements_late.lock() = Duration::from_millis(late_ms);
            pause(3_000).await;
            let crowd = Arc::<Crowd>::default();
            let calls = (0..callers).map(|caller| {
                tokio::spawn(Arc::clone(&crowd).call(Arc::clone(&fleet), caller, lasts_ms))
            });
            for call in calls.collect::<Vec<_>>() {
                call.await.unwrap();
            }
            let what = format!("{callers} callers, {round_trip_ms} ms, {lasts_ms} ms");
            let local = Counter::FailureMode(FailureMode::Local);
            let of_pod = |pod: &Limiter| pod.counts().iter().find(|it| it.0 == local).unwrap().1;
            let answers: u64 = fleet.pods.iter().map(|(pod, _)| of_pod(pod)).sum();
            let [most, passed] = [&crowd.most, &crowd.passed].map(|it| it.load(Ordering::Relaxed));
            println!("{what}: {most} at once, {passed} passed, {answers} answers by failure_mode");
            assert!(most <= 8 && answers == 0, "{what}: {most} at once, {answers} answers");
            assert!(callers > 8 || passed as u64 == 200 * callers, "{what}: {passed} passed");
        }
    }
}
