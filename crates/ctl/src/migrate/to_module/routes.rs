//! The routes: the `rate_limits` of routes and of their virtual hosts become the configuration of
//! the module's filter.
//!
//! Envoy takes the rate limits of the first of these that has some: the most specific configuration
//! of its filter, the filter, the route. `vh_rate_limits` decides whether the list of the virtual
//! host is added. A module is given the most specific configuration alone, so that configuration
//! has to hold the whole list.

use serde_json::{Value, json};

use super::{
    Findings, Trail, URL, get, get_mut, items, items_mut, library, review, set, take, text, type_of,
};

/// The message of a route's configuration of the filter.
const PER_ROUTE: &str = "envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";

/// The message that wraps a configuration of a filter that may be disabled.
const FILTER_CONFIG: &str = "envoy.config.route.v3.FilterConfig";

/// The local rate limit filter has lists of its own, which stay.
const LOCAL_URL: &str =
    "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";

/// A filter that was moved.
#[derive(Debug)]
pub(super) struct Filter {
    /// The key of its configuration of routes.
    pub(super) name: String,
    /// Whether the filter has `rate_limits`, so that the lists of routes and virtual hosts count
    /// for nothing.
    pub(super) has_limits: bool,
}

/// How the routes of a connection manager are rewritten.
#[derive(Debug)]
pub(super) struct Routes<'f> {
    /// The rate limit filters of the connection manager.
    pub(super) filters: &'f [Filter],
    /// Whether the lists stay where they are too: Envoy's local rate limit filter reads them.
    pub(super) keeps_lists: bool,
    /// The name of Envoy's own cluster, if the bootstrap says it.
    pub(super) node_cluster: Option<&'f str>,
}

/// The effect that a filter is to have for a route: a list, perhaps in another domain.
#[derive(Debug, Clone, PartialEq, Default)]
struct Wanted {
    domain: String,
    limits: Vec<Value>,
}

/// The lists of a route and its virtual host.
#[derive(Debug, Clone, Copy)]
struct Lists<'v> {
    route: &'v [Value],
    host: &'v [Value],
    /// `include_vh_rate_limits`, the older name of INCLUDE.
    includes_host: bool,
}

