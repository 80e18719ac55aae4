//! The parts of a configuration of Envoy that matter for rate limits: connection managers, filters,
//! descriptors and clusters, wherever they are. A bootstrap, the patches of an `EnvoyFilter` and a
//! dump nest the same messages differently.

use std::collections::BTreeSet;
use std::time::Duration;

use ratelease_rules::yaml::{Yaml, YamlKind};
use ratelease_rules::{Faults, Source};

use super::access_log::AccessLog;
use super::action::{EntryPattern, Origin, descriptors};
use super::cluster::{Cluster, grpc_cluster};
use super::finding::{At, Reading};
use crate::yaml_documents;
use crate::yaml_documents::{duration, field, items, text};

/// The ending of the type URL of the rate limit filter.
const HTTP_FILTER: &str = "filters.http.ratelimit.v3.RateLimit";

/// The ending of the type URL of its configuration for a route.
const PER_ROUTE: &str = "filters.http.ratelimit.v3.RateLimitPerRoute";

/// The ending of the type URL of the rate limit filter for connections.
const NETWORK_FILTER: &str = "filters.network.ratelimit.v3.RateLimit";

/// The ending of the type URL of Envoy's local rate limit, which asks no service.
const LOCAL_FILTER: &str = "local_ratelimit.v3.LocalRateLimit";

/// The ending of the type URL of a connection manager.
const MANAGER: &str = "http_connection_manager.v3.HttpConnectionManager";

/// The ending of the type URL of the filter that sets objects of filter state.
const SET_FILTER_STATE: &str = "filters.http.set_filter_state.v3.Config";

/// The ending of the type URL of the filter that sets headers.
const HEADER_MUTATION: &str = "filters.http.header_mutation.v3.HeaderMutation";

/// The ending of the type URL of a filter that is a module.
const MODULE: &str = "filters.http.dynamic_modules.v3.DynamicModuleFilter";

/// The ending of the type URL of a module's configuration for a route.
const MODULE_PER_ROUTE: &str = "filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute";

/// Envoy's own time-out of a call of the rate limit filter.
pub(super) const TIMEOUT_DEFAULT: Duration = Duration::from_millis(20);

/// The configuration of all files.
#[derive(Debug, Default)]
pub(super) struct Config {
    pub(super) filters: Vec<Filter>,
    pub(super) sites: Vec<Site>,
    pub(super) unknown: Vec<UnknownAction>,
    pub(super) clusters: Vec<Cluster>,
    managers: Vec<Manager>,
    /// Filters and logs outside of any connection manager, as in the patches of an `EnvoyFilter`.
    loose: Manager,
    reading: Reading,
    around: Around,
}

/// The surroundings of the value that is visited.
#[derive(Debug, Clone, Default)]
struct Around {
    /// The domain that a route has instead of the filter's.
    route_domain: Option<String>,
    /// The connection manager.
    manager: Option<usize>,
    /// The name of the route configuration.
    routes: Option<String>,
    /// The name of the filter that a message configures.
    filter: Option<String>,
    /// Whether a filter of the module does it all.
    in_module: bool,
}

/// A rate limit filter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) domain: String,
    /// Routes name the stage whose filters send their descriptors.
    pub(super) stage: u32,
}

/// An HTTP connection manager.
#[derive(Debug, Default)]
pub(super) struct Manager {
    /// `None` for parts outside of any connection manager.
    pub(super) at: Option<At>,
    /// The route configuration that a server sends.
    routes: Option<String>,
    pub(super) filters: Vec<HttpFilter>,
    pub(super) logs: Vec<AccessLog>,
    /// How often a request that runs has an entry in the access logs, if ever.
    pub(super) sign_of_life: Option<Duration>,
    /// Whether Envoy replaces the `x-request-id` that a client sends.
    pub(super) makes_request_id: bool,
}

/// An HTTP filter that matters, in the order of the filters.
#[derive(Debug)]
pub(super) enum HttpFilter {
    Limit(LimitFilter),
    /// A filter that sets an object of filter state, or a header of the request.
    Sets {
        at: At,
        target: Origin,
        origin: Origin,
    },
}

