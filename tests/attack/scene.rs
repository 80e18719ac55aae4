//! A pod with an honest neighbour, whose calls are measured before the attack and during it; and
//! the pod's memory before, during and after the attack.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use crate::foe::{Foes, Meter};
use crate::messages::PLENTY;
use crate::neighbour::{self, End, Sample, Seen, Values};
use crate::probes::{self, Probed};
use crate::row::{AFTER_MAX, DURING_MAX, Row};
use crate::support::now;
use crate::support::papers::Papers;
use crate::support::ports::free_port;
use crate::support::process::leashed;
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::tls_files::TlsFiles;
use crate::support::tls_relay::TlsRelay;

/// How long each part of a row lasts.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub is_full: bool,
    pub calm: Duration,
    pub attack: Duration,
    /// The longest wait for memory to return to its level before the attack.
    pub settle: Duration,
}

/// The needs of a row that differ from a pod at its defaults.
#[derive(Debug, Clone, Default)]
pub struct Plan<'a> {
    pub name: &'a str,
    pub attack: &'a str,
    /// Rules that replace [`PLENTY`], and have to contain it.
    pub rules: Option<String>,
    /// Limit of the pod's open files.
    pub nofile: Option<u32>,
    pub redis: Vec<SocketAddr>,
    /// The values of the neighbour's calls.
    pub values: Values,
    pub env: Vec<(&'a str, &'a str)>,
    /// Maximum growth of memory during the attack and after it, in place of the bounds of all rows.
    pub during_max: Option<u64>,
    pub after_max: Option<u64>,
    /// Additional time for the attack, such as for a timeout to expire.
    pub more: Duration,
    /// Whether the gRPC port has TLS in any case, not only where all rows are run over it.
    pub is_over_tls: bool,
}

/// A running pod with an honest client.
pub struct Scene {
    pub pod: Ratelease,
    pub rules: TempDir,
    scale: Scale,
    row: Row,
    foes: Foes,
    honest: Honest,
    start: Instant,
    more: Duration,
    during_max: u64,
    after_max: u64,
    _relays: Option<([TlsRelay; 2], TlsFiles)>,
    _turn: SemaphorePermit<'static>,
}

/// Bounds the number of rows that run at a time, whatever the number of test threads: each row
/// measures the latency of an honest client, and more rows on a machine of two cores would measure
/// each other.
static TURNS: Semaphore = Semaphore::const_new(2);

/// The neighbour and the probes, on a thread of their own. They stop when dropped.
struct Honest {
    seen: Arc<Seen>,
    probed: Arc<Probed>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Whether the clients of all rows reach the gRPC port over TLS: `RATELEASE_ATTACK_TLS=1`. A relay
/// speaks TLS for the attacker, and another for the honest clients.
fn are_all_over_tls() -> bool {
    std::env::var("RATELEASE_ATTACK_TLS").is_ok_and(|it| it == "1")
}

// === impl Scale ===

impl Scale {
    /// Small unless `RATELEASE_ATTACK=full`.
    pub fn get() -> Self {
        let is_full = std::env::var("RATELEASE_ATTACK").is_ok_and(|it| it == "full");
        let (calm, attack, settle) =
            if is_full { (3_000, 8_000, 10_000) } else { (500, 1_500, 8_000) };
        let [calm, attack, settle] = [calm, attack, settle].map(Duration::from_millis);
        Self { is_full, calm, attack, settle }
    }
}

// === impl Plan ===

impl<'a> Plan<'a> {
    pub fn new(name: &'a str, attack: &'a str) -> Self {
        Self { name, attack, ..Self::default() }
    }

    /// Adds rules, as items of the domain's list.
    #[must_use]
    pub fn with_rules(self, more: &str) -> Self {
        Self { rules: Some(format!("{PLENTY}{more}")), ..self }
    }

    #[must_use]
    pub fn with_env(self, env: &[(&'a str, &'a str)]) -> Self {
        Self { env: env.to_vec(), ..self }
    }

    #[must_use]
    pub fn lasting(self, more: Duration) -> Self {
        Self { more, ..self }
    }

