//! Environments of the reference, and what becomes of them.

use super::*;
use crate::settings::tests::REFERENCE;

fn review_of(env: &[(&str, Option<&str>)]) -> EnvironmentReview {
    let owned = env.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
    review(&owned.collect(), Origin::Description)
}

/// What becomes of one variable, with its note and action.
#[track_caller]
fn of(env: &[(&str, Option<&str>)], name: &str) -> VariableReview {
    let review = review_of(env);
    let found = review.variables.iter().find(|it| it.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {review:?}")).clone()
}

#[test]
fn every_variable_of_the_reference_has_the_effect_of_its_row() {
    let table = BTreeMap::from(EXCEPTIONS);
    for name in REFERENCE.split_whitespace() {
        let effect = of(&[(name, None)], name).effect;
        let expected = match table.get(name) {
            None | Some(Support::Only(..)) => Effect::Same,
            Some(Support::Differs(..)) => Effect::Differs,
            Some(Support::Unsupported(_) | Support::Unneeded(_)) => Effect::Ignored,
        };
        // Without its value, the name of the server's certificate is a fault.
        assert_eq!(effect, expected, "{name}");
    }
}

#[test]
fn a_default_that_is_listed_as_another_is_another() {
    let settings = review_of(&[("REDIS_PERSECOND", None)]).settings.unwrap();
    for default in OTHER_DEFAULTS.into_iter().filter(|it| it.name != "USE_STATSD") {
        let flag = default.name.to_ascii_lowercase().replace('_', "-");
        let found = settings.summary.iter().find(|it| it.name == flag).expect(default.name);
        assert_ne!(found.value, default.theirs, "{}", default.name);
    }
    assert_eq!(of(&[], "USE_STATSD").effect, Effect::Default);
    let with = review_of(&[("USE_PROMETHEUS", Some("true"))]);
    assert!(with.variables.iter().all(|it| it.name != "USE_STATSD"), "{with:?}");
}

#[test]
fn what_serve_refuses_is_refused_with_its_fix_and_the_rest_is_still_read() {
    let env = [
        ("BACKEND_TYPE", Some("memcache")),
        ("REDIS_URL", Some("a:1,b:2")),
        ("PORT", Some("http")),
        ("RUNTIME_ROOT", Some("/data")),
    ];
    let refused = of(&env, "BACKEND_TYPE");
    assert_eq!(refused.effect, Effect::Refused);
    assert_eq!(refused.action, "unset it, or set it to redis");
    assert!(of(&env, "REDIS_URL").note.contains("need REDIS_TYPE=cluster or sentinel"));
    assert_eq!(of(&env, "PORT").effect, Effect::Refused);
    let settings = review_of(&env).settings.expect("the settings without the faulty ones");
    assert!(settings.rules.dir.starts_with("/data"));
    // The address is faulty, which does not mean that there is no Redis.
    assert_ne!(settings.store, ratelease_engine::store::StoreSettings::Memory);
}

#[test]
fn a_feature_that_is_turned_off_is_the_same_and_one_that_is_missing_has_an_action() {
    assert_eq!(of(&[("USE_STATSD", Some("false"))], "USE_STATSD").effect, Effect::Same);
    let mapper = "PROMETHEUS_MAPPER_YAML";
    let missing = of(&[(mapper, Some("/etc/conf.yaml"))], mapper);
    assert_eq!((missing.effect, &*missing.action), (Effect::Ignored, "unset it"));
    for name in ["DOG_STATSD_MOGRIFIER_HITS_NAME", "DD_ENV", "STATSD_PROTOCOL"] {
        let given = [(name, Some("udp")), ("USE_DOG_STATSD", Some("true"))];
        assert_eq!(of(&given, name).effect, Effect::Same, "{name}");
    }
    let unneeded = of(&[("REDIS_POOL_SIZE", Some("5"))], "REDIS_POOL_SIZE");
    assert_eq!((unneeded.effect, &*unneeded.action), (Effect::Ignored, ""));
}

/// What Envoy Gateway 1.9 sets on the rate limit service (its `resource_provider.go`).
#[test]
fn the_environment_of_envoy_gateway_is_followed_and_its_clients_need_certificates() {
    let env = [
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
        ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", "redis:6379"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":19001"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
    ];
    let env = env.map(|(name, value)| (name, Some(value)));
    let review = review_of(&env);
    let with = |effect| {
        let found = review.variables.iter().filter(move |it| it.effect == effect);
        found.map(|it| it.name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(with(Effect::Refused), [""; 0], "{review:?}");
    assert_eq!(with(Effect::Ignored), ["PROMETHEUS_MAPPER_YAML"]);
    assert_eq!(with(Effect::Differs), ["GRPC_SERVER_TLS_CA_CERT", "RUNTIME_WATCH_ROOT"]);
    let ca = of(&env, "GRPC_SERVER_TLS_CA_CERT");
    assert_eq!(ca.action, "check that each client presents one");
    let defaults = ["DEBUG_HOST", "REDIS_TIMEOUT", "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"];
    assert_eq!(with(Effect::Default), defaults);
    assert!(review.settings.is_some_and(|settings| settings.xds.is_some()));
}

#[test]
fn an_unknown_variable_gets_the_nearest_name_and_others_are_left_alone() {
    let near = of(&[("REDIS_SOCKETTYPE", Some("tcp"))], "REDIS_SOCKETTYPE");
    assert_eq!((near.effect, &*near.action), (Effect::Unknown, "did you mean REDIS_SOCKET_TYPE?"));
    assert_eq!(of(&[("POD_NAME", Some("a"))], "POD_NAME").action, "");
    assert_eq!(of(&[("THREADS", Some("2"))], "THREADS").effect, Effect::Added);
    let home = [("HOME".to_owned(), Some("/".to_owned()))];
    let quiet = review(&home.into(), Origin::Process);
    assert!(quiet.variables.iter().all(|it| it.name != "HOME"), "{quiet:?}");
}

#[test]
fn files_of_a_deployment_that_is_elsewhere_are_not_looked_for() {
    let env = [
        ("GRPC_SERVER_USE_TLS", Some("true")),
        ("GRPC_SERVER_TLS_CERT", Some("/nowhere/tls.crt")),
        ("GRPC_SERVER_TLS_KEY", Some("/nowhere/tls.key")),
        ("GRPC_SERVER_TLS_CA_CERT", Some("/nowhere/ca.crt")),
        ("SHADOW_MODE", Some("true")),
    ];
    let review = review_of(&env);
    let refused = review.variables.iter().filter(|it| it.effect == Effect::Refused);
    assert_eq!(refused.count(), 0, "{review:?}");
    assert!(review.settings.is_some_and(|settings| settings.responses.shadow_mode));
    let here = env.map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
    let here = super::review(&here.into(), Origin::Process);
    assert!(here.variables.iter().any(|it| it.effect == Effect::Refused), "{here:?}");
}

#[test]
fn a_secret_that_is_elsewhere_counts_as_set_and_none_is_shown() {
    let env = [
        ("REDIS_URL", None),
        ("REDIS_TYPE", Some("SENTINEL")),
        ("REDIS_AUTH_FILE", Some("/nowhere/auth")),
        ("KEY_SECRET_FILE", Some("/nowhere/key")),
    ];
    let review = review_of(&env);
    assert!(review.settings.is_some(), "{review:?}");
    assert_eq!(review.warnings, []);
    assert!(review.variables.iter().all(|it| it.effect != Effect::Refused), "{review:?}");
    let without = review_of(&env[..2]);
    assert_eq!(without.warnings[0].0, "KEY_SECRET");
    for (name, value, shown) in [
        ("REDIS_URL", "redis:6379", true),
        ("REDIS_URL", "redis://u:p@redis:6379", false),
        ("REDIS_AUTH", "p", false),
        ("KEY_SECRET", "p", false),
        ("PORT", "8080", true),
        ("STATSD_HOST", "a", true),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b", false),
        ("MY_PASSWORD", "a", false),
    ] {
        assert_eq!(may_show(name, value), shown, "{name}={value}");
    }
}
