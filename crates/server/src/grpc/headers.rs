//! The headers of a call: their maximum number, and which of them are kept while it lasts.

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, Response, StatusCode};

use ratelease_listener::FIELDS_MAX;

/// Names, and prefixes of names, that are read after a call has begun: those of gRPC, and those in
/// which tracers propagate their contexts.
const NAMES_READ: [&str; 8] = [
    "content-type",
    "content-length",
    "content-encoding",
    "te",
    "traceparent",
    "tracestate",
    "b3",
    "baggage",
];
const PREFIXES_READ: [&str; 2] = ["grpc-", "x-b3-"];

/// Header fields, and bytes of their values, that a call may keep while its message has not
/// arrived. A gRPC client sends six fields, plus those that tracers add.
const SMALL_FIELDS_MAX: usize = 16;
const SMALL_VALUE_BYTES_MAX: usize = 1024;

/// Whether the headers take more memory than the rest of a call.
pub(super) fn are_large(headers: &HeaderMap) -> bool {
    headers.len() > SMALL_FIELDS_MAX
        || headers.values().map(|value| value.len()).sum::<usize>() > SMALL_VALUE_BYTES_MAX
}

/// Whether a call has more than [`FIELDS_MAX`].
pub(super) fn are_too_many(headers: &HeaderMap) -> bool {
    headers.len() > FIELDS_MAX
}

/// Answers as `h2` does when the headers have too many bytes.
pub(super) fn refuse(respond: &mut SendResponse<Bytes>) {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    // An error means that the client is gone, or has reset the call.
    let _ = respond.send_response(response, true);
}

/// Drops the headers that are not read any more, and their memory: the call may last.
pub(super) fn keep_those_read(headers: &mut HeaderMap) {
    let is_read = |name: &str| {
        NAMES_READ.contains(&name) || PREFIXES_READ.iter().any(|prefix| name.starts_with(prefix))
    };
    // Copied into a new map: a map that was drained keeps its capacity.
    *headers = headers
        .iter()
        .filter(|(name, _)| is_read(name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn headers_that_are_read_are_kept_in_little_memory() {
        let mut headers = HeaderMap::new();
        for n in 0..300 {
            let name = HeaderName::from_bytes(format!("x-{n}").as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_static("v"));
        }
        assert!(are_too_many(&headers));
        for name in ["content-type", "grpc-timeout", "traceparent", "x-b3-traceid"] {
            headers.append(name, HeaderValue::from_static("kept"));
        }
        keep_those_read(&mut headers);
        assert_eq!(headers.len(), 4);
        assert!(headers.values().all(|value| value == "kept"));
        assert!(headers.capacity() < 64);
        assert!(!are_too_many(&headers));
    }
}
