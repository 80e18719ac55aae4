//! Decisions by who calls which endpoint: `/shouldAllow` and `/api/v1/rate_limit`. The rules and
//! the counts are those of gRPC.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::pod::clear_of_window_ends;
use super::{Pod, World};
use crate::support::files::dir_of;
use crate::support::http::{Answer, Client};
use crate::support::ports::free_port;
use crate::support::ratelease::Ratelease;

const RULES: &str = "
domain: default
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 10}
    descriptors:
      - {key: api, value: /payments, rate_limit: {unit: day, requests_per_unit: 3}}
      - {key: api, value: /free, rate_limit: {unlimited: true}}
  - {key: user, value: vip, rate_limit: {unit: year, requests_per_unit: 1000}}
  - {key: ip, rate_limit: {unit: year, requests_per_unit: 5}}
  - key: tier
    value: trial
    rate_limit: {unit: year, requests_per_unit: 100}
    descriptors:
      - {key: user, rate_limit: {unit: year, requests_per_unit: 7}}
      - key: api
        value: /login
        descriptors:
          - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
          - {key: ip, rate_limit: {unit: year, requests_per_unit: 1}}
";

/// The numbers of an answer without its times: status, limit and remaining.
fn numbers(answer: &Answer) -> (u16, Value, Value) {
    let body = body(answer);
    assert_eq!(body["allowed"], answer.status == 200, "{answer:?}");
    (answer.status, body["limit"].clone(), body["remaining"].clone())
}

fn body(answer: &Answer) -> Value {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    serde_json::from_str(&answer.body).expect("an answer in JSON")
}

async fn post(client: &mut Client, scope: &str, value: &str, api: &str, cost: u32) -> Answer {
    let body = json!({"scope": scope, "scope_value": value, "api": api, "cost": cost});
    client.send("POST", "/shouldAllow", &[], body.to_string()).await.unwrap()
}

async fn get(client: &mut Client, query: &str) -> Answer {
    client.get(&format!("/api/v1/rate_limit?{query}"), &[]).await.unwrap()
}

async fn start(world: World) -> (Pod, Client) {
    let pod = Pod::start(world, &[("default.yaml", RULES)], &[]).await;
    let client = Client::connect(pod.http()).await.unwrap();
    (pod, client)
}

async fn one_count(world: World) {
    let (mut pod, mut http) = start(world).await;
    clear_of_window_ends().await;
    let answer = post(&mut http, "user", "a", "/payments", 1).await;
    assert_eq!(numbers(&answer), (200, json!(3), json!(2)));
    let grpc = pod.ask("default", "(user,a)(api,/payments)").await.unwrap();
    assert_eq!(grpc.text(), "OK 1/3 DAY");
    let answer = get(&mut http, "user_id=a&endpoint=%2Fpayments").await;
    assert_eq!(numbers(&answer), (200, json!(3), json!(0)));
    // The limit of all endpoints was charged by the two requests over HTTP alone, once each, and
    // not by one that the other limit denies.
    for answer in [
        post(&mut http, "user", "a", "/payments", 1).await,
        get(&mut http, "user_id=a&endpoint=/payments").await,
    ] {
        assert_eq!(numbers(&answer), (429, json!(3), json!(0)));
    }
    assert_eq!(pod.ask("default", "(user,a)").await.unwrap().text(), "OK 7/10 YEAR");
    assert_eq!(pod.ask("default", "(user,a)(api,/payments)").await.unwrap().text(), "OVER 0/3 DAY");
}

#[tokio::test]
async fn requests_over_http_and_grpc_take_from_one_count() {
    one_count(World::Memory).await;
}

#[tokio::test]
async fn requests_over_http_and_grpc_take_from_one_count_on_a_cluster() {
    one_count(World::Cluster).await;
}

