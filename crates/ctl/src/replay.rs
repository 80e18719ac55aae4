//! `ratectl replay`: shows what rules would have denied if they had been in force when a log was
//! written.
//!
//! Lines are read one by one and decided at their logged times, with the matcher and the arithmetic
//! of the sidecar. Memory is bounded for any log.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::time::Duration;
use std::{fs, io};

use clap::{Args, ValueHint};
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Style};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{Flags, Role, RulesDir};
use ratelease_cli::source::{STDIN, STDIN_NAME};
use ratelease_cli::{safe, source};
use ratelease_engine::time::{Clock, Time};
use ratelease_replay::{
    FormatFault, LINE_BYTES_MAX, LineFormat, LineResult, Mapping, Replay, ReplayCounts, RuleCounts,
    show_time,
};
use ratelease_rules::Rules;
use ratelease_rules::request::{DESCRIPTORS_MAX, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::progress_line::{ProgressLine, bar};
use crate::signals::Signals;

/// Maximum number of rules and keys that may be asked for.
const TOP_MAX: u64 = 100_000;

/// Number of lines between checks of the clock.
const LINES_PER_CHECK: u64 = 1024;

/// Time between drawings of the progress.
const DRAW_INTERVAL: Duration = Duration::from_millis(100);

pub const NOTES: &str = "\
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
    rules: Flags<RulesDir>,
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

/// Replays the logs and prints the requests that would have been denied. A denial is a finding.
pub fn run(flags: &ReplayFlags, role: Role, out: &mut Out) -> CliResult {
    flags.lines.check()?;
    let dir = flags.rules.read(|values, faults| RulesDir::read(role, values, faults))?;
    let rules = source::load(std::slice::from_ref(&dir.dir), &dir.reading)?;
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

/// Refuses a domain without rules: every request would pass, and that is seldom the question of the
/// user.
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
        let lines = counts.lines;
        let denied = counts.over_limit;
        self.line.draw(&bar, &format!("{lines} lines, {denied} denied"));
    }
}

// === Lines ===
//
// Reads the lines of several files, one file after another, in bounded memory.

/// Bytes per read.
const BUFFER_BYTES: usize = 1 << 18;

/// Maximum delay of a signal while a file has nothing to read yet.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Reads one file line by line. A signal ends the file.
pub struct Lines<'s> {
    reader: Box<dyn BufRead + 's>,
    signals: Option<&'s Signals>,
    line: Vec<u8>,
    /// Bytes read so far.
    bytes: u64,
}

/// The result of a read.
pub enum Next<'a> {
    /// A line, without its line end.
    Line(std::borrow::Cow<'a, str>),
    /// A line of more than [`LINE_BYTES_MAX`].
    TooLong,
}

/// A file that ends at a signal, because it may be a pipe that is never closed.
struct Heeding<'s> {
    file: File,
    signals: &'s Signals,
}

// === impl Heeding ===

impl Read for Heeding<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.signals.first().is_none() {
            let mut ready = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut ready, Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return self.file.read(buffer),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(0)
    }
}

// === impl Lines ===

impl<'s> Lines<'s> {
    /// Opens a file, or standard input if `name` is `-`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(name: &str, signals: &'s Signals) -> io::Result<Self> {
        let file = match name {
            STDIN => File::from(io::stdin().as_fd().try_clone_to_owned()?),
            name => File::open(name)?,
        };
        let reader = BufReader::with_capacity(BUFFER_BYTES, Heeding { file, signals });
        let reader = Box::new(reader);
        Ok(Self { reader, signals: Some(signals), line: Vec::new(), bytes: 0 })
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the next line; `None` at the end. Invalid UTF-8 is replaced.
    pub fn next(&mut self) -> io::Result<Option<Next<'_>>> {
        self.line.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        let read = self.reader.by_ref().take(most).read_until(b'\n', &mut self.line)?;
        self.bytes += read as u64;
        // A line that was cut off by a signal does not count.
        let is_cut = || self.signals.is_some_and(|signals| signals.first().is_some());
        if read == 0 || (self.line.last() != Some(&b'\n') && is_cut()) {
            return Ok(None);
        }
        if self.line.len() > LINE_BYTES_MAX && self.line.last() != Some(&b'\n') {
            self.skip_line()?;
            return Ok(Some(Next::TooLong));
        }
        while self.line.pop_if(|end| matches!(end, b'\n' | b'\r')).is_some() {}
        Ok(Some(Next::Line(String::from_utf8_lossy(&self.line))))
    }

    fn skip_line(&mut self) -> io::Result<()> {
        self.bytes += self.reader.skip_until(b'\n')? as u64;
        Ok(())
    }
}

