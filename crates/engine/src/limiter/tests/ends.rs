//! Starts end, in whatever way their requests go.

use std::net::IpAddr;

use ratelease_rules::SETTLE_KEY;

use super::*;
use crate::counter::HoldCounter;
use crate::limiter::owners::{ClosedBy, Origin};
use crate::limiter::starts::End;
use crate::order::{Action, Order, Ordered};

const LIMIT: u64 = 3;

/// A pod under a limit of three requests at a time and of 1000 tokens an hour, with its
/// maintenance, and an Envoy that asks it.
struct Scene {
    rig: Rig,
    pod: Limiter,
    envoy: Owner,
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::new(&rules_of(1_000));
        let pod = rig.pod();
        let maintained = pod.clone();
        tokio::spawn(async move { maintained.run().await });
        let envoy = pod.connect(Origin::Address(IpAddr::from([127, 0, 0, 1])));
        Self { rig, pod, envoy }
    }

    async fn decided(&self, request: &Request<'_>) -> Verdict<'_> {
        let Self { rig, pod, envoy } = self;
        let now = pod.clock().now();
        let decided =
            pod.decide(&rig.rules, request, now, None, *envoy, || Ok::<_, StoreError>(()));
        decided.await.unwrap()
    }

    async fn starts(&self, key: &str, id: &str, hits: u64) -> bool {
        self.decided(&start(key, id, hits)).await.code == Code::Ok
    }

    /// How many of so many starts pass, each with an id of its own, all of which end.
    async fn room(&self) -> u64 {
        let ids: Vec<_> = (0..LIMIT + 2).map(|n| format!("room-{n}")).collect();
        let mut passed = 0;
        for id in &ids {
            passed += u64::from(self.starts("slot", id, 1).await);
        }
        for id in &ids {
            self.decided(&end("slot", id, 1)).await;
        }
        passed
    }

    fn count(&self, of: HoldCounter) -> u64 {
        let counts = self.pod.counts();
        counts.iter().find(|(counter, _)| *counter == Counter::Holds(of)).unwrap().1
    }

    /// Follows an operator's order to reset the key of `request`.
    fn reset(&self, request: &Request<'_>) {
        let Some(Resolved::Charged(charge)) =
            self.pod.resolve(&self.rig.rules, request).into_iter().next()
        else {
            panic!("it has a rule")
        };
        let order = Order::new(Action::Reset, "test");
        self.pod.shared.follow_order(0, Ordered::Now(charge.own, order));
    }

    async fn remaining(&self) -> u64 {
        self.decided(&start("tokens", "look", 0)).await.statuses[0].remaining
    }
}

fn rules_of(tokens: u64) -> String {
    format!(
        "domain: d\ndescriptors:\n- key: slot\n  descriptors: [{{key: id, rate_limit: {{algorithm: \
         concurrency, requests_per_unit: {LIMIT}, hold: {{for: 10m}}}}}}]\n- key: tokens\n  \
         descriptors: [{{key: id, rate_limit: {{unit: hour, requests_per_unit: {tokens}, hold: \
         {{for: 10m}}}}}}]\n"
    )
}

fn start<'a>(key: &'a str, id: &'a str, hits: u64) -> Request<'a> {
    let entries = [(key, "x"), ("id", id)].map(|(key, value)| Entry { key, value });
    let descriptor = Descriptor {
        entries: entries.into_iter().collect(),
        hits_addend: Some(hits),
        ..Descriptor::default()
    };
    Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 }
}

