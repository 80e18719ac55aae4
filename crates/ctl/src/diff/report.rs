//! Reports a difference, as text and as JSON.

use ratelease_cli::out::{CliError, Out, Style};
use ratelease_cli::safe::Safe;
use ratelease_rules::{Allowance, Rule, RuleLocations};
use serde_json::{Value, json};

use super::{Change, CountChange, Diff, Locations};
use crate::rule;

/// Prints removed, added and changed rules, and a summary.
pub(super) fn text(diff: &Diff<'_>, places: Locations<'_>, out: &mut Out) -> Result<(), CliError> {
    let Locations { old, new, .. } = places;
    let painter = out.painter();
    for rule in &diff.removed {
        out.line(painter.paint(Style::Bad, Safe(format!("- {}", rule.path))))?;
        out.line(format_args!("    at {}", shown_place(old, &rule.path)))?;
        out.line(format_args!("    allowed {}", allows(rule)))?;
    }
    for rule in &diff.added {
        out.line(painter.paint(Style::Good, Safe(format!("+ {}", rule.path))))?;
        out.line(format_args!("    at {}", shown_place(new, &rule.path)))?;
        out.line(format_args!("    allows {}", allows(rule)))?;
    }
    for Change { path, settings, counts } in &diff.changed {
        out.line(painter.paint(Style::Doubtful, Safe(format!("~ {path}"))))?;
        let (old, new) = (shown_place(old, path), shown_place(new, path));
        out.line(format_args!("    at {new}, was at {old}"))?;
        for (name, before, after) in settings {
            let line = format!("    {name}: {} → {}", shown(before), shown(after));
            out.line(Safe(line))?;
        }
        let style = if *counts == CountChange::Restart { Style::Bad } else { Style::Faint };
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
    let restart = |change: &&Change<'_>| change.counts == CountChange::Restart;
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

fn words(counts: CountChange) -> String {
    match counts {
        CountChange::Kept => "counts are kept".to_owned(),
        CountChange::Restart => "counts restart: up to twice the limit is admitted in the window \
                                 of the change"
            .to_owned(),
        CountChange::KeptWithoutPools(pools) => {
            let lost = if pools == 1 { "1 pool".to_owned() } else { format!("{pools} pools") };
            format!(
                "counts are kept; each key loses {lost}: pods take back the tokens in them, or \
                 these end with their lease"
            )
        }
        CountChange::Begin => "counting begins".to_owned(),
        CountChange::End => "counting ends".to_owned(),
        CountChange::None => "nothing is counted".to_owned(),
    }
}

pub(super) fn json(diff: &Diff<'_>, Locations { old, new, stores }: Locations<'_>) -> Value {
    let whole = |rule: &Rule, places: &RuleLocations| {
        let place = rule::place(places.of(&rule.path));
        json!({ "rule": rule.path, "place": place, "settings": rule::object(rule, stores) })
    };
    let changed = |change: &Change<'_>| {
        let settings = change
            .settings
            .iter()
            .map(|(name, before, after)| json!({ "name": name, "from": before, "to": after }));
        json!({
            "rule": change.path,
            "place": {
                "from": rule::place(old.of(change.path)),
                "to": rule::place(new.of(change.path)),
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
        "removed": diff.removed.iter().map(|rule| whole(rule, old)).collect::<Vec<_>>(),
        "added": diff.added.iter().map(|rule| whole(rule, new)).collect::<Vec<_>>(),
        "changed": diff.changed.iter().map(changed).collect::<Vec<_>>(),
        "reordered": diff.reordered.iter().map(reordered).collect::<Vec<_>>(),
        "same": diff.same,
    })
}

fn name(counts: CountChange) -> &'static str {
    match counts {
        CountChange::Kept | CountChange::KeptWithoutPools(_) => "kept",
        CountChange::Restart => "restart",
        CountChange::Begin => "begin",
        CountChange::End => "end",
        CountChange::None => "none",
    }
}
