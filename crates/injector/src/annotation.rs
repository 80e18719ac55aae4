//! The annotations that configure the sidecar of a pod, and the defaults that an injector has for
//! them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::fault::{Fault, cut, excerpt};

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

/// Maximum bytes of the value of an annotation that is read.
const VALUE_MAX: usize = 16 << 10;
/// Maximum number of warnings about unknown names.
const UNKNOWN_MAX: usize = 10;

/// Maximum edits between a misspelt name and the one that is suggested.
const EDITS_MAX: usize = 3;

/// An annotation that configures the sidecar or the module; the same name is that of a default.
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
pub const KEYS: [Key; 24] = [
    key("mode", "sidecar", "sidecar, or module: the engine inside Envoy"),
    key("rules", "", "ConfigMap with the rule files, or xds:HOST:PORT"),
    key("xds-tls", "", "Secret with tls.crt, tls.key and ca.crt, for TLS to the xDS server"),
    key("domain", "", "Use only the file DOMAIN.yaml of that ConfigMap"),
    key("redis", "", "host:port, a list for a cluster, secret:NAME/KEY, or embedded"),
    key("redis-type", "cluster", "cluster, single or sentinel"),
    key("redis-auth", "", "Secret and key, NAME/KEY, of the password, or of user:password"),
    key("key-secret", "", "Secret and key, NAME/KEY, of the secret that keys are hashed with"),
    key("key-secret-previous", "", "The same of the secret that key-secret replaces, or none"),
    key("listen", "8081", "Port of gRPC on loopback, or uds for a Unix socket"),
    key("envoy-containers", "istio-proxy,envoy", "Containers that the socket is mounted into"),
    key("http-port", "6071", "Port of /json and of health on loopback"),
    key("metrics-port", "6072", "Port of /metrics on all interfaces"),
    key("image", concat!("ratelease:", env!("CARGO_PKG_VERSION")), "Image of the sidecar"),
    key(
        "module-image",
        concat!("ratelease-module:", env!("CARGO_PKG_VERSION")),
        "Image with the library, for the mode module",
    ),
    key("image-pull-policy", "IfNotPresent", "Always, IfNotPresent or Never"),
    key("cpu-request", "20m", "CPU that is reserved"),
    key("cpu-limit", "auto", "Limit of CPU; none; or auto: one if all other containers have one"),
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

/// The annotations of one pod over the defaults. They are copied, which [`VALUE_MAX`] bounds, so
/// that the pod can be changed meanwhile.
#[derive(Debug)]
pub struct Lookup<'d> {
    /// By the name after the prefix.
    annotations: BTreeMap<&'static str, String>,
    defaults: &'d Defaults,
}

// === impl Defaults ===

impl Defaults {
    /// Reads pairs `NAME=value`, where `NAME` is the name of a `Key`.
    ///
    /// # Errors
    /// Each pair that is none, and each unknown or repeated name.
    pub fn read(pairs: &[String]) -> Result<Self, Vec<Fault>> {
        let (read, faults) = Self::read_all(pairs);
        if faults.is_empty() { Ok(read) } else { Err(faults) }
    }

    /// The same, with the pairs that are good beside the faults of the others.
    pub fn read_all(pairs: &[String]) -> (Self, Vec<Fault>) {
        let mut values = BTreeMap::new();
        let mut faults = Vec::new();
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
        let read = Self(values);
        faults.extend(read.secrets());
        (read, faults)
    }

    /// A fault for each default that holds a secret: defaults are in the command line of the
    /// injector, and in all pods.
    fn secrets(&self) -> Vec<Fault> {
        let of = |name: &str| self.0.get(name).map_or("", String::as_str);
        let mut faults = Vec::new();
        if of("redis").contains('@') {
            let problem = "holds a user or a password, which all who may read a pod can read";
            let fix = "write secret:NAME/KEY, the key of a Secret";
            faults.push(Fault::new("default redis", problem, fix));
        }
        let names = of("env").lines().filter_map(|line| line.split_once('='));
        for (name, value) in names.map(|(name, value)| (name.trim(), value)) {
            let Some(fix) = secret_fix(name).filter(|_| !value.is_empty()) else { continue };
            let problem = format!("{name} is a secret, which all who may read a pod can read");
            faults.push(Fault::new("default env", problem, fix));
        }
        faults
    }
}

