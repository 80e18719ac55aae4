//! The live page: one page of the debug port, and the events that feed it once a second.
//!
//! ```text
//!  each second: count ─▶ History ─┐ only while somebody listens:
//!                                 └▶ one event ─▶ a short queue for each listener ─▶ its page
//! ```
//! A listener that does not keep up is let go; its browser comes back by itself.

pub mod history;

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::poll_fn;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, RETRY_AFTER,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::status::Status;

/// Pages that may listen at once: each costs the making of an event a second, and its queue.
pub const LISTENERS_MAX: usize = 16;

/// Events that wait for one listener at most: so many seconds may its network stall.
const QUEUE_MAX: usize = 8;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// What a browser waits before it comes back, in milliseconds.
const RETRY: &str = "retry: 2000\n\n";

/// The page, with [`NONCE`] wherever it vouches for its own script and style.
const PAGE: &str = include_str!("live/page.html");
const NONCE: &str = "%NONCE%";

/// Feeds the page. A handle: clones share everything.
#[derive(Clone)]
pub struct Live {
    shared: Arc<Shared>,
}

struct Shared {
    status: Status,
    /// [`LISTENERS_MAX`] at most; `None` once no more is told.
    listeners: Mutex<Option<Vec<mpsc::Sender<Bytes>>>>,
}

/// Why somebody cannot listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    /// There are [`LISTENERS_MAX`] already.
    Listeners,
    /// The process is about to end.
    Ending,
}

// === impl Live ===

impl Live {
    /// Tells what `status` does.
    pub fn new(status: Status) -> Self {
        Self { shared: Arc::new(Shared { status, listeners: Mutex::new(Some(Vec::new())) }) }
    }

    /// `/live` and `/live/events`.
    pub fn routes(&self) -> Router {
        Router::new()
            .route("/live", get(page))
            .route("/live/events", get(events))
            .with_state(self.clone())
    }

    /// Looks once a second, for ever.
    pub async fn run(self) {
        let mut ticks = interval(PERIOD);
        // What is late is not made up for: each look says how long it is since the one before.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look();
        }
    }

    /// From now on nothing is told. Whoever listens has heard all there is.
    pub fn end(&self) {
        *self.shared.listeners.lock() = None;
    }

    fn look(&self) {
        let Status { start, numbers, history, .. } = &self.shared.status;
        if let Some(decisions) = numbers.decisions() {
            history.note(start.uptime(), decisions);
        }
        if !self.shared.is_heard() {
            return;
        }
        let event = self.shared.now();
        if let Some(listeners) = &mut *self.shared.listeners.lock() {
            listeners.retain(|listener| listener.try_send(event.clone()).is_ok());
        }
    }

    /// A queue that begins with the last minutes and how things stand.
    fn listen(&self) -> Result<mpsc::Receiver<Bytes>, Full> {
        let history = event("history", &self.shared.status.history.json());
        let first = [Bytes::from_static(RETRY.as_bytes()), history, self.shared.now()];
        let (told, heard) = mpsc::channel(QUEUE_MAX);
        for event in first {
            // There is room for them.
            let _ = told.try_send(event);
        }
        let mut listeners = self.shared.listeners.lock();
        let listeners = listeners.as_mut().ok_or(Full::Ending)?;
        listeners.retain(|listener| !listener.is_closed());
        if listeners.len() >= LISTENERS_MAX {
            return Err(Full::Listeners);
        }
        listeners.push(told);
        Ok(heard)
    }
}

// === impl Shared ===

impl Shared {
    fn is_heard(&self) -> bool {
        let listeners = self.listeners.lock();
        listeners.iter().flatten().any(|listener| !listener.is_closed())
    }

    /// All of `/status`, and the last second.
    fn now(&self) -> Bytes {
        let mut told = self.status.json();
        told["second"] = self.status.history.newest().unwrap_or_default();
        event("status", &told)
    }
}

/// As server-sent events have it. JSON has no line breaks of its own.
fn event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// The page may run its own script and listen here, and load nothing from anywhere.
async fn page() -> impl IntoResponse {
    let nonce = nonce();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let headers: [(HeaderName, &str); 4] = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, [(CONTENT_SECURITY_POLICY, policy)], PAGE.replace(NONCE, &nonce))
}

