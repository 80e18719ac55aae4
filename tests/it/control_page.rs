//! The page of a real control plane, in a real browser, with a real pod.

mod fleet;
mod keyboard;
mod look;
mod problems;
mod rollouts;
mod sign_in;
mod teams;

use serde_json::{Value, json};

use crate::support::chromium::{Browser, View};
use crate::support::control::Control;
use crate::support::files::dir_of;
use crate::support::http::Client;
use crate::support::ratelease::Ratelease;

const WIDE: u32 = 1200;

/// Text that looks like markup.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

const STATE: &str = "document.getElementById('state').textContent";
const HEADING: &str = "document.querySelector('main h2')?.textContent";

/// The text of an element, or null.
fn text_of(selector: &str) -> String {
    format!("document.querySelector({})?.textContent", json!(selector))
}

/// Whether the text of an element contains `part`.
fn contains(selector: &str, part: &str) -> String {
    format!("{}?.includes({}) === true", text_of(selector), json!(part))
}

/// A limit of requests an hour.
fn rule(domain: &str, key: &str, value: &str, requests: u32) -> Value {
    let limit = json!({"unit": "hour", "requests_per_unit": requests});
    json!({"domain": domain, "entries": [{"key": key, "value": value}], "rate_limit": limit})
}

/// A pod that follows the control plane, and counts by itself.
fn pod(control: &Control, id: &str, env: &[(&str, &str)]) -> (Ratelease, tempfile::TempDir) {
    let none = dir_of(&[]);
    let server = control.pods.to_string();
    let own = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &*server),
        ("CONFIG_GRPC_XDS_RATELEASE", "true"),
        ("CONFIG_GRPC_XDS_NODE_ID", id),
        ("LEASE_MAX_WAIT", "5s"),
    ];
    (Ratelease::spawn(none.path(), &[], &[&own, env].concat()), none)
}

/// The HTTP status of a request for one user.
async fn ask(pod: &Ratelease) -> u16 {
    let entries = json!([{"key": "user_id", "value": "7"}]);
    let body = json!({"domain": "shop", "descriptors": [{"entries": entries}]}).to_string();
    let mut client = Client::connect(pod.http).await.unwrap();
    client.send("POST", "/json", &[], body).await.unwrap().status
}

/// A page that a token has signed in to.
async fn signed_in(address: &str, token: &str, scheme: &'static str) -> Browser {
    let mut browser = Browser::start().await;
    browser.open(&format!("http://{address}/"), View { scheme, width: WIDE }).await;
    sign_in(&mut browser, token).await;
    browser
}

/// Types a token into the dialog that asks for one.
async fn sign_in(browser: &mut Browser, token: &str) {
    let asks = "document.activeElement?.id === 'token'";
    browser.until(asks, &true.into()).await;
    browser.enter(token).await;
    browser.press("Enter").await;
    browser.until("document.getElementById('sign-in').open", &false.into()).await;
    browser.until(STATE, &"● connected".into()).await;
}

/// The page of the first token of a control plane.
async fn opened(control: &Control) -> Browser {
    signed_in(&control.http.to_string(), &control.token(), "light").await
}

/// Goes to a part of the page, and waits for its heading.
async fn go(browser: &mut Browser, hash: &str, heading: &str) {
    browser.evaluate(&format!("location.hash = {}", json!(hash))).await;
    browser.until(HEADING, &heading.into()).await;
}

/// Clicks what `selector` matches, once it is there.
async fn click(browser: &mut Browser, selector: &str) {
    let query = format!("document.querySelector({})", json!(selector));
    browser.until(&format!("{query} !== null && !{query}.disabled"), &true.into()).await;
    browser.evaluate(&format!("{query}.click()")).await;
}

/// Puts a text into a field, as a person would who replaces all that it has.
async fn put(browser: &mut Browser, selector: &str, text: &str) {
    let query = format!("document.querySelector({})", json!(selector));
    browser.until(&format!("{query} !== null"), &true.into()).await;
    browser.evaluate(&format!("{query}.focus(), {query}.select()")).await;
    match text {
        "" => drop(browser.evaluate("document.execCommand('delete')").await),
        text => browser.enter(text).await,
    }
}
