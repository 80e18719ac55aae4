//! Signing in and out, for people at a browser. A session is a cookie that scripts cannot read, and
//! that browsers send only with requests of the page itself; a write has to name the page's origin
//! besides.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use tokio::time::timeout;
use tracing::warn;
use utoipa::OpenApi;

use super::call::{CommonProblems, Problem};
use super::{App, REQUEST_MAX, session};
use crate::auth::{Caller, Rights, Token};
use crate::oidc::{Callback, Pending, Provider, SignInError};
use crate::page;
use crate::store::{Author, Person, StoreError};

/// How long a session lasts: a working day. The provider is asked for the rights of a person only at
/// sign-in.
const SESSION: Duration = Duration::from_secs(8 * 3600);

/// How long a person may take at the provider.
const PENDING: Duration = Duration::from_secs(600);

/// Describes the calls.
#[derive(OpenApi)]
#[openapi(paths(begin, end, sign_out))]
pub struct Calls;

/// The calls that need no token.
pub fn public_calls() -> Router<Arc<App>> {
    Router::new().route("/v1/sign-in", get(begin)).route("/v1/sign-in/callback", get(end))
}

/// The call that needs a session.
pub fn calls() -> Router<Arc<App>> {
    Router::new().route("/v1/sign-out", post(sign_out))
}

/// Begin to sign in, for browsers
#[utoipa::path(get, operation_id = "sign_in", tag = "sign_in", path = "/v1/sign-in",
    security(()), responses(
    (status = 303, description = "On to the provider of OpenID Connect"),
    (status = 404, description = "None is configured", body = Problem,
        content_type = "application/problem+json")))]
async fn begin(State(app): State<Arc<App>>) -> Response {
    let Some(provider) = &app.provider else { return not_configured().into_response() };
    match provider.begin().await {
        Ok((pending, place)) => {
            let cookie = session::PENDING.set(provider.settings(), &pending.cookie(), PENDING);
            go(&place, &[cookie])
        }
        Err(error) => refusal(provider, &error),
    }
}

/// End to sign in: the provider sends browsers here
#[utoipa::path(get, operation_id = "end_sign_in", tag = "sign_in", path = "/v1/sign-in/callback",
    security(()), params(("code" = Option<String>, Query), ("state" = Option<String>, Query)),
    responses((status = 303, description = "Signed in, with a cookie; on to the page"),
    (status = 404, description = "No provider is configured", body = Problem,
        content_type = "application/problem+json"),
    (status = 403, description = "Not signed in; a page says why", content_type = "text/html",
        body = String)))]
async fn end(State(app): State<Arc<App>>, request: Request) -> Response {
    let Some(provider) = &app.provider else { return not_configured().into_response() };
    let callback =
        Query::<Callback>::try_from_uri(request.uri()).map(|it| it.0).unwrap_or_default();
    let pending = session::PENDING.find(provider.settings(), request.headers());
    let pending = pending.and_then(Pending::parse);
    let ended = async {
        let unknown = || {
            let why = "this sign-in was not begun in this browser, or has taken too long";
            SignInError::Refused(why.to_owned())
        };
        provider.end(&pending.ok_or_else(unknown)?, &callback).await
    };
    let late = |_| Err(SignInError::Provider(format!("took longer than {REQUEST_MAX:?}")));
    match timeout(REQUEST_MAX, ended).await.unwrap_or_else(late) {
        Ok((person, rights)) => match start(&app, provider, &person, &rights).await {
            Ok(Some(cookie)) => go("/", &[cookie, session::PENDING.remove(provider.settings())]),
            Ok(None) => refusal(provider, &SignInError::NoRole(revoked(&person))),
            Err(error) => Problem::from(error).into_response(),
        },
        // Not counted as a guess: codes cannot be guessed, and behind a proxy all people have one
        // address, so that one of them, or a page that sends browsers here, would keep out all.
        Err(error) => refusal(provider, &error),
    }
}

