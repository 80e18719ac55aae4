//! Regular expressions in the syntax of RE2, which Envoy uses, run by the `regex` crate. Both run
//! in linear time. Syntax that the two read differently is rewritten.
//!
//! | pattern | RE2 | `regex` |
//! |---|---|---|
//! | `\d \s \w \b` | ASCII; `\s` without VT | Unicode |
//! | `[a[b]`, `[a&&b]`, `[a--b]`, `[a~~b]` | characters of the class | nested classes, operators |
//! | `\Q…\E`, `\C` | literal text, any byte | unknown |
//! | `(?x)`, `(?u)`, `(?R)` | refused | flags |
//!
//! Refused here and not in RE2: escapes in octal.

use std::iter::Peekable;
use std::str::Chars;

use envoy_types::pb::envoy::r#type::matcher::v3::RegexMatcher;
use regex::bytes::{Regex, RegexBuilder};

use super::fault::{Faults, Place, expect_text};

/// Maximum bytes of a compiled expression. The time of a match is linear in it and in the value,
/// which a client may make as long as Envoy admits headers (60 KiB by default). Expressions of
/// usual length take some 2 KiB. A value is never too long to be read: a client would evade the
/// limit.
const COMPILED_BYTES_MAX: usize = 64 << 10;

/// Maximum bytes of the states that one thread keeps of an expression while it runs.
const CACHE_BYTES_MAX: usize = 256 << 10;

/// `\d` as RE2 has it: ASCII digits.
const DIGITS: &str = "0-9";

/// `\s` as RE2 has it: ASCII, without VT.
const SPACES: &str = r"\t\n\x0C\r ";

/// `\w` as RE2 has it: ASCII letters, digits and the underscore.
const WORD: &str = "0-9A-Za-z_";

/// An expression that has to match the whole value.
#[derive(Debug)]
pub struct FullMatch(Regex);

impl FullMatch {
    pub fn compile(message: &RegexMatcher, place: &Place<'_>, faults: &mut Faults) -> Option<Self> {
        let pattern = expect_text(&message.regex, place, "regex", faults)?;
        match Self::new(&pattern) {
            Ok(compiled) => Some(compiled),
            Err(fault) => {
                faults.add(place.field("regex"), fault);
                None
            }
        }
    }

    fn new(pattern: &str) -> Result<Self, String> {
        let rewritten = rewritten(pattern)?;
        // Alone first: `a)|(b` is no expression, though it is one between parentheses.
        built(&rewritten)?;
        built(&format!(r"\A(?:{rewritten})\z")).map(Self)
    }

    pub fn matches(&self, value: &[u8]) -> bool {
        self.0.is_match(value)
    }
}

fn built(pattern: &str) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new(pattern);
    builder.size_limit(COMPILED_BYTES_MAX).dfa_size_limit(CACHE_BYTES_MAX);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => {
            format!("too large; expected at most {} KiB compiled", COMPILED_BYTES_MAX >> 10)
        }
        error => {
            // The crate draws the pattern with a mark below; the last line names the fault.
            let error = error.to_string();
            let last = error.lines().last().unwrap_or_default();
            format!("no regular expression: {}", last.trim_start_matches("error: "))
        }
    })
}

/// Rewrites a pattern of RE2 for the `regex` crate.
fn rewritten(pattern: &str) -> Result<String, String> {
    let mut from = pattern.chars().peekable();
    let mut to = String::with_capacity(pattern.len() + 16);
    while let Some(character) = from.next() {
        match character {
            '\\' => escape(&mut from, &mut to)?,
            '[' => class(&mut from, &mut to)?,
            '(' => group(&mut from, &mut to)?,
            other => to.push(other),
        }
    }
    Ok(to)
}

/// Rewrites the sequence after a backslash.
fn escape(from: &mut Peekable<Chars<'_>>, to: &mut String) -> Result<(), String> {
    match from.next().ok_or("ends with a backslash")? {
        'Q' => quoted(from, to),
        'C' => to.push_str("(?s-u:.)"),
        'b' => to.push_str(r"(?-u:\b)"),
        'B' => to.push_str(r"(?-u:\B)"),
        other => match perl_class(other) {
            Some((true, members)) => to.extend(["[^", members, "]"]),
            Some((false, members)) => to.extend(["[", members, "]"]),
            None => to.extend(['\\', other]),
        },
    }
    Ok(())
}

/// Whether it is negated, and its members.
const fn perl_class(letter: char) -> Option<(bool, &'static str)> {
    match letter {
        'd' => Some((false, DIGITS)),
        'D' => Some((true, DIGITS)),
        's' => Some((false, SPACES)),
        'S' => Some((true, SPACES)),
        'w' => Some((false, WORD)),
        'W' => Some((true, WORD)),
        _ => None,
    }
}

/// Literal text up to `\E`, or to the end.
fn quoted(from: &mut Peekable<Chars<'_>>, to: &mut String) {
    let mut literal = String::new();
    while let Some(character) = from.next() {
        if character == '\\' && from.next_if_eq(&'E').is_some() {
            break;
        }
        literal.push(character);
    }
    to.push_str(&regex::escape(&literal));
}

