#!/usr/bin/env python3
"""The injector on a real API server, and the pods that come of it; scripts/test-kubernetes starts
the API server and says what is proved.

The injector runs as the Deployment of the rendered chart says, with the rights of its
ServiceAccount. Pods are created in the API server, which calls the webhook. Of the Pod that it
stores, the sidecar and the Envoy are started in one network: with their command, arguments,
environment, volumes and user. There is no image: a program stands in for it.
"""

import argparse
import base64
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import bootstrap
import objects
import quota
from api import Api, Failed, until
from chart import documents
from istio import Istio
from load import Client
from pods import BRIDGE, Node, Pod, run

SYSTEM = "limits"  # the namespace that scripts/test-chart renders for
SHOP = "shop"
NAME = "ratelease-injector"
ADDRESSES = {"injector": "10.77.0.10", "tcp": "10.77.0.11", "uds": "10.77.0.12"}
LIFETIME = 90  # seconds of a certificate, which is replaced after two thirds of them
STATUS = "ratelease.io/status"
# A busy machine must not look like a Redis that is away: the failure mode would answer.
PATIENT = "LEASE_MAX_WAIT=1s\nLEASE_WAIT_LIMIT=1s"

RULES = """\
domain: shop
descriptors:
  - {key: generic_key, value: tcp, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: generic_key, value: uds, rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: generic_key, value: both, rate_limit: {unit: day, requests_per_unit: 10}}
"""


def say(text):
    print(text, file=sys.stderr, flush=True)


