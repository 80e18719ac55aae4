//! Parses the command line: subcommands and flags, whose defaults come from the environment.
//!
//! By itself clap would read the process's environment. Here the variable names that the flags
//! declare are removed from them and looked up through an argument. So tests can pass a map, an
//! empty variable counts as unset, and no value of the environment (a password, say) shows in the
//! help text. All servers and tools parse with it.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::parser::{MatchesError, ValueSource};
use clap::{Arg, ArgMatches, Command, Parser};
use ratelease_engine::secret::Secret;
use ratelease_rules::StoreNames;

use crate::settings::{
    EffectiveSetting, Fault, Faults, Role, SettingsError, reference_default, store_names,
    with_named_stores,
};

/// Shown instead of a secret.
const HIDDEN: &str = "***";

/// Parses `args`, which begin with the program's name; `env` supplies the values of flags that are
/// not given. Also returns all flags of the subcommand, for display.
///
/// # Errors
/// The help or version text, if it was asked for; else clap's message about arguments that it does
/// not understand; else a fault for each secret that was given as a flag.
pub fn read<P: Parser>(
    role: Role,
    args: &[OsString],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(P, Vec<EffectiveSetting>), SettingsError> {
    // First without the environment, so that no message of clap contains a value of it.
    let stores = store_names(args, env);
    command::<P>(role, &stores, &|_| None).try_get_matches_from(args)?;
    let grammar = command::<P>(role, &stores, env);
    let matches = grammar.clone().try_get_matches_from(args)?;
    let faults = shown(&matches, ValueSource::CommandLine, "a secret given as a flag shows in ps");
    if !faults.is_empty() {
        return Err(SettingsError::Faults(faults));
    }
    let bare = command::<P>(role, &stores, &|_| None).try_get_matches_from(args.iter().take(2));
    let summary = effective_settings(&grammar, &matches, bare.ok().as_ref());
    Ok((P::from_arg_matches(&matches)?, summary))
}

/// Returns all flags of the subcommand of `matches` with their values. `command` is the grammar,
/// and `bare` the matches without flags and environment; `None` if it cannot be run
/// without any.
fn effective_settings(
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

/// Splits the arguments of `subcommand` into those that its flags take, and the rest.
pub(crate) fn split_unknown<P: Parser>(
    subcommand: &str,
    role: Role,
    args: &[OsString],
    env: &dyn Fn(&str) -> Option<String>,
) -> (Vec<OsString>, Vec<OsString>) {
    let mut grammar = command::<P>(role, &store_names(args, env), &|_| None);
    grammar.build();
    let flags = grammar.find_subcommand(subcommand);
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    let mut rest = args.iter().cloned();
    while let Some(arg) = rest.next() {
        let Some(flag) = arg.to_str().and_then(|arg| flag_of(arg, flags?)) else {
            let ends_flags = arg == "--";
            unknown.push(arg);
            if ends_flags {
                unknown.extend(rest.by_ref());
            }
            continue;
        };
        let takes_next = !arg.to_string_lossy().contains('=')
            && flag.get_num_args().is_some_and(|range| range.min_values() > 0);
        known.push(arg);
        known.extend(takes_next.then(|| rest.next()).flatten());
    }
    (known, unknown)
}

/// The flag of `of` that `arg` gives.
fn flag_of<'g>(arg: &str, of: &'g Command) -> Option<&'g Arg> {
    let name = arg.split_once('=').map_or(arg, |(name, _)| name);
    of.get_arguments().find(|flag| {
        let long = flag.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long));
        let short = flag.get_short().map(|short| format!("-{short}"));
        long || short.is_some_and(|short| arg == short)
    })
}

/// Returns the grammar as documented: it contains the names of environment variables but no values.
pub fn documented<P: Parser>() -> Command {
    command::<P>(Role::Ratelease, &StoreNames::NONE, &|_| None)
}

