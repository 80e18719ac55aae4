//! From an empty database to a limit that a pod enforces, and back, by keyboard alone.

use serde_json::{Value, json};

use super::{HEADING, ask, click, contains, go, opened, pod, put, rule, text_of};
use crate::support::chromium::Browser;
use crate::support::control::Control;
use crate::support::ratelease::Ratelease;

const FAULT: &str = "[data-faults=\"rate_limit.requests_per_unit\"]";
const UNIT: &str = "[data-field=\"rate_limit.unit\"]";
const REQUESTS: &str = "[data-field=\"rate_limit.requests_per_unit\"]";

/// The numbers of a dry run.
const TILES: &str =
    "[...document.querySelectorAll('#dry-run-result dd')].map((it) => it.textContent)";

/// The three decision samples that the pod has logged.
async fn samples_of(pod: &Ratelease) -> String {
    pod.logs_times("ratelease::decision", 3).await.join("\n")
}

/// Moves the focus to a field, and types into it what replaces its text.
async fn fill(browser: &mut Browser, selector: &str, text: &str) {
    browser.tab_to(selector).await;
    browser.evaluate("document.activeElement.select?.()").await;
    browser.enter(text).await;
}

/// Three requests of one user within a second.
fn sample() -> String {
    let line = |second: u32| {
        let entries = json!([{"key": "user_id", "value": "7"}]);
        let time = format!("2026-11-23T19:00:0{second}Z");
        json!({"time": time, "domain": "shop", "descriptors": [{"entries": entries}]}).to_string()
    };
    (0..3).map(line).collect::<Vec<_>>().join("\n")
}

async fn pods_run(browser: &mut Browser, version: u32) {
    let words = format!("1 of 1 pod runs version {version}");
    browser.until(&text_of("#pods-summary"), &words.into()).await;
}

/// Finds the rule, raises its limit, tries that on what the pod logged, and publishes it.
async fn change_the_limit(browser: &mut Browser, pod: &Ratelease) {
    browser.press("/").await;
    browser.until("document.activeElement.id", &"search".into()).await;
    browser.enter("user").await;
    browser.until(&text_of("#list tbody a"), &"user_id".into()).await;
    browser.press("ArrowDown").await;
    browser.until(&text_of(":focus"), &"user_id".into()).await;
    browser.press("Enter").await;
    browser.until(HEADING, &"user_id".into()).await;
    fill(browser, REQUESTS, "4").await;
    browser.press("Control+s").await;
    browser.until(&contains("#history", "− rate_limit.requests_per_unit: 2"), &true.into()).await;
    go(browser, "#/changes", "Changes that are not published").await;
    browser.until("document.getElementById('reason') !== null", &true.into()).await;
    // What the pod logged is a sample as it is: the third request passes now.
    fill(browser, "[data-field=log]", &samples_of(pod).await).await;
    browser.tab_to("#dry-run").await;
    browser.press("Enter").await;
    browser.until(TILES, &json!(["3", "1", "0", "1", "33.3 %", "0 %"])).await;
    fill(browser, "#reason", "two were not").await;
    browser.press("Enter").await;
    pods_run(browser, 2).await;
}

