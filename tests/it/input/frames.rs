//! Invalid frames (RFC 9113): the connection continues, the stream is reset or the connection is
//! closed, as the standard requires; and a neighbour is served throughout.

use super::{good, pod};
use crate::support::frames::*;
use crate::support::raw_grpc::{Connection, SHOULD_RATE_LIMIT, framed};

/// The effect on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It serves the next call.
    Serves,
    /// Stream 1 is reset with this code, and the connection serves the next call.
    Resets(u32),
    /// The connection is closed with an error code: for some errors with a code of their own, h2
    /// sends PROTOCOL_ERROR.
    Closes,
}
use End::{Closes, Resets, Serves};

/// The effect of `bytes` on a connection of their own.
async fn end_of(server: std::net::SocketAddr, bytes: &[u8]) -> End {
    let mut raw = Raw::open(server, &[]).await;
    // Answered after everything that was sent before it.
    let ping = frame(PING, 0, 0, b"the last");
    raw.send(&[bytes, &call(99, &good()), &ping].concat()).await;
    let (mut reset, mut is_served) = (None, false);
    while let Some(frame) = raw.next().await {
        match frame.kind {
            GOAWAY => {
                assert_ne!(frame.reason(), NO_ERROR, "{frame:?}");
                return Closes;
            }
            // Without an error, the reset only means that the answer is complete.
            RST_STREAM if frame.stream == 1 && frame.reason() != NO_ERROR => {
                reset = Some(frame.reason());
            }
            DATA if frame.stream == 99 => is_served = true,
            PING if frame.payload == b"the last" && is_served => break,
            PING if frame.payload == b"the last" => {
                raw.send(&ping).await;
            }
            _ => {}
        }
    }
    assert!(is_served, "closed without a reason");
    reset.map_or(Serves, Resets)
}

async fn check(cases: &[(&str, Vec<u8>, End)]) {
    let (pod, _rules) = pod().await;
    let neighbour = Connection::open(pod.grpc).await;
    let mut faults = Vec::new();
    for (name, bytes, expected) in cases {
        let end = end_of(pod.grpc, bytes).await;
        if end != *expected {
            faults.push(format!("{name}: {end:?}, not {expected:?}"));
        }
        let reply = neighbour.call(&good()).await;
        assert_eq!(reply.is_over_limit(), Some(false), "after {name}: {reply:?}");
    }
    assert!(faults.is_empty(), "{faults:#?}");
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_a_connection() {
    let setting = |name, value| settings(&[(name, value)]);
    let whole = framed(&good());
    check(&[
        ("an unknown kind", frame(0xbe, 0xff, 0, &[0; 99]), Serves),
        ("an unknown setting", setting(0xbeef, 7), Serves),
        ("priority of a stream to come", frame(PRIORITY, 0, 7, &[0; 5]), Serves),
        ("priority of four bytes", frame(PRIORITY, 0, 1, &[0; 4]), Closes),
        ("a promise", frame(PUSH_PROMISE, END_HEADERS, 1, &[0; 8]), Closes),
        ("a frame too long", frame(DATA, 0, 1, &[0; 16_385]), Closes),
        ("data of no stream", frame(DATA, 0, 0, &whole), Closes),
        ("data of a stream to come", frame(DATA, 0, 5, &whole), Closes),
        ("headers of no stream", begun(0), Closes),
        ("headers of the server's", begun(2), Closes),
        ("a reset of a stream to come", frame(RST_STREAM, 0, 5, &[0; 4]), Closes),
        ("no more room", frame(WINDOW_UPDATE, 0, 0, &[0; 4]), Closes),
        ("too much room", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), Closes),
        ("settings of 5 bytes", frame(SETTINGS, 0, 0, &[0; 5]), Closes),
        ("settings of a stream", frame(SETTINGS, 0, 1, &[]), Closes),
        ("a long acknowledgement", frame(SETTINGS, ACK, 0, &[0; 6]), Closes),
        ("windows above 2^31", setting(INITIAL_WINDOW_SIZE, 1 << 31), Closes),
        ("frames of a byte", setting(MAX_FRAME_SIZE, 1), Closes),
        ("half a push", setting(ENABLE_PUSH, 2), Closes),
        ("a ping of 7 bytes", frame(PING, 0, 0, &[0; 7]), Closes),
        ("a ping of a stream", frame(PING, 0, 1, &[0; 8]), Closes),
        ("a pong without a ping", frame(PING, ACK, 0, &[7; 8]), Serves),
    ])
    .await;
}

