//! A byte stream to a server, with a limit on the replies that are read from it.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::{fmt, io};

use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use ratelease_tls::{ClientFiles, ClientPems};
use redis::RedisError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

/// A stream whose reader fails on a reply that exceeds `limit`.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    stream: S,
    limit: Arc<ReplyLimit>,
    counter: ReplyCounter,
}

/// The bytes of a connection, over TCP, TLS or a Unix socket: one copy of the client's code serves
/// all of them.
pub(super) type BoxedStream = Box<dyn ReadWrite>;

pub(super) trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ReadWrite for S {}

/// Connects over TCP to the first of the host's addresses that answers, among those that `allows`
/// accepts. Names are looked up on `threads`. Small commands are sent at once (TCP_NODELAY).
pub(super) async fn tcp(
    host: &str,
    port: u16,
    threads: &Threads,
    allows: impl Fn(IpAddr) -> bool,
) -> io::Result<TcpStream> {
    let mut addresses = look_up(host, port, threads).await?;
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    addresses.retain(|address| allows(address.ip()));
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, NOT_ALLOWED));
    }
    let stream = first_of(addresses, TcpStream::connect).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn look_up(host: &str, port: u16, threads: &Threads) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = (host.to_owned(), port);
    let found = threads.run(move || (name.0.as_str(), name.1).to_socket_addrs()).await??;
    Ok(found.collect())
}

/// Connects to the first of the addresses that can be reached.
async fn first_of<T, F: Future<Output = io::Result<T>>>(
    addresses: Vec<SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let attempts = stream::iter(addresses).map(connect).buffer_unordered(ATTEMPTS_MAX);
    let mut attempts = pin!(attempts);
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(connected) => return Ok(connected),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The largest number of a name's addresses that are tried at the same time. Each takes a socket,
/// and the name's DNS server decides how many addresses it has.
const ATTEMPTS_MAX: usize = 4;

const NOT_ALLOWED: &str = "its address lies in none of the networks of REDIS_REDIRECT_NETWORKS";

/// Connects to a Unix socket.
pub(super) async fn unix(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}

// === impl Bounded ===

impl<S> Bounded<S> {
    pub(super) fn new(stream: S, limit: Arc<ReplyLimit>) -> Self {
        Self { stream, limit, counter: ReplyCounter::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, limit, counter } = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        Poll::Ready(limit.check(counter, read).map_err(|excess| {
            // After an error nothing counts as read.
            buffer.set_filled(before);
            io::Error::new(io::ErrorKind::InvalidData, excess)
        }))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

// Limits the size of one reply, enforced on the bytes before redis-rs buffers and parses them. The
// client limits only nesting (100 levels): a reply that announces a length of 2 GB takes up memory
// for as long as the server keeps sending.

/// The largest size of one reply.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// Bytes of the reply, framing included.
    bytes: usize,
    /// Values in it; each takes about 64 bytes once parsed, though it may be 3 bytes on the wire.
    values: usize,
}

/// Replies to logins and scripts: a script's are below 200 bytes, those to INFO and ROLE longer.
const ORDINARY: Limit = Limit { bytes: 16 << 10, values: 1 << 10 };

/// Lists of the cluster's nodes. 1024 masters with two replicas each take 25 000 values and 0.4 MB
/// in CLUSTER SLOTS if each master owns one range; this leaves room for two and a half ranges each.
const LISTS: Limit = Limit { bytes: 4 << 20, values: 64 << 10 };

/// The limit of one connection. It is higher while a list of nodes is expected.
#[derive(Debug, Default)]
pub(super) struct ReplyLimit {
    lists_awaited: AtomicUsize,
    exceeded: AtomicBool,
    /// Whether anything was read since the login.
    has_read: AtomicBool,
}

/// The reason why a reply is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Excess {
    Bytes(usize),
    Values(usize),
    /// A length is malformed.
    Length,
}

/// Counts the bytes and values of the replies on a connection, as far as their lengths tell.
#[derive(Debug)]
struct ReplyCounter {
    state: State,
    /// Bytes of the present reply so far, including the bytes of an announced text.
    bytes: usize,
    /// Values of the reply that have begun.
    values: usize,
    /// Values of the reply that have not ended; at least 1, for the reply itself.
    pending: usize,
}

/// The position of the next byte within a value. A value begins with its type.
#[derive(Debug, Clone, Copy)]
enum State {
    Type,
    /// A value that is one line, such as a number or an error.
    Line,
    /// After a carriage return in the line.
    LineEnd,
    Length {
        of: u8,
        length: Length,
    },
    LengthEnd {
        of: u8,
        length: Length,
    },
    /// A text with its line end, of which this many bytes remain.
    Text(usize),
}

#[derive(Debug, Clone, Copy, Default)]
struct Length {
    is_negative: bool,
    number: usize,
}

// === impl ReplyLimit ===

impl ReplyLimit {
    /// Raises the limit until the returned guard is dropped.
    pub(super) fn await_list(&self) -> impl Drop + use<'_> {
        struct Lower<'a>(&'a ReplyLimit);
        impl Drop for Lower<'_> {
            fn drop(&mut self) {
                self.0.lists_awaited.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.lists_awaited.fetch_add(1, Ordering::Relaxed);
        Lower(self)
    }

    /// Whether a reply was refused.
    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }

    /// Forgets the bytes read until now, which were the login.
    pub(super) fn note_login(&self) {
        self.has_read.store(false, Ordering::Relaxed);
    }

    /// Whether anything was read since the login.
    pub(super) fn has_read(&self) -> bool {
        self.has_read.load(Ordering::Relaxed)
    }

    /// Lets `counter` process the bytes that arrived; after an error the connection must not be
    /// used.
    fn check(&self, counter: &mut ReplyCounter, bytes: &[u8]) -> Result<(), Excess> {
        if !bytes.is_empty() {
            self.has_read.store(true, Ordering::Relaxed);
        }
        let awaits_list = self.lists_awaited.load(Ordering::Relaxed) > 0;
        let limit = if awaits_list { LISTS } else { ORDINARY };
        counter.follow(bytes, limit).inspect_err(|_| self.exceeded.store(true, Ordering::Relaxed))
    }
}

