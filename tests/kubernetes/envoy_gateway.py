#!/usr/bin/env python3
"""The parts of scripts/test-envoy-gateway, which starts the API server and says what is proved.

Envoy Gateway makes the Deployments of its rate limit service and of its Envoys itself: all programs
run with the command, the environment, the volumes, the user and the probes that are written there.
"""

import argparse
import signal
import subprocess
import sys

from api import Failed
from per_pod import Module, PerPod
from scenarios import Scenarios
from scene import Scene, say
from steps import Steps

# In the order in which they run: the last one leaves Envoy Gateway with another configuration.
PARTS = {"steps": Steps, "scenarios": Scenarios, "module": Module, "per-pod": PerPod}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["work", "ratelease", "module", "install-module", "envoy", "envoy-gateway", "crds",
                 "recipes"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--timeout", default="", help="of Envoy's calls; by default its own")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; by default all")
    return parser.parse_args()


def main():
    given = arguments()
    scene = Scene(given)
    is_ok = True
    try:
        scene.start()
        for name, part in PARTS.items():
            if name in (given.only or PARTS):
                is_ok &= part(scene).run()
    except (Failed, OSError, subprocess.SubprocessError) as error:
        say(f"failed: {error}")
        for name in ["control", "ratelease"]:
            say(scene.node.tail(name))
        is_ok = False
    return 0 if is_ok else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
