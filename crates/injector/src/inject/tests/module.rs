//! Pods whose Envoy has the engine in it.

use super::*;

const MODULE: (&str, &str) = ("mode", "module");

fn env<'p>(container: &'p Value, name: &str) -> Option<&'p str> {
    let mut all = container["env"].as_array()?.iter();
    all.find(|it| it["name"] == name).map(|it| it["value"].as_str().unwrap_or("none"))
}

#[test]
fn an_init_container_brings_the_library_and_envoy_has_the_settings() {
    let more = [MODULE, ("redis", "secret:redis/url"), ("env", "LEASE_MAX_WAIT=7ms")];
    let made = inject(&pod(&more), &defaults(), NEW);
    assert_eq!(faults(&made), [""; 0]);
    assert_eq!(names(&made.pod, "initContainers"), ["ratelease"]);
    assert_eq!(names(&made.pod, "containers"), ["app", "envoy"]);
    let installer = &made.pod["spec"]["initContainers"][0];
    let image = concat!("ratelease-module:", env!("CARGO_PKG_VERSION"));
    assert_eq!(installer["image"], image);
    assert_eq!(installer["command"], json!(["/bin/install-module"]));
    assert_eq!(installer["args"], json!(["/opt/ratelease"]));
    for absent in ["restartPolicy", "env", "livenessProbe", "ports"] {
        assert!(installer[absent].is_null(), "{absent}");
    }
    assert_eq!(installer["securityContext"]["readOnlyRootFilesystem"], true);
    let [app, envoy] = [0, 1].map(|at| &made.pod["spec"]["containers"][at]);
    assert!(app["volumeMounts"].is_null() && app["env"].is_null(), "{app}");
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path, "readOnly": true});
    let mounts = json!([
        mount("ratelease-module", "/opt/ratelease"),
        mount("ratelease-rules", "/etc/ratelease/rules"),
        mount("ratelease-secrets", "/etc/ratelease/secrets"),
    ]);
    assert_eq!(envoy["volumeMounts"], mounts);
    for (name, expected) in [
        ("RUNTIME_ROOT", Some("/etc/ratelease/rules")),
        ("RUNTIME_APPDIRECTORY", Some(".")),
        ("REDIS_URL_FILE", Some("/etc/ratelease/secrets/redis-url")),
        ("PROMETHEUS_ADDR", Some(":6072")),
        ("LEASE_MAX_WAIT", Some("7ms")),
        ("PORT", None),
        ("GRPC_PORT", None),
        ("WAIT_FOR_FILES", None),
    ] {
        assert_eq!(env(envoy, name), expected, "{name}");
    }
    let volumes = made.pod["spec"]["volumes"].as_array().unwrap();
    let secret = &volumes[1]["projected"]["sources"][0]["secret"];
    assert_eq!(secret["optional"], false, "an Envoy without its engine would not get it later");
    assert_eq!(volumes[2], json!({"name": "ratelease-module", "emptyDir": {"sizeLimit": "64Mi"}}));
}

#[test]
fn a_variable_that_envoy_has_already_is_kept() {
    let mut pod = pod(&[MODULE]);
    pod["spec"]["containers"][1]["env"] = json!([{"name": "LOG_LEVEL", "value": "debug"}]);
    let made = inject(&pod, &defaults(), NEW);
    let envoy = &made.pod["spec"]["containers"][1];
    let names: Vec<_> = envoy["env"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names.iter().filter(|it| ***it == "LOG_LEVEL").count(), 1, "{names:?}");
    assert_eq!(env(envoy, "LOG_LEVEL"), Some("debug"));
    assert_eq!(env(envoy, "REDIS_URL"), Some("redis:6379"));
}

#[test]
fn with_istio_before_or_after_the_library_is_there_before_its_proxy_starts() {
    let original = pod(&[MODULE]);
    let after = inject(&with_istio(original.clone()), &defaults(), NEW);
    let before = inject(&with_istio(inject(&original, &defaults(), NEW).pod), &defaults(), NEW);
    assert_eq!((after.verdict, before.verdict), (Verdict::Injected, Verdict::Kept));
    for pod in [&after.pod, &before.pod] {
        let names = names(pod, "initContainers");
        assert_eq!(names, ["ratelease", "istio-proxy", "istio-init"]);
        let proxy = &pod["spec"]["initContainers"][1];
        assert_eq!(proxy["volumeMounts"][0]["name"], "ratelease-module");
        assert_eq!(env(proxy, "REDIS_URL"), Some("redis:6379"));
    }
    let again = inject(&before.pod, &defaults(), NEW);
    assert_eq!(again.patch.0.len(), 0, "{:?}", again.patch);
}

#[test]
fn a_job_may_have_the_module_in_any_cluster_and_only_its_own_ports_have_to_be_free() {
    let mut job = pod(&[MODULE]);
    job["spec"]["restartPolicy"] = json!("Never");
    job["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": 8081}, {"containerPort": 6070}, {"containerPort": 6071}]);
    let made = inject(&job, &defaults(), OLD);
    assert_eq!((made.verdict, faults(&made)), (Verdict::Injected, vec![]));
    job["spec"]["containers"][0]["ports"] = json!([{"containerPort": 6072}]);
    let taken = faults(&inject(&job, &defaults(), OLD));
    assert!(taken[0].contains("port 6072 is taken by the container app"), "{taken:?}");
}

#[test]
fn what_does_not_go_with_the_module_is_reported() {
    for (name, value, expected) in [
        ("mode", "both", "ratelease.io/mode: expected sidecar or module, found \"both\""),
        (
            "env",
            "LEASE_MAX_WAITS=7ms",
            "ratelease.io/env: LEASE_MAX_WAITS is no setting, and Envoy",
        ),
        ("env", "LD_PRELOAD=/tmp/x", "ratelease.io/env: LD_PRELOAD is no setting, and Envoy would"),
        ("module-image", "a b", "ratelease.io/module-image: expected the name of an image"),
    ] {
        let found = faults(&inject(&pod(&[MODULE, (name, value)]), &defaults(), NEW));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    }
    for good in ["DEBUG_PORT=6079", "REDIS_POOL_SIZE=5", "DEBUG_TOKEN_FILE=/x", "OTEL_X=1"] {
        assert_eq!(faults(&inject(&pod(&[MODULE, ("env", good)]), &defaults(), NEW)), [""; 0]);
    }
    let mut pod = pod(&[MODULE]);
    let mount = json!([{"name": "data", "mountPath": "/opt/ratelease"}]);
    pod["spec"]["containers"][1]["volumeMounts"] = mount;
    let found = faults(&inject(&pod, &defaults(), NEW));
    assert!(found[0].starts_with("/opt/ratelease: the container \"envoy\" mounts"), "{found:?}");
    let none = inject(&self::pod(&[MODULE, ("envoy-containers", "x")]), &defaults(), NEW);
    let expected = "no container is named x yet, so none has /opt/ratelease/libratelease.so";
    assert!(none.warnings[0].starts_with(expected), "{:?}", none.warnings);
}
