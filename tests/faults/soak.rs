//! R23: mixed faults by seed, for a duration of one's choice. A few seconds by default;
//! `scripts/faults --soak 1h` sets `RATELEASE_SOAK_SECONDS` and `RATELEASE_TEST_SEED`.
//!
//! Two pods behind Envoy run throughout, and are judged. A third pod is killed and restarted now
//! and then; it is called without Envoy, which would count each end as an error.

#[path = "soak/gauge.rs"]
mod gauge;
#[path = "soak/trouble.rs"]
mod trouble;

use std::time::{Duration, Instant};

use crate::row::Row;
use crate::stage::{judge_process, turn};
use crate::stand::{Rules, file};
use crate::support::envoy::{Envoy, EnvoyOptions};
use crate::support::load::Tally;
use crate::support::now;
use crate::support::paced::{Paced, RunningPaced};
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::{Cluster, ClusterOptions};
use crate::support::rng::Rng;
use gauge::{Gauge, slope};
use trouble::Trouble;

/// Requests a second: few, since other work may use the machine meanwhile.
const RATE: u32 = 300;

/// Timeout of Envoy. No latency is judged here, because the machine may be shared.
const ENVOY_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit per minute of the key that is used up.
const TIGHT: u64 = 200;

/// The shortest soak whose memory slope is judged, and the maximum of that slope.
const LONG: Duration = Duration::from_mins(10);
const SLOPE_MAX: f64 = 8.0;

/// For a shorter soak, whose slope says nothing about an hour: maximum growth of memory after the
/// first fifth.
const GROWTH_MAX: f64 = 16.0;
const MIB: f64 = (1 << 20) as f64;

/// Additional open descriptors allowed, since connections come and go with the faults.
const DESCRIPTORS_MORE_MAX: usize = 16;

/// The pods, the cluster and the load of a soak.
struct Scene {
    cluster: Cluster,
    rules: Rules,
    /// The pods behind Envoy.
    pods: [Ratelease; 2],
    envoy: Envoy,
    /// Number of events by which counts may have been lost or restarted.
    losses: u64,
    rng: Rng,
}

#[tokio::test(flavor = "multi_thread")]
async fn r23_mixed_faults_by_seed() {
    let _turn = turn().await;
    let seconds = std::env::var("RATELEASE_SOAK_SECONDS").ok();
    let lasts = Duration::from_secs(seconds.map_or(6, |text| text.parse().expect("seconds")));
    let promise = "0 errors; memory and descriptors flat; no invariant violated";
    let mut row = Row::new("R23", &format!("mixed faults for {lasts:?}"), promise);
    let mut rng = Rng::new();
    row.note(&format!("seed {}", rng.seed()));
    let mut scene = Scene::start(rng.seed()).await;
    let gauge = Gauge::start(&scene.pods, lasts);
    let mut extra = Some(Extra::start(&scene).await);

    let (began, mut tally, mut admitted, mut troubles) = (now(), Tally::default(), 0, 0);
    while began.elapsed() < lasts {
        let trouble = Trouble::draw(&mut rng);
        let (load, errors) = (scene.load(), scene.errors().await);
        let at = began.elapsed().as_secs();
        println!("SOAK {at} s: {trouble:?}");
        scene.suffer(trouble, &mut extra).await;
        let samples = load.stop().await;
        admitted += samples.of(|path| path == 0).passed();
        tally.add(samples.tally());
        troubles += 1;
        let more = scene.errors().await - errors;
        if more > 0 {
            println!("SOAK {at} s: {more} ERRORS at Envoy in {trouble:?}");
            row.holds(false, &format!("{more} errors in {trouble:?} after {at} s"));
        }
    }
    // Delayed requests complete, so that the remaining memory is what is kept.
    let samples = scene.load().stop_after(Duration::from_secs(3)).await;
    tally.add(samples.tally());
    let (points, descriptors) = gauge.finish().await;

    row.errors(scene.errors().await + tally.faults());
    let windows = began.elapsed().as_secs() / 60 + 2;
    row.admitted(admitted, (2 * windows + scene.losses) * TIGHT);
    judge_memory(&mut row, &points, began, lasts);
    let (first, last) = descriptors;
    row.note(&format!("{troubles} faults; descriptors {first} at first, {last} in the end"));
    row.holds(last <= first + DESCRIPTORS_MORE_MAX, "descriptors leak");
    for pod in &scene.pods {
        judge_process(&mut row, pod).await;
    }
    for status in Ratelease::stop_all(&scene.pods).await {
        row.holds(status == 0, "a pod did not end well");
    }
    row.end();
}

