//! The container that is added to a pod, its volumes, and what Envoy's container gets: the sidecar
//! with its socket, or the library that Envoy loads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
    EnvVarSource, ExecAction, KeyToPath, ObjectFieldSelector, Probe, ProjectedVolumeSource,
    ResourceRequirements, SeccompProfile, SecretProjection, SecurityContext, Volume, VolumeMount,
    VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::environment::{
    self, AUTH_FILE, KEY_FILE, PREVIOUS_FILE, RULES, SECRETS, SOCKET, SOCKETS, URL_FILE, XDS_FILES,
};
use crate::settings::{Listen, Mode, Previous, Quantity, Redis, RedisUrl, RuleSource, Settings};
use crate::value::SecretKey;

/// The name of the container.
pub const CONTAINER: &str = "ratelease";
/// The volume of the socket.
pub const SOCKET_VOLUME: &str = "ratelease-socket";
/// The volume of the library.
pub const MODULE_VOLUME: &str = "ratelease-module";
const RULES_VOLUME: &str = "ratelease-rules";
const SECRETS_VOLUME: &str = "ratelease-secrets";
/// The program in the image.
const PROGRAM: &str = "/bin/ratelease";
/// The program in the image with the library, which copies it into a directory.
const INSTALLER: &str = "/bin/install-module";
/// Where the library is mounted.
const MODULE: &str = "/opt/ratelease";
/// The library, as Envoy's configuration names it.
pub const LIBRARY: &str = "/opt/ratelease/libratelease.so";
/// Room for the library.
const MODULE_SIZE: &str = "64Mi";

/// User and group of the process, as the image has them.
const NOBODY: i64 = 65534;
/// The process has a user of its own, and files of secrets belong to root. Only this container
/// mounts them, or with the module Envoy's, whose user is not known here.
const SECRETS_MODE: i32 = 0o444;

/// What the containers with an Envoy get.
pub struct Given {
    pub mounts: Vec<VolumeMount>,
    pub env: Vec<EnvVar>,
    /// The path that Envoy's configuration needs.
    pub path: &'static str,
}

/// What the containers with an Envoy get; `None` if nothing.
pub fn for_envoy(settings: &Settings) -> Option<Given> {
    match (settings.mode, settings.listen) {
        (Mode::Module, _) => {
            let library = mount(MODULE_VOLUME, MODULE, true);
            let mounts = [library].into_iter().chain(files(settings)).collect();
            Some(Given { mounts, env: variables(settings), path: LIBRARY })
        }
        (Mode::Sidecar, Listen::Unix) => Some(socket()),
        (Mode::Sidecar, Listen::Tcp(_)) => None,
    }
}

/// The mount of the socket. Connecting writes nothing.
pub fn socket() -> Given {
    let mounts = vec![mount(SOCKET_VOLUME, SOCKETS, true)];
    Given { mounts, env: Vec::new(), path: SOCKET }
}

/// The init container that brings the library.
pub fn installer(settings: &Settings) -> Container {
    Container {
        name: CONTAINER.to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some(settings.pull_policy.clone()),
        command: Some(vec![INSTALLER.to_owned()]),
        args: Some(vec![MODULE.to_owned()]),
        resources: Some(resources(settings)),
        security_context: Some(security()),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(vec![mount(MODULE_VOLUME, MODULE, false)]),
        ..Container::default()
    }
}

fn variables(settings: &Settings) -> Vec<EnvVar> {
    let env = environment::variables(settings).into_iter();
    let env = env.map(|(name, value)| EnvVar { name, value: Some(value), value_from: None });
    let node_id = environment::node_id(settings).map(|name| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource { field_ref: Some(pod_name()), ..EnvVarSource::default() }),
    });
    env.chain(node_id).collect()
}

/// The sidecar. A native one is an init container that is restarted.
pub fn container(settings: &Settings, is_native: bool) -> Container {
    let port = ContainerPort {
        name: Some("rl-metrics".to_owned()),
        container_port: i32::from(settings.metrics_port),
        ..ContainerPort::default()
    };
    Container {
        name: CONTAINER.to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some(settings.pull_policy.clone()),
        command: Some(vec![PROGRAM.to_owned()]),
        args: Some(environment::arguments(settings)),
        env: Some(variables(settings)),
        ports: Some(vec![port]),
        liveness_probe: Some(liveness()),
        resources: Some(resources(settings)),
        restart_policy: is_native.then(|| "Always".to_owned()),
        security_context: Some(security()),
        // The reason why it ended then shows in the pod's status.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(mounts(settings)).filter(|mounts| !mounts.is_empty()),
        ..Container::default()
    }
}

/// The name of the pod, which the kubelet fills in.
fn pod_name() -> ObjectFieldSelector {
    ObjectFieldSelector { api_version: None, field_path: "metadata.name".to_owned() }
}

