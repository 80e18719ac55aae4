//! A TCP proxy that imitates faults of networks: it delays data, slows it to a trickle, falls
//! silent, resets connections, cuts replies short, or is not there at all.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::now;
use super::ports::free_port;
use super::rng::Rng;

/// A proxy to a port of loopback. It has a runtime of its own, so that a cluster behind proxies
/// outlives the test that started it. Closes its listener and its connections when dropped.
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

/// The fault that connections suffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// Replies are delayed by `delay`, give or take the jitter, and stay in order.
    Latency { delay: Duration, jitter: Duration },
    /// Requests and replies are both delayed by `each_way`.
    Distance { each_way: Duration },
    /// Replies arrive at this rate.
    Drip { bytes_per_second: u32 },
    /// Accepts connections and forwards nothing; held data is forwarded when the fault ends.
    Hole,
    /// Forwards requests, but no replies; held data is forwarded when the fault ends.
    Deaf,
    /// Ends each connection with RST.
    Reset,
    /// Ends each connection after `after` more bytes of replies.
    Cut { after: usize },
    /// Does not listen, and ends connections.
    Refuse,
}

/// The connections that a fault applies to.
#[derive(Debug, Clone, Default)]
enum Scope {
    /// Old and new connections.
    #[default]
    All,
    /// This number of connections: those accepted before the fault was set.
    First(usize),
    /// Connections from these addresses.
    From(Vec<IpAddr>),
}

/// A fault, and the connections that it applies to.
#[derive(Debug, Clone, Default)]
struct Doing {
    fault: Fault,
    scope: Scope,
}

/// The properties of a connection that a scope looks at.
#[derive(Debug, Clone, Copy)]
struct Which {
    number: usize,
    from: IpAddr,
}

struct Shared {
    to: AtomicU16,
    doing: watch::Sender<Doing>,
    /// The times at which connections were accepted.
    accepted: watch::Sender<Vec<std::time::Instant>>,
}

/// Maximum number of pieces of data that one connection holds back.
const HELD_MAX: usize = 4096;
const PIECE_MAX: usize = 16 * 1024;
/// Interval between two pieces of a drip.
const DROP_EVERY: Duration = Duration::from_millis(20);

// === impl Proxy ===

impl Proxy {
    /// Listens on a port of loopback; [`Proxy::lead_to`] sets the target.
    pub(crate) fn start() -> Self {
        Self::start_at([127, 0, 0, 1])
    }

    /// Listens on a port of this address of the machine.
    pub(crate) fn start_at(ip: [u8; 4]) -> Self {
        let listener = std::net::TcpListener::bind((IpAddr::from(ip), free_port()));
        Self::on(listener.expect("the proxy's port"), 0)
    }

    /// Takes over a listener, whose queue may hold connections already, and forwards to `port`.
    pub(crate) fn on(listener: std::net::TcpListener, port: u16) -> Self {
        listener.set_nonblocking(true).expect("a listener for tokio");
        let addr = listener.local_addr().expect("its address");
        let shared = Shared::leading_to(port);
        let taking = Arc::clone(&shared);
        let accepting = runtime().spawn(async move {
            let listener = TcpListener::from_std(listener).expect("a listener for tokio");
            taking.take_from(&listener).await;
            drop(listener); // a new listener takes its place
            taking.accept(addr).await;
        });
        Self { addr, shared, accepting }
    }

    /// Forwards new connections to `port` from now on.
    pub(crate) fn lead_to(&self, port: u16) {
        self.shared.to.store(port, Ordering::Relaxed);
    }

    /// As [`Proxy::lead_to`], for a new proxy.
    #[must_use]
    pub(crate) fn leading_to(self, port: u16) -> Self {
        self.lead_to(port);
        self
    }

    pub(crate) fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Applies `fault`, and no other, to every connection, old and new.
    pub(crate) fn set(&self, fault: Fault) {
        self.shared.doing.send_replace(Doing { fault, scope: Scope::All });
    }

    /// Applies `fault` to the connections accepted so far, and none to later ones.
    pub(crate) fn set_so_far(&self, fault: Fault) {
        let first = self.shared.accepted.borrow().len();
        self.shared.doing.send_replace(Doing { fault, scope: Scope::First(first) });
    }

    /// Applies `fault` to connections from these addresses, old and new, and none to others.
    pub(crate) fn set_from(&self, fault: Fault, from: &[IpAddr]) {
        self.shared.doing.send_replace(Doing { fault, scope: Scope::From(from.to_vec()) });
    }

