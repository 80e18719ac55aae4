//! Annotations, defaults and pods with faults.

use super::*;

#[test]
fn a_bad_annotation_is_reported_and_the_pod_stays_without() {
    for (name, value, expected) in [
        (
            "rules",
            "git:shop",
            "unknown source of rules \"git\", expected the name of a ConfigMap, or xds:HOST:PORT, \
             found \"git:shop\"; correct ratelease.io/rules, or remove it",
        ),
        ("rules", "Shop_Rules", "expected a name of lower-case letters, digits, - and ., found"),
        ("rules", "xds:nowhere", "CONFIG_GRPC_XDS_SERVER_URL: expected "),
        ("domain", "a/b", "expected letters, digits, -, _ and ., since DOMAIN.yaml is a key of"),
        ("redis", "redis:port", "REDIS_URL: address 1: the port is not a number from 1"),
        ("redis", "secret:redis", "expected NAME/KEY of a Secret, found \"secret:redis\""),
        ("redis-type", "ring", "expected cluster, single, sentinel, found \"ring\""),
        ("listen", "0", "expected a port from 1 to 65535, or uds, found \"0\""),
        ("listen", "8080", "port 8080 is taken by the container app"),
        ("listen", "6070", "port 6070 is also that of DEBUG_PORT"),
        ("http-port", "8080", "port 8080 is taken by the container app"),
        ("metrics-port", "6071", "port 6071 is also that of http-port"),
        ("image", "a b", "expected the name of an image"),
        (
            "memory-limit",
            "64MB",
            "expected a quantity above 0, such as 20m or 64Mi, found \"64MB\"",
        ),
        ("memory-request", "1Gi", "1Gi is more than the limit, 64Mi; lower it, or raise ratelease"),
        ("native-sidecar", "yes", "expected auto, true or false, found \"yes\""),
        ("log-level", "loud", "expected error, warn, info, debug, trace, found \"loud\""),
        ("env", "PORT=1", "PORT is set by http-port; remove it, and set ratelease.io/http-port"),
        ("env", "LEASE_MAX_WAIT=5", "LEASE_MAX_WAIT: expected "),
        ("env", "x", "expected a line NAME=value for each variable, found \"x\""),
    ] {
        let pod = pod(&[(name, value)]);
        let made = inject(&pod, &defaults(), NEW);
        let faults = faults(&made);
        let start = format!("ratelease.io/{name}: {expected}");
        assert!(faults.len() == 1 && faults[0].starts_with(&start), "{start}\n{faults:?}");
        assert_eq!(made.verdict, Verdict::Refused);
        assert_eq!(made.pod["spec"], pod["spec"], "{name}");
        let status = made.pod["metadata"]["annotations"][STATUS].as_str().unwrap();
        assert_eq!(status, format!("not injected: {}", faults[0]));
    }
}

#[test]
fn what_does_not_go_with_the_sidecar_is_reported() {
    for (field, value, expected) in [
        ("hostNetwork", json!(true), "spec.hostNetwork: the sidecar would listen on the node's"),
        (
            "nodeSelector",
            json!({"kubernetes.io/os": "windows"}),
            "spec.nodeSelector: the sidecar runs on Linux only",
        ),
        (
            "nodeSelector",
            json!({"beta.kubernetes.io/os": "windows"}),
            "spec.nodeSelector: the sidecar runs on Linux only",
        ),
        ("os", json!({"name": "windows"}), "spec.os.name: the sidecar runs on Linux only"),
        ("containers", json!([]), "spec.containers: no list, or an empty one"),
        ("containers", json!("x"), "spec.containers: no list, or an empty one"),
        ("volumes", json!({}), "spec.volumes: no list; make it one"),
        (
            "initContainers",
            json!([{"name": "ratelease"}]),
            "spec.initContainers: has a container ratelease that no injector added; remove or",
        ),
        (
            "volumes",
            json!([{"name": "ratelease-rules"}]),
            "spec.volumes: has a volume ratelease-rules that no injector added; rename it",
        ),
    ] {
        let mut pod = pod(&[]);
        pod["spec"][field] = value;
        let made = inject(&pod, &defaults(), NEW);
        let faults = faults(&made);
        assert!(faults.len() == 1 && faults[0].starts_with(expected), "{expected}\n{faults:?}");
        assert_eq!(made.pod["spec"], pod["spec"]);
    }
}

#[test]
fn while_some_nodes_may_lack_native_sidecars_they_have_to_be_asked_for() {
    let some = Cluster { native_sidecars: NativeSidecars::OnSomeNodes };
    let made = inject(&pod(&[]), &defaults(), some);
    assert_eq!(names(&made.pod, "containers"), ["app", "envoy", "ratelease"]);
    let asked = inject(&pod(&[("native-sidecar", "true")]), &defaults(), some);
    assert_eq!(names(&asked.pod, "initContainers"), ["ratelease"]);
}

#[test]
fn files_that_settings_name_are_those_of_the_pod() {
    // A file that exists here, and holds neither certificate nor key.
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for file in [here, "/certs/tls.pem"] {
        let names = [
            "GRPC_SERVER_TLS_CERT",
            "GRPC_SERVER_TLS_KEY",
            "GRPC_CLIENT_TLS_CACERT",
            "REDIS_TLS_CACERT",
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "DEBUG_TOKEN_FILE",
        ];
        let lines: Vec<_> = names.iter().map(|name| format!("{name}={file}")).collect();
        let env = format!("GRPC_SERVER_USE_TLS=true\nREDIS_TLS=true\n{}", lines.join("\n"));
        let endpoint = "\nOTEL_EXPORTER_OTLP_ENDPOINT=https://collector:4317";
        let made = inject(&pod(&[("env", &(env + endpoint))]), &defaults(), NEW);
        assert_eq!(faults(&made), [""; 0]);
    }
    let alone = inject(&pod(&[("env", "GRPC_SERVER_USE_TLS=true")]), &defaults(), NEW);
    assert!(faults(&alone)[0].contains("GRPC_SERVER_TLS_CERT: not set"), "{:?}", faults(&alone));
}

