//! What Envoy Gateway makes of policies: the descriptors of each route, and the rules for them.

/// Entries of descriptors.
#[path = "entry.rs"]
mod entry;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use entry::{Entry, addresses, matches};

use crate::objects::{all, documents, items, text};
use crate::recipe::directory;

/// The objects of the recipe.
struct Objects(Vec<Value>);

/// A rule of a policy.
struct Rule<'o> {
    /// `NAMESPACE/NAME` of its policy.
    policy: String,
    /// Its place in the policy.
    index: usize,
    /// Its place among the route's rules that are shared, or among those that are not.
    number: usize,
    rule: &'o Value,
}

/// Rules by domain.
type Domains = BTreeMap<String, Value>;

/// The filter's name in a route's configuration, followed by `/` and the domain of shared rules.
const FILTER: &str = "envoy.filters.http.ratelimit";

#[test]
fn policies_become_these_descriptors_and_rules() {
    let dir = directory("envoy-gateway");
    let objects = Objects(documents(&dir.join("policies.yaml")));
    let bootstrap = &documents(&dir.join("envoy.yaml"))[0];
    let mut domains = Domains::new();
    let mut routes = 0;
    for of_listener in all(bootstrap, "virtual_hosts") {
        for host in items(of_listener) {
            let (listener, _) = text(&host["name"]).rsplit_once('/').expect("LISTENER/HOST");
            for route in items(&host["routes"]) {
                let expected = objects.configuration(listener, route, &mut domains);
                let configured = route["typed_per_filter_config"].as_object().into_iter().flatten();
                let limits = configured.filter(|(name, _)| name.starts_with(FILTER));
                let limits: Value = limits.map(|(name, of)| (name.clone(), of.clone())).collect();
                assert_eq!(limits, expected, "{}", route["name"]);
                routes += 1;
            }
        }
    }
    assert_eq!(routes, objects.routes(), "routes of Envoy and of policies.yaml");
    let files = std::fs::read_dir(dir.join("rules")).expect("rules");
    let files = files.map(|file| documents(&file.expect("a file").path()).remove(0));
    let written: Domains = files.map(|file| (text(&file["domain"]).to_owned(), file)).collect();
    assert_eq!(written, domains);
}

// === impl Objects ===

impl Objects {
    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    /// Number of routes of Envoy: one for each HTTPRoute on each of its listeners.
    fn routes(&self) -> usize {
        let listeners = |name: &Value| {
            let gateway =
                self.of_kind("Gateway").find(|gateway| gateway["metadata"]["name"] == *name);
            items(&gateway.expect("a Gateway")["spec"]["listeners"]).len()
        };
        let parents =
            self.of_kind("HTTPRoute").flat_map(|route| items(&route["spec"]["parentRefs"]));
        parents.map(|parent| listeners(&parent["name"])).sum()
    }

    /// A route's configuration of the rate limit filters. Adds the rules for it to `domains`.
    fn configuration(&self, listener: &str, route: &Value, domains: &mut Domains) -> Value {
        let name = text(&route["name"]);
        let mut configured = json!({});
        for rule in &self.rules_of(name) {
            let (filter, domain, top) = if rule.is_shared() {
                let top = format!("{}/rule/{}", rule.policy, rule.index);
                (format!("{FILTER}/{}", rule.policy), rule.policy.clone(), top)
            } else {
                (FILTER.to_owned(), listener.to_owned(), name.to_owned())
            };
            add_rule(domains, &domain, &top, rule);
            let limits = &mut configured[filter];
            if limits.is_null() {
                let kind = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.\
                            RateLimitPerRoute";
                *limits = json!({"@type": kind, "domain": domain, "rate_limits": []});
            }
            let limits = limits["rate_limits"].as_array_mut().expect("a list");
            limits.extend(rule.rate_limits(&top));
        }
        configured
    }

    /// The rules for a route: of its policy, and of its Gateway's if it has none or merges them.
    fn rules_of(&self, route: &str) -> Vec<Rule<'_>> {
        let route = route.split('/').nth(2).expect("httproute/NAMESPACE/NAME/…");
        let object = self.of_kind("HTTPRoute").find(|it| it["metadata"]["name"] == route);
        let gateway = &object.expect("an HTTPRoute")["spec"]["parentRefs"][0]["name"];
        let own = self.policies("HTTPRoute", &route.into());
        let is_merged = own.iter().all(|policy| policy["spec"]["mergeType"] == "StrategicMerge");
        let more = if is_merged { self.policies("Gateway", gateway) } else { Vec::new() };
        let mut rules: Vec<Rule<'_>> = Vec::new();
        for policy in own.into_iter().chain(more) {
            let of = |key: &str| text(&policy["metadata"][key]);
            let all = items(&policy["spec"]["rateLimit"]["global"]["rules"]).iter();
            for (index, rule) in all.enumerate() {
                let policy = format!("{}/{}", of("namespace"), of("name"));
                let mut rule = Rule { policy, index, number: 0, rule };
                let before = rules.iter().filter(|other| other.is_shared() == rule.is_shared());
                rule.number = before.count();
                rules.push(rule);
            }
        }
        rules
    }

    fn policies(&self, kind: &str, name: &Value) -> Vec<&Value> {
        let targets = |policy: &&Value| {
            let targets = items(&policy["spec"]["targetRefs"]);
            targets.iter().any(|target| target["kind"] == kind && target["name"] == *name)
        };
        self.of_kind("BackendTrafficPolicy").filter(targets).collect()
    }
}

