//! Many requests at once. Lack of room in a pod is no outage. Hits that a failure mode admits while
//! an ask is out are paid for by the leases that arrive.

use futures_util::future::join_all;

use super::*;
use crate::limiter::key::WAITING_MAX;
use crate::rng::mixed;
use crate::verdict::DecisionSource;

/// Number of bursts that are drawn.
const BURSTS: u64 = 30;

const ALGORITHMS: [&str; 5] =
    ["fixed_window", "token_bucket", "sliding_window", "leaky_bucket", "fixed_window, lease: off"];

/// The deadline of Envoy's filter.
const CALLER: Option<Duration> = Some(Duration::from_millis(20));

/// How the store replies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Replies {
    InTime,
    /// The first time late, but within the time that requests wait.
    Late,
    /// After requests have given up, and after further ones do not wait any more.
    Overdue,
    /// Never.
    Lost,
}

#[derive(Debug, Clone, Copy)]
struct Burst {
    calls: u64,
    keys: u64,
    limit: u32,
    mode: FailureMode,
    algorithm: &'static str,
    replies: Replies,
}

/// The outcomes of the calls for one key.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    admitted: u64,
    errors: u64,
}

// === impl Burst ===

impl Burst {
    /// The burst that follows from `seed`: from 1 to 20 000 calls, few as often as many.
    fn draw(seed: u64) -> Self {
        let draw = |at: u64, below: u64| mixed(mixed(seed) ^ mixed(at)) % below;
        let pick = |at, count: usize| usize::try_from(draw(at, count as u64)).unwrap();
        Self {
            calls: (1 << draw(0, 15)) + draw(1, 3_617),
            keys: [1, 10, 100][pick(2, 3)],
            limit: [10, 500, 100_000][pick(3, 3)],
            mode: FailureMode::ALL[pick(4, FailureMode::ALL.len())],
            algorithm: ALGORITHMS[pick(5, ALGORITHMS.len())],
            replies: [Replies::InTime, Replies::Late, Replies::Overdue, Replies::Lost][pick(6, 4)],
        }
    }

    fn rules(&self) -> String {
        let Self { limit, mode, algorithm, .. } = self;
        let rule = format!("unit: hour, requests_per_unit: {limit}, algorithm: {algorithm}");
        let rule = format!("{rule}, failure_mode: {}", mode.name());
        limits(&rule, "unlimited: true")
    }

    /// Sends the calls at once, three times: to a key that is not known, while the reply is out,
    /// and after it. Checks every promise.
    async fn check(&self) {
        let rig = Rig::new(&self.rules());
        let pod = rig.pod();
        let (round_trip, hangs) = match self.replies {
            Replies::InTime => (0, false),
            Replies::Late => (8_000, false),
            Replies::Overdue => (150_000, false),
            Replies::Lost => (500, true),
        };
        *rig.store.round_trip.lock() = Duration::from_micros(round_trip);
        rig.store.hangs.store(hangs, Ordering::Relaxed);
        let mut sums = vec![Sums::default(); usize::try_from(self.keys).unwrap()];
        let began = rig.clock.now();
        for after in [0, 120, 900] {
            let due = began + Duration::from_millis(after);
            tokio::time::sleep_until(rig.clock.instant(due)).await;
            tokio::join!(self.send(&rig, &pod, &mut sums), self.catch_up(&rig));
        }
        let lasted = rig.clock.now().since(began);
        // Every ask has ended by now, so what `allow` let pass is paid for or counted.
        tokio::time::sleep(Duration::from_secs(30)).await;
        let answers = count(&pod, Counter::FailureMode(self.mode));
        let unmetered = count(&pod, Counter::UnmeteredHits);
        let healthy = matches!(self.replies, Replies::InTime | Replies::Late);
        let has_room = self.calls.div_ceil(self.keys) <= WAITING_MAX as u64;
        assert!(!(healthy && has_room) || answers == 0, "{self:?}: {answers} answers");
        assert!(!healthy || unmetered == 0, "{self:?}: {unmetered} not counted");
        for sum in &sums {
            let bound = self.bound(lasted);
            let metered = self.mode != FailureMode::Allow;
            assert!(!metered || sum.admitted <= bound, "{self:?}: {sum:?} of {bound}");
            assert!(!healthy || sum.admitted <= bound, "{self:?}: {sum:?} of {bound}");
            assert!(!healthy || sum.errors == 0, "{self:?}: {sum:?}");
        }
        let admitted: u64 = sums.iter().map(|sum| sum.admitted).sum();
        let most = unmetered + self.keys * self.bound(lasted);
        assert!(admitted <= most, "{self:?}: {admitted} admitted, {unmetered} not counted");
    }

