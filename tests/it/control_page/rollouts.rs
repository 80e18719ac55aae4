//! Rollouts and rule files on the page: a draft that goes to some pods first, and on or back; files
//! that are imported and saved.

use std::time::Duration;

use serde_json::{Value, json};

use super::{HEADING, ask, click, contains, go, opened, pod, put, text_of};
use crate::support::chromium::Browser;
use crate::support::control::Control;
use crate::support::now;
use crate::support::ratelease::Ratelease;

/// Limit for what takes a few seconds, on a machine that also compiles.
pub(super) const SOON: Duration = Duration::from_secs(40);

/// Two pods, of which a rollout with half of the pods draws one.
const PODS: [&str; 2] = ["pod-0", "pod-1"];

/// Why the next step of a rollout is taken.
const REASON: &str = "main form [data-field=reason]";

const CHANGES: &str = "Changes that are not published";

/// Hits, denied hits and those that would be denied, of the chosen pods and the others.
const FIGURES: &str = "[...document.querySelectorAll('#figures table')[0].tBodies[0].rows]\
    .map((row) => [...row.cells].slice(1).map((it) => it.textContent))";

fn limit(requests: u32) -> Value {
    let limit = json!({"unit": "year", "requests_per_unit": requests});
    json!({"domain": "shop", "entries": [{"key": "user_id"}], "rate_limit": limit})
}

/// Publishes a limit that no test reaches, and makes one of 2 the draft.
async fn prepare(control: &Control) {
    let added = control.call("POST", "/v1/rules?publish=true", &limit(1_000_000)).await;
    let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
    control.call("PUT", &path, &json!({"rate_limit": limit(2)["rate_limit"]})).await;
}

/// Chooses one of the choices of a field.
async fn choose(browser: &mut Browser, field: &str, value: &str) {
    let query = format!("document.querySelector({})", json!(field));
    browser.until(&format!("{query} !== null"), &true.into()).await;
    let value = json!(value);
    let script = format!("{query}.value = {value}, {query}.dispatchEvent(new Event('change'))");
    browser.evaluate(&script).await;
}

