//! Reports a difference, as text and as JSON.

use ratelease_cli::out::{CliError, Out, Style};
use ratelease_cli::safe::Safe;
use ratelease_rules::{Allowance, Rule, RuleLocations};
use serde_json::{Value, json};

use super::{Change, Counts, Diff, Sides};
use crate::rule;

/// Prints removed, added and changed rules, and a summary.
pub(super) fn text(diff: &Diff<'_>, places: Sides<'_>, out: &mut Out) -> Result<(), CliError> {
    let Sides { was, is } = places;
    let painter = out.painter();
    for rule in &diff.removed {
        out.line(painter.paint(Style::Bad, Safe(format!("- {}", rule.path))))?;
        out.line(format_args!("    at {}", shown_place(was, &rule.path)))?;
        out.line(format_args!("    allowed {}", allows(rule)))?;
    }
    for rule in &diff.added {
        out.line(painter.paint(Style::Good, Safe(format!("+ {}", rule.path))))?;
        out.line(format_args!("    at {}", shown_place(is, &rule.path)))?;
        out.line(format_args!("    allows {}", allows(rule)))?;
    }
    for Change { path, settings, counts } in &diff.changed {
        out.line(painter.paint(Style::Doubtful, Safe(format!("~ {path}"))))?;
        let (was, is) = (shown_place(was, path), shown_place(is, path));
        out.line(format_args!("    at {is}, was at {was}"))?;
        for (name, before, after) in settings {
            let line = format!("    {name}: {} → {}", shown(before), shown(after));
            out.line(Safe(line))?;
        }
        let style = if *counts == Counts::Restart { Style::Bad } else { Style::Faint };
        out.line(format_args!("    {}", painter.paint(style, words(*counts))))?;
    }
    for (level, patterns) in &diff.reordered {
        out.line(painter.paint(Style::Doubtful, Safe(format!("~ patterns below {level}"))))?;
        out.line(Safe(format!("    are tried in another order: {}", patterns.join(", "))))?;
    }
    out.line(summary(diff))
}

/// Formats the place of a rule: `rules/shop.yaml:12:5`
fn shown_place(places: &RuleLocations, path: &str) -> String {
    // Every rule of a load has a place.
    places.of(path).map(|written| Safe(written).to_string()).unwrap_or_default()
}

fn summary(diff: &Diff<'_>) -> String {
    let restart = |change: &&Change<'_>| change.counts == Counts::Restart;
    let restarts = match diff.changed.iter().filter(restart).count() {
        0 => String::new(),
        1 => " (1 restarts its counts)".to_owned(),
        more => format!(" ({more} restart their counts)"),
    };
    format!(
        "{} removed, {} added, {} changed{restarts}, {} the same",
        diff.removed.len(),
        diff.added.len(),
        diff.changed.len(),
        diff.same
    )
}

fn allows(rule: &Rule) -> String {
    match rule.allowance {
        Allowance::Limited(limit) => rule::allows(limit),
        Allowance::Unlimited => "everything".to_owned(),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) if !text.is_empty() => text.clone(),
        other => other.to_string(),
    }
}

fn words(counts: Counts) -> String {
    match counts {
        Counts::Kept => "counts are kept".to_owned(),
        Counts::Restart => "counts restart: what was spent is forgotten".to_owned(),
        Counts::KeptWithoutPools(pools) => {
            let lost = if pools == 1 { "1 pool".to_owned() } else { format!("{pools} pools") };
            format!(
                "counts are kept; each key loses {lost}: pods take back the tokens in them, or \
                 these end with their lease"
            )
        }
        Counts::Begin => "counting begins".to_owned(),
        Counts::End => "counting ends".to_owned(),
        Counts::None => "nothing is counted".to_owned(),
    }
}

pub(super) fn json(diff: &Diff<'_>, Sides { was, is }: Sides<'_>) -> Value {
    let whole = |rule: &Rule, places: &RuleLocations| {
        let place = rule::place(places.of(&rule.path));
        json!({ "rule": rule.path, "place": place, "settings": rule::object(rule) })
    };
    let changed = |change: &Change<'_>| {
        let settings = change
            .settings
            .iter()
            .map(|(name, before, after)| json!({ "name": name, "from": before, "to": after }));
        json!({
            "rule": change.path,
            "place": {
                "from": rule::place(was.of(change.path)),
                "to": rule::place(is.of(change.path)),
            },
            "settings": settings.collect::<Vec<_>>(),
            "counts": name(change.counts),
            "pools_dropped": change.counts.pools_dropped(),
        })
    };
    let reordered =
        |(level, patterns): &(String, Vec<String>)| json!({ "level": level, "patterns": patterns });
    json!({
        "equal": diff.is_empty(),
        "removed": diff.removed.iter().map(|rule| whole(rule, was)).collect::<Vec<_>>(),
        "added": diff.added.iter().map(|rule| whole(rule, is)).collect::<Vec<_>>(),
        "changed": diff.changed.iter().map(changed).collect::<Vec<_>>(),
        "reordered": diff.reordered.iter().map(reordered).collect::<Vec<_>>(),
        "same": diff.same,
    })
}

fn name(counts: Counts) -> &'static str {
    match counts {
        Counts::Kept | Counts::KeptWithoutPools(_) => "kept",
        Counts::Restart => "restart",
        Counts::Begin => "begin",
        Counts::End => "end",
        Counts::None => "none",
    }
}
