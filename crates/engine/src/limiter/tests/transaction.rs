//! The effects of a request of several descriptors: applied once, or not at all.

use ratelease_rules::key::KeyPart;

use super::*;

/// A limit of many requests.
const HOUR: &str = "unit: hour, requests_per_unit: 100";

/// A limit of one request.
const DAY: &str = "unit: day, requests_per_unit: 1";

/// A request with a refund of `a` and a charge of `b`, in this order.
fn refund_and_charge(refunded: u64, charged: u64) -> Request<'static> {
    let refund = Descriptor { hits_addend: Some(refunded), refund: true, ..descriptor("a") };
    let charge = Descriptor { hits_addend: Some(charged), ..descriptor("b") };
    Request { domain: "d", descriptors: smallvec![refund, charge], hits_addend: 0 }
}

async fn code(pod: &Limiter, rules: &Rules, request: &Request<'_>) -> Code {
    pod.decided(rules, request).await.unwrap().code
}

async fn remaining(pod: &Limiter, rules: &Rules, key: &str) -> u64 {
    decide(pod, rules, &look(key)).await.1
}

#[tokio::test(start_paused = true)]
async fn a_refund_beside_a_key_that_has_to_be_asked_for_is_credited_once() {
    let rig = Rig::new(&limits(HOUR, HOUR));
    let pod = rig.pod();
    decide(&pod, &rig.rules, &charge("a", 50)).await;
    assert_eq!(code(&pod, &rig.rules, &refund_and_charge(5, 1)).await, Code::Ok);
    assert_eq!(remaining(&pod, &rig.rules, "a").await, 55);
}

#[tokio::test(start_paused = true)]
async fn a_refund_of_a_request_that_is_denied_is_not_credited() {
    let rig = Rig::new(&limits(HOUR, DAY));
    for knows_b in [false, true] {
        let pod = rig.pod();
        decide(&pod, &rig.rules, &charge("a", 1)).await;
        if knows_b {
            decide(&pod, &rig.rules, &charge("b", 1)).await;
        }
        let before = remaining(&pod, &rig.rules, "a").await;
        let denied = code(&pod, &rig.rules, &refund_and_charge(1, 2)).await;
        assert_eq!(denied, Code::OverLimit);
        assert_eq!(remaining(&pod, &rig.rules, "a").await, before, "known: {knows_b}");
    }
}

#[tokio::test(start_paused = true)]
async fn refunds_of_the_same_key_in_one_request_are_each_credited_once() {
    let rig = Rig::new(&limits(HOUR, HOUR));
    let pod = rig.pod();
    decide(&pod, &rig.rules, &charge("a", 50)).await;
    let mut request = refund_and_charge(5, 1);
    request.descriptors.push(request.descriptors[0].clone());
    let charged = Descriptor { hits_addend: Some(3), ..descriptor("a") };
    request.descriptors.push(charged);
    assert_eq!(code(&pod, &rig.rules, &request).await, Code::Ok);
    assert_eq!(remaining(&pod, &rig.rules, "a").await, 50 + 5 + 5 - 3);
}

#[tokio::test(start_paused = true)]
async fn a_refund_that_no_lease_here_can_take_goes_to_the_store_with_its_request() {
    let rig = Rig::new(&limits(HOUR, HOUR));
    decide(&rig.pod(), &rig.rules, &charge("a", 50)).await;
    let pod = rig.pod();
    assert_eq!(code(&pod, &rig.rules, &refund_and_charge(5, 1)).await, Code::Ok);
    assert_eq!(remaining(&rig.pod(), &rig.rules, "a").await, 55);
}

#[tokio::test(start_paused = true)]
async fn a_refund_that_gave_up_waiting_is_credited_once_in_every_failure_mode() {
    for mode in ["local", "allow", "deny"] {
        let yaml = limits(HOUR, HOUR).replace("error", mode);
        let rig = Rig::new(&yaml);
        decide(&rig.pod(), &rig.rules, &charge("a", 50)).await;
        *rig.store.round_trip.lock() = MAX_WAIT * 4;
        let pod = rig.pod();
        assert!(decide(&pod, &rig.rules, &refund("a", 5)).await.0, "{mode}");
        tokio::time::sleep(MAX_WAIT * 4).await;
        *rig.store.round_trip.lock() = Duration::ZERO;
        assert_eq!(remaining(&rig.pod(), &rig.rules, "a").await, 55, "{mode}");
    }
}

