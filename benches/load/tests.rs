//! Whole runs against minimal servers on free ports.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};
use ratelease_cli::client::Target;
use ratelease_cli::out::{Completion, Interrupt};
use serde_json::Value;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::signal::unix::SignalKind;

use super::client::Socket;
use super::flags::LoadFlags;
use super::run::run;

/// How a server reacts to the request of this number; the trial is number 0.
type Script = fn(u64) -> Act;

#[derive(Debug, Clone, Copy)]
enum Act {
    /// Answer with this overall code.
    Verdict(u8),
    /// Answer with this gRPC code and nothing else.
    Refuse(&'static str),
    /// Delay the answer by this long; the requests behind it wait too.
    Stall(Duration),
    /// Do not answer.
    Ignore,
    /// Close the connection abruptly.
    Cut,
    /// Accept no more requests on this connection.
    GoAway,
}

const OK: Act = Act::Verdict(1);

/// A server that follows a script until it is dropped.
struct Server {
    address: SocketAddr,
    asked: Arc<AtomicU64>,
    _runtime: Runtime,
}

impl Server {
    fn start(script: Script) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&asked);
        runtime.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(converse(socket, script, Arc::clone(&counter)));
            }
        });
        Self { address, asked, _runtime: runtime }
    }

    fn run(&self, flags: &str) -> Value {
        report(&format!("--target {} {flags}", self.address)).unwrap()
    }
}

async fn converse(socket: impl Socket, script: Script, asked: Arc<AtomicU64>) -> io::Result<()> {
    let mut connection = h2::server::handshake(socket).await.map_err(io::Error::other)?;
    let mut unanswered = Vec::new();
    while let Some(accepted) = connection.accept().await {
        let (_, respond) = accepted.map_err(io::Error::other)?;
        match script(asked.fetch_add(1, Ordering::Relaxed)) {
            Act::Verdict(code) => answer(respond, code),
            Act::Refuse(code) => {
                let mut head = Response::new(());
                head.headers_mut().insert("grpc-status", HeaderValue::from_static(code));
                let mut respond = respond;
                respond.send_response(head, true).map_err(io::Error::other)?;
            }
            Act::Stall(span) => {
                tokio::time::sleep(span).await;
                answer(respond, 1);
            }
            Act::Ignore => unanswered.push(respond),
            Act::Cut => return Ok(()),
            Act::GoAway => {
                answer(respond, 1);
                connection.graceful_shutdown();
            }
        }
    }
    Ok(())
}

fn answer(mut respond: SendResponse<Bytes>, code: u8) {
    let mut body = respond.send_response(Response::new(()), false).unwrap();
    body.send_data(vec![0, 0, 0, 0, 2, 8, code].into(), false).unwrap();
    let status = HeaderValue::from_static("0");
    let name = http::HeaderName::from_static("grpc-status");
    body.send_trailers(HeaderMap::from_iter([(name, status)])).unwrap();
}

/// Runs the bench and returns its report as JSON, or its error.
fn report(flags: &str) -> Result<Value, String> {
    // Nothing stops it.
    let (_sender, stop) = mpsc::channel();
    let report = run(parse(flags)?.plan()?, &stop)?;
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    let text = report.to_string();
    assert!(text.contains("p99.9"), "{text}");
    let is_good = json["errors"] == serde_json::json!({});
    assert_eq!(report.outcome(), Completion::clean_if(is_good), "{text}");
    assert_eq!(json["interrupted"], false, "{text}");
    Ok(json)
}

fn parse(flags: &str) -> Result<LoadFlags, String> {
    let line = format!("--warmup 0 --duration 200ms --keys 100 {flags}");
    // A flag given twice is refused, so a flag of the test removes the default above.
    let mut words: Vec<&str> = Vec::new();
    for word in line.split_whitespace() {
        if let Some(at) = words.iter().position(|w| *w == word && word.starts_with("--")) {
            words.drain(at..at + 2);
        }
        words.push(word);
    }
    let words = std::iter::once("load").chain(words);
    LoadFlags::try_parse_from(words).map_err(|error| error.to_string())
}

fn count(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("{name} of {report}"))
}

#[test]
fn a_closed_loop_counts_every_verdict() {
    let server = Server::start(|at| Act::Verdict(if at % 4 == 0 { 2 } else { 1 }));
    let report = server.run("--connections 3 --threads 2 --streams 4");
    let (ok, over) = (count(&report, "ok"), count(&report, "over_limit"));
    assert!(ok > 0 && over > 0 && ok.abs_diff(over * 3) <= 12, "{report}");
    assert_eq!(count(&report, "requests"), ok + over);
    // All requests except the trial, which is not measured.
    assert_eq!(server.asked.load(Ordering::Relaxed), 1 + ok + over);
    let latency = |name: &str| report["latency_us"][name].as_f64().unwrap();
    assert!(latency("p50") > 0.0 && latency("p50") <= latency("p99.9"), "{report}");
    assert!(latency("p99.9") <= latency("max") * 1.001, "{report}");
}

#[test]
fn the_warm_up_is_not_measured() {
    let server = Server::start(|_| OK);
    let report = server.run("--rate 500 --warmup 400ms --duration 400ms");
    assert_eq!((count(&report, "ok"), count(&report, "requests")), (200, 200), "{report}");
    assert_eq!(server.asked.load(Ordering::Relaxed), 401);
}

