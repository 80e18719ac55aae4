//! Spans of requests, for an OpenTelemetry collector.
//!
//! ```text
//! transport ─begin─▶ Span ─note, end─▶ queue, bounded ─▶ export, a batch at a time ─▶ collector
//!    └─ not sampled: nothing
//! ```
//! A request is traced if its parent is, by W3C's `traceparent` or B3's headers; a request without
//! a parent is sampled at random. This is decided before anything is allocated, and not at all
//! while tracing is off.

mod b3;
mod context;
mod export;
mod parent;
mod span;

use std::sync::Arc;

use http::HeaderMap;
use ratelease_cli::settings::Tracing;
use ratelease_engine::rng;
use ratelease_engine::span_context::{self, SpanContext};
use ratelease_engine::store::Ask;
use ratelease_engine::time::Clock;

use super::otlp::message::{KeyValue, Link, Span as Message, SpanKind};
use super::otlp::{Origin, unix_nanos};

use crate::metrics::counter::Count;
use export::{Export, Queue};
use parent::Parent;
pub use span::{Outcome, Span};

/// Begins spans. A cheap handle: clones share all state; the default traces nothing.
#[derive(Debug, Clone, Default)]
pub struct Tracer {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    rate: f32,
    clock: Clock,
    queue: Queue,
    export: Export,
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

/// The lowest bit of W3C's flags, and of OTLP's.
const SAMPLED: u32 = 1;

/// OTLP flags: it is known whether the parent belongs to another process, and it does.
const PARENT_IS_REMOTE: u32 = 1 << 8 | 1 << 9;
const PARENT_IS_NOT: u32 = 1 << 8;

/// Maximum number of requests that one exchange is linked to: OpenTelemetry's default.
const LINKS_MAX: usize = 128;

// === impl Tracer ===

impl Tracer {
    /// Creates a tracer that sends spans as `settings` say, once [`Tracer::run`] runs; without
    /// settings it traces nothing.
    pub fn new(origin: &Origin, settings: Option<Tracing>, clock: Clock) -> Self {
        let shared = settings.map(|Tracing { rate, otlp }| {
            let (queue, export) = export::open(origin, otlp, clock);
            Arc::new(Shared { rate, clock, queue, export })
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

    /// Sends spans as they end; never returns.
    pub async fn run(self) {
        match &self.shared {
            Some(shared) => shared.export.run().await,
            None => std::future::pending().await,
        }
    }

    /// Returns once the spans that have ended so far have been sent, or could not be.
    pub async fn flush(&self) {
        if let Some(shared) = &self.shared {
            shared.queue.flush().await;
        }
    }

    /// Event counts since the process began.
    pub fn counts(&self) -> Vec<Count> {
        self.shared.as_ref().map_or_else(export::no_counts, |shared| shared.queue.counts())
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
        let mut message = match transport {
            Transport::Grpc => Message {
                name: METHOD.to_owned(),
                attributes: vec![
                    KeyValue::text("rpc.system.name", "grpc"),
                    KeyValue::text("rpc.method", METHOD),
                ],
                ..Message::default()
            },
            Transport::Json => Message {
                name: "POST /json".to_owned(),
                attributes: vec![
                    KeyValue::text("http.request.method", "POST"),
                    KeyValue::text("http.route", "/json"),
                    KeyValue::text("url.path", "/json"),
                    KeyValue::text("url.scheme", "http"),
                ],
                ..Message::default()
            },
        };
        message.kind = SpanKind::Server.into();
        message.flags = SAMPLED | PARENT_IS_NOT;
        if let Some(parent) = parent {
            message.parent_span_id = parent.span.to_vec();
            message.trace_state = context::state(headers);
            message.flags = SAMPLED | PARENT_IS_REMOTE;
        }
        let trace = parent.map_or_else(span_context::fresh_id, |parent| parent.trace);
        let given_up = match transport {
            // CANCELLED.
            Transport::Grpc => Outcome::Grpc(1),
            // No client receives this status; nginx uses it in its log.
            Transport::Json => Outcome::Http(499),
        };
        self.start(message, trace, given_up)
    }

    #[cold]
    fn begin_exchange(&self, shard: usize, asks: &[Ask]) -> Span {
        let (message, trace) = exchange(shard, asks);
        self.start(message, trace, Outcome::Failed(asks.len()))
    }

    fn start(&self, mut message: Message, trace: [u8; 16], given_up: Outcome) -> Span {
        message.start_time_unix_nano = unix_nanos();
        Span::new(message, SpanContext::fresh(trace), given_up, self.clock, self.queue.clone())
    }
}

/// A span of `asks` sent to a shard, and its trace.
fn exchange(shard: usize, asks: &[Ask]) -> (Message, [u8; 16]) {
    // A single ask is not a batch, by OpenTelemetry's conventions.
    let is_batch = asks.len() > 1;
    let operation = if is_batch { "PIPELINE EVALSHA" } else { "EVALSHA" };
    let mut attributes = vec![
        KeyValue::text("db.system.name", "redis"),
        KeyValue::text("db.operation.name", operation),
        KeyValue::number("ratelease.shard", shard),
    ];
    if is_batch {
        attributes.push(KeyValue::number("db.operation.batch.size", asks.len()));
    }
    let (name, kind) = (operation.to_owned(), SpanKind::Client.into());
    let flags = SAMPLED | PARENT_IS_NOT;
    let mut message = Message { name, kind, attributes, flags, ..Message::default() };
    match causes(asks).as_slice() {
        [only] => {
            message.parent_span_id = only.span.to_vec();
            (message, only.trace)
        }
        several => {
            message.links = several.iter().map(link).collect();
            (message, span_context::fresh_id())
        }
    }
}

/// The requests that sent `asks`, each once.
fn causes(asks: &[Ask]) -> Vec<SpanContext> {
    let mut causes: Vec<_> = asks.iter().filter_map(|ask| ask.cause).collect();
    causes.sort_unstable();
    causes.dedup();
    causes.truncate(LINKS_MAX);
    causes
}

fn link(cause: &SpanContext) -> Link {
    let (trace_id, span_id) = (cause.trace.to_vec(), cause.span.to_vec());
    Link { trace_id, span_id, flags: SAMPLED | PARENT_IS_NOT }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelease_rules::key::Key;
    use ratelease_rules::{Limit, Unit};

    /// The span of asks that were sent by these requests.
    fn sent_by(causes: &[Option<SpanContext>]) -> (Message, [u8; 16]) {
        let look = Ask::look(Key::for_test(7), Limit::fixed_window(1, Unit::Hour));
        let asks: Vec<_> = causes.iter().map(|cause| Ask { cause: *cause, ..look }).collect();
        exchange(3, &asks)
    }

    fn attributes(message: &Message) -> Vec<&str> {
        message.attributes.iter().map(|it| it.key.as_str()).collect()
    }

    #[test]
    fn what_one_request_asks_for_is_its_child() {
        let request = Some(SpanContext::for_test(1, 2));
        let (message, trace) = sent_by(&[request, None, request]);
        assert_eq!((trace, message.parent_span_id.as_slice()), ([1; 16], &[2; 8][..]));
        assert_eq!((message.links.len(), message.name.as_str()), (0, "PIPELINE EVALSHA"));
        assert!(attributes(&message).contains(&"db.operation.batch.size"), "{message:?}");
    }

    #[test]
    fn what_several_ask_for_is_linked_to_each() {
        let [first, second] = [(1, 2), (3, 4)].map(|(n, m)| SpanContext::for_test(n, m));
        let (message, trace) = sent_by(&[Some(second), Some(first), None, Some(second)]);
        assert!(trace != [1; 16] && trace != [3; 16] && message.parent_span_id.is_empty());
        assert_eq!(message.links, [first, second].map(|it| link(&it)));
        assert_eq!((&message.links[0].trace_id[..], message.links[0].flags), (&[1; 16][..], 0x101));
        let many: Vec<_> = (0..=u8::MAX).map(|n| Some(SpanContext::for_test(1, n))).collect();
        assert_eq!(sent_by(&many).0.links.len(), LINKS_MAX);
    }

    #[test]
    fn what_nobody_who_is_traced_asks_for_is_a_root() {
        let (message, _) = sent_by(&[None]);
        assert!(message.parent_span_id.is_empty() && message.links.is_empty(), "{message:?}");
        assert!(!attributes(&message).contains(&"db.operation.batch.size"), "one is no batch");
    }
}
