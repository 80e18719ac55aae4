//! Spans as a collector receives them.

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tempfile::TempDir;
use tonic::Code;

use super::{PATIENT, SECRET, decide, decide_json, request, rules};
use crate::support::collector::{Collector, hex, shown};
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// A pod that sends traces to `endpoint` by `protocol`, with additional environment variables.
async fn traced(
    protocol: &str,
    endpoint: &str,
    redis: &[std::net::SocketAddr],
    env: &[(&str, &str)],
) -> (Ratelease, TempDir) {
    let rules = rules();
    let mut all = vec![
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
    ];
    all.extend(PATIENT);
    all.extend(env);
    (Ratelease::start(rules.path(), redis, &all).await, rules)
}

#[track_caller]
fn has(span: &Span, expected: &[&str]) {
    let shown = shown(&span.attributes);
    for attribute in expected {
        assert!(shown.iter().any(|it| it == attribute), "no {attribute} in {shown:?}");
    }
}

/// Checks the attributes that both protocols set, and the parent.
#[track_caller]
fn is_child(span: &Span) {
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert_eq!((span.span_id.len(), span.trace_state.as_str()), (8, "vendor=1"));
    assert_ne!(span.span_id, span.parent_span_id);
    // The flags mean sampled, with a parent known to be remote.
    assert_eq!(span.flags, 0x301);
}

async fn a_request_is_a_child(protocol: &str, (collector, endpoint): (Collector, String)) {
    let env = [
        ("TRACING_SERVICE_NAME", "shop-limits"),
        ("TRACING_SERVICE_NAMESPACE", "shop"),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-7"),
        ("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=n1,service.name=never"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret"),
    ];
    let (pod, _rules) = traced(protocol, &endpoint, &[], &env).await;
    let sampled = parent("01");
    let headers = [("traceparent", sampled.as_str()), ("tracestate", "vendor=1")];
    // The store denies the second request, and the pod remembers that: it denies the third at once.
    for over in [false, true, true] {
        let reply = decide(&pod, request("test", "once"), &headers).await;
        assert_eq!(reply.is_over_limit(), Some(over), "{reply:?}");
    }
    let reply = decide(&pod, request("", "once"), &headers).await;
    assert_eq!(reply.code, Code::Unknown);
    assert_eq!(decide_json(&pod, "once", &headers).await, 429);
    assert_eq!(pod.stop().await, 0);
    assert!(!pod.process.log().contains("did not take"), "{}", pod.process.log());

    let spans = collector.spans();
    assert_eq!(spans.len(), 5, "{spans:#?}");
    spans.iter().for_each(is_child);
    let [first, second, third, refused, json] = &spans[..] else { unreachable!() };
    for span in [first, second, third, refused] {
        assert_eq!((span.name.as_str(), span.kind()), (METHOD, SpanKind::Server));
        has(span, &["rpc.system.name=grpc", &format!("rpc.method={METHOD}")]);
    }
    let decided = ["ratelease.domain=test", "ratelease.rule=test.once", "ratelease.remaining=0"];
    for (span, verdict, how) in
        [(first, "ok", "leased"), (second, "over_limit", "leased"), (third, "over_limit", "local")]
    {
        let more = [format!("ratelease.verdict={verdict}"), format!("ratelease.how={how}")];
        has(span, &[&more[0], &more[1], "rpc.response.status_code=OK"]);
        has(span, &decided);
        let status = span.status.as_ref().unwrap().code();
        assert_eq!(status, StatusCode::Unset, "a denial is no error: {span:?}");
        assert!(span.end_time_unix_nano > span.start_time_unix_nano);
        assert!(span.end_time_unix_nano - span.start_time_unix_nano < 10_000_000_000);
    }
    has(refused, &["rpc.response.status_code=UNKNOWN", "error.type=UNKNOWN"]);
    assert_eq!(refused.status.as_ref().unwrap().code(), StatusCode::Error);
    assert_eq!((json.name.as_str(), json.kind()), ("POST /json", SpanKind::Server));
    has(json, &["http.route=/json", "http.response.status_code=429", "ratelease.how=local"]);
    has(json, &["http.request.method=POST", "url.path=/json", "url.scheme=http"]);
    has(json, &decided);
    assert!(!format!("{spans:?}").contains(SECRET), "{spans:?}");
    let resources = collector.resources();
    for attribute in [
        "service.name=shop-limits",
        "service.namespace=shop",
        "service.instance.id=pod-7",
        concat!("service.version=", env!("CARGO_PKG_VERSION")),
        "k8s.node.name=n1",
    ] {
        assert!(resources.iter().any(|it| it == attribute), "no {attribute} in {resources:?}");
    }
    assert!(!resources.contains(&"service.name=never".to_owned()), "{resources:?}");
    assert!(collector.header("authorization").iter().all(|value| value == "Bearer s3cret"));
}

#[tokio::test]
async fn a_request_is_a_child_of_its_parent_over_grpc() {
    let (collector, addr) = Collector::grpc().await;
    a_request_is_a_child("grpc", (collector, format!("http://{addr}"))).await;
}

#[tokio::test]
async fn a_request_is_a_child_of_its_parent_over_http() {
    let (collector, addr) = Collector::http().await;
    a_request_is_a_child("http", (collector, format!("http://{addr}/base"))).await;
}

/// Reads the log at the most detailed level, including the lines of the libraries that connect and
/// send.
#[tokio::test]
async fn no_line_of_the_log_shows_a_header_for_the_collector() {
    for protocol in ["grpc", "http"] {
        let (collector, endpoint) = match protocol {
            "grpc" => Collector::grpc().await,
            _ => Collector::http().await,
        };
        let env = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret"),
            ("LOG_LEVEL", "trace"),
            ("LOG_LINES_PER_SECOND", "0"),
        ];
        let endpoint = format!("http://{endpoint}/base");
        let (pod, _rules) = traced(protocol, &endpoint, &[], &env).await;
        decide(&pod, request("test", "plenty"), &[]).await;
        assert_eq!(pod.stop().await, 0);
        assert!(collector.header("authorization").iter().any(|value| value == "Bearer s3cret"));
        let log = pod.log();
        assert!(log.contains("TRACE") && log.contains("hyper"), "{log}");
        assert!(!log.contains("s3cret"), "{log}");
    }
}

