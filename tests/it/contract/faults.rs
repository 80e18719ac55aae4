//! V5 to V7 and bad input: a request without a verdict gets an error with its reason, and the
//! connection stays open.

use std::net::SocketAddr;

use super::doors::Door;
use super::notation::request;
use super::{Case, Pod, World};
use crate::support::ports::free_port;
use crate::support::ratelease::Ratelease;

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 10}}
";

#[tokio::test]
async fn a_request_without_a_verdict_has_the_references_error() {
    let mut pod = Pod::start(World::Memory, &[("d.yaml", RULES)], &[]).await;
    let rows = [
        Case("V5 domain", ":(k,$)", "Unknown rate limit domain must not be empty"),
        Case("V5 descriptors", "", "Unknown rate limit descriptor list must not be empty"),
        Case("V5 both", ":", "Unknown rate limit domain must not be empty"),
        Case("the connection lives", "(k,$)", "OK 9/10 HOUR"),
    ];
    pod.check("d", &rows).await;
    let mut pod = Pod::start(World::MemoryOverHttp, &[("d.yaml", RULES)], &[]).await;
    let rows = [
        Case("V5 domain", ":(k,$)", "400 rate limit domain must not be empty"),
        Case("V5 descriptors", "", "400 rate limit descriptor list must not be empty"),
        Case("the connection lives", "(k,$)", "OK 9/10 HOUR"),
    ];
    pod.check("d", &rows).await;
}

#[tokio::test]
async fn a_request_beyond_the_bounds_is_refused_and_at_them_served() {
    let mut pod = Pod::start(World::Memory, &[("d.yaml", RULES)], &[]).await;
    let entries = |count| "(k,v)".repeat(count);
    let descriptors = |count| vec!["(nowhere,v)"; count].join("; ");
    let long = "v".repeat(900_000);
    let rows = [
        Case("entries", &entries(64), "none"),
        Case(
            "more entries",
            &format!("(k,v); {}", entries(65)),
            "InvalidArgument descriptor 1 has more entries than the 64 that are accepted",
        ),
        Case("descriptors", &descriptors(256), &format!("OK: {}", vec!["none"; 256].join("; "))),
        Case(
            "more descriptors",
            &descriptors(257),
            "InvalidArgument more descriptors in one request than the 256 that are accepted",
        ),
        Case("a long value", &format!("(k,{long}$)"), "OK 9/10 HOUR | OK 8/10 HOUR"),
        Case("the connection lives", "(k,$)", "OK 9/10 HOUR"),
    ];
    pod.check("d", &rows).await;
    let too_long = format!("(k,{long}{long})");
    let error = pod.ask("d", &too_long).await.unwrap_err();
    assert!(error.starts_with("ResourceExhausted "), "{error}");
    pod.check("d", &[Case("the connection lives", "(k,$)", "OK 9/10 HOUR")]).await;
}

/// V6. The reference answers UNKNOWN, or hangs.
#[tokio::test]
async fn without_redis_there_is_an_error_in_time_and_what_needs_none_is_served() {
    let rules = tempfile::tempdir().unwrap();
    let file = format!("defaults: {{failure_mode: error}}\n{RULES}");
    std::fs::write(rules.path().join("d.yaml"), file).unwrap();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let pod = Ratelease::start(rules.path(), &[nowhere], &[("LEASE_MAX_WAIT", "50ms")]).await;
    let (mut grpc, mut http) = (Door::grpc(&pod).await, Door::http(&pod).await);
    for _ in 0..3 {
        let error = grpc.ask(request("d", "(nowhere,x); (k,x)")).await.unwrap_err();
        let reason = error.strip_prefix("Unavailable ").unwrap_or_default();
        assert!(is_of_the_store(reason), "{error}");
        let error = http.ask(request("d", "(k,x)")).await.unwrap_err();
        assert!(is_of_the_store(error.strip_prefix("400 ").unwrap_or_default()), "{error}");
        assert_eq!(grpc.ask(request("d", "(nowhere,x)")).await.unwrap().text(), "none");
    }
}

/// Whether an error says that the store did not answer, or was not asked because it had not.
fn is_of_the_store(error: &str) -> bool {
    ["the store ", "the circuit breaker is open"].iter().any(|it| error.starts_with(it))
}

/// V7, and the reference's behaviour after it.
#[tokio::test]
async fn without_rules_every_request_is_refused_until_there_are_some() {
    for world in [World::Memory, World::MemoryOverHttp] {
        let rules = [("d.yaml", "domain: d\ndescriptors: [{key: }]\n")];
        let mut pod = Pod::start_unready(world, &rules, &[]).await;
        // The reference's /json says 400, as if the request were wrong.
        let refused = match world {
            World::Memory => "Unknown no rate limit configuration loaded",
            _ => {
                "503 no rate limit configuration loaded: the rules were refused; see the log, or \
                  /status"
            }
        };
        pod.check("d", &[Case("V7", "(k,$)", refused)]).await;
        pod.write("d.yaml", RULES);
        pod.loaded(1, 1).await;
        pod.check("d", &[Case("mended", "(k,$)", "OK 9/10 HOUR")]).await;
    }
}
