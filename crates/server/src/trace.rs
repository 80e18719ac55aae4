//! Spans of requests, for an OpenTelemetry collector.
//!
//! ```text
//! transport ─begin─▶ Span ─note, end─▶ pipeline: the SDK's batches, exporter ─▶ collector
//!    └─ not sampled: nothing
//! ```
//! A request is traced if its parent is, by W3C's `traceparent` or B3's headers; a request without
//! a parent is sampled at random. This is decided before the SDK is called and before anything is
//! allocated, and not at all while tracing is off.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext as RemoteContext, SpanId, SpanKind, Status,
    TraceContextExt, TraceFlags, TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, Key, KeyValue};
use opentelemetry_sdk::trace::Span as SdkSpan;
use parking_lot::Mutex;
use ratelease_cli::client::GRPC_CODES;
use ratelease_cli::settings::Tracing;
use ratelease_engine::order::{Follow, Order};
use ratelease_engine::rng;
use ratelease_engine::span_context::SpanContext;
use ratelease_engine::store::{
    Ask, GrantFuture, Heartbeat, OrderFuture, PodCountFuture, ReadyFuture, Store,
};
use ratelease_engine::time::{Clock, Time};
use ratelease_engine::verdict::Verdict;
use ratelease_otlp::origin::{Origin, system_time};
use ratelease_otlp::span_pipeline;
use ratelease_otlp::span_pipeline::{SpanCounts, SpanPipeline};
use ratelease_rules::request::Request;
use tracing::error;

use crate::metrics::counter::{Count, Counter};
use crate::request::Transport;

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
                let method = route.method();
                let path = route.path();
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
            let state = state(headers);
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
    let trace = TraceId::from_bytes(span.trace);
    let id = SpanId::from_bytes(span.span);
    RemoteContext::new(trace, id, TraceFlags::SAMPLED, is_remote, state)
}

// The parent span of a request, from its headers.

/// The content of `traceparent`, or of B3's headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parent {
    trace: [u8; 16],
    span: [u8; 8],
    /// `None` if the decision is left to this process, as B3 allows.
    is_sampled: Option<bool>,
}

/// Parses lower-case hexadecimal digits, as the standard requires.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, odd) = digits.as_chunks::<2>();
    if pairs.len() != N || !odd.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

// The parent of a request by W3C's Trace Context (<https://www.w3.org/TR/trace-context/>).

const TRACEPARENT: &str = "traceparent";

/// Maximum number of bytes of `tracestate` that are passed on: the length that W3C asks for. The
/// rest is dropped.
const STATE_BYTES_MAX: usize = 512;

// === impl Parent ===

impl Parent {
    /// The parent in `headers`; `None` if there is none, or it is malformed: the request then
    /// begins a trace of its own.
    fn of(headers: &HeaderMap) -> Option<Self> {
        // Most requests have no parent: checking each header name once costs less than one lookup.
        let may_be =
            headers.keys().any(|name| matches!(name.as_str(), TRACEPARENT | ALL_IN_ONE | TRACE_ID));
        if may_be { Self::of_w3c(headers).or_else(|| parent(headers)) } else { None }
    }

    fn of_w3c(headers: &HeaderMap) -> Option<Self> {
        let mut sent = headers.get_all(TRACEPARENT).iter();
        let first = sent.next()?;
        if sent.next().is_some() { None } else { Self::parse(first.as_bytes()) }
    }

    /// Parses `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`. Later versions may have more
    /// fields after these.
    fn parse(text: &[u8]) -> Option<Self> {
        let (text, more) = text.split_first_chunk::<55>()?;
        let version: [u8; 1] = hex(text.get(..2)?)?;
        let is_known = match version {
            [0] => more.is_empty(),
            [0xff] => false,
            _ => more.first().is_none_or(|next| *next == b'-'),
        };
        let dashes = [2, 35, 52].iter().all(|at| text.get(*at) == Some(&b'-'));
        let trace: [u8; 16] = hex(text.get(3..35)?)?;
        let span: [u8; 8] = hex(text.get(36..52)?)?;
        let [flags] = hex(text.get(53..55)?)?;
        let is_good = is_known && dashes && trace != [0; 16] && span != [0; 8];
        is_good.then_some(Self { trace, span, is_sampled: Some(flags & 1 == 1) })
    }
}

/// The value of `tracestate`, its headers joined; empty if there is none, it is malformed, or it
/// must not be passed on.
fn state(headers: &HeaderMap) -> TraceState {
    let parts: Option<Vec<_>> =
        headers.get_all("tracestate").iter().map(|part| part.to_str().ok()).collect();
    let state = parts.unwrap_or_default().join(",");
    let is_short = state.len() <= STATE_BYTES_MAX;
    is_short.then(|| state.parse().ok()).flatten().unwrap_or_default()
}

