//! Reports a comparison, as text and as JSON.

use ratelease_cli::out::{CliError, Out, Style};
use ratelease_cli::safe::{Safe, line};
use serde_json::{Value, json};

use super::cause::Cause;
use super::counts::{ByCause, Counts, Example, Group, index};
use super::flags::CompareFlags;

/// Prints the totals, then each rule and field that differs, with an example.
pub(super) fn text(counts: &Counts, flags: &CompareFlags, out: &mut Out) -> Result<(), CliError> {
    let Counts { requests, differing, dropped, skipped, .. } = counts;
    let differ: u64 = differing.iter().sum();
    let (target, against) = (&flags.target, &flags.against);
    out.line(format_args!("target {}, against {}", Safe(target), Safe(against)))?;
    out.line(format_args!("requests      {requests:>10}"))?;
    out.line(format_args!(
        "  same        {:>10}{}",
        requests - differ,
        share(requests - differ, *requests)
    ))?;
    for cause in Cause::ALL {
        let count = differing[index(cause)];
        let row = format!("  {:<11} {count:>10}{}", cause.name(), share(count, *requests));
        let style = match cause {
            Cause::Unexplained if count > 0 => Style::Bad,
            Cause::Unexplained => Style::Good,
            Cause::Timing | Cause::Design => Style::Faint,
        };
        out.line(out.painter().paint(style, row))?;
    }
    if *dropped > 0 {
        out.line(format_args!("not compared  {dropped:>10}  the queue of the mirror was full"))?;
    }
    if *skipped > 0 {
        out.line(format_args!("no request    {skipped:>10}  lines; `ratectl replay` says why"))?;
    }
    groups(counts, out)
}

fn groups(counts: &Counts, out: &mut Out) -> Result<(), CliError> {
    if counts.groups.is_empty() {
        return Ok(());
    }
    let heading =
        format!("\n{:>11} {:>8} {:>10}  rule and field", "unexplained", "timing", "by design");
    out.line(out.painter().paint(Style::Strong, heading))?;
    for ((rule, field), Group { count, examples }) in sorted(counts) {
        let [unexplained, timing, design] = count;
        let (rule, field) = (line(rule), line(&field.name()));
        out.line(format_args!("{unexplained:>11} {timing:>8} {design:>10}  {rule}: {field}"))?;
        for (cause, example) in Cause::ALL.into_iter().zip(examples) {
            let Some(Example { request, target, against }) = example else { continue };
            let (request, target, against) = (line(request), line(target), line(against));
            let cause = cause.name();
            out.line(format_args!(
                "              {cause}: target {target}, against {against}, for {request}"
            ))?;
        }
    }
    if counts.not_grouped > 0 {
        out.line(format_args!("and {} differences of more fields", counts.not_grouped))?;
    }
    Ok(())
}

/// The groups, those with the most unexplained differences first.
fn sorted(counts: &Counts) -> Vec<(&(String, super::difference::Field), &Group)> {
    let mut groups: Vec<_> = counts.groups.iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
    groups
}

/// Formats `part` of `all` in per cent, after two spaces; empty if `all` is 0.
fn share(part: u64, all: u64) -> String {
    match all {
        0 => String::new(),
        all => format!("  {:.1} %", part as f64 / all as f64 * 100.0),
    }
}

/// The whole result.
pub(super) fn json(counts: &Counts, flags: &CompareFlags, is_interrupted: bool) -> Value {
    let Counts { requests, differing, dropped, skipped, rule_requests, not_grouped, .. } = counts;
    let differ: u64 = differing.iter().sum();
    let differences = sorted(counts).into_iter().map(|((rule, field), group)| {
        let Group { count, examples } = group;
        let examples = Cause::ALL.into_iter().zip(examples).filter_map(|(cause, example)| {
            let Example { request, target, against } = example.as_ref()?;
            let cause = cause.name();
            Some(json!({"cause": cause, "request": request, "target": target, "against": against}))
        });
        json!({
            "rule": rule,
            "field": field.name(),
            "count": by_cause(count),
            "examples": examples.collect::<Value>(),
        })
    });
    json!({
        "target": flags.target.to_string(),
        "against": flags.against.to_string(),
        "requests": requests,
        "same": requests - differ,
        "differ": by_cause(differing),
        "not_compared": dropped,
        "lines_without_request": skipped,
        "descriptors_by_rule": rule_requests,
        "differences": differences.collect::<Value>(),
        "differences_not_listed": not_grouped,
        "interrupted": is_interrupted,
    })
}

fn by_cause(counts: &ByCause) -> Value {
    let [unexplained, timing, design] = counts;
    json!({"unexplained": unexplained, "timing": timing, "by_design": design})
}
