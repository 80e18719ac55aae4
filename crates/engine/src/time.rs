//! Monotonic time as the engine's core uses it: a plain number that is passed as an argument.

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
    /// The clock stands still meanwhile, as tokio's clock does.
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
    pub(super) fn start_suspended_for(nanos: &'static std::sync::atomic::AtomicU64) -> Self {
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

// === Compact spans and amounts, for values that are stored by the million. All round down ===

/// A span in four bytes: exact to the microsecond up to 17 minutes, to the millisecond up to 12
/// days, to the second up to 34 years, and to the minute beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactDuration(u32);

/// A number in two bytes: exact up to 4096, above that to one part in 2048, and at most 4.4 × 10¹²
/// (73 minutes of nanoseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactU64(u16);

/// The unit in which a [`CompactDuration`] counts, in nanoseconds, by its two highest bits.
const UNITS: [u64; 4] = [1_000, 1_000_000, 1_000_000_000, 60_000_000_000];

/// The position of the two bits of a [`CompactDuration`] that choose its unit.
const UNIT_AT: u32 = 30;

/// The largest count that the bits below its unit hold.
const COUNT_MAX: u32 = (1 << UNIT_AT) - 1;

/// Bits of a [`CompactU64`] below its exponent.
const FRACTION_BITS: u32 = 11;

// === impl CompactDuration ===

impl CompactDuration {
    /// The empty span.
    pub const EMPTY: Self = Self(0);

    /// The longest value that is no longer than `span`.
    pub fn floor(span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        for (unit, at) in UNITS.iter().zip(0..) {
            if let Ok(count) = u32::try_from(nanos / unit)
                && count <= COUNT_MAX
            {
                return Self(at << UNIT_AT | count);
            }
        }
        Self(u32::MAX)
    }

    /// The end of the span if it began at `start`; time zero if it is empty.
    pub fn after(self, start: Time) -> Time {
        let unit = UNITS[(self.0 >> UNIT_AT) as usize];
        ends(start, u64::from(self.0 & COUNT_MAX).saturating_mul(unit))
    }
}

// === impl CompactU64 ===

impl CompactU64 {
    /// A marker that is not a number, with a meaning of the caller's choice. Greater than all
    /// numbers.
    pub const NONE: Self = Self(u16::MAX);

    /// The largest value that is no larger than `number`.
    pub fn floor(number: u64) -> Self {
        let shift = (u64::BITS - number.leading_zeros()).saturating_sub(FRACTION_BITS + 1);
        let code = (u64::from(shift) << FRACTION_BITS) + (number >> shift);
        Self(u16::try_from(code).unwrap_or(u16::MAX).min(u16::MAX - 1))
    }

    /// The number.
    pub fn get(self) -> u64 {
        let shift = (self.0 >> FRACTION_BITS).saturating_sub(1);
        u64::from(self.0 - (shift << FRACTION_BITS)) << shift
    }

    /// The time that many nanoseconds after `start`; time zero if there are none.
    pub fn nanos_after(self, start: Time) -> Time {
        ends(start, self.get())
    }
}

/// An empty span is over for every reader, also for one that read the clock before `start`.
fn ends(start: Time, nanos: u64) -> Time {
    if nanos == 0 { Time::default() } else { start + Duration::from_nanos(nanos) }
}

#[cfg(test)]
mod tests;
