//! What pods report of their domains and hot keys, and who sees it.

use std::time::Duration;

use envoy_types::pb::envoy::config::endpoint::v3::ClusterStats;
use serde_json::{Value, json};

use super::pods::node;
use super::rollbacks::{Reporter, stats};
use super::support::{Call, Place, Server, now, places, rule, wait_for};
use super::tokens::token;

/// The hash of a key.
const KEY: &str = "AbCdEfGhIjKlMnOpQrSt-_";

/// Publishes rules for these domains.
async fn publish(server: &Server, domains: &[&str]) {
    for domain in domains {
        server.add(&rule(domain, "user", "", 5)).await;
    }
    server.publish().await;
}

/// A pod that runs the first version and was asked.
async fn reporter(server: &Server, id: &str) -> Reporter {
    let mut pod = Reporter::connect(server, node(id, "ratelease")).await;
    let set = pod.pod.next().await;
    pod.pod.accept(&set).await;
    assert_eq!(pod.asked().await, Vec::<String>::new());
    pod
}

/// Hits of a key of a domain.
fn key(domain: &str, text: &str, passed: u64, denied: u64) -> ClusterStats {
    let cluster_service_name = text.to_owned();
    ClusterStats { cluster_service_name, ..stats(domain, passed, denied, 0) }
}

