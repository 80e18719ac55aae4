//! Matchers of strings: `envoy.type.matcher.v3.StringMatcher`.

use envoy_types::pb::envoy::r#type::matcher::v3 as pb;
use memchr::memmem;

use super::fault::{Faults, Place, expect_text};
use super::re2::FullMatch;

use pb::string_matcher::MatchPattern;

/// A condition on a value.
#[derive(Debug)]
pub(super) struct StringMatcher {
    pattern: Pattern,
    /// Letters of ASCII match in either case; the pattern's are in lower case then. Without effect
    /// on a regex.
    ignore_case: bool,
}

#[derive(Debug)]
enum Pattern {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Suffix(Vec<u8>),
    Contains(Box<memmem::Finder<'static>>),
    Regex(FullMatch),
}

impl StringMatcher {
    pub(super) fn compile(
        message: &pb::StringMatcher,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let ignore_case = message.ignore_case;
        let mut text = |text: &str, field, of: fn(&str, bool) -> Self| {
            expect_text(text, place, field, faults).map(|text| of(&text, ignore_case))
        };
        match &message.match_pattern {
            Some(MatchPattern::Exact(value)) => Some(Self::exact(value, ignore_case)),
            Some(MatchPattern::Prefix(value)) => text(value, "prefix", Self::prefix),
            Some(MatchPattern::Suffix(value)) => text(value, "suffix", Self::suffix),
            Some(MatchPattern::Contains(value)) => text(value, "contains", Self::contains),
            Some(MatchPattern::SafeRegex(regex)) => {
                FullMatch::compile(regex, &place.field("safe_regex"), faults).map(Self::regex)
            }
            Some(MatchPattern::Custom(_)) => {
                let text = "a module of Envoy cannot run extensions; expected exact, prefix, \
                            suffix, contains or safe_regex";
                faults.add(place.field("custom"), text);
                None
            }
            None => {
                faults.add(place, "empty; expected exact, prefix, suffix, contains or safe_regex");
                None
            }
        }
    }

    pub(super) fn exact(value: &str, ignore_case: bool) -> Self {
        Self { pattern: Pattern::Exact(folded(value, ignore_case)), ignore_case }
    }

    pub(super) fn prefix(value: &str, ignore_case: bool) -> Self {
        Self { pattern: Pattern::Prefix(folded(value, ignore_case)), ignore_case }
    }

    pub(super) fn suffix(value: &str, ignore_case: bool) -> Self {
        Self { pattern: Pattern::Suffix(folded(value, ignore_case)), ignore_case }
    }

    pub(super) fn contains(value: &str, ignore_case: bool) -> Self {
        let finder = memmem::Finder::new(&folded(value, ignore_case)).into_owned();
        Self { pattern: Pattern::Contains(Box::new(finder)), ignore_case }
    }

    pub(super) fn regex(regex: FullMatch) -> Self {
        Self { pattern: Pattern::Regex(regex), ignore_case: false }
    }

    pub(super) fn matches(&self, value: &[u8]) -> bool {
        let same = |part: Option<&[u8]>, pattern: &[u8]| {
            part.is_some_and(|part| match self.ignore_case {
                true => part.eq_ignore_ascii_case(pattern),
                false => part == pattern,
            })
        };
        match &self.pattern {
            Pattern::Exact(pattern) => same(Some(value), pattern),
            Pattern::Prefix(pattern) => same(value.get(..pattern.len()), pattern),
            Pattern::Suffix(pattern) => {
                let at = value.len().checked_sub(pattern.len());
                same(at.and_then(|at| value.get(at..)), pattern)
            }
            Pattern::Contains(finder) if self.ignore_case => {
                finder.find(&value.to_ascii_lowercase()).is_some()
            }
            Pattern::Contains(finder) => finder.find(value).is_some(),
            Pattern::Regex(regex) => regex.matches(value),
        }
    }
}

fn folded(value: &str, ignore_case: bool) -> Vec<u8> {
    if ignore_case { value.to_ascii_lowercase() } else { value.to_owned() }.into_bytes()
}
