"""Istio on an API server, and the pods of its mesh.

istiod is installed as `istioctl` says and runs as its Deployment says. A pod is created in the API
server, which calls the injectors; its containers are started as the Pod says that is stored then:
istio-init sets the pod's iptables, and pilot-agent starts Envoy. That Envoy is not Istio's build:
Istio's own extensions, which are for metrics, are off.
"""

import http.client
import itertools
import json
import shutil
import sys
import threading
from pathlib import Path

import injection
import objects
from api import Api, Failed, until
from injection import require
from load import Client, Load
from page import Page
from pods import BRIDGE, Node, Pod, module_files, run

SYSTEM = "istio-system"
ISTIOD = "10.77.0.2"
# Of its Service, with the ports of its pods.
PORTS = {"grpc-xds": 15010, "https-dns": 15012, "https-webhook": 15017, "http-monitoring": 15014}
SETTINGS = {
    "profile": "minimal",
    # Extensions that Envoy has only in Istio's build.
    "values.pilot.env.PILOT_ENABLE_METADATA_EXCHANGE": "false",
    "values.pilot.env.PILOT_ENABLE_ALPN_FILTER": "false",
    "values.telemetry.enabled": "false",
}
REDIS = ["redis-0.redis", "redis-1.redis"]
APP = 8000  # where the applications of the recipes listen
CLIENTS = "10.78.0.0/16"  # addresses that requests come from
ADMIN = "http://127.0.0.1:15000"  # of an Envoy, within its pod


class Mesh:
    def __init__(self, given):
        self.given, self.work = given, Path(given.work)
        self.api = Api(self.work / "kubeconfig")
        names = [f"istiod.{SYSTEM}.svc", *REDIS]
        self.node = Node(self.api, self.work, zip(names, [ISTIOD, BRIDGE, BRIDGE]))
        run("ip", "route", "add", "local", CLIENTS, "dev", "lo")
        self.lock, self.counter = threading.Lock(), itertools.count(1)

    def client(self):
        """The address of a client who has sent nothing yet."""
        with self.lock:
            count = next(self.counter)
        return f"10.78.{count // 250}.{count % 250 + 1}"

    # === What is started ===

    def start(self):
        self.start_redis()
        self.install_istio()
        self.start_istiod()
        self.page = Page("In Istio", self.work, self.given.timeout)
        self.page.run("helm install")
        injection.start(self.node, self.given.injector)
        return "both are ready, and all certificates are made"

    def start_redis(self):
        """A cluster of one."""
        self.node.start("redis", [
            "redis-server", "--bind", BRIDGE, "--protected-mode", "no", "--save", "",
            "--dir", self.work, "--cluster-enabled", "yes", "--cluster-announce-ip", BRIDGE])
        until("Redis", lambda: self.redis("cluster", "addslotsrange", "0", "16383"))
        until("the cluster", lambda: "cluster_state:ok" in self.redis("cluster", "info"))

    @staticmethod
    def redis(*words):
        try:
            return run("redis-cli", "-h", BRIDGE, *words)
        except Failed:
            return ""

    def install_istio(self):
        settings = [word for it in SETTINGS.items() for word in ["--set", "=".join(it)]]
        rendered = run(self.given.istioctl, "manifest", "generate", *settings)
        self.api.apply(objects.namespace(SYSTEM))
        self.api.apply_yaml(rendered, namespace=SYSTEM)

    def start_istiod(self):
        found = self.api.get("apps/v1", "Deployment", SYSTEM, "istiod")
        spec = injection.in_cluster(self.node, found)["spec"]["template"]["spec"]
        spec["securityContext"] = {"runAsUser": 1337, "runAsGroup": 1337}  # of its image
        self.istiod = Pod(self.node, "istiod", ISTIOD, found, "discovery",
                          self.given.pilot_discovery, entrypoint=["/bin/pilot-discovery"])
        self.istiod.start()
        self.istiod.await_probe("readinessProbe")
        for it in objects.ready("istiod", SYSTEM, [ISTIOD], PORTS):
            self.api.apply(it)

    def restart_istiod(self, meanwhile):
        """Ends istiod, and starts it again after `meanwhile`."""
        self.istiod.stop()
        meanwhile()
        self.istiod.start()
        self.istiod.await_probe("readinessProbe")

    # === What is applied ===

    def namespace(self, name, **labels):
        it = objects.namespace(name)
        it["metadata"]["labels"] = labels
        self.api.apply(it)
        self.api.apply({"apiVersion": "v1", "kind": "ServiceAccount",
                        "metadata": objects.meta("shop", name)})
        # istiod writes it, and each pod mounts it.
        self.api.wait("v1", "ConfigMap", name, "istio-ca-root-cert")

    def file(self, recipe, name):
        """A file of a recipe as it is, but for the time that Envoy waits for ratelease."""
        text = (Path(self.given.recipes) / recipe / name).read_text()
        if self.given.timeout:
            text = text.replace("timeout: 0.1s", f"timeout: {self.given.timeout}")
        return text

    def apply_file(self, recipe, name, change=lambda text: text):
        require(self.api.apply_yaml(change(self.file(recipe, name))), f"{name} has no object")

    def apply_rules(self, recipe, name):
        """The ConfigMap with the rules of a recipe."""
        files = (Path(self.given.recipes) / recipe / "rules").iterdir()
        self.api.apply({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": objects.meta(name, "shop"),
            "data": {it.name: it.read_text() for it in files}})

    def service(self, name, port, workloads):
        """A Service, and the pods that it leads to."""
        self.api.apply({
            "apiVersion": "v1", "kind": "Service", "metadata": objects.meta(name, "shop"),
            "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": port}]}})
        slices, _ = objects.ready(name, "shop", [it.address for it in workloads], {"http": port})
        for at, it in enumerate(workloads):
            slices["endpoints"][at]["targetRef"] = {
                "kind": "Pod", "namespace": "shop", "name": it.name}
        self.api.apply(slices)

    def stop(self, workloads):
        """Ends pods, as when they are deleted."""
        for child in (child for it in workloads for child in it.children()):
            child.terminate()
        for it in workloads:
            it.stop()


