//! Parses a YAML file to a tree in which every node has a place, and gives a hint on how to correct
//! a text that is not YAML.
//!
//! A file is one document: of further ones, which the reference drops, the first is a fault.
//! Aliases are kept as aliases: the nodes they stand for are shared, never copied, so a tree is
//! never larger than its file.

use std::borrow::Cow;
use std::cell::Cell;
use std::str::Chars;

use saphyr_parser::input::{is_blank_or_breakz, is_breakz, is_flow};
use saphyr_parser::{Event, Input, Marker, Parser, ScalarStyle, ScanError, Tag};

use crate::fault::{Place, excerpt};
use crate::memory::Memory;

/// The document of a file.
#[derive(Debug)]
pub(crate) struct Document<'s> {
    nodes: Nodes<'s>,
    /// Bytes taken from the memory of the load.
    bytes: usize,
    root: Option<NodeId>,
    cost: usize,
    text_bytes: usize,
}

/// A scalar, list, map or alias.
#[derive(Debug)]
pub(crate) struct Node<'s> {
    /// The position of its first character.
    pub(crate) place: Place,
    pub(crate) kind: Kind<'s>,
}

/// The content of a node.
#[derive(Debug)]
pub(crate) enum Kind<'s> {
    Scalar(Cow<'s, str>, Meaning),
    List(Vec<NodeId>),
    /// Pairs of key and value, as written; duplicates and merge keys are kept.
    Map(Vec<(NodeId, NodeId)>),
    /// The node that an alias stands for: never another alias, nor a node that contains this one.
    Alias(NodeId),
}

/// Position of a node in its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeId(u32);

/// Maximum depth of nested lists and maps. 64 levels hold 31 levels of descriptors.
pub(crate) const DEPTH_MAX: usize = 64;
/// Maximum number of nodes in one file: about 300 000 rules.
const NODES_MAX: usize = 3_000_000;

/// Nodes by their number, in pieces: a vector that grows holds two copies of all of them.
#[derive(Debug, Default)]
struct Nodes<'s> {
    pieces: Vec<Vec<Node<'s>>>,
    len: usize,
}

/// Nodes of a piece.
const PIECE: usize = 1024;

/// Builds a document from parser events.
struct Builder<'s, 'm> {
    nodes: Nodes<'s>,
    memory: &'m Memory,
    root: Option<NodeId>,
    /// Lists and maps that have not ended, outermost first.
    open: Vec<Open>,
    /// The node of each anchor; the parser numbers anchors from 1.
    anchors: Vec<NodeId>,
    /// The text from the last scalar on, and the number of characters before it.
    rest: Chars<'s>,
    passed: usize,
}

struct Open {
    node: NodeId,
    /// In a map: the key whose value has not been read yet.
    key: Option<NodeId>,
}

type Refusal = (Place, String);

// === impl Document ===

impl<'s> Document<'s> {
    /// Parses `text`. The error says where and why it is not YAML that this parser accepts. The
    /// document takes `memory` until [`Document::free`].
    pub(crate) fn parse(text: &'s str, memory: &Memory) -> Result<Self, Refusal> {
        let before = memory.held();
        let document = Self::build(text, memory);
        if document.is_err() {
            memory.give_back(memory.held() - before);
        }
        document.map(|it| Self { bytes: memory.held() - before, ..it })
    }

    fn build(text: &'s str, memory: &Memory) -> Result<Self, Refusal> {
        let ahead = Ahead::new();
        let mut parser = Parser::new(CharInput::new(text, &ahead));
        let mut builder = Builder::new(text, memory);
        loop {
            let scanned = ahead.scan(memory, || parser.next_event());
            let Some(event) = scanned.ok_or_else(|| (Place::START, memory.refusal()))? else {
                break;
            };
            let (event, span) = event.map_err(|error| syntax_fault(&error, text))?;
            if matches!(event, Event::DocumentEnd | Event::StreamEnd) {
                refuse_second(parser, &ahead, memory)?;
                break;
            }
            builder.accept(event, span.start)?;
        }
        ahead.free(memory);
        let Builder { nodes, root, .. } = builder;
        let cost = nodes.pieces.iter().flatten().map(Node::cost).sum();
        Ok(Document { nodes, root, cost, text_bytes: text.len(), bytes: 0 })
    }

