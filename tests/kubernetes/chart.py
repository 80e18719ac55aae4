"""Gives each object of the rendered Helm chart to an API server, which checks it in a dry run.

    chart.py KUBECONFIG RENDERED...

Each file of RENDERED is what Helm made of one set of values. Objects of the operator of Prometheus
and of cert-manager are counted and left out: the server does not know their kinds.
"""

import re
import sys
from pathlib import Path

from api import Api, Failed

NAMESPACE = "limits"  # that scripts/test-chart renders for
OF_OPERATORS = ("monitoring.coreos.com/", "cert-manager.io/")
# Every field has to be known, and nothing is stored.
DRY_RUN = "?fieldManager=test&force=true&dryRun=All&fieldValidation=Strict"


def documents(text):
    """Version, kind, name and text of each document."""
    for document in re.split(r"^---$", text, flags=re.MULTILINE):
        version = re.search(r"^apiVersion: (\S+)$", document, re.MULTILINE)
        if version:
            kind = re.search(r"^kind: (\S+)$", document, re.MULTILINE)[1]
            name = re.search(r"^metadata:\n  name: (\S+)$", document, re.MULTILINE)[1]
            yield version[1], kind, name, document


def check(api, rendered):
    """Prints a line for a file. Returns how many objects the server refused."""
    taken, left_out, refused = [], 0, 0
    for version, kind, name, document in documents(rendered.read_text()):
        if version.startswith(OF_OPERATORS):
            left_out += 1
            continue
        try:
            path = api.path(version, kind, NAMESPACE, name)
            api.request("PATCH", path + DRY_RUN, document.encode(), "application/apply-patch+yaml")
            taken.append(kind)
        except Failed as why:
            print(f"FAILED   {rendered.name}: {kind} {name}: {why}")
            refused += 1
    if not taken:
        print(f"FAILED   {rendered.name}: no object was taken")
        return refused + 1
    of_operators = f"; {left_out} of operators not checked" if left_out else ""
    word = "FAILED" if refused else "ok"
    print(f"{word:<8} {rendered.name}: {', '.join(taken)}{of_operators}")
    return refused


def refuses_a_misspelt_field(api):
    """Whether the server checks fields at all."""
    bad = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndatta: {}\n"
    path = api.path("v1", "ConfigMap", NAMESPACE, "a")
    try:
        api.request("PATCH", path + DRY_RUN, bad, "application/apply-patch+yaml")
        return False
    except Failed as why:
        return "datta" in str(why)


def main(kubeconfig, *files):
    api = Api(kubeconfig)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    api.apply(namespace)
    if not refuses_a_misspelt_field(api):
        sys.exit("the API server takes an object with a field that does not exist")
    refused = sum(check(api, Path(name)) for name in files)
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
