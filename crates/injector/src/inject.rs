//! Decides whether a pod gets the sidecar, and makes the patch that adds it. Pure: the same pod and
//! the same defaults give the same patch, and the pod that results is left as it is. An editor
//! changes the pod, and records each step as a part of the patch.

use std::collections::HashSet;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, MoveOperation, Patch, PatchOperation, RemoveOperation};
use serde_json::{Value, json};

use crate::annotation::{Defaults, INJECT, INJECTED, Lookup, STATUS};
use crate::environment::{self, XDS_TLS};
use crate::fault::{Fault, cut};
use crate::settings::{
    MISSING, Mode, NativeSidecar, Quantity, Redis, RedisUrl, RuleSource, Settings,
};
use crate::sidecar::{self, CONTAINER, Given, MODULE_VOLUME, SOCKET_VOLUME};

/// Istio's proxy. As a native sidecar it starts first, since it carries the traffic of those after
/// it.
const ISTIO_PROXY: &str = "istio-proxy";

/// Maximum number of containers of a pod, so that an answer is at most some 100 KiB long.
const CONTAINERS_MAX: usize = 100;

/// Maximum bytes of an annotation with the faults.
const STATUS_MAX: usize = 8 << 10;

/// Both lists of containers of a pod.
const LISTS: [&str; 2] = ["initContainers", "containers"];

/// What the cluster can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cluster {
    /// Whether init containers may go on running.
    pub native_sidecars: NativeSidecars,
}

/// Which nodes of a cluster have native sidecars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativeSidecars {
    /// None: Kubernetes before 1.29.
    Absent,
    /// Perhaps not all: a kubelet may be three minor versions older than its API server, and one
    /// before 1.29 waits for the end of the sidecar, so that the pod never starts.
    OnSomeNodes,
    /// All: Kubernetes from 1.32 on.
    OnAllNodes,
}

/// What becomes of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It gets the sidecar.
    Injected,
    /// It has the sidecar already.
    Kept,
    /// Its label or annotation turns the injection off.
    OptedOut,
    /// It has faults, and stays as it is but for an annotation that says why.
    Refused,
}

/// The result for one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Injection {
    /// What becomes of it.
    pub verdict: Verdict,
    /// From the pod as it was to the pod as it is.
    pub patch: Patch,
    /// The pod after the patch.
    pub pod: Value,
    /// All reasons of a refusal.
    pub faults: Vec<Fault>,
    /// What the author of the pod should know besides.
    pub warnings: Vec<String>,
}

// === impl Cluster ===

/// The first version of Kubernetes with native sidecars turned on.
const NATIVE_SIDECARS_SINCE: (u32, u32) = (1, 29);
/// The first version whose nodes all have them: they may be three minor versions older.
const ALL_NATIVE_SINCE: (u32, u32) = (1, 32);

impl Cluster {
    /// A cluster whose version is not known.
    pub const UNKNOWN: Self = Self { native_sidecars: NativeSidecars::OnSomeNodes };

    /// What a cluster of this version can do, given as `1.31`, `v1.31.4` or `1.31+`.
    ///
    /// # Errors
    /// What was expected.
    pub fn of(version: &str) -> Result<Self, String> {
        let expected = || format!("expected a version such as 1.31, found {version:?}");
        let mut parts = version.trim_start_matches('v').split('.');
        let mut number = || {
            let part = parts.next()?;
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse::<u32>().ok()
        };
        let version = number().zip(number()).ok_or_else(expected)?;
        let native_sidecars = match version {
            version if version >= ALL_NATIVE_SINCE => NativeSidecars::OnAllNodes,
            version if version >= NATIVE_SIDECARS_SINCE => NativeSidecars::OnSomeNodes,
            _ => NativeSidecars::Absent,
        };
        Ok(Self { native_sidecars })
    }
}

/// Injects the sidecar into a pod, or into a pod template. The pod is taken by value and changed in
/// place: a pod of 512 KiB may take 50 times that in memory, and a copy as much again.
pub fn inject(pod: Value, defaults: &Defaults, cluster: Cluster) -> Injection {
    let mut draft = Draft { editor: Editor::new(pod), warnings: Vec::new() };
    match draft.run(defaults, cluster) {
        Ok(verdict) => draft.finish(verdict, Vec::new()),
        Err(faults) => {
            draft.editor.undo();
            draft.refuse(faults)
        }
    }
}

