"""What Envoy Gateway tests of its global rate limits, with ratelease as the rate limit service.

A scenario adds routes and policies to one Gateway through the API server, waits until the real
Envoy and ratelease have them, sends requests and holds each answer against what it must be, and the
counters of Envoy and ratelease against the answers.
"""

import http.client
import time

import objects
import table
from api import Failed, until
from in_force import ADMIN, fetch, is_in_force
from load import Client
from objects import target, traffic_policy
from scenario import GATEWAY, LISTENERS
from scenarios_matching import matching
from scenarios_policies import policies
from scene import ENVOYS, HTTP, say, scrape

COUNTED_MAX = 15  # seconds until a decision is in the counters
TAKEN_OVER = f"{ADMIN}/stats?filter=listener_create_success"  # by workers
HEADS = ["scenario", "requests", "allowed", "limited", "ms until in force", "seen", ""]
OVER, SHADOW, HITS = (f"ratelimit_service_rate_limit_{it}"
                      for it in ["over_limit", "shadow_mode", "total_hits"])


def common():
    """The Gateway, and a route with a policy that stays, so that the Envoy has its connection to
    ratelease all the time."""
    yield objects.gateway(GATEWAY, LISTENERS)
    yield objects.policy_of("ClientTrafficPolicy", "addresses",
                            [target("Gateway", GATEWAY, sectionName="http")],
                            clientIPDetection={"xForwardedFor": {"numTrustedHops": 1}})
    yield objects.policy_of("ClientTrafficPolicy", "quiet",
                            [target("Gateway", GATEWAY, sectionName="quiet")],
                            headers={"disableRateLimitHeaders": True})
    yield objects.route("base", [{"name": GATEWAY, "sectionName": "http"}], ["base.example.com"])
    yield traffic_policy("base", [target("HTTPRoute", "base")],
                         [{"limit": {"requests": objects.MANY, "unit": "Month"}}])


