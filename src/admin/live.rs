//! The live page: one page of the debug port, and the events that feed it once a second.
//!
//! ```text
//!  each second: count ─▶ History ─┐ only while somebody listens:
//!                                 └▶ one event ─▶ the queue of all listeners ─▶ their pages
//! ```
//! A listener that does not keep up is disconnected; its browser reconnects by itself. If a
//! connection is stuck it is closed, so that no idle client keeps a place. All listeners share one
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
use tokio::sync::broadcast;
use tokio::time::{MissedTickBehavior, interval};

use super::render;
use super::status::Status;
use crate::accept::ConnectionHandle;

/// Maximum number of pages that listen at once: each costs an event a second on the network.
pub const LISTENERS_MAX: usize = 16;

/// Number of events after which a listener's place may be given to another when all are taken: for
/// minutes, the network's buffers accept data that a client does not read. A browser reconnects by
/// itself.
const TENURE: u64 = 60;

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
     script-src 'sha256-A/FH+caNMQ0hKkKRi+ZR9gb6arWRhOFhRS0Ye+CJGjc='; \
     style-src 'sha256-vqD0SQapTgRgiFl3TxYt2u94THAp0sDsjvTQIcujvUY='; \
     img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// Feeds the page. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct Live {
    shared: Arc<Shared>,
}

struct Shared {
    status: Status,
    /// `None` once no more events are sent.
    told: Mutex<Option<Told>>,
}

struct Told {
    sender: broadcast::Sender<Bytes>,
    /// Number of events so far.
    events: u64,
    /// At most [`LISTENERS_MAX`], the oldest first. Each lives as long as its listener's stream.
    places: Vec<Weak<Place>>,
}

/// The place of one listener.
struct Place {
    /// Number of events sent before this listener came.
    since: u64,
    /// Number of events that this listener has taken, plus those sent before it came.
    heard: AtomicU64,
    connection: Option<ConnectionHandle>,
}

struct Listener {
    place: Arc<Place>,
    /// The first events of a listener: the last minutes, and the present state.
    first: [Bytes; 3],
    heard: broadcast::Receiver<Bytes>,
}

/// Why a client cannot listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    /// There are [`LISTENERS_MAX`] listeners already.
    Listeners,
    /// The process is about to end.
    Ending,
}

// === impl Live ===

impl Live {
    /// Creates a page that shows `status`.
    pub fn new(status: Status) -> Self {
        let sender = broadcast::Sender::new(QUEUE_MAX);
        let told = Mutex::new(Some(Told { sender, events: 0, places: Vec::new() }));
        Self { shared: Arc::new(Shared { status, told }) }
    }

    /// `/live` and `/live/events`.
    pub fn routes(&self) -> Router {
        Router::new()
            .route("/live", get(page))
            .route("/live/events", get(events))
            .with_state(self.clone())
    }

    /// Records a second and sends an event once a second; never returns.
    pub async fn run(self) {
        let mut ticks = interval(PERIOD);
        // A late tick is not made up for: each second records its real length.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.note();
            if self.shared.is_heard() {
                let live = self.clone();
                // An event that could not be made is made a second later.
                let _ = render::render(move || live.tell()).await;
            }
        }
    }

    /// Stops sending events. Listeners have received every event so far.
    pub fn end(&self) {
        *self.shared.told.lock() = None;
    }

    /// Records a second; this is the only work while no client listens.
    fn note(&self) {
        let Status { start, stats, history, .. } = &self.shared.status;
        if let Some(calls) = stats.calls() {
            history.note(start.uptime(), calls);
        }
    }

    /// Sends an event to every listener.
    fn tell(&self) {
        let event = self.shared.now();
        if let Some(told) = &mut *self.shared.told.lock() {
            told.events += 1;
            // All listeners may have gone in the meantime.
            let _ = told.sender.send(event);
            told.let_go();
        }
    }

    fn listen(&self, connection: Option<ConnectionHandle>) -> Result<Listener, Full> {
        // Subscribes first: no page is made for a client that finds no room.
        let (place, heard) = self.shared.subscribe(connection)?;
        let history = event("history", &self.shared.status.history.json());
        let first = [Bytes::from_static(RETRY.as_bytes()), history, self.shared.now()];
        Ok(Listener { place, first, heard })
    }
}

// === impl Shared ===

impl Shared {
    fn subscribe(
        &self,
        connection: Option<ConnectionHandle>,
    ) -> Result<(Arc<Place>, broadcast::Receiver<Bytes>), Full> {
        let mut told = self.told.lock();
        let told = told.as_mut().ok_or(Full::Ending)?;
        told.let_go();
        if told.places.len() >= LISTENERS_MAX {
            told.let_oldest_go()?;
        }
        let since = told.events;
        let place = Arc::new(Place { since, heard: AtomicU64::new(since), connection });
        told.places.push(Arc::downgrade(&place));
        Ok((place, told.sender.subscribe()))
    }

    fn is_heard(&self) -> bool {
        self.told.lock().as_ref().is_some_and(|told| !told.places.is_empty())
    }

    /// All of `/status`, and the last second.
    fn now(&self) -> Bytes {
        let mut told = self.status.json();
        told["second"] = self.status.history.newest().unwrap_or_default();
        event("status", &told)
    }
}

// === impl Told ===

impl Told {
    /// Removes the places of listeners that have gone, and closes the connections of those that
    /// have taken none of the queued events: nothing polls their streams.
    fn let_go(&mut self) {
        let Self { events, places, .. } = self;
        places.retain(|place| {
            let Some(place) = place.upgrade() else { return false };
            let waiting = events.saturating_sub(place.heard.load(Ordering::Relaxed));
            let is_stuck = waiting >= QUEUE_MAX as u64;
            if is_stuck {
                place.connection.iter().for_each(ConnectionHandle::close);
            }
            !is_stuck
        });
    }

    /// Makes room by closing the connection of the oldest listener, if it is old enough.
    fn let_oldest_go(&mut self) -> Result<(), Full> {
        let oldest = self.places.first().and_then(Weak::upgrade);
        if let Some(place) = oldest {
            if self.events - place.since < TENURE {
                return Err(Full::Listeners);
            }
            place.connection.iter().for_each(ConnectionHandle::close);
        }
        self.places.remove(0);
        Ok(())
    }
}

// === impl Listener ===

impl Listener {
    /// A stream that ends once no more events are sent, or events were missed.
    fn events(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        let Self { place, first, heard } = self;
        let rest = stream::unfold((place, heard), |(place, mut heard)| async {
            let event = heard.recv().await.ok()?;
            place.heard.fetch_add(1, Ordering::Relaxed);
            Some((event, (place, heard)))
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
    let listener = match render::render(move || live.listen(connection)).await {
        Ok(Ok(listener)) => listener,
        Ok(Err(full)) => return refusal(full),
        Err(unmade) => return unmade.into_response(),
    };
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(listener.events())).into_response()
}

fn refusal(full: Full) -> Response {
    let hint = match full {
        Full::Listeners => {
            format!("{LISTENERS_MAX} pages listen already, which is the most; close one of them\n")
        }
        Full::Ending => "the process is about to end\n".to_owned(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "10")], hint).into_response()
}

#[cfg(test)]
mod tests;
