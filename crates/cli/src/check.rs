//! `ratelease check`: reports every fault of rule files, each with its place.

use std::fmt::{self, Display};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ratelease_rules::{self as rules, Fault, Found, Options, Place, Source};
use serde_json::{Value, json};

use crate::out::{CliError, CliResult, Completion, Out, OutFlags, Style};
use crate::safe::{Safe, cell};
use crate::settings::{Flags, Role, RulesDir};
use crate::source;

pub(crate) const NOTES: &str = "\
All paths are checked together, as if they were in one directory: two files with one domain are a
fault unless MERGE_DOMAIN_CONFIG is true.

Exit status: 0 the rules load, 1 they do not, or --strict and there are warnings, 2 something could
not be read.

Examples:
  ratelease check
  ratelease check --strict config/rules extra.yaml
  ratelease check --format github deploy/rules";

/// Flags of `check`.
#[derive(Debug, Args)]
pub struct CheckFlags {
    /// Rule files, directories of rule files, or - for standard input [default: the directory that
    /// serve would read]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Treat warnings as findings
    #[arg(long)]
    strict: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text", conflicts_with = "json")]
    format: Format,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    rules: Flags<RulesDir>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One line for each finding, with the line of the file and a caret under the place
    Text,
    /// One line of JSON
    Json,
    /// Annotations of a GitHub workflow
    Github,
}

/// Reads and loads the files, and reports what was found.
pub fn run(flags: &CheckFlags, role: Role, out: &mut Out) -> CliResult {
    let dir = flags.rules.read(|values, faults| RulesDir::read(role, values, faults))?;
    let RulesDir { dir, reading, .. } = dir;
    let default = std::slice::from_ref(&dir);
    let paths = if flags.paths.is_empty() { default } else { &flags.paths };
    let Found { sources, left_out } = source::find(paths, &reading)?;
    let report = check(&sources, left_out, reading.options);
    match flags.format {
        _ if flags.out.json => out.json(&report.json())?,
        Format::Json => out.json(&report.json())?,
        Format::Text => report.text(&sources, out)?,
        Format::Github => report.github(out)?,
    }
    let least = if flags.strict { Severity::Warning } else { Severity::Error };
    Ok(Completion::clean_if(report.is_good(least)))
}

fn check(sources: &[Source], left_out: Vec<(String, &str)>, options: Options) -> Report {
    let finding = |severity| {
        move |fault: &Fault| {
            let mut fault = fault.clone();
            // This prefix adds nothing in a check.
            if let Some(message) = fault.message.strip_prefix("error loading config file: ") {
                fault.message = message.to_owned();
            }
            Finding { severity, fault }
        }
    };
    let (mut findings, unlisted, rules) = match rules::load(sources, options) {
        Ok(loaded) => {
            let warnings = loaded.warnings.iter().map(finding(Severity::Warning)).collect();
            let rules =
                Rules { rules: loaded.rules.len(), domains: loaded.rules.domains().count() };
            (warnings, 0, Some(rules))
        }
        Err(faults) => {
            let mut findings: Vec<_> = faults.iter().map(finding(Severity::Error)).collect();
            let unlisted = faults.count() - findings.len();
            findings.extend(faults.warnings().iter().map(finding(Severity::Warning)));
            (findings, unlisted, None)
        }
    };
    findings.extend(left_out.into_iter().map(|(file, why)| {
        let Place { line, column } = Place::START;
        let fault = Fault { file, line, column, message: why.to_owned() };
        Finding { severity: Severity::Warning, fault }
    }));
    findings.sort_by(|a, b| a.fault.cmp(&b.fault));
    Report { files: sources.len(), rules, findings, unlisted }
}

// The report of a check, as text, as JSON or as workflow commands.

/// The result of a check.
struct Report {
    /// Number of files that were read.
    files: usize,
    /// What the files contain; `None` if there are faults.
    rules: Option<Rules>,
    /// Faults and warnings, in order of file and place.
    findings: Vec<Finding>,
    /// Number of faults that are not in `findings`.
    unlisted: usize,
}

