//! The webhook as a process, asked over TLS as an API server does: HTTP/1.1, with a certificate of
//! an authority that it is given. What needs a real API server is in scripts/test-kubernetes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

/// A webhook as a process.
#[path = "support/process.rs"]
mod process;

use process::{Authority, Webhook, now, review};

/// After this time the webhook gives up a body that does not arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(3);

/// Less than the time for which it takes connections after a signal.
const STILL_TAKEN: Duration = Duration::from_millis(1500);

/// How often a test is repeated that says nothing if the machine stalls.
const ATTEMPTS: usize = 5;

#[test]
fn reviews_are_answered_over_tls() {
    let authority = Authority::new();
    let webhook = Webhook::start(authority.dir.path());
    let post = |path: &str, body: &str| authority.post(webhook.address, path, body.as_bytes());
    let (status, body) = post("/inject", &review(&json!({})).to_string());
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)));
    assert_eq!(answer["response"]["patchType"], "JSONPatch");
    let (_, body) = post("/inject", &review(&json!({"ratelease.io/rules": "git:x"})).to_string());
    assert!(body.contains("unknown source of rules"), "{body}");
    assert!(webhook.await_line("not injected").contains("WARN"));
    let (_, body) = post("/unlabelled", &review(&json!({})).to_string());
    assert!(body.contains("has no label ratelease.io/injection=enabled"), "{body}");
    for (path, body, expected) in [
        ("/inject", "x", (400, "expected an AdmissionReview with a request: expected value")),
        ("/nowhere", "", (404, "the paths are /inject, /unlabelled and /healthz")),
        ("/healthz", "", (405, "POST an AdmissionReview, or GET /healthz")),
    ] {
        let (status, text) = post(path, body);
        assert!(status == expected.0 && text.starts_with(expected.1), "{status} {text}");
    }
}

#[test]
fn a_pod_that_asks_for_the_module_gets_the_library_before_its_envoy() {
    let authority = Authority::new();
    let webhook = Webhook::start(authority.dir.path());
    let review = review(&json!({"ratelease.io/mode": "module"})).to_string();
    let (_, body) = authority.post(webhook.address, "/inject", review.as_bytes());
    let answer: Value = serde_json::from_str(&body).unwrap();
    let patch = STANDARD.decode(answer["response"]["patch"].as_str().unwrap()).unwrap();
    let patch: Vec<Value> = serde_json::from_slice(&patch).unwrap();
    let added = |path: &'static str| {
        patch.iter().filter(move |it| it["path"] == path).map(|it| &it["value"])
    };
    let installer = added("/spec/initContainers/0").next().expect("an init container");
    assert_eq!(installer["command"], json!(["/bin/install-module"]));
    let mut mounts = added("/spec/containers/0/volumeMounts/-");
    assert!(mounts.any(|it| it["mountPath"] == "/opt/ratelease"), "{patch:?}");
    let mut env = added("/spec/containers/0/env/-");
    assert!(env.any(|it| it["name"] == "RUNTIME_ROOT"), "{patch:?}");
    assert!(!patch.iter().any(|it| it["path"] == "/spec/containers/-"), "a sidecar: {patch:?}");
}

#[test]
fn a_review_of_3_mb_is_admitted_and_one_of_5_mb_is_not_read() {
    let authority = Authority::new();
    let webhook = Webhook::start(authority.dir.path());
    let large = review(&json!({"big": "x".repeat(3_000_000)})).to_string();
    let (status, body) = authority.post(webhook.address, "/inject", large.as_bytes());
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["response"]["allowed"]), (200, &json!(true)));
    assert!(answer["response"]["warnings"][0].as_str().unwrap().contains("more than 524288"));
    let larger = review(&json!({"big": "x".repeat(5_000_000)})).to_string();
    // Its connection may end before the answer is read.
    let mut stream = authority.connect(webhook.address);
    let length = larger.len();
    write!(stream, "POST /inject HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n").unwrap();
    let _ = stream.write_all(&larger.as_bytes()[..4_300_000]);
    let mut answer = [0; 64];
    let read = stream.read(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let (status, _) =
        authority.post(webhook.address, "/inject", review(&json!({})).to_string().as_bytes());
    assert_eq!(status, 200, "it goes on");
}

#[test]
fn a_silent_client_delays_no_other() {
    let authority = Authority::new();
    let webhook = Webhook::start(authority.dir.path());
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(webhook.address).unwrap()).collect();
    let mut half = authority.connect(webhook.address);
    half.write_all(b"POST /inject HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n").unwrap();
    let body = review(&json!({})).to_string();
    let (status, _) = authority.post(webhook.address, "/inject", body.as_bytes());
    assert_eq!(status, 200);
    let mut answer = [0; 16];
    let read = half.read(&mut answer).unwrap();
    assert_eq!(&answer[..read.min(12)], b"HTTP/1.1 408", "the half request ends by itself");
    drop(silent);
}

/// A connection with a finished handshake.
fn idle(authority: &Authority, to: SocketAddr) -> StreamOwned<ClientConnection, TcpStream> {
    let mut stream = authority.connect(to);
    stream.conn.complete_io(&mut stream.sock).unwrap();
    stream
}

#[test]
fn idle_connections_take_no_place_for_long() {
    let authority = Authority::new();
    let webhook = Webhook::start(authority.dir.path());
    let mut idle: Vec<_> = (0..300).map(|_| idle(&authority, webhook.address)).collect();
    let body = review(&json!({})).to_string();
    let (status, _) = authority.post(webhook.address, "/inject", body.as_bytes());
    assert_eq!(status, 200);
    // The first had to go, and the last ends since no call arrives.
    for at in [0, 299] {
        let read = idle[at].read(&mut [0; 16]);
        let is_closed = matches!(&read, Ok(0))
            || read.as_ref().is_err_and(|error| {
                !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
            });
        assert!(is_closed, "{at}: {read:?}");
    }
}

