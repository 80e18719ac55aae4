//! The variables of the sidecar, checked by the parser that it starts with: what it would refuse is
//! a fault of the pod's annotations, found before the pod exists.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsString;

use ratelease_cli::commands::{Task, WAIT_FOR_FILES};
use ratelease_cli::settings::{SettingsError, is_read_sometimes};

use crate::annotation::Lookup;
use crate::fault::Fault;
use crate::settings::{Listen, Mode, Previous, Redis, RedisUrl, RuleSource, Settings};
use crate::value::SecretKey;

/// Where the ConfigMap with the rules is mounted.
pub const RULES: &str = "/etc/ratelease/rules";
/// Where the secrets are mounted.
pub const SECRETS: &str = "/etc/ratelease/secrets";
/// Where the socket's volume is mounted, in Envoy's container too.
pub const SOCKETS: &str = "/run/ratelease";
/// The files for TLS to the xDS server, as in [`SecretFiles`].
const XDS_FILES: [(&str, &str, &str); 3] = [
    ("ca.crt", "xds-ca.crt", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
    ("tls.crt", "xds-tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
    ("tls.key", "xds-tls.key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
];

/// Whether the sidecar uses TLS to the xDS server.
pub const XDS_TLS: &str = "CONFIG_GRPC_XDS_SERVER_USE_TLS";

/// The socket of gRPC: the name that the recipes for Envoy have.
pub const SOCKET: &str = "/run/ratelease/rls.sock";

/// The id that a pod gives an xDS server.
const NODE_ID: &str = "CONFIG_GRPC_XDS_NODE_ID";

/// The port of the debug listener without a `DEBUG_PORT`.
const DEBUG_PORT: u16 = 6070;

/// Variables that an annotation of their own sets.
const MANAGED: [(&str, &str); 23] = [
    ("HOST", "http-port"),
    ("PORT", "http-port"),
    ("GRPC_HOST", "listen"),
    ("GRPC_PORT", "listen"),
    ("GRPC_UDS", "listen"),
    ("USE_PROMETHEUS", "metrics-port"),
    ("PROMETHEUS_ADDR", "metrics-port"),
    ("REDIS_URL", "redis"),
    ("REDIS_URL_FILE", "redis"),
    (WAIT_FOR_FILES, "redis"),
    ("REDIS_TYPE", "redis-type"),
    ("REDIS_AUTH", "redis-auth"),
    ("REDIS_AUTH_FILE", "redis-auth"),
    ("KEY_SECRET", "key-secret"),
    ("KEY_SECRET_FILE", "key-secret"),
    ("KEY_SECRET_PREVIOUS", "key-secret-previous"),
    ("KEY_SECRET_PREVIOUS_FILE", "key-secret-previous"),
    ("LOG_LEVEL", "log-level"),
    ("RUNTIME_ROOT", "rules"),
    ("RUNTIME_SUBDIRECTORY", "rules"),
    ("RUNTIME_APPDIRECTORY", "rules"),
    ("CONFIG_TYPE", "rules"),
    ("CONFIG_GRPC_XDS_SERVER_URL", "rules"),
];

/// What a setting needs of a Secret.
pub struct SecretFiles<'s> {
    pub secret: &'s str,
    /// The key in it, the file in [`SECRETS`], and the variable that names the file.
    pub files: Vec<(&'s str, &'static str, &'static str)>,
}

/// The files of secrets, of each setting apart.
pub fn secret_files(settings: &Settings) -> Vec<SecretFiles<'_>> {
    let mut of_keys = Vec::new();
    if let Redis::Servers { url, auth, .. } = &settings.redis {
        if let RedisUrl::Secret(url) = url {
            of_keys.push((url, "redis-url", "REDIS_URL_FILE"));
        }
        of_keys.extend(auth.iter().map(|auth| (auth, "redis-auth", "REDIS_AUTH_FILE")));
    }
    of_keys.extend(settings.key_secret.iter().map(|key| (key, "key-secret", "KEY_SECRET_FILE")));
    if let Some(Previous::Secret(key)) = &settings.previous {
        of_keys.push((key, "key-secret-previous", "KEY_SECRET_PREVIOUS_FILE"));
    }
    let of_keys = of_keys.into_iter().map(|(SecretKey { secret, key }, file, variable)| {
        SecretFiles { secret, files: vec![(key, file, variable)] }
    });
    let of_xds = settings.xds_tls.iter();
    let of_xds = of_xds.map(|secret| SecretFiles { secret, files: XDS_FILES.to_vec() });
    of_keys.chain(of_xds).collect()
}

/// The arguments of the program.
pub fn arguments(settings: &Settings) -> Vec<String> {
    match settings.rules {
        RuleSource::ConfigMap { .. } => vec!["serve".into(), "--rules".into(), RULES.into()],
        RuleSource::Xds(_) => vec!["serve".into()],
    }
}

/// The variables, in order, each once.
pub fn variables(settings: &Settings) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut set = |name: &str, value: String| all.push((name.to_owned(), value));
    set("LOG_LEVEL", settings.log_level.clone());
    match settings.mode {
        Mode::Sidecar => addresses(settings, &mut set),
        // Envoy's command has no flags for it.
        Mode::Module if matches!(settings.rules, RuleSource::ConfigMap { .. }) => {
            set("RUNTIME_ROOT", RULES.to_owned());
            set("RUNTIME_APPDIRECTORY", ".".to_owned());
        }
        Mode::Module => {}
    }
    set("USE_PROMETHEUS", "true".to_owned());
    set("PROMETHEUS_ADDR", format!(":{}", settings.metrics_port));
    // A faulty rule must not keep a pod from starting.
    set("FORCE_START_WITHOUT_INITIAL_CONFIG", "true".to_owned());
    if let RuleSource::Xds(server) = &settings.rules {
        set("CONFIG_TYPE", "GRPC_XDS_SOTW".to_owned());
        set("CONFIG_GRPC_XDS_SERVER_URL", server.clone());
    }
    if settings.xds_tls.is_some() {
        set(XDS_TLS, "true".to_owned());
    }
    if let Redis::Servers { url, kind, .. } = &settings.redis {
        if let RedisUrl::Plain(url) = url {
            set("REDIS_URL", url.clone());
        }
        set("REDIS_TYPE", kind.clone());
    }
    if settings.previous == Some(Previous::None) {
        set("KEY_SECRET_PREVIOUS", "none".to_owned());
    }
    let mut paths = Vec::new();
    for (_, file, name) in secret_files(settings).into_iter().flat_map(|it| it.files) {
        let path = format!("{SECRETS}/{file}");
        set(name, path.clone());
        paths.push(path);
    }
    // Without them, the sidecar would end, and a native one keep the pod from starting.
    if settings.mode == Mode::Sidecar && !paths.is_empty() {
        set(WAIT_FOR_FILES, paths.join(","));
    }
    let given: HashSet<_> = settings.env.iter().map(|(name, _)| name).collect();
    all.retain(|(name, _)| !given.contains(name));
    all.extend(settings.env.iter().cloned());
    all
}

/// Where the sidecar answers. Only the metrics are for others than this pod.
fn addresses(settings: &Settings, set: &mut impl FnMut(&str, String)) {
    set("HOST", "127.0.0.1".to_owned());
    set("PORT", settings.http_port.to_string());
    match settings.listen {
        Listen::Tcp(port) => {
            set("GRPC_HOST", "127.0.0.1".to_owned());
            set("GRPC_PORT", port.to_string());
        }
        Listen::Unix => set("GRPC_UDS", SOCKET.to_owned()),
    }
}

/// The variable of the node's id, by which a control plane distinguishes pods. Its value is the
/// name of the pod, which is unknown here: the API server may choose it later. `None` if the rules
/// are files, or if `env` has the variable.
pub fn node_id(settings: &Settings) -> Option<&'static str> {
    let is_given = settings.env.iter().any(|(name, _)| name == NODE_ID);
    (matches!(settings.rules, RuleSource::Xds(_)) && !is_given).then_some(NODE_ID)
}

