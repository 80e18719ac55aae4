//! `ratectl check --envoy`: compares the descriptors that an Envoy sends with the rules, and checks
//! the settings that these rules need.
//!
//! `config` reads the configuration, with `action`, `access_log` and `cluster` for its parts;
//! `ends` says how requests end. This file compares, and reports.

mod access_log;
mod action;
mod cluster;
mod config;
mod ends;
mod finding;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Style};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{Flags, Role, RulesDir};
use ratelease_cli::source;
use ratelease_rules::{LevelMatch, Rule, RuleLocations, Rules};
use serde_json::{Value, json};

use action::{EntryPattern, Origin};
use config::{Config, Site, UnknownAction};
use finding::{At, Finding, Findings, Level};

pub const NOTES: &str = "\
FILE is YAML or JSON with the configuration of Envoys: a bootstrap, an EnvoyFilter of Istio, or what
/config_dump of Envoy's admin port prints, which shows what any mesh has configured. Several FILEs
are read as one configuration. A value that depends on the request, such as a header, may be any.

It also checks settings without which a limit does not hold: for rules with `hold` how the requests
of each connection manager end (access log or second call, ids, cluster), and values that are a path
as a client spells it. A warning is a finding with --strict.

A descriptor of a route is sent in the domain of each rate limit filter of its stage. --domain names
the domain of files without a filter.

Exit status: 0 each descriptor has a rule and each rule a descriptor, 1 some have none or a setting
is wrong, 2 something could not be read.

Examples:
  ratectl check --envoy envoy.yaml --rules config/rules
  ratectl check --envoy envoyfilter.yaml --domain shop
  curl -s localhost:15000/config_dump | ratectl check --envoy - --json";

/// Flags of `check`.
#[derive(Debug, Args)]
pub struct CheckFlags {
    /// Configuration of Envoys: a file, or - for standard input; may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    envoy: Vec<PathBuf>,
    /// Domain of descriptors for which no rate limit filter is in the files
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    domain: Option<String>,
    /// Count warnings of settings as findings
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    rules: Flags<RulesDir>,
}

/// A descriptor that Envoys send.
#[derive(Debug)]
struct Sent<'r> {
    site: &'r Site,
    domain: String,
    entries: Vec<EntryPattern>,
    outcome: Outcome<'r>,
}

/// The rules for a descriptor.
#[derive(Debug)]
enum Outcome<'r> {
    /// No rule file has the domain.
    UnknownDomain,
    /// The rules that it may find; none is a finding.
    Rules(Vec<&'r Rule>),
}

/// All that was found.
#[derive(Debug)]
struct Comparison<'r> {
    sent: Vec<Sent<'r>>,
    /// Rules that no descriptor finds, in order of their paths.
    unsent: Vec<&'r Rule>,
    /// Descriptors whose domain is not known, by file and place.
    without_domain: Vec<&'r At>,
    /// The domains in which something is sent.
    domains: BTreeSet<String>,
    unknown: &'r [UnknownAction],
    settings: Findings,
}

/// Reads the configuration and the rules, and compares them.
pub fn run(flags: &CheckFlags, role: Role, out: &mut Out) -> CliResult {
    let dir = flags.rules.read(|values, faults| RulesDir::read(role, values, faults))?;
    let dirs = std::slice::from_ref(&dir.dir);
    let mut config = Config::default();
    for path in &flags.envoy {
        config.read(&source::read_file(path)?).map_err(|faults| CliError::new(Safe(faults)))?;
    }
    let (rules, places) = source::load_with_locations(dirs, &dir.reading)?;
    let compared = compare(&config, flags.domain.as_deref(), &rules);
    if compared.is_empty() {
        return Err(CliError::new(
            "the configuration sends no descriptors: it has no rate_limits with actions; \
             name the file with the routes too",
        ));
    }
    if flags.out.json {
        out.json(&json(&compared, &places, flags.strict))?;
    } else {
        print(&compared, &places, out)?;
    }
    Ok(Completion::clean_if(compared.is_clean(flags.strict)))
}