    /// The hits that may pass of one key within this time. Where the leases are lost, the pod's
    /// part comes on top; it is the only pod.
    fn bound(&self, lasted: Duration) -> u64 {
        let limit = u64::from(self.limit);
        let refilled = 1 + u64::try_from(lasted.as_millis()).unwrap() * limit / 3_600_000;
        let once = match self.algorithm {
            "leaky_bucket" => refilled,
            "token_bucket" => limit + refilled,
            _ => limit,
        };
        // The slots of a leaky bucket pass, so those that come late pay for nothing.
        let is_paid = self.replies != Replies::Lost && self.algorithm != "leaky_bucket";
        let in_time = matches!(self.replies, Replies::InTime | Replies::Late);
        if in_time || is_paid { once } else { 2 * once }
    }

    /// Once the first asks are out, the store is late no more.
    async fn catch_up(&self, rig: &Rig) {
        if self.replies == Replies::Late {
            tokio::time::sleep(Duration::from_millis(1)).await;
            *rig.store.round_trip.lock() = Duration::ZERO;
        }
    }

    async fn send(&self, rig: &Rig, pod: &Limiter, sums: &mut [Sums]) {
        let values: Vec<_> = (0..self.keys).map(|key| key.to_string()).collect();
        let requests: Vec<_> = values
            .iter()
            .map(|value| {
                let mut request = request(&["a"]);
                request.descriptors[0].entries[0].value = value;
                request
            })
            .collect();
        let keys = (0..self.calls).map(|call| usize::try_from(call % self.keys).unwrap());
        let keys: Vec<_> = keys.collect();
        let decide = |key: &usize| {
            pod.decide(&rig.rules, &requests[*key], rig.clock.now(), CALLER, Owner::UNKNOWN, || {
                Ok::<_, StoreError>(())
            })
        };
        let decided = join_all(keys.iter().map(decide)).await;
        for (key, decided) in keys.into_iter().zip(decided) {
            match decided {
                Ok(verdict) => sums[key].admitted += u64::from(verdict.code == Code::Ok),
                Err(_) => sums[key].errors += 1,
            }
        }
    }
}

fn count(pod: &Limiter, counter: Counter) -> u64 {
    pod.counts().into_iter().find(|(other, _)| *other == counter).map(|(_, count)| count).unwrap()
}

