//! Patterns with `*`: each `*` stands for any bytes, including none. Matching allocates nothing.
//!
//! The text before the first `*` must start the value, and the text after the last must end it. The
//! pieces between are searched from left to right, each at its first place after the previous
//! piece. As `*` is the only wildcard, this finds a match whenever there is one.

use memchr::memmem;

/// A text with at least one `*`, split at each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    prefix: Box<[u8]>,
    middle: Box<[Box<[u8]>]>,
    suffix: Box<[u8]>,
}

// === impl Pattern ===

impl Pattern {
    /// Parses `text`; `None` if it has no `*`.
    pub(super) fn parse(text: &str) -> Option<Pattern> {
        let (prefix, rest) = text.split_once('*')?;
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        // Adjacent stars enclose an empty piece, which is skipped.
        let pieces = middle.split('*').filter(|piece| !piece.is_empty());
        let middle = pieces.map(|piece| Box::from(piece.as_bytes())).collect();
        let [prefix, suffix] = [prefix, suffix].map(|end| Box::from(end.as_bytes()));
        Some(Pattern { prefix, middle, suffix })
    }

    /// Returns whether the pattern matches `text`.
    pub(super) fn matches(&self, text: &[u8]) -> bool {
        let starts = self.prefix.is_empty() || text.starts_with(&self.prefix);
        if !starts || !self.ends_fit(text) {
            return false;
        }
        let between = text.get(self.prefix.len()..text.len() - self.suffix.len());
        let Some(mut rest) = between else { return false };
        self.middle.iter().all(|piece| {
            let found = memmem::find(rest, piece);
            rest = found.and_then(|at| rest.get(at + piece.len()..)).unwrap_or_default();
            found.is_some()
        })
    }

    /// Returns whether `text` starts and ends like the pattern, and is long enough for both ends.
    ///
    /// Most patterns lack an end, and an empty end is not compared: where `memcmp` uses masked
    /// loads (glibc on AVX-512), comparing zero bytes at the address of an empty box costs a
    /// hundred times as much.
    pub(super) fn ends_fit(&self, text: &[u8]) -> bool {
        text.len() >= self.prefix.len() + self.suffix.len()
            && (self.suffix.is_empty() || text.ends_with(&self.suffix))
    }

    /// Whether there is text after the first `*`.
    pub(super) fn is_searched(&self) -> bool {
        !self.middle.is_empty() || !self.suffix.is_empty()
    }

    /// Returns the text before the first `*`.
    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Returns the pieces between the stars, in order; none of them is empty.
    pub(super) fn middle(&self) -> &[Box<[u8]>] {
        &self.middle
    }

    /// Returns the text after the last `*`.
    pub(super) fn suffix(&self) -> &[u8] {
        &self.suffix
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
            assert_eq!(parsed.matches(text.as_bytes()), matches, "{pattern} {text}");
        }
        assert_eq!(Pattern::parse("plain"), None);
    }

    proptest! {
        #[test]
        fn matches_what_a_naive_search_matches(
            pattern in "[ab_é*]{0,4}\\*[ab_*]{0,4}",
            text in "[ab_é]{0,8}",
        ) {
            let parsed = Pattern::parse(&pattern).unwrap();
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(parsed.matches(text), oracle(pattern, text));
        }
    }
}