#[test]
fn an_open_loop_sends_each_request_and_a_stall_shows_in_all_that_it_held_up() {
    // One request stalls the server for 200 ms; the requests that were due meanwhile waited too.
    let server = Server::start(|at| match at {
        50 => Act::Stall(Duration::from_millis(200)),
        _ => OK,
    });
    let flags = "--rate 1000 --duration 500ms --connections 1 --streams 8";
    let report = server.run(flags);
    assert_eq!((count(&report, "requests"), count(&report, "ok")), (500, 500), "{report}");
    let latency = |name: &str| report["latency_us"][name].as_f64().unwrap();
    // 200 of 500 requests were due during the stall; only 8 could be in flight.
    assert!(latency("max") >= 195_000.0, "{report}");
    assert!(latency("p90") >= 100_000.0, "{report}");
}

#[test]
fn errors_are_counted_by_code_and_are_not_good() {
    let server = Server::start(|at| match at % 3 {
        0 => Act::Refuse("14"),
        1 => Act::Refuse("8"),
        _ => Act::Verdict(0),
    });
    let report = server.run("--rate 300 --streams 100");
    assert_eq!((count(&report, "requests"), count(&report, "ok")), (60, 0), "{report}");
    for name in ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "no verdict in the answer"] {
        assert_eq!(report["errors"][name], 20, "{report}");
    }
}

#[test]
fn requests_unanswered_or_unsent_at_the_end_are_errors_with_their_wait() {
    let server = Server::start(|at| if at < 10 { OK } else { Act::Ignore });
    let report = server.run("--rate 100 --connections 1 --streams 4");
    assert_eq!((count(&report, "requests"), count(&report, "ok")), (20, 9), "{report}");
    assert_eq!(report["errors"]["unanswered at the end"], 4, "{report}");
    assert_eq!(report["errors"]["not sent for want of streams"], 7, "{report}");
    assert!(report["latency_us"]["p90"].as_f64().unwrap() > 2e6, "{report}");
}

#[test]
fn a_connection_that_breaks_is_counted_and_replaced() {
    let server = Server::start(|at| if at == 10 { Act::Cut } else { OK });
    let report = server.run("--rate 200 --connections 1 --streams 1");
    assert_eq!(count(&report, "connections_lost"), 1, "{report}");
    assert_eq!(report["errors"], serde_json::json!({ "connection lost": 1 }), "{report}");
    assert_eq!((count(&report, "requests"), count(&report, "ok")), (40, 39), "{report}");
}

#[test]
fn a_connection_that_is_asked_to_go_is_replaced_without_a_loss() {
    let server = Server::start(|at| if at == 10 { Act::GoAway } else { OK });
    let report = server.run("--rate 200 --connections 1 --streams 1");
    assert_eq!(count(&report, "connections_lost"), 0, "{report}");
    assert_eq!((count(&report, "requests"), count(&report, "ok")), (40, 40), "{report}");
}

#[test]
fn a_unix_socket_is_a_target_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("grpc.sock");
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(async { UnixListener::bind(&path) }).unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    runtime.spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(converse(socket, |_| OK, Arc::clone(&asked)));
        }
    });
    let report = report(&format!("--target unix:{} --rate 100", path.display())).unwrap();
    assert_eq!(count(&report, "ok"), 20, "{report}");
}

#[test]
fn a_target_that_is_no_rate_limit_server_is_reported_before_the_run() {
    // No server.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = report(&format!("--target {gone}")).unwrap_err();
    assert!(error.starts_with(&format!("cannot connect to {gone}: ")), "{error}");
    // Another gRPC service.
    let other = Server::start(|_| Act::Refuse("12"));
    let error = report(&format!("--target {}", other.address)).unwrap_err();
    assert!(error.contains("is a gRPC server without envoy.service.ratelimit.v3"), "{error}");
    // HTTP/1, or any other protocol.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = report(&format!("--target {address}")).unwrap_err();
    assert!(error.contains("it does not speak HTTP/2"), "{error}");
    assert!(error.contains("name the server's gRPC port"), "{error}");
}

#[test]
fn flags_that_conflict_are_refused_with_what_to_set() {
    for (flags, reported) in [
        ("", "--target"),
        ("--target a", "expected HOST:PORT or unix:PATH"),
        ("--target a:1 --threads 3 --connections 2", "set --threads 2 or --connections 3"),
        ("--target a:1 --keys 2 --descriptors 3", "set --keys 3"),
        ("--target a:1 --rate 0", "1..=1000000"),
        ("--target a:1 --zipf=-1", "expected a number from 0 to 10"),
        ("--target a:1 --zipf=NaN", "expected a number from 0 to 10"),
        ("--target a:1 --duration 0", "expected a duration above 0"),
        ("--target a:1 --duration 10", "with its unit"),
        ("--target a:1 --warmup 25h", "at most 24h"),
    ] {
        let error = parse(flags).and_then(LoadFlags::plan).unwrap_err();
        assert!(error.contains(reported), "{flags}: {error}");
    }
    assert_eq!(
        parse("--target [::1]:1").unwrap().plan().unwrap().target,
        Target::Tcp("[::1]:1".into())
    );
}

#[test]
fn a_run_that_is_stopped_reports_what_it_has_measured() {
    for more in ["", "--rate 20"] {
        let server = Server::start(|_| OK);
        let flags = format!("--target {} --duration 1h {more}", server.address);
        let plan = parse(&flags).and_then(LoadFlags::plan).unwrap();
        let (sender, stop) = mpsc::channel();
        let running = std::thread::spawn(move || run(plan, &stop).unwrap());
        while server.asked.load(Ordering::Relaxed) < 10 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let interrupt = Interrupt::of(SignalKind::interrupt());
        sender.send(interrupt).unwrap();
        let report = running.join().unwrap();
        assert_eq!(report.outcome(), Completion::Interrupted(interrupt));
        assert!(report.to_string().contains(" s measured, then interrupted"), "{report}");
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!((&json["interrupted"], &json["errors"]), (&true.into(), &serde_json::json!({})));
        assert!(count(&json, "requests") > 0, "{json}");
    }
}
