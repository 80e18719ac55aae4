//! Settings for the source of the rules, and for a start without rules.

use std::path::{Path, PathBuf};

use clap::Args;
use ratelease_rules::{DomainStores, Dotfiles, Endings, Options, StoreNames};

use super::fault::{Expected, Fault, Faults};
use super::group::Flags;
use super::role::Role;
use super::table::{OptionalSetting, Setting, optional, settings, switch, text};

/// Default rules directory of `ratelease`, relative to its working directory.
const DIR_OF_RATELEASE: &str = "config/rules";
/// The reference's `RUNTIME_ROOT`.
const REFERENCE_ROOT: &str = "/srv/runtime_data/current";
/// The reference's `RUNTIME_APPDIRECTORY`.
const REFERENCE_APPDIRECTORY: &str = "config";

/// The rules directory and how it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesSource {
    /// The directory with the rule files, as given: it may be relative.
    pub dir: PathBuf,
    /// `RUNTIME_ROOT` if `RUNTIME_WATCH_ROOT` is true. The root and the directories between it and
    /// `dir` may be replaced at any time, or be symlinks that are swapped.
    pub watch_root: Option<PathBuf>,
    /// Whether files and directories whose name begins with a dot are read.
    pub dotfiles: Dotfiles,
    /// Which files are rule files.
    pub endings: Endings,
    /// How rules are compiled.
    pub options: Options,
    /// What the process needs to be healthy.
    pub healthy_with: HealthyWith,
    /// Start even if the rules cannot be read, and wait for them.
    pub force_start: bool,
    /// File in which the last good rules are kept, for a start at which no rules can be loaded.
    pub snapshot: Option<PathBuf>,
}

/// What a process needs to be healthy, beside that it does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthyWith {
    /// Nothing: as the reference where its start was forced.
    Nothing,
    /// That the first load has ended, well or not: as the reference, which opens no port before.
    FirstLoad,
    /// Rules in force, if only those of no domain: it decides requests.
    Rules,
    /// Rules of at least one domain.
    Domain,
}

/// The rules directory, and how its files are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesDir {
    /// The directory with the rule files, as given: it may be relative.
    pub dir: PathBuf,
    /// The `RUNTIME_ROOT` from which the directory was derived, if it was.
    pub root: Option<PathBuf>,
    /// Whether files and directories whose name begins with a dot are read.
    pub dotfiles: Dotfiles,
    /// Which files are rule files.
    pub endings: Endings,
    /// How rules are compiled.
    pub options: Options,
}

/// How rule files are read, independent of their location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Whether files and directories whose name begins with a dot are read.
    pub dotfiles: Dotfiles,
    /// Which files are rule files.
    pub endings: Endings,
    /// How rules are compiled.
    pub options: Options,
}

settings! {
    /// How rule files are read.
    pub group ReadingTable("Rules");

    /// Skip files and directories whose name begins with a dot, such as a ConfigMap's ..data
    RUNTIME_IGNOREDOTFILES: Setting<bool> = switch(true).reference_default("false");
    /// Let several files add rules to one domain
    MERGE_DOMAIN_CONFIG: Setting<bool> = switch(false).hidden_alias("merge-domain-configs");
    /// Names of the stores that rules may name besides default, separated by commas. Each has the
    /// settings of REDIS_PERSECOND_ under its own name: REDIS_STORE_PREMIUM_URL for premium
    /// [default: none]
    pub(crate) REDIS_STORES: OptionalSetting<StoreNames> = optional("NAMES", |names| {
        StoreNames::parse(names).map_err(|problem| {
            Expected::new(format!("names of stores, and {problem}")).example("premium,batch")
        })
    });
    /// Stores of domains whose rules name none, such as acme=premium,shop=batch [default: none]
    STORE_OF_DOMAIN: OptionalSetting<String> = text("LIST");
}

/// Flags that say how rule files are read.
pub type ReadingFlags = Flags<ReadingTable>;

settings! {
    /// The rules directory under the reference's names.
    pub(super) group RuntimeTable("Rules");

    /// The rules are in RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY [default:
    /// /srv/runtime_data/current, if one of the others is set]
    RUNTIME_ROOT: OptionalSetting<String> = text("DIR");
    /// Second part of the rules directory [default: none]
    RUNTIME_SUBDIRECTORY: OptionalSetting<String> = text("DIR");
    /// Last part of the rules directory [default: config]
    RUNTIME_APPDIRECTORY: OptionalSetting<String> = text("DIR");
}

/// Flags that say where the rules are, of every command that reads rules.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rules")]
pub struct RulesDirFlags {
    /// Directory with the rule files; takes precedence over the RUNTIME_ variables [default:
    /// config/rules, if none of those is set]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::AnyPath)]
    rules: Option<String>,
    #[command(flatten)]
    runtime: Flags<RuntimeTable>,
    #[command(flatten)]
    reading: ReadingFlags,
}

settings! {
    /// What `serve` does with the rules.
    pub(super) group RulesTable("Rules");

    /// Also watch whether RUNTIME_ROOT itself is replaced; the rules directory is always watched
    RUNTIME_WATCH_ROOT: Setting<bool> = switch(true);
    /// Report healthy only while rules of at least one domain are loaded. Otherwise rules without a
    /// domain will do, and as ratelimit any end of the first load
    HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED: Setting<bool> = switch(false);
    /// Start even if the rules directory cannot be read; as ratelimit, be healthy before the first
    /// load. No request is decided before there are rules
    FORCE_START_WITHOUT_INITIAL_CONFIG: Setting<bool> = switch(false);
    /// File that keeps the last good rules, for a start at which no rules can be loaded, and the
    /// number of pods, for a start without Redis [default: none]
    RULES_SNAPSHOT: OptionalSetting<String> = text("PATH");
}

