//! R13: rules that may not be read, and a snapshot of them that may not be written, or has no room.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::row::Row;
use crate::stage::{count, judge_process, time_until, turn};
use crate::stand::{Asker, Rules, file, rule};
use crate::support::process::leashed;
use crate::support::ratelease::{BINARY, Ratelease};

const DOMAIN: &str = "r13-disk";

/// Limit for steps that take milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(20);

/// Bytes of room on the disk; the rules that must not fit exceed it.
const ROOM: usize = 64 << 10;
const NO_ROOM: usize = 4 * ROOM;

/// A pod with a snapshot, started in one of the ways below.
struct Place {
    rules: Rules,
    /// The directory of the snapshot.
    dir: TempDir,
    pod: Ratelease,
}

/// Shell words that start the pod without the rights that override permission bits: root's are
/// dropped with `setpriv` of util-linux. Other users have none.
fn bound_by_permissions() -> String {
    let is_root = fs::metadata("/proc/self").expect("this process").uid() == 0;
    let drop = if is_root { "setpriv --bounding-set=-all --inh-caps=-all " } else { "" };
    format!(r#"exec {drop}"$0" "$@""#)
}

/// Shell words that start the pod on a small file system where this process may mount one, which
/// takes CAP_SYS_ADMIN; otherwise with a maximum file size. The second value says which of the two
/// was used, and why.
fn on_a_small_disk(dir: &Path) -> (String, String) {
    let mount = format!(r#"mount -t tmpfs -o size={ROOM} none "{}""#, dir.display());
    let why = match Command::new("unshare").args(["--mount", "sh", "-c", &mount]).output() {
        Ok(tried) if tried.status.success() => {
            let script =
                format!(r#"exec unshare --mount sh -c '{mount} && exec "$0" "$@"' "$0" "$@""#);
            return (script, "no space left on the device".to_owned());
        }
        Ok(tried) => String::from_utf8_lossy(&tried.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    let how = format!("files of at most {ROOM} bytes, since no file system can be mounted: {why}");
    // `ulimit -f` counts units of 512 bytes.
    (format!(r#"trap "" XFSZ; ulimit -f {}; exec "$0" "$@""#, ROOM / 512), how)
}

// === impl Place ===

impl Place {
    async fn open(script: impl FnOnce(&Path) -> String) -> Self {
        let (rules, dir) = (Rules::new(&version(1, 0)), TempDir::new().expect("a directory"));
        let mut command = leashed("/bin/sh");
        command.arg("-c").arg(script(dir.path())).arg(BINARY);
        command.args(["serve", "--rules"]).arg(rules.path());
        let snapshot = dir.path().join("snapshot");
        let env = [("RULES_SNAPSHOT", snapshot.to_str().expect("text"))];
        let place = Self { pod: Ratelease::run(command, &[], &env), rules, dir };
        place.pod.ready().await;
        place
    }

    /// The snapshot's directory as the pod sees it, which may have its own mount namespace.
    fn dir(&self) -> PathBuf {
        let dir = self.dir.path();
        let root = PathBuf::from(format!("/proc/{}/root", self.pod.process.pid()));
        let seen = root.join(dir.strip_prefix("/").expect("an absolute path"));
        if seen.is_dir() { seen } else { dir.to_owned() }
    }

    fn snapshot(&self) -> Vec<u8> {
        fs::read(self.dir().join("snapshot")).unwrap_or_default()
    }

    async fn counts(&self, name: &str, times: u64) -> bool {
        time_until(SOON, async || count(&self.pod, name).await >= times).await.is_some()
    }

    /// Whether this version of the rules takes effect.
    async fn answers_by(&self, number: u64) -> bool {
        let asker = Asker::connect(&self.pod).await;
        let answers = async || {
            let answer = asker.ask(DOMAIN, &[("path", "/a")], 0).await;
            let limit = answer.statuses.first().and_then(|status| status.current_limit.clone());
            limit.is_some_and(|limit| u64::from(limit.requests_per_unit) == number)
        };
        time_until(SOON, answers).await.is_some()
    }

    /// Whether the log eventually contains `what`. A line is written after its event has been
    /// counted.
    async fn logs(&self, what: &str) -> bool {
        time_until(SOON, async || self.pod.log().contains(what)).await.is_some()
    }

    /// Ends the pod, whose log must contain each of `once` exactly once.
    async fn end(self, row: &mut Row, once: &[&str]) {
        judge_process(row, &self.pod).await;
        row.holds(self.pod.stop().await == 0, "the pod did not end well");
        for what in once {
            let times = self.pod.logged(what).len();
            row.holds(times == 1, &format!("logged {times} times: {what}"));
        }
    }
}

/// Rules that are recognised by their limit, in a file with `padding` additional bytes.
fn version(number: u64, padding: usize) -> String {
    let rules = file(DOMAIN, &[rule("path", None, number)]);
    format!("{rules}# {}\n", "-".repeat(padding))
}

const PROMISE: &str = "no exit; the last good rules stay in force, or the new ones come; the last \
                       good snapshot stays whole; each is logged once, with its path and a fix";

const NOT_KEPT: &str = "the rules are in force, but not kept as a snapshot: ";

#[tokio::test(flavor = "multi_thread")]
async fn r13_files_may_not_be_read_or_written() {
    let _turn = turn().await;
    let mut row = Row::new("R13", "no permission for the rules, then for the snapshot", PROMISE);
    let place = Place::open(|_| bound_by_permissions()).await;
    row.holds(place.counts("snapshots_written", 1).await, "no snapshot is written");
    let kept = place.snapshot();

    // Its mode is set before it is moved into place.
    let next = place.rules.path().join("next");
    fs::write(&next, version(2, 0)).expect("a written file");
    fs::set_permissions(&next, Permissions::from_mode(0o000)).expect("a mode");
    fs::rename(&next, place.rules.path().join("rules.yaml")).expect("a renamed file");
    let refused = "rules.yaml: permission denied; let the user";
    row.holds(place.logs(refused).await, "an unreadable file is not logged");
    row.holds(place.answers_by(1).await, "the last good rules are gone");

    fs::set_permissions(place.dir.path(), Permissions::from_mode(0o555)).expect("a mode");
    place.rules.replace(&version(3, 0));
    row.holds(place.answers_by(3).await, "good rules do not come into force");
    row.holds(place.counts("snapshot_failures", 1).await, "the snapshot was written");
    row.holds(place.logs(NOT_KEPT).await, "the failed snapshot is not logged");
    let way_out = "allow the user of this process to write there";
    row.holds(place.logs(way_out).await, "nor the way out");
    row.holds(!kept.is_empty() && place.snapshot() == kept, "the snapshot is not what it was");
    place.end(&mut row, &[NOT_KEPT, way_out]).await;
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn r13_the_disk_is_full() {
    let _turn = turn().await;
    let mut how = String::new();
    let place = Place::open(|dir| {
        let (script, by) = on_a_small_disk(dir);
        how = by;
        script
    });
    let place = place.await;
    let mut row = Row::new("R13", &format!("no room for the snapshot: {how}"), PROMISE);
    row.holds(place.counts("snapshots_written", 1).await, "no snapshot is written");
    let kept = place.snapshot();
    place.rules.replace(&version(2, NO_ROOM));
    row.holds(place.answers_by(2).await, "good rules do not come into force");
    row.holds(place.counts("snapshot_failures", 1).await, "the snapshot was written");
    row.holds(place.logs(NOT_KEPT).await, "the failed snapshot is not logged");
    row.holds(place.logs("free disk space").await, "nor the way out");
    row.holds(!kept.is_empty() && place.snapshot() == kept, "the snapshot is not what it was");
    let left = fs::read_dir(place.dir()).expect("the directory").count();
    row.holds(left == 1, "a part of a file is left behind");
    place.end(&mut row, &[NOT_KEPT, "free disk space"]).await;
    row.end();
}
