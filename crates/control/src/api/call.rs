//! The parts that all calls share: who may call and how often, the reading of a request, and the
//! answer to a request that is refused.

use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use jiff::Timestamp;
use ratelease_listener::ConnectionHandle;
use ratelease_rules::CANDIDATE_SUFFIX;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};
use tracing::{error, warn};
use utoipa::{IntoParams, IntoResponses, ToSchema};

use super::{App, MIB, Reader, count_answer, session};
use crate::auth::{Access, Caller, Token};
use crate::document::{EntryFault, FieldFault, ReadFaults, without_store};
use crate::rates::Quota;
use crate::store::{Answer, AnswerKey, Author, Earlier, StoreError, Write};
use crate::work;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Maximum bytes of a body that is not an import, of a reason, and of an idempotency key.
const BODY_BYTES_MAX: usize = MIB;
const REASON_BYTES_MAX: usize = 1024;
const KEY_BYTES_MAX: usize = 128;

/// Maximum time until a body has arrived, which leaves time to handle it; and of an import.
const BODY_MAX: Duration = Duration::from_secs(7);
const LONG_BODY_MAX: Duration = Duration::from_secs(40);

/// Bytes a second that a body has to arrive with, after a grace; and up to which size its bytes are
/// not counted.
const BODY_BYTES_PER_SECOND_MIN: u64 = 32 << 10;
const BODY_GRACE: Duration = Duration::from_secs(5);
const BODY_UNCOUNTED_MAX: usize = 16 << 10;

/// Maximum bytes of a domain's name.
const DOMAIN_BYTES_MAX: usize = 1024;

/// The query of every write.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WriteQuery {
    /// Why, for history and audit log; at most 1 KiB.
    #[serde(default)]
    reason: String,
    /// Whether to publish the domain at once, with this change alone.
    #[serde(default)]
    publish: bool,
    /// Whether to publish drafts that lack approvals, which the audit log then has; for access
    /// admin only.
    #[serde(default)]
    skip_approvals: bool,
}

/// A write: who, why, on what condition, and the body. Reading it checks the token first: without a
/// valid one, the body is not read. One whose `Idempotency-Key` is known is answered here, before
/// any handler looks at what may have changed since the first answer.
#[derive(Debug)]
pub struct WriteCall<const MAX: usize = BODY_BYTES_MAX> {
    pub caller: Caller,
    pub body: Bytes,
    /// Whether to publish at once.
    pub publishes: bool,
    skips_approvals: bool,
    /// What `If-Match` requires.
    if_match: Option<String>,
    reason: String,
    key: Option<AnswerKey>,
}

/// Why a request is not handled, or a write not done.
#[derive(Debug)]
pub enum Ending {
    /// It is refused.
    Refused(Problem),
    /// It has its answer: that of the first request of its key, or one that says when to come again.
    Answered(Box<Response>),
}

// === impl WriteCall ===

impl<const MAX: usize> FromRequest<Arc<App>> for WriteCall<MAX> {
    type Rejection = Ending;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Ending> {
        let call = Self::read(request, app).await?;
        // The transaction asks again: both requests may be under way.
        if let Some(key) = &call.key {
            replay(app.store.earlier(&call.caller.id, key).await?)?;
        }
        Ok(call)
    }
}

