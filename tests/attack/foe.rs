//! Connections of an attacker. Each is driven by hand, frame by frame, and all bytes are counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout_at;

use crate::support::frames::{ACK, GOAWAY, GREETING, NO_ERROR, RST_STREAM, SETTINGS, frame};
use crate::support::frames::{length, settings};
use crate::support::now;
use crate::support::raw_grpc::{Connection, Reply, SHOULD_RATE_LIMIT, framed, post};

/// Bytes counted for an open connection: the TCP packets that open and close it.
const CONNECTION_BYTES: u64 = 3 * 40;

/// Delay before a refused client tries again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// A flood is sent in pieces of at least this size, and at most a part more.
pub const FLOOD_BYTES: usize = 64 * 1024;

/// Size of the headers of a call and of its answer, without their messages, as h2 writes them.
const HEADERS_BYTES: u64 = 100;

/// Counters over all connections of an attacker.
#[derive(Debug, Default)]
pub struct Meter {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub opened: AtomicU64,
    /// Connections that the server closed, streams that it reset, and answers that refuse.
    pub refused: AtomicU64,
}

/// The target of the attack, and its duration. Clones share the meter.
#[derive(Debug, Clone)]
pub struct Foes {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub debug: SocketAddr,
    pub prometheus: SocketAddr,
    pub meter: Arc<Meter>,
    pub end: Instant,
}

/// How an attacker reads from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Reads everything, and looks for refusals in HTTP/2 frames.
    Frames,
    /// Reads everything.
    Bytes,
    /// Reads nothing: the kernel's buffers fill.
    Nothing,
    /// Reads nothing, and closes with a reset, which leaves no port in TIME_WAIT.
    Reset,
}

/// One connection. Closed when dropped.
pub struct Foe {
    write: OwnedWriteHalf,
    /// Kept open when the connection is not read.
    _read: Option<OwnedReadHalf>,
    reader: Option<JoinHandle<()>>,
    is_gone: watch::Receiver<bool>,
    foes: Foes,
}

// === impl Foes ===

impl Foes {
    /// Whether the attack's time is over.
    pub fn is_over(&self) -> bool {
        now() >= self.end
    }

