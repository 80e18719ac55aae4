# Sourced by the scripts that use Docker Engine: finds a client, starts the engine if none runs, and
# makes images where they cannot be pulled.
#
# Where an image of a registry cannot be pulled, a stand-in is built from Debian's packages under
# the name localhost/stand-in/NAME:TAG, so that it cannot be taken for the real one.

readonly stand_in=localhost/stand-in
readonly recipes=scripts/containers
dockerd_pid='' work='' docker='' stood_in=()

# Prints the reason for stopping in one line: what failed and how to fix it.
die() {
    printf '%s: %s\n' "$program" "$1" >&2
    exit 1
}

# need COMMAND PACKAGE...: notes each command that is not there, with Debian's package.
missing=()
need() {
    command -v "$1" >/dev/null || missing+=("$1 (apt-get install $2)")
}

# await SECONDS COMMAND...: waits until it succeeds.
await() {
    local deadline=$((SECONDS + $1))
    until "${@:2}"; do
        ((SECONDS < deadline)) || { echo "not after $1 s: ${*:2}" >&2 && return 1; }
        sleep 0.2
    done
}

# A client that can build with BuildKit: one with the plugin `buildx`, or one from before clients
# needed it.
find_client() {
    local client major
    for client in $(type -ap docker); do
        major=$("$client" --version | sed -nE 's/^Docker version ([0-9]+).*/\1/p')
        if "$client" buildx version >/dev/null 2>&1 || ((${major:-99} < 23)); then
            docker=$client
            return
        fi
    done
    missing+=("docker with buildx (apt-get install docker-buildx-plugin, or Debian's docker.io)")
}

# Starts dockerd with its usual directories unless an engine answers, and awaits it.
start_engine() {
    local deadline=$((SECONDS + 60))
    export DOCKER_BUILDKIT=1
    if "$docker" info >/dev/null 2>&1; then return; fi
    command -v dockerd >/dev/null || die 'no engine answers, and no dockerd to start one'
    # In a session of its own, so that Ctrl-C does not end it before the containers.
    setsid dockerd >"$work/dockerd.log" 2>&1 </dev/null &
    dockerd_pid=$!
    until "$docker" info >/dev/null 2>&1; do
        kill -0 "$dockerd_pid" 2>/dev/null ||
            die "dockerd ended: $(grep -v level=info "$work/dockerd.log" | tail -n 1)"
        ((SECONDS < deadline)) || die 'dockerd does not answer after 60 s'
        sleep 0.2
    done
    echo "started an engine: $("$docker" version --format '{{.Server.Version}}')"
}

# Ends the engine if this script has started it.
stop_engine() {
    if [[ -n $dockerd_pid ]]; then
        kill "$dockerd_pid" 2>/dev/null || true
        wait "$dockerd_pid" 2>/dev/null || true
    fi
}

# Checks what every such script needs, and starts the engine.
open_engine() {
    ((EUID == 0)) || die 'needs root, for the engine and for debootstrap'
    find_client
    ((${#missing[@]} == 0)) || die "lacks $(printf '%s; ' "${missing[@]}" | sed 's/; $//')"
    work=$(mktemp -d "${TMPDIR:-/tmp}/ratelease-containers.XXXXXX")
    start_engine
}

# Images of FILE..., as name:tag@digest where they have a digest; without ours.
images_of() {
    sed -nE -e 's/^FROM (--platform=[^ ]+ )?([^ ]+:[^ ]+).*/\2/p' -e 's/^ *image: ([^ ]+).*/\1/p' \
        "$@" | grep -v '^ratelease:' | sort -u
}

# Prints FILE with the names of stand-ins in place of the images that could not be pulled. For an
# architecture that is not this machine's, the stand-ins of two images have a suffix.
with_stand_ins() {
    local image script='' suffix
    for image in "${stood_in[@]}"; do
        suffix=''
        if [[ $image == gcr.io/distroless/* ]]; then suffix=-${2:-$(machine_arch)}; fi
        script+="s|([ =])${image//./\\.}|\\1$stand_in/${image%@*}$suffix|;"
    done
    sed -E "$script" "$1"
}

machine_arch() { dpkg --print-architecture; }

# Pulls the images of FILE..., or makes stand-ins, and says which.
provide_images() {
    local image refused
    for image in $(images_of "$@"); do
        if "$docker" image inspect "$image" >/dev/null 2>&1; then continue; fi
        if refused=$(timeout 600 "$docker" pull --quiet "$image" 2>&1); then continue; fi
        stood_in+=("$image")
        make_stand_in "${image%@*}"
    done
    if ((${#stood_in[@]})); then echo "not pulled: ${refused##*: }"; fi
}
