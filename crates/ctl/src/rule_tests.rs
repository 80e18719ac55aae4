//! `ratectl test`: runs rule tests, cases of requests with expected answers, on a virtual clock.
//!
//! ```text
//! file ─▶ yaml ─▶ read ─▶ Suite ─▶ run_case ─▶ Failures
//!         places  types            one exact server, its clock set by the steps
//! ```

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Style};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{Flags, Reading};
use ratelease_cli::source;
use ratelease_engine::verdict::{Code, Modes, Verdict};
use ratelease_replay::exact_limiter::ExactLimiter;
use ratelease_rules::key::KeyHasher;
use ratelease_rules::parse_duration;
use ratelease_rules::request::{DESCRIPTORS_MAX, Descriptor, ENTRIES_MAX, Entry, Request};
use ratelease_rules::yaml::{Yaml, YamlKind};
use ratelease_rules::{Fault, Lookup, Place, Rules, Source, excerpt, nearest, yaml};
use serde_json::{Value, json};

pub const NOTES: &str = "\
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
    reading: Flags<Reading>,
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
    /// Time since the start of the case; no earlier than the time of the previous step.
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
    remaining: Option<(Place, u64)>,
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
pub fn run(flags: &TestFlags, out: &mut Out) -> CliResult {
    let reading = flags.reading.read(Reading::read)?;
    let mut results = Vec::new();
    let mut errors = Vec::new();
    for file in &flags.files {
        match run_file(file, &reading) {
            Ok(one) => results.push(one),
            Err(error) => errors.push(error.to_string()),
        }
    }
    if flags.out.json {
        out.json(&json(&results, &errors))?;
    } else if !results.is_empty() {
        text(&results, out)?;
    }
    if !errors.is_empty() {
        return Err(CliError::new(errors.join("\n")));
    }
    Ok(Completion::clean_if(results.iter().all(|one| one.failures.is_empty())))
}

fn run_file(file: &Path, reading: &Reading) -> Result<FileResult, CliError> {
    let source = source::read_file(file)?;
    let suite = suite(&source).map_err(|faults| listed(&faults))?;
    let at = file.parent().unwrap_or(Path::new("")).join(&suite.rules);
    let rules = source::load(&[at], reading)
        .map_err(|error| CliError::new(format_args!("{}: {error}", Safe(&source.name))))?;
    let failures = suite.cases.iter().flat_map(|case| run_case(&rules, case)).collect();
    Ok(FileResult { file: source.name, cases: suite.cases.len(), failures })
}

fn listed(faults: &[Fault]) -> CliError {
    let lines: Vec<String> = faults.iter().map(|fault| Safe(fault).to_string()).collect();
    CliError::new(format_args!("the tests are faulty\n{}", lines.join("\n")))
}

// === Read ===
//
// Parses a YAML file to cases, and reports every fault.

/// Maximum number of repetitions of one step.
const TIMES_MAX: u32 = 1_000_000;

/// Reads `source`.
///
/// # Errors
/// All faults of the file, in order of their places.
fn suite(source: &Source) -> Result<Suite, Vec<Fault>> {
    let root = yaml::read(source).map_err(|faults| faults.iter().cloned().collect::<Vec<_>>())?;
    let mut reader = Reader { file: &source.name, faults: Vec::new(), domain: String::new() };
    let nothing = Yaml::null(Place::START);
    let suite = reader.suite(root.as_ref().unwrap_or(&nothing));
    reader.faults.sort();
    match suite {
        Some(suite) if reader.faults.is_empty() => Ok(suite),
        _ => Err(reader.faults),
    }
}

struct Reader<'s> {
    file: &'s str,
    faults: Vec<Fault>,
    /// Domain of requests that do not name one.
    domain: String,
}

/// The values of a map by name.
struct Fields<'y> {
    place: Place,
    found: Vec<(&'y str, &'y Yaml)>,
}

// === impl Fields ===

impl<'y> Fields<'y> {
    fn get(&self, name: &str) -> Option<&'y Yaml> {
        self.found.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }
}

// === impl Reader: the contents of a test file ===

