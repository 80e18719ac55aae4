//! Sets that are accepted, and streams that end.

use std::time::Duration;

use super::{SOON, call, has_limit, pod, pod_with, shop, spawn};
use crate::support::now;
use crate::support::papers::{CLIENT, Papers};
use crate::support::raw_grpc::Connection;
use crate::support::xds_server::{CONFIG_TYPE, RULES_TYPE, XdsServer, any, config, nonce};

/// A rule file as a resource; a second definition of the fields, by hand.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Rules {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) yaml: String,
}

#[tokio::test]
async fn a_set_is_enforced_within_a_second_and_the_stream_follows_the_protocol() {
    let env = [
        ("CONFIG_GRPC_XDS_NODE_ID", "pod-7"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a,team=shop"),
    ];
    let first = config("shop", "shop", &[("user", 1)]);
    let (server, pod, connection, _dir) = pod_with(vec![first], &env).await;
    assert_eq!(call(&connection, "shop", "user").await.is_over_limit(), Some(false));
    assert_eq!(call(&connection, "shop", "user").await.is_over_limit(), Some(true));
    let first = server.requests().remove(0);
    assert_eq!(
        (&*first.type_url, &*first.version_info, &*first.response_nonce),
        (CONFIG_TYPE, "", "")
    );
    let node = first.node.expect("a node");
    assert_eq!((&*node.id, node.metadata.expect("metadata").fields.len()), ("pod-7", 2));
    // Three sets, since a busy machine may stall one.
    let (mut limits, mut took) = (vec![("user", 1)], Vec::new());
    for (version, key) in [("2", "path"), ("3", "host"), ("4", "method")] {
        limits.push((key, 1));
        let pushed = now();
        server.set(version, vec![config("shop", "shop", &limits)]);
        while !has_limit(&connection, "shop", key).await {
            assert!(pushed.elapsed() < SOON, "{}", pod.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        took.push(pushed.elapsed());
        server.accepted(version).await;
    }
    assert!(took.iter().min() < Some(&Duration::from_secs(1)), "{took:?}");
    let rules = &pod.status()["rules"];
    assert_eq!(rules["source"], "xds");
    assert_eq!((&rules["xds"]["version"], &rules["xds"]["accepted"]), (&"4".into(), &4.into()));
    assert_eq!(rules["xds"]["connected"], true);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn the_versions_of_a_server_may_begin_again() {
    let (server, pod, connection, _dir) = pod_with(vec![shop()], &[]).await;
    // As if it had been restarted, with other rules under a version that was accepted before.
    server.set("1", vec![config("shop", "shop", &[("path", 1)])]);
    server.end_streams();
    let follows = async || server.streams() == 2 && has_limit(&connection, "shop", "path").await;
    pod.process.until("following the server again", SOON, follows).await;
    let begun = server.requests().into_iter().filter(|it| it.response_nonce.is_empty());
    let begun: Vec<_> = begun.map(|it| (it.version_info, it.node.is_some())).collect();
    assert_eq!(begun, [(String::new(), true), (String::new(), true)]);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn a_resource_that_is_missing_for_a_moment_stays_in_force() {
    let [a, b] = ["a", "b"].map(|name| config(name, name, &[("user", 1_000_000)]));
    let (server, pod, connection, _dir) = pod_with(vec![a.clone(), b.clone()], &[]).await;
    server.set("2", vec![b.clone()]);
    server.accepted("2").await;
    assert!(has_limit(&connection, "a", "user").await, "it may come back");
    server.set("3", vec![a, b.clone()]);
    server.accepted("3").await;
    server.set("4", vec![b]);
    server.accepted("4").await;
    let removed = now();
    let is_gone = async || !has_limit(&connection, "a", "user").await;
    pod.process.until("dropping the resource", SOON, is_gone).await;
    assert!(removed.elapsed() > Duration::from_secs(1), "{:?}", removed.elapsed());
    assert!(has_limit(&connection, "b", "user").await);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn while_a_server_is_silent_probes_are_answered_and_nothing_is_decided() {
    let server = XdsServer::start().await;
    let (waits, _dir) = spawn(&server.addr.to_string(), &[]);
    waits.logs("waiting for the first rules of the xDS server").await;
    let force = ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true");
    let (forced, _dir) = spawn(&server.addr.to_string(), &[force]);
    for pod in [&waits, &forced] {
        pod.says("/readyz", 503).await;
        pod.says("/healthcheck", 500).await;
        let connection = Connection::open(pod.grpc).await;
        let reply = call(&connection, "shop", "user").await;
        assert_eq!(reply.code, tonic::Code::Unavailable, "{reply:?}");
    }
    server.set("1", vec![config("shop", "shop", &[("user", 1)])]);
    waits.ready().await;
    for pod in [waits, forced] {
        let connection = Connection::open(pod.grpc).await;
        let limits = async || {
            let reply = call(&connection, "shop", "user").await;
            reply.is_over_limit() == Some(true)
        };
        pod.process.until("limiting", SOON, limits).await;
        assert_eq!(pod.stop().await, 0);
    }
}

#[tokio::test]
async fn a_pod_that_waits_for_its_first_rules_ends_at_a_signal() {
    let server = XdsServer::start().await;
    let (pod, _dir) = spawn(&server.addr.to_string(), &[]);
    pod.logs("waiting for the first rules of the xDS server").await;
    pod.process.signal("TERM");
    assert_eq!(pod.process.exit(SOON).await, 0);
}

#[tokio::test]
async fn without_a_server_the_rules_of_the_snapshot_are_in_force() {
    let server = XdsServer::start().await;
    server.set("1", vec![shop()]);
    let kept = tempfile::tempdir().unwrap();
    let path = kept.path().join("snapshot");
    let snapshot = [("RULES_SNAPSHOT", path.to_str().unwrap())];
    let (first, ..) = pod(&server, &snapshot).await;
    let written = async || path.exists();
    first.process.until("writing the snapshot", SOON, written).await;
    assert_eq!(first.stop().await, 0);
    let nobody = crate::support::ports::free_port();
    let (pod, _dir) = spawn(&format!("127.0.0.1:{nobody}"), &snapshot);
    pod.ready().await;
    let connection = Connection::open(pod.grpc).await;
    assert!(has_limit(&connection, "shop", "user").await);
    let rules = pod.status()["rules"].clone();
    assert_eq!((&rules["source"], &rules["xds"]["connected"]), (&"snapshot".into(), &false.into()));
    pod.logs("no rules from the xDS server").await;
    assert_eq!(pod.stop().await, 0);
    assert_eq!(pod.logged("no rules from the xDS server").len(), 1, "the same reason, once");
}

#[tokio::test]
async fn rule_files_are_the_rules_if_that_is_asked_for() {
    let server = XdsServer::start().await;
    let yaml = "domain: own\ndescriptors:\n- key: user\n  rate_limit:\n    unit: year\n    \
                requests_per_unit: 9\n    algorithm: sliding_log\n";
    let rules = Rules { name: "own.yaml".into(), yaml: yaml.into() };
    server.set_of(RULES_TYPE, "r1", vec![any(RULES_TYPE, &rules)]);
    let env = [("CONFIG_GRPC_XDS_RATELEASE", "true")];
    let (pod, connection, _dir) = pod(&server, &env).await;
    server.accepted("r1").await;
    assert!(has_limit(&connection, "own", "user").await);
    let asked = server.requests();
    assert!(asked.iter().all(|it| it.type_url == RULES_TYPE), "{asked:?}");
    let bad = Rules { yaml: yaml.replace("year", "eon"), ..rules };
    server.set_of(RULES_TYPE, "r2", vec![any(RULES_TYPE, &bad)]);
    let (version, refusal) = server.answer_to(&nonce("r2")).await;
    let (code, message) = refusal.expect("a refusal");
    assert_eq!((&*version, code), ("r1", 3));
    assert!(message.starts_with("xds-yaml:own.yaml:5:"), "{message}");
    assert!(has_limit(&connection, "own", "user").await);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn the_server_is_authenticated_and_certificates_are_read_again() {
    let papers = Papers::new("xds.test");
    let server = XdsServer::tls(&papers).await;
    server.set("1", vec![shop()]);
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).to_str().unwrap().to_owned()
    };
    let root = write("ca.crt", &papers.root);
    let stranger = Papers::new("xds.test").another(CLIENT);
    let (cert, key) = (write("tls.crt", &stranger.cert), write("tls.key", &stranger.key));
    let mut env = vec![
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", root.as_str()),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", cert.as_str()),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key.as_str()),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    // The address of the server is not the name in its certificate.
    let (wrong, _dir) = spawn(&server.addr.to_string(), &env);
    wrong.logs("invalid peer certificate").await;
    assert_eq!(wrong.process.exited(), None);
    drop(wrong);
    env.push(("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "xds.test"));
    let (pod, _dir) = spawn(&server.addr.to_string(), &env);
    pod.logs("no rules from the xDS server").await;
    let connection = Connection::open(pod.grpc).await;
    assert_eq!(server.streams(), 0, "a client of another authority");
    write("tls.crt", &papers.client.cert);
    write("tls.key", &papers.client.key);
    server.accepted("1").await;
    assert!(has_limit(&connection, "shop", "user").await);
    assert_eq!(pod.stop().await, 0);
}
