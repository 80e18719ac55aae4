"""What scripts/test-istio shows: the recipes for Istio, their changes, and both injectors."""

import itertools
import json
import re
import time

import injection
import objects
from api import until
from in_force import fetch
from injection import PATIENT, is_injected, require, sidecars
from load import Load
from mesh import APP, REDIS, Door, Strangers, Workload

ENFORCED_MAX = 1000  # milliseconds from a change in the API server until it is enforced
LOAD = 2  # seconds of load before and after a change
FILTER = "networking.istio.io/v1alpha3", "EnvoyFilter", "shop"
HOST = "shop.example.com"
METRICS = "http://127.0.0.1:6070/metrics"  # of ratelease, within its pod
SERVICE = "shop.shop.svc.cluster.local"
RECIPE = "istio-loopback"  # of the sidecar of a pod
ISTIO_WEBHOOKS = "istio-sidecar-injector"
# So that Envoy shows its counters of rate limits, which Istio hides.
COUNTERS = {"sidecar.istio.io/statsInclusionRegexps": ".*(ratelimit|ratelease).*"}
REDIS_DIRECTLY = {"traffic.sidecar.istio.io/excludeOutboundPorts": "6379"}
APPLICATION = {"name": "app", "image": "app", "ports": [{"containerPort": APP}]}
SHOP = {"app": "shop"}


def sidecar(rules, **more):
    """Annotations for the injector."""
    more = {f"ratelease.io/{name}": value for name, value in more.items()}
    redis = ",".join(f"{name}:6379" for name in REDIS)
    return {"ratelease.io/redis": redis, "ratelease.io/redis-type": "cluster",
            "ratelease.io/rules": rules, "ratelease.io/env": PATIENT, **COUNTERS, **more}


def pod(name, annotations, labels=None, namespace="shop", containers=None):
    labels = SHOP if labels is None else labels
    meta = objects.meta(name, namespace, labels=labels, annotations=annotations)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta,
            "spec": {"serviceAccountName": "shop", "containers": containers or [APPLICATION]}}


def apply_deployment(api, of):
    """A Deployment `shop` of such pods; its path."""
    meta = {key: of["metadata"][key] for key in ["labels", "annotations"]}
    api.apply({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": objects.meta("shop", "shop"),
        "spec": {"selector": {"matchLabels": SHOP},
                 "template": {"metadata": meta, "spec": of["spec"]}}})
    return api.path("apps/v1", "Deployment", "shop", "shop")


def pod_of(template, name):
    """A pod of a Deployment in `shop`."""
    return {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
            "metadata": {**template["metadata"], **objects.meta(name, "shop")}}