/// The content of the files, in numbers.
struct Rules {
    rules: usize,
    domains: usize,
}

/// A fault or a warning.
struct Finding {
    severity: Severity,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    /// The rules do not load.
    Error,
    /// The rules load but may not do what their author meant.
    Warning,
}

// === impl Report ===

impl Report {
    /// Returns whether there is nothing of severity `least` or above.
    fn is_good(&self, least: Severity) -> bool {
        match least {
            Severity::Error => self.rules.is_some(),
            Severity::Warning => self.rules.is_some() && self.findings.is_empty(),
        }
    }

    /// Prints each finding with its line of the source, and a summary.
    fn text(&self, sources: &[Source], out: &mut Out) -> Result<(), CliError> {
        let painter = out.painter();
        let mut open: Option<(&str, Cursor<'_>)> = None;
        for Finding { severity, fault } in &self.findings {
            let Fault { file, line, column, message } = fault;
            let name = format!("{}:", severity.name());
            out.line(format_args!(
                "{} {} {}",
                painter.paint(Style::Strong, format_args!("{}:{line}:{column}:", Safe(file))),
                painter.paint(severity.style(), name),
                Safe(message)
            ))?;
            if open.as_ref().is_none_or(|(name, _)| name != file) {
                let source = sources.iter().find(|source| source.name == *file);
                open = source.map(|source| (&*source.name, Cursor::new(&source.text)));
            }
            let snippet = open.as_mut().and_then(|(_, cursor)| cursor.snippet(*line, *column));
            if let Some(snippet) = snippet {
                out.line(snippet)?;
            }
            if out.is_closed() {
                return Ok(());
            }
        }
        out.line(self.summary())
    }

    /// Prints each finding as a workflow command of GitHub, and a summary.
    fn github(&self, out: &mut Out) -> Result<(), CliError> {
        for Finding { severity, fault } in &self.findings {
            let Fault { file, line, column, message } = fault;
            out.line(format_args!(
                "::{} file={},line={line},col={column}::{}",
                severity.name(),
                // GitHub identifies files by their paths from the repository's root, without a
                // leading dot.
                property(&Safe(file.trim_start_matches("./")).to_string()),
                data(&Safe(message).to_string())
            ))?;
        }
        out.line(data(&self.summary()))
    }

    fn json(&self) -> Value {
        let findings = self.findings.iter().map(|Finding { severity, fault }| {
            let Fault { file, line, column, message } = fault;
            let severity = severity.name();
            json!({ "severity": severity, "file": file, "line": line, "column": column,
                "message": message })
        });
        let findings: Vec<Value> = findings.collect();
        json!({
            "loads": self.rules.is_some(),
            "files": self.files,
            "rules": self.rules.as_ref().map(|rules| rules.rules),
            "domains": self.rules.as_ref().map(|rules| rules.domains),
            "errors": self.count(Severity::Error) + self.unlisted,
            "warnings": self.count(Severity::Warning),
            "findings": findings,
        })
    }

    fn summary(&self) -> String {
        let files = number(self.files, "file");
        let errors = self.count(Severity::Error) + self.unlisted;
        let mut found = vec![number(errors, "fault")];
        if self.unlisted > 0 {
            found.push(format!("{} of them not shown", self.unlisted));
        }
        found.push(number(self.count(Severity::Warning), "warning"));
        let found = found.join(", ");
        match &self.rules {
            Some(Rules { rules, domains }) => {
                let rules = number(*rules, "rule");
                let domains = number(*domains, "domain");
                format!("{files}: {rules} in {domains}, {found}")
            }
            None => format!("{files}: {found}; none of the rules would load"),
        }
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// `1 rule`, `2 rules`.
fn number(count: usize, what: impl Display) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The text of a workflow command (`@actions/core`, command.ts, escapeData).
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// A property of a workflow command (escapeProperty, as above).
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

// === impl Severity ===

impl Severity {
    /// The name that compilers and GitHub use.
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Error => Style::Bad,
            Self::Warning => Style::Doubtful,
        }
    }
}

// Prints a line of a source with a caret below one place.

/// The line around a place, safe to print on a terminal.
#[derive(Debug, PartialEq, Eq)]
struct Snippet {
    /// The line's number.
    line: u32,
    /// The part of the line that is shown; `…` marks each cut end.
    text: String,
    /// Number of cells before the caret.
    caret: usize,
}

/// Finds places in a text. Each search continues from the last place, so that ten thousand places
/// in one line of a megabyte take a single pass; they must be asked for in order.
struct Cursor<'t> {
    text: &'t [u8],
    /// Byte at which the current line starts, and its number from 0.
    line: (usize, u32),
    /// A place in the line, and the number of characters before it.
    place: (usize, u32),
}

