//! `ratectl check --envoy`.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

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
    check_by(dir, &[])
}

fn check_by(dir: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(ratectl());
    command.args(["check", "--envoy", "envoy.yaml", "--rules", "rules"]).args(args);
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

/// A limit of requests in progress.
pub(super) const SLOTS: (&str, &str) = (
    "rules/slots.yaml",
    "domain: slots
descriptors:
  - key: user
    descriptors:
      - key: request_id
        rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: {for: 5m}}
",
);

/// An EnvoyFilter whose access log has the buffer of Envoy's default, and flushes late.
pub(super) const LOG: &str = r#"kind: EnvoyFilter
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
              - name: envoy.access_loggers.http_grpc
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
                  common_config:
                    log_name: ratelease
                    grpc_service: {envoy_grpc: {cluster_name: ratelease-ends}}
                    buffer_flush_interval: 1s
                    buffer_size_bytes: 16384
                    custom_tags: [{tag: ratelease.id, value: "%FILTER_STATE(ratelease.id:PLAIN)%"}]
    - applyTo: HTTP_FILTER
      patch:
        value:
          name: id
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config
            on_request_headers:
              - object_key: ratelease.id
                format_string: {text_format_source: {inline_string: "%UNIQUE_ID%"}}
    - applyTo: HTTP_FILTER
      patch:
        value:
          name: envoy.filters.http.ratelimit
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
            domain: slots
    - applyTo: VIRTUAL_HOST
      patch:
        value:
          rate_limits:
            - actions:
                - request_headers: {header_name: x-user, descriptor_key: user}
                - extension: {typed_config: {descriptor_key: request_id, text: "filter_state['ratelease.id']"}}
"#;

#[test]
fn settings_that_lose_ends_are_findings_and_late_ones_only_with_strict() {
    let dir = files(&[SLOTS, ("envoy.yaml", LOG)]);
    let ran = check(dir.path());
    assert_eq!(
        ran.ended(1).out,
        "envoy.yaml:19:40: error: buffer_size_bytes is 16384: Envoy drops what exceeds it while the \
         stream opens; set buffer_size_bytes: 67108864\n\
         envoy.yaml:18:44: warning: buffer_flush_interval is 1s: slots come back so much later; set \
         buffer_flush_interval: 0.005s\n\
         descriptors: 1, of which without a rule: 0; rules never found: 0; settings: 1 error, 1 \
         warning\n"
    );
    let late = LOG.replace("16384", "67108864");
    let dir = files(&[SLOTS, ("envoy.yaml", &late)]);
    assert!(check(dir.path()).ended(0).out.contains("settings: 0 errors, 1 warning\n"));
    check_by(dir.path(), &["--strict"]).ended(1);
    let ran = check_by(dir.path(), &["--json"]);
    let json: Value = serde_json::from_str(&ran.ended(0).out).unwrap();
    let setting = json!([{
        "at": "envoy.yaml:18:44",
        "level": "warning",
        "problem": "buffer_flush_interval is 1s: slots come back so much later",
        "fix": "set buffer_flush_interval: 0.005s",
    }]);
    assert_eq!((&json["settings"], &json["clean"]), (&setting, &json!(true)));
    let good = late.replace("interval: 1s", "interval: 0.005s");
    let dir = files(&[SLOTS, ("envoy.yaml", &good)]);
    let clean = "descriptors: 1, of which without a rule: 0; rules never found: 0\n";
    assert_eq!(check_by(dir.path(), &["--strict"]).ended(0).out, clean);
}

#[test]
fn a_rule_that_needs_no_end_asks_nothing_of_an_envoy() {
    let plain = SLOTS.1.replace("algorithm: concurrency", "unit: minute");
    let plain = plain.replace(", hold: {for: 5m}", "");
    let dir = files(&[(SLOTS.0, &plain), ("envoy.yaml", LOG)]);
    check_by(dir.path(), &["--strict"]).ended(0);
}
