//! What changed in a rule, when, and by whom.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::App;
use super::call::{IdOf, QueryOf};
use super::paging::{HistoryQuery, page_size, time};
use super::problem::{CommonProblems, Problem};
use crate::auth::Caller;
use crate::store::ChangeRow;

/// The changes of a rule.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct History {
    /// The changes, the latest first.
    changes: Vec<ChangeView>,
    /// `before` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

/// A change of a rule.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChangeView {
    /// Its number.
    number: i64,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    at: String,
    /// Which token.
    author: String,
    /// Why.
    reason: String,
    /// The settings before; null if the rule was added.
    #[schema(value_type = Option<Object>)]
    before: Option<Value>,
    /// The settings after; null if it was removed.
    #[schema(value_type = Option<Object>)]
    after: Option<Value>,
}

/// List the changes of a rule
///
/// Also of one that was removed.
#[utoipa::path(get, path = "/v1/rules/{id}/history",
    params(("id" = String, Path), HistoryQuery), responses(
    (status = 200, description = "The changes", body = History), CommonProblems))]
pub(super) async fn history(
    State(app): State<Arc<App>>,
    caller: Caller,
    IdOf(id): IdOf,
    QueryOf(query): QueryOf<HistoryQuery>,
) -> Result<Json<History>, Problem> {
    let limit = page_size(query.limit)?;
    let before = query.before.unwrap_or(i64::MAX);
    let (found, has_more) = app.lists().changes(&id, caller.domains(), before, limit).await?;
    if found.is_empty() {
        return Err(Problem::no_rule(&id));
    }
    let next = found.last().filter(|_| has_more).map(|last| last.number);
    let changes = found.into_iter().map(ChangeView::from).collect();
    Ok(Json(History { changes, next }))
}

// === impl ChangeView ===

impl From<ChangeRow> for ChangeView {
    fn from(change: ChangeRow) -> Self {
        let ChangeRow { number, before, after, at, author, reason } = change;
        Self { number, at: time(at), author, reason, before, after }
    }
}
