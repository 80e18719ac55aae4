"""Sends the traffic of scripts/test-containers and checks what passes.

    traffic.py reference PORT            requests of the reference's demo, to one pod
    traffic.py shared PORT...            one limit that all pods share
    traffic.py keys PREFIX TIMES PORT... many keys, of which TIMES their limit of 2 may pass
    traffic.py window SECONDS            waits until the window of a minute has that long left
"""

import http.client
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

WINDOW = 60
SHARED_LIMIT = 100
KEY_LIMIT = 2
KEYS = 60


class Client:
    """One connection to an Envoy, opened again where the peer closes it."""

    def __init__(self, port):
        self.port = int(port)
        self.connection = None

    def get(self, path, **headers):
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            self.connection.request("GET", path, headers=headers)
            answer = self.connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        except (OSError, http.client.HTTPException):
            self.connection = None
            raise


def await_window(seconds):
    """Waits for the next window of a minute unless this one has that long left."""
    left = WINDOW - time.time() % WINDOW
    if left < seconds:
        next_window()


def next_window():
    left = WINDOW - time.time() % WINDOW
    print(f"  (waiting {left:.0f} s for the next minute)", flush=True)
    time.sleep(left + 0.1)


FOO = {"foo": "my_foo", "bar": "bkthomps"}
ACCOUNT = FOO | {"source_cluster": "proxy", "destination_cluster": "fake", "category": "account"}


def to(cluster, **more):
    return {"source_cluster": "proxy", "destination_cluster": cluster} | more


# Path, headers, and the status of each request in turn.
REFERENCE = [
    ("/test", {}, [200, 429]),
    ("/header", {"foo": "foo"}, [200, 200, 429]),
    ("/twoheader", {"foo": "test", "baz": "shady"}, [200] * 5),
    ("/twoheader", {"foo": "pelle", "baz": "not-so-shady"}, [200, 200, 200, 429, 429]),
    ("/twoheader", {"foo": "bkthomps", "bar": "banned"}, [429]),
    ("/fourheader", to("mock", foo="bkthomps", bar="banned"), [429]),
    ("/fourheader", to("override", foo="bkthomps", bar="banned"), [200, 200, 429]),
    ("/fourheader", to("bkthomps", **FOO), [200, 200, 429]),
    ("/fourheader", to("not_bkthomps", **FOO), [200, 429]),
    ("/fiveheader", ACCOUNT, [200, 200, 200, 200, 429]),
    ("/twoheader", {"foo": "foo_2", "bar": "bkthomps"}, [200, 429]),
    ("/fourheader", to("fake", foo="foo_3", bar="bar_3"), [200, 200, 429]),
    ("/unspec", {"unspec": "unspecified_value"}, [200, 200, 429]),
    ("/quota", {}, [200, 200, 429]),
]
# The rest charge a quota when a request has ended, and the quota is that of /quota: a minute each.
# A request passes while what is charged is not above the limit, so one more passes than the limit.
SERVICE = "Hello World from Service "
AFTERWARDS = [
    ("/tokenquota", [(200, "1")] * 3 + [(429, "")]),
    ("/multiservice-tokenquota", [(200, "1")] * 2 + [(200, "2")] * 3 + [(429, "")]),
]


def reference(port):
    faults = []
    envoy = Client(port)
    await_window(20)
    for path, headers, expected in REFERENCE:
        got = [envoy.get(path, **headers)[0] for _ in expected]
        print(f"  {path:<26} {' '.join(map(str, got))}")
        if got != expected:
            faults.append(f"{path} {headers}: expected {expected}, got {got}")
    for path, expected in AFTERWARDS:
        next_window()
        got = []
        for _ in expected:
            status, body, _ = envoy.get(path)
            got.append((status, body.strip().removeprefix(SERVICE) if status == 200 else ""))
            # The charge follows the answer, which the client has already.
            time.sleep(0.2)
        print(f"  {path:<26} {' '.join(f'{status}{service:.1}' for status, service in got)}")
        if got != expected:
            faults.append(f"{path}: expected {expected}, got {got}")
    return faults


def tally(envoy, requests):
    """Statuses of requests, each a path and headers, by the headers' `foo`; 0 is no answer."""
    counts = Counter()
    for path, headers in requests:
        try:
            status = envoy.get(path, **headers)[0]
        except (OSError, http.client.HTTPException):
            status = 0
        counts[headers.get("foo"), status] += 1
    return counts


def from_all(ports, requests):
    """Sends the requests to each port at the same time, and adds up the answers."""
    with ThreadPoolExecutor(len(ports)) as pool:
        parts = pool.map(lambda port: tally(Client(port), requests), ports)
        return sum(parts, Counter())


def shared(ports):
    await_window(15)
    counts = from_all(ports, [("/shared", {})] * (3 * SHARED_LIMIT // len(ports)))
    statuses = Counter({status: count for (_, status), count in counts.items()})
    passed = statuses.pop(200, 0)
    rest = dict(statuses)
    print(f"  /shared by {len(ports)} Envoys: {passed} of {SHARED_LIMIT} passed, others {rest}")
    faults = []
    if not 0.95 * SHARED_LIMIT <= passed <= SHARED_LIMIT:
        faults.append(f"/shared: {passed} passed, the limit is {SHARED_LIMIT}")
    if set(statuses) != {429}:
        faults.append(f"/shared: {rest}: expected 429 only")
    return faults


def keys(prefix, times, ports):
    """TIMES 1 checks for exactly the limit. More is for a fault, and does not wait for a window."""
    if times == 1:
        await_window(20)
    start = time.monotonic()
    users = [f"{prefix}-{number}" for number in range(KEYS)]
    requests = [("/header", {"foo": user}) for _ in range(4) for user in users]
    counts = from_all(ports, requests)
    passed = [counts[user, 200] for user in users]
    errors = sum(n for (_, status), n in counts.items() if status not in (200, 429))
    print(
        f"  {KEYS} keys by {len(ports)} Envoys: {sum(passed)} passed,"
        f" {min(passed)} to {max(passed)} a key with a limit of {KEY_LIMIT};"
        f" {errors} errors; {time.monotonic() - start:.1f} s"
    )
    faults = [f"{errors} errors"] if errors else []
    if max(passed) > times * KEY_LIMIT:
        faults.append(f"{max(passed)} of a key passed, {times} times {KEY_LIMIT} may")
    if times == 1 and min(passed) < KEY_LIMIT:
        faults.append(f"only {min(passed)} of a key passed")
    return faults


def main(arguments):
    match arguments:
        case ["reference", port]:
            return reference(port)
        case ["shared", *ports] if ports:
            return shared(ports)
        case ["keys", prefix, times, *ports] if ports:
            return keys(prefix, int(times), ports)
        case ["window", seconds]:
            await_window(int(seconds))
            return []
    return [__doc__]


sys.exit("\n".join(main(sys.argv[1:])) or None)
