//! Pods and what becomes of them.

mod faults;
mod idempotence;
mod limits;
mod module;

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use super::*;

/// A cluster with native sidecars, and one without.
const NEW: Cluster = Cluster { native_sidecars: NativeSidecars::OnAllNodes };
const OLD: Cluster = Cluster { native_sidecars: NativeSidecars::Absent };

fn defaults() -> Defaults {
    Defaults::read(&["redis=redis:6379".into(), "rules=shop-rules".into()]).unwrap()
}

fn inject(pod: &Value, defaults: &Defaults, cluster: Cluster) -> Injection {
    super::inject(pod.clone(), defaults, cluster)
}

/// A pod with an Envoy and an application, and these annotations, without their prefix.
fn pod(annotations: &[(&str, &str)]) -> Value {
    let annotations = annotations
        .iter()
        .map(|(name, value)| (format!("{}{name}", crate::annotation::PREFIX), Value::from(*value)));
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "annotations": annotations.collect::<serde_json::Map<_, _>>()},
        "spec": {"containers": [
            {"name": "app", "image": "app", "ports": [{"containerPort": 8080}]},
            {"name": "envoy", "image": "envoy"},
        ]},
    })
}

/// The lines of all faults.
fn faults(injection: &Injection) -> Vec<String> {
    injection.faults.iter().map(ToString::to_string).collect()
}

/// What Istio's injector does to a pod with native sidecars: its proxy goes to the front.
fn with_istio(mut pod: Value) -> Value {
    let proxy = json!({"name": "istio-proxy", "restartPolicy": "Always"});
    let init = pod["spec"]["initContainers"].as_array().cloned().unwrap_or_default();
    if !init.iter().any(|it| it["name"] == "istio-proxy") {
        let all = [vec![proxy, json!({"name": "istio-init"})], init].concat();
        pod["spec"]["initContainers"] = all.into();
    }
    pod
}

