"""Finds out whether an Envoy and ratelease have what Envoy Gateway makes of a policy."""

import json
from typing import NamedTuple

ADMIN = "http://127.0.0.1:19000"  # of an Envoy, within its pod
RULES = "http://127.0.0.1:6070/rlconfig"  # of ratelease, likewise


def fetch(pod, url):
    return pod.within("curl", "--silent", "--fail", "--max-time", "5", url)


class Served(NamedTuple):
    """A route as a listener serves it."""

    listener_filters: set  # names of the listener's HTTP filters
    filters: dict  # what the route says to each of them


def section(dump, kind):
    """One part of an Envoy's configuration dump."""
    return next((it for it in dump["configs"] if it["@type"].endswith(f".{kind}")), {})


def filters_of_listeners(dump):
    """The names of the HTTP filters by the name of the route configuration."""
    found = {}
    for it in section(dump, "ListenersConfigDump").get("dynamic_listeners", []):
        listener = it.get("active_state", {}).get("listener", {})
        chains = [*listener.get("filter_chains", []), listener.get("default_filter_chain", {})]
        for network_filter in (it for chain in chains for it in chain.get("filters", [])):
            manager = network_filter.get("typed_config", {})
            if "rds" in manager:
                names = {it["name"] for it in manager["http_filters"]}
                found[manager["rds"]["route_config_name"]] = names
    return found


def served(envoy, hosts):
    """The routes of some hosts. A route configuration that no listener uses yet is left out."""
    dump = json.loads(fetch(envoy, f"{ADMIN}/config_dump"))
    listeners = filters_of_listeners(dump)
    for it in section(dump, "RoutesConfigDump").get("dynamic_route_configs", []):
        configuration = it["route_config"]
        names = listeners.get(configuration["name"])
        for host in configuration.get("virtual_hosts", []):
            if names is not None and set(hosts) & set(host["domains"]):
                for route in host.get("routes", []):
                    yield Served(names, route.get("typed_per_filter_config", {}))


def limits_of(route):
    """What a route sends to ratelease: pairs of a domain and the descriptor's first entry."""
    for config in route.filters.values():
        for limit in config.get("rate_limits", []):
            first = limit["actions"][0]["generic_key"]
            yield config["domain"], f"{first['descriptor_key']}_{first['descriptor_value']}"


def is_in_force(envoy, service, hosts, limits, filters=()):
    """Whether an Envoy sends so many descriptors for all requests to some hosts together, its
    listeners have the filters that do this and further ones whose names begin as given, and
    ratelease has a rule for each descriptor."""
    routes = list(served(envoy, hosts))
    if not routes or any(route.filters.keys() - route.listener_filters for route in routes):
        return False
    names = [name for route in routes for name in route.filters]
    if any(not any(name.startswith(it) for name in names) for it in filters):
        return False
    sent = [it for route in routes for it in limits_of(route)]
    rules = fetch(service, RULES)
    return len(sent) == limits and all(f"{domain}.{entry}." in rules for domain, entry in sent)
