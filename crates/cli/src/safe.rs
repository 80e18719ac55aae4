//! Makes foreign text safe for a terminal: text of a file, a flag or a server cannot end a line,
//! move the cursor, or appear in a different place.

use std::fmt::{self, Display, Write};

use ratelease_rules::alters_display;
use unicode_width::UnicodeWidthChar;

/// Displays a text with characters that steer a terminal escaped. Line ends are kept, because
/// messages may have several lines.
pub struct Safe<T>(pub T);

struct Escaping<'a, 'f>(&'a mut fmt::Formatter<'f>);

/// Returns how `character` appears on a terminal: itself, or a stand-in if it cannot be shown, and
/// its width in cells.
pub fn cell(character: char) -> (char, usize) {
    match character {
        // The characters from U+2400 on are pictures of the control characters.
        '\0'..='\u{1f}' => (char::from_u32(0x2400 + u32::from(character)).unwrap_or('?'), 1),
        '\u{7f}' => ('\u{2421}', 1),
        other if alters_display(other) => (char::REPLACEMENT_CHARACTER, 1),
        other => (other, other.width().unwrap_or_default()),
    }
}

/// Returns `text` on one line, with a stand-in for each character that cannot be shown.
pub fn line(text: &str) -> String {
    text.chars().map(|character| cell(character).0).collect()
}

/// Returns the first `chars_max` characters of `text`, and then `…` if there are more.
pub fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

// === impl Safe ===

impl<T: Display> Display for Safe<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|character| match character {
            '\n' => self.0.write_char('\n'),
            other if alters_display(other) => write!(self.0, "{}", other.escape_default()),
            other => self.0.write_char(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_control_a_terminal_are_escaped_and_others_kept() {
        let text = "\u{1b}[2J é 日本 \u{202e}x\u{200b}\t\r\na";
        let shown = "\\u{1b}[2J é 日本 \\u{202e}x\\u{200b}\\t\\r\na";
        assert_eq!(Safe(text).to_string(), shown);
    }

    #[test]
    fn a_text_is_cut_between_characters_and_only_if_it_is_longer() {
        for (chars_max, expected) in
            [(0, "…"), (1, "日…"), (2, "日本…"), (3, "日本a"), (4, "日本a")]
        {
            assert_eq!(cut("日本a", chars_max), expected, "{chars_max}");
        }
        assert_eq!(cut("", 0), "");
    }

    #[test]
    fn each_character_has_its_cells() {
        for (character, expected) in [
            ('a', ('a', 1)),
            ('é', ('é', 1)),
            ('日', ('日', 2)),
            ('🦀', ('🦀', 2)),
            ('\u{301}', ('\u{301}', 0)),
            ('\u{1b}', ('␛', 1)),
            ('\u{7f}', ('␡', 1)),
            ('\u{9b}', ('\u{fffd}', 1)),
            ('\u{202e}', ('\u{fffd}', 1)),
        ] {
            assert_eq!(cell(character), expected, "{character:?}");
        }
    }
}
