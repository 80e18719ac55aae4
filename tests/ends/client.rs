//! Clients of Envoy that leave at a chosen moment, by HTTP/1.1 and HTTP/2.

use std::io::Result;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::Request;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet, block_in_place};
use tokio::time::timeout;

use crate::application::{AFTER, HELD, RUN};
use crate::stand::Stand;
use crate::support::frames::{END_HEADERS, END_STREAM, HEADERS, field, frame};
use crate::support::http::Client;

/// Headers of a request.
pub type Headers<'a> = &'a [(&'a str, &'a str)];

/// The header by which the recipes know a user.
pub const USER: &str = "x-user-id";

/// How a client's connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// FIN.
    Close,
    /// RST: bytes that were sent may never be read.
    Reset,
}

/// One connection of HTTP/2. It ends when it is dropped. `h2` ends it when many events are unread.
pub struct Connection {
    requests: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

/// One request of a [`Connection`], which is reset by RST_STREAM when it is dropped before its end.
pub struct Stream {
    answer: ResponseFuture,
    body: Option<RecvStream>,
    request: SendStream<Bytes>,
}

/// Streams of events that have no end, over several connections.
pub struct Crowd {
    connections: Vec<(Connection, Vec<Stream>)>,
}

/// Streams of each connection of a [`Crowd`]: the number that `h2` sends before it knows a bound.
const STREAMS_EACH: usize = 100;

/// Streams that a crowd opens at the same time: few enough for the time-outs of the recipes.
const OPENING_MAX: usize = 32;

/// No answer takes this long: a test fails instead of hanging.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Maximum number of streams that a client knows it has reset: beyond it, an answer that comes late
/// would end the connection.
const RESET_MAX: usize = 100_000;

/// The next number of a request, of all tests.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A number that no other request has, for the header [`RUN`].
pub fn number() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Sleeps as exactly as the kernel does. The runtime's own timer has steps of a millisecond.
pub fn sleep_exactly(span: Duration) {
    block_in_place(|| std::thread::sleep(span));
}

/// Sends a GET by HTTP/1.1, and does not wait for its answer.
pub async fn send_plain(to: SocketAddr, ending: Ending, headers: Headers<'_>) -> Result<Client> {
    let mut client = Client::connect(to).await?;
    if ending == Ending::Reset {
        client.resets_at_its_end()?;
    }
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    client.write(format!("GET / HTTP/1.1\r\nhost: test\r\n{headers}\r\n").as_bytes()).await?;
    Ok(client)
}

async fn get(
    requests: SendRequest<Bytes>,
    headers: Headers<'_>,
) -> std::result::Result<Stream, h2::Error> {
    let mut requests = requests.ready().await?;
    let head = Request::get("http://test/");
    let head = headers.iter().fold(head, |head, (name, value)| head.header(*name, *value));
    let (answer, request) = requests.send_request(head.body(()).expect("a request"), true)?;
    Ok(Stream { answer, body: None, request })
}

/// The frame of a GET by HTTP/2, on a connection that a test writes by hand.
pub fn get_frame(stream: u32, headers: Headers<'_>) -> Vec<u8> {
    // :method GET, :scheme http, :path / (RFC 7541, appendix A).
    let mut block = vec![0x82, 0x86, 0x84];
    block.extend(field(":authority", "test"));
    block.extend(headers.iter().flat_map(|(name, value)| field(name, value)));
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block)
}

// === impl Connection ===

