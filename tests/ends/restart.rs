//! Processes that end while requests run, with the limits of the recipe; and a rule that is away.

use std::time::Duration;

use tokio::time::sleep;

use crate::application::{AFTER, HELD};
use crate::client::{Connection, Crowd, Ending, Stream, USER};
use crate::stand::{Plan, Stand, is_full};
use crate::support::now;

/// Maximum time until the slots of a pod that has ended are lent again: twice its silence of 4 s.
const FORGOTTEN_MAX: Duration = Duration::from_secs(8);

/// How long a rule is away.
const AWAY: Duration = Duration::from_millis(1200);

/// The recipe, for tests that are not about calls without an answer.
fn patient() -> Plan {
    Plan { is_patient: true, ..Plan::of("llm-concurrency") }
}

/// As many requests as the upstream may have, until the connection ends.
async fn five_run(stand: &Stand) -> (Connection, Vec<Stream>) {
    let connection = Connection::open(stand.envoy.ingress, Ending::Close).await.unwrap();
    let mut streams = Vec::new();
    for at in 0..5 {
        let headers = [(USER, &*format!("user-{at}")), (AFTER, HELD)];
        let mut stream = connection.get(&headers).await.unwrap();
        assert_eq!(stream.status().await.unwrap(), 200);
        streams.push(stream);
    }
    assert_eq!(stand.fresh().await, 429, "all slots are in use");
    (connection, streams)
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_free_soon_after_envoy_is_killed() {
    let mut stand = patient().start().await;
    let running = five_run(&stand).await;
    stand.envoy.process().signal("KILL");
    let ended = now();
    let left = stand.left_of(ended).await;
    stand.start_envoy_again().await;
    drop(running);
    stand.passes_after(left).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_end_while_their_rule_is_absent_free_their_slots() {
    let stand = patient().start().await;
    let running = five_run(&stand).await;
    stand.load_others().await;
    let absent = now();
    drop(running);
    stand.app.until_running(0).await;
    sleep(AWAY.saturating_sub(absent.elapsed())).await;
    stand.load_own().await;
    stand.frees_all(now()).await;
}

/// The new ratelease does not know the streams that ran before: the limit is for streams that begin
/// under it.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_outlive_their_ratelease_free_their_slots() {
    const LIMITS: [u64; 2] = [1000, 1000];
    let streams = if is_full() { 1000 } else { 500 };
    let plan = Plan { limits: &LIMITS, ..Plan::of("llm-concurrency") };
    let mut stand = plan.start().await;
    let mut crowd = Crowd::open(&stand, streams).await;
    let restarted = now();
    stand.replace_pod().await;
    println!("another ratelease is there after {:.1?}", restarted.elapsed());
    assert_eq!(stand.app.running(), streams, "streams go on");

    let before = crowd.len();
    let trying = now();
    // Until Redis has forgotten the pod that has ended, its slots are in use.
    while crowd.len() - before < 1000 && trying.elapsed() < FORGOTTEN_MAX {
        crowd.open_some(20).await;
    }
    let (passed, most) = (crowd.len() - before, stand.app.most());
    println!("{before} streams ran; {passed} pass beside them, at most {most} at a time");
    assert!(passed > 0, "none passes after the restart");
    assert!(most <= before + 1000, "{most} run, where {before} did and 1000 may");
    crowd.leave().await;
    stand.frees_all(now()).await;
}