#[test]
fn half_sent_bodies_delay_no_other_call() {
    let authority = Authority::new();
    let webhook = Webhook::start(authority.dir.path());
    let body = review(&json!({})).to_string();
    let mut rounds = Vec::new();
    // A busy machine may delay a call in some rounds; a call that waits for the half bodies does so
    // in each.
    for _ in 0..ATTEMPTS {
        let mut half: Vec<_> = (0..30).map(|_| idle(&authority, webhook.address)).collect();
        let began = now();
        for stream in &mut half {
            let head = "POST /inject HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nx";
            stream.write_all(head.as_bytes()).unwrap();
        }
        let (status, _) = authority.post(webhook.address, "/inject", body.as_bytes());
        assert_eq!(status, 200);
        // No half body has ended by then.
        if began.elapsed() < BODY_TIME_MAX {
            return;
        }
        rounds.push(began.elapsed());
    }
    panic!("calls beside half bodies took {rounds:?}");
}

#[test]
fn the_memory_of_the_webhook_stays_below_the_limit_of_the_chart() {
    let authority = Authority::new();
    let webhook = Webhook::start(authority.dir.path());
    // The bytes of all bodies that may arrive at a time, and more.
    let part = vec![b' '; 3_900_000];
    let half: Vec<_> = (0..6)
        .map(|_| {
            let mut stream = authority.connect(webhook.address);
            let head = "POST /inject HTTP/1.1\r\nhost: a\r\ncontent-length: 4000000\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            let _ = stream.write_all(&part);
            stream
        })
        .collect();
    for item in [r#"{"":{"":0}}"#, r#"{"":0}"#, "{}", "[[[]]]"] {
        let items = vec![item; 500_000 / (item.len() + 1)].join(",");
        let body = review(&json!({})).to_string();
        let body = body.replace(r#""containers":"#, &format!(r#""x":[{items}],"containers":"#));
        for path in ["/inject", "/unlabelled"] {
            let (status, answer) = authority.post(webhook.address, path, body.as_bytes());
            assert!(status == 200 && answer.contains("patchType"), "{item}: {status} {answer}");
        }
    }
    let status = fs::read_to_string(format!("/proc/{}/status", webhook.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    eprintln!("peak: {kib} KiB");
    assert!(kib < 128 << 10, "{kib} KiB");
    drop(half);
}

#[test]
fn a_certificate_that_is_replaced_is_served_and_an_expired_one_is_not() {
    let authority = Authority::new();
    let webhook = Webhook::start(authority.dir.path());
    let served = || {
        let mut stream = authority.connect(webhook.address);
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        stream.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let first = served();
    authority.write_certificate(2001);
    let line = webhook.await_line("the former certificate of the webhook stays in force");
    assert!(line.contains("tls.crt holds a certificate that has expired"), "{line}");
    assert_eq!(served(), first);
    authority.write_certificate(4001);
    webhook.await_line("the webhook has a new certificate");
    assert_ne!(served(), first);
}

#[test]
fn a_signal_ends_it_with_0_after_the_calls_in_flight() {
    let authority = Authority::new();
    let body = review(&json!({})).to_string();
    for _ in 0..ATTEMPTS {
        let mut webhook = Webhook::start(authority.dir.path());
        let pid = webhook.child.id().to_string();
        let began = now();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let answer = authority.try_post(webhook.address, "/inject", body.as_bytes());
        let is_late = began.elapsed() > STILL_TAKEN;
        assert_eq!(webhook.child.wait().unwrap().code(), Some(0));
        // A call that this machine has delayed may find that it has ended.
        if answer.is_ok() || !is_late {
            let (status, _) = answer.expect("API servers may not know yet that it ends");
            assert_eq!(status, 200);
            return;
        }
    }
    panic!("no call arrived within {STILL_TAKEN:?} of the signal");
}

/// Anyone in the cluster may send requests, and what they quote goes to the log.
#[test]
fn hostile_requests_write_few_and_short_lines() {
    let authority = Authority::new();
    let webhook = Webhook::start(authority.dir.path());
    let field = |name: &str, value: &str| {
        let mut review = json!({"apiVersion": "x", "kind": "y", "request": {"uid": "1"}});
        review[name] = value.into();
        review.to_string()
    };
    let long = format!("a\nb{}", "A".repeat(3_900_000));
    for name in ["request", "kind", "apiVersion"] {
        let (status, answer) =
            authority.post(webhook.address, "/inject", field(name, &long).as_bytes());
        assert!(matches!(status, 200 | 400) && answer.len() < 2000, "{name}: {}", answer.len());
    }
    let first = webhook.await_line("expected an AdmissionReview");
    // On one connection, as fast as it takes them.
    let mut stream = authority.connect(webhook.address);
    let one = |close: &str| {
        format!("POST /inject HTTP/1.1\r\nhost: a\r\n{close}content-length: 2\r\n\r\n{{}}")
    };
    let all = format!("{}{}", one("").repeat(99), one("connection: close\r\n"));
    stream.write_all(all.as_bytes()).unwrap();
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers);
    assert_eq!(String::from_utf8(answers).unwrap().matches("HTTP/1.1 400").count(), 100);
    let suppressed = webhook.await_line("repeated lines were suppressed");
    assert!(suppressed.contains("server.rs"), "{suppressed}");
    let rest: Vec<_> = webhook.lines.try_iter().collect();
    let longest = rest.iter().chain([&first]).map(String::len).max().unwrap();
    assert!(longest < 2000 && rest.len() < 100, "{} lines, {longest} bytes", rest.len());
}
