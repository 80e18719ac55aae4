//! Limits: a number of requests in a window, counted by an algorithm.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::store::StoreId;

mod algorithm;
mod calendar;

pub use algorithm::{Algorithm, Burst, MAX_DELAY_MAX};
pub use calendar::Calendar;
pub(crate) use calendar::{Anchor, Weekday, Zone};

/// `requests_per_unit` in each window of `unit_multiplier` units, counted by `algorithm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Tokens per window, or in all where there is no window, at most
    /// [`Algorithm::requests_max`]. 0 denies every charge of 1 or more.
    pub requests_per_unit: u64,
    /// The unit of the window. An algorithm without a window has [`Unit::Second`] here, which
    /// means nothing: see [`Limit::window_unit`].
    pub unit: Unit,
    /// Length of the window in units; the window is at most [`WINDOW_SECONDS_MAX`].
    pub unit_multiplier: NonZeroU32,
    /// Where windows begin that are days, weeks, months or years of a calendar: of one unit,
    /// counted as fixed windows. With `None`, windows have one length and are aligned to the Unix
    /// epoch.
    pub calendar: Option<Calendar>,
    /// How requests are counted.
    pub algorithm: Algorithm,
    /// The store that counts them. It is no part of [`Limit::identity`]: a limit that moves to
    /// another store keeps its keys.
    pub store: StoreId,
}

/// The largest amount of a rule, 2^53 - 1: up to this the doubles of the stores' scripts, and of
/// JSON, hold every whole number.
pub const AMOUNT_MAX: u64 = (1 << 53) - 1;

/// The longest window: ten years of 365 days.
pub const WINDOW_SECONDS_MAX: u64 = 10 * Unit::Year.seconds();

/// Maximum `unit_multiplier`: the maximum for the shortest unit.
pub(crate) const UNIT_MULTIPLIER_MAX: u32 = 315_360_000;

const _: () = assert!(UNIT_MULTIPLIER_MAX as u64 * Unit::Second.seconds() == WINDOW_SECONDS_MAX);

/// The longest time that a token bucket may take to fill: a hundred years of 365 days. It keeps the
/// microseconds of the stores within their number range.
pub const FILL_SECONDS_MAX: u64 = 100 * Unit::Year.seconds();

/// Maximum number of pools of a key (`shards`), each on a slot of its own.
pub const POOLS_MAX: u8 = 64;

const MICROS: u64 = 1_000_000;

/// Prefix of the names of calendar units.
const CALENDAR: &str = "calendar_";

crate::named! {
    /// The windows that the reference's `unit` names, shortest first; each is aligned to the Unix
    /// epoch. The names are in capitals, as the protocol and `/rlconfig` write them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Unit {
        /// 1 s
        Second = "SECOND",
        /// 60 s
        Minute = "MINUTE",
        /// 3600 s
        Hour = "HOUR",
        /// 86 400 s
        Day = "DAY",
        /// 7 days
        Week = "WEEK",
        /// 30 days, as in the reference
        Month = "MONTH",
        /// 365 days, as in the reference
        Year = "YEAR",
    }
}

// === impl Limit ===

impl Limit {
    /// Returns a limit of `requests_per_unit` in each fixed window of one `unit`, as in the
    /// reference.
    pub const fn fixed_window(requests_per_unit: u64, unit: Unit) -> Self {
        let algorithm = Algorithm::FixedWindow;
        let store = StoreId::DEFAULT;
        let unit_multiplier = NonZeroU32::MIN;
        Self { requests_per_unit, unit, unit_multiplier, calendar: None, algorithm, store }
    }

    /// Length of the window in seconds. A window of the calendar may be longer or shorter: see
    /// [`Limit::window_starts`].
    #[inline]
    pub const fn window_seconds(self) -> u64 {
        self.unit.seconds().saturating_mul(self.unit_multiplier.get() as u64)
    }

    /// Length of the window, as [`Limit::window_seconds`].
    #[inline]
    pub const fn window(self) -> Duration {
        Duration::from_secs(self.window_seconds())
    }

    /// Returns the longest that a window may last: of the calendar, a leap year or a month of 31
    /// days, and a day that its zone repeats.
    pub const fn window_max(self) -> Duration {
        let days = match self.unit {
            _ if self.calendar.is_none() => 0,
            Unit::Month | Unit::Year => 2,
            _ => 1,
        };
        self.window().saturating_add(Duration::from_secs(days * Unit::Day.seconds()))
    }

    /// Returns the number of the window that a time lies in, in microseconds of the Unix epoch. The
    /// next window has the next number.
    #[inline]
    pub fn window_at(self, unix_us: u64) -> u64 {
        match self.calendar {
            None => unix_us / self.window_us(),
            Some(calendar) => calendar.window_at(self.unit, unix_us / MICROS),
        }
    }

    /// Returns when the window of this number begins, and the one before it ends, in microseconds
    /// of the Unix epoch.
    #[inline]
    pub fn window_starts(self, window: u64) -> u64 {
        match self.calendar {
            None => window.saturating_mul(self.window_us()),
            Some(calendar) => calendar.starts(self.unit, window).saturating_mul(MICROS),
        }
    }