// === impl ReplyCounter ===

impl Default for ReplyCounter {
    fn default() -> Self {
        Self { state: State::Type, bytes: 0, values: 0, pending: 1 }
    }
}

impl ReplyCounter {
    fn follow(&mut self, mut bytes: &[u8], limit: Limit) -> Result<(), Excess> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let State::Text(left) = self.state {
                let taken = left.min(bytes.len());
                self.state = State::Text(left - taken);
                if taken == left {
                    self.end_value();
                }
                bytes = bytes.get(taken..).unwrap_or_default();
            } else {
                self.add_bytes(1, limit)?;
                self.step(byte, limit)?;
                bytes = rest;
            }
        }
        Ok(())
    }

    /// Processes a byte that is not part of a text.
    fn step(&mut self, byte: u8, limit: Limit) -> Result<(), Excess> {
        self.state = match (self.state, byte) {
            (State::Type, b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|') => {
                self.values += 1;
                State::Length { of: byte, length: Length::default() }
            }
            (State::Type, _) => {
                self.values += 1;
                State::Line
            }
            (State::Line | State::LineEnd, b'\r') => State::LineEnd,
            (State::LineEnd, b'\n') => {
                self.end_value();
                return Ok(());
            }
            (State::Line | State::LineEnd, _) => State::Line,
            (State::Length { of, length }, b'\r') => State::LengthEnd { of, length },
            (State::Length { of, length }, _) => State::Length { of, length: length.with(byte)? },
            (State::LengthEnd { of, length }, b'\n') => return self.begin(of, length, limit),
            (State::LengthEnd { .. } | State::Text(_), _) => return Err(Excess::Length),
        };
        Ok(())
    }

    /// Handles the end of a value's head: its text counts as bytes and its parts as values, before
    /// any of them has arrived.
    fn begin(&mut self, of: u8, length: Length, limit: Limit) -> Result<(), Excess> {
        let Length { is_negative, number } = length;
        // redis-rs reads `-0` as 0.
        let is_negative = is_negative && number > 0;
        let parts = match of {
            // A null: redis-rs reads no further.
            b'$' | b'*' | b'~' | b'>' if is_negative => 0,
            _ if is_negative => return Err(Excess::Length),
            b'$' | b'!' | b'=' => {
                let text = number.saturating_add(2);
                self.add_bytes(text, limit)?;
                self.state = State::Text(text);
                return Ok(());
            }
            b'%' => number.saturating_mul(2),
            // Attributes precede the value to which they belong.
            b'|' => number.saturating_mul(2).saturating_add(1),
            _ => number,
        };
        // This value has begun, and its end is still pending.
        if self.values.saturating_add(self.pending - 1).saturating_add(parts) > limit.values {
            return Err(Excess::Values(limit.values));
        }
        self.pending += parts;
        self.end_value();
        Ok(())
    }

    fn end_value(&mut self) {
        self.state = State::Type;
        self.pending = self.pending.saturating_sub(1);
        if self.pending == 0 {
            *self = Self::default();
        }
    }

    fn add_bytes(&mut self, more: usize, limit: Limit) -> Result<(), Excess> {
        self.bytes = self.bytes.saturating_add(more);
        if self.bytes > limit.bytes { Err(Excess::Bytes(limit.bytes)) } else { Ok(()) }
    }
}

// === impl Length ===

