//! The HTTP server: `/json`, `/shouldAllow` and `/api/v1/rate_limit` decide, `/healthcheck`,
//! `/livez` and `/readyz` answer probes. Uses [`service`](ratelease_server::service) to decide, and
//! [`admin`](crate::admin) for health and for who may ask; `app` runs it, and serves the pages of
//! the debug port by [`serve`].

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::http::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use ::http::{Method, StatusCode};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::future::RouteFuture;
use axum::routing::{any, get};
use axum::{BoxError, Extension, Router, middleware};
use futures_util::StreamExt;
use hyper_util::service::TowerToHyperService;
use ratelease_engine::verdict::{Code, Status, Verdict};
use ratelease_listener::{
    Connection, ConnectionHandle, Cores, FIELDS_MAX, HttpServer, OpenConnections, UnreadAnswers,
    UnreadBounds, connections, serve_each,
};
use ratelease_otlp::origin::system_time;
use ratelease_rules::Unit;
use ratelease_rules::request::json as request_json;
use ratelease_rules::request::scoped::{FieldFault, ScopedRequest};
use ratelease_server::request::{RequestError, Route, Transport};
use ratelease_server::service::{
    Answer, BodyReservation, Caller, DecisionService, HTTP_CALLS_MAX, Owner, PartialMessage, Peer,
};
use ratelease_server::trace::{Outcome, Span};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tower_service::Service;

use crate::admin::guard::Guard;
use crate::admin::{Health, guard};

/// The routes of `PORT`.
pub fn routes(service: DecisionService, health: Health, options: DecisionOptions) -> Router {
    let probes = Router::new()
        // These two accept any method, as in the reference implementation.
        .route("/healthcheck", any(healthcheck))
        .route("/livez", get(|| async { "OK" }))
        .route("/readyz", get(readyz))
        .with_state(health);
    guard::with_headers(decision_routes(service, options).fallback(absent)).merge(probes)
}

async fn absent() -> impl IntoResponse {
    const PATHS: &str = "there is nothing at this path; POST to /json or /shouldAllow, GET \
                         /api/v1/rate_limit, or probe /healthcheck, /livez, /readyz; pages are on \
                         the debug port\n";
    (StatusCode::NOT_FOUND, PATHS)
}

/// The reference implementation's health check: 200 and `OK`, or 500 and an empty body.
async fn healthcheck(State(health): State<Health>) -> Response {
    match health.is_healthy() {
        true => (StatusCode::OK, "OK").into_response(),
        false => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn readyz(State(health): State<Health>) -> Response {
    match health.unready() {
        None => (StatusCode::OK, "OK").into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason).into_response(),
    }
}

// Reads the body of a request that decides: its type, and all of it within bounds.

/// Maximum size in bytes of a body: that of a gRPC message.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Maximum time for a body to be complete, as for a gRPC message.
const BODY_MAX: Duration = Duration::from_secs(2);

/// A browser may send JSON to another origin only after a preflight, which nothing here grants; it
/// may send any other type without one. So a body that is not JSON is accepted only from a client
/// that cannot be a page in a browser.
fn check_type(headers: &HeaderMap) -> Result<(), Refusal> {
    if is_json(headers) || !guard::may_be_browser(headers) {
        return Ok(());
    }
    let reason = "the content-type of a request that a browser may have sent (it has an Origin, a \
                  Sec-Fetch-* header or the User-Agent of a browser) must be application/json; \
                  with curl: -H 'content-type: application/json'";
    Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason))
}

/// Whether the one content type is JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let first = types.next().and_then(|it| it.to_str().ok());
    let second = types.next();
    let essence = first.and_then(|it| it.split(';').next()).map(str::trim).unwrap_or_default();
    essence.eq_ignore_ascii_case("application/json") && second.is_none()
}

