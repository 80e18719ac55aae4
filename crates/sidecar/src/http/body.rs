//! Reads the body of a request that decides: its type, and all of it within bounds.

use std::future::poll_fn;
use std::time::Duration;

use ::http::StatusCode;
use ::http::header::{CONTENT_TYPE, HeaderMap};
use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use http_body::Body as _;
use ratelease_server::request_error::RequestError;
use ratelease_server::service::{BodyReservation, PartialMessage};
use tokio::time::timeout;

use super::refusal::Refusal;
use crate::admin::guard;

/// Maximum size in bytes of a body: that of a gRPC message.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Maximum time for a body to be complete, as for a gRPC message.
const BODY_MAX: Duration = Duration::from_secs(2);

/// A browser may send JSON to another origin only after a preflight, which nothing here grants; it
/// may send any other type without one. So a body that is not JSON is accepted only from a client
/// that cannot be a page in a browser.
pub(super) fn check_type(headers: &HeaderMap) -> Result<(), Refusal> {
    if is_json(headers) || !guard::may_be_browser(headers) {
        return Ok(());
    }
    let reason = "the content-type of a request that a browser may have sent (it has an Origin, a \
                  Sec-Fetch-* header or the User-Agent of a browser) must be application/json; \
                  with curl: -H 'content-type: application/json'";
    Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason))
}

/// Whether the one content type is JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (first, second) = (types.next().and_then(|it| it.to_str().ok()), types.next());
    let essence = first.and_then(|it| it.split(';').next()).map(str::trim).unwrap_or_default();
    essence.eq_ignore_ascii_case("application/json") && second.is_none()
}

/// Returns the whole body, which is counted on `reservation`.
pub(super) async fn read(body: Body, reservation: &BodyReservation) -> Result<Bytes, Refusal> {
    let too_long = || {
        let reason = format!("the body is longer than the limit of {BODY_BYTES_MAX} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, reason)
    };
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_long());
    }
    reservation.grow(0)?;
    let whole = async {
        let (mut read, mut body) = (PartialMessage::new(reservation), body.into_data_stream());
        while let Some(part) = body.next().await {
            let part = part.map_err(|error| {
                Refusal::new(StatusCode::BAD_REQUEST, format!("the body ended early: {error}"))
            })?;
            if read.bytes() + part.len() > BODY_BYTES_MAX {
                return Err(too_long());
            }
            read.push(&part)?;
        }
        Ok(read.into_bytes())
    };
    let read = tokio::select! {
        read = timeout(BODY_MAX, whole) => read,
        () = poll_fn(|cx| reservation.poll_revoked(cx)) => return Err(RequestError::NoRoom.into()),
    };
    let read = read.unwrap_or_else(|_| {
        let reason = format!("the body was not complete within {BODY_MAX:?}");
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, reason))
    })?;
    reservation.complete()?;
    Ok(read)
}