impl Length {
    /// Adds one more digit, or a sign before all digits.
    fn with(self, byte: u8) -> Result<Self, Excess> {
        match byte {
            b'-' if !self.is_negative && self.number == 0 => Ok(Self { is_negative: true, ..self }),
            b'0'..=b'9' => {
                let number = self.number.saturating_mul(10).saturating_add((byte - b'0').into());
                Ok(Self { number, ..self })
            }
            _ => Err(Excess::Length),
        }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(most) => write!(f, "a reply of more than {most} bytes"),
            Self::Values(most) => write!(f, "a reply of more than {most} values"),
            Self::Length => f.write_str("a reply whose length is not a number"),
        }
    }
}

impl std::error::Error for Excess {}

// TLS to servers. The configuration is made again when its files have changed: they are read for
// each connection, like the files of passwords.

/// A hint for a handshake that fails.
const HINT: &str = "check REDIS_TLS_CACERT, the client certificate, and the names of the server's";

/// A hint for a handshake that the other side does not answer, or not with TLS: a plain port waits
/// for the end of a command, replies with an error, or closes the connection.
const HINT_PLAIN: &str = "if that port has no TLS, unset REDIS_TLS and use redis://";

/// The text of rustls for a refusal by the other side.
const ALERT: &str = "received fatal alert";

/// How servers are authenticated, and how this process is.
#[derive(Debug)]
pub(super) struct Tls {
    files: ClientFiles,
    loaded: Mutex<Option<Loaded>>,
}

/// The content of the files when they were last good, and the configuration made of it.
struct Loaded {
    pems: ClientPems,
    config: Arc<ClientConfig>,
    /// The later fault of the files, as it was logged last.
    fault: String,
}

/// Adds a hint to an error of a connection that is the server's refusal of our certificate: with
/// TLS 1.3 it arrives after the handshake.
pub(super) fn with_hint(error: RedisError) -> RedisError {
    if !error.is_io_error() || !error.to_string().contains(ALERT) {
        return error;
    }
    io::Error::new(io::ErrorKind::ConnectionAborted, format!("TLS: {error}; {HINT}")).into()
}

// === impl Tls ===

impl Tls {
    pub(super) fn new(files: ClientFiles) -> Self {
        Self { files, loaded: Mutex::new(None) }
    }

    /// The configuration by the present content of the files. Blocks.
    fn config(&self) -> io::Result<Arc<ClientConfig>> {
        let pems = self.files.read();
        let mut loaded = self.loaded.lock();
        if let Some(known) = loaded.as_ref().filter(|known| known.pems == pems) {
            return Ok(Arc::clone(&known.config));
        }
        // Whether the certificate has expired is for the server to say, by its own clock.
        let faults = match self.files.load(&pems, None) {
            Ok(config) => {
                let config = Arc::new(config);
                *loaded = Some(Loaded { pems, config: Arc::clone(&config), fault: String::new() });
                return Ok(config);
            }
            Err(faults) => faults.to_string(),
        };
        let Some(former) = &mut *loaded else { return Err(io::Error::other(faults)) };
        // A certificate and its key may be replaced one after the other.
        if former.fault != faults {
            tracing::error!("the former certificates are used for Redis: {faults}");
            former.fault = faults;
        }
        Ok(Arc::clone(&former.config))
    }

    /// Performs the handshake with the server `host`, until `deadline`. Files are read on
    /// `threads`.
    pub(super) async fn secure(
        self: &Arc<Self>,
        stream: TcpStream,
        host: &str,
        threads: &Threads,
        deadline: Instant,
    ) -> io::Result<TlsStream<TcpStream>> {
        let failed = |error: &dyn fmt::Display| aborted(&format!("{error}; {HINT}"));
        let of = Arc::clone(self);
        let config = threads.run(move || of.config()).await?.map_err(|error| failed(&error))?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?;
        let handshake = TlsConnector::from(config).connect(name, stream);
        match tokio::time::timeout_at(deadline, Box::pin(handshake)).await {
            Ok(Ok(secured)) => Ok(secured),
            Ok(Err(error)) if is_plain(&error) => Err(aborted(&format!("{error}; {HINT_PLAIN}"))),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => {
                let text = format!("TLS: no answer in time; {HINT_PLAIN}");
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
        }
    }
}

fn aborted(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, format!("TLS: {text}"))
}

/// Whether a handshake failed in a way in which one with a plain port does.
fn is_plain(error: &io::Error) -> bool {
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match of_tls {
        Some(rustls::Error::InvalidMessage(_)) => true,
        Some(_) => false,
        None => true,
    }
}

/// Shows nothing of the keys.
impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Loaded")
    }
}

// === Runs work that blocks a thread, such as name lookups, with limited concurrency ===

/// A share of the process's threads for blocking work.
#[derive(Debug)]
pub(super) struct Threads(Arc<Semaphore>);

// === impl Threads ===

impl Threads {
    /// At most `most` threads at a time.
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most)))
    }

    /// Runs `work` when a thread is free and returns its result. Work that has begun continues if
    /// its caller gives up, and keeps its thread until it ends.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let permit = Arc::clone(&self.0).acquire_owned().await.map_err(io::Error::other)?;
        let working = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        working.await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests;
