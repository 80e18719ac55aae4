//! The container that is added to a pod, its volumes, and what Envoy's container gets: the sidecar
//! with its socket, or the library that Envoy loads.

use serde_json::{Value, json};

use crate::environment::{self, RULES, SECRETS, SOCKET, SOCKETS, SecretFiles};
use crate::settings::{Listen, Mode, RuleSource, Settings};

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

/// The number of the user, and of the group, that the image runs its programs as.
const IMAGE_USER: u32 = 65534;
/// The process has a user of its own, and files of secrets belong to root. Only this container
/// mounts them, or with the module Envoy's, whose user is not known here.
const SECRETS_MODE: u32 = 0o444;

/// What the containers with an Envoy get.
pub struct Given {
    pub mounts: Vec<Value>,
    pub env: Vec<Value>,
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
pub fn installer(settings: &Settings) -> Value {
    let mut container = confined(settings, INSTALLER, vec![MODULE.to_owned()]);
    container["volumeMounts"] = json!([mount(MODULE_VOLUME, MODULE, false)]);
    container
}

/// The sidecar. A native one is an init container that is restarted.
pub fn container(settings: &Settings, is_native: bool) -> Value {
    let mut container = confined(settings, PROGRAM, environment::arguments(settings));
    container["env"] = variables(settings).into();
    container["ports"] = json!([{"name": "rl-metrics", "containerPort": settings.metrics_port}]);
    container["livenessProbe"] = liveness();
    if is_native {
        container["restartPolicy"] = json!("Always");
    }
    let mounts = mounts(settings);
    if !mounts.is_empty() {
        container["volumeMounts"] = mounts.into();
    }
    container
}

/// A container that runs a program of the image. It has what the `restricted` Pod Security Standard
/// asks for, and a root file system that is read-only.
fn confined(settings: &Settings, program: &str, arguments: Vec<String>) -> Value {
    json!({
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": [program],
        "args": arguments,
        "resources": resources(settings),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsGroup": IMAGE_USER,
            "runAsNonRoot": true,
            "runAsUser": IMAGE_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        // The reason why it ended then shows in the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

fn variables(settings: &Settings) -> Vec<Value> {
    let env = environment::variables(settings).into_iter();
    let env = env.map(|(name, value)| json!({"name": name, "value": value}));
    // The kubelet fills it in.
    let pod_name = json!({"fieldRef": {"fieldPath": "metadata.name"}});
    let node_id = environment::node_id(settings);
    env.chain(node_id.map(|name| json!({"name": name, "valueFrom": pod_name}))).collect()
}

/// Asks on loopback, by the program itself: no shell is needed, no port is open to others, and a
/// mesh that redirects what enters the pod does not see it. It never waits for Redis.
///
/// There is no startup probe, which would keep the other containers of the pod waiting, and no
/// readiness probe, which would take the pod out of service: Envoy lets requests pass while the
/// sidecar does not answer.
fn liveness() -> Value {
    json!({
        // Without rules a sidecar is not healthy, and a restart would bring none.
        "exec": {"command": [PROGRAM, "health", "--live"]},
        "periodSeconds": 10,
        "timeoutSeconds": 2,
        "failureThreshold": 3,
    })
}

fn resources(settings: &Settings) -> Value {
    let of = &settings.resources;
    let mut resources = json!({});
    for (name, quantities) in [("cpu", &of.cpu), ("memory", &of.memory)] {
        for (side, quantity) in ["requests", "limits"].into_iter().zip(quantities) {
            if let Some(quantity) = quantity {
                resources[side][name] = json!(quantity.text);
            }
        }
    }
    resources
}

fn mounts(settings: &Settings) -> Vec<Value> {
    let mut mounts = files(settings);
    if settings.listen == Listen::Unix {
        mounts.push(mount(SOCKET_VOLUME, SOCKETS, false));
    }
    mounts
}

/// The files that settings name.
fn files(settings: &Settings) -> Vec<Value> {
    let mut mounts = Vec::new();
    if matches!(settings.rules, RuleSource::ConfigMap { .. }) {
        mounts.push(mount(RULES_VOLUME, RULES, true));
    }
    if !environment::secret_files(settings).is_empty() {
        mounts.push(mount(SECRETS_VOLUME, SECRETS, true));
    }
    mounts
}

fn mount(name: &str, path: &str, is_read_only: bool) -> Value {
    let mut mount = json!({"name": name, "mountPath": path});
    if is_read_only {
        mount["readOnly"] = json!(true);
    }
    mount
}

/// The volumes. A ConfigMap or Secret that is not there must not keep the pod from starting, so
/// they are optional: the sidecar then says in its log what it lacks. Only Envoy with the module
/// waits for Secrets, since it could not get its engine later.
pub fn volumes(settings: &Settings) -> Vec<Value> {
    let mut volumes = Vec::new();
    if let RuleSource::ConfigMap { name, domain } = &settings.rules {
        let mut source = json!({"name": name, "optional": true});
        if let Some(file) = domain.as_ref().map(|domain| format!("{domain}.yaml")) {
            source["items"] = json!([{"key": file, "path": file}]);
        }
        volumes.push(json!({"name": RULES_VOLUME, "configMap": source}));
    }
    let secrets = secrets(settings);
    if !secrets.is_empty() {
        let projected = json!({"sources": secrets, "defaultMode": SECRETS_MODE});
        volumes.push(json!({"name": SECRETS_VOLUME, "projected": projected}));
    }
    let (name, empty) = match (settings.mode, settings.listen) {
        (Mode::Module, _) => (MODULE_VOLUME, json!({"sizeLimit": MODULE_SIZE})),
        (Mode::Sidecar, Listen::Unix) => {
            (SOCKET_VOLUME, json!({"medium": "Memory", "sizeLimit": "1Mi"}))
        }
        (Mode::Sidecar, Listen::Tcp(_)) => return volumes,
    };
    volumes.push(json!({"name": name, "emptyDir": empty}));
    volumes
}

/// The files of secrets, as parts of one volume.
fn secrets(settings: &Settings) -> Vec<Value> {
    let optional = settings.mode == Mode::Sidecar;
    let files = environment::secret_files(settings).into_iter();
    let source = |SecretFiles { secret, files }: SecretFiles<'_>| {
        let items = files.into_iter().map(|(key, file, _)| json!({"key": key, "path": file}));
        let items: Vec<_> = items.collect();
        json!({"secret": {"name": secret, "items": items, "optional": optional}})
    };
    files.map(source).collect()
}
