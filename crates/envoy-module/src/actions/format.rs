//! Substitution formats, as far as a module can see the properties that they name.

use std::borrow::Cow;

use super::fault::{Faults, Place};
use super::{Count, MetadataKey, Stream, address};

/// The operators that are known, for messages.
const OPERATORS: &str = "%REQ(…)%, %RESP(…)%, %DYNAMIC_METADATA(namespace:key)%, \
                         %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%, %BYTES_RECEIVED%, \
                         %BYTES_SENT% and %RESPONSE_CODE%";

/// Text with operators.
#[derive(Debug)]
pub struct Format {
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Text(String),
    Operator(Operator),
}

/// An operator: the text of a stream that takes its place.
#[derive(Debug)]
pub struct Operator {
    subject: Subject,
    /// Maximum bytes of the operator's text.
    bytes_max: usize,
}

#[derive(Debug)]
enum Subject {
    /// A header of the request; if it is absent, the other header.
    RequestHeader(String, Option<String>),
    ResponseHeader(String, Option<String>),
    Metadata(MetadataKey),
    ClientAddress,
    Count(Count),
}

/// A number that an operator finds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Whole(u64),
    Real(f64),
}

// === impl Format ===

impl Format {
    pub fn parse(text: &str, place: &Place<'_>, faults: &mut Faults) -> Option<Self> {
        match parts(text) {
            Ok(parts) => Some(Self { parts }),
            Err(fault) => {
                faults.add(place, fault);
                None
            }
        }
    }

    /// Returns the operator of a format that consists of one operator.
    pub fn into_operator(self) -> Option<Operator> {
        let [Part::Operator(operator)] = <[Part; 1]>::try_from(self.parts).ok()? else {
            return None;
        };
        Some(operator)
    }

    /// The text for a stream; an operator that finds nothing is empty.
    pub fn text<'s>(&'s self, stream: &'s impl Stream) -> Cow<'s, [u8]> {
        let mut texts = self.parts.iter().map(|part| match part {
            Part::Text(text) => Cow::Borrowed(text.as_bytes()),
            Part::Operator(operator) => operator.text(stream).unwrap_or_default(),
        });
        let mut all = texts.next().unwrap_or_default();
        for text in texts {
            all.to_mut().extend_from_slice(&text);
        }
        all
    }
}

fn parts(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        literal.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            literal.push('%');
            rest = after;
            continue;
        }
        if !literal.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut literal)));
        }
        let (operator, after) = operator(after)?;
        parts.push(Part::Operator(operator));
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

/// Reads an operator after its first `%`, and returns the text after its second.
fn operator(text: &str) -> Result<(Operator, &str), String> {
    let is_name = |byte: char| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == '_';
    let (name, rest) = text.split_at(text.find(|it| !is_name(it)).unwrap_or(text.len()));
    let (argument, rest) = match rest.strip_prefix('(') {
        Some(rest) => {
            let (argument, rest) = rest.split_once(')').ok_or("an operator without )")?;
            (Some(argument), rest)
        }
        None => (None, rest),
    };
    let (bytes_max, rest) = match rest.strip_prefix(':') {
        Some(rest) => {
            let (length, _) = rest.split_once('%').ok_or("an operator without its second %")?;
            let bytes = length.parse().map_err(|_| format!("length {length:?}; expected a number"));
            (bytes?, &rest[length.len()..])
        }
        None => (usize::MAX, rest),
    };
    let rest = rest.strip_prefix('%').ok_or_else(|| format!("%{name}: expected {OPERATORS}"))?;
    let subject = subject(name, argument)
        .ok_or_else(|| format!("%{name}%: a module of Envoy knows only {OPERATORS}"))?;
    Ok((Operator { subject, bytes_max }, rest))
}

fn subject(name: &str, argument: Option<&str>) -> Option<Subject> {
    let headers = |argument: &str| {
        let (main, other) = argument.split_once('?').unwrap_or((argument, ""));
        let other = (!other.is_empty()).then(|| other.to_ascii_lowercase());
        (!main.is_empty()).then(|| (main.to_ascii_lowercase(), other))
    };
    match (name, argument) {
        ("REQ" | "REQUEST_HEADER", Some(argument)) => {
            headers(argument).map(|(main, other)| Subject::RequestHeader(main, other))
        }
        ("RESP" | "RESPONSE_HEADER", Some(argument)) => {
            headers(argument).map(|(main, other)| Subject::ResponseHeader(main, other))
        }
        ("DYNAMIC_METADATA", Some(argument)) => {
            let (namespace, key) = argument.split_once(':')?;
            let is_one = !namespace.is_empty() && !key.is_empty() && !key.contains(':');
            is_one.then(|| Subject::Metadata(MetadataKey::dynamic(namespace.into(), key.into())))
        }
        ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", None) => Some(Subject::ClientAddress),
        ("BYTES_RECEIVED", None) => Some(Subject::Count(Count::BytesReceived)),
        ("BYTES_SENT", None) => Some(Subject::Count(Count::BytesSent)),
        ("RESPONSE_CODE", None) => Some(Subject::Count(Count::ResponseCode)),
        _ => None,
    }
}

// === impl Operator ===

impl Operator {
    fn text<'s>(&self, stream: &'s impl Stream) -> Option<Cow<'s, [u8]>> {
        let mut text = match &self.subject {
            Subject::Count(count) => Cow::Owned(stream.count(*count)?.to_string().into_bytes()),
            Subject::Metadata(key) => match key.string(stream) {
                Some(text) => Cow::Borrowed(text),
                None => Cow::Owned(key.number(stream)?.to_string().into_bytes()),
            },
            subject => Cow::Borrowed(subject.borrowed(stream)?),
        };
        match &mut text {
            Cow::Borrowed(text) => *text = &text[..text.len().min(self.bytes_max)],
            Cow::Owned(text) => text.truncate(self.bytes_max),
        }
        Some(text)
    }

    /// The number that the operator finds, or that its text contains.
    pub fn number(&self, stream: &impl Stream) -> Option<Number> {
        match &self.subject {
            Subject::Count(count) => stream.count(*count).map(Number::Whole),
            // Envoy logs an error for a value of another type than is asked for; hits are numbers.
            Subject::Metadata(key) => {
                let number = key.number(stream).map(Number::Real);
                number.or_else(|| number_in(key.string(stream)?))
            }
            _ => number_in(&self.text(stream)?),
        }
    }
}

/// The number that a text contains.
fn number_in(text: &[u8]) -> Option<Number> {
    std::str::from_utf8(text).ok()?.trim_ascii().parse().ok().map(Number::Real)
}

impl Subject {
    /// The text, if it can be borrowed from the stream unchanged.
    fn borrowed<'s>(&self, stream: &'s impl Stream) -> Option<&'s [u8]> {
        match self {
            Self::RequestHeader(main, other) => {
                let find = |name: &String| stream.request_header(name, 0);
                find(main).or_else(|| find(other.as_ref()?))
            }
            Self::ResponseHeader(main, other) => {
                let find = |name: &String| stream.response_header(name);
                find(main).or_else(|| find(other.as_ref()?))
            }
            Self::ClientAddress => address::without_port(stream),
            Self::Metadata(key) => key.string(stream),
            Self::Count(_) => None,
        }
    }
}
