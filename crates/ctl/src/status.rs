//! `ratectl status`: shows the state of a pod, once.

use std::fmt::Write;

use clap::Args;
use ratelease_cli::out::{CliResult, Completion, Out, OutFlags, Painter, Style};
use ratelease_cli::safe;
use ratelease_cli::safe::Safe;

use crate::status_client::{
    BlockedKey, BlockedKeys, BusyRule, Decisions, HotKey, PodFlags, PodStatus,
};

pub const NOTES: &str = "\
Exit status: 0 all is well, 1 there is a problem (the last load of the rules was refused, or there
are none; a breaker is not closed; an invariant was violated), 2 the pod cannot be queried.

Examples:
  ratectl status
  ratectl status --debug 10.0.0.7:6070 --json | jq .rules";

/// Maximum number of rules and keys that are shown.
const SHOWN_MAX: usize = 5;

/// Flags of `status`.
#[derive(Debug, Args)]
pub struct StatusFlags {
    #[command(flatten)]
    pod: PodFlags,
    #[command(flatten)]
    out: OutFlags,
}

/// Prints a pod's status. Any problem of the pod is a finding.
pub fn run(flags: &StatusFlags, out: &mut Out) -> CliResult {
    let status = flags.pod.ask()?;
    let pod = PodStatus::parse(&status);
    if flags.out.json {
        out.json(&status)?;
    } else {
        out.line(table(&pod, out.painter()).trim_end())?;
    }
    Ok(Completion::clean_if(pod.problems().is_empty()))
}

/// Formats a pod's status as text.
fn table(pod: &PodStatus, painter: Painter) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail, here and below.
    let problems = pod.problems();
    for problem in &problems {
        let _ = writeln!(text, "{} {}", painter.paint(Style::Bad, "problem:"), Safe(problem));
    }
    let uptime = pod.uptime.as_secs();
    let _ = writeln!(
        text,
        "ratelease   {}, up for {uptime} s, store {}",
        Safe(&pod.version),
        Safe(&pod.store)
    );
    text.push_str(&rules(pod));
    if let Some(of) = &pod.decisions {
        text.push_str(&decisions(of));
    }
    for shard in &pod.shards {
        let style = if shard.is_open() { Style::Bad } else { Style::Good };
        let breaker = painter.paint(style, Safe(&shard.breaker));
        let name = Safe(format!("{:<5}", shard.name()));
        let away = shard.away();
        let opened = shard.opened;
        let hot = shard.hot_key.as_ref().map(|hot| format!(", hot key {}", key(hot)));
        let failure = shard.last_failure.as_ref().filter(|_| !shard.is_open());
        let failure = failure.map(|why| format!("; last failure: {}", Safe(why)));
        let _ = writeln!(
            text,
            "shard {name} breaker {breaker}, opened {opened} times, {away}{}{}",
            hot.unwrap_or_default(),
            failure.unwrap_or_default()
        );
    }
    text.push_str(&busiest(&pod.rules_busiest, painter));
    text.push_str(&keys("most requested", &pod.hot_keys.requested, painter));
    text.push_str(&keys("most denied", &pod.hot_keys.denied, painter));
    text.push_str(&blocked(&pod.blocked, painter));
    let _ = writeln!(text, "{}", painter.paint(Style::Strong, "counts"));
    for (name, count) in pod.counts.iter().filter(|(_, count)| **count > 0) {
        let _ = writeln!(text, "  {count:>12}  {}", Safe(name.replace('_', " ")));
    }
    text
}

fn rules(pod: &PodStatus) -> String {
    let of = &pod.rules;
    let version = Safe(of.version.as_deref().unwrap_or("none"));
    let origin = if of.from_snapshot { " of the snapshot" } else { "" };
    let count = of.count;
    let ok = of.loads_ok;
    let refused = of.loads_failed;
    format!(
        "rules       version {version}{origin}, {count} rules, loads: {ok} accepted, {refused} \
         refused\n"
    )
}

fn decisions(of: &Decisions) -> String {
    let Decisions { ok, over_limit, errors, .. } = of;
    let mut text = format!("decisions   {ok} passed, {over_limit} denied, {errors} errors");
    if let (Some(p50), Some(p99)) = (of.p50_us, of.p99_us) {
        let _ = write!(text, "; p50 {p50:.0} µs, p99 {p99:.0} µs");
    }
    let how: Vec<_> = of.used().map(|(how, count)| format!("{} {count}", Safe(how))).collect();
    if !how.is_empty() {
        let _ = write!(text, "\n            by how: {}", how.join(", "));
    }
    text + "\n"
}

fn busiest(rules: &[BusyRule], painter: Painter) -> String {
    let mut text = String::new();
    if !rules.is_empty() {
        let heading = format!("{:>12} {:>12}  busiest rules", "passed", "denied");
        let _ = writeln!(text, "{}", painter.paint(Style::Strong, heading));
    }
    for BusyRule { rule, ok, over_limit, shadow } in rules.iter().take(SHOWN_MAX) {
        let shadow = if *shadow > 0 { format!(" ({shadow} in shadow)") } else { String::new() };
        let _ = writeln!(text, "{ok:>12} {over_limit:>12}  {}{shadow}", Safe(rule));
    }
    text
}