/// A rate limit filter of HTTP, as it calls the service.
#[derive(Debug)]
pub(super) struct LimitFilter {
    pub(super) at: At,
    name: Option<String>,
    stage: u32,
    pub(super) timeout: Duration,
    pub(super) cluster: Option<String>,
}

/// A place that has descriptors.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) at: At,
    /// The domain, where it does not depend on the filters.
    pub(super) domain: Option<String>,
    /// The stage; `None` for all stages.
    pub(super) stage: Option<u32>,
    pub(super) descriptors: Vec<Vec<EntryPattern>>,
    /// Whether they are sent at the end of a request (`apply_on_stream_done`).
    pub(super) is_end: bool,
    /// Place of a `hits_addend` that Envoy does not read there.
    pub(super) unread_hits: Option<At>,
    around: Around,
}

/// An action that is not known, so that its descriptors are not either.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownAction {
    pub(super) at: At,
    pub(super) name: String,
}

/// The stages that a message's descriptors are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stages {
    /// The one that each names, 0 by default.
    Named,
    All,
}

// === impl Site ===

impl Site {
    /// Whether the engine within Envoy takes the descriptors.
    pub(super) fn is_in_module(&self) -> bool {
        self.around.in_module
    }
}

// === impl Manager ===

impl Manager {
    /// The rate limit filters that may send the descriptors of a site, each with its position.
    pub(super) fn limits_of(&self, site: &Site) -> Vec<(usize, &LimitFilter)> {
        let limits = self.filters.iter().enumerate().filter_map(|(position, it)| match it {
            HttpFilter::Limit(limit) => Some((position, limit)),
            HttpFilter::Sets { .. } => None,
        });
        let is_for = |limit: &LimitFilter| site.stage.is_none_or(|stage| stage == limit.stage);
        let limits: Vec<_> = limits.filter(|(_, limit)| is_for(limit)).collect();
        let is_named = |limit: &LimitFilter| limit.name == site.around.filter;
        let named: Vec<_> = limits.iter().copied().filter(|(_, limit)| is_named(limit)).collect();
        if named.is_empty() { limits } else { named }
    }

    fn has_limits(&self) -> bool {
        self.filters.iter().any(|it| matches!(it, HttpFilter::Limit(_)))
    }

    /// Adds the fields of a connection manager, or of a patch of one.
    fn read(&mut self, of: &Yaml, reading: &Reading) {
        let is = |name: &str| field(of, name).and_then(text).map(|it| it == "true");
        let routes = field(of, "rds").and_then(|it| field(it, "route_config_name"));
        self.routes = routes.and_then(text).map(str::to_owned);
        self.makes_request_id |= is("use_remote_address") == Some(true)
            && is("preserve_external_request_id") != Some(true)
            && is("generate_request_id") != Some(false);
        let interval = "access_log_flush_interval";
        let options = field(of, "access_log_options").unwrap_or(of);
        self.sign_of_life = duration(options, interval).or(self.sign_of_life);
        let logs = items(field(of, "access_log")).iter();
        self.logs.extend(logs.filter_map(|log| AccessLog::read(log, reading)));
    }
}

// === impl Config ===

impl Config {
    /// Adds the configuration in all documents of `source`.
    ///
    /// # Errors
    /// Every syntax fault of the first document that has any.
    pub(super) fn read(&mut self, source: &Source) -> Result<(), Faults> {
        self.reading.file.clone_from(&source.name);
        for document in yaml_documents::read(source)? {
            self.reading.lines_before = document.lines_before;
            self.visit(&document.root);
        }
        Ok(())
    }

    /// All connection managers, and the parts outside of any.
    pub(super) fn managers(&self) -> impl Iterator<Item = &Manager> {
        self.managers.iter().chain([&self.loose])
    }

    /// The connection managers that may have the routes of a site.
    pub(super) fn managers_of(&self, site: &Site) -> Vec<&Manager> {
        if let Some(around) = site.around.manager {
            return self.managers.get(around).into_iter().collect();
        }
        let named = |it: &&Manager| it.routes.is_some() && it.routes == site.around.routes;
        let named: Vec<_> = self.managers.iter().filter(named).collect();
        if !named.is_empty() {
            return named;
        }
        let limiting: Vec<_> = self.managers.iter().filter(|it| it.has_limits()).collect();
        if limiting.is_empty() { vec![&self.loose] } else { limiting }
    }

