//! Sends messages to a collector, one at a time: over gRPC, or in the body of a POST.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderValue, TE, USER_AGENT};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Collected, Full, LengthLimitError, Limited};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use prost::Message;
use ratelease_cli::settings::{Otlp, OtlpProtocol};
use ratelease_engine::time::{Clock, Time};
use tokio::time::timeout;
use tracing::{info, warn};

use super::connect::Connector;
use super::message::Exported;
use super::retry::{Again, ExportError};

/// Maximum size in bytes of an answer. A successful one has a handful.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Interval between log lines about a collector that cannot be reached.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Maximum number of characters logged of a collector's error message.
const WORDS_MAX: usize = 200;

/// The user agent, if the settings contain no such header.
const AGENT: &str = concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION"));

/// A connection for one kind of telemetry, made when it is needed.
#[derive(Debug)]
pub(crate) struct Client {
    http: Mutex<Http>,
    otlp: Otlp,
}

/// Its clones share the connection.
type Http = legacy::Client<Connector, Full<Bytes>>;

/// Logs failed pushes, at most once in each interval.
#[derive(Debug)]
pub(crate) struct Told {
    /// What is pushed, in the plural.
    what: &'static str,
    clock: Clock,
    /// When a failure was last logged; `None` while pushes succeed.
    last: Mutex<Option<Time>>,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(otlp: Otlp) -> Self {
        Self { http: Mutex::new(unconnected(&otlp)), otlp }
    }

    /// Sends `message` and waits for the answer; returns how many of its items were refused.
    ///
    /// # Errors
    ///
    /// Returns why it did not arrive, or was refused as a whole. The text never contains the values
    /// of headers.
    pub(crate) async fn send(&self, message: &impl Message) -> Result<u64, ExportError> {
        let limit = self.otlp.timeout;
        let sent = timeout(limit, self.carry(message)).await;
        sent.unwrap_or_else(|_| {
            // HTTP/2 would reuse the connection, and if the other end has vanished silently, go on
            // doing so until the kernel gives the connection up, after a quarter of an hour.
            *self.http.lock() = unconnected(&self.otlp);
            Err(ExportError { why: format!("no answer within {limit:?}"), again: Again::Later })
        })
    }

    async fn carry(&self, message: &impl Message) -> Result<u64, ExportError> {
        let http = self.http.lock().clone();
        let sent = http.request(self.request(message)).await;
        let (head, body) = sent.map_err(|error| broken(&error))?.into_parts();
        let body =
            Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| {
                match error.downcast::<LengthLimitError>() {
                    Ok(_) => {
                        let why = format!("an answer of more than {ANSWER_BYTES_MAX} bytes");
                        ExportError { why, again: Again::Never }
                    }
                    Err(error) => broken(&*error),
                }
            })?;
        let head = Response::from_parts(head, ());
        let answer = match self.otlp.protocol {
            OtlpProtocol::Http => answer(&head, body)?,
            OtlpProtocol::Grpc => grpc_answer(&head, body)?,
        };
        // An answer that cannot be decoded does not mean that items were refused.
        let partial = Exported::decode(answer).unwrap_or_default().partial_success;
        Ok(partial.map_or(0, |partial| u64::try_from(partial.rejected).unwrap_or(0)))
    }

    fn request(&self, message: &impl Message) -> Request<Full<Bytes>> {
        let Otlp { protocol, endpoint, headers, .. } = &self.otlp;
        let mut request = Request::new(Full::new(match protocol {
            OtlpProtocol::Http => message.encode_to_vec().into(),
            OtlpProtocol::Grpc => framed(message),
        }));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = endpoint.clone();
        let content_type = match protocol {
            OtlpProtocol::Http => "application/x-protobuf",
            OtlpProtocol::Grpc => {
                request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
                "application/grpc"
            }
        };
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        request.headers_mut().extend(headers.clone());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        request
    }
}

/// Creates a client without a connection; it connects when needed.
fn unconnected(otlp: &Otlp) -> Http {
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(1)
        .http2_only(otlp.protocol == OtlpProtocol::Grpc);
    builder.build(Connector::new(otlp.tls.as_ref()))
}

/// One gRPC message: no compression, the length, the message.
fn framed(message: &impl Message) -> Bytes {
    let encoded = message.encode_to_vec();
    let mut frame = BytesMut::with_capacity(GRPC_PREFIX_BYTES + encoded.len());
    frame.put_u8(0);
    // Telemetry cannot reach 4 GiB: its queues are bounded.
    frame.put_u32(u32::try_from(encoded.len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(&encoded);
    frame.freeze()
}

/// Size in bytes of the prefix: a flag for compression, and the length.
const GRPC_PREFIX_BYTES: usize = 5;

fn answer(head: &Response<()>, body: Collected<Bytes>) -> Result<Bytes, ExportError> {
    let status = head.status();
    if status.is_success() {
        return Ok(body.to_bytes());
    }
    Err(ExportError { why: format!("it answered {status}"), again: Again::of_http(head) })
}

fn grpc_answer(head: &Response<()>, body: Collected<Bytes>) -> Result<Bytes, ExportError> {
    let no_trailers = HeaderMap::new();
    let trailers = body.trailers().unwrap_or(&no_trailers);
    // An answer without a message has its status among the headers.
    let of = |name| trailers.get(name).or_else(|| head.headers().get(name));
    match of("grpc-status").and_then(|status| status.to_str().ok()) {
        Some("0") => {
            let mut message = body.to_bytes();
            message.advance(GRPC_PREFIX_BYTES.min(message.len()));
            Ok(message)
        }
        Some(status) => {
            let words = of("grpc-message").and_then(|words| words.to_str().ok());
            let words: String = words.unwrap_or_default().chars().take(WORDS_MAX).collect();
            let why = format!("it answered with the gRPC status {status}: {words}");
            let details = of("grpc-status-details-bin").map_or(&[][..], HeaderValue::as_bytes);
            Err(ExportError { why, again: Again::of_grpc(status, details) })
        }
        None => {
            let why = format!("it does not speak gRPC: it answered {}", head.status());
            Err(ExportError { why, again: Again::of_http(head) })
        }
    }
}

/// The error of a connection that could not be made, or broke.
fn broken(error: &(dyn std::error::Error + 'static)) -> ExportError {
    ExportError { why: causes(error), again: Again::Later }
}

/// The text of an error and of its sources: the first alone says little.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

// === impl Told ===

impl Told {
    pub(crate) fn new(what: &'static str, clock: Clock) -> Self {
        Self { what, clock, last: Mutex::new(None) }
    }

    /// Records the last try of a push of `items`; returns how many of them are lost.
    pub(crate) fn note(&self, items: u64, pushed: &Result<u64, ExportError>) -> u64 {
        let what = self.what;
        match pushed {
            Ok(0) => {
                if self.last.lock().take().is_some() {
                    info!("{what} are pushed again");
                }
                0
            }
            Ok(refused) => {
                if self.is_due() {
                    warn!(refused, items, "the collector refuses some {what}");
                }
                *refused
            }
            Err(unsent) => {
                self.note_try(unsent);
                items
            }
        }
    }

    /// Records a failed try that may be followed by another.
    pub(crate) fn note_try(&self, unsent: &ExportError) {
        if self.is_due() {
            let (what, why) = (self.what, &unsent.why);
            warn!("{what} cannot be pushed: {why}; see OTEL_EXPORTER_OTLP_ENDPOINT");
        }
    }

    fn is_due(&self) -> bool {
        let now = self.clock.now();
        let mut last = self.last.lock();
        let is_due = last.is_none_or(|last| now.since(last) >= TOLD_EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}
