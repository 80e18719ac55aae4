//! A refund credits the amount that it names, once, and at most the amount that was charged.

use std::time::Duration;

use futures_util::future::join_all;

use crate::caller::{Line, charge, refund};
use crate::pods::Pods;
use crate::support::redis::Cluster;
use crate::support::windows::early_in_a_window;
use crate::{DAY, MACHINE};

const LIMIT: u64 = 200;

/// Rules: `known` is refunded, `new` has keys without a lease, and `shut` denies.
const LIMITS: [(&str, &str); 3] = [
    ("known", "unit: day, requests_per_unit: 200"),
    ("new", "unit: day, requests_per_unit: 1000"),
    ("shut", "unit: day, requests_per_unit: 1"),
];

/// Requests, and the number of tokens of `known` left after them.
struct Case {
    what: &'static str,
    /// Value of `known`; the values of `new` and `shut` begin with it.
    value: String,
    steps: Vec<Step>,
    left: u64,
}

/// One request to one pod.
struct Step {
    pod: usize,
    lines: Vec<Line>,
    passes: bool,
}

fn step(pod: usize, lines: &[Line], passes: bool) -> Step {
    Step { pod, lines: lines.to_vec(), passes }
}

/// The cases of one round; `charged` of `known` is charged at pod 0 first.
fn cases(round: usize) -> Vec<Case> {
    let case = |what: &'static str, charged, left, more: &dyn Fn(&str) -> Vec<Step>| {
        let value = format!("{round}-{}", what.replace(' ', "-"));
        let first = (charged > 0).then(|| step(0, &[charge("known", &value, charged)], true));
        let steps = first.into_iter().chain(more(&value)).collect();
        Case { what, value, steps, left }
    };
    vec![
        case("no refund", 100, LIMIT - 100, &|_| Vec::new()),
        case("beside a charge of a new key", 100, LIMIT - 50, &|known| beside_new(0, known, 10)),
        case("after a charge of a new key", 100, LIMIT - 50, &|known| {
            let new = |n| charge("new", &format!("{known}-{n}"), 1);
            (0..10).map(|n| step(0, &[new(n), refund("known", known, 5)], true)).collect()
        }),
        case("by another pod, beside a charge of a new key", 100, LIMIT - 50, &|known| {
            beside_new(1, known, 10)
        }),
        case("beside a new key, more often than was charged", 100, LIMIT, &|known| {
            beside_new(0, known, 40)
        }),
        case("denied here", 100, LIMIT - 100, &|known| {
            let open = step(0, &[charge("shut", known, 1)], true);
            let pair = [refund("known", known, 5), charge("shut", known, 1)];
            let denied = (0..10).map(|_| step(0, &pair, false));
            std::iter::once(open).chain(denied).collect()
        }),
        case("denied by the store", 100, LIMIT - 100, &|known| {
            let shut = |n| charge("shut", &format!("{known}-{n}"), 2);
            let denied = |n| step(0, &[refund("known", known, 5), shut(n)], false);
            (0..10).map(denied).collect()
        }),
        case("of more than was charged", 3, LIMIT, &|known| {
            vec![step(0, &[refund("known", known, 50)], true)]
        }),
        case("of an unknown key", 0, LIMIT, &|known| {
            vec![step(0, &[refund("known", known, 5)], true)]
        }),
        case("of as much as can be written", 3, LIMIT, &|known| {
            vec![step(0, &[refund("known", known, u64::MAX)], true)]
        }),
        case("between two charges of the same key", 50, LIMIT - 50 - 4 + 5, &|known| {
            let twice = charge("known", known, 2);
            vec![step(0, &[twice.clone(), refund("known", known, 5), twice], true)]
        }),
        case("of a key that is used up and was denied", LIMIT, 5, &|known| {
            let denied = step(0, &[charge("known", known, 1)], false);
            vec![denied, step(0, &[refund("known", known, 5)], true)]
        }),
        case("in ten descriptors", 100, LIMIT - 90, &|known| {
            vec![step(0, &vec![refund("known", known, 1); 10], true)]
        }),
        case("none: charges in ten descriptors", 0, LIMIT - 50, &|known| {
            (0..5).map(|_| step(0, &vec![charge("known", known, 1); 10], true)).collect()
        }),
        case("none: charges in ten descriptors, to the last token", 190, 0, &|known| {
            let ten = vec![charge("known", known, 1); 10];
            vec![step(0, &ten, true), step(0, &ten, false)]
        }),
    ]
}

/// `times` requests to `pod` that refund 5 of `known` and charge a new key.
fn beside_new(pod: usize, known: &str, times: usize) -> Vec<Step> {
    let new = |n| charge("new", &format!("{known}-{n}"), 1);
    (0..times).map(|n| step(pod, &[refund("known", known, 5), new(n)], true)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_are_exact() {
    let _shared = MACHINE.read().await;
    early_in_a_window(DAY, Duration::from_secs(120)).await;
    let pods = Pods::start("refunds", 2, &Cluster::shared().places(), &LIMITS, &[]).await;
    let found = pods.undisturbed(async |round| {
        let cases = cases(round);
        let mut wrong = Vec::new();
        for case in &cases {
            for (number, Step { pod, lines, passes }) in case.steps.iter().enumerate() {
                let passed = pods.pods[*pod].caller.passes(&pods.domain, lines).await;
                if passed != *passes {
                    wrong.push(format!("{}: step {number}: passes: {passed}", case.what));
                }
            }
        }
        let left = join_all(cases.iter().map(|case| {
            let used = 1 + case.steps.iter().map(|step| step.pod).max().unwrap();
            pods.drain(used, "known", &case.value)
        }));
        for (case, left) in cases.iter().zip(left.await) {
            println!("refund {}: {left} left, expected {}", case.what, case.left);
            if left != case.left {
                wrong.push(format!("{}: {left} left, expected {}", case.what, case.left));
            }
        }
        wrong
    });
    let wrong = found.await;
    assert!(wrong.is_empty(), "{wrong:#?}");
    pods.are_unharmed();
}

/// Redis counts the unspent tokens that a pod holds as charged. So a refund by another pod of more
/// than was charged may be credited beyond that, but what callers charge and do not refund stays
/// within the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_refund_by_another_pod_of_more_than_was_charged_keeps_the_limit() {
    /// Hits that the first pod charges.
    const CHARGED: u64 = 60;
    /// Hits that the second pod refunds: more than were charged.
    const REFUNDED: u64 = 150;
    let _shared = MACHINE.read().await;
    early_in_a_window(DAY, Duration::from_secs(120)).await;
    let pods = Pods::start("elsewhere", 2, &Cluster::shared().places(), &LIMITS, &[]).await;
    let admitted = pods.undisturbed(async |round| {
        let value = format!("elsewhere-{round}");
        let [first, second] = [0, 1].map(|pod| pods.pods[pod].caller.clone());
        for _ in 0..CHARGED {
            assert!(first.passes(&pods.domain, &[charge("known", &value, 1)]).await);
        }
        assert!(second.passes(&pods.domain, &[refund("known", &value, REFUNDED)]).await);
        CHARGED + pods.drain(2, "known", &value).await
    });
    let admitted = admitted.await;
    println!(
        "charged {CHARGED}, refunded {REFUNDED} by another pod: {admitted} of {LIMIT} admitted, {} \
         more than the refund of what was charged allows",
        admitted.saturating_sub(LIMIT + CHARGED)
    );
    assert!((LIMIT + CHARGED..=LIMIT + REFUNDED).contains(&admitted), "{admitted}");
    pods.are_unharmed();
}
