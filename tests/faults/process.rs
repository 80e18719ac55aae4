//! R15 to R18: pods that end, are killed, panic, or exhaust a resource of the process.

use std::process::Command;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::row::Row;
use crate::stage::{Plan, Stage, TIGHT, count, judge_process, paths, time_until, turn};
use crate::stand::{Asker, PATIENT, Rules, file, rule};
use crate::support::http;
use crate::support::now;
use crate::support::ports::free_port;
use crate::support::process::leashed;
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::raw_grpc::{Connection, SHOULD_RATE_LIMIT, post};
use crate::support::redis::Cluster;

/// Pods with long waits, which admit only tokens that were leased.
fn patient<'a>(domain: &'a str, cluster: &'a Cluster) -> Plan<'a> {
    let envoy_timeout = Some(Duration::from_secs(8));
    Plan { env: PATIENT.to_vec(), envoy_timeout, exact: true, ..Plan::new(domain, cluster) }
}

#[tokio::test(flavor = "multi_thread")]
async fn r15_sigterm_under_load() {
    let _turn = turn().await;
    const DRAIN_MAX: Duration = Duration::from_secs(4);
    let promise = "0 errors on open connections; not serving at once; every unspent token back; \
                   exit 0 within the drain limit, whatever a client keeps open; at most L";
    let mut row = Row::new("R15", "SIGTERM under load, with a client that is stuck", promise);
    let cluster = Cluster::shared();
    let mut plan = patient("r15", cluster);
    plan.env.push(("DRAIN_TIMEOUT", "4s"));
    let stage = plan.start().await;
    let tight = stage.learn(TIGHT, cluster).await;
    let load = stage.load(cluster).await;
    let (ends, stays) = (&stage.pods[0], &stage.pods[1]);
    let _stuck = stuck(ends).await;

    let reported = now();
    ends.process.signal("TERM");
    let says_no =
        async || http::get(ends.http, "/healthcheck").await.is_ok_and(|a| a.status == 500);
    let unhealthy = time_until(DRAIN_MAX, says_no).await;
    let status = ends.process.exit(2 * DRAIN_MAX).await;
    let took = reported.elapsed();
    let samples = load.stop_after(Duration::from_secs(1)).await;

    row.note(&stage.settings);
    row.recovered(took, DRAIN_MAX + Duration::from_millis(500));
    row.holds(status == 0, &format!("exit status {status}"));
    let at_once = stage.scale.pick(5_000, 500);
    let soon = unhealthy.is_some_and(|after| after < Duration::from_millis(at_once));
    row.holds(soon, &format!("not serving only after {unhealthy:?}"));
    stage.judge(&mut row, &samples, stage.tight).await;
    judge_process(&mut row, stays).await;
    stays.process.signal("INT");
    row.holds(stays.process.exit(2 * DRAIN_MAX).await == 0, "SIGINT does not end it well");
    let (debited, passed) = (stage.spent(cluster, &tight), samples.passed() + 1);
    row.note(&format!("{debited} debited, {passed} passed"));
    row.holds(debited == passed, "tokens did not come back, or were spent twice");
    row.end();
}

