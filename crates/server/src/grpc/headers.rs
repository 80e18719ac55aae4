//! The headers of a call: how long its caller waits, and which fields are kept while it lasts.

use std::time::Duration;

use http::HeaderMap;
use http::header::HeaderName;

/// The header with the time that a caller waits (gRPC over HTTP/2, Requests). Envoy sends the timeout
/// of its filter in it.
static TIMEOUT_HEADER: HeaderName = HeaderName::from_static("grpc-timeout");

/// Maximum time until a call's answer begins; a verdict takes a few milliseconds at most.
const CALL_MAX: Duration = Duration::from_secs(10);

/// Maximum number of digits in the specification.
const DIGITS_MAX: usize = 8;

/// The timeout in `headers`: one to eight digits and a unit. Any other value is ignored: an answer
/// is worth more than an error about a header.
pub(super) fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get(&TIMEOUT_HEADER)?.as_bytes().split_last()?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount = digits.iter().fold(0, |amount, digit| 10 * amount + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(amount * 3600)),
        b'M' => Some(Duration::from_secs(amount * 60)),
        b'S' => Some(Duration::from_secs(amount)),
        b'm' => Some(Duration::from_millis(amount)),
        b'u' => Some(Duration::from_micros(amount)),
        b'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

/// How long a call with this timeout may still take until its answer begins, if it has `waited`
/// already.
pub(super) fn time_left(timeout: Option<Duration>, waited: Duration) -> Duration {
    timeout.unwrap_or(CALL_MAX).min(CALL_MAX).saturating_sub(waited)
}

/// Names that are read after a call has begun: names of gRPC, and of the contexts of tracers.
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

/// Prefixes of further names that are read.
const PREFIXES_READ: [&str; 2] = ["grpc-", "x-b3-"];

/// Number of fields that a call may keep while its message has not arrived. A gRPC client sends six,
/// and tracers add some.
const SMALL_FIELDS_MAX: usize = 16;

/// Bytes of the values of these fields.
const SMALL_VALUE_BYTES_MAX: usize = 1024;

/// Whether the headers take more memory than the rest of a call.
pub(super) fn are_large(headers: &HeaderMap) -> bool {
    headers.len() > SMALL_FIELDS_MAX
        || headers.values().map(|value| value.len()).sum::<usize>() > SMALL_VALUE_BYTES_MAX
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
    use http::HeaderValue;
    use proptest::prelude::*;
    use ratelease_engine::time::Time;

    use super::*;

    fn headers(value: &[u8]) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        headers.insert(&TIMEOUT_HEADER, HeaderValue::from_bytes(value).ok()?);
        Some(headers)
    }

    fn read(text: &str) -> Option<Duration> {
        timeout_of(&headers(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_timeout_has_one_to_eight_digits_and_a_unit() {
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(read("0m"), Some(Duration::ZERO));
        assert_eq!(read("00000007S"), Some(Duration::from_secs(7)));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("15u"), Some(Duration::from_micros(15)));
        assert_eq!(read("1n"), Some(Duration::from_nanos(1)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
    }

    #[test]
    fn anything_else_is_no_timeout() {
        for bad in [
            "",
            "m",
            "20",
            "123456789S",
            "-1S",
            "+1S",
            "1x",
            "1ms",
            "1 m",
            " 1m",
            "1.5S",
            "0x1m",
            "1s",
            "1h",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_eq!(timeout_of(&headers("1\u{b5}".as_bytes()).unwrap()), None);
        assert_eq!(
            timeout_of(&headers("\u{661}m".as_bytes()).unwrap()),
            None,
            "not an ASCII digit"
        );
        assert_eq!(timeout_of(&HeaderMap::new()), None);
    }

    #[test]
    fn the_longest_timeout_ends_with_the_clock() {
        let headers = headers(b"99999999H").unwrap();
        let late = Time::from_nanos(7) + timeout_of(&headers).unwrap();
        assert_eq!(late, Time::from_nanos(u64::MAX));
    }

    proptest! {
        #[test]
        fn no_value_panics(value in prop::collection::vec(any::<u8>(), 0..16)) {
            if let Some(headers) = headers(&value) {
                let _ = timeout_of(&headers).map(|it| Time::from_nanos(u64::MAX / 2) + it);
            }
        }

        #[test]
        fn every_amount_of_the_specification_is_read(amount in 0_u32..100_000_000) {
            let read = read(&format!("{amount}u"));
            prop_assert_eq!(read, Some(Duration::from_micros(amount.into())));
        }
    }

    #[test]
    fn headers_that_are_read_are_kept_in_little_memory() {
        let mut headers = HeaderMap::new();
        for n in 0..300 {
            let name = HeaderName::from_bytes(format!("x-{n}").as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_static("v"));
        }
        for name in ["content-type", "grpc-timeout", "traceparent", "x-b3-traceid"] {
            headers.append(name, HeaderValue::from_static("kept"));
        }
        keep_those_read(&mut headers);
        assert_eq!(headers.len(), 4);
        assert!(headers.values().all(|value| value == "kept"));
        assert!(headers.capacity() < 64);
    }
}
