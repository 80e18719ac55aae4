//! Pages: no list of the API grows without a bound, and none has items that no page shows.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::support::{Call, Place, Server, places, rule};

/// Maximum bytes of an answer: 4 MiB of items, and what is around them; of the differences twice that,
/// for domains and for rules.
const ANSWER_MAX: usize = (4 << 20) + 4096;

/// Answers with lists that are no pages, each with what bounds it.
const NO_PAGES: [(&str, &str); 4] = [
    ("/v1/rules/{id}", "a rule has a few entries"),
    ("/v1/rollouts/{id}", "a rollout has at most 500 domains and 20 steps"),
    ("/v1/fleet", "the first lines of each list; what follows is not kept"),
    ("/v1/export", "whole files, which the ceilings of drafts bound; 'domain' asks for one"),
];

/// The schema that a reference names.
fn named<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match schema["$ref"].as_str() {
        Some(at) => document.pointer(at.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

/// The properties of a schema, also of those that it is made of.
fn properties(document: &Value, schema: &Value) -> Vec<(String, Value)> {
    let schema = named(document, schema);
    let parts = ["allOf", "oneOf"].iter().filter_map(|it| schema[*it].as_array()).flatten();
    let own = schema["properties"].as_object().into_iter().flatten();
    let own = own.map(|(name, it)| (name.clone(), it.clone()));
    own.chain(parts.flat_map(|it| properties(document, it))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_list_of_the_document_has_a_bound_and_a_next() {
    let place = Place::sqlite();
    let document = place.serve().await.json("/openapi.json").await;
    let (mut lists, mut others) = (Vec::new(), BTreeSet::new());
    for (path, calls) in document["paths"].as_object().unwrap() {
        let call = &calls["get"];
        let answer = &call["responses"]["200"]["content"]["application/json"]["schema"];
        let found = properties(&document, answer);
        let is_list = |(_, it): &(String, Value)| {
            it["type"] == "array" && !named(&document, &it["items"])["properties"].is_null()
                || it["items"]["$ref"].is_string()
        };
        if !found.iter().any(is_list) {
            continue;
        }
        if NO_PAGES.iter().any(|it| it.0 == path) {
            others.insert(path.as_str());
            continue;
        }
        let takes = |name: &str| {
            call["parameters"].as_array().into_iter().flatten().find(|it| it["name"] == name)
        };
        let limit = takes("limit").unwrap_or_else(|| panic!("{path} has no 'limit'"));
        assert_eq!(limit["schema"]["maximum"], 1000, "{path}");
        let from = ["after", "before", "cursor"].into_iter().find(|it| takes(it).is_some());
        assert!(from.is_some(), "no parameter of {path} takes 'next'");
        assert!(found.iter().any(|(name, _)| name == "next"), "{path} has no 'next'");
        lists.push(path.as_str());
    }
    assert_eq!(others.len(), NO_PAGES.len(), "{others:?}");
    assert!(lists.len() >= 11, "{lists:?}");
}

/// All items of a list in pages, and the bytes of the largest page.
async fn walk(server: &Server, path: &str, (name, from): (&str, &str), limit: usize) -> Walk {
    let mut walk = Walk { items: Vec::new(), pages: 0, bytes_max: 0 };
    let mut next = String::new();
    loop {
        let sign = if path.contains('?') { '&' } else { '?' };
        let answer = server.get(&format!("{path}{sign}limit={limit}{next}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        walk.bytes_max = walk.bytes_max.max(answer.text.len());
        walk.pages += 1;
        let page = answer.json();
        let items = page[name].as_array().unwrap();
        assert!(!items.is_empty() || walk.pages == 1, "{path}: an empty page");
        // The limit of the differences is one of rules.
        assert!(items.len() <= limit || path == "/v1/differences", "{path}");
        walk.items.extend(items.iter().cloned());
        next = match &page["next"] {
            Value::Null => return walk,
            Value::String(text) => format!("&{from}={}", escaped(text)),
            number => format!("&{from}={number}"),
        };
    }
}

struct Walk {
    items: Vec<Value>,
    pages: usize,
    bytes_max: usize,
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_each_list_have_each_item_once() {
    for place in places().await {
        let server = place.serve().await;
        // In the order of a language, these are in another one than by their bytes.
        for (at, domain) in ["Zoo", "ab", "aB", "z", "~"].into_iter().enumerate() {
            server.add(&rule(domain, "key", "a", 5)).await;
            let asked = json!({"domain": domain, "approvals": usize::from(at > 1)});
            let set = server.send(Call::new("PUT", "/v1/approvals").json(&asked)).await;
            assert_eq!(set.status, 200, "{set:?}");
        }
        for at in 0..3 {
            let body = json!({"domains": ["Zoo"]});
            let published = server.post("/v1/publish", &body).await;
            assert_eq!(published.status, 200, "{published:?}");
            server.add(&rule("Zoo", "key", &at.to_string(), 5)).await;
            let body = json!({"domains": ["Zoo"], "pods": {"percent": 50}});
            let begun = server.post("/v1/rollouts", &body).await;
            assert_eq!(begun.status, 201, "{begun:?}");
            if at < 2 {
                let id = &begun.json()["rollout"];
                let path = format!("/v1/rollouts/{id}/abort");
                assert_eq!(server.post(&path, &Value::Null).await.status, 200);
            }
            let set = server.post("/v1/change-sets", &json!({"name": format!("set {at}")})).await;
            assert_eq!(set.status, 201, "{set:?}");
        }
        let set = server.json("/v1/change-sets").await["change_sets"][0]["id"].clone();
        let set = format!("/v1/change-sets/{}", set.as_str().unwrap());
        for key in ["a", "b", "c"] {
            let body = json!({"domain": "ab", "entries": [{"key": key}], "settings": {}});
            let call = Call::new("PUT", &format!("{set}/rules")).json(&body);
            assert_eq!(server.send(call).await.status, 200);
        }
        for (path, name, from, count) in [
            ("/v1/domains", "domains", "after", 5),
            ("/v1/approvals", "domains", "after", 3),
            ("/v1/versions", "versions", "before", 8),
            ("/v1/rollouts", "rollouts", "before", 3),
            ("/v1/rollouts?open=true", "rollouts", "before", 1),
            ("/v1/change-sets", "change_sets", "before", 3),
            (&*set, "changes", "after", 3),
            ("/v1/tokens", "tokens", "before", 1),
        ] {
            let whole = walk(&server, path, (name, from), 1000).await;
            assert_eq!((whole.items.len(), whole.pages), (count, 1), "{path}: {:?}", whole.items);
            for limit in [1, 2] {
                let cut = walk(&server, path, (name, from), limit).await;
                assert_eq!(cut.pages, count.div_ceil(limit), "{path} by {limit}");
                assert_eq!(cut.items, whole.items, "{path} by {limit}");
            }
            for query in ["limit=0", "limit=1001"] {
                let sign = if path.contains('?') { '&' } else { '?' };
                let refused = server.get(&format!("{path}{sign}{query}")).await;
                assert_eq!(refused.status, 400, "{path}: {refused:?}");
            }
        }
        let names = server.json("/v1/domains").await["domains"].clone();
        let names: Vec<_> = names.as_array().unwrap().iter().map(|it| &it["domain"]).collect();
        assert_eq!(names, ["Zoo", "aB", "ab", "z", "~"]);
        let unknown = server.get(&format!("{set}?after=x")).await;
        assert_eq!(unknown.status, 422, "{unknown:?}");
    }
}

/// Rule files of so many domains with long names.
fn files(range: std::ops::Range<usize>, requests: usize) -> Value {
    let file = |at: usize| {
        let domain = format!("{at:05}{}", "d".repeat(995));
        let yaml = format!(
            "domain: {domain}\ndescriptors: [{{key: a, rate_limit: {{unit: hour, \
             requests_per_unit: {requests}}}}}]\n"
        );
        json!({"name": format!("{at}.yaml"), "yaml": yaml})
    };
    json!({"files": range.map(file).collect::<Vec<_>>()})
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_a_tenant_with_large_entries_have_pages_of_four_mib() {
    let place = Place::sqlite();
    let server = place.serve().await;
    for first in (0..4500).step_by(500) {
        let done = server.post("/v1/import", &files(first..first + 500, 5)).await;
        assert_eq!(done.status, 200, "{}", done.text.get(..500).unwrap_or(&done.text));
    }
    for path in ["/v1/domains", "/v1/differences"] {
        let found = walk(&server, path, ("domains", "after"), 1000).await;
        assert_eq!(found.items.len(), 4500, "{path}");
        let max = if path == "/v1/domains" { ANSWER_MAX } else { 2 * ANSWER_MAX };
        assert!(found.bytes_max < max && found.pages > 1, "{path}: {}", found.bytes_max);
    }
    // Each rollout has 500 of them, and each version names 20.
    let names = |count: usize| -> Vec<_> {
        (0..count).map(|at| format!("{at:05}{}", "d".repeat(995))).collect()
    };
    server.add(&rule("other", "key", "a", 5)).await;
    let first = server.post("/v1/publish", &json!({"domains": ["other"]})).await;
    assert_eq!(first.status, 200, "{first:?}");
    for _ in 0..5 {
        let body = json!({"domains": names(500), "pods": {"percent": 50}});
        let begun = server.post("/v1/rollouts", &body).await;
        assert_eq!(begun.status, 201, "{}", begun.text.get(..500).unwrap_or(&begun.text));
        let path = format!("/v1/rollouts/{}/abort", begun.json()["rollout"]);
        assert_eq!(server.post(&path, &Value::Null).await.status, 200);
    }
    let found = walk(&server, "/v1/rollouts", ("rollouts", "before"), 100).await;
    assert_eq!(found.items.len(), 5);
    assert!(found.bytes_max < ANSWER_MAX && found.pages > 1, "{}", found.bytes_max);
    for at in 0..215 {
        let done = server.post("/v1/import?publish=true", &files(5000..5020, at + 6)).await;
        assert_eq!(done.status, 200, "{}", done.text.get(..500).unwrap_or(&done.text));
    }
    let found = walk(&server, "/v1/versions", ("versions", "before"), 1000).await;
    assert_eq!(found.items.len(), 1 + 10 + 215);
    assert!(found.bytes_max < ANSWER_MAX && found.pages > 1, "{}", found.bytes_max);
}
