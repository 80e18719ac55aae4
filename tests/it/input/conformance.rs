//! The protocol's rules for calls unlike Envoy's (gRPC over HTTP/2, `PROTOCOL-HTTP2.md`, and gRPC's
//! table of statuses): each call gets its gRPC and HTTP status, and its headers.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code as Verdict;
use futures_util::stream;
use http::Request;
use http::request::Builder;
use prost::Message;
use tonic::Code;

use super::{descriptor, good, pod, request};
use crate::support::raw_grpc::{Connection, Reply, SHOULD_RATE_LIMIT, framed, post};

/// The head of a valid call, with another header.
fn with(name: &str, value: &str) -> Builder {
    post(SHOULD_RATE_LIMIT).header(name, value)
}

async fn ask(connection: &Connection, head: Builder, body: impl Into<Vec<u8>>) -> Reply {
    let name = format!("{head:?}");
    let reply = connection.request(head, stream::iter([body.into()])).await;
    reply.unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    reply.headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_say_nothing_new_change_nothing() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    let ours = |content_type: &str| {
        Request::post(SHOULD_RATE_LIMIT).header("content-type", content_type.to_owned())
    };
    let heads = [
        // Without `te`, which only serves proxies, and with variants of the protobuf type.
        ours("application/grpc"),
        ours("application/grpc+proto"),
        ours("application/grpc;charset=utf-8"),
        with("grpc-encoding", "identity"),
        with("grpc-accept-encoding", "gzip,deflate"),
        with("user-agent", "grpc-go/1.80.0"),
        with("grpc-message-type", "envoy.service.ratelimit.v3.RateLimitRequest"),
        // Metadata, including binary values, one of which is not base64.
        with("trace-bin", "AAECAwQ"),
        with("trace-bin", "?"),
        with("x-any", "Ä"),
        // Valid timeouts, and invalid ones.
        with("grpc-timeout", "1H"),
        with("grpc-timeout", "1M"),
        with("grpc-timeout", "20S"),
        with("grpc-timeout", "20000m"),
        with("grpc-timeout", "20000000u"),
        with("grpc-timeout", "99999999H"),
        with("grpc-timeout", "123456789S"),
        with("grpc-timeout", "20"),
        with("grpc-timeout", "soon"),
    ];
    for head in heads {
        let name = format!("{head:?}");
        let reply = ask(&connection, head, framed(&good())).await;
        assert_eq!((reply.status, reply.is_over_limit()), (200, Some(false)), "{name}: {reply:?}");
        assert_eq!(header(&reply, "content-type"), Some("application/grpc"), "{name}");
    }
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_call_of_grpc_hears_so_in_the_words_of_http() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    for path in [SHOULD_RATE_LIMIT, "/grpc.health.v1.Health/Check", "/", "/a/b"] {
        for content_type in ["text/html", "application/json", "application/grpc-web", "", "é"] {
            let head = Request::post(path).header("content-type", content_type);
            let reply = ask(&connection, head, framed(&good())).await;
            assert_eq!((reply.status, reply.code), (415, Code::Internal), "{path}: {reply:?}");
            assert!(reply.reason.contains("application/grpc"), "{reply:?}");
        }
        let reply = ask(&connection, Request::post(path), framed(&good())).await;
        assert_eq!(reply.status, 415, "{path}, without a type: {reply:?}");
        for method in ["GET", "PUT", "DELETE", "OPTIONS", "BREW"] {
            let reply = ask(&connection, post(path).method(method), framed(&good())).await;
            assert_eq!((reply.status, reply.code), (405, Code::Internal), "{method}: {reply:?}");
            assert_eq!(header(&reply, "allow"), Some("POST"), "{method}");
        }
    }
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_not_implemented() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    for path in [
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.health.v1.Health/Lists",
        "/envoy.service.ratelimit.v3.RateLimitService/",
        "/envoy.service.ratelimit.v3.RateLimitService",
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
        "//",
        "/a/b/c",
        "/%2e%2e/x?y=z",
    ] {
        let reply = ask(&connection, post(path), framed(&good())).await;
        assert_eq!((reply.status, reply.code), (200, Code::Unimplemented), "{path}: {reply:?}");
    }
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_has_one_message_in_any_pieces_and_no_encoding_but_gzip() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    let (one, two) = (framed(&good()), framed(&good()).repeat(2));
    let flagged = [&[1], &one[1..]].concat();
    for encoding in ["deflate", "zstd", "snappy"] {
        let reply = ask(&connection, with("grpc-encoding", encoding), flagged.clone()).await;
        assert_eq!(reply.code, Code::Unimplemented, "{encoding}: {reply:?}");
        assert_eq!(header(&reply, "grpc-accept-encoding"), Some("gzip,identity"), "{reply:?}");
    }
    let reply = ask(&connection, with("grpc-encoding", "gzip"), flagged.clone()).await;
    assert_eq!(reply.code, Code::Internal, "it is no gzip: {reply:?}");
    let cases: [(&[&[u8]], Code); 5] = [
        (&[&two], Code::Unimplemented),
        (&[&one, &one], Code::Unimplemented),
        (&[&one[..9], &one[9..], &one], Code::Unimplemented),
        (&[&two, &two], Code::Unimplemented),
        (&[&one, &one[..9]], Code::Internal),
    ];
    for (pieces, code) in cases {
        let body = stream::iter(pieces.iter().map(|piece| piece.to_vec()).collect::<Vec<_>>());
        let reply = connection.request(post(SHOULD_RATE_LIMIT), body).await.unwrap();
        assert_eq!(reply.code, code, "{pieces:?}: {reply:?}");
    }
    for cut in 0..=one.len() {
        let bytes = |bytes: &[u8]| bytes.iter().map(|byte| vec![*byte]).collect::<Vec<_>>();
        let pieces = [vec![one[..cut].to_vec()], bytes(&one[cut..])].concat();
        let reply = connection.request(post(SHOULD_RATE_LIMIT), stream::iter(pieces)).await;
        assert_eq!(reply.unwrap().is_over_limit(), Some(false), "cut at {cut}");
    }
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_whole_whatever_is_asked() {
    let (pod, _rules) = pod().await;
    let connection = Connection::open(pod.grpc).await;
    let many: Vec<_> = (0..256).map(|n| descriptor("plenty", n.to_string())).collect();
    let reply = connection.call(&request("test", &many)).await;
    assert_eq!(reply.is_over_limit(), Some(false));
    let answer = RateLimitResponse::decode(&*reply.message).unwrap();
    assert_eq!(answer.statuses.len(), many.len());
    for status in &answer.statuses {
        // Each descriptor is a key of its own, which is charged one token.
        assert_eq!((status.code(), status.limit_remaining), (Verdict::Ok, u32::MAX - 1));
    }
    let reply = connection.call(&request("", &many)).await;
    assert_eq!((reply.status, reply.code), (200, Code::Unknown));
    assert_eq!(
        header(&reply, "grpc-message"),
        Some("rate%20limit%20domain%20must%20not%20be%20empty")
    );
    assert_eq!(reply.reason, "rate limit domain must not be empty");
    pod.is_unharmed();
}
