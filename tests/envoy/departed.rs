//! Clients that leave while their requests start: Envoy cancels the call, or resets it after the answer,
//! and none of that may keep a slot.

use std::fs;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::logs::{TYPE, logging};
use crate::stand::{MACHINE, PATIENT, Rules, before, clear_of_midnight};
use crate::support::envoy::{Envoy, EnvoyOptions, filter};
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;

/// Slots of the upstream.
const SLOTS: u64 = 20;

/// Clients that leave.
const DEPARTED: u64 = 400;

/// Clients that leave at the same time.
const AT_ONCE: u64 = 4;

/// Maximum time until nothing is held, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(20);

/// A descriptor that is the id of its request alone.
fn id() -> Value {
    let kind = format!("{TYPE}.rate_limit_descriptors.expr.v3.Descriptor");
    let text = "filter_state['ratelease.id']";
    let config = json!({"@type": kind, "descriptor_key": "request", "text": text});
    let name = "envoy.rate_limit_descriptors.expr";
    json!([{"actions": [{"extension": {"name": name, "typed_config": config}}]}])
}

/// Sends a request, and leaves with a reset of the connection after `wait`.
async fn leave(envoy: &Envoy, wait: Duration) {
    let mut stream = TcpStream::connect(envoy.ingress).await.expect("Envoy takes connections");
    stream.set_nodelay(true).expect("a socket that lives");
    let request = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n";
    stream.write_all(request).await.expect("a connection that lives");
    sleep(wait).await;
    stream.set_zero_linger().expect("a socket that lives");
}

async fn stand(is_logged: bool) -> (Ratelease, Envoy, Rules) {
    clear_of_midnight().await;
    let domain = if is_logged { "logged-departures" } else { "departures" };
    let limit = format!("requests_per_unit: {SLOTS}, algorithm: concurrency, hold: {{for: 10m}}");
    let rule = format!("- {{key: request, rate_limit: {{{limit}}}}}\n");
    let rules = Rules::new(&format!("domain: {domain}\ndescriptors:\n{rule}"));
    let pod = Ratelease::start(rules.path(), &Cluster::shared().places(), &PATIENT).await;
    let options = EnvoyOptions { rate_limits: id(), ..before(domain, &[&pod]) };
    let mut options = logging(options, "0.02s");
    if !is_logged {
        options.manager = json!({});
    }
    let envoy = Envoy::start(options).await;
    (pod, envoy, rules)
}

/// The access log ends the starts whose answers Envoy has read.
#[tokio::test]
async fn clients_that_leave_at_any_moment_keep_no_slot() {
    let _shared = MACHINE.read().await;
    let (pod, envoy, _rules) = stand(true).await;
    for round in 0..DEPARTED / AT_ONCE {
        // 0 to 1.3 ms: before, in the middle of, and after the call for a verdict.
        let waits = (0..AT_ONCE).map(|nth| Duration::from_micros((round * AT_ONCE + nth) * 10 / 3));
        join_all(waits.map(|wait| leave(&envoy, wait))).await;
    }
    let freed = async || pod.count("holds") == 0;
    pod.process.until("free of holds", SOON, freed).await;
    let [undone, ends, unknown] =
        ["starts_undone", "log_entries_end", "log_entries_end_unknown"].map(|name| pod.count(name));
    println!(
        "{DEPARTED} left: {undone} starts undone, {ends} ended, {unknown} ends without a start"
    );
    // All slots at once: the log reports each end some 20 ms late.
    let statuses = join_all((0..SLOTS).map(async |_| envoy.get("/", &[]).await.status)).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    pod.process.until("free of holds", SOON, freed).await;
    assert!(undone > 0 && ends > 0, "{undone} undone, {ends} ended");
    pod.is_unharmed();
}

/// Without an access log nothing ends the starts whose answers Envoy has read: they stay, and no others.
#[tokio::test]
async fn only_starts_that_an_envoy_has_read_stay_until_it_is_killed() {
    let _shared = MACHINE.read().await;
    let (pod, envoy, _rules) = stand(false).await;
    let mut reset = 0;
    while reset < 40 {
        // At once, so that the call is cancelled.
        join_all((0..AT_ONCE).map(|_| leave(&envoy, Duration::ZERO))).await;
        reset = envoy.counter("cluster.ratelease.upstream_rq_tx_reset").await;
        if pod.count("holds") >= SLOTS {
            break;
        }
    }
    let settled = async || envoy.counter("http.ingress.downstream_rq_active").await == 0;
    pod.process.until("done", SOON, settled).await;
    let verdicts = envoy.verdicts().await;
    let (holds, undone) = (pod.count("holds"), pod.count("starts_undone"));
    println!("{reset} calls reset, {undone} starts undone; {verdicts:?}, {holds} holds");
    assert_eq!(holds, verdicts.ok);
    // The Envoy is gone, and so are its starts.
    envoy.process().signal("KILL");
    let freed = async || pod.count("holds") == 0;
    pod.process.until("free of holds", SOON, freed).await;
    assert_eq!(pod.count("holds_released_envoy_gone"), holds);
    pod.is_unharmed();
}

/// Two filters of a listener ask about one request, each in a domain of its own. A denial by the second
/// filter ends the start of the first.
#[tokio::test]
async fn an_entry_ends_what_every_filter_has_started() {
    let _shared = MACHINE.read().await;
    clear_of_midnight().await;
    for (first, second, limit, status) in
        [("both-first", "both-second", 3, 200), ("one-first", "one-second", 0, 429)]
    {
        let text = |domain: &str, limit: u64| {
            let limit = format!("requests_per_unit: {limit}, algorithm: concurrency");
            let rule = format!("- {{key: request, rate_limit: {{{limit}, hold: {{for: 10m}}}}}}");
            format!("domain: {domain}\ndescriptors:\n{rule}\n")
        };
        let rules = Rules::new(&text(first, 3));
        fs::write(rules.path().join("second.yaml"), text(second, limit)).expect("a file");
        let pod = Ratelease::start(rules.path(), &Cluster::shared().places(), &PATIENT).await;
        let options = |domain| EnvoyOptions { rate_limits: id(), ..before(domain, &[&pod]) };
        let filters = vec![filter("ratelimit", options(first).filter_config())];
        let options = EnvoyOptions { filters, ..options(second) };
        let envoy = Envoy::start(logging(options, "0.005s")).await;
        for _ in 0..30 {
            assert_eq!(envoy.get("/", &[]).await.status, status);
            let freed = async || pod.count("holds") == 0;
            pod.process.until("free of holds", SOON, freed).await;
        }
        pod.is_unharmed();
    }
}
