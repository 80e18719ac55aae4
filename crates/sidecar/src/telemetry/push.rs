//! Pushes metrics: the same that can be scraped, under the same names.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use ratelease_cli::settings;
use ratelease_cli::settings::OtlpCompression;
use ratelease_engine::latency::Buckets;
use ratelease_engine::time::{Clock, Time};
use ratelease_otlp::failure_log::{ENDPOINT, FailureLog};
use ratelease_otlp::metrics_client::{ExportError, MetricsClient};
use ratelease_otlp::origin::{Origin, SCOPE, VERSION, nanos, system_time};
use ratelease_server::metrics::family::{Family, Kind, Labels, Sample, Value};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Reads all metrics, at this moment. May take some milliseconds.
pub type Read = Arc<dyn Fn() -> Vec<Family> + Send + Sync>;

/// Maximum number of series in one message: each takes some hundred bytes, and collectors accept 4
/// MiB. Compressed messages are smaller, since tonic compresses them on a worker.
const POINTS_MAX: usize = 5_000;
const COMPRESSED_POINTS_MAX: usize = 1_000;

/// Pushes metrics. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct Push {
    shared: Arc<Shared>,
}

struct Shared {
    read: Read,
    interval: Duration,
    points_max: usize,
    /// When the counters began, in nanoseconds since the Unix epoch.
    begun: u64,
    client: MetricsClient,
    log: Arc<FailureLog>,
    resource: Resource,
}

// === impl Push ===

impl Push {
    /// Creates a push of the metrics that `read` returns, following `settings`; [`Push::run`] does
    /// the work. Counters began when `clock` was started. It must be called in a runtime.
    pub fn new(origin: &Origin, settings: settings::Push, clock: Clock, read: Read) -> Self {
        let settings::Push { interval, otlp } = settings;
        let log = Arc::new(FailureLog::new("metrics", ENDPOINT, clock));
        let attributes = origin.attributes().iter();
        let attributes = attributes.map(|(key, value)| text(key, value)).collect();
        let shared = Shared {
            read,
            interval,
            points_max: match otlp.compression {
                OtlpCompression::None => POINTS_MAX,
                OtlpCompression::Gzip => COMPRESSED_POINTS_MAX,
            },
            begun: unix_nanos().saturating_sub(nanos(clock.now().since(Time::default()))),
            client: MetricsClient::new(&otlp, &log),
            log,
            resource: Resource { attributes, ..Resource::default() },
        };
        Self { shared: Arc::new(shared) }
    }

    /// Pushes at each interval, or after the time for which a collector asked; never returns.
    pub async fn run(self) {
        let mut asked = Duration::ZERO;
        loop {
            sleep(self.shared.interval.max(asked)).await;
            asked = self.push().await;
        }
    }

    /// Pushes once, now, and returns how long the collector asks to be left alone. Metrics that
    /// were not accepted are not sent again: counts are cumulative, so the next push includes them.
    pub async fn push(&self) -> Duration {
        let read = Arc::clone(&self.shared.read);
        // A panic in `read` is logged by the panic hook; the next push tries again.
        let Ok(families) = spawn_blocking(move || read()).await else { return Duration::ZERO };
        let Shared { begun, points_max, .. } = *self.shared;
        for metrics in batches(&families, begun, unix_nanos(), points_max) {
            if let Err(unsent) = self.shared.send(metrics).await {
                // The other batches would fail too.
                return unsent.delay;
            }
        }
        Duration::ZERO
    }
}

// === impl Shared ===

impl Shared {
    async fn send(&self, metrics: Vec<Metric>) -> Result<(), ExportError> {
        let points = metrics.iter().map(count).sum::<usize>() as u64;
        let scope = InstrumentationScope {
            name: SCOPE.to_owned(),
            version: VERSION.to_owned(),
            ..InstrumentationScope::default()
        };
        let scope = Some(scope);
        let scope_metrics = vec![ScopeMetrics { scope, metrics, ..ScopeMetrics::default() }];
        let resource = Some(self.resource.clone());
        let of_all = ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() };
        let message = ExportMetricsServiceRequest { resource_metrics: vec![of_all] };
        let sent = self.client.send(message).await;
        match &sent {
            Ok(rejected) => self.log.succeeded(points, *rejected),
            Err(unsent) => self.log.failed(&unsent.why),
        }
        sent.map(drop)
    }
}

/// The time of day, in nanoseconds since the Unix epoch.
fn unix_nanos() -> u64 {
    nanos(system_time().duration_since(UNIX_EPOCH).unwrap_or_default())
}

// Converts metrics to OTLP messages.

/// When a point's count began, and when it was read; nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Span {
    begun: u64,
    now: u64,
}

/// Converts all `families`, in batches of at most `points_max` series.
fn batches(families: &[Family], begun: u64, now: u64, points_max: usize) -> Vec<Vec<Metric>> {
    let span = Span { begun, now };
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    let mut room = points_max;
    for family in families {
        let mut samples = family.samples.as_slice();
        while !samples.is_empty() {
            if room == 0 {
                batches.push(std::mem::take(&mut batch));
                room = points_max;
            }
            let (taken, rest) = samples.split_at(room.min(samples.len()));
            batch.push(metric(family, taken, span));
            room -= taken.len();
            samples = rest;
        }
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

/// Number of series of a metric.
fn count(metric: &Metric) -> usize {
    match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        Some(Data::ExponentialHistogram(_) | Data::Summary(_)) | None => 0,
    }
}

fn metric(family: &Family, samples: &[Sample], span: Span) -> Metric {
    let numbers = || samples.iter().filter_map(|sample| number_point(sample, span)).collect();
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    let (data, unit) = match family.kind {
        Kind::Counter | Kind::Unsuffixed => {
            let data_points = numbers();
            (Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true }), "")
        }
        Kind::Gauge => (Data::Gauge(Gauge { data_points: numbers() }), ""),
        Kind::Histogram => {
            let points = samples.iter().filter_map(|sample| histogram_point(sample, span));
            let data_points = points.collect();
            (Data::Histogram(Histogram { data_points, aggregation_temporality }), "s")
        }
    };
    Metric {
        name: family.name.clone().into_owned(),
        description: family.help.clone().into_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

/// `None` for a distribution, which a family of numbers never contains.
fn number_point(sample: &Sample, span: Span) -> Option<NumberDataPoint> {
    let value = match &sample.value {
        Value::Count(count) => Number::AsInt(i64::try_from(*count).unwrap_or(i64::MAX)),
        Value::Number(number) => Number::AsDouble(*number),
        Value::Buckets(_) => return None,
    };
    Some(NumberDataPoint {
        start_time_unix_nano: span.begun,
        time_unix_nano: span.now,
        value: Some(value),
        attributes: attributes(&sample.labels),
        ..NumberDataPoint::default()
    })
}

/// `None` for a number, which a family of distributions never contains.
fn histogram_point(sample: &Sample, span: Span) -> Option<HistogramDataPoint> {
    let Value::Buckets(buckets) = &sample.value else { return None };
    let Buckets { bounds, counts, sum } = buckets;
    Some(HistogramDataPoint {
        start_time_unix_nano: span.begun,
        time_unix_nano: span.now,
        count: buckets.count(),
        sum: Some(sum.as_secs_f64()),
        bucket_counts: counts.clone(),
        explicit_bounds: bounds.iter().map(|bound| bound.as_secs_f64()).collect(),
        attributes: attributes(&sample.labels),
        ..HistogramDataPoint::default()
    })
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| text(name, value.as_ref())).collect()
}

/// An attribute whose value is a text.
fn text(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Any::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

#[cfg(test)]
mod tests;
