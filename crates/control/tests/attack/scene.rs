//! A control plane as a process, an honest client that reads and writes its own domain, probes, and
//! an attack beside them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::support::cluster::Cluster;
use crate::support::{Answer, Call, Place, Process, now, resident, rule};
use crate::table_row::TableRow;

/// Maximum resident memory: the chart's limit.
pub(crate) const MEMORY_MAX: u64 = 1 << 30;

/// Maximum time of a probe: the chart's `timeoutSeconds`.
const PROBE_MAX: Duration = Duration::from_secs(3);

/// Pause of the honest client between two requests, and between two probes.
const PAUSE: Duration = Duration::from_millis(50);

/// The domain of the honest client. The attacker's token is for [`ATTACKED`] alone.
const HONEST: &str = "honest";
pub(crate) const ATTACKED: &str = "attacked";

/// One row at a time: each measures latencies.
static TURNS: Semaphore = Semaphore::const_new(1);

/// A row under way.
pub(crate) struct Scene {
    pub(crate) process: Process,
    /// The attacker's token, of access write for [`ATTACKED`].
    pub(crate) foe: String,
    /// A token of access admin, which may publish as often as it likes.
    pub(crate) admin: String,
    pub(crate) row: TableRow,
    /// Bytes that the attacker has sent.
    pub(crate) sent: u64,
    honest: String,
    place: Place,
    calm: Seen,
    /// Maximum time of a request of the honest client, if the row bounds it.
    pub(crate) slowest_max: Option<Duration>,
    before: u64,
    _turn: SemaphorePermit<'static>,
}

/// What an honest client saw.
#[derive(Debug, Default)]
struct Seen {
    micros: Vec<u64>,
    faults: Vec<String>,
    probes: usize,
    probes_failed: usize,
    memory: u64,
}

/// An honest client at work.
struct Honest {
    task: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
}

/// Whether the attacks are as large as `scripts/attack` has them.
pub(crate) fn is_full() -> bool {
    std::env::var_os("RATELEASE_ATTACK").is_some_and(|it| it == "full")
}

/// A limit of the chart. Short attacks run in a debug build, on a machine that also compiles, and
/// have four times as long.
pub(crate) fn allowed(max: Duration) -> Duration {
    if is_full() { max } else { 4 * max }
}

// === impl Scene ===

impl Scene {
    /// Starts a control plane with two domains, and measures the honest client alone.
    pub(crate) async fn begin(name: &str, attack: &str) -> Self {
        Self::begin_with(name, attack, &[]).await
    }

    /// The same with these flags of the control plane.
    pub(crate) async fn begin_with(name: &str, attack: &str, flags: &[&str]) -> Self {
        Self::begin_in(name, attack, flags, &[]).await
    }

    /// The same with the objects of this cluster.
    pub(crate) async fn begin_following(name: &str, attack: &str, cluster: &Cluster) -> Self {
        Self::begin_in(name, attack, &[], &cluster.env()).await
    }

    async fn begin_in(name: &str, attack: &str, flags: &[&str], env: &[(&str, String)]) -> Self {
        let turn = TURNS.acquire().await.unwrap();
        let line = json!({"row": name, "attack": attack, "note": "", "received": 0, "refused": 0});
        let place = Place::sqlite();
        let process = Process::start_with(&place, flags, env);
        let token = async |domain: &str| {
            let create = ["create", "--name", domain, "--access", "write", "--domains", domain];
            place.token(&create).await.unwrap()
        };
        let (honest, foe) = (token(HONEST).await, token(ATTACKED).await);
        let admin = ["create", "--name", "admin", "--access", "admin"];
        let admin = place.token(&admin).await.unwrap();
        let mut scene = Self {
            before: process.memory(),
            process,
            place,
            foe,
            admin,
            row: TableRow::new("ATTACK", "note", line),
            sent: 0,
            honest,
            calm: Seen::default(),
            slowest_max: None,
            _turn: turn,
        };
        let client = scene.client();
        sleep(scene.lasts() / 3).await;
        scene.calm = client.end().await;
        scene
    }

    /// Makes another token of the attacker, of access write.
    pub(crate) async fn another_foe(&self) -> String {
        self.foe_of(ATTACKED).await
    }

    /// Makes a token of access write for a domain.
    pub(crate) async fn foe_of(&self, domain: &str) -> String {
        let create = ["create", "--name", "foe", "--access", "write", "--domains", domain];
        self.place.token(&create).await.unwrap()
    }

