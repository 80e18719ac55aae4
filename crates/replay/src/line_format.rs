//! Reads a line of a log as a request.

use std::borrow::Cow;

use ratelease_rules::request::scoped::VALUE_BYTES_MAX;
use ratelease_rules::request::{Descriptor, ENTRIES_MAX, Entry, Request};
use smallvec::SmallVec;
use thiserror::Error;

use crate::record;
use crate::record::Record;

/// How lines become requests. A line that is a request itself needs only the domain, if that.
#[derive(Debug, Clone, Copy, Default)]
pub struct LineFormat<'a> {
    /// The domain of requests whose line names none.
    pub domain: Option<&'a str>,
    /// Each makes one descriptor of a line.
    pub descriptors: &'a [Mapping],
    /// The name of the field with the time of a JSON line; by default, those that loggers use.
    pub time_field: Option<&'a str>,
    /// Whether a line without a time is unreadable. If not, its time is 0.
    pub needs_time: bool,
}

/// Why a format does not say which request a line stands for. All lines of a log are alike, so that
/// the log cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FormatFault {
    /// The line is of an access log, and there is no descriptor.
    #[error("is of an access log and needs a descriptor, as in path=%path%")]
    NoDescriptor,
    /// A descriptor names a field that Envoy's text format does not have.
    #[error("is of Envoy's text format, which has no field {field}, but {known}")]
    UnknownField {
        /// The field.
        field: String,
        /// The fields that the format has.
        known: String,
    },
    /// Neither the line nor the format has a domain.
    #[error("has no domain")]
    NoDomain,
}

/// The value read from a line, or why the line cannot be read.
pub type LineResult<R> = Result<R, String>;

// === impl LineFormat ===

impl LineFormat<'_> {
    /// Reads a line, and passes its time in microseconds since the Unix epoch and its request to
    /// `take`.
    ///
    /// # Errors
    /// The format does not say which request the line stands for.
    pub fn request<R>(
        &self,
        line: &str,
        take: impl FnOnce(u64, &Request<'_>) -> R,
    ) -> Result<LineResult<R>, FormatFault> {
        let record = match Record::parse(line) {
            Ok(record) => record,
            Err(why) => return Ok(Err(why)),
        };
        let at = match record.time(self.time_field) {
            Ok(at) => at,
            Err(why) if self.needs_time => return Ok(Err(why)),
            Err(_) => 0,
        };
        match record.request() {
            None => self.mapped(&record, |request| take(at, request)),
            Some(Ok(request)) => {
                let mut request = request.borrow();
                if request.domain.is_empty() {
                    request.domain = self.domain.unwrap_or_default();
                }
                with_domain(&request)?;
                Ok(Ok(take(at, &request)))
            }
            Some(Err(why)) => Ok(Err(why)),
        }
    }

    /// The work of reading this line, in bytes that are looked at. That of deciding its request is
    /// apart: [`Replay::work`](crate::Replay).
    pub fn work(&self, line: &str) -> u64 {
        line.len() as u64 + self.descriptors.iter().map(Mapping::work).sum::<u64>()
    }

    /// Makes the request of a line by the descriptors.
    fn mapped<R>(
        &self,
        record: &Record<'_>,
        take: impl FnOnce(&Request<'_>) -> R,
    ) -> Result<LineResult<R>, FormatFault> {
        if self.descriptors.is_empty() {
            return Err(FormatFault::NoDescriptor);
        }
        if matches!(record, Record::Envoy(_))
            && let Some(field) = self.descriptors.iter().find_map(Mapping::unknown_to_envoy)
        {
            let known: Vec<_> = record::envoy_names().collect();
            return Err(FormatFault::UnknownField {
                field: field.to_owned(),
                known: known.join(", "),
            });
        }
        let mut descriptors = Vec::new();
        let mut room = VALUES_BYTES_MAX;
        for mapping in self.descriptors {
            match mapping.apply(record, &mut room) {
                Ok(entries) => descriptors.push(entries),
                Err(NoEntries::Missing) => {}
                Err(NoEntries::TooLong) => {
                    return Ok(Err(format!(
                        "its values are longer than those of a request: {VALUE_BYTES_MAX} bytes in \
                         one, {VALUES_BYTES_MAX} in all"
                    )));
                }
            }
        }
        let descriptors: SmallVec<_> = descriptors.iter().map(descriptor).collect();
        let domain = self.domain.unwrap_or_default();
        let request = Request { domain, descriptors, hits_addend: 0 };
        with_domain(&request)?;
        Ok(Ok(take(&request)))
    }
}

fn with_domain(request: &Request<'_>) -> Result<(), FormatFault> {
    if request.domain.is_empty() { Err(FormatFault::NoDomain) } else { Ok(()) }
}

fn descriptor<'a>(entries: &'a Entries<'_>) -> Descriptor<'a> {
    let entries = entries.iter().map(|(key, value)| Entry { key, value });
    Descriptor { entries: entries.collect(), ..Descriptor::default() }
}

/// Parses a line of a log under a descriptor, if both can be parsed. Returns the line's time, and
/// the number of entries of the descriptor or, if the line is a request itself, its number of
/// descriptors. For `tests/fuzz`.
#[doc(hidden)]
pub fn read_line(line: &str, mapping: &str) -> Option<(Option<u64>, usize)> {
    let mapping = Mapping::parse(mapping);
    let record = Record::parse(line).ok()?;
    let time = record.time(None).ok();
    let request = record.request().and_then(Result::ok);
    let of_request = request.map(|request| request.borrow().descriptors.len());
    let mapped = mapping.ok().and_then(|mapping| {
        mapping.apply(&record, &mut VALUES_BYTES_MAX.clone()).map(|it| it.len()).ok()
    });
    Some((time, of_request.or(mapped).unwrap_or_default()))
}

// === Mapping ===
//
// `--descriptor`: maps a line of a log to the entries of a descriptor.

/// Maximum number of texts and fields in the values of one descriptor.
const PIECES_MAX: usize = 256;

/// Maximum bytes of the mapping of one descriptor.
const MAPPING_BYTES_MAX: usize = 64 << 10;

/// Maximum bytes of the values of all descriptors of a line: the maximum of a real request.
pub const VALUES_BYTES_MAX: usize = 1 << 20;

/// Units of work for finding a field or an entry, beside one for each byte of its texts.
pub const STEP_WORK: u64 = 64;

/// A descriptor built from fields of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    entries: Vec<(String, Template)>,
}

