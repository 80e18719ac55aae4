//! Tests of the settings for a collector, and of their faults.

use super::*;

const ON: (&str, &str) = ("TRACING_ENABLED", "true");

fn telemetry(env: Env<'_>) -> Telemetry {
    good("ratelease serve", env).telemetry
}

fn traces(env: Env<'_>) -> Otlp {
    let env: Vec<_> = env.iter().copied().chain([ON]).collect();
    telemetry(&env).tracing.expect("tracing").otlp
}

#[test]
fn spans_have_the_defaults_of_the_reference_and_of_opentelemetry() {
    let Telemetry { identity, tracing, push } = telemetry(&[ON]);
    assert_eq!((identity.name.as_str(), push), ("RateLimit", None));
    let Tracing { rate, otlp } = tracing.expect("tracing");
    assert_eq!((rate, otlp.protocol), (1.0, OtlpProtocol::Http));
    assert_eq!(otlp.endpoint, "http://localhost:4318/v1/traces");
    assert_eq!((otlp.timeout, otlp.headers.len()), (Duration::from_secs(10), 0));
    let grpc = traces(&[("TRACING_EXPORTER_PROTOCOL", "grpc")]);
    assert_eq!(grpc.endpoint, "http://localhost:4317/");
}

#[test]
fn a_variable_of_the_signal_beats_the_common_one() {
    let common = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1/base/");
    let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b:2/as/it/is");
    assert_eq!(traces(&[common]).endpoint, "http://a:1/base/v1/traces");
    assert_eq!(traces(&[common, own]).endpoint, "http://b:2/as/it/is");
    let metrics = ("OTEL_METRICS_EXPORTER", "otlp");
    let push = telemetry(&[common, own, metrics]).push.expect("a push");
    assert_eq!(push.otlp.endpoint, "http://a:1/base/v1/metrics");
    assert_eq!(push.interval, Duration::from_secs(60));
    let grpc = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc");
    let push = telemetry(&[common, metrics, grpc]).push.expect("a push");
    assert_eq!(push.otlp.endpoint, "http://a:1/");
}

#[test]
fn headers_are_decoded_and_never_shown() {
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret, x-team=a");
    let otlp = traces(&[headers]);
    assert_eq!(otlp.headers["authorization"], "Bearer s3cret");
    assert_eq!(otlp.headers["x-team"], "a");
    assert!(!format!("{otlp:?}").contains("s3cret"), "{otlp:?}");
    let env = [ON, ("OTEL_EXPORTER_OTLP_HEADERS", "Bearer s3cret")];
    let faults = faults("ratelease serve", &env);
    assert!(!faults[0].contains("s3cret"), "{faults:?}");
}

#[test]
fn an_endpoint_with_a_user_or_password_is_refused_and_shown_nowhere() {
    for endpoint in [
        "http://us3r:s3cret@collector:4318",
        "https://s3cret@collector:4318/v1/traces",
        "us3r:s3cret@collector:4318",
        "ftp://us3r:s3cret@collector",
        "http://us3r:s3/cret@collector:4318",
    ] {
        for name in ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] {
            let reported = faults("ratelease serve", &[ON, (name, endpoint)]);
            assert_eq!(reported.len(), 1, "{reported:?}");
            assert!(
                reported[0].starts_with(&format!("{name}: the URL has a user or a pass")),
                "{reported:?}"
            );
            let mend = name.replace("ENDPOINT", "HEADERS");
            assert!(
                reported[0].contains(&format!("as in {mend}=authorization=Basic%20")),
                "{reported:?}"
            );
            assert!(!reported[0].contains("s3") && !reported[0].contains("us3r"), "{reported:?}");
        }
    }
    let endpoint = "http://collector:4318/of%40team";
    let otlp = traces(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint)]);
    assert_eq!(otlp.endpoint, endpoint);
}

