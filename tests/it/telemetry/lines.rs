//! Log lines that are written for a request contain its span, if it has one.

use serde_json::Value;

use super::{PATIENT, decide, decide_json, request, rules};
use crate::support::collector::{Collector, hex};
use crate::support::ratelease::Ratelease;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-b7ad6b7169203331-{flags}")
}

/// A pod that logs each decision, and traces requests with a traced parent.
async fn telling(format: &str, endpoint: &str) -> Ratelease {
    let [wait, timeout] = PATIENT;
    let env = [
        wait,
        timeout,
        ("TRACING_ENABLED", "true"),
        ("TRACING_SAMPLING_RATE", "0"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("DECISION_SAMPLE_RATE", "1"),
        ("LOG_LEVEL", "debug"),
        ("LOG_FORMAT", format),
    ];
    let rules = rules();
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    for flags in ["01", "00"] {
        let headers = [("traceparent", parent(flags))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        // The first waits for the store; after the store's denial, the pod denies by itself.
        for _ in 0..3 {
            decide(&pod, request("test", "once"), &headers).await;
        }
        assert_eq!(decide_json(&pod, "once", &headers).await, 429);
    }
    assert_eq!(pod.stop().await, 0);
    pod
}

#[tokio::test]
async fn a_line_of_a_traced_request_bears_its_ids_as_json() {
    let (collector, at) = Collector::http().await;
    let pod = telling("json", &format!("http://{at}/base")).await;
    let log = pod.process.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (decided, others): (Vec<_>, Vec<_>) = lines.partition(|line| line["@message"] == "decided");
    // A line of the service, and a sample, for each request.
    assert_eq!(decided.len(), 2 * 8, "{log}");
    let (traced, untraced): (Vec<_>, Vec<_>) =
        decided.into_iter().partition(|line| line["trace_id"] == TRACE);
    assert_eq!((traced.len(), untraced.len()), (2 * 4, 2 * 4), "{log}");
    let spans: Vec<_> = collector.spans().iter().map(|span| hex(&span.span_id)).collect();
    assert_eq!(spans.len(), 4);
    for span in &spans {
        let lines = traced.iter().filter(|line| line["span_id"] == span.as_str());
        assert_eq!(lines.count(), 2, "{span}: {log}");
    }
    for line in untraced.iter().chain(&others) {
        assert!(line["trace_id"].is_null() && line["span_id"].is_null(), "{line}");
    }
}

#[tokio::test]
async fn a_line_of_a_traced_request_bears_its_ids_as_text() {
    let (collector, at) = Collector::http().await;
    let pod = telling("text", &format!("http://{at}/base")).await;
    let log = pod.process.log();
    for span in collector.spans() {
        let ids = format!(" trace_id={TRACE} span_id={}", hex(&span.span_id));
        let lines: Vec<_> = log.lines().filter(|line| line.ends_with(&ids)).collect();
        assert_eq!(lines.len(), 2, "{log}");
        assert!(lines.iter().all(|line| line.contains(": decided ")), "{lines:?}");
    }
    assert_eq!(log.matches("trace_id").count(), 2 * 4, "{log}");
}
