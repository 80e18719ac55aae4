//! Tests of secrets in files, among the flags, and unset.

use ratelease_engine::store::redis::RedisSettings;

use super::*;

/// Creates a file with this content, which exists as long as the directory.
fn file(dir: &tempfile::TempDir, name: &str, content: &str) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    path.display().to_string()
}

fn redis(settings: &Settings) -> (&RedisSettings, &RedisSettings) {
    match &settings.store {
        StoreSettings::Redis { main, per_second: Some(per_second), .. } => (main, per_second),
        other => panic!("not two Redis but {other:?}"),
    }
}

#[test]
fn secrets_are_read_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let auth = file(&dir, "auth", "user:first\n");
    let files = [
        ("REDIS_URL_FILE", file(&dir, "url", "redis:6379\n")),
        ("REDIS_AUTH_FILE", auth.clone()),
        ("REDIS_SENTINEL_AUTH_FILE", file(&dir, "sentinel", "watch")),
        ("REDIS_PERSECOND_URL_FILE", file(&dir, "url-2", "redis://:of-url@fast:1")),
        ("REDIS_PERSECOND_AUTH_FILE", file(&dir, "auth-2", "second\r\n")),
        ("REDIS_PERSECOND_SENTINEL_AUTH_FILE", file(&dir, "sentinel-2", "watch-2")),
        ("KEY_SECRET_FILE", file(&dir, "key", "pepper\n")),
        ("DEBUG_TOKEN_FILE", file(&dir, "token", "s3cret\n")),
    ];
    let mut env: Vec<_> = files.iter().map(|(name, path)| (*name, path.as_str())).collect();
    env.push(("REDIS_PERSECOND", "true"));
    let settings = good("ratelease serve", &env);
    assert_eq!(settings.leases.key_secret.reveal(), "pepper");
    assert_eq!(settings.listeners.debug_token.reveal(), "s3cret");
    assert_eq!(settings.warnings, [""; 0]);
    let (main, per_second) = redis(&settings);
    assert_eq!(main.addresses[0].to_string(), "redis:6379");
    assert_eq!(
        (main.login.auth.username.as_deref(), main.login.auth.password.clone()),
        (Some("user"), Some("first".into()))
    );
    assert_eq!(main.sentinel_login.auth.password, Some("watch".into()));
    assert_eq!(per_second.login.auth.password, Some("second".into()));
    assert_eq!(per_second.sentinel_login.auth.password, Some("watch-2".into()));
    assert_eq!(main.login.now().unwrap().password, Some("first".into()));
    std::fs::write(&auth, "rotated").unwrap();
    let now = main.login.now().unwrap();
    assert_eq!((now.username, now.password), (None, Some("rotated".into())));
    std::fs::remove_file(&auth).unwrap();
    assert!(main.login.now().unwrap_err().contains("auth cannot be read: No such file"));
}

#[test]
fn a_secret_given_twice_or_in_a_missing_file_is_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "secret", "hunter2");
    for name in ["KEY_SECRET", "DEBUG_TOKEN", "REDIS_AUTH", "REDIS_SENTINEL_AUTH", "REDIS_URL"] {
        let name_of_file = format!("{name}_FILE");
        let url = ("REDIS_URL", "redis:6379");
        let reported = |env: &[(&str, &str)]| {
            let env: Vec<_> =
                [url].iter().filter(|_| name != "REDIS_URL").chain(env).copied().collect();
            let faults = faults("ratelease serve", &env);
            let [fault] = faults.as_slice() else { panic!("{name}: {faults:?}") };
            assert!(fault.starts_with(&format!("{name_of_file}: ")), "{fault}");
            assert!(!fault.contains("hunter2"), "{fault}");
            fault.clone()
        };
        let twice = reported(&[(name, "hunter2"), (&name_of_file, &path)]);
        assert!(twice.contains(&format!("{name} is set too")), "{twice}");
        let nowhere = reported(&[(&name_of_file, "/nonexistent/secret")]);
        assert!(nowhere.contains("the file cannot be read: No such file"), "{nowhere}");
        assert!(nowhere.contains(r#"found "/nonexistent/secret""#), "{nowhere}");
    }
    let auth = file(&dir, "auth", "user:\n");
    let reported = faults("ratelease serve", &[("REDIS_URL", "a:1"), ("REDIS_AUTH_FILE", &auth)]);
    assert!(
        reported[0].starts_with("REDIS_AUTH_FILE: expected a password, or user:password"),
        "{reported:?}"
    );
}

#[test]
fn a_file_without_a_name_is_none() {
    let url = ("REDIS_URL", "redis:6379");
    let settings = good(
        "ratelease serve --redis-auth-file= --redis-sentinel-auth-file=",
        &[url, ("REDIS_AUTH", "x"), ("KEY_SECRET", "x")],
    );
    let StoreSettings::Redis { main, .. } = &settings.store else { panic!("{settings:?}") };
    assert_eq!((&main.login.file, &main.sentinel_login.file), (&None, &None));
    assert_eq!(main.login.now().unwrap().password, Some("x".into()));
    let unset = "ratelease serve --redis-auth-file=";
    assert_eq!(good(unset, &[]).warnings, [""; 0]);
    let warnings = good("ratelease serve --redis-url-file=", &[("REDIS_AUTH", "x")]).warnings;
    assert!(warnings.iter().any(|it| it.starts_with("REDIS_URL: not set")), "{warnings:?}");
}

#[test]
fn a_url_from_a_file_is_never_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "url", "hunter2 is a password");
    let second = [("REDIS_URL", "a:1"), ("REDIS_PERSECOND", "true")];
    for (name, env) in [("REDIS_URL_FILE", &[][..]), ("REDIS_PERSECOND_URL_FILE", &second)] {
        let env: Vec<_> = env.iter().copied().chain([(name, path.as_str())]).collect();
        let faults = faults("ratelease serve", &env);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(!faults[0].contains("hunter2"), "{faults:?}");
    }
}

