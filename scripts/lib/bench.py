"""What scripts/bench and its siblings share: they build ratelease, start it and a Redis Cluster,
load it with benches/load.rs, and measure what that costs.

Each script puts scripts/lib on the path of modules and imports this one.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
START_MAX = 20  # seconds that a part may take to come up
STOP_MAX = 15  # seconds that it may take to end; ratelease drains for 10 at most
WARM = 2  # seconds of load before each measured run, in a run of its own
TICKS = os.sysconf("SC_CLK_TCK")
BEFORE = "before"  # the ratelease of --before
KEYS = ["--keys", "10000", "--zipf", "1"]
CONNECTIONS = ["--connections", "2", "--streams", "16"]

# All system calls; and those that wake another thread: of futexes, and writes to an eventfd.
# Sockets are written to by other calls.
PROBES = ["raw_syscalls:sys_enter", "syscalls:sys_enter_futex", "syscalls:sys_enter_write"]

# Rules for the keys that benches/load.rs requests, with limits that no run reaches.
RULES = (ROOT / "benches/floor/rules.yaml").read_text()


class Failed(Exception):
    """What went wrong, in one line."""


class Stage:
    """The processes that were started; the last one ends first."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.children = []

    def start(self, name, command, **options):
        log = open(self.directory / f"{name}.log", "wb")
        options = {"stdin": subprocess.DEVNULL, "stdout": log, **options}
        child = subprocess.Popen([str(word) for word in command], stderr=log, **options)
        log.close()
        self.children.append((name, child))
        return child

    def wait(self, what, is_there):
        deadline = time.monotonic() + START_MAX
        while not (found := is_there()):
            for name, child in self.children:
                if child.poll() is not None:
                    tail = (self.directory / f"{name}.log").read_text(errors="replace")[-2000:]
                    raise Failed(f"{name} ended while it started:\n{tail}")
            if time.monotonic() > deadline:
                raise Failed(f"{what} is not there after {START_MAX} s")
            time.sleep(0.05)
        return found

    def stop(self, child):
        """Ends one of them before the others."""
        self.children = [entry for entry in self.children if entry[1] is not child]
        end(child)

    def end(self):
        for _, child in reversed(self.children):
            end(child)


def end(child):
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(STOP_MAX)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


# === What is started ===


def build(server):
    """The paths of ratelease, of the load generator and of the floors."""
    say("building (some minutes the first time)")
    messages = run(
        ["cargo", "bench", "--profile", "dist", "--locked", "--no-run", "--bench", "floor",
         "--message-format", "json"]
    )
    built = [json.loads(line) for line in messages.splitlines() if line.startswith("{")]
    # The list includes the binary, since a bench may run it.
    floors = [m["executable"] for m in built
              if m.get("executable") and m["target"]["name"] == "floor"]
    run(["cargo", "build", "--profile", "dist", "--locked", "--example", "load"])
    # Built last, so that the binary lacks the features that only tests and benches enable.
    built = build_server()
    if not floors:
        raise Failed("cargo built no floor; try: cargo bench --no-run --bench floor")
    return server or built, built.parent / "examples" / "load", floors[-1]


def build_server():
    """The path of ratelease, as images carry it."""
    run(["cargo", "build", "--profile", "dist", "--locked", "--package", "ratelease", "--bins"])
    return Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "dist" / "ratelease"


def binaries(args):
    """The paths of ratelease and the load generator, built unless both are given."""
    if args.server and args.generator:
        return args.server, args.generator
    server, generator, _ = build(args.server)
    return server, args.generator or generator


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} failed")
    return done.stdout


def start_redis(stage, fronts=lambda ports: ports, node_timeout=2000):
    """A cluster; its addresses and its processes. `fronts` opens a port before each node, which is
    the one that clients connect to. A replica takes over after `node_timeout` ms."""
    ports = free_ports(6)
    shown = fronts(ports)
    nodes = []
    for port, front in zip(ports, shown):
        home = stage.directory / f"redis-{port}"
        home.mkdir()
        options = f"--cluster-enabled yes --cluster-node-timeout {node_timeout} --appendonly no"
        options += f" --cluster-announce-port {front} --cluster-announce-bus-port {port + 10000}"
        words = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", home]
        words += [*options.split(), "--save", ""]
        nodes.append(stage.start(f"redis-{port}", words))
        stage.wait(f"Redis on {port}", lambda: "PONG" in redis(port, "ping"))
    addresses = [f"127.0.0.1:{front}" for front in shown]
    run(["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", "1",
         "--cluster-yes"])
    for port in ports:
        ok = "cluster_state:ok"
        stage.wait("the Redis Cluster", lambda: ok in redis(port, "cluster", "info"))
    return addresses, nodes


