//! Drafts: whether they differ from the published rules, their authors, and how they are discarded.

use serde_json::{Value, json};

use super::support::{Call, Place, Server, hourly, now, places, rule};
use super::tokens::token;

/// A domain in the list of `/v1/domains`.
async fn domain(server: &Server, name: &str) -> Value {
    let all = server.json("/v1/domains").await;
    let all = all["domains"].as_array().unwrap();
    all.iter().find(|it| it["domain"] == name).cloned().unwrap_or_else(|| panic!("{all:?}"))
}

async fn is_changed(server: &Server, name: &str) -> bool {
    domain(server, name).await["is_changed"] == true
}

/// Changes the limit of a rule.
async fn change(server: &Server, rule: &Value, requests: u32) {
    let path = format!("/v1/rules/{}", rule["id"].as_str().unwrap());
    let call = Call::new("PUT", &path).header("if-match", "*");
    let answer = server.send(call.json(&json!({"rate_limit": hourly(requests)}))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

async fn remove(server: &Server, rule: &Value) {
    let path = format!("/v1/rules/{}", rule["id"].as_str().unwrap());
    let answer = server.send(Call::new("DELETE", &path).header("if-match", "*")).await;
    assert_eq!(answer.status, 204, "{answer:?}");
}

/// The differences of a domain, and the entity tag of its draft.
async fn differences(server: &Server, name: &str) -> (Value, String) {
    let found = server.json(&format!("/v1/differences?domain={name}")).await;
    (found["domains"].clone(), found["etag"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_change_that_is_undone_is_no_change_in_any_call() {
    for place in places().await {
        let server = place.serve().await;
        let (cart, _) = server.add(&rule("shop", "cart", "", 5)).await;
        assert_eq!(server.publish().await, 1);
        let published = server.get("/v1/export?domain=shop&version=1").await.text;
        for is_import in [false, true] {
            change(&server, &cart, 7).await;
            assert!(is_changed(&server, "shop").await);
            match is_import {
                true => drop(server.import(&published).await),
                false => change(&server, &cart, 5).await,
            }
            assert!(!is_changed(&server, "shop").await);
            let check = server.post("/v1/check", &Value::Null).await.json();
            assert_eq!((&check["rules"], &check["differences"]), (&json!(0), &json!([])));
            let none = json!({"pods": {"percent": 50}});
            let refused = server.post("/v1/rollouts", &none).await;
            assert!(refused.text.contains("0 domains differ"), "{refused:?}");
            // Nothing else is published with a change, and nothing is lost by a roll back.
            let added = server.post("/v1/rules?publish=true", &rule("shop", "new", "", 1)).await;
            assert_eq!(added.status, 201, "{added:?}");
            change(&server, &cart, 7).await;
            change(&server, &cart, 5).await;
            let back = server.post("/v1/rollback", &json!({"version": 1})).await;
            assert_eq!(back.json()["domains"], json!(["shop"]), "{back:?}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn another_order_of_rules_or_other_defaults_are_changes() {
    for place in places().await {
        let server = place.serve().await;
        let rules = ["a", "b"].map(|key| {
            format!("- key: {key}\n  rate_limit: {{unit: hour, requests_per_unit: 1}}\n")
        });
        let file = |defaults: &str, rules: &[String]| {
            format!("domain: shop\n{defaults}descriptors:\n{}", rules.concat())
        };
        let [a, b] = rules;
        let published = file("", &[a.clone(), b.clone()]);
        server.import(&published).await;
        assert!(is_changed(&server, "shop").await);
        server.publish().await;
        for other in [
            file("", &[b.clone(), a.clone()]),
            file("defaults: {failure_mode: deny}\n", &[a.clone(), b.clone()]),
        ] {
            server.import(&other).await;
            assert!(is_changed(&server, "shop").await, "{other}");
            server.import(&published).await;
            assert!(!is_changed(&server, "shop").await, "{other}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_new_rule_that_is_removed_again_leaves_no_change() {
    for place in places().await {
        let server = place.serve().await;
        let (added, _) = server.add(&rule("shop", "cart", "", 5)).await;
        remove(&server, &added).await;
        assert!(!is_changed(&server, "shop").await);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_draft_is_discarded_as_it_was_looked_at_and_others_stay() {
    for place in places().await {
        let server = place.serve().await;
        let (cart, _) = server.add(&rule("shop", "cart", "", 5)).await;
        server.publish().await;
        change(&server, &cart, 7).await;
        let (added, _) = server.add(&rule("shop", "new", "", 1)).await;
        server.add(&rule("bank", "card", "", 1)).await;
        let (lost, etag) = differences(&server, "shop").await;
        assert_eq!((&lost[0]["changed"], &lost[0]["added"]), (&json!(1), &json!(1)), "{lost}");
        let discard = |domains: Value, etag: &str| {
            let call = Call::new("POST", "/v1/discard?reason=wrong").header("if-match", etag);
            call.json(&json!({"domains": domains}))
        };
        // A change of another person meanwhile is not lost unseen.
        change(&server, &cart, 8).await;
        let stale = server.send(discard(json!(["shop"]), &etag)).await;
        assert_eq!(stale.status, 412, "{stale:?}");
        let (_, etag) = differences(&server, "shop").await;
        let done = server.send(discard(json!(["shop"]), &etag)).await;
        assert_eq!(done.json(), json!({"domains": ["shop"]}), "{done:?}");
        assert!(!is_changed(&server, "shop").await);
        assert!(is_changed(&server, "bank").await);
        let path = format!("/v1/rules/{}", cart["id"].as_str().unwrap());
        assert_eq!(server.json(&path).await["rate_limit"], hourly(5));
        let gone = server.get(&format!("/v1/rules/{}", added["id"].as_str().unwrap())).await;
        assert_eq!(gone.status, 404, "{gone:?}");
        let last = server.json(&format!("{path}/history?limit=1")).await;
        assert_eq!(last["changes"][0]["reason"], "wrong", "{last}");
        let action = &server.json("/v1/audit?limit=1").await["actions"][0];
        assert_eq!(
            (&action["action"], &action["subject"]),
            (&json!("draft.discard"), &json!("shop"))
        );
        // A domain that was never published has no rules then.
        let done = server.send(discard(json!(["bank", "shop"]), "*")).await;
        assert_eq!(done.json(), json!({"domains": ["bank"]}), "{done:?}");
        assert_eq!(domain(&server, "bank").await["rules"], 0);
        let required = server.post("/v1/discard", &json!({"domains": ["shop"]})).await;
        assert_eq!(required.status, 428, "{required:?}");
        let unknown = server.send(discard(json!(["none"]), "*")).await;
        assert_eq!(unknown.status, 404, "{unknown:?}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_token_discards_drafts_of_its_domains_only() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "cart", "", 5)).await;
    let discard = || {
        let call = Call::new("POST", "/v1/discard").header("if-match", "*");
        call.json(&json!({"domains": ["shop"]}))
    };
    for (args, status) in [
        (["--name", "a", "--access", "write", "--domains", "bank"].as_slice(), 403),
        (&["--name", "b", "--access", "read", "--domains", "shop"], 403),
        (&["--name", "c", "--access", "write", "--domains", "shop"], 200),
    ] {
        let token = token(&place, &[&["create"], args].concat()).await.unwrap();
        assert_eq!(server.send(discard().token(&token)).await.status, status, "{args:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_roll_back_that_may_lose_drafts_discards_those_that_differ() {
    for place in places().await {
        let server = place.serve().await;
        let (cart, _) = server.add(&rule("shop", "cart", "", 5)).await;
        server.publish().await;
        change(&server, &cart, 7).await;
        let body = json!({"version": 1, "domains": ["shop"]});
        let kept = server.post("/v1/rollback", &body).await;
        assert_eq!(kept.json(), json!({"version": 1, "domains": []}), "{kept:?}");
        assert!(is_changed(&server, "shop").await);
        let body = json!({"version": 1, "domains": ["shop"], "discard_draft": true});
        let done = server.post("/v1/rollback", &body).await;
        let expected = json!({"version": 1, "domains": [], "discarded": ["shop"]});
        assert_eq!(done.json(), expected, "{done:?}");
        assert!(!is_changed(&server, "shop").await);
        server.stop().await;
    }
}

#[tokio::test]
async fn those_who_changed_a_draft_since_it_was_published_are_named() {
    for place in places().await {
        let server = place.serve().await;
        let other = token(&place, &["create", "--name", "ci", "--access", "write"]).await.unwrap();
        let (cart, _) = server.add(&rule("shop", "cart", "", 5)).await;
        let first = domain(&server, "shop").await;
        assert_eq!(first["changed_by"], json!([cart["updated_by"]]), "{first}");
        assert_eq!(first["changed_at"], cart["updated_at"], "{first}");
        let call = Call::new("POST", "/v1/rules").token(&other);
        let added = server.send(call.json(&rule("shop", "path", "", 5))).await.json();
        let both = json!([added["updated_by"], cart["updated_by"]]);
        assert_eq!(domain(&server, "shop").await["changed_by"], both);
        server.publish().await;
        let published = domain(&server, "shop").await;
        assert!(published.get("changed_by").is_none(), "{published}");
        assert!(published.get("changed_at").is_none(), "{published}");
        change(&server, &cart, 6).await;
        assert_eq!(domain(&server, "shop").await["changed_by"], json!([cart["updated_by"]]));
        server.stop().await;
    }
}

/// Keys without settings for a rule file: they have no number of their own.
fn keys(count: usize) -> String {
    (0..count).map(|at| format!("- key: k{at:05}\n")).collect()
}

/// A rule file with one limit.
fn limited(domain: &str, requests: u32) -> String {
    let limit = format!("{{unit: hour, requests_per_unit: {requests}}}");
    format!("domain: {domain}\ndescriptors:\n- {{key: a, rate_limit: {limit}}}\n")
}

#[tokio::test]
async fn a_large_draft_that_changes_all_the_time_keeps_no_other_tenant_waiting() {
    for place in places().await {
        let server = place.serve().await;
        let of = async |domain: &str| {
            let create = ["create", "--name", domain, "--access", "write", "--domains", domain];
            token(&place, &create).await.unwrap()
        };
        let (evil, shop) = (of("evil").await, of("shop").await);
        server.import(&limited("evil", 1)).await;
        server.import(&limited("shop", 1)).await;
        server.publish().await;
        server.import(&(limited("evil", 1) + &keys(20_000))).await;
        let flips = async {
            for at in 0_u64.. {
                let rule = json!({"domain": "evil", "entries": [{"key": format!("z{at}")}]});
                let added = server.send(Call::new("POST", "/v1/rules").token(&evil).json(&rule));
                let path = format!("/v1/rules/{}", added.await.json()["id"].as_str().unwrap());
                let call = Call::new("DELETE", &path).token(&evil).header("if-match", "*");
                assert_eq!(server.send(call).await.status, 204);
            }
        };
        let calls = async {
            for at in 0..12 {
                let call = Call::new("GET", "/v1/domains").token(&shop);
                let began = now();
                let answer = server.send(call).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                assert!(!answer.text.contains("evil"), "{answer:?}");
                eprintln!("a list took {:?}", began.elapsed());
                server.import(&limited("shop", 2 + at)).await;
                let call = Call::new("POST", "/v1/publish").token(&shop);
                let answer = server.send(call.json(&json!({"domains": ["shop"]}))).await;
                assert_eq!(answer.status, 200, "{answer:?}");
            }
        };
        tokio::select! {
            () = flips => unreachable!(),
            () = calls => {}
        }
        server.stop().await;
    }
}
