//! `ratectl replay`: shows what rules would have denied if they had been in force when a log was
//! written.
//!
//! Lines are read one by one and decided at their logged times, with the matcher and the arithmetic
//! of the sidecar. Memory is bounded for any log.

mod line_request;
mod lines;
mod report;

use std::fs;
use std::time::Duration;

use clap::{Args, ValueHint};
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{Role, RulesDirFlags};
use ratelease_cli::source::{self, STDIN, STDIN_NAME};
use ratelease_engine::time::{Clock, Time};
use ratelease_replay::{LINE_BYTES_MAX, Replay, ReplayCounts};
use ratelease_rules::Rules;
use ratelease_rules::request::Request;

use super::progress_line::{ProgressLine, bar};
use super::signals::Signals;
pub(crate) use line_request::LineFlags;
pub(crate) use lines::{Lines, Next};
use report::Report;

/// Maximum number of rules and keys that may be asked for.
const TOP_MAX: u64 = 100_000;

/// Number of lines between checks of the clock, and the time between drawings of the progress.
const LINES_PER_CHECK: u64 = 1024;
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

pub(super) const NOTES: &str = "\
A line has one of four forms, which is recognised:
  - Envoy's default text format (the older one, the newer one, or Istio's), whose fields are method,
    path, path_without_query, protocol, status, response_flags, bytes_received, bytes_sent,
    duration, upstream_service_time, x_forwarded_for, remote_address (the last of x_forwarded_for),
    user_agent, request_id, authority, upstream_host; and with Istio upstream_cluster,
    downstream_remote_address, route_name and others;
  - a JSON object, with fields of any name; dots select inner fields, as in %http.path%;
  - such an object with a field \"descriptors\": a request as /json takes it, and a time;
  - a decision sample of a pod, logged with LOG_FORMAT=json and LOG_VALUES=true: it stands for a
    request with its one descriptor.

Each --descriptor makes one descriptor of a line: KEY=VALUE, separated by commas, where %field% in
VALUE stands for a field. If a field is missing, that descriptor is left out, as Envoy does.

Each line is decided at its own time. Logs are written when requests end, so some lines are older
than the line before them: those are decided at the newest time so far. Counts are those of one
exact server; a fleet admits a little less, because some tokens remain unspent in leases.

A signal, such as Ctrl-C, ends the reading; the results so far are reported.

Exit status: 0 nothing would have been denied, 1 something would, 2 an error, or 128 plus
the number of the signal that ended it.

Examples:
  ratectl replay access.log --rules config/rules --domain demo \\
      --descriptor generic_key=hello --descriptor path=%path_without_query%
  kubectl logs deploy/envoy | ratectl replay - --rules new-rules --domain shop \\
      --descriptor 'user_id=%user%,path=%request.path%' --time request.time --json";

/// Flags of `replay`.
#[derive(Debug, Args)]
pub struct ReplayFlags {
    /// Logs, in order of their times; - for standard input
    #[arg(required = true, value_name = "LOG", value_hint = ValueHint::FilePath)]
    logs: Vec<String>,
    #[command(flatten)]
    lines: LineFlags,
    /// Number of rules and keys to show
    #[arg(long, value_name = "COUNT", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=TOP_MAX))]
    top: u64,
    #[command(flatten)]
    rules: RulesDirFlags,
    #[command(flatten)]
    out: OutFlags,
}

/// Reads logs, and replays them.
struct LogReplay<'a> {
    flags: &'a ReplayFlags,
    replay: Replay<'a>,
    progress: Progress,
    signals: &'a Signals,
}

struct Progress {
    line: ProgressLine,
    clock: Clock,
    /// `None` at first, so that progress is drawn at once: a log from a pipe may pause after a few
    /// lines.
    drawn_at: Option<Time>,
    /// Bytes of all files; `None` if unknown.
    bytes_all: Option<u64>,
    /// Bytes of the files before this one.
    bytes_before: u64,
}

