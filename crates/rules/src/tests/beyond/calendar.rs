//! Units of the calendar.

use super::*;
use crate::limit::{Anchor, Calendar, Weekday, Zone};

fn text(limit: &str) -> String {
    format!(
        "domain: a\ndescriptors:\n- {{key: k, rate_limit: {{requests_per_unit: 5, {limit}}}}}\n"
    )
}

#[track_caller]
fn calendar_of(limit: &str, options: Options) -> (Unit, Option<Calendar>) {
    let loaded = load(&[source(&text(limit))], options).expect(limit);
    assert_eq!(loaded.warnings, []);
    match find(&loaded.rules, "a", "k=1").unwrap().allowance {
        Allowance::Limited(limit) => (limit.unit, limit.calendar),
        Allowance::Unlimited => panic!("unlimited"),
    }
}

/// Checks the faults of a `rate_limit`, in the order of their places, each by the beginning of its
/// text.
#[track_caller]
fn refuses(limit: &str, faults: &[&str]) {
    let found = refusal(&[source(&text(limit))], NO_MERGE);
    assert_eq!(found.len(), faults.len(), "{found:#?}");
    for (found, fault) in found.iter().zip(faults) {
        let (_, message) = found.split_once(": ").unwrap();
        assert!(message.starts_with(fault), "{fault}\n{found}");
    }
}

#[test]
fn a_unit_of_the_calendar_has_a_zone_and_an_anchor() {
    let of = |zone: &str, month: u8, day: NonZeroU8, minute, unit| {
        let anchor = Anchor { month: NonZeroU8::new(month).unwrap(), day, minute };
        (unit, Some(Calendar::new(Zone::find(zone).unwrap(), anchor, unit)))
    };
    let day = |day| NonZeroU8::new(day).unwrap();
    for (limit, expected) in [
        ("unit: calendar_day", of("UTC", 1, day(1), 0, Unit::Day)),
        ("unit: Calendar_Week, time_zone: ~, anchor: ~", of("UTC", 1, day(1), 0, Unit::Week)),
        (
            "unit: calendar_day, time_zone: europe/zurich, anchor: {time: 09:30}",
            of("Europe/Zurich", 1, day(1), 570, Unit::Day),
        ),
        (
            "unit: calendar_week, anchor: {weekday: Sunday, time: '23:59'}",
            of("UTC", 1, Weekday::Sunday.number(), 1439, Unit::Week),
        ),
        (
            "unit: calendar_month, time_zone: America/New_York, anchor: {day: 31}, \
             algorithm: fixed_window, unit_multiplier: 1",
            of("America/New_York", 1, day(31), 0, Unit::Month),
        ),
        ("unit: calendar_year, anchor: {month: 2, day: 29}", of("UTC", 2, day(29), 0, Unit::Year)),
        ("unit: month", (Unit::Month, None)),
    ] {
        assert_eq!(calendar_of(limit, NO_MERGE), expected, "{limit}");
    }
}

#[test]
fn an_option_of_the_calendar_is_shown_as_a_file_writes_it() {
    let limit = "unit: calendar_month, anchor: {time: '09:00', day: 15}, time_zone: asia/tokyo";
    let loaded = compile(&text(limit));
    let rule = find(&loaded.rules, "a", "k=1").unwrap();
    let written = |name: &str| {
        let options = rule.options(loaded.rules.stores());
        options.into_iter().find(|it| it.name == name).map(|it| (it.written, it.is_default))
    };
    assert_eq!(written("unit"), Some(("calendar_month".to_owned(), false)));
    assert_eq!(written("time_zone"), Some(("Asia/Tokyo".to_owned(), false)));
    let anchor = "{day: 15, time: \"09:00\"}".to_owned();
    assert_eq!(written("anchor"), Some((anchor.clone(), false)));
    let again = format!("unit: calendar_month, time_zone: Asia/Tokyo, anchor: {anchor}");
    assert_eq!(calendar_of(&again, NO_MERGE), calendar_of(limit, NO_MERGE));
}

