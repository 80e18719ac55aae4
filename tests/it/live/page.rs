//! The content of the page, its appearance, and the actions forbidden to it.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::{HOSTILE, VALUE, ask, shop};
use crate::support::chromium::{Browser, View};
use crate::support::files::put;
use crate::support::proxy::{Fault, Proxy};
use crate::support::ratectl::ratectl;
use crate::support::ratelease::{Ratelease, inherited};
use crate::support::readable::{CONTRAST_MIN, LEAST_CONTRAST, OVERFLOW};
use crate::support::redis::Single;
use crate::support::shop::Shop;

const WIDE: u32 = 1200;
/// The narrowest width that WCAG 2.1 requires (1.4.10).
const PHONE: u32 = 320;

/// More rules than the page lists, with unusually long names, and one at a deep level.
fn long_rules() -> String {
    let name = "x".repeat(300);
    let rule =
        |n| format!("- {{key: {name}{n}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    let rules: String = (0..1000).map(rule).collect();
    let deep = (0..12)
        .fold("rate_limit: {unit: day, requests_per_unit: 1}".to_owned(), |below, n| {
            format!("descriptors: [{{key: deep{n}, {below}}}]")
        });
    format!("domain: {name}\ndescriptors:\n{rules}- {{key: a, {deep}}}\n")
}

async fn opened(pod: &Ratelease, scheme: &'static str) -> Browser {
    let mut browser = Browser::start().await;
    browser.open(&format!("http://{}/live", pod.debug), View { scheme, width: WIDE }).await;
    // Two events and two seconds: enough for rates and for a line.
    let drawn = "document.querySelector('#chart-rate .pass-line')?.getAttribute('d').includes('L')";
    browser.until(drawn, &true.into()).await;
    browser
}

/// The cells of a rule's row, as text.
fn line(rule: &str) -> String {
    format!(
        "[...document.querySelectorAll('#tree th')].filter((th) => th.dataset.id === {})\
         .map((th) => [...th.parentElement.cells].slice(0, 4).map((cell) => cell.textContent))",
        json!(rule)
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_what_status_says_and_every_name_as_text() {
    let mut shop = shop().await;
    ask(&mut shop, 5, &[(HOSTILE, VALUE)]).await;
    ask(&mut shop, 40, &[("a.b", "x"), ("deep", VALUE)]).await;
    ask(&mut shop, 3, &[("user", "7")]).await;
    let pod = &shop.pod;
    let status = pod.status();
    let decisions = &status["decisions"];
    assert_eq!((&decisions["ok"], &decisions["over_limit"]), (&json!(46), &json!(2)), "{status}");

    let mut browser = opened(pod, "light").await;
    let totals = json!({"ok": "46", "over": "2", "errors": "0"});
    browser.until("({...document.getElementById('totals').dataset})", &totals).await;
    let hostile = format!("{HOSTILE}_{VALUE}");
    let shown = json!([[hostile, "3 / year", "3", "2"]]);
    browser.until(&line(&format!("test.{hostile}")), &shown).await;
    browser.until(&line("test.a.b.deep"), &json!([["deep", "1000 / year", "40", "0"]])).await;
    let shown = json!([["usershadow: 1 let through", "2 / year", "3", "0"]]);
    browser.until(&line("test.user"), &shown).await;
    let levels = "[...document.querySelectorAll('#tree th')].map((th) => th.ariaLabel)\
                  .filter((label) => label.includes('a.b'))";
    let expected = json!(["test › a.b, level 1", "test › a.b › deep, level 2"]);
    assert_eq!(browser.evaluate(levels).await, expected);
    // A screen reader must get everything that is visible.
    let shadow = "[...document.querySelectorAll('#tree th')]\
                  .find((th) => th.dataset.id === 'test.user').ariaLabel";
    let expected = "test › user, level 1, shadow: 1 let through";
    assert_eq!(browser.evaluate(shadow).await, expected);

    let hottest = "document.querySelector('#requested th').textContent";
    let values = browser.evaluate(hottest).await;
    assert!(values.as_str().is_some_and(|text| text.contains(VALUE)), "{values}");
    let settings = "[...document.querySelectorAll('#settings tr')].map((row) => row.textContent)";
    let settings = browser.evaluate(settings).await.to_string();
    assert!(settings.contains("--hot-keys-valuessettrue"), "{settings}");
    assert!(settings.contains("--log-levelinfo"), "{settings}");
    assert_eq!(browser.evaluate("document.querySelectorAll('img, main script').length").await, 0);

    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    let own = format!("http://{}/live", pod.debug);
    let is_own = |url: &&str| *url == own || *url == format!("{own}/events");
    let others: Vec<_> = browser.requests().into_iter().filter(|url| !is_own(url)).collect();
    assert!(others.iter().all(|url| url.starts_with("data:")), "{others:?}");
    browser.close().await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_blocked_by_order_are_listed_with_who_blocked_them() {
    let program = ratectl(); // it may have to be built
    let redis = Single::start();
    let url = format!("127.0.0.1:{}", redis.server.port());
    let env = [("REDIS_TYPE", "single"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &*url)];
    let rules = "domain: test\ndescriptors: [{key: user, rate_limit: {unit: year, \
                 requests_per_unit: 9}}]";
    let mut shop = Shop::open(rules, &[&env[..], &[("HOT_KEYS_SAMPLE", "1")]].concat()).await;
    ask(&mut shop, 1, &[("user", "bob")]).await;
    let mut browser = opened(&shop.pod, "light").await;
    let is_hidden = "document.getElementById('blocked-keys').hidden";
    browser.until(is_hidden, &true.into()).await;
    let mut command = Command::new(program);
    command.args(["key", "block", "--for", "1h", "--by", HOSTILE, "--domain", "test", "user=eve"]);
    command.arg("--rules").arg(shop.rules()).env_clear().envs(inherited()).env("REDIS_URL", &url);
    let ran = command.output().expect("it runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    ask(&mut shop, 1, &[("user", "eve")]).await;

    browser.until(is_hidden, &false.into()).await;
    let blocked = shop.pod.status()["blocked"].clone();
    let listed = "[...document.querySelectorAll('#blocked tr')]\
                  .map((row) => [row.cells[0].textContent, row.cells[2].textContent])";
    assert_eq!(browser.evaluate(listed).await, json!([[blocked["keys"][0]["key"], HOSTILE]]));
    let tagged = "document.querySelector('#most-denied .tag')?.textContent ?? ''";
    browser.until(tagged, &"blocked by order".into()).await;
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    browser.close().await;
    assert_eq!(shop.pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_readable_in_light_in_dark_and_on_a_phone() {
    let mut shop = shop().await;
    ask(&mut shop, 5, &[(HOSTILE, VALUE)]).await;
    // Errors are shown in colours of their own.
    put(shop.rules().join("wrong.yaml"), "domain: [");
    let pod = &shop.pod;
    pod.logs("rules refused").await;
    let mut browser = opened(pod, "light").await;
    browser.until("document.getElementById('faulty').hidden", &false.into()).await;
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.view(View { scheme, width: WIDE }).await;
        let least = browser.evaluate(LEAST_CONTRAST).await;
        let (contrast, words) = (&least[0], &least[1]);
        assert!(contrast.as_f64().unwrap() >= CONTRAST_MIN, "{scheme}: {contrast} of {words}");
        backgrounds.push(browser.evaluate("getComputedStyle(document.body).backgroundColor").await);
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    browser.view(View { scheme: "light", width: PHONE }).await;
    assert_eq!(browser.evaluate(OVERFLOW).await, 0, "nothing is cut off, whatever scrolls inside");
    let unnamed = "[...document.querySelectorAll('[role=img], section, th[scope], input')]\
                   .filter((it) => !(it.ariaLabel || it.getAttribute('aria-labelledby') || \
                   it.labels?.length || it.textContent.trim())).length";
    assert_eq!(browser.evaluate(unnamed).await, 0);
    browser.close().await;
}

/// On a narrow page, tables scroll, and no mouse is needed for that.
#[tokio::test(flavor = "multi_thread")]
async fn many_rules_with_long_names_fit_a_phone_and_a_keyboard() {
    let shop = shop().await;
    let mut browser = opened(&shop.pod, "light").await;
    put(shop.rules().join("long.yaml"), long_rules());
    browser.until("document.getElementById('rules').dataset.value", &"1004".into()).await;
    browser.until("document.getElementById('listed').dataset.others", &"804".into()).await;
    let filtered = "(() => { const box = document.getElementById('filter'); \
                    box.value = 'in none of them'; box.dispatchEvent(new Event('input')); \
                    const words = document.getElementById('tree').textContent; \
                    box.value = ''; box.dispatchEvent(new Event('input')); return words; })()";
    let words = "none of the 200 busiest rules has this in its name; all rules are at /rlconfig";
    assert_eq!(browser.evaluate(filtered).await, words);
    browser.view(View { scheme: "light", width: PHONE }).await;
    browser
        .evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true })")
        .await;
    let beyond = "[...document.querySelectorAll('.scroll')]\
                  .filter((it) => it.scrollWidth > it.clientWidth)\
                  .map((it) => `${it.scrollWidth}: ${it.textContent.slice(0, 200)}`).join()";
    browser.until(beyond, &"".into()).await;
    assert_eq!(browser.evaluate(OVERFLOW).await, 0);
    let unnamed = "[...document.querySelectorAll('[tabindex]')].filter((it) => !it.ariaLabel && \
                   !document.getElementById(it.getAttribute('aria-labelledby'))).length";
    assert_eq!(browser.evaluate(unnamed).await, 0);
    assert_eq!(browser.complaints(), Vec::<&Value>::new());
    browser.close().await;
}

/// The second pod is a new process at the same address.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_lost_its_pod_goes_on_with_the_next_one() {
    let (mut first, mut second) = (shop().await, shop().await);
    ask(&mut first, 40, &[("a.b", "x"), ("deep", "y")]).await;
    ask(&mut second, 7, &[("a.b", "x"), ("deep", "y")]).await;
    let proxy = Proxy::start();
    proxy.lead_to(first.pod.debug.port());
    let mut browser = Browser::start().await;
    let view = View { scheme: "light", width: WIDE };
    browser.open(&format!("http://{}/live", proxy.addr), view).await;
    let passed = "document.getElementById('totals').dataset.ok";
    browser.until(passed, &"40".into()).await;
    proxy.set(Fault::Refuse);
    let state = "document.getElementById('state').textContent";
    browser.until(&format!("{state}.startsWith('▲ no connection since')"), &true.into()).await;
    proxy.lead_to(second.pod.debug.port());
    proxy.set(Fault::None);
    browser.until(passed, &"7".into()).await;
    assert_eq!(browser.evaluate(state).await, "● live");
    // All five minutes are the second pod's, and none the first's.
    let ages = "seconds.every((it) => it.at <= latest.uptime_seconds) && seconds.length <= 300";
    assert_eq!(browser.evaluate(ages).await, true);
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_load_is_shown_with_its_place_and_a_pod_that_is_gone_too() {
    let shop = shop().await;
    let pod = &shop.pod;
    let mut browser = opened(pod, "dark").await;
    let state = "document.getElementById('state').textContent";
    browser.until(state, &"● live".into()).await;
    let attention = "document.getElementById('attention').hidden";
    browser.until(attention, &true.into()).await;
    put(shop.rules().join("wrong.yaml"), "domain: other\nlimits: 3\n");
    let place = "document.querySelector('#faults strong')?.textContent";
    browser.until(place, &"wrong.yaml:2:1".into()).await;
    browser.until(attention, &false.into()).await;
    let link =
        "document.getElementById(document.querySelector('#attention a').hash.slice(1)).hidden";
    assert_eq!(browser.evaluate(link).await, false, "it leads to the faults");
    fs::remove_file(shop.rules().join("wrong.yaml")).unwrap();
    browser.until(attention, &true.into()).await;

    assert_eq!(pod.stop().await, 0);
    browser.until(&format!("{state}.startsWith('▲ no connection since')"), &true.into()).await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filter_shows_what_it_names_and_the_page_runs_no_script_but_its_own() {
    let shop = shop().await;
    let pod = &shop.pod;
    let mut browser = opened(pod, "light").await;
    let names = "[...document.querySelectorAll('#tree th')].map((th) => th.textContent)";
    browser
        .evaluate(
            "(() => { const box = document.getElementById('filter'); box.value = 'DEEP'; \
             box.dispatchEvent(new Event('input')); })()",
        )
        .await;
    assert_eq!(browser.evaluate(names).await, json!(["test", "a.b", "deep"]));

    // Last, since Chromium reports each of these on the console.
    let ran = "(() => { const made = document.createElement('script'); made.textContent = \
               'window.ran = 1'; document.body.append(made); return window.ran === undefined; })()";
    assert_eq!(browser.evaluate(ran).await, true, "no script that the policy does not know");
    let elsewhere = format!("fetch('http://{}/livez', {{mode: 'no-cors'}})", pod.http);
    let asked = format!("{elsewhere}.then(() => 'answered', () => 'refused')");
    assert_eq!(browser.evaluate(&asked).await, "refused", "it asks only its pod");
    browser.close().await;
}