/// Replays the logs and prints what would have been denied. A denial is a finding.
pub(super) fn run(flags: &ReplayFlags, role: Role, out: &mut Out) -> CliResult {
    flags.lines.check()?;
    let dir = source::resolved(|faults| flags.rules.resolve(role, faults))?;
    let rules = source::load(std::slice::from_ref(&dir.dir), dir.reading())?;
    check_domain(&rules, flags.lines.domain.as_deref())?;
    let signals = Signals::listen(|| ProgressLine::stderr().clear(), None)?;
    let mut logs = LogReplay {
        flags,
        replay: Replay::new(&rules),
        progress: Progress::new(&flags.logs),
        signals: &signals,
    };
    let read = flags.logs.iter().try_for_each(|log| logs.log(log));
    logs.progress.line.clear();
    read?;
    let Replay { counts, .. } = logs.replay;
    let interrupted = signals.first();
    drop(signals);
    if interrupted.is_none() && counts.requests == 0 {
        return Err(nothing_replayed(&counts));
    }
    let top = usize::try_from(flags.top).unwrap_or(usize::MAX);
    let report = Report { counts: &counts, top, is_interrupted: interrupted.is_some() };
    if flags.out.json {
        out.json(&report.json())?;
    } else {
        report.print(out)?;
    }
    Ok(interrupted.map_or(Completion::clean_if(counts.over_limit == 0), Completion::Interrupted))
}

/// Refuses a domain without rules: every request would pass, which is seldom what the user wants to
/// know.
fn check_domain(rules: &Rules, domain: Option<&str>) -> Result<(), CliError> {
    let known: Vec<&str> = rules.domains().collect();
    match domain.filter(|domain| !domain.is_empty() && !known.contains(domain)) {
        None => Ok(()),
        Some(domain) => Err(CliError::new(format_args!(
            "--domain {}: no rule file names it; they have {}",
            Safe(domain),
            Safe(known.join(", "))
        ))),
    }
}

fn nothing_replayed(counts: &ReplayCounts) -> CliError {
    let count = counts.without_descriptor;
    match counts.first_unreadable.first() {
        _ if count > 0 => CliError::new(format_args!(
            "no line has all the fields of a --descriptor, of {count} that can be read; correct \
             their names"
        )),
        Some(first) => CliError::new(format_args!(
            "no line can be read; the first, {}:{}, is {}",
            first.file, first.line, first.why
        )),
        None => CliError::new("there is no line to replay"),
    }
}

// === impl LogReplay ===

impl LogReplay<'_> {
    fn log(&mut self, name: &str) -> Result<(), CliError> {
        let shown = if name == STDIN { STDIN_NAME } else { name };
        let failed = |error| CliError::new(format_args!("{shown}: cannot be read: {error}"));
        let mut lines = Lines::open(name, self.signals).map_err(failed)?;
        let mut number = 0;
        while let Some(line) = lines.next().map_err(failed)? {
            number += 1;
            match line {
                Next::Line(line) if line.trim().is_empty() => {}
                Next::Line(line) => self.line(shown, number, line.trim())?,
                Next::TooLong => {
                    let why = || format!("longer than {LINE_BYTES_MAX} bytes");
                    self.unreadable(shown, number, why);
                }
            }
            if number % LINES_PER_CHECK == 0 {
                self.progress.update(lines.bytes(), &self.replay.counts);
            }
        }
        self.progress.bytes_before += lines.bytes();
        Ok(())
    }

    fn unreadable(&mut self, log: &str, number: u64, why: impl FnOnce() -> String) {
        self.replay.counts.note_unreadable(log, number, why);
    }

    /// Replays one line.
    ///
    /// # Errors
    /// The flags do not say which request the line stands for.
    fn line(&mut self, log: &str, number: u64, line: &str) -> Result<(), CliError> {
        let flags = self.flags;
        let decide = |at, request: &Request<'_>| {
            self.replay.request(at, request);
        };
        if let Err(why) = flags.lines.request((log, number), line, true, decide)? {
            self.unreadable(log, number, || why);
        }
        Ok(())
    }
}

// === impl Progress ===

impl Progress {
    fn new(logs: &[String]) -> Self {
        let length = |name: &String| {
            fs::metadata(name).ok().filter(fs::Metadata::is_file).map(|data| data.len())
        };
        let clock = Clock::start();
        Self {
            line: ProgressLine::stderr(),
            clock,
            drawn_at: None,
            bytes_all: logs.iter().map(length).sum(),
            bytes_before: 0,
        }
    }

    fn update(&mut self, bytes: u64, counts: &ReplayCounts) {
        let now = self.clock.now();
        let drawn_lately = self.drawn_at.is_some_and(|at| now.since(at) < DRAW_INTERVAL);
        if !self.line.is_visible() || drawn_lately {
            return;
        }
        self.drawn_at = Some(now);
        let done = (self.bytes_before + bytes) as f64;
        let bar = self.bytes_all.map(|all| bar(done / all as f64)).unwrap_or_default();
        let (lines, denied) = (counts.lines, counts.over_limit);
        self.line.draw(&bar, &format!("{lines} lines, {denied} denied"));
    }
}
