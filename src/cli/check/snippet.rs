//! A line of a source with a caret under one place.

use std::fmt::{self, Display};

use crate::cli::safe::cell;

/// The line around a place, fit for a terminal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Snippet {
    /// The line's number.
    line: u32,
    /// What is shown of it; cut ends are `…`.
    pub(super) text: String,
    /// Cells before the caret.
    pub(super) caret: usize,
}

/// Cells that are shown of a line.
const CELLS_MAX: usize = 96;
/// Of these, before the place at least, where there is so much.
const CELLS_BEFORE: usize = 40;
/// A tab is shown as so many spaces, since terminals differ.
const TAB: usize = 4;
/// Bytes of a line that are looked at before and after the place: lines may be megabytes long.
const BYTES_AROUND_MAX: usize = 4096;

// === impl Snippet ===

impl Snippet {
    /// The place of `text` at `line` and `column`, both from 1, the column in characters; `None` if
    /// the text has no such line.
    pub(super) fn new(text: &[u8], line: u32, column: u32) -> Option<Self> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let bytes = text.split(|byte| *byte == b'\n').nth(line.checked_sub(1)? as usize)?;
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let before = column.saturating_sub(1) as usize;
        // Four bytes a character at most, so that what is shown of the line is all in this part.
        let end = before.saturating_mul(4).saturating_add(BYTES_AROUND_MAX).min(bytes.len());
        let part = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
        let characters: Vec<char> = part.chars().collect();
        let before = before.min(characters.len());
        let (left, right) = characters.split_at(before);
        let (right_cells, right_is_cut) = fitting(right.iter(), CELLS_MAX - CELLS_BEFORE);
        let room = CELLS_MAX - right_cells.cells;
        let (left_cells, left_is_cut) = fitting(left.iter().rev(), room);
        let mut text = String::new();
        if left_is_cut {
            text.push('…');
        }
        text.extend(left_cells.shown.iter().rev());
        let caret = left_cells.cells + usize::from(left_is_cut);
        text.extend(right_cells.shown.iter());
        if right_is_cut || end < bytes.len() {
            text.push('…');
        }
        Some(Self { line, text: text.trim_end().to_owned(), caret })
    }
}

impl Display for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, text, caret } = self;
        writeln!(f, "{line:>6} | {text}")?;
        write!(f, "       | {:caret$}^", "")
    }
}

/// Characters as they are shown.
struct Fitting {
    shown: Vec<char>,
    cells: usize,
}

/// As many of `characters` as fit, and whether some did not.
fn fitting<'c>(characters: impl Iterator<Item = &'c char>, room: usize) -> (Fitting, bool) {
    let mut fitting = Fitting { shown: Vec::new(), cells: 0 };
    for character in characters {
        let (shown, cells, copies) = match character {
            '\t' => (' ', TAB, TAB),
            other => {
                let (shown, cells) = cell(*other);
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

    #[track_caller]
    fn check(text: &str, line: u32, column: u32, shown: &str, caret: usize) {
        let snippet = Snippet::new(text.as_bytes(), line, column).expect("a line");
        assert_eq!((&*snippet.text, snippet.caret), (shown, caret));
    }

    #[test]
    fn the_caret_stands_under_the_place() {
        check("a: b\nkey: value\n", 2, 6, "key: value", 5);
        check("\u{feff}a: b", 1, 1, "a: b", 0);
        check("a: b\r\nc: d\r\n", 2, 4, "c: d", 3);
        let snippet = Snippet::new(b"a: b\nkey: value\n", 2, 6).unwrap().to_string();
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
        let snippet = Snippet::new(line.as_bytes(), 1, 10_001).unwrap();
        assert!(snippet.text.starts_with('…') && snippet.text.ends_with('…'), "{snippet}");
        assert_eq!(snippet.text.chars().nth(snippet.caret), Some('W'));
        assert!(snippet.text.chars().count() <= CELLS_MAX + 2);
    }

    #[test]
    fn a_place_behind_the_end_of_a_line_or_file_is_no_harm() {
        check("ab", 1, 3, "ab", 2);
        check("ab", 1, u32::MAX, "ab", 2);
        check("ab\n", 2, 1, "", 0);
        assert_eq!(Snippet::new(b"ab\n", 3, 1), None);
        assert_eq!(Snippet::new(b"ab\n", 0, 1), None);
    }

    #[test]
    fn what_is_not_utf_8_is_shown_as_such() {
        let snippet = Snippet::new(b"a: \xff\xfe b", 1, 4).unwrap();
        assert_eq!((&*snippet.text, snippet.caret), ("a: \u{fffd}\u{fffd} b", 3));
    }
}
