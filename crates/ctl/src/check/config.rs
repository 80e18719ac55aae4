//! Finds rate limit filters and descriptors in a configuration of Envoy, wherever they are: a
//! bootstrap, the patches of an EnvoyFilter and a dump nest the same messages differently.

use ratelease_rules::yaml::{self, Yaml, YamlKind};
use ratelease_rules::{Faults, Place, Source};

use super::action::{EntryPattern, descriptors, field, items, text};

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
        for text in documents(&source.text) {
            let document = Source { name: source.name.clone(), text };
            if let Some(root) = yaml::read(&document)? {
                self.visit(&root);
            }
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
            _ if kind.ends_with(PER_ROUTE) => self.limits(at, own_domain(at), Stages::All),
            _ => {
                self.limits(at, None, Stages::Named);
                self.inside(at);
            }
        }
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
                Some(EntryPattern { key: of("key")?, value: of("value") })
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
                    self.unknown.push(UnknownAction { file: self.file.clone(), place, name });
                }
            }
        }
    }

    fn add(
        &mut self,
        at: &Yaml,
        domain: Option<String>,
        stage: Option<u32>,
        descriptors: Vec<Vec<EntryPattern>>,
    ) {
        if !descriptors.is_empty() {
            let (file, place) = (self.file.clone(), at.place);
            self.sites.push(Site { file, place, domain, stage, descriptors });
        }
    }
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

/// The documents of a file, each with as many empty lines before it as others have, so that places
/// are those of the file. A line that begins with `---` begins a document, whatever it is in.
fn documents(text: &[u8]) -> Vec<Vec<u8>> {
    let is_mark = |line: &[u8]| {
        line.strip_prefix(b"---")
            .is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
    };
    let mut documents = vec![Vec::new()];
    for (number, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if is_mark(line) {
            documents.push(vec![b'\n'; number]);
        }
        if let Some(document) = documents.last_mut() {
            document.extend_from_slice(line);
        }
    }
    documents
}
