//! Bootstraps in the shapes that people write, and the bootstraps that they become.

use serde_json::json;

use super::*;

/// A bootstrap with these filters, each a block of fields, and this route configuration.
fn bootstrap(filters: &str, routes: &str) -> Value {
    // Lines of a flow mapping have to be indented; one line need not be.
    let (filters, routes) = (filters.replace('\n', " "), routes.replace('\n', " "));
    read(&format!(
        "
node: {{id: a, cluster: edge}}
static_resources:
  listeners:
  - name: ingress
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/{MANAGER}
          stat_prefix: ingress
          http_filters: [{filters}, {{name: envoy.filters.http.router}}]
          route_config: {{name: local, {routes}}}
  clusters:
  - {{name: web, type: STATIC}}
  - {{name: limiter, type: STATIC}}
"
    ))
}

const MANAGER: &str =
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

const PER_ROUTE: &str =
    "'@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";

/// The usual filter, with more fields.
fn filter(name: &str, more: &str) -> String {
    format!(
        "{{name: {name}, typed_config: {{
            '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit,
            domain: limiter, {more}
            rate_limit_service: {{transport_api_version: V3,
              grpc_service: {{envoy_grpc: {{cluster_name: limiter}}}}}}}}}}"
    )
}

/// A list with one generic key for each of `values`.
fn list(values: &[&str]) -> String {
    let one =
        |value: &&str| format!("{{actions: [{{generic_key: {{descriptor_value: {value}}}}}]}}");
    format!("rate_limits: [{}]", values.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn read(text: &str) -> Value {
    let source = ratelease_rules::Source { name: "a.yaml".into(), text: text.into() };
    let documents = yaml_documents::read(&source).unwrap_or_else(|faults| panic!("{faults}"));
    documents[0].root.json()
}

/// The rewritten bootstrap, and each finding: `!` if it was left, its place, and its text.
fn rewritten(mut bootstrap: Value) -> (Value, Vec<String>) {
    let findings = rewrite::bootstrap(&mut bootstrap).expect("a rate limit filter");
    let shown = findings.0.iter().map(|Finding { at, text, needs_action }| {
        let mark = if *needs_action { "! " } else { "" };
        format!("{mark}{at}: {text}")
    });
    (bootstrap, shown.collect())
}

/// The place of the connection manager in a rewritten bootstrap.
const AT: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";

/// The place of the virtual hosts in a connection manager.
const HOSTS: &str = "/route_config/virtual_hosts";

fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    value.pointer(&format!("{AT}{path}"))
}

/// The generic keys of the configuration of a filter, of a host or a route; `None` if it has none.
fn keys(value: &Value, holder: &str, filter: &str) -> Option<Vec<String>> {
    let entry = at(value, holder)?.get("typed_per_filter_config")?.get(filter)?;
    let config = entry.get("filter_config").expect("the configuration of a module");
    let limits = config.get("rate_limits")?.as_array().expect("a list");
    let key = |limit: &Value| {
        limit.pointer("/actions/0/generic_key/descriptor_value")?.as_str().map(str::to_owned)
    };
    Some(limits.iter().filter_map(key).collect())
}

#[track_caller]
fn expect_keys(value: &Value, holder: &str, expected: Option<&[&str]>) {
    let found = keys(value, &format!("{HOSTS}{holder}"), "rl");
    let expected =
        expected.map(|keys| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>());
    assert_eq!(found, expected, "{holder}");
}

#[test]
fn a_filter_becomes_one_of_the_module_and_its_service_goes() {
    let (value, findings) = rewritten(bootstrap(&filter("rl", "failure_mode_deny: true,"), ""));
    assert_eq!(findings, [""; 0]);
    let expected = json!({
        "name": "rl",
        "typed_config": {
            "@type": "type.googleapis.com/\
                      envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter",
            "dynamic_module_config": {
                "name": "ratelease",
                "do_not_close": true,
                "metrics_namespace": "ratelease",
            },
            "filter_name": "ratelease",
            "filter_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
                "domain": "limiter",
                "failure_mode_deny": true,
            },
        },
    });
    assert_eq!(at(&value, "/http_filters/0"), Some(&expected));
    assert_eq!(
        value.pointer("/static_resources/clusters"),
        Some(&json!([{"name": "web", "type": "STATIC"}]))
    );
    let extensions = value.pointer("/bootstrap_extensions").and_then(Value::as_array).unwrap();
    assert_eq!(extensions.len(), 1);
    assert_eq!(extensions[0]["typed_config"]["extension_name"], "ratelease");
}

