//! How long the caller of a gRPC method waits for its answer: the header `grpc-timeout` (gRPC over
//! HTTP/2, Requests). Envoy sends the timeout of its filter in this header.

use std::time::Duration;

use http::HeaderMap;
use ratelease_engine::time::Time;
use tonic::Status;

const HEADER: &str = "grpc-timeout";

/// Maximum time until a call's answer begins; a verdict takes a few milliseconds at most.
const CALL_MAX: Duration = Duration::from_secs(10);

/// Maximum number of digits in the specification.
const DIGITS_MAX: usize = 8;

/// The time at which the caller of a call gives up. An extension of the call's request, if its
/// headers have a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deadline(pub(super) Time);

/// The timeout in `headers`: one to eight digits and a unit. Any other value is ignored: an answer
/// is worth more than an error about a header.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get(HEADER)?.as_bytes().split_last()?;
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

/// The status of a call that took longer.
pub(super) fn expired() -> Status {
    Status::deadline_exceeded("Timeout expired")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn headers(value: &[u8]) -> Option<HeaderMap> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_bytes(value).ok()?);
        Some(headers)
    }

    fn read(text: &str) -> Option<Duration> {
        timeout(&headers(text.as_bytes()).unwrap())
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
        assert_eq!(timeout(&headers("1\u{b5}".as_bytes()).unwrap()), None);
        assert_eq!(timeout(&headers("\u{661}m".as_bytes()).unwrap()), None, "not an ASCII digit");
        assert_eq!(timeout(&HeaderMap::new()), None);
    }

    #[test]
    fn the_longest_timeout_ends_with_the_clock() {
        let headers = headers(b"99999999H").unwrap();
        let late = Time::from_nanos(7) + timeout(&headers).unwrap();
        assert_eq!(late, Time::from_nanos(u64::MAX));
    }

    proptest! {
        #[test]
        fn no_value_panics(value in prop::collection::vec(any::<u8>(), 0..16)) {
            if let Some(headers) = headers(&value) {
                let _ = timeout(&headers).map(|it| Time::from_nanos(u64::MAX / 2) + it);
            }
        }

        #[test]
        fn every_amount_of_the_specification_is_read(amount in 0_u32..100_000_000) {
            let read = read(&format!("{amount}u"));
            prop_assert_eq!(read, Some(Duration::from_micros(amount.into())));
        }
    }
}