/// Text with fields in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Field(String),
}

/// Why a line has no descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoEntries {
    /// A field is missing, so that Envoy would send no descriptor.
    Missing,
    /// A value, or all of them, would be longer than a request may have.
    TooLong,
}

/// The entries of one descriptor; values are owned.
pub type Entries<'m> = Vec<(&'m str, String)>;

// === impl Mapping ===

impl Mapping {
    /// Parses `key=value,key=value`, where `%field%` in a value stands for a field of the line and
    /// `%%` for a per cent sign.
    ///
    /// # Errors
    /// Returns the fault of the text, and the expected form.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAPPING_BYTES_MAX {
            return Err(format!("{} bytes are more than {MAPPING_BYTES_MAX}", text.len()));
        }
        let entries: Vec<_> = text.split(',').map(entry).collect::<Result<_, _>>()?;
        if entries.len() > ENTRIES_MAX {
            return Err(format!("{} entries are more than {ENTRIES_MAX}", entries.len()));
        }
        let pieces: usize = entries.iter().map(|(_, Template(pieces))| pieces.len()).sum();
        if pieces > PIECES_MAX {
            return Err(format!("{pieces} texts and fields are more than {PIECES_MAX}"));
        }
        Ok(Self { entries })
    }

    /// Returns the entries for `record`, and takes the bytes of their values from `room`.
    pub fn apply(&self, record: &Record<'_>, room: &mut usize) -> Result<Entries<'_>, NoEntries> {
        let entries = self.entries.iter();
        entries.map(|(key, template)| Ok((key.as_str(), template.fill(record, room)?))).collect()
    }

    /// The work of finding the fields of a line.
    pub fn work(&self) -> u64 {
        let pieces = self.entries.iter().flat_map(|(_, Template(pieces))| pieces);
        pieces.map(|(Piece::Text(text) | Piece::Field(text))| STEP_WORK + text.len() as u64).sum()
    }

    /// Returns the first field that Envoy's text format does not have.
    pub fn unknown_to_envoy(&self) -> Option<&str> {
        let pieces = self.entries.iter().flat_map(|(_, Template(pieces))| pieces);
        let fields = pieces.filter_map(|piece| match piece {
            Piece::Field(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        });
        { fields }.find(|name| record::envoy_names().all(|known| known != *name))
    }
}

fn entry(text: &str) -> Result<(String, Template), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), Template::parse(value)?)),
        _ => Err(format!("expected KEY=VALUE, as in path=%path%, not {text:?}")),
    }
}

