//! A key that each pod is asked for a few times a second costs less than one round trip per
//! decision.

use std::time::Duration;

use tokio::time::Instant;

use crate::demand::Demand;
use crate::drive::{Said, count, drive};
use crate::pods::Pods;
use crate::support::now;
use crate::support::redis::Cluster;
use crate::support::rng::Rng;
use crate::support::windows::{early_in_a_window, into_window};
use crate::{DAY, HOUR, MACHINE};

const PODS: usize = 4;

/// Requests that are measured.
const DECISIONS: usize = 500;

/// Twice [`DECISIONS`]: the last tokens of a limit are leased one by one, which is another cost.
const LIMIT: usize = 2 * DECISIONS;
/// Requests a second, over all pods.
const RATE: f64 = 12.0;
/// Windows of which at nearly all times one is not near its end.
const UNITS: [(&str, Duration); 3] = [("hour", HOUR), ("day", DAY), ("week", WEEK)];

/// The longest window.
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// Duration of the test, with the start of its processes.
const TAKES: Duration = Duration::from_secs(70);

#[tokio::test(flavor = "multi_thread")]
async fn two_decisions_on_a_lukewarm_key_cost_at_most_one_call() {
    // Held while it starts. After that its dozen requests a second disturb no other test, and it
    // counts calls, whose number does not depend on time.
    let starting = MACHINE.read().await;
    // In the last tenth of a window pods lease from the next one too, which this does not count.
    let (unit, window) = UNITS
        .into_iter()
        .find(|(_, window)| into_window(*window) + TAKES < *window * 9 / 10)
        .unwrap_or(UNITS[0]);
    early_in_a_window(window, TAKES).await;
    let limit = format!("unit: {unit}, requests_per_unit: {LIMIT}");
    // The cluster belongs to this test, so that every call there is one of its calls.
    let cluster = Cluster::start(3, 1);
    let pods = Pods::start("lukewarm", PODS, &cluster.places(), &[("key", &limit)], &[]).await;
    drop(starting);
    let demand = Demand { rate: RATE, weights: vec![1.0; PODS], moves_every: None };
    let arrivals = demand.arrivals(Rng::new().next_u64(), Duration::MAX).take(DECISIONS);
    let before = Calls::of(&cluster);
    let start = Instant::from_std(now());
    let answers = drive(arrivals, start, Duration::MAX, |pod| pods.hit(pod, "key", "one")).await;
    let after = Calls::of(&cluster);
    let scripts = after.scripts - before.scripts;
    let beats = after.beats - before.beats;
    let leases = scripts - beats;
    println!(
        "{DECISIONS} decisions at {RATE} a second by {PODS} pods in {:.0?}: {} admitted, {leases} \
         script calls for leases and {beats} heartbeats, {} answers without Redis",
        start.elapsed(),
        count(&answers, Said::Admitted),
        pods.local(),
    );
    assert!(leases > 0 && leases <= DECISIONS as u64 / 2, "{leases} calls");
    assert_eq!(count(&answers, Said::Failed), 0);
    assert_eq!(count(&answers, Said::Admitted), DECISIONS as u64);
    pods.are_unharmed();
}

/// Counts of the masters so far.
struct Calls {
    /// Scripts, heartbeats included.
    scripts: u64,
    /// Heartbeats: only their script removes expired members from a sorted set.
    beats: u64,
}

impl Calls {
    fn of(cluster: &Cluster) -> Self {
        let masters = &cluster.nodes[..3];
        let all = |name| masters.iter().map(|node| node.calls(name)).sum::<u64>();
        Self { scripts: all("eval") + all("evalsha"), beats: all("zremrangebyscore") }
    }
}
