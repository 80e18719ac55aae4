//! Rules: add, read, change, list, remove, and the faults of each.

use serde_json::{Value, json};

use super::files::large;
use super::support::{Call, Place, hourly, places, rule};

#[tokio::test]
async fn a_rule_is_added_read_changed_listed_and_removed() {
    for place in places().await {
        let server = place.serve().await;
        let (added, tag) = server.add(&rule("shop", "user", "7", 5)).await;
        let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
        let read = server.get(&path).await;
        assert_eq!((read.json(), read.header("etag")), (added.clone(), Some(tag.clone())));
        let author = added["updated_by"].as_str().unwrap();
        assert!(author.starts_with("admin/"), "{added}");

        // What was read may be sent back with other settings.
        let mut input = added.clone();
        input["rate_limit"] = hourly(9);
        input["shadow_mode"] = true.into();
        let put = Call::new("PUT", &format!("{path}?reason=a%20sale")).header("if-match", &tag);
        let changed = server.send(put.json(&input)).await;
        assert_eq!(changed.status, 200, "{changed:?}");
        assert_eq!(changed.json()["rate_limit"]["requests_per_unit"], 9);
        // A write answers what a read does, field by field.
        assert_eq!(changed.text, server.get(&path).await.text);
        let tag = changed.header("etag").unwrap();

        let history = server.json(&format!("{path}/history")).await;
        let changes = history["changes"].as_array().unwrap();
        assert_eq!(changes.len(), 2, "{history}");
        assert_eq!(changes[0]["reason"], "a sale");
        assert_eq!(changes[0]["before"]["rate_limit"], hourly(5));
        assert_eq!(changes[0]["after"]["shadow_mode"], true);
        assert_eq!(changes[1]["before"], Value::Null);

        let delete = server.send(Call::new("DELETE", &path).header("if-match", &tag)).await;
        assert_eq!((delete.status, &*delete.text), (204, ""));
        assert_eq!(server.get(&path).await.status, 404);
        assert_eq!(
            server.json(&format!("{path}/history")).await["changes"][0]["after"],
            Value::Null
        );
        // Its address is its id: with the rule, its history is there again.
        let (again, _) = server.add(&rule("shop", "user", "7", 6)).await;
        assert_eq!(again["id"], added["id"]);
        let history = server.json(&format!("{path}/history?limit=1")).await;
        let next = history["next"].as_i64().unwrap();
        let more = server.json(&format!("{path}/history?before={next}")).await;
        assert_eq!(more["changes"].as_array().unwrap().len(), 3);
        server.stop().await;
    }
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    for place in places().await {
        let server = place.serve().await;
        for at in 0..25 {
            server.add(&rule("shop", "user", &format!("u{at}"), 1)).await;
        }
        server.add(&rule("shop", "ip", "100%_a", 1)).await;
        server.add(&rule("bank", "user", "u3", 1)).await;
        let count = async |query: &str| {
            let list = server.json(&format!("/v1/rules?limit=1000&{query}")).await;
            list["rules"].as_array().unwrap().len()
        };
        for (query, expected) in [
            ("", 27),
            ("domain=shop", 26),
            ("scope=user", 26),
            ("scope=user&value=u3", 2),
            ("domain=bank&scope=ip", 0),
            ("q=100%25_", 1),
            ("q=0%25%25a", 0),
            ("domain=%27%20OR%201%3D1--", 0),
        ] {
            assert_eq!(count(query).await, expected, "{query}");
        }
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = server.json(&format!("/v1/rules?limit=10{cursor}")).await;
            seen.extend(page["rules"].as_array().unwrap().iter().map(|it| it["id"].clone()));
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(seen.len(), 27);
        seen.sort_by_key(Value::to_string);
        seen.dedup();
        assert_eq!(seen.len(), 27, "a rule is on two pages");
        let search = async |bytes: usize| {
            server.get(&format!("/v1/rules?q={}", "%C3%A9".repeat(bytes / 2))).await
        };
        assert_eq!(search(128).await.status, 200);
        let refused = search(130).await;
        assert_eq!((refused.status, refused.fields()), (422, vec!["q".to_owned()]), "{refused:?}");
        assert!(refused.text.contains("has 130 bytes; expected at most 128"), "{refused:?}");
        for query in ["limit=0", "limit=1001", "limit=x", "q=%00"] {
            let answer = server.get(&format!("/v1/rules?{query}")).await;
            assert_eq!(answer.status, 400, "{query}: {answer:?}");
        }
        let answer = server.get("/v1/rules?cursor=x").await;
        assert_eq!((answer.status, answer.fields()), (422, vec!["cursor".to_owned()]));
        server.stop().await;
    }
}