    pub fn note_sent(&self, bytes: usize) {
        self.meter.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn note_refused(&self) {
        self.meter.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A TCP connection; `None` if the server does not take it.
    pub async fn connect(&self, to: SocketAddr, reading: Reading) -> Option<Foe> {
        let socket = TcpSocket::new_v4().expect("a socket");
        if reading == Reading::Nothing {
            // Small kernel buffers, so that the server has to hold the rest.
            socket.set_recv_buffer_size(4_096).expect("a small buffer");
        }
        let connected = timeout_at(self.end.into(), socket.connect(to)).await;
        let Ok(Ok(stream)) = connected else {
            self.note_refused();
            return None;
        };
        let _ = stream.set_nodelay(true);
        if reading == Reading::Reset {
            let _ = stream.set_zero_linger();
        }
        self.meter.opened.fetch_add(1, Ordering::Relaxed);
        self.meter.sent.fetch_add(CONNECTION_BYTES, Ordering::Relaxed);
        let (read, write) = stream.into_split();
        let (gone, is_gone) = watch::channel(false);
        let (mut kept, mut reader) = (None, None);
        match reading {
            Reading::Nothing | Reading::Reset => kept = Some(read),
            _ => {
                let meter = Arc::clone(&self.meter);
                reader = Some(tokio::spawn(async move {
                    read_all(read, reading, &meter).await;
                    gone.send_replace(true);
                }));
            }
        }
        Some(Foe { write, _read: kept, reader, is_gone, foes: self.clone() })
    }

    /// An HTTP/2 connection whose client preface carries these settings.
    pub async fn greet(
        &self,
        to: SocketAddr,
        with: &[(u16, u32)],
        reading: Reading,
    ) -> Option<Foe> {
        let mut foe = self.connect(to, reading).await?;
        let greeting = [GREETING, &settings(with), &frame(SETTINGS, ACK, 0, &[])].concat();
        foe.send(&greeting).await.then_some(foe)
    }

    /// Runs `client` repeatedly until the attack is over, `count` of them at once. A run is usually
    /// the life of one connection.
    pub async fn crowd<F>(&self, count: usize, client: F)
    where
        F: AsyncFn(&Self, usize),
    {
        let one = async |nth| {
            while !self.is_over() {
                let _ = timeout_at(self.end.into(), client(self, nth)).await;
                tokio::time::sleep_until(self.end.min(now() + AGAIN_AFTER).into()).await;
            }
        };
        join_all((0..count).map(one)).await;
    }

    /// A whole gRPC call on a connection that follows HTTP/2.
    pub async fn call(&self, connection: &Connection, message: &[u8]) -> Result<Reply, String> {
        self.request(connection, post(SHOULD_RATE_LIMIT), framed(message)).await
    }

    /// Any HTTP/2 request on such a connection.
    pub async fn request(
        &self,
        connection: &Connection,
        head: http::request::Builder,
        body: Vec<u8>,
    ) -> Result<Reply, String> {
        let headers = usize::try_from(HEADERS_BYTES).expect("a small number");
        self.note_sent(body.len() + headers);
        let reply = connection.request(head, futures_util::stream::iter([body])).await;
        match &reply {
            Ok(reply) => {
                let bytes = reply.message.len() as u64 + HEADERS_BYTES;
                self.meter.received.fetch_add(bytes, Ordering::Relaxed);
                if reply.code != tonic::Code::Ok {
                    self.note_refused();
                }
            }
            Err(_) => self.note_refused(),
        }
        reply
    }

    /// Waits for the end of the attack.
    pub async fn rest(&self) {
        tokio::time::sleep_until(self.end.into()).await;
    }
}

// === impl Foe ===

impl Foe {
    /// Sends until the attack is over; returns false if the server did not take all the bytes.
    pub async fn send(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() {
            match timeout_at(self.foes.end.into(), self.write.write(rest)).await {
                Ok(Ok(written)) if written > 0 => {
                    self.foes.note_sent(written);
                    rest = &rest[written..];
                }
                Ok(_) => {
                    if self._read.is_some() {
                        self.foes.note_refused(); // no other code counts this refusal
                    }
                    return false;
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// Sends the parts that `part` builds from their number, many at once, until the server closes
    /// the connection or the attack is over.
    pub async fn flood(&mut self, part: impl Fn(u32) -> Vec<u8>) {
        let mut next = 0;
        let mut parts = Vec::new();
        while !self.foes.is_over() && !self.is_gone() {
            parts.clear();
            while parts.len() < FLOOD_BYTES {
                parts.extend_from_slice(&part(next));
                next += 1;
            }
            if !self.send(&parts).await {
                return;
            }
        }
    }

    /// Whether the server has closed the connection, as far as it has been read.
    pub fn is_gone(&self) -> bool {
        *self.is_gone.borrow()
    }

    /// Waits until the server closes the connection, `span` has passed, or the attack is over.
    pub async fn stay(&mut self, span: Duration) {
        let end = self.foes.end.min(now() + span);
        let _ = timeout_at(end.into(), self.is_gone.wait_for(|gone| *gone)).await;
        if self._read.is_some() {
            tokio::time::sleep_until(end.into()).await;
        }
    }
}

impl Drop for Foe {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            reader.abort();
        }
    }
}

/// Reads until the server closes the connection, which counts as a refusal.
async fn read_all(mut read: OwnedReadHalf, reading: Reading, meter: &Meter) {
    let mut buffer = vec![0; 64 * 1024];
    let mut frames = Frames::default();
    while let Ok(count @ 1..) = read.read(&mut buffer).await {
        meter.received.fetch_add(count as u64, Ordering::Relaxed);
        if reading == Reading::Frames {
            let refused = frames.refusals_in(&buffer[..count]);
            meter.refused.fetch_add(refused, Ordering::Relaxed);
        }
    }
    meter.refused.fetch_add(1, Ordering::Relaxed);
}

/// Finds frames in chunks of a byte stream.
#[derive(Debug, Default)]
struct Frames {
    /// The head and the first payload bytes of the frame under way.
    seen: Vec<u8>,
    /// Bytes of its payload to skip.
    skip: usize,
}

impl Frames {
    /// Counts the streams of this chunk that were reset with an error. A GOAWAY is not counted
    /// here: the close that follows it is.
    fn refusals_in(&mut self, mut piece: &[u8]) -> u64 {
        let mut refusals = 0;
        while !piece.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(piece.len());
                self.skip -= skipped;
                piece = &piece[skipped..];
                continue;
            }
            self.seen.push(piece[0]);
            piece = &piece[1..];
            let Some(head) = self.seen.first_chunk::<9>() else { continue };
            let (kind, length) = (head[3], length(head));
            if kind == RST_STREAM && self.seen.len() < 9 + length.min(4) {
                continue;
            }
            let is_fault = kind == RST_STREAM && self.seen[9..] != NO_ERROR.to_be_bytes();
            refusals += u64::from(is_fault && kind != GOAWAY);
            self.skip = 9 + length - self.seen.len();
            self.seen.clear();
        }
        refusals
    }
}