/// Goes back to the first version.
async fn roll_back(browser: &mut Browser) {
    go(browser, "#/versions", "Versions").await;
    browser.until("document.querySelectorAll('main tbody tr').length", &2.into()).await;
    browser.press("j").await;
    browser.press("j").await;
    browser.until(&text_of(":focus"), &"Version 1".into()).await;
    browser.press("Enter").await;
    browser.until(HEADING, &"Version 1".into()).await;
    let changed = "[data-change=changed]";
    browser.until(&contains(changed, "+ rate_limit.requests_per_unit: 2"), &true.into()).await;
    fill(browser, "form [data-field=reason]", "back").await;
    browser.press("Enter").await;
    pods_run(browser, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_is_typed_mended_tried_published_and_rolled_back() {
    let control = Control::start().await;
    let samples = [("DECISION_SAMPLE_RATE", "1"), ("LOG_FORMAT", "json"), ("LOG_VALUES", "true")];
    let (pod, _dir) = pod(&control, "edge-1", &samples);
    let mut browser = opened(&control).await;
    browser.until(&contains("#list", "There are no rules yet"), &true.into()).await;
    browser.tab_to("#add").await;
    browser.press("Enter").await;
    browser.until(HEADING, &"New rule".into()).await;
    fill(&mut browser, "[data-field=domain]", "shop").await;
    fill(&mut browser, ".entry input", "user_id").await;
    browser.tab_to(UNIT).await;
    browser.press("y").await; // a window that does not end while the test runs
    let unit = format!("document.querySelector({}).value", json!(UNIT));
    browser.until(&unit, &"year".into()).await;
    browser.evaluate("document.activeElement.blur()").await;
    fill(&mut browser, REQUESTS, "many").await;
    browser.press("Control+s").await;
    browser.until(&contains(FAULT, "expected a whole number, 0 or more"), &true.into()).await;
    // The focus is at the field with the fault.
    let invalid = "document.activeElement.getAttribute('aria-invalid')";
    browser.until(invalid, &"true".into()).await;
    fill(&mut browser, REQUESTS, "2").await;
    browser.press("Control+s").await;
    browser.until(HEADING, &"user_id".into()).await;

    browser.tab_to("#to-changes").await;
    browser.press("Enter").await;
    let added = "[data-change=added]";
    browser.until(&contains(added, "+ rate_limit.requests_per_unit: 2"), &true.into()).await;
    browser.until("document.getElementById('dry-run') !== null", &true.into()).await;
    fill(&mut browser, "[data-field=log]", &sample()).await;
    browser.tab_to("#dry-run").await;
    browser.press("Enter").await;
    browser.until(TILES, &json!(["3", "1", "1", "0", "0 %", "33.3 %"])).await;
    fill(&mut browser, "#reason", "two are enough").await;
    browser.press("Enter").await;
    pods_run(&mut browser, 1).await;
    assert_eq!([ask(&pod).await, ask(&pod).await, ask(&pod).await], [200, 200, 429]);

    change_the_limit(&mut browser, &pod).await;
    roll_back(&mut browser).await;
    let versions = control.call("GET", "/v1/versions", &Value::Null).await;
    assert_eq!(versions["versions"][0]["restores"], 1, "{versions}");
    assert_eq!(versions["versions"][0]["reason"], "back");
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    browser.close().await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_paged_searched_and_gone_through_by_keys() {
    let control = Control::start().await;
    let items = (0..2500).map(|n| {
        format!("- {{key: user, value: u{n}, rate_limit: {{unit: day, requests_per_unit: {n}}}}}\n")
    });
    let text = format!("domain: shop\ndescriptors:\n{}", items.collect::<String>());
    let files = json!({"files": [{"name": "shop.yaml", "yaml": text}]});
    control.import(&files).await;
    control.call("POST", "/v1/rules", &rule("bank", "card", "", 5)).await;
    let mut browser = opened(&control).await;
    let rows = "document.querySelectorAll('#list tbody tr').length";
    browser.until(rows, &100.into()).await;
    browser.until(&text_of("#listed"), &"the first 100".into()).await;
    click(&mut browser, "#more").await;
    browser.until(rows, &200.into()).await;
    put(&mut browser, "#search", "u2499").await;
    browser.until(rows, &1.into()).await;
    browser.until(&text_of("#listed"), &"1 rule".into()).await;
    browser.press("Escape").await;
    browser.until(rows, &100.into()).await;
    let domain = "(() => { const list = document.getElementById('domain-filter'); \
                  list.value = 'shop'; list.dispatchEvent(new Event('change')); })()";
    browser.evaluate(domain).await;
    browser.until(&text_of("#list tbody a"), &"user=u0".into()).await;
    browser.evaluate("document.activeElement.blur()").await;
    for key in ["j", "j", "ArrowDown", "k", "ArrowUp", "j"] {
        browser.press(key).await;
    }
    browser.until(&text_of(":focus"), &"user=u1".into()).await;
    browser.press("Enter").await;
    browser.until(HEADING, &"user=u1".into()).await;
    // The list is as it was, and the focus where it was.
    browser.press("Escape").await;
    browser.until("document.getElementById('domain-filter')?.value", &"shop".into()).await;
    browser.until(&text_of("#list tbody a:focus"), &"user=u1".into()).await;
    browser.close().await;
}