#[tokio::test]
async fn all_faults_of_a_rule_are_answered_at_once() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let limit = json!({"unit": "fortnight", "requests_per_unit": -1});
    for (domain, missing) in
        [(json!("shop"), &["entries"][..]), (Value::Null, &["domain", "entries"])]
    {
        let mut rule = json!({"entires": [{"key": "user"}], "rate_limit": limit});
        if !domain.is_null() {
            rule["domain"] = domain;
        }
        let refused = server.post("/v1/rules", &rule).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        let fields = refused.fields();
        let others = ["entires", "rate_limit.unit", "rate_limit.requests_per_unit"];
        for field in missing.iter().copied().chain(others) {
            assert!(fields.iter().any(|it| it == field), "{field}: {refused:?}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_fault_names_its_field_in_the_compilers_own_words() {
    let place = Place::sqlite();
    let server = place.serve().await;
    for (change, field, words) in [
        (
            json!({"rate_limit": {"unit": "fortnight", "requests_per_unit": 1}}),
            "rate_limit.unit",
            "invalid rate limit unit 'fortnight'; expected one of second, minute",
        ),
        (
            json!({"rate_limit": {"unit": "hour", "requests_per_unit": "5"}}),
            "rate_limit.requests_per_unit",
            "must be a whole number",
        ),
        (json!({"rate_limits": {}}), "rate_limits", "did you mean 'rate_limit'?"),
        (json!({"value": "x"}), "value", "cannot stand here"),
        (json!({"entries": [{"key": ""}]}), "entries[0].key", "an empty key"),
        (json!({"entries": [{"key": "a\u{0}"}]}), "entries[0].key", "NUL"),
        (json!({"entries": []}), "entries", "expected at least one"),
        (json!({"entries": [{"kye": "a"}]}), "entries[0].kye", "unknown field"),
        (json!({"entries": "a"}), "entries", "expected a sequence"),
        (json!({"domain": ""}), "domain", "expected a name"),
        (json!({"domain": null}), "domain", "is missing"),
    ] {
        let mut rule = rule("shop", "user", "7", 5);
        rule.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let answer = server.post("/v1/rules", &rule).await;
        assert_eq!(answer.status, 422, "{change}: {answer:?}");
        assert_eq!(answer.fields(), [field], "{change}: {answer:?}");
        assert!(answer.text.contains(words), "{change}: {answer:?}");
    }
    for body in [&b"{"[..], b"", b"[1]x", b"\xff\xfe"] {
        let call = Call::new("POST", "/v1/rules").body("application/json", body);
        let answer = server.send(call).await;
        assert!(answer.status == 400 || answer.status == 422, "{body:?}: {answer:?}");
    }
    assert_eq!(server.json("/v1/rules").await["rules"], json!([]), "one was added all the same");
    server.stop().await;
}

#[tokio::test]
async fn text_of_any_kind_is_stored_as_it_is() {
    let evil = "'; DROP TABLE rules; -- \"\\ $1 ${x} \u{202e}\u{7f}😀";
    for place in places().await {
        let server = place.serve().await;
        let mut sent = rule(evil, evil, evil, 5);
        sent["metadata"] = json!({evil: [evil, "\u{0}"]});
        let (added, tag) = server.add(&sent).await;
        for (name, value) in sent.as_object().unwrap() {
            assert_eq!(&added[name], value);
        }
        let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
        assert_eq!(server.json(&path).await, added);
        let escaped: String = evil.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for query in ["domain", "scope", "value"] {
            let list = server.json(&format!("/v1/rules?{query}={escaped}")).await;
            assert_eq!(list["rules"], json!([added]), "{query}");
        }
        assert_eq!(server.publish().await, 1);
        let delete = Call::new("DELETE", &path).header("if-match", &tag);
        assert_eq!(server.send(delete).await.status, 204);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_rule_that_is_there_is_not_added_again_and_none_moves() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let (added, tag) = server.add(&rule("shop", "user", "7", 5)).await;
    let again = server.post("/v1/rules", &rule("shop", "user", "7", 6)).await;
    assert_eq!((again.status, &again.json()["current"]), (409, &added));
    let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
    for (moved, field) in
        [(rule("bank", "user", "7", 5), "domain"), (rule("shop", "user", "8", 5), "entries")]
    {
        let put = Call::new("PUT", &path).header("if-match", &tag).json(&moved);
        let answer = server.send(put).await;
        assert_eq!((answer.status, answer.fields()), (422, vec![field.to_owned()]));
    }
    for (method, path, status) in [
        ("GET", "/v1/rules/unknown", 404),
        ("GET", "/v1/rules/%00", 400),
        ("GET", "/v2/rules", 404),
        ("PATCH", "/v1/rules", 405),
    ] {
        let answer = server.send(Call::new(method, path)).await;
        assert_eq!(answer.status, status, "{answer:?}");
        answer.fields();
    }
    server.stop().await;
}

#[tokio::test]
async fn the_short_forms_are_rules_that_are_published_at_once() {
    for place in places().await {
        let server = place.serve().await;
        let policy = json!({"keyType": "userId:endpoint", "algorithm": "token_bucket",
            "ratePerSec": 1.67, "burst": 20, "windowSec": 60, "failMode": "CLOSED"});
        for path in ["/v1/policies/login", "/api/v1/policies/login"] {
            let put = server.send(Call::new("PUT", path).json(&policy)).await;
            assert_eq!(put.status, 200, "{put:?}");
            let read = server.json(path).await;
            assert_eq!((&read, &read["policyId"]), (&put.json(), &json!("login")));
            assert_eq!((&read["burst"], &read["failMode"]), (&json!(20), &json!("CLOSED")));
        }
        let text = server.get("/v1/export?domain=default&version=1").await.text;
        for line in
            ["value: login", "key: endpoint", "requests_per_unit: 100", "unit_multiplier: 60"]
        {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        // Another key type is another address, and the former one is gone.
        let other = json!({"keyType": "ip", "ratePerSec": 1});
        let put = server.send(Call::new("PUT", "/v1/policies/login").json(&other)).await;
        assert_eq!(put.status, 200, "{put:?}");
        let list = server.json("/v1/rules?domain=default&scope=policy").await;
        assert_eq!(list["rules"].as_array().unwrap().len(), 1, "{list}");
        let slow = json!({"keyType": "ip", "ratePerSec": 0.001, "windowSec": 10});
        let put = server.send(Call::new("PUT", "/v1/policies/slow").json(&slow)).await;
        assert_eq!((put.status, put.fields()), (422, vec!["ratePerSec".to_owned()]));
        assert_eq!(server.get("/v1/policies/slow").await.status, 404);

        let scoped = json!({"scope": "user", "scope_value": "123", "api": "/payments",
            "algorithm": "sliding_window", "max_requests": 100, "window_seconds": 60});
        let added = server.post("/rules", &scoped).await;
        assert_eq!(added.status, 201, "{added:?}");
        assert_eq!(server.post("/rules", &scoped).await.status, 409);
        let added = added.json();
        let path = format!("/rules/{}", added["rule_id"].as_str().unwrap());
        assert_eq!(server.json(&path).await, added);
        assert_eq!(server.json("/rules?scope=user").await, json!([added]));
        let mut moved = scoped.clone();
        moved["api"] = "/search".into();
        let put = server.send(Call::new("PUT", &path).json(&moved)).await;
        assert_eq!((put.status, &put.json()["api"]), (200, &json!("/search")));
        assert_eq!(server.get(&path).await.status, 404);
        let path = format!("/rules/{}", put.json()["rule_id"].as_str().unwrap());
        assert_eq!(server.send(Call::new("DELETE", &path)).await.status, 204);
        assert_eq!(server.json("/rules?scope=user").await, json!([]));
        let bad = json!({"scope": "user", "max_requests": 1, "window_seconds": 1,
            "algorithm": "magic"});
        let refused = server.post("/rules", &bad).await;
        let field = vec!["rate_limit.algorithm".to_owned()];
        assert_eq!((refused.status, refused.fields()), (422, field), "{refused:?}");
        // No pod asks for it.
        let unknown = json!({"scope": "usr", "max_requests": 1, "window_seconds": 1});
        let refused = server.post("/rules", &unknown).await;
        assert_eq!((refused.status, refused.fields()), (422, vec!["scope".to_owned()]));
        assert!(refused.text.contains("did you mean 'user'"), "{refused:?}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_search_looks_at_a_bounded_part_and_leads_to_the_rest() {
    for place in places().await {
        let server = place.serve().await;
        server.import(&large("shop", 12_000)).await;
        let metadata = json!({"domain": "shop", "entries": [{"key": "last"}],
            "rate_limit": hourly(77), "metadata": {"note": "zzz-in-metadata"}});
        server.add(&metadata).await;
        let found = async |text: &str| {
            let (mut cursor, mut pages, mut found) = (String::new(), 0, Vec::new());
            loop {
                let page = server.json(&format!("/v1/rules?limit=2&q={text}{cursor}")).await;
                pages += 1;
                found.extend(page["rules"].as_array().unwrap().iter().map(|it| it["id"].clone()));
                let Some(next) = page["next"].as_str() else { break };
                cursor = format!("&cursor={next}");
            }
            let count = found.len();
            found.sort_by_key(Value::to_string);
            found.dedup();
            assert_eq!(found.len(), count, "a rule is on two pages");
            (count, pages)
        };
        assert_eq!(found("user-011999").await, (1, 3));
        assert_eq!(found("USER-00000").await.0, 10, "in whatever case");
        assert_eq!(found("%22requests_per_unit%22:77").await.0, 1);
        assert_eq!(found("zzz-in").await.0, 0, "metadata is not searched");
        server.stop().await;
    }
}

#[tokio::test]
async fn the_largest_limit_is_kept_and_published_to_the_last_digit() {
    const MOST: u64 = (1 << 53) - 1;
    for place in places().await {
        let server = place.serve().await;
        let mut input = rule("shop", "user", "", 5);
        input["rate_limit"]["requests_per_unit"] = MOST.into();
        let (added, _) = server.add(&input).await;
        let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
        assert_eq!(server.json(&path).await["rate_limit"]["requests_per_unit"], json!(MOST));
        let version = server.publish().await;
        let published = server.get(&format!("/v1/export?domain=shop&version={version}")).await.text;
        assert!(published.contains("requests_per_unit: 9007199254740991"), "{published}");
        input["rate_limit"]["requests_per_unit"] = (MOST + 1).into();
        let refused = server.post("/v1/rules", &input).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert!(refused.text.contains("from 0 to 9007199254740991"), "{refused:?}");
    }
}

/// A web form has no file and no quotes, and a control plane no stores.
#[tokio::test]
async fn a_fault_of_the_api_names_no_file_no_quotes_and_no_stores() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let refused = async |field: &str, value: Value| {
        let mut rule = rule("shop", "user", "7", 5);
        rule["rate_limit"][field] = value;
        let refused = server.post("/v1/rules", &rule).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        refused.json()["errors"][0]["message"].as_str().unwrap().to_owned()
    };
    let number = refused("requests_per_unit", json!("-5")).await;
    assert!(number.starts_with("'requests_per_unit' must be a whole number from 0 to"), "{number}");
    assert!(!number.contains("quotes") && number.contains("found the text '-5'"), "{number}");
    let store = refused("store", json!("premium")).await;
    assert!(store.contains("cannot name a store; remove it"), "{store}");
    let file = "domain: shop\ndescriptors:\n- key: a\n  rate_limit: {unit: hour, \
                requests_per_unit: 5, store: premium}\n";
    let call = Call::new("POST", "/v1/import").body("application/yaml", file.as_bytes());
    let imported = server.send(call).await;
    assert!(
        imported.status == 422 && imported.text.contains("cannot name a store"),
        "{imported:?}"
    );
    server.stop().await;
}
