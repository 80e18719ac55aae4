//! Pushes counts to statsd or DogStatsD: those of the reference implementation, under its names.
//!
//! ```text
//!  each interval ─▶ connect ─▶ read the counts ─▶ growth since the last push ─▶ lines ─▶ packets
//! ```
//! Counts are read only once a connection stands: what no server takes is part of a later push.
//! A packet is sent at most once, so a connection that breaks may lose one push, and counts nothing
//! twice.

mod line;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ratelease_cli::settings::{HostPort, Statsd, StatsdProtocol};
use ratelease_engine::latency::Buckets;
use ratelease_engine::time::Clock;
use ratelease_otlp::failure_log::FailureLog;
use ratelease_server::metrics::{Hits, ReferenceCounts};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use line::Lines;

/// Reads the counts, at this moment. May take some milliseconds.
pub type Read = Arc<dyn Fn() -> Counts + Send + Sync>;

/// Everything that is pushed, since the start of the process.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// What decisions count.
    pub reference: ReferenceCounts,
    /// Loads of the rules that found good ones.
    pub loads_ok: u64,
    /// Loads of the rules that found none to take.
    pub loads_failed: u64,
}

/// Maximum time for a connection, and for one packet: the reference's client library has the same.
const CONNECT_MAX: Duration = Duration::from_millis(1500);
const SEND_MAX: Duration = Duration::from_secs(1);

/// Maximum size in bytes of a packet. A datagram of this size is not split on a network whose
/// packets have 1500 bytes.
const DATAGRAM_BYTES_MAX: usize = 1432;
const STREAM_BYTES_MAX: usize = 64 * 1024;

/// Pushes counts. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct StatsdPush {
    shared: Arc<Shared>,
}

struct Shared {
    read: Read,
    settings: Statsd,
    log: FailureLog,
    /// Held while a push is under way, so that pushes follow each other.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The counts of the last push.
    pushed: Counts,
    /// The open connection, over TCP.
    stream: Option<TcpStream>,
}

// === impl StatsdPush ===

impl StatsdPush {
    /// Creates a push of the counts that `read` returns; [`StatsdPush::run`] does the work.
    pub fn new(settings: Statsd, clock: Clock, read: Read) -> Self {
        let log = FailureLog::new("counts", "STATSD_HOST and STATSD_PORT", clock);
        Self { shared: Arc::new(Shared { read, settings, log, state: Mutex::default() }) }
    }

    /// Pushes at each interval; never returns.
    pub async fn run(self) {
        loop {
            sleep(self.shared.settings.interval).await;
            self.push().await;
        }
    }

    /// Pushes once, now.
    pub async fn push(&self) {
        let shared = &self.shared;
        let mut state = shared.state.lock().await;
        match shared.push(&mut state).await {
            Ok(()) => shared.log.succeeded(1, 0),
            Err(error) => shared.log.failed(&format!("{}: {error}", shared.settings.address)),
        }
    }
}

// === impl Shared ===

impl Shared {
    async fn push(&self, state: &mut State) -> io::Result<()> {
        match self.settings.protocol {
            StatsdProtocol::Tcp => {
                let mut stream = match state.stream.take().filter(is_open) {
                    Some(stream) => stream,
                    None => connect(&self.settings.address).await?,
                };
                for packet in self.packets(state, STREAM_BYTES_MAX).await? {
                    timeout(SEND_MAX, stream.write_all(&packet)).await??;
                }
                state.stream = Some(stream);
            }
            StatsdProtocol::Udp => {
                // The name is resolved for each push: UDP does not show that the server has moved.
                let socket = connect_udp(&self.settings.address).await?;
                for packet in self.packets(state, DATAGRAM_BYTES_MAX).await? {
                    timeout(SEND_MAX, socket.send(&packet)).await??;
                }
            }
        }
        Ok(())
    }

