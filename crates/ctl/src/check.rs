//! `ratectl check --envoy`: compares the descriptors that an Envoy sends with the rules.

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
use ratelease_rules::yaml::{Yaml, YamlKind};
use ratelease_rules::{Faults, Place, Rule, RuleLocations, Rules, Source};
use serde_json::{Value, json};

use crate::yaml_documents;
use crate::yaml_documents::{field, items, text};

pub const NOTES: &str = "\
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
    /// Configuration of Envoys: a file, or - for standard input; may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    envoy: Vec<PathBuf>,
    /// Domain of descriptors for which no rate limit filter is in the files
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    domain: Option<String>,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    rules: Flags<RulesDir>,
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
        out.json(&json(&compared, &places))?;
    } else {
        print(&compared, &places, out)?;
    }
    Ok(Completion::clean_if(compared.is_clean()))
}

/// Finds the rules of each descriptor, and the rules that have none.
fn compare<'r>(config: &'r Config, domain: Option<&str>, rules: &'r Rules) -> Comparison<'r> {
    let mut sent = Vec::new();
    let mut without_domain = Vec::new();
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
    let file = site.file.clone();
    let place = site.place;
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

// === Action ===
//
// The descriptors of a `RateLimit` message (`envoy.config.route.v3`), from its actions.

/// Maximum number of descriptors of one message: each action that may be skipped doubles them.
const VARIANTS_MAX: usize = 1024;

/// An entry of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EntryPattern {
    key: String,
    /// `None` for a value that depends on the request.
    value: Option<String>,
}

/// What an action adds to a descriptor.
struct Added {
    entry: EntryPattern,
    /// The entry may be left out, and the rest is sent.
    is_optional: bool,
}

/// The descriptors that a `RateLimit` may send.
///
/// # Errors
/// The place and the name of an action that is not known.
fn descriptors(rate_limit: &Yaml) -> Result<Vec<Vec<EntryPattern>>, (Place, String)> {
    let mut variants: Vec<Vec<EntryPattern>> = vec![Vec::new()];
    for action in items(field(rate_limit, "actions")) {
        let Some(Added { entry, is_optional }) = added(action) else {
            return Err((action.place, name_of(action).unwrap_or_default().to_owned()));
        };
        let without = if is_optional { variants.clone() } else { Vec::new() };
        variants.iter_mut().for_each(|variant| variant.push(entry.clone()));
        variants.extend(without);
        variants.truncate(VARIANTS_MAX);
    }
    variants.retain(|variant| !variant.is_empty());
    Ok(variants)
}

/// The name of an action: the one field that it has.
fn name_of(action: &Yaml) -> Option<&str> {
    let YamlKind::Map(pairs) = &action.kind else { return None };
    text(&pairs.first()?.0)
}

/// The entry of an action. Keys and their defaults are those of Envoy's documentation.
fn added(action: &Yaml) -> Option<Added> {
    let name = snake(name_of(action)?);
    let of = field(action, &name)?;
    let key = |default: &str| {
        let given = field(of, "descriptor_key").and_then(text).filter(|key| !key.is_empty());
        given.unwrap_or(default).to_owned()
    };
    let any = |key: String| EntryPattern { key, value: None };
    let entry = match name.as_str() {
        "source_cluster" => any("source_cluster".to_owned()),
        "destination_cluster" => any("destination_cluster".to_owned()),
        "remote_address" => any("remote_address".to_owned()),
        "masked_remote_address" => any("masked_remote_address".to_owned()),
        "request_headers" | "query_parameters" | "dynamic_metadata" | "metadata" => any(key("")),
        "generic_key" => EntryPattern { key: key("generic_key"), value: fixed(of) },
        "header_value_match" => EntryPattern { key: key("header_match"), value: fixed(of) },
        "query_parameter_value_match" => EntryPattern { key: key("query_match"), value: fixed(of) },
        "remote_address_match" => {
            EntryPattern { key: key("remote_address_match"), value: fixed(of) }
        }
        "extension" => {
            any(field(field(of, "typed_config")?, "descriptor_key").and_then(text)?.to_owned())
        }
        _ => return None,
    };
    let is_set = |of, name| field(of, name).and_then(text).is_some_and(|it| it == "true");
    let skips = is_set(of, "skip_if_absent")
        || field(of, "typed_config").is_some_and(|of| is_set(of, "skip_if_error"));
    (!entry.key.is_empty()).then_some(Added { entry, is_optional: skips })
}

/// The value of an action that names it; `None` if Envoy may put something in the place of `%…%`.
fn fixed(of: &Yaml) -> Option<String> {
    let value = field(of, "descriptor_value").and_then(text)?;
    (!value.contains('%')).then(|| value.to_owned())
}

fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

// === Config ===
//
// Finds rate limit filters and descriptors in a configuration of Envoy, wherever they are: a
// bootstrap, the patches of an EnvoyFilter and a dump nest the same messages differently.

/// The endings of type URLs of messages.
const HTTP_FILTER: &str = "filters.http.ratelimit.v3.RateLimit";
const PER_ROUTE: &str = "filters.http.ratelimit.v3.RateLimitPerRoute";
const NETWORK_FILTER: &str = "filters.network.ratelimit.v3.RateLimit";
const LOCAL_FILTER: &str = "local_ratelimit.v3.LocalRateLimit";

/// The filters and descriptors of all files.
#[derive(Debug, Default)]
struct Config {
    filters: Vec<Filter>,
    sites: Vec<Site>,
    unknown: Vec<UnknownAction>,
    /// Name of the file that is read.
    file: String,
    /// Lines of it before the document that is read.
    lines_before: u32,
    /// The domain that a route around the present place has instead of the filter's.
    route_domain: Option<String>,
}

