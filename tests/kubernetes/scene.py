"""Envoy Gateway, its rate limit service and its Envoys: how they are started, and asked."""

import re
import sys
import threading
import time
import urllib.request
from pathlib import Path

import objects
from api import Api, Failed, until
from load import Backend, Client
from objects import GATEWAYS, SYSTEM
from pods import BRIDGE, Node, Pod, run

CONTROL = "10.77.0.2"  # Envoy Gateway
SERVICES = {"ratelease": "10.77.0.3", "ratelease-new": "10.77.0.7"}
ENVOYS = {"east": "10.77.0.4", "west": "10.77.0.5", "new-east": "10.77.0.6",
          "scenarios": "10.77.0.8"}
BACKEND = (BRIDGE, objects.BACKEND_PORT)
REDIS = "redis.redis-system.svc.cluster.local:6379"
HTTP = 10080  # where an Envoy listens for the Gateway's port 80
ENFORCED_MAX = 1000  # milliseconds from a change in the API server until it is enforced


def say(text):
    print(text, file=sys.stderr, flush=True)


class Probes:
    """A kubelet's probes of a pod, as often as its Deployment says."""

    def __init__(self, pod):
        self.pod, self.sent, self.failed = pod, 0, 0
        self.is_over = threading.Event()
        names = ["readinessProbe", "livenessProbe"]
        self.threads = [threading.Thread(target=self.run, args=[name], daemon=True)
                        for name in names]
        for thread in self.threads:
            thread.start()

    def run(self, name):
        while not self.is_over.wait(self.pod.spec[name]["periodSeconds"]):
            self.sent += 1
            self.failed += not self.pod.probe(name)

    def stop(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()


class Scene:
    def __init__(self, given):
        self.given = given
        self.work = Path(given.work)
        self.api = Api(self.work / "kubeconfig")
        control = "envoy-gateway"
        names = [control, f"{control}.{SYSTEM}.svc.cluster.local"]
        # Envoy asks for a name that ends with a dot.
        hosts = [(name, CONTROL) for name in [*names, f"{names[1]}."]]
        hosts.append((REDIS.split(":")[0], BRIDGE))
        self.node = Node(self.api, self.work, hosts)
        self.users = 0
        self.clients, self.pods = {}, {}

    # === What is started ===

    def start(self):
        """All but Gateways and their Envoys."""
        Backend(BACKEND)
        self.node.start("redis", ["redis-server", "--bind", BRIDGE, "--protected-mode", "no",
                                  "--save", "", "--dir", self.work])
        self.start_envoy_gateway()
        for it in objects.common(BACKEND):
            self.api.apply(it)
        say("ratelease, as the Deployment envoy-ratelimit says that Envoy Gateway made")
        self.start_service()

    def start_gateways(self):
        for it in objects.gateways():
            self.api.apply(it)
        self.pods = {name: self.start_envoy(name, name) for name in GATEWAYS}

    def start_envoy_gateway(self):
        say("Envoy Gateway: its resource definitions, certificates, objects and program")
        count = 0
        for path in sorted(Path(self.given.crds).rglob("*.yaml")):
            # The experimental ones need a newer API server, and are not used.
            is_wanted = lambda name: not name.endswith(".x-k8s.io")
            count += self.api.apply_yaml(path.read_text(), is_wanted)
        self.api.apply(objects.namespace(SYSTEM))
        self.generate_certificates()
        directory = self.work / "kubeconfig.d"
        directory.mkdir()
        (directory / "kubeconfig").write_text((self.work / "kubeconfig").read_text())
        for it in objects.chart(REDIS, self.given.timeout, directory):
            self.api.apply(it)
        found = self.api.get("apps/v1", "Deployment", SYSTEM, "envoy-gateway")
        self.control = Pod(self.node, "control", CONTROL, found, "envoy-gateway",
                           self.given.envoy_gateway)
        self.control.start()
        self.control.await_probe("readinessProbe")
        say(f"   {count} definitions")

    def generate_certificates(self, *more):
        run(self.given.envoy_gateway, "certgen", "--disable-topology-injector", *more,
            env={"KUBECONFIG": str(self.work / "kubeconfig"), "ENVOY_GATEWAY_NAMESPACE": SYSTEM,
                 "KUBERNETES_CLUSTER_DOMAIN": "cluster.local"})

    def start_service(self, name="ratelease"):
        """A pod of the rate limit service, and what a kubelet does about it."""
        found = self.api.wait("apps/v1", "Deployment", SYSTEM, "envoy-ratelimit")
        self.service = Pod(self.node, name, SERVICES[name], found, "envoy-ratelimit",
                           self.given.ratelease)
        self.service.start()
        self.service.await_probe("startupProbe")
        self.service.await_probe("readinessProbe")
        self.probes = Probes(self.service)
        # The pod that was started last takes the requests.
        self.set_endpoints([self.service.address])

    def set_endpoints(self, addresses):
        """The pods of the rate limit service that are ready."""
        self.api.apply(objects.endpoints("envoy-ratelimit", SYSTEM, addresses, 8081, "http"))

    def start_envoy(self, name, gateway):
        """An Envoy of a Gateway, as a pod of the Deployment that Envoy Gateway made for it."""
        found = self.deployment_of(gateway)
        self.set_endpoints_of(gateway, [ENVOYS[name]])
        pod = Pod(self.node, f"envoy-{name}", ENVOYS[name], found, "envoy", self.given.envoy)
        pod.start()
        pod.await_probe("startupProbe")
        self.clients[name] = Client((ENVOYS[name], HTTP), objects.host_of(gateway))
        return pod

    def deployment_of(self, gateway):
        return self.made_for(gateway, "/apis/apps/v1", "deployments")

    def made_for(self, gateway, group, plural):
        """What Envoy Gateway made for a Gateway, of one kind."""
        labels = f"gateway.envoyproxy.io%2Fowning-gateway-name%3D{gateway}"
        path = f"{group}/namespaces/{SYSTEM}/{plural}?labelSelector={labels}"
        return until(f"{plural} of {gateway}", lambda: self.api.request("GET", path)["items"])[0]

    def set_endpoints_of(self, gateway, addresses):
        """The pods of a Gateway. Without them its Envoys wait until a time-out of 15 s."""
        service = self.made_for(gateway, "/api/v1", "services")
        name, port = service["metadata"]["name"], service["spec"]["ports"][0]
        self.api.apply(objects.endpoints(name, SYSTEM, addresses, HTTP, port["name"]))

    # === What is asked ===

    def user(self):
        """A user who has sent nothing yet."""
        self.users += 1
        return {"x-plan": "free", "x-user": f"u{self.users}"}

    def shown_limit(self, name):
        """The limit in the answer to a new user; 0 if there is none, None if there is no answer."""
        status, headers = self.clients[name].get(self.user())
        if status != 200:
            return None
        return int(headers.get("x-ratelimit-limit", "0").split(",")[0])

    def await_limit(self, limit, since, names=GATEWAYS):
        """The milliseconds from `since` until each Envoy's answers show a limit."""
        for name in names:
            until(f"the limit {limit} at {name}", lambda: self.shown_limit(name) == limit, 30,
                  every=0.005)
        return round((time.monotonic() - since) * 1000)

    def set_limit(self, limit, names=GATEWAYS):
        """Changes the policies; the milliseconds until all Envoys enforce the last one."""
        taken = []
        for name in names:
            since = time.monotonic()
            if limit:
                self.api.apply(objects.policy(name, limit))
            else:
                self.api.delete("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy",
                                "default", name)
            taken.append(self.await_limit(limit, since, [name]))
        return taken

    def admitted(self, name, count):
        """How many of so many requests of one new user pass."""
        user = self.user()
        statuses = [self.clients[name].get(user)[0] for _ in range(count)]
        if set(statuses) - {200, 429}:
            raise Failed(f"{name} answers {sorted(set(statuses))}")
        return statuses.count(200)

    def require_limit(self, limit, names=GATEWAYS):
        """Each user passes `limit` times, and not once more."""
        for name in names:
            got = self.admitted(name, limit + 3)
            if got != limit:
                raise Failed(f"{got} of {limit + 3} passed at {name}, of a limit of {limit}")

    def enforced(self, limit, names=GATEWAYS):
        """Sets a limit, and requires that it is enforced soon."""
        taken = self.set_limit(limit, names)
        if limit:
            self.require_limit(limit, names)
        if max(taken) > ENFORCED_MAX:
            raise Failed(f"enforced after {taken} ms")
        return taken

    def metric(self, name):
        """The sum of a metric of ratelease, from the port that its pod's annotations name."""
        return scrape(self.service.address, "/metrics", rf"{name}(?:{{[^}}]*}})?")

    def errors_at_envoys(self):
        """Calls to the rate limit service that failed, after which Envoy lets the request pass."""
        name = r"envoy_cluster_ratelimit_error{[^}]*}"
        return sum(scrape(pod.address, "/stats/prometheus", name) for pod in self.pods.values())


def scrape(address, path, name):
    """The sum of the samples whose name and labels match."""
    with urllib.request.urlopen(f"http://{address}:19001{path}", timeout=5) as reply:
        text = reply.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name} (\S+)$", text, re.MULTILINE))
