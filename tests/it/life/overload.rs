//! Overload: calls above a ceiling are refused at once, memory stays flat, and after the load the
//! pod is as it was before.

mod flood;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tonic::Code;

use super::{PATIENT, QUICK_END, RULES, SOON, Waiting, request, rules, status};
use crate::support::cores::{all_cores, one_core};
use crate::support::http::Client;
use crate::support::now;
use crate::support::process::Process;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::Connection;
use flood::{Flood, Pace, Seen};

const MIB: u64 = 1 << 20;

/// Far below the machine's memory, and below that of unbounded calls after a few seconds.
const RESIDENT_MAX: u64 = 128 * MIB;

/// The promise is a second; a debug build on a machine that also compiles has three.
const RECOVERED_WITHIN: Duration = Duration::from_secs(3);

/// Resident memory, in bytes.
fn rss(process: &Process) -> u64 {
    process.memory("VmRSS")
}

/// Calls that stay under way for at least six seconds, `count` on one connection.
async fn waiting(pod: &Ratelease, connection: &Connection, count: usize) -> Vec<Waiting> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let before = pod.count("calls_under_way");
    let mut calls = Vec::new();
    for _ in 0..count {
        let value = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        calls.push(Waiting::begin(connection, "held_6s", &value).await);
    }
    let all = before + count as u64;
    let begun = async || pod.count("calls_under_way") == all;
    pod.process.until(&format!("seeing {all} calls under way"), SOON, begun).await;
    calls
}