#[test]
fn tokens_and_keys_in_values_of_otlp_are_not_quoted() {
    let query = ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318/?api-key=s3cret");
    let reported = faults("ratelease serve", &[ON, query]);
    assert!(reported[0].contains("found \"collector:4318/\""), "{reported:?}");
    let pem = "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----\n";
    let https = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318");
    let reported = faults("ratelease serve", &[ON, https, ("OTEL_EXPORTER_OTLP_CLIENT_KEY", pem)]);
    assert!(reported.iter().all(|reported| !reported.contains("s3cret")), "{reported:?}");
}

#[test]
fn the_service_is_named_by_the_first_that_names_it() {
    let common = ("OTEL_SERVICE_NAME", "common");
    assert_eq!(telemetry(&[common]).identity.name, "common");
    assert_eq!(telemetry(&[common, ("TRACING_SERVICE_NAME", "own")]).identity.name, "own");
    let listed = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=listed");
    assert_eq!(telemetry(&[listed]).identity.name, "listed");
    assert_eq!(telemetry(&[listed, common]).identity.name, "common");
    let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=shop-0, a=b%2Cc");
    let given = telemetry(&[attributes]).identity.attributes;
    let expected = [("k8s.pod.name", "shop-0"), ("a", "b,c")];
    assert_eq!(given, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

#[test]
fn faults_of_a_collector_are_reported_only_if_it_is_used() {
    for (name, value, expected) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "a:4318", "expected a URL of http or https"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://a:4318", "expected a URL of http or https"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "expected milliseconds from 1 to 60000"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "expected milliseconds from 1 to 60000"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "=", "expected at most 32 headers"),
        ("TRACING_EXPORTER_PROTOCOL", "thrift", "expected http or grpc"),
        ("TRACING_SAMPLING_RATE", "half", "expected a number from 0 to 1"),
        ("TRACING_SAMPLING_RATE", "NaN", "expected a number from 0 to 1"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a", "expected at most 64 pairs"),
        ("OTEL_METRICS_EXPORTER", "statsd", "expected otlp or none"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1", "expected a whole number from 1000 to 3600000"),
    ] {
        let reported = faults("ratelease serve", &[ON, (name, value)]);
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0].starts_with(&format!("{name}: {expected}")), "{}", reported[0]);
        if name.starts_with("OTEL_EXPORTER") {
            assert!(telemetry(&[(name, value)]).tracing.is_none(), "it is not used");
        }
    }
    let protocol =
        [("OTEL_METRICS_EXPORTER", "otlp"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")];
    let reported = faults("ratelease serve", &protocol);
    assert!(reported[0].contains("expected grpc or http/protobuf, found"), "{reported:?}");
}

#[test]
fn messages_are_compressed_by_gzip_or_not_at_all() {
    const COMMON: &str = "OTEL_EXPORTER_OTLP_COMPRESSION";
    assert_eq!(traces(&[]).compression, OtlpCompression::None);
    assert_eq!(traces(&[(COMMON, "gzip")]).compression, OtlpCompression::Gzip);
    let own = ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none");
    assert_eq!(traces(&[(COMMON, "gzip"), own]).compression, OtlpCompression::None);
    let settings = good("ratelease serve", &[ON, (COMMON, "zstd")]);
    let expected = format!("{COMMON}: ignored; expected gzip or none");
    assert_eq!(settings.warnings, [expected]);
    let otlp = settings.telemetry.tracing.expect("tracing").otlp;
    assert_eq!(otlp.compression, OtlpCompression::None);
}

#[test]
fn a_sampling_rate_out_of_range_is_clamped_as_in_the_reference() {
    for (given, taken) in [("2", 1.0), ("+Inf", 1.0), ("-0.5", 0.0)] {
        let settings = good("ratelease serve", &[ON, ("TRACING_SAMPLING_RATE", given)]);
        assert_eq!(settings.telemetry.tracing.expect("tracing").rate, taken, "{given}");
        let expected = format!("is out of range, {taken} is used; the rate is a share from 0 to 1");
        assert!(settings.warnings[0].ends_with(&expected), "{:?}", settings.warnings);
    }
    let settings = good("ratelease serve", &[ON, ("TRACING_SAMPLING_RATE", "0.25")]);
    assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
}

#[test]
fn tls_is_for_an_endpoint_that_has_it() {
    let roots = ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/root.pem");
    let settings = good("ratelease serve", &[ON, roots]);
    assert_eq!(settings.telemetry.tracing.expect("tracing").otlp.tls, None);
    let expected = "OTEL_EXPORTER_OTLP_CERTIFICATE: ignored; the endpoint is http, not https";
    assert_eq!(settings.warnings, [expected]);
}

#[test]
fn faulty_tls_files_are_reported_all_at_once() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "nothing\n").expect("a file");
    let empty = empty.to_str().expect("UTF-8");
    let env = [
        ON,
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://a:4318"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/root.pem"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", empty),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", empty),
    ];
    let reported = faults("ratelease serve", &env);
    let expected = [
        "OTEL_EXPORTER_OTLP_CERTIFICATE: the file cannot be read: No such file or directory",
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: the file holds no certificate in PEM",
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY: the file holds no private key in PEM",
    ];
    assert_eq!(reported.len(), expected.len(), "{reported:?}");
    for (reported, expected) in reported.iter().zip(expected) {
        assert!(reported.starts_with(expected), "{reported}");
    }
    let reported = faults("ratelease serve", &[env[0], env[1], env[3]]);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("CLIENT_CERTIFICATE and CLIENT_KEY go together"), "{reported:?}");
}

