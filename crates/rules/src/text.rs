//! Decodes the bytes of a source as text. The error gives the place of the first invalid byte.

use std::cell::Cell;
use std::str::Chars;

use saphyr_parser::Input;
use saphyr_parser::input::{is_blank_or_breakz, is_breakz, is_flow};

use crate::fault::Place;
use crate::memory::Memory;

/// Maximum bytes of one source. 100 000 rules take about 10 MB.
pub(crate) const SOURCE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of words, pairs of quotes and flow marks in one source. The YAML scanner holds
/// the tokens of a flow collection (a JSON file is one) until it ends, about 100 bytes each; this
/// bounds that memory.
const PIECES_MAX: usize = 3_000_000;

/// Returns `bytes` as text, without its byte order mark, or where and why they are not text.
pub(crate) fn decode(bytes: &[u8]) -> Result<&str, (Place, String)> {
    if bytes.len() > SOURCE_BYTES_MAX {
        let max = SOURCE_BYTES_MAX >> 20;
        return Err((Place::START, format!("file is larger than {max} MiB; split it")));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return Err(not_utf8(bytes, error.valid_up_to())),
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Survey { is_plain, pieces } = Survey::of(text);
    let unusual = text.char_indices().find(|(_, c)| !is_plain && !is_allowed(*c));
    if let Some((at, character)) = unusual {
        let code = u32::from(character);
        let why = format!("control characters are not allowed, found U+{code:04X}; remove it");
        return Err((place_after(&text[..at]), why));
    }
    match pieces {
        0..=PIECES_MAX => Ok(text),
        _ => Err((Place::START, format!("file holds more than {PIECES_MAX} words; split it"))),
    }
}

/// Returns whether YAML considers `character` printable. The parser accepts more characters, the
/// reference's parser does not.
fn is_allowed(character: char) -> bool {
    matches!(character,
        '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}'
        | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}' | '\u{10000}'..)
}

/// The result of one pass over the bytes of a text.
#[derive(Debug, PartialEq, Eq)]
struct Survey {
    /// All bytes are ASCII and allowed.
    is_plain: bool,
    /// Number of words, flow marks and pairs of quotes. Quotes are counted because they separate
    /// tokens within a word.
    pieces: usize,
}

const PLAIN: u8 = 1;
const WORD: u8 = 2;
const MARK: u8 = 4;
const QUOTE: u8 = 8;

/// The class of each byte.
static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut classes = [WORD; 256];
    let mut byte = 0;
    while byte < 128 {
        classes[byte as usize] = match byte {
            b'\t' | b'\n' | b'\r' | b' ' => PLAIN,
            b',' | b'[' | b']' | b'{' | b'}' => PLAIN | MARK,
            b'"' | b'\'' => PLAIN | WORD | QUOTE,
            b'!'..=b'~' => PLAIN | WORD,
            _ => WORD,
        };
        byte += 1;
    }
    classes
}

impl Survey {
    fn of(text: &str) -> Self {
        let (mut all, mut before) = (PLAIN, 0);
        let (mut words, mut marks, mut quotes) = (0, 0, 0);
        for byte in text.bytes() {
            let class = CLASSES[usize::from(byte)];
            all &= class;
            words += usize::from(class & !before & WORD) / usize::from(WORD);
            marks += usize::from(class & MARK) / usize::from(MARK);
            quotes += usize::from(class & QUOTE) / usize::from(QUOTE);
            before = class;
        }
        Survey { is_plain: all == PLAIN, pieces: marks + words + quotes / 2 }
    }
}

fn not_utf8(bytes: &[u8], at: usize) -> (Place, String) {
    let valid = bytes.get(..at).unwrap_or_default();
    let place = place_after(std::str::from_utf8(valid).unwrap_or_default());
    let message = match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "file is UTF-16; save it as UTF-8".to_owned(),
        _ => {
            let byte = bytes.get(at).copied().unwrap_or_default();
            format!("invalid UTF-8, found byte 0x{byte:02x}; save it as UTF-8")
        }
    };
    (place, message)
}

/// Returns the place of the first character after `text`.
fn place_after(text: &str) -> Place {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.matches('\n').count();
    let column = text.rsplit('\n').next().unwrap_or_default().chars().count();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).saturating_add(1);
    Place { line: number(lines), column: number(column) }
}

// Input for the YAML scanner that reads a file's text one character at a time.
//
// The parser crate's own string input announces 128 characters of look-ahead, and the scanner
// reserves room for as many in every scalar that it reads, most of which are short words.

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
    use super::*;

    #[test]
    fn takes_text_with_and_without_a_byte_order_mark() {
        assert_eq!(decode("\u{feff}domain: é\t\r\n".as_bytes()), Ok("domain: é\t\r\n"));
        assert_eq!(decode(b""), Ok(""));
    }

    #[test]
    fn refuses_bytes_that_are_not_text_with_their_place() {
        let table: [(&[u8], &str); 6] = [
            (b"a: b\nc: \xe9\n", "2:4 invalid UTF-8, found byte 0xe9"),
            ("é: \0".as_bytes(), "1:4 control characters are not allowed, found U+0000"),
            ("\u{feff}a\u{7f}".as_bytes(), "1:2 control characters are not allowed, found U+007F"),
            ("a\u{feff}".as_bytes(), "1:2 control characters are not allowed, found U+FEFF"),
            (b"\xff\xfea\0", "1:1 file is UTF-16"),
            (b"a\xed\xa0\x80", "1:2 invalid UTF-8, found byte 0xed"),
        ];
        for (bytes, expected) in table {
            let (place, message) = decode(bytes).unwrap_err();
            let found = format!("{}:{} {message}", place.line, place.column);
            assert!(found.starts_with(expected), "{found}");
        }
    }

    #[test]
    fn words_marks_and_pairs_of_quotes_are_pieces() {
        for (text, pieces) in
            [("", 0), ("a", 1), (" a", 1), ("a b ", 2), ("[a,b]", 5), ("'a' \"", 3), ("a:b", 1)]
        {
            assert_eq!(Survey::of(text), Survey { is_plain: true, pieces }, "{text}");
        }
        for text in ["é", "\u{7f}", "a\u{b}b", "a\0"] {
            assert_eq!(Survey::of(text), Survey { is_plain: false, pieces: 1 }, "{text}");
        }
    }

    #[test]
    fn refuses_a_file_past_its_ceilings() {
        assert!(decode(&vec![b'#'; SOURCE_BYTES_MAX]).is_ok());
        assert!(decode(&vec![b'#'; SOURCE_BYTES_MAX + 1]).unwrap_err().1.contains("16 MiB"));
        assert!(decode(&vec![b'['; PIECES_MAX + 1]).unwrap_err().1.contains("words"));
    }
}

#[cfg(test)]
mod char_input_tests {
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
