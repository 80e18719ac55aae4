//! Drafts of one's own: nothing of a change set is in the shared draft before it is submitted.

use serde_json::{Value, json};

use super::support::people::{Person, sign_in};
use super::support::{Answer, Call, Place, Server, hourly, places, rule};

/// Sends a request with a token.
async fn send(server: &Server, token: &str, method: &str, path: &str, body: &Value) -> Answer {
    let call = Call::new(method, path).token(token);
    server.send(if body.is_null() { call } else { call.json(body) }).await
}

/// A change of the limit of a rule; without one, its removal.
fn change(domain: &str, key: &str, requests: Option<u32>) -> Value {
    let settings = requests.map(|it| json!({"rate_limit": hourly(it)}));
    json!({"domain": domain, "entries": [{"key": key}], "settings": settings})
}

/// A token that writes, and the path of an empty set of it.
async fn author(place: &Place, server: &Server, name: &str, domains: &[&str]) -> (String, String) {
    let all = domains.join(",");
    let mut args = vec!["create", "--name", name, "--access", "write"];
    if !domains.is_empty() {
        args.extend(["--domains", &all]);
    }
    let token = place.token(&args).await.unwrap();
    let made = send(server, &token, "POST", "/v1/change-sets", &json!({"name": name})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let path = made.header("location").unwrap();
    (token, path)
}

async fn put(server: &Server, token: &str, set: &str, change: &Value) -> Answer {
    send(server, token, "PUT", &format!("{set}/rules"), change).await
}

async fn submit(server: &Server, token: &str, set: &str) -> Answer {
    send(server, token, "POST", &format!("{set}/submit?reason=ours"), &Value::Null).await
}

#[tokio::test]
async fn a_change_set_is_submitted_whole_and_unseen_before() {
    for place in places().await {
        let server = place.serve().await;
        server.add(&rule("shop", "cart", "", 5)).await;
        server.add(&rule("shop", "old", "", 5)).await;
        server.publish().await;
        let (token, set) = author(&place, &server, "mine", &[]).await;
        for it in [
            change("shop", "cart", Some(6)),
            change("shop", "cart", Some(7)),
            change("shop", "old", None),
            change("bank", "card", Some(1)),
        ] {
            let done = put(&server, &token, &set, &it).await;
            assert_eq!(done.status, 200, "{done:?}");
        }
        let domains = server.json("/v1/domains").await;
        assert_eq!(domains["domains"].as_array().unwrap().len(), 1, "{domains}");
        assert_eq!(domains["domains"][0]["is_changed"], false);
        let shown = server.json(&set).await;
        assert_eq!((&shown["domains"], &shown["rules"]), (&json!(["bank", "shop"]), &json!(3)));
        assert_eq!(shown["changes"][1]["before"], json!({"rate_limit": hourly(5)}), "{shown}");
        assert_eq!(shown["changes"][1]["after"], json!({"rate_limit": hourly(7)}), "{shown}");
        let done = submit(&server, &token, &set).await;
        assert_eq!(done.json(), json!({"domains": ["bank", "shop"], "changed": 3}), "{done:?}");
        assert_eq!(server.get(&set).await.status, 404);
        let rules = server.json("/v1/rules?domain=shop").await;
        assert_eq!(rules["rules"].as_array().unwrap().len(), 1, "{rules}");
        assert_eq!(rules["rules"][0]["rate_limit"], hourly(7));
        assert!(rules["rules"][0]["updated_by"].as_str().unwrap().starts_with("mine/"), "{rules}");
        let action = &server.json("/v1/audit?limit=1").await["actions"][0];
        assert_eq!(action["action"], "change_set.submit", "{action}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_rule_that_changed_meanwhile_is_a_conflict() {
    for place in places().await {
        let server = place.serve().await;
        let (cart, _) = server.add(&rule("shop", "cart", "", 5)).await;
        let (token, set) = author(&place, &server, "mine", &[]).await;
        put(&server, &token, &set, &change("shop", "cart", Some(7))).await;
        put(&server, &token, &set, &change("shop", "new", Some(1))).await;
        let path = format!("/v1/rules/{}", cart["id"].as_str().unwrap());
        let other = Call::new("PUT", &path).header("if-match", "*");
        server.send(other.json(&json!({"rate_limit": hourly(6)}))).await;
        let refused = submit(&server, &token, &set).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        let conflict = &refused.json()["conflicts"][0];
        assert_eq!(conflict["before"], json!({"rate_limit": hourly(5)}), "{conflict}");
        assert_eq!(conflict["current"], json!({"rate_limit": hourly(6)}), "{conflict}");
        assert_eq!(refused.json()["conflicts"].as_array().unwrap().len(), 1);
        let rules = server.json("/v1/rules?domain=shop").await;
        assert_eq!(rules["rules"].as_array().unwrap().len(), 1, "nothing was done: {rules}");
        // A change that is put again is still made on what its author has seen.
        put(&server, &token, &set, &change("shop", "cart", Some(8))).await;
        assert_eq!(submit(&server, &token, &set).await.status, 409);
        let mut seen = change("shop", "cart", Some(8));
        seen["rebase"] = json!(true);
        put(&server, &token, &set, &seen).await;
        let done = submit(&server, &token, &set).await;
        assert_eq!(done.json()["changed"], 2, "{done:?}");
        assert_eq!(server.json(&path).await["rate_limit"], hourly(8));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_change_that_is_there_already_is_no_conflict() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let (cart, _) = server.add(&rule("shop", "cart", "", 5)).await;
    let (token, set) = author(&place, &server, "mine", &[]).await;
    put(&server, &token, &set, &change("shop", "cart", None)).await;
    let new = put(&server, &token, &set, &change("shop", "new", Some(1))).await.json();
    let taken = format!("{set}/rules/{}", new["rule"].as_str().unwrap());
    assert_eq!(send(&server, &token, "DELETE", &taken, &Value::Null).await.status, 204);
    assert_eq!(send(&server, &token, "DELETE", &taken, &Value::Null).await.status, 404);
    let path = format!("/v1/rules/{}", cart["id"].as_str().unwrap());
    server.send(Call::new("DELETE", &path).header("if-match", "*")).await;
    let done = submit(&server, &token, &set).await;
    assert_eq!(done.json(), json!({"domains": [], "changed": 0}), "{done:?}");
    server.stop().await;
}

#[tokio::test]
async fn only_the_author_changes_and_submits_a_change_set() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let (mine, set) = author(&place, &server, "mine", &["shop"]).await;
    let (other, _) = author(&place, &server, "other", &["shop"]).await;
    let (stranger, _) = author(&place, &server, "stranger", &["bank"]).await;
    assert_eq!(put(&server, &mine, &set, &change("bank", "a", Some(1))).await.status, 403);
    assert_eq!(put(&server, &mine, &set, &change("shop", "a", Some(1))).await.status, 200);
    let faulty = json!({"domain": "shop", "entries": [{"key": "a"}],
        "settings": {"rate_limit": {"unit": "fortnight", "requests_per_unit": 1}}});
    let refused = put(&server, &mine, &set, &faulty).await;
    assert_eq!((refused.status, refused.fields()), (422, vec!["rate_limit.unit".to_owned()]));
    for (token, seen, submitted) in [(&stranger, 404, 404), (&other, 200, 403)] {
        assert_eq!(send(&server, token, "GET", &set, &Value::Null).await.status, seen);
        assert_eq!(submit(&server, token, &set).await.status, submitted);
    }
    let list = send(&server, &other, "GET", "/v1/change-sets", &Value::Null).await.json();
    let authors: Vec<_> = list["change_sets"].as_array().unwrap().iter().collect();
    assert_eq!(authors.len(), 2, "its own, and that of its domain: {list}");
    assert_eq!(send(&server, &mine, "DELETE", &set, &Value::Null).await.status, 204);
    assert_eq!(send(&server, &mine, "GET", &set, &Value::Null).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn sets_and_their_rules_are_bounded_in_number_and_bytes() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let (token, set) = author(&place, &server, "mine", &[]).await;
    for at in 0..200 {
        let done = put(&server, &token, &set, &change("shop", &format!("k{at}"), Some(1))).await;
        assert_eq!(done.status, 200, "{done:?}");
    }
    let refused = put(&server, &token, &set, &change("shop", "one-more", Some(1))).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.text.contains("201 rules"), "{refused:?}");
    for _ in 0..19 {
        let body = json!({"name": "another"});
        let made = send(&server, &token, "POST", "/v1/change-sets", &body).await;
        assert_eq!(made.status, 201, "{made:?}");
    }
    let refused = send(&server, &token, "POST", "/v1/change-sets", &json!({"name": "x"})).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    let nameless = send(&server, &token, "POST", "/v1/change-sets", &json!({"name": " "})).await;
    assert_eq!((nameless.status, nameless.fields()), (422, vec!["name".to_owned()]));
    server.stop().await;
}

#[tokio::test]
async fn a_new_display_name_leaves_a_person_their_own_things() {
    for place in places().await {
        let server = place.serve_with(|it| it.sign_in = Some(sign_in())).await;
        let ann = Person::sign_in(&place, "Ann", "ann", "write").await;
        let make = || {
            let call = ann.call("POST", "/v1/change-sets").header("idempotency-key", "once");
            call.json(&json!({"name": "mine"}))
        };
        let made = server.send(make()).await;
        let set = made.header("location").unwrap();
        ann.rename(&place, "Mrs Ann").await;
        let again = server.send(make()).await;
        assert_eq!(again.json()["id"], made.json()["id"], "{again:?}");
        let seen = server.send(ann.call("GET", &set)).await;
        assert_eq!(seen.status, 200, "{seen:?}");
        let change = change("shop", "a", Some(1));
        let done = server.send(ann.call("PUT", &format!("{set}/rules")).json(&change)).await;
        assert_eq!(done.status, 200, "{done:?}");
        let done = server.send(ann.call("POST", &format!("{set}/submit"))).await;
        assert_eq!(done.status, 200, "{done:?}");
        // So many sets are of one person, whatever the name.
        for at in 0..21 {
            ann.rename(&place, &format!("Ann {at}")).await;
            let call = ann.call("POST", "/v1/change-sets").json(&json!({"name": "another"}));
            assert_eq!(server.send(call).await.status, if at < 20 { 201 } else { 409 });
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn an_administrator_removes_an_empty_set_of_a_revoked_token() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let (token, set) = author(&place, &server, "gone", &["shop"]).await;
    place.token(&["revoke", token.split('_').nth(1).unwrap()]).await.unwrap();
    let list = server.json("/v1/change-sets").await;
    assert_eq!(list["change_sets"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(server.send(Call::new("DELETE", &set)).await.status, 204);
    server.stop().await;
}
