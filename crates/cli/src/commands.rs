//! The subcommands of `ratelease`, and the names of those that moved to `ratectl`.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::check::{self, CheckFlags};
use crate::grammar;
use crate::health::{self, HealthFlags};
use crate::out::{self, Out};
use crate::safe::Safe;
use crate::settings::{Faults, Flags, OTLP_SECRETS, Role, Settings, SettingsError};

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
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer Envoy's rate limit requests until a signal arrives
    #[command(after_help = EXAMPLES, next_line_help = true)]
    Serve(Box<Flags<Settings>>),
    /// Report every fault of rule files
    #[command(after_help = check::NOTES)]
    Check(Box<CheckFlags>),
    /// Check whether a pod is healthy, for container probes
    #[command(after_help = health::NOTES)]
    Health(Box<HealthFlags>),
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Task {
    /// Run the sidecar.
    Serve(Box<Settings>),
    /// Check rule files, with the defaults of the role.
    Check(Box<CheckFlags>, Role),
    /// Ask a pod whether it is healthy.
    Health(Box<HealthFlags>),
}

/// Subcommands that are now in `ratectl`.
const MOVED: [&str; 10] =
    ["completions", "diff", "explain", "man", "plan", "query", "replay", "status", "test", "top"];

/// Maximum number of ignored arguments, and of the bytes of each, that a warning shows.
const ARGUMENTS_SHOWN_MAX: usize = 16;
const ARGUMENT_BYTES_MAX: usize = 128;

const EXAMPLES: &str = "\
A flag takes precedence over its environment variable; an empty variable counts as unset.
Durations and booleans are Go's: 20ms, 1.5s, 1h30m; true, false, t, f, 1, 0.

Examples:
  Counts in this process's memory, rules of ./config/rules:
      ratelease serve
  Counts in a Redis Cluster, log lines as JSON:
      ratelease serve --redis-type cluster --redis-url redis-0:6379,redis-1:6379 --log-format json
  With the environment of envoyproxy/ratelimit:
      RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit REDIS_URL=redis:6379 ratelease serve";

// === impl Task ===

impl Task {
    /// Returns the task, given the name under which the program was run, the arguments after it,
    /// and `env`.
    ///
    /// # Errors
    /// See [`SettingsError`]; its [`exit_code`](SettingsError::exit_code) is the exit status of the
    /// process.
    pub fn parse(
        program: &str,
        args: impl Iterator<Item = OsString>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let role = Role::of(program);
        let (args, ignored) = arguments(role, args, env);
        if let Some(name) = moved(&args) {
            let text = format!("ratelease: {name} is a subcommand of ratectl: run ratectl {name}");
            return Err(SettingsError::Usage(text));
        }
        let read = grammar::read(role, &args, env);
        let (Cli { command }, summary) = read.map_err(|error| with_tip(error, role, &args, env))?;
        match command {
            Command::Serve(flags) => {
                let mut settings = Settings::read(role, flags.values(), env)?;
                settings.warnings.extend(ignored);
                Ok(Self::Serve(Box::new(Settings { summary, ..settings })))
            }
            Command::Check(flags) => Ok(Self::Check(flags, role)),
            Command::Health(flags) => Ok(Self::Health(flags)),
        }
    }
}

/// Returns a fault for each secret of `serve` among the variables that `given` returns, which others
/// can read; `problem` says where. `env` has all variables.
///
/// # Errors
/// As [`Task::parse`].
pub fn shown_secrets(
    given: &dyn Fn(&str) -> Option<String>,
    env: &dyn Fn(&str) -> Option<String>,
    problem: &str,
) -> Result<Faults, SettingsError> {
    let args = ["ratelease".into(), "serve".into()];
    let mut faults = grammar::shown_variables::<Cli>(Role::Ratelease, &args, given, env, problem)?;
    let of_collectors = OTLP_SECRETS.into_iter().filter(|name| given(name).is_some());
    of_collectors.for_each(|name| faults.add(grammar::shown_secret(name, problem)));
    Ok(faults)
}

/// Adds how to name the directory of the rules to the error of `serve` with a path.
fn with_tip(
    error: SettingsError,
    role: Role,
    args: &[OsString],
    env: &dyn Fn(&str) -> Option<String>,
) -> SettingsError {
    let (SettingsError::Usage(text), Some("serve")) =
        (&error, args.get(1).and_then(|it| it.to_str()))
    else {
        return error;
    };
    let (_, unknown) =
        grammar::split_unknown::<Cli>("serve", role, args.get(2..).unwrap_or_default(), env);
    let path = unknown.first().map(|arg| arg.to_string_lossy()).filter(|it| !it.starts_with('-'));
    let Some(path) = path else { return error };
    let text = text.trim_end();
    SettingsError::Usage(format!(
        "{text}\n\ntip: a directory of rules is named with --rules {path}, or by RUNTIME_ROOT\n"
    ))
}

