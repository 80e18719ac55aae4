//! The start of the process, and its messages when it cannot start.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::{UnixSocket, UnixStream};
use tokio::process::Command;
use tonic::Code;

use super::{QUICK_END, RULES, SOON, decide, refuses_to_start, request, rules, status};
use crate::support::files::put;
use crate::support::http;
use crate::support::process::leashed;
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::raw_grpc::Connection;
use crate::support::windows::early_in_a_window;

#[tokio::test]
async fn a_port_in_use_is_reported_with_the_setting_that_changes_it() {
    let rules = rules(RULES);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    for (variable, name) in
        [("PORT", "HTTP"), ("GRPC_PORT", "gRPC"), ("DEBUG_PORT", "the debug page")]
    {
        let what = format!("cannot listen on {addr} for {name}: ");
        let mend = format!("end what uses it, or set {variable}");
        refuses_to_start(rules.path(), &[(variable, &port)], &[&what, "in use", &mend]).await;
    }
}

#[tokio::test]
async fn an_address_of_another_machine_is_reported() {
    let rules = rules(RULES);
    // 192.0.2.0/24 is reserved for documentation (RFC 5737).
    for (variable, name) in
        [("HOST", "HTTP"), ("GRPC_HOST", "gRPC"), ("DEBUG_HOST", "the debug page")]
    {
        let why = ["cannot listen on 192.0.2.1:", name, "check the host part, or set "];
        refuses_to_start(rules.path(), &[(variable, "192.0.2.1")], &why).await;
    }
}

/// Permission bits do not bind root, which tests may run as: a path longer than the kernel accepts
/// cannot be read by any user.
#[tokio::test]
async fn a_rules_directory_that_cannot_be_read_is_reported() {
    let dir = rules(RULES);
    let at = |name: &str| dir.path().join(name);
    symlink("loop", at("loop")).unwrap();
    for (path, why) in [
        (at("missing"), "missing: does not exist, or is a link to nothing; create it"),
        (at("test.yaml"), "test.yaml: is not a directory; name the directory that holds"),
        (at("test.yaml/below"), "below: is not a directory"),
        (at("loop"), "loop: cannot be read: "),
        (at(&"n".repeat(300)), "n: cannot be read: File name too long"),
    ] {
        let mend = "name the directory with --rules or RUNTIME_ROOT, or start without rules by \
                    FORCE_START_WITHOUT_INITIAL_CONFIG=true";
        refuses_to_start(&path, &[], &[why, mend]).await;
    }
}

#[tokio::test]
async fn forced_to_start_without_a_directory_it_waits_for_one() {
    let parent = TempDir::new().unwrap();
    let dir = parent.path().join("rules");
    let pod = Ratelease::spawn(&dir, &[], &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]);
    pod.says("/readyz", 503).await;
    fs::create_dir(&dir).unwrap();
    put(dir.join("test.yaml"), RULES);
    pod.ready().await;
    assert_eq!(decide(&pod, "hundred", "v").await.is_over_limit(), Some(false));
    pod.is_unharmed();
}

#[tokio::test]
async fn bad_rules_at_start_are_reported_and_can_be_fixed_while_it_runs() {
    let dir = rules("domain: test\ndescriptors:\n  - key: hundred\n    rate_limt: {}\n");
    let pod = Ratelease::spawn(dir.path(), &[], &[]);
    pod.says("/readyz", 503).await;
    assert_eq!(status(pod.http, "/livez").await, 200);
    assert_eq!(status(pod.http, "/healthcheck").await, 500);
    pod.logs("ERROR ratelease_sidecar::app: no rules are in force: every call fails").await;
    pod.logs("rules: test.yaml:4:5: ").await;
    let reply = decide(&pod, "hundred", "v").await;
    assert_eq!(reply.code, Code::Unknown, "{reply:?}");
    assert_eq!(reply.reason, "no rate limit configuration loaded");
    let readyz = http::get(pod.http, "/readyz").await.unwrap().body;
    assert!(readyz.contains("were refused; see the log"), "{readyz}");
    let mut client = http::Client::connect(pod.http).await.unwrap();
    let body = r#"{"domain":"test","descriptors":[{"entries":[{"key":"hundred","value":"v"}]}]}"#;
    let json = [("content-type", "application/json")];
    let answer = client.send("POST", "/json", &json, body.as_bytes()).await.unwrap();
    assert_eq!(answer.status, 503, "the request is not to blame: {answer:?}");
    assert!(answer.body.contains("configuration loaded: the rules were refused"), "{answer:?}");

    put(dir.path().join("test.yaml"), RULES);
    pod.ready().await;
    pod.says("/healthcheck", 200).await;
    assert_eq!(decide(&pod, "hundred", "v").await.is_over_limit(), Some(false));
    pod.is_unharmed();
}

