//! Reads the messages of `StreamAccessLogs` as their bytes arrive, field by field. Of each entry the id
//! of the request, its cost and a few words are kept. Everything else is skipped where it stands, so
//! that a stream takes the same memory whatever its messages claim: Envoy sends up to 64 MiB in one.
//!
//! The field numbers are from `envoy/service/accesslog/v3/als.proto`,
//! `envoy/data/accesslog/v3/accesslog.proto` and `envoy/config/core/v3/base.proto`. As protobuf
//! specifies, unknown fields are skipped, and the last occurrence of a number wins. Groups are refused:
//! these messages have none.

use ratelease_rules::AMOUNT_MAX;
use smallvec::SmallVec;

use super::super::PREFIX_BYTES;

/// Maximum length of an id in bytes. Envoy's own has 36.
const ID_BYTES_MAX: usize = 128;

/// Maximum length of a number of hits in bytes: more than any double has as a decimal.
const NUMBER_BYTES_MAX: usize = 32;

/// Maximum length in bytes of a name that is compared with a known one, all of which are shorter.
const NAME_BYTES_MAX: usize = 32;

/// Maximum length of a node's name in bytes; the limiter tells no longer ones apart.
const NODE_BYTES_MAX: usize = 256;

/// The custom tag with the id.
const ID_TAG: &[u8] = b"ratelease.id";

/// The custom tag with the cost.
const HITS_TAG: &[u8] = b"ratelease.hits";

/// Maximum size in bytes of a 64-bit varint.
const VARINT_BYTES_MAX: u32 = 10;

/// Depth of the messages that are entered, from the message of a stream to a tag of an entry.
const DEPTH: usize = 5;

/// Takes the parts of a log in their order.
pub trait Sink {
    /// The log says who sends it: its `node.id`, and the name of the log. Both may be cut.
    ///
    /// # Errors
    ///
    /// An error ends the reading.
    fn identify(&mut self, node: &[u8], log_name: &[u8]) -> Result<(), Fault>;

    /// An entry of a request is complete.
    ///
    /// # Errors
    ///
    /// An error ends the reading.
    fn http_entry(&mut self, entry: &Entry) -> Result<(), Fault>;

    /// An entry of a TCP connection has begun.
    fn tcp_entry(&mut self);
}

/// Why a log cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A message is not protobuf, or has another type.
    #[error("the message is no StreamAccessLogsMessage: {0}")]
    Malformed(&'static str),
    /// A message is compressed.
    #[error("access logs are read without compression only")]
    Compressed,
    /// Entries came before the identifier.
    #[error("the first message has no identifier")]
    Unidentified,
}

/// The parts of a request's entry that are read.
#[derive(Debug, Clone, Default)]
pub struct Entry {
    id: Text<ID_BYTES_MAX>,
    hits: Text<NUMBER_BYTES_MAX>,
    details: Text<NAME_BYTES_MAX>,
    attempts: u64,
    kind: u64,
}

/// The id of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryId<'e> {
    /// The entry has no id.
    Absent,
    /// The id is no text, or is too long.
    Bad,
    /// The id.
    Text(&'e str),
}

/// The event that an entry reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The end of a request.
    End,
    /// A sign of life of a request.
    Alive,
    /// Something else.
    Other,
}

/// Reads the messages of one log.
#[derive(Debug)]
pub struct Reader {
    step: Step,
    /// The messages that are open, outermost first.
    open: SmallVec<[Level; DEPTH]>,
    /// Number of bytes read of the outermost one.
    at: u64,
    node: Text<NODE_BYTES_MAX>,
    log_name: Text<NAME_BYTES_MAX>,
    entry: Entry,
    tag_name: Text<NAME_BYTES_MAX>,
    tag_value: Text<ID_BYTES_MAX>,
}

/// The part of a message that the next byte belongs to.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The prefix of a message, of which these bytes have been read.
    Prefix([u8; PREFIX_BYTES], usize),
    /// The number and type of a field.
    Tag(Varint),
    /// The value of a number.
    Number(Varint, Field),
    /// The length of a text or a message.
    Length(Varint, Field),
    /// A text, of which this many bytes are to come.
    Text(TextField, u64),
    /// This many bytes that are of no use.
    Skip(u64),
}

/// A number of which some bytes have been read.
#[derive(Debug, Clone, Copy, Default)]
struct Varint {
    value: u64,
    bytes: u32,
}

/// A message that has been entered, and where it ends.
#[derive(Debug, Clone, Copy)]
struct Level {
    message: Message,
    end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    /// `StreamAccessLogsMessage`.
    Log,
    Identifier,
    Node,
    HttpEntries,
    TcpEntries,
    HttpEntry,
    /// `AccessLogCommon`.
    Common,
    /// One of its custom tags.
    Tag,
    /// `HTTPResponseProperties`.
    Response,
}

