//! Parameters of the query, decoded, and matchers of them.

use std::borrow::Cow;

use envoy_types::pb::envoy::config::route::v3 as pb;

use super::Stream;
use super::fault::{Faults, Place, expect_text};
use super::strings::StringMatcher;

use pb::query_parameter_matcher::QueryParameterMatchSpecifier as Specifier;

/// A condition on the first value of one parameter.
#[derive(Debug)]
pub(super) struct QueryMatcher {
    name: String,
    condition: Condition,
}

#[derive(Debug)]
enum Condition {
    Present(bool),
    Text(StringMatcher),
}

/// The query of a stream: what follows the first `?` of its path.
pub(super) fn of(stream: &impl Stream) -> &[u8] {
    let path = stream.request_header(":path", 0).unwrap_or_default();
    path.iter().position(|byte| *byte == b'?').map_or(&[], |at| &path[at + 1..])
}

/// The first value of a parameter, decoded; empty if it has no `=`.
pub(super) fn first_value<'q>(query: &'q [u8], name: &str) -> Option<Cow<'q, [u8]>> {
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

impl QueryMatcher {
    pub(super) fn compile(
        message: &pb::QueryParameterMatcher,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let name = expect_text(&message.name, place, "name", faults);
        let condition = match &message.query_parameter_match_specifier {
            None => Some(Condition::Present(true)),
            Some(Specifier::PresentMatch(expected)) => Some(Condition::Present(*expected)),
            Some(Specifier::StringMatch(it)) => {
                let place = place.field("string_match");
                StringMatcher::compile(it, &place, faults).map(Condition::Text)
            }
        };
        Some(Self { name: name?, condition: condition? })
    }

    pub(super) fn matches(&self, query: &[u8]) -> bool {
        let value = first_value(query, &self.name);
        match &self.condition {
            Condition::Present(expected) => value.is_some() == *expected,
            Condition::Text(matcher) => value.is_some_and(|value| matcher.matches(&value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn first(query: &str, expected: Option<&str>) {
        let found = first_value(query.as_bytes(), "a");
        assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{query}");
    }

    #[test]
    fn the_first_value_is_decoded() {
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
    fn other_names_are_no_match() {
        first("", None);
        first("&", None);
        first("A=1", None);
        first("aa=1&ba=1", None);
    }
}
