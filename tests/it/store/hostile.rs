//! A Redis that cannot be trusted: it redirects us elsewhere and names far too many masters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ratelease_engine::counter::RedisCounter;
use ratelease_engine::secret::Secret;
use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::redis::{RedisKind, RedisSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::scripted::{Act, Scripted, grant_of};
use super::{ask, connected, count, granted, one, patient, until, until_granted, within};
use crate::support::now;
use crate::support::redis::tcp;

/// Listens, and records the first bytes of each connection.
struct Stranger {
    port: u16,
    said: mpsc::UnboundedReceiver<String>,
}

impl Stranger {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, said) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut first = vec![0; 4096];
                let length = client.read(&mut first).await.unwrap_or_default();
                let text = String::from_utf8_lossy(&first[..length]).into_owned();
                let _ = tell.send(text);
            }
        });
        Self { port, said }
    }
}

/// A cluster of one master, which replies to every ask as `answer` decides, given its own port.
/// CLUSTER NODES names it and the nodes on `others`.
async fn lone_master(
    others: Vec<u16>,
    answer: impl Fn(u16) -> String + Send + Sync + 'static,
) -> (Scripted, RedisSettings) {
    let others = others.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    lone_master_among(others, answer).await
}

/// As [`lone_master`], with other nodes at other hosts.
async fn lone_master_among(
    others: Vec<String>,
    answer: impl Fn(u16) -> String + Send + Sync + 'static,
) -> (Scripted, RedisSettings) {
    let act_at = |port| {
        move |words: Vec<String>| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let text = match words.as_slice() {
                ["CLUSTER", "SLOTS"] => slots(&[("127.0.0.1", port)]),
                ["CLUSTER", "NODES"] => {
                    let line =
                        |at: &String| format!("0123456789 {at}@1,, master - 0 0 1 connected\n");
                    let own = format!("127.0.0.1:{port}");
                    let lines: String = others.iter().chain([&own]).map(line).collect();
                    format!("${}\r\n{lines}\r\n", lines.len())
                }
                _ => answer(port),
            };
            async { Act::Say(text) }
        }
    };
    let server = Scripted::at(act_at).await;
    let mut settings = patient(server.of_cluster());
    settings.login.auth.password = Some(Secret::from("sesame"));
    (server, settings)
}

