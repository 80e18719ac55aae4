//! V4: the three headers, and the descriptor that they describe. Also our own headers.

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

in_every_world!(
    headers_tell_of_the_tightest_descriptor,
    headers_take_their_names_from_settings,
    more_headers_are_sent_where_they_are_configured,
);

/// Sends a request, and checks that the headers describe the descriptor of this index, or are
/// absent.
async fn check(pod: &mut Pod, names: [&str; 3], request: &str, of: Option<usize>) {
    let answer = pod.ask("d", request).await.unwrap();
    let headers = answer.response.response_headers_to_add.iter();
    let reported: Vec<_> = headers.map(|h| (h.key.as_str(), h.value.clone())).collect();
    let status = of.map(|at| &answer.response.statuses[at]);
    let expected = status.map(|status| {
        let limit = status.current_limit.as_ref().unwrap().requests_per_unit.to_string();
        let reset = status.duration_until_reset.as_ref().unwrap().seconds.to_string();
        [limit, status.limit_remaining.to_string(), reset]
    });
    let expected: Vec<_> = names.into_iter().zip(expected.into_iter().flatten()).collect();
    assert_eq!(reported, expected, "{request}: {}", answer.text());
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
        // Only rules that enforce their denials take precedence over the fewest remaining tokens.
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

/// Our own headers, requested by name: they agree with the statuses.
async fn more_headers_are_sent_where_they_are_configured(world: World) {
    let env = [("RESPONSE_HEADERS", "x-ratelimit,retry-after,ietf")];
    let mut pod = Pod::start(world, &[("d.yaml", RULES)], &env).await;
    for (request, tightest, over) in
        [("(k10,a); (k20,a)", 0, false), ("(k20,b); (k10,b)+11", 1, true)]
    {
        let response = pod.ask("d", request).await.unwrap().response;
        let value = |name: &str| {
            let mut headers = response.response_headers_to_add.iter();
            headers.find(|header| header.key == name).map(|header| header.value.clone())
        };
        let seconds = |at: usize| {
            let reset = response.statuses[at].duration_until_reset.as_ref();
            reset.map(|span| span.seconds.to_string())
        };
        let remaining = |at: usize| response.statuses[at].limit_remaining;
        let (first, second) = if tightest == 0 { (10, 60) } else { (20, 3600) };
        let (then, last) = if tightest == 0 { (20, 3600) } else { (10, 60) };
        let limits = format!("10, {first};w={second}, {then};w={last}");
        assert_eq!(value("X-RateLimit-Limit"), Some(limits));
        assert_eq!(value("X-RateLimit-Remaining"), Some(remaining(tightest).to_string()));
        assert_eq!(value("X-RateLimit-Reset"), seconds(tightest));
        let policy = r#""d.k10";q=10;w=60, "d.k20";q=20;w=3600"#;
        assert_eq!(value("RateLimit-Policy").as_deref(), Some(policy));
        let item = |name: &str, at: usize| match seconds(at) {
            Some(seconds) => format!("{name:?};r={};t={seconds}", remaining(at)),
            None => format!("{name:?};r={}", remaining(at)),
        };
        let standing = format!("{}, {}", item("d.k10", tightest), item("d.k20", 1 - tightest));
        assert_eq!(value("RateLimit"), Some(standing));
        assert_eq!(value("Retry-After"), seconds(tightest).filter(|_| over));
        assert_eq!(value("RateLimit-Limit"), None, "the reference's were not asked for");
    }
}
