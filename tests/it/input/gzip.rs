//! Messages that are compressed with gzip, as clients of gRPC may send them, and the answers.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use http::Request;
use tonic::Code;

use super::pod;
use crate::support::raw_grpc::{
    Connection, Reply, SHOULD_RATE_LIMIT, descriptor, framed, post, request,
};
use crate::support::rng::Rng;

/// Maximum size of a message.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

fn gzip(message: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(message).unwrap();
    encoder.finish().unwrap()
}

/// A frame with a compressed message.
fn compressed(message: &[u8]) -> Vec<u8> {
    let mut frame = framed(&gzip(message));
    frame[0] = 1;
    frame
}

/// A request whose only value has this many bytes.
fn of_length(value: usize) -> Vec<u8> {
    request("test", &[descriptor("plenty", "v".repeat(value))])
}

async fn ask(connection: &Connection, path: &str, accepts: &str, frame: Vec<u8>) -> Reply {
    let head = post(path).header("grpc-encoding", "gzip").header("grpc-accept-encoding", accepts);
    connection.request(head, futures_util::stream::iter([frame])).await.unwrap()
}

fn encoding(reply: &Reply) -> Option<&str> {
    reply.headers.get("grpc-encoding").map(|value| value.to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_request_is_decided_and_answered_as_its_client_accepts() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    let plain = of_length(3);
    let uncompressed = connection.call(&plain).await;
    assert_eq!(encoding(&uncompressed), None, "{uncompressed:?}");
    for (accepts, expected) in
        [("identity", None), ("gzip", Some("gzip")), ("deflate,gzip", Some("gzip"))]
    {
        let reply = ask(&connection, SHOULD_RATE_LIMIT, accepts, compressed(&plain)).await;
        assert_eq!((reply.code, encoding(&reply)), (Code::Ok, expected), "{accepts}: {reply:?}");
        let mut message = reply.message.clone();
        if expected.is_some() {
            message.clear();
            GzDecoder::new(&*reply.message).read_to_end(&mut message).expect("gzip");
        }
        let answer = Reply { message, ..reply };
        assert_eq!(answer.is_over_limit(), Some(false), "{accepts}: {answer:?}");
    }
    // A client may name the encoding, and send a message without it.
    let reply = ask(&connection, SHOULD_RATE_LIMIT, "gzip", framed(&plain)).await;
    assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
    // A client that only accepts gzip gets what the reference sends: the encoding of its request.
    let head = post(SHOULD_RATE_LIMIT).header("grpc-accept-encoding", "gzip");
    let reply =
        connection.request(head, futures_util::stream::iter([framed(&plain)])).await.unwrap();
    assert_eq!((reply.code, encoding(&reply)), (Code::Ok, None), "{reply:?}");
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_a_message_is_that_of_what_it_is_decompressed_to() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    let rest = of_length(MESSAGE_BYTES_MAX - 100).len() - (MESSAGE_BYTES_MAX - 100);
    for (bytes, code) in [
        (MESSAGE_BYTES_MAX, Code::Ok),
        (MESSAGE_BYTES_MAX + 1, Code::ResourceExhausted),
        (64 * MESSAGE_BYTES_MAX, Code::ResourceExhausted),
    ] {
        let frame = compressed(&of_length(bytes - rest));
        assert!(frame.len() < MESSAGE_BYTES_MAX, "{bytes}");
        let reply = ask(&connection, SHOULD_RATE_LIMIT, "gzip", frame).await;
        assert_eq!(reply.code, code, "{bytes}: {:?}", reply.reason);
    }
    // Text that hardly gets shorter: compressed it is more than may be decompressed.
    let mut rng = Rng::new();
    let mut letter = || {
        char::from(b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::try_from(rng.below(36)).unwrap()])
    };
    let value: String = (0..16 << 10).map(|_| letter()).collect();
    let varied = request("test", &[descriptor("plenty", value)]);
    let frame = compressed(&varied);
    assert!(frame.len() > 4 << 10 && frame.len() < varied.len());
    let reply = ask(&connection, SHOULD_RATE_LIMIT, "gzip", frame).await;
    assert_eq!(reply.code, Code::ResourceExhausted, "{reply:?}");
    assert!(reply.reason.contains("without compression"), "{reply:?}");
    assert_eq!(connection.call(&varied).await.code, Code::Ok);
    let mut cut = gzip(&of_length(1_000));
    cut.truncate(cut.len() - 9);
    let mut frame = framed(&cut);
    frame[0] = 1;
    let reply = ask(&connection, SHOULD_RATE_LIMIT, "gzip", frame).await;
    assert_eq!(reply.code, Code::Internal, "{reply:?}");
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_checked_and_listed_with_and_without_compression() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    // HealthCheckRequest: service "ratelimit".
    let name = [&[10, 9][..], b"ratelimit"].concat();
    for (method, message) in [("Check", &*name), ("List", b"")] {
        let path = format!("/grpc.health.v1.Health/{method}");
        let head: http::request::Builder = post(&path);
        let plain =
            connection.request(head, futures_util::stream::iter([framed(message)])).await.unwrap();
        assert_eq!(plain.code, Code::Ok, "{method}: {plain:?}");
        let reply = ask(&connection, &path, "identity", compressed(message)).await;
        assert_eq!((reply.code, reply.message.len()), (Code::Ok, plain.message.len()), "{method}");
        if method == "List" {
            // The map's two entries: "" and "ratelimit", both with status SERVING.
            let of = |name: &str| {
                let status = [18, 2, 8, 1];
                let name =
                    if name.is_empty() { vec![] } else { [&[10, 9], name.as_bytes()].concat() };
                let entry = [&*name, &status].concat();
                [&[10, u8::try_from(entry.len()).unwrap()], &*entry].concat()
            };
            let (none, named) = (of(""), of("ratelimit"));
            let either = [[&*none, &named].concat(), [&*named, &none].concat()];
            assert!(either.contains(&plain.message), "{:?}", plain.message);
        }
    }
    let get = Request::get("/grpc.health.v1.Health/List");
    let reply = connection.request(get, futures_util::stream::iter([vec![]])).await.unwrap();
    assert_eq!(reply.status, 405, "{reply:?}");
    pod.is_unharmed();
}