    /// Serves gRPC over TLS.
    #[must_use]
    pub fn over_tls(self) -> Self {
        Self { is_over_tls: true, ..self }
    }
}

// === impl Scene ===

impl Scene {
    /// Starts the pod, and the neighbour once the pod is ready.
    pub async fn start(plan: Plan<'_>) -> Self {
        let turn = TURNS.acquire().await.expect("it is never closed");
        let row = Row::new(plan.name, plan.attack);
        let rules = TempDir::new().expect("a directory for rules");
        let text = plan.rules.as_deref().unwrap_or(PLENTY);
        std::fs::write(rules.path().join("attack.yaml"), text).expect("rules, written");
        let prometheus = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let address = prometheus.to_string();
        let mut env = vec![("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", &*address)];
        env.extend(&plan.env);
        let is_over_tls = plan.is_over_tls || are_all_over_tls();
        let files = is_over_tls.then(|| TlsFiles::of(&Papers::new("127.0.0.1")));
        let of_tls = files.iter().flat_map(TlsFiles::env);
        env.extend(of_tls.map(|(name, value)| -> (&str, &str) { (name, value) }));
        let pod = Ratelease::run(command(&plan, rules.path()), &plan.redis, &env);
        pod.ready().await;
        let (meter, start) = (Arc::new(Meter::default()), now());
        let Ratelease { grpc, http, debug, .. } = pod;
        // Honest clients do not wait for the handshakes of the attacker's relay.
        let relay = |files: &TlsFiles| TlsRelay::start(grpc, files.client(false));
        let relays = files.map(|files| ([relay(&files), relay(&files)], files));
        let [of_foes, of_honest] = match &relays {
            Some((relays, _)) => relays.each_ref().map(|relay| relay.addr),
            None => [grpc; 2],
        };
        let foes = Foes { grpc: of_foes, http, debug, prometheus, meter, end: start };
        let honest = Honest::start(&Foes { grpc: of_honest, ..foes.clone() }, plan.values);
        let during_max = plan.during_max.unwrap_or(DURING_MAX);
        let after_max = plan.after_max.unwrap_or(AFTER_MAX);
        Self {
            pod,
            rules,
            scale: Scale::get(),
            row,
            foes,
            honest,
            start,
            more: plan.more,
            during_max,
            after_max,
            _relays: relays,
            _turn: turn,
        }
    }

    /// The pod's addresses, for steps before the attack.
    pub fn foes(&self, span: Duration) -> Foes {
        let meter = Arc::new(Meter::default());
        Foes { meter, end: now() + span, ..self.foes.clone() }
    }

    /// Waits for the rest of the calm period, runs `attack`, and waits for the pod to settle.
    pub async fn attack<F>(mut self, attack: F) -> Attacked
    where
        F: AsyncFnOnce(&Foes, &Self),
    {
        tokio::time::sleep(self.scale.calm).await;
        let before = self.pod.process.memory("VmRSS");
        self.forget_peak();
        let begun = now();
        self.foes.end = begun + self.scale.attack + self.more;
        let foes = self.foes.clone();
        attack(&foes, &self).await;
        let ended = now();
        let peak = self.pod.process.memory("VmHWM");
        let ((), after) = tokio::join!(self.honest.seen.ended(), self.settled(before));
        self.honest.stop();
        let calm = self.honest.calls(self.start, begun);
        let attacked = self.honest.calls(begun, ended);
        let mut row = self.row;
        row.bytes(&self.foes.meter);
        row.memory(before, (peak, self.during_max), (after, self.after_max));
        row.neighbour(&calm, &attacked);
        row.probes(&self.honest.probed.between(begun, ended));
        self.pod.is_unharmed();
        Attacked { row, pod: self.pod, _rules: self.rules, foes: self.foes }
    }

    /// Resets the kernel's peak of resident memory (proc(5), `clear_refs`).
    fn forget_peak(&self) {
        let file = format!("/proc/{}/clear_refs", self.pod.process.pid());
        std::fs::write(&file, "5").unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    /// Resident memory once it is back at `before`, or when the time for that is over.
    async fn settled(&self, before: u64) -> u64 {
        let end = now() + self.scale.settle;
        loop {
            let resident = self.pod.process.memory("VmRSS");
            if resident <= before + self.after_max || now() > end {
                return resident;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The rest of a scene after the attack, for the row's own bounds.
pub struct Attacked {
    pub row: Row,
    pub pod: Ratelease,
    /// Kept, because the pod would report missing rules.
    _rules: TempDir,
    pub foes: Foes,
}

/// The command of the pod, or of another build, in a shell that sets limits where the row asks for
/// them.
fn command(plan: &Plan<'_>, rules: &std::path::Path) -> Command {
    let binary = std::env::var_os("RATELEASE_BIN").unwrap_or_else(|| BINARY.into());
    let mut command = match plan.nofile {
        None => leashed(binary),
        Some(files) => {
            let mut command = leashed("/bin/sh");
            command.args(["-c", r#"ulimit -n "$0"; exec "$@""#, &files.to_string()]).arg(binary);
            command
        }
    };
    command.args(["serve", "--rules"]).arg(rules);
    command
}

// === impl Honest ===

impl Honest {
    fn start(foes: &Foes, values: Values) -> Self {
        let (seen, probed) = (Arc::new(Seen::default()), Arc::new(Probed::default()));
        let (end, ended) = oneshot::channel::<()>();
        let thread = {
            let (foes, seen, probed) = (foes.clone(), Arc::clone(&seen), Arc::clone(&probed));
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(async move {
                    tokio::select! {
                        () = neighbour::run(foes.grpc, seen, values) => {}
                        () = probes::run(foes, probed) => {}
                        _ = ended => {}
                    }
                });
            })
        };
        Self { seen, probed, end: Some(end), thread: Some(thread) }
    }

    /// The neighbour's calls that were due between two instants. A late one does not count if the
    /// thread stalled while it was under way.
    fn calls(&self, from: Instant, to: Instant) -> Vec<Sample> {
        let mut calls = self.seen.between(from, to);
        let has_stalled = |it: &Sample| self.probed.has_stalled_within(it.due, it.due + it.latency);
        calls.retain(|it| it.end != End::Late || !has_stalled(it));
        calls
    }

    /// Stops both.
    fn stop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the neighbour does not panic");
        }
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        drop(self.end.take());
    }
}
