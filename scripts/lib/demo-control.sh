# Sourced by scripts/demo: the part of --control. PostgreSQL as Debian has it and the control plane
# on it, from which the pods take their rules; then a limit is changed by curl, and brought back.

# Finds what it needs: PostgreSQL, curl, and a build of the control plane.
need_control() {
    local tool
    for tool in curl setpriv; do command -v "$tool" >/dev/null || die "no $tool: $mend"; done
    postgres_bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
    [[ -x $postgres_bin/initdb ]] || die "no PostgreSQL in /usr/lib/postgresql: $mend"
    build ratelease-control "${RATELEASE_CONTROL_BIN-}"
    control_program=${RATELEASE_CONTROL_BIN:-$release/ratelease-control}
}

answers_psql() { "$postgres_bin/pg_isready" --quiet --host 127.0.0.1 --port "$1"; }

# start_control POSTGRES_PORT API_PORT PODS_PORT: sets `api`, `auth`, and `pod_settings`.
start_control() {
    local data=$work/postgres as=()
    mkdir "$data"
    # PostgreSQL refuses to run as root.
    if ((EUID == 0)); then
        chmod 711 "$work" && chown postgres "$data"
        as=(setpriv --reuid postgres --regid postgres --clear-groups)
    fi
    "${as[@]}" "$postgres_bin/initdb" --username=postgres --auth=trust --no-sync --encoding=UTF8 \
        --pgdata "$data" >"$work/initdb.log" 2>&1 || die 'PostgreSQL cannot be set up' initdb
    start postgres "${as[@]}" "$postgres_bin/postgres" -D "$data" -c listen_addresses=127.0.0.1 \
        -c "port=$1" -c "unix_socket_directories=$data"
    await postgres answers_psql "$1"
    echo "PostgreSQL: 127.0.0.1:$1"

    start control env DATABASE_URL="postgres://postgres@127.0.0.1:$1/postgres?sslmode=disable" \
        "$control_program" serve --http-listen "127.0.0.1:$2" --pods-listen "127.0.0.1:$3" \
        --token-file "$work/token"
    await control answers_200 "$2" /healthz
    api=http://127.0.0.1:$2 auth="authorization: Bearer $(<"$work/token")"
    local file imported
    for file in config/rules/*.yaml; do
        imported=$(curl -sS --fail-with-body -H "$auth" -H 'content-type: application/yaml' \
            --data-binary "@$file" "$api/v1/import?publish=true") || die "$file: $imported" control
    done
    echo "control plane: $api, pods on 127.0.0.1:$3, rules of config/rules in PostgreSQL"
    pod_settings=(env CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL="127.0.0.1:$3"
        CONFIG_GRPC_XDS_RATELEASE=true)
    where_rules="curl -H \"authorization: Bearer \$(<$work/token)\" $api/v1/rules?domain=demo"
}

# change_limits INGRESS_PORT: raises the limit of /hello by curl, rolls that back, and prints when
# answers of both pods, through Envoy, showed it.
change_limits() {
    python3 - "$1" "$api" "$auth" <<'PYTHON' || die 'a change was not enforced: see above' control
import http.client, json, subprocess, sys, time

INGRESS, API, AUTH = sys.argv[1:]
PATIENCE = 20  # seconds until a change must be enforced

# Envoy asks the two pods in turn, so that this many answers in a row are of both.
IN_A_ROW = 4


def curl(path, *arguments):
    command = ["curl", "-sS", "--fail-with-body", "-H", AUTH, *arguments, API + path]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if answer.returncode:
        sys.exit(f"{path}: {answer.stdout}")
    return json.loads(answer.stdout)


def limit(envoy):
    envoy.request("GET", "/hello")
    answer = envoy.getresponse()
    answer.read()
    return int((answer.headers.get("x-ratelimit-limit") or "0").split(",")[0])


def enforced(envoy, expected):
    """Seconds until both pods enforce a limit."""
    begin, in_a_row = time.monotonic(), 0
    since = begin
    while in_a_row < IN_A_ROW:
        found = limit(envoy)
        in_a_row = in_a_row + 1 if found == expected else 0
        if in_a_row == 0:
            since = time.monotonic()
        if time.monotonic() > begin + PATIENCE:
            sys.exit(f"/hello has the limit {found} after {PATIENCE} s, not {expected}")
    return since - begin


def version():
    return curl("/v1/versions?limit=1")["versions"][0]["version"]


rule = curl("/v1/rules?domain=demo&scope=generic_key&value=hello")["rules"][0]
before, first = rule["rate_limit"]["requests_per_unit"], version()
rule["rate_limit"]["requests_per_unit"] = before + 10
body = ["-H", "content-type: application/json", "-d"]
changes = [
    (f"PUT the limit {before + 10} of /hello", before + 10, f"/v1/rules/{rule['id']}?publish=true",
     ["-X", "PUT", "-H", f"if-match: \"{rule['revision']}\"", *body, json.dumps(rule)]),
    (f"roll back to version {first}", before, "/v1/rollback", [*body, f'{{"version":{first}}}']),
]

row = "{:<30}{:>8}{:>10}{:>20}".format
print()
print(row("change by curl", "version", "answered", "enforced by Envoy"))
envoy = http.client.HTTPConnection("127.0.0.1", int(INGRESS), timeout=10)
for what, expected, path, arguments in changes:
    begin = time.monotonic()
    curl(path, *arguments)
    answered = time.monotonic() - begin
    took = enforced(envoy, expected)
    print(row(what, version(), f"{answered * 1000:.0f} ms", f"{took * 1000:.0f} ms later"))
PYTHON
}
