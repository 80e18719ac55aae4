//! What of a pod would not go with the sidecar. Each is a fault here, since the API server would
//! refuse the pod, or the pod would not work.

use std::collections::HashSet;

use serde_json::Value;

use super::{CONTAINERS_MAX, Cluster, LISTS, NativeSidecars, containers, is_native, mounts};
use crate::annotation::Lookup;
use crate::environment::{self, SOCKETS};
use crate::fault::{Fault, cut};
use crate::settings::{Listen, NativeSidecar, Settings};
use crate::sidecar::{self, CONTAINER};

/// Maximum number of faults about ports: a pod may declare any number of them.
const PORT_FAULTS_MAX: usize = 20;

/// Adds each fault of the pod. Returns whether the sidecar is to be a native one.
pub(super) fn check(
    pod: &Value,
    settings: Option<&Settings>,
    from: &Lookup<'_>,
    cluster: Cluster,
    faults: &mut Vec<Fault>,
) -> bool {
    check_shape(pod, faults);
    check_machine(pod, faults);
    check_names(pod, faults);
    let Some(settings) = settings else { return false };
    check_ports(pod, settings, from, faults);
    check_volumes(pod, settings, faults);
    check_native(pod, settings.native, (cluster, from), faults);
    is_native(settings.native, cluster)
}

/// That the pod has no more containers than one may be looked at for.
pub(super) fn check_count(pod: &Value) -> Result<(), Vec<Fault>> {
    let count: usize = LISTS.iter().map(|list| containers(pod, list).len()).sum();
    if count <= CONTAINERS_MAX {
        return Ok(());
    }
    let problem = format!("{count} containers, more than {CONTAINERS_MAX}");
    Err(vec![Fault::new("spec.containers", problem, "use fewer")])
}

/// That the lists which are added to are lists.
fn check_shape(pod: &Value, faults: &mut Vec<Fault>) {
    if containers(pod, "containers").is_empty() {
        let fix = "give the pod a list of containers";
        faults.push(Fault::new("spec.containers", "no list, or an empty one", fix));
    }
    for name in ["initContainers", "volumes"] {
        let list = &pod["spec"][name];
        if !list.is_null() && !list.is_array() {
            faults.push(Fault::new(format!("spec.{name}"), "no list", "make it one"));
        }
    }
}

fn check_machine(pod: &Value, faults: &mut Vec<Fault>) {
    let spec = &pod["spec"];
    let selector = |label: &str| &spec["nodeSelector"][label];
    for (place, os) in [
        ("spec.os.name", &spec["os"]["name"]),
        ("spec.nodeSelector", selector("kubernetes.io/os")),
        ("spec.nodeSelector", selector("beta.kubernetes.io/os")),
    ] {
        if os == "windows" {
            let fix = "set the label ratelease.io/inject to false";
            faults.push(Fault::new(place, "the sidecar runs on Linux only", fix));
        }
    }
    if pod["spec"]["hostNetwork"] == true {
        let problem = "the sidecar would listen on the node's loopback, for all of its pods";
        let fix = "take hostNetwork out, or set the label ratelease.io/inject to false";
        faults.push(Fault::new("spec.hostNetwork", problem, fix));
    }
}

/// That the name of the container is free.
fn check_names(pod: &Value, faults: &mut Vec<Fault>) {
    for list in LISTS {
        if containers(pod, list).iter().any(|container| container["name"] == CONTAINER) {
            let problem = format!("has a container {CONTAINER} that no injector added");
            let fix = "remove or rename it, or set the label ratelease.io/inject to false";
            faults.push(Fault::new(format!("spec.{list}"), problem, fix));
        }
    }
}

/// That no other container declares a port of the sidecar: all of them share one loopback.
fn check_ports(pod: &Value, settings: &Settings, from: &Lookup<'_>, faults: &mut Vec<Fault>) {
    let ours = environment::ports(settings);
    let faults_max = faults.len() + PORT_FAULTS_MAX;
    for container in LISTS.iter().flat_map(|list| containers(pod, list)) {
        let name = cut(container["name"].as_str().unwrap_or_default());
        let declared = container["ports"].as_array().into_iter().flatten();
        for port in declared.filter(|port| port["protocol"] != "UDP") {
            let number = port["containerPort"].as_u64();
            let Some((port, key)) = ours.iter().find(|(ours, _)| number == Some((*ours).into()))
            else {
                continue;
            };
            if faults.len() == faults_max {
                return;
            }
            let place = from.place(key);
            let problem = format!("port {port} is taken by the container {name}");
            let fix = match *key {
                "env" => "set DEBUG_PORT there to another port".to_owned(),
                _ => format!("set {place} to another port"),
            };
            faults.push(Fault::new(place, problem, fix));
        }
    }
}

/// That the names of the volumes are free, and the place of the socket in Envoy's containers.
fn check_volumes(pod: &Value, settings: &Settings, faults: &mut Vec<Fault>) {
    let present = pod["spec"]["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    for volume in sidecar::volumes(settings) {
        if present.iter().any(|it| it["name"] == *volume.name) {
            let problem = format!("has a volume {} that no injector added", volume.name);
            faults.push(Fault::new("spec.volumes", problem, "rename it"));
        }
    }
    if settings.listen != Listen::Unix {
        return;
    }
    let names: HashSet<_> = settings.envoy_containers.iter().map(String::as_str).collect();
    let all = LISTS.iter().flat_map(|list| containers(pod, list));
    for envoy in all.filter(|it| it["name"].as_str().is_some_and(|name| names.contains(name))) {
        if mounts(envoy).any(|mount| mount["mountPath"] == SOCKETS) {
            let problem = format!("the container {} mounts something there", envoy["name"]);
            faults.push(Fault::new(SOCKETS, problem, "mount that elsewhere"));
        }
    }
}

/// That the pod ends with its work: an ordinary sidecar of a Job would keep it running.
fn check_native(
    pod: &Value,
    native: NativeSidecar,
    (cluster, from): (Cluster, &Lookup<'_>),
    faults: &mut Vec<Fault>,
) {
    let is_of_job = ["OnFailure", "Never"].iter().any(|it| pod["spec"]["restartPolicy"] == **it);
    if is_of_job && !is_native(native, cluster) {
        let problem = "the pod would never complete, since an ordinary sidecar goes on running";
        let fix = "set ratelease.io/native-sidecar to true if all nodes have Kubernetes 1.29, or \
                   the label ratelease.io/inject to false";
        faults.push(Fault::new("spec.restartPolicy", problem, fix));
    }
    if native == NativeSidecar::Always && cluster.native_sidecars == NativeSidecars::Absent {
        let place = from.place("native-sidecar");
        let problem = "this cluster is older than Kubernetes 1.29, and has no native sidecars";
        faults.push(Fault::new(place, problem, "set it to auto"));
    }
}
