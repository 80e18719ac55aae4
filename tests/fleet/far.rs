//! A Redis Cluster that is healthy and ten milliseconds away, behind a real Envoy with the default
//! timeout of its filter (20 ms): each request waits for Redis, and no pod admits locally.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::caller::{charge, passes, request};
use crate::demand::Arrival;
use crate::drive::{Said, count, drive};
use crate::pods::Pods;
use crate::support::envoy::{Envoy, EnvoyOptions};
use crate::support::http;
use crate::support::now;
use crate::support::probe::Probe;
use crate::support::proxy::Fault;
use crate::support::redis_cluster::{Cluster, ClusterOptions};
use crate::support::rng::Rng;
use crate::support::windows::early_in_a_window;
use crate::{HOUR, MACHINE};

/// Delay each way. The timers of the proxy add about a millisecond, and the machine the rest of the
/// ten: see [`Probe`].
const EACH_WAY: Duration = Duration::from_micros(3_750);

const MASTERS: usize = 3;

/// Pods behind Envoy, which chooses one for each request.
const PODS: usize = 4;

/// Keys of a round.
const KEYS: usize = 200;

/// Requests that each key admits in its window.
const LIMIT: u64 = 5;

/// Requests of a round, over all keys.
const REQUESTS: usize = 1_600;

/// Requests a second.
const RATE: f64 = 200.0;

/// Maximum number of rounds, one of which must have no more late answers than the machine accounts
/// for. A fault of the product would delay most requests of each round.
const ROUNDS_MAX: usize = 6;

/// Maximum number of times that a late request counts in a round: as local, where the pod did not
/// wait longer for Redis, and as an error, where that answer was too late for Envoy.
const COUNTED_MAX: u64 = 2;

/// Maximum wait of a request by default: Envoy's timeout leaves this much.
const WAIT_LIMIT: Duration = Duration::from_millis(15);

/// Maximum time to reconnect: the first wait before another attempt, and the round trip many times
/// over.
const RECONNECT: Duration = Duration::from_secs(1);

