//! Tests of the settings as a whole: the result of a command line and an environment.

mod page;
mod parts;
mod redis;
mod secrets;
mod stores;
mod telemetry;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::time::Duration;

use clap::CommandFactory;
use ratelease_rules::Dotfiles;

use super::fault::flag_name;
use super::reference::{EXCEPTIONS, Support};
use super::*;
use crate::commands::{Cli, Task};
use crate::grammar;

type Env<'a> = &'a [(&'a str, &'a str)];

/// All 114 variables of the reference at f2fb157, in its order. Then those that its deployments set
/// although it does not read them: of its library for statsd, of older and newer versions, of Envoy
/// Gateway.
pub(crate) const REFERENCE: &str = "
    HOST PORT DEBUG_HOST DEBUG_PORT GRPC_UDS GRPC_HOST GRPC_PORT GRPC_MAX_CONNECTION_AGE
    GRPC_MAX_CONNECTION_AGE_GRACE GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY
    GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN LOG_LEVEL LOG_FORMAT CONFIG_TYPE
    FORCE_START_WITHOUT_INITIAL_CONFIG CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA
    CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL
    CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_SERVER_USE_TLS
    CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY
    CONFIG_GRPC_XDS_SERVER_TLS_CACERT CONFIG_GRPC_XDS_SERVER_TLS_SAN
    XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL
    XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES
    USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS USE_STATSD STATSD_HOST STATSD_PORT EXTRA_TAGS
    STATS_FLUSH_INTERVAL DISABLE_STATS USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH
    PROMETHEUS_MAPPER_YAML PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS RUNTIME_ROOT
    RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_IGNOREDOTFILES RUNTIME_WATCH_ROOT
    EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES NEAR_LIMIT_RATIO CACHE_KEY_PREFIX
    BACKEND_TYPE STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT LIMIT_RESPONSE_HEADERS_ENABLED
    LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER
    HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE
    REDIS_AUTH REDIS_TLS REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT
    REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT
    REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE
    REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_AUTH
    REDIS_PERSECOND_TLS REDIS_SENTINEL_AUTH REDIS_PERSECOND_SENTINEL_AUTH
    REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT
    REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_HEALTH_CHECK_ACTIVE_CONNECTION
    REDIS_TIMEOUT REDIS_PERSECOND_TIMEOUT REDIS_POOL_ON_EMPTY_BEHAVIOR
    REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR REDIS_STARTUP_INITIAL_INTERVAL
    REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME MEMCACHE_HOST_PORT
    MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS
    MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT
    MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA
    MERGE_DOMAIN_CONFIG TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE
    TRACING_SERVICE_INSTANCE_ID TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE

    STATSD_PROTOCOL REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR USE_CALENDAR_MONTH_RATE_LIMIT
    REDIS_POOL_ON_EMPTY_WAIT_DURATION REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION
    GRPC_SERVER_TLS_CA_CERT
";

/// Parses `line`, whose first word is the program's name, with exactly the environment `env`.
fn parse(line: &str, env: Env<'_>) -> Result<Settings, SettingsError> {
    let env: HashMap<&str, &str> = env.iter().copied().collect();
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program's name");
    let lookup = |name: &str| env.get(name).map(|&value| value.to_owned());
    match Task::parse(program, words.map(OsString::from), &lookup)? {
        Task::Serve(settings) => Ok(*settings),
        task => panic!("{line:?}: not to serve but {task:?}"),
    }
}

fn good(line: &str, env: Env<'_>) -> Settings {
    parse(line, env).unwrap_or_else(|error| panic!("{line:?} with {env:?}: {error}"))
}

/// Returns the faults as the user sees them.
fn faults(line: &str, env: Env<'_>) -> Vec<String> {
    match parse(line, env) {
        Err(SettingsError::Faults(faults)) => faults.iter().map(ToString::to_string).collect(),
        other => panic!("{line:?} with {env:?}: no faults but {other:?}"),
    }
}

/// Returns the one fault of one faulty variable.
fn fault(name: &str, value: &str) -> String {
    let faults = faults("ratelease serve", &[(name, value)]);
    let [fault] = faults.as_slice() else { panic!("{name}={value}: not one fault but {faults:?}") };
    assert!(fault.starts_with(&format!("{name}: ")), "{fault}");
    fault.clone()
}

