//! Attacks on the port of the webhook.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::runtime::Builder;

use crate::process::{Authority, Webhook, now, review};
use crate::table_row::TableRow;

/// Maximum resident memory: the chart's limit.
const MEMORY_MAX: u64 = 128 << 20;

/// Maximum time of an admission: the chart's `timeoutSeconds` of the webhook.
const ADMISSION_MAX: Duration = Duration::from_secs(5);

/// Maximum time of a probe: the chart's `timeoutSeconds` of its probes.
const PROBE_MAX: Duration = Duration::from_secs(2);

/// Pause of the API server between two pods.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a client that attacks waits for an answer, at most.
const FOE_MAX: Duration = Duration::from_secs(10);

/// The addresses of the API server and of the attacker.
const HONEST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const FOE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// One row at a time: each measures latencies.
static TURN: Mutex<()> = Mutex::new(());

/// A row under way.
struct Scene {
    authority: Authority,
    webhook: Webhook,
    row: TableRow,
    calm: Seen,
    memory_before: u64,
    _turn: MutexGuard<'static, ()>,
}

/// What the API server saw.
#[derive(Debug, Default)]
struct Seen {
    micros: Vec<u64>,
    faults: Vec<String>,
    probes_failed: usize,
    probe_max: Duration,
    memory: u64,
}

/// What attackers share.
struct Foe<'s> {
    authority: &'s Authority,
    to: SocketAddr,
    is_over: &'s AtomicBool,
    sent: &'s AtomicU64,
    refused: &'s AtomicU64,
}

/// Whether the attacks are as long as `scripts/attack` has them.
fn is_full() -> bool {
    std::env::var_os("RATELEASE_ATTACK").is_some_and(|it| it == "full")
}

/// A limit of the chart. Short attacks run in a debug build, on a machine that also compiles, and
/// have four times as long.
fn allowed(max: Duration) -> Duration {
    if is_full() { max } else { 4 * max }
}

// === impl Scene ===

impl Scene {
    fn begin(name: &str, attack: &str) -> Self {
        let turn = TURN.lock();
        let line = json!({"row": name, "attack": attack, "note": "", "received": 0, "refused": 0});
        let authority = Authority::new();
        let webhook = Webhook::start(authority.dir.path());
        let row = TableRow::new("ATTACK", "note", line);
        let (calm, memory_before) = (Seen::default(), 0);
        let mut scene = Self { authority, webhook, row, calm, memory_before, _turn: turn };
        scene.memory_before = scene.memory();
        scene.calm = scene.api_server(scene.lasts() / 3);
        scene
    }

    /// How long the attack lasts.
    fn lasts(&self) -> Duration {
        Duration::from_secs(if is_full() { 20 } else { 4 })
    }

