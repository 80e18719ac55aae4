//! The headers as a client receives them.

use serde_json::json;

use crate::stand::{MACHINE, PATIENT, Rules, before, clear_of_midnight};
use crate::support::envoy::{Envoy, EnvoyOptions};
use crate::support::http::{Answer, Client};
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;

/// A window of two days, and names that would end a string or are not ASCII.
const RULES: &str = r#"
domain: told
descriptors:
  - key: path
    value: /told
    rate_limit: {unit: day, unit_multiplier: 2, requests_per_unit: 2, name: 'the "größte"'}
  - {key: generic_key, value: all, rate_limit: {unit: day, requests_per_unit: 1000}}
"#;

const ALL: &str = "reference,x-ratelimit,retry-after,ietf";

#[tokio::test]
async fn headers_name_every_limit_and_when_to_retry() {
    let _shared = MACHINE.read().await;
    clear_of_midnight().await;
    let rules = Rules::new(RULES);
    let env: Vec<_> = PATIENT.into_iter().chain([("RESPONSE_HEADERS", ALL)]).collect();
    let pod = Ratelease::start(rules.path(), &Cluster::shared().places(), &env).await;
    // Otherwise Envoy's own headers would be added.
    let off = json!({"enable_x_ratelimit_headers": "OFF"});
    let envoy = Envoy::start(EnvoyOptions { filter: off, ..before("told", &[&pod]) }).await;
    let mut client = Client::connect(envoy.ingress).await.unwrap();

    for (status, left, of_all) in [(200, 1, 999), (200, 0, 998), (429, 0, 998)] {
        let answer = client.get("/told", &[]).await.unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
        let told = |name: &str| one(&answer, name).to_owned();
        let name = r#""the \"gr%c3%b6%c3%9fte\"""#;
        assert_eq!(told("x-ratelimit-limit"), format!("2, 2;w=172800;name={name}, 1000;w=86400"));
        assert_eq!(told("x-ratelimit-remaining"), left.to_string());
        let policy = format!(r#"{name};q=2;w=172800, "told.generic_key_all";q=1000;w=86400"#);
        assert_eq!(told("ratelimit-policy"), policy);
        let (first, second) =
            (told("ratelimit"), format!(r#", "told.generic_key_all";r={of_all}"#));
        let reset = told("x-ratelimit-reset");
        assert!(first.starts_with(&format!("{name};r={left};t={reset}{second}")), "{first}");
        let reference = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"].map(told);
        assert_eq!(reference, ["2".to_owned(), left.to_string(), reset.clone()]);
        if status == 429 {
            assert_eq!(told("retry-after"), reset);
            let headers: Vec<_> =
                answer.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            println!("{}", headers.join("\n"));
        } else {
            assert_eq!(answer.header("retry-after"), None);
        }
    }
}

/// The value of a header that occurs once.
fn one<'a>(answer: &'a Answer, name: &str) -> &'a str {
    let mut values = answer.headers.iter().filter(|(it, _)| it == name);
    match (values.next(), values.next()) {
        (Some((_, value)), None) => value,
        _ => panic!("not one {name}: {answer:?}"),
    }
}