    /// Frees the memory that it took.
    pub(crate) fn free(self, memory: &Memory) {
        memory.give_back(self.bytes);
    }

    /// The outermost node; `None` if the file holds nothing but comments.
    pub(crate) fn root(&self) -> Option<NodeId> {
        self.root
    }

    /// Bytes of its text.
    pub(crate) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// Returns the cost of reading every node once.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    /// Returns the node that `id` stands for, and whether it was reached through an alias.
    pub(crate) fn node(&self, id: NodeId) -> Option<(&Node<'s>, bool)> {
        let node = self.nodes.get(id)?;
        match node.kind {
            Kind::Alias(target) => Some((self.nodes.get(target)?, true)),
            _ => Some((node, false)),
        }
    }
}

// === impl Nodes ===

impl<'s> Nodes<'s> {
    fn get(&self, id: NodeId) -> Option<&Node<'s>> {
        let at = id.0 as usize;
        self.pieces.get(at / PIECE)?.get(at % PIECE)
    }

    fn get_mut(&mut self, id: NodeId) -> Option<&mut Node<'s>> {
        let at = id.0 as usize;
        self.pieces.get_mut(at / PIECE)?.get_mut(at % PIECE)
    }

    /// Adds a node; `None` if there is no memory for it.
    fn push(&mut self, node: Node<'s>, memory: &Memory) -> Option<()> {
        if self.len.is_multiple_of(PIECE) {
            let mut piece = Vec::new();
            if self.pieces.is_empty() {
                memory.take_growth(&piece)?; // most files are small
            } else {
                memory.take(PIECE * size_of::<Node<'_>>())?;
                piece.reserve_exact(PIECE);
            }
            memory.push(&mut self.pieces, piece)?;
        }
        memory.push(self.pieces.last_mut()?, node)?;
        self.len += 1;
        Some(())
    }
}

/// Refuses a second document with anything in it: it would be dropped without a word.
fn refuse_second(
    mut parser: Parser<'_, CharInput<'_>>,
    ahead: &Ahead,
    memory: &Memory,
) -> Result<(), Refusal> {
    loop {
        let scanned = ahead.scan(memory, || parser.next_event());
        let Some(event) = scanned.ok_or_else(|| (Place::START, memory.refusal()))? else {
            return Ok(());
        };
        let place = match event {
            Ok((Event::StreamStart | Event::StreamEnd, _)) => continue,
            Ok((Event::DocumentStart(_) | Event::DocumentEnd, _)) => continue,
            // Nothing follows the line of dashes.
            Ok((Event::Scalar(text, ScalarStyle::Plain, 0, None), _))
                if matches!(&*text, "" | "~") =>
            {
                continue;
            }
            Ok((_, span)) => place_of(span.start),
            Err(error) => place_of(*error.marker()),
        };
        let why = "a second document, of which nothing is read; put it in a file of its own";
        return Err((place, why.to_owned()));
    }
}

// === impl Node ===

impl Node<'_> {
    /// Returns roughly the number of bytes that a copy of this node takes, without its children.
    pub(crate) fn cost(&self) -> usize {
        match &self.kind {
            Kind::Scalar(text, _) => 32 + text.len(),
            _ => 32,
        }
    }

    /// Describes the node, for a message.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            Kind::Scalar(text, meaning) => match meaning {
                Meaning::Null => "nothing".to_owned(),
                Meaning::Bool(_) => format!("the boolean {text}"),
                Meaning::Int(_) | Meaning::Big(_) | Meaning::Float(_) => {
                    format!("the number {}", excerpt(text))
                }
                Meaning::Text | Meaning::Merge => format!("the text '{}'", excerpt(text)),
            },
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
            Kind::Alias(_) => "an alias".to_owned(),
        }
    }
}

// === impl Builder ===

