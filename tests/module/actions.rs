//! The contract of actions: of each request, Envoy's own rate limit filter sends the descriptors
//! that the module decides.
//!
//! One Envoy has a listener for each; a route for each case, chosen by `x-case`. The filter asks a
//! service that records; the module logs what it decides.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::stand::{Options, Rules, extend, file, rule};
use crate::support::asked::Asked;
use crate::support::envoy::{
    ANY_PORT, Envoy, assignment, endpoint, filter, listener, pipe, router, socket,
};
use crate::support::http::Client;
use crate::support::now;

const DOMAIN: &str = "contract";

/// How long the descriptors of a request may take to be as many as they should, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The rate limits of a route, and requests to it.
struct Case {
    rate_limits: Value,
    /// Whether Envoy's filter takes them only from the route itself, and not from its own
    /// configuration of the route: those with a stage.
    of_route: bool,
    requests: Vec<Sent>,
}

/// The path and the headers of a request.
type Sent = (&'static str, Vec<(&'static str, &'static str)>);

/// A case of one action.
fn case(action: Value, requests: Vec<Sent>) -> Case {
    Case { rate_limits: json!([{"actions": [action]}]), of_route: false, requests }
}

fn limits(rate_limits: Value, requests: Vec<Sent>) -> Case {
    Case { rate_limits, of_route: false, requests }
}

fn get(path: &'static str) -> Sent {
    (path, Vec::new())
}

/// Requests without the header `x-a`, and with each of these values.
fn with_a(values: &[&'static str]) -> Vec<Sent> {
    let with = values.iter().map(|value| ("/", vec![("x-a", *value)]));
    [get("/")].into_iter().chain(with).collect()
}

fn header_match(matcher: Value) -> Value {
    let mut matcher = matcher;
    matcher["name"] = "X-A".into();
    json!({"header_value_match": {"descriptor_value": "v", "headers": [matcher]}})
}

fn generic(value: &str) -> Value {
    json!({"generic_key": {"descriptor_value": value}})
}

/// Actions that name a header, a parameter, an address, a cluster, or a constant.
fn values() -> Vec<Case> {
    let header = |name: &str, skips: bool| {
        json!({"request_headers":
            {"header_name": name, "descriptor_key": "h", "skip_if_absent": skips}})
    };
    let query = |skips: bool| {
        json!({"query_parameters":
            {"query_parameter_name": "q", "descriptor_key": "q", "skip_if_absent": skips}})
    };
    let from = |address: &'static str| -> Sent { ("/", vec![("x-forwarded-for", address)]) };
    let addresses = || {
        let all =
            ["10.1.2.3", "2001:abcd:ef01:2345:6789:abcd:ef01:234", "::1:2", "::ffff:10.0.0.1"];
        all.into_iter().map(from).collect::<Vec<_>>()
    };
    vec![
        case(header("X-A", false), with_a(&["1", "", "a,b", "ä"])),
        case(header("x-a", true), with_a(&["1"])),
        case(header(":path", false), vec![get("/a?b=c%20d")]),
        case(header("x-a", false), vec![("/", vec![("x-a", "1"), ("x-a", "2")])]),
        limits(
            json!([{"actions": [generic("g"), header("x-a", false), header("x-b", true)]}]),
            vec![get("/"), ("/", vec![("x-a", "1")]), ("/", vec![("x-a", "1"), ("x-b", "2")])],
        ),
        case(
            query(false),
            [
                "/",
                "/?q=1",
                "/?q=1&q=2",
                "/?q",
                "/?q=",
                "/?q=a%20b+c",
                "/?%71=x",
                "/?q=%zz%",
                "/?a&q=b=c&",
            ]
            .map(get)
            .into(),
        ),
        case(query(true), vec![get("/"), get("/?q=1")]),
        case(json!({"remote_address": {}}), addresses()),
        case(json!({"masked_remote_address": {}}), addresses()),
        case(
            json!({"masked_remote_address": {"v4_prefix_mask_len": 9, "v6_prefix_mask_len": 33}}),
            addresses(),
        ),
        case(
            json!({"masked_remote_address": {"v4_prefix_mask_len": 0, "v6_prefix_mask_len": 0}}),
            addresses(),
        ),
        case(json!({"destination_cluster": {}}), vec![get("/")]),
        case(generic("%REQ(x-a)%"), vec![get("/")]),
        case(
            json!({"generic_key": {"descriptor_key": "k", "descriptor_value": "v", "default_value": "d"}}),
            vec![get("/")],
        ),
    ]
}

/// Matchers of headers.
fn header_matchers() -> Vec<Case> {
    let values = ["", "Ab", "ab", "xAb", "Abx", "xabx", "7", "-7", "+7", "7.5", " 7", "10", "a"];
    let matchers = [
        json!({}),
        json!({"present_match": true}),
        json!({"present_match": false}),
        json!({"exact_match": "Ab"}),
        json!({"exact_match": ""}),
        json!({"prefix_match": "Ab"}),
        json!({"suffix_match": "Ab"}),
        json!({"contains_match": "ab"}),
        json!({"safe_regex_match": {"regex": "A.|\\d"}}),
        json!({"range_match": {"start": -7, "end": 10}}),
        json!({"string_match": {"exact": "Ab"}}),
        json!({"string_match": {"exact": "Ab", "ignore_case": true}}),
        json!({"string_match": {"exact": ""}}),
        json!({"string_match": {"prefix": "Ab"}}),
        json!({"string_match": {"prefix": "Ab", "ignore_case": true}}),
        json!({"string_match": {"suffix": "Ab"}}),
        json!({"string_match": {"suffix": "Ab", "ignore_case": true}}),
        json!({"string_match": {"contains": "Ab"}}),
        json!({"string_match": {"contains": "Ab", "ignore_case": true}}),
        json!({"string_match": {"safe_regex": {"regex": "[\\w-]*b"}}}),
        json!({"string_match": {"safe_regex": {"regex": "(?i)AB"}}}),
    ];
    let variants = [
        json!({}),
        json!({"invert_match": true}),
        json!({"treat_missing_header_as_empty": true}),
        json!({"invert_match": true, "treat_missing_header_as_empty": true}),
    ];
    let mut cases = Vec::new();
    for matcher in &matchers {
        // One rate limit for each variant, so that one request tells of all.
        let limit = |(number, variant): (usize, &Value)| {
            let mut matcher = matcher.clone();
            extend(&mut matcher, variant);
            let mut action = header_match(matcher);
            action["header_value_match"]["descriptor_key"] = format!("k{number}").into();
            json!({"actions": [action]})
        };
        let mut all: Vec<_> = variants.iter().enumerate().map(limit).collect();
        let mut no_match = header_match(matcher.clone());
        no_match["header_value_match"]["expect_match"] = false.into();
        all.push(json!({"actions": [no_match]}));
        cases.push(limits(all.into(), with_a(&values)));
    }
    for value in ["1", "2", "1,2", "1, 2"] {
        let two = vec![("/", vec![("x-a", "1"), ("x-a", "2")]), ("/", vec![("x-a", "1,2")])];
        let matcher = |inverts| json!({"string_match": {"exact": value}, "invert_match": inverts});
        cases.push(case(header_match(matcher(false)), two.clone()));
        cases.push(case(header_match(matcher(true)), two));
    }
    cases
}

/// Matchers of query parameters.
fn queries() -> Vec<Case> {
    let query = |matcher: Value, expects: bool| {
        let mut matcher = matcher;
        matcher["name"] = "q".into();
        json!({"query_parameter_value_match":
            {"descriptor_value": "v", "expect_match": expects, "query_parameters": [matcher]}})
    };
    let paths = || ["/", "/?q", "/?q=a%20b", "/?q=x&q=a%20b", "/?r=1"].map(get).to_vec();
    [
        query(json!({}), true),
        query(json!({"present_match": true}), true),
        query(json!({"present_match": false}), true),
        query(json!({"string_match": {"exact": "a b"}}), true),
        query(json!({"string_match": {"exact": "a b"}}), false),
    ]
    .map(|action| case(action, paths()))
    .into()
}

/// Matchers of addresses, and metadata.
fn others() -> Vec<Case> {
    let metadata = |key: &str, source: &str, default: &str, skips: bool| {
        json!({"metadata": {
            "descriptor_key": "m",
            "metadata_key": {"key": "ns", "path": [{"key": key}]},
            "source": source,
            "default_value": default,
            "skip_if_absent": skips,
        }})
    };
    let item = |index: u32| {
        json!({"metadata": {
            "descriptor_key": "m",
            "metadata_key": {"key": "ns", "path": [{"key": "list"}, {"index": index}]},
        }})
    };
    let address = |value: &str, inverts: bool| {
        json!({"remote_address_match": {
            "descriptor_value": value,
            "default_value": "none",
            "address_matcher": {
                "ranges": [{"address_prefix": "10.1.0.0", "prefix_len": 16},
                           {"address_prefix": "2001:db8::", "prefix_len": 32}],
                "invert_match": inverts,
            },
        }})
    };
    let from = || -> Vec<Sent> {
        ["10.1.9.9", "10.2.0.1", "2001:db8::1"]
            .map(|it| ("/", vec![("x-forwarded-for", it)]))
            .into()
    };
    let input = |kind: &str, field: &str| {
        json!({"extension": {"name": "e", "typed_config": {
            "@type": format!("type.googleapis.com/envoy.type.matcher.v3.{kind}"), field: "x-a"}}})
    };
    let of_metadata = [
        metadata("text", "DYNAMIC", "", false),
        metadata("number", "DYNAMIC", "d", false),
        metadata("none", "DYNAMIC", "", false),
        metadata("none", "DYNAMIC", "", true),
        metadata("empty", "DYNAMIC", "d", false),
        metadata("text", "ROUTE_ENTRY", "", false),
        metadata("text", "CLUSTER_ENTRY", "", false),
        item(1),
        item(2),
    ];
    let mut cases: Vec<_> = of_metadata.map(|action| case(action, vec![get("/")])).into();
    cases.push(case(address("v", false), from()));
    cases.push(case(address("v", true), from()));
    let format = "%%-%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%-%REQ(X-A?X-B):2%";
    cases.push(case(address(format, true), vec![("/", vec![("x-b", "123")]), get("/")]));
    cases.push(case(address("%REQ(x-none)%", true), vec![get("/")]));
    let header = input("HttpRequestHeaderMatchInput", "header_name");
    let mut requests = with_a(&["1", ""]);
    requests.push(("/", vec![("x-a", "1"), ("x-a", "2")]));
    cases.push(case(header, requests));
    cases.push(case(
        input("HttpRequestQueryParamMatchInput", "query_param"),
        ["/", "/?x-a=1", "/?x-a="].map(get).into(),
    ));
    cases
}

/// Hits, stages, and the end of the stream.
fn hits_and_phases() -> Vec<Case> {
    let hits = |addend: Value| {
        limits(json!([{"actions": [generic("hits")], "hits_addend": addend}]), with_a(&["3"]))
    };
    let done = |more: Value| {
        let mut limit = json!({"actions": [generic("hits")], "apply_on_stream_done": true});
        extend(&mut limit, &more);
        limits(json!([limit]), vec![("/a", vec![("x-a", "5")])])
    };
    let mut staged = limits(
        json!([
            {"stage": 1, "actions": [generic("one")]},
            {"stage": 0, "actions": [generic("zero")]},
            {"actions": [generic("none")]},
            {"disable_key": "off", "actions": [generic("off")]},
            {"disable_key": "on", "actions": [generic("on")]},
        ]),
        vec![get("/")],
    );
    staged.of_route = true;
    vec![
        hits(json!({"number": 4})),
        hits(json!({"number": 0})),
        hits(json!({"format": "%REQ(x-a)%"})),
        hits(json!({"format": "%DYNAMIC_METADATA(ns:number)%"})),
        done(json!({})),
        done(json!({"hits_addend": {"format": "%REQ(x-a)%"}})),
        done(json!({"hits_addend": {"format": "%RESPONSE_CODE%"}})),
        done(json!({"hits_addend": {"format": "%BYTES_SENT%"}})),
        done(json!({"hits_addend": {"format": "%RESP(x-cost)%"}})),
        limits(
            json!([{"actions": [generic("hits")]}]),
            vec![("/", vec![("x-hits", "6")]), ("/", vec![("x-hits", "x")])],
        ),
        staged,
    ]
}

/// The routes of a listener; `typed` is the configuration of its filter for one.
fn routes(cases: &[Case], typed: impl Fn(&Case) -> Value) -> Vec<Value> {
    let route = |(number, case): (usize, &Case)| {
        let matches = json!([{"name": "x-case", "string_match": {"exact": number.to_string()}}]);
        let mut route = json!({
            "match": {"prefix": "/", "headers": matches},
            "route": {"cluster": "upstream"},
            "metadata": {"filter_metadata": {"ns": {"text": "of the route"}}},
        });
        extend(&mut route, &typed(case));
        route
    };
    cases.iter().enumerate().map(route).collect()
}

/// A listener with these filters before a router, and these routes.
fn ingress(name: &str, filters: &[Value], routes: Vec<Value>) -> Value {
    let kind = "type.googleapis.com/envoy.extensions.filters.http";
    let lists = json!({"text": "dynamic", "number": 7, "empty": "", "list": ["a", "b"]});
    let metadata = json!([{"metadata_namespace": "ns", "value": lists}]);
    let state = json!([{
        "object_key": "envoy.ratelimit.hits_addend",
        "format_string": {"text_format_source": {"inline_string": "%REQ(x-hits)%"}},
        "skip_if_empty": true,
    }]);
    let before = [
        filter(
            "set_metadata",
            json!({"@type": format!("{kind}.set_metadata.v3.Config"), "metadata": metadata}),
        ),
        filter(
            "set_filter_state",
            json!({"@type": format!("{kind}.set_filter_state.v3.Config"), "on_request_headers": state}),
        ),
    ];
    let filters: Vec<_> = before.iter().chain(filters).cloned().chain([router()]).collect();
    let mut listener =
        listener(name, socket(ANY_PORT), &filters, json!({"direct_response": {"status": 200}}));
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    manager["route_config"]["virtual_hosts"][0]["routes"] = routes.into();
    listener
}

const RATE_LIMIT: &str = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3";

/// An Envoy with both listeners, `filter` and `module`; the module's configuration as JSON or not.
async fn start(cases: &[Case], service: SocketAddr, rules: &Rules, json: bool) -> Envoy {
    let mut options = Options::new(DOMAIN, rules)
        .set("DECISION_SAMPLE_RATE", "1")
        .set("LOG_VALUES", "true")
        .set("LOG_FORMAT", "json");
    options.json = json;
    let typed = |case: &Case| match case.of_route {
        true => json!({"route": {"cluster": "upstream", "rate_limits": case.rate_limits}}),
        false => json!({"typed_per_filter_config": {"envoy.filters.http.ratelimit": {
            "@type": format!("{RATE_LIMIT}.RateLimitPerRoute"), "rate_limits": case.rate_limits}}}),
    };
    let filter = filter(
        "ratelimit",
        json!({
            "@type": format!("{RATE_LIMIT}.RateLimit"),
            "domain": DOMAIN,
            "failure_mode_deny": true,
            "timeout": "5s",
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "service"}},
            },
        }),
    );
    let of_module = |case: &Case| {
        let mut options = options.clone();
        options.rate_limits = case.rate_limits.clone();
        json!({"typed_per_filter_config": options.per_route()})
    };
    let files = TempDir::new().unwrap();
    let mut bootstrap = options.bootstrap(files.path());
    let resources = &mut bootstrap["static_resources"];
    let listeners = resources["listeners"].as_array_mut().unwrap();
    listeners[0] = ingress("module", &[options.http_filter()], routes(cases, of_module));
    listeners.push(ingress("filter", &[filter], routes(cases, typed)));
    let upstream = pipe(&files.path().join("upstream.sock"));
    let answer = json!({
        "direct_response": {"status": 200, "body": {"inline_string": "ok\n"}},
        "response_headers_to_add": [{"header": {"key": "x-cost", "value": "9"}}],
    });
    listeners[1] = listener("upstream", upstream, &[router()], answer);
    let http2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let clusters = resources["clusters"].as_array_mut().unwrap();
    clusters[0]["metadata"] = json!({"filter_metadata": {"ns": {"text": "of the cluster"}}});
    clusters.push(json!({
        "name": "service",
        "connect_timeout": "1s",
        "load_assignment": assignment("service", &[endpoint(socket(service))]),
        "typed_extension_protocol_options": {http2: {
            "@type": format!("type.googleapis.com/{http2}"),
            "explicit_http_config": {"http2_protocol_options": {}},
        }},
    }));
    bootstrap["layered_runtime"] = json!({"layers": [{
        "name": "static",
        "static_layer": {"ratelimit.off.http_filter_enabled": 0, "ratelimit.on.http_filter_enabled": 100},
    }]});
    Envoy::run_in(files, &bootstrap.to_string(), 1, "module", &[]).await
}

