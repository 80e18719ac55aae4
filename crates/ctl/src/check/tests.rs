//! Configurations of Envoy, compared with rules.

mod ends;

use ratelease_rules::{Options, Source, load};

use super::{Comparison, Config, compare};

const RULES: &str = "
domain: shop
descriptors:
  - {key: generic_key, value: hello, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: plan
    value: free
    descriptors:
      - {key: user_id, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: header_match, value: a*, rate_limit: {unit: second, requests_per_unit: 1}}
";

fn source(name: &str, text: &str) -> Source {
    Source { name: name.into(), text: text.into() }
}

/// The findings for a configuration: descriptors without a rule, and rules without a descriptor.
#[track_caller]
fn findings(envoy: &str, domain: Option<&str>) -> (Vec<String>, Vec<String>) {
    let rules = load(&[source("shop.yaml", RULES)], Options::default()).unwrap().rules;
    let mut config = Config::default();
    config.read(&source("envoy.yaml", envoy)).unwrap();
    let Comparison { sent, unsent, .. } = compare(&config, domain, &rules);
    let sent = sent.iter().filter(|sent| sent.rules().is_empty()).map(|sent| {
        let keys = sent.entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>();
        format!("{}:{}:{}", sent.site.at.place.line, sent.domain, keys.join(","))
    });
    (sent.collect(), unsent.iter().map(|rule| rule.path.to_string()).collect())
}

const FILTER: &str = r#"
filters:
  - "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
    domain: shop
"#;

#[test]
fn each_descriptor_with_a_rule_and_each_rule_with_a_descriptor_are_no_findings() {
    let routes = "
routes:
  - rate_limits:
      - actions: [{generic_key: {descriptor_value: hello}}]
      - actions:
          - request_headers: {header_name: x-plan, descriptor_key: plan}
          - request_headers: {header_name: x-user, descriptor_key: user_id}
      - actions: [{header_value_match: {descriptor_value: abc, headers: []}}]
";
    assert_eq!(findings(&format!("{FILTER}{routes}"), None), (vec![], vec![]));
}

#[test]
fn a_settlement_is_for_the_rule_of_the_entries_before_it() {
    let routes = "
routes:
  - rate_limits:
      - actions: [{generic_key: {descriptor_value: hello}}]
      - actions:
          - request_headers: {header_name: x-plan, descriptor_key: plan}
          - request_headers: {header_name: x-user, descriptor_key: user_id}
          - generic_key: {descriptor_key: ratelease.settle, descriptor_value: end}
      - actions:
          - request_headers: {header_name: x-plan, descriptor_key: plan}
          - generic_key: {descriptor_key: ratelease.settle, descriptor_value: end}
      - actions: [{header_value_match: {descriptor_value: abc, headers: []}}]
";
    let none = "13:shop:plan,ratelease.settle".to_owned();
    assert_eq!(findings(&format!("{FILTER}{routes}"), None), (vec![none], vec![]));
}

#[test]
fn a_fixed_value_finds_only_its_own_rule() {
    let routes = "
routes:
  - rateLimits:
      - actions: [{genericKey: {descriptorValue: bye}}]
      - actions: [{header_value_match: {descriptor_value: b}}]
";
    let (sent, unsent) = findings(&format!("{FILTER}{routes}"), None);
    assert_eq!(sent, ["8:shop:generic_key", "9:shop:header_match"]);
    assert_eq!(
        unsent,
        ["shop.generic_key_hello", "shop.header_match_a*", "shop.plan_free.user_id"]
    );
}

#[test]
fn an_entry_that_may_be_left_out_makes_two_descriptors() {
    let routes = "
rate_limits:
  - actions:
      - generic_key: {descriptor_value: hello}
      - request_headers: {header_name: a, descriptor_key: a, skip_if_absent: true}
";
    let (sent, _) = findings(&format!("{FILTER}{routes}"), None);
    assert_eq!(sent, ["7:shop:generic_key,a"]);
}

#[test]
fn a_descriptor_goes_to_the_filters_of_its_stage() {
    let other = FILTER.replace("domain: shop", "domain: other\n    stage: 1");
    let routes = "
rate_limits:
  - actions: [{generic_key: {descriptor_value: hello}}]
  - {stage: 1, actions: [{generic_key: {descriptor_value: hello}}]}
";
    let (sent, _) = findings(&format!("{FILTER}---{other}---{routes}"), None);
    assert_eq!(sent, ["13:other:generic_key"]);
}

#[test]
fn without_a_filter_the_given_domain_counts() {
    let routes = "rate_limits: [{actions: [{generic_key: {descriptor_value: hello}}]}]";
    assert_eq!(findings(routes, Some("shop")).0, Vec::<String>::new());
    assert_eq!(findings(routes, Some("none")).0, ["1:none:generic_key"]);
}

#[test]
fn a_route_may_name_its_own_domain_and_a_network_filter_has_its_descriptors() {
    let envoy = r#"
a:
  "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
  domain: shop
  rate_limits: [{actions: [{generic_key: {descriptor_value: hello}}]}]
b:
  "@type": type.googleapis.com/envoy.extensions.filters.network.ratelimit.v3.RateLimit
  domain: shop
  descriptors: [{entries: [{key: plan, value: free}, {key: user_id, value: b}]}]
c:
  "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
  rate_limits: [{actions: [{generic_key: {descriptor_value: local}}]}]
"#;
    assert_eq!(findings(envoy, None), (vec![], vec!["shop.header_match_a*".to_owned()]));
}

#[test]
fn the_domain_of_a_route_takes_the_place_of_the_filters() {
    let routes = r#"
routes:
  - route:
      rate_limits: [{actions: [{generic_key: {descriptor_value: hello}}]}]
    typed_per_filter_config:
      envoy.filters.http.ratelimit:
        "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
        domain: other
  - route:
      rate_limits: [{actions: [{generic_key: {descriptor_value: hello}}]}]
"#;
    let (sent, _) = findings(&format!("{FILTER}{routes}"), None);
    assert_eq!(sent, ["8:other:generic_key"]);
}

#[test]
fn a_file_of_many_documents_takes_little_memory() {
    let text = format!("{}rate_limits: [{{actions: [{{a: {{}}}}]}}]\n", "---\n".repeat(100_000));
    let mut config = Config::default();
    config.read(&source("envoy.yaml", &text)).unwrap();
    assert_eq!(config.unknown[0].at.place.line, 100_001);
}

#[test]
fn an_action_that_is_not_known_is_a_finding_with_its_place() {
    let mut config = Config::default();
    let text = "rate_limits:\n  - actions: [{new_action: {}}]\n";
    config.read(&source("envoy.yaml", text)).unwrap();
    let [unknown] = &*config.unknown else { panic!("{:?}", config.unknown) };
    assert_eq!((unknown.at.place.line, unknown.name.as_str()), (2, "new_action"));
}

#[test]
fn a_value_with_a_formatter_may_be_any() {
    let routes = "
rate_limits: [{actions: [{generic_key: {descriptor_value: \"%REQ(a)%\"}}]}]";
    assert_eq!(findings(&format!("{FILTER}{routes}"), None).0, Vec::<String>::new());
}
