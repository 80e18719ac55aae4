//! Counts compared requests and their differences, by rule and field, with an example of each.

use std::collections::BTreeMap;

use bytes::Bytes;
use ratelease_cli::out::{CliError, Out, Style};
use ratelease_cli::safe;
use ratelease_cli::safe::{Safe, line};
use ratelease_engine::time::Time;
use ratelease_rules::request::{Descriptor, Few, Request};
use ratelease_rules::{Lookup, Rules, excerpt};
use serde_json::{Value, json};

use crate::compare::difference::{Cause, Causes, Difference, Field};
use crate::compare::{Answer, CompareFlags, difference};
use crate::query::ReceivedRequest;

/// Maximum number of pairs of a rule and a field that are counted apart; headers have names of the
/// servers' choice.
const GROUPS_MAX: usize = 10_000;

/// Maximum number of characters of an answer in an example.
const ANSWER_CHARS_MAX: usize = 200;

/// Numbers by cause, in the order of [`Cause::ALL`].
pub type ByCause = [u64; 3];

/// The requests that were compared so far, and their differences.
#[derive(Debug)]
pub struct Counts {
    rules: Rules,
    causes: Causes,
    /// Requests that were compared.
    pub requests: u64,
    /// Requests whose answers differ, each under its worst cause.
    pub differing: ByCause,
    /// Requests that were answered and not compared, because the queue of the mirror was full.
    pub dropped: u64,
    /// Lines of logs without a request.
    pub skipped: u64,
    /// Descriptors compared, by rule.
    rule_requests: BTreeMap<String, u64>,
    /// Differences, by rule and field.
    pub groups: BTreeMap<(String, Field), Group>,
    /// Differences of groups beyond the maximum.
    not_grouped: u64,
}

/// The differences of one field of one rule.
#[derive(Debug, Default)]
pub struct Group {
    pub count: ByCause,
    /// The first difference of each cause.
    examples: [Option<Example>; 3],
}

/// One difference in full.
#[derive(Debug)]
struct Example {
    /// Domain and descriptors.
    request: String,
    target: String,
    against: String,
}

// === impl Counts ===

impl Counts {
    pub fn new(rules: Rules, causes: Causes) -> Self {
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
    pub fn unexplained(&self) -> u64 {
        self.differing[index(Cause::Unexplained)]
    }

    /// Compares the answers of the target and of the other server to `message`.
    pub fn note(&mut self, message: Bytes, target: Answer, against: Answer, now: Time) {
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
        // Differences of the whole request count for the first rule that differs.
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
        match self.rules.charged(domain, descriptor).lookup {
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
fn index(cause: Cause) -> usize {
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

// === Report ===
//
// Reports a comparison, as text and as JSON.

/// Prints the totals, then each rule and field that differs, with an example.
pub fn text(counts: &Counts, flags: &CompareFlags, out: &mut Out) -> Result<(), CliError> {
    let Counts { requests, differing, dropped, skipped, .. } = counts;
    let differ: u64 = differing.iter().sum();
    let target = &flags.target;
    let against = &flags.against;
    out.line(format_args!("target {}, against {}", Safe(target), Safe(against)))?;
    out.line(format_args!("requests      {requests:>10}"))?;
    out.line(format_args!(
        "  same        {:>10}{}",
        requests - differ,
        share(requests - differ, *requests)
    ))?;
    for cause in Cause::ALL {
        let count = differing[index(cause)];
        let row = format!("  {:<11} {count:>10}{}", cause.name(), share(count, *requests));
        let style = match cause {
            Cause::Unexplained if count > 0 => Style::Bad,
            Cause::Unexplained => Style::Good,
            Cause::Timing | Cause::Design => Style::Faint,
        };
        out.line(out.painter().paint(style, row))?;
    }
    if *dropped > 0 {
        out.line(format_args!("not compared  {dropped:>10}  the queue of the mirror was full"))?;
    }
    if *skipped > 0 {
        out.line(format_args!("no request    {skipped:>10}  lines; `ratectl replay` says why"))?;
    }
    groups(counts, out)
}

fn groups(counts: &Counts, out: &mut Out) -> Result<(), CliError> {
    if counts.groups.is_empty() {
        return Ok(());
    }
    let heading =
        format!("\n{:>11} {:>8} {:>10}  rule and field", "unexplained", "timing", "by design");
    out.line(out.painter().paint(Style::Strong, heading))?;
    for ((rule, field), Group { count, examples }) in sorted(counts) {
        let [unexplained, timing, design] = count;
        let rule = line(rule);
        let field = line(&field.name());
        out.line(format_args!("{unexplained:>11} {timing:>8} {design:>10}  {rule}: {field}"))?;
        for (cause, example) in Cause::ALL.into_iter().zip(examples) {
            let Some(Example { request, target, against }) = example else { continue };
            let request = line(request);
            let target = line(target);
            let against = line(against);
            let cause = cause.name();
            out.line(format_args!(
                "              {cause}: target {target}, against {against}, for {request}"
            ))?;
        }
    }
    if counts.not_grouped > 0 {
        out.line(format_args!("and {} differences of more fields", counts.not_grouped))?;
    }
    Ok(())
}

/// The groups, those with the most unexplained differences first.
fn sorted(counts: &Counts) -> Vec<(&(String, Field), &Group)> {
    let mut groups: Vec<_> = counts.groups.iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
    groups
}

/// Formats `part` of `all` in per cent, after two spaces; empty if `all` is 0.
fn share(part: u64, all: u64) -> String {
    match all {
        0 => String::new(),
        all => format!("  {:.1} %", part as f64 / all as f64 * 100.0),
    }
}

/// The whole result.
pub fn json(counts: &Counts, flags: &CompareFlags, is_interrupted: bool) -> Value {
    let Counts { requests, differing, dropped, skipped, rule_requests, not_grouped, .. } = counts;
    let differ: u64 = differing.iter().sum();
    let differences = sorted(counts).into_iter().map(|((rule, field), group)| {
        let Group { count, examples } = group;
        let examples = Cause::ALL.into_iter().zip(examples).filter_map(|(cause, example)| {
            let Example { request, target, against } = example.as_ref()?;
            let cause = cause.name();
            Some(json!({"cause": cause, "request": request, "target": target, "against": against}))
        });
        json!({
            "rule": rule,
            "field": field.name(),
            "count": by_cause(count),
            "examples": examples.collect::<Value>(),
        })
    });
    json!({
        "target": flags.target.to_string(),
        "against": flags.against.to_string(),
        "requests": requests,
        "same": requests - differ,
        "differ": by_cause(differing),
        "not_compared": dropped,
        "lines_without_request": skipped,
        "descriptors_by_rule": rule_requests,
        "differences": differences.collect::<Value>(),
        "differences_not_listed": not_grouped,
        "interrupted": is_interrupted,
    })
}

fn by_cause(counts: &ByCause) -> Value {
    let [unexplained, timing, design] = counts;
    json!({"unexplained": unexplained, "timing": timing, "by_design": design})
}
