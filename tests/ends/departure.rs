//! Thousands of streams whose clients go away at once, as when a load balancer fails, while all is
//! well or a part is not there.

use std::time::Duration;

use tokio::time::sleep;

use crate::client::Crowd;
use crate::stand::{NOTHING, Plan, Stand, freeze, is_full};
use crate::support::now;

/// More than all streams.
const LIMITS: [u64; 2] = [50_000, 50_000];

/// How long a part is away.
const AWAY: Duration = Duration::from_secs(2);

async fn start() -> Stand {
    Plan { limits: &LIMITS, ..Plan::of("llm-concurrency") }.start().await
}

/// Opens streams, each of which takes something.
async fn opened(stand: &Stand, count: usize) -> Crowd {
    let crowd = Crowd::open(stand, count).await;
    let in_use = stand.in_use().await;
    println!("{count} streams have {in_use}");
    assert!(in_use.holds >= count as u64 && in_use.slots >= count as u64, "{in_use}");
    crowd
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_end_at_once_free_their_slots() {
    let stand = start().await;
    let counts: &[usize] = if is_full() { &[2000, 5000, 5000, 5000] } else { &[2000] };
    let mut left = NOTHING;
    for count in counts {
        let crowd = opened(&stand, *count).await;
        crowd.leave().await;
        left = stand.left_of(now()).await;
    }
    stand.passes_after(left).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_free_their_slots_when_envoy_is_killed() {
    envoy_ends("KILL").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_free_their_slots_when_envoy_is_terminated() {
    envoy_ends("TERM").await;
}

/// Envoy ends by this signal, and another one is there at once.
async fn envoy_ends(signal: &str) {
    let mut stand = start().await;
    let crowd = opened(&stand, if is_full() { 5000 } else { 600 }).await;
    let ended = now();
    stand.replace_envoy(signal).await;
    println!("another Envoy is there after {:.1?}", ended.elapsed());
    drop(crowd);
    stand.frees_all(ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_end_while_ratelease_is_frozen_free_their_slots() {
    let stand = start().await;
    let crowd = opened(&stand, if is_full() { 5000 } else { 600 }).await;
    freeze(&stand.pod.process).await;
    crowd.leave().await;
    sleep(AWAY).await;
    stand.pod.process.signal("CONT");
    stand.frees_all(now()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_end_while_their_rule_is_absent_free_their_slots() {
    let stand = start().await;
    let crowd = opened(&stand, if is_full() { 5000 } else { 600 }).await;
    stand.load_others().await;
    crowd.leave().await;
    sleep(AWAY).await;
    stand.load_own().await;
    stand.frees_all(now()).await;
}
