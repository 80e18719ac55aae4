//! Output that is discarded, or that no process reads: it neither ends the pod nor blocks it.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::{QUICK_END, RULES, SOON, decide, request, rules};
use crate::support::files::put;
use crate::support::process::{Process, leashed};
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::raw_grpc::Connection;

/// `$0` is a fifo; the rest is the program. Descriptors 8 and 9 are the two ends of the fifo.
const FIFO: &str = r#"mkfifo "$0"; exec 8<>"$0" 9>"$0"; "#;

/// Destinations of the output, as shell redirections.
const OUTPUTS: [(&str, &str); 5] = [
    ("closed", r#"exec "$@" >&- 2>&-"#),
    ("a full disk", r#"exec "$@" >/dev/full 2>&1"#),
    ("a pipe without a reader", r#"exec 8>&-; exec "$@" >&9 2>&9 9>&-"#),
    ("a full pipe, for stdout", r#"head -c 65536 /dev/zero >&9; exec "$@" >&9"#),
    ("a full pipe", r#"head -c 65536 /dev/zero >&9; exec "$@" >&9 2>&9"#),
];

fn shell(script: &str, dir: &Path) -> std::process::Command {
    let mut command = leashed("/bin/sh");
    command.arg("-c").arg(format!("{FIFO}{script}")).arg(dir.join("fifo")).arg(BINARY);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_cannot_be_written_does_not_stop_the_process() {
    let rules = rules(RULES);
    for (name, script) in OUTPUTS {
        println!("{name}");
        let dir = TempDir::new().unwrap();
        let mut command = shell(script, dir.path());
        command.args(["serve", "--rules"]).arg(rules.path());
        let pod = Ratelease::run(command, &[], &[QUICK_END]);
        pod.ready().await;
        // Something to log, which is then lost.
        let bad = rules.path().join("bad.yaml");
        put(&bad, "domain: [");
        let refused = async || pod.loads_refused() == 1;
        pod.process.until("refusing the rules", SOON, refused).await;
        fs::remove_file(&bad).unwrap();
        assert_eq!(decide(&pod, "hundred", name).await.is_over_limit(), Some(false), "{name}");
        pod.is_unharmed();
        assert_eq!(pod.stop().await, 0, "{name}");
    }
}

/// One line per decision, far more than the queue holds: excess lines are lost and counted, and no
/// decision waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_not_read_loses_lines_and_delays_no_decision() {
    const DECISIONS: u64 = 3_000;
    let rules = rules(RULES);
    let dir = TempDir::new().unwrap();
    let (_, script) = OUTPUTS[4];
    let mut command = shell(script, dir.path());
    command.args(["serve", "--rules"]).arg(rules.path());
    let all = [QUICK_END, ("LOG_LEVEL", "debug"), ("LOG_LINES_PER_SECOND", "0")];
    let pod = Ratelease::run(command, &[], &all);
    pod.ready().await;
    let connection = Connection::open(pod.grpc).await;
    for _ in 0..DECISIONS {
        let reply = connection.call(&request("plenty", "v", &[])).await;
        assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
    }
    let lost = pod.count("log_lines_lost");
    assert!((DECISIONS / 3..=DECISIONS * 2).contains(&lost), "{lost} lines were lost");
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test]
async fn a_short_command_ends_with_its_status_though_its_output_is_lost() {
    for (name, script) in &OUTPUTS[..3] {
        for (args, status) in [
            // The exit status reports a failed write, if the system reports one.
            (&["--help"][..], if *name == "a full disk" { 2 } else { 0 }),
            (&["serve", "--no-such-flag"], 2),
            (&["serve", "--rules", "/no/such/directory"], 1),
        ] {
            let dir = TempDir::new().unwrap();
            let mut command = shell(script, dir.path());
            command.args(args);
            let process = Process::spawn("ratelease", command);
            assert_eq!(process.exit(SOON).await, status, "{name}: {args:?}: {}", process.log());
        }
    }
}
