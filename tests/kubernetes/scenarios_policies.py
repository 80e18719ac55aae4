"""Scenarios of how limits count and combine: tokens, listeners, shared and merged policies, costs,
shadow mode, headers that are off, limits from metadata.
"""

from asks import Ask, free, passes, refused, used
from load import USAGE
from objects import policy_of, target, traffic_policy
from scenario import GATEWAY, LISTENERS, Scenario, cidr, exact, limited, routed, rule
from scene import HTTP
from tokens import Signer

PORTS = {it["name"]: it["port"] for it in LISTENERS}

# Keeps what the response of the service says it used, for the charge at the stream's end.
USAGE_SCRIPT = f"""
function envoy_on_response(response_handle)
  local used = response_handle:headers():get("{USAGE}")
  if used ~= nil then
    response_handle:streamInfo():dynamicMetadata():set("example.usage", "tokens", tonumber(used))
  end
end
"""
# Gives the users of one plan a limit of their own.
PLAN_SCRIPT = """
function envoy_on_request(request_handle)
  if request_handle:headers():get("x-plan") == "gold" then
    local limit = {requests_per_unit = 5, unit = "MONTH"}
    request_handle:streamInfo():dynamicMetadata():set("example.plan", "limit", limit)
  end
end
"""


def header(name, value):
    return {"headers": [exact(name, value)]}


def script(name, text):
    return policy_of("EnvoyExtensionPolicy", name, [target("HTTPRoute", name)],
                     lua=[{"type": "Inline", "inline": text}])


def tokens(directory):
    signer = Signer(directory)
    ann, ben = signer.bearer(name="Ann"), signer.bearer(name="Ben")
    provider = {"name": "example", "claimToHeaders": [{"claim": "name", "header": "x-claim-name"}],
                "localJWKS": {"type": "Inline", "inline": signer.key_set()}}
    policy = policy_of("SecurityPolicy", "claims", [target("HTTPRoute", "claims")],
                       jwt={"providers": [provider]})
    yield Scenario(
        "a claim of a JWT",
        [*limited("claims", rule(3, header("x-claim-name", "Ann"))), policy], 1,
        [passes(3, of=3, headers=ann), refused(1, of=3, headers=ann), free(4, headers=ben),
         Ask(1, status=401)],
        filters=("envoy.filters.http.jwt_authn",), remark="401 without a token")


def listeners():
    every = rule(3, cidr("0.0.0.0/0", type="Distinct"))
    ports = [HTTP, PORTS["second"]]
    asks = [[passes(3, of=3, port=port), refused(1, of=3, port=port)] for port in ports]
    yield Scenario(
        "two listeners, each apart", limited("listeners", every, sections=["http", "second"]), 2,
        [*asks[0], *asks[1]])
    at = [{"host": f"{name}.example.com", "port": PORTS[name]} for name in ["app1", "app2"]]
    yield Scenario(
        "two hosts' listeners on one port",
        limited("hosts", every, sections=["app1", "app2"], hosts=[]), 2,
        [ask for it in at for ask in [passes(3, of=3, **it), refused(1, of=3, **it)]])


def silent():
    ann = {"x-user-id": "ann"}
    at = {"headers": ann, "port": PORTS["quiet"]}
    yield Scenario(
        "headers off, for a listener",
        limited("quiet", rule(3, header("x-user-id", "ann")), sections=["quiet"]), 1,
        [free(3, **at), Ask(1, status=429, **at), free(4, port=PORTS["quiet"])])
    yield Scenario(
        "headers off, for a rule",
        limited("quiet-rule", rule(3, header("x-user-id", "ann"), xRateLimitHeaders="Off")), 1,
        [free(3, headers=ann), Ask(1, status=429, headers=ann), free(4)])


def shared():
    routes = [target("HTTPRoute", name) for name in ["foo", "bar"]]
    two = [routed(it["name"], hosts=["shared.example.com"], paths=[f"/{it['name']}"])
           for it in routes]
    every = rule(3, cidr("0.0.0.0/0", type="Distinct"), shared=True)
    yield Scenario(
        "shared by two routes", [*two, traffic_policy("shared", routes, [every])], 2,
        [passes(2, of=3, path="/foo"), passes(1, of=3, used=2, path="/bar"),
         refused(1, of=3, path="/bar"), refused(1, of=3, path="/foo")])
    ann = {"headers": {"x-user-id": "ann"}}
    of_gateway = traffic_policy("shared-gateway", [target("Gateway", GATEWAY)],
                                [rule(3, header("x-user-id", "ann"), shared=True)])
    yield Scenario(
        "shared by all routes of a Gateway", [*two, of_gateway], 2,
        [passes(2, of=3, path="/foo", **ann), passes(1, of=3, used=2, path="/bar", **ann),
         refused(1, of=3, path="/bar", **ann), free(4, path="/foo")])
    costly = traffic_policy("shared-cost", [target("Gateway", GATEWAY)], [
        rule(4, header("x-user-id", "ann"), shared=True,
             cost={"request": {"from": "Number", "number": 2}})])
    yield Scenario(
        "shared, each request costs 2", [*two, costly], 2,
        [passes(1, of=4, cost=2, path="/foo", **ann),
         passes(1, of=4, used=2, cost=2, path="/bar", **ann),
         refused(1, of=4, path="/bar", **ann), free(4, path="/foo")], over=2)


