# Functions for scripts that need a Kubernetes API server: they build kube-apiserver and other
# programs of Go modules, isolate a script from the rest of the machine, and start an API server on
# an etcd. No kubelet, scheduler or controller runs: objects are stored, checked against their
# schemas and given to webhooks and watchers, and nothing acts on them.
#
# A script sources this file from the root of the repository. `die` takes the script's name from $0.

readonly tools=$PWD/target/tools
readonly apiserver_modules=tests/kubernetes/apiserver

bold='' red='' plain=''
if [[ -t 1 ]]; then bold=$'\e[1m' red=$'\e[31m' plain=$'\e[0m'; fi

# Prints the reason for stopping in one line. 2: the script cannot run here; 1: something failed.
die() {
    printf '%sscripts/%s: %s%s\n' "$red" "${0##*/}" "$1" "$plain" >&2
    exit "${2:-2}"
}

step() {
    local start=$SECONDS
    printf '%s== %s%s\n' "$bold" "$1" "$plain"
    "${@:2}"
    printf '   %s: ok, %d s\n' "$1" $((SECONDS - start))
}

# The version of a module that the go.mod of a directory requires, without the `v`.
module_version() {
    sed -n "s|^\(require\)\?[[:space:]]*$2 v\([0-9a-z.-]*\)\$|\2|p" "$1/go.mod" | sed -n 1p
}

# Checks that Go is as new as the go.mod of a directory says: Debian's may be older.
require_go() {
    local needed found
    needed=$(sed -n 's/^go //p' "$1/go.mod")
    command -v go >/dev/null || die "no go: install Go $needed or newer"
    found=$(go env GOVERSION)
    [[ $(printf '%s\n' "$needed" "${found#go}" | sort -V | sed -n 1p) == "$needed" ]] ||
        die "needs Go $needed to build ${1##*/}, and $(command -v go) is ${found#go}"
}

# build_go_programs NAME DIRECTORY MODULE PACKAGES [PATH...] builds packages, separated by white space,
# of a module that the go.mod and go.sum of a directory pin, and links each program to target/tools/bin.
# Further paths within the module are copied to target/tools/NAME-VERSION.
build_go_programs() {
    local name=$1 directory=$2 module=$3 packages version home package
    read -rd '' -a packages <<<"$4" || true # it ends with no NUL
    version=$(module_version "$directory" "$module")
    [[ -n $version ]] || die "$directory/go.mod requires no $module"
    home=$tools/$name-$version
    are_built "$name-$version" && return
    require_go "$directory"
    echo "   building $name $version (some minutes)"
    mkdir -p "$home" "$tools/bin"
    export GOFLAGS='-mod=readonly -modcacherw -buildvcs=false'
    (cd "$directory" && GOBIN=$home/bin GOPATH=$home/go nice go install "${packages[@]}") \
        >"$home/log" 2>&1 || {
        tail -n 5 "$home/log" >&2
        die "$name cannot be built: check that go reaches its module proxy" 1
    }
    copy_files "$directory" "$module" "$home" "${@:5}"
    rm -rf "$home/go" # its sources
    # A relative link, which stays right when the directory is moved.
    for package in "${packages[@]}"; do
        ln -sfn "../$name-$version/bin/${package##*/}" "$tools/bin/${package##*/}"
    done
}