#[tokio::test]
async fn the_headers_and_the_times_are_those_of_the_body() {
    let (_pod, mut http) = start(World::Memory).await;
    clear_of_window_ends().await;
    let allowed = post(&mut http, "user", "b", "/payments", 2).await;
    let denied = post(&mut http, "user", "b", "/payments", 2).await;
    assert_eq!(numbers(&allowed), (200, json!(3), json!(1)));
    assert_eq!(denied.status, 429);
    for answer in [&allowed, &denied] {
        let body = body(answer);
        for (header, field) in [
            ("x-ratelimit-limit", "limit"),
            ("x-ratelimit-remaining", "remaining"),
            ("x-ratelimit-reset", "reset_time"),
        ] {
            assert_eq!(answer.header(header), Some(&*body[field].to_string()), "{answer:?}");
        }
        // A window of a day ends with the day.
        let reset = body["reset_time"].as_u64().unwrap();
        assert_eq!(reset % 86_400, 0, "{answer:?}");
        let unix = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!((unix..=unix + 86_400).contains(&reset), "{answer:?}");
    }
    let after = body(&denied)["retry_after"].as_u64().unwrap();
    assert!((1..=86_400).contains(&after), "{denied:?}");
    assert_eq!(denied.header("retry-after"), Some(&*after.to_string()));
    assert_eq!((&body(&allowed)["retry_after"], allowed.header("retry-after")), (&json!(0), None));
}

#[tokio::test]
async fn what_no_rule_limits_is_allowed_without_numbers() {
    let (_pod, mut http) = start(World::Memory).await;
    for answer in [
        post(&mut http, "org", "acme", "/payments", 1).await,
        post(&mut http, "tier", "gold", "/", u32::MAX).await,
    ] {
        let expected = json!({"allowed": true, "limit": null, "remaining": null,
            "reset_time": null, "retry_after": 0});
        assert_eq!((answer.status, body(&answer)), (200, expected));
        assert!(!answer.headers.iter().any(|(name, _)| name.starts_with("x-ratelimit")));
    }
    // An endpoint without a limit of its own still counts for the limit of all endpoints.
    assert_eq!(
        numbers(&post(&mut http, "user", "c", "/free", 4).await),
        (200, json!(10), json!(6))
    );
}

#[tokio::test]
async fn the_cost_is_charged_whole_or_not_at_all() {
    let (_pod, mut http) = start(World::Memory).await;
    let remaining = async |http: &mut Client, cost: u32| {
        let answer = post(http, "user", "d", "/search", cost).await;
        (answer.status, body(&answer)["remaining"].clone())
    };
    assert_eq!(remaining(&mut http, 4).await, (200, json!(6)));
    assert_eq!(remaining(&mut http, 6).await, (200, json!(0)));
    assert_eq!(remaining(&mut http, 1).await, (429, json!(0)));
    let default = r#"{"scope":"user","scope_value":"e","api":"/"}"#;
    let answer = http.send("POST", "/shouldAllow", &[], default).await.unwrap();
    assert_eq!(numbers(&answer), (200, json!(10), json!(9)));
}