/// Returns the whole body, which is counted on `reservation`.
async fn read_body(body: Body, reservation: &BodyReservation) -> Result<Bytes, Refusal> {
    let too_long = || {
        let reason = format!("the body is longer than the limit of {BODY_BYTES_MAX} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, reason)
    };
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_long());
    }
    reservation.grow(0)?;
    let whole = async {
        let mut read = PartialMessage::new(reservation);
        let mut body = body.into_data_stream();
        while let Some(part) = body.next().await {
            let part = part.map_err(|error| {
                Refusal::new(StatusCode::BAD_REQUEST, format!("the body ended early: {error}"))
            })?;
            if read.bytes() + part.len() > BODY_BYTES_MAX {
                return Err(too_long());
            }
            read.push(&part)?;
        }
        Ok(read.into_bytes())
    };
    let read = tokio::select! {
        read = timeout(BODY_MAX, whole) => read,
        () = poll_fn(|cx| reservation.poll_revoked(cx)) => return Err(RequestError::NoRoom.into()),
    };
    let read = read.unwrap_or_else(|_| {
        let reason = format!("the body was not complete within {BODY_MAX:?}");
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, reason))
    })?;
    reservation.complete()?;
    Ok(read)
}

// The routes that decide: `/json`, for people and scripts, in protobuf's JSON mapping, and
// `/shouldAllow` and `/api/v1/rate_limit`, by who calls which endpoint.
//
// The port asks for no password, so every page open in a browser that reaches the port can send
// requests to it. A page of another origin may send a form, text or a body without a type
// anywhere; it may not send JSON unless the server allows it. So the content type has to be JSON
// where a browser may be the sender, names and origins are checked as on the debug port, and
// refunds have to be enabled (`docs/decisions/0025`). A query has no type: browsers may not send
// it at all.

/// Who may ask for decisions over HTTP, and what for.
#[derive(Debug, Clone, Default)]
pub struct DecisionOptions {
    /// Refuses requests from pages of other origins.
    pub guard: Guard,
    /// Whether hits may be refunded over `/json`.
    pub refunds: bool,
    /// The domain of the rules by who calls which endpoint.
    pub scoped_domain: String,
}

/// The state of a route.
#[derive(Clone)]
struct Decider {
    route: Route,
    service: DecisionService,
    refunds: bool,
    scoped_domain: Arc<str>,
}

/// A request that was read; owns its text.
enum Parsed {
    Json(request_json::Request),
    Scoped(ScopedRequest),
}

/// The routes that decide.
fn decision_routes(service: DecisionService, options: DecisionOptions) -> Router {
    let DecisionOptions { guard, refunds, scoped_domain } = options;
    let scoped_domain = Arc::from(scoped_domain);
    let mut routes = Router::new();
    for route in [Route::Json, Route::ShouldAllow, Route::RateLimit] {
        let service = service.clone();
        let scoped_domain = Arc::clone(&scoped_domain);
        let decider = Decider { route, service, refunds, scoped_domain };
        routes = routes.route(route.path(), any(decide).with_state(decider));
    }
    guard.before(routes)
}

/// Returns 200 or 429 with the answer; else a status and a reason.
async fn decide(
    State(decider): State<Decider>,
    peer: Option<Extension<Peer>>,
    request: Request,
) -> Response {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    let service = &decider.service;
    let transport = Transport::Http(decider.route);
    let span = service.begin(transport, request.headers());
    let answered = service.catch_panic(transport, decider.answer(request, &peer, span.as_ref()));
    let answered = match &span {
        None => answered.await,
        Some(span) => Box::pin(span.around(answered)).await,
    };
    let answered = answered.unwrap_or_else(|error| Err(Refusal::from(error)));
    let response = answered.unwrap_or_else(|refusal| match decider.route {
        Route::Json => refusal.into_text(),
        Route::ShouldAllow | Route::RateLimit => refusal.into_problem(),
    });
    if let Some(span) = span {
        span.end(Outcome::Http(response.status().as_u16()));
    }
    response
}

// === impl Decider ===

impl Decider {
    async fn answer(
        &self,
        request: Request,
        peer: &Peer,
        span: Option<&Span>,
    ) -> Result<Response, Refusal> {
        let route = self.route;
        if !self.accepts_method_of(&request) {
            return Err(Refusal::method(route.method()));
        }
        if route == Route::RateLimit {
            if guard::may_be_browser(request.headers()) {
                let reason = "this request charges limits, so no browser may send it; use curl, \
                              or POST /shouldAllow";
                return Err(Refusal::new(StatusCode::FORBIDDEN, reason));
            }
            let query = request.uri().query().unwrap_or_default();
            let parsed = ScopedRequest::from_query(query).map_err(Refusal::faults)?;
            return Box::pin(self.decide(Parsed::Scoped(parsed), peer, span)).await;
        }
        check_type(request.headers())?;
        let reservation = self.service.reserve_body(Transport::Http(route), peer);
        let parsed = self.parse(&read_body(request.into_body(), &reservation).await?)?;
        // Boxed, so that an incomplete request does not hold the memory that a decision takes.
        Box::pin(self.decide(parsed, peer, span)).await
    }

