//! Spans of requests, for a collector of OpenTelemetry.
//!
//! ```text
//! door ─begin─▶ Span ─note, end─▶ queue, bounded ─▶ export, a batch at a time ─▶ collector
//!    └─ not sampled: nothing
//! ```
//! A request is traced where its parent is, by W3C's `traceparent`; one without a parent is traced
//! by the dice. That is decided before anything is allocated, and with tracing off not at all.

mod context;
mod export;
mod span;

use std::sync::Arc;

use http::HeaderMap;

use super::otlp::message::{KeyValue, Span as Message, SpanKind};
use super::otlp::{Origin, unix_nanos};
use crate::dice;
use crate::settings::Tracing;
use crate::store::Count;
use crate::time::Clock;

use context::Parent;
use export::{Export, Queue};
pub(crate) use span::GRPC_CODES;
pub use span::{Outcome, Span};

/// Begins spans. A handle: clones share everything; by default it traces nothing.
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

/// Where a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// `ShouldRateLimit` over gRPC.
    Grpc,
    /// `/json` over HTTP.
    Json,
}

/// `rpc.method`, and the name of its spans.
const METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Lowest bit of W3C's flags, and of OTLP's.
const SAMPLED: u32 = 1;

/// OTLP: it is known whether the parent is of another process, and it is.
const PARENT_IS_REMOTE: u32 = 1 << 8 | 1 << 9;
const PARENT_IS_NOT: u32 = 1 << 8;

// === impl Tracer ===

impl Tracer {
    /// A tracer that sends spans as `settings` say, once [`Tracer::run`] runs; one that traces
    /// nothing without.
    pub fn new(origin: &Origin, settings: Option<Tracing>, clock: Clock) -> Self {
        let shared = settings.map(|Tracing { rate, otlp }| {
            let (queue, export) = export::open(origin, otlp, clock);
            Arc::new(Shared { rate, clock, queue, export })
        });
        Self { shared }
    }

    /// The span of a request that comes in at `door` with these headers, if it is to be traced.
    pub fn begin(&self, door: Door, headers: &HeaderMap) -> Option<Span> {
        let shared = self.shared.as_deref()?;
        let parent = Parent::of(headers);
        let is_sampled =
            parent.map_or_else(|| dice::lands(shared.rate), |parent| parent.is_sampled);
        is_sampled.then(|| shared.begin_request(door, parent, headers))
    }

    /// The span of a batch of `asks` on its way to a shard of Redis, if the dice say so. It has no
    /// parent: a batch is of many requests, most of which do not wait for it.
    pub fn begin_exchange(&self, shard: usize, asks: usize) -> Option<Span> {
        let shared = self.shared.as_deref()?;
        dice::lands(shared.rate).then(|| shared.begin_exchange(shard, asks))
    }

    /// Whether anything may be traced.
    pub fn is_on(&self) -> bool {
        self.shared.is_some()
    }

    /// Sends spans as they come; never ends.
    pub async fn run(self) {
        match &self.shared {
            Some(shared) => shared.export.run().await,
            None => std::future::pending().await,
        }
    }

    /// Returns once the spans that ended so far have been sent, or could not be.
    pub async fn flush(&self) {
        if let Some(shared) = &self.shared {
            shared.queue.flush().await;
        }
    }

    /// What has happened here since the process began, by name.
    pub fn counts(&self) -> Vec<Count> {
        self.shared.as_ref().map_or_else(export::no_counts, |shared| shared.queue.counts())
    }
}

// === impl Shared ===

impl Shared {
    #[cold]
    fn begin_request(&self, door: Door, parent: Option<Parent>, headers: &HeaderMap) -> Span {
        let mut message = match door {
            Door::Grpc => Message {
                name: METHOD.to_owned(),
                attributes: vec![
                    KeyValue::text("rpc.system.name", "grpc"),
                    KeyValue::text("rpc.method", METHOD),
                ],
                ..Message::default()
            },
            Door::Json => Message {
                name: "POST /json".to_owned(),
                attributes: vec![
                    KeyValue::text("http.request.method", "POST"),
                    KeyValue::text("http.route", "/json"),
                ],
                ..Message::default()
            },
        };
        message.kind = SpanKind::Server.into();
        match parent {
            Some(parent) => {
                message.trace_id = parent.trace.to_vec();
                message.parent_span_id = parent.span.to_vec();
                message.trace_state = context::state(headers);
                message.flags = SAMPLED | PARENT_IS_REMOTE;
            }
            None => self.make_root(&mut message),
        }
        let given_up = match door {
            // CANCELLED.
            Door::Grpc => Outcome::Grpc(1),
            // Nobody hears it; nginx has it so in its log.
            Door::Json => Outcome::Http(499),
        };
        self.start(message, given_up)
    }

    #[cold]
    fn begin_exchange(&self, shard: usize, asks: usize) -> Span {
        let mut attributes = vec![
            KeyValue::text("db.system.name", "redis"),
            KeyValue::text("db.operation.name", "EVALSHA"),
            KeyValue::number("ratelease.shard", shard),
        ];
        if asks > 1 {
            // One is no batch, as the conventions have it.
            attributes.push(KeyValue::number("db.operation.batch.size", asks));
        }
        let name = "EVALSHA".to_owned();
        let kind = SpanKind::Client.into();
        let mut message = Message { name, kind, attributes, ..Message::default() };
        self.make_root(&mut message);
        self.start(message, Outcome::Failed(asks))
    }

    fn make_root(&self, message: &mut Message) {
        message.trace_id = context::fresh_id::<16>().to_vec();
        message.flags = SAMPLED | PARENT_IS_NOT;
    }

    fn start(&self, mut message: Message, given_up: Outcome) -> Span {
        message.span_id = context::fresh_id::<8>().to_vec();
        message.start_time_unix_nano = unix_nanos();
        Span::new(message, given_up, self.clock, self.queue.clone())
    }
}
