//! The annotations that configure the sidecar of a pod, and the defaults that an injector has for
//! them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::fault::Fault;

/// What the names of all annotations and labels begin with.
pub const PREFIX: &str = "ratelease.io/";
/// The annotation that an injector writes: [`INJECTED`], or why it did not inject.
pub const STATUS: &str = "ratelease.io/status";
/// The value of [`STATUS`] in a pod that has the sidecar.
pub const INJECTED: &str = "injected";
/// The label or annotation of a pod that turns the injection off by the value `false`.
pub const INJECT: &str = "ratelease.io/inject";
/// The label of a namespace whose pods are injected, and its value.
pub const NAMESPACE_LABEL: (&str, &str) = ("ratelease.io/injection", "enabled");

/// Maximum edits between a misspelt name and the one that is suggested.
const EDITS_MAX: usize = 3;

/// An annotation that configures the sidecar; the same name is that of a default.
#[derive(Debug)]
pub struct Key {
    /// Its name after [`PREFIX`].
    pub name: &'static str,
    /// The value without an annotation and without a default of the injector; may be empty.
    pub default: &'static str,
    /// What it sets.
    pub meaning: &'static str,
}

const fn key(name: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { name, default, meaning }
}

/// All of them. `docs/injection.md` lists the same.
pub const KEYS: [Key; 20] = [
    key("rules", "", "ConfigMap with the rule files, or xds:HOST:PORT"),
    key("domain", "", "Use only the file DOMAIN.yaml of that ConfigMap"),
    key("redis", "", "host:port, a list for a cluster, secret:NAME/KEY, or embedded"),
    key("redis-type", "cluster", "cluster, single or sentinel"),
    key("redis-auth", "", "Secret and key, NAME/KEY, of the password, or of user:password"),
    key("key-secret", "", "Secret and key, NAME/KEY, of the secret that keys are hashed with"),
    key("listen", "8081", "Port of gRPC on loopback, or uds for a Unix socket"),
    key("envoy-containers", "istio-proxy,envoy", "Containers that the socket is mounted into"),
    key("http-port", "6071", "Port of /json and of health on loopback"),
    key("metrics-port", "6072", "Port of /metrics on all interfaces"),
    key("image", concat!("ratelease:", env!("CARGO_PKG_VERSION")), "Image of the sidecar"),
    key("image-pull-policy", "IfNotPresent", "Always, IfNotPresent or Never"),
    key("cpu-request", "20m", "CPU that is reserved"),
    key("cpu-limit", "", "Limit of CPU"),
    key("memory-request", "32Mi", "Memory that is reserved"),
    key("memory-limit", "64Mi", "Limit of memory"),
    key("native-sidecar", "auto", "auto, true or false: as an init container that goes on running"),
    key("log-level", "warn", "error, warn, info, debug or trace"),
    key("env", "", "Further settings, a line NAME=value for each"),
    key("inject", "true", "false leaves the pod as it is; as a label, the webhook is not called"),
];

/// Values that an injector uses for pods without the annotation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults(BTreeMap<String, String>);

/// The annotations of one pod over the defaults.
#[derive(Debug)]
pub(crate) struct Lookup<'p> {
    /// By the name after the prefix.
    annotations: BTreeMap<&'p str, &'p str>,
    defaults: &'p Defaults,
}

// === impl Defaults ===

impl Defaults {
    /// Reads pairs `NAME=value`, where `NAME` is the name of a [`Key`].
    ///
    /// # Errors
    /// Each pair that is none, and each unknown or repeated name.
    pub fn read(pairs: &[String]) -> Result<Self, Vec<Fault>> {
        let (mut values, mut faults) = (BTreeMap::new(), Vec::new());
        for pair in pairs {
            let Some((name, value)) = pair.split_once('=') else {
                let problem = format!("expected NAME=value, found {pair:?}");
                faults.push(Fault::new("default", problem, "write, say, redis=redis:6379"));
                continue;
            };
            if let Err(fix) = known(name) {
                faults.push(Fault::new(format!("default {name}"), "unknown name", fix));
            } else if values.insert(name.to_owned(), value.to_owned()).is_some() {
                let place = format!("default {name}");
                faults.push(Fault::new(place, "given twice", "leave one of them out"));
            }
        }
        if faults.is_empty() { Ok(Self(values)) } else { Err(faults) }
    }
}

/// Whether a key of this name exists; if not, what to do about it.
fn known(name: &str) -> Result<(), String> {
    if KEYS.iter().any(|key| key.name == name) {
        return Ok(());
    }
    let near = KEYS.iter().map(|key| (strsim::levenshtein(key.name, name), key.name)).min();
    Err(match near {
        Some((edits, near)) if edits <= EDITS_MAX => format!("did you mean {near}?"),
        _ => "docs/injection.md lists the names".to_owned(),
    })
}

// === impl Lookup ===

impl<'p> Lookup<'p> {
    /// Reads the annotations of a pod. Adds a warning for each name that is unknown, and a fault
    /// for each value that is not text.
    pub(crate) fn new(
        pod: &'p Value,
        defaults: &'p Defaults,
        (faults, warnings): (&mut Vec<Fault>, &mut Vec<String>),
    ) -> Self {
        let mut annotations = BTreeMap::new();
        let all = pod.pointer("/metadata/annotations").and_then(Value::as_object);
        for (full, value) in all.into_iter().flatten() {
            let Some(name) = full.strip_prefix(PREFIX) else { continue };
            if full == STATUS {
                continue;
            }
            if let Err(fix) = known(name) {
                warnings.push(format!("{full}: unknown annotation, which is ignored; {fix}"));
            } else if let Some(text) = value.as_str() {
                annotations.insert(name, text);
            } else {
                let problem = format!("expected text, found {value}");
                faults.push(Fault::new(full, problem, "put the value in quotes"));
            }
        }
        Self { annotations, defaults }
    }

    /// The value of a key; an empty one counts as unset. Empty if there is no default either.
    pub(crate) fn get(&self, name: &str) -> &'p str {
        let given = self.annotations.get(name).copied().filter(|value| !value.is_empty());
        let own = KEYS.iter().find(|key| key.name == name).map_or("", |key| key.default);
        given.or_else(|| self.of_injector(name)).unwrap_or(own)
    }

    fn of_injector(&self, name: &str) -> Option<&'p str> {
        self.defaults.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Where the value of a key was given, for a fault.
    pub(crate) fn place(&self, name: &str) -> String {
        if self.annotations.get(name).is_none_or(|value| value.is_empty())
            && self.of_injector(name).is_some()
        {
            return format!("default {name}");
        }
        format!("{PREFIX}{name}")
    }

    /// Parses the value of a key, or adds a fault with what was expected. An empty value is
    /// `Some(None)`.
    pub(crate) fn parse<T>(
        &self,
        name: &str,
        faults: &mut Vec<Fault>,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Option<T>> {
        let text = self.get(name);
        if text.is_empty() {
            return Some(None);
        }
        match parse(text) {
            Ok(value) => Some(Some(value)),
            Err(expected) => {
                let problem = format!("{expected}, found {}", excerpt(text));
                let fix = format!("correct {}, or remove it", self.place(name));
                faults.push(Fault::new(self.place(name), problem, fix));
                None
            }
        }
    }
}

/// The beginning of a value, in quotes.
pub(crate) fn excerpt(text: &str) -> String {
    /// Maximum characters that are quoted.
    const SHOWN_MAX: usize = 60;
    let shown: String = text.chars().take(SHOWN_MAX).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{shown:?}{more}")
}
