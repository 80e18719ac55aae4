//! `ratectl migrate`: reads the environment and the rule files of a deployment of the reference,
//! and says what ratelease makes of them.

mod deployment;
#[cfg(test)]
mod tests;
mod to_module;

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use ratelease_cli::migration::{Effect, EnvironmentReview, Origin, VariableReview, may_show};
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Style};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::RulesSource;
use ratelease_cli::{migration, safe};
use ratelease_engine::store::StoreSettings;
use ratelease_engine::store::redis::RedisKind;
use ratelease_rules as rules;
use ratelease_rules::{Dotfiles, Endings, Fault, Rules, Source};
use serde_json::{Value, json};

use crate::migrate::deployment::Deployment;

pub const NOTES: &str = "\
The environment is read from a file of KEY=value lines, from manifests of Kubernetes, from a
docker-compose file, or else from this process. Manifests may be several files; ConfigMaps in them
are followed, for variables and for rule files. Values of secrets are not needed and never shown.

Each variable is one of: same; differs (followed, with a difference); ignored; refused (ratelease
does not start with it); added (only ratelease has it); unknown. A default that differs is reported
for a variable that is not set. `!` marks what needs action.

ratelease is assumed to run under the name ratelimit, as its image does: its defaults are the
reference's then.

--to-module prints the bootstrap of an Envoy that asks a rate limit service, rewritten for the module
of ratelease (docs/module.md): the filters, the rate_limits of virtual hosts and routes, and the
cluster of the service. An access log that tells ratelease of ends leaves: the module sees each
request end. Standard error lists what Envoy did otherwise than the file says, and with `!`
what the module cannot do; it stays in the output, which Envoy refuses there. Comments and the order
of fields are lost. Envoy finds libratelease.so by ENVOY_DYNAMIC_MODULES_SEARCH_PATH, a directory;
the module's settings, such as RUNTIME_ROOT and REDIS_URL, belong in Envoy's environment.

Exit status: 0 nothing needs action, 1 something does, 2 something could not be read.

Examples:
  ratectl migrate --env-file ratelimit.env --rules config/
  ratectl migrate --kubernetes ratelimit.yaml --kubernetes rules-configmap.yaml
  ratectl migrate --compose docker-compose.yml --container ratelimit --print-env > ratelease.env
  ratectl migrate --to-module envoy.yaml > envoy-module.yaml";

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
    /// Bootstrap of an Envoy to rewrite for the module, and nothing else; - for standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all =
          ["env_file", "kubernetes", "compose", "container", "rules", "print_env", "json"])]
    to_module: Option<PathBuf>,
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
    /// Differences that concern the deployment as a whole.
    notes: Vec<Note>,
}

/// Reads the deployment, and reports the differences.
pub fn run(flags: &MigrateFlags, out: &mut Out) -> CliResult {
    if let Some(bootstrap) = &flags.to_module {
        return to_module::run(bootstrap, out);
    }
    let (deployment, origin) = deployment(flags)?;
    let environment = migration::review(&deployment.environment, origin);
    let rules = review(flags.rules.as_deref(), &deployment, &environment)?;
    let notes = notes(&deployment, &environment);
    let review = Review { deployment, environment, rules, notes };
    if flags.print_env {
        print_env(&review, out)?;
    } else if flags.out.json {
        out.json(&json(&review))?;
    } else {
        text(&review, out)?;
    }
    Ok(Completion::clean_if(review.actions() == 0))
}

