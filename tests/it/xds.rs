//! Rules from an xDS server: one that a test scripts, and one of go-control-plane.

mod bad;
mod change;
mod control_plane;
mod first;
mod gateway;
mod large;
mod memory;
mod published;
mod rollout;
mod scoped;
mod shadow;
mod stream;
mod together;

use std::process::Command;
use std::time::Duration;

use envoy_types::pb::google::protobuf::Any;
use tempfile::TempDir;

use crate::support::files::dir_of;
use crate::support::process::leashed;
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::raw_grpc::{Connection, Reply, request_of_entry};
use crate::support::xds_server::{XdsServer, config};

/// Limit for steps that take milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(10);

/// The waits of the reference would make tests slow.
const QUICK: [(&str, &str); 2] = [
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "100ms"),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms"),
];

/// Starts a pod that follows `server`, which need not be ready.
fn spawn(server: &str, env: &[(&str, &str)]) -> (Ratelease, TempDir) {
    let none = dir_of(&[]);
    let binary = std::env::var_os("RATELEASE_BIN").unwrap_or_else(|| BINARY.into());
    let mut command = leashed(binary);
    command.args(["serve", "--rules"]).arg(none.path());
    (spawn_with(command, server, env), none)
}

/// The same with a command that becomes the pod.
fn spawn_with(command: Command, server: &str, env: &[(&str, &str)]) -> Ratelease {
    let mut all = vec![("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_URL", server)];
    all.extend(QUICK);
    all.extend(env);
    Ratelease::run(command, &[], &all)
}

/// Starts a pod that follows `server`, which has a set for it.
async fn pod(server: &XdsServer, env: &[(&str, &str)]) -> (Ratelease, Connection, TempDir) {
    let (pod, dir) = spawn(&server.addr.to_string(), env);
    pod.ready().await;
    let connection = Connection::open(pod.grpc).await;
    (pod, connection, dir)
}

/// Starts a server with this set, which has version 1, and a pod that has accepted it.
async fn pod_with(
    set: Vec<Any>,
    env: &[(&str, &str)],
) -> (XdsServer, Ratelease, Connection, TempDir) {
    let server = XdsServer::start().await;
    server.set("1", set);
    let (pod, connection, dir) = pod(&server, env).await;
    server.accepted("1").await;
    (server, pod, connection, dir)
}

/// A resource with a limit that no test reaches, of `user` in the domain `shop`.
fn shop() -> Any {
    config("shop", "shop", &[("user", 1_000_000)])
}

/// Sends a request of a key of a domain.
async fn call(connection: &Connection, domain: &str, key: &str) -> Reply {
    connection.call(&request_of_entry(domain, key, "a")).await
}

/// Whether a request of a key is limited at all: the answer tells the limit that applies.
async fn has_limit(connection: &Connection, domain: &str, key: &str) -> bool {
    let reply = call(connection, domain, key).await;
    assert!(reply.is_over_limit().is_some(), "{reply:?}");
    // A status without a limit is its code alone.
    reply.message.len() > 6
}
