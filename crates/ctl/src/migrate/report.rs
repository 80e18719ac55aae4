//! Reports a migration, as text and as JSON.

use std::fmt::Display;

use ratelease_cli::migration::{Effect, VariableReview};
use ratelease_cli::out::{CliError, Out, Style};
use ratelease_cli::safe::Safe;
use ratelease_rules::Fault;
use serde_json::{Value, json};

use super::Review;
use super::notes::Note;
use super::rule_files::RulesReview;

/// Prints a row for each finding, and a summary. Rows that need action are marked and say what to
/// do.
pub(super) fn text(review: &Review, out: &mut Out) -> Result<(), CliError> {
    let Review { deployment, environment, rules, notes } = review;
    let count = deployment.environment.len();
    heading(out, format_args!("environment: {}, {count} variables", deployment.origin))?;
    for VariableReview { name, effect, note, action } in &environment.variables {
        let what = if note.is_empty() { name.clone() } else { format!("{name}: {note}") };
        row(out, word(*effect), &what, action)?;
    }
    for (name, text) in &environment.warnings {
        let (what, action) = text.split_once("; ").unwrap_or((text, "see docs/operate.md"));
        row(out, "warning", &format!("{name}: {what}"), action)?;
    }
    for unread in &deployment.unread {
        let (what, action) = unread.split_once("; ").unwrap_or((unread, ""));
        row(out, "unread", what, action)?;
    }
    print_rules(rules, out)?;
    heading(out, "in general:")?;
    for Note { topic, text, action } in notes {
        row(out, "note", &format!("{topic}: {text}"), action)?;
    }
    row(out, "note", "docs/differences.md lists all differences and their reasons", "")?;
    let actions = review.actions();
    let painter = out.painter();
    let (style, end) = match actions {
        0 => (Style::Good, "nothing needs action".to_owned()),
        1 => (Style::Doubtful, "1 finding needs action".to_owned()),
        more => (Style::Doubtful, format!("{more} findings need action")),
    };
    out.line(painter.paint(style, end))
}

fn print_rules(rules: &RulesReview, out: &mut Out) -> Result<(), CliError> {
    let RulesReview { origin, files, loaded, faults, more_faults, warnings, differences } = rules;
    let what = match loaded {
        Some((rules, domains)) => format!(
            "{}, {} in {}",
            number(*files, "file"),
            number(*rules, "rule"),
            number(*domains, "domain")
        ),
        None if *files > 0 => format!("{}, which would not load", number(*files, "file")),
        None => "none read".to_owned(),
    };
    heading(out, format_args!("rules: {origin}: {what}"))?;
    for fault in faults {
        row(out, "fault", &fault.to_string(), "mend it; `ratelease check` shows the place")?;
    }
    if *more_faults > 0 {
        row(out, "fault", &format!("and {more_faults} more"), "")?;
    }
    for warning in warnings {
        row(out, "warning", &warning.to_string(), "")?;
    }
    for (what, action) in differences {
        row(out, "differs", what, action)?;
    }
    Ok(())
}

/// `1 rule`, `2 rules`.
fn number(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn heading(out: &mut Out, text: impl Display) -> Result<(), CliError> {
    let painter = out.painter();
    out.line(painter.paint(Style::Strong, Safe(text)))
}

/// Prints a finding; one with an action is marked, and followed by it.
fn row(out: &mut Out, word: &str, what: &str, action: &str) -> Result<(), CliError> {
    let painter = out.painter();
    if action.is_empty() {
        return out.line(format_args!("  {word:<8} {}", Safe(what)));
    }
    let mark = painter.paint(Style::Doubtful, format!("! {word:<8}"));
    out.line(format_args!("{mark} {}", Safe(what)))?;
    out.line(format_args!("             {}", Safe(action)))
}

/// The name of an effect, in the report and in JSON.
fn word(effect: Effect) -> &'static str {
    match effect {
        Effect::Same => "same",
        Effect::Differs => "differs",
        Effect::Ignored => "ignored",
        Effect::Refused => "refused",
        Effect::Added => "added",
        Effect::Unknown => "unknown",
        Effect::Default => "default",
    }
}

/// All findings.
pub(super) fn json(review: &Review) -> Value {
    let Review { deployment, environment, rules, notes } = review;
    let variables = environment.variables.iter().map(|it| {
        let VariableReview { name, effect, note, action } = it;
        json!({"name": name, "effect": word(*effect), "note": note, "action": action})
    });
    let warnings = environment.warnings.iter();
    let warnings = warnings.map(|(name, text)| json!({"name": name, "text": text}));
    let notes = notes.iter().map(
        |Note { topic, text, action }| json!({"topic": topic, "text": text, "action": action}),
    );
    json!({
        "environment": deployment.origin,
        "variables": variables.collect::<Value>(),
        "warnings": warnings.collect::<Value>(),
        "unread": deployment.unread,
        "rules": rules_json(rules),
        "notes": notes.collect::<Value>(),
        "actions": review.actions(),
    })
}

fn rules_json(rules: &RulesReview) -> Value {
    let RulesReview { origin, files, loaded, faults, more_faults, warnings, differences } = rules;
    let finding = |fault: &Fault| {
        let Fault { file, line, column, message } = fault;
        json!({"file": file, "line": line, "column": column, "message": message})
    };
    let differences = differences.iter();
    json!({
        "from": origin,
        "files": files,
        "rules": loaded.map(|(rules, _)| rules),
        "domains": loaded.map(|(_, domains)| domains),
        "faults": faults.iter().map(finding).collect::<Value>(),
        "faults_not_listed": more_faults,
        "warnings": warnings.iter().map(finding).collect::<Value>(),
        "differences": differences
            .map(|(what, action)| json!({"what": what, "action": action}))
            .collect::<Value>(),
    })
}