impl<'s, 'm> Builder<'s, 'm> {
    fn new(text: &'s str, memory: &'m Memory) -> Self {
        Builder {
            nodes: Nodes::default(),
            memory,
            root: None,
            open: Vec::new(),
            anchors: Vec::new(),
            rest: text.chars(),
            passed: 0,
        }
    }

    fn accept(&mut self, event: Event<'s>, start: Marker) -> Result<(), Refusal> {
        let place = place_of(start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let meaning = meaning(&text, style, tag.as_deref()).map_err(|why| (place, why))?;
                let text = self.borrowed(text, style, start);
                if let Cow::Owned(text) = &text {
                    self.memory.take_box(text.len()).ok_or_else(|| self.no_memory(place))?;
                }
                let node = self.add(place, Kind::Scalar(text, meaning))?;
                self.anchor(anchor, node)?;
            }
            Event::SequenceStart(anchor, _) => self.open(place, anchor, Kind::List(Vec::new()))?,
            Event::MappingStart(anchor, _) => self.open(place, anchor, Kind::Map(Vec::new()))?,
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
            }
            Event::Alias(anchor) => {
                let target = self.aliased(anchor, place)?;
                self.add(place, Kind::Alias(target))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, place: Place, anchor: usize, kind: Kind<'s>) -> Result<(), Refusal> {
        if self.open.len() == DEPTH_MAX {
            return Err((place, format!("nested deeper than {DEPTH_MAX} levels")));
        }
        let node = self.add(place, kind)?;
        self.anchor(anchor, node)?;
        self.open.push(Open { node, key: None });
        Ok(())
    }

    /// Adds a node at the current position of the tree.
    fn add(&mut self, place: Place, kind: Kind<'s>) -> Result<NodeId, Refusal> {
        let full = || (place, format!("more than {NODES_MAX} values in one file; split it"));
        if self.nodes.len == NODES_MAX {
            return Err(full());
        }
        let id = NodeId(u32::try_from(self.nodes.len).map_err(|_| full())?);
        let pushed = self.nodes.push(Node { place, kind }, self.memory);
        pushed.ok_or_else(|| self.no_memory(place))?;
        let Some(open) = self.open.last_mut() else {
            self.root = Some(id);
            return Ok(id);
        };
        let pushed = match self.nodes.get_mut(open.node).map(|node| &mut node.kind) {
            Some(Kind::List(items)) => self.memory.push(items, id),
            Some(Kind::Map(pairs)) => match open.key.take() {
                Some(key) => self.memory.push(pairs, (key, id)),
                None => {
                    open.key = Some(id);
                    Some(())
                }
            },
            _ => Some(()),
        };
        pushed.map(|()| id).ok_or_else(|| self.no_memory(place))
    }

