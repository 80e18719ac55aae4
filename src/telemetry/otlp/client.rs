//! Carries messages to a collector, one at a time: over gRPC, or in the body of a POST.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderValue, TE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected, Full, LengthLimitError, Limited};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use prost::Message;
use tokio::time::timeout;
use tracing::{info, warn};

use super::message::Exported;
use crate::settings::{Otlp, OtlpProtocol};
use crate::time::{Clock, Time};

/// Bytes of an answer at most. A good one has a handful.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// From one line about a collector that cannot be reached to the next.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Characters of a collector's own words that are logged.
const WORDS_MAX: usize = 200;

/// A connection for each kind of telemetry, made when it is needed.
#[derive(Debug)]
pub(crate) struct Client {
    http: legacy::Client<HttpConnector, Full<Bytes>>,
    otlp: Otlp,
}

/// Tells people of pushes that fail, once in a while.
#[derive(Debug)]
pub(crate) struct Told {
    /// What is pushed, in the plural.
    what: &'static str,
    clock: Clock,
    /// When a failure was told last; `None` while all is well.
    last: Mutex<Option<Time>>,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(otlp: Otlp) -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(1)
            .http2_only(otlp.protocol == OtlpProtocol::Grpc);
        Self { http: builder.build_http(), otlp }
    }

    /// Sends `message` and waits for the answer: how many of its items were refused.
    ///
    /// # Errors
    ///
    /// Why it did not arrive, or was refused as a whole; never what the headers hold.
    pub(crate) async fn send(&self, message: &impl Message) -> Result<u64, String> {
        let limit = self.otlp.timeout;
        let sent = timeout(limit, self.carry(message)).await;
        sent.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
    }

    async fn carry(&self, message: &impl Message) -> Result<u64, String> {
        let sent = self.http.request(self.request(message)).await;
        let (head, body) = sent.map_err(|error| causes(&error))?.into_parts();
        let body =
            Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| {
                match error.downcast::<LengthLimitError>() {
                    Ok(_) => format!("an answer of more than {ANSWER_BYTES_MAX} bytes"),
                    Err(error) => causes(&*error),
                }
            })?;
        let answer = match self.otlp.protocol {
            OtlpProtocol::Http => answer(head.status, body)?,
            OtlpProtocol::Grpc => grpc_answer(&Response::from_parts(head, ()), body)?,
        };
        // What cannot be read says nothing against the items.
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
        request.headers_mut().extend(headers.clone());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        request
    }
}

/// One message of gRPC: not compressed, its length, itself.
fn framed(message: &impl Message) -> Bytes {
    let encoded = message.encode_to_vec();
    let mut frame = BytesMut::with_capacity(GRPC_PREFIX_BYTES + encoded.len());
    frame.put_u8(0);
    // Telemetry of 4 GiB cannot be: its queues are bounded.
    frame.put_u32(u32::try_from(encoded.len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(&encoded);
    frame.freeze()
}

/// A flag for compression, and the length.
const GRPC_PREFIX_BYTES: usize = 5;

fn answer(status: StatusCode, body: Collected<Bytes>) -> Result<Bytes, String> {
    if status.is_success() { Ok(body.to_bytes()) } else { Err(format!("it answered {status}")) }
}

fn grpc_answer(head: &Response<()>, body: Collected<Bytes>) -> Result<Bytes, String> {
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
            Err(format!("it answered with the gRPC status {status}: {words}"))
        }
        None => Err(format!("it does not speak gRPC: it answered {}", head.status())),
    }
}

/// An error with those behind it: the first alone says little.
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

    /// After a push of `items`; how many of them are lost.
    pub(crate) fn note(&self, items: u64, pushed: &Result<u64, String>) -> u64 {
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
            Err(why) => {
                if self.is_due() {
                    let mend = "see OTEL_EXPORTER_OTLP_ENDPOINT";
                    warn!(items, "{what} cannot be pushed and are lost: {why}; {mend}");
                }
                items
            }
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
