"""The commands of docs/install.md, run as they stand there against the API server.

Left out is what needs a registry, a kubelet or a controller of Deployments. Requests go to the pod that
the test has started, with a `.curlrc`.
"""

import os
import re
import shutil
from pathlib import Path

from api import Failed
from pods import run

PAGE = Path("docs/install.md")
LEFT_OUT = re.compile(r"docker build|kubectl (port-forward|rollout status)")


class Page:
    """One path of the page. `timeout` replaces the one of the recipes, which are copied."""

    def __init__(self, heading, work, timeout):
        section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
        block = re.search(r"```console\n(.*?)```", section, re.DOTALL)[1].replace("\\\n", "")
        lines = block.splitlines()
        self.rest = [line[2:] for line in lines if line.startswith("$ ")]
        self.shown = " ".join(line for line in lines if not line.startswith("$ "))
        self.live = re.search(r"http://127\.0\.0\.1:\d+/live", section)[0]
        self.home = work / "page"
        shutil.copytree("envoy/recipes", self.home / "envoy/recipes")
        shutil.copytree("deploy/helm", self.home / "deploy/helm")
        # An API server that is built from its Go module says that it is version 0.0.0.
        chart = self.home / "deploy/helm/ratelease/Chart.yaml"
        chart.write_text(re.sub(r"^kubeVersion: .*\n", "", chart.read_text(), flags=re.MULTILINE))
        for path in (self.home / "envoy/recipes").rglob("*.yaml") if timeout else []:
            path.write_text(path.read_text().replace("timeout: 0.1s", f"timeout: {timeout}"))
        # kubectl keeps what it knows of the server below HOME.
        self.env = {**os.environ, "HOME": str(self.home), "KUBECONFIG": str(work / "kubeconfig")}
        self.count = 0

    def run(self, words):
        """Runs the commands up to the first one with these words."""
        while self.rest:
            command = self.rest.pop(0)
            if not LEFT_OUT.search(command):
                self.shell(command)
            if words in command:
                return
        raise Failed(f"{PAGE} has no further command with: {words}")

    def shell(self, command):
        self.count += 1
        words = ["bash", "-euo", "pipefail", "-c", command]
        return run(*words, cwd=self.home, env=self.env)

    def require_denial(self, address, port, within):
        """Sends the requests of the page, which show the denial, and gets the live page; `within`
        runs a command in the pod."""
        (self.home / ".curlrc").write_text(f'connect-to = "::{address}:{port}"\n')
        command = next(it for it in self.rest if "%{http_code}" in it)
        # In place of a pod that runs curl.
        said = self.shell(re.sub(r"^kubectl run .* -- ", "curl ", command)).strip()
        if said != self.shown:
            raise Failed(f"{PAGE} shows {self.shown}, and its requests get {said}")
        if "<title>ratelease</title>" not in within("curl", "--silent", "--fail", self.live):
            raise Failed(f"{self.live} is no page")
        return f"{said}; {self.count} commands of {PAGE}"
