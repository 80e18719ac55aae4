//! OVERRIDE: a descriptor's own limit takes precedence over the rules, if its domain is known.

use super::{Case, Pod, World, in_every_world};

const MATCHING: &str = include_str!("../../rules/ok/matching.yaml");

in_every_world!(an_override_takes_the_place_of_the_rule);

const NO_UNIT: &str = "names no unit; expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR";

async fn an_override_takes_the_place_of_the_rule(world: World) {
    let mut pod = Pod::start(world, &[("matching.yaml", MATCHING)], &[]).await;
    let rows = [
        Case("O1", "foo_domain:(key1,value1)@10/DAY", "none"),
        Case("O2", "(key1,value1)(subkey1,something)@10/DAY", "OK 9/10 DAY"),
        // Another window for the same entries means another count.
        Case("O3", "(key1,value1)(subkey1,something)@42/HOUR", "OK 41/42 HOUR"),
        Case("O4", "(key1,value1)(subkey1,something_else)@42/HOUR", "OK 41/42 HOUR"),
        Case("where no rule is", "(nowhere,$)@3/YEAR", "OK 2/3 YEAR"),
        Case("unit 7 is a week", "(nowhere,$)@3/7", "OK 2/3 WEEK"),
        Case("no entries", "()@3/MONTH", "OK 2/3 MONTH"),
        Case("of an unlimited rule", "(key6,$)@1/DAY", "OK 0/1 DAY | OVER 0/1 DAY"),
        Case("nothing allowed", "(key2,$)@0/DAY", "OVER 0/0 DAY"),
        Case(
            "two limits of one unit share their count",
            "(key2,$) | (key2,$)@30/MINUTE | (key2,$) | (key2,$)@2/MINUTE",
            "OK 19/20 MINUTE | OK 28/30 MINUTE | OK 17/20 MINUTE | OVER 0/2 MINUTE",
        ),
        Case(
            "two limits of one count in one request",
            "(nowhere,$)@0/DAY; (nowhere,$)@10/DAY",
            "OVER: OVER 0/0 DAY; OK 9/10 DAY",
        ),
    ];
    pod.check("test-domain", &rows).await;
}

/// O5. The reference's process ends; ratelease returns an error, and serves the next request.
#[tokio::test]
async fn an_override_without_a_unit_is_refused() {
    let mut pod = Pod::start(World::Memory, &[("matching.yaml", MATCHING)], &[]).await;
    let refused = |at| format!("InvalidArgument the limit of descriptor {at} {NO_UNIT}");
    let rows = [
        Case("O5", "(key2,$)@10/UNKNOWN", &refused(0)),
        Case("no such unit", "(key2,$); (key2,$)@10/8", &refused(1)),
        Case("nothing was charged", "(key2,$)", "OK 19/20 MINUTE"),
    ];
    pod.check("test-domain", &rows).await;
    let mut pod = Pod::start(World::MemoryOverHttp, &[("matching.yaml", MATCHING)], &[]).await;
    for unit in ["UNKNOWN", "8"] {
        let error = pod.ask("test-domain", &format!("(key2,x)@10/{unit}")).await.unwrap_err();
        assert!(error.starts_with("400 ") && error.contains("is not a unit"), "{error}");
    }
}