class Scenarios:
    def __init__(self, scene):
        self.scene, self.rows, self.is_ok = scene, [], True

    def run(self):
        """Whether every scenario is ok; prints the table."""
        say("one Envoy for the scenarios")
        for it in common():
            self.scene.api.apply(it)
        self.envoy = self.scene.start_envoy(GATEWAY, GATEWAY)
        self.scene.pods[GATEWAY] = self.envoy
        self.await_base()
        for it in [*matching(), *policies(self.scene.work)]:
            self.run_one(it)
        table.show(HEADS, self.rows)
        return self.is_ok

    def await_base(self):
        base = Client((ENVOYS[GATEWAY], HTTP), "base.example.com")
        until("the policy that stays", lambda: "x-ratelimit-limit" in base.get({})[1])
        base.close()

    def counts(self):
        """Calls that failed and that were over the limit, as the Envoy counts them; and what
        ratelease counts."""
        at_envoy = [scrape(self.envoy.address, "/stats/prometheus",
                           rf"envoy_cluster_ratelimit_{it}{{[^}}]*}}")
                    for it in ["error", "over_limit"]]
        return [*at_envoy, *(self.scene.metric(it) for it in [
            "ratelimit_service_should_rate_limit_error", OVER, SHADOW])]

    def run_one(self, scenario):
        since, taken, statuses, faults = time.monotonic(), None, [], []
        try:
            for it in scenario.objects:
                self.scene.api.apply(it)
            self.await_in_force(scenario)
            taken = round((time.monotonic() - since) * 1000)
            before = self.counts()
            statuses, faults = self.send_all(scenario)
            faults += self.await_counters(scenario, statuses, before)
            self.scene.node.require_alive()
        except (Failed, OSError, http.client.HTTPException) as error:
            faults.append(str(error) or repr(error))
        for it in reversed(scenario.objects):
            self.scene.api.delete(it["apiVersion"], it["kind"], "default", it["metadata"]["name"])
        self.add_row(scenario, statuses, taken, faults)

    def await_in_force(self, scenario):
        for it in scenario.objects:
            if it["kind"].endswith("Policy"):
                self.await_accepted(it)
        looks = []

        def is_settled():
            """Envoy's dump shows a listener before all of its worker threads have it. So nothing
            may be missing in two looks, between which no worker took a listener over."""
            if not is_in_force(self.envoy, self.scene.service, scenario.hosts(), scenario.limits,
                               scenario.filters):
                looks.clear()
                return False
            looks.append(fetch(self.envoy, TAKEN_OVER))
            return looks[-1] and looks[-2:-1] == looks[-1:]

        until("the policy at Envoy and ratelease", is_settled, 15)

    def await_accepted(self, policy):
        """Fails with Envoy Gateway's words if it does not take a policy."""
        def conditions():
            found = self.scene.api.get(policy["apiVersion"], policy["kind"], "default",
                                       policy["metadata"]["name"])
            return [condition for it in found.get("status", {}).get("ancestors", [])
                    for condition in it["conditions"] if condition["type"] == "Accepted"]

        name = f"{policy['kind']} {policy['metadata']['name']}"
        for it in until(f"the status of {name}", conditions):
            if it["status"] != "True":
                raise Failed(f"{name}: {it['reason']}: {it['message']}")

    def send_all(self, scenario):
        """The statuses of all answers, and what was wrong with them. On new connections: those of
        the former configuration of a listener do not have its new filters."""
        host = next(iter(sorted(scenario.hosts())))
        clients, statuses, faults = {}, [], []
        for at, ask in enumerate(scenario.asks):
            port = ask.port or HTTP
            if port not in clients:
                clients[port] = Client((ENVOYS[GATEWAY], port), host)
            for index in range(ask.count):
                status, fault = self.send(clients[port], ask, index)
                statuses.append(status)
                if fault:
                    faults.append(f"request {index + 1} of group {at + 1}: {fault}")
        for client in clients.values():
            client.close()
        return statuses, faults

    def send(self, client, ask, index):
        before = self.scene.metric(HITS)
        headers = {**ask.headers, **({"Host": ask.host} if ask.host else {})}
        status, seen = client.send(ask.method, ask.path, headers)
        if ask.charge:
            # The charge follows the response.
            until("the charge of a response", lambda: self.scene.metric(HITS) >=
                  before + ask.charge, COUNTED_MAX, every=0.005)
        return status, ask.fault_of(status, seen, index)

    def await_counters(self, scenario, statuses, before):
        """What does not agree with the answers. ratelease counts at once; envoyproxy/ratelimit,
        with which the scenarios can be compared, publishes its counts some seconds later."""
        deadline = time.monotonic() + COUNTED_MAX
        while faults := self.faults_of_counters(scenario, statuses, before):
            if time.monotonic() > deadline:
                return faults
            time.sleep(0.1)
        return []

    def faults_of_counters(self, scenario, statuses, before):
        errors, limited, failed, over, shadow = (
            int(new - old) for new, old in zip(self.counts(), before))
        refused = statuses.count(429)
        expected = refused if scenario.over is None else scenario.over
        faults = [text for is_wrong, text in [
            (errors or failed, f"calls failed: {errors} at Envoy, {failed} at ratelease"),
            (limited != refused, f"Envoy counts {limited} over the limit, of {refused}"),
            (over != expected, f"ratelease counts {over} hits over the limit, of {expected}"),
            (shadow != scenario.shadow, f"{shadow} hits in shadow mode, of {scenario.shadow}"),
        ] if is_wrong]
        if scenario.shown:
            shown = rf"{OVER}{{[^}}]*{scenario.shown}}}"
            if not scrape(self.scene.service.address, "/metrics", shown):
                faults.append(f"no hits in the series {scenario.shown}")
        return faults

    def add_row(self, scenario, statuses, taken, faults):
        seen = faults[0] if faults else scenario.remark
        self.is_ok &= not faults
        self.rows.append([scenario.name, str(len(statuses)), str(statuses.count(200)),
                          str(statuses.count(429)), str(taken or "-"), seen,
                          "FAILED" if faults else "ok"])
        say(f"{'FAILED' if faults else 'ok':<7}{scenario.name}")
        for it in faults:
            say(f"       {it}")