    /// Number of connections accepted so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.accepted.borrow().len() as u64
    }

    /// Waits for the next connection after the first `accepted`, and returns when it was accepted.
    pub(crate) async fn connection_after(&self, accepted: u64) -> std::time::Instant {
        let at = usize::try_from(accepted).expect("few connections");
        let mut seen = self.shared.accepted.subscribe();
        seen.wait_for(|times| times.len() > at).await.expect("the proxy is there")[at]
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        // Ends all connections.
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
    fn leading_to(port: u16) -> Arc<Self> {
        let (doing, accepted) = (watch::Sender::default(), watch::Sender::default());
        Arc::new(Self { to: AtomicU16::new(port), doing, accepted })
    }

    /// Listens again whenever connections are not refused.
    async fn accept(self: Arc<Self>, addr: SocketAddr) {
        loop {
            let mut doing = self.doing.subscribe();
            let _ = doing.wait_for(|doing| doing.fault != Fault::Refuse).await;
            let listener = TcpListener::bind(addr).await.expect("the proxy's port");
            self.take_from(&listener).await;
        }
    }

    /// Accepts connections until they are to be refused.
    async fn take_from(self: &Arc<Self>, listener: &TcpListener) {
        let mut doing = self.doing.subscribe();
        loop {
            tokio::select! {
                taken = listener.accept() => {
                    let number = self.accepted.borrow().len();
                    self.accepted.send_modify(|times| times.push(now()));
                    if let Ok((client, from)) = taken {
                        let which = Which { number, from: from.ip() };
                        tokio::spawn(Arc::clone(self).carry(client, which));
                    }
                }
                _ = doing.wait_for(|doing| doing.fault == Fault::Refuse) => return,
            }
        }
    }

    async fn carry(self: Arc<Self>, mut client: TcpStream, which: Which) {
        let to = SocketAddr::from(([127, 0, 0, 1], self.to.load(Ordering::Relaxed)));
        let doing = || self.doing.subscribe();
        let mut ends = doing();
        let is_reset = if let Ok(mut server) = TcpStream::connect(to).await {
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            tokio::select! {
                () = pump(from_client, to_server, doing(), which, false) => false,
                () = pump(from_server, to_client, doing(), which, true) => false,
                _ = ends.wait_for(|doing| doing.ends(which)) => true,
            }
        } else {
            true
        };
        if is_reset {
            let _ = client.set_zero_linger();
        }
    }
}

/// Forwards data in one direction until an end closes, or the fault ends the connection.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    doing: watch::Receiver<Doing>,
    which: Which,
    is_reply: bool,
) {
    let (queue, mut held) = mpsc::channel::<(Instant, Vec<u8>)>(HELD_MAX);
    let present = doing.clone();
    let read = async move {
        let mut rng = Rng::seeded(u64::from(is_reply));
        let mut piece = vec![0; PIECE_MAX];
        while let Ok(length @ 1..) = from.read(&mut piece).await {
            let due = arrival(present.borrow().to(which), is_reply, &mut rng);
            let bytes = piece.iter().take(length).copied().collect();
            if queue.send((due, bytes)).await.is_err() {
                return;
            }
        }
    };
    let write = async {
        let mut line = Line { doing, which, is_reply, cut: None };
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
        // Data that was read before the end is still delivered.
        () = &mut read => write.await,
    }
}

/// The time at which data that is read now must be delivered.
fn arrival(fault: Fault, is_reply: bool, rng: &mut Rng) -> Instant {
    // The proxy stands for a network, and runs in real time.
    #[allow(clippy::disallowed_methods)]
    let now = Instant::now();
    match fault {
        Fault::Latency { delay, jitter } if is_reply => {
            now + delay + jitter.mul_f64(2.0 * rng.fraction()) - jitter.min(delay)
        }
        Fault::Distance { each_way } => now + each_way,
        _ => now,
    }
}

// === impl Doing ===

impl Doing {
    /// The fault that applies to this connection.
    fn to(&self, which: Which) -> Fault {
        let is_meant = match &self.scope {
            Scope::All => true,
            Scope::First(first) => which.number < *first,
            Scope::From(from) => from.contains(&which.from),
        };
        if is_meant { self.fault } else { Fault::None }
    }

    /// Whether this connection must end with RST.
    fn ends(&self, which: Which) -> bool {
        matches!(self.to(which), Fault::Reset | Fault::Refuse)
    }
}

/// One direction of one connection.
struct Line {
    doing: watch::Receiver<Doing>,
    which: Which,
    is_reply: bool,
    /// Number of bytes that a cut still forwards.
    cut: Option<usize>,
}

// === impl Line ===

impl Line {
    /// Delivers data. Returns false if the connection must end.
    async fn deliver(&mut self, bytes: &[u8], to: &mut WriteHalf<'_>) -> bool {
        let (which, is_reply) = (self.which, self.is_reply);
        let is_held = |fault| fault == Fault::Hole || (fault == Fault::Deaf && is_reply);
        let _ = self.doing.wait_for(|doing| !is_held(doing.to(which))).await;
        let fault = self.doing.borrow().to(which);
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