    /// `/json` accepts any method with a body, as the reference does. A request to read it, as from
    /// a link, has none.
    fn accepts_method_of(&self, request: &Request) -> bool {
        let method = request.method();
        match self.route {
            Route::Json => {
                let reads = [Method::GET, Method::HEAD].contains(method);
                !reads || !request.body().is_end_stream()
            }
            route => method.as_str() == route.method(),
        }
    }

    fn parse(&self, body: &[u8]) -> Result<Parsed, Refusal> {
        if self.route == Route::ShouldAllow {
            return ScopedRequest::from_body(body).map(Parsed::Scoped).map_err(Refusal::faults);
        }
        let bad = |reason: String| Refusal::new(StatusCode::BAD_REQUEST, reason);
        let parsed = request_json::parse(body).map_err(bad)?;
        let refund = parsed.borrow().descriptors.iter().position(|it| it.refund && !self.refunds);
        match refund {
            None => Ok(Parsed::Json(parsed)),
            Some(at) => Err(Refusal::new(
                StatusCode::FORBIDDEN,
                format!(
                    "descriptor {at} gives hits back, which is refused over /json; \
                     set JSON_REFUNDS=true to allow it, or do so over gRPC"
                ),
            )),
        }
    }

    async fn decide(
        &self,
        parsed: Parsed,
        peer: &Peer,
        span: Option<&Span>,
    ) -> Result<Response, Refusal> {
        let request = match &parsed {
            Parsed::Json(request) => request.borrow(),
            Parsed::Scoped(request) => request.borrow(&self.scoped_domain),
        };
        let respond = |answer: &Answer<'_>| {
            if let Some(span) = span {
                span.note(&request, &answer.verdict);
            }
            match self.route {
                Route::Json => json_response(answer),
                Route::ShouldAllow | Route::RateLimit => {
                    Numbers::new(&answer.verdict, system_time()).into_response()
                }
            }
        };
        let caller = Caller {
            transport: Transport::Http(self.route),
            peer,
            patience: None,
            owner: Owner::UNKNOWN,
        };
        let answered = self.service.answer(&caller, &request, respond).await;
        answered.map_err(|error| self.undecided(error))
    }

    /// The answer to a request that could not be decided. The reference's status for an error of
    /// the store is that of `/json` alone.
    fn undecided(&self, error: RequestError) -> Refusal {
        match error {
            RequestError::Store(_) if self.route != Route::Json => {
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            }
            error => error.into(),
        }
    }
}

// The proto3 JSON form of the rate limit response: follows protobuf's mapping, with default values
// left out.

