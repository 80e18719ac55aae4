//! **REST**: the calls that change and show rules, described by the OpenAPI document at
//! `/openapi.json`.
//!
//! This file has the routes and the ports; `call` reads and admits requests and answers refusals;
//! `pages` bounds what a list answers; the other modules hold the calls.

mod approvals;
mod call;
#[expect(unused_qualifications, reason = "in the code that utoipa makes")]
mod change_sets;
#[expect(unused_qualifications, reason = "in the code that utoipa makes")]
mod dialects;
#[expect(unused_qualifications, reason = "in the code that utoipa makes")]
mod files;
#[expect(unused_qualifications, reason = "in the code that utoipa makes")]
mod observe;
mod pages;
#[expect(unused_qualifications, reason = "in the code that utoipa makes")]
pub mod publish;
mod replay;
mod rollout_terms;
#[expect(unused_qualifications, reason = "in the code that utoipa makes")]
mod rollouts;
mod rule_files;
#[expect(unused_qualifications, reason = "in the code that utoipa makes")]
mod rules;
mod session;
mod sign_in;
#[expect(unused_qualifications, reason = "in the code that utoipa makes")]
mod tokens;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
pub use call::Problem;
pub use call::check_new_domain;
use http::{HeaderValue, StatusCode, header};
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use parking_lot::Mutex as SyncMutex;
use ratelease_listener::{
    Client, ConnectionHandle, HttpServer, OpenConnections, Peer, UnreadAnswers, UnreadBounds,
};
pub use rollout_terms::{RolloutTerms, Terms};
pub use rollouts::{Candidates, rollout_texts};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::timeout;
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{RefOr, Required};

use crate::auth::{Access, Caller};
use crate::document::FieldFault;
use crate::metrics::ObjectCounts;
use crate::oidc::Provider;
use crate::push::{PublishedSet, RolloutCounts, Streams};
use crate::rates::Rates;
use crate::settings::Settings;
use crate::store::{Store, StoreError};
use crate::{page, work};

const MIB: usize = 1 << 20;

/// Maximum time of a request; a write that takes longer is rolled back.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// The same for requests about all rules of a domain.
const LONG_REQUEST_MAX: Duration = Duration::from_secs(60);

/// Maximum time until the database answers a ping.
const PING_MAX: Duration = Duration::from_secs(1);

/// Maximum time until this process knows the last version of the database, which it reads meanwhile.
const LAST_VERSION_MAX: Duration = Duration::from_secs(5);

/// Minimum time between two pings.
const PING_INTERVAL: Duration = Duration::from_millis(500);

/// Age at which metrics are made again: that takes time in proportion to the streams of pods, while
/// their lock is held, and the caller needs no token.
const METRICS_AGE_MAX: Duration = Duration::from_secs(1);

/// What the calls share.
#[derive(Debug)]
pub struct App {
    /// The database.
    pub store: Store,
    /// The settings of the process, of which calls need the ceilings.
    pub settings: Settings,
    /// Where people sign in, if they do.
    pub provider: Option<Provider>,
    /// How many requests there may be.
    pub rates: Rates,
    /// The answers that are not read yet.
    pub unread: UnreadAnswers<Reader>,
    /// Whether the database answered, and when it was asked.
    pub database_up: Mutex<Option<(Timestamp, bool)>>,
    /// The metrics, and when they were made.
    pub metrics: Mutex<Option<(Timestamp, Bytes)>>,
    /// Held by the publisher of this process, so that the others wait for it.
    pub publishers: Arc<Mutex<()>>,
    /// Wakes the task that follows the versions.
    pub follower: Arc<Notify>,
    /// What is pushed.
    pub published: watch::Receiver<Arc<PublishedSet>>,
    /// The streams of pods.
    pub streams: Streams,
    /// What pods report of a rollout.
    pub counts: RolloutCounts,
    /// The objects of Kubernetes that are followed.
    pub objects: ObjectCounts,
    /// Why the next steps of rollouts cannot be taken, by rollout, as this process has found.
    pub stuck: SyncMutex<BTreeMap<i64, String>>,
}

