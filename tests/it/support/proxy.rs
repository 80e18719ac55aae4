//! A TCP proxy that does to its connections what networks do: it delays them, lets them drip, falls
//! silent, resets them, cuts replies short, or is not there at all.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::dice::Dice;
use super::process::free_port;

/// Leads to a port of loopback. It has a runtime of its own, so that a cluster behind proxies
/// outlives the test that started it. Dropped, it closes its listener and its connections.
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

/// What it does to every connection, old and new.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// Replies take so much longer, give or take the jitter, and stay in order.
    Latency { delay: Duration, jitter: Duration },
    /// Replies trickle.
    Drip { bytes_per_second: u32 },
    /// Takes connections and forwards nothing; what it holds goes on when this ends.
    Hole,
    /// Ends each connection with RST.
    Reset,
    /// Ends each connection after so many more bytes of replies.
    Cut { after: usize },
    /// Nobody listens, and connections end.
    Refuse,
}

struct Shared {
    to: AtomicU16,
    fault: watch::Sender<Fault>,
    accepted: AtomicU64,
}

/// Pieces of data that one connection holds back.
const HELD_MAX: usize = 4096;
const PIECE_MAX: usize = 16 * 1024;
/// Between two drops of a drip.
const DROP_EVERY: Duration = Duration::from_millis(20);

// === impl Proxy ===

impl Proxy {
    /// Listens on a port of loopback, see [`Proxy::lead_to`].
    pub(crate) fn start() -> Self {
        Self::start_at([127, 0, 0, 1])
    }

    /// Listens on a port of this address of the machine.
    pub(crate) fn start_at(ip: [u8; 4]) -> Self {
        let addr = SocketAddr::from((ip, free_port()));
        let (to, fault) = (AtomicU16::new(0), watch::Sender::new(Fault::None));
        let shared = Arc::new(Shared { to, fault, accepted: AtomicU64::new(0) });
        let accepting = runtime().spawn(Arc::clone(&shared).accept(addr));
        Self { addr, shared, accepting }
    }

    /// Where connections lead from now on.
    pub(crate) fn lead_to(&self, port: u16) {
        self.shared.to.store(port, Ordering::Relaxed);
    }

    pub(crate) fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Does `fault` from now on, and no other.
    pub(crate) fn set(&self, fault: Fault) {
        self.shared.fault.send_replace(fault);
    }

    /// Connections taken so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        // Connections end by themselves.
        self.set(Fault::Reset);
    }
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().expect("a runtime for proxies")
    })
}

// === impl Shared ===

impl Shared {
    async fn accept(self: Arc<Self>, addr: SocketAddr) {
        let mut fault = self.fault.subscribe();
        loop {
            let _ = fault.wait_for(|fault| *fault != Fault::Refuse).await;
            let listener = TcpListener::bind(addr).await.expect("the proxy's port");
            loop {
                tokio::select! {
                    taken = listener.accept() => {
                        self.accepted.fetch_add(1, Ordering::Relaxed);
                        if let Ok((client, _)) = taken {
                            tokio::spawn(Arc::clone(&self).carry(client));
                        }
                    }
                    _ = fault.wait_for(|fault| *fault == Fault::Refuse) => break,
                }
            }
        }
    }

    async fn carry(self: Arc<Self>, mut client: TcpStream) {
        let to = SocketAddr::from(([127, 0, 0, 1], self.to.load(Ordering::Relaxed)));
        let mut ends = self.fault.subscribe();
        let is_reset = if let Ok(mut server) = TcpStream::connect(to).await {
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            tokio::select! {
                () = pump(from_client, to_server, self.fault.subscribe(), false) => false,
                () = pump(from_server, to_client, self.fault.subscribe(), true) => false,
                _ = ends.wait_for(|fault| matches!(fault, Fault::Reset | Fault::Refuse)) => true,
            }
        } else {
            true
        };
        if is_reset {
            let _ = client.set_zero_linger();
        }
    }
}

/// Carries data one way until an end closes, or the fault says so.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    fault: watch::Receiver<Fault>,
    is_reply: bool,
) {
    let (queue, mut held) = mpsc::channel::<(Instant, Vec<u8>)>(HELD_MAX);
    let now_fault = fault.clone();
    let read = async move {
        let mut dice = Dice::seeded(u64::from(is_reply));
        let mut piece = vec![0; PIECE_MAX];
        while let Ok(length @ 1..) = from.read(&mut piece).await {
            let due = arrival(*now_fault.borrow(), is_reply, &mut dice);
            let bytes = piece.iter().take(length).copied().collect();
            if queue.send((due, bytes)).await.is_err() {
                return;
            }
        }
    };
    let write = async {
        let mut line = Line { fault, is_reply, cut: None };
        while let Some((due, bytes)) = held.recv().await {
            sleep_until(due).await;
            if !line.deliver(&bytes, &mut to).await {
                return;
            }
        }
    };
    tokio::pin!(read, write);
    tokio::select! {
        () = &mut write => {}
        // What was read before the end is still delivered.
        () = &mut read => write.await,
    }
}

/// When data that is read now arrives.
fn arrival(fault: Fault, is_reply: bool, dice: &mut Dice) -> Instant {
    // The proxy stands for a network, and runs in real time.
    #[allow(clippy::disallowed_methods)]
    let now = Instant::now();
    match fault {
        Fault::Latency { delay, jitter } if is_reply => {
            now + delay + jitter.mul_f64(2.0 * dice.fraction()) - jitter.min(delay)
        }
        _ => now,
    }
}

/// One way of one connection.
struct Line {
    fault: watch::Receiver<Fault>,
    is_reply: bool,
    /// What a cut lets through yet.
    cut: Option<usize>,
}

// === impl Line ===

impl Line {
    /// False once the connection is to end.
    async fn deliver(&mut self, bytes: &[u8], to: &mut WriteHalf<'_>) -> bool {
        let _ = self.fault.wait_for(|fault| *fault != Fault::Hole).await;
        let fault = *self.fault.borrow();
        match fault {
            Fault::Drip { bytes_per_second } if self.is_reply => {
                let drop = (bytes_per_second as usize / 50).max(1);
                for piece in bytes.chunks(drop) {
                    if to.write_all(piece).await.is_err() {
                        return false;
                    }
                    sleep(DROP_EVERY).await;
                }
                true
            }
            Fault::Cut { after } if self.is_reply => {
                let left = self.cut.get_or_insert(after);
                let let_through = (*left).min(bytes.len());
                *left -= let_through;
                let is_open = *left > 0;
                to.write_all(&bytes[..let_through]).await.is_ok() && is_open
            }
            _ => {
                self.cut = None;
                to.write_all(bytes).await.is_ok()
            }
        }
    }
}
