"""The injector on an API server: installed as the chart says, started as its Deployment says, with
the rights of its ServiceAccount."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import objects
from api import Failed, until
from chart import documents
from pods import BRIDGE, Pod

SYSTEM = "limits"  # the namespace that scripts/test-chart renders for
NAME = "ratelease-injector"
ADDRESS = "10.77.0.10"
LIFETIME = 90  # seconds of a certificate, which is replaced after two thirds of them
STATUS = "ratelease.io/status"
WEBHOOKS = "admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", None
# Settings of the pods. A busy machine must not look like a Redis that is away: the failure mode
# would answer.
PATIENT = "LEASE_MAX_WAIT=1s\nLEASE_WAIT_LIMIT=1s"


def require(is_met, what):
    if not is_met:
        raise Failed(what)


def sidecars(of):
    """The names of the init containers and of the containers."""
    spec = of["spec"]
    lists = [spec.get("initContainers", []), spec["containers"]]
    return [[it["name"] for it in containers] for containers in lists]


def is_injected(of):
    return of["metadata"].get("annotations", {}).get(STATUS) == "injected"


def create(api, of, query="?fieldValidation=Strict"):
    """Creates a pod; the pod as it is stored, and the warnings of the API server."""
    path = f"{api.server}/api/v1/namespaces/{of['metadata']['namespace']}/pods{query}"
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(path, json.dumps(of).encode(), headers, method="POST")
    try:
        with api.opener.open(request, timeout=20) as reply:
            return json.loads(reply.read()), reply.headers.get_all("Warning") or []
    except urllib.error.HTTPError as error:
        raise Failed(f"{error.code} {error.read().decode(errors='replace')[:2000]}") from None


def in_cluster(node, deployment):
    """Adds to the pods of a Deployment what the API server and the kubelet do, so that its programs
    reach the API server with a token of their ServiceAccount."""
    spec = deployment["spec"]["template"]["spec"]
    account = spec["serviceAccountName"]
    at = node.work / f"token-{account}"
    at.mkdir()
    namespace = deployment["metadata"]["namespace"]
    (at / "token").write_text(node.api.token_of(namespace, account))
    (at / "namespace").write_text(namespace)
    (at / "ca.crt").write_bytes((node.work / "apiserver/apiserver.crt").read_bytes())
    spec.setdefault("volumes", []).append({"name": "token", "hostPath": {"path": str(at)}})
    container = spec["containers"][0]
    container.setdefault("volumeMounts", []).append(
        {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"})
    container.setdefault("env", []).extend([
        {"name": "KUBERNETES_SERVICE_HOST", "value": BRIDGE},
        {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"}])
    return deployment


def install(api, rendered):
    """Applies the rendered chart."""
    api.apply(objects.namespace(SYSTEM))
    for version, kind, name, text in documents(Path(rendered).read_text()):
        api.patch(api.path(version, kind, SYSTEM, name), text)


def start(node, program):
    """Starts the injector, whose webhook then is called."""
    found = node.api.get("apps/v1", "Deployment", SYSTEM, NAME)
    container = found["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [f"--certificate-lifetime={LIFETIME}s" if "lifetime" in it else it
                         for it in container["args"]]
    # The API server is of 1.31, where a node may be too old for them.
    container["args"].append("--default=native-sidecar=true")
    injector = Pod(node, "injector", ADDRESS, in_cluster(node, found), "injector", program)
    injector.start()
    await_log(node, "serving address")
    for it in objects.ready(NAME, SYSTEM, [ADDRESS], {"https": 8443}):
        node.api.apply(it)
    return injector


def await_log(node, text):
    def is_there():
        node.require_alive()
        return text in node.log("injector")
    until(f"{text!r} in the log of the injector", is_there)
