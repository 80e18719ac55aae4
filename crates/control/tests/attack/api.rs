//! Attacks on the API: by clients without a token, and by holders of a token of one domain.

use std::time::Duration;

use serde_json::json;

use crate::scene::{ATTACKED, Scene, is_full};
use crate::support::{Call, now};

/// Requests that are given up, and after what time: their work has begun.
const GIVEN_UP: usize = 24;
const GIVEN_UP_AFTER: Duration = Duration::from_millis(300);

/// Threads that may be at work for requests: those of four long ones, and a few for files.
const THREADS_MAX: usize = 8;

/// A rule file of this many rules.
fn rules(count: usize) -> String {
    let rule =
        |at| format!("- key: k{at:06}\n  rate_limit: {{unit: hour, requests_per_unit: 9}}\n");
    let rules: String = (0..count).map(rule).collect();
    format!("domain: {ATTACKED}\ndescriptors:\n{rules}")
}

/// Requests that are given up leave no more threads at work than requests may have.
async fn give_up(scene: &mut Scene, call: impl Fn() -> Call<'static>) {
    let before = scene.process.threads();
    for _ in 0..GIVEN_UP {
        let call = call();
        scene.sent += call.bytes() as u64;
        // The client goes away while the server is at work.
        let _ = tokio::time::timeout(GIVEN_UP_AFTER, call.to(scene.process.http)).await;
    }
    let more = scene.process.threads().saturating_sub(before);
    scene.row.note(&format!("{more} more threads"));
    scene.row.holds(more <= THREADS_MAX, &format!("{more} threads are at work"));
}

#[tokio::test(flavor = "multi_thread")]
async fn c2a_imports_that_are_given_up() {
    let scene = Scene::begin("C2a", "imports that are given up").await;
    let yaml = rules(if is_full() { 200_000 } else { 20_000 });
    let token = scene.foe.clone();
    let call = || {
        let call = Call::new("POST", "/v1/import?publish=true").token(&token);
        call.body("application/yaml", yaml.as_bytes())
    };
    scene.attacked_by(async |scene: &mut Scene| give_up(scene, call).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c2b_published_changes_that_are_given_up() {
    // Pods with the default limit have no memory for so many rules of one domain.
    let flags = ["--pod-memory", "512Mi"];
    let scene = Scene::begin_with("C2b", "published changes that are given up", &flags).await;
    let token = scene.foe.clone();
    let yaml = rules(if is_full() { 40_000 } else { 10_000 });
    let import = Call::new("POST", "/v1/import?publish=true").token(&token);
    let import = import.body("application/yaml", yaml.as_bytes());
    assert_eq!(import.to(scene.process.http).await.unwrap().status, 200);
    let rule = json!({"domain": ATTACKED, "entries": [{"key": "new"}]});
    let call = || Call::new("POST", "/v1/rules?publish=true").token(&token).json(&rule);
    scene.attacked_by(async |scene: &mut Scene| give_up(scene, call).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c3a_replays_that_fill_a_template_with_a_long_field() {
    let scene = Scene::begin("C3a", "a replay with long fields in long templates").await;
    let line = json!({"time": 1, "x": "x".repeat(60_000)}).to_string();
    let templates = vec![format!("k={}", "%x%%%".repeat(100)); 256];
    let body = json!({"log": line, "domain": ATTACKED, "descriptors": templates});
    let attack = async |scene: &mut Scene| {
        let end = now() + scene.lasts();
        while now() < end {
            let call = Call::new("POST", "/v1/replay").token(&scene.foe).json(&body);
            scene.sent += call.bytes() as u64;
            let answer = call.to(scene.process.http).await.unwrap();
            scene.row.holds(answer.status == 200, &format!("{answer:?}"));
        }
    };
    scene.attacked_by(attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c1a_tokens_that_are_not_valid() {
    let scene = Scene::begin("C1a", "tokens that are not valid").await;
    let attack = async |scene: &mut Scene| {
        let (http, end) = (scene.process.http, now() + scene.lasts());
        let guess = |at: usize| format!("{:.16}{at:04}{}", scene.foe, &scene.foe[20..]);
        let mut refused = 0_u64;
        let mut at = 0;
        while now() < end {
            let calls = (0..16).map(|_| {
                at += 1;
                Call::new("GET", "/v1/domains").token(&guess(at % 10_000)).to(http)
            });
            let answers = futures_util::future::join_all(calls).await;
            refused += answers.iter().flatten().filter(|it| it.status == 429).count() as u64;
            scene.sent += 16 * 200;
        }
        scene.row.line["refused"] = refused.into();
        scene.row.holds(refused > 0, "no guess was refused");
    };
    scene.attacked_by(attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4a_searches_for_a_text_that_nearly_matches_everywhere() {
    let scene = Scene::begin("C4a", "searches that nearly match everywhere").await;
    // All that a domain may have: each rule's metadata is almost what is searched for.
    let rule = |at| {
        let text = "a".repeat(60_000);
        format!(
            "- key: k{at}\n  rate_limit: {{unit: hour, requests_per_unit: 9}}\n  \
             metadata: {{a: {text}}}\n"
        )
    };
    let yaml = (0..250).map(rule).collect::<String>();
    let yaml = format!("domain: {ATTACKED}\ndescriptors:\n{yaml}");
    let import = Call::new("POST", "/v1/import").token(&scene.foe);
    let import = import.body("application/yaml", yaml.as_bytes());
    assert_eq!(import.to(scene.process.http).await.unwrap().status, 200);
    let path = format!("/v1/rules?domain={ATTACKED}&limit=1&q={}b", "a".repeat(127));
    let attack = async |scene: &mut Scene| {
        let end = now() + scene.lasts();
        while now() < end {
            let call = || Call::new("GET", &path).token(&scene.foe).to(scene.process.http);
            futures_util::future::join_all((0..24).map(|_| call())).await;
            scene.sent += 24 * 300;
        }
    };
    scene.attacked_by(attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c5a_imports_that_change_nothing() {
    let scene = Scene::begin("C5a", "imports that change nothing, side by side").await;
    let yaml = rules(if is_full() { 200_000 } else { 20_000 });
    let import = async |scene: &Scene| {
        let call = Call::new("POST", "/v1/import").token(&scene.foe);
        call.body("application/yaml", yaml.as_bytes()).to(scene.process.http).await.unwrap().status
    };
    assert_eq!(import(&scene).await, 200);
    let attack = async |scene: &mut Scene| {
        let end = now() + scene.lasts();
        while now() < end {
            let imports = (0..3).map(|_| import(scene));
            let statuses = futures_util::future::join_all(imports).await;
            scene.sent += 3 * yaml.len() as u64;
            scene.row.holds(statuses == [200; 3], &format!("{statuses:?}"));
        }
    };
    scene.attacked_by(attack).await;
}
