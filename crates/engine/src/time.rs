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
    suspension: Suspension,
}

/// How the clock counts the time for which the machine was suspended.
#[derive(Debug, Clone, Copy)]
enum Suspension {
    /// It stands still meanwhile, as tokio's clock does.
    Left,
    /// The system counts it; its time when the clock was started, in nanoseconds.
    #[cfg(target_os = "linux")]
    Counted(u64),
    /// A test sets how long it lasted, in nanoseconds.
    #[cfg(test)]
    Set(&'static std::sync::atomic::AtomicU64),
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
        Self { start: Instant::now(), suspension: Suspension::Left }
    }

    /// Starts a clock at zero that goes on while the machine is suspended, as a store's clock does
    /// (Linux: `CLOCK_BOOTTIME`, which is as cheap to read). By a clock that stood still meanwhile,
    /// a lease would outlive its window.
    pub fn start_counting_suspension() -> Self {
        #[cfg(target_os = "linux")]
        let suspension = Suspension::Counted(boot_nanos());
        #[cfg(not(target_os = "linux"))]
        let suspension = Suspension::Left;
        Self { suspension, ..Self::start() }
    }

    /// A clock at zero; a test sets for how many nanoseconds the machine was suspended.
    #[cfg(test)]
    pub(crate) fn start_suspended_for(nanos: &'static std::sync::atomic::AtomicU64) -> Self {
        Self { suspension: Suspension::Set(nanos), ..Self::start() }
    }

    /// The present time.
    #[inline]
    pub fn now(&self) -> Time {
        match self.suspension {
            Suspension::Left => Time::default() + self.start.elapsed(),
            #[cfg(target_os = "linux")]
            Suspension::Counted(start) => Time(boot_nanos().saturating_sub(start)),
            #[cfg(test)]
            Suspension::Set(_) => Time::default() + self.start.elapsed() + self.suspended(),
        }
    }

    /// `time` as a tokio instant to sleep until. Tokio's clock stands still while the machine is
    /// suspended, so a sleep that is under way then ends that much later.
    pub fn instant(&self, time: Time) -> Instant {
        self.start + Duration::from_nanos(time.0).saturating_sub(self.suspended())
    }

    /// For how long the machine was suspended since the start, in whole milliseconds: the two
    /// clocks are not read at the same time, and sleeps until one time should end together.
    fn suspended(&self) -> Duration {
        match self.suspension {
            Suspension::Left => Duration::ZERO,
            #[cfg(target_os = "linux")]
            Suspension::Counted(_) => {
                let awake = self.start.elapsed();
                let apart = Duration::from_nanos(self.now().0).saturating_sub(awake);
                apart - Duration::from_nanos(u64::from(apart.subsec_nanos()) % 1_000_000)
            }
            #[cfg(test)]
            Suspension::Set(nanos) => {
                Duration::from_nanos(nanos.load(std::sync::atomic::Ordering::Relaxed))
            }
        }
    }

    /// The next multiple of `period`, of at least a nanosecond and at most 584 years, as a tokio
    /// instant to sleep until. Tasks that sleep until the same one wake their thread once.
    pub fn next_multiple(&self, period: Duration) -> Instant {
        let now = self.now();
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.instant(now + Duration::from_nanos(nanos - now.0 % nanos))
    }
}

/// Time since the machine was started, with the time for which it was suspended.
#[cfg(target_os = "linux")]
#[inline]
fn boot_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Neither is negative.
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
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
