//! Monotonic time as the engine's core uses it: a plain number that is passed as an argument.

mod compact;

pub use compact::{CompactDuration, CompactU64};

use std::ops::Add;
use std::time::Duration;

use tokio::time::Instant;

/// A point in monotonic time: nanoseconds since the process's [`Clock`] was started.
///
/// Eight bytes instead of an `Instant`'s sixteen, since each key holds several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time(u64);

/// Reads monotonic time. Only the outer layers use it: the core receives a [`Time`].
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

// === impl Time ===

impl Time {
    /// The time `nanos` nanoseconds after the clock was started.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock was started.
    #[inline]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The duration from `earlier` to this time; zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    /// Saturates after 584 years.
    #[inline]
    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

// === impl Clock ===

impl Clock {
    /// Starts a clock at zero. It follows tokio's clock, which tests without sockets may pause.
    #[allow(clippy::disallowed_methods, reason = "this is the edge where monotonic time is read")]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The present time.
    #[inline]
    pub fn now(&self) -> Time {
        Time::default() + self.start.elapsed()
    }

    /// `time` as a tokio instant to sleep until.
    pub fn instant(&self, time: Time) -> Instant {
        self.start + Duration::from_nanos(time.0)
    }

    /// The next multiple of `period`, of at least a nanosecond and at most 584 years, as a tokio
    /// instant to sleep until. Tasks that sleep until the same one wake their thread once.
    pub fn next_multiple(&self, period: Duration) -> Instant {
        let now = self.now();
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.instant(now + Duration::from_nanos(nanos - now.0 % nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_next_multiple_is_the_same_whenever_it_is_asked_for() {
        const PERIOD: Duration = Duration::from_secs(1);
        let clock = Clock::start();
        for (begun, next) in [(0, 1), (300, 1), (999, 1), (1000, 2), (1999, 2)] {
            tokio::time::sleep_until(clock.instant(Time::from_nanos(begun * 1_000_000))).await;
            let since = clock.next_multiple(PERIOD) - clock.instant(Time::default());
            assert_eq!(since, PERIOD * next, "at {begun} ms");
        }
    }
}
