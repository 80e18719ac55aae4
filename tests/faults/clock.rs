//! R11: clocks that step. A pod's wall clock must have no effect; that of a Redis node decides
//! windows. R25: a pod whose machine is suspended.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::row::Row;
use crate::stage::{Plan, judge_process, turn};
use crate::stand::{Asker, PATIENT, Rules};
use crate::support::faketime::FakeClock;
use crate::support::now;
use crate::support::ratelease::Ratelease;
use crate::support::redis_server::Server;
use crate::support::windows::{early_in_a_window, into_window, wall_clock};

const HOUR: f64 = 3600.0;

/// Successive offsets from the true time, in seconds.
const STEPS: [f64; 6] = [HOUR, 0.0, -HOUR, 0.0, 1.0, -1.0];

#[tokio::test(flavor = "multi_thread")]
async fn r11_the_clocks_of_the_pods_step() {
    let _turn = turn().await;
    let promise = "no effect: 0 errors, at most L";
    let mut row = Row::new("R11", "pods' clocks step by ± 1 h and ± 1 s", promise);
    let clock = FakeClock::new();
    let fake = clock.env();
    // Long waits: a request that was answered without its lease would not count.
    let mut env = PATIENT.to_vec();
    env.extend(fake.iter().map(|(name, value)| (*name, value.as_str())));
    let cluster = crate::support::redis::Cluster::shared();
    let envoy_timeout = Some(Duration::from_secs(8));
    let plan = Plan { env, envoy_timeout, exact: true, ..Plan::new("r11", cluster) };
    let stage = plan.start().await;
    let load = stage.load(cluster).await;
    for step in STEPS {
        clock.set(step);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let before = hour();
    clock.set(HOUR);
    stage.rules.replace("domain: r11\ndescriptors: [{key: path, rate_limit: {unit: never}}]\n");
    let reported = stage.pods[0].logs("never").await;
    let samples = load.stop_after(Duration::from_secs(1)).await;

    // An hour may have ended since the line was written.
    let next = [before, hour()].map(|hour| (hour + 1) % 24);
    row.holds(next.contains(&hour_of(&reported)), &format!("the clock did not step: {reported}"));
    stage.judge(&mut row, &samples, stage.tight).await;
    stage.stop(&mut row).await;
    row.end();
}

/// Hours since midnight by the true clock.
fn hour() -> u64 {
    seconds() / 3600 % 24
}

fn seconds() -> u64 {
    #[allow(clippy::disallowed_methods)] // the time that a false clock is compared with
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a date after 1970").as_secs()
}

/// The hour in the time stamp that begins a log line, such as `2026-11-21T15:53:03.5Z`.
fn hour_of(line: &str) -> u64 {
    let digits = line.split('T').nth(1).and_then(|time| time.get(..2));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no time: {line}"))
}

/// Limit per hour: a clock that steps by an hour leaves the window.
const LIMIT: u64 = 200;

/// A pod remembers for at most a second that a key is used up.
const DENIED_FOR: Duration = Duration::from_millis(1_500);

/// Interval between two requests for a key that is used up.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn r11_the_clock_of_a_redis_steps() {
    let _turn = turn().await;
    let promise = "at most 2 L, and at most L where no window ends; no key without TTL; reset \
                   within (0, unit]; no error";
    let mut row = Row::new("R11", "a Redis' clock steps by ± 1 h and ± 1 s, and back", promise);
    let clock = FakeClock::new();
    // From the middle of an hour, so that a step of a second crosses no edge, and one of an hour
    // does.
    let middle = HOUR / 2.0 - (seconds() % 3600) as f64;
    clock.set(middle);
    let redis = Server::start_with_env(&[], &clock.env());
    let rules = Rules::new(&format!(
        "domain: r11\ndefaults: {{failure_mode: deny}}\ndescriptors:\n\
         - {{key: path, rate_limit: {{unit: hour, requests_per_unit: {LIMIT}}}}}\n"
    ));
    let url = format!("127.0.0.1:{}", redis.port());
    let mut env = PATIENT.to_vec();
    env.extend([("REDIS_TYPE", "single"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &url)]);
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    let asker = Asker::connect(&pod).await;
    let leases = async || asker.ask("r11", &[("path", "/warm")], 1).await.statuses[0].code == 1;
    pod.process.until("leasing", Duration::from_secs(20), leases).await;

    let mut most = 0;
    for (number, step) in [HOUR, -HOUR, 1.0, -1.0].into_iter().enumerate() {
        // A key of its own: windows further apart than one are outside the promise about steps.
        let path = format!("/tight-{number}");
        let mut admitted = 0;
        for _ in 0..LIMIT / 2 {
            admitted += u64::from(passes(&asker, &path, &mut row).await);
        }
        for ahead in [step, 0.0] {
            clock.set(middle + ahead);
            let reported: (u64, u64) = redis.command(&["TIME"]);
            let is_ahead = reported.0 as f64 - seconds() as f64;
            row.holds((is_ahead - middle - ahead).abs() <= 2.0, "the clock did not step");
            admitted += spend(&asker, &path, &mut row).await;
            expire(&redis, &mut row);
        }
        row.note(&format!("{step:+} s: {admitted}"));
        let bound = if step.abs() < HOUR { LIMIT } else { 2 * LIMIT };
        row.holds(admitted <= bound, &format!("{step:+} s: {admitted} of {bound} admitted"));
        row.holds(admitted >= LIMIT * 95 / 100, &format!("{step:+} s: {admitted} admitted"));
        most = most.max(admitted);
    }
    row.admitted(most, 2 * LIMIT);
    judge_process(&mut row, &pod).await;
    row.holds(pod.stop().await == 0, "the pod did not end well");
    row.end();
}

