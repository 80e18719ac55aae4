//! A Redis that is not to be trusted: it leads us elsewhere, names far too many masters, and sends
//! replies without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use ratelease::settings::Secret;
use ratelease::settings::redis::{RedisKind, RedisSettings};
use ratelease::store::StoreError;
use ratelease::store::redis::RedisStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::scripted::{Act, Scripted, grant_of};
use super::{ask, connected, count, granted, one, until_granted, within};
use crate::support::http::Client;
use crate::support::now;
use crate::support::ratelease::Ratelease;
use crate::support::redis::tcp;

/// Listens, and passes on what each connection says first.
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

/// A cluster of one master, which answers every ask as `answer` says, given its own port. CLUSTER
/// NODES names it and the nodes on `others`.
async fn lone_master(
    others: Vec<u16>,
    answer: impl Fn(u16) -> String + Send + Sync + 'static,
) -> (Scripted, RedisSettings) {
    let own_port = Arc::new(AtomicU16::new(0));
    let act = {
        let own_port = Arc::clone(&own_port);
        move |words: Vec<String>| {
            let port = own_port.load(Ordering::Relaxed);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let text = match words.as_slice() {
                ["CLUSTER", "SLOTS"] => slots(&[("127.0.0.1", port)]),
                ["CLUSTER", "NODES"] => {
                    let line = |port: &u16| {
                        format!("0123456789 127.0.0.1:{port}@1{port},, master - 0 0 1 connected\n")
                    };
                    let lines: String = others.iter().chain([&port]).map(line).collect();
                    format!("${}\r\n{lines}\r\n", lines.len())
                }
                _ => answer(port),
            };
            async { Act::Say(text) }
        }
    };
    let server = Scripted::start(act).await;
    own_port.store(server.port(), Ordering::Relaxed);
    let mut settings = RedisSettings::new(RedisKind::Cluster, vec![tcp(server.port())]);
    settings.password = Some(Secret::from("sesame"));
    (server, settings)
}

