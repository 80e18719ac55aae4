//! The answer of `/shouldAllow` and `/api/v1/rate_limit`: one limit in numbers, and the same as
//! headers that a gateway may forward.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::http::StatusCode;
use ::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use ratelease_engine::verdict::{Code, Verdict};
use ratelease_otlp::origin::system_time;
use serde_json::json;

/// By how much the end of a window may differ from one answer to the next: it is counted by the
/// store's clock, and dated by this machine's.
const CLOCK_STEP: Duration = Duration::from_millis(50);

/// One limit, as a client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers {
    is_allowed: bool,
    /// Requests in a window; `None` if no limit applies, as the next one.
    limit: Option<u32>,
    /// Requests that remain.
    remaining: Option<u32>,
    /// Seconds since the Unix epoch, when the window ends or the bucket is full; `None` if that is
    /// not known either.
    reset_time: Option<u64>,
    /// Seconds until a request of this cost may pass; 0 if this one passes.
    retry_after: u64,
}

/// The answer to a verdict: 200 or 429.
pub(super) fn respond(verdict: &Verdict<'_>) -> Response {
    Numbers::new(verdict, system_time()).into_response()
}

/// Seconds since the Unix epoch, rounded up as all times that clients wait for; down only within
/// [`CLOCK_STEP`] of a whole second, so that a window shows one end while it lasts.
fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_secs() + u64::from(Duration::from_nanos(since.subsec_nanos().into()) > CLOCK_STEP)
}

// === impl Numbers ===

impl Numbers {
    /// The numbers of the tightest limit at `now`.
    fn new(verdict: &Verdict<'_>, now: SystemTime) -> Self {
        let tightest = verdict.tightest_limit();
        let reset_after = tightest.and_then(|(status, _)| status.reset_after);
        let reset = reset_after.and_then(|after| now.checked_add(after));
        let is_allowed = verdict.code == Code::Ok;
        Self {
            is_allowed,
            limit: tightest.map(|(_, applied)| applied.limit.requests_per_unit),
            remaining: tightest.map(|(status, _)| status.remaining),
            reset_time: reset.map(unix_seconds),
            retry_after: if is_allowed { 0 } else { verdict.retry_after_seconds() },
        }
    }
}

impl IntoResponse for Numbers {
    fn into_response(self) -> Response {
        let Self { is_allowed, limit, remaining, reset_time, retry_after } = self;
        let body = json!({
            "allowed": is_allowed,
            "limit": limit,
            "remaining": remaining,
            "reset_time": reset_time,
            "retry_after": retry_after,
        });
        let status = if is_allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
        let content_type = [(CONTENT_TYPE, "application/json")];
        let mut response = (status, content_type, body.to_string()).into_response();
        let headers = [
            (HeaderName::from_static("x-ratelimit-limit"), limit.map(u64::from)),
            (HeaderName::from_static("x-ratelimit-remaining"), remaining.map(u64::from)),
            (HeaderName::from_static("x-ratelimit-reset"), reset_time),
            (RETRY_AFTER, (!is_allowed).then_some(retry_after)),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                response.headers_mut().insert(name, HeaderValue::from(value));
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use ratelease_engine::verdict::{AppliedLimit, Modes, Status};
    use ratelease_rules::request::{Few, Request};
    use ratelease_rules::{Limit, Unit};

    use super::*;

    /// A status of this code, with a limit that resets after so many milliseconds.
    fn status(code: Code, requests: u32, remaining: u32, reset: Option<u64>) -> Status<'static> {
        let limit = AppliedLimit { limit: Limit::fixed_window(requests, Unit::Hour), rule: None };
        let reset_after = reset.map(Duration::from_millis);
        Status { code, limit: Some(limit), remaining, reset_after, counted: None }
    }

    /// The numbers of these statuses, 1000.5 s after the epoch.
    fn numbers(statuses: &[Status<'static>]) -> Numbers {
        let request = Request { domain: "d", descriptors: Few::new(), hits_addend: 1 };
        let statuses = statuses.iter().copied().collect();
        let verdict = Verdict::new(&request, statuses, Modes::default());
        Numbers::new(&verdict, UNIX_EPOCH + Duration::from_millis(1_000_500))
    }

    #[test]
    fn the_numbers_are_those_of_the_tightest_limit() {
        let (wide, tight) =
            (status(Code::Ok, 100, 50, Some(9_000)), status(Code::Ok, 9, 3, Some(59_600)));
        let expected = Numbers {
            is_allowed: true,
            limit: Some(9),
            remaining: Some(3),
            reset_time: Some(1_061),
            retry_after: 0,
        };
        assert_eq!(numbers(&[Status::FREE, wide, tight]), expected);
    }

    #[test]
    fn a_denied_request_may_come_again_when_every_limit_that_denied_has_reset() {
        let over = |reset| status(Code::OverLimit, 9, 0, reset);
        let found = numbers(&[over(Some(70_001)), over(Some(600)), status(Code::Ok, 9, 1, None)]);
        assert_eq!((found.is_allowed, found.reset_time), (false, Some(1_002)));
        assert_eq!(found.retry_after, 71);
        let unknown = numbers(&[over(None)]);
        assert_eq!((unknown.reset_time, unknown.retry_after), (None, 1));
    }

    #[test]
    fn without_a_limit_there_are_no_numbers() {
        for free in [Status::FREE, Status::UNLIMITED] {
            let none = Numbers {
                is_allowed: true,
                limit: None,
                remaining: None,
                reset_time: None,
                retry_after: 0,
            };
            assert_eq!(numbers(&[free]), none);
        }
    }

    #[test]
    fn the_end_of_a_window_is_one_number_while_it_lasts() {
        let at = |millis| unix_seconds(UNIX_EPOCH + Duration::from_millis(millis));
        assert_eq!([at(59_999), at(60_000), at(60_049), at(60_051)], [60, 60, 60, 61]);
    }
}
