//! Pushes metrics: the same that can be scraped, under the same names.

mod points;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use ratelease_cli::settings::{self, OtlpCompression};
use ratelease_engine::time::{Clock, Time};
use ratelease_otlp::failure_log::FailureLog;
use ratelease_otlp::metrics_client::{ExportError, MetricsClient};
use ratelease_otlp::origin::{Origin, SCOPE, VERSION, nanos, system_time};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use ratelease_server::metrics::family::Family;

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
        let log = Arc::new(FailureLog::new("metrics", clock));
        let attributes = origin.attributes().iter();
        let attributes = attributes.map(|(key, value)| points::text(key, value)).collect();
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
        for metrics in points::batches(&families, begun, unix_nanos(), points_max) {
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
        let points = metrics.iter().map(points::count).sum::<usize>() as u64;
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
