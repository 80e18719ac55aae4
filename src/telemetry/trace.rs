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
mod exporter;
mod parent;
mod pipeline;
mod span;

use std::sync::Arc;

use http::HeaderMap;
use opentelemetry::trace::{
    Link, SpanBuilder, SpanContext as RemoteContext, SpanId, SpanKind, TraceContextExt, TraceFlags,
    TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use ratelease_cli::settings::Tracing;
use ratelease_engine::rng;
use ratelease_engine::span_context::SpanContext;
use ratelease_engine::store::Ask;
use ratelease_engine::time::Clock;
use tracing::error;

use super::otlp::{Origin, system_time};

use crate::metrics::counter::Count;
use parent::Parent;
use pipeline::{Counts, Pipeline};
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
    pipeline: Pipeline,
}

/// The protocol by which a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `ShouldRateLimit` over gRPC.
    Grpc,
    /// `/json` over HTTP.
    Json,
}

/// `rpc.method`, and the name of the spans.
const METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Maximum number of requests that one exchange is linked to: OpenTelemetry's default.
const LINKS_MAX: usize = 128;

// === impl Tracer ===

impl Tracer {
    /// Creates a tracer that sends spans as `settings` say; without settings it traces nothing.
    /// With settings, it must be called in a runtime, which sends the spans.
    pub fn new(origin: &Origin, settings: Option<Tracing>, clock: Clock) -> Self {
        let shared = settings.and_then(|Tracing { rate, otlp }| {
            // The settings have been validated: the exporter has nothing to reject.
            let pipeline = Pipeline::start(origin, &otlp, clock)
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

    /// Begins a span for a batch of `asks` on its way to a shard of Redis, if a traced request sent
    /// one of them; else the batch is sampled at random. If one request sent them, the span is its
    /// child; a batch of several begins a trace of its own, with a link to each.
    pub fn begin_exchange(&self, shard: usize, asks: &[Ask]) -> Option<Span> {
        let shared = self.shared.as_deref()?;
        let is_sampled = asks.iter().any(|ask| ask.cause.is_some()) || rng::chance(shared.rate);
        is_sampled.then(|| shared.begin_exchange(shard, asks))
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
        let shared = self.shared.as_ref();
        shared.map_or_else(|| Counts::default().read(), |shared| shared.pipeline.counts())
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
            Transport::Json => {
                let builder = SpanBuilder::from_name("POST /json").with_attributes([
                    KeyValue::new("http.request.method", "POST"),
                    KeyValue::new("http.route", "/json"),
                    KeyValue::new("url.path", "/json"),
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
    fn begin_exchange(&self, shard: usize, asks: &[Ask]) -> Span {
        let (builder, parent) = exchange(shard, asks);
        self.start(builder, &parent, Outcome::Failed(asks.len()))
    }

    fn start(&self, builder: SpanBuilder, parent: &Context, given_up: Outcome) -> Span {
        let started = system_time();
        let span = builder.with_start_time(started);
        let span = self.pipeline.tracer.build_with_context(span, parent);
        Span::new(span, Start { started, begun: self.clock.now(), clock: self.clock }, given_up)
    }
}

/// A span of `asks` sent to a shard, and its parent.
fn exchange(shard: usize, asks: &[Ask]) -> (SpanBuilder, Context) {
    // A single ask is not a batch, by OpenTelemetry's conventions.
    let is_batch = asks.len() > 1;
    let operation = if is_batch { "PIPELINE EVALSHA" } else { "EVALSHA" };
    let mut attributes = vec![
        KeyValue::new("db.system.name", "redis"),
        KeyValue::new("db.operation.name", operation),
        number("ratelease.shard", shard),
    ];
    if is_batch {
        attributes.push(number("db.operation.batch.size", asks.len()));
    }
    let builder =
        SpanBuilder::from_name(operation).with_kind(SpanKind::Client).with_attributes(attributes);
    match causes(asks).as_slice() {
        [only] => (builder, below(*only, false, TraceState::NONE)),
        several => {
            let links = several.iter().map(|cause| {
                let context = context_of(*cause, false, TraceState::NONE);
                Link::new(context, Vec::new(), 0)
            });
            (builder.with_links(links.collect()), Context::new())
        }
    }
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

/// The requests that sent `asks`, each once.
fn causes(asks: &[Ask]) -> Vec<SpanContext> {
    let mut causes: Vec<_> = asks.iter().filter_map(|ask| ask.cause).collect();
    causes.sort_unstable();
    causes.dedup();
    causes.truncate(LINKS_MAX);
    causes
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelease_rules::key::Key;
    use ratelease_rules::{Limit, Unit};

    /// The span of asks that were sent by these requests.
    fn sent_by(causes: &[Option<SpanContext>]) -> (SpanBuilder, RemoteContext) {
        let look = Ask::look(Key::for_test(7), Limit::fixed_window(1, Unit::Hour));
        let asks: Vec<_> = causes.iter().map(|cause| Ask { cause: *cause, ..look }).collect();
        let (builder, parent) = exchange(3, &asks);
        (builder, parent.span().span_context().clone())
    }

    fn has_attribute(builder: &SpanBuilder, name: &str) -> bool {
        builder.attributes.iter().flatten().any(|it| it.key.as_str() == name)
    }

    #[test]
    fn an_exchange_for_one_request_is_its_child() {
        let request = SpanContext::for_test(1, 2);
        let (builder, parent) = sent_by(&[Some(request), None, Some(request)]);
        assert_eq!(parent, context_of(request, false, TraceState::NONE));
        assert_eq!((builder.links.is_none(), &*builder.name), (true, "PIPELINE EVALSHA"));
        assert!(has_attribute(&builder, "db.operation.batch.size"), "{builder:?}");
    }

    #[test]
    fn an_exchange_for_several_requests_is_linked_to_each() {
        let [first, second] = [(1, 2), (3, 4)].map(|(n, m)| SpanContext::for_test(n, m));
        let (builder, parent) = sent_by(&[Some(second), Some(first), None, Some(second)]);
        assert!(!parent.is_valid());
        let links = builder.links.expect("links");
        let linked: Vec<_> = links.into_iter().map(|link| link.span_context).collect();
        assert_eq!(linked, [first, second].map(|it| context_of(it, false, TraceState::NONE)));
        let many: Vec<_> = (1..=u8::MAX).map(|n| Some(SpanContext::for_test(1, n))).collect();
        assert_eq!(sent_by(&many).0.links.map(|links| links.len()), Some(LINKS_MAX));
    }

    #[test]
    fn an_exchange_for_no_traced_request_is_a_root() {
        let (builder, parent) = sent_by(&[None]);
        assert!(!parent.is_valid() && builder.links.iter().flatten().count() == 0, "{builder:?}");
        assert!(!has_attribute(&builder, "db.operation.batch.size"), "one is no batch");
    }
}