/// Maximum number of cells of a line that are shown.
const CELLS_MAX: usize = 96;
/// Of these, the maximum number from the place on, if there is enough text before it.
const CELLS_AFTER: usize = 56;
/// Number of spaces in place of a tab, because terminals differ.
const TAB: usize = 4;
/// Bytes of a line that are read on each side of the place: lines may be megabytes long.
const BYTES_MAX: usize = 1024;

// === impl Cursor ===

impl<'t> Cursor<'t> {
    fn new(text: &'t [u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Self { text, line: (0, 0), place: (0, 0) }
    }

    /// Returns the snippet at `line` and `column`, both from 1, the column in characters; `None` if
    /// the text has no such line.
    fn snippet(&mut self, line: u32, column: u32) -> Option<Snippet> {
        self.go_to(line.checked_sub(1)?, column.saturating_sub(1))?;
        let (start, _) = self.line;
        let (at, _) = self.place;
        let rest = self.text.get(at..)?.iter().take(BYTES_MAX);
        let to = at + rest.take_while(|byte| !is_end(**byte)).count();
        let goes_on = self.text.get(to).is_some_and(|byte| !is_end(*byte));
        let mut from = at.saturating_sub(BYTES_MAX).max(start);
        while from < at && self.text.get(from).is_some_and(|byte| is_inside(*byte)) {
            from += 1;
        }
        let shown = |range| String::from_utf8_lossy(self.text.get(range).unwrap_or_default());
        let after = shown(at..to);
        let (after, is_cut_after) = fitting(after.chars(), CELLS_AFTER);
        let before = shown(from..at);
        let (before, is_cut_before) = fitting(before.chars().rev(), CELLS_MAX - after.cells);
        let is_cut_before = is_cut_before || from > start;
        let mut text = String::new();
        text.extend(is_cut_before.then_some('…'));
        text.extend(before.shown.iter().rev());
        text.extend(&after.shown);
        text.extend((is_cut_after || goes_on).then_some('…'));
        let caret = before.cells + usize::from(is_cut_before);
        Some(Snippet { line, text: text.trim_end().to_owned(), caret })
    }

    /// Moves to a place, both numbers from 0. A column past the end of the line means its end.
    fn go_to(&mut self, line: u32, column: u32) -> Option<()> {
        if (line, column) < (self.line.1, self.place.1) {
            (self.line, self.place) = ((0, 0), (0, 0));
        }
        while self.line.1 < line {
            let rest = self.text.get(self.place.0..)?;
            let start = self.place.0 + rest.iter().position(|byte| *byte == b'\n')? + 1;
            self.line = (start, self.line.1 + 1);
            self.place = (start, 0);
        }
        let (at, characters) = &mut self.place;
        while *characters < column {
            match self.text.get(*at) {
                Some(byte) if !is_end(*byte) => *at += 1,
                _ => break,
            }
            while self.text.get(*at).is_some_and(|byte| is_inside(*byte)) {
                *at += 1;
            }
            *characters += 1;
        }
        Some(())
    }
}

/// Returns whether `byte` ends a line.
fn is_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// Returns whether `byte` continues a UTF-8 character, rather than starting one.
fn is_inside(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

impl Display for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, text, caret } = self;
        writeln!(f, "{line:>6} | {text}")?;
        write!(f, "       | {:caret$}^", "")
    }
}

