//! What connecting may take of a pod, files, turns and threads, and that what is configured has its
//! part however much a server names.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ratelease::settings::redis::{RedisKind, RedisSettings};
use ratelease::store::redis::RedisStore;

use super::hostile::slots;
use super::scripted::{Act, Scripted, grant_of};
use super::{ask, one, within};
use crate::support::process::leashed;
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::redis::tcp;

async fn until(what: &str, seconds: u64, mut is_so: impl FnMut() -> bool) {
    within(seconds, what, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

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
    until("each master is connected to", 20, || reached() == 40).await;
}

/// A master that owns one half of the slots itself, and gives the other to 1000 names that nobody
/// has heard of, other ones each time, for as long as it lies.
#[tokio::test(flavor = "multi_thread")]
async fn masters_that_were_named_and_are_gone_hold_up_no_later_one() {
    let honest = Scripted::start(|_| async { Act::Say(grant_of(1)) }).await;
    let honest_port = honest.port();
    let (reads, own_port) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU16::new(0)));
    let act = {
        let (reads, own_port) = (Arc::clone(&reads), Arc::clone(&own_port));
        move |words: Vec<String>| {
            let own = ("127.0.0.1", own_port.load(Ordering::Relaxed));
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
    let server = Scripted::start(act).await;
    own_port.store(server.port(), Ordering::Relaxed);
    let settings = RedisSettings::new(RedisKind::Cluster, vec![tcp(server.port())]);
    let store = RedisStore::spawn(settings, "");
    within(30, "all lies are told", async {
        while reads.load(Ordering::Relaxed) <= LIES {
            let _ = one(&*store, ask(10, 1, 0)).await;
        }
    })
    .await;
    until("the honest master is connected to", 5, || honest.connections() > 0).await;
}

/// Maps, each of which used to shut the gate for ten seconds more.
const LIES: u64 = 12;
