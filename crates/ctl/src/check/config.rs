//! Finds rate limit filters and descriptors in a configuration of Envoy, wherever they are: a
//! bootstrap, the patches of an EnvoyFilter and a dump nest the same messages differently.

use ratelease_rules::yaml::{Yaml, YamlKind};
use ratelease_rules::{Faults, Place, Source};

use super::action::{EntryPattern, descriptors};
use crate::yaml_documents::{self, field, items, text};

/// The endings of type URLs of messages.
const HTTP_FILTER: &str = "filters.http.ratelimit.v3.RateLimit";
const PER_ROUTE: &str = "filters.http.ratelimit.v3.RateLimitPerRoute";
const NETWORK_FILTER: &str = "filters.network.ratelimit.v3.RateLimit";
const LOCAL_FILTER: &str = "local_ratelimit.v3.LocalRateLimit";

/// The filters and descriptors of all files.
#[derive(Debug, Default)]
pub(super) struct Config {
    pub(super) filters: Vec<Filter>,
    pub(super) sites: Vec<Site>,
    pub(super) unknown: Vec<UnknownAction>,
    /// Name of the file that is read.
    file: String,
    /// Lines of it before the document that is read.
    lines_before: u32,
    /// The domain that a route around the present place has instead of the filter's.
    route_domain: Option<String>,
}

/// A rate limit filter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) domain: String,
    /// Routes name the stage whose filters send their descriptors.
    pub(super) stage: u32,
}

/// A place that has descriptors.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) file: String,
    pub(super) place: Place,
    /// The domain, where it does not depend on the filters.
    pub(super) domain: Option<String>,
    /// The stage; `None` for all stages.
    pub(super) stage: Option<u32>,
    pub(super) descriptors: Vec<Vec<EntryPattern>>,
}

/// An action that is not known, so that its descriptors are not either.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownAction {
    pub(super) file: String,
    pub(super) place: Place,
    pub(super) name: String,
}

// === impl Config ===

impl Config {
    /// Adds what `source` has, in all its documents.
    ///
    /// # Errors
    /// Every syntax fault of the first document that has any.
    pub(super) fn read(&mut self, source: &Source) -> Result<(), Faults> {
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
                    let (file, place) = (self.file.clone(), self.placed(place));
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
            let (file, place) = (self.file.clone(), self.placed(at.place));
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
