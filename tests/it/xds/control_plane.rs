//! Rules from go-control-plane's snapshot cache and server, as Envoy Gateway uses them.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{SOON, call, has_limit, spawn};
use crate::support::control_plane::{ControlPlane, NODE};
use crate::support::papers::Papers;
use crate::support::ports::free_port;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::Connection;
use crate::support::tls_files::{TlsFiles, text};
use crate::support::xds_server::CONFIG_TYPE;

/// The domain `shop` with a limit a year of each key.
fn shop(limits: &[(&str, u32)]) -> Value {
    // The module of the type has no name for this unit, and passes the number on.
    const YEAR: i32 = 6;
    let descriptor = |(key, requests): &(&str, u32)| {
        let limit = json!({"unit": YEAR, "requests_per_unit": requests});
        json!({"key": key, "rate_limit": limit})
    };
    let descriptors: Vec<_> = limits.iter().map(descriptor).collect();
    json!({"name": "shop", "domain": "shop", "descriptors": descriptors})
}

/// Starts a server with `limits` as version 1, and a pod that has accepted it.
async fn pod_with(limits: &[(&str, u32)]) -> (ControlPlane, Ratelease, Connection, TempDir) {
    let mut server = ControlPlane::start(loopback(), None).await;
    server.set("1", &[shop(limits)]).await;
    let (pod, dir) = spawn(&server.addr.to_string(), &[NODE]);
    pod.ready().await;
    server.accepted("1").await;
    let connection = Connection::open(pod.grpc).await;
    (server, pod, connection, dir)
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

#[tokio::test]
async fn its_rules_are_enforced_and_changed() {
    let (mut server, pod, connection, _dir) = pod_with(&[("user", 1)]).await;
    assert_eq!(call(&connection, "shop", "user").await.is_over_limit(), Some(false));
    assert_eq!(call(&connection, "shop", "user").await.is_over_limit(), Some(true));
    let first = server.event(json!({"event": "request"})).await;
    assert_eq!((&first["type"], &first["node"]), (&CONFIG_TYPE.into(), &NODE.1.into()));
    assert_eq!((first.get("version"), first.get("nonce")), (None, None));
    server.set("2", &[shop(&[("user", 2), ("path", 1)])]).await;
    server.accepted("2").await;
    assert_eq!(call(&connection, "shop", "path").await.is_over_limit(), Some(false));
    assert_eq!(call(&connection, "shop", "path").await.is_over_limit(), Some(true));
    server.set("3", &[]).await;
    server.accepted("3").await;
    let is_empty = async || !has_limit(&connection, "shop", "path").await;
    pod.process.until("without rules", SOON, is_empty).await;
    let opened = server.events().iter().filter(|event| event["event"] == "open").count();
    assert_eq!(opened, 1, "{:#?}", server.events());
    assert_eq!(pod.stop().await, 0);
    server.event(json!({"event": "closed"})).await;
    server.stop().await;
}

#[tokio::test]
async fn a_bad_resource_is_refused_with_its_faults_and_the_good_set_stays() {
    let (mut server, pod, connection, _dir) = pod_with(&[("user", 1_000_000)]).await;
    let mut bad = shop(&[("x", 1), ("x", 1), ("", 1)]);
    bad["name"] = "bad".into();
    bad["domain"] = "bad".into();
    server.set("2", &[shop(&[("path", 1_000_000)]), bad]).await;
    let refusal = server.event(json!({"event": "request", "code": 3})).await;
    assert_eq!(refusal["version"], "1", "the version last accepted");
    let sent = server.event(json!({"event": "response", "version": "2"})).await;
    assert_eq!(refusal["nonce"], sent["nonce"]);
    let message = refusal["message"].as_str().expect("a message");
    for place in ["xds:bad: descriptors[1].key: ", "descriptors[2].key: "] {
        assert!(message.contains(place), "{message}");
    }
    assert!(has_limit(&connection, "shop", "user").await);
    assert!(!has_limit(&connection, "shop", "path").await, "the refused set has a good part");
    server.set("3", &[shop(&[("path", 1_000_000)])]).await;
    server.accepted("3").await;
    assert!(has_limit(&connection, "shop", "path").await);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn a_restarted_control_plane_whose_versions_begin_again_is_followed() {
    let (server, pod, connection, _dir) = pod_with(&[("user", 1_000_000)]).await;
    let addr = server.addr;
    server.stop().await;
    let mut restarted = ControlPlane::start(addr, None).await;
    let first = restarted.event(json!({"event": "request"})).await;
    assert_eq!(first.get("version"), None, "{first}");
    assert!(has_limit(&connection, "shop", "user").await, "the server has no rules yet");
    restarted.set("1", &[shop(&[("path", 1_000_000)])]).await;
    restarted.accepted("1").await;
    assert!(has_limit(&connection, "shop", "path").await);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn it_is_followed_over_mutual_tls_1_3_and_only_with_a_certificate() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let mut server = ControlPlane::start(loopback(), Some(&files)).await;
    server.set("1", &[shop(&[("user", 1_000_000)])]).await;
    let mut env = vec![
        NODE,
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", text(&files.root)),
    ];
    let (without, _dir) = spawn(&server.addr.to_string(), &env);
    without.logs("set CONFIG_GRPC_XDS_CLIENT_TLS_CERT").await;
    assert_eq!(server.events().len(), 1, "no stream was opened: {:#?}", server.events());
    drop(without);
    env.extend([
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", text(&files.client.0)),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", text(&files.client.1)),
    ]);
    let (pod, _dir) = spawn(&server.addr.to_string(), &env);
    pod.ready().await;
    server.accepted("1").await;
    let opened = server.event(json!({"event": "open"})).await;
    assert_eq!((&opened["tls"], &opened["client"]), (&"TLS 1.3".into(), &"client.test".into()));
    let connection = Connection::open(pod.grpc).await;
    assert!(has_limit(&connection, "shop", "user").await);
    assert_eq!(pod.stop().await, 0);
}
