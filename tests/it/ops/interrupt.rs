//! Signals and terminals: the state that long work leaves behind when it is interrupted.

use std::fs::File;
use std::io::Write;
use std::process::Stdio;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};

use super::{RULES, pod, rules};
use crate::support::process::undisturbed;
use crate::support::ratectl::ratectl;
use crate::support::ratelease::inherited;
use crate::support::terminal::Terminal;

/// Ctrl-C.
const INTERRUPT: &str = "\u{3}";
/// Enters the alternate screen; leaving it also shows the cursor.
const SCREEN: &str = "\u{1b}[?1049h";
const BACK: &str = "\u{1b}[?1049l";
const CURSOR: &str = "\u{1b}[?25h";
/// Replaces the progress with an empty line.
const CLEARED: &str = "\r\u{1b}[K";

/// An action of a person that ends a program.
type End = fn(&mut Terminal);

/// The number that follows `name` in a report.
#[track_caller]
fn reported(report: &str, name: &str) -> u64 {
    let line = report.lines().find_map(|line| line.split_once(name)).expect(name);
    line.1.split_whitespace().next().and_then(|count| count.parse().ok()).expect(name)
}

/// Requests of one user, all within a year: three pass.
fn log(lines: usize) -> String {
    "{\"ts\": 1763719200, \"domain\": \"shop\", \"descriptors\": [{\"entries\": \
     [{\"key\": \"user\", \"value\": \"alice\"}]}]}\n"
        .repeat(lines)
}

#[tokio::test(flavor = "multi_thread")]
async fn top_leaves_the_terminal_as_it_was_however_it_ends() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let debug = pod.debug.to_string();
    let ends: [(End, i32); 6] = [
        (|top| top.signal(Signal::TERM), 143),
        (|top| top.signal(Signal::HUP), 129),
        (|top| top.signal(Signal::INT), 130),
        (|top| top.types("q"), 0),
        (|top| top.types("\u{1b}"), 0),
        (|top| top.types(INTERRUPT), 0),
    ];
    for (at, (end, status)) in ends.into_iter().enumerate() {
        let mut top = Terminal::ratelease(&["top", "--debug", &debug], 100);
        // The screen writes blanks by moving the cursor.
        top.shows("busiest");
        assert!(!top.is_sane(), "{at}: keys are read one by one");
        end(&mut top);
        let ended = top.ended();
        assert_eq!((ended.status, ended.is_sane), (status, true), "{at}: {ended:?}");
        let (_, live) = ended.shown.split_once(SCREEN).expect("the alternate screen");
        let (_, after) = live.split_once(BACK).expect("the way back");
        assert!(after.contains(CURSOR), "{at}: {ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn top_ends_with_its_terminal() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let top = Terminal::ratelease(&["top", "--debug", &pod.debug.to_string()], 100);
    top.shows("busiest");
    assert_eq!(top.hung_up(), 129);
}

/// Under nohup: SIGHUP is ignored from the start, and no other signal is.
#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_that_was_ignored_at_the_start_stays_ignored() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let debug = pod.debug.to_string();
    let mut top = Terminal::ratelease_without_hangup(&["top", "--debug", &debug], 100);
    top.shows("busiest");
    top.signal(Signal::HUP);
    // It polls the pod once a second, and would have ended within a tenth of a second.
    top.shows_more();
    top.shows_more();
    top.types("q");
    let ended = top.ended();
    assert_eq!((ended.status, ended.is_sane), (0, true), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_replay_reports_the_lines_so_far() {
    let rules = rules(RULES);
    let fifo = rules.path().join("log");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let (dir, path) = (rules.path().to_str().unwrap(), fifo.to_str().unwrap());
    let mut replay = Terminal::ratelease(&["replay", path, "--rules", dir], 40);
    // Whole lines and a part of one, and then no more input.
    let mut log = log(5000);
    log.push_str("{\"ts\": 17637");
    let mut writer = File::options().write(true).open(&fifo).unwrap();
    writer.write_all(log.as_bytes()).unwrap();
    replay.shows(" denied");
    replay.types(INTERRUPT);
    let ended = replay.ended();
    drop(writer);
    assert_eq!(ended.status, 130, "{ended:?}");
    let (progress, report) = ended.shown.rsplit_once(CLEARED).expect("the progress is cleared");
    for line in progress.split(CLEARED).skip(1) {
        assert!(line.trim_end_matches("^C").chars().count() < 40, "{line:?} wraps");
    }
    let count = |name: &str| reported(report, name);
    assert!((1024..=5000).contains(&count("lines  ")), "{ended:?}");
    assert_eq!(count("denied  ") + 3, count("lines  "), "{ended:?}");
    assert!(report.contains("interrupted: ") && !report.contains("unreadable"), "{ended:?}");
}

#[test]
fn a_replay_without_a_terminal_ends_by_a_signal_too_and_json_says_so() {
    let rules = rules(RULES);
    let mut command = undisturbed(ratectl());
    command.args(["replay", "-", "--json", "--rules"]).arg(rules.path());
    command.env_clear().envs(inherited()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Far more than a pipe holds: once it is written, most of it has been read.
    let log = log(20_000);
    child.stdin.as_mut().unwrap().write_all(log.as_bytes()).unwrap();
    let input = child.stdin.take();
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true, "{report}");
    assert!(report["requests"].as_u64().is_some_and(|read| read > 10_000), "{report}");
}
