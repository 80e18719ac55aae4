"""ratelease in the pods of the Gateways, beside Envoy or within it: the objects of the recipes,
applied as they are.

Two pods of the Deployment that Envoy Gateway makes run Envoy and ratelease as it says. With `PerPod`
the central rate limit service has no pod, and the Envoys must not miss it.
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
from page import Page
from pods import Pod, module_files
from scene import ENFORCED_MAX, HTTP, say, scrape

HOST = "shop.example.com"
ENVOY_GATEWAY = "gateway.envoyproxy.io/v1alpha1"


def contains(found, wanted):
    """Whether an object has all fields of another one, whatever else it has."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and contains(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(contains, found, wanted))
    return found == wanted


class Recipe:
    """The steps of one recipe, and its table."""

    def __init__(self, scene):
        self.scene, self.rows, self.is_ok = scene, [], True
        self.recipe = Path(scene.given.recipes) / f"envoy-gateway-{self.name}"
        self.envoys, self.clients = [], []

    def run(self):
        """Whether all is as the recipe says; prints the table."""
        say(f"{self.name}: two pods of a Gateway")
        for name, act in self.steps():
            if not self.check(name, act):
                break
        table.show([self.name, "seen", ""], self.rows)
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

    def apply(self, name):
        """Applies a file as it is, but for the time that the module waits for a lease."""
        text = (self.recipe / name).read_text()
        if self.scene.given.timeout:
            text = text.replace("timeout: 0.1s", f"timeout: {self.scene.given.timeout}")
        self.scene.api.apply_yaml(text, namespace="default")

    def deployed(self):
        """The Deployment has the recipe's container."""
        self.apply("gateway.yaml")
        self.deployment = self.scene.deployment_of(self.name)
        proxy = self.scene.api.get(ENVOY_GATEWAY, "EnvoyProxy", "default", self.name)
        wanted = proxy["spec"]["provider"]["kubernetes"]["envoyDeployment"]["initContainers"]
        found = self.deployment["spec"]["template"]["spec"].get("initContainers", [])
        if not wanted or not contains(found, wanted):
            raise Failed(f"the Deployment has {found}, of {wanted}")
        self.container = wanted[0]
        return f"initContainers: {self.container['name']}"

    def started(self):
        """Starts the containers of two pods in the order in which a kubelet does."""
        self.scene.set_endpoints_of(self.name, self.addresses)
        for at, address in enumerate(self.addresses):
            first = self.start_first(f"{self.name}-{at}", address)
            envoy = Pod(self.scene.node, f"{self.name}-{at}-envoy", address, self.deployment,
                        "envoy", self.scene.given.envoy, beside=first)
            envoy.start()
            envoy.await_probe("startupProbe")
            self.envoys.append(envoy)
            self.clients.append(Client((address, HTTP), HOST))
        return f"{len(self.envoys)} Envoys, each with ratelease"

    def limit_at(self, client, user):
        """The limit in the answer to a user; 0 without one."""
        _, headers = client.get({"x-user-id": user})
        return int(headers.get("x-ratelimit-limit", "0").split(",")[0])

    def await_limit(self, limit):
        """Waits until answers of each pod to new users show the limit."""
        for at, client in enumerate(self.clients):
            numbers = iter(range(100_000))
            until(f"the limit {limit} at pod {at}", lambda: self.limit_at(
                client, f"{limit}-{time.monotonic_ns()}-{next(numbers)}") == limit, every=0.005)

    def admitted(self, user, count):
        """How many requests of a user pass, who calls the pods in turn."""
        statuses = [self.clients[at % len(self.clients)].get({"x-user-id": user})[0]
                    for at in range(count)]
        if set(statuses) - {200, 429}:
            raise Failed(f"answers {sorted(set(statuses))}")
        return statuses.count(200)

    def shared(self):
        """Both pods admit a user as often as the limit says, together."""
        seen = [self.admitted(user, 14) for user in ["ann", "ben"]]
        if seen != [10, 10]:
            raise Failed(f"{seen} of 14 passed, of a limit of 10")
        return "10 of 14 of each user pass, over both pods"

    def lowered(self, since):
        """The limit of 6, which was applied at this time, is in force at both pods."""
        self.await_limit(6)
        taken = round((time.monotonic() - since) * 1000)
        seen = self.admitted("dora", 9)
        if seen != 6 or taken > ENFORCED_MAX:
            raise Failed(f"{seen} of 9 passed, of a limit of 6, after {taken} ms")
        return f"6 of 9 pass; in force after {taken} ms in both"


