"""Other rate limit servers, started beside ratelease: the reference (envoyproxy/ratelimit) and gubernator,
both built from the Go module proxy, and a limitador that is at hand; and the load that asks any of them
(tests/reference/load).

scripts/compare and scripts/compare-reference import this.
"""

import json
import os
import re
import shutil
import subprocess
import urllib.request

import bench

MODULES = bench.ROOT / "tests/reference"  # pins the reference, and what the load is built from
TOOLS = bench.ROOT / "target/tools"
# The README of the reference requires a window of 150 to 500 µs for Redis Cluster.
CLUSTER = {"REDIS_TYPE": "cluster", "REDIS_PIPELINE_WINDOW": "150us"}
REFERENCE = "github.com/envoyproxy/ratelimit"
GUBERNATOR = "github.com/gubernator-io/gubernator/v2"
GUBERNATOR_VERSION = "2.21.0"
GUBERNATOR_SUM = "h1:Kg0HO1H8nVY3/mlOqoKX9NqhlssYV5Y/I6A/2Y6qvL0="

# Not to be counted in statsd, nor to be reached from elsewhere.
QUIET = {"USE_STATSD": "false", "HOST": "127.0.0.1", "GRPC_HOST": "127.0.0.1",
         "DEBUG_HOST": "127.0.0.1"}


# === Building ===


def reference_version():
    pinned = re.search(rf"^\s*(?:require )?{REFERENCE} v(\S+)", (MODULES / "go.mod").read_text(), re.M)
    return pinned.group(1)


def build_reference():
    """The path of the reference's program."""
    version = reference_version()
    home = TOOLS / f"ratelimit-{version}"
    program = home / "bin/service_cmd"
    if not program.exists():
        bench.say(f"building {REFERENCE} {version} (some minutes)")
        go(MODULES, home, "build", "-o", program, f"{REFERENCE}/src/service_cmd")
    return program


def build_load():
    """The path of the load, built again when its source has changed."""
    sources = [MODULES / "go.mod", *(MODULES / "load").glob("*.go")]
    home = TOOLS / "compare-load"
    program = home / "bin/load"
    newest = max(source.stat().st_mtime for source in sources)
    if not program.exists() or program.stat().st_mtime < newest:
        bench.say("building the load")
        go(MODULES, home, "build", "-o", program, "./load")
    return program


def build_gubernator():
    """The path of gubernator's program. It is built within its own module, whose `go` line asks for a
    patch release of Go that Debian and others may not have: the line is lowered to the minor release."""
    home = TOOLS / f"gubernator-{GUBERNATOR_VERSION}"
    program = home / "bin/gubernator"
    if program.exists():
        return program
    bench.say(f"building {GUBERNATOR} {GUBERNATOR_VERSION} (some minutes)")
    home.mkdir(parents=True, exist_ok=True)
    # Reports an error for the `go` line, and has the archive nevertheless.
    said = subprocess.run(
        ["go", "mod", "download", "-json", f"{GUBERNATOR}@v{GUBERNATOR_VERSION}"], cwd=home,
        env=go_env(home), capture_output=True, text=True)
    found = json.loads(said.stdout or "{}")
    if found.get("Sum") != GUBERNATOR_SUM:
        raise bench.Failed(f"{GUBERNATOR} has another sum than is pinned, or cannot be fetched: "
                           f"{found.get('Error') or found.get('Sum') or said.stderr.strip()}")
    shutil.unpack_archive(found["Zip"], home / "source", "zip")
    source = home / "source" / f"{GUBERNATOR}@v{GUBERNATOR_VERSION}"
    line = re.search(r"^go (\d+\.\d+)", (source / "go.mod").read_text(), re.M).group(1)
    bench.run(["go", "mod", "edit", f"-go={line}.0", str(source / "go.mod")])
    go(source, home, "build", "-o", program, "./cmd/gubernator")
    shutil.rmtree(home / "source")
    return program


def go_env(home):
    return os.environ | {"GOPATH": str(home / "go"), "GOWORK": "off",
                         "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false"}


