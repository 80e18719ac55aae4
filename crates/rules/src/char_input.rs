//! Input for the YAML scanner that reads a file's text one character at a time.
//!
//! The parser crate's own string input announces 128 characters of look-ahead, and the scanner
//! reserves room for as many in every scalar that it reads, most of which are short words.

use std::str::Chars;

use saphyr_parser::Input;
use saphyr_parser::input::{is_blank_or_breakz, is_breakz, is_flow};

/// Characters of look-ahead, for which the scanner reserves room at once. It looks at most 4 ahead;
/// the text of a scalar begins with room for 32 bytes.
const AHEAD: usize = 16;

/// The rest of a text. All of it is available for look-ahead.
#[derive(Debug, Clone)]
pub(crate) struct CharInput<'s> {
    rest: Chars<'s>,
}

// === impl CharInput ===

impl<'s> CharInput<'s> {
    pub(crate) fn new(text: &'s str) -> Self {
        Self { rest: text.chars() }
    }

    fn byte(&self) -> Option<char> {
        self.rest.as_str().as_bytes().first().copied().map(char::from)
    }
}

impl Input for CharInput<'_> {
    fn lookahead(&mut self, _: usize) {}

    #[inline]
    fn buflen(&self) -> usize {
        AHEAD
    }

    #[inline]
    fn bufmaxlen(&self) -> usize {
        AHEAD
    }

    fn raw_read_ch(&mut self) -> char {
        self.rest.next().unwrap_or('\0')
    }

    fn raw_read_non_breakz_ch(&mut self) -> Option<char> {
        let next = self.peek_opt().filter(|next| !is_breakz(*next) && *next != '\u{feff}')?;
        self.skip();
        Some(next)
    }

    #[inline]
    fn skip(&mut self) {
        self.rest.next();
    }

    #[inline]
    fn skip_n(&mut self, count: usize) {
        for _ in 0..count {
            self.skip();
        }
    }

    #[inline]
    fn peek(&self) -> char {
        self.peek_opt().unwrap_or('\0')
    }

    #[inline]
    fn peek_nth(&self, n: usize) -> char {
        let mut ahead = self.clone();
        ahead.skip_n(n);
        ahead.peek()
    }

    #[inline]
    fn peek_opt(&self) -> Option<char> {
        self.rest.clone().next()
    }

    // Called for every character of a scalar; most calls need to look at one byte only.

    #[inline]
    fn next_is_blank_or_breakz(&self) -> bool {
        self.byte().is_none_or(is_blank_or_breakz)
    }

    #[inline]
    fn next_can_be_plain_scalar(&self, in_flow: bool) -> bool {
        match self.byte() {
            Some(':') => {
                let next = self.peek_nth(1);
                !(is_blank_or_breakz(next) || (in_flow && is_flow(next)))
            }
            Some('\u{ef}') => self.peek() != '\u{feff}',
            Some(byte) => !(in_flow && is_flow(byte)),
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use saphyr_parser::{Event, Parser, ScanError, Span};

    use super::*;

    /// Runs `parser` on a text and returns its events and the fault that ended them.
    fn read<'s, T: Input>(
        mut parser: Parser<'s, T>,
    ) -> (Vec<(Event<'s>, Span)>, Option<ScanError>) {
        let mut events = Vec::new();
        while let Some(event) = parser.next_event() {
            match event {
                Ok(event) => events.push(event),
                Err(fault) => return (events, Some(fault)),
            }
        }
        (events, None)
    }

    fn check(text: &str) {
        let ours = read(Parser::new(CharInput::new(text)));
        assert_eq!(ours, read(Parser::new_from_str(text)), "{text:?}");
    }

    #[test]
    fn every_kind_of_scalar_is_read_as_the_crate_reads_it() {
        let long = "x".repeat(1000);
        let deep = " ".repeat(200);
        for text in [
            "a: b\r\nc: 'd''e'\r\n\"f\": \"g\\n\\x41\"\n",
            "é: |\n  ü\n   b\n\n  c\nd: >-\n  e\n  f\n\n",
            "- a b\n  c # d\n- {e: f, g: [h, i]}\n- &x !!str 5\n- *x\n- !<!m> n\n",
            "%YAML 1.2\n---\na\n...\n--- b\n",
            "a:\tb\nc\u{feff}d: e\n",
            "a: # b\n  c\n? d\n: e\n",
            "",
            &format!("{long}: '{long}'\n"),
            &format!("a:\n{deep}b: |\n{deep}  c\n{deep}   d\n"),
        ] {
            check(text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_as_the_crate_reads_it(
            // The parser crate counts bytes instead of characters in directives, so texts with `%`
            // contain no `é`.
            text in prop_oneof![
                "[\\[\\]{}:,\\-?&*!|>'\"%@#<a0~\u{feff}\\\\\n\r\t ]{0,60}",
                "[\\[\\]{}:,\\-?&*!|>'\"@#<a0~é\u{feff}\\\\\n\r\t ]{0,60}",
            ],
        ) {
            check(&text);
        }
    }
}