fn help(line: &str, env: Env<'_>) -> String {
    match parse(line, env) {
        Err(SettingsError::Help(text)) => text,
        other => panic!("{line:?}: no help but {other:?}"),
    }
}

#[test]
fn ratelease_listens_on_loopback_and_keeps_counts_in_memory() {
    let settings = good("/usr/local/bin/ratelease serve", &[]);
    assert_eq!(settings.listeners.http().to_string(), "0.0.0.0:8080");
    assert_eq!(settings.listeners.grpc(), GrpcListen::Tcp(HostPort::new("127.0.0.1", 8081)));
    assert_eq!(settings.listeners.debug().to_string(), "127.0.0.1:6070");
    assert_eq!(settings.rules.dir.to_str(), Some("config/rules"));
    assert_eq!(settings.rules.watch_root, None);
    assert_eq!(settings.rules.snapshot, None);
    assert_eq!(settings.listeners.calls_max, 4096);
    assert_eq!(settings.rules.reading.dotfiles, Dotfiles::Skip);
    assert_eq!(settings.store, StoreSettings::Memory);
    assert_eq!(
        (settings.logging.level, settings.logging.format),
        (LogLevel::Info, LogFormat::Text)
    );
    assert!(!settings.logging.values && settings.logging.decision_sample_rate == 0.0);
    assert!(settings.telemetry.tracing.is_none() && settings.telemetry.push.is_none());
    assert_eq!(settings.leases.max_wait, Duration::from_millis(5));
    assert_eq!(settings.leases.wait_limit, Duration::from_millis(15));
    assert_eq!(settings.leases.pods_expected, 16);
    assert_eq!(settings.leases.buffer_bytes_max, 64 << 20);
    assert!(settings.leases.key_secret.is_empty());
    assert_eq!(settings.leases.drain, Duration::from_secs(10));
    assert_eq!(
        settings.hot_keys,
        Some(HotKeys { is_on: true, sample: 4.try_into().expect("above 0"), values: false })
    );
    assert_eq!(settings.warnings, [""; 0]);
}

#[test]
fn ratelimit_serves_by_itself_with_the_defaults_of_the_reference() {
    let settings = good("/bin/ratelimit", &[]);
    assert_eq!(settings.listeners.http().to_string(), "0.0.0.0:8080");
    assert_eq!(settings.listeners.grpc(), GrpcListen::Tcp(HostPort::new("0.0.0.0", 8081)));
    // Not the reference's default, which shows the debug port to every machine that reaches it.
    assert_eq!(settings.listeners.debug().to_string(), "127.0.0.1:6070");
    let reported = [("DEBUG_HOST", "0.0.0.0")];
    assert_eq!(good("ratelimit", &reported).listeners.debug().to_string(), "0.0.0.0:6070");
    let guarded = [("DEBUG_TOKEN", "hunter2")];
    assert_eq!(good("ratelimit", &guarded).listeners.debug().to_string(), "0.0.0.0:6070");
    let both = [("DEBUG_TOKEN", "hunter2"), ("DEBUG_HOST", "127.0.0.1")];
    assert_eq!(good("ratelimit", &both).listeners.debug().to_string(), "127.0.0.1:6070");
    assert_eq!(good("ratelease serve", &guarded).listeners.debug().to_string(), "127.0.0.1:6070");
    assert_eq!(settings.listeners.max_connection_age, Some(Duration::from_secs(24 * 3600)));
    assert_eq!(settings.listeners.max_connection_age_grace, Some(Duration::from_secs(3600)));
    assert_eq!(settings.rules.dir.to_str(), Some("/srv/runtime_data/current/config"));
    assert_eq!(
        settings.rules.watch_root.as_deref().and_then(|root| root.to_str()),
        Some("/srv/runtime_data/current")
    );
    assert_eq!(settings.rules.reading.dotfiles, Dotfiles::Read);
    assert_eq!(settings.store, StoreSettings::Memory);
    assert_eq!(settings.logging.level, LogLevel::Warn);
    assert_eq!(settings, good("ratelimit serve", &[]), "the subcommand may be given");
}

