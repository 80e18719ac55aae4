//! The look of the page: light, dark, narrow, and what it is served with.

use serde_json::{Value, json};

use super::{WIDE, contains, go, opened, put, rule};
use crate::support::chromium::{Browser, View};
use crate::support::control::Control;
use crate::support::http;
use crate::support::readable::{CONTRAST_MIN, LEAST_CONTRAST, OVERFLOW};

/// A phone, and a window of 1200 pixels at a zoom of 200 %.
const WIDTHS: [u32; 2] = [360, 600];

/// Fields, buttons and links without a name for a screen reader.
const UNNAMED: &str = "[...document.querySelectorAll('input, select, textarea, button, a, th')]\
    .filter((it) => !(it.ariaLabel || it.labels?.length || it.textContent.trim() || \
    it.closest('[hidden]'))).map((it) => it.outerHTML)";

/// Two versions of two domains, a draft with changes, and long names.
async fn filled(control: &Control) -> Value {
    let long = "x".repeat(300);
    let added = control.call("POST", "/v1/rules", &rule("shop", "user", "", 5)).await;
    control.call("POST", "/v1/rules", &rule("bank", &long, &long, 5)).await;
    control.call("POST", "/v1/publish?reason=first", &Value::Null).await;
    control.call("POST", "/v1/rules?publish=true", &rule("shop", "path", "*", 7)).await;
    let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
    let limit = json!({"unit": "hour", "requests_per_unit": 9});
    control.call("PUT", &path, &json!({"rate_limit": limit})).await;
    added
}

/// Checks the part that is shown, in both schemes and narrow.
pub(super) async fn is_readable(browser: &mut Browser, part: &str) {
    for scheme in ["light", "dark"] {
        browser.view(View { scheme, width: WIDE }).await;
        let least = browser.evaluate(LEAST_CONTRAST).await;
        let (contrast, words) = (&least[0], &least[1]);
        assert!(contrast.as_f64().unwrap() >= CONTRAST_MIN, "{part}, {scheme}: {least} of {words}");
    }
    for width in WIDTHS {
        browser.view(View { scheme: "light", width }).await;
        assert_eq!(browser.evaluate(OVERFLOW).await, 0, "{part} at {width}");
    }
    assert_eq!(browser.evaluate(UNNAMED).await, json!([]), "{part}");
    browser.view(View { scheme: "light", width: WIDE }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_part_is_readable_in_light_in_dark_on_a_phone_and_zoomed() {
    let control = Control::start().await;
    let rule = filled(&control).await;
    let mut browser = Browser::start().await;
    let view = View { scheme: "light", width: WIDE };
    browser.open(&format!("http://{}/", control.http), view).await;
    browser.until("document.getElementById('sign-in').open", &true.into()).await;
    is_readable(&mut browser, "sign in").await;
    super::sign_in(&mut browser, &control.token()).await;
    browser.until("document.querySelectorAll('#list tbody tr').length", &3.into()).await;
    is_readable(&mut browser, "rules").await;
    let hash = format!("#/rules/{}", rule["id"].as_str().unwrap());
    go(&mut browser, &hash, "user").await;
    put(&mut browser, "[data-field=\"rate_limit.requests_per_unit\"]", "many").await;
    browser.press("Control+s").await;
    browser.until("document.querySelectorAll('[aria-invalid]').length", &1.into()).await;
    is_readable(&mut browser, "editor").await;
    go(&mut browser, "#/changes", "Changes that are not published").await;
    browser.until("document.getElementById('publish') !== null", &true.into()).await;
    is_readable(&mut browser, "changes").await;
    go(&mut browser, "#/versions", "Versions").await;
    browser.until("document.querySelectorAll('main tbody tr').length", &2.into()).await;
    is_readable(&mut browser, "versions").await;
    go(&mut browser, "#/versions/1", "Version 1").await;
    browser.until("document.getElementById('roll-back') !== null", &true.into()).await;
    is_readable(&mut browser, "version").await;
    go(&mut browser, "#/files", "Rule files").await;
    is_readable(&mut browser, "files").await;
    control.call("POST", "/v1/rollouts?reason=fewer", &json!({"pods": {"percent": 50}})).await;
    go(&mut browser, "#/rollouts/1", "Rollout 1").await;
    browser.until(&contains("#warnings", "no chosen pod is connected"), &true.into()).await;
    is_readable(&mut browser, "rollout").await;
    go(&mut browser, "#/rollouts", "Rollouts").await;
    is_readable(&mut browser, "rollouts").await;
    go(&mut browser, "#/pods", "Pods").await;
    browser.until(&contains("#pods-summary", "No pod is connected"), &true.into()).await;
    is_readable(&mut browser, "pods").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_stays_in_the_tab_and_a_reload_needs_it_no_more() {
    let control = Control::start().await;
    let mut browser = opened(&control).await;
    let kept = "[sessionStorage.getItem('token'), localStorage.length, document.cookie]";
    assert_eq!(browser.evaluate(kept).await, json!([control.token(), 0, ""]));
    let view = View { scheme: "dark", width: WIDE };
    browser.open("about:blank", view).await;
    browser.open(&format!("http://{}/#/pods", control.http), view).await;
    browser.until(super::HEADING, &"Pods".into()).await;
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    super::click(&mut browser, "#sign-out").await;
    // The page loads again, and has no dialog meanwhile.
    browser.until("document.getElementById('sign-in')?.open", &true.into()).await;
    assert_eq!(browser.evaluate("sessionStorage.length").await, 0);
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_says_what_it_may_do_and_holds_no_data() {
    let control = Control::start().await;
    control.call("POST", "/v1/rules", &rule("secret-domain", "user", "", 5)).await;
    let page = http::get(control.http, "/").await.unwrap();
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert!(!page.body.contains("secret-domain"));
    for path in ["/v1/rules", "/v1/token", "/v1/differences"] {
        assert_eq!(http::get(control.http, path).await.unwrap().status, 401, "{path}");
    }
}
