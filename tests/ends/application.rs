//! The application behind Envoy. Headers of a request say how it answers, and it knows at any
//! moment which requests run.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

/// Ends, with all of its connections, when it is dropped.
pub struct Application {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _stop: oneshot::Sender<()>,
}

/// Names a request: a number of the test's own.
pub const RUN: &str = "x-run";
/// Requests whose numbers have the same quotient by this are a group.
pub const GROUP: u64 = 1 << 32;
/// Time until the answer begins: milliseconds, or [`HELD`].
pub const BEFORE: &str = "x-before";
/// Time from the answer's first event to its end: milliseconds, or [`HELD`]. Without this header
/// the answer is whole at once.
pub const AFTER: &str = "x-after";
/// The status of the answer; 200 without it.
pub const STATUS: &str = "x-status";
/// Tokens that the answer says it has used, in OpenAI's form.
pub const USED: &str = "x-used";
/// A time without an end, but for [`Application::release`].
pub const HELD: &str = "held";

struct Shared {
    runs: Mutex<Runs>,
    /// Number of releases so far.
    released: watch::Sender<u64>,
    /// Number of requests that run, for [`Application::until_running`].
    running: watch::Sender<usize>,
}

#[derive(Default)]
struct Runs {
    /// The requests that run. Value: whether the client is still there.
    running: BTreeMap<u64, bool>,
    /// Requests whose clients left before the application had them.
    left: BTreeSet<u64>,
    /// Number of requests that run and whose clients are there, and the most so far.
    counted: usize,
    most: usize,
    /// The same of each group.
    of_groups: BTreeMap<u64, (usize, usize)>,
    seen: u64,
}

/// A request that runs, until it is dropped.
struct Run {
    shared: Arc<Shared>,
    number: u64,
}

const PATIENCE: Duration = Duration::from_secs(60);

// === impl Application ===

impl Application {
    /// Listens in a thread of its own, for HTTP/1.1 and HTTP/2.
    pub fn start() -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            runs: Mutex::default(),
            released: watch::Sender::new(0),
            running: watch::Sender::new(0),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let state = Arc::clone(&shared);
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let routes = axum::Router::new().fallback(answer).with_state(state);
                tokio::select! {
                    served = async { axum::serve(listener, routes).await } => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self { address, shared, _stop: stop }
    }

    /// Number of requests that run, whether or not their clients are there.
    pub fn running(&self) -> usize {
        self.shared.runs.lock().running.len()
    }

    /// The most requests that ran at one time. A request no longer counts once [`Self::leaves`] has
    /// been told of its client: its slot may be free before the application hears of the end.
    pub fn most(&self) -> usize {
        self.shared.runs.lock().most
    }

    /// As [`Self::most`], of the requests of one group.
    pub fn most_of(&self, group: u64) -> usize {
        self.shared.runs.lock().of_groups.get(&group).map_or(0, |(_, most)| *most)
    }

    /// Number of requests that it has got.
    pub fn seen(&self) -> u64 {
        self.shared.runs.lock().seen
    }

    /// Says that the client of a request is about to leave.
    pub fn leaves(&self, number: u64) {
        let mut runs = self.shared.runs.lock();
        match runs.running.get_mut(&number) {
            Some(is_there) => {
                let was_there = std::mem::take(is_there);
                runs.uncount(number, was_there);
            }
            None => drop(runs.left.insert(number)),
        }
    }

    /// Ends all waits of [`HELD`].
    pub fn release(&self) {
        self.shared.released.send_modify(|released| *released += 1);
    }

    /// Waits until as many requests run.
    pub async fn until_running(&self, count: usize) {
        let mut running = self.shared.running.subscribe();
        let reached = timeout(PATIENCE, running.wait_for(|running| *running == count)).await;
        assert!(reached.is_ok(), "{} requests run, not {count}", self.running());
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let number = header(RUN).and_then(|number| number.parse().ok());
    let run = Run::begin(&shared, number);
    if axum::body::to_bytes(body, usize::MAX).await.is_err() {
        return Response::default(); // nobody is there to get it
    }
    let released = shared.released.subscribe();
    wait(header(BEFORE), released.clone()).await;
    let status: u16 = header(STATUS).map_or(200, |status| status.parse().expect("a status"));
    let status = StatusCode::from_u16(status).expect("a status");
    let Some(after) = header(AFTER).map(str::to_owned) else {
        drop(run);
        return (status, whole(&head.headers)).into_response();
    };
    let events = stream::unfold(Some((run, false)), move |state| {
        let (after, released) = (after.clone(), released.clone());
        async move {
            let (run, has_begun) = state?;
            if !has_begun {
                return Some((event("begun"), Some((run, true))));
            }
            wait(Some(&after), released).await;
            // Before Envoy can know of the end.
            drop(run);
            Some((event("[DONE]"), None))
        }
    });
    let kind = [("content-type", "text/event-stream")];
    (status, kind, Body::from_stream(events)).into_response()
}

fn event(data: &str) -> Result<Bytes, Infallible> {
    Ok(Bytes::from(format!("data: {data}\n\n")))
}

/// An answer without events.
fn whole(headers: &HeaderMap) -> Response {
    let Some(used) = headers.get(USED).and_then(|used| used.to_str().ok()) else {
        return "ok\n".into_response();
    };
    let usage = format!(r#"{{"usage":{{"prompt_tokens":0,"completion_tokens":{used}}}}}"#);
    ([("content-type", "application/json")], usage).into_response()
}

async fn wait(how_long: Option<&str>, mut released: watch::Receiver<u64>) {
    match how_long {
        None => {}
        Some(HELD) => drop(released.changed().await),
        Some(millis) => sleep(Duration::from_millis(millis.parse().expect("a number"))).await,
    }
}

// === impl Runs ===

impl Runs {
    fn count(&mut self, number: u64, is_there: bool) {
        self.counted += usize::from(is_there);
        self.most = self.most.max(self.counted);
        let (counted, most) = self.of_groups.entry(number / GROUP).or_default();
        *counted += usize::from(is_there);
        *most = (*most).max(*counted);
    }

    fn uncount(&mut self, number: u64, was_there: bool) {
        self.counted -= usize::from(was_there);
        if let Some((counted, _)) = self.of_groups.get_mut(&(number / GROUP)) {
            *counted -= usize::from(was_there);
        }
    }
}

// === impl Run ===

impl Run {
    /// A request without a number gets one that no other has.
    fn begin(shared: &Arc<Shared>, number: Option<u64>) -> Self {
        let mut runs = shared.runs.lock();
        runs.seen += 1;
        let number = number.unwrap_or(u64::MAX - runs.seen);
        let is_there = !runs.left.remove(&number);
        let former = runs.running.insert(number, is_there);
        assert_eq!(former, None, "request {number} came twice");
        runs.count(number, is_there);
        shared.running.send_replace(runs.running.len());
        Self { shared: Arc::clone(shared), number }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut runs = self.shared.runs.lock();
        let was_there = runs.running.remove(&self.number).expect("it runs");
        runs.uncount(self.number, was_there);
        self.shared.running.send_replace(runs.running.len());
    }
}
