//! Check, publish, roll back.

use ratelease_control::Database;
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
        let expected = json!({"version": 3, "domains": ["shop"], "discarded": ["shop"]});
        assert_eq!(done.json(), expected, "{done:?}");
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
        // The draft of another editor is not published with it, and the change is not kept.
        server.add(&rule("shop", "user", "3", 5)).await;
        let refused = post(rule("shop", "user", "4", 5)).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        let list = server.json("/v1/rules?scope=user&value=4").await;
        assert_eq!(list["rules"], json!([]));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_version_names_the_domains_that_it_changes() {
    for place in places().await {
        let server = place.serve().await;
        server.import(&file("shop", "user", 5)).await;
        server.import(&file("bank", "card", 1)).await;
        assert_eq!(server.publish().await, 1);
        server.import(&file("shop", "user", 6)).await;
        let both = json!({"domains": ["bank", "shop"]});
        let done = server.post("/v1/publish", &both).await;
        assert_eq!(done.json(), json!({"version": 2, "domains": ["shop"]}));
        assert_eq!(server.json("/v1/audit").await["actions"][0]["subject"], "2: shop");
        let done = server.post("/v1/publish", &both).await;
        assert_eq!(done.json(), json!({"version": 2, "domains": []}));
        server.stop().await;
    }
}

#[tokio::test]
async fn what_is_not_there_or_not_meant_is_not_published() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "user", "7", 5)).await;
    let unknown = server.post("/v1/publish", &json!({"domains": ["unknown"]})).await;
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

/// A rule file whose rules are below a key of 8000 bytes, which a pod holds once for each rule.
fn heavy(domain: &str, rules: usize) -> String {
    let key = "k".repeat(8000);
    let mut text = format!("domain: {domain}\ndescriptors:\n- key: {key}\n  descriptors:\n");
    for number in 0..rules {
        let limit = "rate_limit: {unlimited: true}";
        text.push_str(&format!("  - {{key: a, value: '{number}', {limit}}}\n"));
    }
    text
}

#[tokio::test]
async fn what_pods_would_refuse_together_is_not_published() {
    let place = Place::sqlite();
    // Pods with enough memory, so that only the ceiling of the compiler refuses the set.
    let server = place.serve_with(|settings| settings.pod_memory = 2 << 30).await;
    server.import(&file("bank", "card", 5)).await;
    assert_eq!(server.publish().await, 1);
    // Two domains that an earlier release published, each below the ceiling of a pod.
    let Database::Sqlite(path) = place.database() else { unreachable!() };
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    for domain in ["one", "two"] {
        let text = heavy(domain, 16_000);
        let sql = "INSERT INTO texts (hash, yaml, bytes, rules) VALUES ($1, $2, $3, 16000)";
        let bytes = i64::try_from(text.len()).unwrap();
        sqlx::query(sql).bind(domain).bind(text).bind(bytes).execute(&pool).await.unwrap();
        let sql = "INSERT INTO domains (name, defaults, changed, published, hash) \
                   VALUES ($1, '{}', 0, 0, $1)";
        sqlx::query(sql).bind(domain).execute(&pool).await.unwrap();
    }
    let version = "INSERT INTO versions (number, at, author, reason) VALUES (2, 1, 'test', ''); \
                   INSERT INTO version_domains (version, domain, hash) \
                   VALUES (2, 'one', 'one'), (2, 'two', 'two'); UPDATE counters SET version = 2";
    sqlx::raw_sql(version).execute(&pool).await.unwrap();
    pool.close().await;
    // 16 000 rules of 8 KB are 122 MiB, and a pod loads 256 MiB: 2000 more are too many.
    server.import(&heavy("shop", 2000)).await;
    let refused = server.post("/v1/publish", &json!({"domains": ["shop"]})).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.text.contains("256 MiB"), "{refused:?}");
    assert!(!refused.text.contains("'two'"), "another domain is named: {refused:?}");
    assert_eq!(server.json("/v1/versions").await["versions"][0]["version"], 2);
    // Others go on.
    server.import(&file("bank", "card", 6)).await;
    let published = server.post("/v1/publish", &json!({"domains": ["bank"]})).await;
    assert_eq!(published.status, 200, "{published:?}");
    server.stop().await;
}