    /// The domains in which the descriptors of a site are sent.
    pub(super) fn domains_of<'c>(
        &'c self,
        site: &'c Site,
        given: Option<&'c str>,
    ) -> BTreeSet<&'c str> {
        if let Some(own) = &site.domain {
            return BTreeSet::from([&**own]);
        }
        let is_for = |stage: u32| site.stage.is_none_or(|of| of == stage);
        let filters = self.filters.iter().filter(|filter| is_for(filter.stage));
        let found: BTreeSet<&str> = filters.map(|filter| &*filter.domain).collect();
        if found.is_empty() { given.into_iter().collect() } else { found }
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
                let domain = own_domain(at).or(self.around.route_domain.clone());
                self.limits(at, domain, Stages::All);
            }
            _ if kind.ends_with(MANAGER) => self.within(at, Self::enter_manager),
            _ if kind.ends_with(SET_FILTER_STATE) => self.set_filter_state(at),
            _ if kind.ends_with(HEADER_MUTATION) => self.header_mutation(at),
            _ if kind.ends_with(MODULE) || kind.ends_with(MODULE_PER_ROUTE) => {
                self.within(at, |config, _| config.around.in_module = true);
            }
            _ => self.within(at, Self::enter),
        }
    }

    /// Visits the parts of a value. `enter` reads the value first.
    fn within(&mut self, at: &Yaml, enter: impl Fn(&mut Self, &Yaml)) {
        let around = self.around.clone();
        enter(self, at);
        self.inside(at);
        self.around = around;
    }

    /// Enters a message. A route sets the domain of its parts by its own configuration of the
    /// filter.
    fn enter(&mut self, at: &Yaml) {
        if let Some(domain) = domain_of_route(at) {
            self.around.route_domain = Some(domain);
        }
        if field(at, "virtual_hosts").is_some() {
            self.around.routes = field(at, "name").and_then(text).map(str::to_owned);
        }
        self.clusters.extend(Cluster::read(at, &self.reading));
        self.limits(at, self.around.route_domain.clone(), Stages::Named);
    }

    /// A connection manager. One without filters is a patch of another one.
    fn enter_manager(&mut self, at: &Yaml) {
        if field(at, "http_filters").is_some() {
            self.around.manager = Some(self.managers.len());
            let at = Some(self.reading.at(at.place));
            self.managers.push(Manager { at, ..Manager::default() });
        }
        let reading = std::mem::take(&mut self.reading);
        self.manager().read(at, &reading);
        self.reading = reading;
    }

    /// The connection manager around the present value.
    fn manager(&mut self) -> &mut Manager {
        let around = self.around.manager.and_then(|around| self.managers.get_mut(around));
        around.unwrap_or(&mut self.loose)
    }

    fn inside(&mut self, at: &Yaml) {
        match &at.kind {
            YamlKind::List(items) => items.iter().for_each(|item| self.visit(item)),
            YamlKind::Map(pairs) => {
                for (key, value) in pairs {
                    let key = text(key).unwrap_or_default();
                    let around = self.around.filter.clone();
                    match key {
                        // The configuration of a filter for a route: the key of the message around
                        // it counts.
                        "config" => {}
                        "typed_config" | "typedConfig" => {
                            self.around.filter =
                                field(at, "name").and_then(text).map(str::to_owned);
                        }
                        _ => self.around.filter = Some(key.to_owned()),
                    }
                    self.visit(value);
                    self.around.filter = around;
                }
            }
            YamlKind::Null | YamlKind::Scalar(_) => {}
        }
    }

    fn http_filter(&mut self, at: &Yaml) {
        let Some(domain) = own_domain(at) else { return };
        self.limits(at, Some(domain.clone()), Stages::All);
        self.filters.push(Filter { domain, stage: stage(at) });
        if !self.around.in_module {
            let service = field(at, "rate_limit_service");
            let limit = LimitFilter {
                at: self.reading.at(at.place),
                name: self.around.filter.clone(),
                stage: stage(at),
                timeout: duration(at, "timeout").unwrap_or(TIMEOUT_DEFAULT),
                cluster: service.and_then(grpc_cluster).map(str::to_owned),
            };
            self.manager().filters.push(HttpFilter::Limit(limit));
        }
    }

    fn set_filter_state(&mut self, at: &Yaml) {
        for set in items(field(at, "on_request_headers")) {
            let format = field(set, "format_string").and_then(|it| {
                let source = field(it, "text_format_source").unwrap_or(it);
                field(source, "inline_string").or(field(it, "text_format")).and_then(text)
            });
            let object = field(set, "object_key").and_then(text).unwrap_or_default();
            let target = Origin::FilterState(object.to_owned());
            let origin = format.map_or(Origin::Other, Origin::of_format);
            let at = self.reading.at(set.place);
            self.manager().filters.push(HttpFilter::Sets { at, target, origin });
        }
    }

    /// Notes headers that Envoy sets in place of a client's.
    fn header_mutation(&mut self, at: &Yaml) {
        let mutations = field(at, "mutations").and_then(|it| field(it, "request_mutations"));
        for append in items(mutations).iter().filter_map(|it| field(it, "append")) {
            let action = field(append, "append_action").and_then(text).unwrap_or_default();
            let Some(header) = field(append, "header") else { continue };
            if action.starts_with("OVERWRITE") {
                let of = |name| field(header, name).and_then(text).unwrap_or_default();
                let (target, origin) = (Origin::header(of("key")), Origin::of_format(of("value")));
                let at = self.reading.at(append.place);
                self.manager().filters.push(HttpFilter::Sets { at, target, origin });
            }
        }
    }

    fn network_filter(&mut self, at: &Yaml) {
        let Some(domain) = own_domain(at) else { return };
        for descriptor in items(field(at, "descriptors")) {
            let entry = |of: &Yaml| {
                let place = of.place;
                let of = |name| field(of, name).and_then(text).map(str::to_owned);
                let origin = of("value").map_or(Origin::Fixed, |value| Origin::of_format(&value));
                let value = of("value").filter(|value| !value.contains('%'));
                Some(EntryPattern { place, key: of("key")?, value, origin })
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
                    self.unknown.push(UnknownAction { at: self.reading.at(place), name });
                }
            }
        }
    }

    fn add(
        &mut self,
        at: &Yaml,
        domain: Option<String>,
        stage: Option<u32>,
        mut descriptors: Vec<Vec<EntryPattern>>,
    ) {
        if descriptors.is_empty() {
            return;
        }
        for entry in descriptors.iter_mut().flatten() {
            entry.place = self.reading.at(entry.place).place;
        }
        let is_end = field(at, "apply_on_stream_done").and_then(text) == Some("true");
        // Envoy reads it in the configuration of its filter alone, whose lists are for all stages.
        let unread_hits = field(at, "hits_addend").filter(|_| stage.is_some());
        let unread_hits = unread_hits.map(|hits| self.reading.at(hits.place));
        let (at, around) = (self.reading.at(at.place), self.around.clone());
        let site = Site { at, domain, stage, descriptors, is_end, unread_hits, around };
        self.sites.push(site);
    }
}

/// The domain that a route's own configuration of the filter has.
fn domain_of_route(at: &Yaml) -> Option<String> {
    let YamlKind::Map(filters) = &field(at, "typed_per_filter_config")?.kind else { return None };
    let is_ours =
        |of: &Yaml| field(of, "@type").and_then(text).is_some_and(|kind| kind.ends_with(PER_ROUTE));
    filters.iter().map(|(_, of)| of).find(|of| is_ours(of)).and_then(own_domain)
}

fn own_domain(of: &Yaml) -> Option<String> {
    field(of, "domain").and_then(text).filter(|domain| !domain.is_empty()).map(str::to_owned)
}

fn stage(of: &Yaml) -> u32 {
    field(of, "stage").and_then(text).and_then(|stage| stage.parse().ok()).unwrap_or_default()
}
