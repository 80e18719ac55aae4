//! The command line as typed: subcommands and flags, with the environment behind them.
//!
//! clap would read the process's environment itself. Here the names that the flags declare are
//! taken off them and looked up through an argument, so that tests pass a map, a variable set to
//! nothing counts as unset, and no value of the environment (a password, say) shows in the help
//! text.

use std::ffi::OsString;
use std::path::Path;

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint};
use ratelease_engine::secret::Secret;

use super::SettingsError;
use super::answers::AnswerFlags;
use super::fault::{Fault, Faults};
use super::hot_keys::HotKeysFlags;
use super::leases::LeaseFlags;
use super::listeners::ListenerFlags;
use super::logging::LoggingFlags;
use super::metrics::MetricsFlags;
use super::rules::RulesFlags;
use super::store::{PerSecondFlags, StoreFlags};
use super::summary::{self, Told};
use super::tracing::TracingFlags;
use crate::cli::Tool;

/// What the help text calls a flag's value that is true or false.
pub(super) const BOOL: &str = "BOOL";

/// What completions offer for a flag that names a file.
pub(super) const FILE: ValueHint = ValueHint::FilePath;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "ratelease",
    version,
    about = "A rate limit sidecar for Envoy that answers from tokens leased from Redis",
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Its flags, for people to see.
    #[arg(skip)]
    pub summary: Vec<Told>,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer Envoy's rate limit requests until a signal comes
    #[command(after_help = EXAMPLES, next_line_help = true)]
    Serve(Box<ServeFlags>),
    /// Whatever does not serve.
    #[command(flatten)]
    Tool(Tool),
}

/// Flags of `serve`, unchecked, each with what the environment or its default said in its stead.
#[derive(Debug, Args)]
pub struct ServeFlags {
    #[command(flatten)]
    pub(super) listeners: ListenerFlags,
    #[command(flatten)]
    pub(super) rules: RulesFlags,
    #[command(flatten)]
    pub(super) store: StoreFlags,
    #[command(flatten)]
    pub(super) per_second: PerSecondFlags,
    #[command(flatten)]
    pub(super) answers: AnswerFlags,
    #[command(flatten)]
    pub(super) leases: LeaseFlags,
    #[command(flatten)]
    pub(super) hot_keys: HotKeysFlags,
    #[command(flatten)]
    pub(super) logging: LoggingFlags,
    #[command(flatten)]
    pub(super) tracing: TracingFlags,
    #[command(flatten)]
    pub(super) metrics: MetricsFlags,
}

/// The name the program was run under; it decides the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// As itself: loopback listeners, rules of `config/rules`.
    Ratelease,
    /// As `ratelimit`, in place of the reference: its defaults, and no subcommand needed.
    Ratelimit,
}

const EXAMPLES: &str = "\
A flag beats its environment variable; a variable set to nothing counts as unset.
Durations are Go's: 20ms, 1.5s, 1h30m. Booleans too: true, false, t, f, 1, 0.

Examples:
  Counts in this process's memory, rules of ./config/rules:
      ratelease serve
  Counts in a Redis Cluster, log lines as JSON:
      ratelease serve --redis-type cluster --redis-url redis-0:6379,redis-1:6379 --log-format json
  With the environment of envoyproxy/ratelimit:
      RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit REDIS_URL=redis:6379 ratelease serve";

/// Defaults that the reference has otherwise, by flag. The debug listener is on all interfaces
/// there; here only with a token, since anyone may ask it.
const REFERENCE_DEFAULTS: [(&str, &str); 4] = [
    ("grpc_host", "0.0.0.0"),
    ("runtime_watch_root", "true"),
    ("runtime_ignoredotfiles", "false"),
    ("log_level", "warn"),
];

// === impl Role ===

impl Role {
    /// From the program's name or path, as in the first argument of a process.
    pub fn of(program: &str) -> Self {
        match Path::new(program).file_name() {
            Some(name) if name == "ratelimit" => Self::Ratelimit,
            _ => Self::Ratelease,
        }
    }
}

// === impl Cli ===

impl Cli {
    /// Reads the arguments that follow the program's name, with `env` behind the flags.
    ///
    /// # Errors
    /// The help or version text, if it was asked for; else clap's own words on what it did not
    /// understand; else a fault for each secret that was given as a flag.
    pub fn read(
        role: Role,
        args: impl Iterator<Item = OsString>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let args = arguments(role, args);
        // Without the environment first: whatever clap has to say then, it says without its values.
        command(role, &|_| None).try_get_matches_from(&args)?;
        let grammar = command(role, env);
        let matches = grammar.clone().try_get_matches_from(&args)?;
        let faults = shown_in_ps(&grammar, &matches);
        if !faults.is_empty() {
            return Err(SettingsError::Faults(faults));
        }
        let bare = command(role, &|_| None).try_get_matches_from(args.iter().take(2));
        let summary = summary::of(&grammar, &matches, bare.ok().as_ref());
        Ok(Self { summary, ..Self::from_arg_matches(&matches)? })
    }
}

/// `args` behind a program's name, with the `serve` that goes without saying under `ratelimit`.
fn arguments(role: Role, args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = std::iter::once("ratelease".into()).chain(args).collect();
    let names_command = args.get(1).and_then(|first| first.to_str()).is_some_and(|first| {
        first == "help" || Cli::command().get_subcommands().any(|known| known.get_name() == first)
    });
    if role == Role::Ratelimit && !names_command {
        args.insert(1, "serve".into());
    }
    args
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

/// The command line's grammar as `ratelease` documents it: nothing of the environment is in it but
/// the names.
pub(crate) fn grammar() -> clap::Command {
    command(Role::Ratelease, &|_| None)
}

/// The command line's grammar with the defaults of `role` and what `env` puts in their place.
fn command(role: Role, env: &dyn Fn(&str) -> Option<String>) -> clap::Command {
    Cli::command().mut_subcommands(|subcommand| {
        subcommand.mut_args(|arg| with_environment(with_role(with_bool(arg), role, env), env))
    })
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