/// Number of requests that pass until none does, and the pod has asked Redis again since.
async fn spend(asker: &Asker, path: &str, row: &mut Row) -> u64 {
    let (mut passed, mut last) = (0, now());
    while last.elapsed() < DENIED_FOR {
        if passes(asker, path, row).await {
            (passed, last) = (passed + 1, now());
        } else {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
    passed
}

/// Whether a request passes; a gRPC error fails the test.
async fn passes(asker: &Asker, path: &str, row: &mut Row) -> bool {
    let answer = asker.ask("r11", &[("path", path)], 1).await;
    let status = &answer.statuses[0];
    let reset = status.duration_until_reset.map_or(0, |span| span.seconds);
    row.holds((1..=3600).contains(&reset), &format!("reset after {reset} s"));
    status.code == 1
}

/// Checks that each key has an expiry.
fn expire(redis: &Server, row: &mut Row) {
    for key in redis.keys() {
        // -2: the key has expired since.
        let ttl: i64 = redis.command(&["PTTL", &key]);
        row.holds(ttl > 0 || ttl == -2, &format!("{key} never expires"));
    }
}

/// Window and limit of [`r25_the_machine_of_a_pod_is_suspended`].
const SUSPENDED_WINDOW: Duration = Duration::from_secs(20);
const SUSPENDED_LIMIT: u64 = 1_000;

/// Attempts at a round that ends within the window after that of its beginning: a busy machine may
/// take longer for its requests.
const SUSPENSIONS_MAX: u32 = 5;

/// The process is stopped, and so is its monotonic clock: `CLOCK_BOOTTIME` alone goes on, as on a
/// machine that was suspended.
#[tokio::test(flavor = "multi_thread")]
async fn r25_the_machine_of_a_pod_is_suspended() {
    let _turn = turn().await;
    let promise = "what it held of the old window is not spent in the next one: at most L";
    let mut row = Row::new("R25", "the machine of a pod is suspended past its window", promise);
    let places = crate::support::redis::Cluster::shared().places();
    let rules = Rules::new(&format!(
        "domain: r25\ndefaults: {{failure_mode: deny}}\ndescriptors:\n\
         - key: path\n  \
           rate_limit: {{unit: second, unit_multiplier: {seconds}, \
         requests_per_unit: {SUSPENDED_LIMIT}}}\n",
        seconds = SUSPENDED_WINDOW.as_secs(),
    ));
    let clock = FakeClock::new();
    let fake = clock.env_of_both();
    let mut env = PATIENT.to_vec();
    env.extend(fake.iter().map(|(name, value)| (*name, value.as_str())));
    let suspended = Ratelease::start(rules.path(), &places, &env).await;
    let awake = Ratelease::start(rules.path(), &places, &PATIENT).await;
    let (of_suspended, of_awake) = (Asker::connect(&suspended).await, Asker::connect(&awake).await);
    let spend = async |asker: &Asker, path: &str, requests: u64| {
        let mut passed = 0;
        for _ in 0..requests {
            passed += u64::from(asker.ask("r25", &[("path", path)], 1).await.statuses[0].code == 1);
        }
        passed
    };
    // Connects; the first requests of a pod may wait long.
    spend(&of_suspended, "/warm", 1).await;
    spend(&of_awake, "/warm", 1).await;

    let window = || wall_clock().as_secs() / SUSPENDED_WINDOW.as_secs();
    let (mut rounds, mut slept) = (0, Duration::ZERO);
    let (held, admitted, stays) = loop {
        rounds += 1;
        let path = format!("/tight-{rounds}");
        early_in_a_window(SUSPENDED_WINDOW, SUSPENDED_WINDOW - Duration::from_secs(5)).await;
        let first = window();
        let before = spend(&of_suspended, &path, SUSPENDED_LIMIT * 3 / 10).await;
        suspended.process.signal("STOP");
        let stopped = now();
        let left = u64::from(of_awake.remaining("r25", ("path", &path)).await);
        let held = SUSPENDED_LIMIT.saturating_sub(before + left);
        tokio::time::sleep(SUSPENDED_WINDOW - into_window(SUSPENDED_WINDOW)).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut admitted = spend(&of_awake, &path, SUSPENDED_LIMIT + 50).await;
        slept += stopped.elapsed();
        clock.set(-slept.as_secs_f64());
        suspended.process.signal("CONT");
        admitted += spend(&of_suspended, &path, held + 50).await;
        let (is_in_time, stays) = (window() == first + 1, into_window(SUSPENDED_WINDOW));
        if is_in_time || rounds == SUSPENSIONS_MAX {
            row.holds(is_in_time, "each round took longer than a window");
            break (held, admitted, stays);
        }
    };

    row.note(&format!("{held} held when it was suspended; ended {stays:.1?} into the window"));
    row.holds(held > 0, "it held nothing when it was suspended");
    row.holds(admitted >= SUSPENDED_LIMIT * 95 / 100, &format!("{admitted} admitted"));
    row.admitted(admitted, SUSPENDED_LIMIT);
    for pod in [&suspended, &awake] {
        judge_process(&mut row, pod).await;
    }
    row.end();
}