class Workload:
    """A pod: created in the API server, and started as it is stored there."""

    def __init__(self, mesh, address, of):
        self.mesh, self.address, self.name = mesh, address, of["metadata"]["name"]
        self.namespace = of["metadata"]["namespace"]
        _, warnings = injection.create(mesh.api, of)
        require(not warnings, f"{self.name}: {warnings}")
        self.path = mesh.api.path("v1", "Pod", self.namespace, self.name)
        self.stored = mesh.api.request("GET", self.path)
        self.containers, self.app = {}, None

    def start(self):
        """Starts its containers in their order, and waits until Envoy is ready."""
        self.set_status()
        init, containers = injection.sidecars(self.stored)
        for name in [*init, *containers]:
            self.prepare(name)
        for name in [*init, *containers]:
            self.run(name)
        self.containers["istio-proxy"].await_probe("readinessProbe")
        if "ratelease" in self.containers:
            until(f"ratelease in {self.name}", self.is_healthy)
            # It serves without Redis while Envoy, which may carry its connections, is starting.
            until(f"Redis from {self.name}", self.reaches_redis)
        return self

    def reaches_redis(self):
        return f" addr={self.address}:" in self.mesh.redis("client", "list")

    def is_healthy(self):
        """What the liveness probe of the injector asks."""
        env = self.containers["ratelease"].environment()
        words = [f"{name}={value}" for name, value in env.items()]
        try:
            return self.within("env", *words, self.mesh.given.ratelease, "health") is not None
        except Failed:
            return False

    def set_status(self):
        """What a kubelet says of a pod that runs."""
        status = {"phase": "Running", "podIP": self.address, "podIPs": [{"ip": self.address}],
                  "hostIP": BRIDGE, "conditions": [{"type": "Ready", "status": "True"}]}
        self.mesh.api.request("PATCH", self.path + "/status", json.dumps(
            {"status": status}).encode(), "application/merge-patch+json")

    def prepare(self, name):
        """Makes a container, or the network that all of them share."""
        if name in ["istio-init", "app"]:
            return
        given = self.mesh.given
        shape = {"metadata": self.stored["metadata"],
                 "spec": {"template": {"spec": self.stored["spec"]}}}
        program, entry, mounts = {
            "istio-proxy": (given.pilot_agent, "/bin/pilot-agent", proxy_files(self.mesh)),
            "ratelease": (given.ratelease, "/bin/ratelimit", ()),
            "module": (given.install_module, "/bin/install-module", module_files(self.mesh.work, given.module)),
        }["module" if self.is_module(name) else name]
        beside = next(iter(self.containers.values()), None)
        pod = Pod(self.mesh.node, self.name if not beside else f"{self.name}-{name}", self.address,
                  shape, name, program, beside, entrypoint=[entry], mounts=mounts)
        pod.security.setdefault("runAsUser", 65534)  # of the image of ratelease
        self.containers[name] = pod

    def run(self, name):
        within = ["nsenter", f"--net=/run/netns/{self.name}"]
        spec = self.stored["spec"]
        if name == "istio-init":
            init = next(it for it in spec["initContainers"] if it["name"] == name)
            run(*within, self.mesh.given.pilot_agent, *init["args"])
        elif name == "app":
            load = Path(__file__).with_name("load.py")
            self.app = self.mesh.node.start(f"{self.name}-app", [
                *within, sys.executable, "-B", load, "0.0.0.0", APP])
        else:
            for it in spec.get("securityContext", {}).get("sysctls", []):
                path = f"/proc/sys/{it['name'].replace('.', '/')}"
                run(*within, "sh", "-c", 'echo "$2" > "$1"', "sh", path, it["value"])
            self.containers[name].start()
            if self.is_module(name):
                status = self.containers.pop(name).await_end()
                require(status == 0, f"{name} of {self.name} ended with {status}")

    def is_module(self, name):
        """Whether a container is the one that brings the library of the module."""
        init = self.stored["spec"].get("initContainers", [])
        return name == "ratelease" and any(
            it["name"] == name and "restartPolicy" not in it for it in init)

    def within(self, *words):
        return next(iter(self.containers.values())).within(*words)

    def order(self):
        """The containers, for people."""
        return " | ".join(" ".join(names) for names in injection.sidecars(self.stored))

    def children(self):
        children = [it.child for it in self.containers.values()]
        return [*children, self.app] if self.app else children

    def stop(self):
        for child in self.children():
            self.mesh.node.stop(child)
        self.mesh.api.request("DELETE", self.path + "?gracePeriodSeconds=0")

    def stat(self, name):
        """The sum of Envoy's counters of a name; None if Envoy shows none."""
        pattern = name.replace(".", "%5C.")
        shown = self.within("curl", "--silent", "--fail", f"{ADMIN}/stats?filter={pattern}%24")
        values = [int(line.rsplit(": ", 1)[1]) for line in shown.splitlines()]
        return sum(values) if values else None


