# Sourced by scripts/demo: the part of --llm. A fake provider of language models, and for each way
# to limit tokens an Envoy in each pod, with the bootstrap of its recipe.

readonly llm_limit=10000 # of the rules of the recipes, an hour
readonly llm_window=3600

# llm_rules: copies the rules of the recipes into one directory, and prints its name.
llm_rules() {
    local recipe
    mkdir "$work/rules"
    for recipe in llm-tokens llm-holds; do
        cp "envoy/recipes/$recipe/rules/recipe.yaml" "$work/rules/$recipe.yaml"
    done
    echo "$work/rules"
}

# start_envoy NAME RECIPE INGRESS_PORT ADMIN_PORT RLS_PORT LLM_PORT
start_envoy() {
    local port config=$work/$1.yaml
    # `timeout` is 0.1 s in the recipes: six Redis nodes and all the rest share this machine.
    sed -e "s/port_value: 10000/port_value: $3/; s/port_value: 9901/port_value: $4/" \
        -e "s/port_value: 8081/port_value: $5/; s/port_value: 8000/port_value: $6/" \
        -e 's/address: 0.0.0.0/address: 127.0.0.1/; s/timeout: 0.1s/timeout: 2s/' \
        "envoy/recipes/$2/envoy.yaml" >"$config"
    for port in "$3" "$4" "$5" "$6"; do
        grep -q "port_value: $port}" "$config" || die "envoy/recipes/$2: a port is missing"
    done
    start "$1" "$envoy" -c "$config" --disable-hot-restart --concurrency 1 --log-level error
    await "$1" answers_200 "$4" /ready
}

# start_reference GRPC_PORT HTTP_PORT DEBUG_PORT REDIS_PORT: with the rules of llm-tokens.
start_reference() {
    start reference-redis redis-server --port "$4" --bind 127.0.0.1 --save '' --dir "$work"
    await reference-redis answers_ping "$4"
    mkdir -p "$work/reference/config"
    sed 's/, settle: true//' envoy/recipes/llm-tokens/rules/recipe.yaml \
        >"$work/reference/config/llm-tokens.yaml"
    start reference env RUNTIME_ROOT="$work/reference" RUNTIME_WATCH_ROOT=false USE_STATSD=false \
        DISABLE_STATS=true HOST=127.0.0.1 GRPC_HOST=127.0.0.1 DEBUG_HOST=127.0.0.1 \
        GRPC_PORT="$1" PORT="$2" DEBUG_PORT="$3" REDIS_SOCKET_TYPE=tcp REDIS_URL="127.0.0.1:$4" \
        LIMIT_RESPONSE_HEADERS_ENABLED=true "$RATELIMIT_BIN"
    await reference answers_200 "$2" /healthcheck
}

# compare_limits PORT...: the same load for each way to limit tokens; prints what was used in each.
compare_limits() {
    local llm=$1 left
    local looks=("$2" "$3") holds=("$4" "$5") reference=("$6" "$7")
    start llm python3 scripts/lib/fake_llm.py "$llm" --seed demo --delay 0.1
    await llm answers_200 "$llm" /used
    start_envoy looks-1 llm-tokens "$2" "$8" "${pods[0]}" "$llm"
    start_envoy looks-2 llm-tokens "$3" "$9" "${pods[3]}" "$llm"
    start_envoy holds-1 llm-holds "$4" "${10}" "${pods[0]}" "$llm"
    start_envoy holds-2 llm-holds "$5" "${11}" "${pods[3]}" "$llm"
    if [[ -n ${RATELIMIT_BIN-} ]]; then
        start_reference "${14}" "${15}" "${16}" "${17}"
        start_envoy reference-1 llm-tokens "$6" "${12}" "${14}" "$llm"
        start_envoy reference-2 llm-tokens "$7" "${13}" "${14}" "$llm"
    fi
    echo "the LLM: http://127.0.0.1:$llm; Envoy with holds: http://127.0.0.1:$4"
    left=$((llm_window - $(date +%s) % llm_window))
    if ((left < 60)); then
        echo "(waiting $left s for the next hour, so that all requests fall in one window)"
        sleep "$left"
    fi
    echo
    python3 scripts/lib/llm_load.py --head
    load() { python3 scripts/lib/llm_load.py "$1" "$llm_limit" "$2" "$llm" "${@:3}"; }
    if [[ -n ${RATELIMIT_BIN-} ]]; then
        load envoyproxy/ratelimit no "${reference[@]}" || die 'see above' reference
    fi
    load looks no "${looks[@]}" || die 'see above' looks-1
    load holds yes "${holds[@]}" || die 'see above' holds-1
    cat <<END

Try it:  curl -i http://127.0.0.1:$4/v1/messages -H 'content-type: application/json' \\
             -H 'x-user-id: alice' -d '{"model": "large", "max_tokens": 400}'
END
}
