//! A gRPC client on one HTTP/2 connection that sends the `grpc-timeout` of Envoy's default filter,
//! and waits longer than that for the answer, so that late answers are counted, not lost.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use descriptor_pb::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use envoy_types::pb::google::protobuf::UInt64Value;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use pb::rate_limit_response::Code;
use pb::{RateLimitRequest, RateLimitResponse};
use prost::Message;
use tokio::net::TcpStream;

use crate::support::raw_grpc::{SHOULD_RATE_LIMIT, framed};

/// One connection. Clones share it.
#[derive(Clone)]
pub struct Caller {
    calls: SendRequest<Bytes>,
    authority: String,
}

/// One descriptor of a request.
#[derive(Debug, Clone)]
pub struct Line {
    pub entries: Vec<(&'static str, String)>,
    pub hits: u64,
    pub refund: bool,
}

/// No answer of a pod takes this long: a test fails instead of hanging.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// The timeout of each call. A request waits for Redis for as long as this allows, and for at most
/// `LEASE_WAIT_LIMIT` (15 ms), as it does under Envoy's default of 20 ms; the latter would expire
/// before the answer wherever other work keeps the machine busy.
const TIMEOUT: &str = "12S";

/// Bytes before a message in its frame: a flag and a length.
const FRAME: usize = 5;

/// A charge of `hits` for a descriptor of one entry.
pub fn charge(key: &'static str, value: &str, hits: u64) -> Line {
    Line { entries: vec![(key, value.to_owned())], hits, refund: false }
}

/// A refund of `hits` for a descriptor of one entry.
pub fn refund(key: &'static str, value: &str, hits: u64) -> Line {
    Line { refund: true, ..charge(key, value, hits) }
}

fn entry((key, value): &(&'static str, String)) -> Entry {
    Entry { key: (*key).to_owned(), value: value.clone() }
}

/// A request with a descriptor for each line.
pub fn request(domain: &str, lines: &[Line]) -> RateLimitRequest {
    let descriptors = lines.iter().map(|line| descriptor_pb::RateLimitDescriptor {
        entries: line.entries.iter().map(entry).collect(),
        hits_addend: Some(UInt64Value { value: line.hits }),
        is_negative_hits: line.refund,
        ..Default::default()
    });
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.collect(),
        hits_addend: 0,
    }
}

// === impl Caller ===

impl Caller {
    pub async fn open(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).await.expect("the pod takes a connection");
        stream.set_nodelay(true).expect("a socket without delay");
        let (calls, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        Self { calls, authority: server.to_string() }
    }

    /// The answer; an error is a failed connection, or a gRPC status other than OK.
    pub async fn ask(self, request: RateLimitRequest) -> Result<RateLimitResponse, String> {
        let exchange = tokio::time::timeout(ANSWER_MAX, self.exchange(request));
        exchange.await.map_err(|_| format!("no answer within {ANSWER_MAX:?}"))?
    }

    async fn exchange(self, request: RateLimitRequest) -> Result<RateLimitResponse, String> {
        let broken = |error: h2::Error| error.to_string();
        let head = Request::builder()
            .method("POST")
            .uri(format!("http://{}{SHOULD_RATE_LIMIT}", self.authority))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", TIMEOUT)
            .body(())
            .expect("a request");
        let mut calls = self.calls.ready().await.map_err(broken)?;
        let (response, mut body) = calls.send_request(head, false).map_err(broken)?;
        let message = Bytes::from(framed(&request.encode_to_vec()));
        body.send_data(message, true).map_err(broken)?;
        let (head, mut body) = response.await.map_err(broken)?.into_parts();
        let mut answer = Vec::new();
        while let Some(piece) = body.data().await {
            let piece = piece.map_err(broken)?;
            body.flow_control().release_capacity(piece.len()).map_err(broken)?;
            answer.extend_from_slice(&piece);
        }
        let trailers = body.trailers().await.map_err(broken)?.unwrap_or_default();
        refused(&trailers).or_else(|| refused(&head.headers)).map_or(Ok(()), Err)?;
        let message = answer.get(FRAME..).ok_or("no message")?;
        RateLimitResponse::decode(message).map_err(|error| error.to_string())
    }

    /// Whether a request passes. Fails the test if there is no verdict.
    pub async fn passes(&self, domain: &str, lines: &[Line]) -> bool {
        passes(&self.answer(domain, lines).await)
    }

    async fn answer(&self, domain: &str, lines: &[Line]) -> RateLimitResponse {
        let answer = self.clone().ask(request(domain, lines)).await;
        answer.unwrap_or_else(|error| panic!("{lines:?}: {error}"))
    }
}

/// Whether this verdict lets a request pass.
pub fn passes(answer: &RateLimitResponse) -> bool {
    match answer.overall_code() {
        Code::Ok => true,
        Code::OverLimit => false,
        Code::Unknown => panic!("no verdict: {answer:?}"),
    }
}

/// The gRPC status in `headers`, if it is not OK.
fn refused(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let status = text("grpc-status");
    (!["", "0"].contains(&status)).then(|| format!("status {status}: {}", text("grpc-message")))
}