    /// Returns the scalar `text`, which began at `start`, as a slice of the file if the file
    /// contains it unchanged. The parser copies each scalar into a buffer larger than the text.
    fn borrowed(&mut self, text: Cow<'s, str>, style: ScalarStyle, start: Marker) -> Cow<'s, str> {
        let Cow::Owned(owned) = text else { return text };
        if let Some(ahead) = start.index().checked_sub(self.passed) {
            if let Some(last) = ahead.checked_sub(1) {
                self.rest.nth(last);
            }
            self.passed = start.index();
        }
        let quote = match style {
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => 1,
            _ => 0,
        };
        match self.rest.as_str().get(quote..quote + owned.len()) {
            Some(found) if found == owned => Cow::Borrowed(found),
            _ => Cow::Owned(owned.into_boxed_str().into_string()),
        }
    }

    /// Registers an anchor. The parser numbers anchors in order of appearance.
    fn anchor(&mut self, anchor: usize, node: NodeId) -> Result<(), Refusal> {
        match anchor {
            0 => Ok(()),
            _ => {
                let pushed = self.memory.push(&mut self.anchors, node);
                pushed.ok_or_else(|| self.no_memory(Place::START))
            }
        }
    }

    fn no_memory(&self, place: Place) -> Refusal {
        (place, self.memory.refusal())
    }

    fn aliased(&self, anchor: usize, place: Place) -> Result<NodeId, Refusal> {
        let target = anchor.checked_sub(1).and_then(|index| self.anchors.get(index).copied());
        match target {
            None => Err((place, "alias of an anchor that is not there".to_owned())),
            Some(target) if self.open.iter().any(|open| open.node == target) => {
                Err((place, "the anchor's value contains itself; remove this alias".to_owned()))
            }
            Some(target) => Ok(target),
        }
    }
}

/// Returns the meaning of a scalar, given its quotes and tag. An unknown tag makes it text, as in
/// yaml.v2.
fn meaning(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Meaning, String> {
    let Some(tag) = tag else {
        return Ok(match style {
            ScalarStyle::Plain => Meaning::of(text),
            _ => Meaning::Text,
        });
    };
    if !tag.is_yaml_core_schema() {
        return Ok(Meaning::Text);
    }
    let meaning = Meaning::of(text);
    match (tag.suffix.as_str(), meaning) {
        ("binary", _) => Err("tag !!binary is not read here; write the text itself".to_owned()),
        ("merge", _) if text == "<<" => Ok(Meaning::Merge),
        #[allow(clippy::cast_precision_loss)] // the tag asks for it
        ("float", Meaning::Int(number)) => Ok(Meaning::Float(number as f64)),
        ("float", Meaning::Float(_))
        | ("int", Meaning::Int(_) | Meaning::Big(_))
        | ("bool", Meaning::Bool(_))
        | ("null", Meaning::Null) => Ok(meaning),
        ("float" | "int" | "bool" | "null", _) => {
            Err(format!("cannot decode '{}' as a !!{}", excerpt(text), tag.suffix))
        }
        _ => Ok(Meaning::Text),
    }
}

fn place_of(marker: Marker) -> Place {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Place { line: number(marker.line()), column: number(marker.col()).saturating_add(1) }
}

/// Returns the parser's message, with a hint on the probable mistake.
fn syntax_fault(error: &ScanError, text: &str) -> Refusal {
    let place = place_of(*error.marker());
    let message = error.info();
    match hint(message, place, text) {
        Some(hint) => (place, format!("{message}; {hint}")),
        None => (place, message.to_owned()),
    }
}

// The meaning of an unquoted YAML scalar, as Go's yaml.v2 reads it (YAML 1.1 without base 60). The
// reference uses yaml.v2, so `007`, `yes` and `1_000` have the same meaning here and there.

/// The meaning of a scalar. The text itself is kept separately.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Meaning {
    /// Empty, `~`, `null`.
    Null,
    /// `true`, `yes`, `on`, `y` and their opposites.
    Bool(bool),
    /// An integer that fits 64 bits with a sign.
    Int(i64),
    /// An integer that fits 64 bits only without a sign.
    Big(u64),
    /// A number with a point or an exponent, or too large for an integer.
    Float(f64),
    /// Text, including dates.
    Text,
    /// `<<`: as a key, merges the map that is its value.
    Merge,
}

// === impl Meaning ===

impl Meaning {
    /// Returns the meaning of unquoted, untagged `text`.
    pub(crate) fn of(text: &str) -> Meaning {
        match text.as_bytes().first() {
            None => Meaning::Null,
            Some(b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~') => {
                Meaning::of_word(text)
            }
            Some(b'.') => Meaning::of_point(text),
            Some(b'+' | b'-' | b'0'..=b'9') => Meaning::of_number(text),
            Some(b'<') if text == "<<" => Meaning::Merge,
            Some(_) => Meaning::Text,
        }
    }

    fn of_word(text: &str) -> Meaning {
        match text {
            "~" | "null" | "Null" | "NULL" => Meaning::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                Meaning::Bool(true)
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => Meaning::Bool(false),
            _ => Meaning::Text,
        }
    }

    fn of_point(text: &str) -> Meaning {
        match text {
            ".nan" | ".NaN" | ".NAN" => Meaning::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" => Meaning::Float(f64::INFINITY),
            _ => Meaning::of_float(text),
        }
    }