class Part:
    name = ""
    counters = "ratelimit"  # what Envoy counts answers under
    labels = {"istio-injection": "enabled", "ratelease.io/injection": "enabled"}

    def __init__(self, mesh, report):
        self.mesh, self.report, self.pods, self.doors = mesh, report, [], []
        self.missed = 0  # calls that failed where they may

    def steps(self):
        """Pairs of what is done, and the function that does it."""
        raise NotImplementedError

    def run(self):
        """Runs the steps until one fails."""
        self.mesh.namespace("shop", **self.labels)
        try:
            for step, act in self.steps():
                if not self.report.check(self.name, step, act):
                    break
        finally:
            self.mesh.stop(self.pods)
            for name in ["ratelease", "ratelease-gateway"]:
                self.mesh.api.delete(*FILTER, name)

    # === What recipes have in common ===

    def start_pods(self):
        """Starts the pods behind one Service, each with a door; their containers."""
        self.mesh.service("shop", APP, self.pods)
        for it in self.pods:
            it.start()
            self.doors.append(Door(self.mesh, it.address, APP, SERVICE))
        return "; ".join(it.order() for it in self.pods)

    def applied(self, recipe, name="envoyfilter.yaml", change=lambda text: text):
        """Applies an EnvoyFilter; how long it took until all Envoys enforced it."""
        return self.until_limit(4, lambda: self.mesh.apply_file(recipe, name, change))

    def added(self, recipe):
        """The same where there was none. The cluster of ratelease and the filter come in different
        messages: calls in between never leave Envoy, which lets the requests pass."""
        return self.forgiven(lambda: self.applied(recipe))

    def removed(self, name="ratelease"):
        return self.forgiven(
            lambda: self.until_limit(0, lambda: self.mesh.api.delete(*FILTER, name)))

    def forgiven(self, act):
        """Does something in which calls to ratelease may fail."""
        before = self.errors()
        seen = act()
        self.missed += self.errors() - before
        return seen

    def until_limit(self, limit, act, most=ENFORCED_MAX):
        """The time from a change until the answers of all Envoys show a limit, or none; `most` is
        how long it may be, in milliseconds."""
        since = time.monotonic()
        act()
        for at, door in enumerate(self.doors):
            until(f"the limit {limit} at Envoy {at}", lambda: door.limit() == limit, 30, 0.005)
        taken = round((time.monotonic() - since) * 1000)
        require(taken <= most, f"enforced after {taken} ms")
        return f"after {taken} ms"

    def limited(self):
        """Both limits of the recipe, at one Envoy: 4 of a client, 2 of them for /export."""
        client = self.mesh.client()
        seen = []
        for path in ["/export"] * 3 + ["/"] * 3:
            status, headers = self.doors[0].get(client, path)
            seen.append((status, int(headers["x-ratelimit-remaining"])))
        wanted = [(200, 1), (200, 0), (429, 0)] * 2
        require(seen == wanted, f"{seen} instead of {wanted}")
        return "2 of 3 to /export and 2 of 3 to / pass, with Envoy's headers"

    def shared(self):
        """One limit for all pods, once each has its Redis: one that reaches it through istio-proxy may
        have begun without, and counts alone until it has a connection."""
        for at, it in enumerate(self.pods):
            until(f"Redis at {it.name}", lambda: self.has_leased(at), 20)
        client, doors = self.mesh.client(), itertools.cycle(self.doors)
        statuses = [next(doors).get(client)[0] for _ in range(8)]
        # A pod may have leased more than its half.
        require(sorted(statuses) == [200] * 4 + [429] * 4, f"{statuses}")
        return "4 of 8 pass, sent to both pods in turn"

    def has_leased(self, at):
        """Sends a request; whether ratelease in a pod has had tokens from Redis."""
        self.doors[at].get()
        container = self.pods[at].containers.get("ratelease")
        # The engine inside Envoy has no such port.
        leased = r'^ratelease_decisions_total\{.*how="leased".*\} [1-9]'
        return not container or re.search(leased, fetch(container, METRICS), re.MULTILINE)

    def restarted(self):
        """ratelease ends in a pod, and starts again."""
        client, door, of = self.mesh.client(), self.doors[0], self.pods[0]
        require(door.statuses(5, client) == [200] * 4 + [429], "not limited before")
        def act():
            status = of.containers["ratelease"].stop()
            require(status == 0, f"ratelease ended with {status}")
            require(door.get(client)[0] == 200, "refused without ratelease")
            of.containers["ratelease"].start()
            until("a refusal", lambda: door.get(client)[0] == 429, 20, 0.05)
        self.forgiven(act)
        return "status 0; requests pass without it, then are refused as before"

    def errors(self):
        """Calls to ratelease that failed, in all Envoys."""
        return sum(it.stat(f"{self.counters}.error") or 0 for it in self.pods)

    def counted(self):
        errors = self.errors()
        require(errors == self.missed, f"{errors} calls failed, {self.missed} of them may")
        passed = sum(it.stat(f"{self.counters}.ok") or 0 for it in self.pods)
        require(passed > 0, "Envoy counted no call")
        missed = f", but for {self.missed} of the steps in which they may" if self.missed else ""
        return f"{passed} calls passed; 0 failed{missed}"