/// Finds the rules of each descriptor, rules that have none, and faulty settings.
fn compare<'r>(config: &'r Config, domain: Option<&str>, rules: &'r Rules) -> Comparison<'r> {
    let mut sent = Vec::new();
    let mut without_domain = Vec::new();
    for site in &config.sites {
        let domains = config.domains_of(site, domain);
        if domains.is_empty() {
            without_domain.push(&site.at);
        }
        for domain in domains {
            for entries in &site.descriptors {
                sent.push(find(site, domain, entries, rules));
            }
        }
    }
    let found = sent.iter().flat_map(|sent| sent.rules()).map(|rule| &*rule.path);
    let found: BTreeSet<&str> = found.collect();
    let rules = rules.iter().map(|rule| &**rule);
    let unsent = rules.filter(|rule| !found.contains(&*rule.path)).collect();
    let domains = sent.iter().map(|sent| sent.domain.clone()).collect();
    let mut settings = Findings::default();
    for sent in &sent {
        review_paths(sent, &mut settings);
        review_hits(sent, &mut settings);
    }
    ends::review(config, &sent, &mut settings);
    Comparison { sent, unsent, without_domain, domains, unknown: &config.unknown, settings }
}

fn find<'r>(site: &'r Site, domain: &str, entries: &[EntryPattern], rules: &'r Rules) -> Sent<'r> {
    let pairs: Vec<_> = entries.iter().map(|it| (&*it.key, it.value.as_deref())).collect();
    let outcome = match rules.reachable(domain, &pairs) {
        None => Outcome::UnknownDomain,
        Some(rules) => Outcome::Rules(rules.into_iter().map(|rule| &**rule).collect()),
    };
    Sent { site, domain: domain.to_owned(), entries: entries.to_vec(), outcome }
}

/// Adds the values that are a path as the client has spelled it, where another spelling evades a
/// rule.
fn review_paths(sent: &Sent<'_>, findings: &mut Findings) {
    for (level, entry) in sent.entries.iter().enumerate() {
        let takes_any_end = |rule: &&Rule| {
            rule.levels.get(level).is_some_and(|level| match &level.matched {
                LevelMatch::Wildcard(pattern) => pattern.ends_with('*'),
                LevelMatch::Key | LevelMatch::Value => false,
            })
        };
        if entry.origin == Origin::Path && !sent.rules().iter().all(takes_any_end) {
            let at = At { place: entry.place, ..sent.site.at.clone() };
            findings.add(Finding::error(
                at,
                "the path as a client spells it, with its query: `?x`, `//` or `%73` in it evades \
                 the limit",
                "send a generic_key from the route that matches the path, or a header_value_match \
                 with safe_regex; set normalize_path, merge_slashes and \
                 path_with_escaped_slashes_action",
            ));
        }
    }
}

/// Adds hits that Envoy does not send.
fn review_hits(sent: &Sent<'_>, findings: &mut Findings) {
    let unread = sent.site.unread_hits.as_ref().filter(|_| !sent.rules().is_empty());
    if let Some(at) = unread {
        findings.add(Finding::error(
            at.clone(),
            "Envoy ignores hits_addend in the rate_limits of a route or virtual host",
            "move the list to the RateLimitPerRoute in typed_per_filter_config",
        ));
    }
}

// === impl Sent ===

impl<'r> Sent<'r> {
    fn rules(&self) -> &[&'r Rule] {
        match &self.outcome {
            Outcome::UnknownDomain => &[],
            Outcome::Rules(rules) => rules,
        }
    }
}

// === impl Comparison ===

impl Comparison<'_> {
    /// Whether the configuration has nothing to compare.
    fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.without_domain.is_empty() && self.unknown.is_empty()
    }

    /// Whether a descriptor is sent in this domain.
    fn sends_in(&self, domain: Option<&str>) -> bool {
        domain.is_some_and(|domain| self.domains.contains(domain))
    }

    fn is_clean(&self, is_strict: bool) -> bool {
        let warnings = if is_strict { self.settings.count(Level::Warning) } else { 0 };
        self.unsent.is_empty()
            && self.settings.count(Level::Error) + warnings == 0
            && self.unknown.is_empty()
            && self.without_domain.is_empty()
            && self.sent.iter().all(|sent| !sent.rules().is_empty())
    }
}