// === impl Template ===

impl Template {
    fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        // Text and field names alternate between the signs.
        for (at, part) in text.split('%').enumerate() {
            match (at % 2, part) {
                (0, "") => {}
                (0, text) => pieces.push(Piece::Text(text.to_owned())),
                (_, "") => pieces.push(Piece::Text("%".to_owned())),
                (_, name) => pieces.push(Piece::Field(name.to_owned())),
            }
        }
        match text.matches('%').count() % 2 {
            0 => Ok(Self(pieces)),
            _ => Err(format!("a % is left over in {text:?}: write %field%, and %% for the sign")),
        }
    }

    /// The value for `record`. Its length is checked before it grows: a template may name a long
    /// field again and again.
    fn fill(&self, record: &Record<'_>, room: &mut usize) -> Result<String, NoEntries> {
        let mut filled = String::new();
        for piece in &self.0 {
            let text = match piece {
                Piece::Text(text) => Cow::Borrowed(text.as_str()),
                Piece::Field(name) => record.field(name).ok_or(NoEntries::Missing)?,
            };
            if filled.len() + text.len() > VALUE_BYTES_MAX {
                return Err(NoEntries::TooLong);
            }
            *room = room.checked_sub(text.len()).ok_or(NoEntries::TooLong)?;
            filled.push_str(&text);
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(mapping: &str, line: &str) -> Result<Vec<(String, String)>, NoEntries> {
        let mapping = Mapping::parse(mapping).unwrap();
        let mut room = VALUES_BYTES_MAX;
        let entries = mapping.apply(&Record::parse(line).unwrap(), &mut room)?;
        assert_eq!(room + entries.iter().map(|it| it.1.len()).sum::<usize>(), VALUES_BYTES_MAX);
        Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    #[test]
    fn values_are_text_and_fields_in_any_mixture() {
        let line = r#"{"a": "x", "b": {"c": 7}}"#;
        for (mapping, value) in [
            ("k=%a%", "x"),
            ("k=v", "v"),
            ("k=", ""),
            ("k=/%a%/%b.c%", "/x/7"),
            ("k=%a%%b.c%", "x7"),
            ("k=100%%", "100%"),
            ("k=a=b", "a=b"),
        ] {
            let expected = Ok(vec![("k".to_owned(), value.to_owned())]);
            assert_eq!(filled(mapping, line), expected, "{mapping}");
        }
        let two = filled("k=%a%,l=%b.c%", line).unwrap();
        assert_eq!(two[1], ("l".to_owned(), "7".to_owned()));
    }

    #[test]
    fn a_missing_field_leaves_out_the_descriptor() {
        assert_eq!(filled("k=v,l=%none%", r#"{"a": 1}"#), Err(NoEntries::Missing));
    }

    #[test]
    fn a_value_that_is_longer_than_that_of_a_request_is_not_made() {
        for (bytes, times, is_made) in
            [(8192, 1, true), (4096, 2, true), (8193, 1, false), (2731, 3, false)]
        {
            let line = format!(r#"{{"a": "{}"}}"#, "x".repeat(bytes));
            let found = filled(&format!("k={}", "%a%".repeat(times)), &line);
            assert_eq!(found.is_ok(), is_made, "{bytes} {times}");
            assert!(is_made || found == Err(NoEntries::TooLong));
        }
    }

    #[test]
    fn malformed_mappings_are_refused() {
        for bad in ["", "k", "=v", "k=%a", "k=v,", "k=%a%,%b%"] {
            assert!(Mapping::parse(bad).is_err(), "{bad}");
        }
        let many = vec!["k=v"; ENTRIES_MAX + 1].join(",");
        assert_eq!(Mapping::parse(&many).unwrap_err(), "65 entries are more than 64");
        let many = format!("k={}", "%a%".repeat(PIECES_MAX + 1));
        let fault = Mapping::parse(&many).unwrap_err();
        assert_eq!(fault, "257 texts and fields are more than 256");
        let long = format!("k={}", "v".repeat(MAPPING_BYTES_MAX));
        assert_eq!(Mapping::parse(&long).unwrap_err(), "65538 bytes are more than 65536");
    }

    #[test]
    fn a_field_that_envoys_format_lacks_is_found() {
        let unknown = |text| Mapping::parse(text).unwrap().unknown_to_envoy().map(str::to_owned);
        assert_eq!(unknown("k=%path%,l=%method%"), None);
        assert_eq!(unknown("k=%path%,l=%http.path%"), Some("http.path".to_owned()));
    }
}
