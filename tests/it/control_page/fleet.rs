//! What real pods deny, on the page.

use serde_json::json;

use super::look::is_readable;
use super::{HOSTILE, contains, go, opened, pod};
use crate::support::control::Control;
use crate::support::http::Client;
use crate::support::ratelease::Ratelease;

/// The cells of the first row of a table.
fn first_row(table: &str) -> String {
    format!(
        "[...document.querySelector('#pods table.{table} tbody tr').cells]\
         .map((it) => it.textContent)"
    )
}

/// Asks a pod for one user.
async fn ask(pod: &Ratelease, user: &str) {
    let entries = json!([{"key": "user_id", "value": user}]);
    let body = json!({"domain": "shop", "descriptors": [{"entries": entries}]}).to_string();
    let mut client = Client::connect(pod.http).await.unwrap();
    client.send("POST", "/json", &[], body).await.unwrap();
}

/// Pods of a fleet, of which one hangs.
const PODS: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_hangs_is_one_row_and_behind() {
    let control = Control::start().await;
    let rule = |value| {
        let limit = json!({"unit": "year", "requests_per_unit": 5});
        let entries = json!([{"key": "user_id", "value": value}]);
        json!({"domain": "shop", "entries": entries, "rate_limit": limit})
    };
    control.call("POST", "/v1/rules?publish=true", &rule("a")).await;
    let pods: Vec<_> = (0..PODS).map(|at| pod(&control, &format!("pod-{at:02}"), &[])).collect();
    for (pod, _) in &pods {
        pod.ready().await;
    }
    let mut browser = opened(&control).await;
    go(&mut browser, "#/pods", "Pods").await;
    let runs = |count: usize, version: u32| {
        contains("#pods-summary", &format!("{count} of {PODS} pods run version {version}"))
    };
    browser.until(&runs(PODS, 1), &true.into()).await;
    let hangs = &pods[7].0;
    hangs.process.signal("STOP");
    control.call("POST", "/v1/rules?publish=true", &rule("b")).await;
    browser.until(&runs(PODS - 1, 2), &true.into()).await;
    // Node, state, and the versions that it runs and was sent.
    let rows = "[...document.querySelectorAll('#pods table tbody tr')]\
                .map((row) => [...row.cells].map((it) => it.textContent).slice(0, 4))\
                .filter((row) => row[0].startsWith('pod-'))";
    let shown = browser.evaluate(rows).await;
    let shown = shown.as_array().unwrap();
    assert_eq!(shown.len(), PODS, "{shown:?}");
    let behind: Vec<_> = shown.iter().filter(|row| row[1] != "● current").collect();
    assert_eq!(behind, [&json!(["pod-07", "◆ behind", "1", "2"])]);
    hangs.process.signal("CONT");
    browser.until(&runs(PODS, 2), &true.into()).await;
    assert_eq!(browser.complaints(), Vec::<&serde_json::Value>::new());
    browser.close().await;
    for (pod, _dir) in pods {
        assert_eq!(pod.stop().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_is_shown_with_what_it_denies_and_its_hottest_keys() {
    let control = Control::start().await;
    let limit = json!({"unit": "year", "requests_per_unit": 5});
    let rule = json!({"domain": "shop", "entries": [{"key": "user_id"}], "rate_limit": limit});
    control.call("POST", "/v1/rules?publish=true", &rule).await;
    let all = ("HOT_KEYS_SAMPLE", "1");
    let (hidden, _hidden_dir) = pod(&control, "hidden", &[all, ("KEY_SECRET", "of pods")]);
    let (shown, _shown_dir) = pod(&control, "shown", &[all, ("HOT_KEYS_VALUES", "true")]);
    // It sends no key: without a secret anyone could try values.
    let (open, _open_dir) = pod(&control, "open", &[all]);
    for pod in [&hidden, &shown, &open] {
        pod.ready().await;
    }
    let mut browser = opened(&control).await;
    go(&mut browser, "#/pods", "Pods").await;
    browser.until(&contains("#pods-summary", "3 of 3 pods run version 1"), &true.into()).await;
    // What was counted before a pod was asked for the first time is not reported.
    let reports = async || {
        let pods = control.call("GET", "/v1/pods", &serde_json::Value::Null).await;
        pods["pods"].as_array().unwrap().iter().filter(|it| it["reports"] == true).count() >= 3
    };
    control.process.until("pods that report", super::rollouts::SOON, reports).await;
    for _ in 0..20 {
        ask(&hidden, "not for the page").await;
    }
    for _ in 0..8 {
        ask(&shown, HOSTILE).await;
    }
    for _ in 0..10 {
        ask(&open, "no key").await;
    }
    // Domain, share, denied, hits, in shadow, pods and the busiest of them.
    let is_shown = format!(
        "(([domain, share, , , shadow, pods, busiest]) => domain === 'shop' && pods === '3' && \
         parseFloat(share) > 50 && shadow === '0' && busiest.startsWith('hidden: '))({})",
        first_row("denied")
    );
    browser
        .until(&format!("document.querySelector('table.denied') && {is_shown}"), &true.into())
        .await;
    let keys = "[...document.querySelectorAll('#pods table.hot tbody tr')]\
                .map((row) => [...row.cells].map((it) => it.textContent))";
    // Each pod reports at its own time: until then a part of the counts is shown.
    let counts = json!([["shop.user_id", "20", "15", "1"], ["shop.user_id", "8", "3", "1"]]);
    browser.until(&format!("{keys}.map((row) => row.slice(1))"), &counts).await;
    let hottest = browser.evaluate(keys).await;
    assert_eq!(hottest.as_array().unwrap().len(), 2, "{hottest}");
    let hash = hottest[0][0].as_str().unwrap();
    assert!(hash.len() == 22, "{hottest}");
    assert_eq!(hottest[0].as_array().unwrap()[1..], ["shop.user_id", "20", "15", "1"]);
    let key = format!("user_id={HOSTILE}");
    assert_eq!(hottest[1], json!([key, "shop.user_id", "8", "3", "1"]));
    let text = control.call("GET", "/v1/fleet", &serde_json::Value::Null).await.to_string();
    assert!(!text.contains("not for the page"), "{text}");
    is_readable(&mut browser, "the fleet").await;
    assert_eq!(browser.complaints(), Vec::<&serde_json::Value>::new());
    browser.close().await;
}