/// A request has two keys: this pod itself admits the first while its lease is late, and the second
/// denies. The lease that then arrives keeps all its tokens, and the pod's own count is zero.
#[tokio::test(start_paused = true)]
async fn what_a_pod_admits_by_itself_for_a_denied_request_costs_nothing() {
    let yaml = limits("unit: day, requests_per_unit: 100", "unit: hour, requests_per_unit: 1");
    let rig = Rig::new(&yaml.replace("error", "local"));
    let pod = rig.pod();
    decide(&pod, &rig.rules, &charge("b", 1)).await;
    tokio::time::sleep(Duration::from_secs(2)).await; // its denial has to be asked for
    *rig.store.days_late.lock() = MAX_WAIT * 2;
    let verdict = pod.decided(&rig.rules, &request(&["a", "b"])).await.unwrap();
    assert_eq!(verdict.code, Code::OverLimit);
    tokio::time::sleep(MAX_WAIT * 4).await;
    *rig.store.days_late.lock() = Duration::ZERO;
    assert_eq!(remaining(&pod, &rig.rules, "a").await, 100);
    rig.store.fails.store(true, Ordering::Relaxed);
    let mut visit = pod.shared.visit(Key::for_test(0), pod.clock().now());
    pod.shared.table.with_existing(
        pod.shared.options.hasher.key(
            "d",
            Limit::fixed_window(100, Unit::Day).identity(),
            std::iter::once(("a", KeyPart::Value("x"))),
        ),
        |slot| slot.give_back(&mut visit),
    );
    let admitted = passed_by_itself(&pod, &rig.rules, 200).await;
    assert_eq!(admitted, 100, "none of its part was spent before");
}

async fn passed_by_itself(pod: &Limiter, rules: &Rules, requests: u32) -> u32 {
    let mut passed = 0;
    for _ in 0..requests {
        let verdict = pod.decided(rules, &request(&["a"])).await.unwrap();
        passed += u32::from(verdict.code == Code::Ok);
    }
    passed
}

/// A request that a caller leaves undecided because it cannot wait has had no effect; a caller that
/// can wait decides it.
#[tokio::test(start_paused = true)]
async fn what_is_not_decided_at_once_is_settled_refunded_and_charged_once() {
    let settles = Rig::new(&limits(&format!("{HOUR}, settle: true"), HOUR));
    let mut cost = charge("a", 7);
    cost.descriptors.push(descriptor("b"));
    let refunds = Rig::new(&limits(HOUR, HOUR));
    decide(&refunds.pod(), &refunds.rules, &charge("a", 50)).await;
    for (rig, both, left) in [(settles, cost, 93), (refunds, refund_and_charge(5, 1), 55)] {
        let pod = rig.pod();
        let now = pod.clock().now();
        assert_eq!(pod.decide_at_once(&rig.rules, &both, now, Owner::UNKNOWN), None, "`b` waits");
        assert_eq!(code(&pod, &rig.rules, &both).await, Code::Ok);
        tokio::time::sleep(MAX_WAIT).await;
        assert_eq!(remaining(&pod, &rig.rules, "a").await, left);
        assert_eq!(remaining(&pod, &rig.rules, "b").await, 99);
    }
}

/// Decides `key` aside. Returns the verdict, if there is one.
fn aside(pod: &Limiter, rules: &Rules, key: &'static str) -> Option<Code> {
    let decided =
        pod.decide_aside(rules, &request(&[key]), pod.clock().now(), Owner::UNKNOWN, true);
    decided.map(|verdict| verdict.code)
}

