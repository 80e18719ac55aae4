//! The bootstrap: its filters, the cluster of the rate limit service, and the extension that makes
//! the engine.

use serde_json::{Value, json};

use super::routes::{Filter, Routes};
use super::{
    Findings, Trail, URL, ends, get, get_mut, items, items_mut, library, path, review, set, take,
    text, type_of,
};

/// The message of Envoy's rate limit filter.
pub(super) const FILTER: &str = "envoy.extensions.filters.http.ratelimit.v3.RateLimit";

/// The message of Envoy's local rate limit filter, which has a list of its own.
const LOCAL_FILTER: &str = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";

/// The message of the connection manager, which holds the filters and the routes.
const MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// Rewrites a bootstrap; `None` if nothing in it asks a rate limit service.
pub(super) fn bootstrap(bootstrap: &mut Value) -> Option<Findings> {
    let mut findings = Findings::default();
    let node_cluster = path(bootstrap, &["node", "cluster"]).and_then(Value::as_str);
    let node_cluster = node_cluster.map(str::to_owned);
    let mut services = Vec::new();
    let static_resources = get_mut(bootstrap, "static_resources")?;
    let at = Trail::default().field("static_resources");
    for (number, listener) in items_mut(static_resources, "listeners") {
        let mut rewriter = Rewriter {
            findings: &mut findings,
            services: &mut services,
            node_cluster: node_cluster.as_deref(),
        };
        rewriter.listener(listener, &at.field("listeners").item(number));
    }
    if services.is_empty() {
        return None;
    }
    add_extension(bootstrap);
    for service in services.into_iter().flatten() {
        remove_cluster(bootstrap, &service);
    }
    Some(findings)
}

/// The state that is carried through the listeners.
#[derive(Debug)]
struct Rewriter<'f> {
    findings: &'f mut Findings,
    /// The cluster that each moved filter asked, if it has one.
    services: &'f mut Vec<Option<String>>,
    node_cluster: Option<&'f str>,
}

impl Rewriter<'_> {
    fn listener(&mut self, listener: &mut Value, at: &Trail) {
        for (number, chain) in items_mut(listener, "filter_chains") {
            self.chain(chain, &at.field("filter_chains").item(number));
        }
        if let Some(chain) = get_mut(listener, "default_filter_chain") {
            self.chain(chain, &at.field("default_filter_chain"));
        }
        let api = get_mut(listener, "api_listener").and_then(|it| get_mut(it, "api_listener"));
        if let Some(manager) = api
            && type_of(manager) == MANAGER
        {
            self.manager(manager, &at.field("api_listener").field("api_listener"));
        }
    }

    fn chain(&mut self, chain: &mut Value, at: &Trail) {
        for (number, filter) in items_mut(chain, "filters") {
            let Some(config) = get_mut(filter, "typed_config") else { continue };
            if type_of(config) == MANAGER {
                self.manager(config, &at.field("filters").item(number).field("typed_config"));
            }
        }
    }

    /// An HTTP connection manager: its filters, and its routes.
    fn manager(&mut self, manager: &mut Value, at: &Trail) {
        let mut filters = Vec::new();
        for (number, filter) in items_mut(manager, "http_filters") {
            let at = at.field("http_filters").item(number);
            let Some(moved) = self.filter(filter, &at) else { continue };
            // Filters of one name share the configuration of routes.
            match filters.iter_mut().find(|it: &&mut Filter| it.name == moved.name) {
                Some(same) => same.has_limits |= moved.has_limits,
                None => filters.push(moved),
            }
        }
        if filters.is_empty() {
            return;
        }
        self.services.extend(ends::leave_logs(manager, at, self.findings));
        let is_local = |filter: &Value| {
            get(filter, "typed_config").is_some_and(|config| type_of(config) == LOCAL_FILTER)
        };
        let keeps_lists = items(manager, "http_filters").iter().any(is_local);
        if let Some(config) = get_mut(manager, "route_config") {
            let at = at.field("route_config");
            let node_cluster = self.node_cluster;
            let moved = Routes { filters: &filters, keeps_lists, node_cluster };
            moved.rewrite(config, &at, self.findings);
        }
        for dynamic in ["rds", "scoped_routes"] {
            if get(manager, dynamic).is_some() {
                let text = "these routes come from a server: it has to send their rate_limits in \
                            typed_per_filter_config, see docs/module.md";
                self.findings.left(at.field(dynamic), text);
            }
        }
        ends::leave_id(manager);
    }

    /// Makes a rate limit filter one of the module.
    fn filter(&mut self, filter: &mut Value, at: &Trail) -> Option<Filter> {
        let name = text(filter, "name").to_owned();
        let config = get_mut(filter, "typed_config").filter(|it| type_of(it) == FILTER)?;
        let service = take(config, "rate_limit_service");
        let service = service.as_ref().and_then(|service| {
            path(service, &["grpc_service", "envoy_grpc", "cluster_name"])?.as_str()
        });
        self.services.push(service.map(str::to_owned));
        let has_limits = !items(config, "rate_limits").is_empty();
        let within = at.field("typed_config").field("rate_limits");
        for (number, limit) in items_mut(config, "rate_limits") {
            review(limit, &within.item(number), self.node_cluster, self.findings);
        }
        *config = module_filter(config.take());
        Some(Filter { name, has_limits })
    }
}

