//! People sign in at a real provider of OpenID Connect, and work by what its claims give.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::look::is_readable;
use super::{HEADING, STATE, WIDE, click, contains, go, put, rule, text_of};
use crate::support::chromium::{Browser, View};
use crate::support::control::Control;
use crate::support::http;
use crate::support::oidc::{PASSWORD, Provider};
use crate::support::ports::free_port;

/// Whether the page asks for a token.
const ASKS: &str = "document.getElementById('sign-in')?.open";

/// The signed-in caller in the head of the page.
const CALLER: &str = "document.getElementById('caller')?.textContent";

/// A control plane, and the provider by which people sign in to it.
struct Scene {
    control: Control,
    provider: Provider,
    page: String,
}

impl Scene {
    async fn start() -> Self {
        let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let users: [(&str, [&str; 2], &[&str]); 3] = [
            ("ada", ["Ada", "Lovelace/<b>"], &["staff", "sre"]),
            ("ben", ["Ben", "Franklin"], &["staff", "team-shop"]),
            ("eve", ["Eve", "Null"], &["guests"]),
        ];
        let provider = Provider::start(at, &users).await;
        let roles = json!({"groups": {
            "sre": {"access": "admin"},
            "team-shop": {"access": "write", "domains": ["shop"]}
        }});
        let flags = provider.flags(at, &roles);
        let flags: Vec<_> = flags.iter().map(|(name, value)| (*name, &**value)).collect();
        let control = Control::start_at(at, &flags).await;
        Self { control, provider, page: format!("http://{at}/") }
    }

    /// Opens the page, and goes to the provider by keyboard.
    async fn to_provider(&self, browser: &mut Browser) {
        browser.open(&self.page, View { scheme: "light", width: WIDE }).await;
        browser.until(ASKS, &true.into()).await;
        browser.tab_to("#sign-in-provider a").await;
        browser.press("Enter").await;
        browser.until("document.querySelector('[name=username]') !== null", &true.into()).await;
    }

    /// Signs in at the provider, which then sends the browser back.
    async fn sign_in(&self, browser: &mut Browser, user: &str) {
        self.to_provider(browser).await;
        put(browser, "[name=username]", user).await;
        put(browser, "[name=password]", PASSWORD).await;
        browser.press("Enter").await;
    }

    async fn signed_in(&self, user: &str, caller: &str) -> Browser {
        let mut browser = Browser::start().await;
        self.sign_in(&mut browser, user).await;
        browser.until(CALLER, &caller.into()).await;
        browser.until(STATE, &"● connected".into()).await;
        browser
    }
}

