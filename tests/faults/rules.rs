//! R13 and R14: rules that are garbage, and rules that change continually.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::row::Row;
use crate::stage::{Plan, Stage, TIGHT, plenty, time_until, turn};
use crate::stand::{Asker, file, rule};
use crate::support::files::put;
use crate::support::now;
use crate::support::redis::Cluster;

/// From the moment a good file is in place until its rules are in force, at full scale.
const LIVE_MAX: Duration = Duration::from_secs(1);

const MIB: u64 = 1 << 20;

/// Maximum growth of memory by garbage, or by a flood of good files.
const GROWTH_MAX: u64 = 16 * MIB;

/// Good rules whose version shows in the limit of two descriptors.
fn version(domain: &str, tight: u64, number: u64) -> String {
    let canary = |key, value| rule(key, Some(value), 1_000_000 + number);
    let rules = [
        rule("path", Some(TIGHT), tight),
        canary("path", "/canary"),
        canary("generic_key", "all"),
        rule("path", None, plenty()),
    ];
    file(domain, &rules)
}

/// The version that a pod answers with; both descriptors must agree.
async fn version_of(asker: &Asker, domain: &str) -> u64 {
    let canaries = [("path", "/canary"), ("generic_key", "all")];
    let answer = asker.ask(domain, &canaries, 1).await;
    let limits = answer.statuses.iter().map(|status| status.current_limit.as_ref());
    let versions: Vec<_> = limits
        .map(|limit| {
            limit.map_or(0, |limit| u64::from(limit.requests_per_unit).saturating_sub(1_000_000))
        })
        .collect();
    assert!(versions[0] == versions[1], "an answer of two versions: {answer:?}");
    versions[0]
}

