//! From the queue to the collector: ending a span never waits; a span that finds the queue full is
//! dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelease_cli::settings::Otlp;
use ratelease_engine::time::Clock;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::metrics::counter::{Count, Counter};
use crate::telemetry::otlp::message::{ExportTraces, ResourceSpans, ScopeSpans, Span};
use crate::telemetry::otlp::{self, Client, Origin, Told};

/// Maximum number of queued spans, maximum number of spans in a batch, and how long the first span
/// of a batch waits for others: the defaults of OpenTelemetry's batches.
const QUEUE_MAX: usize = 2048;
const BATCH_MAX: usize = 512;
const LINGER: Duration = Duration::from_secs(5);

const _: () = assert!(BATCH_MAX <= QUEUE_MAX);

/// The queue of ended spans. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    items: mpsc::Sender<Item>,
    /// Whether a flush is waiting for the queued spans to be sent.
    hurry: Arc<watch::Sender<bool>>,
    tally: Arc<Tally>,
}

/// Sends the spans in the queue.
#[derive(Debug)]
pub(super) struct Export {
    items: Mutex<mpsc::Receiver<Item>>,
    hurry: watch::Receiver<bool>,
    tally: Arc<Tally>,
    client: Client,
    told: Told,
    origin: Origin,
}

#[derive(Debug, Default)]
struct Tally {
    sent: AtomicU64,
    /// Spans that found the queue full.
    dropped: AtomicU64,
    /// Spans that the collector did not accept, after several tries where those may help.
    failed: AtomicU64,
}

