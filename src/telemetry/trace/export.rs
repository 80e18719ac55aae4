//! From the queue to the collector: who ends a span never waits, and what finds no room is lost and
//! counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::settings::Otlp;
use crate::store::Count;
use crate::telemetry::otlp::message::{ExportTraces, ResourceSpans, ScopeSpans, Span};
use crate::telemetry::otlp::{self, Client, Origin, Told};
use crate::time::Clock;

/// Spans that may wait to be sent, those that travel together, and how long the first of these
/// waits for company: the defaults of OpenTelemetry's batches.
const QUEUE_MAX: usize = 2048;
const BATCH_MAX: usize = 512;
const LINGER: Duration = Duration::from_secs(5);

const _: () = assert!(BATCH_MAX <= QUEUE_MAX);

/// Where spans go when they end. A handle: clones share everything.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    items: mpsc::Sender<Item>,
    tally: Arc<Tally>,
}

/// What takes them out of the queue.
#[derive(Debug)]
pub(super) struct Export {
    items: Mutex<mpsc::Receiver<Item>>,
    tally: Arc<Tally>,
    client: Client,
    told: Told,
    origin: Origin,
}

#[derive(Debug, Default)]
struct Tally {
    sent: AtomicU64,
    /// They found the queue full.
    dropped: AtomicU64,
    /// The collector did not take them.
    failed: AtomicU64,
}

#[derive(Debug)]
enum Item {
    Span(Box<Span>),
    /// Dropped once everything before it has been sent, or lost.
    Mark(#[allow(dead_code, reason = "its end is the message")] oneshot::Sender<()>),
}

/// Both ends of a new queue.
pub(super) fn open(origin: &Origin, otlp: Otlp, clock: Clock) -> (Queue, Export) {
    let (items, waiting) = mpsc::channel(QUEUE_MAX);
    let tally = Arc::<Tally>::default();
    let export = Export {
        items: Mutex::new(waiting),
        tally: Arc::clone(&tally),
        client: Client::new(otlp),
        told: Told::new("spans", clock),
        origin: origin.clone(),
    };
    (Queue { items, tally }, export)
}

// === impl Queue ===

impl Queue {
    pub(super) fn push(&self, span: Span) {
        if self.items.try_send(Item::Span(Box::new(span))).is_err() {
            self.tally.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) async fn flush(&self) {
        let (mark, passed) = oneshot::channel();
        if self.items.send(Item::Mark(mark)).await.is_ok() {
            // An error is what it waits for: the mark was dropped.
            let _ = passed.await;
        }
    }

    pub(super) fn counts(&self) -> Vec<Count> {
        let Tally { sent, dropped, failed } = &*self.tally;
        vec![
            ("spans_sent", sent.load(Ordering::Relaxed)),
            ("spans_dropped", dropped.load(Ordering::Relaxed)),
            ("spans_failed", failed.load(Ordering::Relaxed)),
        ]
    }
}

// === impl Export ===

impl Export {
    /// Sends what comes, a batch after the other; never ends.
    pub(super) async fn run(&self) {
        let mut items = self.items.lock().await;
        loop {
            let (spans, marks) = gather(&mut items).await;
            if !spans.is_empty() {
                self.send(spans).await;
            }
            drop(marks);
        }
    }

    async fn send(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let scope_spans = vec![ScopeSpans { scope: Some(otlp::scope()), spans }];
        let resource = Some(self.origin.resource());
        let message =
            ExportTraces { resource_spans: vec![ResourceSpans { resource, scope_spans }] };
        let pushed = self.client.send(&message).await;
        let lost = self.told.note(count, &pushed).min(count);
        self.tally.failed.fetch_add(lost, Ordering::Relaxed);
        self.tally.sent.fetch_add(count - lost, Ordering::Relaxed);
    }
}

/// The next batch: full, or what came within [`LINGER`] of the first, or before a mark.
async fn gather(items: &mut mpsc::Receiver<Item>) -> (Vec<Span>, Option<oneshot::Sender<()>>) {
    let mut spans = Vec::new();
    let mut end = None;
    while spans.len() < BATCH_MAX {
        let next = match end {
            None => items.recv().await,
            Some(end) => timeout_at(end, items.recv()).await.unwrap_or_default(),
        };
        match next {
            Some(Item::Span(span)) => spans.push(*span),
            Some(Item::Mark(mark)) => return (spans, Some(mark)),
            // It lingered long enough; the queue itself stays open for as long as its other end.
            None => break,
        }
        #[allow(clippy::disallowed_methods, reason = "the edge where batches are timed")]
        end.get_or_insert_with(|| Instant::now() + LINGER);
    }
    (spans, None)
}
