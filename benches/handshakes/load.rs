//! Clients that open one connection after another.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::ClientConfig;

use crate::support::now;
use crate::support::process::{Process, cpu_time};
use crate::support::raw_grpc::tls;

/// Load before each measurement.
const WARM: Duration = Duration::from_millis(500);

/// A server that is measured.
pub struct Server {
    pub name: &'static str,
    pub addr: SocketAddr,
    pub pid: u32,
    /// Ends with this.
    pub _process: Option<Process>,
}

/// The result of one load.
pub struct Figures {
    /// Handshakes a second.
    pub rate: f64,
    /// CPU time of the server for each, in microseconds.
    pub cpu_us: f64,
    pub failed: u64,
}

#[derive(Default)]
struct Counts {
    completed: AtomicU64,
    failed: AtomicU64,
}

/// Loads a server for `seconds`.
pub async fn measure(
    server: &Server,
    config: &Arc<ClientConfig>,
    clients: usize,
    seconds: u64,
) -> Figures {
    load(server.addr, config, clients, now() + WARM).await;
    let (start, cpu) = (now(), cpu_time(server.pid));
    let counts = load(server.addr, config, clients, start + Duration::from_secs(seconds)).await;
    let (elapsed, cpu) = (start.elapsed(), cpu_time(server.pid) - cpu);
    let completed = counts.completed.load(Ordering::Relaxed) as f64;
    Figures {
        rate: completed / elapsed.as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / completed,
        failed: counts.failed.load(Ordering::Relaxed),
    }
}

async fn load(
    addr: SocketAddr,
    config: &Arc<ClientConfig>,
    clients: usize,
    end: Instant,
) -> Arc<Counts> {
    let counts = Arc::new(Counts::default());
    let client = |_| {
        let (config, counts) = (Arc::clone(config), Arc::clone(&counts));
        tokio::spawn(async move {
            while now() < end {
                let count = match visit(addr, &config).await {
                    Ok(()) => &counts.completed,
                    Err(_) => &counts.failed,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    for ended in join_all((0..clients).map(client)).await {
        ended.expect("a client does not panic");
    }
    counts
}

/// One connection. The server closes it first, and the client resets it, so that no port stays in
/// TIME_WAIT.
async fn visit(addr: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<()> {
    let mut stream = tls(addr, config).await?;
    stream.get_mut().1.send_close_notify();
    stream.flush().await?;
    match stream.read(&mut [0]).await {
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error),
        _ => {}
    }
    stream.get_mut().0.set_zero_linger()
}