/// Sends requests to these pods until the page shows what is wanted.
async fn load_until(browser: &mut Browser, pods: &[&Ratelease], wanted: &str) {
    let end = now() + SOON;
    while browser.evaluate(wanted).await != true {
        for pod in pods {
            ask(pod).await;
        }
        assert!(now() < end, "{wanted}: {}", browser.evaluate(FIGURES).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn status_becomes(pod: &Ratelease, status: u16) {
    pod.process.until("the answer", SOON, async || ask(pod).await == status).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_begun_watched_and_advanced_to_all_pods() {
    let control = Control::start().await;
    prepare(&control).await;
    let [(first, _first_dir), (second, _second_dir)] = PODS.map(|id| pod(&control, id, &[]));
    let mut browser = opened(&control).await;
    for pod in [&first, &second] {
        pod.ready().await;
    }
    control.lists(2).await;
    go(&mut browser, "#/changes", CHANGES).await;
    put(&mut browser, "[data-field=\"pods.percent\"]", "50").await;
    put(&mut browser, "#rolling-out [data-field=reason]", "fewer").await;
    click(&mut browser, "#begin").await;
    browser.until(HEADING, &"Rollout 1".into()).await;
    browser.until(&contains("#stage-words", "The limits in force stay"), &true.into()).await;
    let counts = format!(
        "Number({FIGURES}[0][2].split(' ')[0]) > 2 && \
         {FIGURES}[0][1] === '0 (0 %)' && {FIGURES}[1][2] === '0 (0 %)'"
    );
    load_until(&mut browser, &[&first, &second], &counts).await;
    let list = control.call("GET", "/v1/pods", &Value::Null).await;
    let rows = list["pods"].as_array().unwrap();
    let drawn: Vec<_> = rows.iter().filter(|it| it["rollouts"] == json!([1])).collect();
    assert_eq!(drawn.len(), 1, "{list}");
    let is_first = drawn[0]["node"] == PODS[0];
    let (chosen, other) = if is_first { (first, second) } else { (second, first) };
    assert_eq!(ask(&chosen).await, 200, "in shadow the limit in force decides");

    put(&mut browser, REASON, "no request was denied").await;
    click(&mut browser, "#advance").await;
    browser.until(&contains("#stage-words", "Chosen pods enforce the draft"), &true.into()).await;
    browser.until(&contains("#notice", "at the stage enforced"), &true.into()).await;
    status_becomes(&chosen, 429).await;
    assert_eq!(ask(&other).await, 200);
    let denies = format!("/^[1-9]/.test({FIGURES}[0][1]) && {FIGURES}[1][1] === '0 (0 %)'");
    load_until(&mut browser, &[&other, &chosen], &denies).await;
    go(&mut browser, "#/pods", "Pods").await;
    browser.until(&contains("#pods", "rollout 1"), &true.into()).await;
    browser.until(&contains("#under-way", "Rollout 1 is under way"), &true.into()).await;

    go(&mut browser, "#/rollouts/1", "Rollout 1").await;
    click(&mut browser, "#advance").await;
    browser.until(&contains("main form .fault", "is missing; say why"), &true.into()).await;
    let rollout = control.call("GET", "/v1/rollouts/1", &Value::Null).await;
    assert_eq!(rollout["stage"], "enforced", "a click alone publishes nothing");
    put(&mut browser, REASON, "as counted").await;
    click(&mut browser, "#advance").await;
    browser.until(&contains("#stage-words", "it is published"), &true.into()).await;
    browser.until(&contains("main", "as counted"), &true.into()).await;
    browser.until("document.getElementById('advance')", &Value::Null).await;
    status_becomes(&other, 429).await;
    go(&mut browser, "#/rollouts", "Rollouts").await;
    let row = "[...document.querySelector('main tbody tr').cells].slice(0, 4)\
               .map((it) => it.textContent)";
    let expected = json!(["Rollout 1", "all", "50 % of the pods", "shop"]);
    browser.until(row, &expected).await;
    go(&mut browser, "#/versions", "Versions").await;
    // Before the rollout, whose steps are versions too.
    browser.until(&text_of("#way-back"), &"Roll back to version 1 …".into()).await;
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_of_a_label_is_mended_begun_and_aborted() {
    let control = Control::start().await;
    prepare(&control).await;
    let (pod, _dir) = pod(&control, "a", &[("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a")]);
    let mut browser = opened(&control).await;
    pod.ready().await;
    go(&mut browser, "#/changes", CHANGES).await;
    choose(&mut browser, "[data-field=pods]", "label").await;
    choose(&mut browser, "[data-field=stage]", "enforced").await;
    browser.until(&contains("#stage-meaning", "Chosen pods enforce"), &true.into()).await;
    put(&mut browser, "[data-field=\"pods.label.key\"]", "zone").await;
    put(&mut browser, "[data-field=\"pods.label.value\"]", "a").await;
    put(&mut browser, "[data-field=\"bound.denied_share\"]", "5").await;
    click(&mut browser, "#begin").await;
    browser.until(&contains("#rolling-out .fault", "is missing; say why"), &true.into()).await;
    put(&mut browser, "#rolling-out [data-field=reason]", "fewer").await;
    click(&mut browser, "#begin").await;
    let share = "[data-faults=\"bound.denied_share\"] .fault";
    browser.until(&contains(share, "expected a share from 0 to 1"), &true.into()).await;
    put(&mut browser, "[data-field=\"bound.denied_share\"]", "1").await;
    click(&mut browser, "#begin").await;
    browser.until(HEADING, &"Rollout 1".into()).await;
    let rollout = control.call("GET", "/v1/rollouts/1", &Value::Null).await;
    assert_eq!(rollout["choice"], json!({"label": {"key": "zone", "value": "a"}}));
    assert_eq!(rollout["bound"], json!({"denied_share": 1.0, "hits_min": 100}));
    assert_eq!(
        (&rollout["stage"], &rollout["steps"][0]["reason"]),
        (&"enforced".into(), &"fewer".into())
    );
    status_becomes(&pod, 429).await;

    // Meanwhile another one cannot begin, and what was typed stays while figures are drawn.
    put(&mut browser, REASON, "too few").await;
    go(&mut browser, "#/changes", CHANGES).await;
    browser.until(&contains("#under-way", "Rollout 1 is under way"), &true.into()).await;
    browser.until("document.getElementById('begin')", &Value::Null).await;
    click(&mut browser, "#under-way a").await;
    browser.until(HEADING, &"Rollout 1".into()).await;
    put(&mut browser, REASON, "too few").await;
    let denied = format!("/^[1-9]/.test({FIGURES}[0][1])");
    load_until(&mut browser, &[&pod], &denied).await;
    let reason = "document.querySelector('main form [data-field=reason]').value";
    assert_eq!(browser.evaluate(reason).await, "too few");
    click(&mut browser, "#abort").await;
    browser.until(&contains("#stage-words", "It was aborted"), &true.into()).await;
    browser.until(&contains("main", "aborted version 3: too few"), &true.into()).await;
    status_becomes(&pod, 200).await;
    browser.close().await;
}

/// Has the page note what it would have the browser save.
const NOTE_SAVED: &str = "(() => { window.saved = {}; let last; const make = URL.createObjectURL; \
    URL.createObjectURL = (blob) => { last = blob; return make.call(URL, blob); }; \
    HTMLAnchorElement.prototype.click = async function () { \
    const blob = last; window.saved[this.download] = await blob.text(); }; })()";

/// Has the page's field hold these files.
fn hold(files: &[(&str, &str)]) -> String {
    format!(
        "(() => {{ const all = new DataTransfer(); \
         {}.forEach(([name, text]) => all.items.add(new File([text], name))); \
         document.querySelector('[data-field=files]').files = all.files; }})()",
        json!(files)
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_files_are_imported_into_the_draft_and_saved_together_or_each() {
    let control = Control::start().await;
    let mut browser = opened(&control).await;
    go(&mut browser, "#/files", "Rule files").await;
    let rule = "descriptors:\n  - key: user_id\n    rate_limit:\n      unit: year\n      \
                requests_per_unit: 7\n";
    let [bank, shop] = ["bank", "shop"].map(|domain| format!("domain: {domain}\n{rule}"));
    let faulty = shop.replace("year", "fortnight");
    browser.evaluate(&hold(&[("shop.yaml", &faulty)])).await;
    click(&mut browser, "#import").await;
    browser.until(&contains("#imported", "shop.yaml"), &true.into()).await;
    browser.evaluate(&hold(&[("bank.yaml", &bank), ("shop.yaml", &shop)])).await;
    put(&mut browser, "[data-field=reason]", "from files").await;
    click(&mut browser, "#import").await;
    let cells = "[...document.querySelectorAll('#imported tbody tr')]\
                 .map((row) => [...row.cells].map((it) => it.textContent))";
    browser.until(cells, &json!([["bank", "1", "1"], ["shop", "1", "1"]])).await;
    click(&mut browser, "#imported a").await;
    browser.until(HEADING, &CHANGES.into()).await;

    go(&mut browser, "#/files", "Rule files").await;
    browser.evaluate(NOTE_SAVED).await;
    click(&mut browser, "#export-all").await;
    browser.until("window.saved['rules.tar']?.length > 0", &true.into()).await;
    let archive = browser.evaluate("window.saved['rules.tar']").await;
    let archive = archive.as_str().unwrap();
    for part in ["bank.yaml\0", "shop.yaml\0", "\0domain: bank\n", "\0domain: shop\n"] {
        assert!(archive.contains(part), "{part}: {archive}");
    }
    assert_eq!(archive.len() % 512, 0);
    click(&mut browser, "[aria-label='Save shop.yaml']").await;
    browser.until("Object.keys(window.saved).length", &2.into()).await;
    let saved = browser.evaluate("window.saved").await;
    let text = |name: &str| saved[name].as_str().unwrap().to_owned();
    let files = json!({"files": [{"name": "shop.yaml", "yaml": text("shop.yaml")}]});
    assert_eq!(control.import(&files).await["domains"][0]["changed"], 0);
    browser.close().await;
}