/// Begins a call that never completes.
async fn stuck(pod: &Ratelease) -> mpsc::Sender<Vec<u8>> {
    let connection = Connection::open(pod.grpc).await;
    let (rest, sent) = mpsc::channel(1);
    rest.send(vec![0, 0, 0, 0, 100, 1, 2, 3]).await.expect("room");
    let body = ReceiverStream::new(sent);
    tokio::spawn(async move { connection.request(post(SHOULD_RATE_LIMIT), body).await });
    let is_there = async || count(pod, "message_bytes").await > 0;
    assert!(time_until(Duration::from_secs(10), is_there).await.is_some(), "no half of a call");
    rest
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_a_pod_is_killed_and_restarted() {
    let _turn = turn().await;
    /// Maximum number of tokens of one lease.
    const LEASE: u64 = 5;
    let promise = "what the dead pod held of a key is lost, a lease in hand and one on its way; \
                   Envoy is back within 1 s; at most L";
    let mut row = Row::new("R16", "kill -9 of a pod, restarted", promise);
    let cluster = Cluster::shared();
    let mut stage = Plan { options: ", lease: {max: 5}", ..patient("r16", cluster) }.start().await;
    let tight = stage.learn(TIGHT, cluster).await;
    let hot: Vec<_> = paths().into_iter().filter(|path| !path.contains('{')).collect();
    let load = stage.load_of(&hot, cluster).await;
    let dead = stage.pods.remove(0);
    let errors = stage.errors().await;
    row.errors(errors);
    dead.process.signal("KILL");
    dead.process.exit(Duration::from_secs(5)).await;
    let again = restart(&stage, &dead, cluster).await;
    let ready = now();
    stage.envoy.healthy(2).await;
    row.recovered(ready.elapsed(), stage.scale.pick(2, 1) * Duration::from_secs(1));
    let samples = load.stop_after(Duration::from_secs(2)).await;

    // Envoy had requests under way, and calls a dead pod until it notices: that is not the pod's
    // fault.
    let borne = stage.errors().await - errors;
    row.note(&format!("{borne} errors at Envoy until it knew that the pod was dead"));
    row.admitted(samples.of(|path| path == 0).passed(), stage.tight);
    stage.pods.push(again);
    stage.stop(&mut row).await;
    let (debited, passed) = (stage.spent(cluster, &tight), samples.passed() + 1);
    let keys = hot.len() as u64;
    let waste = debited.saturating_sub(passed + borne);
    row.note(&format!("{waste} tokens of {keys} keys lost; {debited} debited, {passed} passed"));
    row.holds(debited >= passed, "more passed than was debited");
    row.holds(waste <= keys * 2 * LEASE, "more was lost than leases hold");
    row.end();
}

/// Starts another pod on the ports of a dead one.
async fn restart(stage: &Stage, dead: &Ratelease, cluster: &Cluster) -> Ratelease {
    let port = dead.grpc.port().to_string();
    let mut env = PATIENT.to_vec();
    env.extend([("GRPC_PORT", port.as_str()), ("CACHE_KEY_PREFIX", "r16-")]);
    let mut pod = Ratelease::spawn(stage.rules.path(), &cluster.places(), &env);
    pod.grpc = dead.grpc;
    pod.ready().await;
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_a_pod_starts_without_redis() {
    let _turn = turn().await;
    let promise = "serving, by its failure mode, within 250 ms of exec";
    let mut row = Row::new("R16", "start with Redis down", promise);
    let rules = Rules::new(&file("r16", &[rule("path", None, 100)]));
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let start = now();
    let pod = Ratelease::spawn(rules.path(), &[nowhere], &[]);
    while TcpStream::connect(pod.grpc).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let asker = Asker::connect(&pod).await;
    let answer = asker.ask("r16", &[("path", "/a")], 1).await;
    let took = start.elapsed();
    row.errors(u64::from(answer.overall_code != 1));
    // A debug build on a busy machine loads slowly.
    let max = crate::stage::Scale::of_env().pick(2000, 250);
    row.recovered(took, Duration::from_millis(max));
    judge_process(&mut row, &pod).await;
    row.holds(pod.stop().await == 0, "the pod did not end well");
    row.end();
}

/// A pod without Redis, started by a shell script.
fn in_shell(script: &str, rules: &Rules) -> Ratelease {
    let mut command = leashed("/bin/sh");
    command.arg("-c").arg(script).arg(BINARY).args(["serve", "--rules"]).arg(rules.path());
    Ratelease::run(command, &[], &[("DRAIN_TIMEOUT", "1s")])
}

/// Whether `times` requests pass, on a connection of their own.
async fn decides(pod: &Ratelease, times: usize) -> bool {
    let asked = async {
        let asker = Asker::connect(pod).await;
        for _ in 0..times {
            let answer = asker.ask("r18", &[("path", "/a")], 1).await;
            assert_eq!(answer.overall_code, 1, "{answer:?}");
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asked).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn r18_descriptors_run_out() {
    let _turn = turn().await;
    let promise = "no exit, no deadlock: open connections are served, new ones again after it";
    let mut row = Row::new("R18", "all 64 file descriptors in use", promise);
    let rules = Rules::new(&file("r18", &[rule("path", None, 1_000_000)]));
    let pod = in_shell(r#"ulimit -n 64; exec "$0" "$@""#, &rules);
    pod.ready().await;
    let open = Asker::connect(&pod).await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(pod.grpc).await.expect("the backlog takes it"));
    }
    // Either the oldest connections were closed, or the newest were refused.
    let turned_away = async || {
        count(&pod, "connections_evicted").await + count(&pod, "connections_refused").await > 100
    };
    let crowded = time_until(Duration::from_secs(10), turned_away).await;
    row.holds(crowded.is_some(), "descriptors did not run out: the row shows nothing");
    let mut denied = 0;
    for _ in 0..100 {
        let answer = open.ask("r18", &[("path", "/a")], 1).await;
        denied += u64::from(answer.overall_code != 1);
    }
    row.errors(denied);
    drop(idle);
    let freed = now();
    row.holds(decides(&pod, 1).await, "it takes no connections any more");
    row.recovered(freed.elapsed(), Duration::from_secs(2));
    judge_process(&mut row, &pod).await;
    row.holds(pod.stop().await == 0, "the pod did not end well");
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn r18_hardly_any_processor() {
    let _turn = turn().await;
    let promise = "no exit, no deadlock; 0 errors once it runs again; at most 2 L";
    let mut row = Row::new("R18", "pods get 5 % of a processor (SIGSTOP and SIGCONT)", promise);
    let stage = Plan::new("r18", Cluster::shared()).start().await;
    let load = stage.load(Cluster::shared()).await;
    for _ in 0..20 {
        stage.pods.iter().for_each(|pod| pod.process.signal("STOP"));
        tokio::time::sleep(Duration::from_millis(95)).await;
        stage.pods.iter().for_each(|pod| pod.process.signal("CONT"));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let ended = now();
    let fast = async || {
        let start = now();
        stage.envoy.get("/warm-0", &[]).await.status == 200
            && start.elapsed() < stage.scale.latency_max
    };
    let recovered = time_until(Duration::from_secs(10), fast).await;
    let errors = stage.errors().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let samples = load.stop().await;
    row.note(&format!("{errors} errors at Envoy meanwhile"));
    row.recovered(recovered.unwrap_or(Duration::from_secs(10)), Duration::from_secs(1));
    let after = samples.between(ended + Duration::from_secs(1), now());
    row.errors(stage.errors().await - errors + after.tally().faults());
    row.admitted(samples.of(|path| path == 0).passed(), 2 * stage.tight);
    stage.stop(&mut row).await;
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn r18_the_log_cannot_be_written() {
    let _turn = turn().await;
    let promise = "no exit, no deadlock; what cannot be logged is dropped";
    let mut row = Row::new(
        "R18",
        "the log's disk is full; its pipe is full; its pipe has no reader",
        promise,
    );
    let rules = Rules::new(&file("r18", &[rule("path", None, 1_000_000)]));
    let fifo = tempfile::TempDir::new().expect("a temporary directory");
    let fifo = fifo.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success());
    let (fifo, mut unanswered) = (fifo.display(), 0);
    for script in [
        r#"exec "$0" "$@" >/dev/full 2>&1"#.to_owned(),
        format!(r#"exec 8<>"{fifo}"; head -c 65536 /dev/zero >&8; exec "$0" "$@" >&8 2>&8"#),
        format!(r#"exec 8<>"{fifo}" 9>"{fifo}" 8>&-; exec "$0" "$@" >&9 2>&9"#),
    ] {
        let pod = in_shell(&script, &rules);
        pod.ready().await;
        for number in 0..20 {
            // Each fault adds a line to the log.
            rules.replace(&format!("domain: [ # {number}"));
            let refused = async || pod.loads_refused() == number + 1;
            let logged = time_until(Duration::from_secs(10), refused).await;
            row.holds(logged.is_some(), "there was nothing to log");
            unanswered += u64::from(!decides(&pod, 5).await);
        }
        row.holds(pod.stop().await == 0, "the pod did not end well");
        rules.replace(&file("r18", &[rule("path", None, 1_000_000)]));
    }
    row.errors(unanswered);
    row.end();
}
