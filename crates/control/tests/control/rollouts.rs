//! Gradual change: what chosen pods get, and what is refused meanwhile.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
use envoy_types::pb::google::protobuf::{Struct, Value as Field, value::Kind};
use prost::Message;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::pods::{Pod, RULES, Rules, node, pods};
use super::support::{Call, Place, Server, places, rule, wait_for, wait_for_seen};
use super::tokens::token;

/// A node of a zone.
pub(crate) fn node_in(id: &str, zone: &str) -> Node {
    let kind = Some(Kind::StringValue(zone.to_owned()));
    let metadata = Struct { fields: [("zone".to_owned(), Field { kind })].into() };
    Node { metadata: Some(metadata), ..node(id, "test") }
}

/// A rollout of the draft to the pods of the zone a.
pub(crate) fn to_zone_a(stage: &str) -> Value {
    json!({"pods": {"label": {"key": "zone", "value": "a"}}, "stage": stage})
}

/// The text of the domain `shop`.
pub(crate) fn shop_of(set: &DiscoveryResponse) -> String {
    text_of(set, "shop")
}

/// The text of the candidate rules of the domain `shop`.
fn candidate_of(set: &DiscoveryResponse) -> String {
    text_of(set, "shop@candidate")
}

fn text_of(set: &DiscoveryResponse, domain: &str) -> String {
    let all = set.resources.iter().map(|it| Rules::decode(&*it.value).unwrap());
    all.filter(|it| it.name == domain).map(|it| it.yaml).collect()
}

/// Sends a request that has to succeed, and returns the version that it made.
#[track_caller]
pub(crate) fn version_of(answer: &super::support::Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    answer.json()["version"].to_string()
}

/// A pod of a zone that runs the version that it is sent first.
pub(crate) async fn running(server: &Server, id: &str, zone: &str) -> (Pod, DiscoveryResponse) {
    let mut pod = Pod::connect(server, node_in(id, zone), &[RULES]).await;
    let set = pod.next().await;
    pod.accept(&set).await;
    (pod, set)
}

/// Waits until this version is pushed to pods that connect.
pub(crate) async fn pushed(server: &Server, version: i64) {
    let line = format!("ratelease_control_version {version}\n");
    let is = async || server.get("/metrics").await.text.contains(&line).then_some(());
    wait_for(&format!("the push of {version}"), is).await;
}

/// Publishes a limit of 5, and makes one of 3 the draft.
pub(crate) async fn prepare(server: &Server) {
    let (added, tag) = server.add(&rule("shop", "user", "", 5)).await;
    server.publish().await;
    let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
    let limit = json!({"rate_limit": {"unit": "hour", "requests_per_unit": 3}});
    let change = Call::new("PUT", &path).header("if-match", &tag).json(&limit);
    let changed = server.send(change).await;
    assert_eq!(changed.status, 200, "{changed:?}");
}

/// The steps of a rollout that has ended, its version, and the lines of the audit log are there.
async fn all_of_it_is_told(server: &Server) {
    let shown = server.json("/v1/rollouts/1").await;
    let stages: Vec<_> = shown["steps"].as_array().unwrap().iter().map(|it| &it["stage"]).collect();
    assert_eq!(stages, ["shadow", "enforced", "all"], "{shown}");
    assert_eq!(shown["steps"][0]["reason"], "tighter", "{shown}");
    let versions = server.json("/v1/versions").await;
    assert_eq!(versions["versions"][0]["rollout"], 1, "{versions}");
    let log = server.json("/v1/audit").await.to_string();
    for action in ["rollout.shadow", "rollout.enforced", "rollout.all"] {
        assert!(log.contains(action), "{log}");
    }
}

