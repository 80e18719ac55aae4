//! `ratectl migrate`, on deployments of the reference as people write them.

use super::{files, run_in};

/// After the sample of Istio, with the faults that people have.
const MANIFEST: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: ratelimit-config}
data:
  config.yaml: |
    domain: ratelimit
    descriptors:
      - key: PATH
        value: /productpage
        rate_limit: {unit: minute, requests_per_unit: 1}
      - key: PATH
        rate_limit: {unit: fortnight, requests_per_unit: 100}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: ratelimit}
spec:
  template:
    spec:
      containers:
        - image: envoyproxy/ratelimit:9d8d70a8
          name: ratelimit
          command: [/bin/ratelimit]
          env:
            - {name: LOG_LEVEL, value: debug}
            - {name: REDIS_SOCKET_TYPE, value: tcp}
            - {name: REDIS_URL, value: 'redis:6379'}
            - {name: REDIS_AUTH, valueFrom: {secretKeyRef: {name: redis, key: auth}}}
            - {name: REDIS_POOL_SIZE, value: '20'}
            - {name: REDIS_TIMEOUT, value: 5s}
            - {name: REDIS_SOKCET_TYPE, value: tcp}
            - {name: BACKEND_TYPE, value: memcache}
            - {name: USE_STATSD, value: 'false'}
            - {name: MEMCACHE_HOST_PORT, value: 'memcached:11211'}
            - {name: RUNTIME_ROOT, value: /data}
            - {name: RUNTIME_SUBDIRECTORY, value: ratelimit}
            - {name: HOST, value: '::'}
          volumeMounts:
            - {name: config-volume, mountPath: /data/ratelimit/config}
      volumes:
        - name: config-volume
          configMap: {name: ratelimit-config}
";

const MIGRATE: [&str; 3] = ["migrate", "--kubernetes", "ratelimit.yaml"];

#[test]
fn each_variable_and_rule_file_of_a_manifest_is_judged_with_what_to_do() {
    let dir = files(&[("ratelimit.yaml", MANIFEST)]);
    let ran = run_in(dir.path(), &MIGRATE, &[]);
    ran.ended(1);
    for line in [
        "environment: ratelimit.yaml, container ratelimit of Deployment ratelimit, 13 variables",
        "! refused  BACKEND_TYPE: only Redis is supported",
        "             unset it, or set it to redis",
        "  same     HOST",
        "  ignored  REDIS_POOL_SIZE: there is no pool: one multiplexed connection to each node \
         carries every call",
        "! unknown  REDIS_SOKCET_TYPE: neither ratelease nor the reference (at f2fb157, July 2026) \
         has this setting",
        "             did you mean REDIS_SOCKET_TYPE?",
        "! ignored  MEMCACHE_HOST_PORT: only Redis is supported",
        "  same     USE_STATSD",
        "rules: ConfigMaps at /data/ratelimit/config: 1 file, which would not load",
        "! fault    ratelimit.yaml: ConfigMap ratelimit-config: config.yaml:7:24: invalid rate \
         limit unit 'fortnight'; expected one of second, minute, hour, day, week, month, year, \
         calendar_day, calendar_week, calendar_month, calendar_year",
    ] {
        assert!(ran.out.lines().any(|it| it == line), "{line}\n{}", ran.out);
    }
    assert!(ran.out.contains("\n! warning  KEY_SECRET: not set"), "{}", ran.out);
    assert!(ran.out.contains("\n  differs  REDIS_TIMEOUT: bounds each reply too"), "{}", ran.out);
    assert!(
        ran.out.contains("\n! default  DEBUG_HOST: the debug port is on loopback"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("\n  note     counts: begin again"), "{}", ran.out);
}

#[test]
fn json_has_the_same_findings() {
    let dir = files(&[("ratelimit.yaml", MANIFEST)]);
    let ran = run_in(dir.path(), &[&MIGRATE[..], &["--json"]].concat(), &[]);
    let report = ran.ended(1).json();
    let variables = report["variables"].as_array().unwrap();
    let of = |name: &str| variables.iter().find(|it| it["name"] == name).expect(name);
    assert_eq!(of("BACKEND_TYPE")["effect"], "refused");
    assert_eq!(of("REDIS_AUTH")["effect"], "same");
    assert_eq!(of("DEBUG_HOST")["effect"], "default");
    let fault = &report["rules"]["faults"][0];
    assert_eq!((&fault["line"], &fault["column"]), (&7.into(), &24.into()));
    let marked = run_in(dir.path(), &MIGRATE, &[]).out;
    let marked = marked.lines().filter(|line| line.starts_with("! ")).count();
    assert_eq!(report["actions"], marked);
}

/// The environment that `--print-env` prints is clean once what it asks for is done.
#[test]
fn the_printed_environment_migrates_without_findings_and_shows_no_secret() {
    let mended = MANIFEST.replace("fortnight", "hour");
    let dir = files(&[("ratelimit.yaml", &mended)]);
    let ran = run_in(dir.path(), &[&MIGRATE[..], &["--print-env"]].concat(), &[]);
    ran.ended(1);
    for line in [
        "REDIS_URL=redis:6379",
        "REDIS_TIMEOUT=5s",
        "# REDIS_AUTH: keep it as it is; its value is not shown here",
        "# BACKEND_TYPE: left out, refused: only Redis is supported; unset it, or set it to redis",
    ] {
        assert!(ran.out.lines().any(|it| it == line), "{line}\n{}", ran.out);
    }
    let rules = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]";
    let more = "KEY_SECRET=of-this-fleet\nDEBUG_HOST=127.0.0.1\n";
    let env = format!("{}{more}", ran.out);
    let dir = files(&[("new.env", &env), ("rules/a.yaml", rules)]);
    let again = run_in(dir.path(), &["migrate", "--env-file", "new.env", "--rules", "rules"], &[]);
    assert!(again.ended(0).out.ends_with("nothing needs action\n"), "{}", again.out);
    assert!(!again.out.contains("of-this-fleet"), "{}", again.out);
}