def start_one_redis(stage, name):
    """A server that is no cluster: its port and its process."""
    port = free_ports(1)[0]
    home = stage.directory / name
    home.mkdir()
    words = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", home]
    child = stage.start(name, [*words, "--appendonly", "no", "--save", ""])
    stage.wait(f"Redis on {port}", lambda: "PONG" in redis(port, "ping"))
    return port, child


def redis(port, *words):
    command = ["redis-cli", "-p", str(port), *words]
    return subprocess.run(command, capture_output=True, text=True).stdout


def free_ports(count):
    """Ports without a listener, below those that the kernel hands out to connections. A Redis node
    of a cluster uses its port + 10 000 too."""

    def is_free(port):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
            return True

    ports = random.sample(range(20000, 22000), 2000)
    free = [port for port in ports if is_free(port) and is_free(port + 10000)][:count]
    if len(free) < count:
        raise Failed("fewer than 6 free ports in 20000-21999: end what holds the others")
    return free


def start_ratelease(stage, binary, addresses, name="ratelease", more=None, text=RULES):
    """A pod on the cluster, or on the embedded store if there are no addresses, with `more` in its
    environment, and a directory of its own for its rules, which are `text`."""
    # Not beside the logs: a pod watches the directory around its rules.
    rules = stage.directory / "rules" / name
    rules.mkdir(parents=True)
    (rules / "shop.yaml").write_text(text)
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env |= {"HOST": "127.0.0.1", "GRPC_HOST": "127.0.0.1", "DEBUG_HOST": "127.0.0.1"}
    env |= {"PORT": "0", "GRPC_PORT": "0", "DEBUG_PORT": "0", "LOG_LEVEL": "warn"}
    if addresses:
        env |= {"REDIS_TYPE": "cluster", "REDIS_SOCKET_TYPE": "tcp"}
        env |= {"REDIS_URL": ",".join(addresses)}
    child = stage.start(name, [binary, "serve", "--rules", rules], env=env | (more or {}))
    return child, greeted(stage, name, r"gRPC on (\S+),")


def certificate(stage):
    """A certificate of this machine, signed by itself, and its key."""
    paths = stage.directory / "tls.crt", stage.directory / "tls.key"
    run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1",
         "-addext", "basicConstraints=critical,CA:FALSE", "-out", paths[0], "-keyout", paths[1]])
    return paths


def start_floor(stage, binary, name):
    child = stage.start(name, [binary, name], stdin=subprocess.PIPE)
    return child, greeted(stage, name, r"^(127\.0\.0\.1:\d+)$")


def greeted(stage, name, pattern):
    log = stage.directory / f"{name}.log"
    find = lambda: re.search(pattern, log.read_text(errors="replace"), re.MULTILINE)
    return stage.wait(name, find).group(1)


# === Measuring ===


def cpu_seconds(pids):
    """User and system time of the threads of processes so far. /proc/PID/stat says the same in steps
    of 10 ms, which at 500 requests/s is a tenth of what a run costs."""
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def machine_seconds():
    """Time that all cores have been busy so far."""
    fields = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / TICKS