    fn of_number(text: &str) -> Meaning {
        match text {
            "+.inf" | "+.Inf" | "+.INF" => return Meaning::Float(f64::INFINITY),
            "-.inf" | "-.Inf" | "-.INF" => return Meaning::Float(f64::NEG_INFINITY),
            _ => {}
        }
        let plain = text.replace('_', "");
        let (negative, digits) = match plain.as_bytes().first() {
            Some(b'-') => (true, &plain[1..]),
            Some(b'+') => (false, &plain[1..]),
            _ => (false, &plain[..]),
        };
        let signed = digits.len() < plain.len();
        match magnitude(digits) {
            Some(number) if negative => match 0_i64.checked_sub_unsigned(number) {
                Some(number) => Meaning::Int(number),
                None => Meaning::of_float(&plain),
            },
            Some(number) => match i64::try_from(number) {
                Ok(number) => Meaning::Int(number),
                Err(_) if signed => Meaning::of_float(&plain),
                Err(_) => Meaning::Big(number),
            },
            None => Meaning::of_float(&plain),
        }
    }

    /// Digits with at most one point and an exponent are a number; anything else, and a number that
    /// overflows, is text.
    fn of_float(text: &str) -> Meaning {
        let numeric = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && text.chars().all(numeric) => Meaning::Float(number),
            _ => Meaning::Text,
        }
    }
}

