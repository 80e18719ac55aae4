//! Check, publish, roll back.

use serde_json::{Value, json};

use super::support::{Call, Place, hourly, places, rule};

fn file(domain: &str, key: &str, requests: u32) -> String {
    format!(
        "domain: {domain}\ndescriptors:\n- key: {key}\n  rate_limit: {{unit: hour, \
         requests_per_unit: {requests}}}\n"
    )
}

#[tokio::test]
async fn a_draft_is_checked_published_and_brought_back() {
    for place in places().await {
        let server = place.serve().await;
        server.import(&file("shop", "user", 5)).await;
        server.import(&file("bank", "card", 1)).await;
        let check = server.post("/v1/check", &Value::Null).await;
        assert_eq!(check.status, 200, "{check:?}");
        let report = check.json();
        assert_eq!(report["rules"], 2, "{report}");
        let differences = report["differences"].as_array().unwrap();
        assert_eq!(differences[1]["rules"][0]["after"]["rate_limit"], hourly(5), "{report}");
        let publish = |tag: &str, reason: &str| {
            Call::new("POST", &format!("/v1/publish?reason={reason}")).header("if-match", tag)
        };
        let done = server.send(publish(report["etag"].as_str().unwrap(), "first")).await;
        assert_eq!(done.json(), json!({"version": 1, "domains": ["bank", "shop"]}));

        server.import(&file("shop", "user", 6)).await;
        let exported = async |query: &str| server.get(&format!("/v1/export?{query}")).await.text;
        assert!(exported("domain=shop&version=1").await.contains("requests_per_unit: 5"));
        assert!(exported("domain=shop").await.contains("requests_per_unit: 6"));
        // What was checked before is not what would be published now.
        let stale = server.send(publish(report["etag"].as_str().unwrap(), "stale")).await;
        assert_eq!(stale.status, 412, "{stale:?}");
        assert_eq!(server.publish().await, 2);

        // Only one domain goes back, and a draft that is not published is not lost unasked.
        server.import(&file("shop", "user", 7)).await;
        let back = json!({"version": 1});
        let kept = server.post("/v1/rollback", &back).await;
        assert_eq!(kept.status, 409, "{kept:?}");
        let back = json!({"version": 1, "discard_draft": true});
        let done = server.post("/v1/rollback?reason=too%20tight", &back).await;
        assert_eq!(done.json(), json!({"version": 3, "domains": ["shop"]}), "{done:?}");
        assert!(exported("domain=shop").await.contains("requests_per_unit: 5"));
        assert_eq!(
            exported("domain=shop&version=3").await,
            exported("domain=shop&version=1").await
        );
        let versions = server.json("/v1/versions").await;
        let last = &versions["versions"][0];
        assert_eq!((&last["restores"], &last["reason"]), (&json!(1), &json!("too tight")));
        let actions = server.json("/v1/audit").await;
        assert_eq!(actions["actions"][0]["action"], "version.restore");
        assert_eq!(server.post("/v1/rollback", &json!({"version": 9})).await.status, 404);
        server.stop().await;
    }
}

#[tokio::test]
async fn versions_go_on_after_a_restart_and_a_domain_without_rules_leaves() {
    for place in places().await {
        let server = place.serve().await;
        let (added, tag) = server.add(&rule("shop", "user", "7", 5)).await;
        assert_eq!(server.publish().await, 1);
        server.stop().await;
        let server = place.serve().await;
        let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
        let delete = Call::new("DELETE", &path).header("if-match", &tag);
        assert_eq!(server.send(delete).await.status, 204);
        assert_eq!(server.publish().await, 2);
        assert_eq!(server.json("/v1/export?version=2").await["files"], json!([]));
        assert_eq!(server.publish().await, 2, "nothing changed");
        let back = server.post("/v1/rollback", &json!({"version": 1})).await;
        assert_eq!(back.json()["version"], 3, "{back:?}");
        // The rule is the one that it was.
        assert_eq!(server.json(&path).await["rate_limit"], hourly(5));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_change_is_published_at_once_if_it_would_be_the_only_one() {
    for place in places().await {
        let server = place.serve().await;
        let post = async |rule: Value| server.post("/v1/rules?publish=true", &rule).await;
        assert_eq!(post(rule("shop", "user", "1", 5)).await.status, 201);
        assert_eq!(post(rule("shop", "user", "2", 5)).await.status, 201);
        assert_eq!(server.json("/v1/versions").await["versions"][0]["version"], 2);
        let text = server.get("/v1/export?domain=shop&version=2").await.text;
        assert_eq!(text.matches("- key: user").count(), 2, "{text}");
        // Somebody else's draft is not published with it, and the change is not kept.
        server.add(&rule("shop", "user", "3", 5)).await;
        let refused = post(rule("shop", "user", "4", 5)).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        let list = server.json("/v1/rules?scope=user&value=4").await;
        assert_eq!(list["rules"], json!([]));
        server.stop().await;
    }
}

#[tokio::test]
async fn what_is_not_there_or_not_meant_is_not_published() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "user", "7", 5)).await;
    let unknown = server.post("/v1/publish", &json!({"domains": ["nobody"]})).await;
    assert_eq!(unknown.status, 404, "{unknown:?}");
    let typo = server.post("/v1/publish", &json!({"domain": "shop"})).await;
    assert_eq!((typo.status, typo.fields()), (422, vec!["domain".to_owned()]), "{typo:?}");
    let list = server.post("/v1/publish", &json!(["shop"])).await;
    assert_eq!(list.status, 422, "{list:?}");
    assert_eq!(server.json("/v1/versions").await["versions"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn more_than_a_pod_accepts_is_not_published() {
    for place in places().await {
        let server = place.serve_with(|settings| settings.push_bytes_max = 500).await;
        server.import(&file("shop", "user", 5)).await;
        assert_eq!(server.publish().await, 1);
        server.import(&file("bank", &"x".repeat(500), 5)).await;
        let refused = server.post("/v1/publish", &Value::Null).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.text.contains("--push-bytes-max"), "{refused:?}");
        let versions = server.json("/v1/versions").await;
        assert_eq!(versions["versions"].as_array().unwrap().len(), 1, "a part was published");
        server.stop().await;
    }
}