impl<const MAX: usize> WriteCall<MAX> {
    async fn read(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, app).await?;
        caller.need(Access::Write)?;
        let caller = caller.into_writer();
        let QueryOf(query) = QueryOf::<WriteQuery>::from_request_parts(&mut parts, app).await?;
        if query.reason.len() > REASON_BYTES_MAX {
            return Err(Problem::malformed("'reason' has more than 1 KiB; shorten it"));
        }
        check_text("reason", &query.reason)?;
        let skips_approvals = query.skip_approvals;
        if skips_approvals {
            caller.need(Access::Admin)?;
        }
        let body = take_body(app, &caller, body, &parts, MAX).await?;
        let key = key(&parts, &body)?;
        let if_match = parts.headers.get(header::IF_MATCH).map(|it| it.to_str().map(str::to_owned));
        let if_match = if_match.transpose();
        let if_match = if_match.map_err(|_| Problem::malformed("'If-Match' is not text"))?;
        let publishes = query.publish;
        let reason = query.reason;
        Ok(Self { caller, body, publishes, skips_approvals, if_match, reason, key })
    }

    /// Reads the body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        from_json(&self.body)
    }

    /// Begins the write, unless it was done already.
    pub async fn begin(&self, app: &App) -> Result<Box<Write>, Ending> {
        let author = Author { name: self.caller.name.clone(), reason: self.reason.clone() };
        let mut write = match self.caller.has(Access::Admin) {
            true => app.store.begin(&author).await?,
            false => app.store.begin_of_token(&author, &self.caller.id).await?,
        };
        write.identity = self.caller.identity();
        if let Some(key) = &self.key {
            replay(write.earlier(key).await?)?;
        }
        let own = self.caller.domains();
        let max = app.bytes_max_of(&self.caller);
        let caller = (&*self.caller.id, self.caller.session.as_deref());
        write.count_for(caller, own, max).await?;
        write.skips_approvals = self.skips_approvals;
        Ok(Box::new(write))
    }

    /// Commits the write, and then answers.
    pub async fn finish(
        &self,
        app: &App,
        write: Box<Write>,
        status: StatusCode,
        etag: Option<String>,
        body: &impl Serialize,
    ) -> Result<Response, Ending> {
        self.finish_with(app, write, answer(status, etag, body)).await
    }

    /// Commits the write, and then gives this answer.
    pub async fn finish_with(
        &self,
        app: &App,
        mut write: Box<Write>,
        answer: Answer,
    ) -> Result<Response, Ending> {
        if let Some(key) = &self.key {
            write.keep_answer(key, &answer).await?;
        }
        write.commit().await?;
        app.wake_follower();
        Ok(response(answer))
    }

    /// Commits the write, keeps `kept` for a repeat of the request, and answers `shown`, which is kept
    /// nowhere.
    pub async fn finish_showing(
        &self,
        mut write: Box<Write>,
        kept: Answer,
        shown: Answer,
    ) -> Result<Response, Ending> {
        if let Some(key) = &self.key {
            write.keep_answer(key, &kept).await?;
        }
        write.commit().await?;
        Ok(response(shown))
    }

    /// Whether `If-Match` names this entity tag, and not any.
    ///
    /// # Errors
    /// As [`matches`](Self::matches).
    pub fn matches_exactly(&self, etag: &str) -> Result<bool, Problem> {
        Ok(self.matches(etag)? && self.if_match.as_deref() == Some(etag))
    }

    /// Refuses a draft that is not the one that was checked, if `If-Match` names that.
    pub fn need_draft(&self, etag: &str) -> Result<(), Problem> {
        if self.if_match.is_none() || self.matches(etag)? {
            return Ok(());
        }
        let detail = "the draft changed since it was checked; check it again";
        let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "changed", detail);
        Err(problem.with("current", json!(etag)))
    }

    /// Whether `If-Match` allows a write of what has this entity tag.
    ///
    /// # Errors
    /// A problem of status 428 if there is no such header.
    pub fn matches(&self, etag: &str) -> Result<bool, Problem> {
        let Some(wanted) = &self.if_match else {
            let detail = "send 'If-Match' with the ETag that you read, or '*' to write regardless";
            return Err(Problem::new(
                StatusCode::PRECONDITION_REQUIRED,
                "precondition-required",
                detail,
            ));
        };
        Ok(wanted.split(',').map(str::trim).any(|it| it == "*" || it == etag))
    }
}

