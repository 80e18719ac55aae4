//! Redis over TLS: a cluster with a failover, a master behind a sentinel, one server by its URL.

use std::time::Duration;

use redis::Value;

use super::{RULES, SOON, TlsFiles, request_of_entry, text};
use crate::support::files::dir_of;
use crate::support::papers::Papers;
use crate::support::ports::free_port;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::Connection;
use crate::support::redis::{Cluster, Server};
use crate::support::redis_cluster::ClusterOptions;
use crate::support::wait_for;

/// A replica notices that its master is gone after 2 s, and is elected.
const FAILOVER_MAX: Duration = Duration::from_secs(20);

/// Arguments of a server that takes connections over TLS from clients with a certificate. The
/// tests' own commands go to the other port, in plaintext.
pub(crate) fn arguments(files: &TlsFiles) -> Vec<String> {
    let pairs = [
        ("--tls-port", "{free}"),
        ("--tls-cert-file", text(&files.server.0)),
        ("--tls-key-file", text(&files.server.1)),
        ("--tls-ca-cert-file", text(&files.root)),
        ("--tls-auth-clients", "yes"),
    ];
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]).collect()
}

/// The environment of a pod with a certificate.
fn env(files: &TlsFiles) -> Vec<(&'static str, &str)> {
    vec![
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", text(&files.root)),
        ("REDIS_TLS_CLIENT_CERT", text(&files.client.0)),
        ("REDIS_TLS_CLIENT_KEY", text(&files.client.1)),
    ]
}

/// Sends a request of a key that was never sent before.
async fn ask_for_a_new_key(connection: &Connection, number: u64) {
    let message = request_of_entry("test", "plenty", number.to_string());
    assert_eq!(connection.call(&message).await.is_over_limit(), Some(false));
}

/// Asks for new keys until `server` holds more keys than now.
async fn reaches(pod: &Ratelease, connection: &Connection, server: &Server, within: Duration) {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let before = server.keys().len();
    let more = async || {
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        ask_for_a_new_key(connection, number).await;
        server.keys().len() > before
    };
    pod.process.until("leasing from the server", within, more).await;
}

async fn pod(env: &[(&str, &str)]) -> (Ratelease, Connection, tempfile::TempDir) {
    let rules = dir_of(&[("rules.yaml", RULES)]);
    let pod = Ratelease::start(rules.path(), &[], env).await;
    let connection = Connection::open(pod.grpc).await;
    (pod, connection, rules)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_reached_over_tls_at_every_node_and_after_a_failover() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let mut further = arguments(&files);
    further.extend(["--tls-cluster", "yes", "--tls-replication", "yes"].map(str::to_owned));
    let mut cluster = Cluster::start_with(&ClusterOptions { further, ..ClusterOptions::new(3, 1) });
    // One node is named; it tells where the others are.
    let seed = format!("127.0.0.1:{}", cluster.nodes[1].tls_port());
    let mut env = env(&files);
    env.extend([("REDIS_TYPE", "cluster"), ("REDIS_URL", &seed)]);
    let (pod, connection, _rules) = pod(&env).await;
    for master in &cluster.nodes[..3] {
        reaches(&pod, &connection, master, SOON).await;
    }
    let heir = cluster.nodes.remove(3);
    wait_for("the replica is in step", FAILOVER_MAX, || {
        (heir.info("replication").get("master_link_status")? == "up").then_some(())
    });
    cluster.nodes[0].kill();
    wait_for("the replica is the master", FAILOVER_MAX, || {
        (heir.info("replication").get("role")? == "master").then_some(())
    });
    reaches(&pod, &connection, &heir, FAILOVER_MAX).await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_the_master_that_they_name_are_reached_over_tls() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let arguments = arguments(&files);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let master = Server::start(&[&arguments[..], &["--tls-replication", "yes"]].concat());
    let file = format!("sentinel monitor counts 127.0.0.1 {} 1\n", master.tls_port());
    // A sentinel does not tell its ports.
    let port = free_port().to_string();
    let of_sentinel = [&arguments[2..], &["--tls-replication", "yes", "--sentinel"]].concat();
    let of_sentinel = [&["--tls-port", &port][..], &of_sentinel].concat();
    let _sentinel = Server::start_with_file(&of_sentinel, &file);
    let url = format!("counts,127.0.0.1:{port}");
    let mut env = env(&files);
    env.extend([("REDIS_TYPE", "sentinel"), ("REDIS_URL", &url)]);
    let (pod, connection, _rules) = pod(&env).await;
    reaches(&pod, &connection, &master, FAILOVER_MAX).await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_name_gets_no_password_unless_the_name_is_not_checked() {
    let papers = Papers::new("redis.test");
    let files = TlsFiles::of(&papers);
    let arguments = arguments(&files);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let server = Server::start_protected(&arguments, "secret");
    // The scheme alone asks for TLS.
    let url = format!("rediss://:secret@127.0.0.1:{}", server.tls_port());
    let mut env = env(&files);
    env[0] = ("REDIS_URL", &url);
    let (strict, connection, _rules) = pod(&env).await;
    ask_for_a_new_key(&connection, 1).await;
    let line = strict.logs("TLS: invalid peer certificate").await;
    assert!(line.contains("check REDIS_TLS_CACERT"), "{line}");
    assert_eq!(server.keys().len(), 0);
    assert_eq!(strict.stop().await, 0);
    env.push(("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"));
    let (pod, connection, _rules) = pod(&env).await;
    reaches(&pod, &connection, &server, SOON).await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_certificate_is_refused_and_the_log_says_what_to_check() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let arguments = arguments(&files);
    let server = Server::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let url = format!("127.0.0.1:{}", server.tls_port());
    let env = &env(&files)[..2];
    let (pod, connection, _rules) = pod(&[env, &[("REDIS_URL", &url)]].concat()).await;
    ask_for_a_new_key(&connection, 1).await;
    // With TLS 1.3 a client learns this only after its handshake.
    let line = pod.logs("received fatal alert: CertificateRequired").await;
    assert!(line.contains("check REDIS_TLS_CACERT, the client certificate"), "{line}");
    assert_eq!(server.keys().len(), 0);
    let _: Value = server.command(&["CONFIG", "SET", "tls-auth-clients", "no"]);
    reaches(&pod, &connection, &server, FAILOVER_MAX).await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_on_one_side_only_is_told_with_the_setting_to_change() {
    let files = TlsFiles::of(&Papers::new("127.0.0.1"));
    let arguments = arguments(&files);
    let server = Server::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let cases = [
        (format!("127.0.0.1:{}", server.tls_port()), "set REDIS_TLS=true or use rediss://"),
        (format!("rediss://127.0.0.1:{}", server.port()), "unset REDIS_TLS and use redis://"),
    ];
    for (url, advice) in cases {
        let roots = text(&files.root);
        let env = [("REDIS_URL", url.as_str()), ("REDIS_TLS_CACERT", roots)];
        let (pod, connection, _rules) = pod(&env).await;
        ask_for_a_new_key(&connection, 1).await;
        let line = pod.logs("no connection to Redis").await;
        assert!(line.contains(advice), "{url}: {line}");
        assert_eq!(pod.stop().await, 0);
    }
}
