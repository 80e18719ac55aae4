//! Drafts that others have to approve before they are published.

use serde_json::{Value, json};

use super::support::people::{Person, run_sql, sign_in};
use super::support::{Answer, Call, Place, Server, hourly, places, rule};

/// Has a domain ask for approvals.
async fn ask_for(server: &Server, domain: &str, approvals: i64) -> Answer {
    let body = json!({"domain": domain, "approvals": approvals});
    server.send(Call::new("PUT", "/v1/approvals").json(&body)).await
}

/// A token of access write for the domain `shop`, made by the command line.
async fn writer(place: &Place, name: &str) -> String {
    let create = ["create", "--name", name, "--access", "write", "--domains", "shop"];
    place.token(&create).await.unwrap()
}

async fn add(server: &Server, token: &str, value: &str) -> Answer {
    let call = Call::new("POST", "/v1/rules").token(token).json(&rule("shop", "user", value, 5));
    server.send(call).await
}

async fn publish(server: &Server, token: &str, query: &str) -> Answer {
    let call = Call::new("POST", &format!("/v1/publish{query}")).token(token);
    server.send(call.json(&json!({"domains": ["shop"]}))).await
}

/// The approvals of `shop`.
async fn state(server: &Server) -> Value {
    server.json("/v1/approvals").await["domains"][0].clone()
}

/// Approves the draft of `shop` that has this entity tag.
async fn approve(server: &Server, token: &str, etag: &str) -> Answer {
    let call = Call::new("POST", "/v1/approvals").token(token).header("if-match", etag);
    server.send(call.json(&json!({"domain": "shop"}))).await
}