/// A call with a body that writes nothing, for which a token that may read is enough.
#[derive(Debug)]
pub struct DryCall<const MAX: usize = BODY_BYTES_MAX> {
    pub caller: Caller,
    pub body: Bytes,
    /// Whether the body is the text of a rule file, and not JSON.
    pub is_yaml: bool,
}

// === impl DryCall ===

impl<const MAX: usize> FromRequest<Arc<App>> for DryCall<MAX> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, app).await?;
        let body = take_body(app, &caller, body, &parts, MAX).await?;
        Ok(Self { caller, body, is_yaml: is_yaml(&parts.headers) })
    }
}

impl<const MAX: usize> DryCall<MAX> {
    /// Reads the body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        from_json(&self.body)
    }
}

/// Whether a body is the text of a rule file: its type names YAML.
fn is_yaml(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    kind.is_some_and(|kind| kind.contains("yaml"))
}

/// Reads a body, and then takes the permit of a request about whole domains, if this is one.
async fn take_body(
    app: &App,
    caller: &Caller,
    body: Body,
    parts: &Parts,
    max: usize,
) -> Result<Bytes, Problem> {
    let body = read_body(app, caller, body, &parts.headers, max).await?;
    if parts.extensions.get::<TakesLongPermit>().is_some() {
        hold_long_permit(app, caller).await;
    }
    Ok(body)
}

/// An answer of JSON, or without a body if the status says so.
pub fn answer(status: StatusCode, etag: Option<String>, body: &impl Serialize) -> Answer {
    let body = match status {
        StatusCode::NO_CONTENT => String::new(),
        _ => serde_json::to_string(body).unwrap_or_default(),
    };
    let status = status.as_u16();
    let etag = etag.unwrap_or_default();
    Answer { status, etag, location: String::new(), body }
}

/// Ends a request that is repeated.
fn replay(earlier: Earlier) -> Result<(), Ending> {
    match earlier {
        Earlier::New => Ok(()),
        Earlier::Same(answer) => {
            let mut response = response(answer);
            let name = HeaderName::from_static("idempotency-replayed");
            response.headers_mut().insert(name, HeaderValue::from_static("true"));
            Err(Ending::Answered(Box::new(response)))
        }
        Earlier::Other => Err(Ending::from(Problem::faults(
            "the Idempotency-Key was used for another request; choose a new one",
            vec![FieldFault::of("Idempotency-Key", "used for another request")],
        ))),
    }
}

// === impl Ending ===

impl<E: Into<Problem>> From<E> for Ending {
    fn from(refusal: E) -> Self {
        Self::Refused(refusal.into())
    }
}

impl IntoResponse for Ending {
    fn into_response(self) -> Response {
        match self {
            Self::Refused(problem) => problem.into_response(),
            Self::Answered(response) => *response,
        }
    }
}

fn key(parts: &Parts, body: &[u8]) -> Result<Option<AnswerKey>, Problem> {
    let Some(key) = parts.headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = key.to_str().ok().filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()));
    let expected = "'Idempotency-Key': expected 1 to 128 characters of ASCII";
    let key = key.ok_or_else(|| Problem::malformed(expected))?.to_owned();
    let mut hasher = blake3::Hasher::new();
    let uri = parts.uri.to_string();
    let if_match = parts.headers.get(header::IF_MATCH).map(HeaderValue::as_bytes);
    for part in [parts.method.as_str().as_bytes(), uri.as_bytes(), if_match.unwrap_or(b""), body] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    Ok(Some(AnswerKey { key, request: hasher.finalize().to_hex().to_string() }))
}

