//! A server that reads only the heads of HTTP/2's frames: it finds the ends of requests, and
//! answers them with constant bytes, all requests of one read in one write. It shows the most that
//! a server on HTTP/2 can reach. It decodes no header, keeps no state of a stream, and obeys no
//! window.
//!
//! With a service it decides each request too: it shows the most that ratelease could reach on
//! frames of its own.

use std::io;

use bytes::BytesMut;
use ratelease_engine::limiter::owners::Owner;
use ratelease_server::grpc;
use ratelease_server::request::Transport;
use ratelease_server::service::{Caller, DecisionService, Peer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::h2::OK;

/// Bytes of the preface that a client sends first.
const PREFACE_BYTES: usize = 24;

/// Bytes of a frame's head.
const HEAD_BYTES: usize = 9;

/// Bytes of a gRPC message's prefix: a flag for compression, and the length.
const PREFIX_BYTES: usize = 5;

/// More than the longest frame that a client may send.
const BUFFER_BYTES: usize = 64 * 1024;

/// Type of a frame with data (RFC 9113 §6).
const DATA: u8 = 0;

/// Type of a frame with headers.
const HEADERS: u8 = 1;

/// Type of a frame with settings.
const SETTINGS: u8 = 4;

/// Type of a ping.
const PING: u8 = 6;

/// Type of a frame that enlarges a window.
const WINDOW_UPDATE: u8 = 8;

/// Flag of a frame that ends its stream.
const END_STREAM: u8 = 1;

/// Flag of a frame that acknowledges settings or a ping.
const ACK: u8 = 1;

/// Flag of a frame that ends its headers.
const END_HEADERS: u8 = 4;

/// `:status 200` from the static table, and `content-type: application/grpc` as a literal.
const HEAD: &[u8] = b"\x88\x0f\x10\x10application/grpc";
/// `grpc-status: 0` as a literal.
const TRAILERS: &[u8] = b"\x00\x0bgrpc-status\x010";

/// One connection's bytes: those that arrived and are not answered, and those to be sent.
struct Bytes {
    arrived: Vec<u8>,
    filled: usize,
    to_send: Vec<u8>,
    /// Bytes of messages since the last window update.
    received: u32,
}

/// A frame's head, and where its payload ends.
struct Head {
    kind: u8,
    flags: u8,
    stream: [u8; 4],
    end: usize,
}

/// Answers the requests of a connection until its client disconnects; with the decisions of
/// `service`, if there is one.
pub(crate) async fn serve(
    mut socket: TcpStream,
    service: Option<DecisionService>,
) -> io::Result<()> {
    let mut bytes = Bytes::new();
    bytes.frame(SETTINGS, 0, [0; 4], &[]);
    let mut is_greeted = false;
    loop {
        socket.write_all(&bytes.to_send).await?;
        bytes.to_send.clear();
        let room = bytes.arrived.get_mut(bytes.filled..).unwrap_or_default();
        let read = socket.read(room).await?;
        if read == 0 {
            return Ok(());
        }
        bytes.filled += read;
        let mut used = 0;
        if !is_greeted && bytes.filled >= PREFACE_BYTES {
            (is_greeted, used) = (true, PREFACE_BYTES);
        }
        while is_greeted && let Some(head) = bytes.head(used) {
            bytes.answer(&head, used + HEAD_BYTES, service.as_ref()).await;
            used = head.end;
        }
        bytes.arrived.copy_within(used..bytes.filled, 0);
        bytes.filled -= used;
        bytes.open_window();
    }
}

// === impl Bytes ===

impl Bytes {
    fn new() -> Self {
        Self { arrived: vec![0; BUFFER_BYTES], filled: 0, to_send: Vec::new(), received: 0 }
    }

    /// The head of the frame at `from`, if all of the frame has arrived.
    fn head(&self, from: usize) -> Option<Head> {
        let arrived = self.arrived.get(from..self.filled)?;
        let [high, middle, low, kind, flags, stream @ ..] = *arrived.first_chunk::<HEAD_BYTES>()?;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        let end = from + HEAD_BYTES + length;
        (end <= self.filled).then_some(Head { kind, flags, stream, end })
    }

    async fn answer(&mut self, head: &Head, payload: usize, service: Option<&DecisionService>) {
        let ends = head.flags & END_STREAM != 0;
        match head.kind {
            DATA => {
                self.received += u32::try_from(head.end - payload).unwrap_or_default();
                if ends {
                    self.answer_request(head, payload, service).await;
                }
            }
            HEADERS if ends => self.answer_request(head, payload, None).await,
            SETTINGS if head.flags & ACK == 0 => self.frame(SETTINGS, ACK, [0; 4], &[]),
            PING if head.flags & ACK == 0 => {
                let opaque = self.arrived.get(payload..head.end).unwrap_or_default().to_vec();
                self.frame(PING, ACK, [0; 4], &opaque);
            }
            _ => {}
        }
    }

    async fn answer_request(
        &mut self,
        head: &Head,
        payload: usize,
        service: Option<&DecisionService>,
    ) {
        let mut answer = BytesMut::new();
        if let Some(service) = service {
            let framed = self.arrived.get(payload..head.end).unwrap_or_default();
            if let Ok(request) = grpc::read(framed.get(PREFIX_BYTES..).unwrap_or_default()) {
                let peer = Peer::new();
                let caller = Caller {
                    transport: Transport::Grpc,
                    peer: &peer,
                    patience: None,
                    owner: Owner::UNKNOWN,
                };
                // If it waits for a lease, all that came after it waits with it.
                let made = service.answer(&caller, &request, |made| grpc::frame(made, &mut answer));
                let _ = made.await;
            }
        }
        let answer = if service.is_some() { &answer } else { OK };
        self.frame(HEADERS, END_HEADERS, head.stream, HEAD);
        self.frame(DATA, 0, head.stream, answer);
        self.frame(HEADERS, END_HEADERS | END_STREAM, head.stream, TRAILERS);
    }

    /// Lets the client send as many bytes of messages again as have been received.
    fn open_window(&mut self) {
        if self.received > 0 {
            let more = std::mem::take(&mut self.received).to_be_bytes();
            self.frame(WINDOW_UPDATE, 0, [0; 4], &more);
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: [u8; 4], payload: &[u8]) {
        let [_, high, middle, low] = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
        self.to_send.extend([high, middle, low, kind, flags]);
        self.to_send.extend(stream);
        self.to_send.extend(payload);
    }
}