/// The faults of defaults, which every pod would have. What is missing may be in annotations.
pub fn check_defaults(defaults: &Defaults) -> Vec<Fault> {
    let mut faults = Vec::new();
    let pod = Value::Null;
    let from = Lookup::new(&pod, defaults, (&mut faults, &mut Vec::new()));
    if let Some(settings) = Settings::read(&from, &mut faults) {
        environment::check(&settings, &from, &mut faults);
    }
    faults.retain(|fault| fault.problem != MISSING);
    faults
}

/// Leaves a pod without the sidecar, and says why in its annotation. A pod that has the sidecar is
/// left as it is.
pub fn refuse(pod: Value, fault: Fault) -> Injection {
    let draft = Draft { editor: Editor::new(pod), warnings: Vec::new() };
    if has_ours(draft.editor.document()) {
        return draft.finish(Verdict::Kept, Vec::new());
    }
    draft.refuse(vec![fault])
}

/// The text of the annotation. All annotations of a pod may have 256 KiB together, and the API
/// server refuses a pod with more.
fn refusal(faults: &[Fault]) -> String {
    let mut text = "not injected: ".to_owned();
    for (at, fault) in faults.iter().enumerate() {
        let fault = fault.to_string();
        if text.len() + fault.len() > STATUS_MAX {
            text += &format!("and {} more", faults.len() - at);
            break;
        }
        text += &fault;
        text += if at + 1 < faults.len() { " | " } else { "" };
    }
    text
}

/// A pod that is being changed.
struct Draft {
    editor: Editor,
    warnings: Vec<String>,
}

// === impl Draft ===

impl Draft {
    fn finish(self, verdict: Verdict, faults: Vec<Fault>) -> Injection {
        let (pod, patch) = self.editor.finish();
        Injection { verdict, patch, pod, faults, warnings: self.warnings }
    }

    fn refuse(mut self, faults: Vec<Fault>) -> Injection {
        // A pod whose annotations cannot be changed has that fault already.
        let _ = self.set_status(&refusal(&faults));
        self.finish(Verdict::Refused, faults)
    }

    fn run(&mut self, defaults: &Defaults, cluster: Cluster) -> Result<Verdict, Vec<Fault>> {
        let mut faults = Vec::new();
        let pod = self.editor.document();
        if is_opted_out(pod) {
            return Ok(Verdict::OptedOut);
        }
        let from = Lookup::new(pod, defaults, (&mut faults, &mut self.warnings));
        check_count(pod)?;
        if has_ours(pod) {
            self.warnings.clear();
            self.converge(&from).map_err(|fault| vec![fault])?;
            return Ok(Verdict::Kept);
        }
        let mut settings = Settings::read(&from, &mut faults);
        if let Some(settings) = &mut settings {
            settings.resources.resolve_cpu_limit(largest_cpu_limit(pod));
            environment::check(settings, &from, &mut faults);
        }
        let is_native = check_pod(pod, settings.as_ref(), &from, cluster, &mut faults);
        match settings {
            Some(settings) if faults.is_empty() => {
                self.add_all(&settings, is_native).map_err(|fault| vec![fault])?;
                Ok(Verdict::Injected)
            }
            _ => Err(faults),
        }
    }

    fn add_all(&mut self, settings: &Settings, is_native: bool) -> Result<(), Fault> {
        match settings.mode {
            Mode::Sidecar => self.add_sidecar(settings, is_native)?,
            // Before any Envoy, which may be an init container too.
            Mode::Module => {
                self.editor.add(&["spec", "initContainers", "0"], sidecar::installer(settings))?;
            }
        }
        for volume in sidecar::volumes(settings) {
            self.editor.add(&["spec", "volumes", "-"], volume)?;
        }
        if let Some(given) = sidecar::for_envoy(settings)
            && !self.give(&settings.envoy_containers, &given)?
        {
            let (names, path) = (settings.envoy_containers.join(" or "), given.path);
            self.warnings.push(format!(
                "no container is named {names} yet, so none has {path}; \
                 one that a later webhook adds gets it"
            ));
        }
        self.warn(settings);
        self.set_status(INJECTED)
    }

    fn add_sidecar(&mut self, settings: &Settings, is_native: bool) -> Result<(), Fault> {
        let container = sidecar::container(settings, is_native);
        if is_native {
            let at = self.native_index().to_string();
            return self.editor.add(&["spec", "initContainers", &at], container);
        }
        self.editor.add(&["spec", "containers", "-"], container)
    }

