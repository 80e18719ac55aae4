//! One span: the data recorded of a request between its beginning and its end.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::{Span as _, Status};
use opentelemetry::{Key, KeyValue};
use opentelemetry_sdk::trace::Span as SdkSpan;
use parking_lot::Mutex;
use ratelease_cli::grpc_codes::GRPC_CODES;
use ratelease_engine::span_context::SpanContext;
use ratelease_engine::time::{Clock, Time};
use ratelease_engine::verdict::Verdict;
use ratelease_otlp::span_pipeline;
use ratelease_rules::request::Request;

use crate::samples::rule_of;

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

/// When a span began, by both clocks: the end follows from the one that never jumps.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) started: SystemTime,
    pub(super) begun: Time,
    pub(super) clock: Clock,
}

#[derive(Debug)]
struct Open {
    span: Mutex<SdkSpan>,
    context: SpanContext,
    start: Start,
    /// The outcome if the span is given up.
    given_up: Outcome,
}

// === impl Span ===

impl Span {
    pub(super) fn new(span: SdkSpan, start: Start, given_up: Outcome) -> Self {
        let context = span.span_context();
        let (trace, id) = (context.trace_id().to_bytes(), context.span_id().to_bytes());
        let context = SpanContext { trace, span: id };
        Self(Arc::new(Open { span: Mutex::new(span), context, start, given_up }))
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
            KeyValue::new("ratelease.domain", request.domain[..end].to_owned()),
            KeyValue::new("ratelease.verdict", verdict.code.name()),
            number("ratelease.descriptors", request.descriptors.len()),
        ];
        if let Some(status) = verdict.tightest.and_then(|at| verdict.statuses.get(at)) {
            noted.push(KeyValue::new("ratelease.rule", rule_of(status).to_owned()));
            noted.push(number("ratelease.remaining", status.remaining));
            if let Some(counted) = status.counted {
                noted.push(KeyValue::new("ratelease.how", counted.how.name()));
            }
        }
        self.0.span.lock().set_attributes(noted);
    }

    /// Ends the span now; a second end has no effect.
    pub fn end(&self, outcome: Outcome) {
        self.0.end(outcome);
    }

    /// Drops the span as if it had not begun. The SDK ends every span that is dropped, so the
    /// pipeline has to leave it out.
    pub fn discard(&self) {
        let mut span = self.0.span.lock();
        span_pipeline::discard(&mut *span);
    }
}

// === impl Open ===

impl Open {
    fn end(&self, outcome: Outcome) {
        let mut span = self.span.lock();
        if span.is_recording() {
            outcome.describe(&mut span);
            let Start { started, begun, clock } = &self.start;
            span.end_with_timestamp(*started + clock.now().since(*begun));
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.end(self.given_up);
    }
}

// === impl Outcome ===

impl Outcome {
    fn describe(self, span: &mut SdkSpan) {
        let mut fail = |why: String| {
            span.set_attribute(KeyValue::new("error.type", why));
            span.set_status(Status::error(""));
        };
        let shown = match self {
            Self::Grpc(code) => {
                let known = usize::try_from(code).ok().and_then(|code| GRPC_CODES.get(code));
                let name = known.map_or_else(|| code.to_string(), |&name| name.to_owned());
                if SERVER_ERRORS.contains(&name.as_str()) {
                    fail(name.clone());
                }
                KeyValue::new("rpc.response.status_code", name)
            }
            Self::Http(status) => {
                if status >= 500 {
                    fail(status.to_string());
                }
                number("http.response.status_code", status)
            }
            Self::Failed(asks) => {
                if asks > 0 {
                    fail("_OTHER".to_owned());
                }
                number("ratelease.asks_failed", asks)
            }
        };
        span.set_attribute(shown);
    }
}

/// An attribute; a number too large for the protocol becomes the largest.
pub(super) fn number(key: impl Into<Key>, value: impl TryInto<i64>) -> KeyValue {
    KeyValue::new(key, value.try_into().unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use opentelemetry::Context;
    use opentelemetry::trace::Tracer;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SdkTracer, SpanData, SpanProcessor};
    use ratelease_cli::settings::Identity;

    use super::*;
    use ratelease_otlp::origin::{Origin, system_time};
    use ratelease_otlp::span_pipeline::SpanPipeline;

    /// Passes on the spans that end.
    #[derive(Debug)]
    struct Ended(mpsc::Sender<SpanData>);

    impl SpanProcessor for Ended {
        fn on_start(&self, _: &mut SdkSpan, _: &Context) {}
        fn on_end(&self, span: SpanData) {
            let _ = self.0.send(span);
        }
        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }
        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    fn begin(tracer: &SdkTracer) -> Span {
        let clock = Clock::start();
        let start = Start { started: system_time(), begun: clock.now(), clock };
        Span::new(tracer.start("a span"), start, Outcome::Grpc(1))
    }

    #[test]
    fn a_span_ends_once_and_one_that_is_dropped_was_given_up() {
        let (name, namespace, instance, attributes) = Default::default();
        let origin = Origin::new(Identity { name, namespace, instance, attributes });
        let (sender, ended) = mpsc::channel();
        let pipeline = SpanPipeline::to(Ended(sender), &origin);
        let next = || {
            let span = ended.try_recv().ok()?;
            Some(span.attributes.last().expect("a status").value.to_string())
        };
        begin(pipeline.tracer()).discard();
        assert_eq!(next(), None);
        let span = begin(pipeline.tracer());
        span.end(Outcome::Grpc(0));
        span.end(Outcome::Grpc(2));
        drop(span);
        assert_eq!((next().as_deref(), next()), (Some("OK"), None));
        let dropped = begin(pipeline.tracer());
        drop(dropped.clone());
        assert_eq!(next(), None, "a handle is left");
        drop(dropped);
        assert_eq!(next().as_deref(), Some("CANCELLED"));
    }
}