fn response(answer: Answer) -> Response {
    let is_empty = answer.body.is_empty();
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or_default();
    let headers = response.headers_mut();
    if !is_empty {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    for (name, text) in [(header::ETAG, answer.etag), (header::LOCATION, answer.location)] {
        if let Some(value) = HeaderValue::from_str(&text).ok().filter(|it| !it.is_empty()) {
            headers.insert(name, value);
        }
    }
    response
}

/// Reads a body of at most `max` bytes, within the bytes of all bodies, which it holds for the
/// present request. One that says it is larger is not read, and one that is slow is given up.
async fn read_body(
    app: &App,
    caller: &Caller,
    body: Body,
    headers: &HeaderMap,
    max: usize,
) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("the body has more than {max} bytes; send less at once");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
    };
    let length = headers.get(header::CONTENT_LENGTH).and_then(|it| it.to_str().ok());
    let length = length.and_then(|it| it.parse::<usize>().ok());
    if length.is_some_and(|length| length > max) {
        return Err(too_large());
    }
    let expected = length.unwrap_or(max);
    if expected > BODY_UNCOUNTED_MAX {
        let kib = u32::try_from(expected.div_ceil(1024)).unwrap_or(u32::MAX);
        work::hold(app.rates.bodies.take_many(caller.id.clone(), kib).await);
    }
    let time_max = if max > BODY_BYTES_MAX { LONG_BODY_MAX } else { BODY_MAX };
    #[allow(clippy::disallowed_methods, reason = "the edge: says only how long to wait")]
    let began = Instant::now();
    let mut read = BytesMut::with_capacity(length.unwrap_or_default());
    let mut body = Limited::new(body, max);
    loop {
        let paced = Duration::from_secs(read.len() as u64 / BODY_BYTES_PER_SECOND_MIN);
        let end = began + time_max.min(BODY_GRACE + paced);
        match timeout_at(end, body.frame()).await {
            Ok(Some(Ok(frame))) => read.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Ok(None) => return Ok(read.freeze()),
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => return Err(too_large()),
            Ok(Some(Err(error))) => return Err(Problem::malformed(format!("the body: {error}"))),
            Err(_) => {
                let detail = format!(
                    "the body did not arrive within {time_max:?}, with at least 32 KiB a second; \
                     send it again"
                );
                return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "body-timeout", detail));
            }
        }
    }
}

/// Reads JSON; an error names the field.
fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // The reader would take a list for an object, by the order of the fields.
    if bytes.trim_ascii_start().starts_with(b"[") {
        let fault = FieldFault::of("body", "expected an object, found a list".to_owned());
        return Err(Problem::faults("the body has another form than expected", vec![fault]));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let field = match error.path().to_string() {
            path if path == "." => "body".to_owned(),
            path => path,
        };
        match error.inner().is_data() {
            true => Problem::faults(
                "the body has another form than expected",
                vec![FieldFault::of(&field, error.into_inner().to_string())],
            ),
            false => Problem::malformed(format!("the body is no JSON: {}", error.into_inner())),
        }
    })?;
    reader.end().map_err(|error| Problem::malformed(format!("after the JSON: {error}")))?;
    Ok(read)
}

/// The query of a request.
pub struct QueryOf<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for QueryOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        let query = query.map_err(|error| Problem::malformed(format!("the query: {error}")))?;
        Ok(Self(query.0))
    }
}

/// The part of a path that names a thing.
pub struct IdOf(pub String);

impl FromRequestParts<Arc<App>> for IdOf {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let id = Path::<String>::from_request_parts(parts, app).await;
        let Path(id) = id.map_err(|error| Problem::malformed(format!("the path: {error}")))?;
        check_text("id", &id)?;
        Ok(Self(id))
    }
}

/// Refuses a text that the database cannot store.
pub fn check_text(name: &str, text: &str) -> Result<(), Problem> {
    if text.contains('\0') {
        return Err(Problem::malformed(format!("'{name}' has a NUL character; remove it")));
    }
    Ok(())
}

/// Refuses a domain that cannot be one.
pub fn check_domain(domain: &str) -> Result<(), Problem> {
    if domain.is_empty() || domain.len() > DOMAIN_BYTES_MAX || domain.contains('\0') {
        let message = "expected a name of 1 to 1024 bytes, without NUL characters";
        let fault = FieldFault::of("domain", message);
        return Err(Problem::faults("the domain cannot be used", vec![fault]));
    }
    Ok(())
}