#[test]
fn a_cluster_that_has_the_modules_name_leaves_as_any_other() {
    let route = "virtual_hosts: [{name: a, domains: ['*'], routes: [
        {match: {prefix: /}, route: {cluster: web}}]}]";
    let mut value = bootstrap(&filter("ratelease", ""), route);
    let text = value.to_string().replace("\"limiter\"", "\"ratelease\"");
    value = serde_json::from_str(&text).unwrap();
    let (value, _) = rewritten(value);
    let clusters = json!([{"name": "web", "type": "STATIC"}]);
    assert_eq!(value.pointer("/static_resources/clusters"), Some(&clusters));
}

#[test]
fn a_cluster_that_another_part_names_stays() {
    let route = "virtual_hosts: [{name: a, domains: ['*'], routes: [
        {match: {prefix: /}, route: {cluster: limiter}}]}]";
    let (value, _) = rewritten(bootstrap(&filter("rl", ""), route));
    assert_eq!(value.pointer("/static_resources/clusters/1/name"), Some(&json!("limiter")));
}

#[test]
fn routes_get_the_lists_that_envoy_would_merge() {
    let route =
        |fields: &str| format!("{{match: {{prefix: /}}, route: {{cluster: web, {fields}}}}}");
    let typed = |option: &str, fields: &str| {
        format!(
            "{{match: {{prefix: /}}, typed_per_filter_config: {{rl: {{{PER_ROUTE}, {option}}}}},
              route: {{cluster: web, {fields}}}}}"
        )
    };
    let (host, own) = (list(&["h"]), list(&["r"]));
    let typed_list = format!("vh_rate_limits: INCLUDE, {}", list(&["t"]));
    let routes = [
        route(""),
        route(&own),
        route(&format!("include_vh_rate_limits: true, {own}")),
        typed("vh_rate_limits: INCLUDE", &own),
        typed("vh_rate_limits: IGNORE", ""),
        typed("vh_rate_limits: OVERRIDE", ""),
        typed(&typed_list, &own),
        typed("domain: other", ""),
        "{match: {prefix: /}, redirect: {path_redirect: /x}}".to_owned(),
    ];
    let config = format!(
        "virtual_hosts: [{{name: a, domains: ['*'], {host}, routes: [{}]}}]",
        routes.join(", ")
    );
    let (value, findings) = rewritten(bootstrap(&filter("rl", ""), &config));
    assert_eq!(findings, [""; 0]);
    expect_keys(&value, "/0", Some(&["h"]));
    let expected: [Option<&[&str]>; 9] = [
        None,
        Some(&["r"]),
        Some(&["r", "h"]),
        Some(&["r", "h"]),
        Some(&[]),
        None,
        Some(&["t"]),
        Some(&["h"]),
        None,
    ];
    for (number, expected) in expected.into_iter().enumerate() {
        expect_keys(&value, &format!("/0/routes/{number}"), expected);
    }
    let domain = "/0/routes/7/typed_per_filter_config/rl/filter_config/domain";
    assert_eq!(at(&value, &format!("{HOSTS}{domain}")), Some(&json!("other")));
    let text = value.to_string();
    assert!(!text.contains("vh_rate_limits"), "{text}");
    for place in ["/0/rate_limits", "/0/routes/1/route/rate_limits"] {
        assert_eq!(at(&value, &format!("{HOSTS}{place}")), None, "{place}");
    }
}

