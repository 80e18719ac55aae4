//! Matchers of headers.

use std::borrow::Cow;

use envoy_types::pb::envoy::config::route::v3 as pb;

use super::Stream;
use super::fault::{Faults, Place, expect_text};
use super::re2::FullMatch;
use super::strings::StringMatcher;

use pb::header_matcher::HeaderMatchSpecifier as Specifier;

/// A condition on one header.
#[derive(Debug)]
pub(super) struct HeaderMatcher {
    name: String,
    condition: Condition,
    invert_match: bool,
    treat_missing_as_empty: bool,
}

#[derive(Debug)]
enum Condition {
    /// The header is there, or is not.
    Present(bool),
    /// It is there with any value: an empty `exact_match`.
    AnyValue,
    /// Its value is a whole number, the first or above it, below the second.
    Range(i64, i64),
    Text(StringMatcher),
}

/// Returns the name in lower case, as Envoy looks it up.
pub(super) fn header_name(
    name: &str,
    place: &Place<'_>,
    field: &str,
    faults: &mut Faults,
) -> Option<String> {
    Some(expect_text(name, place, field, faults)?.to_ascii_lowercase())
}

/// All values of a request header, joined by commas.
pub(super) fn all_values<'s>(stream: &'s impl Stream, name: &str) -> Option<Cow<'s, [u8]>> {
    let values = stream.request_headers(name);
    match values[..] {
        [] => None,
        [value] => Some(Cow::Borrowed(value)),
        _ => Some(Cow::Owned(values.join(&b","[..]))),
    }
}

impl HeaderMatcher {
    pub(super) fn compile(
        message: &pb::HeaderMatcher,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let name = header_name(&message.name, place, "name", faults);
        let condition = match &message.header_match_specifier {
            None => Some(Condition::Present(true)),
            Some(specifier) => Condition::compile(specifier, place, faults),
        };
        Some(Self {
            name: name?,
            condition: condition?,
            invert_match: message.invert_match,
            treat_missing_as_empty: message.treat_missing_header_as_empty,
        })
    }

    /// Whether any value of the header matches, or if inverted none does. Without the header, only
    /// a matcher of presence can match, unless that stands for an empty value.
    pub(super) fn matches(&self, stream: &impl Stream) -> bool {
        let mut values = stream.request_headers(&self.name);
        if values.is_empty() && self.treat_missing_as_empty {
            values.push(&[]);
        }
        let holds = match &self.condition {
            Condition::Present(expected) => values.is_empty() != *expected,
            _ if values.is_empty() => return false,
            condition => values.iter().any(|value| condition.holds(value)),
        };
        holds != self.invert_match
    }
}

impl Condition {
    #[expect(deprecated, reason = "configurations still use the older fields")]
    fn compile(specifier: &Specifier, place: &Place<'_>, faults: &mut Faults) -> Option<Self> {
        let mut text = |text: &str, field, of: fn(&str, bool) -> StringMatcher| {
            expect_text(text, place, field, faults).map(|text| Self::Text(of(&text, false)))
        };
        match specifier {
            Specifier::ExactMatch(value) if value.is_empty() => Some(Self::AnyValue),
            Specifier::ExactMatch(value) => text(value, "exact_match", StringMatcher::exact),
            Specifier::PrefixMatch(value) => text(value, "prefix_match", StringMatcher::prefix),
            Specifier::SuffixMatch(value) => text(value, "suffix_match", StringMatcher::suffix),
            Specifier::ContainsMatch(value) => {
                text(value, "contains_match", StringMatcher::contains)
            }
            Specifier::PresentMatch(expected) => Some(Self::Present(*expected)),
            Specifier::RangeMatch(range) => Some(Self::Range(range.start, range.end)),
            Specifier::SafeRegexMatch(regex) => {
                let regex = FullMatch::compile(regex, &place.field("safe_regex_match"), faults)?;
                Some(Self::Text(StringMatcher::regex(regex)))
            }
            Specifier::StringMatch(it) => {
                StringMatcher::compile(it, &place.field("string_match"), faults).map(Self::Text)
            }
        }
    }

    /// Whether a value of the header matches.
    fn holds(&self, value: &[u8]) -> bool {
        match self {
            Self::Present(_) | Self::AnyValue => true,
            Self::Range(start, end) => {
                number(value).is_some_and(|number| (*start..*end).contains(&number))
            }
            Self::Text(matcher) => matcher.matches(value),
        }
    }
}

/// A whole number in base 10, perhaps with a sign.
fn number(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value.trim_ascii()).ok()?.parse().ok()
}
