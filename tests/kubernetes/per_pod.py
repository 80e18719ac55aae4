"""ratelease in the pods of the Gateways: the objects of the recipe, applied as they are.

Two pods of the Deployment that Envoy Gateway makes run Envoy and ratelease as it says. The central
rate limit service has no pod, and the Envoys must not miss it.
"""

import http.client
import json
import time
from pathlib import Path

import objects
import table
from api import Failed, until
from asks import MONTH
from in_force import ADMIN, fetch, section
from load import Client
from objects import SYSTEM
from pods import Pod
from scene import ENFORCED_MAX, HTTP, say, scrape

GATEWAY = "per-pod"
HOST = "shop.example.com"
ADDRESSES = ["10.77.0.9", "10.77.0.10"]
HEADS = ["per-pod mode", "seen", ""]
ENVOY_GATEWAY = "gateway.envoyproxy.io/v1alpha1"


def contains(found, wanted):
    """Whether an object has all fields of another one, whatever else it has."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and contains(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(contains, found, wanted))
    return found == wanted


class PerPod:
    def __init__(self, scene):
        self.scene, self.rows, self.is_ok = scene, [], True
        self.recipe = Path(scene.given.recipe)
        self.sidecars, self.envoys, self.clients, self.missed = [], [], [], 0

    def run(self):
        """Whether all is as the recipe says; prints the table."""
        say("two pods of a Gateway, each with an Envoy and ratelease")
        for name, act in [
            ("no pod of the central service", self.configured),
            ("the Deployment has the container", self.deployed),
            ("two pods start", self.started),
            ("the policy is taken", self.patched),
            ("Envoy calls ratelease on loopback", self.on_loopback),
            ("the pods share one limit", self.shared),
            ("the policy is changed", self.changed),
            ("ratelease restarted", self.restarted),
            ("calls that failed", self.counted),
        ]:
            if not self.check(name, act):
                break
        table.show(HEADS, self.rows)
        return self.is_ok

    def check(self, name, act):
        """Adds a row with what a check returns."""
        fault, seen = None, ""
        try:
            seen = act()
            self.scene.node.require_alive()
        except (Failed, OSError, http.client.HTTPException) as error:
            fault = str(error) or repr(error)
        self.is_ok &= fault is None
        self.rows.append([name, fault or seen, "FAILED" if fault else "ok"])
        say(f"{'FAILED' if fault else 'ok':<7}{name}" + (f": {fault}" if fault else ""))
        return fault is None

    # === What the user applies ===

    def configured(self):
        """Gives Envoy Gateway the recipe's configuration, and restarts it."""
        text = (self.recipe / "envoy-gateway.yaml").read_text()
        if self.scene.given.timeout:
            # The last part of the file is `rateLimit`.
            text += f"  timeout: {self.scene.given.timeout}\n"
        self.scene.probes.stop()
        self.scene.control.stop()
        self.scene.api.apply({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": objects.meta("envoy-gateway-config", SYSTEM),
            "data": {"envoy-gateway.yaml": text}})
        self.scene.control.refresh()
        self.scene.control.start()
        self.scene.control.await_probe("readinessProbe")
        self.scene.api.wait("apps/v1", "Deployment", SYSTEM, "envoy-ratelimit",
                            lambda it: it["spec"]["replicas"] == 0)
        # What the controllers of a cluster do with a Deployment of 0 replicas.
        self.scene.set_endpoints([])
        status = self.scene.service.stop()
        if status != 0:
            raise Failed(f"ratelease of the central service ended with {status}")
        return "replicas: 0 in the Deployment envoy-ratelimit"

    def apply(self, name):
        self.scene.api.apply_yaml((self.recipe / name).read_text(), namespace="default")

    def deployed(self):
        self.apply("gateway.yaml")
        self.deployment = self.scene.deployment_of(GATEWAY)
        proxy = self.scene.api.get(ENVOY_GATEWAY, "EnvoyProxy", "default", GATEWAY)
        wanted = proxy["spec"]["provider"]["kubernetes"]["envoyDeployment"]["initContainers"]
        found = self.deployment["spec"]["template"]["spec"].get("initContainers", [])
        if not wanted or not contains(found, wanted):
            raise Failed(f"the Deployment has {found}, of {wanted}")
        self.container = wanted[0]
        if self.container.get("restartPolicy") != "Always":
            raise Failed("the container is no sidecar: it has no restartPolicy Always")
        return f"initContainers: {self.container['name']}, restartPolicy Always"

    # === Its pods ===

    def started(self):
        """Starts the sidecars before the Envoys, as a kubelet does."""
        given, node = self.scene.given, self.scene.node
        self.scene.set_endpoints_of(GATEWAY, ADDRESSES)
        for at, address in enumerate(ADDRESSES):
            sidecar = Pod(node, f"per-pod-{at}", address, self.deployment,
                          self.container["name"], given.ratelease)
            sidecar.start()
            sidecar.await_probe("startupProbe")
            envoy = Pod(node, f"per-pod-{at}-envoy", address, self.deployment, "envoy",
                        given.envoy, beside=sidecar)
            envoy.start()
            envoy.await_probe("startupProbe")
            self.sidecars.append(sidecar)
            self.envoys.append(envoy)
            self.clients.append(Client((address, HTTP), HOST))
        return f"{len(self.envoys)} Envoys, {len(self.sidecars)} of ratelease"

    def patched(self):
        """Envoy Gateway makes the cluster that is patched only for a limit."""
        before = self.programmed("False")["reason"]
        if before != "ResourceNotFound":
            raise Failed(f"the EnvoyPatchPolicy, before the first limit: {before}")
        self.apply("limits.yaml")
        self.programmed("True")
        for at, client in enumerate(self.clients):
            until(f"the limit at pod {at}", lambda: self.limit_at(client, f"start-{at}") == 10)
        return f"{before}; Programmed with the first limit"

    def programmed(self, status):
        """The condition of the EnvoyPatchPolicy, once it has a status."""
        def condition():
            found = self.scene.api.get(ENVOY_GATEWAY, "EnvoyPatchPolicy", "default", GATEWAY)
            return next((condition for it in found.get("status", {}).get("ancestors", [])
                         for condition in it["conditions"] if condition["type"] == "Programmed"
                         and condition["status"] == status), None)

        return until(f"the EnvoyPatchPolicy with Programmed {status}", condition)

    def limit_at(self, client, user):
        """The limit in the answer to a user; 0 without one."""
        _, headers = client.get({"x-user-id": user})
        return int(headers.get("x-ratelimit-limit", "0").split(",")[0])

    def on_loopback(self):
        """What the Envoys know as their rate limit service."""
        ports = [it["value"] for it in self.container["env"] if it["name"] == "GRPC_PORT"]
        wanted = {"address": "127.0.0.1", "port_value": int(ports[0])}
        for envoy in self.envoys:
            hosts = self.hosts_of(envoy)
            if [it["address"]["socket_address"] for it in hosts] != [wanted]:
                raise Failed(f"{envoy.name}: ratelimit_cluster has {hosts}")
            dump = section(json.loads(fetch(envoy, f"{ADMIN}/config_dump")), "ClustersConfigDump")
            cluster = next(it["cluster"] for it in dump["dynamic_active_clusters"]
                           if it["cluster"]["name"] == "ratelimit_cluster")
            if "transport_socket" in cluster:
                raise Failed(f"{envoy.name}: ratelimit_cluster has TLS")
        return f"ratelimit_cluster: 127.0.0.1:{wanted['port_value']}, plaintext, in both"

    @staticmethod
    def hosts_of(envoy):
        clusters = json.loads(fetch(envoy, f"{ADMIN}/clusters?format=json"))["cluster_statuses"]
        return next((it.get("host_statuses", []) for it in clusters
                     if it["name"] == "ratelimit_cluster"), [])

    # === What it does ===

    def admitted(self, user, count):
        """How many requests of a user pass, who calls the pods in turn."""
        statuses = [self.clients[at % len(self.clients)].get({"x-user-id": user})[0]
                    for at in range(count)]
        if set(statuses) - {200, 429}:
            raise Failed(f"answers {sorted(set(statuses))}")
        return statuses.count(200)

    def shared(self):
        seen = [self.admitted(user, 14) for user in ["ann", "ben"]]
        if seen != [10, 10]:
            raise Failed(f"{seen} of 14 passed, of a limit of 10")
        _, headers = self.clients[0].get({"x-user-id": "carl"})
        shown = [headers.get(f"x-ratelimit-{it}") for it in ["limit", "remaining"]]
        if shown != [f"10, 10;w={MONTH}", "9"]:
            raise Failed(f"headers {shown}")
        return "10 of 14 of each user pass, over both pods"

    def changed(self):
        policy = self.scene.api.get(ENVOY_GATEWAY, "BackendTrafficPolicy", "default", GATEWAY)
        rules = policy["spec"]["rateLimit"]["global"]["rules"]
        rules[0]["limit"]["requests"] = 6
        since = time.monotonic()
        self.scene.api.apply(objects.traffic_policy(
            GATEWAY, policy["spec"]["targetRefs"], rules))
        for at, client in enumerate(self.clients):
            numbers = iter(range(10_000))
            until(f"the limit at pod {at}", lambda: self.limit_at(
                client, f"changed-{at}-{next(numbers)}") == 6, every=0.005)
        taken = round((time.monotonic() - since) * 1000)
        seen = self.admitted("dora", 9)
        if seen != 6 or taken > ENFORCED_MAX:
            raise Failed(f"{seen} of 9 passed, of a limit of 6, after {taken} ms")
        return f"6 of 9 pass; in force after {taken} ms in both"

    def restarted(self):
        """Of one pod: its kubelet starts the container again. The other pod goes on, and the counts
        are in Redis."""
        sidecar = self.sidecars[0]
        status = sidecar.stop()
        if status != 0:
            raise Failed(f"ratelease ended with {status}")
        meanwhile = [it.get({"x-user-id": "dora"})[0] for it in self.clients]
        if meanwhile != [200, 429]:
            raise Failed(f"the pods answered {meanwhile} meanwhile")
        sidecar.start()
        sidecar.await_probe("startupProbe")
        until("a refusal after the restart",
              lambda: self.clients[0].get({"x-user-id": "dora"})[0] == 429, 10)
        self.missed = int(errors_of(self.envoys[0]))
        return "status 0; its Envoy lets requests pass meanwhile, then refuses as before"

    def counted(self):
        """The calls that failed in both Envoys."""
        errors = [int(errors_of(envoy)) for envoy in self.envoys]
        if errors != [self.missed, 0]:
            raise Failed(f"calls failed: {errors}, of which {self.missed} during the restart")
        return f"0, but for {self.missed} while ratelease was away"


def errors_of(envoy):
    return scrape(envoy.address, "/stats/prometheus", r"envoy_cluster_ratelimit_error{[^}]*}")
