//! `ratectl diff`: shows what new rules change, and which counts restart.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Style};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{Flags, Reading};
use ratelease_cli::source;
use ratelease_rules::{Allowance, Rule, RuleLocations, Rules, StoreNames};
use serde_json::{Value, json};

use crate::rule;

pub const NOTES: &str = "\
A count belongs to the domain, the entries as they were matched, the window and the algorithm. So
a limit may be raised and lowered and keeps its count: what was admitted before counts against the
new amount. Another window (unit, unit_multiplier) or algorithm starts a new one. A change of shards
keeps every count too: tokens in pools that are no longer used are taken back by the pods, or end
with their lease.

Exit status: 0 the same rules, 1 they differ, 2 one of the two is faulty or could not be read.

Examples:
  ratectl diff config/rules new/rules
  git show HEAD:config/rules/shop.yaml | ratectl diff - config/rules/shop.yaml";

/// Flags of `diff`.
#[derive(Debug, Args)]
pub struct DiffFlags {
    /// The rules in force: a file, a directory, or - for standard input
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The new rules, likewise
    #[arg(value_name = "NEW")]
    new: PathBuf,
    #[command(flatten)]
    out: OutFlags,
    #[command(flatten)]
    reading: Flags<Reading>,
}

/// The differences. Rules are identified by their paths, and listed in order of their paths.
#[derive(Debug, Default)]
struct Diff<'r> {
    removed: Vec<&'r Rule>,
    added: Vec<&'r Rule>,
    changed: Vec<Change<'r>>,
    same: usize,
    /// Levels whose patterns are tried in a different order: the new order of the patterns that
    /// both have.
    reordered: Vec<(String, Vec<String>)>,
}

/// A rule that is in both and differs.
#[derive(Debug)]
struct Change<'r> {
    path: &'r str,
    /// Each setting that differs: its name in rule files, its old and its new value. Null where it
    /// does not apply.
    settings: Vec<(&'static str, Value, Value)>,
    counts: CountChange,
}

/// Where the rules of both sides are written.
#[derive(Debug, Clone, Copy)]
struct Locations<'p> {
    old: &'p RuleLocations,
    new: &'p RuleLocations,
    /// The names of stores, which both sides share.
    stores: &'p StoreNames,
}

/// The effect of a change on the counts of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountChange {
    Kept,
    /// The counts are kept; this number of pools of each key is no longer used.
    KeptWithoutPools(u8),
    /// The counts restart from zero.
    Restart,
    /// Counting begins; the old rule counted nothing.
    Begin,
    /// Counting ends.
    End,
    /// Neither rule counts.
    None,
}

/// Loads both sets of rules and compares them.
pub fn run(flags: &DiffFlags, out: &mut Out) -> CliResult {
    let reading = flags.reading.read(Reading::read)?;
    if [&flags.old, &flags.new].into_iter().all(|path| source::is_stdin(path)) {
        return Err(CliError::new("OLD and NEW cannot both be standard input"));
    }
    let (old, old_places) =
        source::load_with_locations(std::slice::from_ref(&flags.old), &reading)?;
    let (new, new_places) =
        source::load_with_locations(std::slice::from_ref(&flags.new), &reading)?;
    let diff = compare(&old, &new);
    let places = Locations { old: &old_places, new: &new_places, stores: new.stores() };
    if flags.out.json {
        out.json(&json(&diff, places))?;
    } else {
        text(&diff, places, out)?;
    }
    Ok(Completion::clean_if(diff.is_empty()))
}

fn compare<'r>(old: &'r Rules, new: &'r Rules) -> Diff<'r> {
    let mut diff = Diff { reordered: reordered(old, new), ..Diff::default() };
    let by_path = |rule: &'r Arc<Rule>| (&*rule.path, &**rule);
    let mut before: BTreeMap<&str, &Rule> = old.iter().map(by_path).collect();
    for (path, rule) in new.iter().map(by_path) {
        match before.remove(path) {
            None => diff.added.push(rule),
            Some(earlier) if earlier == rule => diff.same += 1,
            Some(earlier) => diff.changed.push(Change::new(earlier, rule, new.stores())),
        }
    }
    diff.removed = before.into_values().collect();
    diff
}

