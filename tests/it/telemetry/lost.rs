//! A collector that does not exist, or never answers, does no harm; one that is unavailable for a
//! while loses nothing.

use std::time::Duration;

use super::{ARRIVED_MAX, decide, request, rules};
use crate::support::collector::Collector;
use crate::support::now;
use crate::support::ports::free_port;
use crate::support::proxy::{Fault, Proxy};
use crate::support::ratelease::Ratelease;

/// Long enough for the whole drain, on a machine that also compiles.
const DRAIN: (&str, &str) = ("DRAIN_TIMEOUT", "4s");
const STOP_MAX: Duration = Duration::from_secs(8);

async fn does_no_harm(endpoint: &str, protocol: &str) -> Ratelease {
    let rules = rules();
    let env = [
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", protocol),
        ("OTEL_METRICS_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
        DRAIN,
    ];
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    for _ in 0..100 {
        let reply = decide(&pod, request("test", "plenty"), &[]).await;
        assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
    }
    pod
}

async fn ends_in_time(pod: &Ratelease) {
    let reported = now();
    assert_eq!(pod.stop().await, 0);
    assert!(reported.elapsed() < STOP_MAX, "{:?}", reported.elapsed());
}

#[tokio::test]
async fn a_collector_that_is_down_is_logged_once_and_costs_nothing_else() {
    for protocol in ["grpc", "http"] {
        // A port that was assigned once, and has no listener.
        let pod = does_no_harm(&format!("http://127.0.0.1:{}", free_port()), protocol).await;
        let line = pod.logs("spans cannot be pushed").await;
        assert!(line.contains("; see OTEL_EXPORTER_OTLP_ENDPOINT"), "{line}");
        assert!(line.to_lowercase().contains("connection refused"), "why: {line}");
        pod.logs("metrics cannot be pushed").await;
        assert_eq!(pod.count("spans_sent"), 0);
        // Spans are sent again, and the end of the process does not wait for that.
        ends_in_time(&pod).await;
        let log = pod.process.log();
        for what in ["spans", "metrics"] {
            let lines = log.matches(&format!("{what} cannot be pushed")).count();
            assert_eq!(lines, 1, "{what}: {log}");
        }
    }
}

#[tokio::test]
async fn spans_that_a_collector_refuses_twice_are_retried_and_arrive_once() {
    let (grpc, at) = Collector::grpc().await;
    let grpc = (grpc, "grpc", format!("http://{at}"));
    let (http, at) = Collector::http().await;
    let http = (http, "http", format!("http://{at}/base"));
    for (collector, protocol, endpoint) in [grpc, http] {
        collector.refuse(2);
        let rules = rules();
        let env = [
            ("TRACING_ENABLED", "true"),
            ("TRACING_EXPORTER_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ];
        let pod = Ratelease::start(rules.path(), &[], &env).await;
        for _ in 0..3 {
            decide(&pod, request("test", "plenty"), &[]).await;
        }
        let sent = async || pod.count("spans_sent") == 3;
        pod.process.until("counting its spans as sent", ARRIVED_MAX, sent).await;
        assert_eq!((pod.count("spans_failed"), collector.spans().len()), (0, 3), "{protocol}");
        if protocol == "http" {
            pod.logs("spans cannot be pushed: it answered 503").await;
            pod.logs("spans are pushed again").await;
        }
        assert_eq!(pod.stop().await, 0);
        // Over gRPC, an exporter that succeeds does not say that earlier attempts failed.
        let is_logged = pod.process.log().contains("spans cannot be pushed");
        assert_eq!(is_logged, protocol == "http", "{}", pod.process.log());
    }
}

#[tokio::test]
async fn a_connection_whose_other_end_is_gone_is_left_for_a_new_one() {
    let (collector, at) = Collector::grpc().await;
    let proxy = Proxy::start();
    proxy.lead_to(at.port());
    let rules = rules();
    let env = [
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", proxy.addr)),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
    ];
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    decide(&pod, request("test", "plenty"), &[]).await;
    let sent = async || !collector.spans().is_empty();
    pod.process.until("heard of", ARRIVED_MAX, sent).await;
    let before = proxy.accepted();
    proxy.set(Fault::Hole);
    decide(&pod, request("test", "plenty"), &[]).await;
    let anew = async || proxy.accepted() > before;
    pod.process.until("connecting anew", ARRIVED_MAX, anew).await;
    proxy.set(Fault::None);
    let sent = async || collector.spans().len() > 1;
    pod.process.until("heard of again", ARRIVED_MAX, sent).await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn a_collector_that_never_answers_does_not_hold_up_the_end() {
    // The kernel accepts the connection; nothing ever reads from it.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    for protocol in ["grpc", "http"] {
        let pod = does_no_harm(&endpoint, protocol).await;
        ends_in_time(&pod).await;
        let log = pod.process.log();
        assert!(log.contains("the collector did not take the last spans"), "{log}");
    }
}