/// The use of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Message(Message),
    Text(TextField),
    Number(NumberField),
    TcpEntry,
    Unused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextField {
    NodeId,
    LogName,
    TagName,
    TagValue,
    Details,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberField {
    Attempts,
    Kind,
}

/// The beginning of a text.
#[derive(Debug, Clone)]
struct Text<const MAX: usize> {
    bytes: [u8; MAX],
    /// The length of the whole text.
    length: usize,
}

// === impl Reader ===

impl Reader {
    /// Creates the reader of a log of which nothing was read.
    pub fn new() -> Self {
        Self {
            step: Step::Prefix([0; PREFIX_BYTES], 0),
            open: SmallVec::new(),
            at: 0,
            node: Text::default(),
            log_name: Text::default(),
            entry: Entry::default(),
            tag_name: Text::default(),
            tag_value: Text::default(),
        }
    }

    /// Reads the next bytes of the log.
    ///
    /// # Errors
    ///
    /// Fails if a message cannot be read, or the sink does. The log cannot be read on then.
    pub fn read(&mut self, mut bytes: &[u8], sink: &mut impl Sink) -> Result<(), Fault> {
        while let Some((first, rest)) = bytes.split_first() {
            bytes = match self.step {
                Step::Prefix(prefix, read) => {
                    self.read_prefix(prefix, read, *first, sink)?;
                    rest
                }
                Step::Text(field, left) => self.read_text(field, left, bytes, sink)?,
                Step::Skip(left) => self.skip(left, bytes, sink)?,
                Step::Tag(mut varint) => {
                    match self.push(&mut varint, *first)? {
                        Some(tag) => self.begin_field(tag)?,
                        None => self.step = Step::Tag(varint),
                    }
                    rest
                }
                Step::Number(mut varint, field) => {
                    match self.push(&mut varint, *first)? {
                        Some(number) => self.end_number(field, number, sink)?,
                        None => self.step = Step::Number(varint, field),
                    }
                    rest
                }
                Step::Length(mut varint, field) => {
                    match self.push(&mut varint, *first)? {
                        Some(length) => self.begin_bytes(field, length, sink)?,
                        None => self.step = Step::Length(varint, field),
                    }
                    rest
                }
            };
        }
        Ok(())
    }

    /// Whether the log may end here.
    pub fn is_between_messages(&self) -> bool {
        matches!(self.step, Step::Prefix(_, 0))
    }

    fn read_prefix(
        &mut self,
        mut prefix: [u8; PREFIX_BYTES],
        read: usize,
        byte: u8,
        sink: &mut impl Sink,
    ) -> Result<(), Fault> {
        if let Some(place) = prefix.get_mut(read) {
            *place = byte;
        }
        self.step = Step::Prefix(prefix, read + 1);
        if read + 1 < PREFIX_BYTES {
            return Ok(());
        }
        let [flag, length @ ..] = prefix;
        if flag != 0 {
            return Err(Fault::Compressed);
        }
        self.at = 0;
        self.node.clear();
        self.log_name.clear();
        self.open.push(Level { message: Message::Log, end: u32::from_be_bytes(length).into() });
        self.end_field(sink)
    }

    /// The message that is being read.
    fn level(&self) -> Level {
        self.open.last().copied().unwrap_or(Level { message: Message::Log, end: 0 })
    }

    /// Adds a byte to a number. Returns the number once it is complete.
    fn push(&mut self, varint: &mut Varint, byte: u8) -> Result<Option<u64>, Fault> {
        self.advance(1)?;
        let number = varint.push(byte)?;
        if number.is_none() && self.at == self.level().end {
            return Err(Fault::Malformed("a number goes on after its message"));
        }
        Ok(number)
    }

    /// Counts bytes of the message that is being read.
    fn advance(&mut self, bytes: u64) -> Result<(), Fault> {
        if bytes > self.level().end - self.at {
            return Err(Fault::Malformed("a field is longer than the message"));
        }
        self.at += bytes;
        Ok(())
    }

    /// Begins a field, whose tag is complete.
    fn begin_field(&mut self, tag: u64) -> Result<(), Fault> {
        let number = u32::try_from(tag >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        let number = number.ok_or(Fault::Malformed("a field has no valid number"))?;
        let field = self.level().message.field(number);
        self.step = match (tag & 7, field) {
            (0, Field::Number(_) | Field::Unused) => Step::Number(Varint::default(), field),
            (2, Field::Number(_)) => return Err(WRONG_TYPE),
            (2, _) => Step::Length(Varint::default(), field),
            (1, Field::Unused) => self.skipping(8)?,
            (5, Field::Unused) => self.skipping(4)?,
            _ => return Err(WRONG_TYPE),
        };
        if !matches!(self.step, Step::Skip(_)) && self.at == self.level().end {
            return Err(Fault::Malformed("a field is longer than the message"));
        }
        Ok(())
    }

    fn skipping(&mut self, bytes: u64) -> Result<Step, Fault> {
        self.advance(bytes)?;
        Ok(Step::Skip(bytes))
    }

    /// Takes the value of a number.
    fn end_number(&mut self, field: Field, number: u64, sink: &mut impl Sink) -> Result<(), Fault> {
        match field {
            // Bits above 32 are cut off, as protobuf requires.
            Field::Number(NumberField::Attempts) => self.entry.attempts = number & 0xffff_ffff,
            Field::Number(NumberField::Kind) => self.entry.kind = number & 0xffff_ffff,
            _ => {}
        }
        self.end_field(sink)
    }

    /// Begins a field that has a length: a message that is entered, or a text.
    fn begin_bytes(
        &mut self,
        field: Field,
        length: u64,
        sink: &mut impl Sink,
    ) -> Result<(), Fault> {
        if length > self.level().end - self.at {
            return Err(Fault::Malformed("a field is longer than the message"));
        }
        match field {
            Field::Message(message) => {
                self.begin_message(message);
                self.open.push(Level { message, end: self.at + length });
                return self.end_field(sink);
            }
            Field::Text(field) => {
                self.at += length;
                self.clear_text(field);
                self.step = Step::Text(field, length);
            }
            Field::TcpEntry | Field::Number(_) | Field::Unused => {
                if field == Field::TcpEntry {
                    sink.tcp_entry();
                }
                self.at += length;
                self.step = Step::Skip(length);
            }
        }
        if length == 0 { self.end_field(sink) } else { Ok(()) }
    }

    fn begin_message(&mut self, message: Message) {
        match message {
            Message::HttpEntry => self.entry.clear(),
            Message::Tag => {
                self.tag_name.clear();
                self.tag_value.clear();
            }
            _ => {}
        }
    }

    /// Ends a field, and the messages that end with it.
    fn end_field(&mut self, sink: &mut impl Sink) -> Result<(), Fault> {
        while let Some(level) = self.open.last().copied() {
            if level.end > self.at {
                self.step = Step::Tag(Varint::default());
                return Ok(());
            }
            self.open.pop();
            match level.message {
                Message::Identifier => {
                    sink.identify(self.node.as_bytes(), self.log_name.as_bytes())?;
                }
                Message::HttpEntry => sink.http_entry(&self.entry)?,
                Message::Tag => self.end_tag(),
                _ => {}
            }
        }
        self.step = Step::Prefix([0; PREFIX_BYTES], 0);
        Ok(())
    }

    fn end_tag(&mut self) {
        match self.tag_name.as_bytes() {
            ID_TAG => self.entry.id.set(&self.tag_value),
            HITS_TAG => self.entry.hits.set(&self.tag_value),
            _ => {}
        }
    }

    /// Reads the part of a text that has arrived. Returns the bytes after it.
    fn read_text<'b>(
        &mut self,
        field: TextField,
        left: u64,
        bytes: &'b [u8],
        sink: &mut impl Sink,
    ) -> Result<&'b [u8], Fault> {
        let (text, rest) = split(bytes, left);
        match field {
            TextField::NodeId => self.node.push(text),
            TextField::LogName => self.log_name.push(text),
            TextField::TagName => self.tag_name.push(text),
            TextField::TagValue => self.tag_value.push(text),
            TextField::Details => self.entry.details.push(text),
        }
        let left = left - text.len() as u64;
        self.step = Step::Text(field, left);
        if left == 0 {
            self.end_field(sink)?;
        }
        Ok(rest)
    }

    fn clear_text(&mut self, field: TextField) {
        match field {
            TextField::NodeId => self.node.clear(),
            TextField::LogName => self.log_name.clear(),
            TextField::TagName => self.tag_name.clear(),
            TextField::TagValue => self.tag_value.clear(),
            TextField::Details => self.entry.details.clear(),
        }
    }

    /// Skips at most `left` bytes. Returns the bytes after them.
    fn skip<'b>(
        &mut self,
        left: u64,
        bytes: &'b [u8],
        sink: &mut impl Sink,
    ) -> Result<&'b [u8], Fault> {
        let (skipped, rest) = split(bytes, left);
        let left = left - skipped.len() as u64;
        self.step = Step::Skip(left);
        if left == 0 {
            self.end_field(sink)?;
        }
        Ok(rest)
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