// === impl Rule ===

impl Rule<'_> {
    fn is_shared(&self) -> bool {
        self.rule["shared"] == "true"
    }

    /// The descriptors below the top one: one for each method, or one.
    fn descriptors(&self) -> Vec<Vec<Entry>> {
        let selector = &self.rule["clientSelectors"][0];
        let methods = items(&selector["methods"]);
        let any = [Value::Null];
        let methods = if methods.is_empty() { &any[..] } else { methods };
        methods.iter().map(|method| self.descriptor(selector, method)).collect()
    }

    /// Envoy Gateway's order: headers, method, path, address, query.
    fn descriptor(&self, selector: &Value, method: &Value) -> Vec<Entry> {
        let mut entries = Vec::new();
        let key = |of: String| format!("rule-{}-{of}", self.number);
        let headers = items(&selector["headers"]);
        for (header, place) in headers.iter().zip(0..) {
            let key = key(format!("match-{place}"));
            entries.push(match header["type"] == "Distinct" {
                true => Entry::header(&header["name"], key),
                false => {
                    let matcher = matches(&header["name"], json!({"exact": header["value"]}));
                    Entry::value_match("header", key, matcher, header["invert"] != "true")
                }
            });
        }
        if !method.is_null() {
            let matcher = matches(&":method".into(), json!({"exact": method["value"]}));
            entries.push(Entry::value_match("header", key("method".into()), matcher, true));
        }
        if let Some(path) = selector["path"]["value"].as_str() {
            let regex = format!(r"^{path}(/.*|\?.*|#.*|;.*|$)");
            let matcher = matches(&":path".into(), json!({"safe_regex": {"regex": regex}}));
            entries.push(Entry::value_match("header", key("path".into()), matcher, true));
        }
        entries.extend(addresses(&selector["sourceCIDR"]));
        for (parameter, place) in items(&selector["queryParams"]).iter().zip(headers.len()..) {
            let matcher = matches(&parameter["name"], json!({"exact": parameter["value"]}));
            let key = key(format!("match-{place}"));
            entries.push(Entry::value_match("query_parameter", key, matcher, true));
        }
        if entries.is_empty() {
            entries.push(Entry::generic(&key("match--1".into())));
        }
        entries
    }

    /// What Envoy is to send, at the request and, with a cost of the response, at its end.
    fn rate_limits(&self, top: &str) -> Vec<Value> {
        let mut limits = Vec::new();
        let cost = &self.rule["cost"];
        for descriptor in self.descriptors() {
            let actions = std::iter::once(Entry::generic(top)).chain(descriptor);
            let actions: Value = actions.map(|entry| entry.action).collect();
            let mut limit = json!({"actions": actions});
            if let Some(number) = cost["request"]["number"].as_str() {
                limit["hits_addend"] = json!({"number": number});
            }
            limits.push(limit);
            if let Some(metadata) = cost["response"]["metadata"].as_object() {
                let (of, key) = (text(&metadata["namespace"]), text(&metadata["key"]));
                let format = format!("%DYNAMIC_METADATA({of}:{key})%");
                let hits = json!({"format": format});
                limits.push(json!({
                    "actions": actions, "apply_on_stream_done": "true", "hits_addend": hits,
                }));
            }
        }
        limits
    }

    /// The rule below the top node.
    fn node(&self) -> Value {
        let limit = &self.rule["limit"];
        assert_eq!(limit["unit"], "Hour");
        let limit = json!({"unit": "hour", "requests_per_unit": limit["requests"]});
        // Methods have the same keys.
        let mut entries = self.descriptors().remove(0).into_iter().rev();
        let mut node = entries.next().expect("an entry").node();
        node["rate_limit"] = limit;
        if self.rule["shadowMode"] == "true" {
            node["shadow_mode"] = "true".into();
        }
        for entry in entries {
            let mut outer = entry.node();
            outer["descriptors"] = json!([node]);
            node = outer;
        }
        node
    }
}

/// Adds a rule below its top node, once.
fn add_rule(domains: &mut Domains, domain: &str, top: &str, rule: &Rule<'_>) {
    let new = || json!({"domain": domain, "descriptors": []});
    let file = domains.entry(domain.to_owned()).or_insert_with(new);
    let tops = file["descriptors"].as_array_mut().expect("a list");
    let at = tops.iter().position(|node| node["key"] == top).unwrap_or_else(|| {
        tops.push(json!({"key": top, "value": top, "descriptors": []}));
        tops.len() - 1
    });
    let nodes = tops[at]["descriptors"].as_array_mut().expect("a list");
    let node = rule.node();
    if !nodes.contains(&node) {
        nodes.push(node);
    }
}