def pod(name, annotations=None, labels=None, **spec):
    """A pod with an Envoy."""
    listen = (annotations or {}).get("ratelease.io/listen")
    envoy = {
        "name": "envoy", "image": "envoyproxy/envoy", "command": ["envoy"],
        "args": ["--config-yaml", json.dumps(bootstrap.config(listen == "uds")),
                 "--log-level", "warn", "--disable-hot-restart", "--concurrency", "1"],
        "securityContext": {"runAsUser": 101, "runAsGroup": 101},
    }
    meta = objects.meta(name, SHOP, annotations=annotations or {}, labels=labels or {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta,
            "spec": {"containers": [envoy], **spec}}


def sidecars(of):
    """The names of the init containers and of the containers."""
    spec = of["spec"]
    lists = [spec.get("initContainers", []), spec["containers"]]
    return [[it["name"] for it in containers] for containers in lists]


def require(is_met, what):
    if not is_met:
        raise Failed(what)


class Test:
    def __init__(self, given):
        self.given, self.work = given, Path(given.work)
        self.api = Api(self.work / "kubeconfig")
        self.node = Node(self.api, self.work, [("redis", BRIDGE)])
        self.pods, self.rows, self.is_failed = {}, [], False

    # === What is started ===

    def start(self):
        self.node.start("redis", ["redis-server", "--bind", BRIDGE, "--protected-mode", "no",
                                  "--save", "", "--dir", self.work])
        for name, labels in [(SYSTEM, {}), (SHOP, {"ratelease.io/injection": "enabled"}),
                             ("plain", {})]:
            it = objects.namespace(name)
            it["metadata"]["labels"] = labels
            self.api.apply(it)
        meta = objects.meta("shop-rules", SHOP)
        self.api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta,
                        "data": {"shop.yaml": RULES}})
        for version, kind, name, text in documents(Path(self.given.chart).read_text()):
            self.api.patch(self.api.path(version, kind, SYSTEM, name), text)

    def start_injector(self):
        """The injector as its Deployment says, with a token of its ServiceAccount."""
        found = self.api.get("apps/v1", "Deployment", SYSTEM, NAME)
        spec = found["spec"]["template"]["spec"]
        container = spec["containers"][0]
        container["args"] = [f"--certificate-lifetime={LIFETIME}s" if "lifetime" in it else it
                             for it in container["args"]]
        # The API server is of 1.31, where a node may be too old for them.
        container["args"].append("--default=native-sidecar=true")
        # What the API server adds for the ServiceAccount, and the kubelet for the API server.
        at = self.work / "token"
        at.mkdir()
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{spec['serviceAccountName']}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.api.request("POST", path, json.dumps(asked).encode())["status"]["token"]
        (at / "token").write_text(token)
        (at / "namespace").write_text(SYSTEM)
        (at / "ca.crt").write_bytes((self.work / "apiserver/apiserver.crt").read_bytes())
        spec.setdefault("volumes", []).append({"name": "token", "hostPath": {"path": str(at)}})
        container.setdefault("volumeMounts", []).append(
            {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"})
        container["env"] = [{"name": "KUBERNETES_SERVICE_HOST", "value": BRIDGE},
                            {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"}]
        self.injector = Pod(self.node, "injector", ADDRESSES["injector"], found, "injector",
                            self.given.injector)
        self.injector.start()
        self.await_log("serving address")
        addresses = [ADDRESSES["injector"]]
        self.api.apply(objects.endpoints(NAME, SYSTEM, addresses, 8443, "https"))
        self.api.apply({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": objects.meta(NAME, SYSTEM),
            "subsets": [{"addresses": [{"ip": ADDRESSES["injector"]}],
                         "ports": [{"name": "https", "port": 8443}]}]})
        until("the webhook", lambda: self.is_injected(self.create(pod("probe"), "?dryRun=All")[0]))

    def await_log(self, text):
        def is_there():
            self.node.require_alive()
            return text in self.node.log("injector")
        until(f"{text!r} in the log of the injector", is_there)

    def create(self, of, query="?fieldValidation=Strict"):
        """Creates a pod; the pod as it is stored, and the warnings of the API server."""
        path = f"{self.api.server}/api/v1/namespaces/{of['metadata']['namespace']}/pods{query}"
        headers = {"Authorization": f"Bearer {self.api.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(path, json.dumps(of).encode(), headers, method="POST")
        try:
            with self.api.opener.open(request, timeout=20) as reply:
                return json.loads(reply.read()), reply.headers.get_all("Warning") or []
        except urllib.error.HTTPError as error:
            raise Failed(f"{error.code} {error.read().decode(errors='replace')[:2000]}") from None

    def is_injected(self, of):
        return of["metadata"].get("annotations", {}).get(STATUS) == "injected"

    def start_pod(self, name, annotations):
        """Creates a pod, and starts what is in the Pod that the API server has stored."""
        _, warnings = self.create(pod(name, annotations))
        require(not warnings, f"{name}: {warnings}")
        stored = self.api.get("v1", "Pod", SHOP, name)
        require(self.is_injected(stored), f"{name}: {stored['metadata']}")
        require(sidecars(stored) == [["ratelease"], ["envoy"]], f"{name}: {sidecars(stored)}")
        shape = {"metadata": stored["metadata"], "spec": {"template": {"spec": stored["spec"]}}}
        sidecar = Pod(self.node, name, ADDRESSES[name], shape, "ratelease", self.given.ratelease)
        envoy = Pod(self.node, f"{name}-envoy", ADDRESSES[name], shape, "envoy", self.given.envoy,
                    beside=sidecar)
        for it in (sidecar, envoy):
            it.start()
        self.pods[name] = sidecar, Client((ADDRESSES[name], bootstrap.HTTP), "shop")
        def is_up():
            self.node.require_alive()
            try:
                return self.pods[name][1].get({}, "/up")[0] == 200
            except OSError:
                return False
        until(f"the Envoy of {name}", is_up)
        until(f"rules in {name}", lambda: "requests_per_unit=10" in self.rules(sidecar))

    def rules(self, sidecar):
        try:
            return sidecar.within("curl", "--silent", "http://127.0.0.1:6070/rlconfig")
        except Failed:
            return ""

    # === Steps ===

    def admitted(self, name, path, count):
        statuses = [self.pods[name][1].get({}, path)[0] for _ in range(count)]
        require(not set(statuses) - {200, 429}, f"{name}: {sorted(set(statuses))}")
        return statuses.count(200)

    def limited(self, name, limit, annotations):
        def act():
            self.start_pod(name, {"ratelease.io/redis": "redis:6379", "ratelease.io/env": PATIENT,
                                  **annotations})
            got = self.admitted(name, f"/{name}", limit + 3)
            require(got == limit, f"{got} of {limit + 3} pass")
            sidecar = self.pods[name][0]
            env = [f"{key}={value}" for key, value in sidecar.environment().items()]
            sidecar.within("env", *env, self.given.ratelease, "health")
            return f"{got} of {limit + 3} pass; the liveness probe succeeds"
        return act

    def shared(self):
        got = [self.admitted(name, "/both", 8) for name in self.pods]
        require(sum(got) == 10, f"{got} of 8 each pass")
        return f"{got[0]} and {got[1]} of 8 pass, of 10 for both"

    def beside_istio(self, name):
        """Before or after the webhook of a stand-in for Istio's injector, by the order of names."""
        def act():
            istio = Istio((BRIDGE, 0), self.work)
            self.api.apply(istio.configuration(name))
            for listen in ("8081", "uds"):
                of = pod(f"{name}-{listen}", {"ratelease.io/listen": listen}, {"mesh": name})
                def is_called():
                    self.create(of, "?dryRun=All")
                    return istio.calls
                until("the call of the other webhook", is_called)
                found, _ = self.create(of)
                names = sidecars(found)
                require(names == [["istio-proxy", "ratelease", "istio-init"], ["envoy"]]
                        or names == [["istio-proxy", "istio-init", "ratelease"], ["envoy"]],
                        f"{names}")
                proxy = found["spec"]["initContainers"][0]
                mounts = [it["mountPath"] for it in proxy.get("volumeMounts", [])]
                require(("/run/ratelease" in mounts) == (listen == "uds"), f"{mounts}")
            self.api.delete("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", None,
                            name)
            return " ".join(names[0])
        return act

    def faulty(self):
        """Bad pods are stored as they are, and a warning has the reason."""
        taken = {"containerPort": 8081}
        cases = [
            ({"ratelease.io/rules": "git:shop"}, {}, "unknown source of rules"),
            ({"ratelease.io/memory-limit": "64MB"}, {}, "expected a quantity above 0"),
            ({"ratelease.io/env": "LEASE_MAX_WAIT=5"}, {}, "LEASE_MAX_WAIT: expected"),
            ({}, {"hostNetwork": True}, "the node's loopback"),
            ({}, {"containers": [{"name": "app", "image": "app", "ports": [taken]}]},
             "port 8081 is taken by the container app"),
            ({}, {"containers": [{"name": "ratelease", "image": "x"}]}, "no injector added"),
        ]
        for at, (annotations, spec, expected) in enumerate(cases):
            found, warnings = self.create(pod(f"faulty-{at}", annotations, **spec))
            require(any(expected in it for it in warnings), f"{expected}: {warnings}")
            status = found["metadata"]["annotations"][STATUS]
            require(status.startswith("not injected: ") and expected in status, status)
            require(not sidecars(found)[0], f"{sidecars(found)}")
        return f"{len(cases)} pods stored, each with a warning"

    def namespaces(self):
        of = pod("web")
        of["metadata"]["namespace"] = "plain"
        found, warnings = self.create(of)
        require(not warnings and STATUS not in found["metadata"].get("annotations", {}), "touched")
        of = pod("asking", labels={"ratelease.io/inject": "true"})
        of["metadata"]["namespace"] = "plain"
        _, warnings = self.create(of)
        require("kubectl label namespace plain" in str(warnings), f"{warnings}")
        found, _ = self.create(pod("out", labels={"ratelease.io/inject": "false"}))
        require(not sidecars(found)[0], "opted out")
        return "untouched without the label; a warning names the command; opted out"

    def dry_run(self):
        found, _ = self.create(pod("dry"), "?dryRun=All")
        require(self.is_injected(found), f"{found['metadata']}")
        require(self.api.get("v1", "Pod", SHOP, "dry") is None, "it is stored")
        return "injected, and nothing stored"

    def files(self):
        """What the command for files writes is taken by the API server, with every field known."""
        template = pod("web")
        labels = {"app": "web"}
        template["metadata"] = {"labels": labels, "annotations": {"ratelease.io/listen": "uds"}}
        deployment = {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": objects.meta("web", SHOP),
            "spec": {"selector": {"matchLabels": labels},
                     "template": {"metadata": template["metadata"], "spec": template["spec"]}}}
        defaults = ["redis=redis:6379", "rules=shop-rules", "key-secret=a/b"]
        injected = run(self.given.injector, "inject",
                       *(word for value in defaults for word in ["--default", value]),
                       input=json.dumps(deployment))
        path = self.api.path("apps/v1", "Deployment", SHOP, "web")
        query = "?fieldManager=test&force=true&dryRun=All&fieldValidation=Strict"
        kind = "application/apply-patch+yaml"
        found = self.api.request("PATCH", path + query, injected.encode(), kind)
        names = sidecars(found["spec"]["template"])
        require(names == [["ratelease"], ["envoy"]], f"{names}")
        return "a Deployment with the sidecar is taken"

    def secret(self):
        found = self.api.get("v1", "Secret", SYSTEM, NAME)
        return base64.b64decode(found["data"]["tls.crt"])

    def served(self):
        """The certificate that a client gets who trusts what the API server trusts."""
        kind = "MutatingWebhookConfiguration"
        found = self.api.get("admissionregistration.k8s.io/v1", kind, None, NAME)
        authorities = {it["clientConfig"]["caBundle"] for it in found["webhooks"]}
        require(len(authorities) == 1, "the webhooks trust different authorities")
        bundle = base64.b64decode(authorities.pop()).decode()
        tls = ssl.create_default_context(cadata=bundle)
        with socket.create_connection((ADDRESSES["injector"], 8443), 5) as plain, \
                tls.wrap_socket(plain, server_hostname=f"{NAME}.{SYSTEM}.svc") as secured:
            return secured.getpeercert(True)

    def renewed(self):
        """The certificate is replaced under requests; none of them goes without the sidecar."""
        former, is_over, results = self.secret(), threading.Event(), []
        def ask():
            while not is_over.wait(0.2):
                try:
                    results.append(self.is_injected(self.create(pod("any"), "?dryRun=All")[0]))
                except OSError as error:
                    results.append(error)
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        until("a new certificate", lambda: self.secret() != former, LIFETIME, every=0.5)
        self.await_log("a new certificate is in force")
        until("requests after it", lambda count=len(results): len(results) > count + 20)
        is_over.set()
        thread.join()
        require(self.served() == ssl.PEM_cert_to_DER_cert(self.secret().decode()),
                "another certificate than the Secret's is served")
        bad = [it for it in results if it is not True]
        require(not bad, f"{len(bad)} of {len(results)} pods: {bad[:3]}")
        return f"{len(results)} pods under way, all injected"

    def ended(self):
        """Without an injector pods start without the sidecar: failurePolicy Ignore."""
        status = self.injector.stop()
        require(status == 0, f"the injector ended with {status}")
        found, _ = self.create(pod("later"))
        require(not sidecars(found)[0], f"{sidecars(found)}")
        for name, (sidecar, _) in self.pods.items():
            require(sidecar.stop() == 0, f"the sidecar of {name} did not end with 0")
        return "the injector and both sidecars ended with 0; a pod starts without"

    def step(self, name, act):
        try:
            seen, word = act(), "ok"
        except (Failed, OSError) as error:
            seen, word = str(error) or repr(error), "FAILED"
            self.is_failed = True
        self.rows.append((name, seen, word))
        print(f"{word:<8} {name}: {seen}", flush=True)

    def run(self):
        self.start()
        self.start_injector()
        for name, act in [
            ("a pod is injected and limited over TCP", self.limited("tcp", 5, {})),
            ("another over a Unix socket",
             self.limited("uds", 4, {"ratelease.io/listen": "uds"})),
            ("both share a limit", self.shared),
            ("before a stand-in of Istio's injector", self.beside_istio("z-istio")),
            ("after it", self.beside_istio("a-istio")),
            ("pods with faults", self.faulty),
            ("a quota of limits of CPU", lambda: quota.check(self.api, pod, self.create)),
            ("labels", self.namespaces),
            ("dry run", self.dry_run),
            ("inject of files", self.files),
            ("the certificate is replaced", self.renewed),
            ("the injector ends", self.ended),
        ]:
            self.step(name, act)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["work", "ratelease", "injector", "envoy", "chart"]:
        parser.add_argument(f"--{name}", required=True)
    test = Test(parser.parse_args())
    try:
        test.run()
    except (Failed, OSError, subprocess.SubprocessError) as error:
        say(f"failed: {error}")
        test.is_failed = True
    if test.is_failed:
        for name in ["injector", "tcp", "tcp-envoy", "uds", "uds-envoy"]:
            say(test.node.tail(name))
    return 1 if test.is_failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