def generator_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def switches(pid):
    """How often the threads of a process have given up their core, or lost it."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        count += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", status.read_text())))
    return count


def probe(generator, pid, address, flags):
    """System calls, and wake-ups of other threads, for each request; nothing if perf cannot count
    them."""
    if not shutil.which("perf"):
        return {}
    command = ["perf", "stat", "--field-separator", ",", "--event", ",".join(PROBES)]
    command += ["--pid", str(pid)]
    counter = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    requests = max(load(generator, address, flags, 1)["requests"], 1)
    counter.send_signal(signal.SIGINT)
    counted = {}
    for line in counter.communicate()[1].splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[0].isdigit():
            counted[fields[2]] = int(fields[0])
    if set(counted) != set(PROBES):
        return {}
    calls, *wakes = [counted[name] / requests for name in PROBES]
    return {"calls": calls, "wakes": sum(wakes)}


def rss_mib(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) / 1024


def load(generator, address, flags, seconds):
    command = [generator, "--target", address, "--json"]
    command += [] if "--keys" in flags else KEYS
    command += [] if "--connections" in flags else CONNECTIONS
    command += flags
    command += ["--warmup", "0", "--duration", f"{seconds}s"]
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 2 or not done.stdout:
        raise Failed(f"the load did not begin: {done.stderr.strip()}")
    return json.loads(done.stdout)


def measure(generator, pid, address, redis_pids, flags, seconds, warming=None):
    """One run: rates, latencies, and what they cost. Before it the server is loaded with the same
    flags, or with those of `warming`."""
    load(generator, address, warming or flags, WARM)
    begun, mine, others = time.monotonic(), cpu_seconds([pid]), cpu_seconds(redis_pids)
    switched = switches(pid)
    machine, own = machine_seconds(), generator_seconds()
    report = load(generator, address, flags, seconds)
    requests = max(report["requests"], 1)
    mine, others = cpu_seconds([pid]) - mine, cpu_seconds(redis_pids) - others
    own = generator_seconds() - own
    switched = switches(pid) - switched
    elsewhere = machine_seconds() - machine - mine - others - own
    latency = report["latency_us"]
    return {
        "requests": report["requests"],
        "per_second": report["requests_per_second"],
        "not_ok": report["requests"] - report["ok"],
        "p50_us": latency["p50"],
        "p99_us": latency["p99"],
        "p99.9_us": latency["p99.9"],
        "cpu_us": mine / requests * 1e6,
        "switches": switched / requests,
        "generator_cpu_us": own / requests * 1e6,
        "redis_cpu_us": others / requests * 1e6,
        "rss_mib": rss_mib(pid),
        "other_cores": max(elsewhere, 0) / (time.monotonic() - begun),
    }


# What wrk prints of a run, as JSON.
WRK_REPORT = """\
done = function(summary, latency)
  io.write(string.format('{"requests":%d,"micros":%d,"bad":%d,"p50_us":%d,"p99_us":%d}\\n',
    summary.requests, summary.duration, summary.errors.status + summary.errors.read
      + summary.errors.timeout, latency:percentile(50), latency:percentile(99)))
end
"""


def wrk_script(stage, name, script):
    """The path of a script of wrk that makes the requests, and reports the run."""
    path = stage.directory / f"{name}.lua"
    path.write_text(script + WRK_REPORT)
    return path


def wrk(script, port, seconds, connections):
    """Loads a port by HTTP/1.1 as fast as it answers."""
    command = ["wrk", "--threads", "1", "--connections", str(connections), "--duration",
               f"{seconds}s", "--script", str(script), f"http://127.0.0.1:{port}/"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"^\{.*\}$", done.stdout, re.MULTILINE)
    if not found:
        raise Failed(f"wrk failed: {done.stderr.strip() or done.stdout.strip()}")
    return json.loads(found.group())


# === Output ===

COLUMNS = {
    "per_second": ("requests/s", "{:.0f}"),
    "cpu_us": ("CPU µs", "{:.1f}"),
    "p50_us": ("p50 µs", "{:.0f}"),
    "p99_us": ("p99 µs", "{:.0f}"),
    "p99.9_us": ("p99.9 µs", "{:.0f}"),
    "calls": ("calls", "{:.2f}"),
    "wakes": ("wakes", "{:.2f}"),
    "switches": ("switches", "{:.2f}"),
    "rss_mib": ("RSS MiB", "{:.1f}"),
}


def median(runs, column):
    return statistics.median(run.get(column, float("nan")) for run in runs)


def ratio(ours, floor, column):
    """The median of what one round says each."""
    pairs = [(our.get(column, 0), base.get(column, 0)) for our, base in zip(ours, floor)]
    return statistics.median(our / base for our, base in pairs if base) if any(
        base for _, base in pairs) else float("nan")


def say(line):
    print(f"scripts/{Path(sys.argv[0]).name}: {line}", file=sys.stderr, flush=True)


def run_main(main):
    """Runs `main` in the root of the repository, and ends with its exit code. A signal ends it in
    order, so that everything it started ends too."""
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        main()
    except Failed as reason:
        say(reason)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