// === impl App ===

impl App {
    /// Whether the database answers soon. It is asked at most twice a second, because those who
    /// ask for this need no token.
    async fn has_database(&self) -> bool {
        let mut last = self.database_up.lock().await;
        let now = Timestamp::now();
        if let Some((at, is_up)) = *last
            && now.duration_since(at).unsigned_abs() < PING_INTERVAL
        {
            return is_up;
        }
        let is_up = matches!(timeout(PING_MAX, self.store.reserved().ping()).await, Ok(Ok(())));
        *last = Some((now, is_up));
        is_up
    }

    /// The database, for requests that read a few rows and change nothing.
    fn lists(&self) -> Store {
        self.store.lists()
    }

    /// Maximum bytes that the writes of this caller may add to what is kept. Those of an operator
    /// have no bound, so that one can always roll back.
    fn bytes_max_of(&self, caller: &Caller) -> Option<i64> {
        (!caller.has(Access::Admin)).then_some(self.settings.token_bytes_max)
    }

    /// Waits until this request alone publishes, of all replicas. It does so until it is answered,
    /// and its work has ended.
    pub async fn take_publisher_turn(&self, caller: &Caller) -> Result<(), Problem> {
        let place = self.rates.publishers.take(&caller.id).await;
        // The lock of the process comes first: those that wait for it hold no connection.
        let own = Arc::clone(&self.publishers).lock_owned().await;
        let all = self.store.lock_publishers().await?;
        // The connection first, so that the next publisher of this process finds it free.
        work::hold((all, own, place));
        Ok(())
    }

    /// What is published: all domains of the last version that the database has.
    pub async fn last_published(&self) -> Result<Arc<PublishedSet>, Problem> {
        let mut published = self.published.clone();
        let known = async {
            loop {
                // Read first: a set that is published meanwhile counts as a change.
                let set = Arc::clone(&published.borrow_and_update());
                let last = self.store.last_version_at().await?;
                // A database that was restored may have another version of this number.
                if (set.version, set.at) == last {
                    return Ok(set);
                }
                self.wake_follower();
                if published.changed().await.is_err() {
                    let why = "this process is about to end".to_owned();
                    return Err(StoreError::Unavailable(why));
                }
            }
        };
        let silent = |_| {
            let why = format!("the last version is not read within {LAST_VERSION_MAX:?}");
            Err(StoreError::Unavailable(why))
        };
        Ok(timeout(LAST_VERSION_MAX, known).await.unwrap_or_else(silent)?)
    }

    /// Wakes the task that follows the versions, so that one that was just committed is pushed.
    pub fn wake_follower(&self) {
        self.follower.notify_one();
    }
}

/// All calls.
pub fn router(app: Arc<App>) -> Router {
    let short = Router::new()
        .merge(rules::calls())
        .merge(dialects::calls())
        .merge(change_sets::calls())
        .merge(publish::calls())
        .merge(rollouts::calls())
        .merge(observe::calls())
        .merge(approvals::calls())
        .merge(tokens::calls())
        .merge(sign_in::calls())
        .layer(from_fn_with_state(Arc::clone(&app), call::admit_read))
        .layer(from_fn_with_state(Arc::clone(&app), call::admit))
        .layer(from_fn_with_state(REQUEST_MAX, bounded));
    let long = Router::new()
        .merge(files::long_calls())
        .merge(publish::long_calls())
        .merge(replay::long_calls())
        .merge(rollouts::long_calls())
        .layer(from_fn_with_state(Arc::clone(&app), call::admit_long))
        .layer(from_fn_with_state(Arc::clone(&app), call::admit))
        .layer(from_fn_with_state(LONG_REQUEST_MAX, bounded));
    let public = Router::new()
        .route("/", get(serve_page))
        .route("/openapi.json", get(serve_openapi))
        .merge(observe::probes())
        .merge(sign_in::public_calls())
        .with_state(Arc::clone(&app));
    let unread = app.unread.clone();
    Router::new()
        .merge(short)
        .merge(long)
        .with_state(app)
        .merge(count_public(public, unread))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(map_response(not_stored))
}

