//! The flags that say what a line of a log asks for. `replay` and `compare` share them.

use clap::Args;
use ratelease_cli::out::CliError;
use ratelease_replay::{FormatFault, LineFormat, LineResult, Mapping};
use ratelease_rules::request::{DESCRIPTORS_MAX, Request};

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
        (log, number): (&str, u64),
        line: &str,
        needs_time: bool,
        take: impl FnOnce(u64, &Request<'_>) -> R,
    ) -> Result<LineResult<R>, CliError> {
        let format = LineFormat {
            domain: self.domain.as_deref(),
            descriptors: &self.descriptors,
            time_field: self.time_field.as_deref(),
            needs_time,
        };
        format.request(line, take).map_err(|fault| {
            let what = match fault {
                FormatFault::NoDescriptor => {
                    "is of an access log and needs a descriptor, as in --descriptor path=%path%"
                        .to_owned()
                }
                FormatFault::NoDomain => "has no domain: set --domain".to_owned(),
                fault => fault.to_string(),
            };
            CliError::new(format_args!("{log}:{number}: {what}"))
        })
    }
}