class Install(Part):
    """The path of docs/install.md in Istio, whose chart is installed: a Deployment without a word
    of ratelease gets it."""

    name = "install"
    labels = {"istio-injection": "enabled"}

    def steps(self):
        return [
            ("the commands up to the restart", self.applied_as_shown),
            ("a pod starts", self.started),
            ("the requests and the live page", self.denied),
            ("calls that failed", self.counted),
        ]

    def applied_as_shown(self):
        apply_deployment(self.mesh.api, pod("shop", {**COUNTERS, "ratelease.io/env": PATIENT}))
        self.mesh.page.run("rollout restart")
        return f"{self.mesh.page.count} commands"

    def started(self):
        made = self.mesh.api.get("apps/v1", "Deployment", "shop", "shop")["spec"]["template"]
        require("kubectl.kubernetes.io/restartedAt" in made["metadata"]["annotations"],
                "the Deployment is not restarted")
        self.pods.append(Workload(self.mesh, "10.77.0.60", pod_of(made, "install-1")))
        require(is_injected(self.pods[0].stored), f"{self.pods[0].stored['metadata']}")
        seen = self.start_pods()
        until("the limit", lambda: self.doors[0].limit() == 4)
        return seen

    def denied(self):
        return self.mesh.page.require_denial(self.pods[0].address, APP, self.pods[0].within)


class Loopback(Part):
    """The recipe istio-loopback, with sidecars of the injector: one pod where istio-proxy is a
    native sidecar and Redis is asked directly, and one where it is a container and carries all
    that ratelease sends."""

    name = "loopback"

    def steps(self):
        return [
            ("two pods start", self.started),
            ("EnvoyFilter applied", lambda: self.added(RECIPE)),
            ("requests of one client", self.limited),
            ("one limit for both pods", self.shared),
            ("an address that the client claims", self.believed),
            ("changed under load", self.changed),
            ("istiod restarted under load", self.restarted_istiod),
            ("removed", self.removed),
            ("applied again", lambda: self.added(RECIPE)),
            ("ratelease restarted", self.restarted),
            ("calls that failed", self.counted),
        ]

    def started(self):
        self.mesh.apply_rules(RECIPE, "shop-rules")
        container = {"sidecar.istio.io/nativeSidecar": "false"}
        of = [pod("loopback-1", {**sidecar("shop-rules"), **REDIS_DIRECTLY}),
              pod("loopback-2", {**sidecar("shop-rules"), **container})]
        for at, it in enumerate(of):
            self.pods.append(Workload(self.mesh, f"10.77.0.{20 + at}", it))
        for it in self.pods:
            require(is_injected(it.stored), f"{it.name}: {it.stored['metadata']}")
        return self.start_pods()

    def believed(self):
        """A sidecar takes a client's address from a header that the client can write."""
        claim = lambda it, client: self.doors[0].get(client, headers={"x-forwarded-for": it})[0]
        one, name = self.mesh.client(), self.mesh.client()
        alone = [claim(self.mesh.client(), one) for _ in range(6)]
        shared = [claim(name, self.mesh.client()) for _ in range(6)]
        require(alone == [200] * 6 and shared == [200] * 4 + [429] * 2, f"{alone} {shared}")
        return "x-forwarded-for is the address: 6 of 6 pass with six, 4 of 6 with one"

    def under_load(self, act):
        """Does something while clients send requests: those who have sent nothing yet, who must
        pass, and one at each pod who is over the limit, who must not."""
        loads = []
        for door in self.doors:
            client = self.mesh.client()
            door.statuses(4, client)
            loads += [Strangers(door), Load(door.at, door.host, {}, 429, source=client)]
        errors = self.errors()
        try:
            time.sleep(LOAD)
            seen = act()
            time.sleep(LOAD)
        finally:
            for load in loads:
                load.stop()
        errors = self.errors() - errors
        faults = [fault for load in loads for fault in load.failures]
        require(not faults, f"{seen}: {len(faults)} wrong answers: {faults[:5]}; {errors} errors")
        require(all(load.sent > 20 for load in loads), "too few requests")
        return f"{seen}; {sum(load.sent for load in loads)} answers, none wrong"

    def changed(self):
        def change():
            return f"headers off {self.headers_off()}, on {self.applied(RECIPE)}"
        return self.under_load(change)

    def headers_off(self, most=ENFORCED_MAX):
        off = lambda text: text.replace("DRAFT_VERSION_03", "\"OFF\"")
        return self.until_limit(0, lambda: self.mesh.apply_file(
            RECIPE, "envoyfilter.yaml", off), most)

    def restarted_istiod(self):
        def change():
            self.mesh.restart_istiod(lambda: time.sleep(LOAD))
            # pilot-agent connects again after a time that it draws.
            taken = self.headers_off(30_000)
            return f"Envoy takes a change {taken} of it, and another {self.applied(RECIPE)}"
        return self.under_load(change)


