//! How requests end, in a whole configuration and in parts of one. The file is long: all tests
//! change the same configuration.

use ratelease_rules::{Options, load};

use super::source;
use crate::check::config::Config;
use crate::check::{Finding, compare};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    descriptors:
      - key: id
        rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: {for: 1m}}
  - {key: path, rate_limit: {unit: second, requests_per_unit: 1}}
";

/// A configuration without a fault.
const GOOD: &str = r#"static_resources:
  listeners:
    - filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                access_log_options: {access_log_flush_interval: 10s}
                access_log:
                  - name: envoy.access_loggers.http_grpc
                    filter:
                      extension_filter:
                        typed_config: {expression: "!has(response.code_details) || response.code_details != 'request_rate_limited'"}
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
                      common_config:
                        log_name: ratelease
                        grpc_service: {envoy_grpc: {cluster_name: ratelease-ends}}
                        buffer_flush_interval: 0.005s
                        buffer_size_bytes: 67108864
                        custom_tags:
                          - {tag: ratelease.id, value: "%FILTER_STATE(ratelease.id:PLAIN)%"}
                http_filters:
                  - name: a
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config
                      on_request_headers:
                        - object_key: ratelease.id
                          factory_key: envoy.string
                          format_string: {text_format_source: {inline_string: "%UNIQUE_ID%"}}
                  - name: b
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: shop
                      rate_limit_service: {grpc_service: {envoy_grpc: {cluster_name: ratelease}}}
                route_config:
                  virtual_hosts:
                    - typed_per_filter_config:
                        b:
                          "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                          rate_limits:
                            - actions:
                                - request_headers: {header_name: x-user, descriptor_key: user}
                                - extension:
                                    typed_config: {descriptor_key: id, text: "filter_state['ratelease.id']"}
                            # more
  clusters:
    - name: ratelease
      circuit_breakers: {thresholds: [{max_requests: 100000, max_pending_requests: 100000}]}
      typed_extension_protocol_options:
        o:
          common_http_protocol_options: {idle_timeout: 0s}
          explicit_http_config: {http2_protocol_options: {max_concurrent_streams: 256}}
    - {name: ratelease-ends, connect_timeout: 1s}
"#;

