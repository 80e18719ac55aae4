//! Parses durations as people write them.

use std::time::Duration;

/// Parses a duration as Go's `time.ParseDuration` does, except for negative ones: `20ms`, `1.5s`,
/// `1h30m`, `0`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (term, after) = duration_term(rest)?;
        nanos = nanos.checked_add(term)?;
        rest = after;
    }
    // Go holds a duration in an i64 of nanoseconds: 292 years.
    let nanos = i64::try_from(nanos).ok()?;
    Some(Duration::from_nanos(nanos.unsigned_abs()))
}

/// Parses one number with its unit. Returns nanoseconds and the rest of the text.
fn duration_term(text: &str) -> Option<(u128, &str)> {
    /// Digits of a fraction that are read. Further digits are below a nanosecond for every unit.
    const FRACTION_DIGITS_MAX: usize = 18;
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => split_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let unit_end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let unit: u128 = match unit {
        "ns" => 1,
        // U+00B5 micro sign, U+03BC Greek mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let (mut digits, mut scale) = (0, 1);
    for digit in fraction.bytes().take(FRACTION_DIGITS_MAX) {
        digits = digits * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    Some((u128::from(whole) * unit + digits * unit / scale, rest))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let cases: [(&str, u64); 17] = [
            ("0", 0),
            ("+0", 0),
            ("0s", 0),
            ("20ms", 20_000_000),
            ("10s", 10_000_000_000),
            ("+5s", 5_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("1m0.5s", 60_500_000_000),
            ("3us", 3_000),
            ("3\u{b5}s", 3_000),
            ("3\u{3bc}s", 3_000),
            ("0.9ns", 0),
            ("0.333333333333333333333h", 1_199_999_999_999),
            ("9223372036854775807ns", i64::MAX as u64),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse_duration(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        let wrong = [
            "",
            "5",
            "s",
            ".s",
            "+",
            "-",
            "-5s",
            "1x",
            "1s ",
            " 1s",
            "1 s",
            "1d",
            "1s1",
            "1.2.3s",
            "1S",
            "9223372036854775808ns",
            "99999999999999999999s",
            "2562048h",
            "٣s",
        ];
        for text in wrong {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }
}
