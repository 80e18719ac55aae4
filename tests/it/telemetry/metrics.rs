//! Metrics as a collector receives them: the content of `/metrics`, under the same names.

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, Metric, NumberDataPoint};

use super::{PATIENT, SECRET, decide, request, rules};
use crate::support::collector::{Collector, shown};
use crate::support::http;
use crate::support::ratelease::Ratelease;

const INTERVAL: (&str, &str) = ("OTEL_METRIC_EXPORT_INTERVAL", "1000");

/// The last push, which is sent at the end of the process.
fn last(collector: &Collector) -> Vec<Metric> {
    let pushed = collector.metrics();
    let scopes = &pushed.last().expect("a push").scope_metrics;
    assert_eq!(scopes[0].scope.as_ref().unwrap().name, "ratelease");
    scopes[0].metrics.clone()
}

#[track_caller]
fn metric<'a>(metrics: &'a [Metric], name: &str) -> &'a Metric {
    let names = || metrics.iter().map(|metric| &metric.name).collect::<Vec<_>>();
    metrics.iter().find(|it| it.name == name).unwrap_or_else(|| panic!("{name}: {:?}", names()))
}

/// The point that has all of these attributes.
#[track_caller]
fn point<'a>(points: &'a [NumberDataPoint], attributes: &[&str]) -> &'a NumberDataPoint {
    let has_all = |point: &&NumberDataPoint| {
        let shown = shown(&point.attributes);
        attributes.iter().all(|attribute| shown.iter().any(|it| it == attribute))
    };
    points.iter().find(has_all).unwrap_or_else(|| panic!("{attributes:?} in {points:#?}"))
}

/// Checks that each family of the page is pushed, with values no lower than those scraped before
/// the last push. Families without a series have nothing to push.
fn has_all_of(metrics: &[Metric], scraped: &str) {
    let types = scraped.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    for (name, kind) in types {
        let counted = if kind == "histogram" { format!("{name}_count") } else { name.to_owned() };
        let series = scraped.lines().filter_map(|line| {
            let rest = line.strip_prefix(&counted)?;
            let is_series = rest.starts_with(['{', ' ']);
            is_series.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok()).flatten()
        });
        let series: Vec<_> = series.collect();
        if series.is_empty() {
            continue;
        }
        let (pushed, sum) = (total(metric(metrics, name)), series.iter().sum::<f64>());
        assert!(kind == "gauge" || pushed >= sum, "{name}: {pushed} pushed, {sum} scraped before");
    }
}

/// The sum over all points of a metric.
fn total(metric: &Metric) -> f64 {
    let value = |point: &NumberDataPoint| match point.value {
        Some(Value::AsInt(value)) => value as f64,
        Some(Value::AsDouble(value)) => value,
        None => panic!("a point without a value: {metric:?}"),
    };
    match &metric.data {
        Some(Data::Sum(sum)) => sum.data_points.iter().map(value).sum(),
        Some(Data::Gauge(gauge)) => gauge.data_points.iter().map(value).sum(),
        Some(Data::Histogram(all)) => all.data_points.iter().map(|it| it.count as f64).sum(),
        other => panic!("{other:?}"),
    }
}

/// Spans and metrics arrive, and every message of theirs was compressed.
async fn arrives_compressed(protocol: &str, (collector, endpoint): (Collector, String)) {
    let env = [
        ("TRACING_ENABLED", "true"),
        ("TRACING_EXPORTER_PROTOCOL", protocol),
        ("OTEL_METRICS_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
    ];
    let rules = rules();
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    decide(&pod, request("test", "once"), &[]).await;
    assert_eq!(pod.stop().await, 0);
    assert_eq!(collector.spans().len(), 1);
    metric(&last(&collector), "ratelease_decisions_total");
    let header = if protocol == "grpc" { "grpc-encoding" } else { "content-encoding" };
    assert_eq!(collector.header(header), ["gzip", "gzip"]);
}

#[tokio::test]
async fn spans_and_metrics_are_compressed_if_asked_for() {
    let (collector, at) = Collector::grpc().await;
    arrives_compressed("grpc", (collector, format!("http://{at}"))).await;
    let (collector, at) = Collector::http().await;
    arrives_compressed("http", (collector, format!("http://{at}/base"))).await;
}

async fn pushes_what_is_scraped(protocol: &str, (collector, endpoint): (Collector, String)) {
    let [wait, timeout] = PATIENT;
    let env = [
        wait,
        timeout,
        ("OTEL_METRICS_EXPORTER", "otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_SERVICE_NAME", "shop-limits"),
        INTERVAL,
    ];
    let rules = rules();
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    pod.process.until("pushing", super::SOON, async || !collector.metrics().is_empty()).await;
    for _ in 0..3 {
        decide(&pod, request("test", "once"), &[]).await;
    }
    let scraped = http::get(pod.debug, "/metrics").await.unwrap().body;
    assert_eq!(pod.stop().await, 0);

    let metrics = last(&collector);
    let decisions = metric(&metrics, "ratelease_decisions_total");
    let Some(Data::Sum(sum)) = &decisions.data else { panic!("{decisions:?}") };
    assert!(sum.is_monotonic);
    assert_eq!(sum.aggregation_temporality(), AggregationTemporality::Cumulative);
    let over = ["domain=test", "rule=test.once", "verdict=over_limit", "how=local"];
    let point = point(&sum.data_points, &over);
    // The store denied one request; the pod denied the other from memory.
    assert_eq!(point.value, Some(Value::AsInt(1)));
    assert!(point.start_time_unix_nano > 0 && point.start_time_unix_nano < point.time_unix_nano);
    let took = metric(&metrics, "ratelease_decision_duration_seconds");
    let Some(Data::Histogram(histogram)) = &took.data else { panic!("{took:?}") };
    let took = &histogram.data_points[0];
    assert_eq!((took.count, took.bucket_counts.iter().sum::<u64>()), (3, 3));
    assert_eq!(took.bucket_counts.len(), took.explicit_bounds.len() + 1);
    assert!(took.sum.unwrap() > 0.0);
    let info = metric(&metrics, "ratelease_build_info");
    assert!(matches!(info.data, Some(Data::Gauge(_))), "{info:?}");
    has_all_of(&metrics, &scraped);
    assert!(collector.resources().contains(&"service.name=shop-limits".to_owned()));
    assert!(!format!("{metrics:?}").contains(SECRET));
}

#[tokio::test]
async fn metrics_are_pushed_over_grpc() {
    let (collector, addr) = Collector::grpc().await;
    pushes_what_is_scraped("grpc", (collector, format!("http://{addr}"))).await;
}

#[tokio::test]
async fn metrics_are_pushed_over_http() {
    let (collector, addr) = Collector::http().await;
    pushes_what_is_scraped("http/protobuf", (collector, format!("http://{addr}/base"))).await;
}