#[test]
fn metrics_are_pushed_where_otlp_is_among_the_exporters() {
    for (list, expected) in
        [("otlp", true), ("prometheus, otlp", true), ("none", false), ("prometheus", false)]
    {
        let push = telemetry(&[("OTEL_METRICS_EXPORTER", list)]).push;
        assert_eq!(push.is_some(), expected, "{list}");
    }
}

#[test]
fn nothing_is_pushed_to_statsd_unless_asked_for_and_counted() {
    let pushed = |env: Env<'_>| good("ratelease serve", env).statsd;
    assert_eq!(pushed(&[("STATSD_HOST", "statsd")]), None);
    assert_eq!(pushed(&[("USE_STATSD", "true"), ("DISABLE_STATS", "true")]), None);
    for name in ["USE_STATSD", "USE_DOG_STATSD"] {
        let warnings =
            good("ratelease serve", &[(name, "true"), ("DISABLE_STATS", "true")]).warnings;
        let expected = format!("{name}: nothing is pushed, since DISABLE_STATS=true prevails");
        assert!(warnings.iter().any(|it| it.starts_with(&expected)), "{warnings:?}");
    }
    for env in [&[("USE_STATSD", "true")][..], &[("DISABLE_STATS", "true")]] {
        let warnings = good("ratelease serve", env).warnings.concat();
        assert!(!warnings.contains("nothing is pushed"), "{warnings}");
    }
    let found = pushed(&[("USE_STATSD", "true"), ("DD_ENV", "prod")]).expect("a push");
    assert_eq!(
        (found.address, found.interval),
        (HostPort::new("localhost", 8125), Duration::from_secs(10))
    );
    assert_eq!((found.protocol, found.dialect), (StatsdProtocol::Tcp, StatsdDialect::Statsd));
    assert_eq!(found.tags, []);
    let env = [("USE_DOG_STATSD", "true"), ("DD_ENV", "prod"), ("EXTRA_TAGS", "zone:a")];
    let found = pushed(&env).expect("a push");
    assert_eq!(found.protocol, StatsdProtocol::Udp);
    let tags = [("env", "prod"), ("zone", "a")];
    assert_eq!(found.tags, tags.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn statsd_and_dogstatsd_at_once_are_refused() {
    let env = [("USE_STATSD", "true"), ("USE_DOG_STATSD", "true")];
    let faults = faults("ratelease serve", &env).concat();
    assert!(faults.contains("set USE_STATSD=false or USE_DOG_STATSD=false"), "{faults}");
}