class Pipe(Part):
    """The recipe istio-pipe: a pod of its Deployment as the file says, and one of the injector."""

    name = "pipe"

    def steps(self):
        return [
            ("two pods start", self.started),
            ("EnvoyFilter applied", lambda: self.added("istio-pipe")),
            ("requests of one client", self.limited),
            ("one limit for both pods", self.shared),
            ("ratelease restarted", self.restarted),
            ("calls that failed", self.counted),
            ("removed", self.removed),
        ]

    def started(self):
        self.mesh.apply_rules("istio-pipe", "ratelease-rules")
        of = [self.of_the_deployment(),
              pod("pipe-2", sidecar("ratelease-rules", listen="uds"))]
        for at, it in enumerate(of):
            self.pods.append(Workload(self.mesh, f"10.77.0.{30 + at}", it))
        return self.start_pods()

    def of_the_deployment(self):
        """A pod of a Deployment with an application, once the recipe's file is merged into it."""
        api = self.mesh.api
        path = apply_deployment(
            api, pod("shop", COUNTERS, {**SHOP, "ratelease.io/inject": "false"}))
        head = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: shop}\n"
        api.patch(path, head + self.mesh.file("istio-pipe", "deployment.yaml"), "recipe")
        of = pod_of(api.request("GET", path)["spec"]["template"], "pipe-1")
        container = next(it for it in of["spec"]["initContainers"] if it["name"] == "ratelease")
        container["env"] += [dict(zip(["name", "value"], line.split("=")))
                             for line in PATIENT.splitlines()]
        return of