class PerPod(Recipe):
    """ratelease as a container beside Envoy, applied with the commands of docs/install.md."""

    name = "per-pod"
    addresses = ["10.77.0.9", "10.77.0.10"]

    def __init__(self, scene):
        super().__init__(scene)
        self.sidecars, self.missed = [], 0

    def steps(self):
        return [
            ("no pod of the central service", self.configured),
            ("the Deployment has the container", self.deployed),
            ("two pods start", self.started),
            ("the policy is taken", self.patched),
            ("Envoy calls ratelease on loopback", self.on_loopback),
            ("the requests and the live page of docs/install.md", self.denied),
            ("the pods share one limit", self.shared),
            ("the policy is changed", self.changed),
            ("ratelease restarted", self.restarted),
            ("calls that failed", self.counted),
        ]

    # === What the user applies ===

    def apply(self, name):
        """With the command of docs/install.md."""
        self.page.run(f"{self.recipe.name}/{name}")

    def configured(self):
        """Gives Envoy Gateway the recipe's configuration, and restarts it."""
        self.page = Page("With Envoy Gateway", self.scene.work, self.scene.given.timeout)
        if self.scene.given.timeout:
            path = self.page.home / self.recipe / "envoy-gateway.yaml"
            timeout = f"timeout: {self.scene.given.timeout}"
            path.write_text(path.read_text().replace("timeout: 100ms", timeout))
        self.scene.probes.stop()
        self.scene.control.stop()
        self.page.run("rollout restart")
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

    def deployed(self):
        shown = super().deployed()
        if self.container.get("restartPolicy") != "Always":
            raise Failed("the container is no sidecar: it has no restartPolicy Always")
        return f"{shown}, restartPolicy Always"

    # === Its pods ===

    def start_first(self, name, address):
        sidecar = Pod(self.scene.node, name, address, self.deployment, self.container["name"],
                      self.scene.given.ratelease)
        sidecar.start()
        sidecar.await_probe("startupProbe")
        self.sidecars.append(sidecar)
        return sidecar

    def patched(self):
        """Envoy Gateway makes the cluster that is patched only for a limit."""
        before = self.programmed("False")["reason"]
        if before != "ResourceNotFound":
            raise Failed(f"the EnvoyPatchPolicy, before the first limit: {before}")
        self.apply("limits.yaml")
        self.programmed("True")
        self.await_limit(10)
        return f"{before}; Programmed with the first limit"

    def programmed(self, status):
        """The condition of the EnvoyPatchPolicy, once it has a status."""
        def condition():
            found = self.scene.api.get(ENVOY_GATEWAY, "EnvoyPatchPolicy", "default", self.name)
            return next((condition for it in found.get("status", {}).get("ancestors", [])
                         for condition in it["conditions"] if condition["type"] == "Programmed"
                         and condition["status"] == status), None)

        return until(f"the EnvoyPatchPolicy with Programmed {status}", condition)

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

    def denied(self):
        return self.page.require_denial(self.addresses[0], HTTP, self.sidecars[0].within)

    def shared(self):
        passed = super().shared()
        _, headers = self.clients[0].get({"x-user-id": "carl"})
        shown = [headers.get(f"x-ratelimit-{it}") for it in ["limit", "remaining"]]
        if shown != [f"10, 10;w={MONTH}", "9"]:
            raise Failed(f"headers {shown}")
        return passed

    def changed(self):
        policy = self.scene.api.get(ENVOY_GATEWAY, "BackendTrafficPolicy", "default", self.name)
        rules = policy["spec"]["rateLimit"]["global"]["rules"]
        rules[0]["limit"]["requests"] = 6
        since = time.monotonic()
        self.scene.api.apply(objects.traffic_policy(
            self.name, policy["spec"]["targetRefs"], rules))
        return self.lowered(since)

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


class Module(Recipe):
    """The engine inside Envoy."""

    name = "module"
    addresses = ["10.77.0.11", "10.77.0.12"]

    def steps(self):
        return [
            ("the Deployment has the container", self.deployed),
            ("two pods start", self.started),
            ("the policy is applied", self.applied),
            ("the pods share one limit", self.shared),
            ("the policy is changed under load", self.changed),
            ("the policy is removed", self.removed),
            ("applied again", self.again),
        ]

    def start_first(self, name, address):
        given = self.scene.given
        installer = Pod(self.scene.node, name, address, self.deployment, self.container["name"],
                        given.install_module, entrypoint=["/bin/install-module"],
                        mounts=module_files(self.scene.work, given.module))
        installer.start()
        status = installer.await_end()
        if status != 0:
            raise Failed(f"the container {name} ended with {status}")
        return installer

    def applied(self):
        self.apply("limits.yaml")
        self.await_limit(10)
        return "10 requests a day for each user"

    def changed(self):
        """The policy's own limit takes the place of the rule's, while others are refused."""
        policy = self.scene.api.get(ENVOY_GATEWAY, "EnvoyExtensionPolicy", "default", self.name)
        config = policy["spec"]["dynamicModule"][0]["config"]
        config["rate_limits"][0]["limit"] = {
            "rate_limit": {"requests_per_unit": 6, "unit": "DAY"}}
        since = time.monotonic()
        self.put(policy["spec"])
        refused = 0
        while self.limit_at(self.clients[0], f"changed-{refused}") != 6:
            # The former configuration knows that she has used up her limit.
            if (status := self.clients[1].get({"x-user-id": "ann"})[0]) != 429:
                raise Failed(f"a user without tokens got {status}")
            refused += 1
        return self.lowered(since)

    def put(self, spec):
        self.scene.api.apply({"apiVersion": ENVOY_GATEWAY, "kind": "EnvoyExtensionPolicy",
                              "metadata": objects.meta(self.name, "default"), "spec": spec})

    def removed(self):
        self.scene.api.delete(ENVOY_GATEWAY, "EnvoyExtensionPolicy", "default", self.name)
        self.await_limit(0)
        seen = self.admitted("ann", 20)
        if seen != 20:
            raise Failed(f"{seen} of 20 passed without a policy")
        return "20 of 20 pass"

    def again(self):
        self.apply("limits.yaml")
        self.await_limit(10)
        if (seen := self.admitted("ann", 4)) != 0:
            raise Failed(f"{seen} of 4 passed of a user without tokens")
        return "who had no tokens has none"
