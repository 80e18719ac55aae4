//! Both types of resources on one stream, and what a snapshot held of them.

use crate::support::raw_grpc::Connection;
use crate::support::xds_server::{CONFIG_TYPE, RULES_TYPE, XdsServer, any, config};

use super::stream::Rules;
use tonic::Code;

use super::{SOON, call, has_limit, pod, pod_with, shop, spawn};

const BOTH: (&str, &str) = ("CONFIG_GRPC_XDS_RATELEASE", "true");

/// A rule file of this name and domain.
fn rules(name: &str, domain: &str) -> envoy_types::pb::google::protobuf::Any {
    let yaml = format!(
        "domain: {domain}\ndescriptors:\n- key: user\n  rate_limit: {{unit: year, \
         requests_per_unit: 1000000}}\n"
    );
    any(RULES_TYPE, &Rules { name: name.into(), yaml })
}

#[tokio::test]
async fn a_domain_may_move_from_one_type_to_the_other() {
    let server = XdsServer::start().await;
    server.set("1", vec![config("a", "a", &[("user", 1_000_000)])]);
    server.set_of(RULES_TYPE, "r1", Vec::new());
    let (pod, connection, _dir) = pod(&server, &[BOTH]).await;
    server.accepted("1").await;
    server.accepted("r1").await;
    // It leaves the one type, where it stays for a while, and comes with the other.
    server.set("2", Vec::new());
    server.accepted("2").await;
    server.set_of(RULES_TYPE, "r2", vec![rules("a", "a")]);
    server.accepted("r2").await;
    assert!(has_limit(&connection, "a", "user").await);
    assert_eq!(pod.status()["rules"]["count"], 1);
    assert_eq!(pod.stop().await, 0);
}

/// xDS gives no order between types: a server that moves a domain may send the type that it moves
/// to first. It may send a refused set again, or not.
#[tokio::test]
async fn a_domain_that_comes_with_one_type_before_it_leaves_the_other_stays_limited() {
    for resends in [false, true] {
        let server = XdsServer::start().await;
        if resends {
            server.resend_refused();
        }
        server.set("1", vec![config("a", "a", &[("user", 1_000_000)])]);
        server.set_of(RULES_TYPE, "r1", Vec::new());
        let (pod, connection, _dir) = pod(&server, &[BOTH]).await;
        server.accepted("1").await;
        server.accepted("r1").await;
        server.set_of(RULES_TYPE, "r2", vec![rules("a", "a")]);
        let (version, refusal) = server.answer_to("nonce-r2").await;
        assert_eq!((&*version, refusal.is_some()), ("r1", true), "two sets have the domain");
        server.set("2", Vec::new());
        server.accepted("2").await;
        let is_accepted = async || server.answer_to("nonce-r2").await == ("r2".to_owned(), None);
        pod.process.until("accepting what was refused", SOON, is_accepted).await;
        tokio::time::sleep(std::time::Duration::from_secs(3)).await; // for what must not happen
        assert!(has_limit(&connection, "a", "user").await);
        assert_eq!(pod.status()["rules"]["count"], 1);
        assert_eq!(pod.status()["rules"]["last_fault"], serde_json::Value::Null);
        assert_eq!(pod.stop().await, 0);
    }
}

