//! A database that is away or restarted, and clients that are slow.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use ratelease_control::{Author, Store};
use serde_json::json;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::support::{Place, SOON, free_port, now, places, rule, wait_for};

/// A write while the database is away is answered within this time: in 10 s, and later on a machine
/// that also compiles.
pub(super) const REFUSED_WITHIN: Duration = Duration::from_secs(25);

#[tokio::test]
async fn while_postgres_is_away_writes_are_refused_and_then_go_on() {
    let mut place = Place::postgres().await;
    let server = place.serve().await;
    server.add(&rule("shop", "user", "1", 5)).await;
    server.publish().await;
    place.postgres.as_mut().unwrap().kill();
    let began = now();
    let refused = server.post("/v1/rules", &rule("shop", "user", "2", 5)).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert!(began.elapsed() < REFUSED_WITHIN, "{:?}", began.elapsed());
    assert_eq!(server.json("/healthz").await, json!({"status": "serving", "database": false}));
    place.postgres.as_mut().unwrap().restart().await;
    let added = async || {
        let answer = server.post("/v1/rules", &rule("shop", "user", "3", 5)).await;
        (answer.status == 201).then_some(())
    };
    wait_for("a write after the restart", added).await;
    let list = server.json("/v1/rules").await;
    assert_eq!(list["rules"].as_array().unwrap().len(), 2, "{list}");
    assert_eq!(server.publish().await, 2);
    server.stop().await;
}

#[tokio::test]
async fn writes_that_wait_leave_connections_to_reads() {
    for place in places().await {
        let server = place.serve().await;
        server.add(&rule("shop", "user", "1", 5)).await;
        // A write of another replica that takes long.
        let other = Store::open(&place.database()).await.unwrap();
        let held = other.begin(&Author::default()).await.unwrap();
        let writes = (0..40).map(|at| {
            let (server, rule) = (&server, rule("shop", "waits", &at.to_string(), 5));
            async move { server.post("/v1/rules", &rule).await.status }
        });
        let reads = async {
            for _ in 0..30 {
                let read = server.get("/v1/rules").await;
                assert_eq!(read.status, 200, "{read:?}");
            }
            drop(held);
        };
        let (statuses, ()) = tokio::join!(futures_util::future::join_all(writes), reads);
        let is_expected = |status: &u16| matches!(status, 201 | 503);
        assert!(statuses.iter().all(is_expected), "{statuses:?}");
        assert!(statuses.contains(&201), "no write went on: {statuses:?}");
        other.close().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_connection_without_a_whole_request_is_closed() {
    let place = Place::sqlite();
    let server = place.serve().await;
    for start in ["", "GET /v1/rules HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = TcpStream::connect(server.http).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        let closed = timeout(SOON, stream.read_to_end(&mut Vec::new())).await;
        assert!(closed.is_ok(), "still open after {start:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_postgres_that_hangs_holds_a_write_up_for_a_bounded_time() {
    let place = Place::postgres().await;
    let server = place.serve().await;
    server.add(&rule("shop", "user", "1", 5)).await;
    place.postgres.as_ref().unwrap().signal_all("STOP");
    let began = now();
    let writes = (0..20).map(|at| {
        let (server, rule) = (&server, rule("shop", "hung", &at.to_string(), 5));
        async move { server.post("/v1/rules", &rule).await.status }
    });
    let statuses = futures_util::future::join_all(writes).await;
    assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
    assert!(began.elapsed() < REFUSED_WITHIN, "{:?}", began.elapsed());
    place.postgres.as_ref().unwrap().signal_all("CONT");
    let added = async || {
        let answer = server.post("/v1/rules", &rule("shop", "user", "2", 5)).await;
        (answer.status == 201).then_some(())
    };
    wait_for("a write after the hang", added).await;
    server.stop().await;
}

#[test]
fn no_output_holds_the_password_of_the_database() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("url");
    let bad = "postgres://user:s3cret@localhost:99999/rules";
    std::fs::write(&file, bad).unwrap();
    let serve = |args: &[&str], variable: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ratelease-control"));
        command.arg("serve").args(["--http-listen", "127.0.0.1:0", "--pods-listen", "127.0.0.1:0"]);
        command.args(args).env_remove("DATABASE_URL").current_dir(dir.path());
        command.envs(variable.map(|url| ("DATABASE_URL", url))).output().unwrap()
    };
    let file = ["--database-url-file", file.to_str().unwrap()];
    for output in [
        serve(&["--database-url", bad], None),
        serve(&[], Some(bad)),
        serve(&file, None),
        serve(&file, Some(bad)),
        serve(&["--no-such-flag"], Some(bad)),
    ] {
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(!text.is_empty() && !text.contains("s3cret"), "{text}");
    }
}

/// `ratelease-control serve` on this database, which writes its log to a pipe.
fn serve(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ratelease-control"));
    command.arg("serve").args(["--http-listen", "127.0.0.1:0", "--pods-listen", "127.0.0.1:0"]);
    command.env("DATABASE_URL", url).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn a_database_that_is_away_is_named_with_its_error_and_a_signal_ends_the_wait() {
    let port = free_port();
    let mut child = serve(&format!("postgres://user:s3cret@127.0.0.1:{port}/x")).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    for part in [&format!("127.0.0.1:{port}"), "Connection refused", "DATABASE_URL"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let began = now();
    let signal = format!("kill -TERM {}", child.id());
    assert!(Command::new("sh").args(["-c", &signal]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
    // Without the signal it waits for the database for 30 s.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // The pauses grow.
    assert!(lines.count() < 5);
}

#[tokio::test]
async fn a_start_that_ends_while_it_writes_the_token_leaves_no_file_without_one() {
    let place = Place::postgres().await;
    let file = place.token_file();
    // A file may have no byte, so that the kernel ends the process at its first write.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -c 0; ulimit -f 0; exec timeout 30 \"$0\" \"$@\""]);
    limited
        .arg(env!("CARGO_BIN_EXE_ratelease-control"))
        .arg("serve")
        .args(["--http-listen", "127.0.0.1:0"]);
    limited.args(["--pods-listen", "127.0.0.1:0", "--token-file"]).arg(&file);
    limited.env("DATABASE_URL", place.postgres.as_ref().unwrap().url());
    let output = limited.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(!output.success(), "{output}");
    assert!(!file.exists(), "a file without a token");
    let server = place.serve().await;
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(server.get("/v1/rules").await.status, 200);
    server.stop().await;
}