/// What answers on the port for probes: the health of the process, and its metrics.
pub fn probes(app: Arc<App>) -> Router {
    let unread = app.unread.clone();
    count_public(observe::probes().with_state(app), unread).fallback(unknown_path)
}

/// Read the page
#[utoipa::path(get, operation_id = "serve", tag = "page", path = "/", security(()), responses(
    (status = 200, description = "The page, for browsers", body = String,
        content_type = "text/html")))]
async fn serve_page(State(app): State<Arc<App>>) -> Response {
    page::serve(app.provider.is_some())
}

/// Ends a request that takes too long: its transaction is dropped, and so rolled back.
async fn bounded(State(max): State<Duration>, request: Request, next: Next) -> Response {
    timeout(max, next.run(request)).await.unwrap_or_else(|_| {
        let detail = format!(
            "the database took longer than {max:?}. A write may have been done if it was at its \
             commit; a repeat with the same Idempotency-Key is safe"
        );
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).into_response()
    })
}

/// Keeps answers out of caches, such as that of a proxy: they have rules, and are of one token.
async fn not_stored(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn unknown_path() -> Problem {
    Problem::not_found("no such path; /openapi.json lists all")
}

async fn unknown_method() -> Problem {
    let detail = "no such method at this path; /openapi.json lists all";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
}

// The OpenAPI document, made of the descriptions of the calls.

/// All calls.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "ratelease-control",
        description = "The rules of a fleet: draft, check, publish, roll back"
    ),
    paths(serve_page),
    components(schemas(FieldFault, Problem)),
    security(("token" = []))
)]
struct Document;

/// Calls whose body may be missing: they are then about all domains with changes.
const BODY_IS_OPTIONAL: [&str; 2] = ["/v1/check", "/v1/publish"];

/// The descriptions of all calls, which the document has together.
fn descriptions() -> [utoipa::openapi::OpenApi; 11] {
    [
        rules::Calls::openapi(),
        dialects::Calls::openapi(),
        change_sets::Calls::openapi(),
        files::Calls::openapi(),
        publish::Calls::openapi(),
        replay::Calls::openapi(),
        rollouts::Calls::openapi(),
        observe::Calls::openapi(),
        approvals::Calls::openapi(),
        tokens::Calls::openapi(),
        sign_in::Calls::openapi(),
    ]
}

/// The OpenAPI document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    for calls in descriptions() {
        document.merge(calls);
    }
    let components = document.components.get_or_insert_default();
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    components.add_security_scheme("token", scheme);
    for path in BODY_IS_OPTIONAL {
        let post = document.paths.paths.get_mut(path).and_then(|item| item.post.as_mut());
        if let Some(Operation { request_body: Some(RefOr::T(body)), .. }) = post {
            body.required = Some(Required::False);
        }
    }
    document
}

/// Serves it. It is made once, because those who ask for it need no token.
async fn serve_openapi() -> Response {
    static TEXT: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(&openapi()).unwrap_or_default().into());
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], TEXT.clone()).into_response()
}

// The ports: the API on one, within bounds of number and time; and probes on another.

/// Maximum number of connections of the API. A further one closes one that never had a request with
/// a valid token, or else the one whose last such request is the longest ago; first those of the
/// client with the most. None closes while such a request is handled and its answer is read.
const CONNECTIONS_MAX: usize = 1024;

/// Time without such a request after which a connection is asked to go away.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Maximum number of connections of the port for probes, on which those go first that are idle.
const PROBES_MAX: usize = 256;

/// Age at which a connection takes no further requests.
const AGE_MAX: Duration = Duration::from_secs(120);

/// Maximum time for the rest of a connection after that, in which its last request is handled and
/// the answer is read.
const LAST_MAX: Duration = LONG_REQUEST_MAX.saturating_add(Duration::from_secs(15));

/// Maximum bytes of the head of a request.
const HEAD_BYTES_MAX: u32 = 32 << 10;

