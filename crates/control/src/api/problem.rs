//! Errors as `application/problem+json` (RFC 9457).

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use tracing::{error, warn};
use utoipa::{IntoResponses, ToSchema};

use crate::document::{EntryFault, Finding, ReadFaults};
use crate::store::StoreError;

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
    /// What is wrong, and how to mend it.
    pub detail: String,
    /// Each fault of the request, at most 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldFault>,
    /// Number of faults, if there are more than `errors` has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_count: Option<u32>,
    /// What the request contradicts, such as the present state of a rule.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub more: Map<String, Value>,
}

/// A fault at a field of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldFault {
    /// The domain, where a request is about several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The id of the rule, where a request is about several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The field, as in `rate_limit.unit`, or a place in a file, as in `shop.yaml:4:5`.
    pub field: String,
    /// What is wrong, then what was expected.
    pub message: String,
}

/// The problems that every call may answer.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes responses")]
pub(super) enum CommonProblems {
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
    pub(super) fn no_rule(id: &str) -> Self {
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
    pub(super) fn raced() -> Self {
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

    /// Adds a member.
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.more.insert(name.to_owned(), value);
        self
    }
}

impl From<Vec<Finding>> for Problem {
    fn from(findings: Vec<Finding>) -> Self {
        let faults = findings.into_iter().map(FieldFault::from).collect();
        Self::faults("the compiler refuses these rules; mend each field", faults)
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
                    FieldFault::of(&field, it.message.clone())
                };
                faults.iter().map(place).collect()
            }
        };
        Self::faults("the compiler refuses these files; mend each place", errors)
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
            StoreError::TooLarge(why) => {
                let detail = format!("{why}. Nothing was written; remove rules first");
                Self::conflict("draft-too-large", detail)
            }
            StoreError::QuotaUsed { written, max } => {
                let detail = format!(
                    "the writes of this token have kept {written} bytes of history, versions and \
                     audit log, and may keep {max} (--token-bytes-max). Nothing was written; ask \
                     an administrator for another token, or to raise that setting"
                );
                Self::new(StatusCode::FORBIDDEN, "quota-used", detail)
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
        response
    }
}

// === impl FieldFault ===

impl FieldFault {
    /// A fault at a field of a request about one thing.
    pub fn of(field: &str, message: impl Into<String>) -> Self {
        Self { domain: None, rule: None, field: field.to_owned(), message: message.into() }
    }
}

impl From<Finding> for FieldFault {
    fn from(finding: Finding) -> Self {
        let Finding { domain, rule, field, message } = finding;
        Self { domain: Some(domain), rule: rule.map(|id| id.to_string()), field, message }
    }
}