/// The answer: 200 or 429.
fn json_response(answer: &Answer<'_>) -> Response {
    let status = match answer.verdict.code {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    let content_type = [(CONTENT_TYPE, "application/json")];
    (status, content_type, print(answer).to_string()).into_response()
}

/// The response in JSON.
fn print(answer: &Answer<'_>) -> Value {
    let Answer { verdict, headers } = answer;
    let mut response = json!({
        "overallCode": code(verdict.code),
        "statuses": verdict.statuses.iter().map(status).collect::<Vec<_>>(),
    });
    if !headers.is_empty() {
        let header = |(key, value): &(String, String)| json!({ "key": key, "value": value });
        response["responseHeadersToAdd"] = headers.iter().map(header).collect();
    }
    if let Some(metadata) = &verdict.metadata {
        response["dynamicMetadata"] = metadata.clone().into();
    }
    response
}

fn code(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

fn status(status: &Status<'_>) -> Value {
    let mut fields = Map::new();
    fields.insert("code".into(), code(status.code).into());
    if let Some(applied) = &status.limit {
        let name = applied.rule.map(|rule| &*rule.name).unwrap_or_default();
        let unit = applied.limit.window_unit().map_or("UNKNOWN", Unit::name);
        let mut limit = json!({ "unit": unit });
        if !name.is_empty() {
            limit["name"] = name.into();
        }
        if applied.limit.requests_per_unit > 0 {
            limit["requestsPerUnit"] = applied.limit.requests_per_unit.into();
        }
        if applied.limit.unit_multiplier.get() > 1 {
            limit["unitMultiplier"] = applied.limit.unit_multiplier.get().into();
        }
        fields.insert("currentLimit".into(), limit);
    }
    if status.remaining > 0 {
        fields.insert("limitRemaining".into(), status.remaining.into());
    }
    if let Some(seconds) = status.reset_seconds() {
        fields.insert("durationUntilReset".into(), format!("{seconds}s").into());
    }
    fields.into()
}

// Answers to requests that are not decided: in text, as the reference's, and as
// `application/problem+json` (RFC 9457), in the form of the control plane's.

/// Why a request is answered without a decision.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    /// What is wrong, and how to fix it: one line.
    reason: String,
    /// What is wrong with each field, if fields are wrong.
    faults: Vec<FieldFault>,
    /// The method to use, if another was used.
    method: Option<&'static str>,
}

// === impl Refusal ===

impl Refusal {
    fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), faults: Vec::new(), method: None }
    }

    /// Another method than this one was used.
    fn method(expected: &'static str) -> Self {
        let reason = format!("this path takes {expected} only");
        let refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, reason);
        Self { method: Some(expected), ..refusal }
    }

    /// Fields are wrong.
    fn faults(faults: Vec<FieldFault>) -> Self {
        let reason = "the request has faults, and charged nothing; fix each field";
        Self { faults, ..Self::new(StatusCode::BAD_REQUEST, reason) }
    }

    /// The reason as a line of text.
    fn into_text(self) -> Response {
        let mut response = (self.status, format!("{}\n", self.reason)).into_response();
        allow(&mut response, self.method);
        response
    }

    /// The reason and the faults in JSON.
    fn into_problem(self) -> Response {
        let Self { status, reason, faults, method } = self;
        let mut problem = json!({
            "type": format!("urn:ratelease:problem:{}", kind(status, &faults)),
            "title": status.canonical_reason().unwrap_or("Error"),
            "status": status.as_u16(),
            "detail": reason,
        });
        if !faults.is_empty() {
            let fault = |it: &FieldFault| json!({ "field": it.field, "message": it.message });
            problem["errors"] = faults.iter().map(fault).collect::<Value>();
        }
        let content_type = [(CONTENT_TYPE, "application/problem+json")];
        let mut response = (status, content_type, problem.to_string()).into_response();
        allow(&mut response, method);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Names the method to use.
fn allow(response: &mut Response, method: Option<&'static str>) {
    if let Some(method) = method {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(method));
    }
}

/// The kind of a problem, which its type names.
fn kind(status: StatusCode, faults: &[FieldFault]) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST if !faults.is_empty() => "faults",
        StatusCode::BAD_REQUEST => "malformed",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::METHOD_NOT_ALLOWED => "method-not-allowed",
        StatusCode::REQUEST_TIMEOUT => "too-slow",
        StatusCode::PAYLOAD_TOO_LARGE => "too-large",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "content-type",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        _ => "internal",
    }
}

impl From<RequestError> for Refusal {
    /// The reference implementation returns 400 for all requests without a verdict, errors of the
    /// store included. Here a request is not blamed for rules that are missing.
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Overloaded => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("the maximum of {HTTP_CALLS_MAX} requests over HTTP are waiting; retry"),
            ),
            RequestError::NoRoom | RequestError::AwaitsRules => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            }
            RequestError::NoRules => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{error}: the rules were refused; see the log, or /status"),
            ),
            RequestError::Panicked => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            }
            error => Self::new(StatusCode::BAD_REQUEST, error.to_string()),
        }
    }
}

// The answer of `/shouldAllow` and `/api/v1/rate_limit`: one limit in numbers, and the same as
// headers that a gateway may forward.

/// By how much the end of a window may differ from one answer to the next: it is counted by the
/// store's clock, and dated by this machine's.
const CLOCK_STEP: Duration = Duration::from_millis(50);

/// One limit, as a client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    is_allowed: bool,
    /// Requests in a window; `None` if no limit applies, as the next one.
    limit: Option<u64>,
    /// Requests that remain.
    remaining: Option<u64>,
    /// Seconds since the Unix epoch, when the window ends or the bucket is full; `None` if that is
    /// not known either.
    reset_time: Option<u64>,
    /// Seconds until a request of this cost may pass; 0 if this one passes.
    retry_after: u64,
}

