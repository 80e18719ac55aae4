//! V10 to V12: attacks on a pod other than through its ports: on its socket, its rules, its
//! settings.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::{UnixSocket, UnixStream};

use crate::foe::Foes;
use crate::messages::{PLENTY, message};
use crate::row::MIB;
use crate::scene::{Plan, Scale, Scene};
use crate::support::now;
use crate::support::process::leashed;
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::raw_grpc::Connection;

/// Limit for a start that fails, which takes milliseconds.
const EXIT_MAX: Duration = Duration::from_secs(15);

/// A second pod, which must not start.
fn second(rules: &Path, env: &[(&str, &str)]) -> Ratelease {
    let binary = std::env::var_os("RATELEASE_BIN").unwrap_or_else(|| BINARY.into());
    let mut command = leashed(binary);
    command.args(["serve", "--rules"]).arg(rules);
    Ratelease::run(command, &[], env)
}

/// The listener is busy for a moment, and its queue is full; the socket is nevertheless in use.
#[tokio::test(flavor = "multi_thread")]
async fn v10_a_socket_with_a_full_queue_is_not_taken_over() {
    let scene = Scene::start(Plan::new("V10", "a second pod on a live Unix socket")).await;
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("rls.sock");
    let socket = UnixSocket::new_stream().expect("a socket");
    socket.bind(&path).expect("a place for it");
    let _listener = socket.listen(1).expect("a listener");
    let mut queue = Vec::new();
    while let Ok(stream) = UnixStream::connect(&path).await {
        queue.push(stream);
    }
    let inode = || std::fs::metadata(&path).map(|data| data.ino()).ok();
    let before = inode();
    let mut ended = None;
    let attack = scene.attack(async |foes, scene| {
        let socket = path.to_str().expect("a path in UTF-8");
        let other = second(scene.rules.path(), &[("GRPC_UDS", socket)]);
        let other = &other.process;
        let end = now() + EXIT_MAX;
        while other.exited().is_none() && !other.log().contains("gRPC on") && now() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        ended = other.exited();
        foes.rest().await;
    });
    let mut row = attack.await.row;
    row.holds(ended.is_some_and(|status| status != 0), &format!("the second ended: {ended:?}"));
    row.holds(before == inode(), "the socket was replaced");
    row.end();
}

/// The rules come from an operator, who may make mistakes; the memory of reading them is bounded by
/// their size, not by 16 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn v11_a_file_of_unknown_keys_delays_no_good_one() {
    const IN_FORCE_MAX: Duration = Duration::from_secs(10);
    let (lines, during) = if Scale::get().is_full { (300_000, 256) } else { (50_000, 64) };
    let mut plan = Plan::new("V11", "a reload with many unknown keys, then a good one");
    plan.during_max = Some(during * MIB);
    let scene = Scene::start(plan.lasting(IN_FORCE_MAX)).await;
    let keys: String = (0..lines).map(|nth| format!("    unknown_{nth}: 1\n")).collect();
    let faulty = format!("{PLENTY}  - key: faulty\n{keys}");
    let closed = "  - {key: closed, rate_limit: {unit: year, requests_per_unit: 0}}\n";
    let good = format!("{PLENTY}{closed}");
    let mut took = None;
    let attack = scene.attack(async |foes, scene| {
        let file = scene.rules.path().join("attack.yaml");
        replace(&file, &faulty);
        foes.note_sent(faulty.len());
        // Long enough for the watcher to see the file.
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        replace(&file, &good);
        let begun = now();
        while took.is_none() && !foes.is_over() {
            if is_closed(foes).await {
                took = Some(begun.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut row = attack.await.row;
    row.note(&format!("{lines} keys; good rules in force after {took:.1?}"));
    let quick = took.is_some_and(|it| it <= IN_FORCE_MAX);
    row.holds(quick, &format!("good rules were not in force within {IN_FORCE_MAX:?}"));
    row.end();
}

/// Replaces a file atomically.
fn replace(file: &Path, text: &str) {
    let part = file.with_extension("part");
    std::fs::write(&part, text).expect("rules, written");
    std::fs::rename(&part, file).expect("rules, in place");
}

/// Whether the good rules are in force.
async fn is_closed(foes: &Foes) -> bool {
    let connection = Connection::open(foes.grpc).await;
    let reply = foes.call(&connection, &message("closed", "v")).await;
    reply.is_ok_and(|reply| reply.is_over_limit() == Some(true))
}

#[tokio::test(flavor = "multi_thread")]
async fn v12_no_fault_or_log_line_quotes_a_credential() {
    const SECRET: &str = "open-sesame";
    let scene = Scene::start(Plan::new("V12", "credentials of OTLP in faults and logs")).await;
    let on = ("TRACING_ENABLED", "true");
    let url = |scheme: &str| format!("{scheme}://user:{SECRET}@127.0.0.1:1");
    let (wrong, right) = (url("htp"), url("http"));
    let header = format!("authorization:Basic {SECRET}");
    let cases = [
        ("an endpoint of no scheme", vec![on, ("OTEL_EXPORTER_OTLP_ENDPOINT", &*wrong)]),
        ("an endpoint", vec![on, ("OTEL_EXPORTER_OTLP_ENDPOINT", &*right), ("LOG_LEVEL", "trace")]),
        ("a header without =", vec![on, ("OTEL_EXPORTER_OTLP_HEADERS", &*header)]),
    ];
    let mut broken = Vec::new();
    let attack = scene.attack(async |foes, scene| {
        for (what, env) in &cases {
            let other = second(scene.rules.path(), env);
            let other = &other.process;
            let connection = Connection::open(foes.grpc).await;
            let begun = now();
            // On a busy machine its first line may come late.
            let is_over = || {
                let is_mute = other.log().trim().is_empty();
                begun.elapsed() >= if is_mute { EXIT_MAX } else { Duration::from_secs(2) }
            };
            while other.exited().is_none() && !is_over() {
                let _ = foes.call(&connection, &message("plenty", "traced")).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            if other.log().contains(SECRET) {
                broken.push(format!("{what} is quoted"));
            }
            if other.log().trim().is_empty() {
                broken.push(format!("{what}: nothing was logged"));
            }
        }
        // Each is refused within milliseconds, and probes are sent ten times a second.
        tokio::time::sleep(Duration::from_millis(500)).await;
    });
    let mut row = attack.await.row;
    broken.iter().for_each(|what| row.holds(false, what));
    row.end();
}
