//! One span: the data recorded of a request between its beginning and its end.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use ratelease_cli::grpc_codes::GRPC_CODES;
use ratelease_engine::span_context::SpanContext;
use ratelease_engine::time::{Clock, Time};
use ratelease_engine::verdict::Verdict;
use ratelease_rules::request::Request;

use super::export::Queue;
use crate::telemetry::otlp::message::{KeyValue, Span as Message, Status, StatusCode};
use crate::telemetry::otlp::nanos;
use crate::telemetry::samples::rule_of;

/// A span that has begun. A cheap handle: clones are the same span. It ends with [`Span::end`]; a
/// span whose last handle is dropped before that was given up, by its client or because of its
/// deadline.
#[derive(Debug, Clone)]
pub struct Span(Arc<Open>);

/// How a span ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With this gRPC status, by number.
    Grpc(i32),
    /// With this HTTP status.
    Http(u16),
    /// An exchange with the store, in which this many asks failed.
    Failed(usize),
}

/// The gRPC codes that are a server's error by OpenTelemetry's conventions. The others are the
/// client's.
const SERVER_ERRORS: [&str; 6] =
    ["UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"];

/// Maximum number of bytes shown of a domain: the client chooses it.
const DOMAIN_BYTES_MAX: usize = 256;

#[derive(Debug)]
struct Open {
    /// `None` once it has ended.
    message: Mutex<Option<Message>>,
    context: SpanContext,
    begun: Time,
    /// The outcome if the span is given up.
    given_up: Outcome,
    clock: Clock,
    queue: Queue,
}

// === impl Span ===

impl Span {
    pub(super) fn new(
        mut message: Message,
        context: SpanContext,
        given_up: Outcome,
        clock: Clock,
        queue: Queue,
    ) -> Self {
        message.trace_id = context.trace.to_vec();
        message.span_id = context.span.to_vec();
        let message = Mutex::new(Some(message));
        Self(Arc::new(Open { message, context, begun: clock.now(), given_up, clock, queue }))
    }

    /// Runs `call` and returns its result. Log lines written and asks sent during the call refer to
    /// the span.
    pub fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        self.0.context.within(call)
    }

    /// Like [`Span::within`], for a call that may wait.
    pub async fn around<F: Future>(&self, call: F) -> F::Output {
        let mut call = pin!(call);
        poll_fn(|cx| self.within(|| call.as_mut().poll(cx))).await
    }

    /// Records the decision. If there are several descriptors, records the one that bounds the
    /// request; never the values of descriptors.
    pub fn note(&self, request: &Request<'_>, verdict: &Verdict<'_>) {
        let end = request.domain.floor_char_boundary(DOMAIN_BYTES_MAX);
        let mut noted = vec![
            KeyValue::text("ratelease.domain", &request.domain[..end]),
            KeyValue::text("ratelease.verdict", verdict.code.name()),
            KeyValue::number("ratelease.descriptors", request.descriptors.len()),
        ];
        if let Some(status) = verdict.tightest.and_then(|at| verdict.statuses.get(at)) {
            noted.push(KeyValue::text("ratelease.rule", rule_of(status)));
            noted.push(KeyValue::number("ratelease.remaining", status.remaining));
            if let Some(counted) = status.counted {
                noted.push(KeyValue::text("ratelease.how", counted.how.name()));
            }
        }
        if let Some(message) = self.0.message.lock().as_mut() {
            message.attributes.extend(noted);
        }
    }

    /// Ends the span now; a second end has no effect.
    pub fn end(&self, outcome: Outcome) {
        self.0.end(outcome);
    }

    /// Drops the span as if it had not begun.
    pub fn discard(&self) {
        self.0.message.lock().take();
    }
}

// === impl Open ===

impl Open {
    fn end(&self, outcome: Outcome) {
        let Some(mut message) = self.message.lock().take() else { return };
        let took = self.clock.now().since(self.begun);
        message.end_time_unix_nano = message.start_time_unix_nano.saturating_add(nanos(took));
        outcome.describe(&mut message);
        self.queue.push(message);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.end(self.given_up);
    }
}

// === impl Outcome ===

impl Outcome {
    fn describe(self, message: &mut Message) {
        let mut fail = |why: String| {
            message.attributes.push(KeyValue::text("error.type", why));
            message.status =
                Some(Status { code: StatusCode::Error.into(), message: String::new() });
        };
        let shown = match self {
            Self::Grpc(code) => {
                let known = usize::try_from(code).ok().and_then(|code| GRPC_CODES.get(code));
                let name = known.map_or_else(|| code.to_string(), |&name| name.to_owned());
                if SERVER_ERRORS.contains(&name.as_str()) {
                    fail(name.clone());
                }
                KeyValue::text("rpc.response.status_code", name)
            }
            Self::Http(status) => {
                if status >= 500 {
                    fail(status.to_string());
                }
                KeyValue::number("http.response.status_code", status)
            }
            Self::Failed(asks) => {
                if asks > 0 {
                    fail("_OTHER".to_owned());
                }
                KeyValue::number("ratelease.asks_failed", asks)
            }
        };
        message.attributes.push(shown);
    }
}
