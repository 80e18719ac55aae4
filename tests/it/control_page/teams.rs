//! Several teams on one page: which domains are published, discarded and rolled back.

use serde_json::{Value, json};

use super::look::is_readable;
use super::{HEADING, click, contains, go, opened, put, rule, signed_in, text_of};
use crate::support::chromium::Browser;
use crate::support::control::Control;

const CHANGES: &str = "Changes that are not published";

/// Each domain of Changes: its name, and whether it may be chosen and is.
const BOXES: &str = "[...document.querySelectorAll('#choosing tbody tr')].map((row) => { \
    const box = row.querySelector('input'); \
    return [row.querySelector('label').textContent, !box.disabled, box.checked]; })";

/// The rows of Versions, without when, by whom and why.
const VERSIONS: &str = "[...document.querySelectorAll('main tbody tr')].map((row) => \
    [0, 1, 5].map((at) => row.cells[at].textContent))";

/// Changes the limit of the first rule of a domain.
async fn change(control: &Control, domain: &str, requests: u32) {
    let path = format!("/v1/rules?domain={domain}");
    let list = control.call("GET", &path, &Value::Null).await;
    let path = format!("/v1/rules/{}", list["rules"][0]["id"].as_str().unwrap());
    let limit = json!({"unit": "hour", "requests_per_unit": requests});
    control.call("PUT", &path, &json!({"rate_limit": limit})).await;
}

/// Publishes one rule of each of these domains.
async fn publish(control: &Control, domains: &[&str]) {
    for domain in domains {
        control.call("POST", "/v1/rules", &rule(domain, "user", "", 5)).await;
    }
    control.call("POST", "/v1/publish?reason=first", &Value::Null).await;
}

