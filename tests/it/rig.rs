//! The tests' own tools. A tool that hides a fault or leaves a process behind would spoil other
//! tests.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::load::{Load, Tally};
use crate::support::ports::free_port;
use crate::support::process::{Process, leashed};

const SOON: Duration = Duration::from_secs(10);

fn shell(script: &str) -> Process {
    let mut command = leashed("/bin/sh");
    command.args(["-c", script]);
    Process::spawn("the child", command)
}

#[tokio::test]
async fn a_childs_status_and_log_are_its_own() {
    let child = shell("echo said; echo complained >&2; exit 7");
    assert_eq!(child.exit(SOON).await, 7);
    assert_eq!(child.exited(), Some(7));
    assert_eq!(child.log(), "said\ncomplained\n");
}

#[tokio::test]
async fn a_signal_reaches_the_child_itself() {
    let child = shell("trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.01; done");
    child.until("ready", SOON, async || child.log().contains("ready")).await;
    child.signal("TERM");
    assert_eq!(child.exit(SOON).await, 3);
    assert_eq!(child.log(), "ready\nasked\n");

    let child = shell("exec sleep 1000");
    child.signal("KILL");
    assert_eq!(child.exit(SOON).await, 128 + 9);
}

#[test]
fn a_child_is_gone_once_it_is_dropped() {
    let child = shell("trap '' TERM HUP INT; while :; do sleep 0.01; done");
    let alive = format!("/proc/{}", child.pid());
    assert!(Path::new(&alive).exists());
    drop(child);
    assert!(!Path::new(&alive).exists());
}

/// A `sleep` takes the place of the test process: it holds the other end of the leash when it is
/// killed.
#[test]
fn a_child_of_a_killed_test_ends_too() {
    let mut test = Command::new("sleep").arg("60").stdout(Stdio::piped()).spawn().unwrap();
    let held = test.stdout.take().unwrap();
    let mut guard = leashed("sleep").arg("60").stdin(held).stdout(Stdio::piped()).spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(guard.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    let alive = Path::new("/proc").join(pid.trim());
    assert!(alive.exists());

    test.kill().unwrap();
    test.wait().unwrap();
    assert_eq!(guard.wait().unwrap().code(), Some(128 + 9));
    assert!(!alive.exists());
}

#[tokio::test]
#[should_panic(expected = "ended with status 5 before it was ready; the end of its log:\nno port")]
async fn a_start_that_fails_shows_the_log() {
    let child = shell("echo no port; exit 5");
    child.until("ready", SOON, async || false).await;
}

#[test]
fn a_port_is_handed_out_once() {
    let mut ports: Vec<_> = (0..100).map(|_| free_port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 100);
}

/// A child inherits every socket from its start until it executes its program.
#[test]
fn a_port_stays_free_while_another_thread_starts_children() {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                leashed("true").status().unwrap();
            }
        });
        let listen = |_| std::net::TcpListener::bind(("127.0.0.1", free_port()));
        let failed = (0..500).map(listen).filter(Result::is_err).count();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(failed, 0);
    });
}

/// Answers each request on each connection with the next of `answers`, then closes the connection.
async fn scripted(answers: &'static [&'static str]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            for answer in answers {
                let mut request = [0; 1024];
                if stream.read(&mut request).await.unwrap_or(0) == 0 {
                    break;
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    addr
}

#[tokio::test]
async fn a_load_counts_every_request_once() {
    let addr = scripted(&[
        "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n",
        "HTTP/1.1 429 Too Many Requests\r\ntransfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
        "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n",
    ])
    .await;
    // The fourth request finds the connection closed, and the fifth opens another.
    let tally = Load::new("/", 1, 6).start(addr).finish().await;
    let statuses = [(200, 2), (429, 2), (500, 1)].into();
    assert_eq!(tally, Tally { statuses, broken: 1 });
    assert_eq!((tally.passed(), tally.limited(), tally.faults()), (2, 2, 2));
}
