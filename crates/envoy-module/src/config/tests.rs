use envoy_types::pb::google::protobuf::Duration as PbDuration;

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
    assert_eq!(status_of(Some(&kinds::HttpStatus { code: 399 }), 429), 429);
    assert_eq!(status_of(Some(&kinds::HttpStatus { code: 503 }), 429), 503);
}

#[test]
fn bytes_of_another_kind_are_refused_with_what_was_expected() {
    let struct_of = RouteConfig::read(br#"{"rate_limits": []}"#).unwrap_err();
    assert!(struct_of.contains("a google.protobuf.Struct; expected"), "{struct_of}");
    let garbage = RouteConfig::read(&[0xff; 9]).unwrap_err();
    assert!(garbage.contains("RateLimitPerRoute"), "{garbage}");
    let included = pb::RateLimitPerRoute { vh_rate_limits: 1, ..Default::default() };
    let included = RouteConfig::read(&included.encode_to_vec()).unwrap_err();
    assert!(included.starts_with("vh_rate_limits: "), "{included}");
}

#[test]
fn settings_are_text_numbers_and_truth_values() {
    let read = overrides(br#"{"PORT": 8080.0, "REDIS_URL": "a:1", "X": true}"#).unwrap();
    let expected = [("PORT", "8080"), ("REDIS_URL", "a:1"), ("X", "true")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(read, expected.into());
    assert!(overrides(b"").unwrap().is_empty());
    for bad in [&b"[]"[..], b"{", br#"{"A": {}}"#, &[0xff]] {
        assert!(overrides(bad).unwrap_err().starts_with("extension_config"), "{bad:?}");
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
        let _ = overrides(&bytes);
    }
}