const WRONG_TYPE: Fault = Fault::Malformed("a field is not of the type that the protocol gives it");

/// Splits `bytes` after `length` of them, or at their end.
fn split(bytes: &[u8], length: u64) -> (&[u8], &[u8]) {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len());
    bytes.split_at_checked(length).unwrap_or((bytes, &[]))
}

// === impl Message ===

impl Message {
    /// The use of the field of this number.
    fn field(self, number: u32) -> Field {
        match (self, number) {
            (Self::Log, 1) => Field::Message(Self::Identifier),
            (Self::Log, 2) => Field::Message(Self::HttpEntries),
            (Self::Log, 3) => Field::Message(Self::TcpEntries),
            (Self::Identifier, 1) => Field::Message(Self::Node),
            (Self::Identifier, 2) => Field::Text(TextField::LogName),
            (Self::Node, 1) => Field::Text(TextField::NodeId),
            (Self::HttpEntries, 1) => Field::Message(Self::HttpEntry),
            (Self::TcpEntries, 1) => Field::TcpEntry,
            (Self::HttpEntry, 1) => Field::Message(Self::Common),
            (Self::HttpEntry, 4) => Field::Message(Self::Response),
            (Self::Common, 22) => Field::Message(Self::Tag),
            (Self::Common, 24) => Field::Number(NumberField::Attempts),
            (Self::Common, 33) => Field::Number(NumberField::Kind),
            (Self::Tag, 1) => Field::Text(TextField::TagName),
            (Self::Tag, 2) => Field::Text(TextField::TagValue),
            (Self::Response, 6) => Field::Text(TextField::Details),
            _ => Field::Unused,
        }
    }
}

