//! The webhook: HTTPS, with bounds on all that a client may take; its paths, and their answers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use parking_lot::Mutex;
use ratelease_listener::tls::TlsAcceptor;
use ratelease_listener::{
    Client, ConnectionHandle, HttpServer, OpenConnections, RequestInUse, UnreadAnswers,
    UnreadBounds,
};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::annotation::Defaults;
use crate::fault::reason;
use crate::inject::{Cluster, Verdict};
use crate::review::{self, Answer, Reason};

// The limit of memory in the chart is 128 MiB. At most: 15 MiB of the program; 28 MiB of the one
// review that is parsed (REVIEW_BYTES_MAX); 24 MiB of bodies, as buffers grow by doubling; 13 MiB
// of 64 connections, with two buffers of 64 KiB and 64 KiB of TLS each; 16 MiB of answers that are
// not read. That is 96 MiB.

/// Maximum number of connections; an API server keeps a few open. A further one takes the place of
/// one that never had a request with a body, of the client that has the most; else of the one whose
/// last request is the longest ago, of the client that has the most.
const CONNECTIONS_MAX: usize = 64;
/// Time without such a request after which a connection is asked to go away.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Maximum bytes of all bodies that are arriving.
const BODIES_BYTES_MAX: usize = 12 << 20;
/// Maximum number of calls at a time on a connection of HTTP/2.
const STREAMS_MAX: u32 = 4;
/// Maximum bytes of each buffer of a connection.
const BUFFER_MAX: u32 = 64 << 10;
/// What answers that are not read may take: one has some 100 KiB at most.
const UNREAD: UnreadBounds = UnreadBounds {
    bytes_max: 16 << 20,
    counted_max: 1 << 20,
    of_client_max: 12 << 20,
    bytes_per_second_min: Some(32 << 10),
};
/// Age at which a connection is closed, so that a client finds new injectors and certificates.
const AGE_MAX: Duration = Duration::from_secs(300);
/// Time for which connections are still accepted after a signal: until then the API server may not
/// know that this injector ends.
const LAME_DUCK: Duration = Duration::from_secs(2);
/// Maximum time that calls have to finish after that.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Maximum bytes of a body: an API server takes no request above 3 MiB, and sends it on with some
/// fields around it.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Maximum time until a body has arrived: with the chart, API servers wait 5 s for an answer.
const BODY_TIME_MAX: Duration = Duration::from_secs(3);

/// What answers are made of.
#[derive(Debug)]
pub struct Webhook {
    defaults: Defaults,
    cluster: watch::Receiver<Cluster>,
    bodies: Bodies,
}

// === impl Webhook ===

impl Webhook {
    pub fn new(defaults: Defaults, cluster: watch::Receiver<Cluster>) -> Self {
        Self { defaults, cluster, bodies: Bodies::new(BODIES_BYTES_MAX) }
    }
}

/// Serves until `stop` resolves, and then until the calls in flight are finished. Each connection
/// is secured with the certificate that is in force when it begins.
pub async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    webhook: Webhook,
    stop: impl Future<Output = ()>,
) {
    let server = HttpServer::new(STREAMS_MAX)
        .head_bytes(BUFFER_MAX)
        .windows(BUFFER_MAX)
        .age(AGE_MAX)
        .leaving(DRAIN_MAX);
    let open = OpenConnections::for_any_clients(CONNECTIONS_MAX, IDLE_MAX);
    let webhook = Arc::new(webhook);
    let unread = UnreadAnswers::new(UNREAD);
    let service = move |Client { connection, .. }: Client| {
        let webhook = Arc::clone(&webhook);
        let unread = unread.clone();
        service_fn(move |request| {
            let webhook = Arc::clone(&webhook);
            let unread = unread.clone();
            let connection = connection.clone();
            async move {
                let (response, in_use) = answer(&webhook, &connection, request).await;
                let peer = connection.peer();
                Ok::<_, Infallible>(unread.count(response, peer, &connection, in_use))
            }
        })
    };
    let stopped = async {
        stop.await;
        sleep(LAME_DUCK).await;
    };
    server.serve_listener(listener, open, Some(tls), stopped, service).await;
}

/// An answer, and what keeps its connection until it has been sent.
type Answered = (Response<Full<Bytes>>, Option<RequestInUse>);

/// Answers a request.
async fn answer(
    webhook: &Webhook,
    connection: &ConnectionHandle,
    request: Request<Incoming>,
) -> Answered {
    let path = request.uri().path().to_owned();
    let answer = match (request.method(), path.as_str()) {
        (&Method::POST, "/inject") => {
            return inject(webhook, connection, request, Reason::Namespace).await;
        }
        (&Method::POST, "/unlabelled") => {
            return inject(webhook, connection, request, Reason::PodAlone).await;
        }
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok"),
        (_, "/healthz" | "/inject" | "/unlabelled") => {
            text(StatusCode::METHOD_NOT_ALLOWED, "POST an AdmissionReview, or GET /healthz")
        }
        _ => text(StatusCode::NOT_FOUND, "the paths are /inject, /unlabelled and /healthz"),
    };
    (answer, None)
}

