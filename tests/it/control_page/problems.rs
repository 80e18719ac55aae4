//! What the page says when something is refused, or is away; what was typed is kept.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    HEADING, HOSTILE, STATE, click, contains, go, opened, put, rule, sign_in, signed_in, text_of,
};
use crate::support::control::Control;
use crate::support::process::{Process, leashed};
use crate::support::proxy::{Fault, Proxy};

/// Limit for what takes milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(20);

/// Holds the lock for writes of a SQLite database.
const LOCK: &str = "\
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute('BEGIN IMMEDIATE')
print('held', flush=True)
time.sleep(600)
";

const REQUESTS: &str = "[data-field=\"rate_limit.requests_per_unit\"]";

fn status_of_problem() -> String {
    "document.querySelector('.problem')?.dataset.status".to_owned()
}

/// Adds a rule, and returns it.
async fn added(control: &Control, requests: u32) -> Value {
    control.call("POST", "/v1/rules", &rule("shop", "user", "", requests)).await
}

/// Changes its limit, as another editor does.
async fn change(control: &Control, rule: &Value, requests: u32) {
    let path = format!("/v1/rules/{}?reason=tighter", rule["id"].as_str().unwrap());
    let limit = json!({"unit": "hour", "requests_per_unit": requests});
    control.call("PUT", &path, &json!({"rate_limit": limit})).await;
}