// === impl Varint ===

impl Varint {
    /// Adds a byte. Returns the number once it is complete.
    fn push(&mut self, byte: u8) -> Result<Option<u64>, Fault> {
        let is_last = self.bytes == VARINT_BYTES_MAX - 1;
        if is_last && byte > 1 {
            return Err(Fault::Malformed("a number has more than 64 bits, or no end"));
        }
        self.value |= u64::from(byte & 0x7f) << (7 * self.bytes);
        self.bytes += 1;
        Ok((byte < 0x80).then_some(self.value))
    }
}

// === impl Entry ===

impl Entry {
    /// The custom tag `ratelease.id`. Envoy writes `-` for an absent value.
    pub fn id(&self) -> EntryId<'_> {
        match std::str::from_utf8(self.id.as_bytes()) {
            _ if self.id.is_cut() => EntryId::Bad,
            Ok("" | "-") => EntryId::Absent,
            Ok(id) => EntryId::Text(id),
            Err(_) => EntryId::Bad,
        }
    }

    /// The cost of the request in hits: 0 if it was not sent upstream, else the custom tag
    /// `ratelease.hits`; `None` if that is no such number. A fraction is cut off, as Envoy does
    /// with the hits of a call.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
    pub fn cost(&self) -> Option<u64> {
        if self.is_unsent() {
            return Some(0);
        }
        let text = std::str::from_utf8(self.hits.as_bytes()).ok().filter(|_| !self.hits.is_cut());
        let hits = text?.parse::<f64>().ok().filter(|hits| *hits >= 0.0)?;
        Some(hits as u64).filter(|hits| *hits <= AMOUNT_MAX)
    }

    /// Whether the request was not sent upstream.
    pub fn is_unsent(&self) -> bool {
        self.attempts == 0
    }

    /// The event. An Envoy that knows no types sends the ends of requests alone.
    pub fn report(&self) -> Report {
        match self.kind {
            0 | 6 => Report::End, // NotSet, DownstreamEnd
            5 => Report::Alive,   // DownstreamPeriodic
            _ => Report::Other,
        }
    }

    /// Whether the request was denied by its limits, so that nothing was taken for it.
    pub fn is_denied(&self) -> bool {
        self.details.as_bytes() == b"request_rate_limited"
    }

    fn clear(&mut self) {
        self.id.clear();
        self.hits.clear();
        self.details.clear();
        (self.attempts, self.kind) = (0, 0);
    }
}

// === impl Text ===

impl<const MAX: usize> Text<MAX> {
    fn clear(&mut self) {
        self.length = 0;
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes.get_mut(self.length.min(MAX)..).unwrap_or_default();
        room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self.length = self.length.saturating_add(bytes.len());
    }

    /// Takes the value of another text.
    fn set<const OTHER: usize>(&mut self, other: &Text<OTHER>) {
        self.clear();
        self.push(other.as_bytes());
        self.length = other.length;
    }

    /// The text, or its beginning if it is longer.
    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length.min(MAX)).unwrap_or_default()
    }

    fn is_cut(&self) -> bool {
        self.length > MAX
    }
}

impl<const MAX: usize> Default for Text<MAX> {
    fn default() -> Self {
        Self { bytes: [0; MAX], length: 0 }
    }
}

#[cfg(test)]
mod tests;