def counted():
    ann = {"x-user-id": "ann"}
    cost = {"request": {"from": "Number", "number": 0},
            "response": {"from": "Metadata",
                         "metadata": {"namespace": "example.usage", "key": "tokens"}}}
    yield Scenario(
        "what responses used, at the stream's end",
        [*limited("usage", rule(21, header("x-user-id", "ann"), cost=cost)),
         script("usage", USAGE_SCRIPT)], 2,
        [used(10, of=21, left=21, headers=ann), used(10, of=21, left=11, headers=ann),
         used(10, of=21, left=1, headers=ann), refused(1, of=21, headers=ann),
         free(4, headers={USAGE: "10"})],
        filters=("envoy.filters.http.lua",), over=9,
        remark="the last 10 tokens are charged with 1 left")
    yield Scenario(
        "shadow mode",
        limited("shadow", rule(3, {"methods": [{"value": "GET"}]}, shadowMode=True)), 1,
        [passes(5, of=3)], over=2, shadow=2, remark="2 over the limit, counted, not refused")
    plan = {"namespace": "example.plan", "key": "limit"}
    each = {"headers": [{"name": "x-user-id", "type": "Distinct"}]}
    of_plan = rule(2, each)
    of_plan["limit"]["fromMetadata"] = plan
    gold = {"x-user-id": "ann", "x-plan": "gold"}
    yield Scenario(
        "the limit from metadata",
        [*limited("plans", of_plan), script("plans", PLAN_SCRIPT)], 1,
        [passes(5, of=5, headers=gold), refused(1, of=5, headers=gold),
         passes(2, of=2, headers={"x-user-id": "ben"}),
         refused(1, of=2, headers={"x-user-id": "ben"})],
        filters=("envoy.filters.http.lua",))


def policies(directory):
    return [*tokens(directory), *listeners(), *silent(), *shared(), *several(), *merged(),
            *counted()]


def several():
    """Both limits of a request are charged, or none of them."""
    each = {"headers": [{"name": "x-user-id", "type": "Distinct"}]}
    ann, ben, cid = ({"headers": {"x-user-id": it}, "quotas": (6, 3)}
                     for it in ["ann", "ben", "cid"])
    yield Scenario(
        "a limit for all, one for each user", limited("several", rule(6), rule(3, each)), 2,
        # Of two limits of which as much is left, the headers name the first.
        [passes(3, of=3, **ann), refused(2, of=3, **ann), passes(3, of=6, used=3, **ben),
         refused(1, of=6, **cid), refused(1, of=6)])


def merged():
    """A Gateway's policy, and one of two routes that is merged into it; each has a limit that is
    shared by the routes and one that is not, and the Gateway's has one for all requests."""
    routes = [target("HTTPRoute", name) for name in ["foo", "bar"]]
    two = [routed(it["name"], hosts=["merged.example.com"], paths=[f"/{it['name']}"])
           for it in routes]

    def pair(first, second):
        return [rule(3, header("x-user-id", first), shared=True),
                rule(3, header("x-user-id", second), shared=False)]

    of_routes = traffic_policy("merged-routes", routes, pair("one", "two"),
                               mergeType="StrategicMerge")
    of_gateway = traffic_policy("merged-gateway", [target("Gateway", GATEWAY)],
                                [rule(100, shared=True), *pair("three", "four")])
    asks = []
    for user, quotas in [("one", (3,)), ("three", (100, 3))]:
        it = {"headers": {"x-user-id": user}, "is_among": True, "quotas": quotas}
        asks += [passes(2, of=3, path="/bar", **it), passes(1, of=3, used=2, path="/foo", **it),
                 refused(1, of=3, path="/foo", **it)]
    for user in ["two", "four"]:
        for path in ["/foo", "/bar"]:
            it = {"headers": {"x-user-id": user}, "path": path, "is_among": True}
            asks += [passes(3, of=3, **it), refused(1, of=3, **it)]
    # The limit of 100 is charged by 18 requests that passed, and by the one of user `one` that the
    # filter of the routes' policy refused later.
    asks.append(passes(4, of=100, used=19, path="/foo"))
    yield Scenario("policies merged, shared and not", [*two, of_routes, of_gateway], 10, asks)
