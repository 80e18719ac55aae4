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
from pathlib import Path

import bootstrap
import injection
import objects
import quota
from api import Api, Failed, until
from injection import LIFETIME, NAME, PATIENT, STATUS, SYSTEM, await_log, is_injected
from injection import require, sidecars
from load import Client
from pods import BRIDGE, Node, Pod, run

SHOP = "shop"
ADDRESSES = {"tcp": "10.77.0.11", "uds": "10.77.0.12"}

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
        for name, labels in [(SHOP, {"ratelease.io/injection": "enabled"}), ("plain", {})]:
            it = objects.namespace(name)
            it["metadata"]["labels"] = labels
            self.api.apply(it)
        meta = objects.meta("shop-rules", SHOP)
        self.api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta,
                        "data": {"shop.yaml": RULES}})
        injection.install(self.api, self.given.chart)

    def start_injector(self):
        self.injector = injection.start(self.node, self.given.injector)
        until("the webhook", lambda: is_injected(self.create(pod("probe"), "?dryRun=All")[0]))

    def create(self, of, query="?fieldValidation=Strict"):
        return injection.create(self.api, of, query)

    def start_pod(self, name, annotations):
        """Creates a pod, and starts what is in the Pod that the API server has stored."""
        _, warnings = self.create(pod(name, annotations))
        require(not warnings, f"{name}: {warnings}")
        stored = self.api.get("v1", "Pod", SHOP, name)
        require(is_injected(stored), f"{name}: {stored['metadata']}")
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
        require(is_injected(found), f"{found['metadata']}")
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
        with socket.create_connection((injection.ADDRESS, 8443), 5) as plain, \
                tls.wrap_socket(plain, server_hostname=f"{NAME}.{SYSTEM}.svc") as secured:
            return secured.getpeercert(True)

    def renewed(self):
        """The certificate is replaced under requests; none of them goes without the sidecar."""
        former, is_over, results = self.secret(), threading.Event(), []
        def ask():
            while not is_over.wait(0.2):
                try:
                    results.append(is_injected(self.create(pod("any"), "?dryRun=All")[0]))
                except OSError as error:
                    results.append(error)
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        until("a new certificate", lambda: self.secret() != former, LIFETIME, every=0.5)
        await_log(self.node, "a new certificate is in force")
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