#[derive(Debug)]
enum Item {
    Span(Box<Span>),
    /// Dropped once every span before it has been sent, or lost.
    Mark(#[allow(dead_code, reason = "its end is the message")] oneshot::Sender<()>),
}

/// Creates a queue and its sender.
pub(super) fn open(origin: &Origin, otlp: Otlp, clock: Clock) -> (Queue, Export) {
    let (items, waiting) = mpsc::channel(QUEUE_MAX);
    let (hurry, hurried) = watch::channel(false);
    let tally = Arc::<Tally>::default();
    let export = Export {
        items: Mutex::new(waiting),
        hurry: hurried,
        tally: Arc::clone(&tally),
        client: Client::new(otlp),
        told: Told::new("spans", clock),
        origin: origin.clone(),
    };
    (Queue { items, hurry: Arc::new(hurry), tally }, export)
}

// === impl Queue ===

impl Queue {
    pub(super) fn push(&self, span: Span) {
        if self.items.try_send(Item::Span(Box::new(span))).is_err() {
            self.tally.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) async fn flush(&self) {
        self.hurry.send_replace(true);
        let (mark, passed) = oneshot::channel();
        if self.items.send(Item::Mark(mark)).await.is_ok() {
            // An error is the expected result: the mark was dropped.
            let _ = passed.await;
        }
        self.hurry.send_replace(false);
    }

    pub(super) fn counts(&self) -> Vec<Count> {
        self.tally.counts()
    }
}

// === impl Tally ===

impl Tally {
    fn counts(&self) -> Vec<Count> {
        let Self { sent, dropped, failed } = self;
        vec![
            (Counter::SpansSent, sent.load(Ordering::Relaxed)),
            (Counter::SpansDropped, dropped.load(Ordering::Relaxed)),
            (Counter::SpansFailed, failed.load(Ordering::Relaxed)),
        ]
    }
}

/// Counts of zero spans, for a tracer that is off.
pub(super) fn no_counts() -> Vec<Count> {
    Tally::default().counts()
}

// === impl Export ===

impl Export {
    /// Sends spans in batches; never returns.
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
        let send = || self.client.send(&message);
        let failed = |unsent: &_| self.told.note_try(unsent);
        let pushed = otlp::insist(send, failed, &mut self.hurry.clone()).await;
        let lost = self.told.note(count, &pushed).min(count);
        self.tally.failed.fetch_add(lost, Ordering::Relaxed);
        self.tally.sent.fetch_add(count - lost, Ordering::Relaxed);
    }
}

/// The next batch: a full one, or the spans that came within [`LINGER`] of the first, or before a
/// mark.
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
            // The time is over; the queue itself stays open as long as its other end.
            None => break,
        }
        #[allow(clippy::disallowed_methods, reason = "the edge where batches are timed")]
        end.get_or_insert_with(|| Instant::now() + LINGER);
    }
    (spans, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::trace::{Outcome, span};
    use ratelease_cli::settings::{Identity, OtlpProtocol};
    use ratelease_engine::span_context::SpanContext;

    fn ends() -> (Queue, Export) {
        let endpoint = "http://127.0.0.1:1/v1/traces".parse().expect("a URL");
        let (protocol, timeout) = (OtlpProtocol::Http, LINGER);
        let headers = http::HeaderMap::new();
        let otlp = Otlp { protocol, endpoint, tls: None, headers, timeout };
        let (name, namespace, instance, attributes) = Default::default();
        let origin = Origin::new(Identity { name, namespace, instance, attributes });
        open(&origin, otlp, Clock::start())
    }

    fn named(n: usize) -> Span {
        Span { name: n.to_string(), ..Span::default() }
    }

    fn count(queue: &Queue, counter: Counter) -> u64 {
        let found = queue.counts().into_iter().find(|(other, _)| *other == counter);
        found.expect("a count").1
    }

    #[test]
    fn what_finds_the_queue_full_is_dropped_and_counted() {
        let (queue, _export) = ends();
        (0..QUEUE_MAX + 7).for_each(|n| queue.push(named(n)));
        assert_eq!(count(&queue, Counter::SpansDropped), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_full_or_has_lingered_or_ends_at_a_mark() {
        let (queue, export) = ends();
        let mut items = export.items.lock().await;
        (0..BATCH_MAX + 1).for_each(|n| queue.push(named(n)));
        let (full, _) = gather(&mut items).await;
        assert_eq!((full.len(), full[0].name.as_str()), (BATCH_MAX, "0"));
        let begun = Clock::start();
        let (lingered, mark) = gather(&mut items).await;
        assert_eq!((lingered.len(), mark.is_some()), (1, false));
        assert!(begun.now().since(Default::default()) >= LINGER);
        queue.push(named(0));
        let (flushed, (marked, mark)) = tokio::join!(queue.flush(), async {
            let (batch, mark) = gather(&mut items).await;
            drop(mark);
            (batch.len(), begun.now())
        });
        assert_eq!((flushed, marked), ((), 1));
        assert!(mark.since(Default::default()) < LINGER * 2, "it did not linger");
    }

    #[test]
    fn a_span_ends_once_and_one_that_is_dropped_was_given_up() {
        let (queue, export) = ends();
        let context = SpanContext::fresh([7; 16]);
        let given_up = Outcome::Grpc(1);
        let begin = || span::Span::new(named(0), context, given_up, Clock::start(), queue.clone());
        let shown = |span: &Span| format!("{:?}", span.attributes.last().expect("a status").value);
        let mut items = export.items.try_lock().expect("nobody else");
        let mut next = || match items.try_recv() {
            Ok(Item::Span(span)) => Some(shown(&span)),
            _ => None,
        };
        begin().discard();
        assert_eq!(next(), None);
        let ended = begin();
        ended.end(Outcome::Grpc(0));
        ended.end(Outcome::Grpc(2));
        drop(ended);
        assert!(next().is_some_and(|status| status.contains("\"OK\"")));
        assert_eq!(next(), None);
        let dropped = begin();
        drop(dropped.clone());
        assert_eq!(next(), None, "a handle is left");
        drop(dropped);
        assert!(next().is_some_and(|status| status.contains("\"CANCELLED\"")));
    }
}
