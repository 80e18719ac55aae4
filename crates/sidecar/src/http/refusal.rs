//! Answers to requests that are not decided: in text, as the reference's, and as
//! `application/problem+json` (RFC 9457), in the form of the control plane's.

use ::http::StatusCode;
use ::http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use ratelease_rules::request::scoped::FieldFault;
use ratelease_server::request_error::RequestError;
use ratelease_server::service::HTTP_CALLS_MAX;
use serde_json::{Value, json};

/// Why a request is answered without a decision.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    /// What is wrong, and how to mend it: one line.
    reason: String,
    /// What is wrong with each field, if fields are wrong.
    faults: Vec<FieldFault>,
    /// The method to use, if another was used.
    method: Option<&'static str>,
}

// === impl Refusal ===

impl Refusal {
    pub(super) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), faults: Vec::new(), method: None }
    }

    /// Another method than this one was used.
    pub(super) fn method(expected: &'static str) -> Self {
        let reason = format!("this path takes {expected} only");
        let refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, reason);
        Self { method: Some(expected), ..refusal }
    }

    /// Fields are wrong.
    pub(super) fn faults(faults: Vec<FieldFault>) -> Self {
        let reason = "the request has faults, and charged nothing; mend each field";
        Self { faults, ..Self::new(StatusCode::BAD_REQUEST, reason) }
    }

    /// The reason as a line of text.
    pub(super) fn into_text(self) -> Response {
        let mut response = (self.status, format!("{}\n", self.reason)).into_response();
        allow(&mut response, self.method);
        response
    }

    /// The reason and the faults in JSON.
    pub(super) fn into_problem(self) -> Response {
        let Self { status, reason, faults, method } = self;
        let mut problem = json!({
            "type": format!("urn:ratelease:problem:{}", kind(status, &faults)),
            "title": status.canonical_reason().unwrap_or("Error"),
            "status": status.as_u16(),
            "detail": reason,
        });
        if !faults.is_empty() {
            let fault = |it: &FieldFault| json!({ "field": it.field, "message": it.message });
            problem["errors"] = faults.iter().map(fault).collect::<Value>();
        }
        let content_type = [(CONTENT_TYPE, "application/problem+json")];
        let mut response = (status, content_type, problem.to_string()).into_response();
        allow(&mut response, method);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Names the method to use.
fn allow(response: &mut Response, method: Option<&'static str>) {
    if let Some(method) = method {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(method));
    }
}

/// The kind of a problem, which its type names.
fn kind(status: StatusCode, faults: &[FieldFault]) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST if !faults.is_empty() => "faults",
        StatusCode::BAD_REQUEST => "malformed",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::METHOD_NOT_ALLOWED => "method-not-allowed",
        StatusCode::REQUEST_TIMEOUT => "too-slow",
        StatusCode::PAYLOAD_TOO_LARGE => "too-large",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "content-type",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        _ => "internal",
    }
}

impl From<RequestError> for Refusal {
    /// The reference implementation returns 400 for all requests without a verdict, errors of the
    /// store included. Here a request is not blamed for rules that are missing.
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Overloaded => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("the maximum of {HTTP_CALLS_MAX} requests over HTTP are waiting; retry"),
            ),
            RequestError::NoRoom | RequestError::AwaitsRules => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            }
            RequestError::NoRules => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{error}: the rules were refused; see the log, or /status"),
            ),
            RequestError::Panicked => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            }
            error => Self::new(StatusCode::BAD_REQUEST, error.to_string()),
        }
    }
}