def go(directory, home, *words):
    """Runs go in a directory, with a module cache of its own that is removed when it has ended."""
    if not shutil.which("go"):
        raise bench.Failed("no go: install the one that tests/reference/go.mod names, or a newer one")
    home.mkdir(parents=True, exist_ok=True)
    command = ["nice", "go", *(str(word) for word in words)]
    done = subprocess.run(command, cwd=directory, env=go_env(home), capture_output=True, text=True)
    if done.returncode != 0:
        raise bench.Failed(f"go {words[0]} failed; does it reach its module proxy?\n"
                           f"{done.stderr[-1500:]}")
    shutil.rmtree(home / "go", ignore_errors=True)


# === Starting ===


def start_reference(stage, name, program, root, settings):
    """An instance of the reference with the rules of `root`/config and further settings, among them
    those of Redis: its process and its address."""
    grpc, http, debug = bench.free_ports(3)
    env = QUIET | {"RUNTIME_ROOT": str(root), "RUNTIME_WATCH_ROOT": "false", "DISABLE_STATS": "true",
                   "REDIS_SOCKET_TYPE": "tcp", "LOG_LEVEL": "warn", "GRPC_PORT": str(grpc),
                   "PORT": str(http), "DEBUG_PORT": str(debug)}
    child = stage.start(name, [program], env=inherited() | env | settings)
    stage.wait(name, lambda: get(f"http://127.0.0.1:{http}/healthcheck") == "OK")
    if "Error loading new configuration" in (stage.directory / f"{name}.log").read_text():
        raise bench.Failed("the reference does not load these rules; see what it says with LOG_LEVEL")
    return child, f"127.0.0.1:{grpc}"


def start_gubernator(stage, program, count):
    """A fleet of gubernator whose members find each other by gossip, its default: the processes and
    addresses for gRPC, and those for HTTP. Each has an address of loopback to itself, since gossip
    tells members apart by that."""
    grpc, http, gossip = bench.free_ports(3)
    fleet, pages = [], []
    for at in range(count):
        host = f"127.0.0.{at + 1}"
        env = {"GUBER_GRPC_ADDRESS": f"{host}:{grpc}", "GUBER_HTTP_ADDRESS": f"{host}:{http}",
               "GUBER_MEMBERLIST_ADDRESS": f"{host}:{gossip}",
               "GUBER_MEMBERLIST_BIND_ADDRESS": f"{host}:{gossip}",
               "GUBER_MEMBERLIST_NODE_NAME": host,
               "GUBER_MEMBERLIST_KNOWN_NODES": f"127.0.0.1:{gossip}",
               "GUBER_LOG_LEVEL": "warn", "OTEL_TRACES_EXPORTER": "none"}
        child = stage.start(f"gubernator-{at}", [program], env=inherited() | env)
        fleet.append((child, f"{host}:{grpc}"))
        pages.append(f"{host}:{http}")
        knows = lambda: f'"peer_count":{at + 1},' in get(f"http://{pages[0]}/v1/HealthCheck")
        stage.wait("a fleet of gubernator", knows)
    return fleet, pages


def start_limitador(stage, program, count, limits, store, port):
    """A fleet of limitador on one Redis, by the store `redis` or `redis_cached`: the processes and
    addresses."""
    fleet = []
    for at in range(count):
        grpc, http = bench.free_ports(2)
        words = [program, "--rls-ip", "127.0.0.1", "--rls-port", grpc, "--http-ip", "127.0.0.1",
                 "--http-port", http, limits, store, f"redis://127.0.0.1:{port}"]
        child = stage.start(f"limitador-{at}", words, env=inherited())
        stage.wait(f"limitador-{at}", lambda: "max_value" in get(f"http://127.0.0.1:{http}/limits/shop"))
        fleet.append((child, f"127.0.0.1:{grpc}"))
    return fleet


def inherited():
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def get(url):
    """The text of a page, or none while there is no answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        return direct.open(url, timeout=2).read().decode()
    except OSError:
        return ""


# === Loading ===


def load(program, targets, **flags):
    """What the load reports. Flags as its own, with `_` for `-`."""
    words = [str(program), "-targets", ",".join(targets)]
    for name, value in flags.items():
        words += [f"-{name.replace('_', '-')}", str(value)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise bench.Failed(f"the load did not begin: {done.stderr.strip()}")
    return json.loads(done.stdout)