#[tokio::test]
async fn a_set_of_one_type_takes_nothing_of_the_other_that_a_snapshot_held() {
    let server = XdsServer::start().await;
    server.set("1", vec![config("a", "a", &[("user", 1_000_000)])]);
    server.set_of(RULES_TYPE, "r1", vec![rules("b", "b")]);
    let kept = tempfile::tempdir().unwrap();
    let path = kept.path().join("snapshot");
    let env = [BOTH, ("RULES_SNAPSHOT", path.to_str().unwrap())];
    let (first, ..) = pod(&server, &env).await;
    server.accepted("1").await;
    server.accepted("r1").await;
    let domains = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).matches("domain:").count();
    let written = async || std::fs::read(&path).is_ok_and(|bytes| domains(bytes) == 2);
    first.process.until("writing the snapshot", SOON, written).await;
    assert_eq!(first.stop().await, 0);
    // A server that was restarted, and has only one of the sets so far.
    let restarted = XdsServer::start().await;
    restarted.set("1", vec![config("a", "a", &[("user", 1_000_000)])]);
    let (pod, connection, _dir) = pod(&restarted, &env).await;
    restarted.accepted("1").await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await; // for what must not happen
    for domain in ["a", "b"] {
        assert!(has_limit(&connection, domain, "user").await, "{domain}");
    }
    restarted.set_of(RULES_TYPE, "r1", Vec::new());
    restarted.accepted("r1").await;
    let is_gone = async || !has_limit(&connection, "b", "user").await;
    pod.process.until("dropping what the server does not send", SOON, is_gone).await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn a_bad_set_that_is_sent_again_at_each_refusal_costs_a_line_and_a_second() {
    let (server, pod, connection, _dir) = pod_with(vec![shop()], &[]).await;
    server.resend_refused();
    for bad in [config("b", "b", &[("", 1)]), any(RULES_TYPE, &Rules::default())] {
        let before = pod.count("xds_refused");
        server.set("2", vec![bad]);
        let refused = async || pod.count("xds_refused") > before;
        pod.process.until("refusing the set", SOON, refused).await;
        let requests = server.requests().len();
        tokio::time::sleep(std::time::Duration::from_secs(3)).await; // for what must not happen
        let more = server.requests().len() - requests;
        assert!((1..=5).contains(&more), "{more} refusals in 3 s");
        assert_eq!(pod.count("xds_refused"), before + 1);
    }
    assert!(has_limit(&connection, "shop", "user").await);
    // A good set comes through all the same.
    server.set("3", vec![config("shop", "shop", &[("path", 1_000_000)])]);
    server.accepted("3").await;
    assert_eq!(pod.stop().await, 0);
    assert_eq!(pod.logged("rules refused").len(), 2, "{}", pod.log());
}

#[tokio::test]
async fn a_first_set_that_cannot_be_read_ends_the_wait_as_one_with_faults_does() {
    let server = XdsServer::start().await;
    let garbage = envoy_types::pb::google::protobuf::Any {
        type_url: CONFIG_TYPE.into(),
        value: vec![0xff; 9],
    };
    server.set("1", vec![garbage]);
    let (pod, _dir) = spawn(&server.addr.to_string(), &[]);
    pod.says("/healthcheck", 500).await;
    // It serves at once, and the stream counts the refusal when it hears of it.
    let is_counted = async || pod.count("xds_refused") == 1;
    pod.process.until("counting the refusal", SOON, is_counted).await;
    assert!(pod.status()["rules"]["last_fault"].as_str().is_some_and(|it| it.contains("decoded")));
    let connection = Connection::open(pod.grpc).await;
    let reply = call(&connection, "shop", "user").await;
    assert_eq!((reply.code, &*reply.reason), (Code::Unknown, "no rate limit configuration loaded"));
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn rules_change_at_most_ten_times_a_second() {
    let first = config("shop", "shop", &[("user", 1)]);
    let (server, pod, _connection, _dir) = pod_with(vec![first], &[]).await;
    let before = pod.status()["rules"]["loads_ok"].as_u64().unwrap();
    for limit in 2..200 {
        server.set(&limit.to_string(), vec![config("shop", "shop", &[("user", limit)])]);
    }
    tokio::time::sleep(std::time::Duration::from_secs(2)).await; // for what must not happen
    let loads = pod.status()["rules"]["loads_ok"].as_u64().unwrap() - before;
    assert!((1..=25).contains(&loads), "{loads} loads in 2 s");
    assert_eq!(pod.stop().await, 0);
}
