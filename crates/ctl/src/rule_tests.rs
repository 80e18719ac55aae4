//! `ratectl test`: runs rule tests, cases of requests with expected answers, on a virtual clock.
//!
//! ```text
//! file ─▶ yaml ─▶ read ─▶ Suite ─▶ run_case ─▶ Failures
//!         places  types            one exact server, its clock set by the steps
//! ```

mod read;
mod report;
mod run_case;

use std::path::{Path, PathBuf};

use clap::Args;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{Reading, ReadingFlags};
use ratelease_cli::source;
use ratelease_engine::verdict::Code;
use ratelease_rules::{Fault, Place};

use run_case::Failure;

pub(super) const NOTES: &str = "\
A test file:

  rules: ../config/rules       # a file or directory, relative to this file
  domain: shop                 # of all requests that have none
  cases:
    - name: a user has a hundred a minute
      steps:
        - request: {descriptors: [{user_id: alice}]}
          times: 100
          expect: {code: ok, rule: shop.user_id, remaining: 0}
        - at: 59s              # from the start of the case; windows begin at 0
          request: {descriptors: [{user_id: alice}]}
          expect: {code: over_limit}

A descriptor is a map of its entries in order. A request may have a domain and hits (0 only reads
the limit). code and rule must hold for each repetition, remaining after the last. A request with
several descriptors has an expectation for each: {descriptors: [{code: ok}, {rule: none}]}. Every
case starts with empty counts and runs on one exact server: there are no leases, no clock is read,
and an hour takes no time.

Exit status: 0 all cases hold, 1 one does not, 2 a file is faulty or could not be read.";

/// Flags of `test`.
#[derive(Debug, Args)]
pub struct TestFlags {
    /// Test files; - for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    reading: ReadingFlags,
}

/// One test file.
#[derive(Debug, PartialEq, Eq)]
struct Suite {
    /// The path of the rules, as written.
    rules: String,
    cases: Vec<Case>,
}

#[derive(Debug, PartialEq, Eq)]
struct Case {
    name: String,
    steps: Vec<Step>,
}

/// A request, repeated a number of times at one moment.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// Time since the start of the case; never before that of the previous step.
    at_us: u64,
    domain: String,
    /// Keys and values of each descriptor, in order.
    descriptors: Vec<Vec<(String, String)>>,
    /// Hits of each descriptor; 0 only reads the limit.
    hits: u64,
    /// Number of times, at least 1.
    times: u32,
    expect: Expect,
}

/// The expected answer; `None` fields accept anything.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expect {
    code: Option<(Place, Code)>,
    /// Empty, or one for each descriptor of the request.
    statuses: Vec<Status>,
}

/// The expected status of one descriptor.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    code: Option<(Place, Code)>,
    /// Path of the rule; [`NO_RULE`] if no rule may apply.
    rule: Option<(Place, String)>,
    remaining: Option<(Place, u32)>,
}

// === impl Expect ===

impl Expect {
    /// Returns where the expectation begins; `None` if any answer is accepted.
    fn place(&self) -> Option<Place> {
        let of_status = |status: &Status| {
            let Status { code, rule, remaining } = status;
            let code = code.map(|(place, _)| place);
            let rule = rule.as_ref().map(|(place, _)| *place);
            code.or(rule).or(remaining.map(|(place, _)| place))
        };
        let code = self.code.map(|(place, _)| place);
        code.or_else(|| self.statuses.iter().find_map(of_status))
    }
}

/// Means "no rule" in a file. It cannot be a path, because a path contains a domain and a dot.
const NO_RULE: &str = "none";

/// The result of one file.
struct FileResult {
    file: String,
    cases: usize,
    failures: Vec<Failure>,
}

/// Reads and runs every file.
pub(super) fn run(flags: &TestFlags, out: &mut Out) -> CliResult {
    let reading = source::resolved(|faults| flags.reading.resolve(faults))?;
    let mut results = Vec::new();
    let mut errors = Vec::new();
    for file in &flags.files {
        match run_file(file, reading.clone()) {
            Ok(one) => results.push(one),
            Err(error) => errors.push(error.to_string()),
        }
    }
    if flags.out.json {
        out.json(&report::json(&results, &errors))?;
    } else if !results.is_empty() {
        report::text(&results, out)?;
    }
    if !errors.is_empty() {
        return Err(CliError::new(errors.join("\n")));
    }
    Ok(Completion::clean_if(results.iter().all(|one| one.failures.is_empty())))
}

fn run_file(file: &Path, reading: Reading) -> Result<FileResult, CliError> {
    let source = source::read_file(file)?;
    let suite = read::suite(&source).map_err(|faults| listed(&faults))?;
    let at = file.parent().unwrap_or(Path::new("")).join(&suite.rules);
    let rules = source::load(&[at], reading)
        .map_err(|error| CliError::new(format_args!("{}: {error}", Safe(&source.name))))?;
    let failures = suite.cases.iter().flat_map(|case| run_case::run_case(&rules, case)).collect();
    Ok(FileResult { file: source.name, cases: suite.cases.len(), failures })
}

fn listed(faults: &[Fault]) -> CliError {
    let lines: Vec<String> = faults.iter().map(|fault| Safe(fault).to_string()).collect();
    CliError::new(format_args!("the tests are faulty\n{}", lines.join("\n")))
}

#[cfg(test)]
mod tests;