/// A descriptor as text, with its hits if it is of those that a rule counts.
fn shown(values: &str, hits: u64) -> String {
    if values == "generic_key=hits" { format!("{values} of {hits}") } else { values.to_owned() }
}

/// The descriptors of recorded requests.
fn of_service(requests: &[RateLimitRequest]) -> Vec<String> {
    let of_request = |request: &RateLimitRequest| {
        let of_all = u64::from(request.hits_addend.max(1));
        let shown = |descriptor: &envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor| {
            let entries: Vec<_> = descriptor.entries.iter().map(|it| format!("{}={}", it.key, it.value)).collect();
            shown(&entries.join(","), descriptor.hits_addend.as_ref().map_or(of_all, |it| it.value))
        };
        request.descriptors.iter().map(shown).collect::<Vec<_>>()
    };
    requests.iter().flat_map(of_request).collect()
}

/// The descriptors that the module decides, from Envoy's log.
struct Decided<'e> {
    envoy: &'e Envoy,
    /// Bytes of the log that have been read.
    read: usize,
}

impl Decided<'_> {
    /// Reads the lines that have been added.
    fn more(&mut self) -> Vec<String> {
        let log = self.envoy.log();
        let whole = log.rfind('\n').map_or(0, |end| end + 1);
        let lines = log[self.read..whole].lines().filter_map(|line| {
            let line: Value = serde_json::from_str(line.get(line.find('{')?..)?).ok()?;
            let values = line.get("values")?.as_str()?.to_owned();
            Some(shown(&values, line.get("hits").and_then(Value::as_u64).unwrap_or_default()))
        });
        let lines = lines.collect();
        self.read = whole;
        lines
    }
}

