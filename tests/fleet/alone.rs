//! A pod that has never reached Redis, and the number of pods that it assumes.

use std::net::SocketAddr;
use std::time::Duration;

use crate::drive::Said;
use crate::pods::Pods;
use crate::support::ports::free_port;
use crate::support::process::{Process, leashed};
use crate::support::ratelease::{BINARY, inherited};
use crate::support::windows::early_in_a_window;
use crate::{DAY, MACHINE};

const LIMIT: u64 = 500;

/// The rule of each pod, by the key of its entry.
const LIMITS: [(&str, &str); 1] = [("key", "unit: day, requests_per_unit: 500")];

#[tokio::test(flavor = "multi_thread")]
async fn the_only_pod_admits_the_whole_limit_without_redis() {
    let _shared = MACHINE.read().await;
    early_in_a_window(DAY, Duration::from_secs(120)).await;
    let nowhere = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let pods = Pods::start("alone", 1, &[nowhere], &LIMITS, &[("PODS_EXPECTED", "1")]).await;
    let mut admitted = Vec::new();
    for number in 0..2 * LIMIT {
        match pods.hit(0, "key", "only").await {
            Said::Admitted => admitted.push(number),
            Said::Denied => {}
            Said::Failed => panic!("no verdict on {number}"),
        }
    }
    println!("a lone pod without Redis: {} of {LIMIT} admitted", admitted.len());
    assert_eq!(admitted, (0..LIMIT).collect::<Vec<_>>());
    assert_eq!(pods.local(), 2 * LIMIT);
    pods.are_unharmed();
}

#[tokio::test]
async fn no_pods_expected_is_refused_at_start() {
    for wrong in ["0", "10001", "-1", "four"] {
        let mut command = leashed(BINARY);
        command.args(["serve", "--rules", "."]).env_clear().envs(inherited());
        command.env("PODS_EXPECTED", wrong);
        let process = Process::spawn("ratelease", command);
        let status = process.exit(Duration::from_secs(20)).await;
        let log = process.log();
        println!("PODS_EXPECTED={wrong}: exit {status}: {}", log.trim());
        assert_eq!(status, 2, "{log}");
        let expected =
            format!("PODS_EXPECTED: expected a whole number from 1 to 10000, found \"{wrong}\"");
        assert!(log.contains(&expected), "{log}");
    }
}