/// Sends a request to `/json`, and returns its status.
async fn decided(pod: &Ratelease, key: &str, value: &str) -> u16 {
    let entry = format!(r#"{{"key":"{key}","value":"{value}"}}"#);
    let body = format!(r#"{{"domain":"test","descriptors":[{{"entries":[{entry}]}}]}}"#);
    let mut client = Client::connect(pod.http).await.unwrap();
    client.send("POST", "/json", &[], body).await.unwrap().status
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_would_wait_are_refused_above_the_ceiling_and_no_others() {
    let rules = rules(RULES);
    let env = [("MAX_IN_FLIGHT", "10"), PATIENT, QUICK_END];
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    let (slow, quick) = (Connection::open(pod.grpc).await, Connection::open(pod.grpc).await);
    // No limit applies to it.
    let plain = request("nowhere", "v", &[]);
    for round in 1..=2 {
        let mut calls = waiting(&pod, &slow, 8).await;
        // Once only the last quarter of the places is left, a connection may have at most eight
        // calls.
        let reply = slow.call(&request("hundred", &format!("crowd {round}"), &[])).await;
        assert_eq!(reply.code, Code::ResourceExhausted, "{reply:?}");
        calls.extend(waiting(&pod, &quick, 2).await);
        for (n, connection) in [&quick, &slow].into_iter().cycle().take(40).enumerate() {
            // A key without a lease has to wait.
            let reply = connection.call(&request("hundred", &format!("{round} {n}"), &[])).await;
            assert_eq!(reply.code, Code::ResourceExhausted, "{reply:?}");
            assert!(reply.reason.contains("MAX_IN_FLIGHT"), "{reply:?}");
            let reply = connection.call(&plain).await;
            assert_eq!(reply.is_over_limit(), Some(false), "it does not wait: {reply:?}");
        }
        assert_eq!(decided(&pod, "hundred", &format!("json {round}")).await, 200, "another door");
        for probe in ["/livez", "/readyz", "/healthcheck"] {
            assert_eq!(status(pod.http, probe).await, 200, "{probe}: probes are not calls");
        }
        assert_eq!(pod.count("shed"), 41 * round);
        calls.into_iter().for_each(|call| call.0.abort());
        let idle = async || pod.count("calls_under_way") == 0;
        pod.process.until("done with the calls", SOON, idle).await;
        for connection in [&quick, &slow] {
            let reply = connection.call(&request("hundred", "v", &[])).await;
            assert_eq!(reply.is_over_limit(), Some(false), "the connection lives: {reply:?}");
        }
    }
    assert_eq!(pod.stop().await, 0);
    let reported = pod.logged("calls are refused: 8 are waiting, of at most 10 (MAX_IN_FLIGHT)");
    assert_eq!(reported.len(), 2, "{}", pod.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn json_has_places_of_its_own_and_takes_none_of_envoys() {
    let rules = rules(RULES);
    let env = [("MAX_IN_FLIGHT", "10"), PATIENT, QUICK_END];
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    let envoy = Connection::open(pod.grpc).await;
    let pod = Arc::new(pod);
    let mut calls = JoinSet::new();
    for n in 0..10 {
        let (pod, value) = (Arc::clone(&pod), n.to_string());
        assert_eq!(decided(&pod, "held_6s", &value).await, 200);
        calls.spawn(async move { decided(&pod, "held_6s", &value).await });
    }
    let full = async || pod.count("calls_under_way") == 10;
    pod.process.until("full", SOON, full).await;
    assert_eq!(decided(&pod, "hundred", "json").await, 503);
    for n in 0..20 {
        let reply = envoy.call(&request("hundred", &n.to_string(), &[])).await;
        assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
    }
    assert_eq!(status(pod.http, "/livez").await, 200);
    calls.abort_all();
    let idle = async || pod.count("calls_under_way") == 0;
    pod.process.until("done with the calls", SOON, idle).await;
    assert_eq!(decided(&pod, "hundred", "json").await, 200);
    pod.is_unharmed();
}

/// The memory of a waiting call, on which the default of `MAX_IN_FLIGHT` is based.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_take_little_memory() {
    // Fewer than a listener keeps half open.
    const CALLS: usize = 480;
    let _core = one_core().await;
    let rules = rules(RULES);
    let pod = Ratelease::start(rules.path(), &[], &[QUICK_END, PATIENT]).await;
    let connections = join_all((0..8).map(|_| Connection::open(pod.grpc))).await;
    // Creates the keys first, since their memory is not measured here.
    for n in 0..CALLS {
        connections[0].call(&request("held_6s", &format!("first {n}"), &[])).await;
    }
    let before = rss(&pod.process);
    let mut calls = Vec::new();
    for connection in &connections {
        calls.extend(waiting(&pod, connection, CALLS / connections.len()).await);
    }
    let each = (rss(&pod.process) - before) / CALLS as u64;
    println!("{each} bytes for each call under way");
    assert!(each < 32 * 1024, "{each} bytes for each call under way");
    assert_eq!(calls.len(), CALLS);
}

/// Open loop: calls are sent at their rate, whatever the state of earlier ones. As an Envoy does,
/// the client holds back calls above the connection's limit of streams.
#[tokio::test(flavor = "multi_thread")]
async fn at_three_times_the_saturating_load_memory_is_flat_and_the_pod_recovers() {
    const CONNECTIONS: usize = 12;
    const SPAN: Duration = Duration::from_millis(1_500);
    const SPANS: usize = 6;
    let _core = all_cores().await;
    let rules = rules(RULES);
    let pod = Ratelease::start(rules.path(), &[], &[QUICK_END]).await;
    let message = request("plenty", "flood", &[]);
    let mut flood = Flood::open(pod.grpc, CONNECTIONS, &message).await;
    flood.run(Pace::Closed(16), SPAN / 2).await; // by then, tables and buffers have their size
    let seen = flood.run(Pace::Closed(16), SPAN / 2).await;
    let saturating = seen.decided as f64 / (SPAN / 2).as_secs_f64();
    let offered = 3.0 * saturating;
    let open = Pace::Open(offered / CONNECTIONS as f64);
    let (mut resident, mut overloads) = (Vec::new(), 0);
    for _ in 0..SPANS {
        let seen = flood.run(open, SPAN).await;
        resident.push(rss(&pod.process));
        println!("{seen:?}, resident {} KiB; {}", rss(&pod.process) / 1024, pod.status()["counts"]);
        let Seen { sent, held_back, decided, .. } = seen;
        let offers = (sent + held_back) as f64;
        overloads += usize::from(offers > 2.0 * saturating * SPAN.as_secs_f64());
        assert!(decided > 0 && seen.reset == 0, "{seen:?}");
    }
    let end = now();
    println!("saturating: {saturating:.0}/s; offered: {offered:.0}/s; resident: {resident:?}");
    // A busy machine may stall the client for a while.
    assert!(2 * overloads >= SPANS, "an overload in {overloads} spans of {SPANS}");
    assert_eq!(flood.gone(), 0, "every connection lives");
    assert!(resident.iter().all(|bytes| *bytes < RESIDENT_MAX), "{resident:?}");
    // Allocators take a while to reach their size; a leak would continue to grow.
    let (half, last) = (resident[SPANS / 2], resident[SPANS - 1]);
    assert!(last < half + 8 * MIB, "{resident:?}");
    let served = async || {
        let reply = Connection::open(pod.grpc).await.call(&request("plenty", "after", &[])).await;
        reply.is_over_limit() == Some(false)
    };
    pod.process.until("serving after the load", SOON, served).await;
    let took = end.elapsed();
    println!("served {took:?} after the end");
    assert!(took < RECOVERED_WITHIN, "{took:?} after the end of the load");
    pod.is_unharmed();
}