# Whether the programs that `packages` lists are linked to a directory of target/tools.
are_built() {
    local package program
    for package in "${packages[@]}"; do
        program=${package##*/}
        [[ $(readlink "$tools/bin/$program") == "../$1/bin/$program" && -x $tools/bin/$program ]] ||
            return 1
    done
}

# copy_files DIRECTORY MODULE HOME [PATH...] copies files and directories of a module.
copy_files() {
    local from path
    from=$(cd "$1" && GOPATH=$3/go go list -m -f '{{.Dir}}' "$2")
    for path in "${@:4}"; do cp -rT "$from/$path" "$3/${path##*/}"; done
}

# Installs Debian packages, each given as PROGRAM:PACKAGE, whose programs are missing.
install_programs() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    if ((${#missing[@]} == 0)); then return; fi
    command -v apt-get >/dev/null || die "needs ${missing[*]}, and knows only apt-get: install them"
    echo "   installing ${missing[*]}"
    apt-get update -qq
    # Debian starts no service in run level 1: an etcd and a Redis of its own are not needed.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# What start_api_server needs.
install_kubernetes() {
    install_programs etcd:etcd-server openssl:openssl curl:curl
    build_go_programs kube-apiserver "$apiserver_modules" k8s.io/kubernetes \
        k8s.io/kubernetes/cmd/kube-apiserver
}

isolated_pid='' work=${work:-}

end_isolated() {
    if [[ -n $isolated_pid ]]; then
        kill -KILL "$isolated_pid" 2>/dev/null || true
        wait "$isolated_pid" 2>/dev/null || true
    fi
    if [[ -n $work ]]; then rm -rf "$work"; fi
}

# isolated COMMAND... runs a command in network, mount and process namespaces of its own, with an
# empty directory, whose name is in the variable `work`, and an empty /run. However the command or
# this script ends, all processes in there end, and with them all mounts and network interfaces, and
# the directory. Returns the command's status.
isolated() {
    local status=0
    trap end_isolated EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    work=$(mktemp --directory --tmpdir ratelease-kubernetes.XXXXXX)
    # setpriv ends unshare if this script is killed, and unshare ends the rest.
    work=$work setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child \
        --mount-proc --propagation private -- sh -c '
            mount -t tmpfs tmpfs /run && mount -t tmpfs -o mode=755 tmpfs "$work" && exec "$@"
        ' sh "$@" &
    isolated_pid=$!
    wait "$isolated_pid" || status=$?
    isolated_pid=''
    return "$status"
}

# Fails at once, and in one line, if this machine does not allow what `isolated` does.
require_namespaces() {
    ((EUID == 0)) || die "needs root: it makes namespaces"
    command -v unshare >/dev/null && command -v setpriv >/dev/null || die "needs util-linux"
    unshare --net --mount --pid --fork --mount-proc true 2>/dev/null ||
        die "this kernel or container allows no namespaces: run it privileged"
}

# await SECONDS WHAT LOG COMMAND... repeats a command until it succeeds. It fails if the program that
# was started last, whose log is given, ends before, and shows the end of that log.
await() {
    local deadline=$((SECONDS + $1)) what=$2 log=$3 pid=$!
    until "${@:4}" >/dev/null 2>&1; do
        if ! kill -0 "$pid" 2>/dev/null; then
            tail -n 5 "$log" >&2
            die "$what ended" 1
        elif ((SECONDS >= deadline)); then
            tail -n 5 "$log" >&2
            die "$what is not there after $1 s" 1
        fi
        sleep 0.1
    done
}

# start_etcd DIRECTORY: its data, and its log.
start_etcd() {
    etcd --data-dir "$1/etcd" --unsafe-no-fsync --logger zap --log-level warn \
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380 >"$1/etcd.log" 2>&1 &
    await 30 etcd "$1/etcd.log" \
        curl --noproxy '*' --fail --silent http://127.0.0.1:2379/health
}

# start_api_server DIRECTORY ADDRESS starts one on port 6443 of an address, beside `start_etcd`, and
# writes DIRECTORY/kubeconfig. Further arguments are the server's.
start_api_server() {
    local directory=$1 address=$2 token
    token=$(openssl rand -hex 16)
    mkdir -p "$directory/apiserver"
    openssl genrsa -out "$directory/apiserver/accounts.key" 2048 2>/dev/null
    (umask 077 && echo "$token,admin,admin,system:masters" >"$directory/apiserver/tokens")
    write_kubeconfig "https://$address:6443" "$token" >"$directory/kubeconfig"
    "$tools/bin/kube-apiserver" --etcd-servers http://127.0.0.1:2379 \
        --bind-address "$address" --advertise-address "$address" --secure-port 6443 \
        --cert-dir "$directory/apiserver" --token-auth-file "$directory/apiserver/tokens" \
        --service-account-issuer https://kubernetes.default.svc \
        --service-account-key-file "$directory/apiserver/accounts.key" \
        --service-account-signing-key-file "$directory/apiserver/accounts.key" \
        --service-cluster-ip-range 10.96.0.0/24 --authorization-mode RBAC \
        --disable-admission-plugins ServiceAccount "${@:3}" >"$directory/apiserver.log" 2>&1 &
    await 60 kube-apiserver "$directory/apiserver.log" \
        curl --noproxy '*' --fail --silent --insecure \
        --header "Authorization: Bearer $token" "https://$address:6443/readyz"
}

# A kubeconfig in JSON, which is YAML too.
write_kubeconfig() {
    cat <<JSON
{"apiVersion": "v1", "kind": "Config", "current-context": "test",
 "clusters": [{"name": "test", "cluster": {"server": "$1", "insecure-skip-tls-verify": true}}],
 "users": [{"name": "admin", "user": {"token": "$2"}}],
 "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}]}
JSON
}

# start_cluster ADDRESS starts etcd and an API server on a bridge with this address, in the
# namespaces of `isolated`.
start_cluster() {
    ip link set lo up
    ip link add name bridge type bridge
    ip addr add "$1/24" dev bridge
    ip link set bridge up
    start_etcd "$work"
    # No kube-proxy runs, so the server looks up the endpoints of a webhook's Service itself.
    start_api_server "$work" "$1" --enable-aggregator-routing=true
}

# keep_logs DIRECTORY copies the logs that there are.
keep_logs() {
    local log
    for log in "$work"/*.log "$work"/logs/*.log "$work"/rules/logs/*.log; do
        if [[ -f $log ]]; then cp "$log" "$1"; fi
    done
}

# Finds the Envoy that a script runs: `envoy`.
require_envoy() {
    envoy=$(readlink -m "${ENVOY_BIN:-$tools/bin/envoy}")
    [[ -x $envoy ]] || die "no Envoy: scripts/test installs one, or set ENVOY_BIN"
}

# build VARIABLE PROGRAM builds a program of this repository, unless the variable names another build:
# `built`.
build() {
    built=${!1:-${CARGO_TARGET_DIR:-target}/debug/$2}
    if [[ -z ${!1:-} ]]; then
        nice cargo build --quiet --locked --workspace --bin "$2"
    fi
    built=$(readlink -m "$built")
    [[ -x $built ]] || die "$1=${!1:-} is no program: correct or unset it"
}

# The programs of a pod with the injector: `ratelease` and `injector`.
build_sidecar_and_injector() {
    build RATELEASE_BIN ratelease
    ratelease=$built
    build INJECTOR_BIN ratelease-injector
    injector=$built
}

# The library of the module, and the program that copies it: `module` and `install_module`.
build_module() {
    build INSTALL_MODULE_BIN install-module
    install_module=$built
    module=${MODULE_LIBRARY:-${CARGO_TARGET_DIR:-target}/debug/libratelease.so}
    if [[ -z ${MODULE_LIBRARY:-} ]]; then
        nice cargo rustc --quiet --locked --package ratelease-envoy-module --lib --crate-type cdylib
    fi
    module=$(readlink -m "$module")
    [[ -f $module ]] || die "MODULE_LIBRARY: $module is no file"
}
