//! CFG on a live server: whatever the directory contains, the last good rules answer, and the debug
//! port shows what is wrong and where.

use super::{Case, Pod, World, in_every_world};
use crate::support::http;

const GOOD: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 100}}
";

in_every_world!(bad_rules_never_replace_good_ones);

/// V1's reload, and rows of CFG: the text of a file, and the debug page's message about it.
async fn bad_rules_never_replace_good_ones(world: World) {
    let mut pod = Pod::start(world, &[("good.yaml", GOOD)], &[]).await;
    pod.loaded(1, 0).await;
    let left = |left: u32| format!("OK {left}/100 HOUR");
    let bad = [
        ("1, syntax", "domain: e\ndescriptors: [", "bad.yaml:3:1"),
        (
            "2, unknown key",
            "domain: e\ndescriptors:\n  - {key: k, ratelimit: {}}\n",
            "bad.yaml:3:14",
        ),
        ("7, no domain", "descriptors: []\n", "bad.yaml:1:1"),
        ("8, domain twice", GOOD, "good.yaml:2:9"),
        ("10, key twice", "domain: e\ndescriptors:\n  - key: k\n  - key: k\n", "bad.yaml:4:10"),
        (
            "11, unit",
            "domain: e\ndescriptors: [{key: k, rate_limit: {unit: foo}}]\n",
            "bad.yaml:2:43",
        ),
        (
            "12, unit of unlimited",
            "domain: e\ndescriptors: [{key: k, rate_limit: {unlimited: true, unit: day}}]\n",
            "bad.yaml:2:60",
        ),
    ];
    let mut remaining = 100;
    for ((row, text, place), refused) in bad.iter().zip(1..) {
        pod.write("bad.yaml", text);
        pod.loaded(1, refused).await;
        let page = pod.index().await;
        let fault = page.lines().find(|line| line.starts_with("last fault: ")).unwrap();
        assert!(fault.contains(place), "row {row}: {fault}");
        remaining -= 1;
        pod.check("d", &[Case(row, "(k,same)", &left(remaining))]).await;
        pod.check("e", &[Case(row, "(k,same)", "none")]).await;
    }
    pod.write("bad.yaml", "domain: e\ndescriptors: [{key: k, rate_limit: {unlimited: true}}]\n");
    pod.loaded(2, 7).await;
    assert!(pod.index().await.contains("last fault: none\n"));
    // Counting continued throughout.
    pod.check("d", &[Case("mended", "(k,same)", &left(remaining - 1))]).await;
    pod.check("e", &[Case("mended", "(k,same)", "unlimited")]).await;
}

#[tokio::test]
async fn all_faults_of_a_load_are_reported_together() {
    let bad = "domain: e\ndescriptors: [{key: k, rate_limit: {unit: foo}}, {key: }]\n";
    let worse = "domain: f\ndescriptors: [{key: k, rate_limt: {unit: day}}]\n";
    let rules = [("a.yaml", bad), ("b.yaml", worse), ("good.yaml", GOOD)];
    let pod = Pod::start_unready(World::Memory, &rules, &[]).await;
    let page = pod.index().await;
    for fault in ["a.yaml:2:43", "a.yaml:2:50", "b.yaml:2:24", "rate_limit"] {
        assert!(page.contains(fault), "no {fault} in:\n{page}");
    }
    assert!(page.contains("loads accepted: 0\nloads refused: 1\n"), "{page}");
    // The log contains the errors too, though a little later than the page.
    pod.ratelease.logs("b.yaml:2:24").await;
}

#[tokio::test]
async fn rlconfig_dumps_the_rules_in_the_references_words() {
    let rules = "domain: d\ndescriptors:\n  - key: a\n    value: b\n    rate_limit: {unit: hour, \
                 requests_per_unit: 3}\n    descriptors:\n      - {key: c, shadow_mode: true, \
                 rate_limit: {unit: WEEK, requests_per_unit: 4}}\n  - {key: f, quota_mode: true, \
                 rate_limit: {unlimited: true}}\n  - key: none\n";
    let pod = Pod::start(World::Memory, &[("d.yaml", rules)], &[]).await;
    let dump = http::get(pod.ratelease.debug, "/rlconfig").await.unwrap();
    assert_eq!(
        dump.body,
        "d.a_b: unit=HOUR requests_per_unit=3, shadow_mode: false, quota_mode: false\n\
         d.a_b.c: unit=WEEK requests_per_unit=4, shadow_mode: true, quota_mode: false\n\
         d.f: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: true\n"
    );
}