#[test]
fn a_list_of_the_filter_takes_the_place_of_those_of_routes() {
    let (host, own, typed) = (list(&["h"]), list(&["r"]), list(&["t"]));
    let config = format!(
        "virtual_hosts: [{{name: a, domains: ['*'], {host}, routes: [
          {{match: {{prefix: /}}, route: {{cluster: web, {own}}}}},
          {{match: {{prefix: /}}, route: {{cluster: web}},
            typed_per_filter_config: {{rl: {{{PER_ROUTE}, {typed}}}}}}}]}}]"
    );
    let filter = filter("rl", &format!("{},", list(&["f"])));
    let (value, _) = rewritten(bootstrap(&filter, &config));
    expect_keys(&value, "/0", None);
    expect_keys(&value, "/0/routes/0", None);
    expect_keys(&value, "/0/routes/1", Some(&["t"]));
}

#[test]
fn a_configuration_above_counts_where_there_is_none_below() {
    let (host, own) = (list(&["h"]), list(&["r"]));
    let config = format!(
        "typed_per_filter_config: {{rl: {{{PER_ROUTE}, {}}}}},
         virtual_hosts: [
          {{name: a, domains: [a], {host}, routes: [{{match: {{prefix: /}}, route: {{cluster: web, {own}}}}}]}},
          {{name: b, domains: [b], {host}, typed_per_filter_config: {{rl: {{{PER_ROUTE}, vh_rate_limits: INCLUDE}}}},
            routes: [{{match: {{prefix: /}}, route: {{cluster: web, {own}}}}}]}},
          {{name: c, domains: [c], typed_per_filter_config: {{rl: {{{PER_ROUTE}, vh_rate_limits: INCLUDE}}}},
            routes: [{{match: {{prefix: /}}, route: {{cluster: web}}}}]}}]",
        list(&["c"])
    );
    let (value, _) = rewritten(bootstrap(&filter("rl", ""), &config));
    assert_eq!(keys(&value, "/route_config", "rl"), Some(vec!["c".to_owned()]));
    expect_keys(&value, "/0", None);
    expect_keys(&value, "/0/routes/0", None);
    expect_keys(&value, "/1", Some(&["h"]));
    expect_keys(&value, "/1/routes/0", Some(&["r", "h"]));
    // Nothing is limited there, and the list above must not be.
    expect_keys(&value, "/2", Some(&[]));
}

#[test]
fn an_option_above_is_merged_into_the_lists_below() {
    let (host, own) = (list(&["h"]), list(&["r"]));
    let config = format!(
        "typed_per_filter_config: {{rl: {{{PER_ROUTE}, vh_rate_limits: INCLUDE}}}},
         virtual_hosts: [{{name: a, domains: [a], {host},
           routes: [{{match: {{prefix: /}}, route: {{cluster: web, {own}}}}}]}}]"
    );
    let (value, _) = rewritten(bootstrap(&filter("rl", ""), &config));
    assert_eq!(at(&value, "/route_config/typed_per_filter_config"), None);
    expect_keys(&value, "/0", Some(&["h"]));
    expect_keys(&value, "/0/routes/0", Some(&["r", "h"]));
}

#[test]
fn a_weighted_cluster_with_its_own_configuration_gets_the_whole_list() {
    let config = format!(
        "virtual_hosts: [{{name: a, domains: ['*'], {}, routes: [
          {{match: {{prefix: /}}, route: {{{}, weighted_clusters: {{clusters: [
             {{name: web, weight: 1}},
             {{name: web, weight: 1, typed_per_filter_config: {{rl: {{{PER_ROUTE}, vh_rate_limits: INCLUDE}}}}}}]}}}}}}]}}]",
        list(&["h"]),
        list(&["r"])
    );
    let (value, _) = rewritten(bootstrap(&filter("rl", ""), &config));
    expect_keys(&value, "/0/routes/0", Some(&["r"]));
    expect_keys(&value, "/0/routes/0/route/weighted_clusters/clusters/0", None);
    expect_keys(&value, "/0/routes/0/route/weighted_clusters/clusters/1", Some(&["r", "h"]));
}