/// Judges the slope after the first fifth, when tables and pools have reached their size.
fn judge_memory(row: &mut Row, points: &[gauge::Point], began: Instant, lasts: Duration) {
    let warm = began + lasts / 5;
    let (mut steepest, mut largest) = (f64::MIN, 0.0_f64);
    for pod in 0..2 {
        let of_pod = points.iter().filter(|point| point.pod == pod && point.at >= warm);
        let pairs: Vec<_> = of_pod
            .map(|point| ((point.at - began).as_secs_f64() / 3600.0, point.resident as f64 / MIB))
            .collect();
        let [(_, first), .., (_, last)] = pairs[..] else {
            row.holds(false, &format!("memory of pod {pod} was not measured"));
            continue;
        };
        let slope = slope(&pairs);
        row.note(&format!("pod {pod}: {last:.1} MiB, slope {slope:+.2} MiB/h"));
        (steepest, largest) = (steepest.max(slope), largest.max(last - first));
    }
    let (grown, max, unit) =
        if lasts < LONG { (largest, GROWTH_MAX, "MiB") } else { (steepest, SLOPE_MAX, "MiB/h") };
    row.holds(grown <= max, &format!("memory grew by {grown:.1} {unit}"));
    let violations: u64 = points.iter().map(|point| point.violations).max().unwrap_or(0);
    row.note(&format!("invariants violated: {violations}"));
    row.holds(violations == 0, "invariants were violated");
}

// === impl Scene ===

impl Scene {
    async fn start(seed: u64) -> Self {
        let options = ClusterOptions::new(3, 1).proxied();
        let cluster = tokio::task::spawn_blocking(move || Cluster::start_with(&options)).await;
        let cluster = cluster.expect("a cluster");
        let rules = Rules::new(&rules(0));
        let pods = [pod(&rules, &cluster).await, pod(&rules, &cluster).await];
        let addrs = [pods[0].grpc, pods[1].grpc];
        let options = EnvoyOptions { timeout: ENVOY_TIMEOUT, ..EnvoyOptions::new("soak", &addrs) };
        let envoy = Envoy::start(options).await;
        let rng = Rng::seeded(seed.wrapping_add(1));
        let scene = Self { cluster, rules, pods, envoy, losses: 0, rng };
        scene.load().stop_after(Duration::from_secs(2)).await;
        scene
    }

    fn load(&self) -> RunningPaced {
        let mut paths = vec!["/tight".to_owned()];
        paths.extend((0..8).map(|at| format!("/warm-{at}")));
        paths.extend((0..4).map(|_| "/new-{n}".to_owned()));
        Paced::new(&paths, RATE).start(self.envoy.ingress)
    }

    async fn errors(&self) -> u64 {
        let verdicts = self.envoy.verdicts().await;
        verdicts.error + verdicts.failure_mode_allowed
    }
}

/// The rules with a version number; the limits of the load do not change.
fn rules(version: u32) -> String {
    let rule = |value: &str, unit: &str, limit: u64| {
        format!(
            "- {{key: path, {value}rate_limit: {{unit: {unit}, requests_per_unit: {limit}}}}}\n"
        )
    };
    let version = rule("value: /version, ", "day", u64::from(version) + 1);
    let rest = [rule("value: /tight, ", "minute", TIGHT), rule("", "hour", 10_000_000), version];
    file("soak", &rest)
}

async fn pod(rules: &Rules, cluster: &Cluster) -> Ratelease {
    // Small, so that new keys evict old ones.
    let env = [("BUFFER_MEMORY", "2MiB"), ("CACHE_KEY_PREFIX", "soak-")];
    Ratelease::start(rules.path(), &cluster.places(), &env).await
}

/// The third pod, with its load.
struct Extra {
    pod: Ratelease,
}

impl Extra {
    async fn start(scene: &Scene) -> Self {
        Self { pod: pod(&scene.rules, &scene.cluster).await }
    }

    /// Sends a few requests, so that the pod holds leases.
    async fn ask(&self) {
        let asker = crate::stand::Asker::connect(&self.pod).await;
        for at in 0..50 {
            let path = format!("/warm-{}", at % 8);
            asker.ask("soak", &[("path", path.as_str())], 1).await;
        }
        assert!(self.pod.process.memory("VmRSS") > 0);
    }
}
