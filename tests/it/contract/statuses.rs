//! SERVICE: one status per descriptor in order, and which descriptors are charged when one denies.

use super::{Case, Pod, World, in_every_world};

const RULES: &str = "
domain: d
descriptors:
  - {key: over, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: one, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: ten, rate_limit: {name: the ten, unit: day, requests_per_unit: 10}}
  - {key: free, rate_limit: {unlimited: true}}
";

in_every_world!(statuses_stand_one_to_one, a_denial_charges_no_other_rule);

async fn statuses_stand_one_to_one(world: World) {
    let mut pod = Pod::start(world, &[("d.yaml", RULES)], &[]).await;
    let rows = [
        Case("V1", "(over,$); (nowhere,$)", "OVER: OVER 0/0 DAY; none"),
        Case("V1, the other way round", "(nowhere,$); (over,$)", "OVER: none; OVER 0/0 DAY"),
        Case(
            "V8",
            "(ten,$); (nowhere,$); (free,$)",
            "OK: OK 9/10 DAY \"the ten\"; none; unlimited",
        ),
        Case("no entries", "(); (ten,$)", "OK: none; OK 9/10 DAY \"the ten\""),
        Case("only unlimited", "(free,$)", "unlimited | unlimited"),
        Case("empty key and value", "(,); (nowhere,)", "OK: none; none"),
        Case("any bytes", "(one,ключ/$ {}*_.|\t%)", "OK 0/1 DAY | OVER 0/1 DAY"),
    ];
    pod.check("d", &rows).await;
}

/// The reference charges all of them, unless a setting changes that.
async fn a_denial_charges_no_other_rule(world: World) {
    let mut pod = Pod::start(world, &[("d.yaml", RULES)], &[]).await;
    let rows = [
        Case(
            "the store denies",
            "(ten,$); (over,$) | (over,$-2); (ten,$) | (ten,$)",
            "OVER: OK 10/10 DAY \"the ten\"; OVER 0/0 DAY \
             | OVER: OVER 0/0 DAY; OK 10/10 DAY \"the ten\" | OK 9/10 DAY \"the ten\"",
        ),
        Case(
            "the third of three",
            "(one,$) | (ten,$); (ten,$-2)+4; (one,$) | (ten,$); (ten,$-2)",
            "OK 0/1 DAY \
             | OVER: OK 10/10 DAY \"the ten\"; OK 10/10 DAY \"the ten\"; OVER 0/1 DAY \
             | OK: OK 9/10 DAY \"the ten\"; OK 9/10 DAY \"the ten\"",
        ),
        // The pod already knows of the denial, and does not ask for the other: its window is
        // unknown.
        Case(
            "what was not reached shows its limit",
            "(over,$) | (over,$); (ten,$)",
            "OVER 0/0 DAY | OVER: OVER 0/0 DAY; OK 10/10 DAY \"the ten\" unasked",
        ),
    ];
    pod.check("d", &rows).await;
}