    fn warn(&mut self, settings: &Settings) {
        if let Redis::Servers { url: RedisUrl::Plain(url), .. } = &settings.redis
            && url.contains('@')
        {
            self.warnings.push(
                "ratelease.io/redis: holds a password, which all who may read the pod can read; \
                 use secret:NAME/KEY"
                    .to_owned(),
            );
        }
        let has_tls =
            settings.xds_tls.is_some() || settings.env.iter().any(|(it, _)| it == XDS_TLS);
        if let RuleSource::Xds(server) = &settings.rules
            && !has_tls
            && !is_loopback(server)
        {
            self.warnings.push(
                "ratelease.io/rules: the xDS server is not authenticated, so that another one \
                 could send rules in its place; set ratelease.io/xds-tls to a Secret"
                    .to_owned(),
            );
        }
    }

    /// In a pod that has the sidecar, does what another webhook made necessary since: Istio's, say,
    /// may add its proxy later, and is followed by a second call of this one. The container itself
    /// is left alone, since other webhooks may have changed it for a reason.
    fn converge(&mut self, from: &Lookup<'_>) -> Result<(), Fault> {
        if self.has_mount(MODULE_VOLUME) {
            return self.converge_module(from);
        }
        if let Some(at) = self.position("initContainers", CONTAINER) {
            let first = self.native_index();
            if first > at {
                // One place earlier, since the container before it is taken out.
                self.move_init(at, first - 1)?;
            }
        }
        if self.has_mount(SOCKET_VOLUME) {
            // A fault of this annotation was reported when the pod got its sidecar.
            let names = from.parse("envoy-containers", &mut Vec::new(), crate::value::containers);
            self.give(&names.flatten().unwrap_or_default(), &sidecar::socket())?;
        }
        Ok(())
    }

    /// The same with the module: the library is there before each Envoy starts.
    fn converge_module(&mut self, from: &Lookup<'_>) -> Result<(), Fault> {
        // Faults were reported when the pod got it.
        let Some(settings) = Settings::read(from, &mut Vec::new()) else { return Ok(()) };
        let names = &settings.envoy_containers;
        let is_envoy = |it: &Value| names.iter().any(|name| it["name"] == **name);
        let envoy = self.list("initContainers").iter().position(is_envoy);
        if let (Some(at), Some(envoy)) = (self.position("initContainers", CONTAINER), envoy)
            && envoy < at
        {
            self.move_init(at, envoy)?;
        }
        if let Some(given) = sidecar::for_envoy(&settings) {
            self.give(names, &given)?;
        }
        Ok(())
    }

    fn move_init(&mut self, from: usize, to: usize) -> Result<(), Fault> {
        let (from, to) = (from.to_string(), to.to_string());
        let list = |at| ["spec", "initContainers", at];
        self.editor.move_to(&list(&from), &list(&to))
    }

    /// Whether our container mounts this volume.
    fn has_mount(&self, volume: &str) -> bool {
        let ours = LISTS.iter().flat_map(|list| self.list(list));
        let ours = ours.filter(|container| container["name"] == CONTAINER);
        ours.flat_map(mounts).any(|mount| mount["name"] == volume)
    }

    /// Gives what Envoy needs to those of its containers that lack it; whether there is one. A
    /// variable that is there already is the author's.
    fn give(&mut self, names: &[String], given: &Given) -> Result<bool, Fault> {
        let mut is_given = false;
        for list in LISTS {
            let found = envoys(self.list(list), names);
            is_given |= !found.is_empty();
            let lacking = found.into_iter().filter(|(_, it)| !has_any(it, given));
            let lacking: Vec<_> = lacking.map(|(at, it)| (at.to_string(), names_of(it))).collect();
            for (at, present) in lacking {
                for mount in &given.mounts {
                    let path = ["spec", list, &at, "volumeMounts", "-"];
                    self.editor.add(&path, mount.clone())?;
                }
                for variable in given.env.iter().filter(|it| !present.contains(name_of(it))) {
                    self.editor.add(&["spec", list, &at, "env", "-"], variable.clone())?;
                }
            }
        }
        Ok(is_given)
    }

    fn set_status(&mut self, status: &str) -> Result<(), Fault> {
        let annotations = self.editor.document().pointer("/metadata/annotations");
        if annotations.and_then(|all| all.get(STATUS)).is_some_and(|old| old == status) {
            return Ok(());
        }
        self.editor.add(&["metadata", "annotations", STATUS], json!(status))
    }