/// A reply to CLUSTER SLOTS that shares all slots among the masters.
fn slots(masters: &[(&str, u16)]) -> String {
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
        // Whatever a connection said would have come before the end of the last ask's deadline.
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
    // The target's reply to ASKING is a grant too, which nobody reads.
    until_granted(&*store, ask(10, 1, 0), 10).await;
    assert_eq!(target.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_goes_to_no_node_outside_the_networks_that_are_configured() {
    let mut stranger = Stranger::start().await;
    let to = stranger.port;
    // The cluster lists it, and a redirect leads to it.
    let (_server, mut settings) =
        lone_master(vec![to], move |_| format!("-MOVED 1 127.0.0.1:{to}\r\n")).await;
    settings.redirect_networks = Some(vec!["10.0.0.0/8".parse().unwrap()]);
    let store = connected(settings).await;
    let failed = one(&*store, ask(10, 1, 0)).await.unwrap_err();
    assert!(failed.to_string().contains("REDIS_REDIRECT_NETWORKS"), "{failed}");
    // A map names it.
    let act = move |_| async move { Act::Say(slots(&[("127.0.0.1", to)])) };
    let server = Scripted::start(act).await;
    let mut settings = RedisSettings::new(RedisKind::Cluster, vec![tcp(server.port())]);
    settings.redirect_networks = Some(vec!["10.0.0.0/8".parse().unwrap()]);
    let store = RedisStore::spawn(settings, "");
    let failed = one(&*store, ask(10, 1, 0)).await.unwrap_err();
    assert!(failed.to_string().contains("REDIS_REDIRECT_NETWORKS"), "{failed}");
    assert_eq!(stranger.said.try_recv().ok(), None, "connected to a stranger");
}

/// Listens as a sentinel that calls the server on `port` of this machine the master.
async fn sentinel_of(port: u16) -> u16 {
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
            // Until the client goes.
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
    let mut settings = RedisSettings::new(kind, vec![tcp(sentinel)]);
    settings.password = Some(Secret::from("sesame"));
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
    // The masters are all at addresses of this machine where nobody listens.
    let names: Vec<String> =
        (0..16_384).map(|at| format!("127.7.{}.{}", at / 256, at % 256)).collect();
    let reads = Arc::new(AtomicUsize::new(0));
    let own_port = Arc::new(AtomicU16::new(0));
    let act = {
        let (reads, own_port) = (Arc::clone(&reads), Arc::clone(&own_port));
        move |words: Vec<String>| {
            let text = match words.first().map(String::as_str) {
                Some("CLUSTER") if reads.fetch_add(1, Ordering::Relaxed) == 0 => {
                    slots(&[("127.0.0.1", own_port.load(Ordering::Relaxed))])
                }
                Some("CLUSTER") => {
                    slots(&names.iter().map(|name| (name.as_str(), 9)).collect::<Vec<_>>())
                }
                // It makes us look at the map again.
                _ if words.iter().any(|word| word == "EVAL") => grant_of(1),
                _ => "-NOSCRIPT none\r\n".into(),
            };
            async { Act::Say(text) }
        }
    };
    let server = Scripted::start(act).await;
    own_port.store(server.port(), Ordering::Relaxed);
    let settings = RedisSettings::new(RedisKind::Cluster, vec![tcp(server.port())]);
    let store = connected(settings).await;
    granted(&*store, ask(10, 1, 0)).await;
    // The map is read again every ten seconds.
    within(30, "the map is read again", async {
        while reads.load(Ordering::Relaxed) < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    until_granted(&*store, ask(10, 1, 0), 10).await;
    let connects = count(&*store, "redis_connects");
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
    let settings = RedisSettings::new(RedisKind::Cluster, vec![tcp(server.port())]);
    let begun = now();
    let store = RedisStore::spawn(settings, "");
    let connects = || count(&*store, "redis_connects");
    within(10, "it begins to connect", async {
        while connects() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (connects, passed) = (connects(), begun.elapsed());
    // Attempts that fail are repeated ten times a second.
    let most = 64.0 + (100.0 + 10.0) * passed.as_secs_f64() + 20.0;
    assert!((connects as f64) < most, "{connects} attempts to connect within {passed:?}");
}

/// A server that answers the first ask with `head` and then goes on writing for as long as somebody
/// reads, 128 MiB at most. It tells how many bytes it could write.
async fn endless(
    head: &'static str,
    filler: &'static [u8],
) -> (RedisSettings, mpsc::UnboundedReceiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move { tell.send(flood(client, head, filler).await) });
        }
    });
    (RedisSettings::new(RedisKind::Single, vec![tcp(port)]), told)
}

const FLOOD_MAX: usize = 128 << 20;

async fn flood(mut client: TcpStream, head: &str, filler: &[u8]) -> usize {
    let mut seen = Vec::new();
    let mut said_hello = false;
    while !seen.windows(7).any(|word| word == b"EVALSHA") {
        if client.read_buf(&mut seen).await.unwrap_or(0) == 0 {
            return 0;
        }
        if !said_hello {
            said_hello = true;
            client.write_all(b"%1\r\n+server\r\n+redis\r\n").await.unwrap();
        }
    }
    // The scripts that were loaded.
    let loads = "+name\r\n".repeat(6);
    client.write_all(loads.as_bytes()).await.unwrap();
    let mut written = 0;
    let _ = client.write_all(head.as_bytes()).await;
    while written < FLOOD_MAX {
        match client.write(filler).await {
            Ok(length) => written += length,
            Err(_) => break,
        }
    }
    written
}

/// What two sockets of loopback hold at most, one to send and one to receive.
const SOCKETS_MAX: usize = 16 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_beyond_the_cap_is_refused_before_it_is_read() {
    static TEXT: [u8; 1 << 16] = [b'x'; 1 << 16];
    static ONES: [u8; 4 << 14] = {
        let mut ones = [b'\n'; 4 << 14];
        let mut at = 0;
        while at < ones.len() {
            (ones[at], ones[at + 1], ones[at + 2]) = (b':', b'1', b'\r');
            at += 4;
        }
        ones
    };
    for (head, filler) in [
        ("$2000000000\r\n", &TEXT),
        ("!2000000000\r\n", &TEXT),
        ("-ERR ", &TEXT),
        ("+", &TEXT),
        ("*2000000000\r\n", &ONES),
        ("%1000000000\r\n", &ONES),
        ("*4\r\n*4\r\n*500000000\r\n", &ONES),
    ] {
        let (settings, mut told) = endless(head, filler).await;
        let store = connected(settings).await;
        let failed = one(&*store, ask(10, 1, 0)).await.unwrap_err();
        assert!(matches!(failed, StoreError::Garbled(_)), "{head:?}: {failed:?}");
        assert!(failed.to_string().len() < 512, "{head:?}: {failed}");
        let written = within(60, "the flood ends", told.recv()).await.unwrap();
        assert!(written < SOCKETS_MAX, "{head:?}: {written} bytes were taken");
        println!("{head:?}: {written} bytes were taken");
    }
}

/// A whole pod, whose Redis floods each connection anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_floods_takes_no_memory_of_a_pod_and_its_answers_go_on() {
    static TEXT: [u8; 1 << 16] = [b'x'; 1 << 16];
    let rules = tempfile::TempDir::new().unwrap();
    std::fs::write(rules.path().join("shop.yaml"), RULES).unwrap();
    for head in ["$2000000000\r\n", "-ERR "] {
        let (settings, mut told) = endless(head, &TEXT).await;
        let at = settings.addresses[0].to_string();
        let env = [("REDIS_URL", at.as_str()), ("LEASE_MAX_WAIT", "1s")];
        let pod = Ratelease::start(rules.path(), &[], &env).await;
        let before = pod.process.memory("VmHWM");
        let body =
            r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;
        for _ in 0..5 {
            let mut client = Client::connect(pod.http).await.unwrap();
            let json = [("content-type", "application/json")];
            let answer = client.send("POST", "/json", &json, body).await.unwrap();
            assert_eq!(answer.status, 200, "failure_mode: local");
        }
        let written = within(60, "a flood ends", told.recv()).await.unwrap();
        let grown = pod.process.memory("VmHWM") - before;
        println!("{head:?}: {written} bytes were taken, at most {grown} more were in memory");
        assert!(grown < 16 << 20, "{head:?}: {grown} bytes more in memory");
        let log = pod.process.log();
        let longest = log.lines().map(str::len).max().unwrap_or_default();
        assert!(longest < 1_024, "a line of {longest} bytes");
    }
}

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000}
";

#[tokio::test(flavor = "multi_thread")]
async fn an_error_text_is_cut_and_shown_without_control_characters() {
    let text = format!("-ERR \x1b[31mred\x07 {}\r\n", "é".repeat(2_000));
    let server = Scripted::start(move |_| {
        let text = text.clone();
        async { Act::Say(text) }
    })
    .await;
    let store = connected(server.config()).await;
    let failed = one(&*store, ask(10, 1, 0)).await.unwrap_err();
    let shown = failed.to_string();
    assert!(shown.contains(r"\u{1b}[31mred\u{7}"), "{shown}");
    assert!(shown.len() <= 256 + 64, "{} bytes: {shown}", shown.len());
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
}
