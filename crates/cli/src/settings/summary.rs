//! A summary of the settings for display: by the names of their flags, without secrets.

use clap::parser::MatchesError;
use clap::{Arg, ArgMatches, Command};
use ratelease_engine::secret::Secret;

/// Shown instead of a secret.
const HIDDEN: &str = "***";

/// A setting with its value in force, given or default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// The flag's name, without dashes.
    pub name: String,
    /// Its value; empty if it has none, and `***` for a secret.
    pub value: String,
    /// Whether the value is the one that applies without flags and environment.
    pub is_default: bool,
}

/// Returns all flags of the subcommand of `matches` with their values. `command` is the grammar,
/// and `bare` the matches without flags and environment; `None` if it cannot be run
/// without any.
pub(crate) fn effective_settings(
    command: &Command,
    matches: &ArgMatches,
    bare: Option<&ArgMatches>,
) -> Vec<EffectiveSetting> {
    let Some((name, matches)) = matches.subcommand() else { return Vec::new() };
    let Some(command) = command.find_subcommand(name) else { return Vec::new() };
    let bare = bare.and_then(|bare| bare.subcommand_matches(name));
    let effective = |arg: &Arg| {
        let flag = arg.get_long()?;
        let value = text(matches, arg);
        let is_default = bare.is_some_and(|bare| value == text(bare, arg));
        let value = match value {
            Value::Secret(_) => HIDDEN.to_owned(),
            Value::Plain(text) => text,
            Value::None => String::new(),
        };
        Some(EffectiveSetting { name: flag.to_owned(), value, is_default })
    };
    command.get_arguments().filter_map(effective).collect()
}

/// What was given for one flag.
#[derive(PartialEq)]
enum Value {
    None,
    Plain(String),
    Secret(Secret),
}

/// Returns the value of a flag as text. The flag's type says whether it is a secret, so that no
/// list of secrets has to be kept.
fn text(matches: &ArgMatches, arg: &Arg) -> Value {
    let id = arg.get_id().as_str();
    match matches.try_get_one::<Secret>(id) {
        Ok(Some(secret)) if secret.is_empty() => return Value::None,
        Ok(Some(secret)) => return Value::Secret(secret.clone()),
        Ok(None) | Err(MatchesError::Downcast { .. }) => {}
        Err(_) => return Value::None,
    }
    let Ok(Some(values)) = matches.try_get_raw(id) else { return Value::None };
    let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
    match values.join(", ") {
        text if text.is_empty() => Value::None,
        text => Value::Plain(text),
    }
}
