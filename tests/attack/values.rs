//! V5, V7: values and refunds that clients choose.

use std::time::Duration;

use crate::foe::Foes;
use crate::messages::message;
use crate::row::MIB;
use crate::scene::{Plan, Scene};
use crate::support::http::{self, Client};
use crate::support::raw_grpc::Connection;

/// Maximum length of a metrics page that Prometheus reads at once.
const PAGE_MAX: usize = 4 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn v5_long_values_in_labels_take_little_memory() {
    let rules = "
  - key: labelled
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 100}
";
    let plan = Plan::new("V5", "500 values of 60 KB in labels of metrics");
    let scene = Scene::start(plan.with_rules(rules)).await;
    // Keys and their series are kept, whatever their length: an honest client's number of them
    // exists before, so that the growth is the cost of their length.
    let before = scene.foes(Duration::from_secs(20));
    let connection = Connection::open(before.grpc).await;
    for nth in 0..500 {
        let _ = before.call(&connection, &message("labelled", &format!("value-{nth}"))).await;
    }
    let page = http::get(before.debug, "/metrics").await.expect("a page of metrics");
    assert_eq!(page.status, 200);
    let long = "v".repeat(60_000);
    let attacked = scene.attack(async |foes, _| {
        let connection = Connection::open(foes.grpc).await;
        for nth in 0..500 {
            // The values differ only at their end, which truncation would remove.
            let _ = foes.call(&connection, &message("labelled", &format!("{long}-{nth}"))).await;
        }
        let _ = http::get(foes.debug, "/metrics").await;
        foes.rest().await;
    });
    let attacked = attacked.await;
    let page = http::get(attacked.foes.debug, "/metrics").await.expect("a page of metrics");
    let mut row = attacked.row;
    row.note(&format!("a scrape of {:.1} MiB", page.body.len() as f64 / MIB as f64));
    row.holds(page.body.len() <= PAGE_MAX, &format!("a scrape has {} bytes", page.body.len()));
    row.end();
}

/// A POST of `/json` with these headers.
async fn post(foes: &Foes, headers: &[(&str, &str)], body: &str) -> Option<http::Answer> {
    send(foes, "POST", "/json", headers, body).await
}

