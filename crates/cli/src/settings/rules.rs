//! Settings for the source of the rules, and for a start without rules.

use std::path::{Path, PathBuf};

use clap::Args;

use super::fault::Faults;
use super::flag::{BOOL, Role};
use super::value;

/// Default rules directory of `ratelease`, relative to its working directory.
const RULES_DIR: &str = "config/rules";
/// The reference's `RUNTIME_ROOT`.
const RUNTIME_ROOT: &str = "/srv/runtime_data/current";
/// The reference's `RUNTIME_APPDIRECTORY`.
const RUNTIME_APPDIRECTORY: &str = "config";

/// The rules directory and how it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesSource {
    /// The directory with the rule files, as given: it may be relative.
    pub dir: PathBuf,
    /// `RUNTIME_ROOT` if `RUNTIME_WATCH_ROOT` is true. The root and the directories between it and
    /// `dir` may be replaced at any time, or be symlinks that are swapped.
    pub watch_root: Option<PathBuf>,
    /// Skip files and directories whose name begins with a dot.
    pub ignore_dotfiles: bool,
    /// Allow several files to add rules to one domain.
    pub merge_domains: bool,
    /// Report healthy only while rules of at least one domain are loaded.
    pub healthy_with_config: bool,
    /// Start even if the first load fails, and wait for rules.
    pub force_start: bool,
    /// File in which the last good rules are kept, for a start at which no rules can be loaded.
    pub snapshot: Option<PathBuf>,
}

/// The rules directory, and how its files are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesDir {
    /// The directory with the rule files, as given: it may be relative.
    pub dir: PathBuf,
    /// The `RUNTIME_ROOT` from which the directory was derived, if it was.
    pub root: Option<PathBuf>,
    /// Skip files and directories whose name begins with a dot.
    pub ignore_dotfiles: bool,
    /// Allow several files to add rules to one domain.
    pub merge_domains: bool,
}

/// How rule files are read, independent of their location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Skip files and directories whose name begins with a dot.
    pub ignore_dotfiles: bool,
    /// Allow several files to add rules to one domain.
    pub merge_domains: bool,
}

/// Flags that say how rule files are read.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rules")]
pub struct ReadingFlags {
    /// Leave out names that begin with a dot, such as a ConfigMap's ..data
    #[arg(long, env = "RUNTIME_IGNOREDOTFILES", value_name = BOOL, default_value = "true")]
    runtime_ignoredotfiles: String,
    /// Let several files add rules to one domain
    #[arg(
        long,
        alias = "merge-domain-configs",
        env = "MERGE_DOMAIN_CONFIG",
        value_name = BOOL,
        default_value = "false"
    )]
    merge_domain_config: String,
}

/// Flags that say where the rules lie: those of everything that reads rules.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rules")]
pub struct RulesDirFlags {
    /// Directory with the rule files; beats the RUNTIME_ names [default: config/rules, if none of
    /// those is set]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::AnyPath)]
    rules: Option<String>,
    /// Rules lie in RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY [default:
    /// /srv/runtime_data/current, if one of the others is set]
    #[arg(long, env = "RUNTIME_ROOT", value_name = "DIR")]
    runtime_root: Option<String>,
    /// Second part of the rules directory [default: none]
    #[arg(long, env = "RUNTIME_SUBDIRECTORY", value_name = "DIR")]
    runtime_subdirectory: Option<String>,
    /// Last part of the rules directory [default: config]
    #[arg(long, env = "RUNTIME_APPDIRECTORY", value_name = "DIR")]
    runtime_appdirectory: Option<String>,
    #[command(flatten)]
    reading: ReadingFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Rules")]
pub(super) struct RulesFlags {
    #[command(flatten)]
    dir: RulesDirFlags,
    /// Also watch for RUNTIME_ROOT itself to be replaced; files are watched either way
    #[arg(long, env = "RUNTIME_WATCH_ROOT", value_name = BOOL, default_value = "true")]
    runtime_watch_root: String,
    /// Healthy only while rules of at least one domain are loaded
    #[arg(
        long,
        env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        value_name = BOOL,
        default_value = "false"
    )]
    healthy_with_at_least_one_config_loaded: String,
    /// Start though the first load failed, and wait for rules
    #[arg(
        long,
        env = "FORCE_START_WITHOUT_INITIAL_CONFIG",
        value_name = BOOL,
        default_value = "false"
    )]
    force_start_without_initial_config: String,
    /// File to keep the last good rules in, for a start at which there are none to load, and the
    /// number of pods, for one without Redis [default: none]
    #[arg(long, env = "RULES_SNAPSHOT", value_name = "PATH")]
    rules_snapshot: Option<String>,
}