// === Report ===
//
// Reports a comparison, as text and as JSON.

/// Prints the findings, and a summary.
fn print(compared: &Comparison<'_>, places: &RuleLocations, out: &mut Out) -> Result<(), CliError> {
    let painter = out.painter();
    let mut finding = |place: String, problem: String| {
        out.line(format_args!("{}: {}", Safe(place), painter.paint(Style::Bad, Safe(problem))))
    };
    for unknown in compared.unknown {
        let problem = format!("the action '{}' is not known; it was not checked", unknown.name);
        finding(unknown.at.to_string(), problem)?;
    }
    for at in &compared.without_domain {
        let problem = "no rate limit filter has its stage; name the domain with --domain";
        finding(at.to_string(), problem.to_owned())?;
    }
    for sent in compared.sent.iter().filter(|sent| sent.rules().is_empty()) {
        finding(sent.site.at.to_string(), problem(sent))?;
    }
    for (domain, rules) in unused_domains(compared) {
        let problem = format!("nothing is sent in this domain; its rules, never found: {rules}");
        finding(format!("domain '{domain}'"), problem)?;
    }
    for rule in compared.unsent.iter().filter(|rule| compared.sends_in(rule.domain())) {
        let place = places.of(&rule.path).map(|place| place.to_string()).unwrap_or_default();
        finding(place, format!("no descriptor finds the rule {}", rule.path))?;
    }
    for Finding { level, at, problem, fix } in &compared.settings.0 {
        let style = match level {
            Level::Error => Style::Bad,
            Level::Warning => Style::Doubtful,
        };
        let level = painter.paint(style, level.name());
        out.line(format_args!("{}: {level}: {}; {fix}", Safe(at), Safe(problem)))?;
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
        .map(|entry| format!("{}={}", entry.key, entry.value.as_deref().unwrap_or("*")));
    entries.collect::<Vec<_>>().join(",")
}

fn summary(compared: &Comparison<'_>) -> String {
    let sent = compared.sent.len();
    let without = compared.sent.iter().filter(|sent| sent.rules().is_empty()).count();
    let unsent = compared.unsent.len();
    let counts = [Level::Error, Level::Warning].map(|level| {
        let count = compared.settings.count(level);
        let plural = if count == 1 { "" } else { "s" };
        format!("{count} {}{plural}", level.name())
    });
    let settings = match compared.settings.0.as_slice() {
        [] => String::new(),
        _ => format!("; settings: {}", counts.join(", ")),
    };
    format!(
        "descriptors: {sent}, of which without a rule: {without}; rules never found: \
         {unsent}{settings}"
    )
}

/// The report as JSON: all descriptors with their rules, the rules that no descriptor finds, and
/// the findings on settings.
fn json(compared: &Comparison<'_>, places: &RuleLocations, is_strict: bool) -> Value {
    let entry = |entry: &EntryPattern| json!({"key": entry.key, "value": entry.value});
    let sent = compared.sent.iter().map(|sent| {
        let rules: Vec<_> = sent.rules().iter().map(|rule| &*rule.path).collect();
        json!({
            "at": sent.site.at.to_string(),
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
        .map(|unknown| json!({"at": unknown.at.to_string(), "action": unknown.name}));
    let without = compared.without_domain.iter().map(|at| at.to_string());
    let settings = compared.settings.0.iter().map(|Finding { level, at, problem, fix }| {
        json!({"at": at.to_string(), "level": level.name(), "problem": problem, "fix": fix})
    });
    json!({
        "descriptors": sent.collect::<Value>(),
        "rules_never_found": unsent.collect::<Value>(),
        "unknown_actions": unknown.collect::<Value>(),
        "without_domain": without.collect::<Value>(),
        "settings": settings.collect::<Value>(),
        "clean": compared.is_clean(is_strict),
    })
}
