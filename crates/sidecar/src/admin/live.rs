//! The live page: one page of the debug port, and the events that feed it once a second.
//!
//! ```text
//!  each second: count ─▶ History ─┐ only while a client listens:
//!                                 └▶ one event ─▶ the queue of all listeners ─▶ their pages
//! ```
//! A listener that does not keep up is disconnected; its browser reconnects by itself. If a
//! connection is stuck it is closed, so that no idle client keeps a slot. All listeners share one
//! queue of events.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::stream::{self, Stream, StreamExt};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, broadcast as channel, watch};
use tokio::time::sleep_until;

use super::status::Status;
use super::{history, render};
use ratelease_listener::ConnectionHandle;

/// Maximum number of pages that listen at once: each costs an event a second on the network.
pub const LISTENERS_MAX: usize = 16;

/// Number of events after which a listener's slot may be given to another when all are taken: for
/// minutes, the network's buffers accept data that a client does not read. A browser reconnects by
/// itself.
const TENURE_EVENTS: u64 = 60;

/// Maximum number of queued events, for all listeners: a listener's network may stall for this many
/// seconds.
const QUEUE_MAX: usize = 8;

/// The interval between two events.
const PERIOD: Duration = Duration::from_secs(1);

/// The time that a browser waits before it reconnects, in milliseconds.
const RETRY: &str = "retry: 2000\n\n";

/// The page, and its content security policy: it may run the script and the style that it contains,
/// identified by their SHA-256, and listen here; it may load nothing from elsewhere.
const PAGE: &str = include_str!("live/page.html");
const POLICY: &str = "default-src 'none'; \
     script-src 'sha256-jxtoG9SUXSVYrGsK+cjmFiohaf++pkiDn1YnR3F2f64='; \
     style-src 'sha256-qn6FUBnNwXc6QuBxBMGOIFW05N1AXKvy44HfxtphStI='; \
     img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// Feeds the page. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct Live {
    shared: Arc<Shared>,
}

struct Shared {
    status: Status,
    /// Changes about once a second, and less often while the pod is quiet.
    rounds: watch::Receiver<()>,
    /// Notified when a client begins to listen.
    listens: Notify,
    /// `None` once no more events are sent.
    broadcast: Mutex<Option<Broadcast>>,
}

struct Broadcast {
    sender: channel::Sender<Bytes>,
    /// Number of events so far.
    events: u64,
    /// The last event, while there are listeners.
    last: Option<Bytes>,
    /// When a listener last received the present state, since the start.
    shown_at: Option<Duration>,
    /// At most [`LISTENERS_MAX`], the oldest first. Each lives as long as its listener's stream.
    slots: Vec<Weak<ListenerSlot>>,
}

/// The slot of one listener.
struct ListenerSlot {
    /// Number of events sent before this listener connected.
    since: u64,
    /// Number of events that this listener has taken, plus those sent before it connected.
    received: AtomicU64,
    connection: Option<ConnectionHandle>,
}

struct Listener {
    slot: Arc<ListenerSlot>,
    /// The first events of a listener: the last minutes, and the present state.
    first: [Bytes; 3],
    received: channel::Receiver<Bytes>,
}

/// A slot, the events to come, and the last one.
type Subscription = (Arc<ListenerSlot>, channel::Receiver<Bytes>, Option<Bytes>);

/// Why a client cannot listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListenError {
    /// There are [`LISTENERS_MAX`] listeners already.
    Listeners,
    /// The process is about to end.
    Ending,
}

// === impl Live ===

impl Live {
    /// Creates a page that shows `status`. While no client listens and nothing is decided, `rounds`
    /// says when to look again.
    pub fn new(status: Status, rounds: watch::Receiver<()>) -> Self {
        let sender = channel::Sender::new(QUEUE_MAX);
        let broadcast = Mutex::new(Some(Broadcast {
            sender,
            events: 0,
            last: None,
            shown_at: None,
            slots: Vec::new(),
        }));
        let listens = Notify::new();
        Self { shared: Arc::new(Shared { status, rounds, listens, broadcast }) }
    }

    /// `/live` and `/live/events`.
    pub fn routes(&self) -> Router {
        Router::new()
            .route("/live", get(page))
            .route("/live/events", get(events))
            .with_state(self.clone())
    }

    /// Records what happens in each second, and sends an event once a second while a client
    /// listens; never returns. After a second without decisions the next entry may be as long as a
    /// round.
    pub async fn run(self) {
        let Shared { status, rounds, listens, .. } = &*self.shared;
        let mut rounds = rounds.clone();
        let mut begins = false;
        loop {
            let is_busy = self.note();
            // A late second is not made up for: each entry records its real length.
            let next = status.start.next_multiple(PERIOD);
            let has_listeners = self.shared.has_listeners();
            // A listener that has just begun receives the present state by itself.
            if !begins && has_listeners {
                let live = self.clone();
                let send = move || live.send_event(live.shared.status.start.uptime());
                // An event that was not rendered is replaced by the next one, a second later.
                let _ = render(send).await;
            }
            begins = tokio::select! {
                () = sleep_until(next), if has_listeners || is_busy => false,
                // The rounds end with the process.
                Ok(()) = rounds.changed(), if !has_listeners && !is_busy => false,
                () = listens.notified(), if !has_listeners => true,
            };
        }
    }

    /// Stops sending events. Listeners have received every event so far.
    pub fn end(&self) {
        *self.shared.broadcast.lock() = None;
    }

