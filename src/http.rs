//! The HTTP door: `/json` decides, `/healthcheck`, `/livez` and `/readyz` answer probes.

mod json;

use ::http::{StatusCode, header};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};

use crate::control::health::Health;
use crate::intake::Intake;
use crate::verdict::Code;

/// Bytes of a `/json` body at most: as many as of a gRPC message.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// The routes of `PORT`.
pub fn routes(intake: Intake, health: Health) -> Router {
    let probes = Router::new()
        .route("/healthcheck", get(healthcheck))
        .route("/livez", get(|| async { "OK" }))
        .route("/readyz", get(readyz))
        .with_state(health);
    // Any method will do, as for the reference.
    let json = Router::new().route("/json", any(decide)).with_state(intake);
    json.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).merge(probes)
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
async fn decide(State(intake): State<Intake>, body: Bytes) -> Response {
    let answer = match json::parse(&body) {
        Ok(request) => intake.answer(&request.borrow()).await.map_err(|e| e.to_string()),
        Err(fault) => Err(fault),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(reason) => return (StatusCode::BAD_REQUEST, format!("{reason}\n")).into_response(),
    };
    let status = match answer.verdict.code {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (status, content_type, json::print(answer).to_string()).into_response()
}