/// Parses digits with Go's base prefixes: `0x`, `0o`, `0b`; a leading 0 means octal.
fn magnitude(digits: &str) -> Option<u64> {
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    let (base, rest) = match lower.as_deref() {
        Some("0x") if digits.len() > 2 => (16, &digits[2..]),
        Some("0o") if digits.len() > 2 => (8, &digits[2..]),
        Some("0b") if digits.len() > 2 => (2, &digits[2..]),
        Some(two) if two.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    // `from_str_radix` would accept a second sign.
    let is_number = !rest.is_empty() && rest.bytes().all(|b| char::from(b).is_digit(base));
    is_number.then(|| u64::from_str_radix(rest, base).ok()).flatten()
}

// Decodes the bytes of a source as text. The error gives the place of the first invalid byte.

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

/// Class of a byte of plain text: printable ASCII or white space.
const PLAIN: u8 = 1;

/// Class of a byte that can be part of a word.
const WORD: u8 = 2;

/// Class of a comma, bracket or brace: each is a token of a flow collection.
const MARK: u8 = 4;

/// Class of a quotation mark: two of them enclose a scalar.
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
        let mut all = PLAIN;
        let mut before = 0;
        let mut words = 0;
        let mut marks = 0;
        let mut quotes = 0;
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

/// The memory left for the scanner before its next event. It holds the text of a scalar, or the
/// tokens of a flow collection until the collection ends. When no memory is left, the text ends
/// early.
#[derive(Debug)]
pub(crate) struct Ahead {
    left: Cell<usize>,
    /// Bytes taken for the event that needed most. The scanner's queue does not shrink.
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

    /// Runs `scan` up to the next event, within the memory that the load has left; `None` if that
    /// is not enough.
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

    /// Frees the memory that was taken for events.
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

// Hints on the probable mistake in a text that is not YAML. The parser says where it could not go
// on, which may be a line or more behind the mistake.

/// Says how to correct `text`, in which the parser stopped at `place` with this message; `None` if
/// that is not clear.
fn hint(message: &str, place: Place, text: &str) -> Option<String> {
    let line = line_of(text, place.line);
    let is_about = |what: &str| message.contains(what);
    if line.split_once(": ").is_some_and(|(_, value)| value.trim_start().starts_with('*')) {
        return Some(r#"a value that starts with '*' needs quotes, such as "*.pdf""#.to_owned());
    }
    if let Some(rest) = message.strip_prefix("unexpected character: `") {
        let first = rest.chars().next()?;
        return Some(format!("a value that starts with '{first}' needs quotes"));
    }
    if is_about("tab") {
        let number =
            (place.line..).zip(text.lines().skip(index_of(place.line))).find_map(tabbed)?;
        return Some(format!("line {number}: YAML is indented with spaces, not with tabs"));
    }
    if is_about("quoted scalar") {
        return Some("close the quote that begins here, in its line".to_owned());
    }
    if let Some((bracket, number)) = open_bracket(text, place) {
        let end = if bracket == '[' { ']' } else { '}' };
        return Some(format!("the '{bracket}' of line {number} is not closed; add its '{end}'"));
    }
    if is_about("mapping values are not allowed") || is_about("simple key") {
        return colon(is_about("mapping values"), place, text);
    }
    let is_indented = is_about("expected '-' indicator") || is_about("block mapping");
    is_indented.then(|| "indent it by as many spaces as what it stands beside".to_owned())
}

/// Names the line without a colon, or what else keeps a colon from ending a key.
fn colon(ends_no_key: bool, place: Place, text: &str) -> Option<String> {
    let line = line_of(text, place.line);
    let end = line.char_indices().nth(index_of(place.column)).map_or(line.len(), |(end, _)| end);
    if ends_no_key && line.get(..end)?.contains(": ") {
        return Some("a value with ': ' in it needs quotes".to_owned());
    }
    let has_text = |(_, line): &(u32, &str)| !line.is_empty() && !line.starts_with('#');
    let above = (1..place.line).zip(text.lines().map(str::trim));
    let (number, above) = above.filter(has_text).last()?;
    let has_colon = above.contains(": ") || above.ends_with(':');
    if !has_colon {
        let above = excerpt(above);
        return Some(format!("line {number}, '{above}', needs a colon and a space after its key"));
    }
    ends_no_key
        .then(|| format!("it is indented more than line {number}, which has a value already"))
}

fn index_of(number: u32) -> usize {
    number.saturating_sub(1) as usize
}

fn line_of(text: &str, number: u32) -> &str {
    text.lines().nth(index_of(number)).unwrap_or_default()
}

/// The number of a line that is indented with a tab.
fn tabbed((number, line): (u32, &str)) -> Option<u32> {
    let indent = line.len() - line.trim_start().len();
    line.get(..indent)?.contains('\t').then_some(number)
}

/// The bracket around `place` that begins in a line above it, with the number of that line; `None`
/// also if more are open than the parser lets nest, so that some of them are text.
fn open_bracket(text: &str, place: Place) -> Option<(char, u32)> {
    let mut open = Vec::new();
    for (number, line) in (1..=place.line).zip(text.lines()) {
        let end = if number == place.line { index_of(place.column) } else { usize::MAX };
        let mut quote = None;
        let mut before = (':', ' '); // the last character that is no blank, and the last one
        for character in line.chars().take(end) {
            let begins = !open.is_empty() || matches!(before, (':' | '-', ' '));
            match (quote, character) {
                (Some(open), _) if open == character => quote = None,
                (Some(_), _) => {}
                (None, '#') if before.1 == ' ' => break,
                (None, '"' | '\'') if begins => quote = Some(character),
                (None, '[' | '{') if begins && open.len() == DEPTH_MAX => return None,
                (None, '[' | '{') if begins => open.push((character, number)),
                (None, ']' | '}') => _ = open.pop(),
                (None, _) => {}
            }
            before.1 = character;
            if character != ' ' {
                before.0 = character;
            }
        }
    }
    open.pop().filter(|(_, number)| *number < place.line)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod scalar_tests {
    use super::Meaning::{self, Big, Bool, Float, Int, Null, Text};

    #[test]
    fn scalars_have_the_types_they_have_in_the_reference() {
        let table = [
            ("", Null),
            ("~", Null),
            ("Null", Null),
            ("nULL", Text),
            ("y", Bool(true)),
            ("Yes", Bool(true)),
            ("ON", Bool(true)),
            ("tRue", Text),
            ("off", Bool(false)),
            ("N", Bool(false)),
            ("0", Int(0)),
            ("007", Int(7)),
            ("010", Int(8)),
            ("08", Float(8.0)),
            ("0x1F", Int(31)),
            ("0X1f", Int(31)),
            ("0b101", Int(5)),
            ("0o17", Int(15)),
            ("0x", Text),
            ("1_000", Int(1000)),
            ("+5", Int(5)),
            ("-5", Int(-5)),
            ("--5", Text),
            ("+-5", Text),
            ("-", Text),
            ("9223372036854775807", Int(i64::MAX)),
            ("9223372036854775808", Big(1 << 63)),
            ("-9223372036854775808", Int(i64::MIN)),
            ("18446744073709551615", Big(u64::MAX)),
            ("18446744073709551616", Float(18_446_744_073_709_551_616.0)),
            ("1.5", Float(1.5)),
            ("1.", Float(1.0)),
            (".5", Float(0.5)),
            ("-.5e3", Float(-500.0)),
            ("1e3", Float(1000.0)),
            ("1e999", Text),
            (".inf", Float(f64::INFINITY)),
            ("-.INF", Float(f64::NEG_INFINITY)),
            (".", Text),
            ("..", Text),
            ("1.2.3.4", Text),
            ("2024-01-31", Text),
            ("1:30", Text),
            ("<<", Meaning::Merge),
            ("infinity", Text),
            ("nan", Text),
            ("é", Text),
            ("0é", Text),
            ("/a", Text),
        ];
        for (text, meaning) in table {
            assert_eq!(Meaning::of(text), meaning, "{text}");
        }
        assert!(matches!(Meaning::of(".nan"), Float(number) if number.is_nan()));
    }
}

#[cfg(test)]
mod text_tests {
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

#[cfg(test)]
mod hint_tests {
    use crate::{Options, Source, load};

    /// The refusal of a file with these lines, without the file's name.
    fn refusal(lines: &[&str]) -> String {
        let text = format!("{}\n", lines.join("\n")).into_bytes();
        let refused = load(&[Source { name: "a".to_owned(), text }], Options::default());
        refused.unwrap_err().to_string()
    }

    #[test]
    fn a_text_that_is_no_yaml_is_refused_with_the_line_and_how_to_mend_it() {
        let tabs = "YAML is indented with spaces, not with tabs";
        let colon = "needs a colon and a space after its key";
        let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
        for (lines, mended) in [
            (&["domain: d", "descriptors:", "\t- key: a"][..], format!("line 3: {tabs}")),
            (&["descriptors:", "  - key: a", "\t  value: b"], format!("line 3: {tabs}")),
            (&["- key a", &format!("  {limit}")], format!("line 1, '- key a', {colon}")),
            (&["domain d", "descriptors:"], format!("line 1, 'domain d', {colon}")),
            (&["descriptors", "- key: a"], format!("line 1, 'descriptors', {colon}")),
            (&["rate_limit:", "  unit:day", "  x: 1"], format!("line 2, 'unit:day', {colon}")),
            (&["rate_limit:", "  unit: day", "  x 1"], format!("line 3, 'x 1', {colon}")),
            (&["- key: a", "  rate_limit", "    x: 1"], format!("line 2, 'rate_limit', {colon}")),
            (&["key: a: b"], "a value with ': ' in it needs quotes".to_owned()),
            (&["domain: d", "  x: y"], "it is indented more than line 1".to_owned()),
            (&["requests_per_unit: %5"], "a value that starts with '%' needs quotes".to_owned()),
            (&["key: @a"], "a value that starts with '@' needs quotes".to_owned()),
            (&["key: *.pdf"], "needs quotes, such as \"*.pdf\"".to_owned()),
            (&["key: \"a", limit], "close the quote that begins here".to_owned()),
            (&["x: [", "- key: a"], "the '[' of line 1 is not closed; add its ']'".to_owned()),
            (&["x: [{a: 1}", "y: 2"], "the '[' of line 1 is not closed; add its ']'".to_owned()),
            (&["x: {a: '{', b: 1", "- y: 2"], "the '{' of line 1 is not closed".to_owned()),
            (&["- key: [a", "  value: b"], "the '[' of line 1 is not closed".to_owned()),
            (&["x:", "  - a: 1", "   b: 2"], "indent it by as many spaces".to_owned()),
        ] {
            let found = refusal(lines);
            assert!(found.contains(&mended), "{lines:#?}\n{found}");
        }
        let within = refusal(&["x: [", "  {a: 1 b: 2},", "]"]);
        assert!(!within.contains("is not closed"), "{within}");
    }
}