#[tokio::test]
async fn a_unix_socket_is_served_in_the_place_of_a_stale_one_only() {
    let rules = rules(RULES);
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("grpc.sock");
    let uds = path.to_str().unwrap();
    // A busy machine may delay even the embedded store for more than the usual 5 ms.
    let env = [("GRPC_UDS", uds), ("LEASE_MAX_WAIT", "5s"), QUICK_END];

    fs::write(&path, "precious").unwrap();
    let what = format!("cannot listen on {uds} for gRPC: ");
    let not_a_socket = [&what, "the path exists and is not a socket", "set GRPC_UDS"];
    refuses_to_start(rules.path(), &env, &not_a_socket).await;
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::remove_file(&path).unwrap();

    let below = dir.path().join("missing/grpc.sock");
    let missing = [("GRPC_UDS", below.to_str().unwrap())];
    refuses_to_start(rules.path(), &missing, &["No such file", "set GRPC_UDS"]).await;

    let live = UnixListener::bind(&path).unwrap();
    let occupied = [&what, "another process listens on it", "set GRPC_UDS"];
    refuses_to_start(rules.path(), &env, &occupied).await;
    drop(live);

    // The file remains after its listener has gone.
    assert!(path.exists());
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    pod.logs(&format!("gRPC on {uds}, HTTP on {}", pod.http)).await;
    let reply = Connection::open_unix(&path).await.call(&request("hundred", "v", &[])).await;
    assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
    pod.is_unharmed();
    assert_eq!(pod.stop().await, 0);
    // A killed pod leaves its socket behind too, and the next pod takes it over.
    let killed = Ratelease::start(rules.path(), &[], &env).await;
    killed.process.signal("KILL");
    killed.process.exit(SOON).await;
    Ratelease::start(rules.path(), &[], &env).await.is_unharmed();
}

/// A connection to it is not refused: its queue is full.
#[tokio::test]
async fn a_unix_socket_whose_listener_is_busy_is_left_alone() {
    let rules = rules(RULES);
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("grpc.sock");
    let socket = UnixSocket::new_stream().unwrap();
    socket.bind(&path).unwrap();
    let busy = socket.listen(1).unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock, "{full}");
    let env = [("GRPC_UDS", path.to_str().unwrap())];
    let why = ["another process listens on it", "set GRPC_UDS"];
    refuses_to_start(rules.path(), &env, &why).await;
    assert!(busy.accept().await.is_ok());
    assert!(UnixStream::connect(&path).await.is_ok(), "it is still there");
}

#[tokio::test]
async fn a_unix_socket_has_the_mode_and_group_that_were_asked_for() {
    let rules = rules(RULES);
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("grpc.sock");
    let uds = ("GRPC_UDS", path.to_str().unwrap());
    let own = fs::metadata(dir.path()).unwrap().gid().to_string();
    for (env, mode) in [
        (&[uds, QUICK_END][..], 0o666),
        (&[uds, QUICK_END, ("GRPC_UDS_MODE", "0660"), ("GRPC_UDS_GROUP", &own)], 0o660),
        (&[uds, QUICK_END, ("GRPC_UDS_MODE", "600")], 0o600),
    ] {
        let pod = Ratelease::start(rules.path(), &[], env).await;
        let found = fs::metadata(&path).unwrap();
        assert_eq!(found.mode() & 0o7777, mode, "{env:?}");
        assert_eq!(found.gid().to_string(), own, "{env:?}");
        let reply = Connection::open_unix(&path).await.call(&request("hundred", "v", &[])).await;
        assert_ne!(reply.code, Code::Unavailable, "{reply:?}");
        assert_eq!(pod.stop().await, 0);
    }
}

#[tokio::test]
async fn the_greeting_says_it_all_and_its_command_works() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules");
    let pod = Ratelease::start(&rules, &[], &[]).await;
    let line = pod.logs("try: ").await;
    let (grpc, http, debug) = (pod.grpc, pod.http, pod.debug);
    let reported =
        format!("gRPC on {grpc}, HTTP on {http}, debug on {debug}; store: memory; rules: ");
    assert!(line.starts_with(&format!("ratelease: {reported}")), "{line}");
    let (_, command) = line.split_once("try: ").unwrap();
    // The rule's window is a minute, and its key is held no longer.
    early_in_a_window(Duration::from_secs(60), Duration::from_secs(30)).await;
    for _ in 0..2 {
        let run = Command::new("sh").args(["-c", command]).kill_on_drop(true).output();
        let output = tokio::time::timeout(SOON, run).await.unwrap().unwrap();
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command}: {output:?}");
        // The rule that the answer comes from is one of those shipped with the program.
        assert!(answer.contains(r#""overallCode":"OK""#), "{command}: {answer}");
        assert!(answer.contains(r#""name":"hello""#), "{command}: {answer}");
    }
    let debug = http::get(pod.debug, "/").await.unwrap().body;
    assert!(debug.contains("keys held: 1\n"), "{debug}");
}

#[tokio::test]
async fn under_the_name_of_the_reference_its_variables_are_all_it_takes() {
    let root = TempDir::new().unwrap();
    let dir = root.path().join("current/ratelimit/config");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("test.yaml"), RULES).unwrap();
    let program = root.path().join("ratelimit");
    symlink(BINARY, &program).unwrap();
    let runtime_root = root.path().join("current");
    let env = [
        ("RUNTIME_ROOT", runtime_root.to_str().unwrap()),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("USE_STATSD", "false"),
        ("LOG_LEVEL", "info"),
        QUICK_END,
    ];
    let pod = Ratelease::run(leashed(&program), &[], &env);
    pod.ready().await;
    assert_eq!(decide(&pod, "hundred", "v").await.is_over_limit(), Some(false));
    let page = http::get(pod.debug, "/rlconfig").await.unwrap().body;
    let line =
        "test.hundred: unit=YEAR requests_per_unit=100, shadow_mode: false, quota_mode: false";
    assert!(page.lines().any(|it| it == line), "{page}");
    pod.is_unharmed();
    assert_eq!(pod.stop().await, 0);
}
