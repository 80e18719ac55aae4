//! What a line of a log asks for: the flags that say so, and the request that results. `replay`
//! and `compare` share it.

use clap::Args;
use ratelease_cli::out::CliError;
use ratelease_rules::request::{DESCRIPTORS_MAX, Descriptor, Entry, Request};
use smallvec::SmallVec;

use super::envoy;
use super::mapping::{Entries, Mapping};
use super::record::Record;

/// Flags that say how lines of logs become requests.
#[derive(Debug, Args)]
pub(crate) struct LineFlags {
    /// Domain of the requests; the domain in a JSON line takes precedence
    #[arg(long, value_name = "NAME")]
    pub(super) domain: Option<String>,
    /// A descriptor made from fields of a line: key=%field%,key=text
    #[arg(long = "descriptor", value_name = "KEY=VALUE,…", value_parser = Mapping::parse)]
    descriptors: Vec<Mapping>,
    /// Name of the field with the time in JSON lines [default: start_time, time, timestamp,
    /// @timestamp, ts or date]
    #[arg(long = "time", value_name = "FIELD")]
    time_field: Option<String>,
}

// === impl LineFlags ===

impl LineFlags {
    /// Checks the flags together.
    ///
    /// # Errors
    /// There are more descriptors than a request may have.
    pub(crate) fn check(&self) -> Result<(), CliError> {
        match self.descriptors.len() {
            ..=DESCRIPTORS_MAX => Ok(()),
            count => {
                Err(CliError::new(format_args!("{count} descriptors, more than {DESCRIPTORS_MAX}")))
            }
        }
    }

    /// Reads the line of `place` (a log and a line number), and passes its time in microseconds
    /// since the Unix epoch and its request to `take`; the time is 0 if it has none and
    /// `needs_time` is false. The inner error says why the line cannot be read.
    ///
    /// # Errors
    /// The flags do not say which request the line stands for.
    pub(crate) fn request<R>(
        &self,
        place: (&str, u64),
        line: &str,
        needs_time: bool,
        take: impl FnOnce(u64, &Request<'_>) -> R,
    ) -> Result<Result<R, String>, CliError> {
        let record = match Record::parse(line) {
            Ok(record) => record,
            Err(why) => return Ok(Err(why)),
        };
        let at = match record.time(self.time_field.as_deref()) {
            Ok(at) => at,
            Err(why) if needs_time => return Ok(Err(why)),
            Err(_) => 0,
        };
        match record.request() {
            None => self.mapped(&record, place, |request| take(at, request)).map(Ok),
            Some(Ok(request)) => {
                let mut request = request.borrow();
                if request.domain.is_empty() {
                    request.domain = self.domain.as_deref().unwrap_or_default();
                }
                with_domain(&request, place)?;
                Ok(Ok(take(at, &request)))
            }
            Some(Err(why)) => Ok(Err(why)),
        }
    }

    /// Makes the request of a line by the flags.
    fn mapped<R>(
        &self,
        record: &Record<'_>,
        place: (&str, u64),
        take: impl FnOnce(&Request<'_>) -> R,
    ) -> Result<R, CliError> {
        if self.descriptors.is_empty() {
            return Err(line_error(
                place,
                "is of an access log and needs a descriptor, as in \
                --descriptor path=%path%",
            ));
        }
        if matches!(record, Record::Envoy(_))
            && let Some(field) = self.descriptors.iter().find_map(Mapping::unknown_to_envoy)
        {
            let known: Vec<_> = envoy::names().collect();
            let known = known.join(", ");
            return Err(line_error(
                place,
                format!("is of Envoy's text format, which has no field {field}, but {known}"),
            ));
        }
        let descriptors: Vec<_> =
            self.descriptors.iter().filter_map(|mapping| mapping.apply(record)).collect();
        let descriptors: SmallVec<_> = descriptors.iter().map(descriptor).collect();
        let domain = self.domain.as_deref().unwrap_or_default();
        let request = Request { domain, descriptors, hits_addend: 0 };
        with_domain(&request, place)?;
        Ok(take(&request))
    }
}

fn with_domain(request: &Request<'_>, place: (&str, u64)) -> Result<(), CliError> {
    if request.domain.is_empty() {
        return Err(line_error(place, "has no domain: set --domain"));
    }
    Ok(())
}

fn descriptor<'a>(entries: &'a Entries<'_>) -> Descriptor<'a> {
    let entries = entries.iter().map(|(key, value)| Entry { key, value });
    Descriptor { entries: entries.collect(), ..Descriptor::default() }
}

fn line_error((log, number): (&str, u64), what: impl std::fmt::Display) -> CliError {
    CliError::new(format_args!("{log}:{number}: {what}"))
}
