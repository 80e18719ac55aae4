//! The command line of `compare`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use ratelease_cli::channel::TlsFlags;
use ratelease_cli::out::{CliError, OutFlags};
use ratelease_cli::settings::RulesDirFlags;
use ratelease_cli::target::Target;
use ratelease_rules::duration::parse_duration;

use crate::replay::LineFlags;

/// Maximum timeout of a call.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Maximum duration of a mirror.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum distance from the edge of a window.
const EDGE_MAX: Duration = Duration::from_secs(60);

/// Maximum number of requests for each rule.
const GENERATED_MAX: i64 = 1_000_000;

/// Default of `--within`, for requests that are sent one by one, and for those of a mirror, which
/// the two servers receive in different orders.
const WITHIN: u64 = 0;
const WITHIN_MIRRORED: u64 = 16;

pub(crate) const NOTES: &str = "\
Requests come from one of three sources:
  - LOGs, in the forms that `ratectl replay` reads; they are sent as fast as they are answered, and
    the times in them do not count;
  - --generate COUNT: so many requests for each rule, with a value of this run where the rule takes
    any, so that counts begin at zero;
  - --listen ADDRESS: what a client, such as Envoy, sends there. Each call is answered by one server
    (--answer-from) and mirrored to the other through a bounded queue, which never delays the
    answer: if it is full, the call is not compared. Other unary calls, such as health checks, go to
    that server alone.

Both servers count what they are sent. A call is sent to both at the same time; each answer is
compared: errors, code, and for each descriptor code, limit, remaining tokens and reset; headers,
metadata and body. A difference has one of three causes:
  - timing: its window begins or ends within --edge, or the tokens that remain differ by --within at
    most; and in the same window, what follows from that;
  - by design: ratelease does not charge the other rules of a request that one rule denies, the
    reference does (docs/differences.md);
  - unexplained: a finding.
A reset that differs by a second is no difference. Rules are those of --rules; each difference
counts for the rule that its descriptor finds there. Flags of TLS concern --against.

A signal, such as Ctrl-C, ends the run; what was compared until then is reported.

Exit status: 0 no unexplained difference, 1 some, 2 an error, or 128 plus the number of the signal
that ended it.

Examples:
  ratectl compare --against ratelimit:8081 --rules config/rules --generate 20
  ratectl compare --against ratelimit:8081 access.log --domain shop \\
      --descriptor path=%path_without_query%
  ratectl compare --against ratelimit:8081 --listen 127.0.0.1:9081 --duration 10m --json";

/// Flags of `compare`.
#[derive(Debug, Args)]
pub struct CompareFlags {
    /// Logs, in order; - for standard input
    #[arg(value_name = "LOG", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["generate", "listen"])]
    pub(super) logs: Vec<String>,
    /// The server to compare with, such as the reference: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "TARGET", value_parser = Target::parse)]
    pub(super) against: Target,
    /// The server that is to answer the same, ratelease: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "TARGET", default_value = "127.0.0.1:8081",
          value_parser = Target::parse)]
    pub(super) target: Target,
    /// Send this many requests for each rule
    #[arg(long, value_name = "COUNT", conflicts_with = "listen",
          value_parser = clap::value_parser!(u32).range(1..=GENERATED_MAX))]
    pub(super) generate: Option<u32>,
    /// Address at which to take calls, and mirror them
    #[arg(long, value_name = "ADDRESS")]
    pub(super) listen: Option<SocketAddr>,
    /// The server that answers the calls of --listen
    #[arg(long, value_name = "SERVER", default_value = "target", requires = "listen")]
    pub(super) answer_from: AnswerFrom,
    /// Time after which --listen ends, a duration [default: at a signal]
    #[arg(long, value_name = "SPAN", requires = "listen", value_parser = duration)]
    pub(super) duration: Option<Duration>,
    /// Distance from the edge of a window at which servers may count in different windows
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = edge)]
    pub(super) edge: Duration,
    /// Difference of remaining tokens that the order of requests may cause [default: 0, or 16 with
    /// --listen]
    #[arg(long, value_name = "COUNT")]
    within: Option<u64>,
    /// Maximum time for connecting, and for each answer, a duration
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = timeout)]
    pub(super) timeout: Duration,
    #[command(flatten)]
    pub(super) lines: LineFlags,
    #[command(flatten)]
    pub(super) rules: RulesDirFlags,
    #[command(flatten)]
    pub(super) tls: TlsFlags,
    #[command(flatten)]
    pub(super) out: OutFlags,
}

/// A server that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum AnswerFrom {
    /// That of --target
    Target,
    /// That of --against
    Against,
}

// === impl CompareFlags ===

impl CompareFlags {
    /// Checks the flags together.
    ///
    /// # Errors
    /// There is no source of requests.
    pub(super) fn check(&self) -> Result<(), CliError> {
        if self.logs.is_empty() && self.generate.is_none() && self.listen.is_none() {
            return Err(CliError::new(
                "no requests: name a LOG, or set --generate COUNT or --listen ADDRESS",
            ));
        }
        self.lines.check()
    }

    /// The difference of remaining tokens that the order of requests may cause.
    pub(super) fn within(&self) -> u64 {
        let default = if self.listen.is_some() { WITHIN_MIRRORED } else { WITHIN };
        self.within.unwrap_or(default)
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| !span.is_zero() && *span <= TIMEOUT_MAX);
    span.ok_or_else(|| "expected a duration of at most 1h with its unit, as in 5s".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| !span.is_zero() && *span <= DURATION_MAX);
    span.ok_or_else(|| "expected a duration of at most 720h with its unit, as in 10m".to_owned())
}

fn edge(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| *span <= EDGE_MAX);
    span.ok_or_else(|| "expected a duration of at most 60s with its unit, as in 1s".to_owned())
}