#[test]
fn a_filter_that_is_off_for_a_route_stays_off() {
    let off = "'@type': type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true";
    let config = format!(
        "virtual_hosts: [{{name: a, domains: ['*'], {}, routes: [
          {{match: {{prefix: /}}, route: {{cluster: web}},
            typed_per_filter_config: {{rl: {{{off}}}}}}},
          {{match: {{prefix: /}}, route: {{cluster: web}},
            typed_per_filter_config: {{rl: {{{off}, config: {{{PER_ROUTE}, domain: d}}}}}}}}]}}]",
        list(&["h"])
    );
    let (value, _) = rewritten(bootstrap(&filter("rl", ""), &config));
    for number in [0, 1] {
        let entry = format!("{HOSTS}/0/routes/{number}/typed_per_filter_config/rl");
        assert_eq!(at(&value, &format!("{entry}/disabled")), Some(&json!(true)));
    }
    let inner = "/0/routes/1/typed_per_filter_config/rl/config/dynamic_module_config/name";
    assert_eq!(at(&value, &format!("{HOSTS}{inner}")), Some(&json!("ratelease")));
}

#[test]
fn each_of_two_filters_is_configured() {
    let filters = format!("{}, {}", filter("a", ""), filter("b", "stage: 1,"));
    let config = format!(
        "virtual_hosts: [{{name: a, domains: ['*'], {}, routes: []}}]",
        list(&["h"]).replace("{actions", "{stage: 1, actions")
    );
    let (value, _) = rewritten(bootstrap(&filters, &config));
    for name in ["a", "b"] {
        assert_eq!(keys(&value, &format!("{HOSTS}/0"), name), Some(vec!["h".to_owned()]), "{name}");
    }
    let stage = format!("{HOSTS}/0/typed_per_filter_config/b/filter_config/rate_limits/0/stage");
    assert_eq!(at(&value, &stage), Some(&json!(1)));
}

#[test]
fn lists_stay_for_a_local_rate_limit_filter() {
    let local = "{name: local, typed_config: {'@type': \
        type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit}}";
    let config =
        format!("virtual_hosts: [{{name: a, domains: ['*'], {}, routes: []}}]", list(&["h"]));
    let (value, _) = rewritten(bootstrap(&format!("{}, {local}", filter("rl", "")), &config));
    expect_keys(&value, "/0", Some(&["h"]));
    assert!(at(&value, &format!("{HOSTS}/0/rate_limits")).is_some());
}

#[test]
fn names_may_be_in_camel_case() {
    let config = "virtualHosts: [{name: a, domains: ['*'], routes: [{match: {prefix: /}, route: {
        cluster: web, rateLimits: [{actions: [{generic_key: {descriptor_value: r}}]}]}}]}]";
    let mut given = bootstrap(&filter("rl", ""), config);
    let manager = given.pointer_mut(AT).and_then(Value::as_object_mut).unwrap();
    for (snake, camel) in [("http_filters", "httpFilters"), ("route_config", "routeConfig")] {
        let value = manager.remove(snake).unwrap();
        manager.insert(camel.into(), value);
    }
    let (value, _) = rewritten(given);
    let route = "/routeConfig/virtualHosts/0/routes/0";
    assert_eq!(keys(&value, route, "rl"), Some(vec!["r".to_owned()]));
    assert!(at(&value, &format!("{route}/route/rateLimits")).is_none());
}

