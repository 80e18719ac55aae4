#!/usr/bin/env python3
"""Rules as objects on a real API server, and the pods that enforce them; scripts/test-kubernetes
starts the API server and says what is proved.

Two replicas of ratelease-control run as the Deployment of the rendered chart says, on one
PostgreSQL, with the rights of its ServiceAccount. A pod of ratelease has its rules from both.
"""

import argparse
import copy
import json
import math
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import injection
import objects
from api import Api, Failed, until
from injection import SYSTEM, in_cluster, require
from pods import BRIDGE, Node, Pod, run

KIND = "ratelease.io/v1alpha1", "RateLimitRules"
NAME = "ratelease-control"
REPLICAS = {"control-a": "10.77.0.21", "control-b": "10.77.0.22"}
DATABASE = "10.77.0.2"  # not the API server's address: that one is cut off
POD = "10.77.0.31"
# A rule of routing that drops what is sent to the API server.
TO_API_SERVER = f"priority 1 to {BRIDGE} ipproto tcp dport 6443 blackhole".split()
NAMESPACES = 100
CHANGES = 20


def say(text):
    print(text, file=sys.stderr, flush=True)


def rules(namespace, name, limit, domain=None, **more):
    """An object whose domain has one rule."""
    rule = {"key": "user", "rate_limit": {"unit": "day", "requests_per_unit": limit}}
    spec = {"domain": domain or namespace, "descriptors": [rule], **more}
    return {"apiVersion": KIND[0], "kind": KIND[1], "metadata": objects.meta(name, namespace),
            "spec": spec}


def condition(of, name):
    """The reason, and the message, of a condition that is about the present generation."""
    for it in (of or {}).get("status", {}).get("conditions", []):
        if it["type"] == name and it["observedGeneration"] == of["metadata"]["generation"]:
            return it["status"], it["reason"], it["message"]
    return None, None, None


