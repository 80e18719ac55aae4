//! Bad requests over gRPC.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use super::{descriptor, good, hits, limit, pod, refund, request};
use crate::support::raw_grpc::{
    Connection, Reply, SHOULD_RATE_LIMIT, bytes_field, framed, number_field, post,
};

const MIB: usize = 1024 * 1024;

/// Maximum time to close a connection that cannot continue.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Two connections to one pod: faults on one must not affect the other.
struct Pair {
    faulty: Connection,
    neighbour: Connection,
}

impl Pair {
    async fn open(server: std::net::SocketAddr) -> Self {
        let faulty = Connection::open(server).await;
        Self { faulty, neighbour: Connection::open(server).await }
    }

    /// Checks that both connections serve the next request.
    async fn serve_on(&self, after: &str) {
        for (name, connection) in [("the same", &self.faulty), ("another", &self.neighbour)] {
            let reply = connection.call(&good()).await;
            assert_eq!(reply.is_over_limit(), Some(false), "{name}, after {after}: {reply:?}");
        }
    }
}

fn assert_refused(name: &str, reply: &Reply, code: Code, reason: &str) {
    assert_eq!(reply.code, code, "{name}: {reply:?}");
    assert!(reply.reason.contains(reason), "{name}: {reply:?}");
}

/// Checks that every message gets its code and reason, and does no harm.
async fn check(cases: &[(&str, Vec<u8>, Code, &str)]) {
    let (pod, _rules) = pod().await;
    let pair = Pair::open(pod.grpc).await;
    for (name, message, code, reason) in cases {
        assert_refused(name, &pair.faulty.call(message).await, *code, reason);
        pair.serve_on(name).await;
    }
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_decided_gets_its_reason() {
    let entry = || descriptor("three", "bad");
    let overridden = |unit| request("test", &[entry(), [entry(), limit(unit)].concat()]);
    let no_unit = "the limit of descriptor 1 names no unit; expected SECOND, MINUTE";
    let no_domain = "rate limit domain must not be empty";
    let no_list = "rate limit descriptor list must not be empty";
    let thousand = request("test", &vec![entry(); 1_000]);
    let deep = request("test", &[entry(), descriptor("k", "v").repeat(65)]);
    let too_many = "more descriptors in one request than the 256 that are accepted";
    let too_deep = "descriptor 1 has more entries than the 64";
    check(&[
        ("nothing", vec![], Code::Unknown, no_domain),
        ("an empty domain", request("", &[entry()]), Code::Unknown, no_domain),
        ("no descriptors", request("test", &[]), Code::Unknown, no_list),
        // The same bytes are a request without descriptors.
        ("a health check", bytes_field(1, "ratelimit"), Code::Unknown, no_list),
        ("no unit", overridden(0), Code::InvalidArgument, no_unit),
        ("a unit that is none", overridden(99), Code::InvalidArgument, no_unit),
        ("a negative unit", overridden(u64::MAX), Code::InvalidArgument, no_unit),
        ("a thousand descriptors", thousand, Code::InvalidArgument, too_many),
        ("65 entries", deep, Code::InvalidArgument, too_deep),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_decoded_gets_its_reason() {
    let entry = || descriptor("three", "bad");
    let value = request("test", &[descriptor("k", b"\xFF\xFE")]);
    let key = request("test", &[descriptor(b"\xC0\x80", "v")]);
    let endless = [&[0x18][..], &[0xFF; 20]].concat();
    let long = request("test", &[descriptor("three", vec![b'v'; MIB])]);
    check(&[
        ("a value that is not UTF-8", value, Code::Internal, "UTF-8"),
        ("a key that is not UTF-8", key, Code::Internal, "UTF-8"),
        ("a domain that is not UTF-8", request(b"\x80", &[entry()]), Code::Internal, "UTF-8"),
        ("a domain that is a number", number_field(1, 7), Code::Internal, "wire type"),
        ("field 0", vec![0], Code::Internal, "tag"),
        ("a number without end", endless, Code::Internal, "varint"),
        ("a length past the end", vec![0x0A, 200, 1, b'x'], Code::Internal, "underflow"),
        ("more than 1 MiB", long, Code::ResourceExhausted, "the limit is: 1048576 bytes"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_beginning_of_a_message_is_answered() {
    let (pod, _rules) = pod().await;
    let pair = Pair::open(pod.grpc).await;
    let whole = request("test", &[[descriptor("plenty", "v"), limit(7), hits(2)].concat()]);
    let mut refused = 0;
    for end in 0..whole.len() {
        let reply = pair.faulty.call(&whole[..end]).await;
        assert_ne!(reply.code, Code::Ok, "{end} bytes of {}: {reply:?}", whole.len());
        assert!(!reply.reason.is_empty(), "{end} bytes: {reply:?}");
        refused += usize::from(reply.code == Code::Internal);
    }
    assert!(refused > whole.len() / 2, "{refused} of {} were faulty", whole.len());
    pair.serve_on("all beginnings").await;
    pod.is_unharmed();
}

/// `docs/design.md`: a refusal would let a client exceed the limit by sending such a value.
#[tokio::test(flavor = "multi_thread")]
async fn long_values_are_counted_like_any() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    for length in [20_000, 1_000_000] {
        for last in ["x", "y"] {
            let value = "v".repeat(length) + last;
            let message = request("test", &[descriptor("three", &value)]);
            for expected in [false, false, false, true] {
                let reply = connection.call(&message).await;
                assert_eq!(reply.is_over_limit(), Some(expected), "{length}{last}: {reply:?}");
            }
        }
    }
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_may_be_any_number() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    let one = |key: &str, value: &str, more: &[u8]| [&descriptor(key, value), more].concat();
    for huge in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 53, 1 << 32] {
        let name = huge.to_string();
        for key in ["three", "plenty"] {
            let charged = one(key, &name, &hits(huge));
            let given_back = one(key, &name, &[hits(huge), refund()].concat());
            let twice = request("test", &[charged.clone(), charged.clone()]);
            for (message, expected) in [
                (request("test", std::slice::from_ref(&given_back)), false),
                (request("test", &[one(key, &name, &hits(1))]), false),
                (request("test", std::slice::from_ref(&given_back)), false),
                (twice, true),
                (request("test", &[one(key, &name, &hits(0))]), true),
                (request("test", &vec![given_back; 256]), false),
                (request("test", &[one(key, &name, &hits(1))]), false),
            ] {
                let reply = connection.call(&message).await;
                assert_eq!(reply.is_over_limit(), Some(expected), "{key} {name}: {reply:?}");
            }
        }
    }
    // The request's own hits: a limit of u32::MAX allows u32::MAX of them once.
    let all = number_field(3, u64::from(u32::MAX));
    let message = [request("test", &[descriptor("plenty", "all")]), all].concat();
    for expected in [false, true] {
        assert_eq!(connection.call(&message).await.is_over_limit(), Some(expected));
    }
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_gives_back_no_more_than_was_charged() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    let one = |hits: u64, more: &[u8]| {
        let descriptor = [&descriptor("three", "back"), &super::hits(hits), more].concat();
        request("test", &[descriptor])
    };
    // A refund of a key that nothing was charged to.
    assert_eq!(connection.call(&one(9, &refund())).await.is_over_limit(), Some(false));
    for expected in [false, false, false, true] {
        assert_eq!(connection.call(&one(1, &[])).await.is_over_limit(), Some(expected));
    }
    for _ in 0..2 {
        assert_eq!(connection.call(&one(1_000, &refund())).await.is_over_limit(), Some(false));
    }
    for expected in [false, false, false, true] {
        assert_eq!(connection.call(&one(1, &[])).await.is_over_limit(), Some(expected));
    }
    // One hit of three.
    assert_eq!(connection.call(&one(1, &refund())).await.is_over_limit(), Some(false));
    for expected in [false, true] {
        assert_eq!(connection.call(&one(1, &[])).await.is_over_limit(), Some(expected));
    }
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_an_unknown_method_gets_a_grpc_error() {
    let (pod, _rules) = pod().await;
    let pair = Pair::open(pod.grpc).await;
    let ours = || post(SHOULD_RATE_LIMIT);
    let html = Request::post(SHOULD_RATE_LIMIT).header("content-type", "text/html");
    let flagged = |flag: u8| [&[flag], &framed(&good())[1..]].concat();
    let cut = framed(&good())[..20].to_vec();
    let of_4_gib = [&[0], &u32::MAX.to_be_bytes()[..], b"x"].concat();
    let long_header = ours().header("x", "v".repeat(20_000));
    let cases = [
        // tonic has no messages for these.
        (post("/a.b.C/D"), framed(&good()), Code::Unimplemented, ""),
        (post("/"), vec![], Code::Unimplemented, ""),
        (
            post(&SHOULD_RATE_LIMIT.replace("Should", "Could")),
            framed(&good()),
            Code::Unimplemented,
            "",
        ),
        (ours(), vec![], Code::Internal, "Missing request message"),
        (ours(), cut, Code::Internal, "Unexpected EOF"),
        (ours(), of_4_gib, Code::ResourceExhausted, "4294967295 bytes, the limit is: 1048576"),
        (ours(), flagged(1), Code::Internal, "compressed-flag but no grpc-encoding"),
        (ours(), flagged(7), Code::Internal, "invalid compression flag: 7"),
        (ours().header("grpc-encoding", "zip"), flagged(1), Code::Unimplemented, "`zip`"),
        (html, b"<html></html>".to_vec(), Code::Internal, "must be application/grpc"),
        (long_header, framed(&good()), Code::Unknown, "HTTP 431"),
    ];
    for (head, body, code, reason) in cases {
        let name = format!("{head:?}");
        let reply = pair.faulty.request(head, stream::iter([body])).await;
        let reply = reply.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_refused(&name, &reply, code, reason);
        pair.serve_on(&name).await;
    }
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_http_2_end_their_own_connection_only() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let (pod, _rules) = pod().await;
    let neighbour = Connection::open(pod.grpc).await;
    let cases: [&[u8]; 7] = [
        b"GET /healthcheck HTTP/1.1\r\nhost: test\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xFC\x03\x03 a TLS handshake to a port without TLS",
        b"*1\r\n$4\r\nPING\r\n",
        &[0; 100],
        &[0xFF; 100],
        // Data without a stream; then settings, and a header block of garbage.
        &[PREFACE, &[0, 0, 1, 0, 0, 0, 0, 0, 0, 7]].concat(),
        &[PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4, 1, 5, 0, 0, 0, 1], &[0xFF; 4]].concat(),
    ];
    for bytes in cases.into_iter().chain(cases) {
        let mut stream = TcpStream::connect(pod.grpc).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut reported = Vec::new();
        let closed = tokio::time::timeout(CLOSED_WITHIN, stream.read_to_end(&mut reported)).await;
        let name = String::from_utf8_lossy(bytes);
        // With or without a reset: unread data of ours turns the close into a reset.
        assert!(closed.is_ok(), "still open after {name:?}");
        let reply = neighbour.call(&good()).await;
        assert_eq!(reply.is_over_limit(), Some(false), "after {name:?}: {reply:?}");
    }
    assert_eq!(pod.stop().await, 0);
    for reported in
        ["a client speaks TLS to the gRPC port", "a client speaks HTTP/1 to the gRPC port"]
    {
        assert_eq!(pod.logged(reported).len(), 1, "{reported}: {}", pod.log());
    }
}

/// A client that opens calls and cancels them is not disconnected: Envoy's timeouts look the same.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_given_up_disturb_no_other() {
    let (pod, _rules) = pod().await;
    let pair = Pair::open(pod.grpc).await;
    for _ in 0..200 {
        let half = stream::iter([framed(&good())[..9].to_vec()]).chain(stream::pending());
        let call = pair.faulty.request(post(SHOULD_RATE_LIMIT), half);
        assert!(tokio::time::timeout(Duration::from_millis(1), call).await.is_err());
    }
    pair.serve_on("200 calls that were given up").await;
    pod.is_unharmed();
}
