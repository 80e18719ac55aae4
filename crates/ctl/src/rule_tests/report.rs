//! Reports the results of the cases, as text and as JSON.

use ratelease_cli::out::{CliError, Out, Style};
use ratelease_cli::safe::Safe;
use serde_json::{Value, json};

use super::Played;
use super::play::Failure;

/// Prints each failure with its place, and a summary.
pub(super) fn text(played: &[Played], out: &mut Out) -> Result<(), CliError> {
    let painter = out.painter();
    for Played { file, failures, .. } in played {
        for Failure { case, place, what, expected, got, time } in failures {
            let at = format!("{}:{}:{}:", Safe(file), place.line, place.column);
            let time = time.map(|time| format!(", time {time}")).unwrap_or_default();
            out.line(format_args!(
                "{} {} {}",
                painter.paint(Style::Strong, at),
                painter.paint(Style::Bad, "failed:"),
                Safe(format!("{case}{time}: expected {what} {expected}, got {got}"))
            ))?;
        }
    }
    let cases: usize = played.iter().map(|one| one.cases).sum();
    let failed: usize = played.iter().map(failed).sum();
    let number =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let files = number(played.len(), "file");
    out.line(format_args!("{} in {files}: {} failed", number(cases, "case"), failed))
}

/// Returns the number of cases with a failure. Two failing cases with one name are counted as one
/// if no other failure is between them, which is accurate enough for a summary.
fn failed(played: &Played) -> usize {
    let mut names: Vec<&str> = played.failures.iter().map(|failure| &*failure.case).collect();
    names.dedup();
    names.len()
}

pub(super) fn json(played: &[Played], troubles: &[String]) -> Value {
    let files = played.iter().map(|one| {
        let failures = one.failures.iter().map(|failure| {
            let Failure { case, place, what, expected, got, time } = failure;
            json!({ "case": case, "line": place.line, "column": place.column, "what": what,
                "expected": expected, "got": got, "time": time })
        });
        json!({
            "file": one.file,
            "cases": one.cases,
            "failed": failed(one),
            "failures": failures.collect::<Vec<_>>(),
        })
    });
    json!({
        "passed": troubles.is_empty() && played.iter().all(|one| one.failures.is_empty()),
        "files": files.collect::<Vec<_>>(),
        "troubles": troubles,
    })
}
