//! Domains of the draft.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::problem::{CommonProblems, Problem};
use crate::auth::Caller;
use crate::store::DraftDomain;

/// Domains.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DomainList {
    /// The domains, by name.
    domains: Vec<DraftDomainView>,
}

/// A domain.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DraftDomainView {
    /// Its name.
    domain: String,
    /// Number of rules of its draft.
    rules: i64,
    /// Whether the draft has changes that are not published.
    is_changed: bool,
}

/// List domains
#[utoipa::path(get, path = "/v1/domains", responses(
    (status = 200, description = "The domains that the token may use", body = DomainList),
    CommonProblems))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
) -> Result<Json<DomainList>, Problem> {
    let domains = app.lists().domains().await?.into_iter().filter(|it| caller.may_use(&it.name));
    Ok(Json(DomainList { domains: domains.map(DraftDomainView::from).collect() }))
}

impl From<DraftDomain> for DraftDomainView {
    fn from(domain: DraftDomain) -> Self {
        let DraftDomain { name, rules, is_changed, changed: _ } = domain;
        Self { domain: name, rules, is_changed }
    }
}
