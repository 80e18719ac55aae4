//! A deployment of the reference, from whatever describes it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ratelease_cli::migration::Environment;
use ratelease_cli::out::CliError;
use ratelease_cli::safe::Safe;
use ratelease_cli::source;
use ratelease_rules::Source;
use ratelease_rules::yaml::{Yaml, YamlKind};

use crate::yaml_documents;
use crate::yaml_documents::{field, items, text};

/// The name of the reference's image and of its command.
const NAME: &str = "ratelimit";

/// A deployment, as described.
#[derive(Debug, Default)]
pub struct Deployment {
    /// The input that was read, for the heading of the report.
    pub origin: String,
    pub environment: Environment,
    /// Files that the container finds below a directory, such as the keys of a ConfigMap.
    pub files: Vec<MountedFile>,
    /// Directories of this machine that the container finds elsewhere: inside, here.
    mounts: Vec<(PathBuf, PathBuf)>,
    /// The program and its arguments, if they are stated.
    pub command: Vec<String>,
    /// Number of pods, if it is stated and not 1.
    pub replicas: Option<u32>,
    /// Inputs that could not be read, and so are not reviewed: one line each.
    pub unread: Vec<String>,
}

/// A file in the container.
#[derive(Debug, Clone)]
pub struct MountedFile {
    pub path: PathBuf,
    /// The text of the file, under a name that says where it is written.
    pub source: Source,
}

/// A container of a description, with the signs that it runs the reference.
#[derive(Debug)]
struct Candidate<T> {
    name: String,
    /// Image and command.
    runs: String,
    container: T,
}

/// Returns the container called `name`; without a name, the one that runs the reference, or the
/// only one.
///
/// # Errors
/// There is no such container, or more than one.
fn choose<T>(
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
    let file = Safe(file.display());
    let names = Safe(names.join(", "));
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
pub fn expand(
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
    pub fn of_process() -> Self {
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
    pub fn here(&self, path: &Path) -> Option<PathBuf> {
        self.mounts
            .iter()
            .find_map(|(inside, here)| Some(here.join(path.strip_prefix(inside).ok()?)))
    }
}

// === Compose ===
//
// Reads the environment of a service, and the directories that it mounts, from a docker-compose
// file.

/// Reads a file.
///
/// # Errors
/// A file cannot be read, or it is not clear which service runs the reference.
pub fn of_compose(path: &Path, service: Option<&str>) -> Result<Deployment, CliError> {
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
            deployment.environment.extend(parse(&source::read_file(&path)?)?);
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

// === Kubernetes ===
//
// Reads the environment of a container, and the rule files in ConfigMaps, from manifests of
// Kubernetes.

/// The objects of all files.
#[derive(Debug, Default)]
struct Manifests {
    config_maps: BTreeMap<String, ConfigMap>,
    /// Names of the keys of each Secret. Values are not read.
    secrets: BTreeMap<String, Vec<String>>,
    workloads: Vec<Workload>,
}

#[derive(Debug)]
struct ConfigMap {
    /// The file that it is in.
    file: String,
    data: BTreeMap<String, String>,
}

/// An object with pods.
#[derive(Debug)]
struct Workload {
    /// Kind and name, as `Deployment ratelimit`.
    name: String,
    replicas: Option<u32>,
    /// The `PodSpec` of the object.
    pod: Yaml,
}

/// Reads the files as one set of manifests.
///
/// # Errors
/// A file cannot be read, or it is not clear which container runs the reference.
pub fn of_kubernetes(paths: &[PathBuf], container: Option<&str>) -> Result<Deployment, CliError> {
    let mut manifests = Manifests::default();
    for path in paths {
        let source = source::read_file(path)?;
        let documents = yaml_documents::read(&source);
        for document in documents.map_err(|faults| CliError::new(Safe(faults)))? {
            manifests.add(&document.root, &source.name);
        }
    }
    let first = paths.first().map(PathBuf::as_path).unwrap_or(Path::new(""));
    let chosen = choose(manifests.candidates(), container, first)?;
    let (workload, container) = chosen.container;
    let mut deployment = Deployment {
        origin: format!("{}, container {} of {}", first.display(), chosen.name, workload.name),
        replicas: workload.replicas.filter(|replicas| *replicas != 1),
        command: ["command", "args"]
            .iter()
            .flat_map(|part| items(field(container, part)))
            .filter_map(|word| text(word).map(str::to_owned))
            .collect(),
        ..Deployment::default()
    };
    manifests.environment(container, &mut deployment);
    manifests.files(&workload.pod, container, &mut deployment);
    Ok(deployment)
}

fn candidate<'y>(
    workload: &'y Workload,
    container: &'y Yaml,
) -> Candidate<(&'y Workload, &'y Yaml)> {
    let image = text_of(container, "image").unwrap_or_default();
    let command = ["command", "args"].map(|part| joined(field(container, part)));
    Candidate {
        name: text_of(container, "name").unwrap_or_default().to_owned(),
        runs: format!("{image} {}", command.join(" ")),
        container: (workload, container),
    }
}

/// The text of a field of a map.
fn text_of<'y>(of: &'y Yaml, name: &str) -> Option<&'y str> {
    field(of, name).and_then(text)
}

