//! The audit log, by domain, author and time.

use serde_json::Value;

use super::support::{Call, Server, places, rule};

/// The actions of a query, as `action subject`.
async fn actions(server: &Server, query: &str) -> Vec<String> {
    let log = server.json(&format!("/v1/audit?{query}")).await;
    let shown = |it: &Value| {
        format!("{} {}", it["action"].as_str().unwrap(), it["subject"].as_str().unwrap())
    };
    log["actions"].as_array().unwrap().iter().map(shown).collect()
}

#[tokio::test]
async fn the_audit_log_is_read_by_domain_author_and_time() {
    for place in places().await {
        let server = place.serve().await;
        let (shop, _) = server.add(&rule("shop", "user", "", 5)).await;
        server.add(&rule("bank", "card", "", 5)).await;
        server
            .import("domain: geo\ndescriptors:\n  - {key: x, rate_limit: {unlimited: true}}\n")
            .await;
        server.publish().await;
        let create = ["create", "--name", "100%_ci", "--access", "write", "--domains", "shop"];
        let ci = place.token(&create).await.unwrap();
        let id = shop["id"].as_str().unwrap();
        let path = format!("/v1/rules/{id}?publish=true");
        let remove = Call::new("DELETE", &path).token(&ci).header("if-match", "*");
        assert_eq!(server.send(remove).await.status, 204);
        let token = ci.split('_').nth(1).unwrap();
        let (removed, made) =
            (format!("rule.remove {id}"), format!("token.create {token}: write of shop"));
        let of_shop = actions(&server, "domain=shop").await;
        assert_eq!(
            of_shop,
            [
                "version.publish 2: shop",
                &*removed,
                &*made,
                "version.publish 1: bank, geo, shop",
                &format!("rule.add {id}")
            ]
        );
        let of_geo = ["version.publish 1: bank, geo, shop", "rules.import geo"];
        assert_eq!(actions(&server, "domain=geo").await, of_geo);
        assert_eq!(actions(&server, "domain=sho").await, Vec::<String>::new());
        let by_ci = ["version.publish 2: shop", &*removed];
        assert_eq!(actions(&server, "author=100%25_ci").await, by_ci);
        assert_eq!(actions(&server, &format!("author={token}&domain=shop")).await, by_ci);
        assert_eq!(actions(&server, "author=100xxci").await, Vec::<String>::new());
        let all = server.json("/v1/audit").await;
        let at = |index: usize| all["actions"][index]["at"].as_str().unwrap().to_owned();
        let since = actions(&server, &format!("since={}", at(2))).await;
        assert_eq!(since[2], made, "{since:?}");
        let until = actions(&server, &format!("until={}&domain=shop", at(2))).await;
        assert_eq!(until, of_shop[3..]);
        let page = server.json("/v1/audit?domain=shop&limit=2").await;
        let next = page["next"].as_i64().unwrap();
        let rest = actions(&server, &format!("domain=shop&limit=3&before={next}")).await;
        assert_eq!(rest, of_shop[2..]);
        let bad = server.get("/v1/audit?since=yesterday&until=soon").await;
        assert_eq!((bad.status, bad.fields()), (422, vec!["since".into(), "until".into()]));
        assert_eq!(server.get("/v1/audit?domains=shop").await.status, 400, "no word is ignored");
        // Another token of this name is another author.
        let other = place.token(&create).await.unwrap();
        let add = Call::new("POST", "/v1/rules").token(&other).json(&rule("shop", "z", "", 5));
        assert_eq!(server.send(add).await.status, 201);
        assert_eq!(actions(&server, "author=100%25_ci").await.len(), 3);
        assert_eq!(actions(&server, &format!("author_id={token}")).await, by_ci);
        for none in ["100%25_ci", &token[1..], "%25"] {
            let found = actions(&server, &format!("author_id={none}")).await;
            assert_eq!(found, Vec::<String>::new(), "{none}");
        }
        server.stop().await;
    }
}
