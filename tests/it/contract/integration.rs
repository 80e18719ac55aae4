//! INTEGRATION, I1 to I7: the reference's own tests against running servers.

use std::time::Duration;

use super::{Case, Pod, World, countdown, in_every_world, times};

const BASIC: &str = "
domain: basic
descriptors:
  - {key: key1, rate_limit: {unit: second, requests_per_unit: 50}}
";

const ANOTHER: &str = "
domain: another
descriptors:
  - {key: key2, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: key3, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: key4, rate_limit: {unit: day, requests_per_unit: 20}}
";

const SHARE: &str = "
domain: share-threshold-test
descriptors:
  - key: files
    value: files/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 10}
  - {key: files_no_share, value: files_no_share/*, rate_limit: {unit: hour, requests_per_unit: 10}}
";

const RELOAD: &str = "
domain: reload
descriptors:
  - {key: key1, rate_limit: {unit: second, requests_per_unit: 50}}
  - {key: block, rate_limit: {unit: second, requests_per_unit: 0}}
";

/// The test takes two seconds, and some more on a busy machine.
const TWO_SECONDS_AT_MOST: Duration = Duration::from_secs(10);

in_every_world!(rows_i1_to_i4_and_i7, i5_the_window_runs_out, i6_a_file_comes_and_goes);

async fn rows_i1_to_i4_and_i7(world: World) {
    let rules = [("basic.yaml", BASIC), ("another.yaml", ANOTHER), ("share.yaml", SHARE)];
    let mut pod = Pod::start(world, &rules, &[]).await;
    let apart: Vec<_> = (0..10).map(|n| format!("(files_no_share,files_no_share/$-{n})")).collect();
    // Where the second denies, the first is not charged, as in the reference with the STOP flag.
    let both = (0..15).map(|i| match 10_u32.checked_sub(i + 1) {
        Some(left) => format!("OK: OK {}/20 MINUTE; OK {left}/10 HOUR", 19 - i),
        None => "OVER: OK 10/20 MINUTE; OVER 0/10 HOUR".to_owned(),
    });
    let both = both.collect::<Vec<_>>().join(" | ");
    let files = format!("{}{}", "(files,files/a.pdf) | ".repeat(10), "(files,files/b.csv)");
    let rows = [
        Case("I1", "foo:(hello,world)", "none"),
        Case("I2", "basic:(key1,$)", "OK 49/50 SECOND"),
        Case("I3", "another:(key2,$)", &countdown(25, 20, "MINUTE")),
        Case("I4", "another:(key2,$); (key3,$)", &both),
        Case("I7", &files, &countdown(11, 10, "HOUR")),
        Case("I7 apart", &apart.join(" | "), &times(10, "OK 9/10 HOUR")),
    ];
    pod.check("share-threshold-test", &rows).await;
}

async fn i5_the_window_runs_out(world: World) {
    let mut pod = Pod::start(world, &[("another.yaml", ANOTHER)], &[]).await;
    let mut last = seconds_left(&mut pod).await;
    let first = last;
    let runs_out = async {
        while last > first - 2 {
            let now = seconds_left(&mut pod).await;
            assert!(now <= last, "{now} s after {last} s");
            last = now;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TWO_SECONDS_AT_MOST, runs_out).await.expect("the window does not run out");
}

/// Seconds left of `key4`'s day; a request with no hits, so that it can be repeated.
async fn seconds_left(pod: &mut Pod) -> i64 {
    let answer = pod.ask("another", "(key4,durTest)+0").await.unwrap();
    assert_eq!(answer.text(), "OK 20/20 DAY");
    answer.response.statuses[0].duration_until_reset.as_ref().unwrap().seconds
}

async fn i6_a_file_comes_and_goes(world: World) {
    let mut pod = Pod::start(world, &[("basic.yaml", BASIC)], &[]).await;
    let absent = [
        Case("without the file", "(block,foo)", "none"),
        Case("another file", "basic:(key1,$)", "OK 49/50 SECOND"),
    ];
    let present = [
        Case("with the file", "(block,foo)", "OVER 0/0 SECOND"),
        Case("a limit of it", "(key1,$)", "OK 49/50 SECOND"),
        Case("another file", "basic:(key1,$)", "OK 49/50 SECOND"),
    ];
    pod.check("reload", &absent).await;
    pod.write("reload.yaml", RELOAD);
    pod.loaded(2, 0).await;
    pod.check("reload", &present).await;
    pod.remove("reload.yaml");
    pod.loaded(3, 0).await;
    pod.check("reload", &absent).await;
}
