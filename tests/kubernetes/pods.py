"""Runs the pods of Deployments, as far as the tests need a kubelet.

A pod has a network namespace with an address on a bridge. A container has a mount namespace whose
root holds its program and, read-only, the libraries of this machine; its Secrets and ConfigMaps are
mounted as the kubelet lays them out, and it has the user, the capabilities, the environment and the
arguments that its Deployment says. There is no image: a program stands in for it.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from api import Failed

BRIDGE = "10.77.0.1"
STOP_MAX = 20  # seconds that a program may take to end

# $1: where the new root is mounted; $2: the program; $3: its path in the root; $4: /etc; $5: `ro`
# if the root is read-only; then pairs of a directory and where it is mounted, `--`, and the
# arguments of setpriv.
ROOT = """\
set -e
root=$1 program=$2 path=$3 etc=$4 mode=$5
shift 5
mount -t tmpfs -o mode=755 tmpfs "$root"
mkdir -p "$root/usr" "$root/dev" "$root/proc" "$root/tmp" "$root/etc" "$root${path%/*}"
for link in /lib /lib64; do if [ -e "$link" ]; then cp -d "$link" "$root/"; fi; done
mount --bind -o ro /usr "$root/usr"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t proc proc "$root/proc"
mount --bind "$etc" "$root/etc"
chmod 1777 "$root/tmp" "$root/dev/shm"
touch "$root$path"
mount --bind -o ro "$program" "$root$path"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
shift
if [ "$mode" = ro ]; then mount -o remount,ro "$root"; fi
exec chroot "$root" /usr/bin/setpriv "$@"
"""


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}".strip())
    return done.stdout


def module_files(work, library):
    """What the image of the module has beside its program: the library."""
    at = Path(work) / "module"
    if not at.exists():
        at.mkdir()
        shutil.copy(library, at / "libratelease.so")
    return [(at, "/opt")]


class Node:
    """The bridge, the names in /etc/hosts, and all programs that were started."""

    def __init__(self, api, work, hosts):
        self.api, self.work = api, Path(work)
        self.children = []  # (name, process)
        self.etc = self.work / "etc"
        self.etc.mkdir()
        lines = ["127.0.0.1 localhost", *(f"{at} {name}" for name, at in hosts)]
        (self.etc / "hosts").write_text("\n".join(lines) + "\n")
        (self.etc / "resolv.conf").write_text("")  # istiod ends without the file
        (self.etc / "nsswitch.conf").write_text("hosts: files\n")
        (self.etc / "passwd").write_text("root:x:0:0::/:/nonexistent\n")

    def network(self, name, address):
        """A network namespace with an address on the bridge."""
        run("ip", "netns", "add", name)
        end = "veth" + address.replace(".", "")[-8:]  # the name of an interface has 15 letters
        run("ip", "link", "add", "name", end, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", end, "master", "bridge", "up")
        for words in (["addr", "add", f"{address}/24", "dev", "eth0"], ["link", "set", "lo", "up"],
                      ["link", "set", "eth0", "up"], ["route", "add", "default", "via", BRIDGE]):
            run("ip", "-n", name, *words)

    def start(self, name, words, env=None):
        """A program with a log of its own."""
        path = self.work / "logs" / f"{name}.log"
        path.parent.mkdir(exist_ok=True)
        with open(path, "ab") as log:
            os.chmod(path, 0o666)  # programs open /dev/stdout, as users that do not own it
            child = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL,
                                     stdout=log, stderr=log, env=env)
        self.children.append((name, child))
        return child

    def require_alive(self):
        for name, child in self.children:
            if child.poll() is not None:
                raise Failed(f"{name} ended with status {child.returncode}\n{self.tail(name)}")

    def stop(self, child):
        """Ends a program as the kubelet does; its status."""
        self.children = [it for it in self.children if it[1] is not child]
        child.terminate()
        try:
            return child.wait(STOP_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return None

    def tail(self, name, lines=15):
        path = self.work / "logs" / f"{name}.log"
        text = path.read_text(errors="replace").splitlines() if path.exists() else []
        return "\n".join(f"    {name}: {line[:400]}" for line in text[-lines:])

    def log(self, name):
        return (self.work / "logs" / f"{name}.log").read_text(errors="replace")


class Volume:
    """A volume of a pod as a directory. Secrets and ConfigMaps are replaced as the kubelet does:
    files are links into a directory that is swapped as a whole."""

    def __init__(self, pod, spec, directory):
        self.pod, self.spec = pod, spec
        self.directory = Path(spec["hostPath"]["path"] if "hostPath" in spec else directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.count = 0
        if "emptyDir" in spec:
            self.directory.chmod(0o777)
        self.refresh()

    def files(self):
        """The files by name; None for a volume that has only what programs write."""
        if "emptyDir" in self.spec or "hostPath" in self.spec:
            return None
        if "projected" in self.spec:
            sources = self.spec["projected"]["sources"]
            return {path: it for source in sources for path, it in self.files_of(source).items()}
        return self.files_of(self.spec)

    def files_of(self, source):
        if "secret" in source:
            named = {"name": source["secret"].get("secretName"), **source["secret"]}
            return self.data("Secret", named, base64.b64decode)
        if "configMap" in source:
            return self.data("ConfigMap", source["configMap"], str.encode)
        if "downwardAPI" in source:
            return {it["path"]: self.pod.field(it["fieldRef"]["fieldPath"]).encode()
                    for it in source["downwardAPI"]["items"]}
        it = source["serviceAccountToken"]
        audiences = [it["audience"]] if "audience" in it else []
        token = self.pod.node.api.token_of(self.pod.namespace, self.pod.account, audiences)
        return {it["path"]: token.encode()}

    def data(self, kind, named, decode):
        """The files of a Secret or a ConfigMap. Of items whose keys are missing there is none: all
        that the tests mount by item is optional."""
        found = self.pod.node.api.get("v1", kind, self.pod.namespace, named["name"])
        if not found and not named.get("optional"):
            raise Failed(f"there is no {kind} {named['name']}")
        data = (found or {}).get("data", {})
        items = named.get("items") or [{"key": name, "path": name} for name in data]
        return {it["path"]: decode(data[it["key"]]) for it in items if it["key"] in data}

    def refresh(self):
        files = self.files()
        if files is None:
            return
        self.count += 1
        new = self.directory / f"..{self.count}"
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")
        (self.directory / "..new").symlink_to(new.name)
        (self.directory / "..new").rename(self.directory / "..data")


class Pod:
    """One container of a Deployment, or of a pod in its form; `beside` another one of the same pod,
    whose network and volumes it shares. `entrypoint` and `mounts`, pairs of a directory and its
    place, are what the image has."""

    def __init__(self, node, name, address, deployment, container, program, beside=None,
                 entrypoint=(), mounts=()):
        self.node, self.name, self.address, self.program = node, name, address, program
        self.pod_name = beside.pod_name if beside else name
        self.namespace = deployment["metadata"]["namespace"]
        template = deployment["spec"]["template"]
        self.meta = {**deployment["metadata"], **template.get("metadata", {})}
        spec = template["spec"]
        self.account = spec.get("serviceAccountName", "default")
        every = [*spec.get("initContainers", []), *spec["containers"]]
        self.spec = next(it for it in every if it["name"] == container)
        self.security = {**spec.get("securityContext", {}), **self.spec.get("securityContext", {})}
        self.entrypoint, self.mounts = list(entrypoint), mounts
        self.home = node.work / "pods" / name
        self.netns = beside.netns if beside else name
        self.volumes = dict(beside.volumes) if beside else {}
        for it in spec.get("volumes", []) if not beside else []:
            self.volumes[it["name"]] = Volume(self, it, self.home / "volumes" / it["name"])
        if not beside:
            node.network(name, address)
        self.child = None

    def field(self, path):
        """A field of the pod, as the kubelet gives it to variables and to files."""
        name = path.removeprefix("metadata.")
        if name in ["labels", "annotations"]:
            values = self.meta.get(name, {})
            return "".join(f"{key}={json.dumps(it)}\n" for key, it in sorted(values.items()))
        fields = {"metadata.namespace": self.namespace, "metadata.name": self.pod_name,
                  "status.podIP": self.address, "status.hostIP": BRIDGE,
                  "spec.serviceAccountName": self.account, "spec.nodeName": "node"}
        return fields.get(path, "")

    def limit(self, resource, **_):
        """A limit of resources: whole CPUs, or bytes."""
        name = resource.removeprefix("limits.")
        quantity = self.spec.get("resources", {}).get("limits", {}).get(name)
        if name == "cpu":
            return str(-(-int(quantity.removesuffix("m")) // 1000)
                       if quantity and quantity.endswith("m") else quantity or os.cpu_count())
        units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
        quantity = quantity or "1Gi"
        return str(int(quantity[:-2]) * units[quantity[-2:]])

    def environment(self):
        env = {}
        for it in self.spec.get("env", []):
            source = it.get("valueFrom", {})
            if "secretKeyRef" in source:
                env[it["name"]] = self.secret(**source["secretKeyRef"])
            elif "resourceFieldRef" in source:
                env[it["name"]] = self.limit(**source["resourceFieldRef"])
            elif "fieldRef" in source:
                env[it["name"]] = self.field(source["fieldRef"]["fieldPath"])
            else:
                env[it["name"]] = it.get("value", "")
        return env

    def secret(self, name, key, **_):
        found = self.node.api.get("v1", "Secret", self.namespace, name)
        if not found or key not in found.get("data", {}):
            raise Failed(f"{self.name}: there is no Secret {name} with a key {key}")
        return base64.b64decode(found["data"][key]).decode()

    def arguments(self):
        """The arguments, with `$(NAME)` filled in from the environment."""
        env = self.environment()
        words = self.spec.get("command", self.entrypoint) + self.spec.get("args", [])
        return [re.sub(r"\$\((\w+)\)", lambda m: env.get(m[1], m[0]), word) for word in words]

    def start(self):
        words = self.arguments()
        path = words[0] if words[0].startswith("/") else f"/bin/{words[0]}"
        root = self.home / "root"
        root.mkdir(parents=True, exist_ok=True)
        mounts = [word for pair in self.mounts for word in pair]
        for it in self.spec.get("volumeMounts", []):
            if it["name"] in self.volumes:
                mounts += [self.volumes[it["name"]].directory, it["mountPath"]]
        mode = "ro" if self.security.get("readOnlyRootFilesystem") else "rw"
        user, group = self.security.get("runAsUser", 0), self.security.get("runAsGroup", 0)
        as_user = ["--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs",
                   "--bounding-set=-all", "--inh-caps=-all", "--"]
        self.child = self.node.start(self.name, [
            "nsenter", f"--net=/run/netns/{self.netns}", "unshare", "--mount", "--propagation",
            "private", "--", "sh", "-c", ROOT, "sh", root, self.program, path, self.node.etc, mode,
            *mounts, "--", *as_user, path, *words[1:],
        ], env={"PATH": os.environ["PATH"], "HOME": "/", **self.environment()})

    def refresh(self):
        for volume in self.volumes.values():
            volume.refresh()

    def stop(self):
        return self.node.stop(self.child)

    def await_end(self):
        """Waits until the program of an init container has ended; its status."""
        self.node.children = [it for it in self.node.children if it[1] is not self.child]
        return self.child.wait(STOP_MAX)

    def within(self, *words):
        """Runs a command in the pod's network, as a port-forward reaches it."""
        return run("nsenter", f"--net=/run/netns/{self.netns}", *words)

    def probe(self, name):
        """Whether a probe of the container succeeds: `startupProbe`, `readinessProbe` or
        `livenessProbe`, with the time-out that it has."""
        probe = self.spec[name]
        get = probe["httpGet"]
        named = {it.get("name"): it["containerPort"] for it in self.spec.get("ports", [])}
        url = f"http://{self.address}:{named.get(get['port'], get['port'])}{get['path']}"
        try:
            with urllib.request.urlopen(url, timeout=probe.get("timeoutSeconds", 1)) as reply:
                return 200 <= reply.status < 400
        except (urllib.error.URLError, OSError):
            return False

    def await_probe(self, name, seconds=60):
        deadline = time.monotonic() + seconds
        while not self.probe(name):
            self.node.require_alive()
            if time.monotonic() > deadline:
                tail = self.node.tail(self.name)
                raise Failed(f"{self.name}: {name} fails for {seconds} s\n{tail}")
            time.sleep(0.1)
