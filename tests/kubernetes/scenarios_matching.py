"""Scenarios of what a limit is for: addresses, methods, paths, headers, query parameters."""

from asks import free, passes, refused, source
from scenario import Scenario, cidr, exact, limited, rule


def addresses():
    near, other, far = (source(it) for it in ["203.0.113.7", "203.0.113.8", "198.51.100.1"])
    yield Scenario(
        "addresses of a CIDR, each apart",
        limited("cidr-distinct", rule(3, cidr("203.0.113.0/24", type="Distinct"))), 1,
        [passes(3, of=3, headers=near), refused(1, of=3, headers=near),
         passes(3, of=3, headers=other), refused(1, of=3, headers=other), free(4, headers=far)],
        shown='key2="masked_remote_address_203_0_113_0/24"')
    yield Scenario(
        "addresses of a CIDR, together",
        limited("cidr-exact", rule(3, cidr("203.0.113.0/24"))), 1,
        [passes(2, of=3, headers=near), passes(1, of=3, used=2, headers=other),
         refused(1, of=3, headers=near), free(4, headers=far)])
    yield Scenario(
        "all addresses but a CIDR",
        limited("cidr-inverted", rule(2, cidr("203.0.113.0/24", invert=True))), 1,
        [passes(1, of=2, headers=far), passes(1, of=2, used=1, headers=source("192.0.2.1")),
         refused(1, of=2, headers=far), free(4, headers=near)])
    yield Scenario(
        "all addresses but those of 0.0.0.0/0",
        limited("cidr-nobody", rule(2, cidr("0.0.0.0/0", invert=True))), 1,
        [free(4, headers=near), free(4)])


def requests():
    yield Scenario(
        "methods POST and DELETE, together",
        limited("methods", rule(3, {"methods": [{"value": "POST"}, {"value": "DELETE"}]})), 2,
        [passes(2, of=3, method="POST"), passes(1, of=3, used=2, method="DELETE"),
         refused(1, of=3, method="POST"), refused(1, of=3, method="DELETE"), free(4)])
    yield Scenario(
        "paths below a prefix",
        limited("paths", rule(3, {"path": {"type": "PathPrefix", "value": "/cart/items"}})), 1,
        [passes(3, of=3, path="/cart/items"), refused(1, of=3, path="/cart/items"),
         refused(1, of=3, path="/cart/items/7"), free(2, path="/cart/items7"),
         free(4, path="/cart")])
    query = [{"queryParams": [exact("user", "ann")]},
             {"queryParams": [{"name": "tenant", "type": "Distinct"}]}]
    yield Scenario(
        "query parameters, one value and each value",
        limited("query", rule(3, query[0]), rule(2, query[1])), 2,
        [passes(3, of=3, path="/?user=ann"), refused(1, of=3, path="/?user=ann"),
         free(4, path="/?user=ben"), passes(2, of=2, path="/?tenant=a"),
         refused(1, of=2, path="/?tenant=a"), passes(2, of=2, path="/?tenant=b")])


def headers():
    both, one = {"x-user-id": "ann", "x-user-org": "acme"}, {"x-user-id": "ann"}
    selected = {"headers": [exact(name, value) for name, value in both.items()]}
    yield Scenario(
        "two headers, both needed", limited("headers", rule(3, selected)), 1,
        [passes(3, of=3, headers=both), refused(1, of=3, headers=both), free(4, headers=one)])
    name = {"name": "x-user-name", "type": "Distinct"}
    admin = {**exact("x-user-name", "admin"), "invert": True}
    ann, ben = {"x-user-name": "ann"}, {"x-user-name": "ben"}
    yield Scenario(
        "each value of a header but one",
        limited("header-inverted", rule(3, {"headers": [name, admin]})), 1,
        [passes(3, of=3, headers=ann), refused(1, of=3, headers=ann),
         passes(3, of=3, headers=ben), free(4, headers={"x-user-name": "admin"}), free(2)])
    near, far = source("203.0.113.7"), source("198.51.100.1")
    within = {**selected, **cidr("203.0.113.0/24", type="Distinct")}
    yield Scenario(
        "headers and a CIDR, all needed", limited("headers-cidr", rule(3, within)), 1,
        [passes(3, of=3, headers={**both, **near}), refused(1, of=3, headers={**both, **near}),
         free(4, headers={**one, **near}), free(4, headers=near),
         free(4, headers={**both, **far})])


def matching():
    return [*addresses(), *requests(), *headers()]
