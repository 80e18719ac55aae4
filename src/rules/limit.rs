//! What a rule allows: a number of requests in a window.

use std::time::Duration;

/// `requests_per_unit` in each window of one `unit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    /// Tokens in a window. 0 denies every charge of 1 or more.
    pub requests_per_unit: u32,
    /// Length of the window.
    pub unit: Unit,
}

/// The windows that the reference's `unit` names; each is aligned to the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s
    Second,
    /// 60 s
    Minute,
    /// 3600 s
    Hour,
    /// 86 400 s
    Day,
    /// 7 days
    Week,
    /// 30 days, as in the reference
    Month,
    /// 365 days, as in the reference
    Year,
}

// === impl Limit ===

impl Limit {
    /// Length of the window.
    pub const fn window(self) -> Duration {
        Duration::from_secs(self.unit.seconds())
    }
}

// === impl Unit ===

impl Unit {
    /// Every unit, shortest first.
    pub const ALL: [Unit; 7] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// Length in seconds. Month is 30 days and year 365, as in the reference (`utilities.go`).
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

    /// The name in capitals, as the protocol and `/rlconfig` write it.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Second => "SECOND",
            Unit::Minute => "MINUTE",
            Unit::Hour => "HOUR",
            Unit::Day => "DAY",
            Unit::Week => "WEEK",
            Unit::Month => "MONTH",
            Unit::Year => "YEAR",
        }
    }

    /// The number on the wire, the same in a request's override and in a response. WEEK came last:
    /// `envoy.type.v3.RateLimitUnit` does not have it, but its number is read as the response's.
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

    /// The unit of this number on the wire; `None` for 0, which is UNKNOWN, and all others.
    pub fn from_number(number: i64) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| i64::from(unit.number()) == number)
    }

    /// Parses a name in any case, as the reference does; `None` for anything else, `unknown` too.
    pub fn parse(name: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}