fn deployment(flags: &MigrateFlags) -> Result<(Deployment, Origin), CliError> {
    let container = flags.container.as_deref();
    let described = if let Some(path) = &flags.env_file {
        deployment::of_env_file(path)?
    } else if !flags.kubernetes.is_empty() {
        deployment::of_kubernetes(&flags.kubernetes, container)?
    } else if let Some(path) = &flags.compose {
        deployment::of_compose(path, container)?
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

// === Rule files ===
//
// Compiles the rule files of a deployment, and finds files that ratelease does not load.

/// Maximum number of files of other names that are listed.
const OTHERS_MAX: usize = 100;

/// The result of reading the rules.
#[derive(Debug, Default)]
struct RulesReview {
    /// Where the files are, or why none were read.
    origin: String,
    files: usize,
    /// Number of rules, and of domains; `None` if they do not load, or were not read.
    loaded: Option<(usize, usize)>,
    faults: Vec<Fault>,
    /// Faults beyond those that are listed.
    more_faults: usize,
    warnings: Vec<Fault>,
    /// Behaviour that the reference has with these rules and ratelease does not have: a
    /// description, and the advice.
    differences: Vec<(String, String)>,
}

/// Reads and compiles the rules of `dir`. Without `dir`, reads the rules of the deployment.
///
/// # Errors
/// A file cannot be read.
fn review(
    dir: Option<&Path>,
    deployment: &Deployment,
    environment: &EnvironmentReview,
) -> Result<RulesReview, CliError> {
    let Some(settings) = &environment.settings else {
        return Ok(unread("the settings are too faulty to find the rules; fix them first", ""));
    };
    if settings.xds.is_some() && dir.is_none() {
        return Ok(unread("come from an xDS server (CONFIG_TYPE); docs/xds.md says how", ""));
    }
    let source = &settings.rules;
    if let Some(dir) = dir {
        return of_directory(dir, source);
    }
    let files: Vec<_> =
        deployment.files.iter().filter(|file| file.path.starts_with(&source.dir)).collect();
    if !files.is_empty() {
        let (yaml, others): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| is_rule_file(&file.path));
        let sources: Vec<_> = yaml.into_iter().map(|file| file.source.clone()).collect();
        let others = others.into_iter().map(|file| file.path.clone()).collect();
        return Ok(compile(
            format!("ConfigMaps at {}", source.dir.display()),
            &sources,
            others,
            source,
        ));
    }
    let here = deployment.here(&source.dir).unwrap_or_else(|| source.dir.clone());
    if here.is_dir() {
        return of_directory(&here, source);
    }
    let missing = format!("{} is not here, nor in the deployment's files", source.dir.display());
    Ok(unread(&missing, "name the directory with the rule files in --rules"))
}

fn unread(why: &str, action: &str) -> RulesReview {
    let mut review = RulesReview { origin: why.to_owned(), ..RulesReview::default() };
    if !action.is_empty() {
        review.differences.push(("the rules were not reviewed".to_owned(), action.to_owned()));
    }
    review
}

fn of_directory(dir: &Path, source: &RulesSource) -> Result<RulesReview, CliError> {
    let found = rules::read_path(dir, source.reading.dotfiles, Endings::Yaml)?;
    let others = if dir.is_dir() { others(dir, source.reading.dotfiles) } else { Vec::new() };
    Ok(compile(dir.display().to_string(), &found.sources, others, source))
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
    source: &RulesSource,
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
    match rules::load(sources, source.reading.options.clone()) {
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
    fn actions(&self) -> usize {
        let differences = self.differences.iter().filter(|(_, action)| !action.is_empty()).count();
        self.faults.len() + self.more_faults + differences
    }
}

// === Notes ===
//
// Differences for a deployment as a whole, beyond single variables and rules.

/// Maximum number of characters of a command that a note shows.
const SHOWN_MAX: usize = 200;

/// A difference, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct Note {
    /// The topic in a word or two.
    topic: &'static str,
    text: String,
    /// Empty if nothing has to be done.
    action: String,
}

/// Returns the differences, the most important first.
fn notes(deployment: &Deployment, environment: &EnvironmentReview) -> Vec<Note> {
    let note = |topic, text: &str| Note { topic, text: text.to_owned(), action: String::new() };
    let mut notes = Vec::new();
    let store = environment.settings.as_ref().map(|settings| &settings.store);
    if let Some(StoreSettings::Redis { main, per_second, .. }) = store {
        notes.push(note(
            "counts",
            "begin again: keys in Redis have other names. While both programs run, each admits the \
             whole limit",
        ));
        if main.kind == RedisKind::Cluster {
            notes.push(note(
                "cluster",
                "set cluster-require-full-coverage no on its nodes, else the loss of one shard \
                 makes every key fall back to its failure_mode",
            ));
        }
        if per_second.is_some() {
            notes.push(note(
                "per second",
                "limits with unit second stay in the Redis of REDIS_PERSECOND_URL, whose keys have \
                 other names too",
            ));
        }
    }
    if let (Some(replicas), Some(StoreSettings::Memory)) = (deployment.replicas, store) {
        notes.push(Note {
            topic: "replicas",
            text: format!("{replicas} pods without a Redis each admit the whole limit"),
            action: "set REDIS_URL, or run one pod".to_owned(),
        });
    }
    notes.extend(command(&deployment.command));
    notes.push(note(
        "Redis away",
        "a rule's failure_mode answers, by default each pod's part of the limit; the reference \
         answers with an error after Envoy's timeout",
    ));
    notes.push(note(
        "denials",
        "a request that one rule denies does not spend from its other rules",
    ));
    notes
}

/// Advises on a command, or arguments, that the image of ratelease does not have.
fn command(words: &[String]) -> Option<Note> {
    let (program, arguments) = words.split_first()?;
    let shown = |text: &str| safe::cut(&safe::line(text), SHOWN_MAX);
    let arguments = shown(&arguments.join(" "));
    let (topic, text, action) = match Path::new(program).file_name() {
        Some(name) if name == "ratelimit" && arguments.is_empty() => return None,
        Some(name) if name == "ratelimit" => (
            "arguments",
            format!(
                "the reference ignores {arguments}; ratelease ignores what is no flag of it, and \
                 logs a warning"
            ),
            "remove them",
        ),
        _ => (
            "command",
            format!(
                "{} {arguments}: the image of ratelease has no shell, and only the programs \
                 ratelimit and ratelease",
                shown(program)
            ),
            "start /bin/ratelimit without arguments",
        ),
    };
    Some(Note { topic, text, action: action.to_owned() })
}

// === Print env ===
//
// Prints the environment to use with ratelease.

/// Prints `KEY=value` lines, in the form of docker's `--env-file`. A variable that is left out is a
/// comment with the reason. A value that is a secret, or is not known, is a comment too.
fn print_env(review: &Review, out: &mut Out) -> Result<(), CliError> {
    let Review { deployment, environment, .. } = review;
    out.line(format_args!(
        "# For ratelease under the name ratelimit, from {}.",
        Safe(&deployment.origin)
    ))?;
    for variable in &environment.variables {
        let value = deployment.environment.get(&variable.name).and_then(Option::as_deref);
        if let Some(line) = line(variable, value) {
            out.line(Safe(line))?;
        }
    }
    for (name, text) in &environment.warnings {
        out.line(format_args!("# {name}: {}", Safe(text)))?;
    }
    Ok(())
}

/// The line of a variable; `None` for one that has nothing to do with either program.
fn line(variable: &VariableReview, value: Option<&str>) -> Option<String> {
    let VariableReview { name, effect, note, action } = variable;
    let left_out = |why: &str| Some(format!("# {name}: left out, {why}: {note}; {action}"));
    match effect {
        Effect::Same | Effect::Differs | Effect::Added => Some(match value {
            Some(value) if may_show(name, value) && !value.contains('\n') => {
                format!("{name}={value}")
            }
            _ => format!("# {name}: keep it as it is; its value is not shown here"),
        }),
        Effect::Ignored if action.is_empty() => Some(format!("# {name}: left out, {note}")),
        Effect::Ignored => left_out("ignored"),
        Effect::Refused => left_out("refused"),
        Effect::Default if !action.is_empty() => Some(format!("# {name}: {note}; {action}")),
        Effect::Default => None,
        Effect::Unknown => None,
    }
}

// === Report ===
//
// Reports a migration, as text and as JSON.

/// Prints a row for each finding, and a summary. Rows that need action are marked and contain the
/// advice.
fn text(review: &Review, out: &mut Out) -> Result<(), CliError> {
    let Review { deployment, environment, rules, notes } = review;
    let count = deployment.environment.len();
    heading(out, format_args!("environment: {}, {count} variables", deployment.origin))?;
    for VariableReview { name, effect, note, action } in &environment.variables {
        let what = if note.is_empty() { name.clone() } else { format!("{name}: {note}") };
        row(out, word(*effect), &what, action)?;
    }
    for (name, text) in &environment.warnings {
        let (what, action) = text.split_once("; ").unwrap_or((text, "see docs/operate.md"));
        row(out, "warning", &format!("{name}: {what}"), action)?;
    }
    for unread in &deployment.unread {
        let (what, action) = unread.split_once("; ").unwrap_or((unread, ""));
        row(out, "unread", what, action)?;
    }
    print_rules(rules, out)?;
    heading(out, "in general:")?;
    for Note { topic, text, action } in notes {
        row(out, "note", &format!("{topic}: {text}"), action)?;
    }
    row(out, "note", "docs/differences.md lists all differences and their reasons", "")?;
    let actions = review.actions();
    let painter = out.painter();
    let (style, end) = match actions {
        0 => (Style::Good, "nothing needs action".to_owned()),
        1 => (Style::Doubtful, "1 finding needs action".to_owned()),
        more => (Style::Doubtful, format!("{more} findings need action")),
    };
    out.line(painter.paint(style, end))
}

fn print_rules(rules: &RulesReview, out: &mut Out) -> Result<(), CliError> {
    let RulesReview { origin, files, loaded, faults, more_faults, warnings, differences } = rules;
    let what = match loaded {
        Some((rules, domains)) => format!(
            "{}, {} in {}",
            number(*files, "file"),
            number(*rules, "rule"),
            number(*domains, "domain")
        ),
        None if *files > 0 => format!("{}, which would not load", number(*files, "file")),
        None => "none read".to_owned(),
    };
    heading(out, format_args!("rules: {origin}: {what}"))?;
    for fault in faults {
        row(out, "fault", &fault.to_string(), "fix it; `ratelease check` shows the place")?;
    }
    if *more_faults > 0 {
        row(out, "fault", &format!("and {more_faults} more"), "")?;
    }
    for warning in warnings {
        row(out, "warning", &warning.to_string(), "")?;
    }
    for (what, action) in differences {
        row(out, "differs", what, action)?;
    }
    Ok(())
}

/// `1 rule`, `2 rules`.
fn number(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn heading(out: &mut Out, text: impl Display) -> Result<(), CliError> {
    let painter = out.painter();
    out.line(painter.paint(Style::Strong, Safe(text)))
}

/// Prints a finding; one with an action is marked, and followed by it.
fn row(out: &mut Out, word: &str, what: &str, action: &str) -> Result<(), CliError> {
    let painter = out.painter();
    if action.is_empty() {
        return out.line(format_args!("  {word:<8} {}", Safe(what)));
    }
    let mark = painter.paint(Style::Doubtful, format!("! {word:<8}"));
    out.line(format_args!("{mark} {}", Safe(what)))?;
    out.line(format_args!("             {}", Safe(action)))
}

/// The name of an effect, in the report and in JSON.
fn word(effect: Effect) -> &'static str {
    match effect {
        Effect::Same => "same",
        Effect::Differs => "differs",
        Effect::Ignored => "ignored",
        Effect::Refused => "refused",
        Effect::Added => "added",
        Effect::Unknown => "unknown",
        Effect::Default => "default",
    }
}

/// All findings.
fn json(review: &Review) -> Value {
    let Review { deployment, environment, rules, notes } = review;
    let variables = environment.variables.iter().map(|it| {
        let VariableReview { name, effect, note, action } = it;
        json!({"name": name, "effect": word(*effect), "note": note, "action": action})
    });
    let warnings = environment.warnings.iter();
    let warnings = warnings.map(|(name, text)| json!({"name": name, "text": text}));
    let notes = notes.iter().map(
        |Note { topic, text, action }| json!({"topic": topic, "text": text, "action": action}),
    );
    json!({
        "environment": deployment.origin,
        "variables": variables.collect::<Value>(),
        "warnings": warnings.collect::<Value>(),
        "unread": deployment.unread,
        "rules": rules_json(rules),
        "notes": notes.collect::<Value>(),
        "actions": review.actions(),
    })
}

fn rules_json(rules: &RulesReview) -> Value {
    let RulesReview { origin, files, loaded, faults, more_faults, warnings, differences } = rules;
    let finding = |fault: &Fault| {
        let Fault { file, line, column, message } = fault;
        json!({"file": file, "line": line, "column": column, "message": message})
    };
    let differences = differences.iter();
    json!({
        "from": origin,
        "files": files,
        "rules": loaded.map(|(rules, _)| rules),
        "domains": loaded.map(|(_, domains)| domains),
        "faults": faults.iter().map(finding).collect::<Value>(),
        "faults_not_listed": more_faults,
        "warnings": warnings.iter().map(finding).collect::<Value>(),
        "differences": differences
            .map(|(what, action)| json!({"what": what, "action": action}))
            .collect::<Value>(),
    })
}