/// If several patterns match a text, the first one applies, so their order is a setting too.
fn reordered(old: &Rules, new: &Rules) -> Vec<(String, Vec<String>)> {
    let before: BTreeMap<_, _> = old.patterns().into_iter().collect();
    let common = |of: &[String], with: &[String]| -> Vec<String> {
        let with: std::collections::HashSet<&String> = with.iter().collect();
        of.iter().filter(|pattern| with.contains(pattern)).cloned().collect()
    };
    let levels = new.patterns().into_iter().filter_map(|(level, now)| {
        let then = before.get(&level)?;
        let (then, now) = (common(then, &now), common(&now, then));
        (then != now).then_some((level, now))
    });
    levels.collect()
}

// === impl Diff ===

impl Diff<'_> {
    fn is_empty(&self) -> bool {
        self.removed.is_empty()
            && self.added.is_empty()
            && self.changed.is_empty()
            && self.reordered.is_empty()
    }
}

// === impl Change ===

impl<'r> Change<'r> {
    fn new(old: &'r Rule, new: &'r Rule, stores: &StoreNames) -> Self {
        let before = rule::settings(old, stores);
        let after = rule::settings(new, stores);
        let of = |settings: &[(&str, Value)], name: &str| {
            let found = settings.iter().find(|(other, _)| *other == name);
            found.map_or(Value::Null, |(_, value)| value.clone())
        };
        let gone = before.iter().filter(|(name, _)| after.iter().all(|(other, _)| other != name));
        let names = after.iter().chain(gone).map(|(name, _)| *name);
        let each = names.map(|name| (name, of(&before, name), of(&after, name)));
        let settings = each.filter(|(_, before, after)| before != after).collect();
        Self { path: &new.path, settings, counts: CountChange::of(old, new) }
    }
}

/// For each level of the rule, the text that stands for all its values in the name of a count;
/// `None` if each value has a count of its own.
fn shared(rule: &Rule) -> Vec<Option<&str>> {
    (0..rule.levels.len()).map(|level| rule.shared_at(level)).collect()
}

// === impl CountChange ===

impl CountChange {
    fn of(old: &Rule, new: &Rule) -> Self {
        let (before, after) = match (old.allowance, new.allowance) {
            (Allowance::Limited(before), Allowance::Limited(after)) => (before, after),
            (Allowance::Limited(_), Allowance::Unlimited) => return Self::End,
            (Allowance::Unlimited, Allowance::Limited(_)) => return Self::Begin,
            (Allowance::Unlimited, Allowance::Unlimited) => return Self::None,
        };
        // A key is made of the entries (for shared levels, their pattern) and the identity.
        let (shared_before, shared_after) = (shared(old), shared(new));
        let is_counted_elsewhere = before.store != after.store;
        if before.identity() != after.identity()
            || shared_before != shared_after
            || is_counted_elsewhere
        {
            return Self::Restart;
        }
        match old.pools().saturating_sub(new.pools()) {
            0 => Self::Kept,
            dropped => Self::KeptWithoutPools(dropped),
        }
    }

    /// Returns the number of pools of each key that are no longer used.
    fn pools_dropped(self) -> u8 {
        match self {
            Self::KeptWithoutPools(pools) => pools,
            _ => 0,
        }
    }
}

// === Report ===
//
// Reports a difference, as text and as JSON.

/// Prints removed, added and changed rules, and a summary.
fn text(diff: &Diff<'_>, places: Locations<'_>, out: &mut Out) -> Result<(), CliError> {
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
        let old = shown_place(old, path);
        let new = shown_place(new, path);
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
        Allowance::Limited(limit) => limit.words(),
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

fn json(diff: &Diff<'_>, Locations { old, new, stores }: Locations<'_>) -> Value {
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
