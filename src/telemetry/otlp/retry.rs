//! Retries: which failures, when, and how often, following OTLP's specification ("Failures" and
//! "Throttling").

use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::RETRY_AFTER;
use http::{Response, StatusCode};
use prost::Message;
use ratelease_engine::backoff::Backoff;
use tokio::sync::watch;
use tokio::time::timeout;

use super::message::{Details, RetryInfo};

/// Number of tries of one message, and the waits between them if the collector names none: 15 s in
/// total, enough for the restart of a collector.
const TRIES_MAX: u32 = 5;
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_LAST: Duration = Duration::from_secs(8);

/// Maximum wait if the collector names a time.
const ASKED_MAX: Duration = Duration::from_secs(300);

/// Why a message did not arrive, or was refused as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportError {
    /// The reason, as text.
    pub(crate) why: String,
    /// Whether to try again.
    pub(crate) again: Again,
}

/// Whether a message that did not arrive may arrive on another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// The collector will not accept it.
    Never,
    /// After some time.
    Later,
    /// After this time, which the collector has asked for; 300 s at most.
    After(Duration),
}

/// The type of a detail in a gRPC status, as the last part of its URL.
const RETRY_INFO: &str = "/google.rpc.RetryInfo";

/// Accepts both forms, since some gRPC servers pad and others do not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Tries `send` until it succeeds, cannot succeed, or the number of tries is used up. Calls
/// `failed` for each failed try but the last. Once `hurry` is true, it stops waiting and makes one
/// last try.
///
/// # Errors
///
/// Returns the error of the last try.
pub(crate) async fn insist<S>(
    mut send: impl FnMut() -> S,
    failed: impl Fn(&ExportError),
    hurry: &mut watch::Receiver<bool>,
) -> Result<u64, ExportError>
where
    S: Future<Output = Result<u64, ExportError>>,
{
    let mut backoff = Backoff::new(WAIT_FIRST, WAIT_LAST);
    for _ in 1..TRIES_MAX {
        let unsent = match send().await {
            Err(unsent) if unsent.again != Again::Never => unsent,
            sent => return sent,
        };
        failed(&unsent);
        let asked = if let Again::After(asked) = unsent.again { asked } else { Duration::ZERO };
        // An error means that the sender is gone, so `hurry` can no longer become true.
        if timeout(backoff.next_wait().max(asked), hurry.wait_for(|it| *it)).await.is_ok() {
            break;
        }
    }
    send().await
}

// === impl Again ===

impl Again {
    /// From an HTTP answer that is not a success.
    pub(super) fn of_http(head: &Response<()>) -> Self {
        match head.status() {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                // A date instead of seconds is ignored.
                let seconds = head.headers().get(RETRY_AFTER).and_then(|it| it.to_str().ok());
                let seconds = seconds.and_then(|it| it.trim().parse().ok());
                seconds
                    .map_or(Self::Later, |it| Self::After(Duration::from_secs(it).min(ASKED_MAX)))
            }
            _ => Self::Never,
        }
    }

    /// From a gRPC status, by number, and the header that holds its details.
    pub(super) fn of_grpc(status: &str, details: &[u8]) -> Self {
        let asked = || asked(details).map(Self::After);
        match status {
            // CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS.
            "1" | "4" | "10" | "11" | "14" | "15" => asked().unwrap_or(Self::Later),
            // RESOURCE_EXHAUSTED: without a time, it means a quota that no wait restores.
            "8" => asked().unwrap_or(Self::Never),
            _ => Self::Never,
        }
    }
}

