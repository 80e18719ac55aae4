//! Spans of requests, for an OpenTelemetry collector.
//!
//! ```text
//! transport ─begin─▶ Span ─note, end─▶ pipeline: the SDK's batches, exporter ─▶ collector
//!    └─ not sampled: nothing
//! ```
//! A request is traced if its parent is, by W3C's `traceparent` or B3's headers; a request without
//! a parent is sampled at random. This is decided before the SDK is called and before anything is
//! allocated, and not at all while tracing is off.

mod b3;
mod context;
mod parent;
mod span;
pub mod traced;

use std::sync::Arc;

use http::HeaderMap;
use opentelemetry::trace::{
    SpanBuilder, SpanContext as RemoteContext, SpanId, SpanKind, TraceContextExt, TraceFlags,
    TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use ratelease_cli::settings::Tracing;
use ratelease_engine::rng;
use ratelease_engine::span_context::SpanContext;
use ratelease_engine::store::Ask;
use ratelease_engine::time::Clock;
use ratelease_otlp::origin::{Origin, system_time};
use ratelease_otlp::span_pipeline::{SpanCounts, SpanPipeline};
use tracing::error;

use crate::metrics::counter::{Count, Counter};
use crate::transport::Transport;
use parent::Parent;
pub use span::{Outcome, Span};
use span::{Start, number};

/// Begins spans. A cheap handle: clones share all state; the default traces nothing.
#[derive(Debug, Clone, Default)]
pub struct Tracer {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    rate: f32,
    clock: Clock,
    pipeline: SpanPipeline,
}

/// `rpc.method`, and the name of the spans.
const METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

// === impl Tracer ===

impl Tracer {
    /// Creates a tracer that sends spans as `settings` say; without settings it traces nothing.
    /// With settings, it must be called in a runtime, which sends the spans.
    pub fn new(origin: &Origin, settings: Option<Tracing>, clock: Clock) -> Self {
        let shared = settings.and_then(|Tracing { rate, otlp }| {
            // The settings have been validated: the exporter has nothing to reject.
            let pipeline = SpanPipeline::start(origin, &otlp, clock)
                .inspect_err(|why| error!("spans cannot be pushed: {why}; none is recorded"))
                .ok()?;
            Some(Arc::new(Shared { rate, clock, pipeline }))
        });
        Self { shared }
    }

    /// Begins a span for a request that arrives at `transport` with these headers, if it is to be
    /// traced.
    pub fn begin(&self, transport: Transport, headers: &HeaderMap) -> Option<Span> {
        let shared = self.shared.as_deref()?;
        let parent = Parent::of(headers);
        let is_sampled = parent.and_then(|parent| parent.is_sampled);
        let is_sampled = is_sampled.unwrap_or_else(|| rng::chance(shared.rate));
        is_sampled.then(|| shared.begin_request(transport, parent, headers))
    }

    /// Begins a span for `ask` on its way to the `shard` of Redis, if a traced request sent it; if
    /// not, it is sampled at random. The span is a child of that request's, or a root.
    pub fn begin_exchange(&self, ask: &Ask, shard: impl FnOnce() -> usize) -> Option<Span> {
        let shared = self.shared.as_deref()?;
        let is_sampled = ask.cause.is_some() || rng::chance(shared.rate);
        is_sampled.then(|| shared.begin_exchange(ask, shard()))
    }

    /// Whether anything may be traced.
    pub fn is_on(&self) -> bool {
        self.shared.is_some()
    }

    /// Exports the spans that have ended so far, and stops. Returns once they have been sent, or
    /// could not be.
    pub async fn shut_down(&self) {
        if let Some(shared) = &self.shared {
            shared.pipeline.shut_down().await;
        }
    }

    /// Event counts since the process began.
    pub fn counts(&self) -> Vec<Count> {
        let counts = self.shared.as_ref().map(|shared| shared.pipeline.counts());
        let SpanCounts { sent, dropped, failed } = counts.unwrap_or_default();
        vec![
            (Counter::SpansSent, sent),
            (Counter::SpansDropped, dropped),
            (Counter::SpansFailed, failed),
        ]
    }
}

// === impl Shared ===

impl Shared {
    #[cold]
    fn begin_request(
        &self,
        transport: Transport,
        parent: Option<Parent>,
        headers: &HeaderMap,
    ) -> Span {
        let (builder, given_up) = match transport {
            Transport::Grpc => {
                let builder = SpanBuilder::from_name(METHOD).with_attributes([
                    KeyValue::new("rpc.system.name", "grpc"),
                    KeyValue::new("rpc.method", METHOD),
                ]);
                // CANCELLED.
                (builder, Outcome::Grpc(1))
            }
            Transport::Http(route) => {
                let (method, path) = (route.method(), route.path());
                let builder = SpanBuilder::from_name(format!("{method} {path}")).with_attributes([
                    KeyValue::new("http.request.method", method),
                    KeyValue::new("http.route", path),
                    KeyValue::new("url.path", path),
                    KeyValue::new("url.scheme", "http"),
                ]);
                // No client receives this status; nginx uses it in its log.
                (builder, Outcome::Http(499))
            }
        };
        let parent = parent.map_or_else(Context::new, |parent| {
            let state = context::state(headers);
            below(SpanContext { trace: parent.trace, span: parent.span }, true, state)
        });
        self.start(builder.with_kind(SpanKind::Server), &parent, given_up)
    }

    #[cold]
    fn begin_exchange(&self, ask: &Ask, shard: usize) -> Span {
        let (builder, parent) = exchange(ask, shard);
        self.start(builder, &parent, Outcome::Failed(1))
    }

    fn start(&self, builder: SpanBuilder, parent: &Context, given_up: Outcome) -> Span {
        let started = system_time();
        let span = builder.with_start_time(started);
        let span = self.pipeline.tracer().build_with_context(span, parent);
        Span::new(span, Start { started, begun: self.clock.now(), clock: self.clock }, given_up)
    }
}

/// A span of `ask` sent to a shard, and its parent.
fn exchange(ask: &Ask, shard: usize) -> (SpanBuilder, Context) {
    let builder = SpanBuilder::from_name("EVALSHA").with_kind(SpanKind::Client).with_attributes([
        KeyValue::new("db.system.name", "redis"),
        KeyValue::new("db.operation.name", "EVALSHA"),
        number("ratelease.shard", shard),
    ]);
    let parent = ask.cause.map_or_else(Context::new, |cause| below(cause, false, TraceState::NONE));
    (builder, parent)
}

/// The context of a child of `parent`.
fn below(parent: SpanContext, is_remote: bool, state: TraceState) -> Context {
    Context::new().with_remote_span_context(context_of(parent, is_remote, state))
}

/// A sampled span, as the SDK names it.
fn context_of(span: SpanContext, is_remote: bool, state: TraceState) -> RemoteContext {
    let (trace, span) = (TraceId::from_bytes(span.trace), SpanId::from_bytes(span.span));
    RemoteContext::new(trace, span, TraceFlags::SAMPLED, is_remote, state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelease_rules::key::Key;
    use ratelease_rules::{Limit, Unit};

    /// The span of an ask that was sent by this request.
    fn sent_by(cause: Option<SpanContext>) -> (SpanBuilder, RemoteContext) {
        let look = Ask::look(Key::for_test(7), Limit::fixed_window(1, Unit::Hour));
        let (builder, parent) = exchange(&Ask { cause, ..look }, 3);
        (builder, parent.span().span_context().clone())
    }

    fn has_attribute(builder: &SpanBuilder, name: &str) -> bool {
        builder.attributes.iter().flatten().any(|it| it.key.as_str() == name)
    }

    #[test]
    fn an_exchange_for_one_request_is_its_child() {
        let request = SpanContext::for_test(1, 2);
        let (builder, parent) = sent_by(Some(request));
        assert_eq!(parent, context_of(request, false, TraceState::NONE));
        assert_eq!((builder.links.is_none(), &*builder.name), (true, "EVALSHA"));
        assert!(!has_attribute(&builder, "db.operation.batch.size"), "one is no batch");
    }

    #[test]
    fn an_exchange_for_no_traced_request_is_a_root() {
        let (builder, parent) = sent_by(None);
        assert!(!parent.is_valid() && builder.links.iter().flatten().count() == 0, "{builder:?}");
        assert!(!has_attribute(&builder, "db.operation.batch.size"), "one is no batch");
    }
}
