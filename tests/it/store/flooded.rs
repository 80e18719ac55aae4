//! Endless replies of a Redis: texts, lists, errors.

use ratelease_engine::store::StoreError;
use ratelease_engine::store::redis::{RedisKind, RedisSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::scripted::{Act, Scripted};
use super::{ask, connected, one, within};
use crate::support::http::Client;
use crate::support::ratelease::Ratelease;
use crate::support::redis::tcp;

/// A server that answers the first ask with `head` and then continues to write for as long as the
/// client reads, 128 MiB at most. It reports how many bytes it could write.
async fn endless(
    head: &'static str,
    filler: &'static [u8],
) -> (RedisSettings, mpsc::UnboundedReceiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, reported) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move { tell.send(flood(client, head, filler).await) });
        }
    });
    (RedisSettings::new(RedisKind::Single, vec![tcp(port)]), reported)
}

const FLOOD_MAX: usize = 128 << 20;

async fn flood(mut client: TcpStream, head: &str, filler: &[u8]) -> usize {
    let mut seen = Vec::new();
    let mut said_pong = false;
    while !seen.windows(7).any(|word| word == b"EVALSHA") {
        if client.read_buf(&mut seen).await.unwrap_or(0) == 0 {
            return 0;
        }
        if !said_pong {
            said_pong = true;
            client.write_all(b"+PONG\r\n").await.unwrap();
        }
    }
    // The replies to the scripts that were loaded.
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

/// Maximum data in two sockets of loopback, one that sends and one that receives.
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
        let (settings, mut reported) = endless(head, filler).await;
        let store = connected(settings).await;
        let failed = one(&*store, ask(10, 1, 0)).await.unwrap_err();
        assert!(matches!(failed, StoreError::MalformedReply(_)), "{head:?}: {failed:?}");
        assert!(failed.to_string().len() < 512, "{head:?}: {failed}");
        let written = within(60, "the flood ends", reported.recv()).await.unwrap();
        assert!(written < SOCKETS_MAX, "{head:?}: {written} bytes were taken");
        println!("{head:?}: {written} bytes were taken");
    }
}

/// A whole pod, whose Redis floods each new connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_floods_takes_no_memory_and_delays_no_answer() {
    static TEXT: [u8; 1 << 16] = [b'x'; 1 << 16];
    let rules = tempfile::TempDir::new().unwrap();
    std::fs::write(rules.path().join("shop.yaml"), RULES).unwrap();
    for head in ["$2000000000\r\n", "-ERR "] {
        let (settings, mut reported) = endless(head, &TEXT).await;
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
        let written = within(60, "a flood ends", reported.recv()).await.unwrap();
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
