//! Sequences in which a cost may be lost or a slot stay in use: each is counted once, and comes
//! back.

use ratelease_rules::SETTLE_KEY;

use super::*;

fn started<'a>(user: &'a str, id: &'a str, hits: u64, ends: bool) -> Descriptor<'a> {
    let mut entries = vec![Entry { key: "user", value: user }, Entry { key: "id", value: id }];
    if ends {
        entries.push(Entry { key: SETTLE_KEY, value: "1" });
    }
    Descriptor {
        entries: entries.into_iter().collect(),
        hits_addend: Some(hits),
        ..Descriptor::default()
    }
}

fn all(descriptors: Vec<Descriptor<'_>>) -> Request<'_> {
    Request { domain: "d", descriptors: descriptors.into_iter().collect(), hits_addend: 0 }
}

fn slots(limit: u32, more: &str, beside: &str) -> String {
    format!(
        "domain: d\ndescriptors:\n- key: user\n  descriptors: [{{key: id, rate_limit: \
         {{algorithm: concurrency, requests_per_unit: {limit}, hold: {{for: 1m}}{more}}}}}]\n{beside}"
    )
}

fn run(pod: &Limiter) {
    let maintained = pod.clone();
    tokio::spawn(async move { maintained.run().await });
}

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// A request is dropped while its refund is under way.
#[tokio::test(start_paused = true)]
async fn a_slot_of_a_dropped_request_with_a_refund_comes_back() {
    let rig =
        Rig::new(&slots(1, "", "- {key: b, rate_limit: {unit: day, requests_per_unit: 9}}\n"));
    let pod = rig.pod_numbered(7);
    run(&pod);
    *rig.store.days_late.lock() = Duration::from_millis(50);
    let mut back = descriptor("b");
    back.hits_addend = Some(1);
    back.refund = true;
    let both = all(vec![started("x", "one", 1, false), back]);
    let dropped =
        tokio::time::timeout(Duration::from_millis(3), pod.decided(&rig.rules, &both)).await;
    assert!(dropped.is_err(), "it waits for the refund");
    pause(10_000).await;
    let _ = decide(&pod, &rig.rules, &all(vec![started("x", "one", 1, true)])).await;
    pause(600_000).await;
    assert!(
        decide(&pod, &rig.rules, &all(vec![started("x", "two", 1, false)])).await.0,
        "a slot has not come back"
    );
}

/// As above, with an estimate: its end charges the cost, and not both.
#[tokio::test(start_paused = true)]
async fn an_estimate_of_a_dropped_request_with_a_refund_is_settled() {
    let rig = Rig::new(
        "domain: d\ndescriptors:\n- key: user\n  descriptors: [{key: id, rate_limit: {unit: hour, \
         requests_per_unit: 1000, hold: {for: 1m}}}]\n\
         - {key: b, rate_limit: {unit: day, requests_per_unit: 9}}\n",
    );
    let pod = rig.pod_numbered(7);
    *rig.store.days_late.lock() = Duration::from_millis(50);
    let mut back = descriptor("b");
    back.hits_addend = Some(1);
    back.refund = true;
    let both = all(vec![started("x", "one", 100, false), back]);
    let dropped =
        tokio::time::timeout(Duration::from_millis(3), pod.decided(&rig.rules, &both)).await;
    assert!(dropped.is_err(), "it waits for the refund");
    let end = all(vec![started("x", "one", 30, true)]);
    assert!(decide(&pod, &rig.rules, &end).await.0);
    pod.close().await;
    let look = all(vec![started("x", "look", 0, false)]);
    assert_eq!(decide(&rig.pod(), &rig.rules, &look).await, (true, 970));
}

/// A request has two refunds. One waits when the caller gives up; the other one counts too.
#[tokio::test(start_paused = true)]
async fn a_refund_beside_one_under_way_is_applied_though_the_caller_gave_up() {
    let rig = Rig::new(
        "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 9}}\n\
         - {key: b, rate_limit: {unit: day, requests_per_unit: 9}}\n",
    );
    let pod = rig.pod_numbered(7);
    let of = |key: &'static str, hits: u64, refund: bool| {
        let mut entry = descriptor(key);
        (entry.hits_addend, entry.refund) = (Some(hits), refund);
        entry
    };
    assert!(decide(&pod, &rig.rules, &all(vec![of("a", 5, false)])).await.0);
    *rig.store.days_late.lock() = Duration::from_millis(50);
    let both = all(vec![of("a", 3, true), of("b", 1, true)]);
    let dropped =
        tokio::time::timeout(Duration::from_millis(3), pod.decided(&rig.rules, &both)).await;
    assert!(dropped.is_err(), "it waits for the refund of b");
    assert_eq!(decide(&pod, &rig.rules, &all(vec![of("a", 0, false)])).await, (true, 7));
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_a_request_that_its_own_second_descriptor_denies_comes_back() {
    let rig = Rig::new(&slots(1, "", ""));
    let pod = rig.pod_numbered(7);
    run(&pod);
    let both = all(vec![started("x", "one", 1, false), started("x", "two", 1, false)]);
    assert!(!decide(&pod, &rig.rules, &both).await.0);
    pause(600_000).await;
    assert!(
        decide(&pod, &rig.rules, &all(vec![started("x", "three", 1, false)])).await.0,
        "a slot has not come back"
    );
}

/// The queue of watched keys is full.
#[tokio::test(start_paused = true)]
async fn slots_in_use_of_more_keys_than_are_watched_stay_counted() {
    let rig = Rig::new(&slots(1, "", ""));
    let options = |pod| Options {
        pod,
        wait_min: MAX_WAIT,
        unix_start: START,
        buffer_bytes_max: 32 << 10,
        ..Options::default()
    };
    let pod = |n| Limiter::new(Arc::clone(&rig.store) as _, rig.clock, options(n));
    let [one, other] = [pod(1), pod(2)];
    run(&one);
    let users: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let mut running = 0;
    for user in &users {
        running +=
            usize::from(decide(&one, &rig.rules, &all(vec![started(user, "a", 1, false)])).await.0);
    }
    let mut more = 0;
    for round in 0..4 {
        pause(2_500).await;
        for user in &users {
            let id = format!("b{round}");
            let start = all(vec![started(user, &id, 1, false)]);
            more += usize::from(decide(&other, &rig.rules, &start).await.0);
        }
    }
    assert!(running + more <= 200, "{running} and {more} of 200 users with one slot each");
}

/// A cost of a window that is over.
#[tokio::test(start_paused = true)]
async fn what_was_owed_to_a_window_that_is_over_is_dropped() {
    let rig =
        Rig::new(&limits("unit: minute, requests_per_unit: 100, settle: true", "unlimited: true"));
    let pod = rig.pod();
    assert!(decide(&pod, &rig.rules, &charge("a", 1)).await.0);
    pause(2_000).await;
    rig.store.fails.store(true, Ordering::Relaxed);
    assert!(decide(&pod, &rig.rules, &charge("a", 5_000)).await.0);
    pause(29_000).await;
    rig.store.fails.store(false, Ordering::Relaxed);
    pod.evict_expired().await;
    pause(1_000).await;
    assert_eq!(decide(&rig.pod(), &rig.rules, &look("a")).await, (true, 100));
}

/// A report as a return whose fate is unknown.
#[tokio::test(start_paused = true)]
async fn a_cost_of_a_key_that_is_not_leased_is_counted_though_two_connections_break() {
    let rig = Rig::new(&limits(
        "unit: hour, requests_per_unit: 100, settle: true, lease: off",
        "unlimited: true",
    ));
    let pod = rig.pod();
    run(&pod);
    rig.store.fails.store(true, Ordering::Relaxed);
    assert!(decide(&pod, &rig.rules, &charge("a", 70)).await.0);
    pause(100).await;
    rig.store.fails.store(false, Ordering::Relaxed);
    pause(5_000).await;
    assert_eq!(decide(&rig.pod(), &rig.rules, &look("a")).await, (true, 30));
}

#[tokio::test(start_paused = true)]
async fn a_cost_is_counted_though_the_rule_changes_while_a_connection_breaks() {
    let rig =
        Rig::new(&limits("unit: hour, requests_per_unit: 100, settle: true", "unlimited: true"));
    let newer =
        compile(&limits("unit: hour, requests_per_unit: 200, settle: true", "unlimited: true"));
    let pod = rig.pod();
    run(&pod);
    rig.store.fails.store(true, Ordering::Relaxed);
    assert!(decide(&pod, &rig.rules, &charge("a", 70)).await.0);
    pause(2).await;
    pod.apply_rules(&newer).await;
    pause(2).await;
    rig.store.fails.store(false, Ordering::Relaxed);
    pause(5_000).await;
    assert_eq!(decide(&rig.pod(), &newer, &look("a")).await, (true, 130));
}

/// Hits above 32 bits that `allow` admits.
#[tokio::test(start_paused = true)]
async fn slots_that_allow_admits_are_given_back_whatever_their_number() {
    let rig = Rig::new(&slots(
        4,
        ", failure_mode: allow",
        "- {key: b, rate_limit: {unit: hour, requests_per_unit: 0}}\n",
    ));
    let pod = rig.pod_numbered(7);
    rig.store.fails.store(true, Ordering::Relaxed);
    let before = crate::invariant::violations();
    // More slots than can be counted.
    assert!(!decide(&pod, &rig.rules, &all(vec![started("x", "one", 1 << 33, false)])).await.0);
    assert!(decide(&pod, &rig.rules, &all(vec![started("x", "one", 1 << 31, false)])).await.0);
    assert!(decide(&pod, &rig.rules, &all(vec![started("x", "one", 1, true)])).await.0);
    assert_eq!(crate::invariant::violations(), before, "an invariant does not hold");
}

#[tokio::test(start_paused = true)]
async fn a_denial_beside_slots_that_allow_admits_does_not_panic() {
    let rig = Rig::new(&slots(
        4,
        ", failure_mode: allow",
        "- {key: b, rate_limit: {unit: day, requests_per_unit: 0}}\n",
    ));
    let pod = rig.pod_numbered(7);
    let b = Descriptor { hits_addend: Some(1), ..descriptor("b") };
    // The shard of slots hangs; that of `b` answers and denies.
    rig.store.hangs.store(true, Ordering::Relaxed);
    let both = all(vec![started("x", "one", u64::MAX, false), b]);
    pod.decided(&rig.rules, &both).await.unwrap();
}

/// A second start of an id whose count is in another store by now.
#[tokio::test(start_paused = true)]
async fn slots_of_a_request_that_starts_again_after_its_rule_changed_its_store_come_back() {
    let of = |store: &str| {
        let source = Source { name: "test.yaml".into(), text: slots(2, store, "").into() };
        let stores = ratelease_rules::StoreNames::parse("x").unwrap();
        rules::load(&[source], rules::Options { stores, ..rules::Options::default() })
            .unwrap()
            .rules
    };
    let (first, second) = (of(""), of(", store: x"));
    let rig = Rig::new(&slots(2, "", ""));
    let pod = rig.pod_numbered(7);
    run(&pod);
    let start = |id| all(vec![started("x", id, 1, false)]);
    assert!(decide(&pod, &first, &start("one")).await.0);
    pod.apply_rules(&second).await;
    assert!(decide(&pod, &second, &start("one")).await.0, "it is tried again");
    assert!(decide(&pod, &second, &all(vec![started("x", "one", 1, true)])).await.0);
    pause(600_000).await;
    assert!(decide(&pod, &second, &start("two")).await.0);
    assert!(decide(&pod, &second, &start("three")).await.0, "a slot has not come back");
}

/// A second start of an id that is denied for another limit's sake.
#[tokio::test(start_paused = true)]
async fn slots_of_a_request_whose_second_start_is_denied_stay_held_until_its_end() {
    let beside = "- key: b\n  descriptors: [{key: id, rate_limit: {algorithm: concurrency, \
                  requests_per_unit: 5, hold: {for: 1m}}}]\n";
    let rig = Rig::new(&slots(2, "", beside));
    let pod = rig.pod_numbered(7);
    run(&pod);
    let start = |id| all(vec![started("x", id, 1, false)]);
    assert!(decide(&pod, &rig.rules, &start("one")).await.0);
    let mut other = started("x", "", 1, false);
    other.entries[0] = Entry { key: "b", value: "x" };
    let both = all(vec![started("x", "one", 1, false), other]);
    assert!(!decide(&pod, &rig.rules, &both).await.0, "the other has no id");
    assert!(decide(&pod, &rig.rules, &all(vec![started("x", "one", 1, true)])).await.0);
    pause(600_000).await;
    assert!(decide(&pod, &rig.rules, &start("two")).await.0);
    assert!(decide(&pod, &rig.rules, &start("three")).await.0, "a slot has not come back");
}

/// A return of idle tokens to a count that carries a debt.
#[tokio::test(start_paused = true)]
async fn a_debt_is_carried_over_though_a_pod_gives_idle_tokens_back() {
    for gives_back in [false, true] {
        let a = "unit: minute, requests_per_unit: 1000, settle: true, carry_debt: true";
        let rig = Rig::new(&limits(a, "unlimited: true"));
        let [one, other] = [rig.pod(), rig.pod()];
        for _ in 0..40 {
            assert!(decide(&one, &rig.rules, &charge("a", 1)).await.0);
            pause(20).await;
        }
        assert!(decide(&other, &rig.rules, &charge("a", 3_000)).await.0);
        pause(100).await;
        if gives_back {
            one.close().await;
        }
        pause(31_000).await;
        let (passes, remaining) = decide(&rig.pod(), &rig.rules, &look("a")).await;
        assert!(!passes, "gives back: {gives_back}, 3000 of 1000 were used, {remaining} are left");
    }
}

/// Redis answers, but after the wait.
#[tokio::test(start_paused = true)]
async fn a_slow_reply_admits_no_more_requests_than_there_are_slots() {
    let rig = Rig::new(&slots(8, "", ""));
    let [one, other] = [rig.pod_numbered(1), rig.pod_numbered(2)];
    for pod in [&one, &other] {
        run(pod);
        pod.shared.pods.set(2);
    }
    let (mut running, mut beyond) = (0, 0);
    for n in 0..10 {
        let id = n.to_string();
        running +=
            u32::from(decide(&one, &rig.rules, &all(vec![started("x", &id, 1, false)])).await.0);
    }
    assert!(
        !decide(&other, &rig.rules, &all(vec![started("x", "z", 1, false)])).await.0,
        "it knows"
    );
    pause(2_000).await;
    *rig.store.round_trip.lock() = Duration::from_millis(30);
    for n in 10..30 {
        let id = n.to_string();
        beyond +=
            u32::from(decide(&other, &rig.rules, &all(vec![started("x", &id, 1, false)])).await.0);
        pause(100).await;
    }
    assert_eq!((running, beyond), (8, 0), "Redis answers within 30 ms");
}

/// Replies that cannot be.
#[test]
fn a_reply_that_leaves_out_what_an_ask_reports_is_refused() {
    use crate::algorithm::steps;
    use ratelease_rules::{Algorithm, key::Key};
    let limit = Limit::fixed_window(10, Unit::Minute);
    let now = 1_700_000_000_250_000;
    let bucket = Limit { algorithm: Algorithm::token_bucket(10), ..limit };
    let ask = Ask { owed: 50, ..Ask::look(Key::for_test(1), bucket) };
    let believed = (steps(&ask).reply)(&ask, &[0, now, 0, 0]).is_some();
    let slots = Limit { algorithm: Algorithm::Concurrency, ..limit };
    let stated = Some(crate::store::Slots { pod: 1, held: 5, order: 0, since: 0, received: 0 });
    let ask = Ask { slots: stated, ..Ask::look(Key::for_test(1), slots) };
    let believed_slots = (steps(&ask).reply)(&ask, &[0, now, 0, 0, 0]).is_some();
    assert_eq!((believed, believed_slots), (false, false));
}
