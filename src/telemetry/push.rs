//! Pushes metrics: the same that can be scraped, under the same names.

mod points;

use std::sync::Arc;
use std::time::Duration;

use ratelease_cli::settings;
use ratelease_engine::time::{Clock, Time};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::otlp::message::{ExportMetrics, Metric, ResourceMetrics, ScopeMetrics};
use super::otlp::{self, Again, Client, ExportError, Origin, Told, nanos, unix_nanos};
use crate::metrics::family::Family;

/// Reads all metrics, at this moment. May take some milliseconds.
pub type Read = Arc<dyn Fn() -> Vec<Family> + Send + Sync>;

/// Maximum number of series in one message: each takes some hundred bytes, and collectors accept 4
/// MiB.
const POINTS_MAX: usize = 5_000;

/// Pushes metrics. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct Push {
    shared: Arc<Shared>,
}

struct Shared {
    read: Read,
    interval: Duration,
    /// When the counters began, in nanoseconds since the Unix epoch.
    begun: u64,
    client: Client,
    told: Told,
    origin: Origin,
}

// === impl Push ===

impl Push {
    /// Creates a push of the metrics that `read` returns, following `settings`; [`Push::run`] does
    /// the work. Counters began when `clock` was started.
    pub fn new(origin: &Origin, settings: settings::Push, clock: Clock, read: Read) -> Self {
        let settings::Push { interval, otlp } = settings;
        let shared = Shared {
            read,
            interval,
            begun: unix_nanos().saturating_sub(nanos(clock.now().since(Time::default()))),
            client: Client::new(otlp),
            told: Told::new("metrics", clock),
            origin: origin.clone(),
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
        for metrics in points::batches(&families, self.shared.begun, unix_nanos(), POINTS_MAX) {
            if let Err(unsent) = self.shared.send(metrics).await {
                // The other batches would fail too.
                return if let Again::After(asked) = unsent.again { asked } else { Duration::ZERO };
            }
        }
        Duration::ZERO
    }
}

// === impl Shared ===

impl Shared {
    async fn send(&self, metrics: Vec<Metric>) -> Result<u64, ExportError> {
        let points = metrics.iter().map(points::count).sum::<usize>() as u64;
        let scope_metrics = vec![ScopeMetrics { scope: Some(otlp::scope()), metrics }];
        let resource = Some(self.origin.resource());
        let resource_metrics = vec![ResourceMetrics { resource, scope_metrics }];
        let sent = self.client.send(&ExportMetrics { resource_metrics }).await;
        self.told.note(points, &sent);
        sent
    }
}
