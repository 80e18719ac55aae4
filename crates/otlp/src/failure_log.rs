//! Logs that telemetry does not arrive where it is sent: once, and then once a minute.

use std::error::Error;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::time::{Clock, Time};
use tracing::{info, warn};

/// Interval between log lines about a server that cannot be reached.
const INTERVAL: Duration = Duration::from_secs(60);

/// The setting that names the collector.
pub const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The log of one kind of telemetry.
#[derive(Debug)]
pub struct FailureLog {
    /// Name of the things that are sent, in the plural.
    what: &'static str,
    /// The setting that says where it is sent.
    setting: &'static str,
    clock: Clock,
    /// When a failure was last logged; `None` while sending succeeds.
    last: Mutex<Option<Time>>,
}

// === impl FailureLog ===

impl FailureLog {
    /// Creates the log of `what`, which is a noun in the plural. `setting` says where it is sent.
    pub fn new(what: &'static str, setting: &'static str, clock: Clock) -> Self {
        Self { what, setting, clock, last: Mutex::new(None) }
    }

    /// Records a failed attempt. `why` must not contain the values of headers.
    pub fn failed(&self, why: &str) {
        if self.is_due() {
            warn!("{} cannot be pushed: {why}; see {}", self.what, self.setting);
        }
    }

    /// Records a success, in which the collector rejected `rejected` of `items`.
    pub fn succeeded(&self, items: u64, rejected: u64) {
        if rejected == 0 {
            if self.last.lock().take().is_some() {
                info!("{} are pushed again", self.what);
            }
        } else if self.is_due() {
            warn!(rejected, items, "the collector rejects some {}", self.what);
        }
    }

    fn is_due(&self) -> bool {
        let now = self.clock.now();
        let mut last = self.last.lock();
        let is_due = last.is_none_or(|last| now.since(last) >= INTERVAL);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

/// The text of an error and of its sources: the first alone says little.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_due_once_a_minute_until_a_success() {
        let log = FailureLog::new("spans", ENDPOINT, Clock::start());
        assert!(log.is_due());
        log.failed("no connection");
        tokio::time::advance(INTERVAL / 2).await;
        assert!(!log.is_due());
        log.succeeded(7, 1);
        assert!(!log.is_due(), "a rejection is a failure too");
        tokio::time::advance(INTERVAL / 2).await;
        assert!(log.is_due());
        log.succeeded(7, 0);
        assert!(log.is_due());
    }

    #[test]
    fn an_error_is_shown_with_its_sources() {
        let inner = std::io::Error::other("refused");
        let outer = std::io::Error::other(std::io::Error::other(inner));
        assert_eq!(causes(&outer), "refused");
        #[derive(Debug, thiserror::Error)]
        #[error("no connection")]
        struct Outer(#[source] std::io::Error);
        assert_eq!(causes(&Outer(std::io::Error::other("refused"))), "no connection: refused");
    }
}
