//! A pod on each type of Redis that its settings can name, with real servers: the servers count the
//! requests that the pod admits.

use super::{QUICK_END, RULES, SOON, decide, rules};
use crate::support::ratelease::Ratelease;
use crate::support::redis::{Cluster, Sentinel, Server, Single};

const PER_SECOND: &str = "  - key: second
    rate_limit: {unit: second, requests_per_unit: 4000000000}
";

/// Number of this pod's counts on a server.
fn counts(server: &Server, prefix: &str) -> usize {
    let prefix = format!("{prefix}rl:{{");
    server.keys().iter().filter(|key| key.starts_with(&prefix)).count()
}

/// A pod with these Redis settings, which has admitted one request under each of two rules.
async fn decided(prefix: &str, env: &[(&str, &str)]) -> Ratelease {
    let rules = rules(&format!("{RULES}{PER_SECOND}"));
    let own = [
        ("CACHE_KEY_PREFIX", prefix),
        // For a busy machine.
        ("LEASE_MAX_WAIT", "5s"),
        ("REDIS_TIMEOUT", "5s"),
        QUICK_END,
    ];
    let pod = Ratelease::start(rules.path(), &[], &[&own[..], env].concat()).await;
    for key in ["hundred", "second"] {
        let reply = decide(&pod, key, "v").await;
        assert_eq!(reply.is_over_limit(), Some(false), "{key}: {reply:?}; {}", pod.log());
    }
    assert_eq!(pod.count("failure_mode_local"), 0, "the store has answered");
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_over_tcp() {
    let redis = Single::start();
    let url = format!("127.0.0.1:{}", redis.server.port());
    let env = [("REDIS_TYPE", "single"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &url)];
    let pod = decided("tcp:", &env).await;
    assert!(counts(&redis.server, "tcp:") >= 1);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_on_a_unix_socket() {
    let redis = Single::start();
    let path = redis.server.dir().join("socket");
    let url = path.to_str().unwrap();
    let env = [("REDIS_TYPE", "single"), ("REDIS_SOCKET_TYPE", "unix"), ("REDIS_URL", url)];
    let pod = decided("unix:", &env).await;
    assert!(counts(&redis.server, "unix:") >= 1);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_master_that_a_sentinel_names() {
    let redis = tokio::task::spawn_blocking(Sentinel::start).await.unwrap();
    let url = format!("counts,127.0.0.1:{}", redis.sentinel.port());
    let env = [("REDIS_TYPE", "sentinel"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &url)];
    let pod = decided("sentinel:", &env).await;
    assert!(counts(&redis.master, "sentinel:") >= 1);
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_second_have_a_server_of_their_own_where_one_is_named() {
    let cluster = Cluster::shared();
    let second = Single::start();
    let nodes: Vec<_> = cluster.places().iter().map(ToString::to_string).collect();
    let (url, second_url) = (nodes.join(","), format!("127.0.0.1:{}", second.server.port()));
    let env = [
        ("REDIS_TYPE", "cluster"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", url.as_str()),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_SOCKET_TYPE", "tcp"),
        ("REDIS_PERSECOND_URL", &second_url),
    ];
    let pod = decided("two:", &env).await;
    // A count of one second soon expires: repeats until one is seen.
    let is_counted = async || {
        decide(&pod, "second", "v").await;
        counts(&second.server, "two:") == 1
    };
    pod.process.until("counting on the server for limits of a second", SOON, is_counted).await;
    let of_cluster = cluster.nodes.iter().take(3).map(|node| counts(node, "two:"));
    assert_eq!(of_cluster.sum::<usize>(), 1, "the limit of a year");
    assert_eq!(pod.stop().await, 0);
}