    /// The packets of what has been counted since the last push, which is this one from now on.
    async fn packets(&self, state: &mut State, bytes_max: usize) -> io::Result<Vec<Vec<u8>>> {
        let read = Arc::clone(&self.read);
        let pushed = std::mem::take(&mut state.pushed);
        let (dialect, tags) = (self.settings.dialect.clone(), self.settings.tags.clone());
        let written = spawn_blocking(move || {
            let counts = read();
            let mut lines = Lines::new(&dialect, &tags, bytes_max);
            write(&mut lines, &counts, &pushed);
            (lines.packets(), counts)
        });
        // A panic in `read` is logged by the panic hook. The counts of the last push are lost then,
        // and the next one begins where it finds them.
        let (packets, counts) = written.await.map_err(io::Error::other)?;
        state.pushed = counts;
        Ok(packets)
    }
}

/// Whether the server has kept the connection open: it never sends anything.
fn is_open(stream: &TcpStream) -> bool {
    matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

async fn connect(address: &HostPort) -> io::Result<TcpStream> {
    timeout(CONNECT_MAX, TcpStream::connect((address.host.as_str(), address.port))).await?
}

async fn connect_udp(address: &HostPort) -> io::Result<UdpSocket> {
    let connected = async {
        let mut found = lookup_host((address.host.as_str(), address.port)).await?;
        let to = found.next().ok_or_else(|| io::Error::other("the host has no address"))?;
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(to).await?;
        Ok(socket)
    };
    timeout(CONNECT_MAX, connected).await?
}

// What is written: the growth of each count, under the reference implementation's name
// (`src/stats/manager_impl.go` and `src/metrics/metrics.go` at f2fb157).

/// Selects the value of one series.
type OfHits = fn(&Hits) -> u64;

const HITS: [(&str, OfHits); 5] = [
    ("total_hits", |hits| hits.total),
    ("over_limit", |hits| hits.over),
    ("near_limit", |hits| hits.near),
    ("within_limit", |hits| hits.within),
    ("shadow_mode", |hits| hits.shadow),
];

/// Writes what `counts` have more than `pushed`; a count that has not grown is left out, as by the
/// reference.
fn write(lines: &mut Lines<'_>, counts: &Counts, pushed: &Counts) {
    let (now, before) = (&counts.reference, &pushed.reference);
    write_hits(lines, &now.by_stats_key, &before.by_stats_key);
    for (name, now, before) in [
        (
            "ratelimit.service.call.should_rate_limit.redis_error",
            now.store_errors,
            before.store_errors,
        ),
        (
            "ratelimit.service.call.should_rate_limit.service_error",
            now.service_errors,
            before.service_errors,
        ),
        ("ratelimit.service.config_load_success", counts.loads_ok, pushed.loads_ok),
        ("ratelimit.service.config_load_error", counts.loads_failed, pushed.loads_failed),
        ("ratelimit.service.global_shadow_mode", now.shadowed, before.shadowed),
        ("ratelimit_server.ShouldRateLimit.total_requests", now.requests, before.requests),
    ] {
        lines.counter(name, growth(now, before));
    }
    write_times(lines, &now.took, &before.took);
}

fn write_hits(
    lines: &mut Lines<'_>,
    now: &BTreeMap<Box<str>, Hits>,
    before: &BTreeMap<Box<str>, Hits>,
) {
    for (key, hits) in now {
        let former = before.get(key).copied().unwrap_or_default();
        if *hits == former {
            continue;
        }
        for (name, of) in HITS {
            let more = growth(of(hits), of(&former));
            if more > 0 {
                lines.counter(&format!("ratelimit.service.rate_limit.{key}.{name}"), more);
            }
        }
    }
}

/// Writes how long calls took: each bucket as one time in milliseconds that stands for all of its
/// calls by its sample rate. The reference writes a line for each call.
fn write_times(lines: &mut Lines<'_>, now: &Buckets, before: &Buckets) {
    let mut least = Duration::ZERO;
    for (at, count) in now.counts.iter().enumerate() {
        let most = now.bounds.get(at).copied().unwrap_or(least);
        let more = growth(*count, before.counts.get(at).copied().unwrap_or_default());
        let middle = (least + most) / 2;
        lines.timer("ratelimit_server.ShouldRateLimit.response_time", middle, more);
        least = most;
    }
}

/// What was counted since. A count that is smaller now has begun again, as that of a rule whose
/// place another one took.
fn growth(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

#[cfg(test)]
mod tests;
