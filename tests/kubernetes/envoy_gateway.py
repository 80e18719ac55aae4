#!/usr/bin/env python3
"""The steps of scripts/test-envoy-gateway, which starts the API server and says what is proved.

Envoy Gateway makes the Deployment of its rate limit service itself: ratelease runs with the
command, the environment, the volumes, the user and the probes that are written there.
"""

import argparse
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import objects
from api import Failed, until
from load import Load
from objects import GATEWAYS
from scene import ENVOYS, HTTP, Scene, say

RENEWED_MAX = 10  # seconds until renewed certificates are in use
KEPT = 2  # seconds for which rules that are not sent again stay in force


class Test(Scene):
    def __init__(self, given):
        super().__init__(given)
        self.loads, self.refused, self.rows, self.is_failed = [], [], [], False

    # === Steps ===

    def start_loads(self):
        """Users of the gold plan, who must pass."""
        for name in GATEWAYS:
            at = (ENVOYS[name], HTTP), objects.host_of(name)
            self.loads.append(Load(*at, {"x-plan": "gold"}, 200, threads=2))

    def start_refused(self, limit):
        """Users over their limit, who must not."""
        for name in GATEWAYS:
            user = self.user()
            for _ in range(limit):
                self.clients[name].get(user)
            at = (ENVOYS[name], HTTP), objects.host_of(name)
            self.refused.append(Load(*at, user, 429, pause=0.05))

    def stop_refused(self):
        """Requires that all of their requests were refused; how many they sent."""
        loads, self.refused = self.refused, []
        for load in loads:
            load.stop()
        faults = [fault for load in loads for fault in load.failures]
        if faults:
            raise Failed(f"users over their limit got {faults[:5]}, {len(faults)} in all")
        return sum(load.sent for load in loads)

    def counts(self):
        """Requests of users who must pass, those that failed, and calls to ratelease that failed:
        as the Envoys count them, and as ratelease does."""
        return [sum(load.sent for load in self.loads),
                sum(len(load.failures) for load in self.loads), self.errors_at_envoys(),
                self.metric("ratelimit_service_should_rate_limit_error")]

    def step(self, name, act, is_first_or_last=False):
        """Runs a step and adds a row for it: what it returns are its milliseconds and a remark.

        An Envoy has its cluster of the rate limit service only while a policy is in force, and the
        listener, which is changed in another message, may use it for a moment before or after:
        such calls never leave the Envoy, which lets the requests pass."""
        before, service = self.counts(), self.service
        fault, taken, remark = None, [], ""
        try:
            taken, remark = act()
            self.node.require_alive()
        except (Failed, OSError) as error:
            fault = str(error) or repr(error)
        after = self.counts()
        if service is not self.service:
            before[3] = 0  # another pod, whose counters began at 0
        sent, failed, errors, ours = (int(new - old) for new, old in zip(after, before))
        if failed:
            seen = sorted({fault for load in self.loads for fault in load.failures})
            fault = fault or f"requests that should pass got {seen[:3]}"
        if ours or errors and not is_first_or_last:
            fault = fault or f"calls failed: {errors} at Envoy, {ours} at ratelease"
        self.is_failed |= fault is not None
        self.rows.append([name, str(sent), str(failed), f"{errors}",
                          " ".join(map(str, taken)) or "-", fault or remark,
                          "FAILED" if fault else "ok"])
        say(f"{'FAILED' if fault else 'ok':<7}{name}" + (f": {fault}" if fault else ""))

    def added(self):
        self.start_loads()
        return self.enforced(5), "5 of 8 pass"

    def changed(self, limit):
        return lambda: (self.enforced(limit), f"{limit} of {limit + 3} pass")

    def removed(self):
        taken = self.enforced(0)
        for name in GATEWAYS:
            if self.admitted(name, 20) != 20:
                raise Failed(f"{name} refuses requests without a policy")
        return taken, "20 of 20 pass"

    def restarted(self):
        """Envoy Gateway ends and starts again, and sends its rules from the beginning."""
        self.start_refused(5)
        accepted = self.metric("ratelease_xds_responses_total")
        status = self.control.stop()
        self.require_limit(5)
        away = time.monotonic()
        self.control.start()
        self.control.await_probe("readinessProbe")
        until("the stream of ratelease", lambda: self.metric("ratelease_xds_connected") == 1)
        until("a set of rules", lambda: self.metric("ratelease_xds_responses_total") > accepted)
        back = time.monotonic() - away
        time.sleep(2 * KEPT)  # rules that it did not send again would be gone
        self.require_limit(5)
        count = self.stop_refused()
        return [], f"status {status}, rules again after {back:.1f} s; {count} of {count} refused"

    def renewed(self):
        """All certificates and their CA are replaced, as `certgen --overwrite` does."""
        self.start_refused(5)
        old = self.certificates()
        replaced = self.metric("ratelease_tls_certificates_replaced_total")
        self.generate_certificates("--overwrite")
        for pod in [self.service, self.control, *self.pods.values()]:
            pod.refresh()
            time.sleep(1)  # kubelets take turns
        until("the new certificate of ratelease", lambda: self.metric(
            "ratelease_tls_certificates_replaced_total") > replaced, RENEWED_MAX)
        new = self.certificates()
        if not self.is_served(new, new):
            raise Failed("ratelease does not take a client with a new certificate")
        if self.is_served(old, new):
            raise Failed("ratelease still takes a client with an old certificate")
        self.require_limit(5)
        count = self.stop_refused()
        return [], f"old ones refused, new ones taken; {count} of {count} refused"

    def certificates(self):
        """The certificate, the key and the CA of Envoy's Secret, as files."""
        at = self.work / f"client-{time.monotonic_ns()}"
        at.mkdir()
        volume = self.pods["east"].volumes["certs"]
        for name, content in volume.files().items():
            (at / name).write_bytes(content)
        return at

    def is_served(self, own, trusted):
        """Whether a client with its own certificate and a CA that it trusts is served."""
        tls = ssl.create_default_context(cafile=str(trusted / "ca.crt"))
        tls.check_hostname = False  # nor does the Envoy
        tls.load_cert_chain(own / "tls.crt", own / "tls.key")
        tls.set_alpn_protocols(["h2"])
        try:
            with socket.create_connection((self.service.address, 8081), 5) as plain, \
                    tls.wrap_socket(plain) as secured:
                # In TLS 1.3 a client learns only by reading whether it was accepted.
                secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
                return secured.recv(9)[3:4] == b"\4"  # settings
        except ssl.SSLCertVerificationError as error:
            raise Failed(f"the certificate of ratelease is not of that CA: {error}") from None
        except (ssl.SSLError, ConnectionError):
            return False

    def replaced(self):
        """A new Envoy, all of whose connections are new, enforces as the former one does."""
        self.pods["new-east"] = self.start_envoy("new-east", "east")
        since = time.monotonic()
        self.await_limit(5, since, ["new-east"])
        self.require_limit(5, ["new-east"])
        return [], "5 of 8 pass"

    def rolled(self):
        """Another pod takes over, and the former one ends, as in a rolling update."""
        former, probes = self.service, self.probes
        self.start_service("ratelease-new")
        probes.stop()
        if probes.failed:
            raise Failed(f"{probes.failed} of {probes.sent} probes failed")
        status = former.stop()
        if status != 0:
            raise Failed(f"the former pod ended with {status}")
        self.require_limit(5)
        return self.enforced(6), "status 0 of the former pod; 6 of 9 pass"

    def seen(self):
        """What is there for people and for Prometheus: egctl's dump and the scraped port."""
        dump = self.service.within("curl", "--silent", "--fail", "http://127.0.0.1:6070/rlconfig")
        if len(re.findall(r"requests_per_unit=5\b", dump)) != len(GATEWAYS):
            raise Failed(f"/rlconfig shows\n{dump}")
        hits = self.metric("ratelimit_service_rate_limit_total_hits")
        if not hits:
            raise Failed("no hits on the metrics port")
        if self.probes.failed:
            raise Failed(f"{self.probes.failed} of {self.probes.sent} probes failed")
        return [], f"{self.probes.sent} probes, 0 failed; {int(hits)} hits counted"

    def run(self):
        self.start()
        self.step("policies added", self.added, is_first_or_last=True)
        self.step("changed to 7", self.changed(7))
        self.step("changed to 3", self.changed(3))
        self.step("removed", self.removed, is_first_or_last=True)
        self.step("added again", self.changed(5), is_first_or_last=True)
        for name, act in [
            ("ratelease replaced", self.rolled),
            ("and back", self.changed(5)),
            ("Envoy Gateway restarted", self.restarted),
            ("changed after it", self.changed(6)),
            ("and back", self.changed(5)),
            ("certificates and CA renewed", self.renewed),
            ("changed after it", self.changed(6)),
            ("and back", self.changed(5)),
            ("Envoy Gateway restarted with them", self.restarted),
            ("changed after it", self.changed(6)),
            ("and back", self.changed(5)),
            ("a new Envoy with them", self.replaced),
            ("metrics, rlconfig, probes", self.seen),
        ]:
            self.step(name, act)


def print_table(rows):
    heads = ["step", "requests", "failed", "errors", "ms until enforced", "seen", ""]
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    for row in [heads, *rows]:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["work", "ratelease", "envoy", "envoy-gateway", "crds"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--timeout", default="", help="of Envoy's calls; by default its own")
    test = Test(parser.parse_args())
    try:
        test.run()
    except (Failed, OSError, subprocess.SubprocessError) as error:
        say(f"failed: {error}")
        for name in ["control", "ratelease"]:
            say(test.node.tail(name))
        test.is_failed = True
    print_table(test.rows)
    return 1 if test.is_failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