/// The result of one round.
#[derive(Debug)]
struct Round {
    admitted: u64,
    /// Requests that Envoy has let pass or failed because no answer came.
    errors: u64,
    /// Answers decided without Redis.
    local: u64,
    /// Late answers that a concurrent probe attributes to the machine.
    excused: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn no_pod_admits_by_itself_while_redis_is_ten_milliseconds_away() {
    let _alone = MACHINE.write().await;
    early_in_a_window(HOUR, Duration::from_secs(120)).await;
    let cluster = Cluster::start_with(&ClusterOptions::new(MASTERS, 1).proxied());
    cluster.proxies.iter().for_each(|proxy| proxy.set(Fault::Distance { each_way: EACH_WAY }));
    let rule = format!("unit: hour, requests_per_unit: {LIMIT}");
    let pods = Pods::start("far", PODS, &cluster.places(), &[("path", &rule)], &[]).await;
    let addrs: Vec<_> = pods.pods.iter().map(|pod| pod.process.grpc).collect();
    let filter = json!({"timeout": null}); // Envoy's default
    let options = EnvoyOptions { filter, ..EnvoyOptions::new("far", &addrs) };
    let envoy = Envoy::start(options).await;
    let (most, mut rounds) = (LIMIT * KEYS as u64, Vec::new());
    let clean = |round: &Round| round.errors + round.local <= round.excused;
    while rounds.len() < ROUNDS_MAX && !rounds.last().is_some_and(clean) {
        let probe = Probe::start(cluster.proxies[0].addr);
        let mut round = round(&envoy, &pods, rounds.len()).await;
        let trips = probe.stop();
        round.excused = COUNTED_MAX * trips.late_of(REQUESTS as u64, WAIT_LIMIT);
        println!("{round:?}, at most {most}; {trips}");
        rounds.push(round);
    }
    for round in &rounds {
        assert!(round.admitted <= most + round.local, "{rounds:?}");
    }
    assert!(rounds.last().is_some_and(clean), "no round without a late answer: {rounds:?}");
    pods.are_unharmed();
    envoy.stop().await;
}

/// Masters lose their scripts when they restart and when a replica takes over, and with them every
/// connection: no request after that needs two round trips. Where only the scripts are lost, only
/// the first request at each master does.
#[tokio::test(flavor = "multi_thread")]
async fn no_pod_admits_by_itself_while_redis_has_to_learn_the_scripts() {
    let _alone = MACHINE.write().await;
    early_in_a_window(HOUR, Duration::from_secs(120)).await;
    let cluster = Cluster::start_with(&ClusterOptions::new(MASTERS, 1).proxied());
    cluster.proxies.iter().for_each(|proxy| proxy.set(Fault::Distance { each_way: EACH_WAY }));
    let rule = format!("unit: hour, requests_per_unit: {LIMIT}");
    let pods = Pods::start("scripts", 1, &cluster.places(), &[("path", &rule)], &[]).await;
    let masters = &cluster.nodes[..MASTERS];
    let (mut lost, mut forgot) = (Vec::new(), Vec::new());
    let (none, one_each) = (0, MASTERS as u64);
    // One clean round of each will do: a fault of the product would delay a request at each master
    // every time.
    let is_clean = |rounds: &[Late], most| {
        rounds.iter().any(|late: &Late| late.answers <= most + late.excused)
    };
    while lost.len() < ROUNDS_MAX && !(is_clean(&lost, none) && is_clean(&forgot, one_each)) {
        let number = lost.len();
        for node in masters {
            node.command::<()>(&["SCRIPT", "FLUSH"]);
            node.command::<()>(&["CLIENT", "KILL", "TYPE", "NORMAL"]);
        }
        tokio::time::sleep(RECONNECT).await;
        let place = cluster.proxies[0].addr;
        lost.push(answers_without_redis(&pods, place, &format!("{number}-lost")).await);
        masters.iter().for_each(|node| node.command::<()>(&["SCRIPT", "FLUSH"]));
        forgot.push(answers_without_redis(&pods, place, &format!("{number}-forgot")).await);
    }
    println!(
        "answers without Redis of {FIRST}, by round: {lost:?} after it lost its scripts and its \
         connections, {forgot:?} after it lost its scripts"
    );
    assert!(is_clean(&lost, none), "by round: {lost:?}");
    assert!(is_clean(&forgot, one_each), "by round: {forgot:?}");
    pods.are_unharmed();
}

/// A pod that reports ready is connected.
#[tokio::test(flavor = "multi_thread")]
async fn no_pod_admits_by_itself_just_after_its_start() {
    let _alone = MACHINE.write().await;
    early_in_a_window(HOUR, Duration::from_secs(120)).await;
    let cluster = Cluster::start_with(&ClusterOptions::new(MASTERS, 1).proxied());
    cluster.proxies.iter().for_each(|proxy| proxy.set(Fault::Distance { each_way: EACH_WAY }));
    let rule = format!("unit: hour, requests_per_unit: {LIMIT}");
    let start = async || Pods::start("start", 1, &cluster.places(), &[("path", &rule)], &[]).await;
    // From here on, the masters know the scripts.
    let place = cluster.proxies[0].addr;
    answers_without_redis(&start().await, place, "before").await;
    let mut rounds: Vec<Late> = Vec::new();
    let is_clean = |late: &Late| late.answers <= late.excused;
    while rounds.len() < ROUNDS_MAX && !rounds.last().is_some_and(is_clean) {
        let pods = start().await;
        let name = format!("start-{}", rounds.len());
        rounds.push(answers_without_redis(&pods, place, &name).await);
        pods.are_unharmed();
    }
    println!("answers without Redis of the first {FIRST} of a pod, by round: {rounds:?}");
    assert!(rounds.last().is_some_and(is_clean), "by round: {rounds:?}");
}

/// Slots of one key.
const SLOTS: u64 = 8;

/// Callers, each of which has one request in progress if the slots allow it.
const CALLERS: u64 = 16;

/// Requests of each caller in a round.
const STARTS: u64 = 40;

/// A round is ignored in which the machine accounts for more than this part of the answers.
const EXCUSED_PART: u64 = 20;

/// A start that arrived while the pod was reporting the end before it to Redis once waited for two
/// round trips.
#[tokio::test(flavor = "multi_thread")]
async fn no_pod_starts_a_request_by_itself_while_slots_are_far_away() {
    let _alone = MACHINE.write().await;
    let cluster = Cluster::start_with(&ClusterOptions::new(MASTERS, 1).proxied());
    cluster.proxies.iter().for_each(|proxy| proxy.set(Fault::Distance { each_way: EACH_WAY }));
    let text = format!(
        "domain: slots\ndescriptors:\n- key: model\n  descriptors: [{{key: id, rate_limit: \
         {{algorithm: concurrency, requests_per_unit: {SLOTS}, hold: {{for: 1m}}}}}}]\n"
    );
    let pods = Pods::start_with("slots", PODS, &cluster.places(), &text, &[]).await;
    let mut rounds: Vec<(u64, Late)> = Vec::new();
    let is_calm = |late: &Late| late.excused <= CALLERS * STARTS / EXCUSED_PART;
    let is_clean = |(_, late): &(u64, Late)| late.answers <= late.excused && is_calm(late);
    while rounds.len() < ROUNDS_MAX && !rounds.last().is_some_and(is_clean) {
        let (before, probe) = (pods.local(), Probe::start(cluster.proxies[0].addr));
        let most = requests_in_progress(&pods, rounds.len()).await;
        let excused = COUNTED_MAX * probe.stop().late_of(CALLERS * STARTS, WAIT_LIMIT);
        rounds.push((most, Late { answers: pods.local() - before, excused }));
    }
    println!("most in progress of {SLOTS}, and answers without Redis, by round: {rounds:?}");
    for (most, late) in &rounds {
        assert!(*most <= SLOTS + late.answers, "{rounds:?}");
    }
    assert!(rounds.last().is_some_and(is_clean), "by round: {rounds:?}");
    pods.are_unharmed();
}

/// Callers of all pods start requests, and end each after some time. Returns the most that were in
/// progress at once.
async fn requests_in_progress(pods: &Pods, round: usize) -> u64 {
    let [running, most] = [Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default()];
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let client = pods.pods[usize::try_from(caller).unwrap() % PODS].caller.clone();
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        callers.spawn(async move {
            let mut rng = Rng::new();
            for nth in 0..STARTS {
                let id = format!("{round}-{caller}-{nth}");
                let mut line = charge("model", "x", 1);
                line.entries.push(("id", id));
                let start = client.clone().ask(request("slots", &[line.clone()])).await;
                if !passes(&start.expect("an answer")) {
                    tokio::time::sleep(Duration::from_millis(1 + rng.below(25))).await;
                    continue;
                }
                most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20 + rng.below(60))).await;
                running.fetch_sub(1, Ordering::Relaxed);
                line.entries.push(("ratelease.settle", "1".to_owned()));
                client.clone().ask(request("slots", &[line])).await.expect("an answer");
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.expect("every call had an answer");
    }
    most.load(Ordering::Relaxed)
}

/// Number of new keys, large enough that each of three masters almost certainly owns some.
const FIRST: usize = 60;

/// The number of the [`FIRST`] answers that came without Redis, or later than the caller waits, and
/// how many of them the machine accounts for.
#[derive(Debug)]
struct Late {
    answers: u64,
    excused: u64,
}

/// Requests the first keys of a name, one after the other, beside a probe of the node at `place`.
async fn answers_without_redis(pods: &Pods, place: SocketAddr, name: &str) -> Late {
    let (before, probe) = (pods.local(), Probe::start(place));
    let mut failed = 0;
    for number in 0..FIRST {
        let said = pods.hit(0, "path", &format!("{name}-{number}")).await;
        failed += u64::from(said == Said::Failed);
    }
    let excused = probe.stop().late_of(FIRST as u64, WAIT_LIMIT);
    Late { answers: pods.local() - before + failed, excused }
}

/// Sends all requests for the keys of one round, in a random order, evenly spaced.
async fn round(envoy: &Envoy, pods: &Pods, number: usize) -> Round {
    let mut rng = Rng::new();
    let mut keys: Vec<_> = (0..REQUESTS).map(|request| request % KEYS).collect();
    for last in (1..keys.len()).rev() {
        let at = usize::try_from(rng.below(last as u64 + 1)).unwrap();
        keys.swap(last, at);
    }
    let due = |request| Duration::from_secs_f64(f64::from(request) / RATE);
    // A "pod" of `drive` is a key here: Envoy chooses the pod.
    let arrivals = (0..).zip(keys).map(|(request, key)| Arrival { at: due(request), pod: key });
    let (local, errors) = (pods.local(), envoy.verdicts().await.error);
    let ingress = envoy.ingress;
    let send = |key| async move {
        match http::get(ingress, &format!("/{number}-{key}")).await.map(|answer| answer.status) {
            Ok(200) => Said::Admitted,
            Ok(429) => Said::Denied,
            _ => Said::Failed,
        }
    };
    let answers = drive(arrivals, Instant::from_std(now()), Duration::MAX, send).await;
    let counted = envoy.verdicts().await.error - errors;
    Round {
        admitted: count(&answers, Said::Admitted),
        errors: counted.max(count(&answers, Said::Failed)),
        local: pods.local() - local,
        excused: 0,
    }
}
