//! R11: clocks that step. A pod's wall clock is to have no effect; that of a Redis decides windows.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::row::Row;
use crate::stage::{Plan, judge_process};
use crate::stand::{Asker, MACHINE, PATIENT, Rules};
use crate::support::faketime::FakeClock;
use crate::support::ratelease::Ratelease;
use crate::support::redis_server::Server;

const HOUR: f64 = 3600.0;

/// Ahead of the true time by so many seconds, one after the other.
const STEPS: [f64; 6] = [HOUR, 0.0, -HOUR, 0.0, 1.0, -1.0];

#[tokio::test(flavor = "multi_thread")]
async fn r11_the_clocks_of_the_pods_step() {
    let promise = "no effect: 0 errors, at most L";
    let mut row = Row::new("R11", "pods' clocks step by ± 1 h and ± 1 s", promise);
    let clock = FakeClock::new();
    let fake = clock.env();
    // Patient: a request that was answered without its lease would not count.
    let mut env = PATIENT.to_vec();
    env.extend(fake.iter().map(|(name, value)| (*name, value.as_str())));
    let cluster = crate::support::redis::Cluster::shared();
    let envoy_timeout = Some(Duration::from_secs(8));
    let plan = Plan { env, envoy_timeout, exact: true, ..Plan::new("r11", cluster) };
    let stage = plan.start().await;
    let load = stage.load().await;
    for step in STEPS {
        clock.set(step);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    clock.set(HOUR);
    stage.rules.replace("domain: r11\ndescriptors: [{key: path, rate_limit: {unit: never}}]\n");
    let told = stage.pods[0].logs("never").await;
    let samples = load.stop_after(Duration::from_secs(1)).await;

    row.holds(hour_told(&told) == (hour() + 1) % 24, &format!("the clock did not step: {told}"));
    stage.judge(&mut row, &samples, stage.tight).await;
    stage.stop(&mut row).await;
    row.end();
}

/// Hours since midnight by the true clock.
fn hour() -> u64 {
    seconds() / 3600 % 24
}

fn seconds() -> u64 {
    #[allow(clippy::disallowed_methods)] // what a false clock is compared with
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a date after 1970").as_secs()
}

/// By the time that begins a line of the log, such as `2026-11-21T15:53:03.5Z`.
fn hour_told(line: &str) -> u64 {
    let digits = line.split('T').nth(1).and_then(|time| time.get(..2));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no time: {line}"))
}

/// An hour: what a clock that steps by one leaves.
const LIMIT: u64 = 200;

#[tokio::test(flavor = "multi_thread")]
async fn r11_the_clock_of_a_redis_steps() {
    let _alone = MACHINE.write().await;
    let promise = "at most 2 L; no key without TTL; reset within (0, unit]; no error";
    let mut row = Row::new("R11", "a Redis' clock steps by ± 1 h and ± 1 s", promise);
    let clock = FakeClock::new();
    // From the middle of an hour, so that a second steps over no edge, and an hour over one.
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

    let mut admitted = ask(&asker, LIMIT / 2, &mut row).await;
    for step in STEPS {
        clock.set(middle + step);
        let told: (u64, u64) = redis.command(&["TIME"]);
        let ahead = told.0 as f64 - seconds() as f64;
        row.holds((ahead - middle - step).abs() <= 2.0, "the clock did not step");
        admitted += ask(&asker, LIMIT, &mut row).await;
        for key in redis.keys() {
            // -2: it has expired meanwhile.
            let ttl: i64 = redis.command(&["PTTL", &key]);
            row.holds(ttl > 0 || ttl == -2, &format!("{key} lives for ever"));
        }
    }
    row.admitted(admitted, 2 * LIMIT);
    row.holds(admitted >= LIMIT, "fewer than L were admitted");
    judge_process(&mut row, &pod).await;
    row.holds(pod.stop().await == 0, "the pod did not end well");
    row.end();
}

/// How many of so many questions pass; a gRPC error fails the test.
async fn ask(asker: &Asker, times: u64, row: &mut Row) -> u64 {
    let mut passed = 0;
    for _ in 0..times {
        let answer = asker.ask("r11", &[("path", "/tight")], 1).await;
        let status = &answer.statuses[0];
        passed += u64::from(status.code == 1);
        let reset = status.duration_until_reset.map_or(0, |span| span.seconds);
        let unit = 1..=3600;
        row.holds(unit.contains(&reset), &format!("reset after {reset} s"));
    }
    passed
}