    fn list(&self, name: &str) -> &[Value] {
        containers(self.editor.document(), name)
    }

    fn position(&self, list: &str, name: &str) -> Option<usize> {
        self.list(list).iter().position(|container| container["name"] == name)
    }

    /// The first place among the init containers that is not before Istio's proxy.
    fn native_index(&self) -> usize {
        let istio = self.list("initContainers").iter().position(|container| {
            container["name"] == ISTIO_PROXY && container["restartPolicy"] == "Always"
        });
        istio.map_or(0, |at| at + 1)
    }
}

/// The containers of one of [`LISTS`]; none if the list is no list.
fn containers<'p>(pod: &'p Value, list: &str) -> &'p [Value] {
    pod["spec"][list].as_array().map_or(&[], Vec::as_slice)
}

/// Those of the containers that have one of these names, with their places.
fn envoys<'p>(containers: &'p [Value], names: &[String]) -> Vec<(usize, &'p Value)> {
    let names: HashSet<_> = names.iter().map(String::as_str).collect();
    let is_named = |it: &Value| it["name"].as_str().is_some_and(|name| names.contains(name));
    containers.iter().enumerate().filter(|(_, it)| is_named(it)).collect()
}

/// Whether a container has something at the place of what it is to be given.
fn has_any(container: &Value, given: &Given) -> bool {
    mounts(container).any(|of| {
        let is_same = |it: &Value, field: &str| of[field] == it[field];
        given.mounts.iter().any(|it| is_same(it, "name") || is_same(it, "mountPath"))
    })
}

/// The names of a container's variables.
fn names_of(container: &Value) -> HashSet<String> {
    let all = container["env"].as_array().into_iter().flatten();
    all.map(|it| name_of(it).to_owned()).collect()
}

/// The name of a part of a pod; empty if it has none.
fn name_of(part: &Value) -> &str {
    part["name"].as_str().unwrap_or_default()
}

fn mounts(container: &Value) -> impl Iterator<Item = &Value> {
    container["volumeMounts"].as_array().into_iter().flatten()
}

fn is_opted_out(pod: &Value) -> bool {
    let is_off = |of: &str| pod["metadata"][of][INJECT] == "false";
    is_off("labels") || is_off("annotations")
}

/// Whether the pod has a sidecar that an injector added.
fn has_ours(pod: &Value) -> bool {
    let names = LISTS.iter().flat_map(|list| containers(pod, list));
    pod["metadata"]["annotations"][STATUS] == INJECTED
        && names.into_iter().any(|container| container["name"] == CONTAINER)
}

/// Whether a server, `HOST:PORT`, is in the pod itself.
fn is_loopback(server: &str) -> bool {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|it: std::net::IpAddr| it.is_loopback())
}

/// Whether the sidecar is an init container that goes on running.
fn is_native(native: NativeSidecar, cluster: Cluster) -> bool {
    match native {
        NativeSidecar::Auto => cluster.native_sidecars == NativeSidecars::OnAllNodes,
        NativeSidecar::Always => true,
        NativeSidecar::Never => false,
    }
}

// What of a pod would not go with the sidecar. Each is a fault here, since the API server would
// refuse the pod, or the pod would not work.

/// Maximum number of faults about ports: a pod may declare any number of them.
const PORT_FAULTS_MAX: usize = 20;

/// Adds each fault of the pod. Returns whether the sidecar is to be a native one.
fn check_pod(
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
    if settings.mode == Mode::Sidecar {
        check_native(pod, settings.native, (cluster, from), faults);
    }
    is_native(settings.native, cluster)
}

