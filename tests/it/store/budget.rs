//! What connecting may take of a pod, files, turns and threads, and that what is configured has its
//! part however much a server names.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::hostile::slots;
use super::scripted::{Act, Scripted};
use super::within;
use crate::support::process::leashed;
use crate::support::ratelease::{BINARY, Ratelease};

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