/// Copies the flags of a group, if it has any.
fn group(from: &mut Peekable<Chars<'_>>, to: &mut String) -> Result<(), String> {
    to.push('(');
    if from.next_if_eq(&'?').is_none() {
        return Ok(());
    }
    to.push('?');
    while let Some(flag) = from.next_if(|it| it.is_ascii_lowercase() || *it == '-' || *it == 'U') {
        if !matches!(flag, 'i' | 'm' | 's' | '-' | 'U') {
            return Err(format!("(?{flag}: expected flags of i, m, s and U"));
        }
        to.push(flag);
    }
    match from.peek() {
        Some('R') => Err("(?R: expected flags of i, m, s and U".to_owned()),
        _ => Ok(()),
    }
}

/// Rewrites a class, up to its closing bracket.
fn class(from: &mut Peekable<Chars<'_>>, to: &mut String) -> Result<(), String> {
    to.push('[');
    if let Some(negation) = from.next_if_eq(&'^') {
        to.push(negation);
    }
    if from.next_if_eq(&']').is_some() {
        to.push_str(r"\]");
    }
    loop {
        match from.next().ok_or("a class without an end; expected ]")? {
            ']' => break,
            '[' if from.peek() == Some(&':') => {
                posix_class(from, to);
                hyphen_is_literal(from, to);
            }
            '\\' => class_escape(from, to)?,
            '-' => {
                to.push('-');
                // The end of a range, and not the operator of a difference.
                hyphen_is_literal(from, to);
            }
            other @ ('[' | '&' | '~') => to.extend(['\\', other]),
            other => to.push(other),
        }
    }
    to.push(']');
    Ok(())
}

/// Copies the rest of `[:alpha:]`.
fn posix_class(from: &mut Peekable<Chars<'_>>, to: &mut String) {
    to.push('[');
    while let Some(character) = from.next() {
        to.push(character);
        if character == ':' && from.next_if_eq(&']').is_some() {
            to.push(']');
            break;
        }
    }
}

fn class_escape(from: &mut Peekable<Chars<'_>>, to: &mut String) -> Result<(), String> {
    let letter = from.next().ok_or("ends with a backslash")?;
    match perl_class(letter) {
        Some((true, members)) => to.extend(["[^", members, "]"]),
        Some((false, members)) => to.push_str(members),
        None => {
            to.extend(['\\', letter]);
            return Ok(());
        }
    }
    hyphen_is_literal(from, to);
    Ok(())
}

/// After a class, a hyphen begins no range.
fn hyphen_is_literal(from: &mut Peekable<Chars<'_>>, to: &mut String) {
    if from.next_if_eq(&'-').is_some() {
        to.push_str(r"\-");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, value: &[u8]) -> bool {
        FullMatch::new(pattern).unwrap().matches(value)
    }

    #[track_caller]
    fn refused(pattern: &str, expected: &str) {
        let fault = FullMatch::new(pattern).unwrap_err();
        assert!(fault.contains(expected), "{fault}");
    }

    #[test]
    fn the_whole_value_has_to_match() {
        assert!(matches("a|bc", b"bc"));
        assert!(!matches("a|bc", b"xbc"));
        assert!(!matches("a|bc", b"ax"));
        assert!(matches("", b""));
    }

    #[test]
    fn classes_of_perl_are_of_ascii_in_and_out_of_brackets() {
        for pattern in [r"\d+", r"[\d]+", r"[^\D]+"] {
            assert!(matches(pattern, b"0129"), "{pattern}");
            assert!(!matches(pattern, "٣".as_bytes()), "{pattern}");
        }
        assert!(matches(r"\W", "é".as_bytes()));
        assert!(!matches(r"\w", "é".as_bytes()));
        assert!(!matches(r"\s", b"\x0b"), "RE2's \\s lacks the vertical tab");
        assert!(matches(r"[\w-.]+", b"a-b.c"));
        assert!(matches(r"[[:alpha:]-]+", b"a-b"));
        assert!(matches(r"x\b.", b"x!"));
    }

    #[test]
    fn brackets_and_operators_within_a_class_are_characters() {
        assert!(matches("[a[b]+", b"[ab"));
        assert!(matches("[a&&b]+", b"&ab"));
        assert!(matches("[+--]+", b"+,-"));
        assert!(!matches("[+--]+", b"."));
        assert!(matches("[]a]+", b"]a"));
        assert!(matches("[^]a]", b"b"));
    }

    #[test]
    fn quoted_text_is_literal() {
        assert!(matches(r"\Qa.b\E+", b"a.bb"));
        assert!(matches(r"\Qa.b", b"a.b"));
        assert!(!matches(r"\Qa.b", b"axb"));
    }

    #[test]
    fn a_dot_is_a_character_and_no_byte_beyond_utf8() {
        assert!(matches(".", "é".as_bytes()));
        assert!(!matches(".", b"\xff"));
        assert!(matches(r"\C", b"\xff"));
    }

    #[test]
    fn a_large_expression_is_refused_and_no_value_is_too_long() {
        refused("(?s).*[ab].{400}x", "at most 64 KiB");
        let long = [&vec![b'a'; 1 << 20][..], b"x"].concat();
        for usual in ["a*x", "[^/]+x", r"[\w.]+"] {
            assert!(FullMatch::new(usual).unwrap().matches(&long), "{usual}");
        }
    }

    #[test]
    fn what_re2_refuses_is_refused_with_what_is_wrong() {
        refused("a)|(b", "unopened group");
        refused("(?x)a b", "expected flags of");
        refused("(?=a)", "look-around");
        refused(r"(a)\1", "backreferences");
        refused("[a", "without an end");
        refused("\\", "ends with a backslash");
        refused("(((a{1000}){1000}){1000})", "too large");
    }
}