/// Characters, in the form in which they are shown.
struct Fitting {
    shown: Vec<char>,
    cells: usize,
}

/// Returns as many of `characters` as fit, and whether some did not.
fn fitting(characters: impl Iterator<Item = char>, room: usize) -> (Fitting, bool) {
    let mut fitting = Fitting { shown: Vec::new(), cells: 0 };
    for character in characters {
        let (shown, cells, copies) = match character {
            '\t' => (' ', TAB, TAB),
            other => {
                let (shown, cells) = cell(other);
                (shown, cells, 1)
            }
        };
        if fitting.cells + cells > room {
            return (fitting, true);
        }
        fitting.cells += cells;
        fitting.shown.extend(std::iter::repeat_n(shown, copies));
    }
    (fitting, false)
}

#[cfg(test)]
mod snippet_tests {
    use super::*;

    fn snippet(text: &[u8], line: u32, column: u32) -> Option<Snippet> {
        Cursor::new(text).snippet(line, column)
    }

    #[track_caller]
    fn check(text: &str, line: u32, column: u32, shown: &str, caret: usize) {
        let snippet = snippet(text.as_bytes(), line, column).expect("a line");
        assert_eq!((&*snippet.text, snippet.caret), (shown, caret));
    }

    #[test]
    fn the_caret_is_under_the_place() {
        check("a: b\nkey: value\n", 2, 6, "key: value", 5);
        check("\u{feff}a: b", 1, 1, "a: b", 0);
        check("a: b\r\nc: d\r\n", 2, 4, "c: d", 3);
        let snippet = snippet(b"a: b\nkey: value\n", 2, 6).unwrap().to_string();
        assert_eq!(snippet, "     2 | key: value\n       |      ^");
    }

    #[test]
    fn tabs_wide_and_hidden_characters_keep_the_caret_in_place() {
        check("\tkey: v", 1, 2, "    key: v", 4);
        check("日本: v", 1, 3, "日本: v", 4);
        check("e\u{301}: v", 1, 3, "e\u{301}: v", 1);
        check("\u{1b}[31m: v", 1, 6, "␛[31m: v", 5);
        check("\u{202e}x: v", 1, 2, "\u{fffd}x: v", 1);
    }

    #[test]
    fn a_long_line_is_cut_on_both_sides_of_the_place() {
        let line = format!("{}WRONG{}", "a".repeat(10_000), "b".repeat(1_000_000));
        let snippet = snippet(line.as_bytes(), 1, 10_001).unwrap();
        assert!(snippet.text.starts_with('…') && snippet.text.ends_with('…'), "{snippet}");
        assert_eq!(snippet.text.chars().nth(snippet.caret), Some('W'));
        assert!(snippet.text.chars().count() <= CELLS_MAX + 2);
    }

    #[test]
    fn a_place_behind_the_end_of_a_line_or_file_is_no_harm() {
        check("ab", 1, 3, "ab", 2);
        check("ab", 1, u32::MAX, "ab", 2);
        check("ab\n", 2, 1, "", 0);
        assert_eq!(snippet(b"ab\n", 3, 1), None);
        assert_eq!(snippet(b"ab\n", 0, 1), None);
    }

    #[test]
    fn places_may_be_asked_for_one_after_the_other_and_out_of_order() {
        let text = "日a: b\nkey: value\n\nlast".as_bytes();
        let mut cursor = Cursor::new(text);
        for (line, column) in [(1, 1), (1, 3), (1, 3), (2, 6), (4, 2), (2, 1), (1, 2), (4, 9)] {
            assert_eq!(cursor.snippet(line, column), snippet(text, line, column));
        }
        assert_eq!(cursor.snippet(5, 1), None);
        assert_eq!(cursor.snippet(2, 6), snippet(text, 2, 6));
    }

    #[test]
    fn invalid_utf_8_is_marked() {
        let snippet = snippet(b"a: \xff\xfe b", 1, 4).unwrap();
        assert_eq!((&*snippet.text, snippet.caret), ("a: \u{fffd}\u{fffd} b", 3));
    }
}
