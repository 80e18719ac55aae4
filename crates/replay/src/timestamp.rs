//! Parses the times in logs.

use jiff::Timestamp;
use serde_json::Value;

/// Upper bounds of numbers that are read as seconds, milliseconds and microseconds since the Unix
/// epoch; larger numbers are nanoseconds. Each bound is the year 5138 in its unit, and 1973 in the
/// next.
const SECONDS_MAX: f64 = 1e11;
const MILLIS_MAX: f64 = 1e14;
const MICROS_MAX: f64 = 1e17;

/// Returns the time in a JSON value in microseconds since the Unix epoch: text in the format of RFC
/// 3339, or a number since the epoch, whose size determines its unit. `None` for anything else, and
/// before 1970.
pub fn of_json(value: &Value) -> Option<u64> {
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
pub fn parse(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Timestamp>().ok()?.as_microsecond()).ok()
}

/// Formats a time as in RFC 3339, to the second.
pub fn show(unix_us: u64) -> String {
    let time = i64::try_from(unix_us).ok().and_then(|us| Timestamp::from_microsecond(us).ok());
    time.map_or_else(|| format!("{unix_us} us"), |time| format!("{time:.0}"))
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
            ("2024-02-29T23:59:60Z", 1_709_251_199_000_000),
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
    fn the_size_of_a_number_determines_its_unit() {
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
    fn a_time_is_printed_as_it_was_read() {
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