/// The second call of the start above.
const SECOND_CALL: &str = "- actions:
                                - request_headers: {header_name: x-user, descriptor_key: user}
                                - extension:
                                    typed_config: {descriptor_key: id, text: \"filter_state['ratelease.id']\"}
                                - generic_key: {descriptor_key: ratelease.settle, descriptor_value: end}
                              apply_on_stream_done: true";

/// The findings, each as `level [the line] problem; fix`.
#[track_caller]
fn findings(envoy: &str) -> Vec<String> {
    let rules = load(&[source("shop.yaml", RULES)], Options::default()).unwrap().rules;
    let mut config = Config::default();
    config.read(&source("envoy.yaml", envoy)).unwrap();
    let settings = compare(&config, Some("shop"), &rules).settings;
    let shown = settings.0.into_iter().map(|Finding { level, at, problem, fix }| {
        let line = envoy.lines().nth(at.place.line as usize - 1).unwrap().trim();
        format!("{} [{line}] {problem}; {fix}", level.name())
    });
    shown.collect()
}

/// Requires that a change of the good configuration makes these findings and no others: of each the
/// level, and a part of its line and of its text.
#[track_caller]
fn expect(changes: &[(&str, &str)], expected: &[(&str, &str, &str)]) {
    let mut envoy = GOOD.to_owned();
    for (old, new) in changes {
        assert!(envoy.contains(old), "{old}");
        envoy = envoy.replace(old, new);
    }
    let found = findings(&envoy);
    let is_like = |(found, expected): (&String, &(&str, &str, &str))| {
        let (level, line, part) = *expected;
        let (place, text) = found.split_once("] ").unwrap();
        place.starts_with(level) && place.contains(line) && text.contains(part)
    };
    let are_like = found.len() == expected.len() && found.iter().zip(expected).all(is_like);
    assert!(are_like, "{changes:?}:\n{}", found.join("\n"));
}

/// The lines of the access log, without the filter.
fn without_log() -> String {
    let (before, rest) = GOOD.split_once("                access_log_options").unwrap();
    let (_, after) = rest.split_once("                http_filters").unwrap();
    format!("{before}                http_filters{after}")
}

#[test]
fn a_log_and_an_id_of_envoy_are_no_findings() {
    expect(&[], &[]);
    expect(&[("67108864", "0"), ("buffer_flush_interval: 0.005s", "a: 1")], &[]);
}

#[test]
fn a_log_with_a_small_or_late_buffer_is_a_finding() {
    expect(
        &[("                        buffer_size_bytes: 67108864\n", "")],
        &[("error", "- name: envoy.access_loggers", "buffer_size_bytes is 16384, Envoy's default")],
    );
    expect(
        &[("67108864", "1048576")],
        &[("error", "buffer_size_bytes", "set buffer_size_bytes: 67108864")],
    );
    expect(
        &[("buffer_flush_interval: 0.005s", "a: 1")],
        &[(
            "warning",
            "- name: envoy.access_loggers",
            "buffer_flush_interval is 1s, Envoy's default",
        )],
    );
    expect(
        &[("0.005s", "0.5s")],
        &[("warning", "buffer_flush_interval", "set buffer_flush_interval: 0.005s")],
    );
}

#[test]
fn a_filter_of_a_log_that_keeps_ends_back_is_a_finding() {
    let good = "!has(response.code_details) || response.code_details != 'request_rate_limited'";
    let expression = format!("{{expression: \"{good}\"}}");
    let filter = |name: &str, of: &str| {
        [("extension_filter", name.to_owned()), (&*expression, of.to_owned())]
            .map(|(old, new)| (old.to_owned(), new))
    };
    for (expression, part) in [
        ("response.code_details != 'request_rate_limited'", "absent field"),
        ("response.code != 429", "no status"),
        ("'a' in metadata.filter_metadata", "no metadata"),
    ] {
        expect(&[(good, expression)], &[("error", "typed_config", part)]);
    }
    for (name, part) in [
        ("metadata_filter", "no metadata"),
        ("status_code_filter", "no status"),
        ("duration_filter", "keeps ends"),
    ] {
        let changes = filter(name, "{a: 1}");
        let changes: Vec<_> = changes.iter().map(|(old, new)| (&**old, &**new)).collect();
        expect(&changes, &[("error", "typed_config", part)]);
    }
    for (types, found) in [("DownstreamEnd, DownstreamPeriodic", 0), ("DownstreamStart", 1)] {
        let text = GOOD.replace("extension_filter:", "log_type_filter:");
        let text =
            text.replace(&format!("typed_config: {expression}"), &format!("types: [{types}]"));
        assert_eq!(findings(&text).len(), found, "{types}: {:?}", findings(&text));
    }
}

#[test]
fn a_log_whose_entries_end_nothing_is_a_finding() {
    expect(
        &[("log_name: ratelease", "log_name: all")],
        &[("error", "- name: envoy.access_loggers", "another name")],
    );
    expect(
        &[("tag: ratelease.id", "tag: id")],
        &[("error", "- name: envoy.access_loggers", "no custom tag 'ratelease.id'")],
    );
    expect(
        &[("(ratelease.id:PLAIN)", "(ratelease.id)")],
        &[("error", "tag: ratelease.id", "as JSON")],
    );
    expect(
        &[("%FILTER_STATE(ratelease.id:PLAIN)%", "%UNIQUE_ID%")],
        &[("error", "tag: ratelease.id", "another id")],
    );
    expect(
        &[("(ratelease.id:PLAIN)", "(other:PLAIN)")],
        &[(
            "error",
            "tag: ratelease.id",
            "the descriptor of shop.user.id has filter_state['ratelease.id']",
        )],
    );
    // A log with another name, tag and cluster is no log for ratelease.
    expect(
        &[
            ("log_name: ratelease", "log_name: all"),
            ("tag: ratelease.id", "tag: id"),
            ("cluster_name: ratelease-ends", "cluster_name: audit"),
        ],
        &[(
            "error",
            "- actions:",
            "nothing tells ratelease that a request of shop.user.id has ended",
        )],
    );
}

#[test]
fn a_log_in_the_cluster_of_calls_is_a_finding() {
    expect(
        &[("ratelease-ends}", "ratelease}")],
        &[("warning", "- name: envoy.access_loggers", "a cluster of its own")],
    );
}

#[test]
fn no_sign_of_life_within_the_hold_is_a_finding() {
    let options = "access_log_options: {access_log_flush_interval: 10s}";
    expect(&[(options, "a: 1")], &[("warning", "@type", "after 60s (`for`)")]);
    expect(&[("10s", "60s")], &[("warning", "@type", "no sign of life")]);
}

#[test]
fn a_start_without_an_end_is_a_finding() {
    let found = findings(&without_log());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("comes back after 60s (`for`)"), "{found:?}");
}