#[test]
fn a_flag_beats_its_variable_and_a_variable_its_default() {
    let env = [("PORT", "1111"), ("GRPC_PORT", "2222")];
    let settings = good("ratelease serve --port 3333", &env);
    assert_eq!(settings.listeners.port, 3333);
    assert_eq!(settings.listeners.grpc(), GrpcListen::Tcp(HostPort::new("127.0.0.1", 2222)));
    assert_eq!(settings.listeners.debug_port, 6070);
    let settings = good("ratelimit --host 127.0.0.1 --log-level=trace", &[("LOG_LEVEL", "error")]);
    assert_eq!(settings.listeners.host, "127.0.0.1");
    assert_eq!(settings.logging.level, LogLevel::Trace);
}

#[test]
fn a_variable_set_to_nothing_counts_as_unset() {
    let flags = variables();
    let flags = flags.iter().map(|(name, _)| name.as_str());
    let names = REFERENCE.split_whitespace().chain(flags);
    let env: Vec<_> = names.map(|name| (name, "")).collect();
    assert_eq!(good("ratelease serve", &env), good("ratelease serve", &[]));
}

#[test]
fn all_faults_are_reported_at_once_each_with_what_was_expected_and_how_to_fix_it() {
    let env = [
        ("PORT", "70000"),
        ("SHADOW_MODE", "yes"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("REDIS_URL", "redis:6379:1"),
        ("LOG_LEVEL", "loud"),
        ("CACHE_KEY_PREFIX", "{a}"),
        ("LEASE_MAX_WAIT", "5"),
        ("RUNTIME_WATCH_ROOT", "2"),
    ];
    let error = parse("ratelease serve --near-limit-ratio=1.5", &env).expect_err("faults");
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    assert!(text.starts_with("10 settings are faulty:\n"), "{text}");
    assert_eq!(text.lines().count(), 11, "{text}");
    let lines = [
        "PORT: expected a port from 0 to 65535, found \"70000\"; \
         set PORT or --port, as in PORT=8080",
        "SHADOW_MODE: expected true or false (also t, f, 1, 0), found \"yes\"; \
         set SHADOW_MODE or --shadow-mode, as in SHADOW_MODE=true",
        "GRPC_SERVER_TLS_CERT: not set, and GRPC_SERVER_USE_TLS is true; name a PEM file",
        "GRPC_SERVER_TLS_KEY: not set, and GRPC_SERVER_USE_TLS is true; name a PEM file",
        "NEAR_LIMIT_RATIO: expected a number from 0 to 1, found \"1.5\"; \
         set NEAR_LIMIT_RATIO or --near-limit-ratio, as in NEAR_LIMIT_RATIO=0.8",
    ];
    for line in lines {
        assert!(text.lines().any(|found| found.trim() == line), "no {line}\nin {text}");
    }
}

#[test]
fn faulty_values_are_cut_and_their_control_characters_escaped() {
    let text = fault("PORT", &format!("1\n2\u{1b}[31m{}", "3".repeat(1000)));
    assert!(text.len() < 300, "{} bytes", text.len());
    assert!(text.contains(r#"found "1\n2\u{1b}[31m333"#), "{text}");
}

#[test]
fn secrets_show_in_no_debug_form_fault_warning_or_help() {
    const SECRET: &str = "hunter2";
    let url = "redis://user:hunter2@redis:6379";
    let wrong = "redis://user:hunter2@redis:port";
    let env = [
        ("REDIS_URL", url),
        ("REDIS_AUTH", "me:hunter2"),
        ("REDIS_SENTINEL_AUTH", "hunter2"),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", url),
        ("REDIS_PERSECOND_AUTH", "hunter2"),
        ("REDIS_PERSECOND_SENTINEL_AUTH", "hunter2"),
        ("KEY_SECRET", "hunter2"),
    ];
    let settings = good("ratelease serve", &env);
    assert!(!format!("{settings:?}").contains(SECRET), "{settings:?}");
    assert_eq!(settings.leases.key_secret.reveal(), SECRET);
    for wrong in [wrong, "redis://:hunter2", "hunter2@redis", "redis://a:hunter2,b@c:1"] {
        let faulty = [("REDIS_URL", wrong), ("REDIS_AUTH", "hunter2:")];
        let error = parse("ratelease serve", &faulty).expect_err("faults");
        assert!(!error.to_string().contains(SECRET), "{error}");
        assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
    }
    assert!(!help("ratelease serve --help", &env).contains(SECRET));
    let error = parse("ratelease serve --nonsense", &env).expect_err("unknown");
    assert!(!error.to_string().contains(SECRET), "{error}");
    let lookup = |name: &str| (name == "REDIS_AUTH").then(|| SECRET.to_owned());
    let args = ["ratelease", "serve"].map(OsString::from);
    let cli = grammar::read::<Cli>(Role::Ratelease, &args, &lookup).expect("good");
    assert!(!format!("{cli:?}").contains(SECRET), "{cli:?}");
}

#[test]
fn every_variable_of_the_reference_is_an_exception_or_a_setting_that_is_not_added() {
    let names: BTreeSet<_> = REFERENCE.split_whitespace().collect();
    assert_eq!(names.len(), 114 + 6);
    let shared: BTreeSet<_> = Settings::SECTIONS.iter().flat_map(Section::shared).collect();
    let exceptions = EXCEPTIONS.map(|(name, _)| name);
    let known = shared.iter().map(|name| &**name).chain(exceptions);
    assert_eq!(known.collect::<BTreeSet<_>>(), names);
    assert_eq!(BTreeSet::from(exceptions).len(), exceptions.len());
}

/// Returns each flag of `serve` with its variable, which is the flag's name in capitals.
fn variables() -> Vec<(String, clap::Arg)> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").expect("serve");
    let args = serve.get_arguments().filter(|arg| arg.get_env().is_some());
    args.map(|arg| {
        let name = arg.get_env().and_then(|name| name.to_str()).expect("a name");
        (name.to_owned(), arg.clone())
    })
    .collect()
}

#[test]
fn an_exception_that_has_a_flag_is_one_that_differs() {
    let flags = variables();
    let flags: BTreeSet<_> = flags.iter().map(|(name, _)| name.as_str()).collect();
    for (name, support) in EXCEPTIONS {
        assert_eq!(flags.contains(name), matches!(support, Support::Differs(..)), "{name}");
    }
}

#[test]
fn each_variable_has_one_flag_of_the_same_name_with_a_help_text() {
    let flags = variables();
    let names: BTreeSet<_> = flags.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), flags.len(), "a variable has two flags");
    for (name, arg) in &flags {
        assert_eq!(format!("--{}", arg.get_long().expect("long")), flag_name(name));
        assert!(!arg.get_help().map(ToString::to_string).unwrap_or_default().is_empty(), "{name}");
    }
}

