//! A deployment of the reference, from whatever describes it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ratelease_cli::migration::Environment;
use ratelease_cli::out::CliError;
use ratelease_cli::safe::Safe;
use ratelease_rules::Source;

/// What the image or the command of the reference is called.
const NAME: &str = "ratelimit";

/// A deployment, as described.
#[derive(Debug, Default)]
pub(super) struct Deployment {
    /// What was read, for the heading of the report.
    pub(super) origin: String,
    pub(super) environment: Environment,
    /// Files that the container finds below a directory, such as those of a ConfigMap.
    pub(super) files: Vec<MountedFile>,
    /// Directories of this machine that the container finds elsewhere: inside, here.
    pub(super) mounts: Vec<(PathBuf, PathBuf)>,
    /// The program and its arguments, if they are stated.
    pub(super) command: Vec<String>,
    /// Number of pods, if it is stated and not 1.
    pub(super) replicas: Option<u32>,
    /// What could not be read, and so is not reviewed: one line each.
    pub(super) unread: Vec<String>,
}

/// A file in the container.
#[derive(Debug, Clone)]
pub(super) struct MountedFile {
    pub(super) path: PathBuf,
    /// Its text, under a name that says where it is written.
    pub(super) source: Source,
}

/// A container of a description, with what shows whether it runs the reference.
#[derive(Debug)]
pub(super) struct Candidate<T> {
    pub(super) name: String,
    /// Image and command.
    pub(super) runs: String,
    pub(super) container: T,
}

/// Returns the container called `name`; without a name, the one that runs the reference, or the
/// only one.
///
/// # Errors
/// There is no such container, or more than one.
pub(super) fn choose<T>(
    mut candidates: Vec<Candidate<T>>,
    name: Option<&str>,
    file: &Path,
) -> Result<Candidate<T>, CliError> {
    let names: Vec<_> = candidates.iter().map(|it| it.name.clone()).collect();
    let found: Vec<usize> = match name {
        Some(name) => positions(&candidates, |it| it.name == name),
        None if candidates.len() == 1 => vec![0],
        None => positions(&candidates, |it| it.runs.contains(NAME)),
    };
    if let [at] = *found {
        return Ok(candidates.swap_remove(at));
    }
    let (file, names) = (Safe(file.display()), Safe(names.join(", ")));
    Err(CliError::new(match (name, found.len()) {
        _ if candidates.is_empty() => format!("{file}: no container with an environment in it"),
        (Some(name), 0) => format!("{file}: no container {}; it has {names}", Safe(name)),
        (_, 0) => format!("{file}: no image or command says {NAME}; set --container to {names}"),
        _ => format!("{file}: several containers may run {NAME}; set --container to {names}"),
    }))
}

fn positions<T>(of: &[Candidate<T>], is: impl Fn(&Candidate<T>) -> bool) -> Vec<usize> {
    of.iter().enumerate().filter(|(_, it)| is(it)).map(|(at, _)| at).collect()
}

/// Replaces the references in `text`: each begins with `open` and ends with `close`, as in
/// `$(NAME)`, and `doubled` stands for the first character of `open` itself. `None` if a reference
/// cannot be resolved.
pub(super) fn expand(
    text: &str,
    (open, close): (&str, char),
    resolve: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        rest = if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            after
        } else if let Some(reference) = after.strip_prefix(open)
            && let Some((name, after)) = reference.split_once(close)
        {
            expanded.push_str(&resolve(name)?);
            after
        } else {
            expanded.push('$');
            after
        };
    }
    expanded.push_str(rest);
    Some(expanded)
}

// === impl Deployment ===

impl Deployment {
    /// The environment of this process.
    pub(super) fn of_process() -> Self {
        let variables = std::env::vars_os().map(|(name, value)| {
            (name.to_string_lossy().into_owned(), Some(value.to_string_lossy().into_owned()))
        });
        Self {
            origin: "the environment of this process".to_owned(),
            environment: variables.collect::<BTreeMap<_, _>>(),
            ..Self::default()
        }
    }

    /// The directory of this machine that the container finds at `path`.
    pub(super) fn here(&self, path: &Path) -> Option<PathBuf> {
        self.mounts
            .iter()
            .find_map(|(inside, here)| Some(here.join(path.strip_prefix(inside).ok()?)))
    }
}