/// Refuses names that no domain that is written can have: the control plane names candidate rules.
pub fn check_new_domain(domain: &str) -> Result<(), Problem> {
    check_domain(domain)?;
    if domain.ends_with(CANDIDATE_SUFFIX) {
        let message = format!(
            "expected a name that does not end in '{CANDIDATE_SUFFIX}', which is for the candidate \
             rules of a rollout; choose another one"
        );
        let fault = FieldFault::of("domain", message);
        return Err(Problem::faults("the domain cannot be used", vec![fault]));
    }
    Ok(())
}

// Who may call, and how often: the token, its rate, and a place among the requests at a time.

/// The headers of draft-ietf-httpapi-ratelimit-headers-03, as envoyproxy/ratelimit has them.
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// Marks a request that gets its permit among those about whole domains only once its body has
/// arrived, so that a client that sends it slowly holds none.
#[derive(Debug, Clone, Copy)]
struct TakesLongPermit;

/// A caller, and what is left of its rate.
#[derive(Debug, Clone)]
struct Admitted {
    caller: Caller,
    quota: Quota,
}

/// Lets in requests with a valid token, at the rate of that token.
pub async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let admitted = match authenticate(&app, &parts).await {
        Ok(admitted) => admitted,
        Err(ending) => return ending.into_response(),
    };
    // The connection is in use, and the request one of those at a time, until the answer is read.
    let connection = parts.extensions.get::<ConnectionHandle>().cloned();
    let in_use = connection.as_ref().map(ConnectionHandle::begin_request);
    let reader = Reader::Token(admitted.caller.id.clone());
    let permit = Arc::new((app.rates.requests.take(&admitted.caller.id).await, in_use));
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
        Some(connection) => count_answer(&app.unread, response, reader, &connection, Some(permit)),
        None => response,
    }
}

/// Lets in a few reads at a time of each token, which share the connections for them.
pub async fn admit_read(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    if request.method().is_safe() {
        work::hold(app.rates.reads.take(&caller.id).await);
    }
    next.run(request).await
}

/// Lets in a few requests at a time: those that read or compile whole domains.
pub async fn admit_long(
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
async fn hold_long_permit(app: &App, caller: &Caller) {
    let shared = app.rates.long.take(&caller.id);
    if !caller.has(Access::Admin) {
        return work::hold(shared.await);
    }
    let permit = tokio::select! {
        biased;
        permit = shared => permit,
        permit = app.rates.long_of_admins.take(&caller.id) => permit,
    };
    work::hold(permit);
}

async fn authenticate(app: &App, parts: &Parts) -> Result<Admitted, Ending> {
    let provider = app.provider.as_ref();
    let unauthorized = |detail: &str| {
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail);
        match provider {
            Some(_) => problem.with("sign_in", json!("/v1/sign-in")),
            None => problem,
        }
    };
    let bearer = parts.headers.get(header::AUTHORIZATION);
    let session = provider.filter(|_| bearer.is_none());
    let session = session.and_then(|it| session::SESSION.find(it.settings(), &parts.headers));
    if bearer.is_none() && session.is_none() {
        return Err(unauthorized("no token; send 'Authorization: Bearer rlc_…'").into());
    }
    let text = session.or_else(|| bearer?.to_str().ok()).unwrap_or_default();
    let connection = parts.extensions.get::<ConnectionHandle>();
    let address = connection.and_then(ConnectionHandle::address);
    let address = address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    let _lookup = match app.rates.is_known(text) {
        true => None,
        false => Some(app.rates.take_lookup(address).await),
    };
    app.rates.admits(address, text).map_err(|quota| limited(LIMITED_ADDRESS, quota))?;
    let caller = match session {
        Some(session) => caller_of_session(app, session).await?,
        None => caller_of_token(app, text).await?,
    };
    let Some(caller) = caller else {
        app.rates.take_failure(address, text);
        let what = if session.is_some() { "session" } else { "token" };
        return Err(unauthorized(&format!("the {what} is not known, expired or revoked")).into());
    };
    app.rates.note_valid(text);
    if provider.is_some_and(|it| session.is_some() && !session::is_of_page(it, parts)) {
        let detail = "a write by the cookie of a session has to come from the page of \
                      CONTROL_PUBLIC_URL ('Origin'); send a token instead";
        return Err(Problem::forbidden(detail).into());
    }
    let quota = app.rates.take_request(&caller.id);
    if quota.retry_after.is_some() {
        return Err(limited(LIMITED_TOKEN, quota));
    }
    Ok(Admitted { caller, quota })
}