/// Asks on loopback, by the program itself: no shell is needed, no port is open to others, and a
/// mesh that redirects what enters the pod does not see it. It never waits for Redis.
///
/// There is no startup probe, which would keep the other containers of the pod waiting, and no
/// readiness probe, which would take the pod out of service: Envoy lets requests pass while the
/// sidecar does not answer.
fn liveness() -> Probe {
    // Without rules a sidecar is not healthy, and a restart would bring none.
    let command = vec![PROGRAM.to_owned(), "health".to_owned(), "--live".to_owned()];
    Probe {
        exec: Some(ExecAction { command: Some(command) }),
        period_seconds: Some(10),
        timeout_seconds: Some(2),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

fn resources(settings: &Settings) -> ResourceRequirements {
    let side = |at: usize| {
        let [cpu, memory] = [&settings.resources.cpu, &settings.resources.memory];
        let named = [("cpu", cpu[at].as_ref()), ("memory", memory[at].as_ref())];
        let given = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let map: BTreeMap<_, _> = given.map(|(name, value)| (name, quantity(value))).collect();
        Some(map).filter(|map| !map.is_empty())
    };
    ResourceRequirements { requests: side(0), limits: side(1), ..ResourceRequirements::default() }
}

fn quantity(quantity: &Quantity) -> ApiQuantity {
    ApiQuantity(quantity.text.clone())
}

/// What the `restricted` Pod Security Standard asks for, and a root file system that is read-only.
fn security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
        read_only_root_filesystem: Some(true),
        run_as_group: Some(NOBODY),
        run_as_non_root: Some(true),
        run_as_user: Some(NOBODY),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..SecurityContext::default()
    }
}

fn mounts(settings: &Settings) -> Vec<VolumeMount> {
    let mut mounts = files(settings);
    if settings.listen == Listen::Unix {
        mounts.push(mount(SOCKET_VOLUME, SOCKETS, false));
    }
    mounts
}

/// The files that settings name.
fn files(settings: &Settings) -> Vec<VolumeMount> {
    let mut mounts = Vec::new();
    if matches!(settings.rules, RuleSource::ConfigMap { .. }) {
        mounts.push(mount(RULES_VOLUME, RULES, true));
    }
    if !secrets(settings).is_empty() {
        mounts.push(mount(SECRETS_VOLUME, SECRETS, true));
    }
    mounts
}

fn mount(name: &str, path: &str, is_read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: is_read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// The volumes. A ConfigMap or Secret that is not there must not keep the pod from starting, so
/// they are optional: the sidecar then says in its log what it lacks. Only Envoy with the module
/// waits for Secrets, since it could not get its engine later.
pub fn volumes(settings: &Settings) -> Vec<Volume> {
    let mut volumes = Vec::new();
    if let RuleSource::ConfigMap { name, domain } = &settings.rules {
        volumes.push(rules_volume(name, domain.as_deref()));
    }
    let secrets = secrets(settings);
    if !secrets.is_empty() {
        let sources = Some(secrets);
        let projected = ProjectedVolumeSource { sources, default_mode: Some(SECRETS_MODE) };
        volumes.push(Volume { projected: Some(projected), ..named(SECRETS_VOLUME) });
    }
    let (name, medium, size) = match (settings.mode, settings.listen) {
        (Mode::Module, _) => (MODULE_VOLUME, None, MODULE_SIZE),
        (Mode::Sidecar, Listen::Unix) => (SOCKET_VOLUME, Some("Memory".to_owned()), "1Mi"),
        (Mode::Sidecar, Listen::Tcp(_)) => return volumes,
    };
    let empty = EmptyDirVolumeSource { medium, size_limit: Some(ApiQuantity(size.to_owned())) };
    volumes.push(Volume { empty_dir: Some(empty), ..named(name) });
    volumes
}

fn named(name: &str) -> Volume {
    Volume { name: name.to_owned(), ..Volume::default() }
}

fn rules_volume(name: &str, domain: Option<&str>) -> Volume {
    let item = |domain: &str| {
        let file = format!("{domain}.yaml");
        vec![KeyToPath { key: file.clone(), mode: None, path: file }]
    };
    let source = ConfigMapVolumeSource {
        name: name.to_owned(),
        items: domain.map(item),
        optional: Some(true),
        default_mode: None,
    };
    Volume { config_map: Some(source), ..named(RULES_VOLUME) }
}

/// The files of secrets, of each Secret apart.
fn secrets(settings: &Settings) -> Vec<VolumeProjection> {
    let mut files: Vec<(&SecretKey, &str)> = Vec::new();
    if let Redis::Servers { url, auth, .. } = &settings.redis {
        if let RedisUrl::Secret(key) = url {
            files.push((key, URL_FILE));
        }
        files.extend(auth.iter().map(|key| (key, AUTH_FILE)));
    }
    files.extend(settings.key_secret.iter().map(|key| (key, KEY_FILE)));
    if let Some(Previous::Secret(key)) = &settings.previous {
        files.push((key, PREVIOUS_FILE));
    }
    let optional = settings.mode == Mode::Sidecar;
    let of_xds = XDS_FILES.map(|(key, file, _)| (key, file));
    let of_xds = settings.xds_tls.iter().map(|secret| projection(secret, of_xds, optional));
    let files = files
        .into_iter()
        .map(|(from, file)| projection(&from.secret, [(&*from.key, file)], optional));
    files.chain(of_xds).collect()
}

/// Files of keys of a Secret.
fn projection<'k>(
    secret: &str,
    files: impl IntoIterator<Item = (&'k str, &'k str)>,
    optional: bool,
) -> VolumeProjection {
    let item = |(key, file): (&str, &str)| KeyToPath {
        key: key.to_owned(),
        mode: None,
        path: file.to_owned(),
    };
    let secret = SecretProjection {
        name: secret.to_owned(),
        items: Some(files.into_iter().map(item).collect()),
        optional: Some(optional),
    };
    VolumeProjection { secret: Some(secret), ..VolumeProjection::default() }
}