class Test:
    def __init__(self, given):
        self.given, self.work = given, Path(given.work) / "rules"
        self.api = Api(f"{given.work}/kubeconfig")
        self.work.mkdir()
        (self.work / "apiserver").symlink_to("../apiserver")
        self.node = Node(self.api, self.work, [])
        self.controls, self.is_failed = {}, False

    # === What is started ===

    def start(self):
        self.start_database()
        crd = Path(self.given.definition).read_text()
        self.api.apply_yaml(crd)
        url = f"postgres://postgres@{DATABASE}/postgres?sslmode=disable"
        self.api.apply(objects.namespace(SYSTEM))
        self.api.apply({"apiVersion": "v1", "kind": "Secret",
                        "metadata": objects.meta("ratelease-database", SYSTEM),
                        "stringData": {"uri": url}})
        injection.install(self.api, self.given.chart)
        deployment = self.api.get("apps/v1", "Deployment", SYSTEM, NAME)
        spec = deployment["spec"]["template"]["spec"]
        require(spec["automountServiceAccountToken"], "the pods have no token")
        spec["containers"][0]["env"].append({"name": "CONTROL_POD_MEMORY", "value": "1Gi"})
        self.deployment = in_cluster(self.node, deployment)
        for name in REPLICAS:
            self.start_control(name)
        token = self.control("token", "create", "--name", "test", "--access", "admin",
                             "--database-url", url)
        self.token = token.strip().splitlines()[-1].split()[-1]
        self.start_pod()

    def start_database(self):
        run("ip", "addr", "add", f"{DATABASE}/24", "dev", "bridge")
        at = self.work / "postgres"
        at.mkdir()
        os.chmod(self.work, 0o755)
        user = pwd.getpwnam("postgres")
        os.chown(at, user.pw_uid, user.pw_gid)
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        words = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
        run(*words, programs / "initdb", "--username=postgres", "--auth=trust", "--no-sync",
            "--pgdata", at / "data", cwd="/")
        with open(at / "data/pg_hba.conf", "a", encoding="ascii") as hba:
            hba.write("host all all 10.77.0.0/24 trust\n")
        self.node.start("postgres", [
            *words, programs / "postgres", "-D", at / "data", "-c", f"listen_addresses={DATABASE}",
            "-c", f"unix_socket_directories={at}"])

    def control(self, *words):
        return run(self.given.control, *words)

    def start_control(self, name):
        """A replica; its network is made once."""
        if name in self.controls:
            self.controls[name].start()
        else:
            pod = Pod(self.node, name, REPLICAS[name], copy.deepcopy(self.deployment), "control",
                      self.given.control)
            self.controls[name] = pod
            pod.start()
        self.controls[name].await_probe("readinessProbe")

    def kill(self, name):
        child = self.controls[name].child
        self.node.children = [it for it in self.node.children if it[1] is not child]
        child.kill()
        child.wait()

    def start_pod(self):
        """A pod that has its rules from any replica, as from their Service."""
        self.node.network("shop-pod", POD)
        servers = [f"{address}:18000" for address in REPLICAS.values()]
        self.servers = servers
        self.connect(servers[0])

    def connect(self, server):
        env = {"PATH": os.environ["PATH"], "CONFIG_TYPE": "GRPC_XDS_SOTW",
               "CONFIG_GRPC_XDS_SERVER_URL": server, "CONFIG_GRPC_XDS_RATELEASE": "true",
               "CONFIG_GRPC_XDS_NODE_ID": "shop-pod", "LOG_LEVEL": "warn",
               "RULES_SNAPSHOT": str(self.work / "snapshot")}
        self.pod = self.node.start("shop-pod", [
            "nsenter", "--net=/run/netns/shop-pod", self.given.ratelease, "serve"], env)

    # === What is asked ===

    def limit(self, domain):
        """The limit that the pod enforces for a user of a domain; None without one."""
        body = {"domain": domain, "descriptors": [{"entries": [{"key": "user", "value": "x"}]}]}
        found = self.ask("http://127.0.0.1:8080/json", body)
        status = (found or {}).get("statuses", [{}])[0]
        return status.get("currentLimit", {}).get("requestsPerUnit")

    def ask(self, url, body):
        """A request from within the pod, whose ports listen on loopback."""
        try:
            text = run("nsenter", "--net=/run/netns/shop-pod", "curl", "--silent", "--max-time",
                       "5", "--header", "content-type: application/json", "--data",
                       json.dumps(body), url)
            return json.loads(text)
        except (Failed, ValueError):
            return None

    def await_limit(self, domain, limit, since=None, seconds=60):
        """Waits until the pod enforces a limit; the milliseconds since it was asked for."""
        since = since or time.monotonic()
        until(f"{limit} for {domain}", lambda: self.limit(domain) == limit, seconds, every=0.005)
        return round((time.monotonic() - since) * 1000)

    def get(self, namespace, name):
        return self.api.get(*KIND, namespace, name)

    def await_condition(self, namespace, name, kind, status, reason, seconds=60):
        def is_there():
            found = condition(self.get(namespace, name), kind)
            return found[:2] == (status, reason) and self.get(namespace, name)
        try:
            return until(f"{kind} {reason}", is_there, seconds)
        except Failed as error:
            found = self.get(namespace, name)
            raise Failed(f"{error}: {json.dumps((found or {}).get('status'))}") from None

    def rest(self, method, path, body=None):
        """A call of the API of a replica that runs; its status and its text."""
        at = next(REPLICAS[name] for name, pod in self.controls.items()
                  if pod.child.poll() is None)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{at}:8090{path}", json.dumps(body).encode(),
                                         headers, method=method)
        try:
            with self.api.opener.open(request, timeout=20) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name, metric):
        with self.api.opener.open(f"http://{REPLICAS[name]}:8091/metrics", timeout=5) as reply:
            lines = reply.read().decode().splitlines()
        return next((float(it.split()[-1]) for it in lines if it.startswith(f"{metric} ")), None)

    def leader(self):
        """The replica that follows the objects."""
        name = "ratelease_control_objects_connected"
        running = [it for it, pod in self.controls.items() if pod.child.poll() is None]
        return until("a leader", lambda: next(
            (it for it in running if self.metric(it, name) == 1), None))

    # === Steps ===

    def applied(self):
        for name in ["shop", "bank", "platform"]:
            self.api.apply(objects.namespace(name))
        since = time.monotonic()
        self.api.apply(rules("shop", "limits", 5))
        taken = self.await_limit("shop", 5, since)
        found = self.await_condition("shop", "limits", "Programmed", "True", "Programmed")
        require(found["status"]["pods"] == {"current": 1, "connected": 1}, found["status"])
        require(condition(found, "Accepted")[:2] == ("True", "Accepted"), found["status"])
        return f"in force after {taken} ms; {condition(found, 'Programmed')[2]}"

    def changed(self):
        taken = []
        for limit in [7, 8, 9, 7]:
            since = time.monotonic()
            self.api.apply(rules("shop", "limits", limit))
            taken.append(self.await_limit("shop", limit, since))
        return f"in force after {taken} ms"

    def faulty(self):
        """Faults that only the compiler of the pods knows are in the status."""
        bad = rules("shop", "limits", 1)
        limit = {"unit": "day", "requests_per_unit": 1, "burst": 7}
        bad["spec"]["descriptors"].append({"key": "other", "rate_limit": limit})
        self.api.apply(bad)
        found = self.await_condition("shop", "limits", "Accepted", "False", "Invalid")
        fields = [it["field"] for it in found["status"]["faults"]]
        require("spec.descriptors[1].rate_limit.burst" in fields, f"{found['status']}")
        require(found["status"]["pods"] == {"current": 0, "connected": 1}, found["status"])
        require(condition(found, "Programmed")[:2] == ("False", "Invalid"), found["status"])
        require(self.limit("shop") == 7, "the former rules are not in force")
        message = condition(found, "Programmed")[2]
        self.api.apply(rules("shop", "limits", 7))
        self.await_condition("shop", "limits", "Programmed", "True", "Programmed")
        told = until("Events", lambda: self.told("shop", "limits", {"Invalid", "Programmed"}))
        return f"{fields}; {message}; Events {told}"

    def told(self, namespace, name, reasons):
        """How often each of these was told of an object, once all were."""
        found = self.api.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        found = [it for it in found if it["involvedObject"]["name"] == name]
        counts = {it["reason"]: it["count"] for it in found}
        return counts if reasons <= counts.keys() and len(found) == len(counts) else None

    def refused(self):
        """Others are refused by the API server at once."""
        bad = rules("shop", "limits", 7)
        bad["spec"]["descriptors"][0]["rate_limit"]["unit"] = "fortnight"
        moved = rules("shop", "limits", 7, domain="shop.eu")
        misspelt = rules("shop", "limits", 7)
        misspelt["spec"]["descriptors"][0]["shadow_mod"] = True
        deep = rules("shop", "limits", 7)
        below = deep["spec"]["descriptors"][0]
        for level in range(6):
            below["descriptors"] = [{"key": f"k{level}"}]
            below = below["descriptors"][0]
        below["rate_limits"] = {}
        said = []
        for it, expected in [(bad, "fortnight"), (moved, "never changes"),
                             (misspelt, "shadow_mod"), (deep, "rate_limits")]:
            try:
                self.api.apply(it)
            except Failed as error:
                require(expected in str(error), str(error))
                said.append(expected)
                continue
            raise Failed(f"the API server takes {it['spec']}")
        return ", ".join(said)

    def conflicts(self):
        """The older object counts, and a younger one follows it at once."""
        time.sleep(1.1)  # their ages are of whole seconds
        self.api.apply(rules("shop", "later", 20))
        found = self.await_condition("shop", "later", "Accepted", "False", "Conflicted")
        require("shop/limits" in condition(found, "Accepted")[2], f"{found['status']}")
        require(self.limit("shop") == 7, "the younger object is in force")
        since = time.monotonic()
        self.api.delete(*KIND, "shop", "limits")
        taken = self.await_limit("shop", 20, since)
        self.await_condition("shop", "later", "Programmed", "True", "Programmed")
        return f"the younger one is in force {taken} ms after the older one was deleted"

    def tenants(self):
        """An object of another namespace changes nothing, unless that may define any domain."""
        self.api.apply(rules("bank", "of-shop", 1, domain="shop"))
        self.api.apply(rules("bank", "of-shops-gateway", 1, domain="shop.gateway"))
        for name in ["of-shop", "of-shops-gateway"]:
            self.await_condition("bank", name, "Accepted", "False", "DomainNotAllowed")
        require(self.limit("shop") == 20 and self.limit("shop.gateway") is None, "it is in force")
        self.api.apply(rules("platform", "edge", 4, domain="edge"))
        self.await_limit("edge", 4)
        return "refused in bank; platform, which is listed, defines the domain edge"

    def of_database(self):
        """A domain is the database's or an object's; it changes hands when nothing changes."""
        body = {"domain": "bank", "entries": [{"key": "user"}],
                "rate_limit": {"unit": "day", "requests_per_unit": 30}}
        status, text = self.rest("POST", "/v1/rules?publish=true", body)
        require(status == 201, text)
        self.await_limit("bank", 30)
        self.api.apply(rules("bank", "limits", 31))
        self.await_condition("bank", "limits", "Accepted", "False", "Conflicted")
        require(self.limit("bank") == 30, "the object is in force")
        self.api.apply(rules("bank", "limits", 30))
        self.await_condition("bank", "limits", "Programmed", "True", "Programmed", 90)
        self.api.apply(rules("bank", "limits", 32))
        self.await_limit("bank", 32)
        status, text = self.rest("POST", "/v1/rules", {**body, "entries": [{"key": "other"}]})
        require(status == 409 and "bank/limits" in text, f"{status} {text}")
        status, text = self.rest("POST", "/v1/rollback", {"version": 1})
        require(status == 200 and self.limit("bank") == 32, f"{status} {text}")
        return "the database's rules stay, equal ones change hands, and then the API gives 409"

    def survives(self):
        """The replica that follows is killed; another one goes on."""
        former = self.leader()
        self.kill(former)
        other = next(it for it in REPLICAS if it != former)
        if former == "control-a":
            self.node.stop(self.pod)
            self.connect(self.servers[1])
            self.await_limit("shop", 20)
        since = time.monotonic()
        self.api.apply(rules("shop", "later", 21))
        taken = self.await_limit("shop", 21, since)
        require(self.leader() == other, "no other replica follows")
        self.start_control(former)
        return f"{former} killed; a change is in force after {taken} ms by {other}"

    def cut_off(self):
        """Without the API server all stays, also in replicas that start meanwhile."""
        for name in REPLICAS:
            run("ip", "-n", name, "rule", "add", *TO_API_SERVER)
            self.kill(name)
            self.start_control(name)
        self.api.apply(rules("shop", "later", 22))
        self.node.stop(self.pod)
        (self.work / "snapshot").unlink(missing_ok=True)
        self.connect(self.servers[0])
        self.await_limit("shop", 21)
        require(self.limit("bank") == 32 and self.limit("edge") == 4, "rules are missing")
        for name in REPLICAS:
            run("ip", "-n", name, "rule", "del", *TO_API_SERVER)
        since = time.monotonic()
        taken = self.await_limit("shop", 22, since)
        return f"a new pod of restarted replicas has all rules; the change follows after {taken} ms"

    def deleted(self):
        since = time.monotonic()
        self.api.delete(*KIND, "shop", "later")
        taken = self.await_limit("shop", None, since)
        for namespace, name in [("bank", "limits"), ("bank", "of-shop"),
                                ("bank", "of-shops-gateway"), ("platform", "edge")]:
            self.api.delete(*KIND, namespace, name)
        self.await_limit("edge", None)
        self.await_limit("bank", None)
        return f"its domain is gone after {taken} ms"

    def many(self):
        """Many objects; then changes of one."""
        count = self.given.objects
        names = [f"tenant-{at}" for at in range(NAMESPACES)]
        for name in names:
            self.api.apply(objects.namespace(name))
        of = [names[at % NAMESPACES] for at in range(count)]

        def create(at):
            it = rules(of[at], f"rules-{at}", 5, domain=f"{of[at]}.d{at}")
            path = self.api.path(*KIND, of[at], "").rstrip("/")
            self.api.request("POST", path, json.dumps(it).encode())

        since = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(create, range(count)))
        created = time.monotonic() - since
        say(f"         {count} objects created in {created:.0f} s")
        leader = self.leader()
        until("all are accepted", lambda: self.metric(
            leader, 'ratelease_control_objects{state="accepted"}') == count, 900, every=0.5)
        last = count - 1
        domain = f"{of[last]}.d{last}"
        self.await_limit(domain, 5, seconds=600)
        published = time.monotonic() - since
        say(f"         published {published - created:.0f} s later")
        taken, written = [], []
        for at in range(CHANGES):
            since, begun = time.monotonic(), time.time()
            self.api.apply(rules(of[last], f"rules-{last}", 100 + at, domain=domain))
            taken.append(self.await_limit(domain, 100 + at, since))
            written.append(round((self.version()[1] - begun) * 1000))
            time.sleep(0.2)
        taken.sort()
        written.sort()
        memory = self.memory(leader)
        self.restarted = (leader, count, domain)
        text = (f"{count} created in {created:.0f} s and published {published - created:.0f} s "
                f"later; {CHANGES} changes of one in force: p50 {taken[len(taken) // 2]} ms, "
                f"max {taken[-1]} ms, of which p50 {written[len(written) // 2]} ms until its write "
                f"begins; {memory} MiB")
        require(self.given.change_max is None or taken[-1] <= self.given.change_max, text)
        return text

    def memory(self, name):
        """Resident memory of a replica, in MiB."""
        # nsenter, unshare, chroot and setpriv give way to the program.
        child = self.controls[name].child
        text = Path(f"/proc/{child.pid}/status").read_text()
        kib = next(int(it.split()[1]) for it in text.splitlines() if it.startswith("VmRSS"))
        return math.ceil(kib / 1024)

    def many_statuses(self):
        """The status of each is written in time, and no faster than it may."""
        leader, count, domain = self.restarted
        written = lambda: sum(1 for it in self.listed() if condition(it, "Programmed")[0])
        since, first = time.monotonic(), written()
        until("all statuses", lambda: written() == count, 900, every=5)
        taken = time.monotonic() - since
        return f"{count - first} statuses in {taken:.0f} s"

    def listed(self):
        path = f"/apis/{KIND[0]}/ratelimitrules?limit=500"
        found, token = [], ""
        while True:
            page = self.api.request("GET", path + (f"&continue={token}" if token else ""))
            found += page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return found

    def many_restarted(self):
        """A leader that takes over lists all, and publishes nothing that is published."""
        leader, _, domain = self.restarted
        before = self.version()[0]
        self.kill(leader)
        since = time.monotonic()
        next_leader = self.leader()
        taken = time.monotonic() - since
        require(self.version()[0] == before, "a new leader published")
        memory = self.memory(next_leader)
        self.start_control(leader)
        return f"another replica follows all after {taken:.1f} s, without a version; {memory} MiB"

    def version(self):
        """The number of the last version, and when its write began, in seconds since the epoch."""
        status, text = self.rest("GET", "/v1/versions?limit=1")
        require(status == 200, text)
        last = json.loads(text)["versions"][0]
        return last["version"], datetime.fromisoformat(last["at"]).timestamp()

    def step(self, name, act):
        try:
            seen, word = act(), "ok"
        except (Failed, OSError) as error:
            seen, word = str(error) or repr(error), "FAILED"
            self.is_failed = True
        print(f"{word:<8} {name}: {seen}", flush=True)

    def run(self):
        self.start()
        for name, act in [
            ("an object is applied", self.applied),
            ("it is changed", self.changed),
            ("it has faults", self.faulty),
            ("faults that the API server knows", self.refused),
            ("two objects of one domain", self.conflicts),
            ("an object for another namespace's domain", self.tenants),
            ("an object for a domain of the database", self.of_database),
            ("the replica that follows is killed", self.survives),
            ("the API server is away", self.cut_off),
            ("objects are deleted", self.deleted),
            ("many objects", self.many),
            ("their statuses", self.many_statuses),
            ("a replica takes them over", self.many_restarted),
        ]:
            self.step(name, act)
            if self.is_failed and act == self.many:
                break  # the steps after it look at what it has made


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["work", "ratelease", "control", "chart", "definition"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--change-max", type=int)
    test = Test(parser.parse_args())
    try:
        test.run()
    except (Failed, OSError, subprocess.SubprocessError) as error:
        say(f"failed: {error}")
        test.is_failed = True
    if test.is_failed:
        for name in [*REPLICAS, "shop-pod", "postgres"]:
            say(test.node.tail(name))
    return 1 if test.is_failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
