//! Matchers of strings, of headers and of parameters of the query, and how the values of the last
//! two are found in a stream.

use std::borrow::Cow;

use envoy_types::pb::envoy::config::route::v3 as pb;
use envoy_types::pb::envoy::r#type::matcher::v3 as matcher_pb;
use memchr::memmem;

use super::Stream;
use super::fault::{Faults, Place, expect_text};
use super::re2::FullMatch;

use matcher_pb::string_matcher::MatchPattern;
use pb::header_matcher::HeaderMatchSpecifier as HeaderSpecifier;
use pb::query_parameter_matcher::QueryParameterMatchSpecifier as QuerySpecifier;

/// A condition on a value (`envoy.type.matcher.v3.StringMatcher`).
#[derive(Debug)]
pub struct StringMatcher {
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

/// A condition on one header.
#[derive(Debug)]
pub struct HeaderMatcher {
    name: String,
    condition: HeaderCondition,
    invert_match: bool,
    treat_missing_as_empty: bool,
}

#[derive(Debug)]
enum HeaderCondition {
    /// The header is there, or is not.
    Present(bool),
    /// The header is there with any value: an empty `exact_match`.
    AnyValue,
    /// The header's value is a whole number, at least the first number and below the second.
    Range(i64, i64),
    Text(StringMatcher),
}

/// A condition on the first value of one parameter.
#[derive(Debug)]
pub struct QueryMatcher {
    name: String,
    condition: QueryCondition,
}

#[derive(Debug)]
enum QueryCondition {
    Present(bool),
    Text(StringMatcher),
}

// === impl StringMatcher ===

impl StringMatcher {
    pub fn compile(
        message: &matcher_pb::StringMatcher,
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

    pub fn exact(value: &str, ignore_case: bool) -> Self {
        Self { pattern: Pattern::Exact(folded(value, ignore_case)), ignore_case }
    }

    pub fn prefix(value: &str, ignore_case: bool) -> Self {
        Self { pattern: Pattern::Prefix(folded(value, ignore_case)), ignore_case }
    }

    pub fn suffix(value: &str, ignore_case: bool) -> Self {
        Self { pattern: Pattern::Suffix(folded(value, ignore_case)), ignore_case }
    }

    pub fn contains(value: &str, ignore_case: bool) -> Self {
        let finder = memmem::Finder::new(&folded(value, ignore_case)).into_owned();
        Self { pattern: Pattern::Contains(Box::new(finder)), ignore_case }
    }

    pub fn regex(regex: FullMatch) -> Self {
        Self { pattern: Pattern::Regex(regex), ignore_case: false }
    }

    pub fn matches(&self, value: &[u8]) -> bool {
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

// === impl HeaderMatcher ===

impl HeaderMatcher {
    pub fn compile(
        message: &pb::HeaderMatcher,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let name = header_name(&message.name, place, "name", faults);
        let condition = match &message.header_match_specifier {
            None => Some(HeaderCondition::Present(true)),
            Some(specifier) => HeaderCondition::compile(specifier, place, faults),
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
    pub fn matches(&self, stream: &impl Stream) -> bool {
        let mut values = stream.request_headers(&self.name);
        if values.is_empty() && self.treat_missing_as_empty {
            values.push(&[]);
        }
        let holds = match &self.condition {
            HeaderCondition::Present(expected) => values.is_empty() != *expected,
            _ if values.is_empty() => return false,
            condition => values.iter().any(|value| condition.holds(value)),
        };
        holds != self.invert_match
    }
}

// === impl HeaderCondition ===

impl HeaderCondition {
    #[expect(deprecated, reason = "configurations still use the older fields")]
    fn compile(
        specifier: &HeaderSpecifier,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let mut text = |text: &str, field, of: fn(&str, bool) -> StringMatcher| {
            expect_text(text, place, field, faults).map(|text| Self::Text(of(&text, false)))
        };
        match specifier {
            HeaderSpecifier::ExactMatch(value) if value.is_empty() => Some(Self::AnyValue),
            HeaderSpecifier::ExactMatch(value) => text(value, "exact_match", StringMatcher::exact),
            HeaderSpecifier::PrefixMatch(value) => {
                text(value, "prefix_match", StringMatcher::prefix)
            }
            HeaderSpecifier::SuffixMatch(value) => {
                text(value, "suffix_match", StringMatcher::suffix)
            }
            HeaderSpecifier::ContainsMatch(value) => {
                text(value, "contains_match", StringMatcher::contains)
            }
            HeaderSpecifier::PresentMatch(expected) => Some(Self::Present(*expected)),
            HeaderSpecifier::RangeMatch(range) => Some(Self::Range(range.start, range.end)),
            HeaderSpecifier::SafeRegexMatch(regex) => {
                let regex = FullMatch::compile(regex, &place.field("safe_regex_match"), faults)?;
                Some(Self::Text(StringMatcher::regex(regex)))
            }
            HeaderSpecifier::StringMatch(it) => {
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

/// Returns the name in lower case, as Envoy looks it up.
pub fn header_name(
    name: &str,
    place: &Place<'_>,
    field: &str,
    faults: &mut Faults,
) -> Option<String> {
    Some(expect_text(name, place, field, faults)?.to_ascii_lowercase())
}

/// All values of a request header, joined by commas.
pub fn header_values<'s>(stream: &'s impl Stream, name: &str) -> Option<Cow<'s, [u8]>> {
    let values = stream.request_headers(name);
    match values[..] {
        [] => None,
        [value] => Some(Cow::Borrowed(value)),
        _ => Some(Cow::Owned(values.join(&b","[..]))),
    }
}

// === impl QueryMatcher ===

impl QueryMatcher {
    pub fn compile(
        message: &pb::QueryParameterMatcher,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let name = expect_text(&message.name, place, "name", faults);
        let condition = match &message.query_parameter_match_specifier {
            None => Some(QueryCondition::Present(true)),
            Some(QuerySpecifier::PresentMatch(expected)) => {
                Some(QueryCondition::Present(*expected))
            }
            Some(QuerySpecifier::StringMatch(it)) => {
                let place = place.field("string_match");
                StringMatcher::compile(it, &place, faults).map(QueryCondition::Text)
            }
        };
        Some(Self { name: name?, condition: condition? })
    }

    pub fn matches(&self, query: &[u8]) -> bool {
        let value = parameter_value(query, &self.name);
        match &self.condition {
            QueryCondition::Present(expected) => value.is_some() == *expected,
            QueryCondition::Text(matcher) => value.is_some_and(|value| matcher.matches(&value)),
        }
    }
}

/// The query of a stream: the text after the first `?` of its path.
pub fn query_of(stream: &impl Stream) -> &[u8] {
    let path = stream.request_header(":path", 0).unwrap_or_default();
    path.iter().position(|byte| *byte == b'?').map_or(&[], |at| &path[at + 1..])
}

/// The first value of a parameter, decoded; empty if it has no `=`.
pub fn parameter_value<'q>(query: &'q [u8], name: &str) -> Option<Cow<'q, [u8]>> {
    query.split(|byte| *byte == b'&').find_map(|parameter| {
        let equals = parameter.iter().position(|byte| *byte == b'=');
        let (key, value) = match equals {
            Some(at) => (&parameter[..at], &parameter[at + 1..]),
            None => (parameter, &[][..]),
        };
        (decoded(key).as_ref() == name.as_bytes()).then(|| decoded(value))
    })
}

/// Replaces each `%` that two hexadecimal digits follow by the byte that they say. A `+` stays.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'%') {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = after;
        match after {
            [high, low, after @ ..] if *first == b'%' => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    decoded.push(high << 4 | low);
                    rest = after;
                }
                _ => decoded.push(*first),
            },
            _ => decoded.push(*first),
        }
    }
    Cow::Owned(decoded)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn first(query: &str, expected: Option<&str>) {
        let found = parameter_value(query.as_bytes(), "a");
        assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{query}");
    }

    #[test]
    fn the_first_value_of_a_parameter_is_decoded() {
        first("a=1", Some("1"));
        first("b=2&a=1&a=3", Some("1"));
        first("%61=x%20y", Some("x y"));
        first("a=x+y", Some("x+y"));
        first("a=b=c", Some("b=c"));
        first("a=100%", Some("100%"));
        first("a=%zz%4", Some("%zz%4"));
        first("a=%%41", Some("%A"));
    }

    #[test]
    fn a_parameter_without_a_value_is_empty() {
        first("a", Some(""));
        first("a=", Some(""));
        first("b&a&", Some(""));
    }

    #[test]
    fn parameters_of_other_names_are_no_match() {
        first("", None);
        first("&", None);
        first("A=1", None);
        first("aa=1&ba=1", None);
    }
}
