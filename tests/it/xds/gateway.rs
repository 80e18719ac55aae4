//! The environment that Envoy Gateway gives its rate limit service, word for word.

use std::sync::Arc;

use ratelease_tls::{ALPN_HTTP2, ClientFiles, ServerCheck};

use super::{SOON, call, spawn};
use crate::support::papers::{Paper, Papers};
use crate::support::raw_grpc::Connection;
use crate::support::redis::Single;
use crate::support::xds_server::{XdsServer, config};

/// Writes the files of a Secret.
fn certs(dir: &std::path::Path, papers: &Papers, paper: &Paper) {
    for (name, text) in
        [("ca.crt", &papers.root), ("tls.crt", &paper.cert), ("tls.key", &paper.key)]
    {
        std::fs::write(dir.join(name), text).unwrap();
    }
}

#[tokio::test]
async fn envoy_gateways_environment_serves_tls_and_follows_its_server() {
    let papers = Papers::new("127.0.0.1");
    let server = XdsServer::tls(&papers).await;
    let redis = Single::start();
    let dir = tempfile::tempdir().unwrap();
    // Envoy Gateway gives the rate limit service one certificate, as a server and as a client.
    certs(dir.path(), &papers, &papers.server);
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (ca, cert, key) = (at("ca.crt"), at("tls.crt"), at("tls.key"));
    let redis_at = redis.address().to_string();
    let env = [
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &cert),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_SERVER_TLS_CA_CERT", &ca),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &cert),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &redis_at),
    ];
    let (pod, _dir) = spawn(&server.addr.to_string(), &env);
    server.set("1", vec![config("default/eg/http", "default/eg/http", &[("rule-0-match-0", 1)])]);
    server.accepted("1").await;
    // Its probes are plain HTTP.
    pod.says("/healthcheck", 200).await;
    let identity = Some((cert.clone().into(), key.clone().into()));
    let files = ClientFiles { roots: Some(ca.clone().into()), identity, server: ServerCheck::Host };
    let mut client = files.load(&files.read(), None).expect("good files");
    client.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
    let connection = Connection::open_tls(pod.grpc, &Arc::new(client)).await;
    let denies = async || {
        let reply = call(&connection, "default/eg/http", "rule-0-match-0").await;
        reply.is_over_limit() == Some(true)
    };
    pod.process.until("denying the second request", SOON, denies).await;
    assert_eq!(redis.server.keys().iter().filter(|key| key.contains('{')).count(), 1);
    // Certificates are renewed.
    certs(dir.path(), &papers, &papers.another("127.0.0.1"));
    pod.logs("the gRPC port has a new certificate").await;
    server.end_streams();
    server.set("2", vec![config("default/eg/http", "default/eg/http", &[("other", 1)])]);
    server.accepted("2").await;
    assert_eq!(pod.stop().await, 0);
}
