//! Patterns with `*`: each stands for any bytes, none too. Matching allocates nothing.
//!
//! The text before the first `*` must start the value and the text after the last must end it; the
//! pieces between are found left to right, each at its first place after the one before. For
//! patterns that know nothing but `*` this finds a match whenever there is one.

/// A text with at least one `*`, cut at each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    prefix: Box<str>,
    middle: Box<[Box<str>]>,
    suffix: Box<str>,
}

/// The text `key_value` without joining it.
#[derive(Debug, Clone, Copy)]
struct Joined<'a> {
    pieces: [&'a [u8]; 3],
}

// === impl Pattern ===

impl Pattern {
    /// The pattern that `text` is; `None` if there is no `*` in it.
    pub(super) fn parse(text: &str) -> Option<Pattern> {
        let (prefix, rest) = text.split_once('*')?;
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        // Between two neighbouring stars there is nothing to find.
        let middle = middle.split('*').filter(|piece| !piece.is_empty()).map(Box::from).collect();
        Some(Pattern { prefix: prefix.into(), middle, suffix: suffix.into() })
    }

    /// Whether it matches `text`.
    pub(super) fn matches(&self, text: &str) -> bool {
        let rest = text.strip_prefix(&*self.prefix).and_then(|t| t.strip_suffix(&*self.suffix));
        let Some(mut rest) = rest else { return false };
        for piece in &self.middle {
            let Some((_, after)) = rest.split_once(&**piece) else { return false };
            rest = after;
        }
        true
    }

    /// Whether it matches the text `key_value`.
    pub(super) fn matches_joined(&self, key: &str, value: &str) -> bool {
        let text = Joined { pieces: [key.as_bytes(), b"_", value.as_bytes()] };
        let mut from = self.prefix.len();
        let Some(end) = text.len().checked_sub(self.suffix.len()) else { return false };
        if from > end || !text.has(0, &self.prefix) || !text.has(end, &self.suffix) {
            return false;
        }
        for piece in &self.middle {
            let Some(last) = end.checked_sub(piece.len()) else { return false };
            let Some(at) = (from..=last).find(|at| text.has(*at, piece)) else { return false };
            from = at + piece.len();
        }
        true
    }
}

// === impl Joined ===

impl Joined<'_> {
    fn len(self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Whether `wanted` stands at `at`.
    fn has(self, mut at: usize, wanted: &str) -> bool {
        let mut wanted = wanted.as_bytes();
        for piece in self.pieces {
            let Some(here) = piece.get(at..) else {
                at -= piece.len();
                continue;
            };
            let common = here.len().min(wanted.len());
            let (head, tail) = wanted.split_at(common);
            if here.get(..common) != Some(head) {
                return false;
            }
            wanted = tail;
            at = 0;
        }
        wanted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Pattern;

    /// Tries every length for every star.
    fn oracle(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some((b'*', pattern)), _) => {
                (0..=text.len()).any(|skipped| oracle(pattern, &text[skipped..]))
            }
            (Some((wanted, pattern)), Some((found, text))) => {
                wanted == found && oracle(pattern, text)
            }
            (Some(_), None) => false,
        }
    }

    #[test]
    fn stars_stand_for_any_bytes_anywhere() {
        let table = [
            ("foo*", "foo", true),
            ("foo*", "foo1", true),
            ("foo*", "fo", false),
            ("*", "", true),
            ("**", "x", true),
            ("*b", "ab", true),
            ("*b", "ba", false),
            ("bar*b", "barab", true),
            ("bar*b", "barb", true),
            ("bar*b", "bara", false),
            ("bar*b", "xbarb", false),
            ("ab*ba", "aba", false),
            ("foo*bar*baz", "foo123bar456baz", true),
            ("foo*bar*baz", "foobarbaz", true),
            ("foo*bar*baz", "foo123baz", false),
            ("a*A", "aa", false),
            ("*é*", "caféx", true),
        ];
        for (pattern, text, matches) in table {
            let parsed = Pattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(text), matches, "{pattern} {text}");
        }
        assert_eq!(Pattern::parse("plain"), None);
    }

    #[test]
    fn a_pattern_over_key_and_value_sees_them_joined() {
        let table = [
            ("path_*", "path", "x", true),
            ("path_*", "path", "", true),
            ("pa*", "path", "x", true),
            ("*h_x*", "path", "xyz", true),
            ("*y_x*", "path", "xyz", false),
            ("a*b", "a", "b", true),
            ("a_b*a_b", "a", "b", false),
            ("path*", "pat", "h", false),
        ];
        for (pattern, key, value, matches) in table {
            let parsed = Pattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches_joined(key, value), matches, "{pattern} {key} {value}");
        }
    }

    proptest! {
        #[test]
        fn matches_what_a_naive_search_matches(
            pattern in "[ab_é*]{0,4}\\*[ab_*]{0,4}",
            key in "[ab_é]{0,6}",
            value in "[ab_é]{0,6}",
        ) {
            let parsed = Pattern::parse(&pattern).unwrap();
            prop_assert_eq!(parsed.matches(&value), oracle(pattern.as_bytes(), value.as_bytes()));
            let joined = format!("{key}_{value}");
            prop_assert_eq!(
                parsed.matches_joined(&key, &value),
                oracle(pattern.as_bytes(), joined.as_bytes())
            );
        }
    }
}
