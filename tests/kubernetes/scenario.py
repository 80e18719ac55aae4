"""What a scenario consists of, and the objects that most of them apply."""

from typing import NamedTuple, Optional

import objects
from objects import target, traffic_policy

GATEWAY = "scenarios"
LISTENERS = [
    {"name": "http", "port": 80},
    {"name": "second", "port": 8090},
    {"name": "quiet", "port": 8091},
    {"name": "app1", "port": 8092, "hostname": "app1.example.com"},
    {"name": "app2", "port": 8092, "hostname": "app2.example.com"},
]


class Scenario(NamedTuple):
    name: str
    objects: list  # that the user applies
    limits: int  # descriptors that Envoy may send, of all routes together
    asks: list
    filters: tuple = ()  # further filters that the routes need: how their names begin
    over: Optional[int] = None  # hits over a limit; by default one for each request that is refused
    shadow: int = 0  # hits over a limit in shadow mode
    remark: str = ""
    shown: str = ""  # labels of a series of ratelease that counts hits over the limit

    def hosts(self):
        routes = [it for it in self.objects if it["kind"] == "HTTPRoute"]
        named = {host for route in routes for host in route["spec"]["hostnames"]}
        return named or {it["hostname"] for it in LISTENERS if "hostname" in it}


def routed(name, sections=("http",), hosts=None, paths=("/",)):
    """A route of the Gateway's listeners, with a host of its own."""
    parents = [{"name": GATEWAY, "sectionName": it} for it in sections]
    return objects.route(name, parents, [f"{name}.example.com"] if hosts is None else hosts, paths)


def rule(requests, *selectors, **more):
    """A limit of a month for the requests that all selectors are for."""
    selected = {"clientSelectors": list(selectors)} if selectors else {}
    return {**selected, "limit": {"requests": requests, "unit": "Month"}, **more}


def limited(name, *rules, **more):
    """A route with a policy."""
    return [routed(name, **more), traffic_policy(name, [target("HTTPRoute", name)], list(rules))]


def cidr(value, **more):
    return {"sourceCIDR": {"value": value, **more}}


def exact(name, value):
    return {"name": name, "type": "Exact", "value": value}
