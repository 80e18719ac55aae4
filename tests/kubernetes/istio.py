#!/usr/bin/env python3
"""The parts of scripts/test-istio, which starts the API server and says what is proved."""

import argparse
import http.client
import json
import signal
import subprocess
import sys

import table
from api import Failed
from mesh import Mesh
from mesh_parts import PARTS

SEEN_MAX = 120  # characters in the table; --json and the lines of progress have all


def say(text):
    print(text, file=sys.stderr, flush=True)


class Report:
    """The rows of the table: a part, a step, what was seen, and whether it is ok."""

    def __init__(self, mesh):
        self.mesh, self.rows = mesh, []

    def check(self, part, step, act):
        """Adds a row with what a step returns. A part ends with its first fault."""
        fault, seen = None, ""
        try:
            seen = act()
            self.mesh.node.require_alive()
        except (Failed, OSError, http.client.HTTPException, subprocess.SubprocessError) as error:
            fault = str(error) or repr(error)
        self.rows.append({"part": part, "step": step, "seen": fault or seen, "ok": fault is None})
        word = "FAILED" if fault else "ok"
        say(f"{word:<7}{part}: {step}: {fault or seen}")
        return fault is None

    def is_ok(self):
        return bool(self.rows) and all(row["ok"] for row in self.rows)

    def show(self, is_json):
        if is_json:
            print(json.dumps({"ok": self.is_ok(), "steps": self.rows}, indent=2))
            return
        rows = [[row["part"], row["step"], row["seen"].partition("\n")[0][:SEEN_MAX],
                 "ok" if row["ok"] else "FAILED"] for row in self.rows]
        table.show(["part", "step", "seen", ""], rows)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["work", "ratelease", "injector", "envoy", "recipes", "module",
                 "install-module", "istioctl", "pilot-discovery", "pilot-agent", "bootstrap"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--timeout", default="", help="of Envoy's calls; by default the recipe's")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; by default all")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    return parser.parse_args()


def main():
    given = arguments()
    mesh = Mesh(given)
    report = Report(mesh)
    if report.check("mesh", "istiod and the injector", mesh.start):
        for name, part in PARTS.items():
            if name in (given.only or PARTS):
                part(mesh, report).run()
    if not report.is_ok():
        for name, _ in mesh.node.children:
            say(mesh.node.tail(name, 8))
    report.show(given.json)
    return 0 if report.is_ok() else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