// The parent of a request in the headers of Zipkin's tracers
// (<https://github.com/openzipkin/b3-propagation>): a single header, or several.

/// The single header.
const ALL_IN_ONE: &str = "b3";

/// The header without which the several headers are ignored.
const TRACE_ID: &str = "x-b3-traceid";

/// The parent in `headers`; `None` if there is none, or it is malformed.
fn parent(headers: &HeaderMap) -> Option<Parent> {
    let of = |name| headers.get(name).map(HeaderValue::as_bytes);
    let several = || {
        let is_debugged = of("x-b3-flags") == Some(b"1");
        let sampled = if is_debugged { Some(&b"d"[..]) } else { of("x-b3-sampled") };
        parse(of(TRACE_ID)?, of("x-b3-spanid")?, sampled)
    };
    of(ALL_IN_ONE).and_then(parse_one).or_else(several)
}

/// Parses `<trace>-<span>-<sampled>-<parent>`, of which the last two may be left out.
fn parse_one(text: &[u8]) -> Option<Parent> {
    let mut parts = text.split(|byte| *byte == b'-');
    parse(parts.next()?, parts.next()?, parts.next())
}

/// A trace id has 16 or 32 digits: a short id is the lower half of a long one.
fn parse(trace: &[u8], span: &[u8], sampled: Option<&[u8]>) -> Option<Parent> {
    let trace = if trace.len() == 16 {
        let lower: [u8; 8] = hex(trace)?;
        u128::from(u64::from_be_bytes(lower)).to_be_bytes()
    } else {
        hex(trace)?
    };
    let span = hex(span)?;
    let is_sampled = match sampled {
        None => None,
        // `d` means debug.
        Some(b"1" | b"d" | b"true") => Some(true),
        Some(b"0" | b"false") => Some(false),
        Some(_) => return None,
    };
    (trace != [0; 16] && span != [0; 8]).then_some(Parent { trace, span, is_sampled })
}

// A store whose asks are traced: one span for each ask sent to a shard.

/// Passes all calls on to another store, and times those that are to be traced.
pub struct Traced {
    inner: Arc<dyn Store>,
    tracer: Tracer,
}

// === impl Traced ===

impl Traced {
    /// Creates a store that passes calls to `inner`, and makes its exchanges spans of `tracer`.
    pub fn new(inner: Arc<dyn Store>, tracer: Tracer) -> Self {
        Self { inner, tracer }
    }
}

impl Store for Traced {
    fn shard(&self, ask: &Ask) -> usize {
        self.inner.shard(ask)
    }

    fn other_name(&self, ask: &Ask) -> Option<ratelease_rules::key::Key> {
        self.inner.other_name(ask)
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        let Some(span) = self.tracer.begin_exchange(ask, || self.inner.shard(ask)) else {
            return self.inner.lend(ask);
        };
        Box::pin(async move {
            let reply = self.inner.lend(ask).await;
            span.end(Outcome::Failed(usize::from(reply.is_err())));
            reply
        })
    }

    fn ready(&self) -> ReadyFuture<'_> {
        self.inner.ready()
    }

    fn silence(&self, shard: usize) -> Option<Duration> {
        self.inner.silence(shard)
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.inner.beat(beat)
    }

    fn clear<'a>(&'a self, ask: &'a Ask) -> OrderFuture<'a> {
        self.inner.clear(ask)
    }

    fn order<'a>(&'a self, ask: &'a Ask, order: Order) -> OrderFuture<'a> {
        self.inner.order(ask, order)
    }

    fn follow_orders<'a>(&'a self, follow: Follow<'a>) -> ReadyFuture<'a> {
        self.inner.follow_orders(follow)
    }

    fn counts(&self) -> Vec<ratelease_engine::counter::Count> {
        self.inner.counts()
    }

    fn server(&self, shard: usize) -> Option<String> {
        self.inner.server(shard)
    }

    fn store_name(&self, shard: usize) -> String {
        self.inner.store_name(shard)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

// One span: the data recorded of a request between its beginning and its end.

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
struct Start {
    started: SystemTime,
    begun: Time,
    clock: Clock,
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
    fn new(span: SdkSpan, start: Start, given_up: Outcome) -> Self {
        let context = span.span_context();
        let context = SpanContext {
            trace: context.trace_id().to_bytes(),
            span: context.span_id().to_bytes(),
        };
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
            noted.push(KeyValue::new("ratelease.rule", status.rule_path().to_owned()));
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
fn number(key: impl Into<Key>, value: impl TryInto<i64>) -> KeyValue {
    KeyValue::new(key, value.try_into().unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