    /// Makes a request of the honest client, and returns how long it took.
    pub(crate) async fn honest_call(&self, method: &str, path: &str) -> Duration {
        let began = now();
        let call = Call::new(method, path).token(&self.honest);
        let answer = call.to(self.process.http).await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        began.elapsed()
    }

    /// Bytes by which the memory of the process has grown.
    pub(crate) fn growth(&self) -> u64 {
        self.process.memory().saturating_sub(self.before)
    }

    /// How long the attack lasts.
    pub(crate) fn lasts(&self) -> Duration {
        Duration::from_secs(if is_full() { 20 } else { 4 })
    }

    fn client(&self) -> Honest {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (http, token, shared) = (self.process.http, self.honest.clone(), Arc::clone(&seen));
        let (process, stop) = (self.process.id(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut at = 0_u64;
            while !stopped.load(Ordering::Relaxed) {
                at += 1;
                let began = now();
                let call = match at % 4 {
                    0 => Call::new("POST", "/v1/rules").json(&rule(
                        HONEST,
                        "user",
                        &format!("{began:?}"),
                        5,
                    )),
                    _ => Call::new("GET", "/v1/rules?domain=honest&limit=10"),
                };
                let answer = call.token(&token).to(http).await;
                let took = began.elapsed();
                let probe = Call::new("GET", "/healthz").to(http);
                let probed = timeout(allowed(PROBE_MAX), probe).await;
                let is_probed = matches!(&probed, Ok(Ok(probed)) if probed.status == 200);
                shared.lock().note(took, &answer, is_probed, resident(process));
                sleep(PAUSE).await;
            }
        });
        Honest { task, stop, seen }
    }

    /// Runs an attack beside the honest client, and ends the row.
    pub(crate) async fn attacked_by(mut self, attack: impl AsyncFnOnce(&mut Self)) {
        let client = self.client();
        attack(&mut self).await;
        let seen = client.end().await;
        let peak = seen.memory.max(self.process.memory());
        let percentile = |of: &Seen, percent: usize| {
            let mut micros = of.micros.clone();
            micros.sort_unstable();
            micros.get((micros.len() * percent / 100).min(micros.len().saturating_sub(1))).copied()
        };
        let calm = (percentile(&self.calm, 50), percentile(&self.calm, 99));
        let (row, calls) = (&mut self.row, seen.micros.len());
        row.line["sent"] = self.sent.into();
        row.line["rss_before"] = self.before.into();
        row.line["rss_peak"] = peak.into();
        row.line["rss_after"] = self.process.memory().into();
        row.line["calm_p50_us"] = calm.0.into();
        row.line["calm_p99_us"] = calm.1.into();
        row.line["p50_us"] = percentile(&seen, 50).into();
        row.line["p99_us"] = percentile(&seen, 99).into();
        row.line["calls"] = calls.into();
        row.line["errors"] = seen.faults.len().into();
        row.line["probes"] = seen.probes.into();
        row.line["probes_failed"] = seen.probes_failed.into();
        row.line["probe_max_ms"] = 0.into();
        row.holds(calls > 0, "no honest request was made");
        if let Some(max) = self.slowest_max {
            let slowest = Duration::from_micros(seen.micros.iter().max().copied().unwrap_or(0));
            row.note(&format!("the slowest honest request took {} ms", slowest.as_millis()));
            row.holds(slowest <= allowed(max), &format!("an honest request took {slowest:?}"));
        }
        let (faults, first) = (seen.faults.len(), seen.faults.first());
        row.holds(faults == 0, &format!("{faults} honest requests failed: {first:?}"));
        let (failed, probe_max) = (seen.probes_failed, allowed(PROBE_MAX));
        row.holds(failed == 0, &format!("{failed} probes were not answered in {probe_max:?}"));
        let mib = peak >> 20;
        row.holds(peak <= MEMORY_MAX, &format!("{mib} MiB are above the chart's limit"));
        TableRow::end(vec![self.row]);
    }
}

// === impl Seen ===

impl Seen {
    fn note(&mut self, took: Duration, answer: &io::Result<Answer>, is_probed: bool, memory: u64) {
        self.micros.push(u64::try_from(took.as_micros()).unwrap());
        if !answer.as_ref().is_ok_and(|it| it.status < 300) {
            self.faults.push(format!("{answer:?}"));
        }
        self.probes += 1;
        self.probes_failed += usize::from(!is_probed);
        self.memory = self.memory.max(memory);
    }
}

// === impl Honest ===

impl Honest {
    /// Ends after the request that is under way.
    async fn end(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        std::mem::take(&mut *self.seen.lock())
    }
}
