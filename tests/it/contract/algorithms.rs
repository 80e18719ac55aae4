//! Every algorithm over both protocols: as many requests pass as the limit allows, returned tokens
//! can be used again, and a rule that changes its algorithm starts a new count.

use super::{Case, Pod, World, countdown, in_every_world};

/// None of these makes a token available again while a test runs.
fn rules(fixed: &str) -> String {
    let rule = |key: &str, algorithm: &str| {
        format!(
            "  - {{key: {key}, rate_limit: {{unit: year, requests_per_unit: 3, \
             algorithm: {algorithm}}}}}\n"
        )
    };
    let rest = [
        ("bucket", "token_bucket"),
        ("burst", "token_bucket, burst: 2"),
        ("window", "sliding_window"),
        ("log", "sliding_log"),
        ("leaky", "leaky_bucket"),
    ];
    let rest: String = rest.map(|(key, algorithm)| rule(key, algorithm)).concat();
    format!("domain: d\ndescriptors:\n{}{rest}", rule("fixed", fixed))
}

in_every_world!(each_algorithm_lets_as_many_pass_as_its_limit_says);

async fn each_algorithm_lets_as_many_pass_as_its_limit_says(world: World) {
    let mut pod = Pod::start(world, &[("d.yaml", &rules("fixed_window"))], &[]).await;
    let three = countdown(4, 3, "YEAR");
    pod.check(
        "d",
        &[
            Case("fixed window", "(fixed,$)", &three),
            Case("token bucket", "(bucket,$)", &three),
            Case("sliding window", "(window,$)", &three),
            Case("sliding log", "(log,$)", &three),
            // The burst passes at once.
            Case("burst", "(burst,$)", "OK 1/3 YEAR | OK 0/3 YEAR | OVER 0/3 YEAR"),
            // One slot in four months: the second request would have to wait for its slot.
            Case("leaky bucket", "(leaky,$)", "OK 0/3 YEAR | OVER 0/3 YEAR"),
        ],
    )
    .await;
}

in_every_world!(a_rule_that_changes_its_algorithm_begins_anew);

async fn a_rule_that_changes_its_algorithm_begins_anew(world: World) {
    let mut pod = Pod::start(world, &[("d.yaml", &rules("fixed_window"))], &[]).await;
    pod.loaded(1, 0).await;
    let three = countdown(4, 3, "YEAR");
    let changes = ["token_bucket", "sliding_log", "sliding_window"];
    pod.check("d", &[Case("fixed_window", "(fixed,same)", &three)]).await;
    for (algorithm, loads) in changes.iter().zip(2..) {
        pod.write("d.yaml", &rules(algorithm));
        pod.loaded(loads, 0).await;
        pod.check("d", &[Case(algorithm, "(fixed,same)", &three)]).await;
    }
}