    /// Length of the window, limited to what rules may have, so that scripts count it exactly.
    const fn window_us(self) -> u64 {
        let seconds = self.window_seconds();
        MICROS * if seconds < WINDOW_SECONDS_MAX { seconds } else { WINDOW_SECONDS_MAX }
    }

    /// Returns the maximum number of tokens that may be spent at once.
    #[inline]
    pub const fn capacity(self) -> u64 {
        match self.algorithm.burst() {
            Some(burst) => burst,
            None => self.requests_per_unit,
        }
    }

    /// Returns what makes two limits on the same entries count separately: the algorithm, because
    /// each reads only its own state, and the window. The amounts are left out, so that raising or
    /// lowering a limit keeps its count. For fixed windows it is the window alone, below 2^56: its
    /// seconds, or from 2^55 its calendar.
    #[inline]
    pub fn identity(self) -> u64 {
        let window = match self.calendar {
            None => self.window_seconds(),
            Some(calendar) => 1 << 55 | calendar.identity(self.unit),
        };
        self.algorithm.identity() << 56 | window
    }

    /// Returns the name of the unit in rule files.
    pub fn unit_name(self) -> String {
        let calendar = if self.calendar.is_some() { CALENDAR } else { "" };
        format!("{calendar}{}", self.unit.name().to_ascii_lowercase())
    }

    /// Returns the limit of a calendar month in UTC in place of one of a `month`, as
    /// `USE_CALENDAR_MONTH_RATE_LIMIT` wants it: a fixed window of one month.
    #[must_use]
    pub fn with_calendar_month(self) -> Self {
        let is_month = self.unit == Unit::Month && self.unit_multiplier == NonZeroU32::MIN;
        let counts_months = is_month && self.algorithm == Algorithm::FixedWindow;
        let utc = || Calendar::utc().filter(|_| counts_months);
        Self { calendar: self.calendar.or_else(utc), ..self }
    }

    /// Returns the part of the limit that one of `pods` admits by itself: ⌊limit / `pods`⌋, plus
    /// one if `rng` falls below the remaining fraction. `rng` is to be uniform over 64 bits, and
    /// drawn for each pod and window. Then the parts of all pods add up to the limit on average,
    /// even if the limit has fewer tokens than there are pods. `pods` of 0 counts as 1.
    #[must_use]
    pub fn part(self, pods: u32, rng: u64) -> Self {
        let pods = pods.max(1);
        let part = |amount| part_of(amount, pods, rng);
        let algorithm = match self.algorithm.burst() {
            Some(burst) => self.algorithm.with_burst(part(burst)),
            None => self.algorithm,
        };
        Self { requests_per_unit: part(self.requests_per_unit), algorithm, ..self }
    }

    /// Returns the unit of the window; `None` if the algorithm has no window.
    #[inline]
    pub fn window_unit(self) -> Option<Unit> {
        self.algorithm.has_window().then_some(self.unit)
    }

    /// Describes the limit: `100 requests in each window of 5 minutes, aligned to the Unix epoch`
    pub fn words(self) -> String {
        self.algorithm.words(self)
    }
}

/// Returns `amount / pods`, rounded up with a probability equal to its fraction, else down. `pods`
/// is not 0.
fn part_of(amount: u64, pods: u32, rng: u64) -> u64 {
    let pods = u64::from(pods);
    // Maps the rng to one of `pods` equally likely numbers: the upper half of the product of a
    // 64-bit and a 32-bit number.
    let place = (u128::from(rng) * u128::from(pods)) >> 64;
    amount / pods + u64::from(place < u128::from(amount % pods))
}

// === impl Unit ===

impl Unit {
    /// Returns the length in seconds. A month has 30 days and a year 365, as in the reference
    /// (`utilities.go`).
    #[inline]
    pub const fn seconds(self) -> u64 {
        const DAY: u64 = 86_400;
        match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 30 * DAY,
            Unit::Year => 365 * DAY,
        }
    }

    /// Returns the number on the wire, the same in a request's override and in a response. WEEK was
    /// added last: `envoy.type.v3.RateLimitUnit` does not have it, but its number is read as the
    /// response's.
    pub const fn number(self) -> u8 {
        match self {
            Unit::Second => 1,
            Unit::Minute => 2,
            Unit::Hour => 3,
            Unit::Day => 4,
            Unit::Month => 5,
            Unit::Year => 6,
            Unit::Week => 7,
        }
    }

    /// Returns the unit of this number on the wire; `None` for 0, which is UNKNOWN, and for all
    /// others.
    pub fn from_number(number: i64) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| i64::from(unit.number()) == number)
    }

    /// The units that the calendar has.
    pub(crate) const OF_CALENDAR: [Unit; 4] = [Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// Returns the names of all units in rule files.
    pub(crate) fn names() -> Vec<String> {
        let lower = |unit: Unit| unit.name().to_ascii_lowercase();
        let of_calendar = Unit::OF_CALENDAR.map(|unit| format!("{CALENDAR}{}", lower(unit)));
        Unit::ALL.map(lower).into_iter().chain(of_calendar).collect()
    }

    /// Parses the name of a unit in rule files, in any case; `true` for one of the calendar.
    pub(crate) fn parse_any(name: &str) -> Option<(Unit, bool)> {
        let (begins, rest) = name.split_at_checked(CALENDAR.len()).unwrap_or(("", name));
        let is_calendar = begins.eq_ignore_ascii_case(CALENDAR);
        let unit = Unit::parse(if is_calendar { rest } else { name })?;
        (!is_calendar || Unit::OF_CALENDAR.contains(&unit)).then_some((unit, is_calendar))
    }

    /// Parses a name in any case, as the reference does; `None` for anything else, including
    /// `unknown` and the units of the calendar.
    pub fn parse(name: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}

// The terms on which a rule's tokens are leased to pods.

/// Whether and how a rule's tokens are leased (`lease`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Leasing {
    /// No leases: every decision asks the store.
    Off,
    /// Tokens are leased in batches, sized by demand.
    On(LeaseTerms),
}

