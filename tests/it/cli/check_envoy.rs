//! `ratectl check --envoy`.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Ran, files, ran};
use crate::support::ratectl::ratectl;
use crate::support::ratelease::inherited;

const RULES: (&str, &str) = (
    "rules/shop.yaml",
    "domain: shop
descriptors:
  - {key: generic_key, value: hello, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: user, rate_limit: {unit: second, requests_per_unit: 1}}
",
);

/// An EnvoyFilter of Istio: the filter and the routes are documents of their own.
const ENVOY: &str = r#"kind: EnvoyFilter
spec:
  configPatches:
    - applyTo: HTTP_FILTER
      patch:
        value:
          name: envoy.filters.http.ratelimit
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
            domain: shop
---
kind: EnvoyFilter
spec:
  configPatches:
    - applyTo: VIRTUAL_HOST
      patch:
        value:
          rate_limits:
            - actions: [{generic_key: {descriptor_value: hello}}]
            - actions: [{request_headers: {header_name: x-user, descriptor_key: USER}}]
"#;

/// Compares `envoy.yaml` of `dir` with its rules.
fn check(dir: &Path) -> Ran {
    let mut command = Command::new(ratectl());
    command.args(["check", "--envoy", "envoy.yaml", "--rules", "rules"]);
    ran(command.current_dir(dir).env_clear().envs(inherited()).stdin(Stdio::null()))
}

#[test]
fn descriptors_without_a_rule_and_rules_without_a_descriptor_are_findings_with_their_places() {
    let dir = files(&[RULES, ("envoy.yaml", ENVOY)]);
    let ran = check(dir.path());
    assert_eq!(
        ran.ended(1).out,
        "envoy.yaml:20:15: no rule of the domain 'shop' is for USER=*\n\
         rules/shop.yaml:4:5: no descriptor finds the rule shop.user\n\
         descriptors: 2, of which without a rule: 1; rules never found: 1\n"
    );
    let fixed = ENVOY.replace("USER", "user");
    let dir = files(&[RULES, ("envoy.yaml", &fixed)]);
    let ran = check(dir.path());
    let clean = "descriptors: 2, of which without a rule: 0; rules never found: 0\n";
    assert_eq!(ran.ended(0).out, clean);
}

#[test]
fn a_configuration_without_descriptors_or_with_bad_syntax_ends_with_2() {
    for (text, reported) in [
        ("static_resources: {}\n", "the configuration sends no descriptors"),
        ("a: [b\n", "envoy.yaml:"),
    ] {
        let dir = files(&[RULES, ("envoy.yaml", text)]);
        let ran = check(dir.path());
        assert!(ran.ended(2).err.contains(reported), "{}", ran.err);
    }
}
