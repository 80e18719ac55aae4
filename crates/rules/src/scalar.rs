//! The meaning of an unquoted YAML scalar, as Go's yaml.v2 reads it (YAML 1.1 without base 60). The
//! reference uses yaml.v2, so `007`, `yes` and `1_000` have the same meaning here and there.

/// The meaning of a scalar. The text itself is kept separately.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Meaning {
    /// Empty, `~`, `null`.
    Null,
    /// `true`, `yes`, `on`, `y` and their opposites.
    Bool(bool),
    /// An integer that fits 64 bits with a sign.
    Int(i64),
    /// An integer that fits 64 bits only without a sign.
    Big(u64),
    /// A number with a point or an exponent, or too large for an integer.
    Float(f64),
    /// Text, including dates.
    Text,
    /// `<<`: as a key, merges the map that is its value.
    Merge,
}

// === impl Meaning ===

impl Meaning {
    /// Returns the meaning of unquoted, untagged `text`.
    pub(crate) fn of(text: &str) -> Meaning {
        match text.as_bytes().first() {
            None => Meaning::Null,
            Some(b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~') => {
                Meaning::of_word(text)
            }
            Some(b'.') => Meaning::of_point(text),
            Some(b'+' | b'-' | b'0'..=b'9') => Meaning::of_number(text),
            Some(b'<') if text == "<<" => Meaning::Merge,
            Some(_) => Meaning::Text,
        }
    }

    fn of_word(text: &str) -> Meaning {
        match text {
            "~" | "null" | "Null" | "NULL" => Meaning::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                Meaning::Bool(true)
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => Meaning::Bool(false),
            _ => Meaning::Text,
        }
    }

    fn of_point(text: &str) -> Meaning {
        match text {
            ".nan" | ".NaN" | ".NAN" => Meaning::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" => Meaning::Float(f64::INFINITY),
            _ => Meaning::of_float(text),
        }
    }

    fn of_number(text: &str) -> Meaning {
        match text {
            "+.inf" | "+.Inf" | "+.INF" => return Meaning::Float(f64::INFINITY),
            "-.inf" | "-.Inf" | "-.INF" => return Meaning::Float(f64::NEG_INFINITY),
            _ => {}
        }
        let plain = text.replace('_', "");
        let (negative, digits) = match plain.as_bytes().first() {
            Some(b'-') => (true, &plain[1..]),
            Some(b'+') => (false, &plain[1..]),
            _ => (false, &plain[..]),
        };
        let signed = digits.len() < plain.len();
        match magnitude(digits) {
            Some(number) if negative => match 0_i64.checked_sub_unsigned(number) {
                Some(number) => Meaning::Int(number),
                None => Meaning::of_float(&plain),
            },
            Some(number) => match i64::try_from(number) {
                Ok(number) => Meaning::Int(number),
                Err(_) if signed => Meaning::of_float(&plain),
                Err(_) => Meaning::Big(number),
            },
            None => Meaning::of_float(&plain),
        }
    }

    /// Digits with at most one point and an exponent are a number; anything else, and a number that
    /// overflows, is text.
    fn of_float(text: &str) -> Meaning {
        let numeric = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && text.chars().all(numeric) => Meaning::Float(number),
            _ => Meaning::Text,
        }
    }
}

/// Parses digits with Go's base prefixes: `0x`, `0o`, `0b`; a leading 0 means octal.
fn magnitude(digits: &str) -> Option<u64> {
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    let (base, rest) = match lower.as_deref() {
        Some("0x") if digits.len() > 2 => (16, &digits[2..]),
        Some("0o") if digits.len() > 2 => (8, &digits[2..]),
        Some("0b") if digits.len() > 2 => (2, &digits[2..]),
        Some(two) if two.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    // `from_str_radix` would accept a second sign.
    let is_number = !rest.is_empty() && rest.bytes().all(|b| char::from(b).is_digit(base));
    is_number.then(|| u64::from_str_radix(rest, base).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::Meaning::{self, Big, Bool, Float, Int, Null, Text};

    #[test]
    fn scalars_have_the_types_they_have_in_the_reference() {
        let table = [
            ("", Null),
            ("~", Null),
            ("Null", Null),
            ("nULL", Text),
            ("y", Bool(true)),
            ("Yes", Bool(true)),
            ("ON", Bool(true)),
            ("tRue", Text),
            ("off", Bool(false)),
            ("N", Bool(false)),
            ("0", Int(0)),
            ("007", Int(7)),
            ("010", Int(8)),
            ("08", Float(8.0)),
            ("0x1F", Int(31)),
            ("0X1f", Int(31)),
            ("0b101", Int(5)),
            ("0o17", Int(15)),
            ("0x", Text),
            ("1_000", Int(1000)),
            ("+5", Int(5)),
            ("-5", Int(-5)),
            ("--5", Text),
            ("+-5", Text),
            ("-", Text),
            ("9223372036854775807", Int(i64::MAX)),
            ("9223372036854775808", Big(1 << 63)),
            ("-9223372036854775808", Int(i64::MIN)),
            ("18446744073709551615", Big(u64::MAX)),
            ("18446744073709551616", Float(18_446_744_073_709_551_616.0)),
            ("1.5", Float(1.5)),
            ("1.", Float(1.0)),
            (".5", Float(0.5)),
            ("-.5e3", Float(-500.0)),
            ("1e3", Float(1000.0)),
            ("1e999", Text),
            (".inf", Float(f64::INFINITY)),
            ("-.INF", Float(f64::NEG_INFINITY)),
            (".", Text),
            ("..", Text),
            ("1.2.3.4", Text),
            ("2024-01-31", Text),
            ("1:30", Text),
            ("<<", Meaning::Merge),
            ("infinity", Text),
            ("nan", Text),
            ("é", Text),
            ("0é", Text),
            ("/a", Text),
        ];
        for (text, meaning) in table {
            assert_eq!(Meaning::of(text), meaning, "{text}");
        }
        assert!(matches!(Meaning::of(".nan"), Float(number) if number.is_nan()));
    }
}
