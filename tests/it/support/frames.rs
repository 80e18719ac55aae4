//! HTTP/2 by hand: frames to write (RFC 9113), valid or not, and the frames that come back.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::raw_grpc::{SHOULD_RATE_LIMIT, framed};

/// The client connection preface (RFC 9113 §3.4).
pub(crate) const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types (RFC 9113 §6).
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// Flags of frames.
pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

/// Error codes (RFC 9113 §7).
pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const FLOW_CONTROL_ERROR: u32 = 3;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// Settings (RFC 9113 §6.5.2).
pub(crate) const ENABLE_PUSH: u16 = 2;
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(crate) const MAX_FRAME_SIZE: u16 = 5;

/// No answer of a pod takes this long: a test fails instead of hanging.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// A connection on which any bytes can be sent.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
}

/// A frame that was received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

// === impl Raw ===

impl Raw {
    /// Connects, sends the preface with these settings, and acknowledges the server's.
    pub(crate) async fn open(server: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let stream = TcpStream::connect(server).await.expect("the server takes a connection");
        stream.set_nodelay(true).expect("a socket that lives");
        let mut raw = Self { stream };
        raw.send(&[GREETING, &self::settings(settings)].concat()).await;
        let theirs = raw.next().await.expect("the server's settings come first");
        assert_eq!((theirs.kind, theirs.flags), (SETTINGS, 0), "{theirs:?}");
        raw.send(&frame(SETTINGS, ACK, 0, &[])).await;
        raw
    }

    /// Sends as much of `bytes` as the server accepts; a read reports whether the connection ended.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = timeout(ANSWER_MAX, self.stream.write_all(bytes)).await.expect("the server reads");
    }

    /// The next frame; `None` at the end of the connection, including a reset.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let mut frame = Frame::default();
        let read = timeout(ANSWER_MAX, frame.read(&mut self.stream)).await;
        read.expect("a frame or an end in time").then_some(frame)
    }

    /// The next frame of this type; skips those before it.
    pub(crate) async fn next_of(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let next = self.next().await?;
            if next.kind == kind {
                return Some(next);
            }
        }
    }
}

// === impl Frame ===

impl Frame {
    /// Reads the next frame in place of this one, whose memory it uses. Returns whether there was
    /// one before the end of the connection, including a reset.
    pub(crate) async fn read(&mut self, from: &mut (impl AsyncRead + Unpin)) -> bool {
        let mut head = [0; 9];
        if from.read_exact(&mut head).await.is_err() {
            return false;
        }
        (self.kind, self.flags) = (head[3], head[4]);
        self.stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        self.payload.resize(length(&head), 0);
        from.read_exact(&mut self.payload).await.is_ok()
    }

    /// For a GOAWAY: the last stream that was or will be handled.
    pub(crate) fn last_stream(&self) -> u32 {
        assert_eq!(self.kind, GOAWAY);
        self.number(0)
    }

    /// The error code of a GOAWAY or a reset.
    pub(crate) fn reason(&self) -> u32 {
        match self.kind {
            GOAWAY => self.number(4),
            RST_STREAM => self.number(0),
            other => panic!("a frame of kind {other} has no reason"),
        }
    }

    fn number(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }
}

/// Encodes a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes a frame of settings.
pub(crate) fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let one = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &settings.iter().flat_map(one).collect::<Vec<_>>())
}

/// The length of a frame's payload, from its header.
pub(crate) fn length(head: &[u8; 9]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// The frames of a whole call.
pub(crate) fn call(stream: u32, message: &[u8]) -> Vec<u8> {
    let data = frame(DATA, END_STREAM, stream, &framed(message));
    [begun(stream), data].concat()
}

/// The frame that begins a call, whose message is still to come.
pub(crate) fn begun(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(SHOULD_RATE_LIMIT))
}

/// The headers of a call, none of which the server adds to its table (RFC 7541 §6.2.2, appendix A).
pub(crate) fn block(path: &str) -> Vec<u8> {
    let head = [&[0x83, 0x86, 0x04][..], &text(path)].concat(); // :method POST, :scheme http, :path
    let authority = [&[0x01][..], &text("test")].concat();
    let content_type = [&[0x0f, 0x10][..], &text("application/grpc")].concat();
    [head, authority, content_type, field("te", "trailers")].concat()
}

/// One header, written literally.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    [&[0x00][..], &text(name), &text(value)].concat()
}

/// A string of fewer than 127 bytes (RFC 7541 §5.2).
fn text(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).ok().filter(|length| *length < 0x7f);
    [&[length.expect("a short string")], text.as_bytes()].concat()
}
