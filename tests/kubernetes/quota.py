"""A namespace whose ResourceQuota counts limits of CPU: the API server refuses each pod there that
has a container without one."""

import json

import objects
from api import Failed, until

NAMESPACE = "counted"
QUOTA = "cpu"


def set_up(api):
    """The namespace, and the quota with the status that a controller would write."""
    namespace = objects.namespace(NAMESPACE)
    namespace["metadata"]["labels"] = {"ratelease.io/injection": "enabled"}
    api.apply(namespace)
    hard = {"limits.cpu": "10"}
    quota = api.apply({"apiVersion": "v1", "kind": "ResourceQuota",
                       "metadata": objects.meta(QUOTA, NAMESPACE), "spec": {"hard": hard}})
    quota["status"] = {"hard": hard, "used": {"limits.cpu": "0"}}
    path = api.path("v1", "ResourceQuota", NAMESPACE, QUOTA) + "/status"
    api.request("PUT", path, json.dumps(quota).encode())


def limited(of, cpu):
    """The pod with this limit of CPU for each of its containers."""
    for container in of["spec"]["containers"]:
        container["resources"] = {"limits": {"cpu": cpu}}
    of["metadata"]["namespace"] = NAMESPACE
    return of


def check(api, pod, create):
    """Pods of `pod`, created by `create`. Returns what was seen."""
    set_up(api)

    def is_refused():
        """Whether a sidecar without a limit is refused; the server may not know the quota yet."""
        of = limited(pod("counted-none", {"ratelease.io/cpu-limit": "none"}), "500m")
        try:
            create(of, "?dryRun=All")
        except Failed as error:
            return "must specify limits.cpu for: ratelease" in str(error)
        return False

    until("the quota's refusal", is_refused)
    seen = []
    for annotations, limit in [({}, "200m"), ({"ratelease.io/cpu-limit": "100m"}, "100m")]:
        found, warnings = create(limited(pod(f"counted-{limit}", annotations), "500m"))
        sidecar = found["spec"]["initContainers"][0]
        if warnings or sidecar["resources"]["limits"]["cpu"] != limit:
            raise Failed(f"{annotations}: {warnings} {sidecar['resources']}")
        seen.append(limit)
    used = api.get("v1", "ResourceQuota", NAMESPACE, QUOTA)["status"]["used"]["limits.cpu"]
    if used != "1300m":
        raise Failed(f"500m, 200m, 500m and 100m are counted as {used}")
    return f"refused without a limit; taken with {' and '.join(seen)}"