fn keys(heading: &str, keys: &[HotKey], painter: Painter) -> String {
    let mut text = String::new();
    if !keys.is_empty() {
        let heading = format!("{:>12} {:>8}  {heading} keys", "count", "share");
        let _ = writeln!(text, "{}", painter.paint(Style::Strong, heading));
    }
    for hot in keys.iter().take(SHOWN_MAX) {
        let count = hot.count;
        let share = hot.share * 100.0;
        let _ = writeln!(text, "{count:>12} {share:>6.1} %  {}", key(hot));
    }
    text
}

fn blocked(blocked: &BlockedKeys, painter: Painter) -> String {
    let mut text = String::new();
    if blocked.count > 0 {
        let heading = format!("{:>12}           keys blocked by order", blocked.count);
        let _ = writeln!(text, "{}", painter.paint(Style::Strong, heading));
    }
    for BlockedKey { key, seconds, by } in blocked.keys.iter().take(SHOWN_MAX) {
        let by = if by.is_empty() { String::new() } else { format!(", by {by}") };
        let _ = writeln!(text, "{seconds:>12.0} s         {}{}", Safe(key), Safe(by));
    }
    text
}

/// Formats a key and its rule. The key is shown by its values, or by its hash if they may not be
/// shown.
pub fn key(hot: &HotKey) -> String {
    let name = safe::line(hot.values.as_deref().unwrap_or(&hot.key));
    if hot.rule.is_empty() { name } else { format!("{name} ({})", safe::line(&hot.rule)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn problems_come_first_and_missing_parts_are_left_out() {
        let pod = PodStatus::parse(&json!({
            "version": "1.2.3", "uptime_seconds": 61.9, "store": "memory",
            "rules": {"version": "00ab", "count": 7, "loads_ok": 2, "loads_failed": 1,
                "last_fault": "shop.yaml:3:5: bad"},
            "shards": [
                {"shard": 0, "server": "10.0.0.1:6379", "breaker": "open", "opened": 3, "round_trip_ms": 0.5,
                    "last_failure": "no answer"},
                {"shard": 1, "breaker": "closed", "last_failure": "it refused"},
            ],
            "counts": {"keys": 9, "task_restarts": 0},
        }));
        assert_eq!(
            table(&pod, Painter::OFF),
            "problem: the last load of the rules was refused: shop.yaml:3:5: bad\n\
             problem: the breaker of shard 0 is open: no answer\n\
             ratelease   1.2.3, up for 61 s, store memory\n\
             rules       version 00ab, 7 rules, loads: 2 accepted, 1 refused\n\
             shard 0     breaker open, opened 3 times, 0.50 ms away at 10.0.0.1:6379\n\
             shard 1     breaker closed, opened 0 times, 0.00 ms away; last failure: it refused\n\
             counts\n             9  keys\n"
        );
    }

    #[test]
    fn text_of_a_server_cannot_control_the_terminal() {
        let evil = "\u{1b}[2J\u{9b}";
        let hot = json!([{"key": evil, "rule": evil, "values": evil}]);
        let pod = PodStatus::parse(&json!({
            "version": evil, "store": evil, "rules": {"version": evil, "last_fault": evil},
            "decisions": {"by_how": {evil: 1}}, "counts": {evil: 1},
            "rules_busiest": [{"rule": evil}], "hot_keys": {"requested": hot, "denied": hot},
            "shards": [{"breaker": evil, "hot_key": hot[0], "last_failure": evil}],
            "blocked": {"count": 1, "keys": [{"key": evil, "by": evil}]},
        }));
        let text = table(&pod, Painter::OFF);
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }

    #[test]
    fn decisions_rules_and_keys_are_shown_if_the_pod_reports_them() {
        let hot = json!([{"key": "hash", "rule": "shop.user", "count": 5, "share": 0.125,
            "values": null}]);
        let pod = PodStatus::parse(&json!({
            "rules": {"version": "00ab"},
            "decisions": {"ok": 10, "over_limit": 3, "errors": 1, "by_how": {"local": 14},
                "p50_us": 12, "p99_us": 90.4},
            "rules_busiest": [{"rule": "shop.user", "ok": 10, "over_limit": 3, "shadow": 2}],
            "hot_keys": {"requested": hot, "denied": []},
            "blocked": {"count": 7, "keys": [{"key": "abc", "seconds": 90.4, "by": "alice@ops"}]},
        }));
        let text = table(&pod, Painter::OFF);
        for line in [
            "decisions   10 passed, 3 denied, 1 errors; p50 12 µs, p99 90 µs",
            "            by how: local 14",
            "          10            3  shop.user (2 in shadow)",
            "           5   12.5 %  hash (shop.user)",
            "           7           keys blocked by order",
            "          90 s         abc, by alice@ops",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert!(!text.contains("most denied"), "{text}");
    }
}
