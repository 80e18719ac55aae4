//! Bounds the length of label values.
//!
//! A label of the reference implementation's series contains text from a request, as long as a
//! client chooses. It is kept for as long as the process runs, and is part of every scrape.

use std::borrow::Cow;

/// Maximum size in bytes of a label's value, before the exposition format escapes it. Paths of
/// rules are nearly always shorter; Prometheus itself accepts any length.
pub(super) const VALUE_BYTES_MAX: usize = 256;

/// Number of hexadecimal digits of the hash that replaces the part cut off.
const HASH_DIGITS: usize = 16;

/// Returns `value` for use in a label. A longer value is cut and ends in `~` and a hash of the
/// whole, so that values with the same beginning differ, and a value has the same label on every
/// pod.
pub(super) fn bounded(value: &str) -> Cow<'_, str> {
    if value.len() <= VALUE_BYTES_MAX {
        return Cow::Borrowed(value);
    }
    let hash = blake3::hash(value.as_bytes()).to_hex();
    let kept = value.floor_char_boundary(VALUE_BYTES_MAX - HASH_DIGITS - 1);
    Cow::Owned(format!("{}~{}", &value[..kept], &hash[..HASH_DIGITS]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut_at_a_character_and_stays_apart_from_others() {
        for value in ["", "short", &"x".repeat(VALUE_BYTES_MAX)] {
            assert_eq!(bounded(value), value);
        }
        for unit in ["x", "é", "€", "🦀"] {
            let long = unit.repeat(20_000);
            let alike = ["", "a", "b"].map(|end| long.clone() + end);
            let shown = [0, 1, 2].map(|at| bounded(&alike[at]));
            let kept = VALUE_BYTES_MAX - HASH_DIGITS - unit.len();
            for it in &shown {
                assert!((kept + HASH_DIGITS..=VALUE_BYTES_MAX).contains(&it.len()), "{it}");
                assert!(it.starts_with(&unit.repeat(50)) && it.contains('~'), "{it}");
            }
            assert!(shown[0] != shown[1] && shown[1] != shown[2] && shown[0] != shown[2]);
            assert_eq!(shown[0], bounded(&long), "the same value, the same label");
        }
    }
}