/// That the pod has no more containers than one may be looked at for.
fn check_count(pod: &Value) -> Result<(), Vec<Fault>> {
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
        let name = cut(name_of(container));
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
        let name = name_of(&volume);
        if present.iter().any(|it| it["name"] == *name) {
            let problem = format!("has a volume {name} that no injector added");
            faults.push(Fault::new("spec.volumes", problem, "rename it"));
        }
    }
    let Some(given) = sidecar::for_envoy(settings) else { return };
    let all =
        LISTS.iter().flat_map(|list| envoys(containers(pod, list), &settings.envoy_containers));
    for (_, envoy) in all {
        for mount in &given.mounts {
            let path = &mount["mountPath"];
            if mounts(envoy).any(|it| it["mountPath"] == *path) {
                let path = path.as_str().unwrap_or_default();
                let problem = format!("the container {} mounts something there", envoy["name"]);
                faults.push(Fault::new(path, problem, "mount that elsewhere"));
            }
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

// The limits that the containers of a pod have.

/// The largest limit of CPU of the containers, init containers included; `None` if one of them has
/// no limit.
fn largest_cpu_limit(pod: &Value) -> Option<Quantity> {
    let all = LISTS.iter().flat_map(|list| containers(pod, list));
    let limits: Option<Vec<_>> =
        all.map(|it| cpu_limit(&it["resources"]["limits"]["cpu"])).collect();
    limits?.into_iter().max_by_key(|limit| limit.nanos)
}

/// The API server writes quantities as text; manifests may have numbers.
fn cpu_limit(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

// Changes a document step by step, and records the steps as a JSON patch (RFC 6902). The document
// is what applying the patch gives, so an answer of the webhook and a written file agree.

/// A document that is being changed.
#[derive(Debug)]
struct Editor {
    document: Value,
    patch: Patch,
    /// What undoes each step.
    inverse: Vec<PatchOperation>,
}

// === impl Editor ===

impl Editor {
    fn new(document: Value) -> Self {
        Self { document, patch: Patch(Vec::new()), inverse: Vec::new() }
    }

    /// The document as it is now.
    fn document(&self) -> &Value {
        &self.document
    }

    fn finish(self) -> (Value, Patch) {
        (self.document, self.patch)
    }

    /// Adds a value, or replaces that of a field. Fields on the way to it that are absent or null
    /// are added: as lists before an index or `-`, else as maps.
    fn add(&mut self, path: &[&str], value: Value) -> Result<(), Fault> {
        for end in 1..path.len() {
            let parent = &path[..end];
            let next = path[end];
            if self.get(parent).is_none_or(Value::is_null) {
                let is_list = next == "-" || next.bytes().all(|byte| byte.is_ascii_digit());
                self.add_one(parent, if is_list { json!([]) } else { json!({}) })?;
            }
        }
        self.add_one(path, value)
    }

    /// Moves a value to another place of its list, which is that after it was taken out.
    fn move_to(&mut self, from: &[&str], to: &[&str]) -> Result<(), Fault> {
        let step = |from, to| {
            PatchOperation::Move(MoveOperation { from: pointer(from), path: pointer(to) })
        };
        self.apply(to, step(from, to), step(to, from))
    }

    /// Takes all steps back.
    fn undo(&mut self) {
        self.patch.0.clear();
        for step in self.inverse.drain(..).rev() {
            // Each one is of the document as the step left it.
            let undone = json_patch::patch(&mut self.document, std::slice::from_ref(&step));
            debug_assert!(undone.is_ok(), "{step:?}");
        }
    }

    fn get(&self, path: &[&str]) -> Option<&Value> {
        self.document.pointer(pointer(path).as_str())
    }

    fn add_one(&mut self, path: &[&str], value: Value) -> Result<(), Fault> {
        let inverse = self.inverse_of_add(path);
        self.apply(path, PatchOperation::Add(AddOperation { path: pointer(path), value }), inverse)
    }

    fn inverse_of_add(&self, path: &[&str]) -> PatchOperation {
        let parent = path.split_last().map_or(&[][..], |(_, parent)| parent);
        let remove = |path| PatchOperation::Remove(RemoveOperation { path });
        match (self.get(parent), self.get(path)) {
            (Some(Value::Array(list)), _) if path.last() == Some(&"-") => {
                let at = list.len().to_string();
                remove(pointer(&[parent, &[at.as_str()]].concat()))
            }
            (Some(Value::Object(_)), Some(old)) => {
                PatchOperation::Add(AddOperation { path: pointer(path), value: old.clone() })
            }
            _ => remove(pointer(path)),
        }
    }

    fn apply(
        &mut self,
        path: &[&str],
        step: PatchOperation,
        inverse: PatchOperation,
    ) -> Result<(), Fault> {
        let applied = json_patch::patch(&mut self.document, std::slice::from_ref(&step));
        applied.map_err(|_| {
            let fix = "see that the fields before it are maps or lists";
            Fault::new(path.join("."), "cannot be changed", fix)
        })?;
        self.patch.0.push(step);
        self.inverse.push(inverse);
        Ok(())
    }
}

fn pointer(path: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().copied())
}

#[cfg(test)]
mod tests;