/// The ports that are listened on, each with the annotation that sets it.
pub fn ports(settings: &Settings) -> Vec<(u16, &'static str)> {
    let debug = settings.env.iter().find(|(name, _)| name == "DEBUG_PORT");
    let debug = debug.and_then(|(_, port)| port.parse().ok());
    if settings.mode == Mode::Module {
        let debug = debug.map(|port| (port, "env"));
        return [(settings.metrics_port, "metrics-port")].into_iter().chain(debug).collect();
    }
    let mut ports = vec![(debug.unwrap_or(DEBUG_PORT), "env")];
    if let Listen::Tcp(port) = settings.listen {
        ports.push((port, "listen"));
    }
    ports.extend([(settings.http_port, "http-port"), (settings.metrics_port, "metrics-port")]);
    ports
}

/// Adds a fault for each setting that the sidecar would refuse, or that has two values.
pub fn check(settings: &Settings, from: &Lookup<'_>, faults: &mut Vec<Fault>) {
    let of_xds = XDS_FILES.map(|(.., name)| (name, "xds-tls"));
    let of_xds = of_xds.into_iter().chain([(XDS_TLS, "xds-tls")]);
    let of_xds = of_xds.filter(|_| settings.xds_tls.is_some());
    let managed: Vec<_> = MANAGED.into_iter().chain(of_xds).collect();
    for (name, _) in &settings.env {
        if let Some((_, key)) = managed.iter().find(|(managed, _)| managed == name) {
            let fix = format!("remove it, and set {}", from.place(key));
            faults.push(Fault::new(from.place("env"), format!("{name} is set by {key}"), fix));
        }
    }
    let ports = ports(settings);
    for (at, (port, key)) in ports.iter().enumerate() {
        if let Some((_, other)) = ports[..at].iter().find(|(other, _)| other == port) {
            let other = if *other == "env" { "DEBUG_PORT" } else { other };
            let problem = format!("port {port} is also that of {other}");
            faults.push(Fault::new(from.place(key), problem, "choose another one"));
        }
    }
    let arguments = arguments(settings).into_iter().map(OsString::from);
    let variables = variables(settings);
    let asked = RefCell::new(HashSet::new());
    let lookup = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        value(&variables, settings, name)
    };
    let parsed = Task::parse("ratelease", arguments, &lookup);
    if settings.mode == Mode::Module {
        faults.extend(of_envoy(settings, &asked.borrow(), from));
    }
    match parsed {
        Ok(_) | Err(SettingsError::Help(_)) => {}
        Err(SettingsError::Usage(text)) => {
            let line = text.lines().next().unwrap_or_default().to_owned();
            faults.push(Fault::new(from.place("env"), line, "docs/settings-list.md lists all"));
        }
        Err(SettingsError::Faults(found)) => {
            faults.extend(found.iter().filter(|fault| !fault.is_in_file).map(|fault| {
                let key = MANAGED.iter().find(|(name, _)| *name == fault.name);
                let place = from.place(key.map_or("env", |(_, key)| key));
                let found = fault.found.as_ref().map(|found| format!(", found {found:?}"));
                let problem =
                    format!("{}: {}{}", fault.name, fault.problem, found.unwrap_or_default());
                Fault::new(place, problem, fault.fix.clone())
            }));
        }
    }
}

