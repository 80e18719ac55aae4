//! The documents of a stream. A line that begins with `---` separates two of YAML, wherever it is,
//! as for kubectl; values of JSON follow each other without a separator.

use serde_json::Value;

use crate::fault::Fault;

/// A part of a stream; all parts together are the stream.
#[derive(Debug)]
pub(super) enum Piece<'t> {
    /// What is between documents.
    Separator(&'t str),
    Document(Document<'t>),
}

/// One document.
#[derive(Debug)]
pub(super) struct Document<'t> {
    pub(super) text: &'t str,
    /// The line of the stream that it begins in, from 1.
    pub(super) line: usize,
    pub(super) format: Format,
}

/// How a document is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Yaml,
    Json,
}

/// Splits a stream.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut start, mut first_line) = (0, 1);
    let mut at = 0;
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        if let Some(length) = separator(line) {
            push(&mut pieces, &text[start..at], first_line);
            pieces.push(Piece::Separator(&line[..length]));
            start = at + length;
            first_line = number + usize::from(length == line.len());
        }
        at += line.len();
    }
    push(&mut pieces, &text[start..], first_line);
    pieces
}

/// The bytes of a line that separate two documents: all of it, unless a value follows.
fn separator(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("---")?;
    let text = rest.trim();
    if !text.is_empty() && !rest.starts_with([' ', '\t']) {
        return None;
    }
    Some(if text.is_empty() || text.starts_with('#') { line.len() } else { 3 })
}

fn push<'t>(pieces: &mut Vec<Piece<'t>>, text: &'t str, line: usize) {
    if !text.trim_start().starts_with('{') {
        pieces.push(Piece::Document(Document { text, line, format: Format::Yaml }));
        return;
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    let mut parts = Vec::new();
    let (mut start, mut is_json) = (0, true);
    while let Some(value) = values.next() {
        is_json &= value.is_ok();
        let end = values.byte_offset();
        let line = line + text[..start].matches('\n').count();
        parts.push(Document { text: &text[start..end], line, format: Format::Json });
        start = end;
    }
    if is_json {
        pieces.extend(parts.into_iter().map(Piece::Document));
        pieces.push(Piece::Separator(&text[start..]));
    } else {
        // A map of YAML in braces, or a fault that its parser reports.
        pieces.push(Piece::Document(Document { text, line, format: Format::Yaml }));
    }
}

// === impl Document ===

impl Document<'_> {
    /// The value, if the text can be relevant.
    pub(super) fn parse(
        &self,
        name: &str,
        is_relevant: impl Fn(&str) -> bool,
    ) -> Result<Option<Value>, Fault> {
        if !is_relevant(self.text) {
            return Ok(None);
        }
        let fault = |line: usize, why: String| {
            let place = format!("{name}:{}", self.line + line.saturating_sub(1));
            Fault::new(place, why, "correct it; nothing was written")
        };
        match self.format {
            Format::Json => serde_json::from_str(self.text)
                .map_err(|error| fault(error.line(), format!("no JSON: {error}"))),
            Format::Yaml => from_yaml(self.text).map_err(|(line, why)| fault(line, why)),
        }
        .map(Some)
    }

    /// The lines of comments that it begins with, which a changed document keeps.
    pub(super) fn leading_comments(&self) -> &str {
        let is_comment = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
        let lines = self.text.split_inclusive('\n').take_while(is_comment);
        &self.text[..lines.map(str::len).sum()]
    }
}

// === impl Format ===

impl Format {
    /// Writes a document as it was read: JSON stays JSON.
    pub(super) fn write(self, value: &Value) -> String {
        match self {
            Self::Json => format!("{value:#}\n"),
            Self::Yaml => to_yaml(value),
        }
    }
}

/// Parses YAML as Kubernetes does, whose scalars are those of YAML 1.1: `0400` is octal. The error
/// is the line and what is wrong in it.
fn from_yaml(text: &str) -> Result<Value, (usize, String)> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        leading_zero_numbers_as_strings: false,
        emit_comments: false,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().and_then(|at| usize::try_from(at.line()).ok());
        (line.unwrap_or(1), format!("no YAML that can be read: {error}"))
    })
}

/// Writes YAML. Text that a parser of YAML 1.1 could take for something else is quoted.
pub(super) fn to_yaml(value: &Value) -> String {
    let written = serde_saphyr::to_string(value);
    // JSON is YAML too, and any value can be written as such.
    let mut text = written.unwrap_or_else(|_| format!("{value:#}"));
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}
