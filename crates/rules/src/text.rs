//! Decodes the bytes of a source as text. The error gives the place of the first invalid byte.

use crate::fault::Place;

/// Maximum bytes of one source. 100 000 rules take about 10 MB.
pub(crate) const SOURCE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of words, pairs of quotes and flow marks in one source. The YAML scanner holds
/// the tokens of a flow collection (a JSON file is one) until it ends, about 100 bytes each; this
/// bounds that memory.
pub(crate) const PIECES_MAX: usize = 3_000_000;

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

/// Number of words, flow marks and pairs of quotes, of which one text may have so many.
pub(crate) fn pieces(text: &str) -> usize {
    Survey::of(text).pieces
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
