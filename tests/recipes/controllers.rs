//! Contour, Emissary and kgateway, with what each makes of its objects.

use serde_json::{Value, json};

use crate::objects::{all, documents, items, text};
use crate::recipe::{Recipe, assert_quota, is_denied, spellings};

#[tokio::test]
async fn contour() {
    limits_as_contour(Recipe::start("contour", "ingress_http").await).await;
}

pub async fn limits_as_contour(recipe: Recipe) {
    let proxy = &documents(&recipe.file("httpproxy.yaml"))[0]["spec"];
    let bootstrap = recipe.bootstrap();
    let host = only(&bootstrap, "virtual_hosts");
    let made =
        |of: &Value| rate_limits(&of["rateLimitPolicy"]["global"]["descriptors"], &contour_action);
    assert_eq!(host["rate_limits"], made(&proxy["virtualhost"]));
    assert_eq!(host["routes"][0]["route"]["rate_limits"], made(&proxy["routes"][0]));
    let settings = documents(&recipe.file("extensionservice.yaml"));
    let (service, settings) = (&settings[0]["spec"], &settings[1]["spec"]["rateLimitService"]);
    let filter = only_filter(&bootstrap, "envoy.filters.http.ratelimit");
    assert_eq!(filter["domain"], settings["domain"]);
    assert_eq!(settings["failOpen"], "true");
    assert_eq!(filter["failure_mode_deny"], Value::Null);
    let timeout = seconds(&service["timeoutPolicy"]["response"]);
    assert_eq!(seconds(&filter["timeout"]), timeout);

    let shop = ("host", "shop.example.com");
    let (alice, bob) = (("x-user-id", "alice"), ("x-user-id", "bob"));
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        assert_quota(&recipe.get("/", &[shop]).await, status, "2, 2;w=3600", left);
    }
    for (status, left) in [(200, 2), (200, 1), (200, 0), (429, 0)] {
        let answer = recipe.get("/api", &[shop, alice]).await;
        assert_quota(&answer, status, "3, 3;w=3600", left);
    }
    for spelling in spellings("/api") {
        assert_eq!(is_denied(&recipe.get(&spelling, &[shop, alice]).await, &spelling), 1);
    }
    assert_quota(&recipe.get("/api/x", &[shop, bob]).await, 200, "3, 3;w=3600", 2);
    for (status, left) in [(200, 0), (429, 0)] {
        assert_quota(&recipe.get("/api", &[shop]).await, status, "1, 1;w=3600", left);
    }
    recipe.end(7, 3 + spellings("/api").len() as u64).await;
}

#[tokio::test]
async fn emissary() {
    limits_as_emissary(Recipe::start("emissary", "emissary").await).await;
}

pub async fn limits_as_emissary(recipe: Recipe) {
    let objects = documents(&recipe.file("ratelimitservice.yaml"));
    let (service, mapping) = (&objects[0]["spec"], &objects[1]["spec"]);
    let bootstrap = recipe.bootstrap();
    let filter = only_filter(&bootstrap, "envoy.filters.http.ratelimit");
    assert_eq!(filter["domain"], service["domain"]);
    let timeout: f64 = text(&service["timeout_ms"]).parse().unwrap();
    assert_eq!(seconds(&filter["timeout"]), timeout / 1000.0);
    let groups = items(&mapping["labels"][text(&service["domain"])]);
    let groups = groups.iter().flat_map(|group| group.as_object().unwrap().values());
    let expected = groups.map(|actions| {
        let actions: Value = items(actions).iter().map(emissary_action).collect();
        json!({"stage": "0", "actions": actions})
    });
    let route = only(&bootstrap, "routes");
    assert_eq!(route["route"]["rate_limits"], expected.collect::<Value>());

    let alice = [("x-user-id", "alice")];
    assert_eq!(recipe.statuses("/shop/", &alice, 3).await, [200, 200, 429]);
    // Without a user only the client address counts, of which three are left.
    assert_eq!(recipe.statuses("/shop/", &[], 4).await, [200, 200, 200, 429]);
    recipe.end(5, 2).await;
}

#[tokio::test]
async fn kgateway() {
    limits_as_kgateway(Recipe::start("kgateway", "listener~80").await).await;
}