#[tokio::test]
async fn a_parent_decides_for_its_children_and_the_rate_for_roots() {
    for (rate, roots) in [("0", 0), ("1", 6)] {
        let (collector, addr) = Collector::http().await;
        let env = [("TRACING_SAMPLING_RATE", rate)];
        let (pod, _rules) = traced("http", &format!("http://{addr}/base"), &[], &env).await;
        let (sampled, unsampled) = (parent("01"), parent("00"));
        for _ in 0..3 {
            decide(&pod, request("test", "plenty"), &[]).await;
            decide_json(&pod, "plenty", &[("traceparent", "nonsense")]).await;
            decide(&pod, request("test", "plenty"), &[("traceparent", &sampled)]).await;
            decide(&pod, request("test", "plenty"), &[("traceparent", &unsampled)]).await;
            decide_json(&pod, "plenty", &[("traceparent", &unsampled)]).await;
        }
        assert_eq!(pod.stop().await, 0);
        let (root, child): (Vec<_>, Vec<_>) =
            collector.spans().into_iter().partition(|span| span.parent_span_id.is_empty());
        assert_eq!((root.len(), child.len()), (roots, 3), "at the rate {rate}");
        assert!(child.iter().all(|span| hex(&span.trace_id) == TRACE));
        let traces: std::collections::HashSet<_> = root.iter().map(|it| &it.trace_id).collect();
        assert_eq!(traces.len(), roots, "each root is a trace of its own");
        assert!(root.iter().all(|span| span.flags == 0x101), "a root's parent is not remote");
    }
}

#[tokio::test]
async fn an_exchange_with_redis_is_a_span_of_a_client() {
    let (collector, addr) = Collector::grpc().await;
    let redis = Cluster::shared().places();
    // Traces only requests with a traced parent, so that no other request is exported.
    let env = [("TRACING_SAMPLING_RATE", "0")];
    let (pod, _rules) = traced("grpc", &format!("http://{addr}"), &redis, &env).await;
    let reply = decide(&pod, request("test", "plenty"), &[("traceparent", &parent("01"))]).await;
    assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
    assert_eq!(pod.stop().await, 0);
    let spans = collector.spans();
    let of_kind = |kind| spans.iter().find(move |span| span.kind() == kind).expect("a span");
    let (exchange, request) = (of_kind(SpanKind::Client), of_kind(SpanKind::Server));
    assert_eq!(exchange.name, "EVALSHA");
    has(
        exchange,
        &["db.system.name=redis", "db.operation.name=EVALSHA", "ratelease.asks_failed=0"],
    );
    assert_eq!(hex(&exchange.trace_id), TRACE, "of the trace of the request that asked");
    assert_eq!(exchange.parent_span_id, request.span_id);
    assert_eq!(exchange.flags, 0x101, "its parent is not remote");
    assert!(!format!("{spans:?}").contains(SECRET), "{spans:?}");
}

#[tokio::test]
async fn an_exchange_that_no_traced_request_asked_for_is_traced_by_the_rate() {
    let redis = Cluster::shared().places();
    for (rate, exchanges) in [("0", false), ("1", true)] {
        let (collector, addr) = Collector::grpc().await;
        let env = [("TRACING_SAMPLING_RATE", rate)];
        let (pod, _rules) = traced("grpc", &format!("http://{addr}"), &redis, &env).await;
        let unsampled = parent("00");
        let reply = decide(&pod, request("test", "plenty"), &[("traceparent", &unsampled)]).await;
        assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
        assert_eq!(pod.stop().await, 0);
        let spans = collector.spans();
        assert_eq!(!spans.is_empty(), exchanges, "at the rate {rate}: {spans:?}");
        for span in &spans {
            assert_eq!((span.kind(), span.parent_span_id.len()), (SpanKind::Client, 0));
            assert_ne!(hex(&span.trace_id), TRACE);
        }
    }
}