/// Waits until what a token sees of the fleet is as `is` wants it.
async fn fleet_is(server: &Server, token: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let seen = async || {
        let answer = server.send(Call::new("GET", "/v1/fleet").token(token)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        Some(answer.json()).filter(|it| is(it))
    };
    wait_for(what, seen).await
}

/// The names of the domains, in their order.
fn domains(fleet: &Value) -> Vec<&str> {
    let all = fleet["domains"].as_array().unwrap();
    all.iter().map(|it| it["domain"].as_str().unwrap()).collect()
}

async fn token_for(place: &Place, domain: &str) -> String {
    let create = ["create", "--name", domain, "--access", "read", "--domains", domain];
    token(place, &create).await.unwrap()
}

#[tokio::test]
async fn what_pods_of_all_replicas_deny_is_shown_to_those_who_may_see_the_domain() {
    for place in places().await {
        let server = place.serve().await;
        publish(&server, &["bank", "lab", "shop"]).await;
        let mut replicas = vec![server];
        if place.postgres.is_some() {
            replicas.push(place.serve().await);
        }
        let (first, last) = (&replicas[0], &replicas[replicas.len() - 1]);
        let one = reporter(first, "one").await;
        let two = reporter(last, "two").await;
        let shop = format!("{KEY}\nshop.user\nuser=7");
        let bank = format!("{KEY}\nbank.user");
        one.report_of(vec![
            stats("shop", 90, 10, 4),
            stats("bank", 10, 30, 0),
            key("shop", &shop, 30, 10),
            key("bank", &bank, 1, 30),
        ])
        .await;
        two.report_of(vec![stats("shop", 300, 0, 0), key("shop", &shop, 60, 0)]).await;
        let both = |it: &Value| it["domains"][1]["pods"] == 2;
        let seen = fleet_is(last, &last.token, "both pods", both).await;
        assert_eq!(domains(&seen), ["bank", "shop"], "the largest share first");
        let of_two = async || {
            let pods = super::pods::pods(last).await;
            pods.into_iter().find(|it| it["node"] == "two")
        };
        let of_two = wait_for("the other pod", of_two).await;
        let expected = json!({
            "domain": "shop", "hits": 400, "denied": 10, "denied_share": 0.025,
            "shadow_denied": 4, "pods": 2,
            "busiest": {"node": "two", "peer": of_two["peer"], "hits": 300},
        });
        assert_eq!(seen["domains"][1], expected);
        assert_eq!(seen["domains"][0]["denied_share"], 0.75);
        let expected = json!([
            {"key": KEY, "domain": "shop", "rule": "shop.user", "values": "user=7",
             "hits": 100, "denied": 10, "pods": 2},
            {"key": KEY, "domain": "bank", "rule": "bank.user", "hits": 31, "denied": 30,
             "pods": 1},
        ]);
        assert_eq!(seen["keys"], expected);
        let few = first.json("/v1/fleet?limit=1").await;
        assert_eq!((domains(&few), few["keys"].as_array().unwrap().len()), (vec!["bank"], 1));
        assert_eq!(first.get("/v1/fleet?limit=0").await.status, 400);

        for (domain, others) in [("shop", "bank"), ("bank", "shop"), ("lab", "user")] {
            let token = token_for(&place, domain).await;
            let seen = fleet_is(first, &token, "a view", |_| true).await;
            assert!(domains(&seen).iter().all(|it| *it == domain), "{seen}");
            assert!(!seen.to_string().contains(others), "{domain}: {seen}");
        }
        // A pod that is gone is forgotten before its minute is over.
        drop(two);
        let gone = |it: &Value| domains(it) == ["bank", "shop"] && it["domains"][1]["hits"] == 100;
        fleet_is(first, &first.token, "the pod that is left", gone).await;
        for server in replicas {
            server.stop().await;
        }
    }
}

#[tokio::test]
async fn a_pod_that_lies_adds_to_its_own_domains_within_bounds_and_to_no_others() {
    let place = Place::sqlite();
    let change = |settings: &mut ratelease_control::settings::Settings| {
        settings.selection.0.insert("liar".into(), vec!["shop".into()]);
    };
    let server = place.serve_with(change).await;
    publish(&server, &["bank", "shop"]).await;
    let honest = reporter(&server, "honest").await;
    let liar = reporter(&server, "liar").await;
    honest.report_of(vec![stats("bank", 100, 0, 0), stats("shop", 100, 0, 0)]).await;
    let mut lies: Vec<_> = (0..10_000).map(|at| stats(&format!("d{at}"), 1, 1, 0)).collect();
    lies.push(stats("bank", 0, 1 << 30, 0));
    lies.push(stats("shop", 0, 1 << 39, 0));
    lies.push(key("bank", &format!("{KEY}\nbank.user\nsecret"), 0, 1 << 30));
    lies.push(key("shop", "no hash\nshop.user", 1, 1));
    let evil = format!("{KEY}\n\u{202e}{}\n\u{1b}[2J\n<b>", "r".repeat(5000));
    lies.extend((0..100).map(|_| key("shop", &evil, 1, 1)));
    liar.report_of(lies).await;
    let both = |it: &Value| it["domains"].as_array().unwrap().iter().any(|it| it["pods"] == 2);
    let seen = fleet_is(&server, &server.token, "both pods", both).await;
    assert_eq!(domains(&seen), ["shop", "bank"], "domains that there are");
    let (shop, bank) = (&seen["domains"][0], &seen["domains"][1]);
    assert_eq!(
        (&bank["hits"], &bank["denied"], &bank["pods"]),
        (&json!(100), &json!(0), &json!(1))
    );
    assert!(shop["denied"].as_u64().unwrap() <= 60_000_000, "a million a second: {shop}");
    assert_eq!(shop["busiest"]["node"], "liar");
    let keys = seen["keys"].as_array().unwrap();
    assert_eq!((keys.len(), &keys[0]["domain"]), (1, &json!("shop")), "{seen}");
    let (rule, values) = (keys[0]["rule"].as_str().unwrap(), keys[0]["values"].as_str().unwrap());
    assert!(rule.starts_with("\\u{202e}r") && rule.len() < 200, "{rule}");
    assert_eq!(values, "\\u{1b}[2J\\n<b>");
    // What contradicts itself does not count.
    liar.report_of(vec![stats("shop", u64::MAX, 1, 0), stats("bank", 1, 0, 2)]).await;
    honest.report_of(vec![stats("bank", 50, 50, 0)]).await;
    let is_later = |it: &Value| it["domains"][1]["hits"] == 200;
    let later = fleet_is(&server, &server.token, "the next report", is_later).await;
    assert_eq!(later["domains"][0], seen["domains"][0]);
    server.stop().await;
}

/// A pod leaves a server that is silent for a minute. The pings of HTTP/2 are for pods that say nothing.
#[tokio::test]
async fn a_pod_that_reports_hears_of_the_server_every_20_seconds() {
    let place = Place::sqlite();
    let server = place.serve().await;
    publish(&server, &["shop"]).await;
    let mut pod = reporter(&server, "one").await;
    let asked = now();
    for _ in 0..2 {
        pod.report_of(vec![stats("shop", 1, 0, 0)]).await;
        assert_eq!(pod.asked().await, Vec::<String>::new());
    }
    let took = now() - asked;
    assert!((Duration::from_secs(35)..Duration::from_secs(55)).contains(&took), "{took:?}");
    server.stop().await;
}
