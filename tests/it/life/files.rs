//! A process that may open few files: a crowd on one port does not keep other clients from any
//! port.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{QUICK_END, RULES, decide, request, rules, status};
use crate::support::frames::{GREETING, settings};
use crate::support::http;
use crate::support::process::{Process, leashed};
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::raw_grpc::Connection;

/// CPU time of a process in clock ticks (100 a second on Linux): fields 14 and 15 of proc(5).
fn ticks(process: &Process) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

fn open_files(process: &Process) -> usize {
    fs::read_dir(format!("/proc/{}/fd", process.pid())).unwrap().count()
}

/// A pod that may open `files` files.
async fn pod(files: u32, rules: &TempDir) -> Ratelease {
    let mut command = leashed("/bin/sh");
    let script = format!(r#"ulimit -n {files}; exec "$0" "$@""#);
    command.args(["-c", &script, BINARY, "serve", "--rules"]).arg(rules.path());
    let pod = Ratelease::run(command, &[], &[QUICK_END]);
    pod.ready().await;
    pod
}

/// Connects, sends the HTTP/2 preface if `greets`, and nothing more.
async fn idle(addr: SocketAddr, greets: bool) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.expect("a connection");
    if greets {
        // An error means that the server has closed the connection already.
        let _ = stream.write_all(&[GREETING, &settings(&[])].concat()).await;
    }
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_one_port_leaves_files_for_the_others() {
    const FILES: u32 = 64;
    const CROWD: u32 = 100;
    let rules = rules(RULES);
    let pod = pod(FILES, &rules).await;
    let connection = Connection::open(pod.grpc).await;
    for addr in [pod.grpc, pod.http, pod.debug] {
        let (mut crowd, evicted) = (Vec::new(), pod.count("connections_evicted"));
        for _ in 0..CROWD {
            crowd.push(idle(addr, false).await);
            // Clients that are already connected notice nothing.
            let reply = connection.call(&request("plenty", "open", &[])).await;
            assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
        }
        assert!(serves(&pod).await, "a new client is not served on each port");
        assert_eq!(decide(&pod, "hundred", "v").await.is_over_limit(), Some(false));
        // The crowd did not fit, and the process has files left nevertheless.
        let evicted = pod.count("connections_evicted") - evicted;
        assert!(evicted > u64::from(CROWD - FILES), "{evicted} of {CROWD} were evicted");
        let files = open_files(&pod.process);
        assert!(files < FILES as usize, "{files} files are open");
        let before = ticks(&pod.process);
        tokio::time::sleep(Duration::from_secs(1)).await; // the interval of the measurement
        let worked = ticks(&pod.process) - before;
        assert!(worked < 30, "{worked} hundredths of a second of work in one of waiting");
    }
    assert_eq!(pod.count("connections_refused"), 0);
    assert_eq!(pod.stop().await, 0);
}

/// The usual file limit of containers; 260 connections once filled the HTTP ports, and 520 that of
/// gRPC, and later clients were refused.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_keep_neither_probes_nor_envoy_out() {
    let rules = rules(RULES);
    let pod = pod(1024, &rules).await;
    let calling = Connection::open(pod.grpc).await;
    for (addr, crowd) in [(pod.http, 260), (pod.debug, 260), (pod.grpc, 520)] {
        for greets in [false, true] {
            let mut idlers = Vec::new();
            for n in 0..crowd {
                idlers.push(idle(addr, greets).await);
                if n % 20 > 0 {
                    continue;
                }
                for path in ["/livez", "/readyz", "/healthcheck"] {
                    assert_eq!(status(pod.http, path).await, 200, "{path} beside {n}");
                }
                let new = Connection::open(pod.grpc).await;
                for connection in [&calling, &new] {
                    let reply = connection.call(&request("plenty", "open", &[])).await;
                    assert_eq!(reply.is_over_limit(), Some(false), "beside {n}: {reply:?}");
                }
            }
            assert_eq!(status(pod.debug, "/status").await, 200);
        }
    }
    assert_eq!(pod.count("connections_refused"), 0);
    pod.is_unharmed();
}

/// Whether a new connection is served on each port.
async fn serves(pod: &Ratelease) -> bool {
    let mut head = [0; 9];
    let Ok(mut stream) = TcpStream::connect(pod.grpc).await else { return false };
    // The server sends its settings first.
    let spoken = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let is_open = spoken.is_ok() && stream.read_exact(&mut head).await.is_ok();
    is_open && http::get(pod.http, "/readyz").await.is_ok_and(|answer| answer.status == 200)
}