#[derive(Debug, Args)]
pub(super) struct RulesFlags {
    #[command(flatten)]
    dir: RulesDirFlags,
    #[command(flatten)]
    serve: Flags<RulesTable>,
}

// === impl RulesFlags ===

impl RulesFlags {
    pub(super) fn resolve(&self, role: Role, faults: &mut Faults) -> Option<RulesSource> {
        let dir = self.dir.resolve(role, faults);
        let watch_root = self.serve.get(&RUNTIME_WATCH_ROOT, faults);
        let needs_domain = self.serve.get(&HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED, faults);
        let force_start = self.serve.get(&FORCE_START_WITHOUT_INITIAL_CONFIG, faults);
        let RulesDir { dir, root, dotfiles, endings, options } = dir?;
        Some(RulesSource {
            dir,
            watch_root: root.filter(|_| watch_root == Some(true)),
            dotfiles,
            endings,
            options,
            healthy_with: HealthyWith::of(role, needs_domain?, force_start?),
            force_start: force_start?,
            snapshot: self.serve.text(&RULES_SNAPSHOT).map(PathBuf::from),
        })
    }
}

// === impl HealthyWith ===

impl HealthyWith {
    fn of(role: Role, needs_domain: bool, is_forced: bool) -> Self {
        match role {
            _ if needs_domain => Self::Domain,
            Role::Ratelease => Self::Rules,
            Role::Ratelimit if is_forced => Self::Nothing,
            Role::Ratelimit => Self::FirstLoad,
        }
    }
}

// === impl ReadingFlags ===

impl ReadingFlags {
    /// Resolves the flags.
    pub fn resolve(&self, faults: &mut Faults) -> Option<Reading> {
        let skips = self.get(&RUNTIME_IGNOREDOTFILES, faults);
        let dotfiles = skips.map(|skips| if skips { Dotfiles::Skip } else { Dotfiles::Read });
        let merge_domains = self.get(&MERGE_DOMAIN_CONFIG, faults);
        let stores = self.optional(&REDIS_STORES, faults);
        let stores = stores.map(Option::unwrap_or_default);
        let domain_stores = stores.as_ref().and_then(|stores| self.domain_stores(stores, faults));
        let options = Options {
            merge_domains: merge_domains?,
            stores: stores?,
            domain_stores: domain_stores?,
        };
        Some(Reading { dotfiles: dotfiles?, endings: Endings::Yaml, options })
    }

    fn domain_stores(&self, stores: &StoreNames, faults: &mut Faults) -> Option<DomainStores> {
        let list = self.text(&STORE_OF_DOMAIN).unwrap_or_default();
        match DomainStores::parse(list, stores) {
            Ok(parsed) => Some(parsed),
            Err(problem) => {
                let fix = "write domain=store";
                faults.add(Fault::new("STORE_OF_DOMAIN", problem, fix).with_found(list));
                None
            }
        }
    }
}

// === impl RulesDir ===

impl RulesDir {
    /// Returns how the files are read.
    pub fn reading(&self) -> Reading {
        let Self { dotfiles, endings, options, .. } = self;
        Reading { dotfiles: *dotfiles, endings: *endings, options: options.clone() }
    }
}

// === impl RulesDirFlags ===

impl RulesDirFlags {
    /// Resolves the flags with the defaults of `role`.
    pub fn resolve(&self, role: Role, faults: &mut Faults) -> Option<RulesDir> {
        let Reading { dotfiles, options, .. } = self.reading.resolve(faults)?;
        let (dir, root) = self.directory(role);
        let endings = match role {
            Role::Ratelease => Endings::Yaml,
            Role::Ratelimit => Endings::Any,
        };
        Some(RulesDir { dir, root, dotfiles, endings, options })
    }

    /// Returns the directory, and the `RUNTIME_ROOT` from which it was derived.
    fn directory(&self, role: Role) -> (PathBuf, Option<PathBuf>) {
        if let Some(dir) = self.rules.as_deref().filter(|dir| !dir.is_empty()) {
            return (dir.into(), None);
        }
        let root = self.runtime.text(&RUNTIME_ROOT);
        let subdirectory = self.runtime.text(&RUNTIME_SUBDIRECTORY);
        let appdirectory = self.runtime.text(&RUNTIME_APPDIRECTORY);
        let is_runtime = root.is_some() || subdirectory.is_some() || appdirectory.is_some();
        if role == Role::Ratelease && !is_runtime {
            return (DIR_OF_RATELEASE.into(), None);
        }
        let root = PathBuf::from(root.unwrap_or(REFERENCE_ROOT));
        let dir = below(&root, subdirectory.unwrap_or_default());
        (below(&dir, appdirectory.unwrap_or(REFERENCE_APPDIRECTORY)), Some(root))
    }
}

/// Joins paths like Go's `filepath.Join`: a second part with a leading slash stays below the first.
fn below(dir: &Path, part: &str) -> PathBuf {
    let part = part.trim_start_matches('/');
    if part.is_empty() { dir.to_owned() } else { dir.join(part) }
}
