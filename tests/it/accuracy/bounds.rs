//! No algorithm admits more than its bound, by the wall clock of the requests.
//!
//! Redis counted a request at some moment between the request and its answer, both of which were
//! timed. So nothing here needs a tolerance: only requests that began and were answered within a
//! span certainly belong to it, and only they are compared with the bound. Those that straddle an
//! edge count on neither side.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::MAX_WAIT;
use super::demand::Demand;
use super::drive::{Said, count, drive};
use super::fleet::Fleet;
use crate::support::now;
use crate::support::redis::Cluster;
use crate::support::rng::Rng;
use crate::support::windows::wall_clock;

const LIMIT: u32 = 200;
const BURST: u32 = 40;
const WINDOW: Duration = Duration::from_secs(2);
const WINDOWS: u32 = 3;
/// WINDOW / LIMIT
const INTERVAL: Duration = Duration::from_millis(10);
/// How long a leased token of a token bucket may remain unspent.
const TTL: Duration = Duration::from_millis(200);

/// A request that passed: when it was sent and answered, since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Passed {
    asked: Duration,
    answered: Duration,
}

/// Offers four pods three times the limit for some windows, from a cold start. Returns the requests
/// that pass, in the order of their answers.
async fn passed(algorithm: &str) -> Vec<Passed> {
    let window = WINDOW.as_secs();
    let rule =
        format!("unit: second, unit_multiplier: {window}, requests_per_unit: {LIMIT}, {algorithm}");
    let name = algorithm.split(',').next().unwrap();
    let rules = [("key".to_owned(), rule)];
    let fleet = Arc::new(Fleet::start(Cluster::shared(), name, 4, &rules, MAX_WAIT).await);
    let rate = 3.0 * f64::from(LIMIT) / WINDOW.as_secs_f64();
    let demand = Demand { rate, weights: vec![7.0, 1.5, 1.0, 0.5], moves_every: None };
    let arrivals = demand.arrivals(Rng::new().next_u64(), WINDOWS * WINDOW);
    let (start, begun) = (Instant::from_std(now()), wall_clock());
    let answers = drive(arrivals, start, Duration::MAX, |pod| fleet.decide(pod, "key")).await;
    let admitted = count(&answers, Said::Admitted);
    println!("{algorithm}: {admitted} of {} admitted in {WINDOWS} windows", answers.len());
    assert_eq!(count(&answers, Said::Failed), 0);
    assert!(admitted > u64::from(LIMIT * (WINDOWS - 1)), "more than that may pass: {admitted}");
    let mut passed: Vec<_> = answers
        .iter()
        .filter(|answer| answer.said == Said::Admitted)
        .map(|answer| Passed { asked: begun + answer.issued, answered: begun + answer.answered })
        .collect();
    passed.sort_by_key(|passed| passed.answered);
    passed
}

/// Number of requests that certainly passed between two times.
fn within(passed: &[Passed], from: Duration, to: Duration) -> u32 {
    let certain = |passed: &&Passed| from <= passed.asked && passed.answered < to;
    u32::try_from(passed.iter().filter(certain).count()).unwrap()
}

/// Start of the window that contains this time.
fn window_of(time: Duration) -> Duration {
    WINDOW * u32::try_from(time.as_nanos() / WINDOW.as_nanos()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_window_holds_in_each_window() {
    let passed = passed("algorithm: fixed_window").await;
    for at in &passed {
        let from = window_of(at.asked);
        let count = within(&passed, from, from + WINDOW);
        assert!(count <= LIMIT, "{count} in the window from {from:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sliding_log_holds_in_every_span_of_a_window() {
    let passed = passed("algorithm: sliding_log").await;
    for at in &passed {
        let count = within(&passed, at.asked, at.asked + WINDOW);
        assert!(count <= LIMIT, "{count} in the window after {:?}", at.asked);
    }
}

/// Leases end with their window, and a leased token may be spent at any later time of its window,
/// when the previous window has less weight.
#[tokio::test(flavor = "multi_thread")]
async fn a_sliding_window_holds_by_its_estimate_at_each_answer() {
    let passed = passed("algorithm: sliding_window").await;
    for at in &passed {
        let from = window_of(at.answered);
        let before = within(&passed, from.saturating_sub(WINDOW), from);
        let since = within(&passed, from, at.answered) + 1;
        let rest = 1.0 - (at.answered - from).as_secs_f64() / WINDOW.as_secs_f64();
        let estimate = f64::from(before) * rest + f64::from(since);
        // The last request of the estimate is `at` itself, which may have been counted in its
        // window.
        assert!(estimate <= f64::from(LIMIT) + 1.0, "{estimate} at {:?}", at.answered);
    }
}

/// Tokens are debited before they are spent. So from a cold start, no answer comes before its
/// token, and any span contains at most what a span longer by the oldest lease allows.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_bucket_admits_its_burst_and_then_its_rate() {
    let ttl = TTL.as_millis();
    let algorithm = format!("algorithm: token_bucket, burst: {BURST}, lease: {{ttl: {ttl}ms}}");
    let passed = passed(&algorithm).await;
    let cold = passed.iter().map(|passed| passed.asked).min().unwrap();
    for (beyond, at) in passed.iter().skip(BURST as usize).zip(1..).map(|(at, beyond)| (beyond, at))
    {
        assert!(at.answered >= cold + INTERVAL * beyond, "{beyond} beyond the burst at {at:?}");
    }
    for at in passed.iter().step_by(10) {
        for length in [WINDOW / 10, WINDOW / 2, WINDOW] {
            let count = within(&passed, at.asked, at.asked + length);
            let most = BURST + in_intervals(length + TTL) + 1;
            assert!(count <= most, "{count} in {length:?}, at most {most}");
        }
    }
}

/// A slot lies between the request, which it does not precede, and the answer, which waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_leaky_bucket_admits_one_in_each_slot() {
    let passed = passed("algorithm: leaky_bucket, max_delay: 50ms").await;
    for at in &passed {
        for length in [INTERVAL, 5 * INTERVAL, WINDOW / 2, WINDOW] {
            let count = within(&passed, at.asked, at.asked + length);
            let most = in_intervals(length) + 1;
            assert!(count <= most, "{count} in {length:?}, at most {most}");
        }
    }
}

fn in_intervals(span: Duration) -> u32 {
    u32::try_from(span.as_nanos() / INTERVAL.as_nanos()).unwrap()
}
