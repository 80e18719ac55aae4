//! V4: the three headers, and of which descriptor they tell.

use super::{Pod, World, in_every_world};

const RULES: &str = "
domain: d
descriptors:
  - {key: k0, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: k10, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: k20, rate_limit: {unit: hour, requests_per_unit: 20}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
";

const ENABLED: (&str, &str) = ("LIMIT_RESPONSE_HEADERS_ENABLED", "true");

in_every_world!(headers_tell_of_the_tightest_descriptor, headers_take_their_names_from_settings);

/// Asks, and expects the headers to tell of the descriptor of this index, or to be none.
async fn check(pod: &mut Pod, names: [&str; 3], request: &str, of: Option<usize>) {
    let answer = pod.ask("d", request).await.unwrap();
    let headers = answer.response.response_headers_to_add.iter();
    let told: Vec<_> = headers.map(|h| (h.key.as_str(), h.value.clone())).collect();
    let status = of.map(|at| &answer.response.statuses[at]);
    let expected = status.map(|status| {
        let limit = status.current_limit.as_ref().unwrap().requests_per_unit.to_string();
        let reset = status.duration_until_reset.as_ref().unwrap().seconds.to_string();
        [limit, status.limit_remaining.to_string(), reset]
    });
    let expected: Vec<_> = names.into_iter().zip(expected.into_iter().flatten()).collect();
    assert_eq!(told, expected, "{request}: {}", answer.text());
}

async fn headers_tell_of_the_tightest_descriptor(world: World) {
    let names = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];
    let mut pod = Pod::start(world, &[("d.yaml", RULES)], &[ENABLED]).await;
    for (request, of) in [
        ("(k10,a)+11", Some(0)),
        ("(k10,b)", Some(0)),
        ("(k20,c); (k10,c)", Some(1)),
        ("(k10,d)+4; (k20,d)+14", Some(0)),
        ("(nowhere,e); (k10,e); (free,e)", Some(1)),
        ("(k0,f); (k20,f)+21; (k10,f)+10", Some(1)),
        // Only rules that deny by themselves go before the fewest remaining.
        ("(k20,g); (quota,g); (k10,g)", Some(1)),
        ("(k0,h); (quota,h)", Some(0)),
        ("(k20,i); (shadow,i)", Some(1)),
        ("(k10,j)@3/HOUR; (k10,j2)", Some(0)),
        ("(nowhere,k); (free,k)", None),
    ] {
        check(&mut pod, names, request, of).await;
    }
}

async fn headers_take_their_names_from_settings(world: World) {
    let env = [
        ENABLED,
        ("LIMIT_LIMIT_HEADER", "X-Limit"),
        ("LIMIT_REMAINING_HEADER", "x-left"),
        ("LIMIT_RESET_HEADER", "X-Reset-In"),
    ];
    let mut pod = Pod::start(world, &[("d.yaml", RULES)], &env).await;
    let names = ["X-Limit", "x-left", "X-Reset-In"];
    check(&mut pod, names, "(k10,a)+11", Some(0)).await;
    check(&mut pod, names, "(k10,b)", Some(0)).await;

    let mut pod = Pod::start(world, &[("d.yaml", RULES)], &env[1..]).await;
    check(&mut pod, names, "(k10,c)+11", None).await;
}
