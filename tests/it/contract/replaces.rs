//! `replaces`: rules that disable others for the requests that both match.

use super::{Case, Pod, World, in_every_world};

const RULES: &str = "
domain: d
descriptors:
  - {key: base, rate_limit: {name: base, unit: hour, requests_per_unit: 1}}
  - {key: also_base, rate_limit: {name: base, unit: hour, requests_per_unit: 1}}
  - {key: other, rate_limit: {name: other, unit: hour, requests_per_unit: 9}}
  - {key: unnamed, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: instead, rate_limit: {unit: hour, requests_per_unit: 2, replaces: [{name: base}]}}
  - key: of_two
    rate_limit: {unit: hour, requests_per_unit: 3, replaces: [{name: base}, {name: other}]}
  - {key: free, rate_limit: {unlimited: true, name: free, replaces: [{name: base}]}}
  - {key: of_free, rate_limit: {unit: hour, requests_per_unit: 4, replaces: [{name: free}]}}
  - key: left
    rate_limit: {name: left, unit: hour, requests_per_unit: 1, replaces: [{name: right}]}
  - key: right
    rate_limit: {name: right, unit: hour, requests_per_unit: 1, replaces: [{name: left}]}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 5, replaces: [{name: base}]}
";

in_every_world!(a_rule_sets_aside_what_it_replaces);

async fn a_rule_sets_aside_what_it_replaces(world: World) {
    let mut pod = Pod::start(world, &[("d.yaml", RULES)], &[]).await;
    let rows = [
        Case(
            "its count is untouched",
            "(base,$); (instead,$) | (base,$); (instead,$) | (base,$); (instead,$) | (base,$)",
            "OK: none; OK 1/2 HOUR | OK: none; OK 0/2 HOUR | OVER: none; OVER 0/2 HOUR \
             | OK 0/1 HOUR \"base\"",
        ),
        Case("in any order", "(instead,$); (base,$)", "OK: OK 1/2 HOUR; none"),
        Case(
            "every rule of the name",
            "(base,$); (also_base,$); (instead,$)",
            "OK: none; none; OK 1/2 HOUR",
        ),
        Case(
            "several names",
            "(base,$); (other,$); (unnamed,$); (of_two,$)",
            "OK: none; none; OK 8/9 HOUR; OK 2/3 HOUR",
        ),
        Case("an unlimited one replaces", "(base,$); (free,$)", "OK: none; unlimited"),
        Case("and is not replaced", "(free,$); (of_free,$)", "OK: unlimited; OK 3/4 HOUR"),
        Case("each other", "(left,$); (right,$)", "OK: none; none"),
        Case("in shadow mode too", "(base,$); (shadow,$)", "OK: none; OK 4/5 HOUR"),
        Case(
            "a replaced rule still replaces",
            "(left,$); (right,$); (base,$)",
            "OK: none; none; OK 0/1 HOUR \"base\"",
        ),
        Case(
            "an override has no name",
            "(base,$)@5/HOUR; (instead,$)",
            "OK: OK 4/5 HOUR; OK 1/2 HOUR",
        ),
        Case(
            "nor replaces it",
            "(base,$); (instead,$)@5/HOUR",
            "OK: OK 0/1 HOUR \"base\"; OK 4/5 HOUR",
        ),
    ];
    pod.check("d", &rows).await;
}
