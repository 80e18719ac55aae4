"""A client of a Kubernetes API server, of what the tests need: apply, get, wait."""

import json
import re
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

START_MAX = 60  # seconds that anything may take to appear


class Failed(Exception):
    """What went wrong, in one line."""


def until(what, is_there, seconds=START_MAX, every=0.05):
    """What `is_there` returns, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := is_there()):
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(every)
    return found


class Api:
    def __init__(self, kubeconfig):
        config = json.loads(Path(kubeconfig).read_text())
        self.server = config["clusters"][0]["cluster"]["server"]
        self.token = config["users"][0]["user"]["token"]
        # The server made its certificate itself, and its network has no other server.
        self.tls = ssl._create_unverified_context()
        https = urllib.request.HTTPSHandler(context=self.tls)
        # No proxy reaches the server's network.
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
        self.plurals = {}

    def request(self, method, path, body=None, kind="application/json"):
        """The reply as JSON; None for 404."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        request = urllib.request.Request(self.server + path, body, headers, method=method)
        try:
            with self.opener.open(request, timeout=10) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            text = error.read().decode(errors="replace")
            raise Failed(f"{method} {path}: {error.code} {text[:2000]}") from None

    def path(self, version, kind, namespace, name):
        """The path of an object: the server says what the plural of its kind is."""
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self.plurals:
            listed = until(version, lambda: self.request("GET", root))
            for it in listed["resources"]:
                if "/" not in it["name"]:
                    self.plurals[version, it["kind"]] = (it["name"], it["namespaced"])
            if (version, kind) not in self.plurals:
                raise Failed(f"the API server knows no {kind} of {version}")
        plural, is_namespaced = self.plurals[version, kind]
        within = f"/namespaces/{namespace}" if is_namespaced else ""
        return f"{root}{within}/{plural}/{name}"

    def apply(self, it):
        """Creates or changes an object, as `kubectl apply --server-side` does."""
        meta = it["metadata"]
        path = self.path(it["apiVersion"], it["kind"], meta.get("namespace"), meta["name"])
        return self.patch(path, json.dumps(it))

    def apply_yaml(self, text, is_wanted=lambda name: True, namespace=None):
        """The same for a file of several objects, of which those that name no namespace are in the
        one that is given. Returns how many."""
        count = 0
        for document in re.split(r"^---\s*$", text, flags=re.MULTILINE):
            version = re.search(r"^apiVersion: *(\S+)", document, re.MULTILINE)
            if not version:
                continue
            kind = re.search(r"^kind: *(\S+)", document, re.MULTILINE)[1]
            meta = re.search(r"^metadata:\n((?: .*\n)+)", document, re.MULTILINE)[1]
            name = re.search(r"^  name: *(\S+)", meta, re.MULTILINE)[1].strip('"')
            if not is_wanted(name):
                continue
            own = re.search(r"^  namespace: *(\S+)", meta, re.MULTILINE)
            at = own[1].strip('"') if own else namespace
            self.patch(self.path(version[1], kind, at, name), document)
            count += 1
        return count

    def patch(self, path, text, manager="test"):
        query = f"?fieldManager={manager}&force=true"
        return self.request("PATCH", path + query, text.encode(), "application/apply-patch+yaml")

    def get(self, version, kind, namespace, name):
        return self.request("GET", self.path(version, kind, namespace, name))

    def delete(self, version, kind, namespace, name):
        return self.request("DELETE", self.path(version, kind, namespace, name))

    def token_of(self, namespace, account, audiences=()):
        """A token of a ServiceAccount, as the kubelet gets it for a pod."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                 "spec": {"audiences": list(audiences)}}
        found = self.request("POST", path, json.dumps(asked).encode())
        if not found:
            raise Failed(f"there is no ServiceAccount {account} in {namespace}")
        return found["status"]["token"]

    def wait(self, version, kind, namespace, name, is_ready=lambda it: True):
        def found():
            it = self.get(version, kind, namespace, name)
            return it if it and is_ready(it) else None

        return until(f"{kind} {name}", found)