impl Reader<'_> {
    fn suite(&mut self, root: &Yaml) -> Option<Suite> {
        let fields = self.fields(root, "a file of cases", &["rules", "domain", "cases"])?;
        if let Some(domain) = fields.get("domain") {
            self.domain = self.text(domain, "'domain'").unwrap_or_default();
        }
        let rules = self.needed(&fields, "rules", "'rules: …', the path of the rules from here");
        let rules = rules.and_then(|rules| self.text(rules, "'rules'"));
        let cases = self.needed(&fields, "cases", "'cases:', a list");
        let cases = cases.map(|cases| self.list(cases, "'cases'")).unwrap_or_default();
        let cases = cases.iter().zip(1..).map(|(case, number)| self.case(case, number)).collect();
        Some(Suite { rules: rules?, cases })
    }

    fn case(&mut self, case: &Yaml, number: usize) -> Case {
        let unnamed = Case { name: format!("case {number}"), steps: Vec::new() };
        let Some(fields) = self.fields(case, "a case", &["name", "steps"]) else { return unnamed };
        let name = fields.get("name").and_then(|name| self.text(name, "'name'"));
        let steps = self.needed(&fields, "steps", "'steps:', a list");
        let steps = steps.map(|steps| self.list(steps, "'steps'")).unwrap_or_default();
        let mut at_us = 0;
        let mut read = Vec::new();
        for step in steps {
            if let Some(step) = self.step(step, at_us) {
                at_us = step.at_us;
                read.push(step);
            }
        }
        Case { name: name.unwrap_or(unnamed.name), steps: read }
    }

    fn step(&mut self, step: &Yaml, before_us: u64) -> Option<Step> {
        let fields = self.fields(step, "a step", &["at", "request", "times", "expect"])?;
        let at_us = self.at(fields.get("at"), before_us);
        let times = fields.get("times").map(|times| (times, self.number(times, "'times'")));
        let times = match times {
            None => Some(1),
            Some((_, Some(times @ 1..=TIMES_MAX))) => Some(times),
            Some((yaml, Some(_))) => {
                self.fault(yaml.place, format!("'times' must be from 1 to {TIMES_MAX}"));
                None
            }
            Some((_, None)) => None,
        };
        let request = self.needed(&fields, "request", "'request: {descriptors: […]}'");
        let request = request.and_then(|request| self.request(request));
        let expect = self.needed(&fields, "expect", "'expect: {code: ok}'");
        let count = request.as_ref().map(|(_, descriptors, _)| descriptors.len());
        let expect = expect.and_then(|expect| self.expect(expect, count));
        let (domain, descriptors, hits) = request?;
        Some(Step { at_us: at_us?, domain, descriptors, hits, times: times?, expect: expect? })
    }

    fn at(&mut self, at: Option<&Yaml>, before_us: u64) -> Option<u64> {
        let Some(at) = at else { return Some(before_us) };
        let text = self.text(at, "'at'")?;
        let micros = parse_duration(&text).and_then(|at| u64::try_from(at.as_micros()).ok());
        let Some(micros) = micros else {
            let shown = excerpt(&text);
            self.fault(at.place, format!("'at' must be a duration such as 1m30s, found '{shown}'"));
            return None;
        };
        if micros < before_us {
            self.fault(at.place, "'at' is before the previous step; time does not go back");
            return None;
        }
        Some(micros)
    }

    #[allow(clippy::type_complexity, reason = "taken apart at once")]
    fn request(&mut self, request: &Yaml) -> Option<(String, Vec<Vec<(String, String)>>, u64)> {
        let fields = self.fields(request, "a request", &["domain", "descriptors", "hits"])?;
        let domain = match fields.get("domain") {
            Some(domain) => self.text(domain, "'domain'")?,
            None => self.domain.clone(),
        };
        if domain.is_empty() {
            let message = "no domain; add 'domain: …' to the request, or to the file";
            self.fault(fields.place, message);
        }
        let hits = match fields.get("hits") {
            Some(hits) => self.number(hits, "'hits'")?,
            None => 1,
        };
        let list = self.needed(&fields, "descriptors", "'descriptors: [{key: value}]'")?;
        let items = self.list(list, "'descriptors'");
        if items.len() > DESCRIPTORS_MAX {
            let message = format!("a request has {DESCRIPTORS_MAX} descriptors at most");
            self.fault(list.place, message);
        }
        let descriptors = items.iter().map(|item| self.descriptor(item)).collect();
        Some((domain, descriptors, hits))
    }

    fn descriptor(&mut self, descriptor: &Yaml) -> Vec<(String, String)> {
        let YamlKind::Map(pairs) = &descriptor.kind else {
            let found = descriptor.describe();
            let message = format!(
                "a descriptor is a map of its entries, such as {{user_id: alice}}, \
                                   found {found}"
            );
            self.fault(descriptor.place, message);
            return Vec::new();
        };
        if pairs.is_empty() || pairs.len() > ENTRIES_MAX {
            let message = format!("a descriptor has from 1 to {ENTRIES_MAX} entries");
            self.fault(descriptor.place, message);
        }
        let mut entries = Vec::new();
        for (key, value) in pairs {
            let key = self.text(key, "an entry's key");
            let value = match value.kind {
                YamlKind::Null => Some(String::new()),
                _ => self.text(value, "an entry's value"),
            };
            entries.extend(key.zip(value));
        }
        entries
    }

    fn expect(&mut self, expect: &Yaml, descriptors: Option<usize>) -> Option<Expect> {
        let names = ["code", "rule", "remaining", "descriptors"];
        let fields = self.fields(expect, "an expectation", &names)?;
        let code = fields.get("code").and_then(|code| self.code(code));
        let mut one = Status { code: None, ..self.status(&fields) };
        let Some(list) = fields.get("descriptors") else {
            let is_empty = one.rule.is_none() && one.remaining.is_none();
            if !is_empty && descriptors.is_some_and(|count| count != 1) {
                let message = "the request has several descriptors; say of which, by \
                               'descriptors: [{rule: …}, {}]'";
                self.fault(fields.place, message);
            }
            if is_empty && code.is_none() {
                self.fault(fields.place, "nothing is expected; write 'code: ok' or 'over_limit'");
            }
            return Some(Expect { code, statuses: vec![one] });
        };
        if one.rule.take().is_some() || one.remaining.take().is_some() {
            let message = "'rule' and 'remaining' belong in 'descriptors' if it is present";
            self.fault(fields.place, message);
        }
        let items = self.list(list, "'descriptors'");
        if descriptors.is_some_and(|count| count != items.len()) {
            let count = descriptors.unwrap_or_default();
            let found = items.len();
            let message =
                format!("the request has {count} descriptors; expected as many, found {found}");
            self.fault(list.place, message);
        }
        let mut statuses = Vec::new();
        for item in items {
            let fields = self.fields(item, "a descriptor's expectation", &names[..3]);
            statuses.push(fields.map(|fields| self.status(&fields)).unwrap_or_default());
        }
        Some(Expect { code, statuses })
    }

    fn status(&mut self, fields: &Fields<'_>) -> Status {
        let code = fields.get("code").and_then(|code| self.code(code));
        let rule = fields.get("rule").and_then(|rule| {
            let text = match rule.kind {
                YamlKind::Null => Some(NO_RULE.to_owned()),
                _ => self.text(rule, "'rule'"),
            };
            Some((rule.place, text?))
        });
        let remaining = fields
            .get("remaining")
            .and_then(|yaml| Some((yaml.place, self.number(yaml, "'remaining'")?)));
        Status { code, rule, remaining }
    }

    fn code(&mut self, code: &Yaml) -> Option<(Place, Code)> {
        let text = self.text(code, "'code'")?;
        match text.to_ascii_lowercase().as_str() {
            "ok" => Some((code.place, Code::Ok)),
            "over_limit" => Some((code.place, Code::OverLimit)),
            _ => {
                let shown = excerpt(&text);
                self.fault(code.place, format!("'code' is ok or over_limit, found '{shown}'"));
                None
            }
        }
    }
}

