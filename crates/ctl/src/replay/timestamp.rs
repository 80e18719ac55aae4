//! Parses the times in logs.

use serde_json::Value;

const MICROS_PER_SECOND: u64 = 1_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// Number of digits of a fraction of a second that are used.
const FRACTION_DIGITS: usize = 6;

/// Upper bounds of numbers that are read as seconds, milliseconds and microseconds since the Unix
/// epoch; larger numbers are nanoseconds. Each bound is the year 5138 in its unit, and 1973 in the
/// next.
const SECONDS_MAX: f64 = 1e11;
const MILLIS_MAX: f64 = 1e14;
const MICROS_MAX: f64 = 1e17;

/// Returns the time in a JSON value in microseconds since the Unix epoch: text in the format of RFC
/// 3339, or a number since the epoch, whose size determines its unit. `None` for anything else, and
/// before 1970.
pub(super) fn of_json(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => parse(text).or_else(|| of_number(text.parse().ok()?)),
        Value::Number(number) => of_number(number.as_f64()?),
        _ => None,
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be within")]
fn of_number(number: f64) -> Option<u64> {
    let micros = match number {
        n if !n.is_finite() || n < 0.0 => return None,
        n if n < SECONDS_MAX => n * 1e6,
        n if n < MILLIS_MAX => n * 1e3,
        n if n < MICROS_MAX => n,
        n => n / 1e3,
    };
    (micros < MICROS_MAX).then_some(micros.round() as u64)
}

/// Parses a time of RFC 3339, such as `2026-11-21T10:00:00.123Z`, to microseconds since the Unix
/// epoch; a space may replace the `T`. `None` for anything else, and before 1970.
pub(super) fn parse(text: &str) -> Option<u64> {
    let (date, rest) = text.split_at_checked(10)?;
    let (time, rest) = rest.strip_prefix(['T', 't', ' '])?.split_at_checked(8)?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    // A leap second is treated as the first second of the next minute.
    let is_date = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    if !is_date || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (micros, zone) = fraction(rest)?;
    let seconds = days_since_epoch(year, month, day)? * SECONDS_PER_DAY
        + u64::from(hour) * 3600
        + u64::from(minute) * 60
        + u64::from(second);
    let local = i64::try_from(seconds).ok()?;
    let seconds = u64::try_from(local - offset_seconds(zone)?).ok()?;
    Some(seconds * MICROS_PER_SECOND + micros)
}

/// Parses three numbers with exactly these numbers of digits, separated by `sign`.
fn numbers(text: &str, sign: char, digits: [usize; 3]) -> Option<[u32; 3]> {
    let mut parts = text.split(sign);
    let mut next = |digits: usize| {
        let part = parts.next().filter(|part| part.len() == digits)?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let [a, b, c] = digits;
    Some([next(a)?, next(b)?, next(c)?])
}

/// Parses the fraction at the start of `text`, if any. Returns microseconds and the rest of the
/// text.
fn fraction(text: &str) -> Option<(u64, &str)> {
    let Some(rest) = text.strip_prefix(['.', ',']) else { return Some((0, text)) };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, zone) = rest.split_at(end);
    let known =
        digits.get(..digits.len().min(FRACTION_DIGITS)).filter(|known| !known.is_empty())?;
    let micros: u64 = format!("{known:0<FRACTION_DIGITS$}").parse().ok()?;
    Some((micros, zone))
}

fn offset_seconds(zone: &str) -> Option<i64> {
    let sign = match zone.chars().next()? {
        'Z' | 'z' if zone.len() == 1 => return Some(0),
        '+' => 1,
        '-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let number = |text: &str| match text.as_bytes() {
        [b'0'..=b'9', b'0'..=b'9'] => text.parse::<i64>().ok(),
        _ => None,
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn days_of(year: u32, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

fn is_leap(year: u32) -> bool {
    (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
}

fn days_since_epoch(year: u32, month: u32, day: u32) -> Option<u64> {
    let before = year.checked_sub(1).filter(|_| year >= 1970)?;
    let leaps = |years: u32| years / 4 - years / 100 + years / 400;
    let years = u64::from(year - 1970) * 365 + u64::from(leaps(before) - leaps(1969));
    let months: u32 = (1..month).map(|month| days_of(year, month)).sum();
    Some(years + u64::from(months) + u64::from(day) - 1)
}

/// Formats a time as in RFC 3339, to the second.
pub(super) fn show(unix_us: u64) -> String {
    let seconds = unix_us / MICROS_PER_SECOND;
    let mut days = seconds / SECONDS_PER_DAY;
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days >= u64::from(days_of(year, month)) {
        days -= u64::from(days_of(year, month));
        month += 1;
    }
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{:02}Z", days + 1, seconds % 60)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_read_as_rfc_3339_has_them() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2016-04-15T20:17:00.310Z", 1_460_751_420_310_000),
            ("2016-04-15 20:17:00.3101239Z", 1_460_751_420_310_123),
            ("2016-04-15T22:17:00+02:00", 1_460_751_420_000_000),
            ("2016-04-15T14:47:00-05:30", 1_460_751_420_000_000),
            ("2024-02-29T23:59:60Z", 1_709_251_200_000_000),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000_000),
        ] {
            assert_eq!(parse(text), Some(micros), "{text}");
        }
        for text in [
            "",
            "2016-04-15",
            "2016-04-15T20:17:00",
            "2016-04-15T20:17:00.Z",
            "2016-13-15T20:17:00Z",
            "2023-02-29T20:17:00Z",
            "2016-04-00T20:17:00Z",
            "2016-04-15T24:17:00Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+00:01",
            "2016-04-15T20:17:00+2:00",
            "2016-04-15T20:17:00Zé",
            "15/Apr/2016:20:17:00 +0000",
            "2016-+4-15T20:17:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_numbers_size_tells_its_unit() {
        let micros = Some(1_460_751_420_310_000);
        for value in [
            json!(1_460_751_420.31),
            json!(1_460_751_420_310_u64),
            json!(1_460_751_420_310_000_u64),
            json!(1_460_751_420_310_000_000_u64),
            json!("1460751420.31"),
        ] {
            assert_eq!(of_json(&value), micros, "{value}");
        }
        for value in [json!(-1), json!(null), json!([1]), json!("x"), json!(1e300), json!("inf")] {
            assert_eq!(of_json(&value), None, "{value}");
        }
    }

    #[test]
    fn what_is_shown_is_what_was_read() {
        for text in [
            "1970-01-01T00:00:00Z",
            "1999-12-31T23:59:59Z",
            "2000-02-29T01:02:03Z",
            "2026-11-21T10:00:00Z",
        ] {
            assert_eq!(show(parse(text).unwrap()), text);
        }
    }
}
