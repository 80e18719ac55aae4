//! The command line of `query`.

use std::time::Duration;

use clap::Args;
use ratelease_cli::channel::TlsFlags;
use ratelease_cli::out::OutFlags;
use ratelease_cli::target::Target;
use ratelease_rules::duration::parse_duration;
use ratelease_rules::request::{Descriptor, Request};
use ratelease_rules::{Limit, Unit};

use crate::descriptor::DescriptorArg;

/// Maximum number of calls in one run.
const REPEAT_MAX: i64 = 1_000_000;

/// Maximum timeout.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

pub(crate) const NOTES: &str = "\
Each argument is one descriptor: key=value, further entries after commas. A backslash escapes
a comma, an equals sign or a backslash: path=/a\\,b.

Exit status: 0 the server answered OK, 1 OVER_LIMIT (of several calls: at least once), 2 it
cannot be called, or answered with an error.

Examples:
  ratectl query --domain demo generic_key=hello
  ratectl query --domain shop user_id=alice path=/checkout --hits 3 --json
  ratectl query --target ratelimit.example:8081 --ca ca.pem --domain shop plan=free,user_id=7";

/// Flags of `query`.
#[derive(Debug, Args)]
pub struct QueryFlags {
    /// gRPC address of the server: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "TARGET", default_value = "127.0.0.1:8081",
          value_parser = Target::parse)]
    pub(super) target: Target,
    /// Domain of the request
    #[arg(long, value_name = "NAME")]
    domain: String,
    /// Descriptors of the request: key=value,key=value
    #[arg(required = true, value_name = "DESCRIPTOR", value_parser = DescriptorArg::parse)]
    pub(super) descriptors: Vec<DescriptorArg>,
    /// Hits to charge; 0 looks at what is left, and charges nothing
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    hits: u32,
    /// A limit that overrides the rules: COUNT/UNIT, as in 10/minute
    #[arg(long, value_name = "LIMIT", value_parser = limit)]
    limit: Option<Limit>,
    /// Number of calls, one after another
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=REPEAT_MAX))]
    pub(super) repeat: u32,
    /// Maximum time for connecting, and for each answer, a duration
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = timeout)]
    pub(super) timeout: Duration,
    #[command(flatten)]
    pub(super) out: OutFlags,
    #[command(flatten)]
    pub(super) tls: TlsFlags,
}

// === impl QueryFlags ===

impl QueryFlags {
    /// Returns the request to send.
    pub(super) fn request(&self) -> Request<'_> {
        // In the request as a whole, 0 stands for the default of 1.
        let hits_addend = (self.hits == 0).then_some(0);
        let descriptors = self.descriptors.iter().map(|typed| Descriptor {
            limit: self.limit,
            hits_addend,
            ..typed.descriptor()
        });
        Request { domain: &self.domain, descriptors: descriptors.collect(), hits_addend: self.hits }
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    let parsed = text.split_once('/').and_then(|(count, unit)| {
        Some(Limit::fixed_window(count.parse().ok()?, Unit::parse(unit)?))
    });
    parsed.ok_or_else(|| {
        let units = Unit::ALL.map(|unit| unit.name().to_lowercase());
        format!("expected COUNT/UNIT, as in 10/minute, with a unit of {}", units.join(", "))
    })
}

fn timeout(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| !span.is_zero() && *span <= TIMEOUT_MAX);
    span.ok_or_else(|| "expected a duration of at most 1h with its unit, as in 5s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_count_and_a_unit() {
        assert_eq!(limit("10/minute"), Ok(Limit::fixed_window(10, Unit::Minute)));
        assert_eq!(limit("0/DAY"), Ok(Limit::fixed_window(0, Unit::Day)));
        for bad in ["10", "10/", "/minute", "-1/minute", "10/fortnight", "10/unknown"] {
            assert!(limit(bad).is_err_and(|why| why.contains("second, minute")), "{bad}");
        }
    }

    #[test]
    fn a_timeout_is_above_zero() {
        assert_eq!(timeout("20ms"), Ok(Duration::from_millis(20)));
        for bad in ["0", "0s", "5", "2h"] {
            assert!(timeout(bad).is_err(), "{bad}");
        }
    }
}