/// The pairs of a map of texts; a value that is empty is the empty text.
fn pairs(of: Option<&Yaml>) -> Vec<(String, String)> {
    let Some(YamlKind::Map(pairs)) = of.map(|it| &it.kind) else { return Vec::new() };
    let pair = |(key, value): &(Yaml, Yaml)| {
        Some((text(key)?.to_owned(), text(value).unwrap_or_default().to_owned()))
    };
    pairs.iter().filter_map(pair).collect()
}

/// All texts of a list, as one.
fn joined(of: Option<&Yaml>) -> String {
    items(of).iter().filter_map(text).collect::<Vec<_>>().join(" ")
}

// === impl Manifests ===

impl Manifests {
    fn add(&mut self, object: &Yaml, file: &str) {
        let metadata = field(object, "metadata");
        let name = metadata.and_then(|it| text_of(it, "name")).unwrap_or_default().to_owned();
        match text_of(object, "kind").unwrap_or_default() {
            "List" => items(field(object, "items")).iter().for_each(|item| self.add(item, file)),
            "ConfigMap" => {
                let data = pairs(field(object, "data")).into_iter().collect();
                self.config_maps.insert(name, ConfigMap { file: file.to_owned(), data });
            }
            "Secret" => {
                let data = ["data", "string_data"].map(|part| pairs(field(object, part)));
                let keys = data.into_iter().flatten().map(|(key, _)| key);
                self.secrets.insert(name, keys.collect());
            }
            kind => self.workload(kind, &name, object),
        }
    }

    fn workload(&mut self, kind: &str, name: &str, object: &Yaml) {
        let Some(spec) = field(object, "spec") else { return };
        let template = field(spec, "template").and_then(|template| field(template, "spec"));
        let Some(pod) = template.or(Some(spec)).filter(|pod| field(pod, "containers").is_some())
        else {
            return;
        };
        let replicas = text_of(spec, "replicas").and_then(|replicas| replicas.parse().ok());
        self.workloads.push(Workload {
            name: format!("{kind} {name}"),
            replicas,
            pod: pod.clone(),
        });
    }

    /// All containers that may run the reference.
    fn candidates(&self) -> Vec<Candidate<(&Workload, &Yaml)>> {
        let mut candidates = Vec::new();
        for workload in &self.workloads {
            for list in ["init_containers", "containers"] {
                let containers = items(field(&workload.pod, list)).iter();
                candidates.extend(containers.map(|container| candidate(workload, container)));
            }
        }
        candidates
    }

    /// Adds the variables of a container. Variables of `env` replace variables of `envFrom`.
    fn environment(&self, container: &Yaml, deployment: &mut Deployment) {
        for from in items(field(container, "env_from")) {
            let prefix = text_of(from, "prefix").unwrap_or_default();
            let map = field(from, "config_map_ref").and_then(|it| text_of(it, "name"));
            let secret = field(from, "secret_ref").and_then(|it| text_of(it, "name"));
            match (map.map(|name| self.config_maps.get(name)), secret) {
                (Some(Some(map)), _) => {
                    let data = map.data.iter();
                    let data =
                        data.map(|(key, value)| (format!("{prefix}{key}"), Some(value.clone())));
                    deployment.environment.extend(data);
                }
                (Some(None), _) => deployment.unread.push(unread("ConfigMap", map)),
                (None, Some(name)) if self.secrets.contains_key(name) => {
                    let keys = self.secrets.get(name).into_iter().flatten();
                    deployment.environment.extend(keys.map(|key| (format!("{prefix}{key}"), None)));
                }
                (None, Some(_)) => deployment.unread.push(unread("Secret", secret)),
                (None, None) => {}
            }
        }
        for variable in items(field(container, "env")) {
            let Some(name) = text_of(variable, "name") else { continue };
            let value = self.value(variable, &deployment.environment);
            deployment.environment.insert(name.to_owned(), value);
        }
    }