def proxy_files(mesh):
    """What Istio's image has beside pilot-agent: Envoy, and the template of its bootstrap."""
    at = mesh.work / "proxyv2"
    if not at.exists():
        (at / "bin").mkdir(parents=True)
        (at / "bin/envoy").symlink_to(f"/opt/envoy/{Path(mesh.given.envoy).name}")
        (at / "envoy").mkdir()
        shutil.copy(Path(mesh.given.bootstrap) / "envoy_bootstrap.json",
                    at / "envoy/envoy_bootstrap_tmpl.json")
    return [(at / "bin", "/usr/local/bin"), (Path(mesh.given.envoy).parent, "/opt/envoy"),
            (at / "envoy", "/var/lib/istio/envoy")]


class Door:
    """Where requests go, and who sends them."""

    def __init__(self, mesh, address, port, host):
        self.mesh, self.at, self.host = mesh, (address, port), host

    def get(self, source=None, path="/", headers=None):
        """The status and the headers of one request, on a connection of its own."""
        client = Client(self.at, self.host, source or self.mesh.client())
        try:
            return client.get(headers or {}, path)
        finally:
            client.close()

    def limit(self):
        """The limit in the answer to a new client; 0 if there is none."""
        try:
            status, headers = self.get()
        except (OSError, http.client.HTTPException):
            return None
        return int(headers.get("x-ratelimit-limit", "0").split(",")[0]) if status == 200 else None

    def statuses(self, count, source, path="/"):
        return [self.get(source, path)[0] for _ in range(count)]


class Strangers(Load):
    """A load of clients who have sent nothing yet, each with a connection of its own."""

    def __init__(self, door):
        self.door = door
        super().__init__(door.at, door.host, {}, 200)

    def ask(self, _):
        return self.door.get()