#[tokio::test]
async fn chosen_pods_count_then_enforce_and_then_all_do() {
    for place in places().await {
        let server = place.serve().await;
        prepare(&server).await;
        let (mut chosen, in_force) = running(&server, "one", "a").await;
        let (mut other, _) = running(&server, "two", "b").await;
        let begun = server.post("/v1/rollouts?reason=tighter", &to_zone_a("shadow")).await;
        assert_eq!(version_of(&begun, 201), "2");
        let set = chosen.next().await;
        assert_eq!(set.version_info, "2");
        assert_eq!(shop_of(&set), shop_of(&in_force), "the limit of 5 stays in force");
        let text = candidate_of(&set);
        assert!(text.contains("requests_per_unit: 3") && text.contains("shadow_mode: true"));
        chosen.accept(&set).await;
        let set = other.next().await;
        let others = candidate_of(&set);
        assert!(others.contains("requests_per_unit: 5") && others.contains("shadow_mode: true"));
        other.accept(&set).await;
        let are_told = async || {
            let pods = pods(&server).await;
            let current = pods.iter().filter(|it| it["accepted"] == 2).count() == 2;
            let chosen: Vec<_> = pods.iter().map(|it| &it["rollouts"]).collect();
            (current && chosen == [&json!([1]), &Value::Null]).then_some(())
        };
        wait_for("pods that are chosen or not, and current", are_told).await;

        // A domain of the rollout waits; others are published to all.
        let refused = server.post("/v1/publish", &json!({"domains": ["shop"]})).await;
        assert_eq!((refused.status, &refused.json()["rollout"]), (409, &json!(1)), "{refused:?}");
        assert_eq!(server.post("/v1/rollouts", &to_zone_a("shadow")).await.status, 409);
        let bank = server.post("/v1/rules?publish=true", &rule("bank", "card", "", 1)).await;
        assert_eq!(bank.status, 201, "{bank:?}");
        for (pod, candidate) in [(&mut chosen, &text), (&mut other, &others)] {
            let set = pod.next().await;
            assert_eq!(set.version_info, "3");
            assert!(!text_of(&set, "bank").is_empty());
            assert_eq!((shop_of(&set), &candidate_of(&set)), (shop_of(&in_force), candidate));
            pod.accept(&set).await;
        }

        let enforced = json!({"stage": "enforced"});
        let path = "/v1/rollouts/1/advance";
        assert_eq!(version_of(&server.post(path, &enforced).await, 200), "4");
        assert_eq!(version_of(&server.post(path, &enforced).await, 200), "4", "a repeat");
        let set = chosen.next().await;
        assert_eq!(set.version_info, "4");
        assert!(shop_of(&set).contains("requests_per_unit: 3"), "{}", shop_of(&set));
        assert!(!shop_of(&set).contains("shadow_mode"), "{}", shop_of(&set));
        assert_eq!(candidate_of(&set), "");
        chosen.accept(&set).await;
        let set = other.next().await;
        assert_eq!(super::pods::names(&set), ["bank", "shop"], "what it counted has an end");
        other.accept(&set).await;
        // What is changed in the draft meanwhile is no part of it.
        server.add(&rule("shop", "later", "", 1)).await;
        let all = server.post(path, &json!({"stage": "all"})).await;
        assert_eq!(version_of(&all, 200), "5");
        let set = other.next().await;
        assert_eq!(set.version_info, "5");
        assert!(shop_of(&set).contains("requests_per_unit: 3"), "{}", shop_of(&set));
        assert!(!shop_of(&set).contains("later"), "{}", shop_of(&set));
        chosen.gets_nothing().await;
        assert_eq!(server.post(path, &json!({"stage": "enforced"})).await.status, 409);
        all_of_it_is_told(&server).await;
        let version = server.publish().await;
        assert_eq!(version, 6, "the later change");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_rollout_survives_a_restart_and_pods_that_go_back_get_a_higher_version() {
    for place in places().await {
        let server = place.serve().await;
        prepare(&server).await;
        let begun = server.post("/v1/rollouts", &to_zone_a("enforced")).await;
        assert_eq!(version_of(&begun, 201), "2");
        server.stop().await;
        let server = place.serve().await;
        let (mut chosen, set) = running(&server, "one", "a").await;
        assert_eq!(set.version_info, "2", "a pod that joins");
        assert!(shop_of(&set).contains("requests_per_unit: 3"), "{}", shop_of(&set));
        let (_other, set) = running(&server, "two", "b").await;
        assert!(shop_of(&set).contains("requests_per_unit: 5"), "{}", shop_of(&set));
        let aborted = server.post("/v1/rollouts/1/abort?reason=enough", &Value::Null).await;
        assert_eq!(version_of(&aborted, 200), "3");
        let set = chosen.next().await;
        assert_eq!(set.version_info, "3");
        assert!(shop_of(&set).contains("requests_per_unit: 5"), "{}", shop_of(&set));
        server.stop().await;
        // The version does not go back either, though nothing was published with it.
        let server = place.serve().await;
        let (_pod, set) = running(&server, "one", "a").await;
        assert_eq!(set.version_info, "3");
        // The draft is as it was.
        let check = server.post("/v1/check", &Value::Null).await.json();
        assert_eq!(check["differences"][0]["domain"], "shop", "{check}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_domain_that_is_added_or_removed_is_rolled_out_too() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let (added, tag) = server.add(&rule("shop", "user", "", 5)).await;
    server.publish().await;
    server.add(&rule("bank", "card", "", 1)).await;
    let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
    server.send(Call::new("DELETE", &path).header("if-match", &tag)).await;
    let begun = server.post("/v1/rollouts", &to_zone_a("shadow")).await;
    assert_eq!(begun.json()["domains"], json!(["bank", "shop"]), "{begun:?}");
    pushed(&server, 2).await;
    let (mut pod, set) = running(&server, "one", "a").await;
    assert_eq!(super::pods::names(&set), ["bank@candidate", "shop"], "both are as published");
    // The pod has just connected, and counted nothing.
    let advance = json!({"stage": "enforced", "force": true});
    server.post("/v1/rollouts/1/advance", &advance).await;
    let set = pod.next().await;
    assert_eq!(super::pods::names(&set), ["bank"]);
    pod.accept(&set).await;
    server.post("/v1/rollouts/1/abort", &Value::Null).await;
    assert_eq!(super::pods::names(&pod.next().await), ["shop"]);
    server.stop().await;
}

#[tokio::test]
async fn an_aborted_shadow_takes_its_candidate_rules_from_the_pods_that_had_them() {
    let place = Place::sqlite();
    let server = place.serve().await;
    prepare(&server).await;
    let mut limited = node_in("one", "a");
    let domains = Some(Kind::StringValue("shop,lab".to_owned()));
    let metadata = limited.metadata.as_mut().unwrap();
    metadata.fields.insert("domains".to_owned(), Field { kind: domains });
    let mut pod = Pod::connect(&server, limited, &[RULES]).await;
    let set = pod.next().await;
    pod.accept(&set).await;
    server.post("/v1/rollouts", &to_zone_a("shadow")).await;
    let set = pod.next().await;
    assert_eq!(super::pods::names(&set), ["shop", "shop@candidate"], "with a list of domains too");
    pod.accept(&set).await;
    let aborted = server.post("/v1/rollouts/1/abort", &Value::Null).await;
    assert_eq!(version_of(&aborted, 200), "3");
    let set = pod.next().await;
    assert_eq!((&*set.version_info, super::pods::names(&set)), ("3", vec!["shop".to_owned()]));
    server.stop().await;
}

#[tokio::test]
async fn a_domain_that_would_be_taken_for_candidate_rules_is_refused() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let name = "shop@candidate";
    let text =
        format!("domain: {name}\ndescriptors: [{{key: a, rate_limit: {{unlimited: true}}}}]\n");
    let import = Call::new("POST", "/v1/import").body("application/yaml", text.as_bytes());
    let imported = server.send(import).await;
    let added = server.post("/v1/rules", &rule(name, "user", "", 5)).await;
    for refused in [imported, added] {
        assert_eq!((refused.status, refused.fields()), (422, fields_of(&["domain"])));
        assert!(refused.text.contains("choose another one"), "{refused:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_rollout_that_cannot_be_is_refused_with_every_fault() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let percent = |percent: i64| json!({"pods": {"percent": percent}});
    server.add(&rule("shop", "user", "", 5)).await;
    let first = server.post("/v1/rollouts", &percent(50)).await;
    assert_eq!(first.status, 409, "nothing was published: {first:?}");
    server.publish().await;
    assert_eq!(server.post("/v1/rollouts", &percent(50)).await.status, 409, "nothing changed");
    server.add(&rule("shop", "path", "", 5)).await;
    let with = |bound: Value| json!({"pods": {"percent": 50}, "bound": bound});
    let both = json!({"pods": {"percent": 0}, "bound": {"denied_share": 2, "hits_min": 0}});
    let label = json!({"pods": {"label": {"key": "", "value": "\u{0}"}}});
    for (body, fields) in [
        (percent(0), vec!["pods.percent"]),
        (percent(101), vec!["pods.percent"]),
        (percent(-1), vec!["pods.percent"]),
        (json!({"pods": {"percent": 12.5}}), vec!["pods.percent"]),
        (json!({"pods": {}}), vec!["pods"]),
        (json!({"pods": {"percent": 1, "label": {"key": "a", "value": "b"}}}), vec!["pods"]),
        (label, vec!["pods.label.key", "pods.label.value"]),
        (with(json!({"denied_share": -0.1})), vec!["bound.denied_share"]),
        (with(json!({"denied_share": 1.1})), vec!["bound.denied_share"]),
        (with(json!({"denied_share": "a lot"})), vec!["bound.denied_share"]),
        (both, vec!["pods.percent", "bound.denied_share", "bound.hits_min"]),
        (json!({"pods": {"percent": 1}, "stage": "all"}), vec!["stage"]),
    ] {
        let refused = server.post("/v1/rollouts", &body).await;
        assert_eq!((refused.status, refused.fields()), (422, fields_of(&fields)), "{body}");
    }
    for number in ["NaN", "1e999"] {
        let text =
            format!("{{\"pods\":{{\"percent\":1}},\"bound\":{{\"denied_share\":{number}}}}}");
        let call = Call::new("POST", "/v1/rollouts").body("application/json", text.as_bytes());
        assert_eq!(server.send(call).await.status, 400, "{number}");
    }
    for path in ["/v1/rollouts/1", "/v1/rollouts/x", "/v1/rollouts/99999999999999999999"] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
        let body = json!({"stage": "all"});
        assert_eq!(server.post(&format!("{path}/advance"), &body).await.status, 404, "{path}");
        assert_eq!(server.post(&format!("{path}/abort"), &Value::Null).await.status, 404, "{path}");
    }
    assert_eq!(server.json("/v1/rollouts").await, json!({"rollouts": []}));
    server.stop().await;
}

fn fields_of(fields: &[&str]) -> Vec<String> {
    fields.iter().map(|it| (*it).to_owned()).collect()
}

#[tokio::test]
async fn a_token_takes_steps_of_its_own_domains_alone() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.import("domain: shop\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]\n").await;
    server.import("domain: bank\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]\n").await;
    server.publish().await;
    server.add(&rule("shop", "user", "", 5)).await;
    server.add(&rule("bank", "user", "", 5)).await;
    let create = |domain| ["create", "--name", domain, "--access", "write", "--domains", domain];
    let shop = token(&place, &create("shop")).await.unwrap();
    let lab = token(&place, &create("lab")).await.unwrap();
    let read = token(&place, &["create", "--name", "viewer"]).await.unwrap();
    let post = async |token: &str, path: &str, body: Value| {
        server.send(Call::new("POST", path).token(token).json(&body)).await.status
    };
    let named = json!({"domains": ["bank"], "pods": {"percent": 50}});
    assert_eq!(post(&shop, "/v1/rollouts", named).await, 403);
    assert_eq!(post(&read, "/v1/rollouts", json!({"pods": {"percent": 50}})).await, 403);
    // Without names it takes what the token may use; that of all domains takes both.
    let begun = server.post("/v1/rollouts", &json!({"pods": {"percent": 50}})).await;
    assert_eq!(begun.json()["domains"], json!(["bank", "shop"]), "{begun:?}");
    let all = json!({"stage": "all"});
    assert_eq!(post(&shop, "/v1/rollouts/1/advance", all.clone()).await, 403);
    assert_eq!(post(&shop, "/v1/rollouts/1/abort", Value::Null).await, 403);
    assert_eq!(post(&lab, "/v1/rollouts/1/abort", Value::Null).await, 404);
    let shown = server.send(Call::new("GET", "/v1/rollouts/1").token(&shop)).await;
    assert!(!shown.text.contains("bank") && shown.text.contains("shop"), "{shown:?}");
    let shown = server.send(Call::new("GET", "/v1/rollouts").token(&lab)).await;
    assert_eq!(shown.json(), json!({"rollouts": []}));
    let refused = server.post("/v1/rollouts/1/advance", &all).await;
    assert_eq!(refused.status, 409, "no pod has shown anything: {refused:?}");
    assert!(refused.text.contains("inconclusive"), "{refused:?}");
    let all = json!({"stage": "all", "force": true});
    assert_eq!(server.post("/v1/rollouts/1/advance", &all).await.status, 200);
    // A later rollout of other domains takes no place in the list.
    server.add(&rule("bank", "user", "1", 5)).await;
    let begun = server.post("/v1/rollouts", &json!({"pods": {"percent": 50}})).await;
    assert_eq!(begun.json()["domains"], json!(["bank"]), "{begun:?}");
    for (token, last) in [(&shop, 1), (&read, 2)] {
        let list = server.send(Call::new("GET", "/v1/rollouts?limit=1").token(token)).await;
        assert_eq!(list.json()["rollouts"][0]["rollout"], last, "{list:?}");
    }
    server.stop().await;
}

/// Publishes a limit of 5 of each of these domains, and makes one of 3 the draft.
pub(crate) async fn prepare_domains(server: &Server, domains: &[&str]) {
    for domain in domains {
        server.add(&rule(domain, "user", "", 5)).await;
    }
    server.publish().await;
    for domain in domains {
        server.add(&rule(domain, "path", "", 3)).await;
    }
}

/// Starts pods with these ids, each of which gets one domain alone, and that they run their rules.
async fn pods_of(server: &Server, domain: &str, ids: &[String]) -> Vec<Pod> {
    let mut pods = Vec::new();
    for id in ids {
        let mut node = node_in(id, "a");
        let kind = Some(Kind::StringValue(domain.to_owned()));
        let metadata = node.metadata.as_mut().unwrap();
        metadata.fields.insert("domains".to_owned(), Field { kind });
        let mut pod = Pod::connect(server, node, &[RULES]).await;
        let set = pod.next().await;
        pod.accept(&set).await;
        pods.push(pod);
    }
    pods
}

/// Waits until so many pods are listed with a version that they run.
async fn listed(server: &Server, count: usize) {
    let are = async || {
        let pods = pods(server).await;
        let running = pods.iter().filter(|it| it["accepted"].as_i64() > Some(0)).count();
        (running == count).then_some(())
    };
    wait_for(&format!("list of {count} pods"), are).await;
}

#[tokio::test]
async fn a_percentage_is_that_part_of_the_pods_that_serve_the_domain() {
    let place = Place::sqlite();
    let server = place.serve().await;
    prepare_domains(&server, &["shop", "bank"]).await;
    let ids =
        |of: &str, count: usize| (0..count).map(|at| format!("{of}-{at}")).collect::<Vec<_>>();
    let _bank = pods_of(&server, "bank", &ids("bank", 12)).await;
    let mut shop = pods_of(&server, "shop", &ids("shop", 8)).await;
    listed(&server, 20).await;
    // 23 rollouts, as in the finding: each choice is one pod of the eight.
    for _ in 0..23 {
        let body = json!({"domains": ["shop"], "pods": {"percent": 10}});
        let begun = server.post("/v1/rollouts", &body).await;
        assert_eq!(begun.status, 201, "{begun:?}");
        let begun = begun.json();
        let expected = json!([{"domain": "shop", "percent": 10, "serve": 8, "chosen": 1}]);
        assert_eq!(begun["pods"], expected, "{begun}");
        let path = format!("/v1/rollouts/{}/abort", begun["rollout"]);
        assert_eq!(server.post(&path, &Value::Null).await.status, 200);
    }
    let steps = json!([
        {"stage": "enforced", "percent": 25}, {"percent": 50}, {"percent": 100},
    ]);
    let body = json!({"domains": ["shop"], "steps": steps});
    let begun = server.post("/v1/rollouts", &body).await.json();
    let rollout = begun["rollout"].clone();
    let chosen = async || {
        let pods = pods(&server).await;
        let chosen = pods.into_iter().filter(|it| it["rollouts"] == json!([rollout]));
        let nodes = chosen.map(|it| it["node"].as_str().unwrap().to_owned());
        nodes.collect::<std::collections::BTreeSet<_>>()
    };
    let mut before = std::collections::BTreeSet::new();
    for (step, count) in [(1, 2), (2, 4), (3, 8)] {
        if step > 1 {
            let path = format!("/v1/rollouts/{rollout}/advance");
            let taken = server.post(&path, &json!({"step": step, "force": true})).await;
            assert_eq!(taken.json()["pods"][0]["chosen"], count, "{taken:?}");
        }
        for pod in &mut shop {
            // Pods that are chosen now get the draft; others have it, or get nothing.
            while let Some(set) = pod.next_soon().await {
                pod.accept(&set).await;
            }
        }
        let are = async || (chosen().await.len() == count).then_some(());
        wait_for(&format!("{count} chosen pods"), are).await;
        let now = chosen().await;
        assert!(before.is_subset(&now) && now.iter().all(|it| it.starts_with("shop")), "{now:?}");
        before = now;
    }
    server.stop().await;
}

#[tokio::test]
async fn rollouts_of_different_domains_run_side_by_side() {
    for place in places().await {
        let server = place.serve().await;
        prepare_domains(&server, &["shop", "bank", "lab"]).await;
        let (mut pod, _) = running(&server, "one", "a").await;
        let begin = async |domain: &str, stage: &str| {
            let mut body = to_zone_a(stage);
            body["domains"] = json!([domain]);
            server.post("/v1/rollouts", &body).await
        };
        assert_eq!(begin("shop", "enforced").await.status, 201);
        assert_eq!(begin("bank", "shadow").await.status, 201);
        let second = begin("shop", "shadow").await;
        assert_eq!((second.status, &second.json()["rollout"]), (409, &json!(1)), "{second:?}");
        pushed(&server, 3).await;
        let mut set = pod.next().await;
        while set.version_info != "3" {
            pod.accept(&set).await;
            set = pod.next().await;
        }
        pod.accept(&set).await;
        assert!(shop_of(&set).contains("path") && !text_of(&set, "bank").contains("path"));
        assert!(text_of(&set, "bank@candidate").contains("path"), "{set:?}");
        // Another domain is published meanwhile, and each rollout ends by itself.
        let lab = server.post("/v1/publish", &json!({"domains": ["lab"]})).await;
        assert_eq!(version_of(&lab, 200), "4");
        let end = json!({"stage": "all", "force": true});
        assert_eq!(version_of(&server.post("/v1/rollouts/1/advance", &end).await, 200), "5");
        assert_eq!(server.json("/v1/rollouts/2").await["stage"], "shadow");
        let aborted = server.post("/v1/rollouts/2/abort", &Value::Null).await;
        assert_eq!(version_of(&aborted, 200), "6");
        while set.version_info != "6" {
            set = pod.next().await;
            pod.accept(&set).await;
        }
        assert!(shop_of(&set).contains("path") && !text_of(&set, "bank").contains("path"));
        assert_eq!(super::pods::names(&set), ["bank", "lab", "shop"]);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_refusal_says_what_its_reader_can_see_and_do() {
    let place = Place::sqlite();
    let server = place.serve().await;
    prepare_domains(&server, &["shop", "bank"]).await;
    let create = |domain| ["create", "--name", domain, "--access", "write", "--domains", domain];
    let shop = token(&place, &create("shop")).await.unwrap();
    let send = async |token: &str, path: &str, body: Value| {
        server.send(Call::new("POST", path).token(token).json(&body)).await
    };
    // An operator's, of both domains: the token reads it, and cannot end it.
    let begun = server.post("/v1/rollouts", &json!({"pods": {"percent": 50}})).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    let refused = send(&shop, "/v1/publish", json!({"domains": ["shop"]})).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    for part in ["the rollout 1, which admin/", "'shadow'", "an administrator", "ends by itself"] {
        assert!(refused.text.contains(part), "{part}: {refused:?}");
    }
    assert!(!refused.text.contains("/abort") && !refused.text.contains("bank"), "{refused:?}");
    let shown = server.send(Call::new("GET", "/v1/rollouts/1").token(&shop)).await;
    assert_eq!(shown.status, 200, "{shown:?}");
    server.post("/v1/rollouts/1/abort", &Value::Null).await;
    // The rollout is its own: the refusal names the calls, and they answer.
    let own = send(&shop, "/v1/rollouts", json!({"pods": {"percent": 50}})).await;
    assert_eq!(own.json()["domains"], json!(["shop"]), "{own:?}");
    let refused = send(&shop, "/v1/rollouts", json!({"pods": {"percent": 50}})).await;
    assert!(refused.text.contains("/v1/rollouts/2/abort"), "{refused:?}");
    // Another team's does not wait for it.
    let bank = token(&place, &create("bank")).await.unwrap();
    let other = send(&bank, "/v1/rollouts", json!({"pods": {"percent": 50}})).await;
    assert_eq!(other.json()["domains"], json!(["bank"]), "{other:?}");
    assert_eq!(send(&shop, "/v1/rollouts/2/abort", Value::Null).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_rollout_without_a_step_in_time_ends_by_itself() {
    for place in places().await {
        let server = place.serve().await;
        prepare(&server).await;
        let (mut chosen, _) = running(&server, "one", "a").await;
        let mut body = to_zone_a("enforced");
        body["time_limit"] = json!("1s");
        assert_eq!(server.post("/v1/rollouts", &body).await.status, 201);
        let ended = async || {
            let found = server.json("/v1/rollouts/1").await;
            (found["stage"] == "aborted").then_some(found)
        };
        let found = wait_for("the end of the rollout", ended).await;
        let last = &found["steps"][1];
        let said = (&last["author"], &last["reason"]);
        assert_eq!(said, (&json!("rollout"), &json!("no step was taken in time")), "{found}");
        let mut set = chosen.next().await;
        while set.version_info != "3" {
            chosen.accept(&set).await;
            set = chosen.next().await;
        }
        assert!(shop_of(&set).contains("requests_per_unit: 5"), "{}", shop_of(&set));
        assert!(server.json("/v1/audit").await.to_string().contains("rollout.aborted"));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_step_follows_its_wait_once_a_chosen_pod_is_there() {
    let place = Place::sqlite();
    let server = place.serve().await;
    prepare(&server).await;
    let steps = json!([
        {"stage": "enforced", "percent": 50, "wait": "1s"}, {"percent": 100, "wait": "1s"},
    ]);
    let begun = server.post("/v1/rollouts", &json!({"steps": steps})).await;
    assert_eq!(begun.json()["pods"][0]["serve"], 0, "no pod is there: {begun:?}");
    // The rollout waits, and says why.
    let waits = async || {
        let found = server.json("/v1/rollouts/1").await;
        let why = found["waits_for"].as_str().unwrap_or_default().to_owned();
        why.starts_with("evidence: no chosen pod").then_some(found)
    };
    let found = wait_for("a rollout that waits for evidence", waits).await;
    assert_eq!((&found["stage"], &found["step"]), (&json!("enforced"), &json!(1)), "{found}");
    assert!(found["warnings"].to_string().contains("no chosen pod is connected"), "{found}");
    // Once a pod is there it is chosen, and the rest goes by itself.
    let (mut pod, _) = running(&server, "one", "a").await;
    let mut done = async || {
        while let Some(set) = pod.next_soon().await {
            pod.accept(&set).await;
        }
        let found = server.json("/v1/rollouts/1").await;
        (found["stage"] == "all").then_some(found)
    };
    let found = timeout(Duration::from_secs(60), async {
        loop {
            if let Some(found) = done().await {
                return found;
            }
        }
    });
    let found = found.await.expect("the rollout ends by itself");
    let steps = found["steps"].as_array().unwrap();
    let numbers: Vec<_> = steps.iter().map(|it| it["step"].as_i64()).collect();
    assert_eq!(numbers.last(), Some(&None), "{found}");
    assert!(numbers.contains(&Some(2)) && steps.len() >= 4, "{found}");
    assert!(steps[1..].iter().all(|it| it["author"] == "rollout"), "{found}");
    assert!(server.json("/v1/domains").await["domains"][0]["is_changed"] == false);
    server.stop().await;
}

#[tokio::test]
async fn a_rollout_that_cannot_end_holds_up_no_other_one() {
    for place in places().await {
        let server = place.serve().await;
        prepare_domains(&server, &["bank", "lab", "shop"]).await;
        let soon = json!([{"stage": "enforced", "percent": 100, "wait": "1s"}]);
        let later = json!([{"stage": "enforced", "percent": 100, "wait": "4s"}]);
        let two = json!([{"stage": "enforced", "percent": 50, "wait": "1s"}, {"percent": 100}]);
        for (domain, steps, limit) in
            [("bank", soon, "24h"), ("lab", later, "1s"), ("shop", two, "24h")]
        {
            let body = json!({"domains": [domain], "steps": steps, "time_limit": limit});
            assert_eq!(server.post("/v1/rollouts", &body).await.status, 201, "{domain}");
        }
        server.stop().await; // no pod has shown anything, so that none takes a step
        let server = place.serve_with(|it| it.pod_memory = 1).await;
        let (mut pod, _) = running(&server, "one", "a").await;
        let mut are = async || {
            while let Some(set) = pod.next_soon().await {
                pod.accept(&set).await;
            }
            let mut seen = Vec::new();
            for id in 1..=3 {
                let found = server.json(&format!("/v1/rollouts/{id}")).await;
                seen.push(format!("{} {}", found["stage"].as_str().unwrap(), found["step"]));
            }
            let expected = ["enforced 1", "aborted 1", "enforced 2"];
            if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
        };
        wait_for_seen("end of the second and step of the third", &mut are).await;
        let end = server.post("/v1/rollouts/1/advance", &json!({"force": true})).await;
        assert!(end.text.contains("too-many-rules"), "why the first cannot end: {end:?}");
        let why = end.json()["detail"].clone();
        let waits_for = async || {
            let found = server.json("/v1/rollouts/1").await["waits_for"].clone();
            if found == why { Ok(()) } else { Err(found) }
        };
        wait_for_seen("the same in the answer", waits_for).await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_stage_that_the_plan_lacks_is_refused_and_publishes_nothing() {
    let place = Place::sqlite();
    let server = place.serve().await;
    prepare(&server).await;
    let begun = server.post("/v1/rollouts", &json!({"steps": [{"percent": 10}]})).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    let advance = json!({"stage": "enforced", "force": true});
    let refused = server.post("/v1/rollouts/1/advance", &advance).await;
    assert_eq!((refused.status, refused.fields()), (422, fields_of(&["stage"])), "{refused:?}");
    assert_eq!(server.json("/v1/rollouts/1").await["stage"], "shadow");
    let all = json!({"stage": "all", "force": true});
    assert_eq!(version_of(&server.post("/v1/rollouts/1/advance", &all).await, 200), "3");
    server.stop().await;
}

#[tokio::test]
async fn two_calls_for_the_next_step_at_once_take_one() {
    for place in places().await {
        let server = place.serve().await;
        prepare(&server).await;
        let steps = json!([{"percent": 10}, {"percent": 50}]);
        assert_eq!(server.post("/v1/rollouts", &json!({"steps": steps})).await.status, 201);
        // Both wait for this write, and have read by then which step is the next one.
        let pool = super::conditions::database(&place).await;
        let mut present = pool.begin().await.unwrap();
        sqlx::query("UPDATE counters SET change = change").execute(&mut *present).await.unwrap();
        let next = async || server.post("/v1/rollouts/1/advance", &json!({"force": true})).await;
        let end = async {
            for _ in 0..20 {
                server.json("/v1/rollouts/1").await;
            }
            present.rollback().await.unwrap();
        };
        let (one, other, ()) = tokio::join!(next(), next(), end);
        let mut statuses = [one.status, other.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "{one:?} {other:?}");
        let shown = server.json("/v1/rollouts/1").await;
        assert_eq!((&shown["stage"], &shown["step"]), (&json!("shadow"), &json!(2)), "{shown}");
        let refused = if one.status == 409 { one } else { other };
        assert!(refused.text.contains("took a step meanwhile"), "{refused:?}");
        pool.close().await;
        server.stop().await;
    }
}