#[tokio::test]
async fn each_request_gets_the_descriptors_of_envoys_own_filter() {
    compare(false).await;
}

#[tokio::test]
async fn a_configuration_as_json_makes_the_same_descriptors() {
    compare(true).await;
}

async fn compare(json: bool) {
    let cases: Vec<_> = [values(), header_matchers(), queries(), others(), hits_and_phases()]
        .into_iter()
        .flatten()
        .collect();
    let asked = Asked::default();
    let service = asked.serve().await;
    let rules = Rules::new(&file(DOMAIN, &[rule("generic_key", 1_000_000, "")]));
    let envoy = start(&cases, service, &rules, json).await;
    let filter = envoy.listener("filter").await;
    let mut clients =
        [Client::connect(filter).await.unwrap(), Client::connect(envoy.ingress).await.unwrap()];
    let mut decided = Decided { envoy: &envoy, read: 0 };
    let (mut compared, mut differences) = (0, String::new());
    for (number, case) in cases.iter().enumerate() {
        for (path, headers) in &case.requests {
            let name = number.to_string();
            let of_case = [("x-case", name.as_str())].into_iter();
            let headers: Vec<_> = of_case.chain(headers.iter().copied()).collect();
            for client in &mut clients {
                let answer = client.get(path, &headers).await.unwrap();
                assert_eq!(answer.status, 200, "{path} {headers:?}: {answer:?}");
            }
            let (expected, found) = both(&asked, &mut decided, case).await;
            if expected != found {
                let limits = &case.rate_limits;
                writeln!(
                    differences,
                    "{limits}\n  {path} {headers:?}\n  {expected:?}\n  {found:?}"
                )
                .unwrap();
            }
            compared += expected.len();
        }
    }
    assert_eq!(differences, "", "of {compared} descriptors");
    assert!(compared > 800, "{compared} descriptors");
}

/// The descriptors that the service was asked for and that the module decided, once they are as
/// many, or after a while. The end of a stream is counted after its answer, and the log is written
/// by a thread of its own.
async fn both(asked: &Asked, decided: &mut Decided<'_>, case: &Case) -> (Vec<String>, Vec<String>) {
    let has_end = case.rate_limits.to_string().contains("apply_on_stream_done");
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    let end = now() + PATIENCE;
    loop {
        expected.extend(of_service(&asked.requests()));
        found.extend(decided.more());
        let are_as_many = expected.len() == found.len() && (!found.is_empty() || !has_end);
        if are_as_many || now() >= end {
            return (expected, found);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
