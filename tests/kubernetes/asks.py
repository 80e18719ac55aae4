"""The requests of a scenario, one after the other, and what their answers must be."""

from typing import NamedTuple, Optional

from load import USAGE

MONTH = 2_592_000  # seconds of the windows: no window ends during a run
HEADERS = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]


class Ask(NamedTuple):
    """Requests that are alike, and what each answer must be."""

    count: int
    status: int = 200
    limit: Optional[int] = None  # that the headers name; None: no such header
    quotas: tuple = ()  # all limits that the headers list; by default that one
    left: tuple = ()  # what remains of it, for each request
    is_among: bool = False  # whether other filters of Envoy add headers of their own limits
    charge: int = 0  # hits that are charged after the response
    method: str = "GET"
    path: str = "/"
    port: Optional[int] = None  # of the Envoy; None: that of the Gateway's port 80
    host: Optional[str] = None  # None: the scenario's
    headers: dict = {}

    def fault_of(self, status, headers, index):
        """What is wrong with an answer; None if nothing is."""
        if status != self.status:
            return f"{status} instead of {self.status}"
        if "x-envoy-ratelimited" in headers:
            return "x-envoy-ratelimited, which Envoy Gateway turns off"
        values = [headers.get_all(name, []) for name in HEADERS]
        if self.limit is None:
            return f"headers {values}, of no limit" if any(values) else None
        quotas = ", ".join(f"{it};w={MONTH}" for it in self.quotas or [self.limit])
        wanted = (f"{self.limit}, {quotas}", str(self.left[index]))
        # Each filter of Envoy that asks ratelease adds the three headers.
        seen = list(zip(*values))
        own = [reset for limit, left, reset in seen if (limit, left) == wanted]
        if not own or len(seen) > 1 and not self.is_among:
            return f"headers {values} instead of {wanted}"
        return None if 0 < int(own[0]) <= MONTH else f"x-ratelimit-reset: {own[0]}"


def passes(count, of, used=0, cost=1, **request):
    """Requests that pass, of a limit of which so much was used."""
    left = tuple(max(of - used - cost * (it + 1), 0) for it in range(count))
    return Ask(count, limit=of, left=left, **request)


def refused(count, of, **request):
    """Requests that are over their limit."""
    return Ask(count, status=429, limit=of, left=(0,) * count, **request)


def free(count, **request):
    """Requests that no limit is for, or one whose headers are off."""
    return Ask(count, **request)


def used(tokens, of, left, **request):
    """A request whose response costs some tokens; `left` is what remained before it."""
    headers = {**request.pop("headers", {}), USAGE: str(tokens)}
    return Ask(1, limit=of, left=(left,), charge=tokens, headers=headers, **request)


def source(address):
    """A client's address, as the proxy in front of the Gateway tells it."""
    return {"x-forwarded-for": address}