/// A fault for each further variable that no setting has asked for: with the module, Envoy would get
/// it, which has variables of its own.
fn of_envoy(settings: &Settings, asked: &HashSet<String>, from: &Lookup<'_>) -> Vec<Fault> {
    let names = settings.env.iter().map(|(name, _)| name);
    let unknown = names.filter(|name| !asked.contains(*name) && !is_read_sometimes(name));
    let fault = |name| {
        let problem = format!("{name} is no setting, and Envoy would get it");
        let fix = "correct or remove it; docs/settings-list.md lists all";
        Fault::new(from.place("env"), problem, fix)
    };
    unknown.map(fault).collect()
}

/// How the names of settings end that name a file.
const FILE_SUFFIXES: [&str; 5] = ["_FILE", "_CERT", "_CACERT", "_KEY", "_CERTIFICATE"];

/// A variable as the sidecar's parser is to see it. The files of the pod are not here, and a path
/// in an annotation must not name a file of this machine: a path below `/dev/null` names none, and
/// what is wrong with its file is no fault. That a setting is missing beside another one still is.
fn value(variables: &[(String, String)], settings: &Settings, name: &str) -> Option<String> {
    if name.ends_with("_FILE") {
        return None;
    }
    if let Redis::Servers { url: RedisUrl::Secret(_), kind, .. } = &settings.redis
        && name == "REDIS_URL"
    {
        let example = if kind == "sentinel" { "master,redis:26379" } else { "redis:6379" };
        return Some(example.to_owned());
    }
    if name == "KEY_SECRET" && settings.key_secret.is_some() {
        return Some("a secret".to_owned());
    }
    let value = variables.iter().find(|(set, _)| set == name).map(|(_, value)| value.clone())?;
    let is_file = !value.is_empty() && FILE_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
    Some(if is_file { format!("/dev/null/{value}") } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_that_names_a_file_is_known_by_its_name() {
        let list = include_str!("../../../docs/settings-list.md");
        let names = list.lines().flat_map(|line| {
            let is_of_file = line.contains("| File ");
            let quoted = line.split('`').skip(1).step_by(2);
            quoted.filter(move |name| is_of_file || name.ends_with("_FILE"))
        });
        let names: Vec<_> = names.collect();
        assert!(names.len() > 10, "{names:?}");
        // The file of the last rules is written, and read by no parser.
        for name in names.into_iter().filter(|name| *name != "RULES_SNAPSHOT") {
            assert!(FILE_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)), "{name}");
        }
    }
}