/// The time for which a collector asks to be left alone.
fn asked(details: &[u8]) -> Option<Duration> {
    let status = Details::decode(BASE64.decode(details).ok()?.as_slice()).ok()?;
    let info = status.details.iter().find(|detail| detail.type_url.ends_with(RETRY_INFO))?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?;
    let seconds = Duration::from_secs(u64::try_from(delay.seconds).ok()?);
    let nanos = Duration::from_nanos(u64::try_from(delay.nanos).ok()?);
    Some(seconds.saturating_add(nanos).min(ASKED_MAX))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::super::message::{Delay, Detail};
    use super::*;
    use ratelease_engine::time::{Clock, Time};

    const HOUR: Duration = Duration::from_secs(3600);

    fn unsent(again: Again) -> ExportError {
        ExportError { why: "why".to_owned(), again }
    }

    /// Sends a message whose tries end with these outcomes; the last outcome repeats. Returns the
    /// result, how long it took, and the number of tries and of reported failures.
    async fn insisted(
        outcomes: &[Result<u64, ExportError>],
        hurry: bool,
    ) -> (Result<u64, ExportError>, Duration, usize, usize) {
        let (tries, told) = (Cell::new(0), RefCell::new(0));
        let (_flush, mut hurry) = watch::channel(hurry);
        let clock = Clock::start();
        let send = || {
            let at = tries.replace(tries.get() + 1).min(outcomes.len() - 1);
            std::future::ready(outcomes[at].clone())
        };
        let sent = insist(send, |_| *told.borrow_mut() += 1, &mut hurry).await;
        let took = clock.now().since(Time::default());
        (sent, took, tries.get(), told.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_tried_again_with_longer_and_longer_waits_and_then_given_up() {
        let later = Err(unsent(Again::Later));
        let (sent, took, tries, told) = insisted(std::slice::from_ref(&later), false).await;
        assert_eq!((sent, tries, told), (later.clone(), 5, 4));
        // Each wait is shortened at random by up to a half.
        assert!(took >= Duration::from_millis(7_500) && took < Duration::from_secs(16), "{took:?}");
        let (sent, _, tries, told) = insisted(&[later.clone(), later, Ok(3)], false).await;
        assert_eq!((sent, tries, told), (Ok(3), 3, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_will_not_be_taken_is_not_tried_again() {
        let never = Err(unsent(Again::Never));
        let (sent, took, tries, told) = insisted(std::slice::from_ref(&never), false).await;
        assert_eq!((sent, took, tries, told), (never, Duration::ZERO, 1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_asks_for_time_has_it() {
        let asked = Duration::from_secs(40);
        let (sent, took, ..) = insisted(&[Err(unsent(Again::After(asked))), Ok(0)], false).await;
        assert_eq!(sent, Ok(0));
        assert!(took >= asked && took < asked * 2, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_hurry_there_is_one_more_try_at_once() {
        let after = Err(unsent(Again::After(HOUR)));
        let (sent, took, tries, _) = insisted(std::slice::from_ref(&after), true).await;
        assert_eq!((sent, took, tries), (after, Duration::ZERO, 2));
    }

    #[test]
    fn only_what_is_said_to_pass_is_tried_again_over_http() {
        let again = |status: u16, after: &str| {
            let head = Response::builder().status(status).header(RETRY_AFTER, after);
            Again::of_http(&head.body(()).expect("a head"))
        };
        for status in [429, 502, 503, 504] {
            assert_eq!(again(status, "7"), Again::After(Duration::from_secs(7)), "{status}");
            assert_eq!(again(status, "Fri, 31 Dec 2027 23:59:59 GMT"), Again::Later);
            assert_eq!(again(status, "86400"), Again::After(ASKED_MAX), "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500, 501] {
            assert_eq!(again(status, "7"), Again::Never, "{status}");
        }
    }

    #[test]
    fn only_what_is_said_to_pass_is_tried_again_over_grpc() {
        for status in 0..=17 {
            let passes = [1, 4, 10, 11, 14, 15].contains(&status);
            let expected = if passes { Again::Later } else { Again::Never };
            for nonsense in ["", "!", "AAAA"] {
                let again = Again::of_grpc(&status.to_string(), nonsense.as_bytes());
                assert_eq!(again, expected, "{status} {nonsense}");
            }
        }
    }

    #[test]
    fn the_time_of_a_retry_info_is_waited() {
        let detail = |delay: Delay| {
            let value = RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
            let type_url = "type.googleapis.com/google.rpc.RetryInfo".to_owned();
            let status = Details { details: vec![Detail { type_url, value }] };
            BASE64.encode(status.encode_to_vec())
        };
        let second = detail(Delay { seconds: 1, nanos: 500_000_000 });
        let after = Again::After(Duration::from_millis(1_500));
        for status in ["8", "14"] {
            assert_eq!(Again::of_grpc(status, second.as_bytes()), after);
            let unpadded = second.trim_end_matches('=');
            assert_eq!(Again::of_grpc(status, unpadded.as_bytes()), after);
            let ages = detail(Delay { seconds: i64::MAX, nanos: i32::MAX });
            assert_eq!(Again::of_grpc(status, ages.as_bytes()), Again::After(ASKED_MAX));
        }
        assert_eq!(Again::of_grpc("3", second.as_bytes()), Again::Never);
        let past = detail(Delay { seconds: -1, nanos: 0 });
        assert_eq!(Again::of_grpc("8", past.as_bytes()), Again::Never);
    }
}
