//! `ratectl migrate`: reads the environment and the rule files of a deployment of the reference,
//! and says what ratelease makes of them.

mod compose;
mod deployment;
mod env_file;
mod kubernetes;
mod notes;
mod print_env;
mod report;
mod rule_files;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use ratelease_cli::migration::{self, EnvironmentReview, Origin};
use ratelease_cli::out::{CliResult, Completion, Out, OutFlags};

use deployment::Deployment;
use notes::Note;
use rule_files::RulesReview;

pub(super) const NOTES: &str = "\
The environment is read from a file of KEY=value lines, from manifests of Kubernetes, from a
docker-compose file, or else from this process. Manifests may be several files; ConfigMaps in them
are followed, for variables and for rule files. Values of secrets are not needed and never shown.

Each variable is one of: same; differs (followed, with a difference); ignored; refused (ratelease
does not start with it); added (only ratelease has it); unknown. A default that differs is reported
for a variable that is not set. `!` marks what needs action.

ratelease is assumed to run under the name ratelimit, as its image does: its defaults are the
reference's then.

Exit status: 0 nothing needs action, 1 something does, 2 something could not be read.

Examples:
  ratectl migrate --env-file ratelimit.env --rules config/
  ratectl migrate --kubernetes ratelimit.yaml --kubernetes rules-configmap.yaml
  ratectl migrate --compose docker-compose.yml --container ratelimit --print-env > ratelease.env";

/// Flags of `migrate`.
#[derive(Debug, Args)]
pub struct MigrateFlags {
    /// Environment as KEY=value lines; - for standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["kubernetes", "compose"])]
    env_file: Option<PathBuf>,
    /// Manifests of Kubernetes with the workload, its ConfigMaps and Secrets; - for standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "compose")]
    kubernetes: Vec<PathBuf>,
    /// A docker-compose file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    compose: Option<PathBuf>,
    /// Container, or service of compose, that runs the reference [default: the one whose image or
    /// command says ratelimit]
    #[arg(long, value_name = "NAME", visible_alias = "service",
          value_parser = NonEmptyStringValueParser::new())]
    container: Option<String>,
    /// Directory with the rule files [default: the one that the environment names, where it is
    /// here or in a ConfigMap of the manifests]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    rules: Option<PathBuf>,
    /// Print the environment to use with ratelease, as KEY=value lines, and nothing else
    #[arg(long, conflicts_with = "json")]
    print_env: bool,
    #[command(flatten)]
    out: OutFlags,
}

/// All that was found.
#[derive(Debug)]
struct Review {
    deployment: Deployment,
    environment: EnvironmentReview,
    rules: RulesReview,
    /// What differs for the deployment as a whole.
    notes: Vec<Note>,
}

/// Reads the deployment, and reports what differs.
pub(super) fn run(flags: &MigrateFlags, out: &mut Out) -> CliResult {
    let (deployment, origin) = deployment(flags)?;
    let environment = migration::review(&deployment.environment, origin);
    let rules = rule_files::review(flags.rules.as_deref(), &deployment, &environment)?;
    let notes = notes::notes(&deployment, &environment);
    let review = Review { deployment, environment, rules, notes };
    if flags.print_env {
        print_env::print(&review, out)?;
    } else if flags.out.json {
        out.json(&report::json(&review))?;
    } else {
        report::text(&review, out)?;
    }
    Ok(Completion::clean_if(review.actions() == 0))
}

fn deployment(flags: &MigrateFlags) -> Result<(Deployment, Origin), ratelease_cli::out::CliError> {
    let container = flags.container.as_deref();
    let described = if let Some(path) = &flags.env_file {
        env_file::read(path)?
    } else if !flags.kubernetes.is_empty() {
        kubernetes::read(&flags.kubernetes, container)?
    } else if let Some(path) = &flags.compose {
        compose::read(path, container)?
    } else {
        return Ok((Deployment::of_process(), Origin::Process));
    };
    Ok((described, Origin::Description))
}

// === impl Review ===

impl Review {
    /// Number of findings that need action.
    fn actions(&self) -> usize {
        let Self { deployment, environment, rules, notes } = self;
        let variables = environment.variables.iter().filter(|it| !it.action.is_empty()).count();
        let notes = notes.iter().filter(|note| !note.action.is_empty()).count();
        let unread = deployment.unread.len();
        variables + environment.warnings.len() + notes + unread + rules.actions()
    }
}
