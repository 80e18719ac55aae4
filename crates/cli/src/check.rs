//! `ratelease check`: reports every fault of rule files, each with its place.

mod report;
mod snippet;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ratelease_rules::{self as rules, Fault, Found, Options, Place, Source};

use crate::out::{CliResult, Completion, Out, OutFlags};
use crate::settings::{Role, RulesDirFlags};
use crate::source;
use report::{Finding, Report, Rules, Severity};

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
    rules: RulesDirFlags,
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
    let dir = source::resolved(|faults| flags.rules.resolve(role, faults))?;
    let default = std::slice::from_ref(&dir.dir);
    let paths = if flags.paths.is_empty() { default } else { &flags.paths };
    let Found { sources, left_out } = source::find(paths, dir.reading())?;
    let report = check(&sources, left_out, dir.options.clone());
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