// === impl Reader: values ===

impl Reader<'_> {
    fn fault(&mut self, place: Place, message: impl Into<String>) {
        let Place { line, column } = place;
        let fault = Fault { file: self.file.to_owned(), line, column, message: message.into() };
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// Returns the values of a map; reports names that are not in `known`.
    fn fields<'y>(&mut self, map: &'y Yaml, what: &str, known: &[&str]) -> Option<Fields<'y>> {
        let YamlKind::Map(pairs) = &map.kind else {
            let found = map.describe();
            let names = known.join(", ");
            self.fault(map.place, format!("{what} is a map with {names}; found {found}"));
            return None;
        };
        let mut fields = Fields { place: map.place, found: Vec::new() };
        for (key, value) in pairs {
            let YamlKind::Scalar(name) = &key.kind else {
                self.fault(key.place, format!("expected a name, found {}", key.describe()));
                continue;
            };
            if !known.contains(&name.as_str()) {
                let hint = match nearest(name, known) {
                    Some(meant) => format!("; did you mean '{meant}'?"),
                    None => format!("; it has {}", known.join(", ")),
                };
                self.fault(key.place, format!("{what} has no '{}'{hint}", excerpt(name)));
            } else if fields.get(name).is_some() {
                self.fault(key.place, format!("'{name}' occurs twice here; remove one"));
            } else {
                fields.found.push((name, value));
            }
        }
        Some(fields)
    }

    fn needed<'y>(&mut self, fields: &Fields<'y>, name: &str, add: &str) -> Option<&'y Yaml> {
        let found = fields.get(name);
        if found.is_none() {
            self.fault(fields.place, format!("no '{name}'; add {add}"));
        }
        found
    }

    fn list<'y>(&mut self, list: &'y Yaml, what: &str) -> Vec<&'y Yaml> {
        let YamlKind::List(items) = &list.kind else {
            self.fault(list.place, format!("{what} is a list, found {}", list.describe()));
            return Vec::new();
        };
        if items.is_empty() {
            self.fault(list.place, format!("{what} is empty"));
        }
        items.iter().collect()
    }

    fn text(&mut self, scalar: &Yaml, what: &str) -> Option<String> {
        let YamlKind::Scalar(text) = &scalar.kind else {
            self.fault(scalar.place, format!("{what} must be text, found {}", scalar.describe()));
            return None;
        };
        Some(text.clone())
    }

    fn number<T: FromStr>(&mut self, scalar: &Yaml, what: &str) -> Option<T> {
        let number = match &scalar.kind {
            YamlKind::Scalar(text) => text.parse().ok(),
            _ => None,
        };
        if number.is_none() {
            let found = scalar.describe();
            self.fault(scalar.place, format!("{what} must be a whole number, found {found}"));
        }
        number
    }
}

