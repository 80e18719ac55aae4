//! Parses the command line: subcommands and flags, whose defaults come from the environment.
//!
//! By itself clap would read the process's environment. Here the variable names that the flags
//! declare are removed from them and looked up through an argument. So tests can pass a map, an
//! empty variable counts as unset, and no value of the environment (a password, say) shows in the
//! help text.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Parser};
use ratelease_engine::secret::Secret;
use ratelease_rules::StoreNames;

use crate::settings::{
    EffectiveSetting, Fault, Faults, Role, SettingsError, effective_settings, reference_default,
    store_names, with_named_stores,
};

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
    let faults = shown_in_ps(&grammar, &matches);
    if !faults.is_empty() {
        return Err(SettingsError::Faults(faults));
    }
    let bare = command::<P>(role, &stores, &|_| None).try_get_matches_from(args.iter().take(2));
    let summary = effective_settings(&grammar, &matches, bare.ok().as_ref());
    Ok((P::from_arg_matches(&matches)?, summary))
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
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
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
fn flag_of<'g>(arg: &str, of: &'g clap::Command) -> Option<&'g Arg> {
    let name = arg.split_once('=').map_or(arg, |(name, _)| name);
    of.get_arguments().find(|flag| {
        let long = flag.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long));
        let short = flag.get_short().map(|short| format!("-{short}"));
        long || short.is_some_and(|short| arg == short)
    })
}

/// Returns the grammar as documented: it contains the names of environment variables but no values.
pub fn documented<P: Parser>() -> clap::Command {
    command::<P>(Role::Ratelease, &StoreNames::NONE, &|_| None)
}

/// Returns the grammar with the flags of these `stores` and the defaults of `role`, which the
/// values of `env` replace.
fn command<P: Parser>(
    role: Role,
    stores: &StoreNames,
    env: &dyn Fn(&str) -> Option<String>,
) -> clap::Command {
    P::command().mut_subcommands(|subcommand| {
        with_named_stores(subcommand, stores)
            .mut_args(|arg| with_environment(with_role(arg, role, env), env))
    })
}

/// Reports a fault for each secret on the command line, where every user of the machine can read
/// it. The type of a flag says whether it is a secret; a URL is a secret only if it contains a
/// user.
fn shown_in_ps(grammar: &clap::Command, matches: &ArgMatches) -> Faults {
    let mut faults = Faults::default();
    let Some((name, matches)) = matches.subcommand() else { return faults };
    let args = grammar.find_subcommand(name).into_iter().flat_map(clap::Command::get_arguments);
    for arg in args {
        let id = arg.get_id().as_str();
        let given = matches.value_source(id) == Some(ValueSource::CommandLine);
        let Ok(Some(secret)) = matches.try_get_one::<Secret>(id) else { continue };
        let may_show = id.ends_with("_URL") && !secret.reveal().contains('@');
        if given && !may_show {
            let problem = "a secret given as a flag shows in ps";
            let fix = format!("set {id} in the environment, or name a file in {id}_FILE");
            faults.add(Fault::new(id, problem, fix));
        }
    }
    faults
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