#[tokio::test]
async fn no_domain_takes_the_place_of_the_others() {
    let place = Place::sqlite();
    let server = place.serve_with(|settings| settings.domain_bytes_max = 300).await;
    server.import(&file("shop", &"x".repeat(300), 5)).await;
    let refused = server.post("/v1/publish", &json!({"domains": ["shop"]})).await;
    assert_eq!((refused.status, refused.fields()), (422, vec!["descriptors".to_owned()]));
    assert_eq!(refused.json()["errors"][0]["domain"], "shop", "{refused:?}");
    assert!(refused.text.contains("--domain-bytes-max"), "{refused:?}");
    // A few hundred kilobytes of text whose rules fill the memory of pods are not even a draft.
    let call =
        Call::new("POST", "/v1/import").body("application/yaml", heavy("a", 4300).as_bytes());
    let refused = server.send(call).await;
    assert_eq!((refused.status, refused.fields()), (422, vec!["import.yaml".to_owned()]));
    server.import(&file("bank", "card", 5)).await;
    let published = server.post("/v1/publish", &json!({"domains": ["bank"]})).await;
    assert_eq!(published.status, 200, "{published:?}");
    server.stop().await;
}

/// A rule file of keys without limits, which take many times their text in a pod.
fn flat(domain: &str, keys: usize) -> String {
    let list: String = (0..keys).map(|at| format!("- key: k{at:05}\n")).collect();
    format!("domain: {domain}\ndescriptors:\n{list}")
}