#[test]
fn a_secret_among_the_flags_is_a_fault_that_does_not_repeat_it() {
    for (flags, name) in [
        ("--key-secret hunter2", "KEY_SECRET"),
        ("--debug-token hunter2", "DEBUG_TOKEN"),
        ("--redis-auth hunter2", "REDIS_AUTH"),
        ("--redis-auth=user:hunter2", "REDIS_AUTH"),
        ("--redis-persecond-sentinel-auth hunter2", "REDIS_PERSECOND_SENTINEL_AUTH"),
        ("--redis-url redis://:hunter2@redis:6379", "REDIS_URL"),
        ("--redis-url hunter2@redis", "REDIS_URL"),
    ] {
        let faults = faults(&format!("ratelease serve {flags}"), &[]);
        let [fault] = faults.as_slice() else { panic!("{flags}: {faults:?}") };
        assert!(fault.starts_with(&format!("{name}: a secret given as a flag")), "{fault}");
        assert!(fault.contains(&format!("{name}_FILE")) && !fault.contains("hunter2"), "{fault}");
    }
    good("ratelease serve --redis-url redis:6379", &[("KEY_SECRET", "x")]);
}

#[test]
fn shared_counts_without_a_key_secret_get_one_warning() {
    let redis = ("REDIS_URL", "redis:6379");
    let warnings = good("ratelease serve", &[redis]).warnings;
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(warning.starts_with("KEY_SECRET: not set"), "{warning}");
    assert!(warning.contains("KEY_SECRET_FILE"), "{warning}");
    assert_eq!(good("ratelease serve", &[redis, ("KEY_SECRET", "x")]).warnings, [""; 0]);
    assert_eq!(good("ratelease serve", &[]).warnings, [""; 0]);
}

#[test]
fn a_key_secret_that_ends_in_a_line_end_gets_a_warning() {
    let warnings = good("ratelease serve", &[("KEY_SECRET", "hunter2\n")]).warnings;
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(warning.starts_with("KEY_SECRET: ends with a line end"), "{warning}");
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "key", "hunter2\n");
    assert_eq!(good("ratelease serve", &[("KEY_SECRET_FILE", &path)]).warnings, [""; 0]);
}

#[test]
fn a_collectors_headers_may_lie_in_a_file_and_its_url_names_no_user() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "headers", "authorization=Bearer%20hunter2\n");
    let tracing = ("TRACING_ENABLED", "true");
    let with = |env: &[(&str, &str)]| {
        let env: Vec<_> = [tracing].iter().chain(env).copied().collect();
        good("ratelease serve", &env).telemetry.tracing.unwrap().otlp.headers
    };
    let (common, own) = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS_FILE");
    assert_eq!(with(&[(own, &path)])["authorization"], "Bearer hunter2");
    assert_eq!(with(&[(own, &path), (common, "a=b")])["authorization"], "Bearer hunter2");
    let common_file = "OTEL_EXPORTER_OTLP_HEADERS_FILE";
    for env in [
        &[(common, "a=hunter2"), (common_file, &path)][..],
        &[(common_file, &file(&dir, "wrong", "hunter2"))],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:hunter2@collector:4318")],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "me:hunter2@collector:4318")],
    ] {
        let env: Vec<_> = [tracing].iter().chain(env).copied().collect();
        let faults = faults("ratelease serve", &env);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(!faults[0].contains("hunter2"), "{faults:?}");
    }
}