/// Maximum number of requests at a time of an HTTP/2 connection.
const STREAMS_MAX: u32 = 32;

/// Maximum bytes of the answers that are not read yet, of all clients and of one, which may be two
/// exports of the largest domain and a few pages.
const UNREAD_MAX: usize = 128 * MIB;
const UNREAD_OF_CLIENT_MAX: usize = 40 * MIB;

/// Bytes a second that a client has to read of an answer.
const BYTES_PER_SECOND_MIN: u32 = 128 << 10;

/// Who reads an answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reader {
    /// The token or the person of this id.
    Token(String),
    /// A client without a valid token.
    Peer(Peer),
}

/// The budget of answers that are not read yet.
pub fn unread_answers() -> UnreadAnswers<Reader> {
    UnreadAnswers::new(UnreadBounds {
        bytes_max: UNREAD_MAX,
        counted_max: UNREAD_OF_CLIENT_MAX,
        of_client_max: UNREAD_OF_CLIENT_MAX,
        bytes_per_second_min: Some(BYTES_PER_SECOND_MIN),
    })
}

/// Serves the API until `stop` resolves, and the requests that are under way are answered.
pub async fn serve(listener: TcpListener, routes: Router, stop: impl Future<Output = ()>) {
    let open = OpenConnections::for_known_clients(CONNECTIONS_MAX, None, IDLE_MAX);
    serve_within(listener, routes, open, stop).await;
}

/// Serves probes, whose clients have no token, in the same way.
pub async fn serve_probes(listener: TcpListener, routes: Router, stop: impl Future<Output = ()>) {
    serve_within(listener, routes, OpenConnections::new(PROBES_MAX), stop).await;
}

async fn serve_within(
    listener: TcpListener,
    routes: Router,
    open: OpenConnections,
    stop: impl Future<Output = ()>,
) {
    let server = HttpServer::new(STREAMS_MAX).head_bytes(HEAD_BYTES_MAX);
    let server = server.age(AGE_MAX).leaving(LAST_MAX);
    let service = move |client: Client| {
        TowerToHyperService::new(routes.clone().layer(Extension(client.connection)))
    };
    server.serve_listener(listener, open, None, stop, service).await;
}

/// Has the answers of these routes counted, which need no token.
fn count_public(routes: Router, unread: UnreadAnswers<Reader>) -> Router {
    routes.layer(from_fn(move |request: Request, next: Next| {
        let unread = unread.clone();
        let connection = request.extensions().get::<ConnectionHandle>().cloned();
        async move {
            let response = next.run(request).await;
            match connection {
                Some(connection) => {
                    let reader = Reader::Peer(connection.peer());
                    count_answer(&unread, response, reader, &connection, None::<()>)
                }
                None => response,
            }
        }
    }))
}

/// Counts an answer, which holds the permit of its request until it is read.
fn count_answer<P: Send + 'static>(
    unread: &UnreadAnswers<Reader>,
    response: Response,
    reader: Reader,
    connection: &ConnectionHandle,
    permit: Option<P>,
) -> Response {
    unread.count(response, reader, connection, permit).map(Body::new)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    #[test]
    fn a_name_in_the_document_is_that_of_one_type() {
        let mut known = BTreeMap::new();
        for calls in descriptions() {
            for (name, schema) in calls.components.into_iter().flat_map(|it| it.schemas) {
                let schema = json!(schema);
                let first = known.entry(name.clone()).or_insert_with(|| schema.clone());
                assert_eq!(*first, schema, "{name}");
            }
        }
    }

    #[tokio::test]
    async fn connections_without_a_valid_request_give_way_to_a_new_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = stopped.map(|_| ());
        let routes = Router::new().route("/", get(|| async { "answered" }));
        let open = OpenConnections::for_known_clients(2, None, IDLE_MAX);
        let served = tokio::spawn(serve_within(listener, routes, open, stopped));
        let mut silent = Vec::new();
        for _ in 0..8 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        timeout(SOON, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.ends_with("answered"), "{answer}");
        drop((silent, stop));
        served.await.unwrap();
    }
}