fn revoked(person: &Person) -> String {
    format!("{}, whom an administrator revoked,", person.author())
}

/// Starts a session, and returns its cookie; `None` for a person who was revoked.
async fn start(
    app: &App,
    provider: &Provider,
    person: &Person,
    rights: &Rights,
) -> Result<Option<String>, StoreError> {
    let token = Token::random().map_err(|error| StoreError::Internal(error.to_string()))?;
    let lasts = i64::try_from(SESSION.as_millis()).unwrap_or(i64::MAX);
    let expires_at = Timestamp::now().as_millisecond().saturating_add(lasts);
    let session = token.session(rights, &provider.roles, expires_at);
    let author = Author { name: person.author(), reason: String::new() };
    let mut write = app.store.begin_of_token(&author, &person.id).await?;
    let Some(is_new) = write.sign_in(person, &session).await? else { return Ok(None) };
    if is_new {
        write.count_for((&person.id, None), None, None).await?;
        write.noted.domains.extend(rights.all_domains().cloned());
        write.note_action("person.admit", &format!("{}: {rights}", person.id)).await?;
    }
    write.commit().await?;
    Ok(Some(session::SESSION.set(provider.settings(), &token.reveal(), SESSION)))
}

/// Sign out, for browsers
///
/// Ends the session of the cookie.
#[utoipa::path(post, operation_id = "sign_out", tag = "sign_in", path = "/v1/sign-out",
    responses((status = 204, description = "The session has ended"), CommonProblems))]
async fn sign_out(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Problem> {
    let Some((session, provider)) = caller.session.as_ref().zip(app.provider.as_ref()) else {
        let detail = "there is no session; a token does not sign out";
        return Err(Problem::conflict("no-session", detail));
    };
    let author = Author { name: caller.name.clone(), reason: String::new() };
    let mut write = app.store.begin_of_token(&author, &caller.id).await?;
    write.sign_out(session).await?;
    write.commit().await?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    add_cookie(response.headers_mut(), &session::SESSION.remove(provider.settings()));
    Ok(response)
}

fn not_configured() -> Problem {
    Problem::not_found("people sign in with a token here: CONTROL_OIDC_ISSUER is not set")
}

/// The page that gives the reason of a failed sign-in.
fn refusal(provider: &Provider, error: &SignInError) -> Response {
    warn!("nobody was signed in: {error}");
    let (status, title, advice) = match error {
        SignInError::Provider(_) => (
            StatusCode::BAD_GATEWAY,
            "The provider does not answer as it should",
            "Try again later, or sign in with a token: tokens work meanwhile. The log of the \
             control plane has this message too.",
        ),
        SignInError::Busy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many sign-ins",
            "Try again in a minute, or sign in with a token.",
        ),
        SignInError::Refused(_) => (
            StatusCode::FORBIDDEN,
            "You are not signed in",
            "Begin again, or sign in with a token.",
        ),
        SignInError::NoRole(_) => (
            StatusCode::FORBIDDEN,
            "You have no role here",
            "The provider knows you, and nothing that it says of you gives you a role in this \
             control plane. Ask its operators for one (CONTROL_OIDC_ROLES), or sign out at the \
             provider and begin again as someone else.",
        ),
    };
    let mut words = error.to_string();
    words.push('.');
    let mut response = page::message(status, title, &[&words, advice]);
    add_cookie(response.headers_mut(), &session::PENDING.remove(provider.settings()));
    response
}

/// A redirect, with cookies. The place is the provider's or this page: never one of a request.
fn go(place: &str, cookies: &[String]) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    if let Ok(place) = HeaderValue::from_str(place) {
        headers.insert(header::LOCATION, place);
    }
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    cookies.iter().for_each(|it| add_cookie(headers, it));
    response
}

fn add_cookie(headers: &mut HeaderMap, cookie: &str) {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        headers.append(header::SET_COOKIE, cookie);
    }
}