/// The terms of a lease.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeaseTerms {
    /// φ: the part of the remaining tokens that one pod may hold when all pods ask at once; above
    /// 0, at most 1.
    pub fraction: f32,
    /// Maximum number of tokens in one lease, from 1. A single charge above it is still granted
    /// whole.
    pub max: u64,
    /// τ: maximum duration of a lease. With `None`, leases of a fixed window last until its end,
    /// and others [`LeaseTerms::TTL`].
    pub ttl: Option<Duration>,
}

// === impl LeaseTerms ===

impl LeaseTerms {
    /// Default φ. At ½, a demand that moves between pods strands several per cent of the tokens; at
    /// ¼ it does not (`docs/design.md`).
    pub const FRACTION: f32 = 0.25;

    /// Default τ of the algorithms without a window of their own (`docs/design.md`).
    pub const TTL: Duration = Duration::from_secs(2);

    /// Minimum τ: a lease has to last longer than a few asks.
    pub const TTL_MIN: Duration = Duration::from_millis(100);

    /// Maximum τ: tokens of a dead pod are missing for at most this long.
    pub const TTL_MAX: Duration = Duration::from_secs(60);
}

impl Default for LeaseTerms {
    fn default() -> Self {
        Self { fraction: Self::FRACTION, max: AMOUNT_MAX, ttl: None }
    }
}

impl Default for Leasing {
    fn default() -> Self {
        Self::On(LeaseTerms::default())
    }
}

// The answers of a rule while the store is unavailable.

crate::named! {
    /// The answer while the store is unavailable and no token is left in this pod (`failure_mode`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum FailureMode {
        /// Each pod admits its own part of the limit, by [`Limit::part`](crate::Limit::part): of n
        /// pods ⌊limit / n⌋ per window, plus one if a hash of pod, key and window falls below the
        /// fraction that is left. n is the number of live pods that the store last reported.
        #[default]
        Local = "local",
        /// Admits every request, uncounted.
        Allow = "allow",
        /// Denies every request as over the limit.
        Deny = "deny",
        /// Returns an error, so that Envoy's `failure_mode_deny` decides, as with the reference.
        Error = "error",
    }
}

// The hits that a request takes before its cost is known.

/// The terms of a hold (`hold`): the tokens that a request takes at its start are held under its id
/// until a settlement gives the real cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The index of the level whose value is the id of the request. It is no part of the count.
    pub level: u8,
    /// The fate of the hits if no settlement has come for them.
    pub unless_settled: UnlessSettled,
    /// From [`Hold::LASTS_MIN`] to [`Hold::LASTS_MAX`].
    lasts_ms: u32,
}

crate::named! {
    /// What becomes of the hits of a hold that no settlement has come for in time
    /// (`unless_settled`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum UnlessSettled {
        /// They stay counted.
        #[default]
        Keep = "keep",
        /// They are given back.
        Release = "release",
    }
}

// === impl Hold ===

impl Hold {
    /// The shortest time that a hold may last.
    pub const LASTS_MIN: Duration = Duration::from_secs(1);

    /// The longest time that a hold may last.
    pub const LASTS_MAX: Duration = Duration::from_secs(24 * 3_600);

    /// Makes the terms of a hold that lasts so long, which is counted in whole milliseconds.
    pub fn new(level: u8, lasts: Duration, unless_settled: UnlessSettled) -> Self {
        let lasts = lasts.clamp(Self::LASTS_MIN, Self::LASTS_MAX).as_millis();
        Self { level, unless_settled, lasts_ms: u32::try_from(lasts).unwrap_or(u32::MAX) }
    }

    /// How long after its start a request is expected to be settled at the latest.
    pub fn lasts(self) -> Duration {
        Duration::from_millis(self.lasts_ms.into())
    }

    /// Whether the value of this level is the id.
    #[inline]
    pub fn is_at(self, level: usize) -> bool {
        usize::from(self.level) == level
    }
}

#[cfg(test)]
mod tests;