#[tokio::test]
async fn one_token_for_several_domains_leaves_other_tenants_memory_of_pods() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let domains: Vec<_> = (0..12).map(|at| format!("d{at:02}")).collect();
    let create = ["create", "--name", "ci", "--access", "write", "--domains", &domains.join(",")];
    let own = place.token(&create).await.unwrap();
    let import = async |domain: &str, keys: usize, token: &str| {
        let call = Call::new("POST", "/v1/import?publish=true").token(token);
        server.send(call.body("application/yaml", flat(domain, keys).as_bytes())).await
    };
    // Each fits into what one domain may need, and so do no two of them.
    for (at, domain) in domains.iter().enumerate() {
        let answer = import(domain, 8000, &own).await;
        assert_eq!(answer.status, if at == 0 { 200 } else { 409 }, "{domain}: {answer:?}");
        if at > 0 {
            assert!(answer.text.contains("the token's domains together"), "{answer:?}");
            assert!(answer.text.contains("--pod-memory"), "{answer:?}");
        }
    }
    // Nor a rollout, whose chosen pods would have it at once.
    let rollout = json!({"domains": ["d02"], "pods": {"percent": 10}});
    server.import(&flat("d02", 8000)).await;
    let call = Call::new("POST", "/v1/rollouts").token(&own).json(&rollout);
    let refused = server.send(call).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.text.contains("the token's domains together"), "{refused:?}");
    // Another tenant's domain has room.
    assert_eq!(import("other", 8000, &server.token).await.status, 200);
    // An operator may give the token's domains more; the token may then only make them smaller.
    let more = import("d01", 8000, &server.token).await;
    assert_eq!(more.status, 200, "{more:?}");
    assert_eq!(import("d01", 8001, &own).await.status, 409);
    assert_eq!(import("d01", 7000, &own).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn what_pods_have_no_memory_for_is_not_published() {
    let place = Place::sqlite();
    let server = place.serve().await;
    // 0.4 MB of text, of which a pod of 64 MiB would need 28 MiB while it replaces them.
    server.import(&flat("shop", 30_000)).await;
    let refused = server.post("/v1/publish", &json!({"domains": ["shop"]})).await;
    assert_eq!((refused.status, refused.fields()), (422, vec!["descriptors".to_owned()]));
    assert!(refused.text.contains("--pod-memory"), "{refused:?}");
    // Domains that are good alone may need too much together.
    let mut answers = Vec::new();
    for at in 0..12 {
        let domain = format!("d{at:02}");
        server.import(&flat(&domain, 8000)).await;
        let answer = server.post("/v1/publish", &json!({"domains": [domain]})).await;
        answers.push((answer.status, answer.text));
        if answers[at].0 != 200 {
            break;
        }
    }
    assert!(answers.len() > 3, "{answers:?}");
    let (status, text) = answers.pop().unwrap();
    assert!(status == 409 && text.contains("MiB of memory"), "{status}: {text}");
    server.stop().await;
}

#[tokio::test]
async fn roll_backs_of_two_replicas_follow_each_other() {
    let place = Place::postgres().await;
    let servers = [place.serve().await, place.serve().await];
    for requests in 1..=3 {
        servers[0].import(&file("shop", "user", requests)).await;
        assert_eq!(servers[0].publish().await, i64::from(requests));
    }
    let back = async |at: usize, version: i64| {
        let done = servers[at].post("/v1/rollback", &json!({"version": version})).await;
        assert_eq!(done.status, 200, "{done:?}");
        done.json()
    };
    let text = async |version: &Value| {
        servers[0].get(&format!("/v1/export?domain=shop&version={version}")).await.text
    };
    for round in 0..5 {
        // To different versions: each is a version with the rules of its own.
        let last = json!(4 + 3 * round);
        let (one, other) = tokio::join!(back(0, 1), back(1, 2));
        for (done, version) in [(&one, 1), (&other, 2)] {
            assert_eq!(done["domains"], json!(["shop"]), "{done}");
            assert_eq!(text(&done["version"]).await, text(&json!(version)).await);
        }
        let mut versions = [one["version"].as_i64(), other["version"].as_i64()];
        versions.sort_unstable();
        assert_eq!(json!(versions[0]), last);
        // To the same one: the second roll back reads that nothing is left to do.
        let (one, other) = tokio::join!(back(0, 3), back(1, 3));
        assert_eq!(one["version"], other["version"], "{one} {other}");
        let domains = [&one["domains"], &other["domains"]];
        assert!(
            domains.contains(&&json!(["shop"])) && domains.contains(&&json!([])),
            "{domains:?}"
        );
        let checked = servers[1].post("/v1/check", &Value::Null).await;
        assert_eq!(checked.json()["differences"], json!([]), "what is published is not the draft");
    }
    let [one, other] = servers;
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_set_that_is_too_large_may_become_smaller() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.import(&file("shop", &"x".repeat(800), 5)).await;
    assert_eq!(server.publish().await, 1);
    server.stop().await;
    let server = place.serve_with(|settings| settings.push_bytes_max = 500).await;
    server.import(&file("shop", &"x".repeat(600), 5)).await;
    assert_eq!(server.publish().await, 2);
    server.stop().await;
}

#[tokio::test]
async fn versions_name_their_domains_and_are_read_by_domain() {
    for place in places().await {
        let server = place.serve().await;
        server.import(&file("shop", "user", 5)).await;
        server.import(&file("bank", "card", 1)).await;
        assert_eq!(server.publish().await, 1);
        server.import(&file("shop", "user", 6)).await;
        assert_eq!(server.publish().await, 2);
        server.import(&file("bank", "card", 2)).await;
        let zone = json!({"stage": "shadow", "pods": {"percent": 10}});
        assert_eq!(server.post("/v1/rollouts", &zone).await.status, 201);
        let of = async |query: &str| {
            let found = server.json(&format!("/v1/versions{query}")).await;
            let versions = found["versions"].as_array().unwrap().iter();
            let shown = versions.map(|it| {
                assert_eq!(it["domain_count"], it["domains"].as_array().unwrap().len(), "{it}");
                (it["version"].as_i64().unwrap(), it["domains"].clone())
            });
            shown.collect::<Vec<_>>()
        };
        let (both, shop, bank) = (json!(["bank", "shop"]), json!(["shop"]), json!(["bank"]));
        assert_eq!(of("").await, [(3, bank.clone()), (2, shop.clone()), (1, both.clone())]);
        assert_eq!(of("?domain=shop").await, [(2, shop.clone()), (1, both.clone())]);
        assert_eq!(of("?domain=bank&before=3").await, [(1, both)]);
        assert_eq!(of("?domain=none").await, []);
        assert_eq!(server.get("/v1/versions?domian=shop").await.status, 400);
        // A token for one of two domains learns of no other.
        let args = ["create", "--name", "shop", "--access", "read", "--domains", "shop"];
        let token = place.token(&args).await.unwrap();
        let call = Call::new("GET", "/v1/versions").token(&token);
        let seen = server.send(call).await.json();
        assert_eq!(seen["versions"][1]["domains"], shop, "{seen}");
        assert_eq!(seen["versions"][1]["domain_count"], 1, "{seen}");
        let call = Call::new("GET", "/v1/versions?domain=bank").token(&token);
        assert_eq!(server.send(call).await.status, 403);
        server.stop().await;
    }
}