/// A reply to CLUSTER SLOTS that divides all slots among the masters.
pub(super) fn slots(masters: &[(&str, u16)]) -> String {
    let each = 16_384 / masters.len();
    let ranges = masters.iter().enumerate().map(|(at, (host, port))| {
        let (first, last) = (at * each, at * each + each - 1);
        format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n${}\r\n{host}\r\n:{port}\r\n", host.len())
    });
    format!("*{}\r\n{}", masters.len(), ranges.collect::<String>())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_a_stranger_does_not_take_the_password_there() {
    for code in ["MOVED", "ASK"] {
        let mut stranger = Stranger::start().await;
        let to = stranger.port;
        let (_server, settings) =
            lone_master(vec![], move |_| format!("-{code} 1 127.0.0.1:{to}\r\n")).await;
        let store = connected(settings).await;
        for _ in 0..5 {
            let failed = one(&*store, ask(10, 1, 0)).await.unwrap_err();
            assert!(!failed.to_string().contains("sesame"), "{failed}");
        }
        // The first bytes of a connection would have arrived before the deadline of the last ask.
        assert_eq!(stranger.said.try_recv().ok(), None, "{code}: connected to a stranger");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_a_node_that_the_cluster_lists_is_followed() {
    let target = Scripted::start(|_| async { Act::Say(grant_of(1)) }).await;
    let to = target.port();
    let (_server, settings) =
        lone_master(vec![to], move |_| format!("-ASK 1 127.0.0.1:{to}\r\n")).await;
    let store = connected(settings).await;
    // The target's reply to ASKING is a grant too, which the client ignores.
    until_granted(&*store, ask(10, 1, 0), 10).await;
    assert_eq!(target.connections(), 1);
}

/// The cluster knows its nodes by addresses that are unreachable from here, as behind NAT.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_without_a_host_is_followed_to_a_port_that_the_cluster_lists() {
    let target = Scripted::start(|_| async { Act::Say(grant_of(1)) }).await;
    let to = target.port();
    for (listed, is_followed) in [(to, true), (1, false)] {
        let (_server, settings) =
            lone_master_among(vec![format!("10.0.0.9:{listed}")], move |_| {
                format!("-ASK 1 :{to}\r\n")
            })
            .await;
        let before = target.connections();
        let store = connected(settings).await;
        assert_eq!(one(&*store, ask(10, 1, 0)).await.is_ok(), is_followed, "lists {listed}");
        assert_eq!(target.connections() - before, u64::from(is_followed));
    }
}

/// The user may not list the nodes, and the map names the node once it is read again.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_a_node_that_the_map_names_by_then_needs_no_list_of_nodes() {
    let target = Scripted::start(|_| async { Act::Say(grant_of(1)) }).await;
    let to = target.port();
    let has_moved = AtomicBool::new(false);
    let act_at = |own_port| {
        move |words: Vec<String>| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let text = match words.as_slice() {
                ["CLUSTER", "SLOTS"] if has_moved.load(Ordering::Relaxed) => {
                    slots(&[("127.0.0.1", to)])
                }
                ["CLUSTER", "SLOTS"] => slots(&[("127.0.0.1", own_port)]),
                ["CLUSTER", _] => "-NOPERM this user has no permissions\r\n".into(),
                _ => {
                    has_moved.store(true, Ordering::Relaxed);
                    format!("-MOVED 1 127.0.0.1:{to}\r\n")
                }
            };
            async { Act::Say(text) }
        }
    };
    let server = Scripted::at(act_at).await;
    let store = connected(patient(server.of_cluster())).await;
    granted(&*store, ask(10, 1, 0)).await;
    assert_eq!(target.connections(), 1, "by the map, and by the redirect");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_goes_to_no_node_outside_the_networks_that_are_configured() {
    let mut stranger = Stranger::start().await;
    let to = stranger.port;
    // The cluster lists the node, and a redirect leads to it.
    let (_server, mut settings) =
        lone_master(vec![to], move |_| format!("-MOVED 1 127.0.0.1:{to}\r\n")).await;
    settings.redirect_networks = Some(vec!["10.0.0.0/8".parse().unwrap()]);
    let store = connected(settings).await;
    let failed = one(&*store, ask(10, 1, 0)).await.unwrap_err();
    assert!(failed.to_string().contains("REDIS_REDIRECT_NETWORKS"), "{failed}");
    // The map names the node.
    let act = move |_| async move { Act::Say(slots(&[("127.0.0.1", to)])) };
    let server = Scripted::start(act).await;
    let mut settings = patient(server.of_cluster());
    settings.redirect_networks = Some(vec!["10.0.0.0/8".parse().unwrap()]);
    let store = RedisStore::spawn(settings, "");
    let failed = one(&*store, ask(10, 1, 0)).await.unwrap_err();
    assert!(failed.to_string().contains("REDIS_REDIRECT_NETWORKS"), "{failed}");
    assert_eq!(stranger.said.try_recv().ok(), None, "connected to a stranger");
}

/// Listens as a sentinel that reports the server on `port` of this machine as the master.
pub(super) async fn sentinel_of(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own_port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut seen = Vec::new();
            while !seen.windows(8).any(|word| word == b"SENTINEL") {
                if client.read_buf(&mut seen).await.unwrap_or(0) == 0 {
                    break;
                }
            }
            let port = port.to_string();
            let reply = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
            let _ = client.write_all(reply.as_bytes()).await;
            // Until the client disconnects.
            let _ = client.read(&mut [0; 64]).await;
        }
    });
    own_port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_leads_no_password_out_of_the_networks() {
    let mut stranger = Stranger::start().await;
    let sentinel = sentinel_of(stranger.port).await;
    let kind = RedisKind::Sentinel { master: "counts".into() };
    let mut settings = patient(RedisSettings::new(kind, vec![tcp(sentinel)]));
    settings.login.auth.password = Some(Secret::from("sesame"));
    let unconfined = RedisStore::spawn(settings.clone(), "");
    let said = within(10, "the master is asked", stranger.said.recv()).await.unwrap();
    assert!(said.contains("sesame"), "a master that a sentinel names is trusted: {said}");
    drop(unconfined);
    settings.redirect_networks = Some(vec!["10.0.0.0/8".parse().unwrap()]);
    let mut stranger = Stranger::start().await;
    settings.addresses = vec![tcp(sentinel_of(stranger.port).await)];
    let failed = one(&*RedisStore::spawn(settings, ""), ask(10, 1, 0)).await.unwrap_err();
    assert!(failed.to_string().contains("REDIS_REDIRECT_NETWORKS"), "{failed}");
    assert_eq!(stranger.said.try_recv().ok(), None, "connected to a stranger");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_map_of_too_many_masters_is_refused_and_the_old_one_kept() {
    // All masters are at addresses of this machine without a listener.
    let names: Vec<String> =
        (0..2_000).map(|at| format!("127.7.{}.{}", at / 256, at % 256)).collect();
    let reads = Arc::new(AtomicUsize::new(0));
    let act_at = |own_port| {
        let reads = Arc::clone(&reads);
        move |words: Vec<String>| {
            let text = match words.first().map(String::as_str) {
                Some("CLUSTER") if reads.fetch_add(1, Ordering::Relaxed) == 0 => {
                    slots(&[("127.0.0.1", own_port)])
                }
                Some("CLUSTER") => {
                    slots(&names.iter().map(|name| (name.as_str(), 9)).collect::<Vec<_>>())
                }
                // This makes the client read the map again.
                _ if words.iter().any(|word| word == "EVAL") => grant_of(1),
                _ => "-NOSCRIPT none\r\n".into(),
            };
            async { Act::Say(text) }
        }
    };
    let server = Scripted::at(act_at).await;
    let store = connected(server.of_cluster()).await;
    granted(&*store, ask(10, 1, 0)).await;
    // The map is read again after ten seconds.
    until(30, "the map is read again", async || reads.load(Ordering::Relaxed) >= 3).await;
    until_granted(&*store, ask(10, 1, 0), 10).await;
    let connects = count(&*store, RedisCounter::Connects);
    assert!(connects < 20, "{connects} attempts to connect");
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_of_a_new_map_are_connected_to_a_few_at_a_time() {
    let names: Vec<String> =
        (0..1_000).map(|at| format!("127.8.{}.{}", at / 256, at % 256)).collect();
    let act = move |_| {
        let text = slots(&names.iter().map(|name| (name.as_str(), 9)).collect::<Vec<_>>());
        async { Act::Say(text) }
    };
    let server = Scripted::start(act).await;
    let settings = server.of_cluster();
    let begun = now();
    let store = RedisStore::spawn(settings, "");
    let connects = || count(&*store, RedisCounter::Connects);
    until(10, "it begins to connect", async || connects() >= 3).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (connects, passed) = (connects(), begun.elapsed());
    // Failed attempts are repeated ten times a second.
    let most = 64.0 + (100.0 + 10.0) * passed.as_secs_f64() + 20.0;
    assert!((connects as f64) < most, "{connects} attempts to connect within {passed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_take_no_more_connections_than_may_be_open() {
    let mut strangers = Vec::new();
    for _ in 0..20 {
        strangers.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let ports: Vec<u16> = strangers.iter().map(|it| it.local_addr().unwrap().port()).collect();
    let act = move |_| {
        let text = slots(&ports.iter().map(|port| ("127.0.0.1", *port)).collect::<Vec<_>>());
        async { Act::Say(text) }
    };
    let server = Scripted::start(act).await;
    let mut settings = server.of_cluster();
    (settings.connections_max, settings.timeout) = (8, Duration::from_secs(8));
    let store = RedisStore::spawn(settings, "");
    // All were tried, and those that were connected wait for an answer that never comes.
    until(10, "twelve find no place", async || count(&*store, RedisCounter::ConnectErrors) >= 12)
        .await;
    let mut open = Vec::new();
    for stranger in &strangers {
        let accepted = tokio::time::timeout(Duration::from_millis(20), stranger.accept()).await;
        open.extend(accepted.map(|accepted| accepted.unwrap().0));
    }
    assert_eq!(open.len(), 8);
}
