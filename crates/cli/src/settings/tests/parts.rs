//! Tests of each part by itself, and of the forms of values.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::CommandFactory;
use ratelease_rules::Endings;

use super::super::value::{boolean, host};
use super::*;

#[test]
fn booleans_are_read_as_go_reads_them() {
    for text in ["1", "t", "T", "TRUE", "true", "True"] {
        assert_eq!(boolean(text), Ok(true), "{text}");
    }
    for text in ["0", "f", "F", "FALSE", "false", "False"] {
        assert_eq!(boolean(text), Ok(false), "{text}");
    }
    for text in ["", "yes", "on", "tRUE", "2", " true"] {
        assert!(boolean(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_flag_of_true_or_false_may_stand_alone() {
    let answers = good("ratelease serve --shadow-mode --quota-mode=false", &[]).responses;
    assert!(answers.shadow_mode && !answers.quota_mode);
    let env = [("SHADOW_MODE", "true")];
    assert!(good("ratelease serve", &env).responses.shadow_mode);
    assert!(!good("ratelease serve --shadow-mode=F", &env).responses.shadow_mode);
}

#[test]
fn hosts_may_be_names_and_addresses_of_both_kinds() {
    for (text, shown) in [
        ("::", "[::]:1"),
        ("[::1]", "[::1]:1"),
        ("fe80::1:2", "[fe80::1:2]:1"),
        ("0.0.0.0", "0.0.0.0:1"),
        ("localhost", "localhost:1"),
        ("a_b-c.example.", "a_b-c.example.:1"),
    ] {
        let host = host(text).unwrap_or_else(|_| panic!("{text} is refused"));
        assert_eq!(HostPort::new(host, 1).to_string(), shown);
    }
    for text in ["a b", "a:80", "127.0.0.1:80", "[127.0.0.1]", "[::1", "::1]", "[a]", "é", "a/b"] {
        assert!(host(text).is_err(), "{text}");
    }
    assert!(host(&"a".repeat(254)).is_err());
    let settings = good("ratelimit", &[("HOST", "::"), ("GRPC_HOST", "::"), ("PORT", "0")]);
    assert_eq!(settings.listeners.http().to_string(), "[::]:0");
    assert_eq!(settings.listeners.grpc(), GrpcListen::Tcp(HostPort::new("::", 8081)));
}

#[test]
fn a_listener_on_all_interfaces_is_called_at_loopback() {
    for (host, called) in [("0.0.0.0", "127.0.0.1:1"), ("::", "[::1]:1"), ("a.b", "a.b:1")] {
        assert_eq!(HostPort::new(host, 1).reachable().to_string(), called);
    }
}

#[test]
fn names_of_the_debug_port_come_in_a_list_or_are_any() {
    let allowed = |text| {
        good("ratelease serve", &[("DEBUG_ALLOWED_HOSTS", text)]).listeners.debug_allowed_hosts
    };
    assert_eq!(allowed("a.example.com, b.example.com,"), ["a.example.com", "b.example.com"]);
    assert_eq!(allowed("*"), ["*"]);
    assert_eq!(allowed(""), [""; 0]);
    for wrong in ["*.example.com", "a.example.com:80", "http://a", "a b"] {
        assert!(fault("DEBUG_ALLOWED_HOSTS", wrong).contains("names without a port"), "{wrong}");
    }
}

#[test]
fn a_socket_for_grpc_replaces_its_port() {
    let listeners = good("ratelimit", &[("GRPC_UDS", "/run/rl.sock")]).listeners;
    let path = PathBuf::from("/run/rl.sock");
    let uds = Uds { path: path.clone(), mode: 0o666, group: None };
    assert_eq!(listeners.grpc(), GrpcListen::Unix(uds));
    let env = [("GRPC_UDS", "/run/rl.sock"), ("GRPC_UDS_MODE", "0660"), ("GRPC_UDS_GROUP", "1337")];
    let uds = Uds { path, mode: 0o660, group: Some(1337) };
    assert_eq!(good("ratelease serve", &env).listeners.grpc(), GrpcListen::Unix(uds));
    for wrong in ["rw", "0x1b6", "0999", "1777", "+660", "00660"] {
        assert!(fault("GRPC_UDS_MODE", wrong).contains("permissions in octal"), "{wrong}");
    }
    for wrong in ["envoy", "-1", "4294967295"] {
        assert!(fault("GRPC_UDS_GROUP", wrong).contains("a group's number"), "{wrong}");
    }
    let long = format!("/{}", "a".repeat(107));
    assert!(fault("GRPC_UDS", &long).contains("at most 107 bytes"));
    let env = [("GRPC_MAX_CONNECTION_AGE", "0"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "90s")];
    let listeners = good("ratelimit", &env).listeners;
    assert_eq!(listeners.max_connection_age, None);
    assert_eq!(listeners.max_connection_age_grace, Some(Duration::from_secs(90)));
    assert!(fault("GRPC_MAX_CONNECTION_AGE", "-1s").contains("a duration"));
}

#[test]
fn the_rules_directory_comes_from_the_flag_else_the_runtime_names_else_the_default() {
    let dir = |line, env: Env<'_>| {
        let rules = good(line, env).rules;
        (rules.dir, rules.watch_root)
    };
    let path = |text: &str| PathBuf::from(text);
    let istio = [
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
    ];
    assert_eq!(dir("ratelimit", &istio), (path("/data/ratelimit/config"), None));
    assert_eq!(dir("ratelease serve", &istio), (path("/data/ratelimit/config"), None));
    assert_eq!(dir("ratelease serve --rules mine", &istio), (path("mine"), None));
    assert_eq!(dir("ratelimit --rules=/mine", &[]), (path("/mine"), None));
    let watched = [("RUNTIME_ROOT", "/data"), ("RUNTIME_APPDIRECTORY", "rules")];
    assert_eq!(dir("ratelease serve", &watched), (path("/data/rules"), Some(path("/data"))));
    let below = [("RUNTIME_ROOT", "/data/"), ("RUNTIME_SUBDIRECTORY", "/a/b")];
    assert_eq!(dir("ratelimit", &below).0, Path::new("/data/a/b/config"));
    let only_sub = [("RUNTIME_SUBDIRECTORY", "ratelimit")];
    let expected = path("/srv/runtime_data/current/ratelimit/config");
    assert_eq!(dir("ratelease serve", &only_sub).0, expected);
}

#[test]
fn switches_of_the_rules_are_read() {
    let env = [
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("MERGE_DOMAIN_CONFIG", "1"),
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "T"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    let rules = good("ratelimit", &env).rules;
    assert!(rules.reading.dotfiles == Dotfiles::Skip && rules.reading.options.merge_domains);
    assert_eq!((rules.healthy_with, rules.force_start), (HealthyWith::Domain, true));
    let rules = good("ratelimit", &[]).rules;
    assert!(rules.reading.dotfiles == Dotfiles::Read && !rules.reading.options.merge_domains);
    assert_eq!(rules.reading.endings, Endings::Any, "as the reference, which loads every file");
    assert_eq!(good("ratelease serve", &[]).rules.reading.endings, Endings::Yaml);
    assert_eq!((rules.healthy_with, rules.force_start), (HealthyWith::FirstLoad, false));
    let forced = [("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")];
    assert_eq!(good("ratelimit", &forced).rules.healthy_with, HealthyWith::Nothing);
    // Under its own name it is healthy once it decides requests.
    assert_eq!(good("ratelease serve", &forced).rules.healthy_with, HealthyWith::Rules);
    assert_eq!(good("ratelease serve", &[]).rules.healthy_with, HealthyWith::Rules);
}

#[test]
fn header_names_are_kept_in_their_case_and_looked_at_even_when_off() {
    let env = [("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_RESET_HEADER", "X-Reset")];
    let headers = good("ratelimit", &env).headers.expect("headers");
    assert!(!headers.x_ratelimit && !headers.retry_after && !headers.ietf, "{headers:?}");
    let names = headers.reference.expect("the reference's");
    assert_eq!(names.limit, "RateLimit-Limit");
    assert_eq!(names.remaining, "RateLimit-Remaining");
    assert_eq!(names.reset, "X-Reset");
    assert_eq!(good("ratelimit", &[]).headers, None);
    assert!(fault("LIMIT_LIMIT_HEADER", "a b").contains("an HTTP header name"));
    assert!(fault("LIMIT_REMAINING_HEADER", "a:b\r\nc").contains("an HTTP header name"));
}

#[test]
fn headers_are_those_of_the_list_and_those_of_the_references_own_variable() {
    let headers = |env: &[(&str, &str)]| good("ratelease serve", env).headers;
    let on = ("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
    let list = |list| ("RESPONSE_HEADERS", list);
    let both = headers(&[on, list("ietf")]).expect("headers");
    assert_eq!((both.reference.is_some(), both.ietf, both.x_ratelimit), (true, true, false));
    assert_eq!(headers(&[list("reference")]), headers(&[on]));
    assert_eq!(headers(&[list("x-ratelimit,retry-after")]).expect("headers").reference, None);
    assert!(fault("RESPONSE_HEADERS", "x-ratelimit,all").contains("some of reference, x-rate"));
}

#[test]
fn no_header_may_be_sent_with_two_meanings() {
    let list = ("RESPONSE_HEADERS", "reference,x-ratelimit,ietf,retry-after");
    for name in ["x-ratelimit-reset", "RateLimit", "RATELIMIT-POLICY", "retry-after"] {
        let found = faults("ratelease serve", &[list, ("LIMIT_RESET_HEADER", name)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("LIMIT_RESET_HEADER: RESPONSE_HEADERS has "), "{found:?}");
    }
    let twice = [("LIMIT_LIMIT_HEADER", "X-Left"), ("LIMIT_REMAINING_HEADER", "x-left")];
    let found = faults("ratelease serve", &[&[list][..], &twice].concat());
    assert_eq!(found.len(), 1, "{found:?}");
    let twice_told = "LIMIT_REMAINING_HEADER: LIMIT_LIMIT_HEADER names this header too";
    assert!(found[0].starts_with(twice_told), "{found:?}");
    good("ratelease serve", &twice);
    // This header is not sent.
    let list = ("RESPONSE_HEADERS", "x-ratelimit");
    good("ratelease serve", &[list, ("LIMIT_RESET_HEADER", "X-RateLimit-Reset")]);
    good("ratelease serve", &[list, ("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]);
}

#[test]
fn hot_keys_are_counted_by_hash_unless_values_are_enabled() {
    let settings = |env: &[(&str, &str)]| good("ratelease serve", env).hot_keys;
    assert_eq!(settings(&[("HOT_KEYS", "false"), ("HOT_KEYS_VALUES", "true")]), None);
    let env = [("HOT_KEYS_SAMPLE", "100"), ("HOT_KEYS_VALUES", "true")];
    let hot = settings(&env).expect("counted");
    assert_eq!((hot.sample.get(), hot.values), (100, true));
    for sample in ["0", "10001", "-1", "4.5"] {
        assert!(fault("HOT_KEYS_SAMPLE", sample).contains("a whole number from 1 to 10000"));
    }
}

#[test]
fn numbers_and_spans_out_of_range_are_faults() {
    for ratio in ["-0.1", "1.01", "NaN", "inf", "0,8"] {
        assert!(fault("NEAR_LIMIT_RATIO", ratio).contains("from 0 to 1"));
    }
    for size in ["0", "65535", "63KiB", "65GiB", "64MB", "64 MiB", "+64MiB", "1e9", "MiB"] {
        let expected = "a size from 64KiB to 64GiB, in bytes or with KiB, MiB or GiB";
        assert!(fault("BUFFER_MEMORY", size).contains(expected), "{size}");
    }
    assert!(fault("BUFFER_MEMORY", "99999999999999999999KiB").contains("a size from"));
    for (size, bytes) in [("65536", 1 << 16), ("512KiB", 1 << 19), ("64GiB", 1 << 36)] {
        let settings = good("ratelease serve", &[("BUFFER_MEMORY", size)]);
        assert_eq!(settings.leases.buffer_bytes_max, bytes);
    }
    for port in ["-1", "65536", "http", "0x50", "8080 "] {
        assert!(fault("GRPC_PORT", port).contains("a port"));
    }
    assert!(fault("LEASE_MAX_WAIT", "11s").contains("from 0ns to 10s"));
    assert!(fault("DRAIN_TIMEOUT", "2h").contains("from 0ns to 3600s"));
    let settings = good("ratelease serve --max-wait 0 --drain 1m --buffer-memory 1MiB", &[]);
    assert_eq!(settings.leases.max_wait, Duration::ZERO);
    assert_eq!(settings.leases.drain, Duration::from_secs(60));
    assert_eq!(settings.leases.buffer_bytes_max, 1 << 20);
}

#[test]
fn a_wait_by_the_callers_deadline_and_the_pods_expected_have_ranges() {
    let env = [("LEASE_WAIT_LIMIT", "10s"), ("PODS_EXPECTED", "10000")];
    let leases = good("ratelease serve", &env).leases;
    assert_eq!((leases.wait_limit, leases.pods_expected), (Duration::from_secs(10), 10_000));
    let leases = good("ratelease serve --lease-wait-limit 0 --pods-expected 1", &env).leases;
    assert_eq!((leases.wait_limit, leases.pods_expected), (Duration::ZERO, 1));
    for limit in ["15", "-1ms", "10.001s", "1d", "soon"] {
        assert!(fault("LEASE_WAIT_LIMIT", limit).contains("from 0ns to 10s"), "{limit}");
    }
    for pods in ["0", "10001", "-1", "1.5", "many", "1e3", "99999999999999999999"] {
        let expected = "expected a whole number from 1 to 10000";
        assert!(fault("PODS_EXPECTED", pods).contains(expected), "{pods}");
    }
    let fault = fault("PODS_EXPECTED", "0");
    assert!(fault.ends_with("set PODS_EXPECTED or --pods-expected, as in PODS_EXPECTED=16"));
}

#[test]
fn log_levels_are_those_of_the_reference_in_any_case() {
    for (text, level) in [
        ("TRACE", LogLevel::Trace),
        ("debug", LogLevel::Debug),
        ("Info", LogLevel::Info),
        ("warning", LogLevel::Warn),
        ("WARN", LogLevel::Warn),
        ("error", LogLevel::Error),
        ("fatal", LogLevel::Error),
        ("panic", LogLevel::Error),
    ] {
        assert_eq!(good("ratelimit", &[("LOG_LEVEL", text)]).logging.level, level);
    }
    assert_eq!(good("ratelimit", &[("LOG_FORMAT", "JSON")]).logging.format, LogFormat::Json);
    assert!(fault("LOG_FORMAT", "xml").contains("text or json"));
}

#[test]
fn the_summary_has_every_flag_and_no_secret() {
    let line = "ratelease serve --drain 3s";
    let env = [
        ("REDIS_AUTH", "tiger:hunter1"),
        ("REDIS_PERSECOND_URL", "redis://:hunter2@redis"),
        ("KEY_SECRET", "hunter3"),
        ("REDIS_URL", "hunter4"),
        ("LOG_LEVEL", "info"),
    ];
    let summary = good(line, &env).summary;
    assert!(!format!("{summary:?}").contains("hunter"), "{summary:?}");
    let reported = |name: &str| {
        let line = summary.iter().find(|reported| reported.name == name);
        let EffectiveSetting { value, is_default, .. } =
            line.unwrap_or_else(|| panic!("no {name}"));
        (value.as_str(), *is_default)
    };
    for name in ["redis-auth", "redis-persecond-url", "key-secret", "redis-url"] {
        assert_eq!(reported(name), ("***", false), "{name}");
    }
    assert_eq!(reported("drain-timeout"), ("3s", false));
    assert_eq!(reported("log-level"), ("info", true), "set to what it is anyway");
    assert_eq!(reported("grpc-port"), ("8081", true));
    assert_eq!(reported("grpc-uds"), ("", true));
    let flags = Cli::command().find_subcommand("serve").unwrap().get_arguments().count();
    assert_eq!(summary.len(), flags, "each has a long name");
}