    /// The value of a variable; `None` if it is not in the manifests.
    fn value(&self, variable: &Yaml, before: &Environment) -> Option<String> {
        let Some(from) = field(variable, "value_from") else {
            let written = text_of(variable, "value").unwrap_or_default();
            let resolve = |name: &str| match before.get(name) {
                // Kubernetes leaves a name that it does not know as it is written.
                None => Some(format!("$({name})")),
                Some(value) => value.clone(),
            };
            return expand(written, ("(", ')'), resolve);
        };
        let of_map = field(from, "config_map_key_ref")?;
        let map = self.config_maps.get(text_of(of_map, "name")?)?;
        map.data.get(text_of(of_map, "key")?).cloned()
    }

    /// Adds the files of ConfigMaps that are mounted into a container.
    fn files(&self, pod: &Yaml, container: &Yaml, deployment: &mut Deployment) {
        for mount in items(field(container, "volume_mounts")) {
            let (Some(name), Some(at)) = (text_of(mount, "name"), text_of(mount, "mount_path"))
            else {
                continue;
            };
            let mut volumes = items(field(pod, "volumes")).iter();
            let volume = volumes.find(|volume| text_of(volume, "name") == Some(name));
            let Some(config_map) = volume.and_then(|volume| field(volume, "config_map")) else {
                continue;
            };
            let map_name = text_of(config_map, "name").unwrap_or_default();
            let Some(map) = self.config_maps.get(map_name) else {
                deployment.unread.push(unread("ConfigMap", Some(map_name)));
                continue;
            };
            let sub_path = text_of(mount, "sub_path");
            let files = mounted(config_map, map).into_iter().filter_map(|(key, path)| {
                let path = match sub_path {
                    Some(sub_path) => (sub_path == path).then(|| PathBuf::from(at))?,
                    None => Path::new(at).join(path),
                };
                let name = format!("{}: ConfigMap {map_name}: {key}", map.file);
                let text = map.data.get(&key)?.clone().into_bytes();
                Some(MountedFile { path, source: Source { name, text } })
            });
            deployment.files.extend(files);
        }
    }
}

/// The keys of a mounted ConfigMap, each with its path: all keys, or the keys that `items` names.
fn mounted(volume: &Yaml, map: &ConfigMap) -> Vec<(String, String)> {
    let chosen = items(field(volume, "items")).iter();
    let chosen: Vec<_> = chosen
        .filter_map(|it| Some((text_of(it, "key")?.to_owned(), text_of(it, "path")?.to_owned())))
        .collect();
    if chosen.is_empty() {
        return map.data.keys().map(|key| (key.clone(), key.clone())).collect();
    }
    chosen
}

fn unread(kind: &str, name: Option<&str>) -> String {
    let name = name.unwrap_or_default();
    format!(
        "{kind} {name} is not in the manifests, so what it holds was not reviewed; add its file"
    )
}

// === Env file ===
//
// Reads environments of `KEY=value` lines, in the form of docker's `--env-file`; quotes around a
// value and `export` before a name are accepted too.

/// Maximum number of faults that are listed.
const FAULTS_MAX: usize = 20;

/// Reads a file.
///
/// # Errors
/// The file cannot be read, or has lines of another form, all of which are named.
pub fn of_env_file(path: &Path) -> Result<Deployment, CliError> {
    let source = source::read_file(path)?;
    let environment = parse(&source)?;
    Ok(Deployment { origin: source.name, environment, ..Deployment::default() })
}

/// Parses the lines of a file. A name without a value stands for one that the deployment takes from
/// elsewhere.
///
/// # Errors
/// All lines of another form.
pub fn parse(source: &Source) -> Result<Environment, CliError> {
    let text = String::from_utf8_lossy(&source.text);
    let text = text.trim_start_matches('\u{feff}');
    let mut environment = Environment::new();
    let mut faults = Vec::new();
    for (line, number) in text.lines().map(str::trim).zip(1_u32..) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name.trim_end(), Some(unquoted(value.trim_start()))),
            None => (line, None),
        };
        if is_name(name) {
            environment.insert(name.to_owned(), value.map(str::to_owned));
        } else {
            // The line's content may be a part of a key, so it is not shown.
            let expected = "expected KEY=value, with a KEY of letters, digits and _";
            faults.push(format!("{}:{number}: {expected}", Safe(&source.name)));
        }
    }
    if faults.is_empty() {
        return Ok(environment);
    }
    let more = faults.len().saturating_sub(FAULTS_MAX);
    faults.truncate(FAULTS_MAX);
    faults.extend((more > 0).then(|| format!("and {more} more")));
    Err(CliError::new(faults.join("\n")))
}

/// Whether a text may be the name of a variable.
fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The text between quotes, if it is between quotes.
fn unquoted(value: &str) -> &str {
    let within = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(value)
}
