//! Recognises characters that make a text look like a different one on a terminal or a page.

/// Returns whether `character` is a control character, a line end of Unicode, changes the direction
/// of text, or is invisible.
pub fn alters_display(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}