// === impl RulesFlags ===

impl RulesFlags {
    pub(super) fn resolve(&self, role: Role, faults: &mut Faults) -> Option<RulesSource> {
        let dir = self.dir.resolve(role, faults);
        let mut yes = |name, value: &str| faults.parse(name, value, value::boolean);
        let watch_root = yes("RUNTIME_WATCH_ROOT", &self.runtime_watch_root);
        let healthy_with_config = yes(
            "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
            &self.healthy_with_at_least_one_config_loaded,
        );
        let force_start =
            yes("FORCE_START_WITHOUT_INITIAL_CONFIG", &self.force_start_without_initial_config);
        let RulesDir { dir, root, ignore_dotfiles, merge_domains } = dir?;
        Some(RulesSource {
            dir,
            watch_root: root.filter(|_| watch_root == Some(true)),
            ignore_dotfiles,
            merge_domains,
            healthy_with_config: healthy_with_config?,
            force_start: force_start?,
            snapshot: given(&self.rules_snapshot).map(PathBuf::from),
        })
    }
}

// === impl ReadingFlags ===

impl ReadingFlags {
    /// Resolves the flags.
    pub fn resolve(&self, faults: &mut Faults) -> Option<Reading> {
        let mut yes = |name, value: &str| faults.parse(name, value, value::boolean);
        let ignore_dotfiles = yes("RUNTIME_IGNOREDOTFILES", &self.runtime_ignoredotfiles);
        let merge_domains = yes("MERGE_DOMAIN_CONFIG", &self.merge_domain_config);
        Some(Reading { ignore_dotfiles: ignore_dotfiles?, merge_domains: merge_domains? })
    }
}

// === impl RulesDir ===

impl RulesDir {
    /// Returns how the files are read.
    pub fn reading(&self) -> Reading {
        let Self { ignore_dotfiles, merge_domains, .. } = *self;
        Reading { ignore_dotfiles, merge_domains }
    }
}

// === impl RulesDirFlags ===

impl RulesDirFlags {
    /// Resolves the flags with the defaults of `role`.
    pub fn resolve(&self, role: Role, faults: &mut Faults) -> Option<RulesDir> {
        let Reading { ignore_dotfiles, merge_domains } = self.reading.resolve(faults)?;
        let (dir, root) = self.directory(role);
        Some(RulesDir { dir, root, ignore_dotfiles, merge_domains })
    }

    /// Returns the directory, and the `RUNTIME_ROOT` from which it was derived.
    fn directory(&self, role: Role) -> (PathBuf, Option<PathBuf>) {
        if let Some(dir) = given(&self.rules) {
            return (dir.into(), None);
        }
        let root = given(&self.runtime_root);
        let subdirectory = given(&self.runtime_subdirectory);
        let appdirectory = given(&self.runtime_appdirectory);
        let is_runtime = root.is_some() || subdirectory.is_some() || appdirectory.is_some();
        if role == Role::Ratelease && !is_runtime {
            return (RULES_DIR.into(), None);
        }
        let root = PathBuf::from(root.unwrap_or_else(|| RUNTIME_ROOT.into()));
        let dir = below(&root, &subdirectory.unwrap_or_default());
        (below(&dir, appdirectory.as_deref().unwrap_or(RUNTIME_APPDIRECTORY)), Some(root))
    }
}

/// Returns a value that is set and not empty: an empty value counts as unset.
fn given(value: &Option<String>) -> Option<String> {
    value.clone().filter(|value| !value.is_empty())
}

/// Joins paths like Go's `filepath.Join`: a second part with a leading slash stays below the first.
fn below(dir: &Path, part: &str) -> PathBuf {
    let part = part.trim_start_matches('/');
    if part.is_empty() { dir.to_owned() } else { dir.join(part) }
}