fn names(pod: &Value, list: &str) -> Vec<String> {
    let all = containers(pod, list).iter();
    all.map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_pod_gets_a_native_sidecar_that_is_confined() {
    let made = inject(&pod(&[]), &defaults(), NEW);
    assert_eq!(made.verdict, Verdict::Injected, "{:?}", made.faults);
    assert_eq!(made.pod["metadata"]["annotations"][STATUS], INJECTED);
    let sidecar = &made.pod["spec"]["initContainers"][0];
    assert_eq!(sidecar["restartPolicy"], "Always");
    assert_eq!(sidecar["command"], json!(["/bin/ratelease"]));
    assert_eq!(sidecar["args"], json!(["serve", "--rules", "/etc/ratelease/rules"]));
    let resources = json!({
        "limits": {"memory": "64Mi"},
        "requests": {"cpu": "20m", "memory": "32Mi"},
    });
    assert_eq!(sidecar["resources"], resources);
    let security = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
        "runAsGroup": 65534,
        "runAsNonRoot": true,
        "runAsUser": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    assert_eq!(sidecar["securityContext"], security);
    assert_eq!(
        sidecar["livenessProbe"]["exec"]["command"],
        json!(["/bin/ratelease", "health", "--live"])
    );
    for absent in ["startupProbe", "readinessProbe", "lifecycle"] {
        assert!(sidecar[absent].is_null(), "{absent} would keep the pod from starting or serving");
    }
    let volume = json!([{
        "name": "ratelease-rules",
        "configMap": {"name": "shop-rules", "optional": true},
    }]);
    assert_eq!(made.pod["spec"]["volumes"], volume);
}

#[test]
fn an_older_cluster_gets_an_ordinary_container_at_the_end() {
    let made = inject(&pod(&[]), &defaults(), OLD);
    assert_eq!(names(&made.pod, "containers"), ["app", "envoy", "ratelease"]);
    assert!(made.pod["spec"]["initContainers"].is_null());
    assert!(made.pod["spec"]["containers"][2]["restartPolicy"].is_null());
    let asked = inject(&pod(&[("native-sidecar", "false")]), &defaults(), NEW);
    assert_eq!(names(&asked.pod, "containers"), ["app", "envoy", "ratelease"]);
}

#[test]
fn annotations_take_precedence_over_defaults() {
    let made = inject(
        &pod(&[
            ("redis", "secret:redis/url"),
            ("redis-type", "single"),
            ("redis-auth", "redis/password"),
            ("key-secret", "keys/secret"),
            ("key-secret-previous", "keys/old"),
            ("domain", "shop"),
            ("listen", "9081"),
            ("memory-limit", "128Mi"),
            ("cpu-limit", "1"),
            ("image", "registry.example/ratelease:9"),
            ("env", "LEASE_MAX_WAIT=7ms\nLOG_FORMAT=json"),
        ]),
        &defaults(),
        NEW,
    );
    assert_eq!(faults(&made), [""; 0]);
    let sidecar = &made.pod["spec"]["initContainers"][0];
    let env = |name: &str| {
        let mut all = sidecar["env"].as_array().unwrap().iter();
        all.find(|it| it["name"] == name).map(|it| it["value"].as_str().unwrap_or("none"))
    };
    for (name, expected) in [
        ("REDIS_URL", None),
        ("REDIS_URL_FILE", Some("/etc/ratelease/secrets/redis-url")),
        ("REDIS_TYPE", Some("single")),
        ("REDIS_AUTH_FILE", Some("/etc/ratelease/secrets/redis-auth")),
        ("KEY_SECRET_FILE", Some("/etc/ratelease/secrets/key-secret")),
        ("KEY_SECRET_PREVIOUS_FILE", Some("/etc/ratelease/secrets/key-secret-previous")),
        (
            "WAIT_FOR_FILES",
            Some(
                "/etc/ratelease/secrets/redis-url,/etc/ratelease/secrets/redis-auth,\
                 /etc/ratelease/secrets/key-secret,/etc/ratelease/secrets/key-secret-previous",
            ),
        ),
        ("GRPC_PORT", Some("9081")),
        ("LEASE_MAX_WAIT", Some("7ms")),
        ("LOG_FORMAT", Some("json")),
        ("LOG_LEVEL", Some("warn")),
    ] {
        assert_eq!(env(name), expected, "{name}");
    }
    assert_eq!(sidecar["image"], "registry.example/ratelease:9");
    assert_eq!(sidecar["resources"]["limits"], json!({"cpu": "1", "memory": "128Mi"}));
    let volumes = &made.pod["spec"]["volumes"];
    assert_eq!(
        volumes[0]["configMap"]["items"],
        json!([{"key": "shop.yaml", "path": "shop.yaml"}])
    );
    let secrets = volumes[1]["projected"]["sources"].as_array().unwrap();
    let secrets: Vec<_> = secrets.iter().map(|it| &it["secret"]).collect();
    assert!(secrets.iter().all(|secret| secret["optional"] == true), "the pod has to start");
    assert_eq!(secrets[0]["name"], "redis");
    assert_eq!(secrets[0]["items"], json!([{"key": "url", "path": "redis-url"}]));
    assert_eq!(secrets.len(), 4);
}

#[test]
fn a_first_secret_replaces_none_and_needs_one_that_does() {
    let both = [("key-secret", "keys/secret"), ("key-secret-previous", "none")];
    let made = inject(&pod(&both), &defaults(), NEW);
    assert_eq!(faults(&made), [""; 0]);
    let env = made.pod["spec"]["initContainers"][0]["env"].to_string();
    assert!(env.contains(r#"{"name":"KEY_SECRET_PREVIOUS","value":"none"}"#), "{env}");
    let alone = faults(&inject(&pod(&both[1..]), &defaults(), NEW));
    let expected = "ratelease.io/key-secret-previous: KEY_SECRET_PREVIOUS: KEY_SECRET is the same";
    assert!(alone.len() == 1 && alone[0].starts_with(expected), "{alone:?}");
}

#[test]
fn rules_can_come_over_xds() {
    let made = inject(&pod(&[("rules", "xds:control:18001")]), &defaults(), NEW);
    assert_eq!(faults(&made), [""; 0]);
    let sidecar = &made.pod["spec"]["initContainers"][0];
    assert_eq!(sidecar["args"], json!(["serve"]));
    let env = sidecar["env"].to_string();
    assert!(env.contains(r#""CONFIG_GRPC_XDS_SERVER_URL","value":"control:18001""#), "{env}");
    assert!(made.pod["spec"]["volumes"].is_null());
    let id = r#""CONFIG_GRPC_XDS_NODE_ID","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}"#;
    assert!(env.contains(id), "{env}");
    let given = ("env", "CONFIG_GRPC_XDS_NODE_ID=shop");
    let made = inject(&pod(&[("rules", "xds:control:18001"), given]), &defaults(), NEW);
    let env = made.pod["spec"]["initContainers"][0]["env"].to_string();
    assert!(env.contains(r#"{"name":"CONFIG_GRPC_XDS_NODE_ID","value":"shop"}"#), "{env}");
    assert_eq!(env.matches("CONFIG_GRPC_XDS_NODE_ID").count(), 1, "{env}");
}

#[test]
fn tls_to_the_xds_server_is_that_of_a_secret_and_its_absence_is_a_warning() {
    let xds = ("rules", "xds:control:18000");
    let made = inject(&pod(&[xds, ("xds-tls", "fleet")]), &defaults(), NEW);
    assert_eq!((faults(&made).len(), made.warnings.len()), (0, 0), "{:?}", made.warnings);
    let spec = &made.pod["spec"];
    let env = spec["initContainers"][0]["env"].as_array().unwrap();
    let value = |name: &str| {
        let found = env.iter().find(|it| it["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}"))["value"].as_str().unwrap()
    };
    assert_eq!(value("CONFIG_GRPC_XDS_SERVER_USE_TLS"), "true");
    let secret = &spec["volumes"][0]["projected"]["sources"][0]["secret"];
    assert_eq!((&secret["name"], &secret["optional"]), (&json!("fleet"), &json!(true)));
    for (key, name) in [
        ("ca.crt", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
        ("tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
        ("tls.key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
    ] {
        let items = secret["items"].as_array().unwrap();
        let item = items.iter().find(|it| it["key"] == key).unwrap();
        let path = format!("/etc/ratelease/secrets/{}", item["path"].as_str().unwrap());
        assert_eq!(value(name), path);
        assert!(value("WAIT_FOR_FILES").split(',').any(|file| file == path), "{path}");
    }
    let mounts = &spec["initContainers"][0]["volumeMounts"];
    assert!(mounts.to_string().contains("/etc/ratelease/secrets"), "{mounts}");
    // Without it, a server elsewhere is not authenticated.
    let plain = inject(&pod(&[xds]), &defaults(), NEW);
    assert!(plain.warnings[0].contains("ratelease.io/xds-tls"), "{:?}", plain.warnings);
    for local in ["xds:localhost:1", "xds:127.0.0.1:1", "xds:[::1]:1"] {
        let made = inject(&pod(&[("rules", local)]), &defaults(), NEW);
        assert_eq!((faults(&made).len(), made.warnings.len()), (0, 0), "{local}");
    }
    // A variable of it cannot be set beside it, a bad name is a fault, and files need none.
    let both = [xds, ("xds-tls", "fleet"), ("env", "CONFIG_GRPC_XDS_SERVER_USE_TLS=false")];
    assert!(faults(&inject(&pod(&both), &defaults(), NEW))[0].contains("is set by xds-tls"));
    assert_eq!(faults(&inject(&pod(&[xds, ("xds-tls", "A/b")]), &defaults(), NEW)).len(), 1);
    let files = inject(&pod(&[("xds-tls", "fleet")]), &defaults(), NEW);
    assert!(!files.pod.to_string().contains("XDS"), "{:?}", files.pod);
}

/// A misspelt field would get lost on the way.
#[test]
fn every_field_that_is_added_is_one_of_kubernetes() {
    let secrets = [
        ("redis", "secret:redis/url"),
        ("redis-auth", "redis/password"),
        ("key-secret", "keys/secret"),
        ("key-secret-previous", "keys/old"),
    ];
    let files = [("domain", "shop"), ("listen", "uds"), ("cpu-limit", "1")];
    let xds = [("rules", "xds:control:18001"), ("xds-tls", "fleet")];
    let module = [("mode", "module"), ("domain", "shop")];
    for more in [&files[..], &xds, &module] {
        let annotations = [&secrets, more].concat();
        for cluster in [NEW, OLD] {
            let made = inject(&pod(&annotations), &defaults(), cluster);
            assert_eq!(faults(&made), [""; 0]);
            let spec = &made.pod["spec"];
            let typed: PodSpec = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(serde_json::to_value(typed).unwrap(), *spec);
        }
    }
}

#[test]
fn a_socket_is_mounted_into_the_envoys_only() {
    let made = inject(&pod(&[("listen", "uds")]), &defaults(), NEW);
    let spec = &made.pod["spec"];
    assert_eq!(faults(&made), [""; 0]);
    assert!(spec["containers"][0]["volumeMounts"].is_null(), "the application has no socket");
    let mount = json!([{
        "name": "ratelease-socket", "mountPath": "/run/ratelease", "readOnly": true,
    }]);
    assert_eq!(spec["containers"][1]["volumeMounts"], mount);
    assert_eq!(spec["volumes"][1]["name"], "ratelease-socket");
    assert_eq!(made.warnings, [""; 0]);
    let other =
        inject(&pod(&[("listen", "uds"), ("envoy-containers", "app,front")]), &defaults(), NEW);
    assert_eq!(other.pod["spec"]["containers"][0]["volumeMounts"], mount);
    let none = inject(&pod(&[("listen", "uds"), ("envoy-containers", "x")]), &defaults(), NEW);
    assert!(none.warnings[0].starts_with("no container is named x yet"), "{:?}", none.warnings);
}

#[test]
fn with_istio_before_or_after_the_pod_is_the_same() {
    for listen in ["8081", "uds"] {
        let original = pod(&[("listen", listen)]);
        let after = inject(&with_istio(original.clone()), &defaults(), NEW);
        let before = inject(&original, &defaults(), NEW);
        // The API server calls the webhook again after Istio's.
        let before = inject(&with_istio(before.pod), &defaults(), NEW);
        assert_eq!(before.verdict, Verdict::Kept);
        for pod in [&after.pod, &before.pod] {
            let names = names(pod, "initContainers");
            let at = |name: &str| names.iter().position(|it| it == name).unwrap();
            assert!(at("istio-proxy") < at("ratelease"), "{names:?}");
            let mounts = &pod["spec"]["initContainers"][at("istio-proxy")]["volumeMounts"];
            assert_eq!(mounts.is_array(), listen == "uds", "{mounts}");
        }
    }
}

#[test]
fn a_sidecar_that_is_before_istios_proxy_is_moved() {
    let mut pod = inject(&pod(&[]), &defaults(), NEW).pod;
    let init = pod["spec"]["initContainers"].as_array_mut().unwrap();
    init.push(json!({"name": "migrate"}));
    init.push(json!({"name": "istio-proxy", "restartPolicy": "Always"}));
    let moved = inject(&pod, &defaults(), NEW);
    assert_eq!(names(&moved.pod, "initContainers"), ["migrate", "istio-proxy", "ratelease"]);
}

#[test]
fn a_pod_that_opts_out_stays_as_it_is() {
    for of in ["labels", "annotations"] {
        let mut pod = pod(&[]);
        pod["metadata"][of] = json!({"ratelease.io/inject": "false"});
        let made = inject(&pod, &defaults(), NEW);
        assert_eq!((made.verdict, made.patch.0.len()), (Verdict::OptedOut, 0));
    }
}

#[test]
fn native_sidecars_are_there_from_1_29_on_and_on_all_nodes_from_1_32_on() {
    use NativeSidecars::{Absent, OnAllNodes, OnSomeNodes};
    for (version, expected) in [
        ("1.28", Absent),
        ("1.29", OnSomeNodes),
        ("v1.31.4", OnSomeNodes),
        ("1.32+", OnAllNodes),
        ("1.9", Absent),
        ("2.0", OnAllNodes),
    ] {
        assert_eq!(Cluster::of(version).unwrap().native_sidecars, expected, "{version}");
    }
    for bad in ["", "1", "x.y", "1."] {
        assert!(Cluster::of(bad).is_err(), "{bad}");
    }
}

// === Editor ===

#[test]
fn the_patch_makes_the_document_of_the_original() {
    let original = json!({"metadata": {"annotations": null}, "spec": {"a": [1, 2]}});
    let mut editor = Editor::new(original.clone());
    editor.add(&["metadata", "annotations", "x.io/y"], json!("z")).unwrap();
    editor.add(&["spec", "volumes", "-"], json!({"name": "v"})).unwrap();
    editor.add(&["spec", "a", "1"], json!(7)).unwrap();
    editor.move_to(&["spec", "a", "0"], &["spec", "a", "2"]).unwrap();
    let (document, patch) = editor.finish();
    let expected = json!({
        "metadata": {"annotations": {"x.io/y": "z"}},
        "spec": {"a": [7, 2, 1], "volumes": [{"name": "v"}]},
    });
    assert_eq!(document, expected);
    let mut again = original;
    json_patch::patch(&mut again, &patch).unwrap();
    assert_eq!(again, expected);
}

#[test]
fn all_steps_can_be_undone() {
    let original = json!({"metadata": {"annotations": null}, "spec": {"a": [1, 2], "b": [{}]}});
    let mut editor = Editor::new(original.clone());
    editor.add(&["metadata", "annotations", "x.io/y"], json!("z")).unwrap();
    editor.add(&["metadata", "annotations", "x.io/y"], json!("other")).unwrap();
    editor.add(&["spec", "volumes", "-"], json!({"name": "v"})).unwrap();
    editor.add(&["spec", "volumes", "-"], json!({"name": "w"})).unwrap();
    editor.add(&["spec", "a", "0"], json!(7)).unwrap();
    editor.move_to(&["spec", "a", "0"], &["spec", "a", "2"]).unwrap();
    editor.add(&["spec", "b", "0", "mounts", "-"], json!(1)).unwrap();
    editor.undo();
    let (document, patch) = editor.finish();
    assert_eq!((document, patch.0.len()), (original, 0));
}

#[test]
fn a_path_through_text_is_a_fault() {
    let mut editor = Editor::new(json!({"spec": "x"}));
    let fault = editor.add(&["spec", "volumes", "-"], json!({})).unwrap_err();
    assert_eq!(fault.place, "spec.volumes");
    assert_eq!(editor.finish().1.0.len(), 0, "nothing was recorded");
}
