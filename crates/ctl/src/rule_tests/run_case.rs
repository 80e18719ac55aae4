//! Runs a case and compares the answers with the expected ones.

use ratelease_engine::verdict::{Modes, Verdict};
use ratelease_replay::exact_limiter::ExactLimiter;
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{Lookup, Place, Rules};

use super::{Case, NO_RULE, Status, Step};

/// Maximum number of keys in a case: a file cannot name more descriptors.
const KEYS_MAX: usize = 1 << 22;

/// An answer that differs from the expected one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) case: String,
    /// Place of the expectation.
    pub(super) place: Place,
    /// The part of the answer that differs: `code`, `rule of descriptor 2`.
    pub(super) what: String,
    pub(super) expected: String,
    pub(super) got: String,
    /// Which repetition of the step failed, from 1; `None` if the step is not repeated.
    pub(super) time: Option<u32>,
}

/// Returns all failures of `case`, in order. Of the repetitions of a step, only the first failure
/// of each kind is returned.
pub(super) fn run_case(rules: &Rules, case: &Case) -> Vec<Failure> {
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
                    let (what, expected) = ("answer".to_owned(), "a verdict".to_owned());
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
            let (expected, got) = (code.name().to_owned(), status.code.name().to_owned());
            note(*place, format!("code{of}"), expected, got);
        }
        if let Some((place, rule)) = rule {
            let counted = status.limit.and_then(|applied| applied.rule).map(|rule| &rule.path);
            // A rule without a limit counts nothing, and the status does not name it.
            let unlimited = match rules.find(request.domain, &descriptor.entries) {
                Lookup::Rule(rule) if status.remaining == u32::MAX => Some(&rule.path),
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
