//! Prints a line of a source with a caret below one place.

use std::fmt::{self, Display};

use crate::safe::cell;

/// The line around a place, safe to print on a terminal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Snippet {
    /// The line's number.
    line: u32,
    /// The part of the line that is shown; `…` marks each cut end.
    text: String,
    /// Number of cells before the caret.
    caret: usize,
}

/// Finds places in a text. Each search continues from the last place, so that ten thousand places
/// in one line of a megabyte take a single pass; they must be asked for in order.
pub(super) struct Cursor<'t> {
    text: &'t [u8],
    /// Byte at which the current line starts, and its number from 0.
    line: (usize, u32),
    /// A place in the line, and the number of characters before it.
    place: (usize, u32),
}

/// Maximum number of cells of a line that are shown.
const CELLS_MAX: usize = 96;
/// Of these, the maximum number from the place on, if there is enough text before it.
const CELLS_AFTER: usize = 56;
/// Number of spaces in place of a tab, because terminals differ.
const TAB: usize = 4;
/// Bytes of a line that are read on each side of the place: lines may be megabytes long.
const BYTES_MAX: usize = 1024;

// === impl Cursor ===

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t [u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Self { text, line: (0, 0), place: (0, 0) }
    }

    /// Returns the snippet at `line` and `column`, both from 1, the column in characters; `None` if
    /// the text has no such line.
    pub(super) fn snippet(&mut self, line: u32, column: u32) -> Option<Snippet> {
        self.go_to(line.checked_sub(1)?, column.saturating_sub(1))?;
        let (start, (at, _)) = (self.line.0, self.place);
        let rest = self.text.get(at..)?.iter().take(BYTES_MAX);
        let to = at + rest.take_while(|byte| !is_end(**byte)).count();
        let goes_on = self.text.get(to).is_some_and(|byte| !is_end(*byte));
        let mut from = at.saturating_sub(BYTES_MAX).max(start);
        while from < at && self.text.get(from).is_some_and(|byte| is_inside(*byte)) {
            from += 1;
        }
        let shown = |range| String::from_utf8_lossy(self.text.get(range).unwrap_or_default());
        let (before, after) = (shown(from..at), shown(at..to));
        let (after, is_cut_after) = fitting(after.chars(), CELLS_AFTER);
        let (before, is_cut_before) = fitting(before.chars().rev(), CELLS_MAX - after.cells);
        let is_cut_before = is_cut_before || from > start;
        let mut text = String::new();
        text.extend(is_cut_before.then_some('…'));
        text.extend(before.shown.iter().rev());
        text.extend(&after.shown);
        text.extend((is_cut_after || goes_on).then_some('…'));
        let caret = before.cells + usize::from(is_cut_before);
        Some(Snippet { line, text: text.trim_end().to_owned(), caret })
    }

    /// Moves to a place, both numbers from 0. A column past the end of the line means its end.
    fn go_to(&mut self, line: u32, column: u32) -> Option<()> {
        if (line, column) < (self.line.1, self.place.1) {
            (self.line, self.place) = ((0, 0), (0, 0));
        }
        while self.line.1 < line {
            let rest = self.text.get(self.place.0..)?;
            let start = self.place.0 + rest.iter().position(|byte| *byte == b'\n')? + 1;
            self.line = (start, self.line.1 + 1);
            self.place = (start, 0);
        }
        let (at, characters) = &mut self.place;
        while *characters < column {
            match self.text.get(*at) {
                Some(byte) if !is_end(*byte) => *at += 1,
                _ => break,
            }
            while self.text.get(*at).is_some_and(|byte| is_inside(*byte)) {
                *at += 1;
            }
            *characters += 1;
        }
        Some(())
    }
}

/// Returns whether `byte` ends a line.
fn is_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// Returns whether `byte` continues a UTF-8 character, rather than starting one.
fn is_inside(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

impl Display for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, text, caret } = self;
        writeln!(f, "{line:>6} | {text}")?;
        write!(f, "       | {:caret$}^", "")
    }
}

