//! Input for the YAML scanner that reads a file's text one character at a time.
//!
//! The parser crate's own string input announces 128 characters of look-ahead, and the scanner
//! reserves room for as many in every scalar that it reads, most of which are short words.

use std::cell::Cell;
use std::str::Chars;

use saphyr_parser::Input;
use saphyr_parser::input::{is_blank_or_breakz, is_breakz, is_flow};

use crate::memory::Memory;

/// Characters of look-ahead, for which the scanner reserves room at once. It looks at most 4 ahead;
/// the text of a scalar begins with room for 32 bytes.
const AHEAD: usize = 16;

/// The rest of a text. All of it is available for look-ahead.
#[derive(Debug, Clone)]
pub(crate) struct CharInput<'s> {
    rest: Chars<'s>,
    ahead: &'s Ahead,
}

/// What the scanner may hold before its next event: the text of a scalar, or the tokens of a flow
/// collection, which it keeps until the collection ends. At its end the text ends early.
#[derive(Debug)]
pub(crate) struct Ahead {
    left: Cell<usize>,
    /// What was taken for the event that needed most of it. Its queue does not shrink.
    taken: Cell<usize>,
    /// Whether the last character could be part of a token with the next one.
    in_word: Cell<bool>,
}

/// Bytes of the buffer of a scalar for each byte of its text, as the buffer doubles.
const BUFFERED: usize = 3;

/// Bytes of a token with its scalar, in a queue that doubles.
const TOKEN: usize = 224;

// === impl Ahead ===

impl Ahead {
    pub(crate) fn new() -> Self {
        Self { left: Cell::new(0), taken: Cell::new(0), in_word: Cell::new(false) }
    }

    /// Runs `scan` up to the next event, within what is left of the memory of the load; `None` if
    /// that is not enough.
    pub(crate) fn scan<T>(&self, memory: &Memory, scan: impl FnOnce() -> T) -> Option<T> {
        let most = memory.left().saturating_add(self.taken.get());
        self.left.set(most);
        let scanned = scan();
        let used = most - self.left.get();
        if self.left.get() == 0 {
            memory.take(usize::MAX)?;
        }
        if let Some(more) = used.checked_sub(self.taken.get()) {
            memory.take(more)?;
            self.taken.set(used);
        }
        Some(scanned)
    }

    /// Frees what was taken.
    pub(crate) fn free(&self, memory: &Memory) {
        memory.give_back(self.taken.get());
    }

    /// Counts a character; returns whether there is room for more.
    #[inline]
    fn pass(&self, next: char) -> bool {
        let (tokens, in_word) = match next {
            ' ' | '\n' | '\t' | '\r' => (0, false),
            ',' | '[' | ']' | '{' | '}' => (TOKEN, false),
            ':' => (2 * TOKEN, false),        // a key and a value
            '"' | '\'' => (TOKEN / 2, false), // of a pair
            _ if self.in_word.get() => (0, true),
            _ => (TOKEN, true),
        };
        self.in_word.set(in_word);
        let bytes = next.len_utf8() * BUFFERED + tokens;
        let left = self.left.get().saturating_sub(bytes);
        self.left.set(left);
        left > 0
    }
}

// === impl CharInput ===

impl<'s> CharInput<'s> {
    pub(crate) fn new(text: &'s str, ahead: &'s Ahead) -> Self {
        Self { rest: text.chars(), ahead }
    }

    /// Takes the next character.
    #[inline]
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next()?;
        if !self.ahead.pass(next) {
            self.rest = "".chars();
        }
        Some(next)
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
        self.next().unwrap_or('\0')
    }

    fn raw_read_non_breakz_ch(&mut self) -> Option<char> {
        let next = self.peek_opt().filter(|next| !is_breakz(*next) && *next != '\u{feff}')?;
        self.skip();
        Some(next)
    }

    #[inline]
    fn skip(&mut self) {
        self.next();
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
        self.rest.clone().nth(n).unwrap_or('\0')
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
        let ahead = Ahead::new();
        ahead.left.set(usize::MAX);
        let ours = read(Parser::new(CharInput::new(text, &ahead)));
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
