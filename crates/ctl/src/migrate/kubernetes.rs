//! Reads the environment of a container, and the rule files in ConfigMaps, from manifests of
//! Kubernetes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ratelease_cli::migration::Environment;
use ratelease_cli::out::CliError;
use ratelease_cli::safe::Safe;
use ratelease_cli::source;
use ratelease_rules::Source;
use ratelease_rules::yaml::{Yaml, YamlKind};

use super::deployment::{Candidate, Deployment, MountedFile, choose, expand};
use crate::yaml_documents::{self, field, items, text};

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
    /// Its `PodSpec`.
    pod: Yaml,
}

/// Reads the files as one set of manifests.
///
/// # Errors
/// A file cannot be read, or it is not clear which container runs the reference.
pub(super) fn read(paths: &[PathBuf], container: Option<&str>) -> Result<Deployment, CliError> {
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

    /// Adds the variables of a container: those of `envFrom`, which those of `env` replace.
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
                // As Kubernetes does with names that it does not know.
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

/// The keys of a mounted ConfigMap, each with its path: all, or those of `items`.
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
