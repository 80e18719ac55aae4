//! The live page: one page of the debug port, and the events that feed it once a second.
//!
//! ```text
//!  each second: count ─▶ History ─┐ only while somebody listens:
//!                                 └▶ one event ─▶ the queue of all listeners ─▶ their pages
//! ```
//! A listener that does not keep up is let go; its browser comes back by itself. One that is stuck
//! holds nothing but its place: events wait in one queue, however many listen.

pub mod history;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{self, Stream, StreamExt};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::broadcast;
use tokio::time::{MissedTickBehavior, interval};

use super::page;
use super::status::Status;

/// Pages that may listen at once: each costs an event a second on the network.
pub const LISTENERS_MAX: usize = 16;

/// Events that wait at most, for all listeners: so many seconds may the network of one stall.
const QUEUE_MAX: usize = 8;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// What a browser waits before it comes back, in milliseconds.
const RETRY: &str = "retry: 2000\n\n";

/// The page, and what it may do: run the script and the style that are in it, which are known by
/// their SHA-256; listen here, and load nothing from anywhere.
const PAGE: &str = include_str!("live/page.html");
const POLICY: &str = "default-src 'none'; \
     script-src 'sha256-A/FH+caNMQ0hKkKRi+ZR9gb6arWRhOFhRS0Ye+CJGjc='; \
     style-src 'sha256-vqD0SQapTgRgiFl3TxYt2u94THAp0sDsjvTQIcujvUY='; \
     img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// Feeds the page. A handle: clones share everything.
#[derive(Clone)]
pub struct Live {
    shared: Arc<Shared>,
}

struct Shared {
    status: Status,
    /// To [`LISTENERS_MAX`] at most; `None` once no more is told.
    told: Mutex<Option<broadcast::Sender<Bytes>>>,
}

/// Somebody's place.
struct Listener {
    /// The last minutes, and how things stand.
    first: [Bytes; 3],
    heard: broadcast::Receiver<Bytes>,
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
        let told = Mutex::new(Some(broadcast::Sender::new(QUEUE_MAX)));
        Self { shared: Arc::new(Shared { status, told }) }
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
            self.note();
            if self.shared.is_heard() {
                let live = self.clone();
                // What could not be made is made a second later.
                let _ = page::made(move || live.tell()).await;
            }
        }
    }

    /// From now on nothing is told. Whoever listens has heard all there is.
    pub fn end(&self) {
        *self.shared.told.lock() = None;
    }

    /// All that is done while nobody listens.
    fn note(&self) {
        let Status { start, numbers, history, .. } = &self.shared.status;
        if let Some(calls) = numbers.calls() {
            history.note(start.uptime(), calls);
        }
    }

    /// Sends everybody an event.
    fn tell(&self) {
        let event = self.shared.now();
        if let Some(told) = &*self.shared.told.lock() {
            // All may have gone meanwhile.
            let _ = told.send(event);
        }
    }

    fn listen(&self) -> Result<Listener, Full> {
        // First: nothing is made for whoever finds no room.
        let heard = self.shared.subscribe()?;
        let history = event("history", &self.shared.status.history.json());
        let first = [Bytes::from_static(RETRY.as_bytes()), history, self.shared.now()];
        Ok(Listener { first, heard })
    }
}

// === impl Shared ===

impl Shared {
    fn subscribe(&self) -> Result<broadcast::Receiver<Bytes>, Full> {
        let told = self.told.lock();
        let told = told.as_ref().ok_or(Full::Ending)?;
        if told.receiver_count() < LISTENERS_MAX {
            Ok(told.subscribe())
        } else {
            Err(Full::Listeners)
        }
    }

    fn is_heard(&self) -> bool {
        self.told.lock().as_ref().is_some_and(|told| told.receiver_count() > 0)
    }

    /// All of `/status`, and the last second.
    fn now(&self) -> Bytes {
        let mut told = self.status.json();
        told["second"] = self.status.history.newest().unwrap_or_default();
        event("status", &told)
    }
}

// === impl Listener ===