async fn inject(
    webhook: &Webhook,
    connection: &ConnectionHandle,
    request: Request<Incoming>,
    reason: Reason,
) -> Answered {
    let reading = read(webhook, request.into_body());
    let late = || Err((StatusCode::REQUEST_TIMEOUT, "the body did not arrive within 3 s".into()));
    let body = match timeout(BODY_TIME_MAX, reading).await.unwrap_or_else(|_| late()) {
        Ok(body) => body,
        Err((status, why)) => return (refuse(status, &why), None),
    };
    // Only now: a client that sends its body slowly has no use of its connection.
    let in_use = connection.begin_request();
    let cluster = *webhook.cluster.borrow();
    match review::answer(&body, reason, &webhook.defaults, cluster) {
        Ok(answer) => {
            log(&answer);
            let mut response = Response::new(Full::from(answer.review.to_string()));
            let json = http::HeaderValue::from_static("application/json");
            response.headers_mut().insert(http::header::CONTENT_TYPE, json);
            (response, Some(in_use))
        }
        Err(why) => (refuse(StatusCode::BAD_REQUEST, &why), None),
    }
}

/// Reads a body, within the memory that all bodies share.
async fn read(webhook: &Webhook, body: Incoming) -> Result<Bytes, (StatusCode, String)> {
    let arriving = webhook.bodies.begin();
    let mut body = Limited::new(body, BODY_BYTES_MAX);
    let mut read = BytesMut::new();
    let full = || (StatusCode::SERVICE_UNAVAILABLE, "too many large bodies at a time".to_owned());
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = arriving.evicted() => return Err(full()),
        };
        match frame {
            None => return Ok(read.freeze()),
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                if !arriving.grow(data.len()) {
                    return Err(full());
                }
                read.extend_from_slice(&data);
            }
            Some(Err(error)) if error.is::<LengthLimitError>() => {
                let why = "the AdmissionReview has more than 4 MiB; make the pod smaller";
                return Err((StatusCode::PAYLOAD_TOO_LARGE, why.to_owned()));
            }
            Some(Err(error)) => {
                return Err((StatusCode::BAD_REQUEST, format!("the body breaks off: {error}")));
            }
        }
    }
}

fn log(answer: &Answer) {
    let Answer { pod, is_dry_run, warnings, .. } = answer;
    let verdict = match answer.verdict {
        Some(Verdict::Injected) => "injected",
        Some(Verdict::Kept) => "has the sidecar already",
        Some(Verdict::OptedOut) => "opted out",
        Some(Verdict::Refused) => "not injected",
        None => "is no new pod that can be read",
    };
    if warnings.is_empty() {
        info!(?pod, is_dry_run, "{verdict}");
    } else {
        warn!(?pod, is_dry_run, ?warnings, "{verdict}");
    }
}

fn refuse(status: StatusCode, why: &str) -> Response<Full<Bytes>> {
    let why = reason(why);
    warn!("a request without an answer: {why}");
    text(status, &why)
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{text}\n")));
    *response.status_mut() = status;
    response
}

// The bodies that are arriving, and the memory that all of them may take together. The largest one
// has to go when there is too much, so a client that sends half of a body does not keep others out.

/// All bodies.
#[derive(Debug)]
struct Bodies {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    bytes: usize,
    arriving: BTreeMap<u64, (usize, Arc<Notify>)>,
}

/// One body; its bytes are given back once this is dropped.
#[derive(Debug)]
struct Arriving<'b> {
    bodies: &'b Bodies,
    id: u64,
    has_to_go: Arc<Notify>,
}

// === impl Bodies ===

impl Bodies {
    fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default() }
    }

    /// Begins a body without any bytes.
    fn begin(&self) -> Arriving<'_> {
        let has_to_go = Arc::new(Notify::new());
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        state.arriving.insert(id, (0, Arc::clone(&has_to_go)));
        drop(state);
        Arriving { bodies: self, id, has_to_go }
    }
}

// === impl State ===

impl State {
    fn remove(&mut self, id: u64) -> Option<Arc<Notify>> {
        let (bytes, has_to_go) = self.arriving.remove(&id)?;
        self.bytes -= bytes;
        Some(has_to_go)
    }

    fn largest(&self) -> Option<u64> {
        let largest = self.arriving.iter().max_by_key(|(_, (bytes, _))| *bytes);
        largest.map(|(id, _)| *id)
    }
}

// === impl Arriving ===

impl Arriving<'_> {
    /// Adds bytes. While all bodies together are too large, the largest one has to go. Returns
    /// whether this one may go on.
    fn grow(&self, bytes: usize) -> bool {
        let mut state = self.bodies.state.lock();
        let Some((of_this, _)) = state.arriving.get_mut(&self.id) else { return false };
        *of_this += bytes;
        state.bytes += bytes;
        while state.bytes > self.bodies.bytes_max {
            let Some(has_to_go) = state.largest().and_then(|largest| state.remove(largest)) else {
                break;
            };
            has_to_go.notify_one();
        }
        state.arriving.contains_key(&self.id)
    }

    /// Resolves once this body has to go.
    async fn evicted(&self) {
        self.has_to_go.notified().await;
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.bodies.state.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_body_has_to_go() {
        let bodies = Bodies::new(100);
        let (small, large) = (bodies.begin(), bodies.begin());
        assert!(small.grow(10) && large.grow(80));
        assert!(small.grow(20), "it is not the largest");
        assert!(!large.grow(0), "it had to go");
        assert!(!bodies.begin().grow(101), "it is too large alone");
        drop(small);
        assert!(bodies.begin().grow(100), "all bytes are given back");
    }
}