/// A rate limit filter.
#[derive(Debug, PartialEq, Eq)]
struct Filter {
    domain: String,
    /// Routes name the stage whose filters send their descriptors.
    stage: u32,
}

/// A place that has descriptors.
#[derive(Debug, PartialEq, Eq)]
struct Site {
    file: String,
    place: Place,
    /// The domain, where it does not depend on the filters.
    domain: Option<String>,
    /// The stage; `None` for all stages.
    stage: Option<u32>,
    descriptors: Vec<Vec<EntryPattern>>,
}

/// An action that is not known, so that its descriptors are not either.
#[derive(Debug, PartialEq, Eq)]
struct UnknownAction {
    file: String,
    place: Place,
    name: String,
}

// === impl Config ===

impl Config {
    /// Adds what `source` has, in all its documents.
    ///
    /// # Errors
    /// Every syntax fault of the first document that has any.
    fn read(&mut self, source: &Source) -> Result<(), Faults> {
        self.file.clone_from(&source.name);
        for document in yaml_documents::read(source)? {
            self.lines_before = document.lines_before;
            self.visit(&document.root);
        }
        Ok(())
    }

    /// Visits a value and all that is in it. The recursion is as deep as the parser allows.
    fn visit(&mut self, at: &Yaml) {
        let kind = field(at, "@type").and_then(text).unwrap_or_default();
        if kind.ends_with(LOCAL_FILTER) {
            return;
        }
        match kind {
            _ if kind.ends_with(HTTP_FILTER) => self.http_filter(at),
            _ if kind.ends_with(NETWORK_FILTER) => self.network_filter(at),
            _ if kind.ends_with(PER_ROUTE) => {
                let domain = own_domain(at).or(self.route_domain.clone());
                self.limits(at, domain, Stages::All);
            }
            _ => self.other(at),
        }
    }

    /// A message that may be a route, with the domain of its own configuration of the filter.
    fn other(&mut self, at: &Yaml) {
        let around = self.route_domain.clone();
        self.route_domain = domain_of_route(at).or(around.clone());
        self.limits(at, self.route_domain.clone(), Stages::Named);
        self.inside(at);
        self.route_domain = around;
    }

    fn inside(&mut self, at: &Yaml) {
        match &at.kind {
            YamlKind::List(items) => items.iter().for_each(|item| self.visit(item)),
            YamlKind::Map(pairs) => pairs.iter().for_each(|(_, value)| self.visit(value)),
            YamlKind::Null | YamlKind::Scalar(_) => {}
        }
    }

    fn http_filter(&mut self, at: &Yaml) {
        let Some(domain) = own_domain(at) else { return };
        self.limits(at, Some(domain.clone()), Stages::All);
        self.filters.push(Filter { domain, stage: stage(at) });
    }

    fn network_filter(&mut self, at: &Yaml) {
        let Some(domain) = own_domain(at) else { return };
        for descriptor in items(field(at, "descriptors")) {
            let entry = |of: &Yaml| {
                let of = |name| field(of, name).and_then(text).map(str::to_owned);
                let value = of("value").filter(|value| !value.contains('%'));
                Some(EntryPattern { key: of("key")?, value })
            };
            let entries = items(field(descriptor, "entries")).iter().filter_map(entry).collect();
            self.add(descriptor, Some(domain.clone()), None, vec![entries]);
        }
    }

    /// Adds the `rate_limits` of a message.
    fn limits(&mut self, at: &Yaml, domain: Option<String>, stages: Stages) {
        for limit in items(field(at, "rate_limits")) {
            let stage = (stages == Stages::Named).then(|| stage(limit));
            match descriptors(limit) {
                Ok(descriptors) => self.add(limit, domain.clone(), stage, descriptors),
                Err((place, name)) => {
                    let file = self.file.clone();
                    let place = self.placed(place);
                    self.unknown.push(UnknownAction { file, place, name });
                }
            }
        }
    }

    /// A place in the file, from one in the document.
    fn placed(&self, place: Place) -> Place {
        Place { line: place.line + self.lines_before, ..place }
    }

    fn add(
        &mut self,
        at: &Yaml,
        domain: Option<String>,
        stage: Option<u32>,
        descriptors: Vec<Vec<EntryPattern>>,
    ) {
        if !descriptors.is_empty() {
            let file = self.file.clone();
            let place = self.placed(at.place);
            self.sites.push(Site { file, place, domain, stage, descriptors });
        }
    }
}

/// The domain that a route's own configuration of the filter has.
fn domain_of_route(at: &Yaml) -> Option<String> {
    let YamlKind::Map(filters) = &field(at, "typed_per_filter_config")?.kind else { return None };
    let is_ours =
        |of: &Yaml| field(of, "@type").and_then(text).is_some_and(|kind| kind.ends_with(PER_ROUTE));
    filters.iter().map(|(_, of)| of).find(|of| is_ours(of)).and_then(own_domain)
}

/// Which stages a message's descriptors are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stages {
    /// The one that each names, 0 by default.
    Named,
    All,
}

fn own_domain(of: &Yaml) -> Option<String> {
    field(of, "domain").and_then(text).filter(|domain| !domain.is_empty()).map(str::to_owned)
}

fn stage(of: &Yaml) -> u32 {
    field(of, "stage").and_then(text).and_then(|stage| stage.parse().ok()).unwrap_or_default()
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
fn json(compared: &Comparison<'_>, places: &RuleLocations) -> Value {
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
