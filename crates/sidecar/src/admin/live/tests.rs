//! Listeners: the events they receive, when they are disconnected, and how the stream ends.

use std::pin::Pin;

use futures_util::FutureExt;
use ratelease_listener::Connection;
use tokio::io::{Empty, empty};

use super::super::status::tests::{Fixed, status_of};
use super::*;

fn live() -> Live {
    Live::new(status_of(Fixed::default()), watch::channel(()).1)
}

/// Sends the event of a second later.
fn look(live: &Live) {
    live.note();
    live.send_event(live.shared.status.start.uptime() + PERIOD);
}

fn listener(live: &Live) -> Pin<Box<dyn Stream<Item = Result<Bytes, Infallible>>>> {
    Box::pin(live.listen(None).map_err(|_| ()).expect("a place").events())
}

/// The events that a listener can receive by now, as text.
fn drained(events: &mut (impl Stream<Item = Result<Bytes, Infallible>> + Unpin)) -> Vec<String> {
    let next = || events.next().now_or_never()??.ok();
    std::iter::from_fn(next).map(|event| String::from_utf8_lossy(&event).into_owned()).collect()
}

fn is_ended(events: &mut (impl Stream<Item = Result<Bytes, Infallible>> + Unpin)) -> bool {
    events.next().now_or_never() == Some(None)
}

#[test]
fn a_listener_receives_the_last_minutes_and_then_each_second() {
    let live = live();
    for second in 1..3 {
        let Status { stats, history, .. } = &live.shared.status;
        history.note(Duration::from_secs(second), stats.calls().unwrap());
    }
    let mut events = listener(&live);
    look(&live);
    let received = drained(&mut events);
    let starts = ["retry: ", "event: history\ndata: [{", "event: status\ndata: {", "event: status"];
    assert_eq!(received.len(), starts.len(), "{received:?}");
    for (event, start) in received.iter().zip(starts) {
        assert!(event.starts_with(start) && event.ends_with("\n\n"), "{event}");
        assert!(event.trim_end().lines().count() <= 2, "one line of data: {event}");
    }
    let data = received[3].split_once("data: ").unwrap().1;
    let data: Value = serde_json::from_str(data).unwrap();
    assert!(data["second"]["at"].is_f64() && data["decisions"].is_object(), "{data}");
}

#[test]
fn a_listener_beside_others_begins_with_their_last_event() {
    let live = live();
    let mut first = listener(&live);
    look(&live);
    let sent = drained(&mut first).pop();
    assert_eq!(drained(&mut listener(&live)).pop(), sent, "the next one comes a second later");
}

#[test]
fn listeners_are_bounded_and_a_slot_is_free_once_one_disconnects() {
    let live = live();
    let mut crowd: Vec<_> = (0..LISTENERS_MAX).map(|_| listener(&live)).collect();
    assert_eq!(live.listen(None).err(), Some(ListenError::Listeners));
    crowd.pop();
    assert!(live.listen(None).is_ok());
}

#[test]
fn a_slow_listener_is_disconnected() {
    let live = live();
    let (mut slow, mut quick) = (listener(&live), listener(&live));
    for _ in 0..2 * QUEUE_MAX {
        look(&live);
        assert!(!drained(&mut quick).is_empty());
    }
    let queued = live.shared.broadcast.lock().as_ref().map(|broadcast| broadcast.sender.len());
    assert_eq!(queued, Some(QUEUE_MAX), "for the slow one");
    assert_eq!(drained(&mut slow).len(), 3, "what it began with");
    assert!(is_ended(&mut slow) && !is_ended(&mut quick));
}

#[tokio::test]
async fn the_connection_of_a_stalled_listener_is_closed_and_its_slot_is_free() {
    let live = live();
    let connections: Vec<_> = (0..LISTENERS_MAX).map(|_| Connection::standalone(empty())).collect();
    let listen = |connection: &Connection<Empty>| {
        Box::pin(live.listen(Some(connection.handle())).map_err(|_| ()).expect("a place").events())
    };
    let mut crowd: Vec<_> = connections.iter().map(listen).collect();
    assert_eq!(live.listen(None).err(), Some(ListenError::Listeners));
    for _ in 0..QUEUE_MAX {
        look(&live);
        drained(&mut crowd[0]);
    }
    let is_asked_to_close = |connection: &Connection<Empty>| {
        connection.handle().close_requested().now_or_never().is_some()
    };
    let broadcast: Vec<_> = connections.iter().map(is_asked_to_close).collect();
    assert_eq!(broadcast, [&[false][..], &[true; LISTENERS_MAX - 1]].concat());
    assert!(live.listen(None).is_ok() && live.shared.has_listeners());
}

#[test]
fn the_oldest_listener_is_evicted_after_its_tenure() {
    // Not a tokio task, which would yield now and then.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _context = runtime.enter();
    let live = live();
    let connection = Connection::standalone(empty());
    let first = live.listen(Some(connection.handle())).map_err(|_| ()).expect("a place");
    let mut crowd = vec![Box::pin(first.events()) as Pin<Box<dyn Stream<Item = _>>>];
    crowd.extend((1..LISTENERS_MAX).map(|_| listener(&live) as _));
    for _ in 0..TENURE_EVENTS {
        assert_eq!(live.listen(None).err(), Some(ListenError::Listeners));
        look(&live);
        crowd.iter_mut().for_each(|events| drop(drained(events)));
    }
    assert!(connection.handle().close_requested().now_or_never().is_none());
    assert!(live.listen(None).is_ok());
    assert!(connection.handle().close_requested().now_or_never().is_some());
}

#[test]
fn on_shutdown_every_stream_ends_and_none_begins() {
    let live = live();
    let mut events = listener(&live);
    live.end();
    assert_eq!(drained(&mut events).len(), 3);
    assert!(is_ended(&mut events));
    assert_eq!(live.listen(None).err(), Some(ListenError::Ending));
    look(&live);
}

/// The output of `sha256sum`, from coreutils, for `text`, in base 64.
fn sha256(text: &str) -> String {
    let script = "printf %s \"$0\" | sha256sum | cut -c-64 | tr a-f A-F | basenc -d --base16 \
                  | base64";
    let ran = std::process::Command::new("sh").args(["-c", script, text]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_policy_has_the_hashes_of_script_and_style_and_the_page_loads_nothing() {
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
        // The namespace of SVG's elements is a name, not an address that is requested.
        let found = PAGE.replace("http://www.w3.org/2000/svg", "");
        assert!(!found.contains(never), "{never}");
    }
}