#[tokio::test(start_paused = true)]
async fn any_number_of_calls_at_once_is_held_to_the_limit() {
    let seed = std::env::var("RATELEASE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or(20_261_125);
    println!("seeds from {seed}");
    for number in 0..BURSTS {
        let burst = Burst::draw(seed.wrapping_add(number));
        println!("{number}: {burst:?}");
        burst.check().await;
    }
}

/// The most calls at one key, which has no room for all of them.
#[tokio::test(start_paused = true)]
async fn calls_beyond_those_that_may_wait_are_denied_or_owed_and_none_fails() {
    let late = FailureMode::ALL.map(|mode| (mode, Replies::Late));
    for (mode, replies) in late.into_iter().chain([(FailureMode::Local, Replies::Overdue)]) {
        let (algorithm, limit) = ("fixed_window", 500);
        Burst { calls: 20_000, keys: 1, limit, mode, algorithm, replies }.check().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_with_much_left_admits_all_that_may_wait_and_owes_or_denies_the_others() {
    for mode in FailureMode::ALL {
        let rules = per_hour(1_000_000, 1).replace("error", mode.name());
        let rig = Rig::new(&rules);
        let pod = rig.pod();
        let request = request(&["a"]);
        let calls = WAITING_MAX + 1_000;
        let decided = join_all((0..calls).map(|_| pod.decided(&rig.rules, &request))).await;
        let how = |verdict: &Verdict<'_>| (verdict.code, verdict.statuses[0].counted.unwrap().how);
        let decided: Vec<_> = decided.iter().map(|it| how(it.as_ref().unwrap())).collect();
        let of = |wanted| decided.iter().filter(|it| **it == wanted).count();
        assert_eq!(of((Code::Ok, DecisionSource::Leased)), WAITING_MAX, "{mode:?}");
        let rest = match mode {
            FailureMode::Local => (Code::Ok, DecisionSource::Failure(mode)),
            _ => (Code::OverLimit, DecisionSource::Shed),
        };
        assert_eq!(of(rest), 1_000, "{mode:?}");
        let passed = u64::try_from(calls - if mode == FailureMode::Local { 0 } else { 1_000 });
        tokio::time::sleep(MAX_WAIT).await;
        pod.close().await;
        assert_eq!(rig.left(1_000_000).await, 1_000_000 - passed.unwrap(), "{mode:?}");
    }
}

/// A lease that is smaller than the debt pays for a part of it; the rest is asked for.
#[tokio::test(start_paused = true)]
async fn all_that_was_admitted_while_a_lease_was_late_is_paid_for() {
    for mode in [FailureMode::Local, FailureMode::Allow] {
        let rig = Rig::slow(&per_hour(1_000, 1).replace("error", mode.name()), MAX_WAIT * 8);
        let pod = rig.pod();
        let request = request(&["a"]);
        let decided = join_all((0..400).map(|_| decide(&pod, &rig.rules, &request))).await;
        assert!(decided.iter().all(|(passed, _)| *passed));
        tokio::time::sleep(MAX_WAIT * 40).await;
        pod.close().await;
        *rig.store.round_trip.lock() = Duration::ZERO;
        let paid = 1_000 - rig.left(1_000).await;
        let unmetered = count(&pod, Counter::UnmeteredHits);
        assert!(mode == FailureMode::Allow || paid == 400, "{mode:?}: {paid} of 400");
        assert!(paid > 0 && paid + unmetered >= 400, "{mode:?}: {paid}, {unmetered}");
    }
}

/// A limit that is changed keeps its count, and so the debt.
#[tokio::test(start_paused = true)]
async fn a_debt_outlasts_a_change_of_its_limit() {
    let rig = Rig::slow(&per_hour(500, 1).replace("error", "local"), MAX_WAIT * 8);
    let pod = rig.pod();
    let request = request(&["a"]);
    let decided = join_all((0..300).map(|_| decide(&pod, &rig.rules, &request))).await;
    assert!(decided.iter().all(|(passed, _)| *passed));
    let raised = compile(&per_hour(600, 1).replace("error", "local"));
    let mut admitted = 300;
    for _ in 0..40 {
        let decided = join_all((0..40).map(|_| decide(&pod, &raised, &request))).await;
        admitted += decided.iter().filter(|(passed, _)| *passed).count();
        tokio::time::sleep(MAX_WAIT * 4).await;
    }
    assert_eq!(admitted, 600);
}

/// A request that is not queued, since the reply of its key is overdue, is admitted by itself. The
/// reply comes while the request still waits for another key, and its lease pays for it, not for a
/// later request.
#[tokio::test(start_paused = true)]
async fn what_was_admitted_just_before_an_overdue_reply_is_paid_for() {
    let hour = "unit: hour, requests_per_unit: 10, failure_mode: local";
    let day = "unit: day, requests_per_unit: 10, failure_mode: local";
    let rig = Rig::slow(&limits(hour, day), Duration::from_millis(150));
    let pod = rig.pod();
    let request = request(&["a"]);
    assert!(decide(&pod, &rig.rules, &request).await.0);
    tokio::time::sleep(Duration::from_millis(142)).await; // the reply comes in 3 ms
    let both = super::request(&["a", "b"]);
    let crowd = async {
        tokio::time::sleep(Duration::from_millis(4)).await;
        *rig.store.round_trip.lock() = Duration::ZERO;
        passed_of(&pod, &rig.rules, "a", 20).await
    };
    let (waited, crowd) = tokio::join!(decide(&pod, &rig.rules, &both), crowd);
    assert!(waited.0, "admitted by itself");
    assert_eq!(2 + crowd + passed_of(&pod, &rig.rules, "a", 20).await, 10);
}

/// Another key denies the requests. Their debt is taken back, and the part that a lease has paid
/// stays counted, but nothing is given back that was not paid.
#[tokio::test(start_paused = true)]
async fn requests_that_are_denied_while_their_debt_is_settled_give_nothing_back() {
    for mode in [FailureMode::Local, FailureMode::Allow] {
        let hour = format!("unit: hour, requests_per_unit: 10, failure_mode: {}", mode.name());
        let rig = Rig::slow(&limits(&hour, "unit: day, requests_per_unit: 0"), MAX_WAIT * 30);
        let pod = rig.pod();
        assert!(decide(&pod, &rig.rules, &request(&["a"])).await.0);
        tokio::time::sleep(MAX_WAIT * 29 - Duration::from_millis(3)).await;
        *rig.store.round_trip.lock() = MAX_WAIT - Duration::from_millis(1);
        let both = request(&["a", "b"]);
        let denied = join_all((0..4).map(|_| decide(&pod, &rig.rules, &both))).await;
        assert!(denied.iter().all(|(passed, _)| !passed), "b denies them");
        tokio::time::sleep(MAX_WAIT * 4).await;
        pod.close().await;
        *rig.store.round_trip.lock() = Duration::ZERO;
        let left = rig.left(10).await;
        assert!((5..=9).contains(&left), "{mode:?}: {left} of 10 after one that passed");
    }
}

/// Another descriptor denies the requests, so the hits that the failure mode admitted are not owed.
#[tokio::test(start_paused = true)]
async fn what_was_admitted_for_a_request_that_is_denied_is_not_owed() {
    let day = "unit: day, requests_per_unit: 0";
    let hour = "unit: hour, requests_per_unit: 500, failure_mode: local";
    let rig = Rig::new(&limits(hour, day));
    let pod = rig.pod();
    *rig.store.round_trip.lock() = MAX_WAIT * 8;
    let request = request(&["a", "b"]);
    join_all((0..100).map(|_| pod.decided(&rig.rules, &request))).await;
    tokio::time::sleep(MAX_WAIT * 40).await;
    pod.close().await;
    *rig.store.round_trip.lock() = Duration::ZERO;
    assert_eq!(rig.left(500).await, 500);
}
