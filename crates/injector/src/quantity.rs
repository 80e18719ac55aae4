//! Quantities of Kubernetes, such as `20m` and `64Mi`, as far as they have to be compared.

/// A quantity above zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Quantity {
    /// As written.
    pub(crate) text: String,
    /// In billionths, the smallest unit that Kubernetes knows.
    pub(crate) nanos: u128,
}

/// Suffixes, each with how many billionths it stands for.
const SUFFIXES: [(&str, u128); 16] = [
    ("Ki", NANOS << 10),
    ("Mi", NANOS << 20),
    ("Gi", NANOS << 30),
    ("Ti", NANOS << 40),
    ("Pi", NANOS << 50),
    ("Ei", NANOS << 60),
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("k", NANOS * 1_000),
    ("M", NANOS * 1_000_000),
    ("G", NANOS * 1_000_000_000),
    ("T", NANOS * 1_000_000_000_000),
    ("P", NANOS * 1_000_000_000_000_000),
    ("E", NANOS * 1_000_000_000_000_000_000),
    ("", NANOS),
];
const NANOS: u128 = 1_000_000_000;

/// Maximum digits on each side of the point: with them no product overflows.
const DIGITS_MAX: usize = 9;

// === impl Quantity ===

impl Quantity {
    /// Parses digits, with or without a point, and a suffix. Kubernetes also takes exponents.
    ///
    /// # Errors
    /// What was expected.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let expected = || "expected a quantity above 0, such as 20m or 64Mi".to_owned();
        let nanos = nanos(text).filter(|nanos| *nanos > 0).ok_or_else(expected)?;
        Ok(Self { text: text.to_owned(), nanos })
    }

    /// A number of thousandths, above zero.
    pub(crate) fn of_millis(millis: u32) -> Self {
        Self { text: format!("{millis}m"), nanos: u128::from(millis) * (NANOS / 1000) }
    }
}

fn nanos(text: &str) -> Option<u128> {
    let (number, unit) =
        SUFFIXES.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits =
        |part: &str| part.len() <= DIGITS_MAX && part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || number.ends_with('.') || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let mut nanos = whole.parse::<u128>().ok()?.checked_mul(unit)?;
    let mut part = unit;
    for digit in fraction.bytes() {
        part /= 10;
        nanos = nanos.checked_add(part.checked_mul(u128::from(digit - b'0'))?)?;
    }
    Some(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_any_unit_can_be_compared() {
        for (text, expected) in [
            ("20m", 20_000_000),
            ("0.5", NANOS / 2),
            ("1", NANOS),
            ("1k", 1000 * NANOS),
            ("1Ki", 1024 * NANOS),
            ("64Mi", (64 << 20) * NANOS),
            ("1.5Gi", (3 << 29) * NANOS),
            ("7n", 7),
        ] {
            assert_eq!(Quantity::parse(text).unwrap().nanos, expected, "{text}");
        }
    }

    #[test]
    fn thousandths_are_written_as_kubernetes_reads_them() {
        let quantity = Quantity::of_millis(200);
        assert_eq!(Quantity::parse(&quantity.text), Ok(quantity));
    }

    #[test]
    fn what_the_api_server_would_refuse_is_no_quantity() {
        for text in ["", "0", "0Mi", "-1", "64MB", "64 Mi", ".5", "1.", "m", "Mi", "x", "1.2.3"] {
            let error = Quantity::parse(text).unwrap_err();
            assert!(error.starts_with("expected a quantity above 0"), "{text}: {error}");
        }
        assert!(Quantity::parse("999999999Ei").is_ok(), "the largest does not overflow");
    }
}