// === Run case ===
//
// Runs a case and compares the answers with the expected ones.

/// Maximum number of keys in a case: a file cannot name more descriptors.
const KEYS_MAX: usize = 1 << 22;

/// An answer that differs from the expected one.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    case: String,
    /// Place of the expectation.
    place: Place,
    /// The part of the answer that differs: `code`, `rule of descriptor 2`.
    what: String,
    expected: String,
    got: String,
    /// The repetition of the step that failed, from 1; `None` if the step is not repeated.
    time: Option<u32>,
}

/// Returns all failures of `case`, in order. Of the repetitions of a step, only the first failure
/// of each kind is returned.
fn run_case(rules: &Rules, case: &Case) -> Vec<Failure> {
    let mut server = ExactLimiter::new(KEYS_MAX, KeyHasher::new(""), Modes::default());
    let mut failures = Vec::new();
    for step in &case.steps {
        let request = request(step);
        let from = failures.len();
        // The case starts at the Unix epoch, where windows begin too.
        server.advance(step.at_us);
        for time in 1..=step.times {
            let decided = server.decide(rules, &request);
            let mut note = |place: Place, what: String, expected: String, got: String| {
                let fresh = failures.iter().skip(from).all(|other: &Failure| other.what != what);
                if fresh && expected != got {
                    let time = (step.times > 1).then_some(time);
                    let case = case.name.clone();
                    failures.push(Failure { case, place, what, expected, got, time });
                }
            };
            match decided {
                Ok(verdict) => {
                    check(rules, step, &request, &verdict, time == step.times, &mut note);
                }
                Err(error) => {
                    let what = "answer".to_owned();
                    let expected = "a verdict".to_owned();
                    if let Some(place) = step.expect.place() {
                        note(place, what, expected, error.to_string());
                    }
                }
            }
        }
    }
    failures
}