fn end<'a>(key: &'a str, id: &'a str, hits: u64) -> Request<'a> {
    let mut request = start(key, id, hits);
    request.descriptors[0].entries.push(Entry { key: SETTLE_KEY, value: "1" });
    request
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_not_read_is_undone() {
    let scene = Scene::new();
    for n in 0..20 {
        let verdict = scene.decided(&start("slot", &n.to_string(), 1)).await;
        scene.pod.undo_start(verdict.started.expect("a slot is taken"));
    }
    assert_eq!(scene.room().await, LIMIT);
    let verdict = scene.decided(&start("tokens", "t", 700)).await;
    scene.pod.undo_start(verdict.started.unwrap());
    assert_eq!(scene.remaining().await, 1_000);
}

#[tokio::test(start_paused = true)]
async fn starts_of_an_envoy_that_is_gone_are_released_after_the_grace() {
    let scene = Scene::new();
    for n in 0..LIMIT {
        assert!(scene.starts("slot", &n.to_string(), 1).await);
    }
    assert!(scene.starts("tokens", "t", 700).await);
    scene.pod.disconnect(scene.envoy, ClosedBy::Client);
    // The next Envoy comes at once.
    let next = scene.pod.connect(Origin::Address(IpAddr::from([127, 0, 0, 1])));
    let scene = Scene { envoy: next, ..scene };
    seconds(2).await;
    assert_eq!(scene.room().await, 0);
    seconds(2).await;
    assert_eq!(scene.room().await, LIMIT);
    assert_eq!(scene.remaining().await, 300, "the rule keeps what was estimated");
    assert_eq!(scene.count(HoldCounter::OwnerGone), LIMIT + 1);
    assert_eq!(scene.count(HoldCounter::InForce), 0);
}

#[tokio::test(start_paused = true)]
async fn an_envoy_whose_connections_this_pod_closed_keeps_what_it_has_started() {
    let scene = Scene::new();
    for n in 0..LIMIT {
        assert!(scene.starts("slot", &n.to_string(), 1).await);
    }
    scene.pod.disconnect(scene.envoy, ClosedBy::Server);
    seconds(60).await;
    assert_eq!(scene.room().await, 0);
}

#[tokio::test(start_paused = true)]
async fn ends_find_their_start_while_the_rule_is_absent() {
    let mut scene = Scene::new();
    for n in 0..LIMIT {
        assert!(scene.starts("slot", &n.to_string(), 1).await);
    }
    assert!(scene.starts("tokens", "t", 700).await);
    let present = Arc::clone(&scene.rig.rules);
    scene.rig.rules = Arc::new(compile("domain: d\ndescriptors: [{key: other}]\n"));
    scene.pod.apply_rules(&scene.rig.rules).await;
    for n in 0..LIMIT {
        assert_eq!(scene.decided(&end("slot", &n.to_string(), 1)).await.code, Code::Ok);
    }
    scene.decided(&end("tokens", "t", 900)).await;
    scene.rig.rules = present;
    scene.pod.apply_rules(&scene.rig.rules).await;
    seconds(1).await;
    assert_eq!(scene.room().await, LIMIT);
    assert_eq!(scene.remaining().await, 100, "200 beyond the estimate are charged");
}

#[tokio::test(start_paused = true)]
async fn an_entry_of_the_log_ends_a_start_and_tells_its_cost() {
    let scene = Scene::new();
    let node = scene.pod.connect_node("envoy");
    let mut both = start("slot", "1", 1);
    both.descriptors.extend(start("tokens", "1", 700).descriptors);
    assert_eq!(scene.decided(&both).await.code, Code::Ok);
    assert!(scene.pod.note_alive("1", node));
    assert!(scene.pod.end_start("1", Some(900), node));
    assert!(!scene.pod.end_start("1", Some(900), node), "twice");
    assert!(!scene.pod.note_alive("1", node));
    seconds(1).await;
    assert_eq!(scene.remaining().await, 100);
    assert_eq!(scene.room().await, LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_start_after_its_end_takes_nothing_and_is_charged_the_cost() {
    let scene = Scene::new();
    let node = scene.pod.connect_node("envoy");
    assert!(!scene.pod.end_start("1", Some(30), node));
    assert!(!scene.starts("tokens", "1", 700).await, "nobody waits for the answer");
    seconds(1).await;
    assert_eq!(scene.remaining().await, 970);
    assert_eq!(scene.count(HoldCounter::EndedBefore), 1);
    for n in 0..9 {
        let id = format!("slot-{n}");
        scene.decided(&end("slot", &id, 1)).await;
        assert!(!scene.starts("slot", &id, 1).await);
    }
    assert_eq!(scene.room().await, LIMIT);
}

/// Envoy lets it pass without an answer where `failure_mode_deny` is false.
#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_is_charged_what_its_log_says() {
    let scene = Scene::new();
    let node = scene.pod.connect_node("envoy");
    let verdict = scene.decided(&start("tokens", "1", 700)).await;
    scene.pod.undo_start(verdict.started.unwrap());
    assert_eq!(scene.count(HoldCounter::InForce), 0);
    assert!(scene.pod.end_start("1", Some(120), node));
    seconds(1).await;
    assert_eq!(scene.remaining().await, 880);
    // A start may be given up while its lease is asked for.
    *scene.rig.store.round_trip.lock() = MAX_WAIT * 4;
    let second = start("tokens", "2", 880);
    assert!(tokio::time::timeout(MAX_WAIT / 2, scene.decided(&second)).await.is_err());
    *scene.rig.store.round_trip.lock() = Duration::ZERO;
    seconds(1).await;
    assert!(scene.pod.end_start("2", Some(80), node));
    seconds(1).await;
    assert_eq!(scene.remaining().await, 800);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_overtakes_its_start_finds_it() {
    let scene = Scene::new();
    *scene.rig.store.round_trip.lock() = MAX_WAIT / 2;
    let first = start("slot", "1", 1);
    let (_, ()) = tokio::join!(scene.decided(&first), async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        scene.decided(&end("slot", "1", 1)).await;
    });
    assert_eq!(scene.count(HoldCounter::InForce), 0);
    *scene.rig.store.round_trip.lock() = Duration::ZERO;
    assert_eq!(scene.room().await, LIMIT);
}

/// A client chooses the id, and Envoy sends an end for each denied request.
#[tokio::test(start_paused = true)]
async fn no_more_requests_of_one_id_run_than_the_limit_says() {
    let scene = Scene::new();
    let mut running = 0;
    for _ in 0..30 {
        let passed = scene.starts("slot", "one", 1).await;
        running += u64::from(passed);
        if !passed {
            scene.decided(&end("slot", "one", 1)).await;
        }
    }
    assert_eq!(running, LIMIT);
    for _ in 0..LIMIT {
        scene.decided(&end("slot", "one", 1)).await;
    }
    assert_eq!(scene.room().await, LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_start_without_further_signs_of_life_is_released() {
    let scene = Scene::new();
    let node = scene.pod.connect_node("envoy");
    assert!(scene.starts("slot", "silent", 1).await);
    assert!(scene.starts("slot", "alive", 1).await);
    seconds(10).await;
    scene.pod.note_alive("silent", node);
    for _ in 0..3 {
        scene.pod.note_alive("alive", node);
        assert_eq!(scene.count(HoldCounter::InForce), 2);
        seconds(10).await;
    }
    scene.pod.note_alive("alive", node);
    seconds(2).await;
    assert_eq!(scene.count(HoldCounter::InForce), 1);
    assert_eq!(scene.count(HoldCounter::Silent), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reset_frees_slots_and_takes_nothing_back_from_older_holds() {
    let scene = Scene::new();
    for n in 0..LIMIT {
        assert!(scene.starts("slot", &n.to_string(), 1).await);
    }
    for n in 0..9 {
        assert!(scene.starts("tokens", &format!("t{n}"), 100).await);
    }
    scene.reset(&start("slot", "", 1));
    scene.reset(&start("tokens", "", 1));
    seconds(1).await;
    assert_eq!(scene.room().await, LIMIT);
    // The embedded store has kept its count, of which 100 are left.
    for n in 0..9 {
        scene.decided(&end("tokens", &format!("t{n}"), 0)).await;
    }
    seconds(1).await;
    assert!(!scene.starts("tokens", "newer", 101).await, "nothing comes back");
}

/// The store of these tests keeps its count, so tokens that come back show in it.
#[tokio::test(start_paused = true)]
async fn a_start_that_is_decided_during_a_reset_gives_nothing_back() {
    for denied in [false, true] {
        let scene = Scene::new();
        if denied {
            let other = scene.rig.pod_numbered(7);
            for n in 0..LIMIT {
                let verdict =
                    other.decided(&scene.rig.rules, &start("slot", &n.to_string(), 1)).await;
                assert_eq!(verdict.unwrap().code, Code::Ok);
            }
        }
        *scene.rig.store.round_trip.lock() = Duration::from_millis(4);
        let mut request = start("tokens", "race", 100);
        request.descriptors.extend(start("slot", "race", 1).descriptors);
        let reset = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            scene.reset(&start("tokens", "", 1));
            scene.remaining().await
        };
        let (verdict, before) = tokio::join!(scene.decided(&request), reset);
        assert_eq!(verdict.code == Code::OverLimit, denied);
        scene.decided(&end("tokens", "race", 0)).await;
        seconds(3).await;
        assert!(scene.remaining().await <= before, "{denied}: {before}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_ends_during_a_reset_gives_nothing_back() {
    let scene = Scene::new();
    let verdict = scene.decided(&start("tokens", "race", 100)).await;
    let shared = &scene.pod.shared;
    let now = shared.clock.now();
    let (held, _) = shared.starts.forget(verdict.started.unwrap()).expect("it is open");
    scene.reset(&start("tokens", "", 1));
    let before = scene.remaining().await;
    shared.end_holds(&held, End::Cost(0), now);
    seconds(3).await;
    assert_eq!(scene.remaining().await, before);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_begins_after_a_reset_gives_back_what_it_took() {
    let scene = Scene::new();
    scene.reset(&start("tokens", "", 1));
    seconds(1).await;
    assert!(scene.starts("tokens", "later", 700).await);
    scene.decided(&end("tokens", "later", 0)).await;
    seconds(3).await;
    assert!(scene.starts("tokens", "last", 990).await);
}

/// Near its end a limit of slots has to be asked about for nearly every request.
#[tokio::test(start_paused = true)]
async fn a_candidate_of_slots_decides_every_request_as_it_would_in_force() {
    let (scene, candidate) = (Scene::new(), Scene::new());
    let tried = async |request: &Request<'_>| {
        let Scene { rig, pod, envoy } = &candidate;
        let at_once = pod.decide_aside(&rig.rules, request, pod.clock().now(), *envoy, true);
        let verdict = match at_once {
            Some(verdict) => Some(verdict),
            None => pod.decide_aside_later(&rig.rules, request, *envoy, true).await,
        };
        verdict.expect("it is not left out").code
    };
    let ids: Vec<_> = (0..60).map(|n: u64| n.to_string()).collect();
    let mut running = VecDeque::new();
    let mut denied = 0;
    for id in &ids {
        let code = scene.decided(&start("slot", id, 1)).await.code;
        assert_eq!(tried(&start("slot", id, 1)).await, code, "{id}");
        match code {
            Code::Ok => running.push_back(id),
            _ => {
                denied += 1;
                let first = running.pop_front().expect("one runs");
                scene.decided(&end("slot", first, 1)).await;
                tried(&end("slot", first, 1)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    assert!(denied > 20, "{denied}");
}