#[tokio::test(start_paused = true)]
async fn what_is_decided_aside_asks_for_later_requests_and_counts_each_verdict_once() {
    for round_trip in [Duration::from_micros(500), 2 * MAX_WAIT] {
        let rig = Rig::slow(&per_hour(3, 3), round_trip);
        let pod = rig.pod();
        let mut verdicts = Vec::new();
        while verdicts.len() < 5 {
            match aside(&pod, &rig.rules, "a") {
                Some(code) => verdicts.push(code),
                None => {
                    let asks = rig.asks();
                    assert_eq!(aside(&pod, &rig.rules, "a"), None, "the reply is not there");
                    tokio::time::sleep(2 * round_trip).await;
                    assert!(rig.asks() <= asks + 1, "one ask, however many lack tokens");
                }
            }
            assert!(rig.asks() < 10, "{verdicts:?}");
        }
        let [ok, over] = [Code::Ok, Code::OverLimit];
        assert_eq!(verdicts, [ok, ok, ok, over, over], "{round_trip:?}");
        let awaited = rig.store.awaited_asks.load(Ordering::Relaxed);
        assert_eq!(awaited, 0, "they are the first that a shard under load sheds");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_leased_is_not_asked_for_aside() {
    let rig = Rig::new(&limits(
        "unit: hour, requests_per_unit: 3, lease: off",
        "unit: hour, requests_per_unit: 3, algorithm: sliding_log",
    ));
    let pod = rig.pod();
    for key in ["a", "b"] {
        assert_eq!(aside(&pod, &rig.rules, key), None, "{key}");
        tokio::time::sleep(4 * MAX_WAIT).await;
        assert_eq!((aside(&pod, &rig.rules, key), rig.asks()), (None, 0), "{key}");
    }
}

#[tokio::test]
async fn a_thread_without_a_runtime_decides_aside() {
    let rig = Rig::new(&per_hour(3, 3));
    let pod = rig.pod();
    let on_thread = || {
        let decided = std::thread::scope(|threads| {
            threads.spawn(|| aside(&pod, &rig.rules, "a")).join().expect("no panic")
        });
        decided.is_some()
    };
    assert!(!on_thread(), "the store has to be asked");
    let decides = async {
        while !on_thread() {
            tokio::task::yield_now().await;
        }
    };
    let decided = tokio::time::timeout(Duration::from_secs(10), decides).await;
    decided.expect("the ask is answered");
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_before_a_wait_goes_back() {
    let rig = Rig::new(&limits(HOUR, "unit: hour, requests_per_unit: 2"));
    let pod = rig.pod();
    let at_once = |keys: &[&'static str]| {
        let decided =
            pod.decide_at_once(&rig.rules, &request(keys), pod.clock().now(), Owner::UNKNOWN);
        decided.map(|verdict| verdict.code)
    };
    assert_eq!(remaining(&pod, &rig.rules, "a").await, 100);
    assert_eq!(at_once(&["a"]), None, "a look leases nothing");
    decide(&pod, &rig.rules, &charge("a", 1)).await;
    assert_eq!(at_once(&["a", "b"]), None, "`a` is here, `b` is not");
    assert_eq!(remaining(&pod, &rig.rules, "a").await, 99);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_leaves_nothing_behind() {
    let yaml = limits(HOUR, "unit: day, requests_per_unit: 100");
    let rig = Rig::new(&yaml);
    let pod = rig.pod();
    *rig.store.days_late.lock() = MAX_WAIT * 2;
    let both = request(&["a", "b"]);
    let decision = pod.decided(&rig.rules, &both);
    // The lease of `a` has arrived by now, that of `b` has not.
    let cancelled = tokio::time::timeout(MAX_WAIT / 2, decision).await;
    assert!(cancelled.is_err());
    tokio::time::sleep(MAX_WAIT * 4).await;
    *rig.store.days_late.lock() = Duration::ZERO;
    for key in ["a", "b"] {
        assert_eq!(remaining(&pod, &rig.rules, key).await, 100, "{key}");
    }
    pod.close().await;
    for key in ["a", "b"] {
        assert_eq!(remaining(&rig.pod(), &rig.rules, key).await, 100, "{key}, at the store");
    }
}
