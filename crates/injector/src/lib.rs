//! **The injector**: adds the sidecar to pods, in manifests (`inject`) or as a mutating webhook of
//! Kubernetes (`serve`).
//!
//! ```text
//! files ─▶ manifest ─┐
//!                    ├─▶ inject: pod + defaults ─▶ patch, faults, warnings
//! API server ─▶ review┘      │
//!                            └─ settings ─▶ environment, sidecar
//! ```
//!
//! `inject` is pure, so both ways give the same pod. The settings are checked with the parser that
//! the sidecar starts with (`ratelease-cli`). It never keeps a pod from starting: a pod whose
//! annotations are faulty starts without the sidecar, and says why in an annotation.
//!
//! Uses `ratelease-cli`, `ratelease-listener` and `ratelease-tls`, and nothing that decides
//! requests.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "all modules are private: `pub` is what another file uses")]

mod annotation;
mod certificate;
mod command;
mod environment;
mod fault;
mod inject;
mod manifest;
mod review;
mod server;
mod settings;
mod sidecar;
mod value;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use ratelease_cli::commands;
use ratelease_cli::out::{self, Out, eprint_line};
use ratelease_cli::settings::SettingsError;

pub use annotation::{Defaults, KEYS, PREFIX};
pub use inject::{Cluster, Injection, NativeSidecars, Verdict, inject};

use command::{Cli, Command};

/// Runs the command that `args` name; `args` begin with the program's name.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    match Cli::try_parse_from(args).map_err(SettingsError::from) {
        Ok(Cli { command: Command::Inject(flags) }) => {
            let mut out = Out::stdout();
            let result = command::run_files(&flags, &mut out);
            out::finish("ratelease-injector inject", out, result)
        }
        Ok(Cli { command: Command::Serve(flags) }) => {
            let result = command::run_server(&flags);
            out::finish("ratelease-injector serve", Out::stdout(), result)
        }
        Err(SettingsError::Help(text)) => commands::help("ratelease-injector", &text),
        Err(error) => {
            eprint_line(&error);
            ExitCode::from(error.exit_code())
        }
    }
}