// === Line request ===
//
// The flags that say how a line of a log becomes a request. `replay` and `compare` share them.

/// Flags that say how lines of logs become requests.
#[derive(Debug, Args)]
pub struct LineFlags {
    /// Domain of the requests; the domain in a JSON line takes precedence
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,
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
    pub fn check(&self) -> Result<(), CliError> {
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
    pub fn request<R>(
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

// === Report ===
//
// Reports the result of a replay, as text and as JSON.

/// The rules and keys to show.
#[derive(Debug, Clone, Copy)]
struct Report<'a> {
    counts: &'a ReplayCounts,
    /// Maximum number of each.
    top: usize,
    /// Whether a signal arrived before the end of the logs.
    is_interrupted: bool,
}

// === impl Report ===

impl Report<'_> {
    fn json(&self) -> Value {
        let Self { counts, top, is_interrupted } = self;
        let mut report = json!(counts);
        let rules = counts.rules();
        let rules = rules.iter().take(*top).map(|(path, counts)| {
            let RuleCounts { ok, over_limit, shadow } = counts;
            json!({"rule": path, "ok": ok, "over_limit": over_limit, "shadow": shadow})
        });
        report["rules"] = rules.collect();
        report["keys"] = json!(counts.keys(*top));
        report["interrupted"] = (*is_interrupted).into();
        report["from"] = counts.span.map(|(from, _)| show_time(from)).into();
        report["to"] = counts.span.map(|(_, to)| show_time(to)).into();
        report
    }

    fn print(&self, out: &mut Out) -> Result<(), CliError> {
        self.print_totals(out)?;
        self.print_doubts(out)?;
        self.print_rules(out)?;
        self.print_keys(out)
    }

    fn print_totals(&self, out: &mut Out) -> Result<(), CliError> {
        let counts = self.counts;
        if self.is_interrupted {
            let line = "interrupted: this covers the lines that were read before";
            out.line(out.painter().paint(Style::Doubtful, line))?;
        }
        if let Some((from, to)) = counts.span {
            let span = to - from;
            let from = show_time(from);
            let to = show_time(to);
            let span = Duration::from_secs(span / 1_000_000);
            out.line(format_args!("from {from} to {to}, {span:?}"))?;
        }
        out.line(format_args!("lines         {:>10}", counts.lines))?;
        out.line(format_args!("requests      {:>10}", counts.requests))?;
        out.line(format_args!(
            "  passed      {:>10}{}",
            counts.ok,
            share(counts.ok, counts.requests)
        ))?;
        let denied = counts.over_limit;
        let of_all = share(counts.over_limit, counts.requests);
        let style = if denied > 0 { Style::Bad } else { Style::Good };
        let denied = format!("  denied      {denied:>10}{of_all}");
        out.line(out.painter().paint(style, denied))?;
        let free = counts.unlimited;
        let of_all = share(counts.unlimited, counts.requests);
        out.line(format_args!("  no rule     {free:>10}{of_all}"))
    }

    /// Prints everything that makes the totals less certain.
    fn print_doubts(&self, out: &mut Out) -> Result<(), CliError> {
        let counts = self.counts;
        if counts.without_descriptor > 0 {
            let count = counts.without_descriptor;
            let why = "a field of each was missing";
            out.line(format_args!("no descriptor {count:>10}  {why}"))?;
        }
        if counts.out_of_order > 0 {
            let count = counts.out_of_order;
            let late = Duration::from_micros(counts.late_us_max);
            out.line(format_args!(
                "out of order  {count:>10}  at most {late:?} late; decided at the newest so far"
            ))?;
        }
        if counts.uncounted > 0 {
            let count = counts.uncounted;
            let why = "passed: too many keys at once to count more";
            out.line(format_args!("uncounted     {count:>10}  {why}"))?;
        }
        if counts.unreadable > 0 {
            let line = format!("unreadable    {:>10}", counts.unreadable);
            out.line(out.painter().paint(Style::Doubtful, line))?;
        }
        for unreadable in &counts.first_unreadable {
            let file = &unreadable.file;
            let line = unreadable.line;
            let why = &unreadable.why;
            out.line(format_args!("  {}:{line}: {}", safe::line(file), safe::line(why)))?;
        }
        Ok(())
    }

    fn print_rules(&self, out: &mut Out) -> Result<(), CliError> {
        let rules = self.counts.rules();
        if rules.is_empty() {
            return Ok(());
        }
        let heading = format!("\n{:>10} {:>10} {:>10}  rule", "denied", "shadow", "passed");
        out.line(out.painter().paint(Style::Strong, heading))?;
        for (path, RuleCounts { ok, over_limit, shadow }) in rules.iter().take(self.top) {
            let path = safe::line(path);
            out.line(format_args!("{over_limit:>10} {shadow:>10} {ok:>10}  {path}"))?;
        }
        self.print_rest(out, rules.len(), "rules")
    }

    fn print_keys(&self, out: &mut Out) -> Result<(), CliError> {
        let keys = self.counts.keys(usize::MAX);
        if keys.is_empty() {
            return Ok(());
        }
        let heading = format!("\n{:>10}  key", "denied");
        out.line(out.painter().paint(Style::Strong, heading))?;
        for key in keys.iter().take(self.top) {
            let count = key.over_limit;
            let entries = safe::line(&key.entries);
            let rule = safe::line(&key.rule);
            out.line(format_args!("{count:>10}  {entries}  ({rule})"))?;
        }
        if self.counts.key_counts_low_by > 0 {
            let by = self.counts.key_counts_low_by;
            out.line(format_args!("too many keys for all: counts may be low by {by}"))?;
        }
        self.print_rest(out, keys.len(), "keys")
    }

    fn print_rest(&self, out: &mut Out, count: usize, what: &str) -> Result<(), CliError> {
        match count.saturating_sub(self.top) {
            0 => Ok(()),
            rest => out.line(format_args!("and {rest} more {what}; --top shows more")),
        }
    }
}

/// Formats `part` of `all` in per cent, after two spaces; empty if `all` is 0.
fn share(part: u64, all: u64) -> String {
    match all {
        0 => String::new(),
        all => format!("  {:.1} %", part as f64 / all as f64 * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<Option<String>> {
        let reader = Box::new(io::Cursor::new(text.to_vec()));
        let mut lines = Lines { reader, signals: None, line: Vec::new(), bytes: 0 };
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(match line {
                Next::Line(text) => Some(text.into_owned()),
                Next::TooLong => None,
            });
        }
        assert_eq!(lines.bytes(), text.len() as u64);
        all
    }

    #[test]
    fn lines_end_with_a_line_feed_or_the_file() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(lines(b"a\r\n\nb"), [text("a"), text(""), text("b")]);
        assert_eq!(lines(b"\xff\n"), [text("\u{fffd}")]);
        assert!(lines(b"").is_empty());
    }

    #[test]
    fn a_line_too_long_is_skipped_whole() {
        let mut text = vec![b'x'; 3 * LINE_BYTES_MAX];
        text.extend(b"\nshort\n");
        assert_eq!(lines(&text), [None, Some("short".to_owned())]);
        let mut fits = vec![b'x'; LINE_BYTES_MAX];
        fits.extend(b"\ny");
        assert_eq!(lines(&fits).len(), 2);
        assert!(lines(&fits)[0].is_some());
    }
}