/// Returns the grammar with the flags of these `stores` and the defaults of `role`, which the
/// values of `env` replace.
fn command<P: Parser>(
    role: Role,
    stores: &StoreNames,
    env: &dyn Fn(&str) -> Option<String>,
) -> Command {
    with_settings(P::command(), &|command| {
        with_named_stores(command, stores)
            .mut_args(|arg| with_environment(with_role(arg, role, env), env))
    })
}

/// Applies `complete` to a command and all its subcommands.
fn with_settings(command: Command, complete: &dyn Fn(Command) -> Command) -> Command {
    complete(command).mut_subcommands(|subcommand| with_settings(subcommand, complete))
}

/// Returns a fault for each secret of `args` among the variables that `given` returns, which others
/// can read; `problem` says where. `env` has all variables.
///
/// # Errors
/// clap's message about `args`.
pub(crate) fn shown_variables<P: Parser>(
    role: Role,
    args: &[OsString],
    given: &dyn Fn(&str) -> Option<String>,
    env: &dyn Fn(&str) -> Option<String>,
    problem: &str,
) -> Result<Faults, SettingsError> {
    let grammar = command::<P>(role, &store_names(args, env), given);
    Ok(shown(&grammar.try_get_matches_from(args)?, ValueSource::DefaultValue, problem))
}

/// Returns a fault for each secret from `source`, where others can read it; `problem` says so. The
/// type of a flag says whether it is a secret.
fn shown(matches: &ArgMatches, source: ValueSource, problem: &str) -> Faults {
    let mut faults = Faults::default();
    let mut innermost = matches;
    while let Some((_, matches)) = innermost.subcommand() {
        innermost = matches;
    }
    for id in innermost.ids() {
        let id = id.as_str();
        let given = innermost.value_source(id) == Some(source);
        let Ok(Some(secret)) = innermost.try_get_one::<Secret>(id) else { continue };
        if given && !secret.is_empty() && !may_show(id, secret.reveal()) {
            faults.add(shown_secret(id, problem));
        }
    }
    faults
}

/// Returns the fault of a secret where others can read it; `problem` says where that is.
pub(crate) fn shown_secret(name: &str, problem: &str) -> Fault {
    let fix = format!("set {name} in the environment, or name a file in {name}_FILE");
    Fault::new(name, problem, fix)
}

/// Returns whether the text of a secret may show: it is a URL without a password.
pub(crate) fn may_show(name: &str, text: &str) -> bool {
    let password = match name {
        "DATABASE_URL" => has_password(text),
        // A user without a password is faulty, and the text may be the password.
        _ => text.contains('@'),
    };
    name.ends_with("_URL") && !password
}

/// Returns whether a URL has a password: after the user, or as a parameter.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    user.contains(':') || query.split('&').any(|it| it.starts_with("password="))
}

/// Sets the defaults of `role`. The reference's debug listener is on all interfaces; here that
/// takes a token, because anyone could query it.
fn with_role(arg: Arg, role: Role, env: &dyn Fn(&str) -> Option<String>) -> Arg {
    if role != Role::Ratelimit {
        return arg;
    }
    let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    if arg.get_id() == "DEBUG_HOST" && (is_set("DEBUG_TOKEN") || is_set("DEBUG_TOKEN_FILE")) {
        return arg.default_value("0.0.0.0");
    }
    match reference_default(arg.get_id().as_str()) {
        Some(default) => arg.default_value(default),
        None => arg,
    }
}

/// Moves the environment variable's name from `arg` to its help text, and makes the variable's
/// value the default.
fn with_environment(arg: Arg, env: &dyn Fn(&str) -> Option<String>) -> Arg {
    let Some(name) = arg.get_env().and_then(|name| name.to_str()).map(str::to_owned) else {
        return arg;
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let arg = arg.env(Resettable::Reset).help(format!("{help} [env: {name}]"));
    match env(&name) {
        Some(value) if !value.is_empty() => arg.default_value(value),
        _ => arg,
    }
}