/// The head of a call on stream 1, with these headers in place of the first ones of a valid head.
fn head(headers: &[&[u8]]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, 1, &headers.concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_a_call() {
    const POST: &[u8] = &[0x83];
    const HTTP: &[u8] = &[0x86];
    let ours = block(SHOULD_RATE_LIMIT);
    let path = field(":path", SHOULD_RATE_LIMIT);
    let more = |name: &str, value: &str| head(&[&ours, &field(name, value)]);
    let malformed = Resets(PROTOCOL_ERROR);
    check(&[
        // h2 treats it as an empty path, which no call has.
        ("no path", head(&[POST, HTTP]), Serves),
        ("no method", head(&[HTTP, &path]), malformed),
        ("no scheme", head(&[POST, &path]), malformed),
        ("two paths", head(&[POST, HTTP, &path, &path]), malformed),
        ("an empty path", head(&[POST, HTTP, &field(":path", "")]), malformed),
        ("a path that is none", head(&[POST, HTTP, &field(":path", "no where")]), malformed),
        ("a status", more(":status", "200"), malformed),
        ("an unknown pseudo-header", more(":such", "x"), Closes),
        ("a pseudo-header after the others", head(&[&ours, POST]), malformed),
        ("a name in capitals", more("X-Any", "x"), Closes),
        ("an empty name", more("", "x"), Closes),
        ("a line's end in a value", more("x-any", "x\r\ny: z"), Closes),
        ("connection", more("connection", "close"), malformed),
        ("transfer-encoding", more("transfer-encoding", "chunked"), malformed),
        ("te", head(&[POST, HTTP, &path, &field("te", "gzip")]), malformed),
        ("a reference to nothing", head(&[&[0xff, 0x7f]]), Closes),
        ("a string past the end", head(&[&[0x00, 0x7e, b'x']]), Closes),
        ("a table above the setting", head(&[&[0x3f, 0xe1, 0xff, 0x03]]), Closes),
        ("padding past the end", frame(HEADERS, END_HEADERS | PADDED, 1, &[200, 0x83]), Closes),
        ("a continuation of nothing", frame(CONTINUATION, 0, 1, &ours), Closes),
        (
            "a ping amid a header block",
            [frame(HEADERS, 0, 1, &ours), frame(PING, 0, 0, &[0; 8])].concat(),
            Closes,
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_a_call() {
    let data = |flags: u8| frame(DATA, flags, 1, &framed(&good()));
    let trailers = |flags: u8, block: &[u8]| frame(HEADERS, END_HEADERS | flags, 1, block);
    let (begun, whole) = (begun(1), call(1, &good()));
    let after = |first: &[u8], then: Vec<u8>| [first, &then].concat();
    let length = |bytes: &str| {
        let block = [block(SHOULD_RATE_LIMIT), field("content-length", bytes)].concat();
        after(&frame(HEADERS, END_HEADERS, 1, &block), data(END_STREAM))
    };
    let padded = [&[3], &framed(&good())[..], &[0; 3]].concat();
    check(&[
        ("a whole call", whole.clone(), Serves),
        ("a padded one", after(&begun, frame(DATA, END_STREAM | PADDED, 1, &padded)), Serves),
        (
            "one with trailers",
            [&begun[..], &data(0), &trailers(END_STREAM, &field("x-any", "x"))].concat(),
            Serves,
        ),
        (
            "trailers with a pseudo-header",
            [&begun[..], &data(0), &trailers(END_STREAM, &field(":path", "/x"))].concat(),
            Serves, // h2 ignores it
        ),
        (
            "headers after data, and no end",
            [&begun[..], &data(0), &trailers(0, &field("x-any", "x"))].concat(),
            Resets(PROTOCOL_ERROR),
        ),
        ("a length that fits", length(&framed(&good()).len().to_string()), Serves),
        ("a length that is too long", length("1000"), Resets(PROTOCOL_ERROR)),
        ("a length that is too short", length("3"), Resets(PROTOCOL_ERROR)),
        ("a length that is none", length("-1"), Resets(PROTOCOL_ERROR)),
        ("data after the end", after(&whole, data(END_STREAM)), Closes),
        ("room of nothing", after(&begun, frame(WINDOW_UPDATE, 0, 1, &[0; 4])), Closes),
        (
            "too much room",
            after(&begun, frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff])),
            Resets(FLOW_CONTROL_ERROR),
        ),
        ("a reset", after(&begun, frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])), Serves),
        ("a stream that is used again", after(&call(3, &good()), begun), Closes),
    ])
    .await;
}