    /// Resident memory of the webhook, in bytes.
    fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.webhook.child.id());
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// An API server that admits pods, and a kubelet that probes.
    fn api_server(&self, lasts: Duration) -> Seen {
        let (mut seen, end) = (Seen::default(), now() + lasts);
        let pod = review(&json!({})).to_string();
        let to = self.webhook.address;
        let (admission_max, probe_max) = (allowed(ADMISSION_MAX), allowed(PROBE_MAX));
        while now() < end {
            let began = now();
            let answer =
                call(&self.authority, (HONEST, to), "POST /inject", pod.as_bytes(), admission_max);
            let took = began.elapsed();
            seen.micros.push(took.as_micros().try_into().unwrap());
            let patch = answer.as_ref().ok().and_then(|(_, body)| {
                let review: Value = serde_json::from_str(body).ok()?;
                Some(review["response"]["patchType"] == "JSONPatch")
            });
            if patch != Some(true) || took > admission_max {
                seen.faults.push(format!("after {took:?}: {answer:?}"));
            }
            let began = now();
            let probe = call(&self.authority, (HONEST, to), "GET /healthz", b"", probe_max);
            let took = began.elapsed();
            seen.probe_max = seen.probe_max.max(took);
            let is_answered = probe.is_ok_and(|(status, _)| status == 200) && took <= probe_max;
            seen.probes_failed += usize::from(!is_answered);
            seen.memory = seen.memory.max(self.memory());
            thread::sleep(PAUSE);
        }
        seen
    }

    /// Runs an attack of so many threads beside the API server, and ends the row.
    fn attacked_by(mut self, threads: usize, attack: impl Fn(&Foe<'_>) + Sync) {
        let (is_over, sent, refused) =
            (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let (authority, to) = (&self.authority, self.webhook.address);
        let foe = Foe { authority, to, is_over: &is_over, sent: &sent, refused: &refused };
        let seen = thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !foe.is_over() {
                        attack(&foe);
                    }
                });
            }
            let seen = self.api_server(self.lasts());
            is_over.store(true, Ordering::Relaxed);
            seen
        });
        let percentile = |of: &Seen, percent: usize| {
            let mut micros = of.micros.clone();
            micros.sort_unstable();
            micros.get((micros.len() * percent / 100).min(micros.len().saturating_sub(1))).copied()
        };
        let (after, calm) = (self.memory(), &self.calm);
        let line = &mut self.row.line;
        line["sent"] = sent.into_inner().into();
        line["refused"] = refused.into_inner().into();
        line["rss_before"] = self.memory_before.into();
        line["rss_peak"] = seen.memory.into();
        line["rss_after"] = after.into();
        line["calm_p50_us"] = percentile(calm, 50).into();
        line["calm_p99_us"] = percentile(calm, 99).into();
        line["p50_us"] = percentile(&seen, 50).into();
        line["p99_us"] = percentile(&seen, 99).into();
        line["calls"] = seen.micros.len().into();
        line["errors"] = seen.faults.len().into();
        line["probes"] = seen.micros.len().into();
        line["probes_failed"] = seen.probes_failed.into();
        line["probe_max_ms"] = u64::try_from(seen.probe_max.as_millis()).unwrap().into();
        let (faults, first) = (seen.faults.len(), seen.faults.first());
        let (failed, mib) = (seen.probes_failed, seen.memory >> 20);
        let probe_max = allowed(PROBE_MAX);
        self.row.holds(faults == 0, &format!("{faults} pods had no sidecar: {first:?}"));
        self.row.holds(failed == 0, &format!("{failed} probes failed within {probe_max:?}"));
        self.row
            .holds(seen.memory <= MEMORY_MAX, &format!("{mib} MiB are above the chart's limit"));
        TableRow::end(vec![self.row]);
    }
}

// === impl Foe ===

impl Foe<'_> {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn note(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Opens a connection, sends these bytes, and waits until the server closes it.
    fn holds(&self, bytes: &[u8]) {
        if let Ok(mut stream) = connect(FOE, self.to) {
            let _ = stream.write_all(bytes);
            self.note(bytes.len());
            self.wait(&mut stream);
        }
        thread::sleep(Duration::from_millis(20));
    }

    /// Waits until the server closes the connection.
    fn wait(&self, stream: &mut TcpStream) {
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        while !self.is_over() {
            match stream.read(&mut [0; 4096]) {
                Ok(0) => return,
                Err(error) if !is_late(&error) => return,
                _ => {}
            }
        }
    }

    /// Sends a request, and notes whether it is refused.
    fn posts(&self, head: &str, body: &[u8]) {
        self.note(body.len());
        let answer =
            call(self.authority, (FOE, self.to), &format!("POST /inject{head}"), body, FOE_MAX);
        if answer.is_ok_and(|(status, _)| status >= 400) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Connects from an address.
fn connect(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(from, 0))?;
        socket.connect(to).await
    })?;
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The status and the body of an answer. `what` is a method and a path, and lines of the head.
fn call(
    authority: &Authority,
    (from, to): (IpAddr, SocketAddr),
    what: &str,
    body: &[u8],
    within: Duration,
) -> std::io::Result<(u16, String)> {
    let broken = || std::io::Error::from(ErrorKind::InvalidData);
    let mut stream = authority.over(connect(from, to)?);
    stream.sock.set_read_timeout(Some(within))?;
    stream.sock.set_write_timeout(Some(within))?;
    let (line, fields) = what.split_once('\n').unwrap_or((what, ""));
    let length = body.len();
    write!(
        stream,
        "{line} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}\
         content-length: {length}\r\n\r\n"
    )?;
    // A body may be refused before its end.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    // The end of TLS may be missing.
    let ended = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).map_err(|_| broken())?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        return Err(ended.err().unwrap_or_else(broken));
    };
    let status = head.get(9..12).and_then(|it| it.parse().ok()).ok_or_else(broken)?;
    Ok((status, body.to_owned()))
}