async fn requests_of(control: &Control, rule: &Value) -> Value {
    let path = format!("/v1/rules/{}", rule["id"].as_str().unwrap());
    control.call("GET", &path, &Value::Null).await["rate_limit"]["requests_per_unit"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_of_two_editors_sees_what_the_first_one_changed() {
    let control = Control::start().await;
    let rule = added(&control, 10).await;
    let mut browser = opened(&control).await;
    let hash = format!("#/rules/{}", rule["id"].as_str().unwrap());
    go(&mut browser, &hash, "user").await;
    change(&control, &rule, 20).await;
    put(&mut browser, REQUESTS, "30").await;
    browser.press("Control+s").await;
    browser.until(&status_of_problem(), &"412".into()).await;
    let cells = "[...document.querySelectorAll('.problem td')].map((it) => it.textContent)";
    assert_eq!(browser.evaluate(cells).await, json!(["10", "20", "30"]));
    assert_eq!(browser.evaluate(&contains(".problem", ": tighter")).await, true);
    let value = format!("document.querySelector({}).value", json!(REQUESTS));
    assert_eq!(browser.evaluate(&value).await, "30");
    assert_eq!(requests_of(&control, &rule).await, 20, "nothing is written yet");
    click(&mut browser, "#keep-mine").await;
    browser.until(&contains("#notice", "Saved in the draft"), &true.into()).await;
    assert_eq!(requests_of(&control, &rule).await, 30);

    // The other choice.
    change(&control, &rule, 40).await;
    put(&mut browser, REQUESTS, "50").await;
    browser.press("Control+s").await;
    click(&mut browser, "#take-theirs").await;
    browser.until(&value, &"40".into()).await;

    // A draft that changed since it was looked at is not published, and the reason is kept.
    go(&mut browser, "#/changes", "Changes that are not published").await;
    put(&mut browser, "#reason", "as agreed").await;
    browser.until(&contains("#publishing", "The compiler accepts it"), &true.into()).await;
    change(&control, &rule, 60).await;
    click(&mut browser, "#publish").await;
    browser.until(&status_of_problem(), &"412".into()).await;
    click(&mut browser, ".problem .actions button").await;
    browser.until(&contains("[data-change]", "requests_per_unit: 60"), &true.into()).await;
    browser.until("document.getElementById('reason')?.value", &"as agreed".into()).await;
    click(&mut browser, "#publish").await;
    browser.until(&contains("#notice", "Version 1 is published"), &true.into()).await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_text_is_shown_as_text_and_only_the_own_script_runs() {
    let control = Control::start().await;
    let mut hostile = rule(HOSTILE, HOSTILE, HOSTILE, 5);
    hostile["rate_limit"]["name"] = HOSTILE.into();
    hostile["metadata"] = json!({HOSTILE: HOSTILE});
    let reason = "?publish=true&reason=%3Cimg%20src=x%20onerror=alert(1)%3E";
    let added = control.call("POST", &format!("/v1/rules{reason}"), &hostile).await;
    let mut browser = opened(&control).await;
    let name = format!("{HOSTILE}={HOSTILE}");
    browser.until(&text_of("#list tbody a"), &name.clone().into()).await;
    let hash = format!("#/rules/{}", added["id"].as_str().unwrap());
    go(&mut browser, &hash, &name).await;
    browser.until(&contains("#history", HOSTILE), &true.into()).await;
    put(&mut browser, REQUESTS, HOSTILE).await;
    browser.press("Control+s").await;
    browser
        .until("document.querySelectorAll('.fault:not([hidden])').length > 0", &true.into())
        .await;
    click(&mut browser, "#discard").await;
    go(&mut browser, "#/versions", "Versions").await;
    browser.until(&contains("main", HOSTILE), &true.into()).await;
    go(&mut browser, "#/versions/1", "Version 1").await;
    browser.until(&contains("[data-change=added]", &name), &true.into()).await;
    let made = "document.querySelectorAll('img, main script, iframe').length";
    assert_eq!(browser.evaluate(made).await, 0);
    let own = format!("http://{}/", control.http);
    let others = browser.requests().into_iter().filter(|url| !url.starts_with(&own));
    assert_eq!(others.filter(|url| !url.starts_with("data:")).count(), 0);

    // Last, since Chromium reports each of these on the console.
    let markup = "(() => { try { document.body.innerHTML = '<p>'; return 'taken'; } \
                  catch { return 'refused'; } })()";
    assert_eq!(browser.evaluate(markup).await, "refused");
    let pods = format!("fetch('http://{}/', {{mode: 'no-cors'}})", control.pods);
    let asked = format!("{pods}.then(() => 'answered', () => 'refused')");
    assert_eq!(browser.evaluate(&asked).await, "refused", "it asks its own server only");
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_sees_what_it_may_do_and_one_that_ended_is_asked_for_again() {
    let control = Control::start().await;
    let rule = added(&control, 10).await;
    let hash = format!("#/rules/{}", rule["id"].as_str().unwrap());
    let reader = control.token_command(&["create", "--name", "reader"]);
    let mut browser = signed_in(&control.http.to_string(), &reader, "light").await;
    go(&mut browser, &hash, "user").await;
    let buttons = "[...document.querySelectorAll('main button, #add')]\
                   .filter((it) => !it.hidden).map((it) => it.textContent)";
    assert_eq!(browser.evaluate(buttons).await, json!([]));
    let open = format!("document.querySelector({}).readOnly", json!(REQUESTS));
    assert_eq!(browser.evaluate(&open).await, true);
    go(&mut browser, "#/changes", "Changes that are not published").await;
    browser.until("document.querySelectorAll('[data-change]').length", &1.into()).await;
    assert_eq!(browser.evaluate(buttons).await, json!([]));
    go(&mut browser, "#/rules", "Rules").await;
    assert_eq!(browser.evaluate(buttons).await, json!([]));

    // A token of another domain does not learn whether this rule exists.
    click(&mut browser, "#sign-out").await;
    let other = ["create", "--name", "bank", "--access", "write", "--domains", "bank"];
    let other = control.token_command(&other);
    sign_in(&mut browser, &other).await;
    browser.evaluate(&format!("location.hash = {}", json!(hash))).await;
    browser.until(&status_of_problem(), &"404".into()).await;
    browser.until(&contains(".problem", "no rule has the id"), &true.into()).await;
    go(&mut browser, "#/rules/new", "New rule").await;
    put(&mut browser, ".entry input", "card").await;
    put(&mut browser, REQUESTS, "7").await;

    // The token ends while a rule is typed: the rule is saved with the next one.
    let id = other.split('_').nth(1).unwrap();
    control.token_command(&["revoke", id]);
    browser.press("Control+s").await;
    let fault = "document.getElementById('sign-in-fault').textContent";
    let asks = "document.getElementById('sign-in').open";
    browser.until(asks, &true.into()).await;
    browser.until(fault, &"the token is not known, expired or revoked".into()).await;
    browser.enter(&other).await;
    browser.press("Enter").await;
    browser.until(&format!("{fault}.startsWith('The token is not known')"), &true.into()).await;
    sign_in(&mut browser, &control.token()).await;
    browser.until(HEADING, &"card".into()).await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_goes_on_when_the_connection_is_back_and_is_done_once() {
    let control = Control::start().await;
    let rule = added(&control, 10).await;
    let proxy = Proxy::start();
    proxy.lead_to(control.http.port());
    let mut browser = signed_in(&proxy.addr.to_string(), &control.token(), "light").await;
    let hash = format!("#/rules/{}", rule["id"].as_str().unwrap());
    go(&mut browser, &hash, "user").await;
    put(&mut browser, REQUESTS, "30").await;
    proxy.set(Fault::Refuse);
    browser.press("Control+s").await;
    let is_lost = format!("{STATE}.startsWith('▲ no connection since')");
    browser.until(&is_lost, &true.into()).await;
    assert_eq!(requests_of(&control, &rule).await, 10);
    proxy.set(Fault::None);
    browser.until(&contains("#notice", "Saved in the draft"), &true.into()).await;
    browser.until(STATE, &"● connected".into()).await;
    assert_eq!(requests_of(&control, &rule).await, 30);
    let history = format!("/v1/rules/{}/history", rule["id"].as_str().unwrap());
    let history = control.call("GET", &history, &Value::Null).await;
    assert_eq!(history["changes"].as_array().unwrap().len(), 2, "{history}");
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_is_told_and_the_write_goes_on_when_it_is_back() {
    let control = Control::start().await;
    let rule = added(&control, 10).await;
    let mut browser = opened(&control).await;
    let hash = format!("#/rules/{}", rule["id"].as_str().unwrap());
    go(&mut browser, &hash, "user").await;
    put(&mut browser, REQUESTS, "30").await;
    let mut command = leashed("python3");
    command.arg("-c").arg(LOCK).arg(control.database());
    let lock = Process::spawn("python3", command);
    lock.until("holding the lock", SOON, async || lock.log().contains("held")).await;
    browser.press("Control+s").await;
    let is_away = format!("{STATE}.startsWith('▲ the database is away since')");
    browser.until(&is_away, &true.into()).await;
    drop(lock);
    browser.until(&contains("#notice", "Saved in the draft"), &true.into()).await;
    browser.until(STATE, &"● connected".into()).await;
    assert_eq!(requests_of(&control, &rule).await, 30);
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_stays_while_another_part_is_shown() {
    let control = Control::start().await;
    added(&control, 10).await;
    let mut browser = opened(&control).await;
    go(&mut browser, "#/rules/new", "New rule").await;
    put(&mut browser, "[data-field=domain]", "shop").await;
    put(&mut browser, ".entry input", "user").await;
    browser.evaluate("document.querySelector('summary').click()").await;
    put(&mut browser, "[data-field=further]", "{\"metadata\": ").await;
    browser.press("Control+s").await;
    browser.until(&contains("[data-faults=further]", "not JSON"), &true.into()).await;
    browser.press("Escape").await;
    browser.until(HEADING, &"Rules".into()).await;
    go(&mut browser, "#/rules/new", "New rule").await;
    let further = "document.querySelector('[data-field=further]').value";
    browser.until(further, &"{\"metadata\": ".into()).await;
    put(&mut browser, "[data-field=further]", "").await;
    put(&mut browser, REQUESTS, "5").await;
    browser.press("Control+s").await;
    // There is such a rule already, and a link leads to it.
    browser.until(&status_of_problem(), &"409".into()).await;
    click(&mut browser, ".problem a").await;
    browser.until(HEADING, &"user".into()).await;
    browser.close().await;
}