/// How to give a secret otherwise; `None` for a variable that is none.
fn secret_fix(name: &str) -> Option<&'static str> {
    match name {
        "REDIS_URL" => Some("set the default redis to secret:NAME/KEY"),
        "REDIS_AUTH" => Some("set the default redis-auth to NAME/KEY of a Secret"),
        "KEY_SECRET" => Some("set the default key-secret to NAME/KEY of a Secret"),
        "KEY_SECRET_PREVIOUS" => {
            Some("set the default key-secret-previous to NAME/KEY of a Secret")
        }
        "DEBUG_TOKEN" | "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" => Some("remove it"),
        _ => {
            let is_of_redis = name.starts_with("REDIS_")
                && ["_AUTH", "_URL"].iter().any(|suffix| name.ends_with(suffix));
            let is_of_telemetry = name.starts_with("OTEL_") && name.ends_with("_HEADERS");
            (is_of_redis || is_of_telemetry).then_some("remove it")
        }
    }
}

/// The name of the key with this name; if there is none, what to do about it.
fn known(name: &str) -> Result<&'static str, String> {
    if let Some(key) = KEYS.iter().find(|key| key.name == name) {
        return Ok(key.name);
    }
    let lengths = KEYS.iter().map(|key| key.name.len());
    let longest = lengths.max().unwrap_or_default() + EDITS_MAX;
    // The time that a comparison takes grows with the length of the name.
    let near = (name.len() <= longest)
        .then(|| KEYS.iter().map(|key| (strsim::levenshtein(key.name, name), key.name)).min());
    Err(match near.flatten() {
        Some((edits, near)) if edits <= EDITS_MAX => format!("did you mean {near}?"),
        _ => "docs/injection.md lists the names".to_owned(),
    })
}

// === impl Lookup ===

impl<'d> Lookup<'d> {
    /// Reads the annotations of a pod. Adds a warning for each of the first names that are unknown,
    /// and a fault for each value that is not text, or too long.
    pub fn new(
        pod: &Value,
        defaults: &'d Defaults,
        (faults, warnings): (&mut Vec<Fault>, &mut Vec<String>),
    ) -> Self {
        let mut annotations = BTreeMap::new();
        let all = pod.pointer("/metadata/annotations").and_then(Value::as_object);
        let mut unknown = 0;
        for (full, value) in all.into_iter().flatten() {
            let Some(name) = full.strip_prefix(PREFIX).filter(|_| full != STATUS) else { continue };
            match known(name) {
                Ok(name) => match text(value) {
                    Ok(text) => drop(annotations.insert(name, text.to_owned())),
                    Err((problem, fix)) => faults.push(Fault::new(full, problem, fix)),
                },
                Err(_) if unknown == UNKNOWN_MAX => {}
                Err(fix) => {
                    unknown += 1;
                    let full = cut(full);
                    warnings.push(format!("{full}: unknown annotation, which is ignored; {fix}"));
                }
            }
        }
        Self { annotations, defaults }
    }

    /// The value of a key; an empty one counts as unset. Empty if there is no default either.
    pub fn get(&self, name: &str) -> &str {
        let given = self.annotations.get(name).map(String::as_str);
        let given = given.filter(|value| !value.is_empty());
        let own = KEYS.iter().find(|key| key.name == name).map_or("", |key| key.default);
        given.or_else(|| self.of_injector(name)).unwrap_or(own)
    }

    fn of_injector(&self, name: &str) -> Option<&'d str> {
        self.defaults.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Where the value of a key was given, for a fault.
    pub fn place(&self, name: &str) -> String {
        if self.annotations.get(name).is_none_or(|value| value.is_empty())
            && self.of_injector(name).is_some()
        {
            return format!("default {name}");
        }
        format!("{PREFIX}{name}")
    }

    /// Parses the value of a key, or adds a fault with what was expected. An empty value is
    /// `Some(None)`.
    pub fn parse<T>(
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

/// The text of an annotation; if it is not to be read, the problem and how to fix it.
fn text(value: &Value) -> Result<&str, (String, &'static str)> {
    let Some(text) = value.as_str() else {
        return Err((
            format!("expected text, found {}", cut(&value.to_string())),
            "put the value in quotes",
        ));
    };
    if text.len() > VALUE_MAX {
        let problem = format!("has {} bytes, more than {VALUE_MAX}", text.len());
        return Err((problem, "make it shorter"));
    }
    Ok(text)
}