class Gateway(Part):
    """The recipe istio-gateway, and mTLS from the gateway, and from a client, to the application."""

    name = "gateway"

    def steps(self):
        return [
            ("gateway, application and client start", self.started),
            ("EnvoyFilter applied", lambda: self.added("istio-gateway")),
            ("requests of one client", self.limited),
            ("an address that the client claims", self.claimed),
            ("strict mTLS", self.strict),
            ("a limit at the application, over mTLS", self.over_mtls),
            ("calls that failed", self.counted),
            ("plaintext again", self.relaxed),
        ]

    def started(self):
        mesh = self.mesh
        mesh.apply_rules("istio-gateway", "gateway-rules")
        mesh.apply_rules(RECIPE, "shop-rules")
        mesh.apply_file("istio-gateway", "gateway.yaml")
        mesh.namespace("clients", **{"istio-injection": "enabled"})
        of = [self.of_the_deployment(), pod("gateway-app", sidecar("shop-rules")),
              pod("client", {}, {"app": "client"}, "clients")]
        self.pods = [Workload(mesh, f"10.77.0.{40 + at}", it) for at, it in enumerate(of)]
        gateway, app, client = self.pods
        mesh.service("shop", APP, [app])
        for it in self.pods:
            it.start()
        self.doors = [Door(mesh, gateway.address, 80, HOST)]
        until("the route of the gateway", lambda: self.doors[0].limit() == 0)
        return "; ".join(it.order() for it in self.pods)

    def of_the_deployment(self):
        """A pod of the recipe's Deployment."""
        made = self.mesh.api.get("apps/v1", "Deployment", "shop", "gateway")["spec"]["template"]
        of = pod_of(made, "gateway")
        of["metadata"]["annotations"].update({**COUNTERS, "ratelease.io/env": PATIENT})
        of["spec"]["serviceAccountName"] = "shop"
        return of

    def claimed(self):
        """At a gateway a client cannot choose its address."""
        client = self.mesh.client()
        statuses = [self.doors[0].get(client, headers={"x-forwarded-for": f"192.0.2.{at}"})[0]
                    for at in range(6)]
        require(statuses == [200] * 4 + [429] * 2, f"{statuses}")
        return "4 of 6 pass, each with another x-forwarded-for"

    def strict(self):
        """Then the application takes mTLS alone."""
        self.mesh.api.apply({
            "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
            "metadata": objects.meta("default", "shop"), "spec": {"mtls": {"mode": "STRICT"}}})
        until("a refusal of plaintext", self.refuses_plaintext)
        seen = [self.doors[0].get()[0], self.call()]
        require(seen == [200, 200], f"gateway and client: {seen}")
        # Its identity is what the certificate of the client says.
        self.allow("cluster.local/ns/shop/sa/shop")
        until("a refusal of the client", lambda: self.call() == 403, 10)
        require(self.doors[0].get()[0] == 200, "the gateway is refused")
        self.allow("cluster.local/ns/shop/sa/shop", "cluster.local/ns/clients/sa/shop")
        # Connections that Envoy has may end with the former policy.
        until("calls of the client", lambda: [self.call() for _ in range(5)] == [200] * 5, 20)
        return "plaintext is refused; gateway and client pass, by their identities"

    def refuses_plaintext(self):
        try:
            return Door(self.mesh, self.pods[1].address, APP, SERVICE).get()[0] != 200
        except OSError:
            return True

    def allow(self, *principals):
        """The application takes calls of these identities alone."""
        rules = [{"from": [{"source": {"principals": list(principals)}}]}]
        self.mesh.api.apply({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": objects.meta("shop", "shop"),
            "spec": {"selector": {"matchLabels": SHOP}, "action": "ALLOW", "rules": rules}})

    def call(self):
        """The status of a call of the Service from the client's pod, through its Envoy."""
        service = self.mesh.api.get("v1", "Service", "shop", "shop")["spec"]["clusterIP"]
        return int(self.pods[2].within(
            "curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}",
            "--max-time", "5", "--resolve", f"{SERVICE}:{APP}:{service}",
            f"http://{SERVICE}:{APP}/"))

    def over_mtls(self):
        self.removed("ratelease-gateway")
        self.added(RECIPE)
        client = self.mesh.client()
        self.passes_four("a client in the mesh", self.call)
        self.passes_four("a client of the gateway", lambda: self.doors[0].get(client)[0])
        return "4 calls pass, of a client in the mesh, and of one behind the gateway"

    def relaxed(self):
        """Takes away what pods of later parts would be under."""
        for kind, name in [("PeerAuthentication", "default"), ("AuthorizationPolicy", "shop")]:
            self.mesh.api.delete("security.istio.io/v1", kind, "shop", name)
        self.mesh.api.delete(*FILTER, "ratelease")
        until("an answer in plaintext", lambda: not self.refuses_plaintext())
        return "after the policies are removed"

    def passes_four(self, name, call):
        """A client who has called nothing yet: ratelease lets four calls pass. Connections from
        before the filter carry further ones past it until Envoy has drained them."""
        passed = lambda: self.pods[1].stat("ratelimit.ok") or 0
        before = passed()
        until(f"a refusal of {name}", lambda: call() == 429, 20)
        require(passed() - before == 4, f"{name}: {passed() - before} calls passed ratelease")


