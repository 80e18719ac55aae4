//! Rules that the control plane takes at `/rules`, enforced by a pod that it pushes to: over HTTP
//! by who calls which endpoint, and over gRPC from the same counts.

use serde_json::{Value, json};

use super::{SOON, has_limit, spawn};
use crate::support::control::Control;
use crate::support::http::Client;
use crate::support::raw_grpc::{Connection, descriptor, request};
use crate::support::shop::PATIENT;

const SCOPES: [&str; 5] = ["user", "ip", "org", "api_key", "tier"];

/// A rule of so many requests in a year, of a window that does not end while a test runs.
fn rule(scope: &str, value: &str, api: &str, requests: u32) -> Value {
    json!({"scope": scope, "scope_value": value, "api": api, "algorithm": "fixed_window",
        "max_requests": requests, "window_seconds": 31_536_000})
}

/// The message of a gRPC call with one descriptor of these entries.
fn message(entries: &[(&str, &str)]) -> Vec<u8> {
    let entries = entries.iter().flat_map(|(key, value)| descriptor(key, value));
    request("default", &[entries.collect()])
}

/// Asks a pod, and returns status, limit and remaining.
async fn asked(http: &mut Client, scope: &str, value: &str, api: &str) -> (u16, Value, Value) {
    let body = json!({"scope": scope, "scope_value": value, "api": api}).to_string();
    let answer = http.send("POST", "/shouldAllow", &[], body).await.unwrap();
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    (answer.status, body["limit"].clone(), body["remaining"].clone())
}

#[tokio::test]
async fn a_rule_of_the_control_plane_is_enforced_over_http_and_grpc_from_one_count() {
    let control = Control::start().await;
    for scope in SCOPES {
        for (value, api, requests) in
            [("one", "/payments", 2), ("", "/search", 3), ("two", "", 4), ("", "", 50)]
        {
            control.call("POST", "/rules", &rule(scope, value, api, requests)).await;
        }
    }
    let env = [("CONFIG_GRPC_XDS_RATELEASE", "true"), PATIENT];
    let (pod, _dir) = spawn(&control.pods.to_string(), &env);
    pod.ready().await;
    let grpc = Connection::open(pod.grpc).await;
    let has_rules = async || has_limit(&grpc, "default", "tier").await;
    pod.process.until("limiting", SOON, has_rules).await;
    let mut http = Client::connect(pod.http).await.unwrap();
    for scope in SCOPES {
        let mut ask = async |value, api| asked(&mut http, scope, value, api).await;
        assert_eq!(ask("one", "/payments").await, (200, json!(2), json!(1)), "{scope}");
        let entries = [(scope, "one"), ("api", "/payments")];
        let reply = grpc.call(&message(&entries)).await;
        assert_eq!(reply.is_over_limit(), Some(false), "{scope}: {reply:?}");
        assert_eq!(ask("one", "/payments").await, (429, json!(2), json!(0)), "{scope}");
        assert_eq!(grpc.call(&message(&entries)).await.is_over_limit(), Some(true), "{scope}");
        // Each value of a rule without one counts apart.
        for value in ["x", "y"] {
            assert_eq!(ask(value, "/search").await, (200, json!(3), json!(2)), "{scope}");
        }
        assert_eq!(ask("two", "/other").await, (200, json!(4), json!(3)), "{scope}");
        assert_eq!(ask("x", "/other").await, (200, json!(50), json!(48)), "{scope}");
    }
    // A changed rule is enforced soon after.
    let user = control.call("GET", "/rules?scope=user&scope_value=one", &Value::Null).await;
    let path = format!("/rules/{}", user[0]["rule_id"].as_str().unwrap());
    control.call("PUT", &path, &rule("user", "one", "/payments", 10)).await;
    let message = message(&[("user", "one"), ("api", "/payments")]);
    let is_raised = async || grpc.call(&message).await.is_over_limit() == Some(false);
    pod.process.until("allowing more", SOON, is_raised).await;
    let (status, limit, _) = asked(&mut http, "user", "one", "/payments").await;
    assert_eq!((status, limit), (200, json!(10)));
    assert_eq!(pod.stop().await, 0);
}