impl Connection {
    pub async fn open(to: SocketAddr, ending: Ending) -> Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        if ending == Ending::Reset {
            stream.set_zero_linger()?;
        }
        let mut builder = Builder::new();
        builder.max_concurrent_reset_streams(RESET_MAX).initial_max_send_streams(STREAMS_EACH);
        let opened = builder.handshake(stream).await;
        let (requests, connection) = opened.map_err(std::io::Error::other)?;
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { requests, driver })
    }

    /// Sends a GET, and does not wait for its answer.
    pub async fn get(&self, headers: Headers<'_>) -> std::result::Result<Stream, h2::Error> {
        get(self.requests.clone(), headers).await
    }

    /// Ends the connection before the streams that are dropped later can be reset one by one.
    pub async fn end(mut self) {
        self.driver.abort();
        // An error means that it was aborted; without one, Envoy has closed the connection before.
        let _ = (&mut self.driver).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

// === impl Stream ===

impl Stream {
    /// Waits for the head of the answer, and returns its status.
    pub async fn status(&mut self) -> std::result::Result<u16, h2::Error> {
        let answer = timeout(ANSWER_MAX, &mut self.answer).await.expect("an answer in time")?;
        let (head, body) = answer.into_parts();
        self.body = Some(body);
        Ok(head.status.as_u16())
    }

    /// Reads an event, after [`Stream::status`]; returns whether there was one before the end.
    pub async fn event(&mut self) -> std::result::Result<bool, h2::Error> {
        let body = self.body.as_mut().expect("an answer that has begun");
        match timeout(ANSWER_MAX, body.data()).await.expect("an event or the end in time") {
            Some(data) => body.flow_control().release_capacity(data?.len()).map(|()| true),
            None => Ok(false),
        }
    }

    /// Reads the answer to its end, after [`Stream::status`].
    pub async fn end(mut self) -> std::result::Result<(), h2::Error> {
        while self.event().await? {}
        Ok(())
    }

    /// Ends the request by RST_STREAM.
    pub fn reset(mut self) {
        self.request.send_reset(Reason::CANCEL);
    }
}

// === impl Crowd ===

impl Crowd {
    /// Opens streams, a few at a time, until as many run. Each is of another user.
    pub async fn open(stand: &Stand, count: usize) -> Self {
        let mut connections = Vec::new();
        for _ in 0..count.div_ceil(STREAMS_EACH) {
            let opened = Connection::open(stand.envoy.ingress, Ending::Reset).await;
            connections.push((opened.expect("Envoy takes connections"), Vec::new()));
        }
        let mut crowd = Self { connections };
        let running = stand.app.running();
        let mut refused = 0;
        while crowd.len() < count {
            refused += crowd.open_some(OPENING_MAX.min(count - crowd.len())).await;
            assert!(refused <= count, "{} of {count} run, {refused} were refused", crowd.len());
        }
        stand.app.until_running(running + count).await;
        println!("{count} streams run; {refused} others were refused while they began");
        crowd
    }

    /// Opens as many streams as pass of `count` more; returns how many did not.
    pub async fn open_some(&mut self, count: usize) -> usize {
        let mut opening = JoinSet::new();
        for at in 0..count {
            let spread = (self.len() + at) % self.connections.len();
            let requests = self.connections[spread].0.requests.clone();
            opening.spawn(async move { (spread, open_one(requests).await) });
        }
        let mut refused = 0;
        for (at, opened) in opening.join_all().await {
            match opened {
                Some(stream) => self.connections[at].1.push(stream),
                None => refused += 1,
            }
        }
        refused
    }

    pub fn len(&self) -> usize {
        self.connections.iter().map(|(_, streams)| streams.len()).sum()
    }

    /// All connections end at once, by RST.
    pub async fn leave(self) {
        self.connections.iter().for_each(|(connection, _)| connection.driver.abort());
        let (connections, streams): (Vec<_>, Vec<_>) = self.connections.into_iter().unzip();
        for connection in connections {
            connection.end().await;
        }
        drop(streams);
    }
}

/// Opens a stream that has no end; `None` if it does not pass.
async fn open_one(requests: SendRequest<Bytes>) -> Option<Stream> {
    let number = number().to_string();
    let headers = [(USER, &*format!("user-{number}")), (RUN, &*number), (AFTER, HELD)];
    let mut stream = get(requests, &headers).await.ok()?;
    if stream.status().await.ok()? != 200 {
        return None;
    }
    stream.event().await.ok()?;
    Some(stream)
}