impl Routes<'_> {
    /// Rewrites a `RouteConfiguration`.
    pub(super) fn rewrite(&self, config: &mut Value, at: &Trail, findings: &mut Findings) {
        self.review(config, at, findings);
        let of_config = config.clone();
        for filter in self.filters {
            self.convert(config, filter, true);
        }
        for (number, host) in items_mut(config, "virtual_hosts") {
            let at = at.field("virtual_hosts").item(number);
            self.host(host, &of_config, &at, findings);
        }
        if get(config, "vhds").is_some() {
            let text = "these virtual hosts come from a server: it has to send their rate_limits \
                        in typed_per_filter_config, see docs/module.md";
            findings.left(at.field("vhds"), text);
        }
    }

    fn host(&self, host: &mut Value, of_config: &Value, at: &Trail, findings: &mut Findings) {
        if get(host, "matcher").is_some() {
            let text = "rate limits of routes in a matcher are not moved; write them as routes, \
                        or in typed_per_filter_config";
            findings.left(at.field("matcher"), text);
        }
        let original = host.clone();
        for filter in self.filters {
            let inherited = self.for_host(host, &original, of_config, filter);
            for (_, route) in items_mut(host, "routes") {
                self.for_route(route, &[&original, of_config], filter, inherited.as_ref());
            }
        }
        if !self.keeps_lists {
            take(host, "rate_limits");
            for (_, route) in items_mut(host, "routes") {
                if let Some(action) = get_mut(route, "route") {
                    take(action, "rate_limits");
                    take(action, "include_vh_rate_limits");
                }
            }
        }
    }

    /// Writes the configuration that all routes of a virtual host share, and returns it; `None` if
    /// the lists of routes and virtual hosts count for nothing.
    fn for_host(
        &self,
        host: &mut Value,
        original: &Value,
        of_config: &Value,
        filter: &Filter,
    ) -> Option<Wanted> {
        let own = per_route([original, of_config], filter);
        if filter.has_limits || own.is_some_and(has_limits) {
            self.convert(host, filter, false);
            return None;
        }
        let lists =
            Lists { route: &[], host: items(original, "rate_limits"), includes_host: false };
        let wanted = wanted(own, lists);
        remove(host, filter);
        // An empty list hides that of all virtual hosts.
        let hides = per_route([of_config], filter).is_some_and(has_limits);
        if !wanted.limits.is_empty() || hides || entry_mut(host, filter).is_some() {
            write(host, filter, &wanted);
        }
        Some(wanted)
    }

    fn for_route(
        &self,
        route: &mut Value,
        above: &[&Value],
        filter: &Filter,
        inherited: Option<&Wanted>,
    ) {
        let original = route.clone();
        let own = per_route([&original].into_iter().chain(above.iter().copied()), filter);
        let clusters = route_clusters(route);
        for cluster in clusters.into_iter().flatten() {
            self.for_cluster(cluster, &original, above, filter);
        }
        let action = get(&original, "route").filter(|_| !is_disabled(&original, filter));
        let Some(action) = action else {
            // Nothing is limited on a redirect or a direct response.
            self.convert(route, filter, false);
            return;
        };
        let is_moved = filter.has_limits || own.is_some_and(has_limits);
        let Some(inherited) = inherited.filter(|_| !is_moved) else {
            self.convert(route, filter, false);
            if !is_moved {
                // The route's own configuration hides the virtual host's, and has no list.
                write(route, filter, &wanted(own, lists_of(action, above)));
            }
            return;
        };
        let wanted = wanted(own, lists_of(action, above));
        remove(route, filter);
        if wanted != *inherited || entry_mut(route, filter).is_some() {
            write(route, filter, &wanted);
        }
    }

    /// Writes the configuration of a weighted cluster that has a configuration of its own.
    fn for_cluster(&self, cluster: &mut Value, route: &Value, above: &[&Value], filter: &Filter) {
        let original = cluster.clone();
        let Some(own) = per_route([&original], filter) else { return };
        if filter.has_limits || has_limits(own) {
            self.convert(cluster, filter, false);
        } else if let Some(action) = get(route, "route") {
            write(cluster, filter, &wanted(Some(own), lists_of(action, above)));
        }
    }

    /// Wraps the configuration of a filter that is here, if it has a list. A configuration without
    /// a list is removed from a route configuration; its virtual hosts are given the settings that
    /// it had.
    fn convert(&self, holder: &mut Value, filter: &Filter, is_top: bool) {
        let Some(entry) = entry_mut(holder, filter) else { return };
        let config =
            if type_of(entry) == FILTER_CONFIG { get_mut(entry, "config") } else { Some(entry) };
        let Some(config) = config.filter(|config| type_of(config) == PER_ROUTE) else { return };
        if is_top && !filter.has_limits && !has_limits(config) {
            remove(holder, filter);
            return;
        }
        // Envoy ignores it beside a list, or it has been followed.
        take(config, "vh_rate_limits");
        *config = module_route(config.take());
    }

    /// Reviews every list once, wherever it lies, and notes the parts that the module refuses.
    fn review(&self, value: &mut Value, at: &Trail, findings: &mut Findings) {
        match value {
            Value::Array(items) => {
                for (number, item) in items.iter_mut().enumerate() {
                    self.review(item, &at.item(number), findings);
                }
            }
            Value::Object(fields) => {
                if fields.get("@type").is_some_and(|it| it == LOCAL_URL) {
                    return;
                }
                // `hits_addend` counts only in a configuration of the filter.
                let is_typed = fields.contains_key("@type");
                for (name, value) in fields {
                    let at = at.field(name);
                    if !matches!(name.as_str(), "rate_limits" | "rateLimits") {
                        self.review(value, &at, findings);
                        continue;
                    }
                    for (number, limit) in value.as_array_mut().into_iter().flatten().enumerate() {
                        let at = at.item(number);
                        if !is_typed && take(limit, "hits_addend").is_some() {
                            let text = "Envoy ignores hits_addend here; left out, so that the \
                                        hits stay the same";
                            findings.remark(at.field("hits_addend"), text);
                        }
                        review(limit, &at, self.node_cluster, findings);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The lists that a route's own configuration is merged with.
fn lists_of<'v>(action: &'v Value, above: &[&'v Value]) -> Lists<'v> {
    let host = above.first().copied();
    Lists {
        route: items(action, "rate_limits"),
        host: host.map_or(&[], |host| items(host, "rate_limits")),
        includes_host: get(action, "include_vh_rate_limits").is_some_and(|it| it == true),
    }
}

/// Returns Envoy's result for the lists: `own` is the most specific configuration of the filter.
fn wanted(own: Option<&Value>, lists: Lists<'_>) -> Wanted {
    let Lists { route, host, includes_host } = lists;
    let option = own.map_or("", |own| text(own, "vh_rate_limits"));
    let host = match option {
        _ if includes_host => host,
        "INCLUDE" => host,
        "IGNORE" => &[],
        _ if route.is_empty() => host,
        _ => &[],
    };
    let domain = own.map_or("", |own| text(own, "domain")).to_owned();
    Wanted { domain, limits: route.iter().chain(host).cloned().collect() }
}

/// Turns a route's configuration of the rate limit filter into its configuration of the module.
fn module_route(config: Value) -> Value {
    json!({
        "@type":
            format!("{URL}envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute"),
        "dynamic_module_config": library(),
        "filter_name": "ratelease",
        "filter_config": config,
    })
}

fn has_limits(config: &Value) -> bool {
    !items(config, "rate_limits").is_empty()
}

/// The most specific configuration of a filter: of the first of `holders` that has one.
fn per_route<'v>(
    holders: impl IntoIterator<Item = &'v Value>,
    filter: &Filter,
) -> Option<&'v Value> {
    let mut entries = holders
        .into_iter()
        .filter_map(|holder| get(holder, "typed_per_filter_config")?.get(&filter.name));
    let entry = entries.next()?;
    let config = if type_of(entry) == FILTER_CONFIG { get(entry, "config")? } else { entry };
    (type_of(config) == PER_ROUTE).then_some(config)
}

fn entry_mut<'v>(holder: &'v mut Value, filter: &Filter) -> Option<&'v mut Value> {
    get_mut(holder, "typed_per_filter_config")?.get_mut(&filter.name)
}

/// Whether the filter is switched off here.
fn is_disabled(holder: &Value, filter: &Filter) -> bool {
    let all = get(holder, "typed_per_filter_config");
    let entry = all.and_then(|all| all.get(&filter.name));
    entry.is_some_and(|entry| get(entry, "disabled").is_some_and(|it| it == true))
}

/// Removes the configuration of a filter, unless that switches it on or off.
fn remove(holder: &mut Value, filter: &Filter) {
    let Some(all) = get_mut(holder, "typed_per_filter_config").and_then(Value::as_object_mut)
    else {
        return;
    };
    if all.get(&filter.name).is_some_and(|entry| type_of(entry) == PER_ROUTE) {
        all.remove(&filter.name);
    }
    if all.is_empty() {
        take(holder, "typed_per_filter_config");
    }
}

/// Sets the configuration of a filter.
fn write(holder: &mut Value, filter: &Filter, wanted: &Wanted) {
    let Wanted { domain, limits } = wanted;
    let mut config = json!({"@type": format!("{URL}{PER_ROUTE}"), "rate_limits": limits});
    if !domain.is_empty() {
        set(&mut config, "domain", domain.as_str().into());
    }
    let mut all = take(holder, "typed_per_filter_config").unwrap_or_else(|| json!({}));
    if let Some(all) = all.as_object_mut() {
        let entry = all.entry(filter.name.clone()).or_insert(Value::Null);
        // A filter that is switched off here stays so.
        match type_of(entry) {
            FILTER_CONFIG => set(entry, "config", module_route(config)),
            _ => *entry = module_route(config),
        }
    }
    set(holder, "typed_per_filter_config", all);
}

/// The weighted clusters of a route.
fn route_clusters(route: &mut Value) -> Option<impl Iterator<Item = &mut Value>> {
    let weighted = get_mut(get_mut(route, "route")?, "weighted_clusters")?;
    Some(items_mut(weighted, "clusters").map(|(_, cluster)| cluster))
}
