//! What a request says of itself: who calls, the body, and what a write is conditional on.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, timeout_at};
use utoipa::IntoParams;

use super::admission::{TakesLongPermit, hold_long_permit};
use super::problem::{FieldFault, Problem};
use super::{App, MIB};
use crate::auth::{Access, Caller};
use crate::store::{Answer, AnswerKey, Author, Earlier, Write};
use crate::work;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Maximum bytes of a body that is not an import, of a reason, and of an idempotency key.
pub(super) const BODY_BYTES_MAX: usize = MIB;
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
pub(super) struct WriteQuery {
    /// Why, for history and audit log; at most 1 KiB.
    #[serde(default)]
    reason: String,
    /// Whether to publish the domain at once, with this change alone.
    #[serde(default)]
    publish: bool,
}

/// A write: who, why, on what condition, and the body. Reading it checks the token first: without a
/// valid one, the body is not read. One whose `Idempotency-Key` is known is answered here, before
/// any handler looks at what may have changed since the first answer.
#[derive(Debug)]
pub(super) struct WriteCall<const MAX: usize = BODY_BYTES_MAX> {
    pub(super) caller: Caller,
    pub(super) body: Bytes,
    /// Whether to publish at once.
    pub(super) publishes: bool,
    /// What `If-Match` requires.
    if_match: Option<String>,
    reason: String,
    key: Option<AnswerKey>,
}

/// What a write begins with.
pub(super) enum Begun {
    /// A transaction.
    New(Box<Write>),
    /// The answer that the first request of its key got.
    Repeated(Box<Response>),
}

// === impl WriteCall ===

impl<const MAX: usize> FromRequest<Arc<App>> for WriteCall<MAX> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Response> {
        let call = Self::read(request, app).await.map_err(IntoResponse::into_response)?;
        match call.repeated(app).await.map_err(IntoResponse::into_response)? {
            Some(response) => Err(response),
            None => Ok(call),
        }
    }
}

impl<const MAX: usize> WriteCall<MAX> {
    async fn read(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, app).await?;
        caller.need(Access::Write)?;
        let QueryOf(query) = QueryOf::<WriteQuery>::from_request_parts(&mut parts, app).await?;
        if query.reason.len() > REASON_BYTES_MAX {
            return Err(Problem::malformed("'reason' has more than 1 KiB; shorten it"));
        }
        check_text("reason", &query.reason)?;
        let body = read_body(app, &caller, body, &parts.headers, MAX).await?;
        if parts.extensions.get::<TakesLongPermit>().is_some() {
            hold_long_permit(app, &caller).await;
        }
        let key = key(&parts, &body)?;
        let if_match = parts.headers.get(header::IF_MATCH).map(|it| it.to_str().map(str::to_owned));
        let if_match = if_match.transpose();
        let if_match = if_match.map_err(|_| Problem::malformed("'If-Match' is not text"))?;
        let publishes = query.publish;
        Ok(Self { caller, body, publishes, if_match, reason: query.reason, key })
    }

    /// Reads the body as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        from_json(&self.body)
    }

    /// Begins the write, unless it was done already.
    pub(super) async fn begin(&self, app: &App) -> Result<Begun, Problem> {
        let author = Author { name: self.caller.name.clone(), reason: self.reason.clone() };
        let mut write = match self.caller.has(Access::Admin) {
            true => app.store.begin(&author).await?,
            false => app.store.begin_of_token(&author).await?,
        };
        if let Some(key) = &self.key
            && let Some(response) = replay(write.earlier(key).await?)?
        {
            return Ok(Begun::Repeated(Box::new(response)));
        }
        let (own, max) = (self.caller.domains(), app.bytes_max_of(&self.caller));
        write.count_for(&self.caller.id, own, max).await?;
        Ok(Begun::New(Box::new(write)))
    }

    /// The answer that the first request of the key got, if this is a later one. The transaction
    /// asks again: both may be under way.
    async fn repeated(&self, app: &App) -> Result<Option<Response>, Problem> {
        match &self.key {
            None => Ok(None),
            Some(key) => replay(app.store.earlier(&self.caller.name, key).await?),
        }
    }

    /// Commits the write, and then answers.
    pub(super) async fn finish(
        &self,
        app: &App,
        write: Box<Write>,
        status: StatusCode,
        etag: Option<String>,
        body: &impl Serialize,
    ) -> Result<Response, Problem> {
        self.finish_with(app, write, answer(status, etag, body)).await
    }

    /// Commits the write, and then gives this answer.
    pub(super) async fn finish_with(
        &self,
        app: &App,
        mut write: Box<Write>,
        answer: Answer,
    ) -> Result<Response, Problem> {
        if let Some(key) = &self.key {
            write.keep_answer(key, &answer).await?;
        }
        write.commit().await?;
        app.wake_follower();
        Ok(response(answer))
    }

    /// Refuses a draft that is not the one that was checked, if `If-Match` names that.
    pub(super) fn need_draft(&self, etag: &str) -> Result<(), Problem> {
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
    pub(super) fn matches(&self, etag: &str) -> Result<bool, Problem> {
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

/// An answer of JSON, or without a body if the status says so.
pub(super) fn answer(status: StatusCode, etag: Option<String>, body: &impl Serialize) -> Answer {
    let body = match status {
        StatusCode::NO_CONTENT => String::new(),
        _ => serde_json::to_string(body).unwrap_or_default(),
    };
    let (status, etag) = (status.as_u16(), etag.unwrap_or_default());
    Answer { status, etag, location: String::new(), body }
}

/// The answer to a request that is repeated; `None` for a new one.
fn replay(earlier: Earlier) -> Result<Option<Response>, Problem> {
    match earlier {
        Earlier::New => Ok(None),
        Earlier::Same(answer) => {
            let mut response = response(answer);
            let name = HeaderName::from_static("idempotency-replayed");
            response.headers_mut().insert(name, HeaderValue::from_static("true"));
            Ok(Some(response))
        }
        Earlier::Other => Err(Problem::faults(
            "the Idempotency-Key was used for another request; choose a new one",
            vec![FieldFault::of("Idempotency-Key", "used for another request")],
        )),
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
        work::hold(app.rates.bodies.take_many(caller.name.clone(), kib).await);
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
pub(super) struct QueryOf<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for QueryOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        let query = query.map_err(|error| Problem::malformed(format!("the query: {error}")))?;
        Ok(Self(query.0))
    }
}

/// The part of a path that names a thing.
pub(super) struct IdOf(pub(super) String);

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
pub(super) fn check_text(name: &str, text: &str) -> Result<(), Problem> {
    if text.contains('\0') {
        return Err(Problem::malformed(format!("'{name}' has a NUL character; remove it")));
    }
    Ok(())
}

/// Refuses a domain that cannot be one.
pub(super) fn check_domain(domain: &str) -> Result<(), Problem> {
    if domain.is_empty() || domain.len() > DOMAIN_BYTES_MAX || domain.contains('\0') {
        let message = "expected a name of 1 to 1024 bytes, without NUL characters";
        let fault = FieldFault::of("domain", message);
        return Err(Problem::faults("the domain cannot be used", vec![fault]));
    }
    Ok(())
}
