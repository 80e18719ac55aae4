//! The HTTP door: `/json` decides, `/healthcheck`, `/livez` and `/readyz` answer probes.

pub(crate) mod json;

use std::io;
use std::time::Duration;

use ::http::{StatusCode, header};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{BoxError, Extension, Router};
use futures_util::StreamExt;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::accept::{OpenConnections, connections};
use crate::control::health::Health;
use crate::intake::{Answer, Held, Intake, Refusal};
use crate::telemetry::trace::{Door, Outcome, Span};
use crate::verdict::Code;

/// Bytes of a `/json` body at most: as many as of a gRPC message.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// A request ends after this whatever happens, as a gRPC call does: it bounds clients that never
/// finish their body. Those that never finish their headers, or idle, are hyper's to bound: 30 s.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// Requests under way on one HTTP/2 connection at most, those that its client reset before they
/// were handled, and those that were reset here for its faults. tonic would lift hyper's bounds.
const STREAMS_MAX: u32 = 128;
const PENDING_RESETS_MAX: usize = 128;
const LOCAL_RESETS_MAX: usize = 128;

/// Bytes of headers of one HTTP/2 request at most.
const HEADER_BYTES_MAX: u32 = 16 * 1024;

/// A silent HTTP/2 connection is probed after this and closed when it does not answer in time.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// Serves `routes` until `stop` resolves and every request has been answered. `open` counts its
/// connections. Clients that keep their connection are told to go; one that leaves a request
/// unfinished is the caller's to bound.
///
/// axum's own server is not used: it gives a client for ever to send its headers, while tonic's
/// sets hyper's timer.
///
/// # Errors
///
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    open: OpenConnections,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let routes = routes.layer(middleware::from_fn(bounded));
    let served = Server::builder()
        .accept_http1(true)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .http2_max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .add_routes(Routes::from(routes))
        .serve_with_incoming_shutdown(connections(listener, None, open), stop);
    served.await.map_err(io::Error::other)
}

async fn bounded(request: Request, next: Next) -> Response {
    let answered = timeout(REQUEST_MAX, next.run(request)).await;
    answered.unwrap_or_else(|_| {
        (StatusCode::REQUEST_TIMEOUT, "the request was not finished in time\n").into_response()
    })
}

/// The routes of `PORT`.
pub fn routes(intake: Intake, health: Health) -> Router {
    let probes = Router::new()
        // Any method will do for these two, as for the reference.
        .route("/healthcheck", any(healthcheck))
        .route("/livez", get(|| async { "OK" }))
        .route("/readyz", get(readyz))
        .with_state(health);
    let pass = middleware::from_fn_with_state(intake.clone(), pass);
    let json = Router::new().route("/json", any(decide)).with_state(intake);
    json.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).layer(pass).merge(probes)
}

async fn pass(State(intake): State<Intake>, request: Request, next: Next) -> Response {
    let mut request = request.map(|body| counted(body, intake.hold()));
    let Some(span) = intake.begin(Door::Json, request.headers()) else {
        return admit(&intake, request, next).await;
    };
    request.extensions_mut().insert(span.clone());
    let response = span.around(admit(&intake, request, next)).await;
    span.end(Outcome::Http(response.status().as_u16()));
    response
}

/// Lets a request in, or answers at once: 503 when too many are under way, 500 after a panic.
async fn admit(intake: &Intake, request: Request, next: Next) -> Response {
    let passed = intake.pass(next.run(request)).await;
    passed.unwrap_or_else(|refusal| {
        let status = match refusal {
            Refusal::Overloaded | Refusal::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{refusal}\n")).into_response()
    })
}

/// The same body, whose bytes count as `held` until all of it has been read.
fn counted(body: Body, mut held: Held) -> Body {
    let pieces = body.into_data_stream().map(move |piece| match piece {
        Ok(piece) => held.take(piece.len()).map(|()| piece).map_err(BoxError::from),
        Err(error) => Err(error.into()),
    });
    Body::from_stream(pieces)
}

/// The reference's probe: 200 and `OK`, or 500 and nothing.
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

/// 200 or 429 with the answer; 400 with the reason when there is none.
async fn decide(
    State(intake): State<Intake>,
    span: Option<Extension<Span>>,
    body: Bytes,
) -> Response {
    let answer = match json::parse(&body) {
        Ok(request) => {
            let request = request.borrow();
            let printed = |answer: Answer<'_>| {
                if let Some(Extension(span)) = &span {
                    span.note(&request, &answer.verdict);
                }
                (answer.verdict.code, json::print(answer).to_string())
            };
            intake.answer(&request, printed).await.map_err(|e| e.to_string())
        }
        Err(fault) => Err(fault),
    };
    let (code, text) = match answer {
        Ok(answer) => answer,
        Err(reason) => return (StatusCode::BAD_REQUEST, format!("{reason}\n")).into_response(),
    };
    let status = match code {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (status, content_type, text).into_response()
}
