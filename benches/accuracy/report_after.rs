//! The opposite trade-off: each pod decides on the last sum that it received, counts locally, and
//! every 100 ms with requests adds its counts to Redis, as the cached counters of other rate
//! limiters do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cell::{Cell, PODS};
use crate::drive::Said;
use crate::support::redis::Cluster;

/// Pods that share one fixed window.
pub struct ReportAfter {
    limit: u64,
    window: Duration,
    key: String,
    /// The wall clock at `start`, as time since the Unix epoch.
    begun: Duration,
    start: Instant,
    pods: [Mutex<Known>; PODS],
    /// Commands sent so far.
    commands: AtomicU64,
    connection: MultiplexedConnection,
}

/// The state of one pod for the present window.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    window: u64,
    /// The last sum from Redis, less `unreported`.
    sum: u64,
    /// Admitted by this pod, and not yet in `sum`.
    unreported: u64,
    /// Whether a request came since the last exchange: if not, the exchange is skipped.
    is_used: bool,
}

const REPORT_EVERY: Duration = Duration::from_millis(100);

impl ReportAfter {
    /// Creates the pods for `cell`, whose first window begins at `start`.
    pub async fn new(cluster: &Cluster, cell: &Cell, start: Instant, begun: Duration) -> Arc<Self> {
        let key = format!("report-after:{{{}}}", cell.key());
        let address = format!("redis://127.0.0.1:{}", cluster.owner(&key).port());
        let client = redis::Client::open(address).unwrap();
        Arc::new(Self {
            limit: u64::from(cell.limit),
            window: cell.window(),
            key,
            begun,
            start,
            pods: Default::default(),
            commands: AtomicU64::new(0),
            connection: client.get_multiplexed_async_connection().await.unwrap(),
        })
    }

    /// The answer of one pod.
    pub fn decide(&self, pod: usize) -> Said {
        let window = self.window_now();
        let mut known = self.pods[pod].lock();
        known.turn_to(window);
        known.is_used = true;
        if known.sum + known.unreported < self.limit {
            known.unreported += 1;
            Said::Admitted
        } else {
            Said::Denied
        }
    }

    /// Reports from all pods, each at different times, until the set is dropped.
    pub fn report(self: &Arc<Self>) -> JoinSet<()> {
        let mut reporting = JoinSet::new();
        for pod in 0..PODS {
            let phase = REPORT_EVERY * u32::try_from(pod).unwrap() / u32::try_from(PODS).unwrap();
            let this = Arc::clone(self);
            reporting.spawn(async move {
                let mut ticks = tokio::time::interval_at(this.start + phase, REPORT_EVERY);
                loop {
                    ticks.tick().await;
                    this.exchange(pod).await;
                }
            });
        }
        reporting
    }

    /// Number of commands sent.
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    async fn exchange(&self, pod: usize) {
        let window = self.window_now();
        let count = {
            let mut known = self.pods[pod].lock();
            known.turn_to(window);
            if !std::mem::take(&mut known.is_used) {
                return;
            }
            known.unreported
        };
        let mut connection = self.connection.clone();
        let key = format!("{}:{window}", self.key);
        self.commands.fetch_add(1, Ordering::Relaxed);
        let add = redis::cmd("INCRBY").arg(&key).arg(count).to_owned();
        let sum: u64 = add.query_async(&mut connection).await.unwrap();
        {
            let mut known = self.pods[pod].lock();
            if known.window == window {
                (known.sum, known.unreported) = (sum, known.unreported - count);
            }
        }
        if sum == count {
            self.commands.fetch_add(1, Ordering::Relaxed);
            let expire = redis::cmd("EXPIRE").arg(&key).arg(2 * self.window.as_secs()).to_owned();
            let _: () = expire.query_async(&mut connection).await.unwrap();
        }
    }

    fn window_now(&self) -> u64 {
        (self.begun + self.start.elapsed()).as_secs() / self.window.as_secs()
    }
}

impl Known {
    fn turn_to(&mut self, window: u64) {
        if self.window != window {
            *self = Self { window, ..Self::default() };
        }
    }
}