fn kind(answer: &Answer) -> String {
    answer.json()["type"].as_str().unwrap().rsplit(':').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_draft_needs_another_person_for_exactly_its_content() {
    for place in places().await {
        let server = place.serve().await;
        let (ann, ben) = (writer(&place, "ann").await, writer(&place, "ben").await);
        assert_eq!(ask_for(&server, "shop", 1).await.status, 200);
        assert_eq!(add(&server, &ann, "1").await.status, 201);
        for query in ["", "?reason=soon"] {
            let refused = publish(&server, &ann, query).await;
            assert_eq!((refused.status, &*kind(&refused)), (409, "not-approved"), "{refused:?}");
        }
        let etag = state(&server).await["etag"].as_str().unwrap().to_owned();
        let own = approve(&server, &ann, &etag).await;
        assert_eq!(own.status, 403, "{own:?}");
        let any = approve(&server, &ben, "*").await;
        assert_eq!(any.status, 412, "an approval is of one draft: {any:?}");
        let given = approve(&server, &ben, &etag).await;
        assert_eq!((given.status, given.json()["is_approved"].clone()), (200, json!(true)));
        // A change after the approval voids it, and its author is one of the draft's.
        assert_eq!(add(&server, &ben, "2").await.status, 201);
        assert_eq!(publish(&server, &ann, "").await.status, 409);
        let now = state(&server).await;
        assert_eq!((&now["approved_by"], &now["is_approved"]), (&json!([]), &json!(false)));
        assert_eq!(now["authors"].as_array().unwrap().len(), 2, "{now}");
        let etag = now["etag"].as_str().unwrap();
        assert_eq!(approve(&server, &ben, etag).await.status, 403);
        let third = writer(&place, "eve").await;
        assert_eq!(approve(&server, &third, etag).await.status, 200);
        let published = publish(&server, &ann, "").await;
        assert_eq!(published.status, 200, "{published:?}");
        let none = approve(&server, &third, etag).await;
        assert_eq!(kind(&none), "nothing-to-approve");
        server.stop().await;
    }
}

#[tokio::test]
async fn no_other_way_to_the_pods_goes_without_approvals() {
    for place in places().await {
        let server = place.serve().await;
        let ann = writer(&place, "ann").await;
        add(&server, &ann, "1").await;
        server.publish().await;
        ask_for(&server, "shop", 1).await;
        let at_once = Call::new("POST", "/v1/rules?publish=true").token(&ann);
        let at_once = server.send(at_once.json(&rule("shop", "user", "2", 5))).await;
        assert_eq!(kind(&at_once), "not-approved", "{at_once:?}");
        let yaml = b"domain: shop\ndescriptors:\n  - key: x\n    rate_limit: {unlimited: true}\n";
        let import = Call::new("POST", "/v1/import?publish=true").token(&ann);
        let import = server.send(import.body("application/yaml", yaml)).await;
        assert_eq!(kind(&import), "not-approved", "{import:?}");
        add(&server, &ann, "3").await;
        let rollout = Call::new("POST", "/v1/rollouts").token(&ann);
        let rollout = server.send(rollout.json(&json!({"pods": {"percent": 10}}))).await;
        assert_eq!(kind(&rollout), "not-approved", "{rollout:?}");
        // Policies are rules of the domain `default`, and published at once.
        ask_for(&server, "default", 1).await;
        let policy = json!({"keyType": "ip", "ratePerSec": 1, "burst": 2});
        let policy = server.send(Call::new("PUT", "/v1/policies/p").json(&policy)).await;
        assert_eq!(kind(&policy), "not-approved", "{policy:?}");
        server.stop().await;
    }
}

#[tokio::test]
async fn one_person_undoes_the_last_change_alone_and_no_older_one() {
    for place in places().await {
        let server = place.serve().await;
        for requests in [1, 2, 3] {
            let rules = json!({"domain": "shop", "entries": [{"key": format!("k{requests}")}],
                "rate_limit": hourly(requests)});
            server.add(&rules).await;
            server.publish().await;
        }
        ask_for(&server, "shop", 1).await;
        let ann = writer(&place, "ann").await;
        let back = async |version: i64| {
            let call = Call::new("POST", "/v1/rollback").token(&ann);
            server.send(call.json(&json!({"version": version}))).await
        };
        let older = back(1).await;
        assert_eq!(kind(&older), "not-approved", "{older:?}");
        let last = back(2).await;
        assert_eq!(last.json()["version"], 4, "{last:?}");
        let undone_again = back(3).await;
        assert_eq!(kind(&undone_again), "not-approved", "{undone_again:?}");
        let older = back(1).await;
        assert_eq!(kind(&older), "not-approved", "{older:?}");
        server.stop().await;
    }
}

#[tokio::test]
async fn an_administrator_alone_sets_and_skips_approvals_and_the_log_has_it() {
    for place in places().await {
        let server = place.serve().await;
        let ann = writer(&place, "ann").await;
        let body = json!({"domain": "shop", "approvals": 0});
        let set = Call::new("PUT", "/v1/approvals").token(&ann).json(&body);
        assert_eq!(server.send(set).await.status, 403);
        assert_eq!(ask_for(&server, "shop", 6).await.fields(), ["approvals"]);
        ask_for(&server, "shop", 1).await;
        add(&server, &ann, "1").await;
        assert_eq!(publish(&server, &ann, "?skip_approvals=true").await.status, 403);
        let admin = server.token.clone();
        let forced = publish(&server, &admin, "?skip_approvals=true&reason=outage").await;
        assert_eq!(forced.status, 200, "{forced:?}");
        let log = server.json("/v1/audit?domain=shop").await;
        let log: Vec<_> = log["actions"].as_array().unwrap().iter().collect();
        let actions: Vec<_> = log.iter().map(|it| it["action"].as_str().unwrap()).collect();
        let expected =
            ["version.publish", "approval.skip", "rule.add", "approvals.set", "token.create"];
        assert_eq!(actions, expected);
        assert_eq!(log[1]["subject"], "shop: 0 of 1");
        assert_eq!(log[1]["reason"], "outage");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_token_that_an_author_had_made_is_no_second_person() {
    for place in places().await {
        let server = place.serve().await;
        ask_for(&server, "shop", 1).await;
        let made = json!({"name": "mine", "access": "write", "domains": ["shop"], "days": 1});
        let made = server.post("/v1/tokens", &made).await;
        assert_eq!(made.status, 201, "{made:?}");
        let mine = made.json()["token"].as_str().unwrap().to_owned();
        // By the token, approved by the one who made it; and the other way around.
        add(&server, &mine, "1").await;
        let etag = state(&server).await["etag"].as_str().unwrap().to_owned();
        let admin = server.token.clone();
        assert_eq!(approve(&server, &admin, &etag).await.status, 403);
        let ben = writer(&place, "ben").await;
        assert_eq!(approve(&server, &ben, &etag).await.status, 200);
        assert_eq!(publish(&server, &ben, "").await.status, 200);
        add(&server, &admin, "2").await;
        let etag = state(&server).await["etag"].as_str().unwrap().to_owned();
        assert_eq!(approve(&server, &mine, &etag).await.status, 403);
        server.stop().await;
    }
}

#[tokio::test]
async fn no_subject_of_a_person_makes_them_another_author() {
    for place in places().await {
        let server = place.serve_with(|it| it.sign_in = Some(sign_in())).await;
        ask_for(&server, "shop", 1).await;
        for subject in ["ann", "users/0123456789ab", "a#b/c"] {
            let ann = Person::sign_in(&place, "Ann", subject, "write").await;
            let added = ann.call("POST", "/v1/rules").json(&rule("shop", "user", subject, 5));
            let added = server.send(added).await;
            assert_eq!(added.status, 201, "{added:?}");
            // Another name is no other person.
            for name in ["Ann", "Mrs Ann"] {
                ann.rename(&place, name).await;
                let etag = state(&server).await["etag"].as_str().unwrap().to_owned();
                let own = ann.call("POST", "/v1/approvals").header("if-match", &etag);
                let own = server.send(own.json(&json!({"domain": "shop"}))).await;
                assert_eq!(own.status, 403, "{subject}: {own:?}");
            }
            let sql = format!("DELETE FROM sessions WHERE person = '{}'", ann.id);
            run_sql(&place, sql).await;
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn the_writer_of_a_submitted_change_set_is_an_author_too() {
    for place in places().await {
        let server = place.serve().await;
        ask_for(&server, "shop", 1).await;
        let ann = writer(&place, "ann").await;
        let boss = place.token(&["create", "--name", "boss", "--access", "admin"]).await.unwrap();
        let put = async |token: &str, set: &str, key: &str| {
            let call = Call::new("PUT", &format!("{set}/rules")).token(token);
            let body = json!({"domain": "shop", "entries": [{"key": key}],
                "settings": {"rate_limit": hourly(5)}});
            let done = server.send(call.json(&body)).await;
            assert_eq!(done.status, 200, "{done:?}");
        };
        let make = async || {
            let made = Call::new("POST", "/v1/change-sets").token(&ann);
            let made = server.send(made.json(&json!({"name": "mine"}))).await;
            made.header("location").unwrap()
        };
        // Written by one, submitted by an administrator.
        let set = make().await;
        put(&ann, &set, "a").await;
        let submitted = server.post(&format!("{set}/submit"), &Value::Null).await;
        assert_eq!(submitted.status, 200, "{submitted:?}");
        let now = state(&server).await;
        assert_eq!(now["authors"].as_array().unwrap().len(), 2, "{now}");
        let own = approve(&server, &ann, now["etag"].as_str().unwrap()).await;
        assert_eq!(own.status, 403, "{own:?}");
        // Made by one, written by an administrator, submitted by the one.
        let set = make().await;
        put(&boss, &set, "b").await;
        let call = Call::new("POST", &format!("{set}/submit")).token(&ann);
        assert_eq!(server.send(call).await.status, 200);
        let etag = state(&server).await["etag"].as_str().unwrap().to_owned();
        let own = approve(&server, &boss, &etag).await;
        assert_eq!(own.status, 403, "{own:?}");
        let ben = writer(&place, "ben").await;
        assert_eq!(approve(&server, &ben, &etag).await.status, 200);
        server.stop().await;
    }
}

#[tokio::test]
async fn an_approval_counts_no_more_once_its_giver_is_revoked() {
    for place in places().await {
        let server = place.serve_with(|it| it.sign_in = Some(sign_in())).await;
        ask_for(&server, "shop", 1).await;
        let (ann, ben) = (writer(&place, "ann").await, writer(&place, "ben").await);
        add(&server, &ann, "1").await;
        let etag = state(&server).await["etag"].as_str().unwrap().to_owned();
        let boss = Person::sign_in(&place, "Boss", "boss", "admin").await;
        let body = json!({"name": "mine", "access": "write"});
        let made = server.send(boss.call("POST", "/v1/tokens").json(&body)).await.json();
        let (mine, mine_id) = (made["token"].as_str().unwrap(), made["id"].as_str().unwrap());
        let eve = Person::sign_in(&place, "Eve", "eve", "write").await;
        // A token, a token of a person who stays, and a person.
        for revoked in [ben.split('_').nth(1).unwrap(), mine_id, &eve.id] {
            let call = match revoked {
                it if it == mine_id => Call::new("POST", "/v1/approvals").token(mine),
                it if it == eve.id => eve.call("POST", "/v1/approvals"),
                _ => Call::new("POST", "/v1/approvals").token(&ben),
            };
            let call = call.header("if-match", &etag).json(&json!({"domain": "shop"}));
            let given = server.send(call).await;
            assert_eq!(given.json()["is_approved"], true, "{given:?}");
            let path = format!("/v1/tokens/{revoked}");
            assert_eq!(server.send(Call::new("DELETE", &path)).await.status, 204);
            let now = state(&server).await;
            assert_eq!((&now["approved_by"], &now["is_approved"]), (&json!([]), &json!(false)));
            let refused = publish(&server, &ann, "").await;
            assert_eq!(kind(&refused), "not-approved", "{refused:?}");
        }
        server.stop().await;
    }
}