#[test]
fn help_names_each_variable_and_default_and_nothing_of_the_environment() {
    let text = help("ratelease serve --help", &[("PORT", "4711")]);
    for (name, _) in variables() {
        assert!(text.contains(&format!("[env: {name}]")), "{name} in {text}");
    }
    for heading in [
        "Listeners:",
        "Rules:",
        "Redis:",
        "Answers:",
        "Leases:",
        "Hot keys:",
        "Logging:",
        "Examples:",
    ] {
        assert!(text.contains(&format!("\n{heading}\n")), "{heading} in {text}");
    }
    assert!(!text.contains("4711"), "{text}");
    assert!(text.contains("[env: HOST] [default: 0.0.0.0]"), "{text}");
    assert!(text.contains("[env: GRPC_HOST] [default: 127.0.0.1]"), "{text}");
    let text = help("ratelimit --help", &[]);
    assert!(text.contains("[env: GRPC_HOST] [default: 0.0.0.0]"), "{text}");
    assert!(help("ratelease --version", &[]).contains(env!("CARGO_PKG_VERSION")));
    assert!(help("ratelimit -V", &[]).contains(env!("CARGO_PKG_VERSION")));
    assert_eq!(parse("ratelease --help", &[]).expect_err("help").exit_code(), 0);
}

