//! Who may call, and how often: the token, its rate, and a place among the requests at a time.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use ratelease_listener::ConnectionHandle;

use super::App;
use super::problem::Problem;
use super::serve::{Reader, count};
use crate::auth::{Access, Caller, Token};
use crate::rates::Quota;
use crate::store::StoreError;
use crate::work;

/// The headers of draft-ietf-httpapi-ratelimit-headers-03, as envoyproxy/ratelimit has them.
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// Marks a request that gets its permit among those about whole domains only once its body has
/// arrived, so that a client that sends it slowly holds none.
#[derive(Debug, Clone, Copy)]
pub(super) struct TakesLongPermit;

/// A caller, and what is left of its rate.
#[derive(Debug, Clone)]
struct Admitted {
    caller: Caller,
    quota: Quota,
}

/// A request that is not let in, and the rate that it exceeds.
#[derive(Debug)]
struct Refused {
    problem: Box<Problem>,
    quota: Option<Quota>,
}

/// Lets in requests with a valid token, at the rate of that token.
pub(super) async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let admitted = match authenticate(&app, &parts).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused.into_response(),
    };
    // The connection is in use, and the request one of those at a time, until the answer is read.
    let connection = parts.extensions.get::<ConnectionHandle>().cloned();
    let in_use = connection.as_ref().map(ConnectionHandle::begin_request);
    let reader = Reader::Token(admitted.caller.name.clone());
    let permit = Arc::new((app.rates.requests.take(&admitted.caller.name).await, in_use));
    let quota = admitted.quota;
    parts.extensions.insert(admitted);
    let held = Arc::clone(&permit);
    let handling = work::of_request(async move {
        work::hold(held);
        next.run(Request::from_parts(parts, body)).await
    });
    let mut response = handling.await;
    quota.write(response.headers_mut());
    match connection {
        Some(connection) => count(&app.unread, response, reader, &connection, Some(permit)),
        None => response,
    }
}

/// Lets in a few reads at a time of each token, which share the connections for them.
pub(super) async fn admit_read(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    if request.method().is_safe() {
        work::hold(app.rates.reads.take(&caller.name).await);
    }
    next.run(request).await
}

/// Lets in a few requests at a time: those that read or compile whole domains.
pub(super) async fn admit_long(
    State(app): State<Arc<App>>,
    caller: Caller,
    mut request: Request,
    next: Next,
) -> Response {
    if request.method().is_safe() {
        hold_long_permit(&app, &caller).await;
    } else {
        request.extensions_mut().insert(TakesLongPermit);
    }
    next.run(request).await
}

/// Waits for a permit of the requests about whole domains, and holds it for the present one. Other
/// tokens keep none from those of an administrator, who may have to roll back.
pub(super) async fn hold_long_permit(app: &App, caller: &Caller) {
    let shared = app.rates.long.take(&caller.name);
    if !caller.has(Access::Admin) {
        return work::hold(shared.await);
    }
    let permit = tokio::select! {
        biased;
        permit = shared => permit,
        permit = app.rates.long_of_admins.take(&caller.name) => permit,
    };
    work::hold(permit);
}

async fn authenticate(app: &App, parts: &Parts) -> Result<Admitted, Refused> {
    let unauthorized = |detail: &str| {
        Refused::from(Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail))
    };
    let Some(value) = parts.headers.get(header::AUTHORIZATION) else {
        return Err(unauthorized("no token; send 'Authorization: Bearer rlc_…'"));
    };
    let connection = parts.extensions.get::<ConnectionHandle>();
    let address = connection.and_then(ConnectionHandle::address);
    let address = address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let text = value.to_str().unwrap_or_default();
    let _lookup = match app.rates.is_known(text) {
        true => None,
        false => Some(app.rates.take_lookup(address).await),
    };
    app.rates.admits(address, text).map_err(|quota| limited(LIMITED_ADDRESS, quota))?;
    let token = text.split_once(' ');
    let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let token = token.and_then(|(_, token)| Token::parse(token.trim()));
    let caller = match &token {
        None => None,
        Some(token) => {
            let row = app.store.reserved().token(token.id()).await?;
            row.and_then(|row| token.caller(&row))
        }
    };
    let Some((token, caller)) = token.zip(caller) else {
        app.rates.take_failure(address, text);
        return Err(unauthorized("the token is not known, expired or revoked"));
    };
    app.rates.note_valid(text);
    let quota = app.rates.take_request(token.id());
    if quota.retry_after.is_some() {
        return Err(limited(LIMITED_TOKEN, quota));
    }
    Ok(Admitted { caller, quota })
}

const LIMITED_TOKEN: &str = "the token made too many requests (--token-requests-per-minute); \
                             repeat this one after the seconds of 'Retry-After'";
const LIMITED_ADDRESS: &str = "too many tokens of this address were not valid \
                               (--failed-tokens-per-minute); repeat this request with a valid one \
                               after the seconds of 'Retry-After'";

fn limited(detail: &str, quota: Quota) -> Refused {
    let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", detail);
    Refused { quota: Some(quota), ..Refused::from(problem) }
}

/// A time in whole seconds that is not shorter.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

// === impl Refused ===

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), quota: None }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::from(Problem::from(error))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (*self.problem).into_response();
        if let Some(quota) = self.quota {
            quota.write(response.headers_mut());
        }
        response
    }
}

// === impl Caller ===

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        match parts.extensions.get::<Admitted>() {
            Some(admitted) => Ok(admitted.caller.clone()),
            None => match authenticate(app, parts).await {
                Ok(admitted) => Ok(admitted.caller),
                Err(refused) => Err(*refused.problem),
            },
        }
    }
}

impl Caller {
    /// Refuses a caller without this access.
    pub(super) fn need(&self, access: Access) -> Result<(), Problem> {
        if self.has(access) {
            return Ok(());
        }
        Err(Problem::forbidden(format!("the token lacks the access '{}'", access.name())))
    }

    /// Refuses a caller who may not use this domain.
    pub(super) fn need_domain(&self, domain: &str) -> Result<(), Problem> {
        if self.may_use(domain) {
            return Ok(());
        }
        let domain = ratelease_rules::excerpt(domain);
        Err(Problem::forbidden(format!("the token is not for the domain '{domain}'")))
    }
}

// === impl Quota ===

impl Quota {
    /// Writes the headers of a rate limit.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(LIMIT, HeaderValue::from(self.limit));
        headers.insert(REMAINING, HeaderValue::from(self.remaining));
        headers.insert(RESET, HeaderValue::from(seconds(self.reset_after)));
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(wait).max(1)));
        }
    }
}
