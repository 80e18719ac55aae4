use envoy_types::pb::google::protobuf::Duration as PbDuration;
use ratelease_envoy_abi::fake_host::set_runtime;

use super::*;

/// The faults of a filter's message.
fn faults_of(message: &pb::RateLimit) -> String {
    let mut faults = Faults::default();
    FilterConfig::compile(message, &mut faults);
    faults.to_string()
}

fn compiled(message: &pb::RateLimit) -> FilterConfig {
    let mut faults = Faults::default();
    let config = FilterConfig::compile(message, &mut faults);
    assert!(faults.is_empty(), "{faults}");
    config
}

fn header(key: &str, value: &str) -> core::HeaderValueOption {
    let (key, value) = (key.to_owned(), value.to_owned());
    let header = core::HeaderValue { key, value, ..Default::default() };
    core::HeaderValueOption { header: Some(header), ..Default::default() }
}

#[test]
fn a_filter_without_more_than_a_domain_is_as_envoys_own() {
    let config = compiled(&pb::RateLimit { domain: "shop".to_owned(), ..Default::default() });
    assert_eq!((config.status, config.status_on_error), (429, 500));
    assert_eq!((config.timeout, config.kind), (TIMEOUT, RequestKind::Both));
    assert!(!config.failure_deny.draw() && config.enabled.draw() && config.enforced.draw());
    assert!(config.ratelimited_header && !config.x_ratelimit && !config.retry_after);
    assert_eq!(config.metadata_namespace, "envoy.filters.http.ratelimit");
}

#[test]
fn every_fault_of_a_filter_is_told_with_its_place() {
    let faults = faults_of(&pb::RateLimit {
        stage: 11,
        request_type: "inner".to_owned(),
        timeout: Some(PbDuration { seconds: 11, nanos: 0 }),
        response_headers_to_add: vec![header("x-a", "%PROTOCOL%"), Default::default()],
        ..Default::default()
    });
    for place in [
        "domain: missing",
        "stage: 11; expected 0 to 10",
        "request_type: \"inner\"; expected",
        "timeout: expected",
        "response_headers_to_add[0].header.value: ",
        "response_headers_to_add[1].header: missing",
    ] {
        assert!(faults.contains(place), "{place} in {faults}");
    }
    assert_eq!(faults.lines().count(), 6, "{faults}");
}

#[test]
fn a_header_says_what_becomes_of_those_of_its_name() {
    let mut messages = vec![header("X-A", "5%%")];
    for action in 1..4 {
        messages.push(core::HeaderValueOption { append_action: action, ..header("b", "c") });
    }
    let domain = "shop".to_owned();
    let message = pb::RateLimit { domain, response_headers_to_add: messages, ..Default::default() };
    let headers = compiled(&message).headers;
    assert_eq!((&*headers[0].name, &*headers[0].value), ("x-a", "5%"));
    let existing: Vec<_> = headers.iter().map(|header| header.existing).collect();
    let expected = [Existing::Beside, Existing::Keep, Existing::Replace, Existing::ReplaceOnly];
    assert_eq!(existing, expected);
}

#[test]
fn a_status_below_400_denies_with_the_default() {
    for (code, expected) in [(302, 429), (503, 503)] {
        let rate_limited_status = Some(kinds::HttpStatus { code });
        let domain = "shop".to_owned();
        let message = pb::RateLimit { domain, rate_limited_status, ..Default::default() };
        assert_eq!(compiled(&message).status, expected);
    }
}

