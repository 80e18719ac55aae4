//! A collector behind TLS that requires a client certificate.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::{ARRIVED_MAX, decide, request, rules};
use crate::support::collector::Collector;
use crate::support::papers::Papers;
use crate::support::ratelease::Ratelease;

/// PEM files.
struct Files {
    _dir: TempDir,
    root: PathBuf,
    cert: PathBuf,
    key: PathBuf,
    other_key: PathBuf,
}

// === impl Files ===

impl Files {
    fn of(papers: &Papers) -> Self {
        let dir = TempDir::new().unwrap();
        let write = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).unwrap();
            dir.path().join(name)
        };
        Self {
            root: write("root.pem", &papers.root),
            cert: write("cert.pem", &papers.client.cert),
            key: write("key.pem", &papers.client.key),
            other_key: write("other.pem", &papers.server.key),
            _dir: dir,
        }
    }
}

/// Starts a pod that sends spans to `endpoint`, with additional environment variables, and makes it
/// send one.
async fn traced(protocol: &str, endpoint: &str, env: &[(&str, &str)]) -> (Ratelease, TempDir) {
    let mut all = vec![
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
    ];
    all.extend(env);
    let rules = rules();
    let pod = Ratelease::start(rules.path(), &[], &all).await;
    decide(&pod, request("test", "plenty"), &[]).await;
    (pod, rules)
}

#[tokio::test]
async fn spans_travel_over_tls_by_both_protocols() {
    let papers = Papers::new("127.0.0.1");
    let files = Files::of(&papers);
    let [root, cert, key] =
        [&files.root, &files.cert, &files.key].map(|path| path.to_str().unwrap());
    for (protocol, path) in [("grpc", ""), ("http", "/base")] {
        let (collector, at) = Collector::tls(&papers).await;
        let env = [
            ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", root),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/never/read"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", cert),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", key),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret"),
        ];
        let (pod, _rules) = traced(protocol, &format!("https://{at}{path}"), &env).await;
        // Not left to the end of the process, which does not wait long enough for a handshake.
        let arrived = async || !collector.spans().is_empty();
        pod.process.until("heard of", ARRIVED_MAX, arrived).await;
        assert_eq!(pod.stop().await, 0);
        assert_eq!(collector.spans().len(), 1, "{protocol}: {}", pod.process.log());
        assert_eq!(collector.header("authorization"), ["Bearer s3cret"]);
        assert!(!pod.process.log().contains("cannot be pushed"), "{}", pod.process.log());
    }
}

#[tokio::test]
async fn a_collector_that_is_not_trusted_gets_nothing_and_is_logged() {
    let papers = Papers::new("127.0.0.1");
    // Signed by another root.
    let stranger = Papers::new("127.0.0.1");
    let (files, others) = (Files::of(&papers), Files::of(&stranger));
    let [root, other, cert, key] =
        [&files.root, &others.root, &files.cert, &files.key].map(|path| path.to_str().unwrap());
    for (protocol, root, has_papers, reason) in [
        ("grpc", other, true, "invalid peer certificate"),
        ("http", other, true, "invalid peer certificate"),
        // Without a client certificate: TLS 1.3 reports that when the first bytes are read.
        ("http", root, false, "certificate"),
    ] {
        let (collector, at) = Collector::tls(&papers).await;
        let endpoint = format!("https://{at}/base");
        let mut env = vec![("OTEL_EXPORTER_OTLP_CERTIFICATE", root)];
        if has_papers {
            env.push(("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", cert));
            env.push(("OTEL_EXPORTER_OTLP_CLIENT_KEY", key));
        }
        let (pod, _rules) = traced(protocol, &endpoint, &env).await;
        let line = pod.logs("spans cannot be pushed").await;
        assert!(line.to_lowercase().contains(&reason.to_lowercase()), "{protocol}: {line}");
        assert_eq!(pod.stop().await, 0);
        assert!(collector.spans().is_empty());
    }
}

#[tokio::test]
async fn a_key_of_another_certificate_is_a_fault_at_the_start() {
    let files = Files::of(&Papers::new("127.0.0.1"));
    let [root, cert, other] =
        [&files.root, &files.cert, &files.other_key].map(|path| path.to_str().unwrap());
    let env = [
        ("TRACING_ENABLED", "true"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", root),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", cert),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", other),
    ];
    let rules = rules();
    let pod = Ratelease::spawn(rules.path(), &[], &env);
    assert_eq!(pod.process.exit(super::SOON).await, 2, "{}", pod.process.log());
    let log = pod.process.log();
    let fault = log.lines().find(|line| line.contains("OTEL_EXPORTER_OTLP_CLIENT_KEY"));
    assert!(fault.is_some_and(|line| line.contains("the key of the certificate")), "{log}");
}