#[test]
fn a_default_holds_no_secret() {
    let env = "env=LOG_FORMAT=json\nREDIS_AUTH=x\n DEBUG_TOKEN=x\nREDIS_PERSECOND_URL=x";
    let pairs = ["redis=redis://u:secret@redis:6379", env].map(str::to_owned);
    let faults = Defaults::read(&pairs).unwrap_err();
    let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[0].starts_with("default redis: holds a user or a password"), "{lines:?}");
    assert!(lines[1].ends_with("set the default redis-auth to NAME/KEY of a Secret"), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("u:secret")), "{lines:?}");
}

#[test]
fn a_job_needs_a_native_sidecar() {
    let mut pod = pod(&[]);
    pod["spec"]["restartPolicy"] = "OnFailure".into();
    assert_eq!(inject(&pod, &defaults(), NEW).verdict, Verdict::Injected);
    let old = inject(&pod, &defaults(), OLD);
    assert!(faults(&old)[0].starts_with("spec.restartPolicy: the pod would never complete"));
    pod["metadata"]["annotations"]["ratelease.io/native-sidecar"] = "true".into();
    let old = inject(&pod, &defaults(), OLD);
    let expected = "ratelease.io/native-sidecar: this cluster is older than Kubernetes 1.29";
    assert!(faults(&old)[0].starts_with(expected), "{:?}", faults(&old));
}

#[test]
fn all_faults_are_reported_at_once_and_misspelt_names_too() {
    let pod = pod(&[("listen", "x"), ("env", "A"), ("cpu-limit", "x"), ("memory-limt", "1Gi")]);
    let made = inject(&pod, &Defaults::default(), NEW);
    let places: Vec<_> = made.faults.iter().map(|fault| fault.place.as_str()).collect();
    let of = ["rules", "redis", "listen", "cpu-limit", "env"];
    assert_eq!(places, of.map(|name| format!("ratelease.io/{name}")));
    let expected = "ratelease.io/memory-limt: unknown annotation, which is ignored; did you mean \
                    memory-limit?";
    assert_eq!(made.warnings, [expected]);
}

#[test]
fn an_annotation_that_is_too_long_is_reported_and_not_parsed() {
    let env = "A=\n".repeat(93_000);
    let made = inject(&pod(&[("env", &env)]), &defaults(), NEW);
    let expected = "ratelease.io/env: has 279000 bytes, more than 16384; make it shorter";
    assert_eq!(faults(&made), [expected]);
}

#[test]
fn the_answer_to_a_pod_with_many_parts_is_bounded() {
    let ports = json!([{"containerPort": 8081}, {"containerPort": 6071}]);
    let container = json!({"name": "x".repeat(1000), "ports": ports});
    let mut many = pod(&[]);
    many["spec"]["containers"] = vec![container; CONTAINERS_MAX].into();
    for at in 0..1000 {
        many["metadata"]["annotations"][format!("ratelease.io/x{at}")] = "".into();
    }
    let made = inject(&many, &defaults(), NEW);
    let status = made.pod["metadata"]["annotations"][STATUS].as_str().unwrap();
    assert!(made.faults.len() > 5 && status.len() <= STATUS_MAX + 20, "{}", status.len());
    assert_eq!(made.warnings.len(), 10);
    many["spec"]["initContainers"] = json!([{"name": "one-more"}]);
    let made = inject(&many, &defaults(), NEW);
    assert_eq!(faults(&made), ["spec.containers: 101 containers, more than 100; use fewer"]);
}

#[test]
fn a_value_that_is_no_text_is_reported() {
    let mut pod = pod(&[]);
    pod["metadata"]["annotations"]["ratelease.io/listen"] = 9081.into();
    let made = inject(&pod, &defaults(), NEW);
    let expected = "ratelease.io/listen: expected text, found 9081; put the value in quotes";
    assert_eq!(faults(&made), [expected]);
}

#[test]
fn a_password_in_an_annotation_is_a_warning() {
    let made = inject(&pod(&[("redis", "redis://u:p@redis:6379")]), &defaults(), NEW);
    assert_eq!(made.verdict, Verdict::Injected, "{:?}", made.faults);
    assert!(made.warnings[0].starts_with("ratelease.io/redis: holds a password"));
}

#[test]
fn defaults_are_checked_by_name() {
    let pairs = ["redis", "rediss=x", "a-name-of-nothing=x", "listen=1", "listen=2"];
    let faults = Defaults::read(&pairs.map(str::to_owned)).unwrap_err();
    let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "default: expected NAME=value, found \"redis\"; write, say, redis=redis:6379",
            "default rediss: unknown name; did you mean redis?",
            "default a-name-of-nothing: unknown name; docs/injection.md lists the names",
            "default listen: given twice; leave one of them out",
        ]
    );
}

#[test]
fn a_faulty_default_is_named_as_such() {
    let defaults = Defaults::read(&["listen=x".into(), "redis=r:1".into(), "rules=a".into()]);
    let made = inject(&pod(&[]), &defaults.unwrap(), NEW);
    let expected = "default listen: expected a port from 1 to 65535, or uds, found \"x\"; correct \
                    default listen, or remove it";
    assert_eq!(faults(&made), [expected]);
}