/// Who calls with this token.
async fn caller_of_token(app: &App, text: &str) -> Result<Option<Caller>, Problem> {
    let token = text.split_once(' ').filter(|(it, _)| it.eq_ignore_ascii_case("bearer"));
    let token = token.and_then(|(_, token)| Token::parse(token.trim()));
    let Some(token) = token else { return Ok(None) };
    let row = app.store.reserved().token(token.id()).await?;
    Ok(row.and_then(|row| token.caller(&row)))
}

/// Who calls with this cookie of a session.
async fn caller_of_session(app: &App, text: &str) -> Result<Option<Caller>, Problem> {
    let Some((token, provider)) = Token::parse(text).zip(app.provider.as_ref()) else {
        return Ok(None);
    };
    let row = app.store.reserved().session(token.id()).await?;
    Ok(row.and_then(|row| token.caller_of_session(&row, &provider.roles)))
}

const LIMITED_TOKEN: &str = "the token made too many requests (--token-requests-per-minute); \
                             repeat this one after the seconds of 'Retry-After'";
const LIMITED_ADDRESS: &str = "too many tokens of this address were not valid \
                               (--failed-tokens-per-minute); repeat this request with a valid one \
                               after the seconds of 'Retry-After'";

fn limited(detail: &str, quota: Quota) -> Ending {
    let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", detail);
    let mut response = problem.into_response();
    quota.write(response.headers_mut());
    Ending::Answered(Box::new(response))
}

/// A time in whole seconds that is not shorter.
pub fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

// === impl Caller ===

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Admitted>().map(|it| it.caller.clone());
        // Each call that needs a caller is behind `admit`.
        let unknown = || StoreError::Internal("a request that was not let in".to_owned()).into();
        caller.ok_or_else(unknown)
    }
}

impl Caller {
    /// Refuses a caller without this access.
    pub fn need(&self, access: Access) -> Result<(), Problem> {
        if self.has(access) {
            return Ok(());
        }
        Err(Problem::forbidden(format!("the token lacks the access '{}'", access.name())))
    }

    /// Refuses a caller who may not use this domain.
    pub fn need_domain(&self, domain: &str) -> Result<(), Problem> {
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
    pub fn write(&self, headers: &mut HeaderMap) {
        headers.insert(LIMIT, HeaderValue::from(self.limit));
        headers.insert(REMAINING, HeaderValue::from(self.remaining));
        headers.insert(RESET, HeaderValue::from(seconds(self.reset_after)));
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(wait).max(1)));
        }
    }
}

// How texts are searched for, and how times are written.

/// Maximum bytes of a text that is searched for: databases compare it at each place of each rule.
const SEARCH_BYTES_MAX: usize = 128;

/// Refuses to search for a text that is too long.
pub fn check_search(text: &str) -> Result<(), Problem> {
    if text.len() <= SEARCH_BYTES_MAX {
        return Ok(());
    }
    let message = format!("has {} bytes; expected at most {SEARCH_BYTES_MAX}", text.len());
    Err(Problem::faults("the query has a fault", vec![FieldFault::of("q", message)]))
}

