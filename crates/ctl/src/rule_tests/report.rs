//! Reports the results of the cases, as text and as JSON.

use ratelease_cli::out::{CliError, Out, Style};
use ratelease_cli::safe::Safe;
use serde_json::{Value, json};

use super::FileResult;
use super::run_case::Failure;

/// Prints each failure with its place, and a summary.
pub(super) fn text(results: &[FileResult], out: &mut Out) -> Result<(), CliError> {
    let painter = out.painter();
    for FileResult { file, failures, .. } in results {
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
    let cases: usize = results.iter().map(|one| one.cases).sum();
    let failed: usize = results.iter().map(failed).sum();
    let number =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let files = number(results.len(), "file");
    out.line(format_args!("{} in {files}: {} failed", number(cases, "case"), failed))
}

/// Returns the number of cases with a failure. Two failing cases with one name are counted as one
/// if no other failure is between them, which is accurate enough for a summary.
fn failed(results: &FileResult) -> usize {
    let mut names: Vec<&str> = results.failures.iter().map(|failure| &*failure.case).collect();
    names.dedup();
    names.len()
}

pub(super) fn json(results: &[FileResult], errors: &[String]) -> Value {
    let files = results.iter().map(|one| {
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
        "passed": errors.is_empty() && results.iter().all(|one| one.failures.is_empty()),
        "files": files.collect::<Vec<_>>(),
        "troubles": errors,
    })
}
