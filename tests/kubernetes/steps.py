"""Changes and failures under load: policies, Envoy Gateway, ratelease, Envoys and certificates are
changed, restarted and replaced, while users send requests who must pass or must be refused.
"""

import re
import socket
import ssl
import time

import objects
import table
from api import Failed, until
from in_force import RULES, fetch
from load import Load
from objects import GATEWAYS
from scene import ENVOYS, HTTP, say

HEADS = ["step", "requests", "failed", "errors", "ms until enforced", "seen", ""]

RENEWED_MAX = 10  # seconds until renewed certificates are in use
KEPT = 2  # seconds for which rules that are not sent again stay in force


class Steps:
    """What happens to two Gateways, east and west, which have a policy for each user."""

    def __init__(self, scene):
        self.scene = scene
        self.loads, self.refused, self.rows, self.is_failed = [], [], [], False

    def start_loads(self):
        """Users of the gold plan, who must pass."""
        for name in GATEWAYS:
            at = (ENVOYS[name], HTTP), objects.host_of(name)
            self.loads.append(Load(*at, {"x-plan": "gold"}, 200, threads=2))

    def start_refused(self, limit):
        """Users over their limit, who must not."""
        for name in GATEWAYS:
            user = self.scene.user()
            for _ in range(limit):
                self.scene.clients[name].get(user)
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
                sum(len(load.failures) for load in self.loads), self.scene.errors_at_envoys(),
                self.scene.metric("ratelimit_service_should_rate_limit_error")]

    def step(self, name, act, is_first_or_last=False):
        """Runs a step and adds a row for it: what it returns are its milliseconds and a remark.

        An Envoy has its cluster of the rate limit service only while a policy is in force, and the
        listener, which is changed in another message, may use it for a moment before or after:
        such calls never leave the Envoy, which lets the requests pass."""
        before, service = self.counts(), self.scene.service
        fault, taken, remark = None, [], ""
        try:
            taken, remark = act()
            self.scene.node.require_alive()
        except (Failed, OSError) as error:
            fault = str(error) or repr(error)
        after = self.counts()
        if service is not self.scene.service:
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
        return self.scene.enforced(5), "5 of 8 pass"

    def changed(self, limit):
        return lambda: (self.scene.enforced(limit), f"{limit} of {limit + 3} pass")

    def removed(self):
        taken = self.scene.enforced(0)
        for name in GATEWAYS:
            if self.scene.admitted(name, 20) != 20:
                raise Failed(f"{name} refuses requests without a policy")
        return taken, "20 of 20 pass"

    def restarted(self):
        """Envoy Gateway ends and starts again, and sends its rules from the beginning."""
        self.start_refused(5)
        accepted = self.scene.metric("ratelease_xds_responses_total")
        status = self.scene.control.stop()
        self.scene.require_limit(5)
        away = time.monotonic()
        self.scene.control.start()
        self.scene.control.await_probe("readinessProbe")
        until("the stream of ratelease", lambda: self.scene.metric("ratelease_xds_connected") == 1)
        until("a set of rules",
              lambda: self.scene.metric("ratelease_xds_responses_total") > accepted)
        back = time.monotonic() - away
        time.sleep(2 * KEPT)  # rules that it did not send again would be gone
        self.scene.require_limit(5)
        count = self.stop_refused()
        return [], f"status {status}, rules again after {back:.1f} s; {count} of {count} refused"

    def renewed(self):
        """All certificates and their CA are replaced, as `certgen --overwrite` does."""
        self.start_refused(5)
        old = self.certificates()
        replaced = self.scene.metric("ratelease_tls_certificates_replaced_total")
        self.scene.generate_certificates("--overwrite")
        for pod in [self.scene.service, self.scene.control, *self.scene.pods.values()]:
            pod.refresh()
            time.sleep(1)  # kubelets take turns
        until("the new certificate of ratelease", lambda: self.scene.metric(
            "ratelease_tls_certificates_replaced_total") > replaced, RENEWED_MAX)
        new = self.certificates()
        if not self.is_served(new, new):
            raise Failed("ratelease does not take a client with a new certificate")
        if self.is_served(old, new):
            raise Failed("ratelease still takes a client with an old certificate")
        self.scene.require_limit(5)
        count = self.stop_refused()
        return [], f"old ones refused, new ones taken; {count} of {count} refused"

    def certificates(self):
        """The certificate, the key and the CA of Envoy's Secret, as files."""
        at = self.scene.work / f"client-{time.monotonic_ns()}"
        at.mkdir()
        volume = self.scene.pods["east"].volumes["certs"]
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
            with socket.create_connection((self.scene.service.address, 8081), 5) as plain, \
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
        self.scene.pods["new-east"] = self.scene.start_envoy("new-east", "east")
        since = time.monotonic()
        self.scene.await_limit(5, since, ["new-east"])
        self.scene.require_limit(5, ["new-east"])
        return [], "5 of 8 pass"

    def rolled(self):
        """Another pod takes over, and the former one ends, as in a rolling update."""
        former, probes = self.scene.service, self.scene.probes
        self.scene.start_service("ratelease-new")
        probes.stop()
        if probes.failed:
            raise Failed(f"{probes.failed} of {probes.sent} probes failed")
        status = former.stop()
        if status != 0:
            raise Failed(f"the former pod ended with {status}")
        self.scene.require_limit(5)
        return self.scene.enforced(6), "status 0 of the former pod; 6 of 9 pass"

    def seen(self):
        """What is there for people and for Prometheus: egctl's dump and the scraped port."""
        dump = fetch(self.scene.service, RULES)
        if len(re.findall(r"requests_per_unit=5\b", dump)) != len(GATEWAYS):
            raise Failed(f"/rlconfig shows\n{dump}")
        hits = self.scene.metric("ratelimit_service_rate_limit_total_hits")
        if not hits:
            raise Failed("no hits on the metrics port")
        if self.scene.probes.failed:
            raise Failed(f"{self.scene.probes.failed} of {self.scene.probes.sent} probes failed")
        return [], f"{self.scene.probes.sent} probes, 0 failed; {int(hits)} hits counted"

    def run(self):
        """Whether every step is ok; prints the table."""
        say("two Envoys, each as the Deployment of its Gateway says")
        self.scene.start_gateways()
        try:
            self.run_all()
        finally:
            for load in [*self.loads, *self.refused]:
                load.stop()
            table.show(HEADS, self.rows)
        return not self.is_failed

    def run_all(self):
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