impl Listener {
    /// Ends once no more is told, or events were missed.
    fn events(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        let Self { first, heard } = self;
        let rest = stream::unfold(heard, |mut heard| async {
            let event = heard.recv().await.ok()?;
            Some((event, heard))
        });
        stream::iter(first).chain(rest).map(Ok).fuse()
    }
}

/// As server-sent events have it. JSON has no line breaks of its own.
fn event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

async fn page() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)], PAGE)
}

async fn events(State(live): State<Live>) -> Response {
    let listener = match page::made(move || live.listen()).await {
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
mod tests {
    use std::pin::Pin;

    use futures_util::FutureExt;

    use super::super::status::tests::{Fixed, status_of};
    use super::*;

    fn live() -> Live {
        Live::new(status_of(Fixed::default()))
    }

    /// One second.
    fn look(live: &Live) {
        live.note();
        live.tell();
    }

    fn listener(live: &Live) -> Pin<Box<dyn Stream<Item = Result<Bytes, Infallible>>>> {
        Box::pin(live.listen().map_err(|_| ()).expect("a place").events())
    }

    /// What a listener can hear by now, as text.
    fn drained(
        events: &mut (impl Stream<Item = Result<Bytes, Infallible>> + Unpin),
    ) -> Vec<String> {
        let next = || events.next().now_or_never()??.ok();
        std::iter::from_fn(next).map(|event| String::from_utf8_lossy(&event).into_owned()).collect()
    }

    fn is_ended(events: &mut (impl Stream<Item = Result<Bytes, Infallible>> + Unpin)) -> bool {
        events.next().now_or_never() == Some(None)
    }

    #[test]
    fn a_listener_hears_the_last_minutes_and_then_each_second() {
        let live = live();
        look(&live);
        look(&live);
        let mut events = listener(&live);
        look(&live);
        let heard = drained(&mut events);
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
        let mut crowd: Vec<_> = (0..LISTENERS_MAX).map(|_| listener(&live)).collect();
        assert_eq!(live.listen().err(), Some(Full::Listeners));
        crowd.pop();
        assert!(live.listen().is_ok());
    }

    #[test]
    fn who_does_not_keep_up_is_let_go() {
        let live = live();
        let (mut slow, mut quick) = (listener(&live), listener(&live));
        for _ in 0..2 * QUEUE_MAX {
            look(&live);
            assert!(!drained(&mut quick).is_empty());
        }
        let queued = live.shared.told.lock().as_ref().map(broadcast::Sender::len);
        assert_eq!(queued, Some(QUEUE_MAX), "for the slow one");
        assert_eq!(drained(&mut slow).len(), 3, "what it began with");
        assert!(is_ended(&mut slow) && !is_ended(&mut quick));
    }

    #[test]
    fn at_the_end_every_stream_ends_and_none_begins() {
        let live = live();
        let mut events = listener(&live);
        live.end();
        assert_eq!(drained(&mut events).len(), 3);
        assert!(is_ended(&mut events));
        assert_eq!(live.listen().err(), Some(Full::Ending));
        look(&live);
    }

    /// What `sha256sum`, of coreutils, makes of `text`, in base 64.
    fn sha256(text: &str) -> String {
        let script = "printf %s \"$0\" | sha256sum | cut -c-64 | tr a-f A-F | basenc -d --base16 \
                      | base64";
        let ran = std::process::Command::new("sh").args(["-c", script, text]).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn the_policy_knows_what_the_page_runs_and_the_page_loads_nothing() {
        for tag in ["script", "style"] {
            let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
            let (before, rest) = PAGE.split_once(&open).expect("one without attributes");
            let (text, after) = rest.split_once(&close).expect("its end");
            assert!(![before, after].iter().any(|part| part.contains(&format!("<{tag}"))), "{tag}");
            let source = format!("{tag}-src 'sha256-{}'", sha256(text));
            assert!(POLICY.contains(&source), "since the page has changed: {source}");
        }
        let has_handlers = PAGE.contains(" onclick=") || PAGE.contains(" onload=");
        assert!(!PAGE.contains(" style=") && !has_handlers, "no policy lets these run");
        for never in ["http://", "https://", "//cdn", "innerHTML", "insertAdjacentHTML", "eval("] {
            // The one name of SVG's elements is no address that is asked.
            let found = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(never), "{never}");
        }
    }
}