/// Adds a rule on the page that is shown.
async fn add_rule(browser: &mut Browser, domain: &str) {
    go(browser, "#/rules/new", "New rule").await;
    put(browser, "[data-field=domain]", domain).await;
    put(browser, ".entry input", "path").await;
    put(browser, "[data-field=\"rate_limit.requests_per_unit\"]", "7").await;
    browser.press("Control+s").await;
    browser.until(HEADING, &"path".into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_publishes_the_domains_that_are_chosen_by_keyboard() {
    let control = Control::start().await;
    publish(&control, &["bank", "cart", "pricing", "shop"]).await;
    change(&control, "pricing", 6).await;
    let some = json!({"pods": {"percent": 50}, "domains": ["pricing"]});
    control.call("POST", "/v1/rollouts?reason=fewer", &some).await;
    change(&control, "bank", 6).await;
    change(&control, "shop", 6).await;
    let token = control.token_command(&["create", "--name", "ci", "--access", "write"]);
    let mut browser = signed_in(&control.http.to_string(), &token, "light").await;
    add_rule(&mut browser, "cart").await;
    add_rule(&mut browser, "shop").await;
    go(&mut browser, "#/changes", CHANGES).await;
    // At first the page chooses domains with changes of this person alone, and none in a rollout.
    let rows = json!([
        ["bank", true, false],
        ["cart", true, true],
        ["pricing", false, false],
        ["shop", true, false]
    ]);
    browser.until(BOXES, &rows).await;
    browser.until(&text_of("#publish"), &"Publish 1 domain".into()).await;
    let by = "[...document.querySelectorAll('#choosing tbody tr')]\
              .map((row) => row.cells[2].textContent)";
    assert_eq!(browser.evaluate(by).await, json!(["admin", "you", "admin", "you, admin"]));
    browser.until(&contains("#under-way", "Rollout 1 is under way"), &true.into()).await;
    is_readable(&mut browser, "domains to choose").await;
    browser.tab_to("#choosing tbody tr:last-child input").await;
    browser.press(" ").await;
    browser.until(&text_of("#publish"), &"Publish 2 domains".into()).await;
    browser.tab_to("#reason").await;
    browser.enter("ours").await;
    browser.press("Enter").await;
    browser.until(&contains("#notice", "Version 3 is published"), &true.into()).await;
    let versions = control.call("GET", "/v1/versions?limit=1", &Value::Null).await;
    assert_eq!(versions["versions"][0]["domains"], json!(["cart", "shop"]), "{versions}");
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_that_is_too_large_stops_no_other_and_is_discarded() {
    let control = Control::start().await;
    publish(&control, &["shop"]).await;
    change(&control, "shop", 6).await;
    let items = (0..20_000).map(|at| {
        format!(
            "- key: user_id\n  value: user-{at:06}-{}\n  rate_limit: {{unit: minute, \
             requests_per_unit: 100}}\n",
            "x".repeat(20)
        )
    });
    let large = format!("domain: large\ndescriptors:\n{}", items.collect::<String>());
    control.import(&json!({"files": [{"name": "large.yaml", "yaml": large}]})).await;
    let mut browser = opened(&control).await;
    go(&mut browser, "#/changes", CHANGES).await;
    let faulty = "[data-faulty=large]";
    browser.until(&contains(faulty, "a pod needs"), &true.into()).await;
    let accepted = "● The compiler accepts it: 1 rule of 1 domain.";
    browser.until(&text_of("#publishing [role=status]"), &accepted.into()).await;
    is_readable(&mut browser, "a draft that is too large").await;

    // The page shows first which changes are lost; a later change is not lost unseen.
    click(&mut browser, "[aria-label='Discard the changes of large']").await;
    browser.until(&contains("#discarding [data-domain=large]", "20,000 added"), &true.into()).await;
    let focus = "document.activeElement.textContent";
    browser.until(focus, &"Discard the changes of large?".into()).await;
    is_readable(&mut browser, "a draft to discard").await;
    change(&control, "large", 6).await;
    click(&mut browser, "#discard-draft").await;
    let status = "document.querySelector('#discarding .problem')?.dataset.status";
    browser.until(status, &"412".into()).await;
    click(&mut browser, "#discarding .problem button").await;
    browser.until("document.getElementById('discarding')", &Value::Null).await;
    click(&mut browser, "[aria-label='Discard the changes of large']").await;
    browser.until(focus, &"Discard the changes of large?".into()).await;
    browser.tab_to("#discard-draft").await;
    browser.press("Enter").await;
    browser.until(&contains("#notice", "The changes of large are discarded"), &true.into()).await;
    browser.until(BOXES, &json!([["shop", true, true]])).await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roll_back_takes_chosen_domains_and_offers_no_bad_version() {
    let control = Control::start().await;
    publish(&control, &["geo", "stock"]).await;
    for (domain, reason) in [("geo", "bad"), ("stock", "good")] {
        change(&control, domain, 50).await;
        control.call("POST", &format!("/v1/publish?reason={reason}"), &Value::Null).await;
    }
    let mut browser = opened(&control).await;
    go(&mut browser, "#/versions", "Versions").await;
    let all = json!([
        ["Version 3", "stock", "newest"],
        ["Version 2", "geo", ""],
        ["Version 1", "geo, stock", ""]
    ]);
    browser.until(VERSIONS, &all).await;
    let filter = "document.getElementById('domain-filter')";
    let choose = format!("{filter}.value = 'geo', {filter}.dispatchEvent(new Event('change'))");
    browser.evaluate(&choose).await;
    let of_geo = json!([["Version 2", "geo", "in force"], ["Version 1", "geo, stock", ""]]);
    browser.until(VERSIONS, &of_geo).await;
    is_readable(&mut browser, "versions of a domain").await;
    click(&mut browser, "#way-back").await;
    browser.until(HEADING, &"Version 1".into()).await;
    let chosen = "[...document.querySelectorAll('#back-domains .field')].map((it) => \
                  [it.querySelector('label').textContent, it.querySelector('input').checked])";
    browser.until(chosen, &json!([["geo", true], ["stock", false]])).await;
    let shown = "[...document.querySelectorAll('#back-changes [data-domain]')]\
                 .map((it) => it.dataset.domain)";
    assert_eq!(browser.evaluate(shown).await, json!(["geo"]));
    is_readable(&mut browser, "domains that go back").await;

    // Without a domain nothing goes back.
    browser.tab_to("#back-domains input").await;
    browser.press(" ").await;
    browser.until(shown, &json!([])).await;
    put(&mut browser, "form [data-field=reason]", "geo is too wide").await;
    click(&mut browser, "#roll-back").await;
    browser.until(&contains("[data-faults=domains]", "none is chosen"), &true.into()).await;
    browser.tab_to("#back-domains input").await;
    browser.press(" ").await;
    browser.until(&text_of("#roll-back"), &"Roll back geo to version 1".into()).await;
    click(&mut browser, "#roll-back").await;
    browser.until(&contains("#notice", "version 4 has the rules of version 1"), &true.into()).await;
    let versions = control.call("GET", "/v1/versions?limit=1", &Value::Null).await;
    assert_eq!(versions["versions"][0]["domains"], json!(["geo"]), "{versions}");
    go(&mut browser, "#/versions", "Versions").await;
    let all = json!([
        ["Version 4", "geo", "newestbrings back 1"],
        ["Version 3", "stock", ""],
        ["Version 2", "geo", "taken back by 4"],
        ["Version 1", "geo, stock", ""]
    ]);
    browser.until(VERSIONS, &all).await;
    assert_eq!(browser.evaluate("document.getElementById('way-back')").await, Value::Null);
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_part_and_a_number_below_zero_are_explained() {
    let control = Control::start().await;
    publish(&control, &["shop"]).await;
    let mut browser = opened(&control).await;
    browser.evaluate("location.hash = '#/rules/%E0%A4%A'").await;
    browser.until(&contains(".problem", "a part of the link is missing"), &true.into()).await;
    go(&mut browser, "#/rules/new", "New rule").await;
    put(&mut browser, "[data-field=\"rate_limit.requests_per_unit\"]", "-5").await;
    browser.press("Control+s").await;
    let fault = "[data-faults=\"rate_limit.requests_per_unit\"]";
    browser.until(&contains(fault, "expected a whole number"), &true.into()).await;
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    // A rollout that begins while the page shows the changes.
    change(&control, "shop", 6).await;
    go(&mut browser, "#/changes", CHANGES).await;
    browser.until(&contains("#publishing", "The compiler accepts it"), &true.into()).await;
    let some = json!({"pods": {"percent": 50}});
    control.call("POST", "/v1/rollouts?reason=fewer", &some).await;
    put(&mut browser, "#reason", "now").await;
    click(&mut browser, "#publish").await;
    browser.until(&contains(".problem", "Open it to advance or abort it"), &true.into()).await;
    let link = ".problem a[href='#/rollouts/1']";
    browser.until(&text_of(link), &"Open rollout 1".into()).await;
    browser.until(&contains(".problem", "/v1/"), &false.into()).await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_set_is_begun_mended_and_submitted() {
    let control = Control::start().await;
    publish(&control, &["shop"]).await;
    let list = control.call("GET", "/v1/rules", &Value::Null).await;
    let rule = format!("#/rules/{}", list["rules"][0]["id"].as_str().unwrap());
    let mut browser = opened(&control).await;
    go(&mut browser, &rule, "user").await;
    let requests = "[data-field=\"rate_limit.requests_per_unit\"]";
    put(&mut browser, requests, "9").await;
    put(&mut browser, "#editor [data-field=reason]", "wider").await;
    let field = "document.querySelector('[data-field=where]')";
    browser.evaluate(&format!("{field}.value = 'new'")).await;
    browser.press("Control+s").await;
    browser.until(HEADING, &"Change set wider".into()).await;
    let changed = "#set-changes [data-change=changed]";
    browser.until(&contains(changed, "+ rate_limit.requests_per_unit: 9"), &true.into()).await;
    is_readable(&mut browser, "change set").await;
    let domains = control.call("GET", "/v1/domains", &Value::Null).await;
    assert_eq!(domains["domains"][0]["is_changed"], false, "{domains}");

    // The rule is opened as the set has it; another person changes it in the shared draft.
    click(&mut browser, "#set-changes a").await;
    browser.until(HEADING, &"user".into()).await;
    let value = format!("document.querySelector({}).value", json!(requests));
    assert_eq!(browser.evaluate(&value).await, "9");
    change(&control, "shop", 70).await;
    go(&mut browser, "#/change-sets", "Change sets").await;
    is_readable(&mut browser, "change sets").await;
    click(&mut browser, "main tbody a").await;
    browser
        .until(&contains("[data-conflict]", "+ rate_limit.requests_per_unit: 70"), &true.into())
        .await;
    is_readable(&mut browser, "a conflict").await;
    click(&mut browser, "#submit-set").await;
    browser.until(&contains(".problem", "1 rule of the change set changed"), &true.into()).await;
    click(&mut browser, "[data-conflict] button").await;
    browser.until("document.querySelector('[data-conflict]')", &Value::Null).await;
    click(&mut browser, "#submit-set").await;
    browser.until(HEADING, &CHANGES.into()).await;
    browser.until(&contains("#notice", "1 rule of wider changed"), &true.into()).await;
    browser
        .until(&contains("[data-change]", "+ rate_limit.requests_per_unit: 9"), &true.into())
        .await;
    browser.close().await;
}