fn module_filter(config: Value) -> Value {
    json!({
        "@type": format!("{URL}envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter"),
        "dynamic_module_config": library(),
        "filter_name": "ratelease",
        "filter_config": config,
    })
}

/// Adds the extension that makes the engine before the listeners, and gives its leases back when
/// Envoy ends.
fn add_extension(bootstrap: &mut Value) {
    let extension = json!({
        "name": "envoy.bootstrap.dynamic_modules",
        "typed_config": {
            "@type": format!(
                "{URL}envoy.extensions.bootstrap.dynamic_modules.v3.DynamicModuleBootstrapExtension"
            ),
            "dynamic_module_config": library(),
            "extension_name": "ratelease",
        },
    });
    let mut extensions = items(bootstrap, "bootstrap_extensions").to_vec();
    extensions.push(extension);
    set(bootstrap, "bootstrap_extensions", extensions.into());
}

/// Fields whose values name no cluster.
const NO_CLUSTERS: [&str; 7] = [
    "domain",
    "domains",
    "dynamic_module_config",
    "extension_name",
    "filter_name",
    "stat_prefix",
    "statPrefix",
];

/// Removes a cluster that nothing names any more.
fn remove_cluster(bootstrap: &mut Value, name: &str) {
    let Some(static_resources) = get_mut(bootstrap, "static_resources") else { return };
    let Some(mut clusters) = take(static_resources, "clusters") else { return };
    let mut removed = Vec::new();
    if let Some(clusters) = clusters.as_array_mut() {
        let (named, others) = clusters.drain(..).partition(|it| text(it, "name") == name);
        (removed, *clusters) = (named, others);
    }
    set(static_resources, "clusters", clusters);
    if names(bootstrap, name)
        && let Some(static_resources) = get_mut(bootstrap, "static_resources")
        && let Some(clusters) = get_mut(static_resources, "clusters").and_then(Value::as_array_mut)
    {
        clusters.append(&mut removed);
    }
}

/// Whether a value names a cluster. Fields that cannot do so are left out: a domain often has the
/// name of its service, and a cluster the name of the module.
fn names(value: &Value, name: &str) -> bool {
    match value {
        Value::String(text) => text == name,
        Value::Array(items) => items.iter().any(|item| names(item, name)),
        Value::Object(fields) => {
            let is_filter =
                fields.contains_key("typed_config") || fields.contains_key("typedConfig");
            fields.iter().any(|(field, value)| {
                !(NO_CLUSTERS.contains(&field.as_str()) || is_filter && field == "name")
                    && names(value, name)
            })
        }
        _ => false,
    }
}
