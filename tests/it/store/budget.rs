//! Limits on the files, turns and threads that connecting may use, and the share that configured
//! servers keep however many nodes a server names.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ratelease_engine::counter::RedisCounter;
use ratelease_engine::secret::SecretFile;
use ratelease_engine::store::redis::RedisStore;

use super::hostile::slots;
use super::scripted::{Act, Scripted, grant_of};
use super::{ask, connected, count, one, until, until_granted};
use crate::support::process::leashed;
use crate::support::ratelease::{BINARY, Ratelease};

#[tokio::test(flavor = "multi_thread")]
async fn a_low_soft_limit_of_files_leaves_redis_its_part_of_the_hard_one() {
    let ports = Arc::new(OnceLock::new());
    let mut masters = Vec::new();
    for _ in 0..40 {
        let ports = Arc::clone(&ports);
        let act = move |_| {
            let all: &Vec<u16> = ports.get().unwrap();
            let text = slots(&all.iter().map(|port| ("127.0.0.1", *port)).collect::<Vec<_>>());
            async { Act::Say(text) }
        };
        masters.push(Scripted::start(act).await);
    }
    ports.set(masters.iter().map(Scripted::port).collect()).unwrap();
    let rules = tempfile::TempDir::new().unwrap();
    let mut command = leashed("/bin/sh");
    // An eighth of the soft limit would be 16 connections.
    let limited = r#"ulimit -Sn 128; exec "$0" "$@""#;
    command.args(["-c", limited, BINARY, "serve", "--rules"]).arg(rules.path());
    let seed = ([127, 0, 0, 1], masters[0].port()).into();
    let _pod = Ratelease::run(command, &[seed], &[]);
    let reached = || masters.iter().filter(|it| it.connections() > 0).count();
    until(20, "each master is connected to", async || reached() == 40).await;
}

/// A master that owns one half of the slots, and assigns the other to 1000 unknown names, different
/// ones each time, for as long as it lies.
#[tokio::test(flavor = "multi_thread")]
async fn masters_that_are_gone_do_not_delay_the_next_one() {
    let honest = Scripted::start(|_| async { Act::Say(grant_of(1)) }).await;
    let honest_port = honest.port();
    let reads = Arc::new(AtomicU64::new(0));
    let act_at = |own_port| {
        let (own, reads) = (("127.0.0.1", own_port), Arc::clone(&reads));
        move |words: Vec<String>| {
            let text = match words.first().map(String::as_str) {
                Some("CLUSTER") => {
                    let read = reads.fetch_add(1, Ordering::Relaxed);
                    let name = |at| format!("127.{}.{}.{}", 16 + read, at / 250, 1 + at % 250);
                    let names: Vec<String> = (0..1_000).map(name).collect();
                    let mut masters: Vec<_> = names.iter().map(|it| (it.as_str(), 9)).collect();
                    if read >= LIES {
                        masters = vec![("127.0.0.1", honest_port)];
                    }
                    masters.push(own);
                    slots(&masters)
                }
                _ => "-CLUSTERDOWN not served\r\n".into(),
            };
            async { Act::Say(text) }
        }
    };
    let server = Scripted::at(act_at).await;
    let store = RedisStore::spawn(server.of_cluster(), "");
    until(30, "all false replies were sent", async || {
        let _ = one(&*store, ask(10, 1, 0)).await;
        reads.load(Ordering::Relaxed) > LIES
    })
    .await;
    until(5, "the honest master is connected to", async || honest.connections() > 0).await;
}

/// Number of maps, each of which once closed the connection limiter for another ten seconds.
const LIES: u64 = 12;

#[tokio::test(flavor = "multi_thread")]
async fn strangers_who_hold_all_connections_keep_a_pod_from_no_configured_address() {
    let mut strangers = Vec::new();
    for _ in 0..8 {
        // They accept the login, and reply with an error.
        let act = |_| async { Act::Say("-CLUSTERDOWN not served\r\n".into()) };
        strangers.push(Scripted::start(act).await);
    }
    let ports: Vec<u16> = strangers.iter().map(Scripted::port).collect();
    let is_honest = Arc::new(AtomicBool::new(false));
    let act_at = |own| {
        let is_honest = Arc::clone(&is_honest);
        move |words: Vec<String>| {
            let named = if is_honest.load(Ordering::Relaxed) { vec![own] } else { ports.clone() };
            let text = match words.first().map(String::as_str) {
                Some("CLUSTER") => {
                    slots(&named.iter().map(|port| ("127.0.0.1", *port)).collect::<Vec<_>>())
                }
                _ => grant_of(1),
            };
            async { Act::Say(text) }
        }
    };
    let server = Scripted::at(act_at).await;
    let mut settings = server.of_cluster();
    settings.connections_max = 4;
    let store = RedisStore::spawn(settings, "");
    let held = || strangers.iter().filter(|it| it.connections() > 0).count();
    until(10, "strangers hold all connections", async || held() == 4).await;
    is_honest.store(true, Ordering::Relaxed);
    until_granted(&*store, ask(10, 1, 0), 10).await;
}

/// The only blocking thread is occupied, as by look-ups of names that never resolve.
#[test]
fn a_login_without_a_file_needs_no_blocking_thread() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.max_blocking_threads(1).enable_all().build().unwrap();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || wait.recv());
    runtime.block_on(async {
        let server = Scripted::start(|_| async { Act::Say(grant_of(1)) }).await;
        connected(server.config()).await;
    });
    drop(done);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_a_password_that_cannot_be_read_to_its_end_ends_no_more_than_an_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("auth");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let server = Scripted::start(|_| async { Act::Say(grant_of(1)) }).await;
    let mut settings = server.config();
    settings.login.file = Some(SecretFile::from(pipe.display().to_string()));
    let store = RedisStore::spawn(settings, "");
    let failed = || count(&*store, RedisCounter::ConnectErrors) > 1;
    let patience =
        tokio::time::timeout(Duration::from_secs(20), until(30, "", async || failed())).await;
    drop(store);
    // This releases the readers. An attempt that began before the store was dropped may come later,
    // and would wait for a writer without end: it must not find the pipe.
    let both_ends = std::fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    std::fs::remove_file(&pipe).unwrap();
    drop(both_ends);
    assert!(patience.is_ok(), "the attempt did not end");
}
