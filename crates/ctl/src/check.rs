//! `ratectl check --envoy`: compares the descriptors that an Envoy sends with the rules.

mod action;
mod config;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{Role, RulesDirFlags};
use ratelease_cli::source;
use ratelease_rules::{Place, Rule, Rules};

use action::EntryPattern;
use config::{Config, Site, UnknownAction};

pub(super) const NOTES: &str = "\
FILE is YAML or JSON with the configuration of Envoys: a bootstrap, an EnvoyFilter of Istio, or what
/config_dump of Envoy's admin port prints, which shows what any mesh has configured. Several FILEs
are read as one configuration. A value that depends on the request, such as a header, may be any.

A descriptor of a route is sent in the domain of each rate limit filter of its stage. --domain names
the domain of files without a filter.

Exit status: 0 each descriptor has a rule and each rule a descriptor, 1 some have none, 2 something
could not be read.

Examples:
  ratectl check --envoy envoy.yaml --rules config/rules
  ratectl check --envoy envoyfilter.yaml --domain shop
  curl -s localhost:15000/config_dump | ratectl check --envoy - --json";

/// Flags of `check`.
#[derive(Debug, Args)]
pub struct CheckFlags {
    /// Configuration of Envoys: a file, or - for standard input
    #[arg(long, value_name = "FILE", required = true)]
    envoy: Vec<PathBuf>,
    /// Domain of descriptors for which no rate limit filter is in the files
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    domain: Option<String>,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    rules: RulesDirFlags,
}

/// A descriptor that Envoys send.
#[derive(Debug)]
struct Sent<'r> {
    file: String,
    place: Place,
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
    without_domain: Vec<(String, Place)>,
    /// The domains in which something is sent.
    domains: BTreeSet<String>,
    unknown: &'r [UnknownAction],
}

/// Reads the configuration and the rules, and compares them.
pub(super) fn run(flags: &CheckFlags, role: Role, out: &mut Out) -> CliResult {
    let dir = source::resolved(|faults| flags.rules.resolve(role, faults))?;
    let dirs = std::slice::from_ref(&dir.dir);
    let mut config = Config::default();
    for path in &flags.envoy {
        config.read(&source::read_file(path)?).map_err(|faults| CliError::new(Safe(faults)))?;
    }
    let (rules, places) = source::load_with_locations(dirs, dir.reading())?;
    let compared = compare(&config, flags.domain.as_deref(), &rules);
    if compared.is_empty() {
        return Err(CliError::new(
            "the configuration sends no descriptors: it has no rate_limits with actions; \
             name the file with the routes too",
        ));
    }
    if flags.out.json {
        out.json(&report::json(&compared, &places))?;
    } else {
        report::text(&compared, &places, out)?;
    }
    Ok(Completion::clean_if(compared.is_clean()))
}

/// Finds the rules of each descriptor, and the rules that have none.
fn compare<'r>(config: &'r Config, domain: Option<&str>, rules: &'r Rules) -> Comparison<'r> {
    let (mut sent, mut without_domain) = (Vec::new(), Vec::new());
    for site in &config.sites {
        let domains = domains_of(config, site, domain);
        if domains.is_empty() {
            without_domain.push((site.file.clone(), site.place));
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
    Comparison { sent, unsent, without_domain, domains, unknown: &config.unknown }
}

/// The domains in which the descriptors of a site are sent.
fn domains_of<'c>(config: &'c Config, site: &'c Site, given: Option<&'c str>) -> BTreeSet<&'c str> {
    if let Some(own) = &site.domain {
        return BTreeSet::from([&**own]);
    }
    let is_for = |stage: u32| site.stage.is_none_or(|of| of == stage);
    let filters = config.filters.iter().filter(|filter| is_for(filter.stage));
    let found: BTreeSet<&str> = filters.map(|filter| &*filter.domain).collect();
    if found.is_empty() { given.into_iter().collect() } else { found }
}

fn find<'r>(site: &Site, domain: &str, entries: &[EntryPattern], rules: &'r Rules) -> Sent<'r> {
    let pairs: Vec<_> = entries.iter().map(|it| (&*it.key, it.value.as_deref())).collect();
    let outcome = match rules.reachable(domain, &pairs) {
        None => Outcome::UnknownDomain,
        Some(rules) => Outcome::Rules(rules.into_iter().map(|rule| &**rule).collect()),
    };
    let (file, place) = (site.file.clone(), site.place);
    Sent { file, place, domain: domain.to_owned(), entries: entries.to_vec(), outcome }
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

    fn is_clean(&self) -> bool {
        self.unsent.is_empty()
            && self.unknown.is_empty()
            && self.without_domain.is_empty()
            && self.sent.iter().all(|sent| !sent.rules().is_empty())
    }
}
