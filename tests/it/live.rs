//! The live page, in a real browser, of a real pod.

mod events;
mod page;

use std::fs;

use tempfile::TempDir;

use crate::support::http::Client;
use crate::support::ratelease::Ratelease;

/// What would be markup, were it not text; and a dot that parts no levels.
const HOSTILE: &str = "<script>alert(1)</script>";
const VALUE: &str = "\"><img src=x onerror=alert(2)>";

/// A year's window does not end while a test runs.
const RULES: &str = "
domain: test
descriptors:
  - key: 'HOSTILE'
    value: 'VALUE'
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: a.b
    descriptors:
      - key: deep
        rate_limit: {unit: year, requests_per_unit: 1000}
  - key: user
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 2}
";

fn rules() -> TempDir {
    let dir = TempDir::new().unwrap();
    let text = RULES.replace("HOSTILE", HOSTILE).replace("VALUE", VALUE);
    fs::write(dir.path().join("test.yaml"), text).unwrap();
    dir
}

/// A pod that shows the values of hot keys, and counts each request for them.
async fn pod(rules: &TempDir) -> Ratelease {
    // Waiting is not what is tested here, on a machine that also compiles.
    let env = [("LEASE_MAX_WAIT", "5s"), ("HOT_KEYS_VALUES", "true"), ("HOT_KEYS_SAMPLE", "1")];
    Ratelease::start(rules.path(), &[], &env).await
}

/// Asks the pod so often about these entries.
async fn ask(pod: &Ratelease, times: usize, entries: &[(&str, &str)]) {
    let entries: Vec<_> = entries
        .iter()
        .map(|(key, value)| serde_json::json!({"key": key, "value": value}))
        .collect();
    let body = serde_json::json!({"domain": "test", "descriptors": [{"entries": entries}]});
    let mut client = Client::connect(pod.http).await.unwrap();
    for _ in 0..times {
        let answer = client.send("POST", "/json", &[], body.to_string()).await.unwrap();
        assert!([200, 429].contains(&answer.status), "{answer:?}");
    }
}
