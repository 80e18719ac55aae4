//! Reports a comparison, as text and as JSON.

use std::collections::BTreeMap;

use ratelease_cli::out::{CliError, Out, Style};
use ratelease_cli::safe::Safe;
use ratelease_rules::{Place, RuleLocations};
use serde_json::{Value, json};

use super::action::EntryPattern;
use super::{Comparison, Outcome, Sent};

/// Prints the findings, and a summary.
pub(super) fn text(
    compared: &Comparison<'_>,
    places: &RuleLocations,
    out: &mut Out,
) -> Result<(), CliError> {
    let painter = out.painter();
    let mut finding = |place: String, problem: String| {
        out.line(format_args!("{}: {}", Safe(place), painter.paint(Style::Bad, Safe(problem))))
    };
    for unknown in compared.unknown {
        let problem = format!("the action '{}' is not known; it was not checked", unknown.name);
        finding(at(&unknown.file, unknown.place), problem)?;
    }
    for (file, place) in &compared.without_domain {
        let problem = "no rate limit filter has its stage; name the domain with --domain";
        finding(at(file, *place), problem.to_owned())?;
    }
    for sent in compared.sent.iter().filter(|sent| sent.rules().is_empty()) {
        finding(at(&sent.file, sent.place), problem(sent))?;
    }
    for (domain, rules) in unused_domains(compared) {
        let problem = format!("nothing is sent in this domain; its rules, never found: {rules}");
        finding(format!("domain '{domain}'"), problem)?;
    }
    for rule in compared.unsent.iter().filter(|rule| compared.sends_in(rule.domain())) {
        let place = places.of(&rule.path).map(|place| place.to_string()).unwrap_or_default();
        finding(place, format!("no descriptor finds the rule {}", rule.path))?;
    }
    out.line(summary(compared))
}

/// The domains of rules in which nothing is sent, each with its number of rules.
fn unused_domains<'r>(compared: &'r Comparison<'_>) -> BTreeMap<&'r str, usize> {
    let mut unused = BTreeMap::new();
    let domains = compared.unsent.iter().filter_map(|rule| rule.domain());
    for domain in domains.filter(|domain| !compared.sends_in(Some(domain))) {
        *unused.entry(domain).or_default() += 1;
    }
    unused
}

fn problem(sent: &Sent<'_>) -> String {
    let Sent { domain, entries, .. } = sent;
    let entries = shown(entries);
    match sent.outcome {
        Outcome::UnknownDomain => {
            format!("no rule file has the domain '{domain}', in which this sends {entries}")
        }
        Outcome::Rules(_) => format!("no rule of the domain '{domain}' is for {entries}"),
    }
}

/// The entries as the tools take them; `*` stands for any value.
fn shown(entries: &[EntryPattern]) -> String {
    let entries = entries
        .iter()
        .map(|EntryPattern { key, value }| format!("{key}={}", value.as_deref().unwrap_or("*")));
    entries.collect::<Vec<_>>().join(",")
}

fn at(file: &str, Place { line, column }: Place) -> String {
    format!("{file}:{line}:{column}")
}

fn summary(compared: &Comparison<'_>) -> String {
    let sent = compared.sent.len();
    let without = compared.sent.iter().filter(|sent| sent.rules().is_empty()).count();
    let unsent = compared.unsent.len();
    format!("descriptors: {sent}, of which without a rule: {without}; rules never found: {unsent}")
}

/// All descriptors with their rules, and what has none.
pub(super) fn json(compared: &Comparison<'_>, places: &RuleLocations) -> Value {
    let entry = |EntryPattern { key, value }: &EntryPattern| json!({"key": key, "value": value});
    let sent = compared.sent.iter().map(|sent| {
        let rules: Vec<_> = sent.rules().iter().map(|rule| &*rule.path).collect();
        json!({
            "at": at(&sent.file, sent.place),
            "domain": sent.domain,
            "domain_has_rules": !matches!(sent.outcome, Outcome::UnknownDomain),
            "entries": sent.entries.iter().map(entry).collect::<Value>(),
            "rules": rules,
        })
    });
    let unsent = compared.unsent.iter().map(|rule| {
        json!({
            "at": places.of(&rule.path).map(|place| place.to_string()),
            "rule": rule.path,
        })
    });
    let unknown = compared
        .unknown
        .iter()
        .map(|unknown| json!({"at": at(&unknown.file, unknown.place), "action": unknown.name}));
    let without = compared.without_domain.iter().map(|(file, place)| at(file, *place));
    json!({
        "descriptors": sent.collect::<Value>(),
        "rules_never_found": unsent.collect::<Value>(),
        "unknown_actions": unknown.collect::<Value>(),
        "without_domain": without.collect::<Value>(),
        "clean": compared.is_clean(),
    })
}