#[test]
fn what_envoys_own_filter_refuses_by_its_rules_is_refused() {
    let status = |code| Some(kinds::HttpStatus { code });
    let percent = core::RuntimeFractionalPercent::default();
    let faults = faults_of(&pb::RateLimit {
        domain: "shop".to_owned(),
        rate_limited_status: status(999),
        status_on_error: status(0),
        enable_x_ratelimit_headers: 2,
        filter_enabled: Some(percent),
        ..Default::default()
    });
    let expected = [
        "enable_x_ratelimit_headers: 2; expected OFF or DRAFT_VERSION_03",
        "rate_limited_status.code: 999; expected a status that Envoy knows, such as 429",
        "status_on_error.code: 0; expected a status that Envoy knows, such as 500",
        "filter_enabled.default_value: missing",
    ];
    assert_eq!(faults.lines().collect::<Vec<_>>(), expected);
    let route =
        pb::RateLimitPerRoute { vh_rate_limits: 3, override_option: -1, ..Default::default() };
    let route = RouteConfig::read(&route.encode_to_vec()).unwrap_err();
    let expected = "vh_rate_limits: 3; expected 0 to 2\noverride_option: -1; expected 0 to 3";
    assert_eq!(route, expected);
}

#[test]
fn an_added_header_cannot_end_its_line_or_take_the_place_of_another_kind() {
    let raw =
        core::HeaderValue { key: "x-raw".into(), raw_value: b"a\r".into(), ..Default::default() };
    let raw = core::HeaderValueOption { header: Some(raw), ..Default::default() };
    let line = "holds a NUL or the end of a line; expected one line";
    for (header, place, says) in [
        (header("x-a", "v\r\nx-evil: 1"), "value", line),
        (header("x-a", "v\0"), "value", line),
        (raw, "value", line),
        (header("x-a: 1\nx-b", "v"), "key", line),
        (header("", "v"), "key", "missing"),
        (header(":status", "200"), "key", "\":status\"; expected a name other than host"),
        (header("Host", "v"), "key", "\"Host\"; expected a name other than host"),
        (header("x-a", &"v".repeat(20_000)), "value", "20000 bytes; expected at most 16384"),
    ] {
        let domain = "shop".to_owned();
        let response_headers_to_add = vec![header];
        let faults =
            faults_of(&pb::RateLimit { domain, response_headers_to_add, ..Default::default() });
        let expected = format!("response_headers_to_add[0].header.{place}: {says}");
        assert!(faults.starts_with(&expected) && faults.lines().count() == 1, "{faults}");
    }
    let response_headers_to_add = vec![header("x-a", "v"); 11];
    let domain = "shop".to_owned();
    let faults =
        faults_of(&pb::RateLimit { domain, response_headers_to_add, ..Default::default() });
    assert_eq!(faults, "response_headers_to_add: 11 headers; expected at most 10");
}

#[test]
fn bytes_of_another_kind_are_refused_with_what_was_expected() {
    let garbage = RouteConfig::read(&[0xff; 9]).unwrap_err();
    assert!(garbage.contains("ratelimit.v3.RateLimitPerRoute, or its JSON"), "{garbage}");
    let included = pb::RateLimitPerRoute { vh_rate_limits: 1, ..Default::default() };
    let included = RouteConfig::read(&included.encode_to_vec()).unwrap_err();
    assert!(included.starts_with("vh_rate_limits: "), "{included}");
}

/// The message that JSON holds.
fn of_json(json: &str) -> Result<pb::RateLimit, String> {
    let mut faults = Faults::default();
    let message = decode(json.as_bytes(), "filter_config", json::FILTER, &mut faults)?;
    if faults.is_empty() { Ok(message) } else { Err(faults.to_string()) }
}

#[test]
fn json_is_read_as_the_message_is() {
    let read = of_json(
        r#"{"domain": "shop", "timeout": "0.25s", "stage": 2.0, "failureModeDeny": true,
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03", "rate_limit_service": {"x": []},
            "rate_limited_status": {"code": "ServiceUnavailable"}, "request_type": null,
            "filterEnabled": {"default_value": {"numerator": "5", "denominator": 1}},
            "response_headers_to_add": [{"header": {"key": "x-a", "value": "b"},
                                        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]}"#,
    );
    let percent = kinds::FractionalPercent { numerator: 5, denominator: 1 };
    let added = core::HeaderValueOption { append_action: 2, ..header("x-a", "b") };
    let written = pb::RateLimit {
        domain: "shop".to_owned(),
        timeout: Some(PbDuration { seconds: 0, nanos: 250_000_000 }),
        stage: 2,
        failure_mode_deny: true,
        enable_x_ratelimit_headers: 1,
        rate_limited_status: Some(kinds::HttpStatus { code: 503 }),
        filter_enabled: Some(core::RuntimeFractionalPercent {
            default_value: Some(percent),
            runtime_key: String::new(),
        }),
        response_headers_to_add: vec![added],
        ..Default::default()
    };
    assert_eq!(read.unwrap(), written);
}

