"""The objects that a user of Envoy Gateway applies, and those that its chart does."""

import json

SYSTEM = "envoy-gateway-system"
CONTROLLER = "gateway.envoyproxy.io/gatewayclass-controller"
GATEWAYS = ["east", "west"]
BACKEND_PORT = 3000
MANY = 1_000_000_000  # a limit that no run reaches


def meta(name, namespace=None, **more):
    return {"name": name, **({"namespace": namespace} if namespace else {}), **more}


def namespace(name):
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta(name)}


def config(redis, timeout):
    """The configuration of Envoy Gateway: its defaults, policies with Lua, which two scenarios have,
    and a rate limit service, for which Envoy waits `timeout`, or 20 ms without one. Without an
    election: a leader that cannot reach the API server for 10 s goes on as a process that does
    nothing, and on a busy machine that happens."""
    kubernetes = {"leaderElection": {"disable": True}}
    backend = {"type": "Redis", "redis": {"url": redis}}
    return {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyGateway",
        "gateway": {"controllerName": CONTROLLER},
        "provider": {"type": "Kubernetes", "kubernetes": kubernetes},
        "extensionApis": {"enableLua": True},
        "rateLimit": {"backend": backend, **({"timeout": timeout} if timeout else {})},
    }


def chart(redis, timeout, kubeconfig):
    """What its chart installs, as far as it is needed to run: the Deployment's program is started
    with these arguments, variables and volumes. The program reaches the API server by a kubeconfig
    instead of the token of its service account."""
    labels = {"control-plane": "envoy-gateway"}
    ports = {"grpc": 18000, "ratelimit": 18001, "wasm": 18002, "metrics": 19001}
    yield {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("envoy-gateway-config", SYSTEM),
        "data": {"envoy-gateway.yaml": json.dumps(config(redis, timeout))},
    }
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("envoy-gateway", SYSTEM)}
    yield {
        "apiVersion": "v1", "kind": "Service", "metadata": meta("envoy-gateway", SYSTEM),
        "spec": {"selector": labels,
                 "ports": [{"name": name, "port": at} for name, at in ports.items()]},
    }
    volumes = [
        {"name": "config", "configMap": {"name": "envoy-gateway-config"}},
        {"name": "certs", "secret": {"secretName": "envoy-gateway"}},
        {"name": "wasm-cache", "emptyDir": {}},
        {"name": "kubeconfig", "hostPath": {"path": str(kubeconfig)}},
    ]
    mounts = {"config": "/config", "certs": "/certs", "wasm-cache": "/var/lib/eg/wasm",
              "kubeconfig": "/kubeconfig"}
    env = {"ENVOY_GATEWAY_NAMESPACE": SYSTEM, "KUBERNETES_CLUSTER_DOMAIN": "cluster.local",
           "KUBECONFIG": "/kubeconfig/kubeconfig"}
    container = {
        "name": "envoy-gateway", "image": "envoyproxy/gateway",
        "command": ["envoy-gateway"],
        "args": ["server", "--config-path=/config/envoy-gateway.yaml"],
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "volumeMounts": [{"name": name, "mountPath": at} for name, at in mounts.items()],
        "securityContext": {"runAsUser": 65532, "runAsGroup": 65532,
                            "readOnlyRootFilesystem": True},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8081}},
    }
    yield {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("envoy-gateway", SYSTEM),
        "spec": {"selector": {"matchLabels": labels},
                 "template": {"metadata": {"labels": labels},
                              "spec": {"containers": [container], "volumes": volumes}}},
    }


def endpoints(service, namespace, addresses, port, name):
    """What the controller of EndpointSlices writes for a Service and its pods that are ready."""
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": meta(f"{service}-1", namespace,
                         labels={"kubernetes.io/service-name": service}),
        "endpoints": [{"addresses": [it], "conditions": {"ready": True}} for it in addresses],
        "ports": [{"name": name, "port": port, "protocol": "TCP"}],
    }


def ready(service, namespace, addresses, ports):
    """What the controllers of endpoints write for a Service with several ports and its pods: slices
    for controllers, and Endpoints for the API server, which finds webhooks by them."""
    ports = [{"name": name, "port": at, "protocol": "TCP"} for name, at in ports.items()]
    yield {**endpoints(service, namespace, addresses, 0, ""), "ports": ports}
    yield {
        "apiVersion": "v1", "kind": "Endpoints", "metadata": meta(service, namespace),
        "subsets": [{"addresses": [{"ip": it} for it in addresses], "ports": ports}]}


def common(backend):
    """What all Gateways have in common: their class, and the Service that they lead to."""
    host, port = backend
    yield {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": meta("eg"), "spec": {"controllerName": CONTROLLER},
    }
    yield {
        "apiVersion": "v1", "kind": "Service", "metadata": meta("backend", "default"),
        "spec": {"ports": [{"name": "http", "port": port}]},
    }
    yield endpoints("backend", "default", [host], port, "http")


def gateway(name, listeners):
    return {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": meta(name, "default"),
        "spec": {"gatewayClassName": "eg",
                 "listeners": [{"protocol": "HTTP", **it} for it in listeners]},
    }


def route(name, parents, hosts, paths=("/",)):
    """A route of a Gateway's listeners to the Service."""
    matches = [{"path": {"type": "PathPrefix", "value": it}} for it in paths]
    backend = {"name": "backend", "port": BACKEND_PORT}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": meta(name, "default"),
        "spec": {"parentRefs": parents, "hostnames": list(hosts),
                 "rules": [{"matches": matches, "backendRefs": [backend]}]},
    }


def gateways():
    """Two Gateways, each with an Envoy of its own."""
    for name in GATEWAYS:
        yield gateway(name, [{"name": "http", "port": 80}])
        yield route(name, [{"name": name}], [host_of(name)])


def host_of(gateway):
    return f"{gateway}.example.com"


def policy(gateway, limit):
    """A limit for each user of the free plan, and one that is never reached for the gold plan. Of a
    month, so that no window ends during a run."""
    plan = {"name": "x-plan", "type": "Exact"}
    user = {"name": "x-user", "type": "Distinct"}

    def rule(headers, requests):
        return {"clientSelectors": [{"headers": headers}],
                "limit": {"requests": requests, "unit": "Month"}}

    rules = [rule([{**plan, "value": "free"}, user], limit),
             rule([{**plan, "value": "gold"}], MANY)]
    return traffic_policy(gateway, [target("HTTPRoute", gateway)], rules)


def target(kind, name, **more):
    """What a policy is for."""
    return {"group": "gateway.networking.k8s.io", "kind": kind, "name": name, **more}


def traffic_policy(name, targets, rules, **more):
    return policy_of("BackendTrafficPolicy", name, targets,
                     rateLimit={"type": "Global", "global": {"rules": rules}}, **more)


def policy_of(kind, name, targets, **spec):
    """A policy of one of Envoy Gateway's kinds."""
    return {"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": kind,
            "metadata": meta(name, "default"), "spec": {"targetRefs": targets, **spec}}