#[test]
fn all_faults_of_a_calendar_are_reported_at_once() {
    refuses(
        "unit: calendar_day, time_zone: Europe/Zürich, unit_multiplier: 2, algorithm: \
         token_bucket, anchor: {day: 32, weekday: monday, month: 0, time: '25:00'}",
        &[
            "unknown time zone 'Europe/Zürich'; expected a name of the IANA database, such \
             as Europe/Zurich; did you mean 'Europe/Zurich'?",
            "a window of the calendar is one unit; remove 'unit_multiplier'",
            "calendar_day is a fixed window, and this limit is a token_bucket; write \
             'algorithm: fixed_window', or 'unit: day'",
            "'day' must be from 1 to 31, found 32",
            "'weekday' belongs to calendar_week, and this unit is calendar_day; remove it",
            "'month' must be from 1 to 12, found 0",
            "error loading config file: 'time' must be a time of day from \"00:00\" to \
             \"23:59\", found the text '25:00'",
        ],
    );
    refuses(
        "unit: month, time_zone: UTC, anchor: {day: 1}",
        &[
            "'time_zone' needs a unit of the calendar; write 'unit: calendar_month', or \
             remove it",
            "'anchor' needs a unit of the calendar; write 'unit: calendar_month', or remove it",
        ],
    );
    refuses("unit: hour, time_zone: UTC", &["'time_zone' needs a unit of the calendar"]);
    refuses("unit: calendar_hour", &["invalid rate limit unit 'calendar_hour'; expected"]);
    refuses("unit: calendar_month, anchor: {month: 2}", &["'month' belongs to calendar_year"]);
    refuses(
        "unit: calendar_week, anchor: {day: 2}",
        &["'day' belongs to calendar_month and calendar_year, and this unit is calendar_week"],
    );
    refuses("unit: calendar_week, anchor: {weekday: mon}", &["unknown weekday 'mon'; expected"]);
    refuses("unit: calendar_day, anchor: [1]", &["error loading config file: 'anchor' must be"]);
    refuses("unit: calendar_day, unlimited: true", &["should not specify rate limit unit"]);
    for time in ["9:00", "09:60", "24:00", "0900", "09:00:00", "٠٩:٠٠"] {
        let limit = format!("unit: calendar_day, anchor: {{time: '{time}'}}");
        refuses(&limit, &["error loading config file: 'time' must be a time of day"]);
    }
    let defaults = "domain: a\ndefaults: {algorithm: sliding_log}\ndescriptors:\n- {key: k, \
                    rate_limit: {unit: calendar_year, requests_per_unit: 5}}\n";
    let found = refusal(&[source(defaults)], NO_MERGE);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("a.yaml:4:31: calendar_year is a fixed window"), "{found:?}");
}

#[test]
fn a_month_is_one_of_the_calendar_where_a_setting_says_so() {
    let months = Options { calendar_months: true, ..NO_MERGE };
    let utc = calendar_of("unit: calendar_month", NO_MERGE);
    assert_eq!(calendar_of("unit: month", months.clone()), utc);
    for other in ["unit: month, unit_multiplier: 2", "unit: year", "unit: day"] {
        assert_eq!(calendar_of(other, months.clone()).1, None, "{other}");
    }
    let bucket = "unit: month, algorithm: token_bucket";
    assert_eq!(calendar_of(bucket, months.clone()).1, None);
    let loaded = |options| load(&[source(&text("unit: month"))], options).unwrap().rules;
    assert_ne!(loaded(months.clone()).version(), loaded(NO_MERGE).version());
    let month = Limit::fixed_window(7, Unit::Month);
    assert_eq!(loaded(months).of_override(month).calendar, utc.1);
    assert_eq!(loaded(NO_MERGE).of_override(month), month);
}