/// A bootstrap whose requests end by an access log, with more tags of that.
fn ended_by_log(tags: &str) -> Value {
    let id = "{name: id, typed_config: {
        '@type': type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config,
        on_request_headers: [{object_key: ratelease.id,
          format_string: {text_format_source: {inline_string: '%UNIQUE_ID%'}}}]}}";
    let routes = "virtual_hosts: [{name: a, domains: ['*'], rate_limits: [{actions: [
        {extension: {name: e, typed_config: {
          '@type': type.googleapis.com/envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor,
          descriptor_key: request_id, text: \"filter_state['ratelease.id']\"}}}]}]}]";
    let mut value = bootstrap(&format!("{id}, {}", filter("rl", "")), routes);
    let log = format!(
        "
access_log_options: {{access_log_flush_interval: 10s}}
access_log:
- name: log
  typed_config:
    '@type': type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
    common_config:
      log_name: ratelease
      grpc_service: {{envoy_grpc: {{cluster_name: ends}}}}
      custom_tags: [{{tag: ratelease.id, value: '%FILTER_STATE(ratelease.id:PLAIN)%'}}{tags}]
"
    );
    let Value::Object(log) = read(&log) else { panic!("a map") };
    value.pointer_mut(AT).and_then(Value::as_object_mut).unwrap().extend(log);
    let clusters = value.pointer_mut("/static_resources/clusters").and_then(Value::as_array_mut);
    clusters.unwrap().push(json!({"name": "ends", "type": "STATIC"}));
    value
}

#[test]
fn the_log_that_ends_requests_leaves_with_its_cluster_and_id() {
    let (value, findings) = rewritten(ended_by_log(""));
    let log =
        "static_resources.listeners[0].filter_chains[0].filters[0].typed_config.access_log[0]";
    assert_eq!(findings, [format!("{log}: left out: the module sees each request end")]);
    let text = value.to_string();
    assert!(!text.contains("access_log") && !text.contains("ratelease.id"), "{text}");
    let clusters = value.pointer("/static_resources/clusters");
    assert_eq!(clusters, Some(&json!([{"name": "web", "type": "STATIC"}])));
    let filters = at(&value, "/http_filters").and_then(Value::as_array).unwrap();
    assert_eq!(filters.len(), 2, "{filters:?}");
    let action = "/0/typed_per_filter_config/rl/filter_config/rate_limits/0/actions/0";
    let stream = json!({"generic_key":
        {"descriptor_key": "request_id", "descriptor_value": "ratelease.stream"}});
    assert_eq!(at(&value, &format!("{HOSTS}{action}")), Some(&stream));
}

#[test]
fn a_cost_that_comes_by_the_log_is_left_to_be_moved() {
    let (_, findings) = rewritten(ended_by_log(", {tag: ratelease.hits, value: '%CEL(1)%'}"));
    assert!(findings[0].starts_with("! ") && findings[0].contains("apply_on_stream_done"));
}

#[test]
fn a_log_for_others_stays_with_the_id_that_it_reads() {
    let mut given = ended_by_log("");
    let log = "{name: file, typed_config: {'@type': type.googleapis.com/a.File,
        log_format: '%FILTER_STATE(ratelease.id:PLAIN)%'}}";
    let logs = given.pointer_mut(&format!("{AT}/access_log")).and_then(Value::as_array_mut);
    logs.unwrap().push(read(&log.replace('\n', " ")));
    let (value, _) = rewritten(given);
    assert_eq!(at(&value, "/access_log/0/name"), Some(&json!("file")));
    assert_eq!(at(&value, "/access_log/1"), None);
    assert!(at(&value, "/access_log_options").is_some());
    assert_eq!(at(&value, "/http_filters/0/name"), Some(&json!("id")));
}