#[tokio::test]
async fn a_caller_has_the_limits_of_the_user_the_address_and_the_tier() {
    let (mut pod, mut http) = start(World::Memory).await;
    let mut asked = async |query: &str| numbers(&get(&mut http, query).await);
    // Of the user (10), the address (5), the tier (100) and a user of the tier (7), the address has
    // the fewest left; with an endpoint that has a limit for each user of the tier, that has.
    let all = "user_id=u&ip=1.1.1.1&tier=trial&endpoint";
    assert_eq!(asked(&format!("{all}=/search")).await, (200, json!(5), json!(4)));
    assert_eq!(asked(&format!("{all}=/login")).await, (200, json!(2), json!(1)));
    assert_eq!(asked(&format!("{all}=/login")).await, (200, json!(2), json!(0)));
    assert_eq!(asked(&format!("{all}=/login")).await, (429, json!(2), json!(0)));
    // Another user of the tier has a count of his own; without a user the address stands for one.
    let other = "user_id=w&ip=2.2.2.2&tier=trial&endpoint=/login";
    assert_eq!(asked(other).await, (200, json!(2), json!(1)));
    let anonymous = "ip=3.3.3.3&tier=trial&endpoint=/login";
    assert_eq!(asked(anonymous).await, (200, json!(1), json!(0)));
    assert_eq!(asked(anonymous).await, (429, json!(1), json!(0)));
    // A rule of one value takes the place of the rule of its key.
    assert_eq!(asked("user_id=vip&endpoint=/payments").await, (200, json!(1000), json!(999)));
    // Each limit was charged once by each request that passed.
    for (descriptor, left) in [
        ("(user,u)", "OK 6/10 YEAR"),
        ("(ip,1.1.1.1)", "OK 1/5 YEAR"),
        ("(tier,trial)(user,u)", "OK 3/7 YEAR"),
        ("(tier,trial)", "OK 94/100 YEAR"),
    ] {
        assert_eq!(pod.ask("default", descriptor).await.unwrap().text(), left, "{descriptor}");
    }
}

#[tokio::test]
async fn the_domain_is_a_setting() {
    let rules = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, \
                 requests_per_unit: 2}}]\n";
    let env = [("SCOPED_RULES_DOMAIN", "shop")];
    let rules = [("default.yaml", RULES), ("shop.yaml", rules)];
    let pod = Pod::start(World::Memory, &rules, &env).await;
    let mut http = Client::connect(pod.http()).await.unwrap();
    let answer = post(&mut http, "user", "a", "/payments", 1).await;
    assert_eq!(numbers(&answer), (200, json!(2), json!(1)));
}

#[tokio::test]
async fn without_redis_the_failure_mode_of_the_rule_answers() {
    let limit = |mode: &str| {
        format!("rate_limit: {{unit: year, requests_per_unit: 1, failure_mode: {mode}}}")
    };
    let rules = format!(
        "domain: default\ndescriptors:\n  - {{key: user, {}}}\n  - {{key: ip, {}}}\n  - {{key: \
         org, {}}}\n",
        limit("allow"),
        limit("deny"),
        limit("error")
    );
    let rules = dir_of(&[("default.yaml", &rules)]);
    let nowhere = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let pod = Ratelease::start(rules.path(), &[nowhere], &[("LEASE_MAX_WAIT", "50ms")]).await;
    let mut http = Client::connect(pod.http).await.unwrap();
    for _ in 0..3 {
        assert_eq!(post(&mut http, "user", "a", "/", 1).await.status, 200);
        let denied = post(&mut http, "ip", "a", "/", 1).await;
        assert_eq!((denied.status, denied.header("retry-after").is_some()), (429, true));
        let error = post(&mut http, "org", "a", "/", 1).await;
        assert_eq!(error.status, 503, "{error:?}");
        assert_eq!(error.header("content-type"), Some("application/problem+json"));
        assert_eq!(error.header("retry-after"), Some("1"));
        let problem: Value = serde_json::from_str(&error.body).unwrap();
        assert_eq!(problem["type"], "urn:ratelease:problem:unavailable");
        assert_eq!(post(&mut http, "api_key", "a", "/", 1).await.status, 200, "no rule");
        let query = "user_id=a&ip=a&endpoint=/";
        assert_eq!(get(&mut http, query).await.status, 429, "one of its limits denies");
    }
}

#[tokio::test]
async fn without_rules_there_is_no_decision() {
    let rules = [("default.yaml", "domain: default\ndescriptors: [{key: }]\n")];
    let pod = Pod::start_unready(World::Memory, &rules, &[]).await;
    let mut http = Client::connect(pod.http()).await.unwrap();
    let answer = post(&mut http, "user", "a", "/", 1).await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("no rate limit configuration loaded"), "{answer:?}");
}
