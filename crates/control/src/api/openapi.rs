//! The OpenAPI document, made of the descriptions of the calls.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{RefOr, Required};

use super::problem::{FieldFault, Problem};
use super::{
    differences, domains, files, history, observe, own_token, policies, publish, replay, rollouts,
    rules, scoped,
};
use crate::page;

/// All calls.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "ratelease-control",
        description = "The rules of a fleet: draft, check, publish, roll back"
    ),
    paths(
        rules::list,
        rules::create,
        rules::read,
        rules::change,
        rules::remove,
        history::history,
        policies::read,
        policies::write,
        scoped::list,
        scoped::create,
        scoped::read,
        scoped::change,
        scoped::remove,
        domains::list,
        files::import,
        files::export,
        publish::check,
        publish::publish,
        publish::rollback,
        publish::versions,
        differences::read,
        replay::replay,
        own_token::read,
        rollouts::begin,
        rollouts::list,
        rollouts::read,
        rollouts::advance,
        rollouts::abort,
        observe::pods,
        observe::audit,
        observe::health,
        observe::metrics,
        page::serve,
    ),
    components(schemas(FieldFault, Problem)),
    security(("token" = []))
)]
struct Document;

/// Calls whose body may be missing: they are then about all domains with changes.
const BODY_IS_OPTIONAL: [&str; 2] = ["/v1/check", "/v1/publish"];

/// The OpenAPI document.
pub fn document() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
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
pub(super) async fn serve() -> Response {
    static TEXT: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(&document()).unwrap_or_default().into());
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], TEXT.clone()).into_response()
}