/// Seconds since the Unix epoch, rounded up as all times that clients wait for; down only within
/// [`CLOCK_STEP`] of a whole second, so that a window shows one end while it lasts.
fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_secs() + u64::from(Duration::from_nanos(since.subsec_nanos().into()) > CLOCK_STEP)
}

// === impl Numbers ===

impl Numbers {
    /// The numbers of the tightest limit at `now`.
    fn new(verdict: &Verdict<'_>, now: SystemTime) -> Self {
        let tightest = verdict.tightest_limit();
        let reset_after = tightest.and_then(|(status, _)| status.reset_after);
        let reset = reset_after.and_then(|after| now.checked_add(after));
        let is_allowed = verdict.code == Code::Ok;
        Self {
            is_allowed,
            limit: tightest.map(|(_, applied)| applied.limit.requests_per_unit),
            remaining: tightest.map(|(status, _)| status.remaining),
            reset_time: reset.map(unix_seconds),
            retry_after: if is_allowed { 0 } else { verdict.retry_after_seconds() },
        }
    }
}

impl IntoResponse for Numbers {
    fn into_response(self) -> Response {
        let Self { is_allowed, limit, remaining, reset_time, retry_after } = self;
        let body = json!({
            "allowed": is_allowed,
            "limit": limit,
            "remaining": remaining,
            "reset_time": reset_time,
            "retry_after": retry_after,
        });
        let status = if is_allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
        let content_type = [(CONTENT_TYPE, "application/json")];
        let mut response = (status, content_type, body.to_string()).into_response();
        let headers = [
            (HeaderName::from_static("x-ratelimit-limit"), limit),
            (HeaderName::from_static("x-ratelimit-remaining"), remaining),
            (HeaderName::from_static("x-ratelimit-reset"), reset_time),
            (RETRY_AFTER, (!is_allowed).then_some(retry_after)),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                response.headers_mut().insert(name, HeaderValue::from(value));
            }
        }
        response
    }
}

// Serves HTTP/1.1 and HTTP/2 on a listener until it is asked to stop.

/// Maximum duration of a request, the same as for a gRPC call: it bounds clients that never finish
/// their body.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// Maximum number of bytes of large answers that are not read yet, over all servers that share the
/// budget. A page of ten thousand rules has 10 MB.
const UNREAD_MAX: usize = 8 * 1024 * 1024;

/// Creates a budget of answers, whose clients read at any pace that the connection allows.
pub fn unread_answers() -> UnreadAnswers {
    UnreadAnswers::new(UnreadBounds {
        bytes_max: UNREAD_MAX,
        counted_max: UNREAD_MAX / 4,
        of_client_max: UNREAD_MAX,
        bytes_per_second_min: None,
    })
}

/// The pages and limits of a port.
#[derive(Clone)]
pub struct HttpServerParts {
    /// The routes, by path.
    pub routes: Router,
    /// Counts and limits its connections.
    pub open: OpenConnections,
    /// Maximum number of concurrent requests on one HTTP/2 connection.
    pub streams_max: u32,
    /// The order in which the requests of one connection are handled.
    pub order: RequestOrder,
    /// Counts the bytes of large answers until they are read; may be shared with other servers.
    pub unread: UnreadAnswers,
    /// Where connections are served.
    pub cores: Cores,
}

/// The order in which the requests of one connection are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOrder {
    /// All at once.
    Concurrent,
    /// One after the other: if a client asks for many pages at once, others wait for only one of
    /// them.
    Sequential,
}

/// Serves `parts` until `stop` resolves and every request has been answered. Clients that keep
/// their connection are asked to go away; the caller has to bound the wait for one that leaves a
/// request unfinished.
///
/// # Errors
///
/// None at present: no accept error ends it.
pub async fn serve(
    listener: TcpListener,
    parts: HttpServerParts,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let HttpServerParts { routes, open, streams_max, order, unread, cores } = parts;
    let bounds =
        middleware::from_fn(move |request, next| limit_request(request, next, unread.clone()));
    let routes = routes.layer(bounds).with_state(());
    let server = HttpServer::new(streams_max);
    let serve = move |io: Connection<_>, end| {
        let turn = (order == RequestOrder::Sequential).then(Turn::default);
        let routes = routes.clone();
        let peer = Peer::new();
        let served = ConnectionService { routes, handle: io.handle(), peer, turn };
        let server = server.clone();
        async move { server.serve(io, TowerToHyperService::new(served), end).await }
    };
    serve_each(connections(listener, None, open), &cores, stop, serve).await;
    Ok(())
}