#[test]
fn the_environment_of_the_process_is_read_where_no_file_is_named() {
    let rules = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]";
    let dir = files(&[("run/config/a.yaml", rules), ("run/config/README.md", "text")]);
    let root = dir.path().join("run");
    let env = [
        ("RUNTIME_ROOT", root.to_str().unwrap()),
        ("REDIS_URL", "redis:6379"),
        ("KEY_SECRET", "sesame"),
        ("DEBUG_HOST", "127.0.0.1"),
        ("USE_STATSD", "false"),
        ("HOME", "/root"),
    ];
    let ran = run_in(dir.path(), &["migrate"], &env);
    let other = format!("{}: the reference loads it", root.join("config/README.md").display());
    assert!(ran.ended(1).out.contains(&other), "{}", ran.out);
    assert!(!ran.out.contains("HOME") && !ran.out.contains("sesame"), "{}", ran.out);
    assert!(ran.out.contains("1 file, 1 rule in 1 domain"), "{}", ran.out);
    std::fs::remove_file(root.join("config/README.md")).unwrap();
    run_in(dir.path(), &["migrate"], &env).ended(0);
}

#[test]
fn what_cannot_be_read_ends_with_2_and_names_all_that_is_wrong() {
    let dir = files(&[("a.env", "1=2\n3=4\n"), ("b.yaml", "kind: [\n")]);
    for (args, reason) in [
        (["--env-file", "a.env"], "a.env:2: expected KEY=value"),
        (["--env-file", "gone.env"], "gone.env: does not exist"),
        (["--kubernetes", "b.yaml"], "b.yaml:"),
        (["--compose", "b.yaml"], "b.yaml:"),
    ] {
        let ran = run_in(dir.path(), &[&["migrate"], &args[..]].concat(), &[]);
        assert!(ran.ended(2).err.contains(reason), "{reason}: {}", ran.err);
        assert_eq!(ran.out, "");
    }
}

#[test]
fn arguments_and_commands_that_the_image_does_not_follow_are_named() {
    for (written, expected) in [
        (
            "command: [/bin/ratelimit]\n          args: [-config, /data/c.yaml]",
            "-config /data/c.yaml",
        ),
        ("command: [/bin/ratelimit, -config=/data/c.yaml]", "-config=/data/c.yaml"),
        ("command: [/bin/sh, -c, 'sleep 1; ratelimit']", "/bin/sh -c sleep 1; ratelimit"),
    ] {
        let manifest = MANIFEST.replace("command: [/bin/ratelimit]", written);
        let dir = files(&[("ratelimit.yaml", &manifest)]);
        let ran = run_in(dir.path(), &MIGRATE, &[]);
        let names = |line: &str| line.starts_with('!') && line.contains(expected);
        assert!(ran.out.lines().any(names), "{written}: {}", ran.out);
    }
    let compose = "services:\n  limits:\n    image: envoyproxy/ratelimit:master\n    command: \
                   /bin/ratelimit -config /data/c.yaml\n";
    let dir = files(&[("compose.yaml", compose)]);
    let ran = run_in(dir.path(), &["migrate", "--compose", "compose.yaml"], &[]);
    assert!(ran.out.contains("ignores -config /data/c.yaml"), "{}", ran.out);
    let dir = files(&[("ratelimit.yaml", MANIFEST)]);
    assert!(!run_in(dir.path(), &MIGRATE, &[]).out.contains("arguments"));
}

#[test]
fn variables_of_newer_versions_of_the_reference_are_known() {
    let env = "REDIS_URL=redis:6379\nUSE_CALENDAR_MONTH_RATE_LIMIT=true\n\
               REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR=true\nREDIS_OP_TIMEOUT=1s\n";
    let dir = files(&[("ratelimit.env", env)]);
    let ran = run_in(dir.path(), &["migrate", "--env-file", "ratelimit.env"], &[]);
    for line in [
        "  same     USE_CALENDAR_MONTH_RATE_LIMIT",
        "  ignored  REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR: not needed: a connection to a master \
         that became a replica is always replaced",
        "! unknown  REDIS_OP_TIMEOUT: neither ratelease nor the reference (at f2fb157, July 2026) \
         has this setting",
    ] {
        assert!(ran.out.lines().any(|it| it == line), "{line}\n{}", ran.out);
    }
}
