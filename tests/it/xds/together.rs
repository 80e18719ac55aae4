//! The type of resources that a pod asks for, snapshots of the other type, and sets that are refused
//! again and again.

use crate::support::raw_grpc::Connection;
use crate::support::xds_server::{CONFIG_TYPE, RULES_TYPE, XdsServer, any, config, response};

use super::stream::Rules;
use tonic::Code;

use super::{SOON, call, has_limit, pod, pod_with, shop, spawn};

const OWN_RULES: (&str, &str) = ("CONFIG_GRPC_XDS_RATELEASE", "true");

/// A rule file of this name and domain.
fn rules(name: &str, domain: &str) -> envoy_types::pb::google::protobuf::Any {
    let yaml = format!(
        "domain: {domain}\ndescriptors:\n- key: user\n  rate_limit: {{unit: year, \
         requests_per_unit: 1000000}}\n"
    );
    any(RULES_TYPE, &Rules { name: name.into(), yaml })
}

#[tokio::test]
async fn an_unasked_type_is_ignored_and_named_in_the_log() {
    let server = XdsServer::start().await;
    server.set("1", vec![config("a", "a", &[("user", 1_000_000)])]);
    server.set_of(RULES_TYPE, "r1", vec![rules("b", "b")]);
    let types = [CONFIG_TYPE, RULES_TYPE].map(|it| it.rsplit('/').next().unwrap());
    for (env, version, [has, has_not], [asked, other]) in [
        (&[][..], "1", ["a", "b"], types),
        (&[OWN_RULES][..], "r1", ["b", "a"], [types[1], types[0]]),
    ] {
        let (pod, connection, _dir) = pod(&server, env).await;
        server.accepted(version).await;
        for unasked in [CONFIG_TYPE, RULES_TYPE] {
            server.send(&response(unasked, "9", Vec::new()));
        }
        let why = format!(
            "the server sent resources of the type {other}, which are ignored: this pod asks for \
             {asked} alone (CONFIG_GRPC_XDS_RATELEASE chooses the type)"
        );
        pod.logs(&why).await;
        assert!(has_limit(&connection, has, "user").await, "it stays for a while");
        assert!(!has_limit(&connection, has_not, "user").await);
        assert_eq!(
            pod.status()["rules"]["xds"]["type"].as_str().unwrap().rsplit('/').next(),
            Some(asked)
        );
        assert_eq!(pod.stop().await, 0);
    }
}

#[tokio::test]
async fn a_snapshot_of_the_other_type_serves_until_the_first_set() {
    let server = XdsServer::start().await;
    server.set("1", vec![config("a", "a", &[("user", 1_000_000)])]);
    let kept = tempfile::tempdir().unwrap();
    let path = kept.path().join("snapshot");
    let snapshot = ("RULES_SNAPSHOT", path.to_str().unwrap());
    let (first, ..) = pod(&server, &[snapshot]).await;
    let written = async || path.exists();
    first.process.until("writing the snapshot", SOON, written).await;
    assert_eq!(first.stop().await, 0);
    // The same pod now asks for rule files, which the server does not have yet.
    let other = XdsServer::start().await;
    let (pod, connection, _dir) = pod(&other, &[snapshot, OWN_RULES]).await;
    assert!(has_limit(&connection, "a", "user").await);
    other.set_of(RULES_TYPE, "r1", vec![rules("b", "b")]);
    other.accepted("r1").await;
    assert!(has_limit(&connection, "b", "user").await);
    assert!(!has_limit(&connection, "a", "user").await);
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
