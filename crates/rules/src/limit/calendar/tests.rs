use proptest::prelude::*;

use super::*;
use crate::limit::{Limit, Unit};

fn calendar(unit: Unit, zone: &str, month: u8, day: u8, minute: u16) -> Calendar {
    let number = |number| NonZeroU8::new(number).unwrap();
    let anchor = Anchor { month: number(month), day: number(day), minute };
    Calendar::new(Zone::find(zone).unwrap(), anchor, unit)
}

fn second(at: &str) -> u64 {
    at.parse::<Timestamp>().unwrap().as_second().unsigned_abs()
}

/// Checks when the windows begin that follow each other from the one that holds the first of these
/// times.
#[track_caller]
fn begins(calendar: Calendar, unit: Unit, times: &[&str]) {
    let first = calendar.window_at(unit, second(times[0]));
    for (window, time) in (first..).zip(times) {
        let starts = calendar.starts(unit, window);
        let shown = Timestamp::from_second(starts.try_into().unwrap()).unwrap();
        assert_eq!(starts, second(time), "{calendar:?} begins at {shown}, not {time}");
        assert_eq!(calendar.window_at(unit, starts), window);
        assert_eq!(calendar.window_at(unit, starts - 1), window - 1);
    }
}

#[test]
fn a_month_begins_on_its_day_or_its_last_one() {
    begins(
        calendar(Unit::Month, "UTC", 1, 1, 0),
        Unit::Month,
        &["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"],
    );
    begins(
        calendar(Unit::Month, "UTC", 1, 31, 23 * 60),
        Unit::Month,
        &[
            "2027-12-31T23:00:00Z",
            "2028-01-31T23:00:00Z",
            "2028-02-29T23:00:00Z",
            "2028-03-31T23:00:00Z",
            "2028-04-30T23:00:00Z",
        ],
    );
    begins(
        calendar(Unit::Month, "Europe/Zurich", 1, 15, 9 * 60),
        Unit::Month,
        &["2026-02-15T08:00:00Z", "2026-03-15T08:00:00Z", "2026-04-15T07:00:00Z"],
    );
}

#[test]
fn a_year_begins_on_a_leap_day_or_the_last_of_february() {
    begins(
        calendar(Unit::Year, "UTC", 2, 29, 0),
        Unit::Year,
        &["2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z", "2029-02-28T00:00:00Z"],
    );
    begins(
        calendar(Unit::Year, "Asia/Tokyo", 4, 1, 0),
        Unit::Year,
        &["2025-03-31T15:00:00Z", "2026-03-31T15:00:00Z"],
    );
}

#[test]
fn a_week_begins_on_its_weekday() {
    begins(
        calendar(Unit::Week, "UTC", 1, Weekday::Monday.number().get(), 0),
        Unit::Week,
        &["2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"],
    );
    begins(
        calendar(Unit::Week, "America/New_York", 1, Weekday::Sunday.number().get(), 18 * 60),
        Unit::Week,
        &["2026-10-25T22:00:00Z", "2026-11-01T23:00:00Z", "2026-11-08T23:00:00Z"],
    );
}

#[test]
fn a_time_that_the_clock_skips_counts_from_the_end_of_the_gap() {
    for (zone, minute, times) in [
        (
            "Europe/Zurich",
            150,
            ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
        ),
        (
            "America/New_York",
            150,
            ["2026-03-07T07:30:00Z", "2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"],
        ),
        // The summer time of this zone is half an hour.
        (
            "Australia/Lord_Howe",
            135,
            ["2026-10-02T15:45:00Z", "2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"],
        ),
        // The gap is at midnight.
        (
            "America/Sao_Paulo",
            0,
            ["2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"],
        ),
    ] {
        begins(calendar(Unit::Day, zone, 1, 1, minute), Unit::Day, &times);
    }
}

#[test]
fn a_time_that_the_clock_shows_twice_counts_from_its_first_occurrence() {
    for (zone, minute, times) in [
        (
            "Europe/Zurich",
            150,
            ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
        ),
        (
            "America/New_York",
            90,
            ["2026-10-31T05:30:00Z", "2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"],
        ),
        (
            "Australia/Lord_Howe",
            105,
            ["2026-04-03T14:45:00Z", "2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"],
        ),
    ] {
        begins(calendar(Unit::Day, zone, 1, 1, minute), Unit::Day, &times);
    }
}