#[test]
fn a_second_call_needs_time() {
    let text = without_log().replace("# more", SECOND_CALL);
    let found = findings(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("at the end is 20ms, Envoy's default:"), "{found:?}");
    assert_eq!(
        findings(&text.replace("domain: shop", "domain: shop\n                      timeout: 5s")),
        [""; 0]
    );
}

/// A second call in the list of a virtual host, with another field of that.
fn in_a_list_of_a_host(more: &str) -> String {
    let list = format!(
        "rate_limits:
                        - actions:
                            - request_headers: {{header_name: x-user, descriptor_key: user}}
                            - extension:
                                typed_config: {{descriptor_key: id, text: \"filter_state['ratelease.id']\"}}
                          apply_on_stream_done: true
                          {more}
                      typed_per_filter_config:"
    );
    let text = without_log().replace("typed_per_filter_config:", &list);
    text.replace("domain: shop", "domain: shop\n                      timeout: 5s")
}

#[test]
fn a_list_of_a_host_has_second_calls_but_no_hits() {
    assert_eq!(findings(&in_a_list_of_a_host("stage: 0")), [""; 0]);
    let found = findings(&in_a_list_of_a_host("hits_addend: {number: 2}"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("Envoy ignores hits_addend"), "{found:?}");
}

#[test]
fn a_log_without_denied_requests_is_a_finding_between_two_filters() {
    let second = r#"                  - name: c
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: shop
                      rate_limit_service: {grpc_service: {envoy_grpc: {cluster_name: ratelease}}}
                      rate_limits: [{actions: [{generic_key: {descriptor_key: path, descriptor_value: a}}]}]
                route_config:"#;
    let two = GOOD.replace("                route_config:", second);
    let found = findings(&two);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("a later rate limit filter denies"), "{found:?}");
    let all = "!has(response.code_details) || response.code_details != 'request_rate_limited'";
    assert_eq!(findings(&two.replace(all, "'ratelease.id' in filter_state")), [""; 0]);
    // A filter that only ends requests denies none.
    let ends =
        two.replace("descriptor_value: a}}]", "descriptor_value: a}}], apply_on_stream_done: true");
    assert_eq!(findings(&ends), [""; 0]);
}

#[test]
fn an_id_that_envoy_does_not_make_is_a_finding() {
    let tag = "%FILTER_STATE(ratelease.id:PLAIN)%";
    let text = "typed_config: {descriptor_key: id, text: \"filter_state['ratelease.id']\"}";
    let by = |new: &'static str, tag_of: &'static str| [(text, new), (tag, tag_of)];
    let header = "typed_config: {'@type': x/HttpRequestHeaderMatchInput, descriptor_key: id, header_name: X-Id}";
    expect(&by(header, "%REQ(X-ID)%"), &[("error", "- actions:", "it is the header x-id")]);
    let request_id = "typed_config: {descriptor_key: id, text: request.id}";
    expect(&by(request_id, "%STREAM_ID%"), &[("error", "- actions:", "x-request-id")]);
    let edge =
        ("access_log_options:", "use_remote_address: true\n                access_log_options:");
    let [a, b] = by(request_id, "%STREAM_ID%");
    expect(&[a, b, edge], &[]);
    let kept = (
        "access_log_options:",
        "use_remote_address: true\n                preserve_external_request_id: true\n                access_log_options:",
    );
    expect(&[a, b, kept], &[("error", "- actions:", "x-request-id")]);
    expect(
        &[("\"%UNIQUE_ID%\"", "\"%REQ(x-id)%\"")],
        &[("error", "object_key", "the header x-id")],
    );
    expect(&[("\"%UNIQUE_ID%\"", "same")], &[("error", "object_key", "all requests have one id")]);
}

#[test]
fn an_id_that_is_not_set_before_the_limit_is_a_finding() {
    expect(
        &[("object_key: ratelease.id", "object_key: other")],
        &[("error", "- actions:", "no filter sets 'ratelease.id'")],
    );
    let (start, end) = ("                  - name: a\n", "                  - name: b\n");
    let (before, rest) = GOOD.split_once(start).unwrap();
    let (sets, rest) = rest.split_once(end).unwrap();
    let (limits, after) = rest.split_once("                route_config").unwrap();
    let found =
        findings(&format!("{before}{end}{limits}{start}{sets}                route_config{after}"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("comes after the rate limit filter"), "{found:?}");
}

#[test]
fn a_header_that_envoy_overwrites_is_an_id() {
    let mutation = r#"                  - typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
                      mutations:
                        request_mutations:
                          - append: {header: {key: X-Id, value: "%UNIQUE_ID%"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}
                  - name: b"#;
    let text = "text: \"filter_state['ratelease.id']\"";
    let tag = "%FILTER_STATE(ratelease.id:PLAIN)%";
    let changes = [(text, "text: \"request.headers['x-id']\""), (tag, "%REQ(X-ID)%")];
    expect(&[&changes[..], &[("                  - name: b", mutation)]].concat(), &[]);
    let added = mutation.replace("OVERWRITE_IF_EXISTS_OR_ADD", "APPEND_IF_EXISTS_OR_ADD");
    expect(
        &[&changes[..], &[("                  - name: b", &added)]].concat(),
        &[("error", "- actions:", "the header x-id")],
    );
}

#[test]
fn a_cluster_by_its_defaults_is_a_finding() {
    let breakers =
        "circuit_breakers: {thresholds: [{max_requests: 100000, max_pending_requests: 100000}]}";
    expect(
        &[(breakers, "a: 1")],
        &[("warning", "- name: ratelease", "admits 1024 calls at a time, Envoy's default")],
    );
    expect(
        &[("max_pending_requests: 100000", "max_pending_requests: 1500")],
        &[("warning", "- name: ratelease", "admits 1500 calls at a time:")],
    );
    expect(
        &[("idle_timeout: 0s", "a: 1")],
        &[("warning", "- name: ratelease", "is 3600s, Envoy's default")],
    );
    expect(
        &[("max_concurrent_streams: 256", "a: 1")],
        &[("warning", "- name: ratelease", "max_concurrent_streams")],
    );
}

#[test]
fn a_path_as_the_client_spells_it_is_a_finding() {
    let path = |action: &str| GOOD.replace("# more", &format!("- actions: [{action}]"));
    for action in [
        "request_headers: {header_name: \":path\", descriptor_key: path}",
        "generic_key: {descriptor_key: path, descriptor_value: \"%REQ(:PATH)%\"}",
        "header_value_match: {descriptor_key: path, descriptor_value: a, headers: [{name: \":path\", string_match: {exact: /a}}]}",
        "extension: {typed_config: {descriptor_key: path, text: request.path}}",
    ] {
        let found = findings(&path(&format!("{{{action}}}")));
        assert_eq!(found.len(), 1, "{action}: {found:?}");
        assert!(
            found[0].starts_with("error [") && found[0].contains("the path as a client spells it"),
            "{found:?}"
        );
    }
    for action in [
        "generic_key: {descriptor_key: path, descriptor_value: /a}",
        "header_value_match: {descriptor_key: path, descriptor_value: a, headers: [{name: \":path\", string_match: {safe_regex: {regex: \"/a([/?;].*)?\"}}}]}",
    ] {
        assert_eq!(findings(&path(&format!("{{{action}}}"))), [""; 0], "{action}");
    }
}

#[test]
fn a_filter_of_the_module_ends_its_requests_itself() {
    let text = without_log();
    let module = "\"@type\": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
                      filter_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: shop}
";
    let (before, rest) = text
        .split_once(
            "\"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit\n",
        )
        .unwrap();
    let (_, rest) = rest.split_once("                route_config").unwrap();
    let route = "filters.http.ratelimit.v3.RateLimitPerRoute\n";
    let rest = rest.replace(route, "filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute\n");
    let rest = rest.replace("                          rate_limits:", "                          filter_config:\n                           \"@type\": a/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute\n                           rate_limits:");
    assert_eq!(findings(&format!("{before}{module}                route_config{rest}")), [""; 0]);
}

/// The patches of an `EnvoyFilter`: the connection manager is in none of the files.
#[test]
fn patches_are_read_as_one_connection_manager() {
    let patches = r#"
spec:
  configPatches:
    - applyTo: NETWORK_FILTER
      patch:
        operation: MERGE
        value:
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
            access_log_options: {access_log_flush_interval: 10s}
            access_log:
              - typed_config:
                  "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
                  common_config:
                    log_name: ratelease
                    grpc_service: {envoy_grpc: {cluster_name: ratelease-ends}}
                    buffer_flush_interval: 0.005s
                    custom_tags: [{tag: ratelease.id, value: "%REQ(X-REQUEST-ID)%"}]
    - applyTo: HTTP_FILTER
      patch:
        value:
          name: b
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
            domain: shop
    - applyTo: VIRTUAL_HOST
      patch:
        value:
          rate_limits:
            - actions:
                - request_headers: {header_name: x-user, descriptor_key: user}
                - request_headers: {header_name: x-request-id, descriptor_key: id}
"#;
    let found = findings(patches);
    let parts = [
        ("warning [- actions:", "a client chooses the id"),
        ("error [- typed_config:", "buffer_size_bytes is 16384"),
    ];
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found
            .iter()
            .zip(parts)
            .all(|(it, (place, part))| it.starts_with(place) && it.contains(part)),
        "{found:?}"
    );
}

/// In `/config_dump` routes are apart from the connection managers that name them.
#[test]
fn routes_of_a_dump_are_those_of_the_manager_that_names_them() {
    let manager = |name: &str, log: &str| {
        format!(
            r#"{{"@type": "a/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "rds": {{"route_config_name": "{name}"}}, "access_log": [{log}], "access_log_options": {{"access_log_flush_interval": "10s"}},
            "http_filters": [
             {{"name": "s", "typed_config": {{"@type": "a/envoy.extensions.filters.http.set_filter_state.v3.Config",
              "on_request_headers": [{{"object_key": "ratelease.id", "format_string": {{"text_format_source": {{"inline_string": "%UNIQUE_ID%"}}}}}}]}}}},
             {{"name": "b", "typed_config": {{"@type": "a/envoy.extensions.filters.http.ratelimit.v3.RateLimit", "domain": "shop"}}}}]}}"#
        )
    };
    let log = r#"{"typed_config": {"@type": "a/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
        "common_config": {"log_name": "ratelease", "buffer_size_bytes": 0,
        "custom_tags": [{"tag": "ratelease.id", "value": "%FILTER_STATE(ratelease.id:PLAIN)%"}]}}}"#;
    let routes = |name: &str| {
        format!(
            r#"{{"@type": "a/envoy.config.route.v3.RouteConfiguration", "name": "{name}", "virtual_hosts": [
            {{"rate_limits": [{{"actions": [{{"request_headers": {{"header_name": "x-user", "descriptor_key": "user"}}}},
             {{"extension": {{"typed_config": {{"descriptor_key": "id", "text": "filter_state['ratelease.id']"}}}}}}]}}]}}]}}"#
        )
    };
    let dump = |of: &str| {
        let (with, without) = (manager("with", log), manager("without", ""));
        format!(r#"{{"configs": [{with}, {without}, {}]}}"#, routes(of))
    };
    assert_eq!(findings(&dump("with")), [""; 0]);
    let found = findings(&dump("without"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("nothing tells ratelease"), "{found:?}");
}
