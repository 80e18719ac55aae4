"""The configuration of an Envoy with a rate limit for each path, whose upstream is itself."""

HTTP = 10080  # where it takes requests
UPSTREAM = HTTP + 1
LIMITED = ["tcp", "uds", "both"]  # /tcp and so on; every other path has no limit
TYPES = "type.googleapis.com/envoy.extensions"


def config(is_uds):
    port = {"socket_address": {"address": "127.0.0.1", "port_value": 8081}}
    pipe = {"pipe": {"path": "/run/ratelease/rls.sock"}}
    protocol = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    http2 = {"@type": f"type.googleapis.com/{protocol}",
             "explicit_http_config": {"http2_protocol_options": {}}}
    clusters = [
        {**cluster("ratelimit", pipe if is_uds else port),
         "typed_extension_protocol_options": {protocol: http2}},
        cluster("upstream", {"socket_address": {"address": "127.0.0.1", "port_value": UPSTREAM}}),
    ]
    service = {"envoy_grpc": {"cluster_name": "ratelimit"}}
    limit = {
        "@type": f"{TYPES}.filters.http.ratelimit.v3.RateLimit", "domain": "shop",
        "timeout": "2s", "failure_mode_deny": True,
        "rate_limit_service": {"transport_api_version": "V3", "grpc_service": service},
    }
    routes = [{"match": {"prefix": f"/{name}"}, "route": {
        "cluster": "upstream",
        "rate_limits": [{"actions": [{"generic_key": {"descriptor_value": name}}]}]}}
        for name in LIMITED]
    answer = {"match": {"prefix": "/"}, "direct_response": {"status": 200}}
    filters = [{"name": "ratelimit", "typed_config": limit}]
    listeners = [listener("0.0.0.0", HTTP, [*routes, answer], filters),
                 listener("127.0.0.1", UPSTREAM, [answer], [])]
    return {"static_resources": {"listeners": listeners, "clusters": clusters}}


def cluster(name, address):
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    return {"name": name, "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": {"cluster_name": name, "endpoints": endpoints}}


def listener(address, port, routes, filters):
    router = {"name": "router",
              "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"}}
    hosts = [{"name": "all", "domains": ["*"], "routes": routes}]
    kind = "filters.network.http_connection_manager.v3.HttpConnectionManager"
    manager = {"@type": f"{TYPES}.{kind}", "stat_prefix": "http",
               "http_filters": [*filters, router], "route_config": {"virtual_hosts": hosts}}
    return {"address": {"socket_address": {"address": address, "port_value": port}},
            "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}