#[test]
fn i1a_handshakes_that_do_not_go_on() {
    // The head of a ClientHello that does not come.
    let head = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let scene = Scene::begin("I1a", "handshakes that do not go on");
    scene.attacked_by(100, |foe| foe.holds(&head));
}

#[test]
fn i1b_bytes_that_are_no_tls() {
    let scene = Scene::begin("I1b", "bytes that are no TLS");
    scene.attacked_by(16, |foe| foe.holds(&[0x7f; 4096]));
}

#[test]
fn i1c_connections_that_ask_nothing() {
    let scene = Scene::begin("I1c", "more connections than there may be, idle");
    scene.attacked_by(100, |foe| {
        let Ok(stream) = connect(FOE, foe.to) else { return };
        let mut stream = foe.authority.over(stream);
        // Completes the handshake, and asks for nothing.
        let _ = stream.conn.complete_io(&mut stream.sock);
        foe.note(500);
        foe.wait(&mut stream.sock);
        thread::sleep(Duration::from_millis(20));
    });
}

#[test]
fn i2a_bodies_that_trickle_in() {
    let scene = Scene::begin("I2a", "bodies that arrive byte by byte");
    scene.attacked_by(32, |foe| {
        let Ok(stream) = connect(FOE, foe.to) else { return };
        let mut stream = foe.authority.over(stream);
        let head = "POST /inject HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n";
        let mut is_open = stream.write_all(head.as_bytes()).is_ok();
        while is_open && !foe.is_over() {
            foe.note(1);
            is_open = stream.write_all(b" ").is_ok();
            thread::sleep(Duration::from_millis(100));
        }
    });
}

#[test]
fn i2b_pods_of_2_mib_side_by_side() {
    let large = review(&json!({"big": "x".repeat(2 << 20)})).to_string();
    let scene = Scene::begin("I2b", "pods of 2 MiB, side by side");
    scene.attacked_by(16, |foe| foe.posts("", large.as_bytes()));
}

#[test]
fn i3a_deep_json() {
    let deep = format!("{{\"request\":{}", "[".repeat(1 << 20));
    let scene = Scene::begin("I3a", "a body of a million brackets");
    scene.attacked_by(8, |foe| foe.posts("", deep.as_bytes()));
}

#[test]
fn i3b_a_body_in_gzip() {
    // The head of a member, and zeros. It is not read as gzip.
    let body = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &[0; 60_000]].concat();
    let scene = Scene::begin("I3b", "bodies in gzip, which are no reviews");
    scene.attacked_by(8, |foe| foe.posts("\ncontent-encoding: gzip\r\n", &body));
}

#[test]
fn i4a_long_texts_of_refused_requests() {
    let text = "A".repeat(1 << 20);
    let body = json!({"apiVersion": "x", "kind": "y", "request": text}).to_string();
    let scene = Scene::begin("I4a", "refused requests with a text of 1 MiB");
    scene.attacked_by(8, |foe| foe.posts("", body.as_bytes()));
}