/// A request over HTTP.
async fn send(
    foes: &Foes,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<http::Answer> {
    let mut client = Client::connect(foes.http).await.ok()?;
    foes.note_sent(path.len() + body.len() + 100);
    let answer = client.send(method, path, headers, body).await.ok()?;
    if answer.status >= 400 {
        foes.note_refused();
    }
    let received = answer.body.len() as u64 + 100;
    foes.meter.received.fetch_add(received, std::sync::atomic::Ordering::Relaxed);
    Some(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn v7_a_page_of_another_site_opens_no_limit() {
    let rules = "
  - key: three
    rate_limit: {unit: year, requests_per_unit: 3}
";
    let plan = Plan::new("V7", "refunds over /json, as pages of other sites send them");
    let scene = Scene::start(plan.with_rules(rules)).await;
    let body = |more: &str| {
        let entries = r#""entries":[{"key":"three","value":"v"}]"#;
        format!(r#"{{"domain":"attack","descriptors":[{{{entries}{more}}}]}}"#)
    };
    let refund = body(r#","hitsAddend":3,"isNegativeHits":true"#);
    let json = ("content-type", "application/json");
    let form = ("content-type", "application/x-www-form-urlencoded");
    let foreign = ("origin", "https://evil.example");
    // Of a browser that sends no `Origin`, as some of 2019 did with forms.
    let page = [("content-type", "text/plain"), ("user-agent", "Mozilla/5.0 (X11)")];
    let mut broken = Vec::new();
    let attacked = scene.attack(async |foes, _| {
        let connection = Connection::open(foes.grpc).await;
        for _ in 0..4 {
            let _ = foes.call(&connection, &message("three", "v")).await;
        }
        while !foes.is_over() {
            for (what, headers, body) in [
                ("a refund", vec![json], &refund),
                ("a refund as text", page.to_vec(), &refund),
                ("a refund as a form of curl", vec![form], &refund),
                ("a charge as text", page.to_vec(), &body("")),
                ("a charge by a page of another site", vec![json, foreign], &body("")),
            ] {
                let status = post(foes, &headers, body).await.map(|answer| answer.status);
                // 429 means that the charge was evaluated, and found to be too large.
                if !status.is_some_and(|it| (400..500).contains(&it) && it != 429) {
                    broken.push(format!("{what} was answered with {status:?}"));
                }
            }
            let open = foes.call(&connection, &message("three", "v")).await;
            if open.is_ok_and(|reply| reply.is_over_limit() == Some(false)) {
                broken.push("the limit was opened again".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut row = attacked.await.row;
    broken.iter().for_each(|what| row.holds(false, what));
    row.end();
}

/// Errors about a body stay short, however long the faulty part is.
#[tokio::test(flavor = "multi_thread")]
async fn v7b_faulty_bodies_are_not_quoted_in_answers() {
    let scene = Scene::start(Plan::new("V7b", "/json with long faulty values")).await;
    let long = "v".repeat(60_000);
    let bodies = [
        format!(r#"{{"domain":"attack","descriptors":"{long}"}}"#),
        format!(r#"{{"domain":"attack","descriptors":[{{"limit":{{"unit":"{long}"}}}}]}}"#),
        format!(r#"{{"{long}":1}}"#),
    ];
    let mut longest = 0;
    let attacked = scene.attack(async |foes, _| {
        while !foes.is_over() {
            for body in &bodies {
                let answer = post(foes, &[("content-type", "application/json")], body).await;
                longest = longest.max(answer.map_or(0, |answer| answer.body.len()));
            }
        }
    });
    let mut row = attacked.await.row;
    row.note(&format!("the longest answer has {longest} bytes"));
    row.holds(longest <= 2_048, &format!("an answer of {longest} bytes"));
    row.end();
}

/// Long bodies of names that are all wrong, and queries that a page of another site has a browser
/// send.
#[tokio::test(flavor = "multi_thread")]
async fn v7c_faulty_scoped_requests_are_short_and_charge_nothing() {
    let plan = Plan::new("V7c", "/shouldAllow with a MiB of wrong names; queries of other sites");
    let scene = Scene::start(plan).await;
    let wrong: Vec<_> = (0..58_000).map(|nth| format!(r#""scpoe{nth}":[{{}}]"#)).collect();
    let wrong = format!("{{{}}}", wrong.join(","));
    assert!((900_000..1 << 20).contains(&wrong.len()), "nearly the longest body");
    let query = "/api/v1/rate_limit?user_id=v&endpoint=/";
    let browser = ("user-agent", "Mozilla/5.0");
    let (mut longest, mut broken) = (0, Vec::new());
    let attacked = scene.attack(async |foes, _| {
        while !foes.is_over() {
            for (method, path, headers, body, expected) in [
                ("POST", "/shouldAllow", &[("content-type", "application/json")][..], &*wrong, 400),
                ("POST", "/shouldAllow", &[("content-type", "text/plain"), browser], "{}", 415),
                ("GET", query, &[browser], "", 403),
                ("GET", query, &[("origin", "https://evil.example")], "", 403),
            ] {
                let answer = send(foes, method, path, headers, body).await;
                longest = longest.max(answer.as_ref().map_or(0, |answer| answer.body.len()));
                // No answer: the room for bodies was taken by others.
                let status = answer.map(|answer| answer.status).filter(|it| *it != 503);
                if status.is_some_and(|it| it != expected) {
                    broken.push(format!("{method} {path} was answered with {status:?}"));
                }
            }
        }
    });
    let mut row = attacked.await.row;
    row.note(&format!("the longest answer has {longest} bytes"));
    row.holds(longest > 0 && longest <= 8_192, &format!("an answer of {longest} bytes"));
    broken.iter().take(5).for_each(|what| row.holds(false, what));
    row.end();
}