    /// Records a second; this is the only work while no client listens. Returns whether anything
    /// was decided in it.
    fn note(&self) -> bool {
        let Status { start, stats, history, .. } = &self.shared.status;
        stats.calls().is_some_and(|calls| history.note(start.uptime(), calls))
    }

    /// Sends an event to every listener, unless one has received the state a moment ago: the rates
    /// between two events that follow each other at once would be far off. `now` is the uptime.
    fn send_event(&self, now: Duration) {
        let shown_at = self.shared.broadcast.lock().as_ref().and_then(|it| it.shown_at);
        if shown_at.is_some_and(|at| now.saturating_sub(at) < history::LENGTH_MIN) {
            return;
        }
        let event = self.shared.current_event();
        if let Some(broadcast) = &mut *self.shared.broadcast.lock() {
            broadcast.events += 1;
            // All listeners may have disconnected in the meantime.
            let sent = broadcast.sender.send(event.clone());
            broadcast.last = sent.is_ok().then_some(event);
            broadcast.remove_stalled();
        }
    }

    fn listen(&self, connection: Option<ConnectionHandle>) -> Result<Listener, ListenError> {
        // Subscribes first: nothing is rendered for a client that is refused.
        let (slot, received, last) = self.shared.subscribe(connection)?;
        let history = event("history", &self.shared.status.history.json());
        let state = last.unwrap_or_else(|| {
            let event = self.shared.current_event();
            if let Some(broadcast) = &mut *self.shared.broadcast.lock() {
                broadcast.shown_at = Some(self.shared.status.start.uptime());
            }
            event
        });
        let first = [Bytes::from_static(RETRY.as_bytes()), history, state];
        Ok(Listener { slot, first, received })
    }
}

// === impl Shared ===

impl Shared {
    /// Also returns the last event if others listen: the next one comes a second after it, whenever
    /// this listener begins.
    fn subscribe(&self, connection: Option<ConnectionHandle>) -> Result<Subscription, ListenError> {
        let mut broadcast = self.broadcast.lock();
        let broadcast = broadcast.as_mut().ok_or(ListenError::Ending)?;
        broadcast.remove_stalled();
        if broadcast.slots.len() >= LISTENERS_MAX {
            broadcast.evict_oldest()?;
        }
        let since = broadcast.events;
        let slot = Arc::new(ListenerSlot { since, received: AtomicU64::new(since), connection });
        if broadcast.slots.is_empty() {
            broadcast.last = None; // of listeners that have left
        }
        let last = broadcast.last.clone();
        broadcast.slots.push(Arc::downgrade(&slot));
        self.listens.notify_one();
        Ok((slot, broadcast.sender.subscribe(), last))
    }

    fn has_listeners(&self) -> bool {
        self.broadcast.lock().as_ref().is_some_and(|broadcast| !broadcast.slots.is_empty())
    }

    /// All of `/status`, and the last second.
    fn current_event(&self) -> Bytes {
        // Read before the uptime, which no entry is newer than.
        let second = self.status.history.newest().unwrap_or_default();
        let mut status = self.status.json();
        status["second"] = second;
        event("status", &status)
    }
}

// === impl Broadcast ===

impl Broadcast {
    /// Removes the slots of listeners that have disconnected, and closes the connections of those
    /// that have taken none of the queued events: nothing polls their streams.
    fn remove_stalled(&mut self) {
        let Self { events, slots, .. } = self;
        slots.retain(|slot| {
            let Some(slot) = slot.upgrade() else { return false };
            let waiting = events.saturating_sub(slot.received.load(Ordering::Relaxed));
            let is_stuck = waiting >= QUEUE_MAX as u64;
            if is_stuck {
                slot.connection.iter().for_each(ConnectionHandle::close);
            }
            !is_stuck
        });
    }

    /// Makes room by closing the connection of the oldest listener, if it is old enough.
    fn evict_oldest(&mut self) -> Result<(), ListenError> {
        let oldest = self.slots.first().and_then(Weak::upgrade);
        if let Some(slot) = oldest {
            if self.events - slot.since < TENURE_EVENTS {
                return Err(ListenError::Listeners);
            }
            slot.connection.iter().for_each(ConnectionHandle::close);
        }
        self.slots.remove(0);
        Ok(())
    }
}

// === impl Listener ===

impl Listener {
    /// A stream that ends once no more events are sent, or events were missed.
    fn events(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        let Self { slot, first, received } = self;
        let rest = stream::unfold((slot, received), |(slot, mut received)| async {
            let event = received.recv().await.ok()?;
            slot.received.fetch_add(1, Ordering::Relaxed);
            Some((event, (slot, received)))
        });
        stream::iter(first).chain(rest).map(Ok).fuse()
    }
}

/// Formats a server-sent event. JSON text has no line breaks of its own.
fn event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

async fn page() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)], PAGE)
}

async fn events(
    State(live): State<Live>,
    connection: Option<Extension<ConnectionHandle>>,
) -> Response {
    let connection = connection.map(|Extension(connection)| connection);
    let listener = match render(move || live.listen(connection)).await {
        Ok(Ok(listener)) => listener,
        Ok(Err(error)) => return error_response(error),
        Err(unmade) => return unmade.into_response(),
    };
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(listener.events())).into_response()
}

fn error_response(error: ListenError) -> Response {
    let hint = match error {
        ListenError::Listeners => {
            format!("{LISTENERS_MAX} pages are open, which is the maximum; close one of them\n")
        }
        ListenError::Ending => "the process is shutting down\n".to_owned(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "10")], hint).into_response()
}

#[cfg(test)]
pub(crate) mod tests;