/// Of no use to whoever has not seen the page: 128 bits out of the system's randomness.
fn nonce() -> String {
    let dice = RandomState::new();
    format!("{:016x}{:016x}", dice.hash_one(0_u8), dice.hash_one(1_u8))
}

async fn events(State(live): State<Live>) -> Response {
    let mut queue = match live.listen() {
        Ok(queue) => queue,
        Err(full) => return refusal(full),
    };
    let next = move |cx: &mut std::task::Context<'_>| {
        queue.poll_recv(cx).map(|event| event.map(Ok::<_, Infallible>))
    };
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(poll_fn(next))).into_response()
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
mod tests {
    use super::super::status::tests::{Fixed, status_of};
    use super::*;

    fn live() -> Live {
        Live::new(status_of(Fixed::default()))
    }

    /// What waits in a queue, as text.
    fn drained(queue: &mut mpsc::Receiver<Bytes>) -> Vec<String> {
        let next = || queue.try_recv().ok();
        std::iter::from_fn(next).map(|event| String::from_utf8_lossy(&event).into_owned()).collect()
    }

    #[test]
    fn a_listener_hears_the_last_minutes_and_then_each_second() {
        let live = live();
        live.look();
        live.look();
        let mut queue = live.listen().unwrap();
        live.look();
        let heard = drained(&mut queue);
        let starts =
            ["retry: ", "event: history\ndata: [{", "event: status\ndata: {", "event: status"];
        assert_eq!(heard.len(), starts.len(), "{heard:?}");
        for (event, start) in heard.iter().zip(starts) {
            assert!(event.starts_with(start) && event.ends_with("\n\n"), "{event}");
            assert!(event.trim_end().lines().count() <= 2, "one line of data: {event}");
        }
        let data = heard[3].split_once("data: ").unwrap().1;
        let data: Value = serde_json::from_str(data).unwrap();
        assert!(data["second"]["at"].is_f64() && data["decisions"].is_object(), "{data}");
    }

    #[test]
    fn there_are_so_many_listeners_and_room_again_once_one_has_gone() {
        let live = live();
        let mut crowd: Vec<_> = (0..LISTENERS_MAX).map(|_| live.listen().unwrap()).collect();
        assert_eq!(live.listen().err(), Some(Full::Listeners));
        crowd.pop();
        assert!(live.listen().is_ok());
    }

    #[test]
    fn who_does_not_keep_up_is_let_go() {
        let live = live();
        let mut slow = live.listen().unwrap();
        let mut quick = live.listen().unwrap();
        for _ in 0..2 * QUEUE_MAX {
            live.look();
            assert!(!drained(&mut quick).is_empty());
        }
        assert_eq!(drained(&mut slow).len(), QUEUE_MAX);
        assert!(slow.is_closed(), "and it hears of it");
        assert!(!quick.is_closed());
    }

    #[test]
    fn at_the_end_every_stream_ends_and_none_begins() {
        let live = live();
        let mut queue = live.listen().unwrap();
        live.end();
        assert_eq!(drained(&mut queue).len(), 3);
        assert!(queue.is_closed());
        assert_eq!(live.listen().err(), Some(Full::Ending));
        live.look();
    }

    #[test]
    fn a_nonce_is_never_used_again() {
        let nonces: std::collections::HashSet<_> = (0..1000).map(|_| nonce()).collect();
        assert_eq!(nonces.len(), 1000);
        assert!(nonces.iter().all(|nonce| nonce.len() == 32));
    }

    #[test]
    fn the_page_vouches_for_what_it_runs_and_loads_nothing() {
        for tag in ["<script", "<style"] {
            let tags: Vec<_> = PAGE.match_indices(tag).collect();
            assert_eq!(tags.len(), 1, "{tag}");
        }
        assert_eq!(PAGE.matches(NONCE).count(), 2);
        for never in ["http://", "https://", "//cdn", "innerHTML", "insertAdjacentHTML", "eval("] {
            // The one name of SVG's elements is no address that is asked.
            let found = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(never), "{never}");
        }
    }
}
