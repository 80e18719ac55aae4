//! What a token may do, for clients that show only that.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::problem::{CommonProblems, Problem};
use crate::auth::{Access, Caller};

/// The token of a request.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokenView {
    /// Its name and id, as history and audit log show it.
    name: String,
    /// What it may do.
    access: Access,
    /// The domains that it may use; null for all.
    domains: Option<Vec<String>>,
    /// Bytes that its writes have added to history, versions and audit log, which are kept.
    kept_bytes: i64,
    /// Bytes that they may add; null for no bound.
    kept_bytes_max: Option<i64>,
}

/// Read what the token may do
#[utoipa::path(get, path = "/v1/token", responses(
    (status = 200, description = "The token of this request", body = TokenView), CommonProblems))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
) -> Result<Json<TokenView>, Problem> {
    let kept_bytes = app.lists().token(&caller.id).await?.map_or(0, |it| it.written);
    let kept_bytes_max = app.bytes_max_of(&caller);
    let (access, domains) = (caller.access(), caller.domains().map(<[_]>::to_vec));
    Ok(Json(TokenView { name: caller.name, access, domains, kept_bytes, kept_bytes_max }))
}