/// A time as RFC 3339 writes it.
pub fn time(milliseconds: i64) -> String {
    Timestamp::from_millisecond(milliseconds).unwrap_or_default().to_string()
}

// Errors as `application/problem+json` (RFC 9457).

/// Faults that one answer lists; of further ones it has the number.
const FAULTS_MAX: usize = 100;

/// Seconds after which a client may repeat a request that was refused because the database is away.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Problem {
    /// Which kind of problem this is.
    #[serde(rename = "type", serialize_with = "urn")]
    #[schema(value_type = String)]
    pub kind: &'static str,
    /// The kind in words.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong, and how to fix it.
    pub detail: String,
    /// Each fault of the request, at most 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldFault>,
    /// Number of faults, if there are more than `errors` has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_count: Option<u32>,
    /// After how many seconds to come again, if that is known.
    #[serde(skip)]
    retry_after: Option<NonZeroU32>,
    /// What the request contradicts, such as the present state of a rule.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub more: Map<String, Value>,
}

/// The problems that every call may answer.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes responses")]
pub enum CommonProblems {
    /// The request cannot be read
    #[response(status = 400, content_type = "application/problem+json")]
    Malformed(Problem),
    /// No token, or none that is valid
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(Problem),
    /// The token may not do this
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
    /// There is no such thing
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(Problem),
    /// The body did not arrive in time
    #[response(status = 408, content_type = "application/problem+json")]
    BodyTimeout(Problem),
    /// The request contradicts the present state
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(Problem),
    /// It changed since `If-Match` was read; the answer says what changed
    #[response(status = 412, content_type = "application/problem+json")]
    Changed(Problem),
    /// The body is too large
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(Problem),
    /// The request has faults; each is listed with its field
    #[response(status = 422, content_type = "application/problem+json")]
    Faulty(Problem),
    /// `If-Match` is missing
    #[response(status = 428, content_type = "application/problem+json")]
    NoPrecondition(Problem),
    /// More requests than the token or the address may send
    #[response(status = 429, content_type = "application/problem+json",
        headers(("Retry-After" = u64, description = "Seconds until a request is allowed")))]
    TooManyRequests(Problem),
    /// The database is not available
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
}

/// Writes a kind as the URN that identifies it.
fn urn<S: Serializer>(kind: &&'static str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("urn:ratelease:problem:{kind}"))
}

// === impl Problem ===

impl Problem {
    /// A problem of this status.
    pub fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind,
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            errors: Vec::new(),
            error_count: None,
            retry_after: None,
            more: Map::new(),
        }
    }

    /// A request that cannot be read.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", detail)
    }

    /// Something that is not there.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    /// A rule that is not there.
    pub fn no_rule(id: &str) -> Self {
        Self::not_found(format!("no rule has the id '{}'", ratelease_rules::excerpt(id)))
    }

    /// A caller that may not do this.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// A request that contradicts the present state.
    pub fn conflict(kind: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, kind, detail)
    }

    /// A publication that was repeated too often, because others published meanwhile.
    pub fn raced() -> Self {
        let detail = "others published again and again meanwhile; nothing was written. Try again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    }

    /// Rules that the compiler refuses, or fields that are wrong.
    pub fn faults(detail: &str, faults: Vec<FieldFault>) -> Self {
        let mut problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "faults", detail);
        let count = Some(faults.len()).filter(|count| *count > FAULTS_MAX);
        problem.error_count = count.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        problem.errors = faults;
        problem.errors.truncate(FAULTS_MAX);
        problem
    }

    /// Says after what time to come again.
    pub fn after(self, wait: Duration) -> Self {
        let wait = u32::try_from(seconds(wait).max(1)).ok().and_then(NonZeroU32::new);
        Self { retry_after: wait, ..self }
    }

    /// Adds a member.
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.more.insert(name.to_owned(), value);
        self
    }
}