#[test]
fn the_window_of_a_day_that_a_zone_skipped_is_empty() {
    // After 29 December 2011 came 31 December.
    let apia = calendar(Unit::Day, "Pacific/Apia", 1, 1, 0);
    let last = apia.window_at(Unit::Day, second("2011-12-29T23:00:00Z"));
    let midnight = second("2011-12-30T10:00:00Z");
    assert_eq!([1, 2].map(|days| apia.starts(Unit::Day, last + days)), [midnight; 2]);
    assert_eq!(apia.window_at(Unit::Day, midnight - 1), last);
    assert_eq!(apia.window_at(Unit::Day, midnight), last + 2);
}

/// Checks that the windows from 2000 to 2099 leave no second out and share none.
fn tiles(zone: &str, unit: Unit, anchor: (u8, u8, u16)) {
    let (month, day, minute) = anchor;
    let calendar = calendar(unit, zone, month, day, minute);
    let from = calendar.window_at(unit, second("2000-01-01T00:00:00Z"));
    let to = calendar.window_at(unit, second("2100-01-01T00:00:00Z"));
    let longest = Limit { calendar: Some(calendar), ..Limit::fixed_window(1, unit) }.window_max();
    let mut starts = calendar.starts(unit, from);
    for window in from..to {
        let ends = calendar.starts(unit, window + 1);
        assert!(ends >= starts && ends - starts <= longest.as_secs(), "{calendar:?} {window}");
        if ends > starts {
            for second in [starts, ends - 1] {
                assert_eq!(calendar.window_at(unit, second), window, "{calendar:?} {second}");
            }
        }
        starts = ends;
    }
}

#[test]
fn windows_tile_a_hundred_years() {
    for zone in ["Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"] {
        tiles(zone, Unit::Day, (1, 1, 0));
        tiles(zone, Unit::Day, (1, 1, 150));
    }
    // Each third zone, so that zones of all continents take part.
    for zone in Zone::names().into_iter().step_by(3) {
        tiles(zone, Unit::Week, (1, 7, 125));
        tiles(zone, Unit::Month, (1, 31, 150));
        tiles(zone, Unit::Year, (2, 29, 0));
    }
}

/// Days since the epoch of a date of the Gregorian calendar, without `jiff`.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let leaps = |year: i64| year / 4 - year / 100 + year / 400;
    let is_leap = leaps(year) > leaps(year - 1);
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let index = usize::try_from(month - 1).unwrap();
    let leap_day = i64::from(is_leap && month > 2);
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969) + before[index] + leap_day + day - 1
}

/// The last day of a month.
fn last_of(year: i64, month: i64) -> i64 {
    let (next_year, next) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    days_of(next_year, next, 1) - days_of(year, month, 1)
}

/// The first second at which the clock of the zone shows `local` seconds since 1970 or more, found
/// by looking at the clock.
fn oracle(zone: &TimeZone, local: i64) -> i64 {
    let shows =
        |at: i64| at + i64::from(zone.to_offset(Timestamp::from_second(at).unwrap()).seconds());
    let step = 600;
    let from = local - 30 * 3_600;
    let after = (0..).map(|steps| from + steps * step).find(|at| shows(*at) >= local).unwrap();
    (after - step..=after).find(|at| shows(*at) >= local).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_window_begins_when_the_clock_of_the_zone_says_so(
        zone in proptest::sample::select(Zone::names()),
        unit in proptest::sample::select(Unit::OF_CALENDAR.to_vec()),
        (month, day, minute) in (1_u8..=12, 1_u8..=31, 0_u16..1440),
        now in 86_400_u64 * 366..4_102_444_800,
    ) {
        let day = if unit == Unit::Week { day % 7 + 1 } else { day };
        let calendar = calendar(unit, zone, month, day, minute);
        let window = calendar.window_at(unit, now);
        let [starts, ends] = [window, window + 1].map(|window| calendar.starts(unit, window));
        prop_assert!(starts <= now && now < ends, "{starts} {now} {ends}");

        let [day, month] = [day, month].map(i64::from);
        let days_of_window = |window: u64| {
            let window = i64::try_from(window).unwrap();
            let on = |year, month| days_of(year, month, day.min(last_of(year, month)));
            match unit {
                Unit::Year => on(window, month),
                Unit::Month => on(window / 12, window % 12 + 1),
                Unit::Week => days_of(1, 1, 1) + window * 7 + day - 1,
                _ => days_of(1, 1, 1) + window,
            }
        };
        let rules = calendar.zone.rules();
        for (window, at) in [(window, starts), (window + 1, ends)] {
            let local = days_of_window(window) * 86_400 + i64::from(minute) * 60;
            prop_assert_eq!(i64::try_from(at).unwrap(), oracle(rules, local));
        }
    }

    #[test]
    fn every_time_has_a_window(
        zone in proptest::sample::select(Zone::names()),
        unit in proptest::sample::select(Unit::OF_CALENDAR.to_vec()),
        now in any::<u64>(),
        window in any::<u64>(),
    ) {
        let limit = Limit {
            calendar: Some(calendar(unit, zone, 12, 31, 1439)),
            ..Limit::fixed_window(1, unit)
        };
        for now in [now, now % (1 << 53), 0, u64::MAX] {
            let of = limit.window_at(now);
            prop_assert!(limit.window_starts(of) <= now, "{} {}", now, limit.window_starts(of));
            prop_assert!(limit.window_starts(of + 1) >= limit.window_starts(of));
        }
        limit.window_starts(window);
    }
}

