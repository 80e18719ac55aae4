//! A process that may open few files: a crowd at one port is kept out, and leaves the others alone.

use std::fs;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{QUICK_END, RULES, SOON, decide, request, rules, status};
use crate::support::http;
use crate::support::process::{Process, leashed};
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::raw_grpc::Connection;

/// Clock ticks (100 a second on Linux) that a process has worked: fields 14 and 15 of proc(5).
fn ticks(process: &Process) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_one_port_leaves_files_for_the_others() {
    let rules = rules(RULES);
    let mut command = leashed("/bin/sh");
    command.args(["-c", r#"ulimit -n 64; exec "$0" "$@""#, BINARY, "serve", "--rules"]);
    let pod = Ratelease::run(
        {
            command.arg(rules.path());
            command
        },
        &[],
        &[QUICK_END],
    );
    pod.ready().await;
    let connection = Connection::open(pod.grpc).await;
    for addr in [pod.grpc, pod.http] {
        let mut crowd = Vec::new();
        for _ in 0..100 {
            crowd.push(TcpStream::connect(addr).await.unwrap());
        }
        let full = || {
            let log = pod.process.log();
            log.lines().filter(|it| it.contains("open: more are closed at once")).count()
        };
        let told = if addr == pod.grpc { 1 } else { 2 };
        pod.process.until("full", SOON, async || full() == told).await;
        let before = ticks(&pod.process);
        tokio::time::sleep(Duration::from_secs(1)).await; // the time to measure
        let worked = ticks(&pod.process) - before;
        assert!(worked < 30, "{worked} hundredths of a second of work in one of waiting");
        // Who is connected already notices nothing, nor does who comes to the other port.
        let reply = connection.call(&request("hundred", "open", &[])).await;
        assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
        if addr == pod.grpc {
            assert_eq!(status(pod.http, "/readyz").await, 200);
        } else {
            assert_eq!(decide(&pod, "hundred", "v").await.is_over_limit(), Some(false));
        }
        drop(crowd);
        pod.process.until("serving again", SOON, async || serves(&pod).await).await;
        assert!(pod.count("connections_refused") > 0);
    }
    pod.is_unharmed();
    assert_eq!(pod.stop().await, 0);
}

/// Whether a new connection is served on each port.
async fn serves(pod: &Ratelease) -> bool {
    let mut head = [0; 9];
    let Ok(mut stream) = TcpStream::connect(pod.grpc).await else { return false };
    // The server speaks first, of its settings.
    let spoken = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let is_open = spoken.is_ok() && stream.read_exact(&mut head).await.is_ok();
    is_open && http::get(pod.http, "/readyz").await.is_ok_and(|answer| answer.status == 200)
}