#[test]
fn every_fault_of_json_is_told_with_its_place() {
    let read = RouteConfig::read(
        br#"{"domains": "shop", "rate_limits": [
            {"stage": -1, "hits_addend": {"number": 18446744073709551616},
             "actions": [{"generic_key": {"descriptor_value": 5}, "remote_address": {}},
                         {"header_value_match": {"headers": {}}}]}]}"#,
    );
    let expected = [
        "the JSON: no field has the name \"domains\"; expected vh_rate_limits, override_option",
        "rate_limits[0].actions[0]: remote_address and generic_key; expected one of them",
        "rate_limits[0].actions[0].generic_key.descriptor_value: 5; expected text",
        "rate_limits[0].actions[1].header_value_match.headers: {}; expected a list",
        "rate_limits[0].hits_addend.number: 1.8446744073709552e+19; expected a whole number from 0",
        "rate_limits[0].stage: -1; expected a whole number from 0 to 4294967295",
        "rate_limits[0].actions[1].header_value_match.descriptor_value: missing",
    ];
    let faults = read.unwrap_err();
    for fault in expected {
        assert!(faults.contains(fault), "{fault}\nin\n{faults}");
    }
    for (json, fault) in [
        ("{", "the JSON: EOF while parsing"),
        (r#"{"timeout": "20ms"}"#, "timeout: \"20ms\"; expected a duration such as \"0.02s\""),
        (r#"{"timeout": "1.+5s"}"#, "timeout: "),
        (r#"{"request_type": ["a"]}"#, "request_type: [\"a\"]; expected text"),
        (
            r#"{"rate_limited_status": {"code": "Teapot"}}"#,
            "rate_limited_status.code: \"Teapot\"; expected Empty, Continue, OK, Created",
        ),
        (
            r#"{"enable_x_ratelimit_headers": "yes"}"#,
            "enable_x_ratelimit_headers: \"yes\"; expected OFF, DRAFT_VERSION_03",
        ),
        (r#"{"failure_mode_deny": "yes"}"#, "failure_mode_deny: \"yes\"; expected true or false"),
        (
            r#"{"rate_limits": [{"actions": [{"remote_address": {"x": 1}}]}]}"#,
            "rate_limits[0].actions[0].remote_address: no field has the name \"x\"; expected none",
        ),
        // Without a fault, each of these would change the limit; the last one would add a line to
        // Envoy's log.
        (
            r#"{"rate_limits": [{"actions": [{"remote_address": {}}, null]}]}"#,
            "rate_limits[0].actions[1]: null; expected an object",
        ),
        (
            r#"{"rate_limits": [{"actions": [{"header_value_match": {"headers": [
                {"name": "a", "stringMatch": {"exact": "b", "prefix": "c", "ignore_case": true}},
                {"name": "a", "prefix_match": "b", "present_match": true}]}}]}]}"#,
            "headers[0].string_match: exact and prefix; expected one of them\n\
             rate_limits[0].actions[0].header_value_match.headers[1]: present_match and \
             prefix_match; expected one of them",
        ),
        (r#"{"rateLimits": [], "rate_limits": []}"#, "rate_limits: is there as rateLimits too"),
        (
            r#"{"a\nok: forged": 1}"#,
            "the JSON: no field has the name \"a\\nok: forged\"; expected domain, stage",
        ),
    ] {
        let faults = of_json(json).unwrap_err();
        assert!(faults.contains(fault), "{fault} in {faults}");
    }
}