/// The routes; adds the connection to each request.
#[derive(Clone)]
struct ConnectionService {
    routes: Router,
    handle: ConnectionHandle,
    peer: Peer,
    turn: Option<Turn>,
}

/// Held by the request of a connection that is being handled.
type Turn = Arc<Mutex<()>>;

impl<B> Service<Request<B>> for ConnectionService
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request>::poll_ready(&mut self.routes, cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.handle.clone());
        request.extensions_mut().insert(self.peer.clone());
        if let Some(turn) = &self.turn {
            request.extensions_mut().insert(Arc::clone(turn));
        }
        self.routes.call(request)
    }
}

async fn limit_request(request: Request, next: Next, unread: UnreadAnswers) -> Response {
    if request.headers().len() > FIELDS_MAX {
        let reason = format!("more than {FIELDS_MAX} header fields\n");
        return (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, reason).into_response();
    }
    let handle = request.extensions().get::<ConnectionHandle>().cloned();
    let turn = request.extensions().get::<Turn>().cloned();
    let answered = async {
        let _turn = match &turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        next.run(request).await
    };
    let answered = timeout(REQUEST_MAX, answered).await;
    match (answered, handle) {
        (Ok(response), Some(handle)) => {
            unread.count(response, handle.peer(), &handle, None::<()>).map(Body::new)
        }
        (Ok(response), None) => response,
        (Err(_), _) => {
            (StatusCode::REQUEST_TIMEOUT, "the request was not finished in time\n").into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use ratelease_engine::verdict::{AppliedLimit, Modes, Status};
    use ratelease_rules::request::{Few, Request};
    use ratelease_rules::{Limit, Unit};

    use super::*;

    /// A status of this code, with a limit that resets after so many milliseconds.
    fn status(code: Code, requests: u64, remaining: u64, reset: Option<u64>) -> Status<'static> {
        let limit = AppliedLimit { limit: Limit::fixed_window(requests, Unit::Hour), rule: None };
        let reset_after = reset.map(Duration::from_millis);
        Status { code, limit: Some(limit), remaining, reset_after, counted: None }
    }

    /// The numbers of these statuses, 1000.5 s after the epoch.
    fn numbers(statuses: &[Status<'static>]) -> Numbers {
        let request = Request { domain: "d", descriptors: Few::new(), hits_addend: 1 };
        let statuses = statuses.iter().copied().collect();
        let verdict = Verdict::new(&request, statuses, Modes::default());
        Numbers::new(&verdict, UNIX_EPOCH + Duration::from_millis(1_000_500))
    }

    #[test]
    fn the_numbers_are_those_of_the_tightest_limit() {
        let (wide, tight) =
            (status(Code::Ok, 100, 50, Some(9_000)), status(Code::Ok, 9, 3, Some(59_600)));
        let expected = Numbers {
            is_allowed: true,
            limit: Some(9),
            remaining: Some(3),
            reset_time: Some(1_061),
            retry_after: 0,
        };
        assert_eq!(numbers(&[Status::FREE, wide, tight]), expected);
    }

    #[test]
    fn a_denied_request_may_come_again_when_every_limit_that_denied_has_reset() {
        let over = |reset| status(Code::OverLimit, 9, 0, reset);
        let found = numbers(&[over(Some(70_001)), over(Some(600)), status(Code::Ok, 9, 1, None)]);
        assert_eq!((found.is_allowed, found.reset_time), (false, Some(1_002)));
        assert_eq!(found.retry_after, 71);
        let unknown = numbers(&[over(None)]);
        assert_eq!((unknown.reset_time, unknown.retry_after), (None, 1));
    }

    #[test]
    fn without_a_limit_there_are_no_numbers() {
        for free in [Status::FREE, Status::UNLIMITED] {
            let none = Numbers {
                is_allowed: true,
                limit: None,
                remaining: None,
                reset_time: None,
                retry_after: 0,
            };
            assert_eq!(numbers(&[free]), none);
        }
    }

    #[test]
    fn the_end_of_a_window_is_one_number_while_it_lasts() {
        let at = |millis| unix_seconds(UNIX_EPOCH + Duration::from_millis(millis));
        assert_eq!([at(59_999), at(60_000), at(60_049), at(60_051)], [60, 60, 60, 61]);
    }
}
