//! What a token may do, for clients that show only that.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

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
}

/// Read what the token may do
#[utoipa::path(get, path = "/v1/token", responses(
    (status = 200, description = "The token of this request", body = TokenView), CommonProblems))]
pub(super) async fn read(caller: Caller) -> Result<Json<TokenView>, Problem> {
    let (access, domains) = (caller.access(), caller.domains().map(<[_]>::to_vec));
    Ok(Json(TokenView { name: caller.name, access, domains }))
}