/// Waits until a version is in force on every pod, and returns how long that took.
async fn live(stage: &Stage, domain: &str, number: u64) -> Duration {
    let start = now();
    for pod in &stage.pods {
        let asker = Asker::connect(pod).await;
        let is_live = async || version_of(&asker, domain).await == number;
        time_until(10 * LIVE_MAX, is_live).await;
    }
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn r13_rules_are_garbage() {
    let _turn = turn().await;
    let promise = "0 errors; the last good rules stay; the log names the file for each; good rules \
                   are in force 1 s after they are in place; memory + 16 MiB at most; at most 2 L";
    let mut row = Row::new("R13", "garbage in the place of the rules, 13 kinds", promise);
    let stage = Plan::new("r13", Cluster::shared()).start().await;
    let good = version("r13", stage.tight, 1);
    stage.rules.replace(&good);
    live(&stage, "r13", 1).await;
    let (load, memory) = (stage.load(Cluster::shared()).await, stage.resident());

    for (what, bytes) in garbage(&stage) {
        refused(&stage, &mut row, what, || put(stage.rules.path().join("rules.yaml"), &bytes))
            .await;
    }
    // Some of these prefixes are valid rules; they contain everything that the load requests.
    let steps = stage.scale.pick(16, good.len());
    for step in 1..steps {
        put(stage.rules.path().join("rules.yaml"), &good.as_bytes()[..good.len() * step / steps]);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    odd_places(&stage, &mut row).await;
    stage.rules.replace(&version("r13", stage.tight, 2));
    let took = live(&stage, "r13", 2).await;
    let samples = load.stop().await;

    row.recovered(took, stage.scale.pick(5, 1) * LIVE_MAX);
    let growth = stage.resident().saturating_sub(memory);
    row.note(&format!("memory {:+} MiB", growth / MIB));
    row.holds(growth <= GROWTH_MAX, "memory grew");
    // The failure mode may answer where a lease is late.
    stage.judge(&mut row, &samples, 2 * stage.tight).await;
    stage.stop(&mut row).await;
    row.end();
}

/// Makes the rules garbage, and waits until a pod has counted that, and has named the place in its
/// log: the file, or the directory.
async fn refused(stage: &Stage, row: &mut Row, what: &str, make: impl FnOnce()) {
    let (pod, dir) = (&stage.pods[0], stage.rules.path().display().to_string());
    let named = || {
        let log = pod.log();
        let of_rules = |line: &&str| line.contains("rules.yaml") || line.contains(&dir);
        log.lines()
            .filter(|line| line.contains("WARN") || line.contains("ERROR"))
            .filter(of_rules)
            .count()
    };
    let (loads, lines) = (pod.loads_refused(), named());
    make();
    let patience = stage.scale.pick(30, 60) * LIVE_MAX;
    let counted = time_until(patience, async || pod.loads_refused() > loads).await;
    row.holds(counted.is_some(), &format!("{what}: not refused"));
    let reported = time_until(Duration::from_secs(10), async || named() > lines).await;
    row.holds(reported.is_some(), &format!("{what}: the log does not name the file"));
}

/// Contents that are not valid rules.
fn garbage(stage: &Stage) -> Vec<(&'static str, Vec<u8>)> {
    let head = "domain: r13\ndescriptors:\n";
    let aliases: String =
        (1..40).map(|at| format!("b{at}: &b{at} [*b{}, *b{}]\n", at - 1, at - 1)).collect();
    let large = stage.scale.pick(1, 100) << 20;
    vec![
        ("an empty file", Vec::new()),
        ("NUL", b"domain: r13\0\n".to_vec()),
        ("UTF-16 with its mark", b"\xff\xfed\0o\0m\0".to_vec()),
        ("Latin-1", b"domain: r13\ndescriptors: [{key: \xe9}]\n".to_vec()),
        ("cut within a key", format!("{head}- {{key: path, rate_limit: {{unit: da").into()),
        ("the same rule twice", format!("{head}{0}{0}", rule("path", Some("/a"), 1)).into()),
        ("an unknown unit", format!("{head}- {{key: a, rate_limit: {{unit: eon}}}}\n").into()),
        ("aliases of aliases", format!("b0: &b0 [a, a]\n{aliases}domain: *b39\n").into()),
        ("depth 100 000", format!("domain: {}", "[".repeat(100_000)).into()),
        ("a large file", vec![b'a'; large]),
        ("a list for a file", b"- 1\n- 2\n".to_vec()),
    ]
}

/// Puts a dangling link in place of the file, and then no directory at all. A directory that has a
/// file's name is no rule file, and is passed over. The rules directory is never empty, which would
/// be valid: no rules.
async fn odd_places(stage: &Stage, row: &mut Row) {
    let dir = stage.rules.path();
    refused(stage, row, "a dangling link", || {
        std::os::unix::fs::symlink("nowhere", dir.join("link")).expect("a link");
        fs::rename(dir.join("link"), dir.join("rules.yaml")).expect("a link in place");
    })
    .await;
    let away = dir.with_extension("away");
    let rename = |from: &Path, to: &Path| fs::rename(from, to).expect("a renamed directory");
    refused(stage, row, "no directory", || rename(dir, &away)).await;
    fs::create_dir(away.join("more.yaml")).expect("a directory");
    rename(&away, dir);
}

#[tokio::test(flavor = "multi_thread")]
async fn r14_rules_change_all_the_time() {
    let _turn = turn().await;
    let promise = "0 errors; no answer of two versions; the last version in force after 1 s; \
                   memory + 16 MiB at most";
    let mut row = Row::new("R14", "good reloads, 50 a second (200 at full scale)", promise);
    let stage = Plan::new("r14", Cluster::shared()).start().await;
    stage.rules.replace(&version("r14", stage.tight, 1));
    live(&stage, "r14", 1).await;
    let (load, memory) = (stage.load(Cluster::shared()).await, stage.resident());
    let (reloads, every) = stage.scale.pick((150, 20), (6000, 5));
    let asker = Asker::connect(&stage.pods[0]).await;
    let mut seen = 0;
    for number in 2..=reloads {
        stage.rules.replace(&version("r14", stage.tight, number));
        let next = version_of(&asker, "r14").await;
        row.holds(next >= seen, "an older version came back");
        seen = next;
        tokio::time::sleep(Duration::from_millis(every)).await;
    }
    let took = live(&stage, "r14", reloads).await;
    let samples = load.stop().await;
    row.recovered(took, stage.scale.pick(5, 1) * LIVE_MAX);
    let growth = stage.resident().saturating_sub(memory);
    row.note(&format!("{reloads} versions, memory {:+} MiB", growth / MIB));
    row.holds(growth <= GROWTH_MAX, "memory grew");
    stage.judge(&mut row, &samples, 2 * stage.tight).await;
    stage.stop(&mut row).await;
    row.end();
}
