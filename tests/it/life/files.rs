//! A process that may open no more files: it waits, and serves again once it can.

use std::fs;
use std::time::Duration;

use tokio::net::TcpStream;

use super::{QUICK_END, RULES, SOON, decide, request, rules};
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
async fn without_files_left_it_waits_and_serves_again() {
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
        tokio::time::sleep(Duration::from_millis(200)).await; // until it has run out
        let before = ticks(&pod.process);
        tokio::time::sleep(Duration::from_secs(1)).await; // the time to measure
        let worked = ticks(&pod.process) - before;
        assert!(worked < 30, "{worked} hundredths of a second of work in one of waiting");
        pod.logs("cannot accept connections").await;
        // Who is connected already notices nothing.
        let reply = connection.call(&request("hundred", "open", &[])).await;
        assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
        drop(crowd);
        let served = async || {
            let asked = TcpStream::connect(pod.grpc).await.is_ok();
            asked && decide(&pod, "hundred", "v").await.is_over_limit() == Some(false)
        };
        pod.process.until("serving again", SOON, served).await;
        pod.ready().await;
    }
    pod.is_unharmed();
    assert_eq!(pod.stop().await, 0);
}
