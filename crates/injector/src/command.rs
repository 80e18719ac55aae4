//! The command line.

mod files;
mod serve;
#[cfg(test)]
mod tests;

use clap::{Args, Parser, Subcommand};
use ratelease_cli::out::CliError;

use crate::annotation::Defaults;
use crate::inject::{Cluster, NativeSidecars, check_defaults};

pub(crate) use files::run as run_files;
pub(crate) use serve::run as run_server;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "ratelease-injector",
    version,
    about = "Adds the ratelease sidecar to pods",
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The ways of injecting.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Add the sidecar to the pods and pod templates of manifests, and print them
    #[command(after_help = files::NOTES)]
    Inject(files::FilesFlags),
    /// Answer the API server, as a mutating webhook, until a signal arrives
    #[command(after_help = serve::NOTES)]
    Serve(Box<serve::ServeFlags>),
}

/// Flags of every way.
#[derive(Debug, Args)]
pub struct InjectFlags {
    /// Default of an annotation, by its name without ratelease.io/, such as redis=redis:6379
    #[arg(long = "default", value_name = "NAME=VALUE")]
    defaults: Vec<String>,
}

/// The first version of Kubernetes with native sidecars turned on.
const NATIVE_SIDECARS_SINCE: (u32, u32) = (1, 29);
/// The first version whose nodes all have them: they may be three minor versions older.
const ALL_NATIVE_SINCE: (u32, u32) = (1, 32);

// === impl InjectFlags ===

impl InjectFlags {
    /// The defaults.
    ///
    /// # Errors
    /// Names every default that is faulty.
    pub(crate) fn defaults(&self) -> Result<Defaults, CliError> {
        let (defaults, mut faults) = Defaults::read_all(&self.defaults);
        faults.extend(check_defaults(&defaults));
        if faults.is_empty() {
            return Ok(defaults);
        }
        let lines: Vec<_> = faults.iter().map(|fault| format!("--{fault}")).collect();
        Err(CliError::new(lines.join("\n")))
    }
}

/// What a cluster of this version can do, given as `1.31`, `v1.31.4` or `1.31+`.
pub(crate) fn cluster(version: &str) -> Result<Cluster, String> {
    let expected = || format!("expected a version such as 1.31, found {version:?}");
    let mut parts = version.trim_start_matches('v').split('.');
    let mut number = || {
        let part = parts.next()?;
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse::<u32>().ok()
    };
    let version = number().zip(number()).ok_or_else(expected)?;
    let native_sidecars = match version {
        version if version >= ALL_NATIVE_SINCE => NativeSidecars::OnAllNodes,
        version if version >= NATIVE_SIDECARS_SINCE => NativeSidecars::OnSomeNodes,
        _ => NativeSidecars::Absent,
    };
    Ok(Cluster { native_sidecars })
}