pub async fn limits_as_kgateway(recipe: Recipe) {
    let objects = documents(&recipe.file("trafficpolicy.yaml"));
    let [extension, backend, route, policies @ ..] = &objects[..] else { panic!("{objects:?}") };
    let bootstrap = recipe.bootstrap();
    let at = |key: &str| text(&extension["metadata"][key]);
    let name = format!("ratelimit/{}/{}", at("namespace"), at("name"));
    let filter = only_filter(&bootstrap, &name);
    let settings = &extension["spec"]["rateLimit"];
    assert_eq!(filter["domain"], settings["domain"]);
    assert_eq!(seconds(&filter["timeout"]), seconds(&settings["timeout"]));
    let breakers = &all(&bootstrap, "thresholds")[0][0];
    assert_eq!(breakers["max_requests"], backend["spec"]["circuitBreakers"]["maxRequests"]);
    let streams = &backend["spec"]["http2ProtocolOptions"]["maxConcurrentStreams"];
    assert_eq!(all(&bootstrap, "max_concurrent_streams"), [streams]);
    let routes = items(all(&bootstrap, "routes")[0]);
    let rules = items(&route["spec"]["rules"]);
    assert_eq!(routes.len(), rules.len());
    for (made, rule) in routes.iter().zip(rules) {
        assert_eq!(made["match"]["path_separated_prefix"], rule["matches"][0]["path"]["value"]);
        let names_rule = |it: &&Value| it["spec"]["targetRefs"][0]["sectionName"] == rule["name"];
        let of_route = |it: &&Value| it["spec"]["targetRefs"][0]["sectionName"].is_null();
        let policy = policies.iter().find(names_rule).or(policies.iter().find(of_route));
        let policy = &policy.expect("a policy")["spec"]["rateLimit"]["global"];
        assert_eq!(policy["extensionRef"]["name"], extension["metadata"]["name"]);
        let limits = &made["typed_per_filter_config"][&name]["rate_limits"];
        assert_eq!(*limits, rate_limits(&policy["descriptors"], &kgateway_action));
    }

    let (shop, of_user) = (("host", "shop.example.com"), "3, 3;w=3600");
    let (alice, bob) = (("x-user-id", "alice"), ("x-user-id", "bob"));
    for (status, left) in [(200, 2), (200, 1), (200, 0), (429, 0)] {
        let answer = recipe.get("/shop", &[shop, alice]).await;
        assert_quota(&answer, status, of_user, left);
    }
    let of_both = "2, 3;w=3600, 2;w=3600";
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        let answer = recipe.get("/shop/login", &[shop, bob]).await;
        assert_quota(&answer, status, of_both, left);
    }
    assert_eq!(recipe.get("/shop/login", &[shop]).await.status, 429);
    let login = "/shop/login";
    let (ok, denied) = recipe.limits_spellings(login, 2, &[shop], &spellings(login)).await;
    recipe.end(5 + ok, 3 + denied).await;
}

// === What the controllers make of their objects ===

/// The `rate_limits` for a list of descriptors with `entries`.
fn rate_limits(descriptors: &Value, action: &dyn Fn(&Value) -> Value) -> Value {
    let actions = |descriptor: &Value| items(&descriptor["entries"]).iter().map(action).collect();
    let limits = items(descriptors).iter();
    limits.map(|descriptor| json!({"actions": Value::Array(actions(descriptor))})).collect()
}

fn contour_action(entry: &Value) -> Value {
    let (kind, of) = only_pair(entry);
    match kind {
        "genericKey" => {
            let (key, value) = (&of["key"], &of["value"]);
            json!({"generic_key": {"descriptor_key": key, "descriptor_value": value}})
        }
        "requestHeader" => header(&of["headerName"], &of["descriptorKey"]),
        "requestHeaderValueMatch" => {
            let headers = items(&of["headers"]).iter().map(|header| {
                assert_eq!(header["notpresent"], "true", "another condition: {header}");
                json!({"name": header["name"], "present_match": "true", "invert_match": "true"})
            });
            json!({"header_value_match": {
                "descriptor_value": of["value"],
                "expect_match": of["expectMatch"],
                "headers": headers.collect::<Value>(),
            }})
        }
        "remoteAddress" => json!({"remote_address": {}}),
        other => panic!("another entry: {other}"),
    }
}

fn emissary_action(label: &Value) -> Value {
    let (kind, of) = only_pair(label);
    match kind {
        "generic_key" => {
            let (key, value) = (&of["key"], &of["value"]);
            json!({"generic_key": {"descriptor_key": key, "descriptor_value": value}})
        }
        "request_headers" => header(&of["header_name"], &of["key"]),
        // Its key is Envoy's.
        "remote_address" => json!({"remote_address": {}}),
        other => panic!("another label: {other}"),
    }
}

fn kgateway_action(entry: &Value) -> Value {
    match text(&entry["type"]) {
        "Generic" => {
            let (key, value) = (&entry["generic"]["key"], &entry["generic"]["value"]);
            json!({"generic_key": {"descriptor_key": key, "descriptor_value": value}})
        }
        "Header" => header(&entry["header"], &entry["header"]),
        "RemoteAddress" => json!({"remote_address": {}}),
        other => panic!("another entry: {other}"),
    }
}

fn header(name: &Value, key: &Value) -> Value {
    json!({"request_headers": {"header_name": name, "descriptor_key": key}})
}

// === Parts of a bootstrap ===

/// The only item of the only list of this key.
fn only<'v>(of: &'v Value, key: &str) -> &'v Value {
    let lists = all(of, key);
    assert_eq!(lists.len(), 1, "lists of {key}");
    &items(lists[0])[0]
}

/// The configuration of the only rate limit filter, which has this name.
fn only_filter<'v>(bootstrap: &'v Value, name: &str) -> &'v Value {
    let filters = all(bootstrap, "http_filters").into_iter().flat_map(items);
    let of_rate_limit = |filter: &&Value| {
        let kind = filter["typed_config"]["@type"].as_str();
        kind.is_some_and(|kind| kind.ends_with("filters.http.ratelimit.v3.RateLimit"))
    };
    let filters: Vec<_> = filters.filter(of_rate_limit).collect();
    assert_eq!(filters.len(), 1, "rate limit filters");
    assert_eq!(filters[0]["name"], *name);
    &filters[0]["typed_config"]
}

fn only_pair(of: &Value) -> (&str, &Value) {
    let mut pairs = of.as_object().into_iter().flatten();
    let (key, value) = pairs.next().expect("a pair");
    assert!(pairs.next().is_none(), "not one pair: {of}");
    (key, value)
}

/// A duration of Envoy or Kubernetes: `0.1s` or `100ms`.
fn seconds(of: &Value) -> f64 {
    let text = text(of);
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1000.0),
        None => (text.strip_suffix('s').expect("seconds"), 1.0),
    };
    number.parse::<f64>().expect("a number") / unit
}