fn request(step: &Step) -> Request<'_> {
    Request {
        domain: &step.domain,
        descriptors: step
            .descriptors
            .iter()
            .map(|pairs| Descriptor {
                entries: pairs.iter().map(|(key, value)| Entry { key, value }).collect(),
                hits_addend: Some(step.hits),
                ..Descriptor::default()
            })
            .collect(),
        hits_addend: 0,
    }
}

fn check(
    rules: &Rules,
    step: &Step,
    request: &Request<'_>,
    verdict: &Verdict<'_>,
    is_last: bool,
    note: &mut impl FnMut(Place, String, String, String),
) {
    if let Some((place, code)) = step.expect.code {
        note(place, "code".to_owned(), code.name().to_owned(), verdict.code.name().to_owned());
    }
    let several = step.descriptors.len() > 1;
    let each = step.expect.statuses.iter().zip(&verdict.statuses).zip(&request.descriptors);
    for (at, ((expected, status), descriptor)) in (1..).zip(each) {
        let of = if several { format!(" of descriptor {at}") } else { String::new() };
        let Status { code, rule, remaining } = expected;
        if let Some((place, code)) = code {
            let expected = code.name().to_owned();
            let got = status.code.name().to_owned();
            note(*place, format!("code{of}"), expected, got);
        }
        if let Some((place, rule)) = rule {
            let counted = status.limit.and_then(|applied| applied.rule).map(|rule| &rule.path);
            // A rule without a limit counts nothing, and the status does not name it.
            let unlimited = match rules.charged(request.domain, descriptor).lookup {
                Lookup::Rule(rule) if status.is_unlimited() => Some(&rule.path),
                _ => None,
            };
            let got = counted.or(unlimited).map_or(NO_RULE, |path| path);
            note(*place, format!("rule{of}"), rule.clone(), got.to_owned());
        }
        if let Some((place, remaining)) = remaining
            && is_last
        {
            let got = status.remaining.to_string();
            note(*place, format!("remaining{of}"), remaining.to_string(), got);
        }
    }
}

// === Report ===
//
// Reports the results of the cases, as text and as JSON.

/// Prints each failure with its place, and a summary.
fn text(results: &[FileResult], out: &mut Out) -> Result<(), CliError> {
    let painter = out.painter();
    for FileResult { file, failures, .. } in results {
        for Failure { case, place, what, expected, got, time } in failures {
            let at = format!("{}:{}:{}:", Safe(file), place.line, place.column);
            let time = time.map(|time| format!(", time {time}")).unwrap_or_default();
            out.line(format_args!(
                "{} {} {}",
                painter.paint(Style::Strong, at),
                painter.paint(Style::Bad, "failed:"),
                Safe(format!("{case}{time}: expected {what} {expected}, got {got}"))
            ))?;
        }
    }
    let cases: usize = results.iter().map(|one| one.cases).sum();
    let failed: usize = results.iter().map(failed).sum();
    let number =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let files = number(results.len(), "file");
    out.line(format_args!("{} in {files}: {} failed", number(cases, "case"), failed))
}

/// Returns the number of cases with a failure. Two failing cases with one name are counted as one
/// if no other failure is between them, which is accurate enough for a summary.
fn failed(results: &FileResult) -> usize {
    let mut names: Vec<&str> = results.failures.iter().map(|failure| &*failure.case).collect();
    names.dedup();
    names.len()
}

fn json(results: &[FileResult], errors: &[String]) -> Value {
    let files = results.iter().map(|one| {
        let failures = one.failures.iter().map(|failure| {
            let Failure { case, place, what, expected, got, time } = failure;
            json!({ "case": case, "line": place.line, "column": place.column, "what": what,
                "expected": expected, "got": got, "time": time })
        });
        json!({
            "file": one.file,
            "cases": one.cases,
            "failed": failed(one),
            "failures": failures.collect::<Vec<_>>(),
        })
    });
    json!({
        "passed": errors.is_empty() && results.iter().all(|one| one.failures.is_empty()),
        "files": files.collect::<Vec<_>>(),
        "troubles": errors,
    })
}