class Module(Part):
    """The engine inside Envoy, which the injector brings into two pods."""

    name = "module"
    counters = "ratelease"

    def steps(self):
        return [
            ("two pods start", self.started),
            ("EnvoyFilter applied", self.added),
            ("requests of one client", self.limited),
            ("one limit for both pods", self.shared),
            ("removed", self.removed),
            ("applied again", self.added),
            ("requests of another client", self.limited),
            ("calls that failed", self.counted),
        ]

    def started(self):
        self.mesh.apply_rules(RECIPE, "module-rules")
        for at in range(2):
            of = pod(f"module-{at + 1}", sidecar("module-rules", mode="module"))
            self.pods.append(Workload(self.mesh, f"10.77.0.{50 + at}", of))
        return self.start_pods()

    def added(self):
        return self.applied(RECIPE, "envoyfilter-module.yaml")


class Injection(Part):
    """Pods that both injectors change, called in one order and in the other."""

    name = "injection"

    def steps(self):
        return [("Istio's is called first", self.both),
                ("Istio's is called second", self.swapped)]

    def both(self, expected=""):
        """Of each form of pod: what both injectors make of it. A warning may say `expected`."""
        gateway = {"inject.istio.io/templates": "gateway"}
        forms = [({}, None), ({"sidecar.istio.io/nativeSidecar": "false"}, None),
                 (gateway, [{"name": "istio-proxy", "image": "auto"}])]
        seen = {}
        for (annotations, containers), listen in itertools.product(forms, ["8081", "uds"]):
            of = pod("both", {**sidecar("shop-rules", listen=listen), **annotations},
                     containers=containers)
            found, warnings = injection.create(self.mesh.api, of, "?dryRun=All")
            warnings = [it for it in warnings if not expected or expected not in it]
            require(not warnings and is_injected(found), f"{warnings} {found['metadata']}")
            self.check(found, listen == "uds")
            seen[" | ".join(" ".join(names) for names in sidecars(found))] = True
        return "; ".join(seen)

    @staticmethod
    def check(found, is_uds):
        init, containers = sidecars(found)
        require([*init, *containers].count("ratelease") == 1, f"{init} {containers}")
        require([*init, *containers].count("istio-proxy") == 1, f"{init} {containers}")
        if "istio-proxy" in init:
            require(init.index("ratelease") > init.index("istio-proxy"), f"{init}")
        spec = found["spec"]
        proxy = next(it for it in [*spec.get("initContainers", []), *spec["containers"]]
                     if it["name"] == "istio-proxy")
        mounts = [it["mountPath"] for it in proxy["volumeMounts"]]
        require(("/run/ratelease" in mounts) == is_uds, f"mounts of istio-proxy: {mounts}")
        require("auto" != proxy["image"], "Istio's injector did nothing")

    def swapped(self):
        """API servers call webhooks in the order of their names: Istio's get a later one."""
        version, kind, _ = injection.WEBHOOKS
        former = self.mesh.api.get(version, kind, None, ISTIO_WEBHOOKS)
        meta = {"name": f"z-{ISTIO_WEBHOOKS}", "labels": former["metadata"]["labels"]}
        self.mesh.api.apply({"apiVersion": version, "kind": kind, "metadata": meta,
                             "webhooks": former["webhooks"]})
        self.mesh.api.delete(version, kind, None, ISTIO_WEBHOOKS)
        def are_called():
            found, _ = injection.create(self.mesh.api, pod("any", {}), "?dryRun=All")
            return "istio-proxy" in json.dumps(sidecars(found))
        until("the renamed webhooks", are_called)
        return self.both("one that a later webhook adds gets it")


# The last one changes the order of webhooks.
PARTS = {it.name: it for it in [Install, Loopback, Pipe, Gateway, Module, Injection]}
