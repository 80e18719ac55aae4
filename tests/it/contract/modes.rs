//! SHADOW CONFIG, and the modes of SERVICE: shadow and quota, of a rule and of the process.

use super::{Case, Pod, World, countdown, in_every_world};

const SHADOW: &str = include_str!("../../rules/ok/shadow.yaml");

/// A limit of 0 is exceeded by the first hit.
const MODES: &str = "
domain: d
descriptors:
  - {key: over, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: within, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: quota_over, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: free, rate_limit: {unlimited: true}}
";

in_every_world!(
    a_shadow_rule_counts_and_never_denies,
    quotas_deny_together,
    the_shadow_mode_of_the_process_denies_nothing,
    the_quota_mode_of_the_process_makes_every_rule_a_quota,
);

async fn a_shadow_rule_counts_and_never_denies(world: World) {
    let rules = [("shadow.yaml", SHADOW), ("modes.yaml", MODES)];
    let mut pod = Pod::start(world, &rules, &[]).await;
    let shadow = countdown(23, 20, "MINUTE").replace("OVER", "OK");
    let rows = [
        Case("at once", "(key1,value1)(subkey1,subvalue1)+11", "OK 0/10 SECOND"),
        Case("its sibling", "(key1,value1)(subkey1,$)+6", "OVER 0/5 SECOND"),
        Case("one by one", "(key2,$)", &shadow),
        Case("its sibling, one by one", "(key2,value2)", &countdown(32, 30, "MINUTE")),
        Case("V3, both in shadow", "d:(shadow,$); (shadow,$-2)", "OK: OK 0/0 HOUR; OK 0/0 HOUR"),
        Case("V3, one of both", "d:(shadow,$); (over,$)", "OVER: OK 0/0 HOUR; OVER 0/0 HOUR"),
    ];
    pod.check("test-domain", &rows).await;
}

async fn quotas_deny_together(world: World) {
    let mut pod = Pod::start(world, &[("modes.yaml", MODES)], &[]).await;
    let (over, within) = ("OVER 0/0 HOUR", "OK 8/9 HOUR");
    let rows = [
        // A denied request is not charged to its other rules, which still show 9; those of the
        // reference show 8.
        Case("V11", "(over,$); (quota,$)", "OVER: OVER 0/0 HOUR; OK 9/9 HOUR"),
        Case("V12", "(within,$); (quota_over,$)", "OVER: OK 9/9 HOUR; OVER 0/0 HOUR"),
        Case("V13 both within", "(quota,$); (quota,$-2)", &format!("OK: {within}; {within}")),
        Case("V13 both over", "(quota_over,$); (quota_over,$-2)", &format!("OVER: {over}; {over}")),
        Case("V13 one over", "(quota_over,$); (quota,$)", &format!("OK: {over}; {within}")),
        Case("with a free one", "(quota_over,$); (nowhere,$)", &format!("OVER: {over}; none")),
        Case("with unlimited", "(quota_over,$); (free,$)", &format!("OVER: {over}; unlimited")),
        Case("with shadow", "(quota_over,$); (shadow,$)", &format!("OVER: {over}; OK 0/0 HOUR")),
    ];
    pod.check("d", &rows).await;
}

async fn the_shadow_mode_of_the_process_denies_nothing(world: World) {
    let mut pod = Pod::start(world, &[("modes.yaml", MODES)], &[("SHADOW_MODE", "true")]).await;
    let over = "OVER 0/0 HOUR";
    let rows = [
        Case("V2", "(over,$)", "OK: OVER 0/0 HOUR"),
        Case("of an override", "(over,$)@0/DAY", "OK: OVER 0/0 DAY"),
        // Nothing is denied, so every rule is charged.
        Case("with another", "(over,$); (within,$)", &format!("OK: {over}; OK 8/9 HOUR")),
        Case("V14 quotas", "(quota_over,$); (quota_over,$-2)", &format!("OK: {over}; {over}")),
        Case("V14 mixed", "(quota_over,$); (over,$)", &format!("OK: {over}; {over}")),
    ];
    pod.check("d", &rows).await;
}

async fn the_quota_mode_of_the_process_makes_every_rule_a_quota(world: World) {
    let mut pod = Pod::start(world, &[("modes.yaml", MODES)], &[("QUOTA_MODE", "true")]).await;
    let over = "OVER 0/0 HOUR";
    let rows = [
        Case("V10", "(over,$); (over,$-2)", &format!("OVER: {over}; {over}")),
        Case("one over", "(over,$); (within,$)", &format!("OK: {over}; OK 8/9 HOUR")),
        Case(
            "no rule is a quota that passes",
            "(over,$); (nowhere,$)",
            &format!("OK: {over}; none"),
        ),
        Case("unlimited is none", "(over,$); (free,$)", &format!("OVER: {over}; unlimited")),
        Case("an override is one", "(over,$)@0/DAY; (within,$)", "OK: OVER 0/0 DAY; OK 8/9 HOUR"),
    ];
    pod.check("d", &rows).await;
}
