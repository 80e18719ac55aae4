//! Compiles the rule files of a deployment, and finds what ratelease does not load.

use std::fs;
use std::path::{Path, PathBuf};

use ratelease_cli::migration::EnvironmentReview;
use ratelease_cli::out::CliError;
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::RulesSource;
use ratelease_rules::{self as rules, Dotfiles, Endings, Fault, Rules, Source};

use super::deployment::Deployment;

/// Maximum number of files of other names that are listed.
const OTHERS_MAX: usize = 100;

/// What was found of the rules.
#[derive(Debug, Default)]
pub(super) struct RulesReview {
    /// Where the files are, or why none were read.
    pub(super) origin: String,
    pub(super) files: usize,
    /// Number of rules, and of domains; `None` if they do not load, or were not read.
    pub(super) loaded: Option<(usize, usize)>,
    pub(super) faults: Vec<Fault>,
    /// Faults beyond those that are listed.
    pub(super) more_faults: usize,
    pub(super) warnings: Vec<Fault>,
    /// What the reference does with these rules and ratelease does not: what, and what to do.
    pub(super) differences: Vec<(String, String)>,
}

/// Reads and compiles the rules: those of `dir`, or else those that the deployment has.
///
/// # Errors
/// A file cannot be read.
pub(super) fn review(
    dir: Option<&Path>,
    deployment: &Deployment,
    environment: &EnvironmentReview,
) -> Result<RulesReview, CliError> {
    let Some(settings) = &environment.settings else {
        return Ok(unread("the settings are too faulty to find the rules; mend them first", ""));
    };
    if settings.xds.is_some() && dir.is_none() {
        return Ok(unread("come from an xDS server (CONFIG_TYPE); docs/xds.md says how", ""));
    }
    let reading = &settings.rules;
    if let Some(dir) = dir {
        return of_directory(dir, reading);
    }
    let files: Vec<_> =
        deployment.files.iter().filter(|file| file.path.starts_with(&reading.dir)).collect();
    if !files.is_empty() {
        let (yaml, others): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| is_rule_file(&file.path));
        let sources: Vec<_> = yaml.into_iter().map(|file| file.source.clone()).collect();
        let others = others.into_iter().map(|file| file.path.clone()).collect();
        return Ok(compile(
            format!("ConfigMaps at {}", reading.dir.display()),
            &sources,
            others,
            reading,
        ));
    }
    let here = deployment.here(&reading.dir).unwrap_or_else(|| reading.dir.clone());
    if here.is_dir() {
        return of_directory(&here, reading);
    }
    let missing = format!("{} is not here, nor in the deployment's files", reading.dir.display());
    Ok(unread(&missing, "name the directory with the rule files in --rules"))
}

fn unread(why: &str, action: &str) -> RulesReview {
    let mut review = RulesReview { origin: why.to_owned(), ..RulesReview::default() };
    if !action.is_empty() {
        review.differences.push(("the rules were not reviewed".to_owned(), action.to_owned()));
    }
    review
}

fn of_directory(dir: &Path, reading: &RulesSource) -> Result<RulesReview, CliError> {
    let found = rules::read_path(dir, reading.dotfiles, Endings::Yaml)?;
    let others = if dir.is_dir() { others(dir, reading.dotfiles) } else { Vec::new() };
    Ok(compile(dir.display().to_string(), &found.sources, others, reading))
}

/// Files of a directory that the reference loads, and ratelease does not because of their names.
fn others(dir: &Path, dotfiles: Dotfiles) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_other = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_left_out =
            name.starts_with('.') && (dotfiles == Dotfiles::Skip || name.starts_with(".."));
        path.is_file() && !is_rule_file(path) && !is_left_out
    };
    let mut others: Vec<_> = entries.filter(is_other).take(OTHERS_MAX).collect();
    others.sort();
    others
}

fn is_rule_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn compile(
    origin: String,
    sources: &[Source],
    others: Vec<PathBuf>,
    reading: &RulesSource,
) -> RulesReview {
    let mut review = RulesReview { origin, files: sources.len(), ..RulesReview::default() };
    for other in others {
        let what = format!(
            "{}: the reference loads it, and so does ratelease as ratelimit; else only *.yaml and \
             *.yml",
            Safe(other.display())
        );
        review.differences.push((what, "if it has rules, rename it; else leave it".to_owned()));
    }
    if sources.is_empty() {
        let what = "there are no rule files, so nothing is limited".to_owned();
        review.differences.push((what, "name their directory in --rules".to_owned()));
        return review;
    }
    match rules::load(sources, reading.options.clone()) {
        Ok(loaded) => {
            review.loaded = Some((loaded.rules.len(), loaded.rules.domains().count()));
            review.warnings = loaded.warnings;
            review.differences.extend(kept_metadata(&loaded.rules));
        }
        Err(faults) => {
            review.faults = faults.iter().cloned().collect();
            review.more_faults = faults.count() - review.faults.len();
            review.warnings = faults.warnings().to_vec();
        }
    }
    review
}

/// Rules whose metadata the reference drops.
fn kept_metadata(rules: &Rules) -> impl Iterator<Item = (String, String)> {
    let drops = |rule: &&rules::Rule| {
        let is_in_stats =
            rule.flags.detailed_metric || rule.levels.iter().any(|level| level.value_to_metric);
        rule.metadata.is_some() && is_in_stats
    };
    let rules = rules.iter().map(|rule| &**rule).filter(drops);
    rules.map(|rule| {
        let path = Safe(&rule.path);
        (format!("{path}: its metadata is sent; the reference drops it"), String::new())
    })
}

// === impl RulesReview ===

impl RulesReview {
    /// Number of findings that need action.
    pub(super) fn actions(&self) -> usize {
        let differences = self.differences.iter().filter(|(_, action)| !action.is_empty()).count();
        self.faults.len() + self.more_faults + differences
    }
}
