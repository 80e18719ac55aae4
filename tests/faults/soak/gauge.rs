//! Measurements of the judged pods at intervals: memory, descriptors, and whether they detected an
//! internal error.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::http;
use crate::support::now;
use crate::support::process::memory;
use crate::support::ratelease::Ratelease;

/// One measurement of one pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) at: Instant,
    pub(super) pod: usize,
    /// In bytes.
    pub(super) resident: u64,
    pub(super) descriptors: usize,
    pub(super) violations: u64,
}

/// Measures until it is stopped.
pub(super) struct Gauge {
    stop: watch::Sender<bool>,
    measuring: JoinHandle<Vec<Point>>,
}

/// Interval between two measurements of a long soak.
const EVERY: Duration = Duration::from_secs(10);

/// Minimum number of measurements of a short soak.
const TIMES_MIN: u32 = 20;

// === impl Gauge ===

impl Gauge {
    pub(super) fn start(pods: &[Ratelease], lasts: Duration) -> Self {
        let pods: Vec<_> = pods.iter().map(|pod| (pod.process.pid(), pod.debug)).collect();
        let every = EVERY.min(lasts / TIMES_MIN);
        let (stop, mut stopped) = watch::channel(false);
        let measuring = tokio::spawn(async move {
            let mut points = Vec::new();
            loop {
                for (number, (pid, debug)) in pods.iter().enumerate() {
                    points.push(measure(number, *pid, *debug).await);
                }
                let last = tokio::time::timeout(every, stopped.wait_for(|stop| *stop));
                if last.await.is_ok() {
                    return points;
                }
            }
        });
        Self { stop, measuring }
    }

    /// All measurements, and the maximum number of descriptors of a pod at the beginning and at the
    /// end.
    pub(super) async fn finish(self) -> (Vec<Point>, (usize, usize)) {
        self.stop.send_replace(true);
        let points = self.measuring.await.expect("the gauge's measurements");
        let most = |points: &[Point]| points.iter().map(|it| it.descriptors).max().unwrap_or(0);
        let ends = (most(&points[..2]), most(&points[points.len() - 2..]));
        (points, ends)
    }
}

async fn measure(pod: usize, pid: u32, debug: SocketAddr) -> Point {
    let page = http::get(debug, "/status").await.ok().filter(|page| page.status == 200);
    let page: Value =
        page.and_then(|page| serde_json::from_str(&page.body).ok()).unwrap_or_default();
    let violations = page["invariant_violations"].as_u64().unwrap_or(0);
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a running pod").count();
    let point = Point { at: now(), pod, resident: memory(pid, "VmRSS"), descriptors, violations };
    println!("SOAK pod {pod}: {} KiB, {descriptors} descriptors", point.resident / 1024);
    point
}

/// The slope of the least-squares line.
pub(super) fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    let above: f64 = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    let below: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
    if below > 0.0 { above / below } else { 0.0 }
}

#[test]
fn the_slope_is_that_of_the_line() {
    let points: Vec<_> = (0..9).map(|x| (f64::from(x), 3.0 * f64::from(x) + 7.0)).collect();
    assert!((slope(&points) - 3.0).abs() < 1e-9);
    assert!((slope(&[(1.0, 5.0), (2.0, 5.0), (3.0, 5.0)])).abs() < 1e-9);
}
