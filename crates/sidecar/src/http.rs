//! The HTTP server: `/json`, `/shouldAllow` and `/api/v1/rate_limit` decide, `/healthcheck`,
//! `/livez` and `/readyz` answer probes. Uses [`service`](ratelease_server::service) to decide, and
//! [`admin`](crate::admin) for health and for who may ask; `app` runs it, and serves the pages of
//! the debug port by [`serve`].

mod body;
mod decide;
mod json;
mod refusal;
mod scoped;
pub mod serve;

use ::http::StatusCode;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};

use crate::admin::guard;
use crate::admin::health::Health;
use ratelease_server::service::DecisionService;

pub use decide::DecisionOptions;

/// The routes of `PORT`.
pub fn routes(service: DecisionService, health: Health, options: DecisionOptions) -> Router {
    let probes = Router::new()
        // These two accept any method, as in the reference implementation.
        .route("/healthcheck", any(healthcheck))
        .route("/livez", get(|| async { "OK" }))
        .route("/readyz", get(readyz))
        .with_state(health);
    guard::with_headers(decide::routes(service, options).fallback(absent)).merge(probes)
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
