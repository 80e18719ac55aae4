//! `ratectl test`: cases of requests over virtual time, and what the rules must say to them.
//!
//! ```text
//! file ─▶ yaml ─▶ read ─▶ Suite ─▶ play ─▶ Failures
//!         places  types            one exact server, its clock set by the steps
//! ```

mod play;
mod read;
mod report;

use std::path::{Path, PathBuf};

use clap::Args;
use ratelease_cli::out::{Ended, Out, OutFlags, Outcome, Trouble};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{Reading, ReadingFlags};
use ratelease_cli::source;
use ratelease_engine::verdict::Code;
use ratelease_rules::{Fault, Place};

use play::Failure;

pub(super) const NOTES: &str = "\
A file of cases:

  rules: ../config/rules       # a file or directory, from here
  domain: shop                 # of all requests that name none
  cases:
    - name: a user has a hundred a minute
      steps:
        - request: {descriptors: [{user_id: alice}]}
          times: 100
          expect: {code: ok, rule: shop.user_id, remaining: 0}
        - at: 59s              # from the start of the case; windows begin at 0
          request: {descriptors: [{user_id: alice}]}
          expect: {code: over_limit}

A descriptor is a map of its entries in order. A request may have a domain and hits (0 looks). code
and rule must hold for each of the times, remaining after the last. A request of several descriptors
expects of each: {descriptors: [{code: ok}, {rule: none}]}. Every case begins with nothing counted,
and asks one exact server: leases are left out, no clock is read, and an hour takes no time.

Exit status: 0 all cases hold, 1 one does not, 2 a file is faulty or could not be read.";

/// Flags of `test`.
#[derive(Debug, Args)]
pub struct CasesFlags {
    /// Files of cases; - for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    reading: ReadingFlags,
}

/// One file.
#[derive(Debug, PartialEq, Eq)]
struct Suite {
    /// As it was written.
    rules: String,
    cases: Vec<Case>,
}

#[derive(Debug, PartialEq, Eq)]
struct Case {
    name: String,
    steps: Vec<Step>,
}

/// A request, made so many times at one moment.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// From the start of the case; never before that of the step before.
    at_us: u64,
    domain: String,
    /// Keys and values in order, of each descriptor.
    descriptors: Vec<Vec<(String, String)>>,
    /// Of each descriptor; 0 looks.
    hits: u64,
    /// At least 1.
    times: u32,
    expect: Expect,
}

/// What must be answered; what is `None` may be anything.
#[derive(Debug, Default, PartialEq, Eq)]
struct Expect {
    code: Option<(Place, Code)>,
    /// None, or one for each descriptor of the request.
    statuses: Vec<Status>,
}

/// What must be said of one descriptor.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    code: Option<(Place, Code)>,
    /// Its path; [`NO_RULE`] where none may apply.
    rule: Option<(Place, String)>,
    remaining: Option<(Place, u32)>,
}

// === impl Expect ===

impl Expect {
    /// Where it begins; `None` if anything may be answered.
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

/// What stands for "no rule" in a file. No path is that: one begins with a domain and a dot.
const NO_RULE: &str = "none";

/// What came of one file.
struct Played {
    file: String,
    cases: usize,
    failures: Vec<Failure>,
}

/// Reads and plays every file.
pub(super) fn run(flags: &CasesFlags, out: &mut Out) -> Ended {
    let reading = source::resolved(|faults| flags.reading.resolve(faults))?;
    let mut played = Vec::new();
    let mut troubles = Vec::new();
    for file in &flags.files {
        match run_file(file, reading) {
            Ok(one) => played.push(one),
            Err(trouble) => troubles.push(trouble.to_string()),
        }
    }
    if flags.out.json {
        out.json(&report::json(&played, &troubles))?;
    } else if !played.is_empty() {
        report::text(&played, out)?;
    }
    if !troubles.is_empty() {
        return Err(Trouble::new(troubles.join("\n")));
    }
    Ok(Outcome::good_if(played.iter().all(|one| one.failures.is_empty())))
}

fn run_file(file: &Path, reading: Reading) -> Result<Played, Trouble> {
    let source = source::read_file(file)?;
    let suite = read::suite(&source).map_err(|faults| listed(&faults))?;
    let at = file.parent().unwrap_or(Path::new("")).join(&suite.rules);
    let rules = source::load(&[at], reading)
        .map_err(|trouble| Trouble::new(format_args!("{}: {trouble}", Safe(&source.name))))?;
    let failures = suite.cases.iter().flat_map(|case| play::case(&rules, case)).collect();
    Ok(Played { file: source.name, cases: suite.cases.len(), failures })
}

fn listed(faults: &[Fault]) -> Trouble {
    let lines: Vec<String> = faults.iter().map(|fault| Safe(fault).to_string()).collect();
    Trouble::new(format_args!("the cases are faulty\n{}", lines.join("\n")))
}

#[cfg(test)]
mod tests;
