//! The bytes of a source as text, refused with a place when they are not.

use super::fault::Place;

/// Bytes of one source. 100 000 rules take about 10 MB.
pub(super) const SOURCE_BYTES_MAX: usize = 16 << 20;
/// Words, pairs of quotes and flow marks of one source. The YAML scanner holds the tokens of a flow
/// collection (a JSON file is one) until it ends, about 100 bytes each; this bounds them.
const PIECES_MAX: usize = 3_000_000;

/// `bytes` as text, without its byte order mark; or where and why they are not.
pub(super) fn decode(bytes: &[u8]) -> Result<&str, (Place, String)> {
    if bytes.len() > SOURCE_BYTES_MAX {
        let max = SOURCE_BYTES_MAX >> 20;
        return Err((Place::START, format!("file is larger than {max} MiB; split it")));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return Err(not_utf8(bytes, error.valid_up_to())),
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some((at, character)) = text.char_indices().find(|(_, c)| !is_allowed(*c)) {
        let code = u32::from(character);
        let why = format!("control characters are not allowed, found U+{code:04X}; remove it");
        return Err((place_after(&text[..at]), why));
    }
    match pieces(text) {
        0..=PIECES_MAX => Ok(text),
        _ => Err((Place::START, format!("file holds more than {PIECES_MAX} words; split it"))),
    }
}

/// YAML's printable characters; the parser takes more, the reference's does not.
fn is_allowed(character: char) -> bool {
    matches!(character,
        '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}'
        | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}' | '\u{10000}'..)
}

/// Words, flow marks, and pairs of quotes, which part tokens within a word.
fn pieces(text: &str) -> usize {
    let (mut marks, mut words, mut quotes) = (0, 0, 0);
    let mut in_word = false;
    for byte in text.bytes() {
        let is_mark = matches!(byte, b',' | b'[' | b']' | b'{' | b'}');
        let is_word = !is_mark && !byte.is_ascii_whitespace();
        marks += usize::from(is_mark);
        words += usize::from(is_word && !in_word);
        quotes += usize::from(matches!(byte, b'"' | b'\''));
        in_word = is_word;
    }
    marks + words + quotes / 2
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

/// The place of what follows `text`.
fn place_after(text: &str) -> Place {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.matches('\n').count();
    let column = text.rsplit('\n').next().unwrap_or_default().chars().count();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).saturating_add(1);
    Place { line: number(lines), column: number(column) }
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
    fn refuses_what_is_not_text_with_its_place() {
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
    fn refuses_a_file_past_its_ceilings() {
        assert!(decode(&vec![b'#'; SOURCE_BYTES_MAX]).is_ok());
        assert!(decode(&vec![b'#'; SOURCE_BYTES_MAX + 1]).unwrap_err().1.contains("16 MiB"));
        assert!(decode(&vec![b'['; PIECES_MAX + 1]).unwrap_err().1.contains("words"));
    }
}