#[test]
fn settings_are_text_numbers_and_truth_values() {
    let read =
        overrides(b"ratelease", br#"{"PORT": 8080.0, "REDIS_URL": "a:1", "X": true}"#).unwrap();
    let expected = [("PORT", "8080"), ("REDIS_URL", "a:1"), ("X", "true")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(read, expected.into());
    assert!(overrides(b"", b"").unwrap().is_empty());
    for bad in [&b"[]"[..], b"{", br#"{"A": {}}"#, &[0xff]] {
        assert!(overrides(b"", bad).unwrap_err().starts_with("extension_config"), "{bad:?}");
    }
}

#[test]
fn no_bytes_make_a_reader_panic() {
    let header = header("x-a", "5%%");
    let message = pb::RateLimit {
        domain: "shop".to_owned(),
        timeout: Some(PbDuration { seconds: 1, nanos: 2 }),
        response_headers_to_add: vec![header],
        filter_enabled: Some(core::RuntimeFractionalPercent::default()),
        ..Default::default()
    };
    let whole = message.encode_to_vec();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(..=bytes.len()));
        if let Ok(message) = pb::RateLimit::decode(&*bytes) {
            FilterConfig::compile(&message, &mut Faults::default());
        }
        let _ = RouteConfig::read(&bytes);
        let _ = overrides(b"", &bytes);
    }
    let json = r#"{"rate_limits": [{"stage": 1, "actions": [{"metadata": {"metadata_key":
        {"key": "a", "path": [{"index": 5}]}}}]}], "vhRateLimits": "IGNORE", "domain": null}"#;
    for _ in 0..20_000 {
        let mut bytes = json.as_bytes().to_vec();
        let at = random.usize(1..bytes.len());
        bytes[at] = random.u8(..);
        let _ = RouteConfig::read(&bytes);
    }
}

#[test]
fn parts_of_requests_are_read_from_the_runtime_once() {
    let keyed = |key: &str| {
        let default_value = Some(kinds::FractionalPercent { numerator: 100, denominator: 0 });
        Some(core::RuntimeFractionalPercent { default_value, runtime_key: key.to_owned() })
    };
    let message = |enabled| pb::RateLimit {
        domain: "shop".to_owned(),
        filter_enabled: enabled,
        ..Default::default()
    };
    set_runtime("a.part", 25);
    assert_eq!(compiled(&message(keyed("a.part"))).enabled, Fraction::new(0.25));
    assert_eq!(compiled(&message(keyed("no.part"))).enabled, Fraction::ALL);
    set_runtime(ENABLED, 0);
    set_runtime(ENFORCING, 150);
    let config = compiled(&message(None));
    assert_eq!((config.enabled, config.enforced), (Fraction::new(0.0), Fraction::ALL));
    assert_eq!(compiled(&message(keyed("no.part"))).enabled, Fraction::ALL);
}

#[test]
fn faults_of_the_rules_that_a_filter_brings_are_told_with_their_places() {
    let faults_of = |rules: &str| {
        let mut faults = Faults::default();
        check_rules("shop", rules, &mut faults);
        faults.to_string()
    };
    assert_eq!(faults_of("domain: shop\ndescriptors: [{key: path}]"), "");
    let found = faults_of("domain: shop\ndescriptors:\n- {ky: path}\n- {key: 3, valu: 4}\n");
    assert!(found.contains("rules:3:4: "), "{found}");
    assert!(found.contains("rules:4:12: "), "{found}");
    let found = faults_of("domain: other");
    assert!(found.contains(r#"rules: of ["other"]; expected the filter's own domain"#), "{found}");
    let mut faults = Faults::default();
    assert_eq!(json::text(br#"{"rules": {"domain": "shop"}}"#, RULES, &mut faults), None);
    assert!(faults.to_string().starts_with("rules: {"), "{faults}");
}
