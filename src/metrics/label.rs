//! The length of what labels show.
//!
//! A label of the reference's series carries what was on a request, as long as a client likes; it
//! is kept for as long as the process runs, and is in every scrape.

use std::borrow::Cow;

/// Bytes of a label's value at most, before what the exposition escapes. A path of rules is shorter
/// nearly everywhere; Prometheus itself takes any length.
pub(super) const VALUE_BYTES_MAX: usize = 256;

/// Hexadecimal digits of the hash that stands for what was cut off.
const HASH_DIGITS: usize = 16;

/// `value` as a label shows it: a longer one is cut, and ends in `~` and a hash of all of it, so
/// that two that begin alike stay apart, and one is the same on every pod.
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