/// What the compiler has found.
impl From<Vec<FieldFault>> for Problem {
    fn from(faults: Vec<FieldFault>) -> Self {
        Self::faults("the compiler refuses these rules; fix each field", faults)
    }
}

impl From<Vec<EntryFault>> for Problem {
    fn from(faults: Vec<EntryFault>) -> Self {
        let fault = |it: EntryFault| FieldFault::of(&it.field, it.message);
        Self::faults("the rule has no good address", faults.into_iter().map(fault).collect())
    }
}

impl From<ReadFaults> for Problem {
    fn from(faults: ReadFaults) -> Self {
        let errors = match faults {
            ReadFaults::Document(file, message) => vec![FieldFault::of(&file, message)],
            ReadFaults::Compiler(faults) => {
                let place = |it: &ratelease_rules::Fault| {
                    let field = format!("{}:{}:{}", it.file, it.line, it.column);
                    FieldFault::of(&field, without_store(&it.message))
                };
                faults.iter().map(place).collect()
            }
        };
        Self::faults("the compiler refuses these files; fix each of them", errors)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::Refused(_) | StoreError::File(..) => {
                warn!("a request was refused: {error}");
                let detail = match &error {
                    StoreError::Unavailable(why) if why.contains("Idempotency-Key") => {
                        "the database was lost at the commit: the write may have been done. A \
                         repeat with the same Idempotency-Key is safe"
                    }
                    _ => "the database is not available; nothing was written. Try again",
                };
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
            }
            StoreError::Owned { domain, owner } => {
                let domain = ratelease_rules::excerpt(&domain);
                let detail = format!(
                    "the domain '{domain}' is defined by the RateLimitRules {owner} of Kubernetes; \
                     change that object, or delete it first. Nothing was written"
                );
                Self::conflict("defined-by-object", detail)
            }
            StoreError::TooLarge(why) => {
                let detail = format!("{why}. Nothing was written; remove rules first");
                Self::conflict("draft-too-large", detail)
            }
            StoreError::TooMany(why) => Self::conflict("too-many", why),
            StoreError::TooLong(why) => {
                let detail = format!(
                    "a key, a value or a name is too long for an index of the database, which holds \
                     about 2700 bytes: {why}. Nothing was written; make it shorter"
                );
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "too-long", detail)
            }
            StoreError::QuotaUsed { written, max } => {
                let detail = format!(
                    "the writes of this token have kept {written} bytes of history, versions and \
                     audit log, and may keep {max} (--token-bytes-max). Nothing was written; ask \
                     an administrator for another token, or to raise that setting"
                );
                Self::new(StatusCode::FORBIDDEN, "quota-used", detail)
            }
            StoreError::NotApproved { domain, needed, given } => {
                let name = ratelease_rules::excerpt(&domain);
                let detail = format!(
                    "the draft of '{name}' has {given} of the {needed} approvals that the domain \
                     asks for; have others than its authors look at it and approve it, in the page \
                     or with POST /v1/approvals. Nothing was written"
                );
                let problem = Self::conflict("not-approved", detail).with("domain", json!(domain));
                problem.with("needed", json!(needed)).with("given", json!(given))
            }
            StoreError::TokenEnded => {
                let detail = "the token expired or was revoked meanwhile; nothing was written";
                Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
            }
            StoreError::Duplicate => Self::conflict("duplicate", "there is one already"),
            StoreError::Moved(domain) => Self::conflict(
                "draft-changed",
                format!("the draft of '{domain}' changed meanwhile; check it again"),
            ),
            StoreError::Internal(why) => {
                error!("internal error: {why}");
                let detail = "internal error; see the log of the control plane";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        match self.status {
            401 => {
                let scheme = HeaderValue::from_static("Bearer realm=\"ratelease-control\"");
                headers.insert(header::WWW_AUTHENTICATE, scheme);
            }
            503 => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER);
            }
            _ => {}
        }
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.get()));
        }
        response
    }
}