/// Returns the subcommand that `args` name, or ask help on, if it is now in `ratectl`.
fn moved(args: &[OsString]) -> Option<&'static str> {
    let asked = args.iter().skip(1).find(|arg| *arg != "help")?;
    MOVED.into_iter().find(|name| asked == name)
}

/// Returns `args` after a program's name. The role `ratelimit` implies `serve`, which is inserted;
/// then arguments that are no flags of it are left out, as the reference has no flags and ignores
/// all arguments, and a warning names them.
fn arguments(
    role: Role,
    args: impl Iterator<Item = OsString>,
    env: &dyn Fn(&str) -> Option<String>,
) -> (Vec<OsString>, Option<String>) {
    let args: Vec<OsString> = args.collect();
    let names_command = args.first().and_then(|first| first.to_str()).is_some_and(|first| {
        first == "help" || Cli::command().get_subcommands().any(|known| known.get_name() == first)
    });
    let program = ["ratelease".into()];
    if role == Role::Ratelease || names_command {
        return (program.into_iter().chain(args).collect(), None);
    }
    let program = program.into_iter().chain(["serve".into()]);
    if args.is_empty() {
        return (program.collect(), None);
    }
    let (known, unknown) = grammar::split_unknown::<Cli>("serve", role, &args, env);
    let args = program.chain(known).collect();
    (args, (!unknown.is_empty()).then(|| ignored(&unknown)))
}

/// The warning of arguments that are ignored.
fn ignored(unknown: &[OsString]) -> String {
    let shown = unknown.iter().take(ARGUMENTS_SHOWN_MAX).map(|arg| {
        let arg = arg.to_string_lossy();
        format!("{:?}", &arg[..arg.floor_char_boundary(ARGUMENT_BYTES_MAX)])
    });
    let shown: Vec<_> = shown.collect();
    let more = match unknown.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "arguments: ignored {}{more}, which are no flags, because the program runs as ratelimit; \
         remove them",
        shown.join(" ")
    )
}

/// Prints the help or version text.
pub fn help(program: &str, text: &str) -> ExitCode {
    let mut out = Out::stdout();
    let result = out.line(text.trim_end()).map(|()| out::Completion::Clean);
    out::finish(&format!("{program} help"), out, result)
}

/// Checks rule files. Results go to standard output, errors to standard error.
pub fn check(flags: &CheckFlags, role: Role) -> ExitCode {
    let mut out = Out::stdout();
    let result = check::run(flags, role, &mut out);
    out::finish("ratelease check", out, result)
}

/// Asks a pod whether it is healthy; prints nothing if it is.
pub fn health(flags: HealthFlags) -> ExitCode {
    let mut out = Out::stdout();
    let result = health::run(flags, &mut out);
    out::finish("ratelease health", out, result)
}

/// The variable that names the files that a start waits for, separated by commas, such as those of
/// Secrets that are made after the pod: a native sidecar that ends keeps its whole pod from
/// starting, so an injected one waits for its files rather than end with a fault.
pub const WAIT_FOR_FILES: &str = "WAIT_FOR_FILES";

/// Returns the files that [`WAIT_FOR_FILES`] names and that do not exist, in order.
pub fn missing_files(env: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let given = env(WAIT_FOR_FILES).unwrap_or_default();
    let paths = given.split(',').map(str::trim).filter(|path| !path.is_empty());
    paths.filter(|path| !Path::new(path).exists()).map(str::to_owned).collect()
}

/// Returns the line that says what a start waits for.
pub fn waiting_notice(missing: &[String]) -> String {
    let paths = Safe(missing.join(", ")).to_string();
    format!("ratelease: waiting for {paths}; see that the Secrets exist and have these keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_serve_does_not_take_is_refused_with_the_flag_that_does() {
        let usage = |args: &[&str]| {
            let args = args.iter().map(OsString::from);
            Task::parse("ratelease", args, &|_| None).unwrap_err().to_string()
        };
        let tip =
            "tip: a directory of rules is named with --rules config/rules, or by RUNTIME_ROOT";
        for args in [&["serve", "config/rules"][..], &["serve", "--port", "1", "config/rules"]] {
            assert!(usage(args).contains(tip), "{args:?}: {}", usage(args));
        }
        for args in [&["serve", "--rulez", "config/rules"][..], &["health", "config/rules"]] {
            assert!(!usage(args).contains("RUNTIME_ROOT"), "{args:?}: {}", usage(args));
        }
    }

    #[test]
    fn files_are_missing_until_they_exist() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
        let named = format!("{}, {},", one.display(), other.display());
        let env = |name: &str| (name == WAIT_FOR_FILES).then(|| named.clone());
        assert_eq!(missing_files(&env).len(), 2);
        std::fs::write(&one, "").unwrap();
        let left = missing_files(&env);
        assert_eq!(left, [other.display().to_string()]);
        assert!(waiting_notice(&left).contains("other; see that the Secrets exist"));
        std::fs::write(&other, "").unwrap();
        assert!(missing_files(&env).is_empty() && missing_files(&|_| None).is_empty());
    }
}