/// Characters, in the form in which they are shown.
struct Fitting {
    shown: Vec<char>,
    cells: usize,
}

/// Returns as many of `characters` as fit, and whether some did not.
fn fitting(characters: impl Iterator<Item = char>, room: usize) -> (Fitting, bool) {
    let mut fitting = Fitting { shown: Vec::new(), cells: 0 };
    for character in characters {
        let (shown, cells, copies) = match character {
            '\t' => (' ', TAB, TAB),
            other => {
                let (shown, cells) = cell(other);
                (shown, cells, 1)
            }
        };
        if fitting.cells + cells > room {
            return (fitting, true);
        }
        fitting.cells += cells;
        fitting.shown.extend(std::iter::repeat_n(shown, copies));
    }
    (fitting, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snippet(text: &[u8], line: u32, column: u32) -> Option<Snippet> {
        Cursor::new(text).snippet(line, column)
    }

    #[track_caller]
    fn check(text: &str, line: u32, column: u32, shown: &str, caret: usize) {
        let snippet = snippet(text.as_bytes(), line, column).expect("a line");
        assert_eq!((&*snippet.text, snippet.caret), (shown, caret));
    }

    #[test]
    fn the_caret_is_under_the_place() {
        check("a: b\nkey: value\n", 2, 6, "key: value", 5);
        check("\u{feff}a: b", 1, 1, "a: b", 0);
        check("a: b\r\nc: d\r\n", 2, 4, "c: d", 3);
        let snippet = snippet(b"a: b\nkey: value\n", 2, 6).unwrap().to_string();
        assert_eq!(snippet, "     2 | key: value\n       |      ^");
    }

    #[test]
    fn tabs_wide_and_hidden_characters_keep_the_caret_in_place() {
        check("\tkey: v", 1, 2, "    key: v", 4);
        check("日本: v", 1, 3, "日本: v", 4);
        check("e\u{301}: v", 1, 3, "e\u{301}: v", 1);
        check("\u{1b}[31m: v", 1, 6, "␛[31m: v", 5);
        check("\u{202e}x: v", 1, 2, "\u{fffd}x: v", 1);
    }

    #[test]
    fn a_long_line_is_cut_on_both_sides_of_the_place() {
        let line = format!("{}WRONG{}", "a".repeat(10_000), "b".repeat(1_000_000));
        let snippet = snippet(line.as_bytes(), 1, 10_001).unwrap();
        assert!(snippet.text.starts_with('…') && snippet.text.ends_with('…'), "{snippet}");
        assert_eq!(snippet.text.chars().nth(snippet.caret), Some('W'));
        assert!(snippet.text.chars().count() <= CELLS_MAX + 2);
    }

    #[test]
    fn a_place_behind_the_end_of_a_line_or_file_is_no_harm() {
        check("ab", 1, 3, "ab", 2);
        check("ab", 1, u32::MAX, "ab", 2);
        check("ab\n", 2, 1, "", 0);
        assert_eq!(snippet(b"ab\n", 3, 1), None);
        assert_eq!(snippet(b"ab\n", 0, 1), None);
    }

    #[test]
    fn places_may_be_asked_for_one_after_the_other_and_out_of_order() {
        let text = "日a: b\nkey: value\n\nlast".as_bytes();
        let mut cursor = Cursor::new(text);
        for (line, column) in [(1, 1), (1, 3), (1, 3), (2, 6), (4, 2), (2, 1), (1, 2), (4, 9)] {
            assert_eq!(cursor.snippet(line, column), snippet(text, line, column));
        }
        assert_eq!(cursor.snippet(5, 1), None);
        assert_eq!(cursor.snippet(2, 6), snippet(text, 2, 6));
    }

    #[test]
    fn invalid_utf_8_is_marked() {
        let snippet = snippet(b"a: \xff\xfe b", 1, 4).unwrap();
        assert_eq!((&*snippet.text, snippet.caret), ("a: \u{fffd}\u{fffd} b", 3));
    }
}
