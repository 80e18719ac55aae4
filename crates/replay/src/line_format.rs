//! What a line of a log asks for.

use ratelease_rules::request::scoped::VALUE_BYTES_MAX;
use ratelease_rules::request::{Descriptor, Entry, Request};
use smallvec::SmallVec;
use thiserror::Error;

use crate::envoy;
use crate::mapping::{Entries, Mapping, NoEntries, VALUES_BYTES_MAX};
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
        /// Those that it has.
        known: String,
    },
    /// Neither the line nor the format has a domain.
    #[error("has no domain")]
    NoDomain,
}

/// What was made of a line: a value, or why the line cannot be read.
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
            let known: Vec<_> = envoy::names().collect();
            return Err(FormatFault::UnknownField {
                field: field.to_owned(),
                known: known.join(", "),
            });
        }
        let (mut descriptors, mut room) = (Vec::new(), VALUES_BYTES_MAX);
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