#[test]
fn every_zone_of_the_table_has_rules_and_a_hash_of_its_own() {
    let names = Zone::names();
    assert!(names.len() > 500 && names.contains(&Zone::DEFAULT), "{}", names.len());
    let mut hashes: Vec<u32> = Vec::new();
    for name in &names {
        let zone = Zone::find(&name.to_ascii_uppercase()).expect(name);
        assert_eq!((zone.name(), zone.rules().iana_name()), (*name, Some(*name)));
        hashes.push(zone.hash());
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), names.len());
}

#[test]
fn calendars_count_apart_and_from_every_other_window() {
    let of = |zone: &str, unit, month, day, minute| Limit {
        calendar: Some(calendar(unit, zone, month, day, minute)),
        ..Limit::fixed_window(1, unit)
    };
    let limits = [
        of("UTC", Unit::Month, 1, 1, 0),
        of("Europe/Zurich", Unit::Month, 1, 1, 0),
        of("UTC", Unit::Month, 1, 2, 0),
        of("UTC", Unit::Month, 1, 1, 1),
        of("UTC", Unit::Year, 1, 1, 0),
        of("UTC", Unit::Year, 2, 1, 0),
        of("UTC", Unit::Week, 1, 1, 0),
        of("UTC", Unit::Day, 1, 1, 0),
        Limit::fixed_window(1, Unit::Month),
    ];
    let identities = limits.map(Limit::identity);
    for (at, identity) in identities.iter().enumerate() {
        assert!(*identity < 1 << 56);
        assert!(!identities[..at].contains(identity));
    }
    // Pods of all versions name counts by these.
    assert_eq!(identities[0], 0xf1_449f_57d1_0800, "{:#x}", identities[0]);
    let raised = Limit { requests_per_unit: 9, ..limits[1] };
    assert_eq!(raised.identity(), limits[1].identity());
    assert_eq!(limits[0], Limit::fixed_window(1, Unit::Month).with_calendar_month());
}

#[test]
fn only_a_fixed_window_of_one_month_becomes_a_calendar_month() {
    let month = Limit::fixed_window(1, Unit::Month);
    let two = Limit { unit_multiplier: std::num::NonZeroU32::new(2).unwrap(), ..month };
    let algorithm = crate::limit::Algorithm::token_bucket(1);
    for other in [two, Limit { algorithm, ..month }, Limit::fixed_window(1, Unit::Year)] {
        assert_eq!(other.with_calendar_month(), other);
    }
    let zurich = calendar(Unit::Month, "Europe/Zurich", 1, 15, 0);
    let of_zurich = Limit { calendar: Some(zurich), ..month };
    assert_eq!(of_zurich.with_calendar_month(), of_zurich);
}

#[test]
fn a_calendar_is_described_in_words() {
    for (unit, month, day, minute, words, anchor) in [
        (Unit::Day, 1, 1, 540, "day that begins at 09:00", "{time: \"09:00\"}"),
        (Unit::Week, 1, 7, 0, "week that begins on sunday at 00:00", "{weekday: sunday}"),
        (Unit::Month, 1, 15, 0, "month that begins on day 15 at 00:00", "{day: 15}"),
        (
            Unit::Year,
            4,
            6,
            1,
            "year that begins on day 6 of month 4 at 00:01",
            "{month: 4, day: 6, time: \"00:01\"}",
        ),
    ] {
        let calendar = calendar(unit, "Europe/Zurich", month, day, minute);
        assert_eq!(calendar.anchor(unit), anchor);
        let limit = Limit { calendar: Some(calendar), ..Limit::fixed_window(5, unit) };
        let expected = format!("5 requests in each calendar {words} in Europe/Zurich");
        assert_eq!(limit.words(), expected);
        assert_eq!(limit.unit_name(), format!("calendar_{}", unit.name().to_lowercase()));
    }
}
