//! The command line as typed: subcommands and flags, with the environment behind them.
//!
//! clap would read the process's environment itself. Here the names that the flags declare are
//! taken off them and looked up through an argument, so that tests pass a map, a variable set to
//! nothing counts as unset, and no value of the environment (a password, say) shows in the help
//! text.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Parser};
use ratelease_engine::secret::Secret;

use crate::settings::flag::BOOL;
use crate::settings::{Fault, Faults, Role, SettingsError, Told, told};

/// Defaults that the reference has otherwise, by flag. The debug listener is on all interfaces
/// there; here only with a token, since anyone may ask it.
const REFERENCE_DEFAULTS: [(&str, &str); 4] = [
    ("grpc_host", "0.0.0.0"),
    ("runtime_watch_root", "true"),
    ("runtime_ignoredotfiles", "false"),
    ("log_level", "warn"),
];

/// Reads `args`, the program's name first, with `env` behind the flags; and tells all flags of the
/// subcommand, for people to see.
///
/// # Errors
/// The help or version text, if it was asked for; else clap's own words on what it did not
/// understand; else a fault for each secret that was given as a flag.
pub fn read<P: Parser>(
    role: Role,
    args: &[OsString],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(P, Vec<Told>), SettingsError> {
    // Without the environment first: whatever clap has to say then, it says without its values.
    command::<P>(role, &|_| None).try_get_matches_from(args)?;
    let grammar = command::<P>(role, env);
    let matches = grammar.clone().try_get_matches_from(args)?;
    let faults = shown_in_ps(&grammar, &matches);
    if !faults.is_empty() {
        return Err(SettingsError::Faults(faults));
    }
    let bare = command::<P>(role, &|_| None).try_get_matches_from(args.iter().take(2));
    let summary = told(&grammar, &matches, bare.ok().as_ref());
    Ok((P::from_arg_matches(&matches)?, summary))
}

/// The grammar as it is documented: nothing of the environment is in it but the names.
pub fn documented<P: Parser>() -> clap::Command {
    command::<P>(Role::Ratelease, &|_| None)
}

/// The grammar with the defaults of `role` and what `env` puts in their place.
fn command<P: Parser>(role: Role, env: &dyn Fn(&str) -> Option<String>) -> clap::Command {
    P::command().mut_subcommands(|subcommand| {
        subcommand.mut_args(|arg| with_environment(with_role(with_bool(arg), role, env), env))
    })
}

/// A fault for each secret on the command line, where every user of the machine can read it. The
/// type of a flag says whether it is a secret; a URL is none without a user.
fn shown_in_ps(grammar: &clap::Command, matches: &ArgMatches) -> Faults {
    let mut faults = Faults::default();
    let Some((name, matches)) = matches.subcommand() else { return faults };
    let args = grammar.find_subcommand(name).into_iter().flat_map(clap::Command::get_arguments);
    for arg in args {
        let id = arg.get_id().as_str();
        let given = matches.value_source(id) == Some(ValueSource::CommandLine);
        let Ok(Some(secret)) = matches.try_get_one::<Secret>(id) else { continue };
        let may_show = id.ends_with("_url") && !secret.reveal().contains('@');
        if given && !may_show {
            let name = id.to_ascii_uppercase();
            let problem = "a secret among the flags shows in ps";
            let mend = format!("set {name} in the environment, or name a file in {name}_FILE");
            faults.add(Fault::new(name, problem, mend));
        }
    }
    faults
}

/// A flag of true or false may stand alone, for true.
fn with_bool(arg: Arg) -> Arg {
    let is_bool = arg.get_value_names().is_some_and(|names| names.iter().any(|name| name == BOOL));
    if is_bool {
        arg.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        arg
    }
}

fn with_role(arg: Arg, role: Role, env: &dyn Fn(&str) -> Option<String>) -> Arg {
    if role != Role::Ratelimit {
        return arg;
    }
    let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    if arg.get_id() == "debug_host" && (is_set("DEBUG_TOKEN") || is_set("DEBUG_TOKEN_FILE")) {
        return arg.default_value("0.0.0.0");
    }
    match REFERENCE_DEFAULTS.iter().find(|(id, _)| arg.get_id() == id) {
        Some((_, default)) => arg.default_value(*default),
        None => arg,
    }
}

/// Takes the environment's name off `arg`, says it in the help, and what it holds becomes the
/// default.
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
