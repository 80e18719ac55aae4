//! Starting without Redis: the process serves, logs the problem, and connects once Redis is up.

use std::net::TcpListener;
use std::time::Duration;

use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::{QUICK_END, RULES, SOON, request, rules, status};
use crate::support::now;
use crate::support::ports::free_port;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::Connection;
use crate::support::redis::{Cluster, Server};

const MAX_WAIT: &str = "50ms";
/// `MAX_WAIT`, and a large margin for a machine that also compiles, which may stall a call now and
/// then for longer.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// Part of each log line about Redis.
const TARGET: &str = "::store::redis";
/// Part of the line about a Redis that is available again.
const AGAIN: &str = "connected to Redis again";

/// Checks that the pod serves, logs the problem, and refuses decisions in time.
async fn serves_without_redis(kind: &str, url: &str) -> Ratelease {
    let rules = rules(&format!("defaults: {{failure_mode: error}}\n{RULES}"));
    let env = [
        ("REDIS_TYPE", kind),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", url),
        ("LEASE_MAX_WAIT", MAX_WAIT),
        QUICK_END,
    ];
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    assert_eq!(status(pod.http, "/healthcheck").await, 200);
    let connection = Connection::open(pod.grpc).await;
    let mut health = HealthClient::new(connection.channel());
    for service in ["", "ratelimit"] {
        let check = HealthCheckRequest { service: service.into() };
        let answer = health.check(check).await.unwrap().into_inner();
        assert_eq!(answer.status().as_str_name(), "SERVING", "{service:?}");
    }
    pod.logs(TARGET).await;
    let mut took = Vec::new();
    for n in 0..20 {
        let asked = now();
        let reply = connection.call(&request("hundred", &n.to_string(), &[])).await;
        took.push(asked.elapsed());
        assert_eq!(reply.code, Code::Unavailable, "{url}: {reply:?}");
        let reasons = ["the store ", "the circuit breaker is open"];
        let is_of_the_store = reasons.iter().any(|it| reply.reason.starts_with(it));
        assert!(is_of_the_store, "{url}: {reply:?}");
    }
    took.sort_unstable();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    assert!(median < ANSWER_MAX && longest < SOON, "{url}: {took:?}");
    pod.is_unharmed();
    pod
}

/// Ends the pod, which must have logged once that Redis is unavailable, with `why`.
async fn ends_having_logged_once(pod: Ratelease, why: &[&str]) {
    assert_eq!(pod.stop().await, 0);
    let mut lines = pod.logged(TARGET);
    lines.retain(|line| !line.contains(AGAIN));
    let [line] = &lines[..] else { panic!("not once: {lines:#?}") };
    assert!(
        line.contains("; check that Redis runs there and can be reached (REDIS_URL)"),
        "{line}"
    );
    for why in why {
        assert!(line.contains(why), "{why:?} not in {line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_does_not_resolve_is_logged_once() {
    for kind in ["single", "cluster"] {
        // .invalid never resolves (RFC 2606).
        let why = ["no-such-host.invalid:6379", "REDIS_URL"];
        let pod = serves_without_redis(kind, "no-such-host.invalid:6379").await;
        ends_having_logged_once(pod, &why).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_accepts_and_never_answers_is_logged_once() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = mute.local_addr().unwrap().to_string();
    for kind in ["single", "cluster"] {
        let pod = serves_without_redis(kind, &addr).await;
        ends_having_logged_once(pod, &[&addr]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_later_is_found() {
    let port = free_port();
    let addr = format!("127.0.0.1:{port}");
    let pod = serves_without_redis("single", &addr).await;
    let redis = tokio::task::spawn_blocking(move || Server::start_on(port, &[])).await.unwrap();
    let connection = Connection::open(pod.grpc).await;
    let served = async || {
        let reply = connection.call(&request("hundred", "v", &[])).await;
        reply.is_over_limit() == Some(false)
    };
    pod.process.until("served by the Redis that came", SOON, served).await;
    // There may be keys for the heartbeats of pods too, which have no hash.
    let counts: Vec<_> = redis.keys().into_iter().filter(|key| key.contains('{')).collect();
    assert_eq!(counts.len(), 1, "{counts:?}");
    pod.logs(AGAIN).await;
    ends_having_logged_once(pod, &[&addr, "REDIS_URL"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_that_is_taken_for_one_server_is_named_so_in_log_and_status() {
    let cluster = Cluster::shared();
    let without_slots = Server::start(&["--cluster-enabled", "yes"]);
    let urls =
        [cluster.addresses().remove(0).to_string(), format!("127.0.0.1:{}", without_slots.port())];
    for url in urls {
        let rules = rules(RULES);
        let env = [("REDIS_URL", url.as_str()), QUICK_END];
        let pod = Ratelease::start(rules.path(), &[], &env).await;
        let connection = Connection::open(pod.grpc).await;
        for n in 0..60 {
            connection.call(&request("hundred", &n.to_string(), &[])).await;
        }
        pod.logs("the server is a node of a Redis Cluster; set REDIS_TYPE=cluster").await;
        let shards = pod.status()["shards"].to_string();
        assert!(shards.contains("set REDIS_TYPE=cluster"), "{url}: {shards}");
        assert_eq!(pod.stop().await, 0);
        let lines = pod.logged("Redis refuses asks");
        assert_eq!(lines.len(), 1, "{url}: {lines:#?}");
    }
}