#[test]
fn unknown_arguments_end_with_status_2() {
    for line in [
        "ratelease",
        "ratelease fly",
        "ratelease -config /data/config.yaml",
        "ratelease serve --prot 1",
        "ratelease serve -config /data/config.yaml",
        "ratelimit serve --prot 1",
        "ratelimit --port",
    ] {
        let error = parse(line, &[]).expect_err(line);
        assert!(matches!(error, SettingsError::Usage(_)), "{line}: {error:?}");
        assert_eq!(error.exit_code(), 2, "{line}");
    }
    let error = parse("ratelease serve --prot 1", &[]).expect_err("unknown");
    assert!(error.to_string().contains("'--port'"), "a near name is offered: {error}");
}

/// As `ratelimit`, a start without the first is warned of, and one with it and without the second.
const STORE: [(&str, &str); 2] = [("REDIS_URL", "127.0.0.1:6379"), ("KEY_SECRET", "sesame")];

#[test]
fn arguments_that_the_reference_ignores_are_ignored_with_a_warning_under_its_name() {
    for (line, ignored) in [
        ("ratelimit -config /data/config.yaml", r#""-config" "/data/config.yaml","#),
        ("/bin/ratelimit -config=/data/config.yaml", r#""-config=/data/config.yaml","#),
        ("ratelimit /bin/ratelimit", r#""/bin/ratelimit","#),
        ("ratelimit --prot 1", r#""--prot" "1","#),
        ("ratelimit -v -port 1", r#""-v" "-port" "1","#),
        ("ratelimit status --grpc-port-of 7", r#""status" "--grpc-port-of" "7","#),
        ("ratelimit -- --port 2", r#""--" "--port" "2","#),
        ("ratelimit x -", r#""x" "-","#),
    ] {
        let settings = good(line, &STORE);
        let [warning] = &*settings.warnings else { panic!("{line}: {:?}", settings.warnings) };
        assert!(warning.starts_with("arguments: ignored "), "{line}: {warning}");
        assert!(warning.contains(ignored), "{line}: {warning}");
    }
    // Flags keep their meaning between arguments that are ignored.
    for line in [
        "ratelimit --port 4711 -config /data/config.yaml",
        "ratelimit -config /data/config.yaml --port=4711",
        "ratelimit -config x --use-prometheus --port 4711 y",
    ] {
        let port = |settings: &Settings| settings.listeners.port;
        assert_eq!(port(&good(line, &STORE)), 4711, "{line}");
    }
    assert_eq!(good("ratelimit --port 4711", &STORE).warnings, [""; 0]);
    let long = format!("ratelimit {} {}", "é".repeat(500), "a ".repeat(100));
    let settings = good(&long, &STORE);
    assert!(settings.warnings[0].len() < 1_024, "{:?}", settings.warnings);
    assert!(settings.warnings[0].contains(" and 85 more"), "{:?}", settings.warnings);
    assert!(help("ratelimit -config x --help", &[]).contains("--port"));
}

#[test]
fn a_variable_that_is_not_followed_gets_one_warning_with_the_reason() {
    for (name, support) in EXCEPTIONS {
        let (Support::Unsupported(reason) | Support::Unneeded(reason)) = support else { continue };
        let settings = good("ratelimit", &[STORE[0], STORE[1], (name, "17")]);
        assert_eq!(settings.warnings, [format!("{name}: ignored; {reason}")]);
        for nothing in ["false", "0", "0s", ""] {
            let settings = good("ratelimit", &[STORE[0], STORE[1], (name, nothing)]);
            assert_eq!(settings.warnings, [""; 0], "{name}={nothing}");
        }
    }
}

#[test]
fn a_setting_that_would_be_less_safe_than_requested_is_a_fault() {
    for (name, support) in EXCEPTIONS {
        if let Support::Only(value, reason) = support {
            assert!(fault(name, "other").contains(reason));
            for value in [value, &value.to_lowercase()] {
                assert_eq!(
                    good("ratelimit", &[STORE[0], STORE[1], (name, value)]).warnings,
                    [""; 0]
                );
            }
        }
    }
    assert!(fault("CONFIG_TYPE", "consul").contains("FILE or GRPC_XDS_SOTW"));
    assert!(fault("BACKEND_TYPE", "memcache").contains("only Redis"));
}
