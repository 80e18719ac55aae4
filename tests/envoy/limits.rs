//! One pod and two: as many requests pass as the limit allows.

use crate::stand::{MACHINE, Rules, before, file, pod, rule};
use crate::support::envoy::{Envoy, Verdicts};
use crate::support::http::{Answer, Client};
use crate::support::load::{Load, Tally};
use crate::support::now;

#[tokio::test]
async fn one_client_passes_l_times_with_headers_that_count_down_and_then_gets_429() {
    const L: u64 = 500;
    let _shared = MACHINE.read().await;
    let rules = Rules::new(&file("sequential", &[rule("path", Some("/one"), L)]));
    let pod = pod(&rules).await;
    let envoy = Envoy::start(before("sequential", &[&pod])).await;

    let mut client = Client::connect(envoy.ingress).await.unwrap();
    let mut reset_before = 86_400;
    for sent in 0..2 * L {
        let answer = client.get("/one", &[]).await.unwrap();
        assert_eq!(answer.status, if sent < L { 200 } else { 429 }, "request {sent}");
        assert_eq!(answer.header("x-ratelimit-limit"), Some("500, 500;w=86400"));
        let remaining = (L - 1).saturating_sub(sent);
        assert_eq!(number(&answer, "x-ratelimit-remaining"), remaining, "request {sent}");
        let reset = number(&answer, "x-ratelimit-reset");
        assert!((1..=reset_before).contains(&reset), "{reset} after {reset_before}");
        reset_before = reset;
    }
    let expected = Verdicts { ok: L, over_limit: L, ..Verdicts::default() };
    assert_eq!(envoy.verdicts().await, expected);
    println!("sequential, L = {L}: {expected:?}, reset {reset_before} s");
}

#[tokio::test]
async fn many_clients_pass_l_times_in_all_and_then_get_429() {
    const L: u64 = 2_000;
    let _shared = MACHINE.read().await;
    let rules = Rules::new(&file("concurrent", &[rule("path", Some("/many"), L)]));
    let pod = pod(&rules).await;
    let envoy = Envoy::start(before("concurrent", &[&pod])).await;

    let tally = envoy.load(Load::new("/many", 16, 2 * L)).finish().await;
    assert_eq!(tally, Tally { statuses: [(200, L), (429, L)].into(), broken: 0 });
    let expected = Verdicts { ok: L, over_limit: L, ..Verdicts::default() };
    assert_eq!(envoy.verdicts().await, expected);
    println!("16 connections, L = {L}: {expected:?}");
}

#[tokio::test]
async fn two_pods_behind_one_envoy_admit_at_most_l_and_nearly_all_of_it() {
    let _shared = MACHINE.read().await;
    let limit = 1_000;
    let rules = Rules::new(&file("shared", &[by_limit(limit)]));
    let pods = [pod(&rules).await, pod(&rules).await];
    let envoy = Envoy::start(before("shared", &[&pods[0], &pods[1]])).await;
    let start = now();
    let tally = envoy.load(Load::new(&path(limit), 8, 2 * limit)).finish().await;
    println!("one Envoy, two pods, L = {limit}: {tally:?} in {:?}", start.elapsed());
    check_nearly_all(&tally, limit);
}

#[tokio::test]
async fn two_pods_with_an_envoy_each_admit_at_most_l_and_nearly_all_of_it() {
    let _shared = MACHINE.read().await;
    let limits = [1_000, 10_000];
    let rules = Rules::new(&file("apart", &limits.map(by_limit)));
    let pods = [pod(&rules).await, pod(&rules).await];
    let envoys = [
        Envoy::start(before("apart", &[&pods[0]])).await,
        Envoy::start(before("apart", &[&pods[1]])).await,
    ];
    for limit in limits {
        let start = now();
        let loads = envoys.each_ref().map(|envoy| envoy.load(Load::new(&path(limit), 4, limit)));
        let mut all = Tally::default();
        for load in loads {
            let tally = load.finish().await;
            println!("of two Envoys and pods, L = {limit}: {tally:?} in {:?}", start.elapsed());
            all.add(tally);
        }
        check_nearly_all(&all, limit);
    }
}

fn path(limit: u64) -> String {
    format!("/{limit}")
}

fn by_limit(limit: u64) -> String {
    rule("path", Some(&path(limit)), limit)
}

/// Checks that of 2 L requests, at most L and at least 0.99 L pass; the others are limited.
fn check_nearly_all(tally: &Tally, limit: u64) {
    let admitted = tally.passed();
    println!("admitted / L = {:.4} of {limit}", admitted as f64 / limit as f64);
    assert!(admitted <= limit, "{admitted} admitted of {limit}");
    assert!(admitted >= limit * 99 / 100, "{admitted} admitted of {limit}");
    assert_eq!((tally.limited(), tally.faults()), (2 * limit - admitted, 0), "{tally:?}");
}

fn number(answer: &Answer, header: &str) -> u64 {
    let value = answer.header(header).unwrap_or_else(|| panic!("no {header}: {answer:?}"));
    value.parse().unwrap_or_else(|_| panic!("{header}: {value}"))
}