#[test]
fn what_cannot_be_moved_is_told_with_its_place() {
    let config = "
        vhds: {},
        virtual_hosts: [{name: a, domains: ['*'], matcher: {}, rate_limits: [
          {hits_addend: {number: 2}, actions: [{generic_key: {descriptor_value: a}}]},
          {limit: {dynamic_metadata: {}}, actions: [{metadata: {descriptor_key: k,
            metadata_key: {key: n, path: [{key: a}, {key: b}]}}}]},
          {actions: [{extension: {name: e, typed_config: {'@type': type.googleapis.com/x.Cel}}},
            {header_value_match: {headers: [{name: a, string_match: {custom: {}}}]}},
            {remote_address_match: {descriptor_value: '%%a%REQ(b)%%CEL(c)%'}}]}]}]";
    let more = "rate_limits: [{hits_addend: {format: '%CEL(x)%'}, actions: []}],";
    let (_, findings) = rewritten(bootstrap(&filter("rl", more), config));
    let base = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config";
    let host = "route_config.virtual_hosts[0]";
    let expected = [
        "! {base}.http_filters[0].typed_config.rate_limits[0].hits_addend.format: a module cannot tell %CEL%",
        "{base}.{host}.rate_limits[0].hits_addend: Envoy ignores hits_addend here; left out, so that the hits stay the same",
        "! {base}.{host}.rate_limits[1].actions[0].metadata: a module reaches a key of the namespace, and an item of a list there; copy the value to such a key",
        "! {base}.{host}.rate_limits[1].limit.dynamic_metadata: a module cannot read a struct of metadata; write the limit as a rule",
        "! {base}.{host}.rate_limits[2].actions[0].extension: a module cannot run x.Cel",
        "! {base}.{host}.rate_limits[2].actions[1].header_value_match: a module cannot run a custom string_match",
        "! {base}.{host}.rate_limits[2].actions[2].remote_address_match: a module cannot tell %CEL%",
        "! {base}.{host}.matcher: rate limits of routes in a matcher are not moved; write them as routes, or in typed_per_filter_config",
        "! {base}.route_config.vhds: these virtual hosts come from a server: it has to send their rate_limits in typed_per_filter_config, see docs/module.md",
    ];
    let expected = expected.map(|it| it.replace("{base}", base).replace("{host}", host));
    assert_eq!(findings, expected);
}

#[test]
fn the_cluster_of_envoy_itself_is_written_out_if_the_file_says_it() {
    let config = "virtual_hosts: [{name: a, domains: ['*'], rate_limits: [
        {actions: [{source_cluster: {}}]}]}]";
    let given = bootstrap(&filter("rl", ""), config);
    let (value, findings) = rewritten(given.clone());
    expect_keys(&value, "/0", Some(&["edge"]));
    assert!(
        findings[0].ends_with(
            "written out as node.cluster, edge: change it if --service-cluster gives another"
        ),
        "{findings:?}"
    );
    let mut unnamed = given;
    unnamed.as_object_mut().unwrap().remove("node");
    let (_, findings) = rewritten(unnamed);
    assert!(
        findings[0].starts_with("! ") && findings[0].contains("as a generic_key"),
        "{findings:?}"
    );
}

#[test]
fn a_bootstrap_without_the_filter_is_none() {
    let mut value = bootstrap("{name: other}", "");
    assert!(rewrite::bootstrap(&mut value).is_none());
    assert!(rewrite::bootstrap(&mut json!({})).is_none());
}

#[test]
fn a_finding_has_the_line_of_its_value_or_of_what_holds_it() {
    let text = "a:\n- b: 1\n- c:\n    d: 2\n";
    let source = ratelease_rules::Source { name: "a.yaml".into(), text: text.into() };
    let documents = yaml_documents::read(&source).unwrap();
    let at = Trail::default().field("a").item(1).field("c").field("e");
    let finding = Finding { at, text: "x".into(), needs_action: true };
    assert_eq!(line(&finding, "a.yaml", &documents[0]), "! a.yaml:4:5: a[1].c.e: x");
}
