//! Servers that send what cannot be used: the last good set stays in force.

use envoy_types::pb::google::protobuf::Any;

use super::{SOON, has_limit, pod_with, shop, spawn};
use crate::support::xds_server::{CONFIG_TYPE, config, nonce, response};

#[tokio::test]
async fn a_set_with_faults_is_refused_with_all_of_them_and_the_last_good_one_stays() {
    let good = shop();
    let (server, pod, connection, _dir) = pod_with(vec![good.clone()], &[]).await;
    let twice = config("b", "b", &[("x", 1), ("x", 1), ("", 1)]);
    let garbage = Any { type_url: CONFIG_TYPE.into(), value: vec![0xff; 64] };
    let stranger = Any { type_url: "type.googleapis.com/other".into(), value: Vec::new() };
    for (version, set, expected) in [
        (
            "2",
            vec![good.clone(), twice],
            vec!["xds:b: descriptors[1].key: ", "descriptors[2].key: "],
        ),
        ("3", vec![garbage], vec!["resources[0]: a resource that cannot be decoded"]),
        ("4", vec![stranger], vec!["resources[0]: a resource of another type"]),
        ("5", vec![config("a", "", &[("x", 1)])], vec!["xds:a: domain: "]),
        ("6", vec![good.clone(), config("z", "shop", &[("y", 1)])], vec!["shop"]),
    ] {
        server.set(version, set);
        let (accepted, refusal) = server.answer_to(&nonce(version)).await;
        let (code, message) = refusal.expect("a refusal");
        assert_eq!((&*accepted, code), ("1", 3), "{message}");
        assert_eq!(message.lines().count(), expected.len(), "{message}");
        for (line, expected) in message.lines().zip(expected) {
            assert!(line.contains(expected), "{message}");
        }
        assert!(has_limit(&connection, "shop", "user").await);
    }
    let rules = pod.status()["rules"].clone();
    assert_eq!((&rules["xds"]["refused"], &rules["xds"]["version"]), (&5.into(), &"1".into()));
    server.set("7", vec![good]);
    server.accepted("7").await;
    assert_eq!(pod.count("xds_refused"), 5);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn the_same_response_twice_is_accepted_twice_and_a_strange_one_is_ignored() {
    let (server, pod, connection, _dir) = pod_with(vec![shop()], &[]).await;
    let again = response(CONFIG_TYPE, "1", vec![shop()]);
    server.send(&again);
    let twice = async || server.requests().iter().filter(|it| it.version_info == "1").count() == 2;
    pod.process.until("accepting it again", SOON, twice).await;
    assert_eq!(pod.status()["rules"]["loads_ok"], 1, "nothing was compiled again");
    server.send(&response("type.googleapis.com/envoy.config.cluster.v3.Cluster", "9", Vec::new()));
    pod.logs("which are ignored").await;
    assert!(has_limit(&connection, "shop", "user").await);
    // No resource at all is a set too: it says that there are no rules.
    server.set("2", Vec::new());
    server.accepted("2").await;
    let is_empty = async || !has_limit(&connection, "shop", "user").await;
    pod.process.until("without rules", SOON, is_empty).await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_the_stream_and_nothing_else() {
    let (server, pod, connection, _dir) = pod_with(vec![shop()], &[]).await;
    let before = pod.process.memory("VmHWM");
    let huge = "x".repeat(50 << 20);
    server.send(&response(CONFIG_TYPE, "2", vec![config(&huge, "b", &[("x", 1)])]));
    let line = pod.logs("no rules from the xDS server").await;
    assert!(line.contains("message"), "{line}");
    assert!(has_limit(&connection, "shop", "user").await);
    let again = async || server.streams() >= 2;
    pod.process.until("beginning another stream", SOON, again).await;
    server.set("3", vec![config("shop", "shop", &[("path", 1_000_000)])]);
    server.accepted("3").await;
    let after = pod.process.memory("VmHWM");
    assert!(after < before + (16 << 20), "{before} bytes, then {after}");
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn a_server_that_is_none_is_tried_again_and_named_in_the_log() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (pod, _dir) = spawn(&at.to_string(), &[]);
    pod.says("/healthcheck", 500).await;
    // Closes at once, answers with something else, and then says nothing.
    let mut kept = Vec::new();
    for answer in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b""] {
        let (mut stream, _) = tokio::time::timeout(SOON, listener.accept()).await.unwrap().unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
        if !answer.is_empty() {
            kept.push(stream);
        }
    }
    pod.logs(&format!("no rules from the xDS server {at}")).await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_named() {
    for (name, value, expected) in [
        ("CONFIG_GRPC_XDS_NODE_ID", "a\u{1b}[31mb", "without control characters"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "localhost", "a host and a port"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone", "key=value"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a b:c", "name:value"),
        ("CONFIG_TYPE", "consul", "FILE or GRPC_XDS_SOTW"),
        ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "2", "a number from 0 to 1"),
    ] {
        let (pod, _dir) = spawn("127.0.0.1:1", &[(name, value)]);
        assert_eq!(pod.process.exit(SOON).await, 2, "{name}: {}", pod.log());
        let log = pod.log();
        let line = log.lines().find(|line| line.contains(name));
        assert!(line.is_some_and(|line| line.contains(expected)), "{name}: {log}");
    }
}
