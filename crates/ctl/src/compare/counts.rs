//! Counts what was compared, by rule and field, with an example of each.

use std::collections::BTreeMap;

use bytes::Bytes;
use ratelease_cli::safe;
use ratelease_engine::time::Time;
use ratelease_rules::request::{Descriptor, Few, Request};
use ratelease_rules::{Lookup, Rules, excerpt};

use super::call::Answer;
use super::cause::{Cause, Causes};
use super::difference::{self, Difference, Field};
use crate::query::wire::ReceivedRequest;

/// Maximum number of pairs of a rule and a field that are counted apart; headers have names of the
/// servers' choice.
const GROUPS_MAX: usize = 10_000;

/// Maximum number of characters of an answer in an example.
const ANSWER_CHARS_MAX: usize = 200;

/// Numbers by cause, in the order of [`Cause::ALL`].
pub(super) type ByCause = [u64; 3];

/// What was compared so far.
#[derive(Debug)]
pub(super) struct Counts {
    rules: Rules,
    causes: Causes,
    /// Requests that were compared.
    pub(super) requests: u64,
    /// Requests whose answers differ, each under its worst cause.
    pub(super) differing: ByCause,
    /// Requests that were answered and not compared, because the queue of the mirror was full.
    pub(super) dropped: u64,
    /// Lines of logs without a request.
    pub(super) skipped: u64,
    /// Descriptors compared, by rule.
    pub(super) rule_requests: BTreeMap<String, u64>,
    /// Differences, by rule and field.
    pub(super) groups: BTreeMap<(String, Field), Group>,
    /// Differences of groups beyond the maximum.
    pub(super) not_grouped: u64,
}

/// The differences of one field of one rule.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) count: ByCause,
    /// The first difference of each cause.
    pub(super) examples: [Option<Example>; 3],
}

/// One difference in full.
#[derive(Debug)]
pub(super) struct Example {
    /// Domain and descriptors.
    pub(super) request: String,
    pub(super) target: String,
    pub(super) against: String,
}

// === impl Counts ===

impl Counts {
    pub(super) fn new(rules: Rules, causes: Causes) -> Self {
        Self {
            rules,
            causes,
            requests: 0,
            differing: [0; 3],
            dropped: 0,
            skipped: 0,
            rule_requests: BTreeMap::new(),
            groups: BTreeMap::new(),
            not_grouped: 0,
        }
    }

    /// Number of requests with a difference that nothing explains.
    pub(super) fn unexplained(&self) -> u64 {
        self.differing[index(Cause::Unexplained)]
    }

    /// Compares the answers of the target and of the other server to `message`.
    pub(super) fn note(&mut self, message: Bytes, target: Answer, against: Answer, now: Time) {
        self.requests += 1;
        let Ok(received) = ReceivedRequest::read(message) else {
            return self.note_unreadable(target, against);
        };
        let request = received.request();
        let rules: Vec<_> = request
            .descriptors
            .iter()
            .map(|descriptor| self.rule(request.domain, descriptor))
            .collect();
        for rule in &rules {
            *self.rule_requests.entry(rule.clone()).or_default() += 1;
        }
        let compared = difference::compare(target, against);
        let differences = &compared.differences;
        if differences.is_empty() {
            return;
        }
        let causes = match &compared.replies {
            Some((target, against)) => {
                self.causes.of(&request, (target, against), differences, now)
            }
            None => vec![Cause::Unexplained; differences.len()],
        };
        if let Some(worst) = causes.iter().min() {
            self.differing[index(*worst)] += 1;
        }
        // What is of the whole request counts for the first rule that differs.
        let first = differences.iter().find_map(|it| it.descriptor).unwrap_or_default();
        for (difference, cause) in differences.iter().zip(causes) {
            let rule = rules.get(difference.descriptor.unwrap_or(first)).cloned();
            self.add(
                rule.unwrap_or_else(|| "no descriptor".to_owned()),
                difference,
                cause,
                &request,
            );
        }
    }

    /// Compares the answers to a message that is no request, which both servers should refuse.
    fn note_unreadable(&mut self, target: Answer, against: Answer) {
        let differences = difference::compare(target, against).differences;
        self.differing[index(Cause::Unexplained)] += u64::from(!differences.is_empty());
        let request = Request { domain: "", descriptors: Few::new(), hits_addend: 0 };
        for difference in differences {
            self.add("no request".to_owned(), &difference, Cause::Unexplained, &request);
        }
    }

    /// The path of the rule of a descriptor, or why there is none.
    fn rule(&self, domain: &str, descriptor: &Descriptor<'_>) -> String {
        match self.rules.find(domain, &descriptor.entries) {
            // Clients choose domains, so these are counted together.
            Lookup::UnknownDomain => "unknown domain".to_owned(),
            _ if descriptor.limit.is_some() => format!("override in domain '{}'", excerpt(domain)),
            Lookup::Rule(rule) => rule.path.to_string(),
            Lookup::NoRule => format!("no rule in domain '{}'", excerpt(domain)),
        }
    }

    fn add(&mut self, rule: String, difference: &Difference, cause: Cause, request: &Request<'_>) {
        let key = (rule, difference.field.clone());
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&key) {
            self.not_grouped += 1;
            return;
        }
        let Group { count, examples } = self.groups.entry(key).or_default();
        count[index(cause)] += 1;
        examples[index(cause)].get_or_insert_with(|| Example {
            request: shown(request),
            target: safe::cut(&difference.target, ANSWER_CHARS_MAX),
            against: safe::cut(&difference.against, ANSWER_CHARS_MAX),
        });
    }
}

/// The index of a cause in [`ByCause`].
pub(super) fn index(cause: Cause) -> usize {
    match cause {
        Cause::Unexplained => 0,
        Cause::Timing => 1,
        Cause::Design => 2,
    }
}

/// A request as the tools show it.
fn shown(request: &Request<'_>) -> String {
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter();
        let entries = entries.map(|it| format!("{}={}", excerpt(it.key), excerpt(it.value)));
        entries.collect::<Vec<_>>().join(",")
    });
    let descriptors = descriptors.collect::<Vec<_>>().join(" ");
    format!("{} {descriptors}", excerpt(request.domain))
}
