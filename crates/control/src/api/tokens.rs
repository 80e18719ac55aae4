//! Tokens, for administrators: who may do what. A token is shown once, in the answer to the call
//! that makes it, and is not kept: a repeat of that call with its `Idempotency-Key` has none.
//!
//! Only access `admin`, which may do everything, makes tokens: no token has more rights than the one
//! that made it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::routing::{delete, get};
use axum::{Json, Router};
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::App;
use super::call::{
    CommonProblems, Ending, IdOf, Problem, QueryOf, WriteCall, WriteQuery, answer, check_domain,
    time,
};
use super::pages::{page_size, place, place_of};
use crate::auth::{Access, Caller, Token, TokenRequest};
use crate::document::FieldFault;
use crate::store::{StoreError, TokenRow};

/// A token without its secret, or a person who has signed in.
#[derive(Debug, Serialize, ToSchema)]
struct TokenItem {
    /// The id, which is part of the token.
    id: String,
    /// The name.
    name: String,
    /// The access; of a person, at the last sign-in.
    access: String,
    /// The domains that it may use; null for all.
    domains: Option<Vec<String>>,
    /// The domains that it may change; null for all. Access `read` changes none. Absent for a person
    /// who has not signed in since an earlier release.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    writable: Option<Value>,
    /// When it was made, or the person first signed in.
    created_at: String,
    /// Until when it is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// When it was revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<String>,
    /// Whether it is valid now.
    is_valid: bool,
    /// Bytes that its writes have added to history, versions and audit log.
    kept_bytes: i64,
    /// Who had the API make it, as ISSUER#SUBJECT or the id of a token; absent if the command line
    /// made it.
    #[serde(skip_serializing_if = "String::is_empty")]
    made_by: String,
    /// The person, as ISSUER#SUBJECT; absent for a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    person: Option<String>,
}

/// Tokens and people.
#[derive(Debug, Serialize, ToSchema)]
struct TokenList {
    /// The latest first.
    tokens: Vec<TokenItem>,
    /// `before` of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A page of the list of tokens.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct TokenQuery {
    /// Before this place: `next` of the page before.
    before: Option<String>,
    /// At most so many, up to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// A token that is to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TokenInput {
    /// The name in history and audit log: 1 to 128 bytes without slashes.
    name: String,
    /// The access.
    access: Access,
    /// The domains that it may use, at most 256; all without. One of access admin is for all.
    domains: Option<Vec<String>>,
    /// Days for which it is valid, from 1 to 3650; without, until it is revoked.
    #[schema(minimum = 1, maximum = 3650)]
    days: Option<u32>,
}

/// A token that was made.
#[derive(Debug, Serialize, ToSchema)]
struct TokenMade {
    /// The id.
    id: String,
    /// The token, a secret. It is shown only now; null in the answer to a repeat.
    token: Option<String>,
}

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(list, create, revoke))]
pub struct Calls;

/// The calls.
pub fn calls() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/tokens", get(list).post(create))
        .route("/v1/tokens/{id}", delete(revoke))
}

/// List tokens and people
#[utoipa::path(get, operation_id = "list_tokens", tag = "tokens", path = "/v1/tokens",
    params(TokenQuery), responses((status = 200, description = "Tokens without their secrets, and \
    people who have signed in; for access admin", body = TokenList), CommonProblems))]
async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueryOf(query): QueryOf<TokenQuery>,
) -> Result<Json<TokenList>, Problem> {
    caller.need(Access::Admin)?;
    let limit = page_size(query.limit)?;
    let before = query.before.as_deref().map(place).transpose()?;
    let (rows, has_more) = app.lists().latest_tokens(before, limit).await?;
    let place = |row: &TokenRow| place_of(row.created_at, &row.token.id);
    let next = rows.last().filter(|_| has_more).map(place);
    let now = Timestamp::now().as_millisecond();
    let tokens = rows.into_iter().map(|row| TokenItem::new(row, now)).collect();
    Ok(Json(TokenList { tokens, next }))
}

/// Make a token
#[utoipa::path(post, operation_id = "create_token", tag = "tokens", path = "/v1/tokens",
    params(WriteQuery), request_body = TokenInput, responses(
    (status = 201, description = "Made, and shown only now; for access admin", body = TokenMade),
    CommonProblems))]
async fn create(State(app): State<Arc<App>>, call: WriteCall) -> Result<Response, Ending> {
    call.caller.need(Access::Admin)?;
    let input: TokenInput = call.json()?;
    let request = TokenRequest {
        name: input.name,
        access: input.access,
        domains: input.domains,
        days: input.days,
        made_by: call.caller.identity(),
    };
    let mut faults = request.faults();
    if input.days == Some(0) {
        faults.push(("days", "expected at least 1 day".to_owned()));
    }
    let faults: Vec<_> = faults.into_iter().map(|(at, why)| FieldFault::of(at, why)).collect();
    if !faults.is_empty() {
        return Err(Problem::faults("no token was made; fix each field", faults).into());
    }
    for domain in request.domains.iter().flatten() {
        check_domain(domain)?;
    }
    let token = Token::random().map_err(|error| StoreError::Internal(error.to_string()))?;
    let mut write = call.begin(&app).await?;
    if !write.add_token(&request.row(&token)).await? {
        return Err(Problem::raced().into()); // of one random id in 2^48
    }
    write.note_action("token.create", &request.subject(&token)).await?;
    let made = |shown| {
        let made = TokenMade { id: token.id().to_owned(), token: shown };
        answer(StatusCode::CREATED, None, &made)
    };
    call.finish_showing(write, made(None), made(Some(token.reveal()))).await
}

/// Revoke a token, or all that a person may do
///
/// At once, also for a write that is under way. All tokens that it had the API make end too, with
/// the tokens made by these, and their approvals count no more. A person who was revoked cannot
/// sign in again.
#[utoipa::path(delete, operation_id = "revoke_token", tag = "tokens", path = "/v1/tokens/{id}",
    params(("id" = String, Path), WriteQuery), responses(
    (status = 204, description = "Revoked; for access admin"), CommonProblems))]
async fn revoke(
    State(app): State<Arc<App>>,
    IdOf(id): IdOf,
    call: WriteCall,
) -> Result<Response, Ending> {
    call.caller.need(Access::Admin)?;
    let mut write = call.begin(&app).await?;
    if !write.revoke_token(&id).await? {
        let id = ratelease_rules::excerpt(&id);
        let detail = format!("no token that is not revoked has the id '{id}'; GET /v1/tokens");
        return Err(Problem::not_found(detail).into());
    }
    call.finish(&app, write, StatusCode::NO_CONTENT, None, &()).await
}

// === impl TokenItem ===

impl TokenItem {
    fn new(row: TokenRow, now: i64) -> Self {
        let TokenRow { token, created_at, revoked_at, written, issuer, subject, writable } = row;
        let is_expired = token.expires_at.is_some_and(|until| until <= now);
        Self {
            id: token.id,
            name: token.name,
            access: token.access,
            domains: token.domains,
            writable,
            created_at: time(created_at),
            expires_at: token.expires_at.map(time),
            revoked_at: revoked_at.map(time),
            is_valid: revoked_at.is_none() && !is_expired,
            kept_bytes: written,
            made_by: token.made_by,
            person: (!issuer.is_empty()).then(|| format!("{issuer}#{subject}")),
        }
    }
}