/// The status and the body of the answer to a call of the page's own script.
async fn fetched(browser: &mut Browser, method: &str, path: &str, body: &Value) -> Value {
    let body =
        if body.is_null() { "undefined".to_owned() } else { json!(body.to_string()).to_string() };
    let call = format!(
        "fetch({path}, {{method: {method}, body: {body}}}).then(async (it) => [it.status, \
         await it.json().catch(() => null)])",
        path = json!(path),
        method = json!(method)
    );
    browser.evaluate(&call).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_signs_in_writes_by_name_and_signs_out() {
    let scene = Scene::start().await;
    let mut browser = scene.signed_in("ada", "Ada Lovelace <b>: admin").await;
    // No script reads the session, and none of it is in the address.
    let kept = "[document.cookie, sessionStorage.length, location.pathname + location.search]";
    assert_eq!(browser.evaluate(kept).await, json!(["", 0, "/"]));
    let added = fetched(&mut browser, "POST", "/v1/rules", &rule("shop", "user", "", 5)).await;
    assert_eq!(added[0], 201, "{added}");
    let person = format!("{}#ada", scene.provider.issuer());
    let author = format!("Ada Lovelace <b>/{person}");
    assert_eq!(added[1]["updated_by"], author);
    let log = scene.control.call("GET", "/v1/audit?author=lovelace", &Value::Null).await;
    let actions = log["actions"].as_array().unwrap();
    assert_eq!(
        (&actions[0]["action"], &actions[0]["author"]),
        (&"rule.add".into(), &author.into())
    );
    assert_eq!(actions[1]["action"], "person.admit");
    let seen = fetched(&mut browser, "GET", "/v1/tokens", &Value::Null).await;
    assert_eq!(seen[1]["tokens"][0]["person"], person);
    // Another page of this host gets the cookie sent along, and nothing done.
    let other = format!("{}/keys", scene.provider.issuer());
    browser.open(&other, View { scheme: "light", width: WIDE }).await;
    let forged = format!(
        "fetch('{}v1/sign-out', {{method: 'POST', mode: 'no-cors', credentials: 'include'}})\
         .then((it) => it.type)",
        scene.page
    );
    assert_eq!(browser.evaluate(&forged).await, "opaque");
    browser.open(&scene.page, View { scheme: "light", width: WIDE }).await;
    browser.until(CALLER, &"Ada Lovelace <b>: admin".into()).await;
    click(&mut browser, "#sign-out").await;
    browser.until(ASKS, &true.into()).await;
    assert_eq!(fetched(&mut browser, "GET", "/v1/token", &Value::Null).await[0], 401);
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_bound_what_a_person_does_and_new_keys_are_read() {
    let scene = Scene::start().await;
    let mut browser = scene.signed_in("ada", "Ada Lovelace <b>: admin").await;
    browser.close().await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await; // keys are read again after that
    scene.provider.rotate().await;
    browser = scene.signed_in("ben", "Ben Franklin: write of shop").await;
    for (domain, status) in [("shop", 201), ("bank", 403)] {
        let added = fetched(&mut browser, "POST", "/v1/rules", &rule(domain, "user", "", 5)).await;
        assert_eq!(added[0], status, "{domain}: {added}");
    }
    for path in ["/v1/tokens", "/v1/audit"] {
        assert_eq!(fetched(&mut browser, "GET", path, &Value::Null).await[0], 403, "{path}");
    }
    go(&mut browser, "#/access", "Access").await;
    browser.until(&contains("main", "for 8 hours"), &true.into()).await;
    assert_eq!(browser.evaluate("document.getElementById('make-token')").await, Value::Null);
    assert_eq!(browser.evaluate("document.getElementById('nav-audit').hidden").await, true);
    // An administrator revokes the person, whose session ends at once and who cannot come back.
    let tokens = scene.control.call("GET", "/v1/tokens", &Value::Null).await;
    let ben = tokens["tokens"].as_array().unwrap().iter().find(|it| it["name"] == "Ben Franklin");
    let path = format!("/v1/tokens/{}", ben.unwrap()["id"].as_str().unwrap());
    scene.control.call("DELETE", &path, &Value::Null).await;
    assert_eq!(fetched(&mut browser, "GET", "/v1/token", &Value::Null).await[0], 401);
    scene.sign_in(&mut browser, "ben").await;
    browser.until(&contains("main p", "whom an administrator revoked"), &true.into()).await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_role_and_who_was_not_asked_are_told_so() {
    let scene = Scene::start().await;
    let mut browser = Browser::start().await;
    scene.sign_in(&mut browser, "eve").await;
    browser.until(HEADING, &"You have no role here".into()).await;
    let said = format!("Eve Null/{}#eve has no role here.", scene.provider.issuer());
    assert_eq!(browser.evaluate(&text_of("main p")).await, said);
    is_readable(&mut browser, "no role").await;
    // The answer of a sign-in that another browser began, and one that was used already.
    for query in ["?code=x&state=y", "?state=", ""] {
        let forged = format!("{}v1/sign-in/callback{query}", scene.page);
        browser.open(&forged, View { scheme: "light", width: WIDE }).await;
        browser.until(HEADING, &"You are not signed in".into()).await;
    }
    browser.open(&scene.page, View { scheme: "light", width: WIDE }).await;
    browser.until(ASKS, &true.into()).await;
    is_readable(&mut browser, "sign in").await;
    // However many there are of these, others sign in, although all have one address.
    for _ in 0..100 {
        let forged = "/v1/sign-in/callback?code=x&state=y";
        let answer = http::get(scene.control.http, forged).await.unwrap();
        assert_eq!(answer.status, 403);
    }
    browser.close().await;
    scene.signed_in("ada", "Ada Lovelace <b>: admin").await.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_away_is_told_and_tokens_work_meanwhile() {
    let scene = Scene::start().await;
    let Scene { control, provider, page } = scene;
    drop(provider);
    let mut browser = Browser::start().await;
    browser.open(&format!("{page}v1/sign-in"), View { scheme: "light", width: WIDE }).await;
    browser.until(HEADING, &"The provider does not answer as it should".into()).await;
    browser.until(&contains("main p", "Connection refused"), &true.into()).await;
    browser.evaluate("[...document.querySelectorAll('main a')].at(-1).click()").await;
    super::sign_in(&mut browser, &control.token()).await;
    browser.until(CALLER, &"admin: admin".into()).await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_audit_log_and_approvals_are_used_on_the_page() {
    let scene = Scene::start().await;
    let mut browser = scene.signed_in("ada", "Ada Lovelace <b>: admin").await;
    go(&mut browser, "#/access", "Access").await;
    put(&mut browser, "[data-field=name]", "ci/x").await;
    put(&mut browser, "[data-field=domains]", "shop").await;
    browser.evaluate("document.querySelector('[data-field=access]').value = 'write'").await;
    browser.tab_to("#make-token").await;
    browser.press("Enter").await;
    browser.until(&contains("[data-faults=name]", "without slashes"), &true.into()).await;
    is_readable(&mut browser, "access with a fault").await;
    put(&mut browser, "[data-field=name]", "ci").await;
    click(&mut browser, "#make-token").await;
    let made = "document.getElementById('made-token')?.value";
    browser.until(&format!("{made}?.startsWith('rlc_')"), &true.into()).await;
    is_readable(&mut browser, "access with a token").await;
    let token = browser.evaluate(made).await.as_str().unwrap().to_owned();
    put(&mut browser, "#approvals [data-field=domain]", "shop").await;
    click(&mut browser, "#set-approvals").await;
    browser.until(&contains("#approvals", "shop (1)"), &true.into()).await;

    // Ada made the token, so that she is one person with it; another token is another one.
    let writer = ["create", "--name", "writer", "--access", "write", "--domains", "shop"];
    let writer = scene.control.token_command(&writer);
    scene.control.call_as(&writer, "POST", "/v1/rules", &rule("shop", "user", "", 5)).await;
    go(&mut browser, "#/changes", "Changes that are not published").await;
    browser.until(&contains("#approving", "0 of 1"), &true.into()).await;
    is_readable(&mut browser, "approvals").await;
    // The change is of another person, so that it is chosen by hand.
    click(&mut browser, "#choosing input").await;
    put(&mut browser, "#reason", "reviewed").await;
    click(&mut browser, "#publish").await;
    browser.until(&contains(".problem", "0 of the 1 approvals"), &true.into()).await;
    browser.until(&contains(".problem", "Publish without approvals"), &true.into()).await;
    is_readable(&mut browser, "not approved").await;
    browser.tab_to("[data-approve=shop]").await;
    browser.press("Enter").await;
    browser.until(&contains("#approving", "approved"), &true.into()).await;
    browser.until(&contains("#approving", "Ada Lovelace"), &true.into()).await;
    put(&mut browser, "#reason", "reviewed").await;
    click(&mut browser, "#publish").await;
    browser.until(HEADING, &"Pods".into()).await;
    scene.control.call_as(&token, "POST", "/v1/rules", &rule("shop", "path", "", 5)).await;

    go(&mut browser, "#/audit?domain=shop", "Audit log").await;
    let rows = "[...document.querySelectorAll('main tbody th')].map((it) => it.textContent)";
    let expected = [
        "rule.add",
        "version.publish",
        "draft.approve",
        "rule.add",
        "token.create",
        "approvals.set",
        "token.create",
    ];
    browser.until(rows, &json!(expected)).await;
    is_readable(&mut browser, "audit").await;
    put(&mut browser, "[data-field=author]", "lovelace").await;
    browser.press("Enter").await;
    let by_ada = ["version.publish", "draft.approve", "approvals.set", "token.create"];
    browser.until(rows, &json!(by_ada)).await;
    // The page asks before it revokes.
    go(&mut browser, "#/access", "Access").await;
    browser.until("document.querySelectorAll('#tokens button').length > 2", &true.into()).await;
    browser.evaluate("globalThis.confirm = () => true, 1").await;
    click(&mut browser, "[aria-label$=' ci']").await;
    browser.until(&contains("#notice", "ci is revoked"), &true.into()).await;
    browser.close().await;
}
