//! A pod that ends under load, as Kubernetes ends it, with another behind the same Envoy.

use std::time::Duration;

use crate::stand::{MACHINE, Rules, before, file, pod, rule};
use crate::support::envoy::Envoy;
use crate::support::load::Load;
use crate::support::now;

/// The default drain time.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Maximum time to spend the rest of the limit, on a machine that also compiles.
const SPENT_MAX: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_pod_that_ends_fails_no_request_and_leaves_its_tokens_to_the_others() {
    const L: u64 = 10_000;
    let _shared = MACHINE.read().await;
    let rules = Rules::new(&file("ending", &[rule("path", Some("/end"), L)]));
    let (stays, ends) = (pod(&rules).await, pod(&rules).await);
    let envoy = Envoy::start(before("ending", &[&stays, &ends])).await;
    let admits = async |at_least| envoy.verdicts().await.ok >= at_least;

    let load = envoy.load(Load::new("/end", 8, u64::MAX));
    // Early: while much remains, a pod holds tokens for two seconds, and the test would miss them.
    stays.process.until("at a tenth of the limit", SPENT_MAX, async || admits(L / 10).await).await;
    let start = now();
    ends.process.signal("TERM");
    let status = ends.process.exit(DRAIN_MAX).await;
    let (ended, admitted) = (start.elapsed(), envoy.verdicts().await.ok);
    let nearly_all = async || admits(L * 999 / 1000).await;
    stays.process.until("at the end of the limit", SPENT_MAX, nearly_all).await;
    let tally = load.stop().await;

    let verdicts = envoy.verdicts().await;
    println!("ended with status {status} in {ended:?}, when {admitted} of {L} were admitted");
    println!("in the end: {tally:?}, {verdicts:?}");
    let passed = tally.passed();
    assert_eq!(status, 0, "{}", ends.process.log());
    assert!((L * 999 / 1000..=L).contains(&passed), "{passed} of {L} admitted");
    assert_eq!((verdicts.error, verdicts.failure_mode_allowed, tally.faults()), (0, 0, 0));
}
