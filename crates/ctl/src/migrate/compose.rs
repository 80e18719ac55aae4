//! Reads the environment of a service, and the directories that it mounts, from a docker-compose
//! file.

use std::path::{Path, PathBuf};

use ratelease_cli::migration::Environment;
use ratelease_cli::out::CliError;
use ratelease_cli::safe::Safe;
use ratelease_cli::source;
use ratelease_rules::yaml::{Yaml, YamlKind};

use super::deployment::{Candidate, Deployment, choose, expand};
use super::env_file;
use crate::yaml_documents::{self, field, items, text};

/// Reads a file.
///
/// # Errors
/// A file cannot be read, or it is not clear which service runs the reference.
pub(super) fn read(path: &Path, service: Option<&str>) -> Result<Deployment, CliError> {
    let file = source::read_file(path)?;
    let documents = yaml_documents::read(&file).map_err(|faults| CliError::new(Safe(faults)))?;
    let roots = documents.iter().map(|document| &document.root);
    let services = roots.filter_map(|root| field(root, "services"));
    let chosen = choose(services.flat_map(candidates).collect(), service, path)?;
    let service = chosen.container;
    let home = path.parent().unwrap_or(Path::new(""));
    let mut deployment = Deployment {
        origin: format!("{}, service {}", file.name, chosen.name),
        mounts: mounts(service, home),
        command: ["entrypoint", "command"]
            .iter()
            .flat_map(|part| words(service, part))
            .map(str::to_owned)
            .collect(),
        ..Deployment::default()
    };
    for path in env_files(service) {
        let path = home.join(path);
        if path.is_file() {
            deployment.environment.extend(env_file::parse(&source::read_file(&path)?)?);
        } else {
            let path = path.display();
            deployment.unread.push(format!("{path}: not there, so it was not reviewed; add it"));
        }
    }
    environment(field(service, "environment"), &mut deployment.environment);
    Ok(deployment)
}

/// All services.
fn candidates(services: &Yaml) -> Vec<Candidate<&Yaml>> {
    let YamlKind::Map(services) = &services.kind else { return Vec::new() };
    let candidate = |(name, service): &'_ (Yaml, Yaml)| {
        let parts = ["image", "command", "entrypoint"].map(|part| words(service, part).join(" "));
        (text(name).unwrap_or_default().to_owned(), parts.join(" "))
    };
    let each = services.iter().map(|pair| (candidate(pair), &pair.1));
    each.map(|((name, runs), container)| Candidate { name, runs, container }).collect()
}

/// The words of a field: a list, or a text with blanks between them.
fn words<'y>(service: &'y Yaml, part: &str) -> Vec<&'y str> {
    match field(service, part) {
        Some(Yaml { kind: YamlKind::Scalar(text), .. }) => text.split_whitespace().collect(),
        list => items(list).iter().filter_map(text).collect(),
    }
}

/// The names of env files: one, or a list of names or of maps with a `path`.
fn env_files(service: &Yaml) -> Vec<&str> {
    let Some(given) = field(service, "env_file") else { return Vec::new() };
    let of_item = |item| text(item).or_else(|| field(item, "path").and_then(text));
    match text(given) {
        Some(one) => vec![one],
        None => items(Some(given)).iter().filter_map(of_item).collect(),
    }
}

/// Adds the variables of `environment`: a map, or a list of `KEY=value`.
fn environment(given: Option<&Yaml>, to: &mut Environment) {
    match given.map(|it| &it.kind) {
        Some(YamlKind::Map(pairs)) => to.extend(pairs.iter().filter_map(|(name, value)| {
            // Without a value, it is taken from the process that runs compose.
            Some((text(name)?.to_owned(), text(value).and_then(interpolated)))
        })),
        Some(YamlKind::List(items)) => {
            let variable = |item: &str| match item.split_once('=') {
                Some((name, value)) => (name.to_owned(), interpolated(value)),
                None => (item.to_owned(), None),
            };
            to.extend(items.iter().filter_map(text).map(variable));
        }
        _ => {}
    }
}

/// The value with its `${NAME:-default}`; `None` if it depends on the process that runs compose.
fn interpolated(value: &str) -> Option<String> {
    let resolve = |reference: &str| {
        let (_, default) = reference.split_once(":-").or_else(|| reference.split_once('-'))?;
        Some(default.to_owned())
    };
    expand(value, ("{", '}'), resolve)
}

/// The directories of this machine that a service mounts: inside, here.
fn mounts(service: &Yaml, home: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mount = |volume: &Yaml| {
        let (here, inside) = match text(volume) {
            Some(short) => {
                let (here, rest) = short.split_once(':')?;
                (here, rest.split(':').next()?)
            }
            None => {
                let of = |name| field(volume, name).and_then(text);
                (of("source")?, of("target")?)
            }
        };
        // Other names are of volumes that compose keeps.
        here.starts_with(['.', '/']).then(|| (PathBuf::from(inside), home.join(here)))
    };
    items(field(service, "volumes")).iter().filter_map(mount).collect()
}
