//! `/json`: a decision for people and scripts, in protobuf's JSON mapping.
//!
//! The port asks for no password, so every page open in a browser that reaches the port can send
//! requests to it. A page of another origin may send a form, text or a body without a type
//! anywhere; it may not send JSON unless the server allows it. So the content type has to be JSON,
//! names and origins are checked as on the debug port, and refunds have to be enabled
//! (`docs/decisions/0025`).

use std::future::poll_fn;
use std::time::Duration;

use ::http::StatusCode;
use ::http::header::{CONTENT_TYPE, HeaderMap};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body::Body as _;
use ratelease_engine::verdict::Code;
use ratelease_rules::request::json as request_json;
use tokio::time::timeout;

use super::json;
use crate::admin::guard::Guard;
use ratelease_server::request_error::RequestError;
use ratelease_server::service::{
    Answer, BodyReservation, DecisionService, JSON_CALLS_MAX, PartialMessage, Peer,
};
use ratelease_server::trace::{Outcome, Span};
use ratelease_server::transport::Transport;

/// Maximum size in bytes of a body: that of a gRPC message.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Maximum time for a body to be complete, as for a gRPC message.
const BODY_MAX: Duration = Duration::from_secs(2);

/// Who may call `/json`, and what for.
#[derive(Debug, Clone, Default)]
pub struct JsonOptions {
    /// Refuses requests from pages of other origins.
    pub guard: Guard,
    /// Whether hits may be refunded.
    pub refunds: bool,
}

/// The state of the route.
#[derive(Clone)]
struct Json {
    service: DecisionService,
    refunds: bool,
}

/// Why a request is answered without a decision: status and reason.
struct JsonError(StatusCode, String);

/// The route.
pub(super) fn routes(service: DecisionService, options: JsonOptions) -> Router {
    let JsonOptions { guard, refunds } = options;
    guard.before(Router::new().route("/json", any(decide)).with_state(Json { service, refunds }))
}

/// Returns 200 or 429 with the answer; else a status and a reason.
async fn decide(
    State(json): State<Json>,
    peer: Option<Extension<Peer>>,
    request: Request,
) -> Response {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    let span = json.service.begin(Transport::Json, request.headers());
    let answered =
        json.service.catch_panic(Transport::Json, json.answer(request, &peer, span.as_ref()));
    let answered = match &span {
        None => answered.await,
        Some(span) => Box::pin(span.around(answered)).await,
    };
    let response = match answered {
        Ok(response) => response.unwrap_or_else(IntoResponse::into_response),
        Err(error) => JsonError::from(error).into_response(),
    };
    if let Some(span) = span {
        span.end(Outcome::Http(response.status().as_u16()));
    }
    response
}

// === impl Json ===

impl Json {
    async fn answer(
        &self,
        request: Request,
        peer: &Peer,
        span: Option<&Span>,
    ) -> Result<Response, JsonError> {
        check_type(request.headers())?;
        let reservation = self.service.reserve_body(Transport::Json, peer);
        let body = read(request.into_body(), &reservation).await?;
        // Boxed, so that an incomplete request does not hold the memory that a decision takes.
        Box::pin(self.decide(body, peer, span)).await
    }

    async fn decide(
        &self,
        body: Bytes,
        peer: &Peer,
        span: Option<&Span>,
    ) -> Result<Response, JsonError> {
        let bad = |reason| JsonError(StatusCode::BAD_REQUEST, reason);
        let request = request_json::parse(&body).map_err(bad)?;
        drop(body);
        let request = request.borrow();
        if let Some(at) = request.descriptors.iter().position(|it| it.refund && !self.refunds) {
            let reason = format!(
                "descriptor {at} gives hits back, which is refused over /json; \
                 set JSON_REFUNDS=true to allow it, or do so over gRPC"
            );
            return Err(JsonError(StatusCode::FORBIDDEN, reason));
        }
        let printed = |answer: &Answer<'_>| {
            if let Some(span) = span {
                span.note(&request, &answer.verdict);
            }
            (answer.verdict.code, json::print(answer).to_string())
        };
        // A call that need not wait needs no permit.
        let (code, text) = match self.service.answer_at_once(&request, printed) {
            Some(answered) => answered?,
            None => {
                let answer = self.service.answer(&request, |answer| printed(&answer));
                self.service.run(Transport::Json, peer, answer).await??
            }
        };
        let status = match code {
            Code::Ok => StatusCode::OK,
            Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        };
        Ok((status, [(CONTENT_TYPE, "application/json")], text).into_response())
    }
}

/// The type has to be one that a page of another origin may not send without a preflight.
fn check_type(headers: &HeaderMap) -> Result<(), JsonError> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (first, second) = (types.next().and_then(|it| it.to_str().ok()), types.next());
    let essence = first.and_then(|it| it.split(';').next()).map(str::trim).unwrap_or_default();
    if essence.eq_ignore_ascii_case("application/json") && second.is_none() {
        return Ok(());
    }
    let reason = "the content-type must be application/json; \
                with curl: -H 'content-type: application/json'";
    Err(JsonError(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason.to_owned()))
}

/// Returns the whole body, which is counted on `reservation`.
async fn read(body: Body, reservation: &BodyReservation) -> Result<Bytes, JsonError> {
    let too_long = || {
        let reason = format!("the body is longer than the limit of {BODY_BYTES_MAX} bytes");
        JsonError(StatusCode::PAYLOAD_TOO_LARGE, reason)
    };
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_long());
    }
    reservation.grow(0)?;
    let whole = async {
        let (mut read, mut body) = (PartialMessage::new(reservation), body.into_data_stream());
        while let Some(part) = body.next().await {
            let part = part.map_err(|error| {
                JsonError(StatusCode::BAD_REQUEST, format!("the body ended early: {error}"))
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
        Err(JsonError(StatusCode::REQUEST_TIMEOUT, reason))
    })?;
    reservation.complete()?;
    Ok(read)
}

// === impl JsonError ===

impl From<RequestError> for JsonError {
    /// The reference implementation returns 400 for all requests without a verdict, errors of the
    /// store included.
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Overloaded => Self(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("the maximum of {JSON_CALLS_MAX} requests of /json are in progress; retry"),
            ),
            RequestError::NoRoom => Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            RequestError::Panicked => Self(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            error => Self(StatusCode::BAD_REQUEST, error.to_string()),
        }
    }
}

impl IntoResponse for JsonError {
    fn into_response(self) -> Response {
        let Self(status, reason) = self;
        (status, format!("{reason}\n")).into_response()
    }
}
