//! Properties of any pod: a second injection changes nothing, and nothing but the sidecar is added.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

/// Annotations, good and bad.
const ANNOTATIONS: [(&str, &str); 20] = [
    ("ratelease.io/listen", "uds"),
    ("ratelease.io/rules", "xds:a:1"),
    ("ratelease.io/xds-tls", "fleet"),
    ("ratelease.io/redis", "secret:a/b"),
    ("ratelease.io/redis", "embedded"),
    ("ratelease.io/key-secret", "a/b"),
    ("ratelease.io/key-secret-previous", "a/c"),
    ("ratelease.io/native-sidecar", "true"),
    ("ratelease.io/envoy-containers", "app,istio-proxy"),
    ("ratelease.io/env", "LOG_FORMAT=json"),
    ("ratelease.io/listen", "9081"),
    ("ratelease.io/listen", "80"),
    ("ratelease.io/rules", "git:x"),
    ("ratelease.io/native-sidecar", "false"),
    ("ratelease.io/mode", "module"),
    ("ratelease.io/mode", "both"),
    ("ratelease.io/status", "injected"),
    ("ratelease.io/status", "not injected: x"),
    ("ratelease.io/inject", "false"),
    ("other.io/x", "y"),
];

/// How many of these are good.
const GOOD: usize = 10;

fn annotations(from: &[(&'static str, &'static str)]) -> impl Strategy<Value = Value> + use<> {
    subsequence(from.to_vec(), 0..5).prop_map(|pairs| {
        let pairs = pairs.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        Value::Object(pairs.collect())
    })
}

fn container(name: &'static str) -> impl Strategy<Value = Value> {
    let ports = subsequence(vec![80, 6070, 8080, 8081], 0..3);
    let mounts = subsequence(vec!["/data", "/run/ratelease", "/opt/ratelease"], 0..2);
    (ports, mounts, any::<bool>()).prop_map(move |(ports, mounts, is_native)| {
        let ports: Vec<_> = ports.iter().map(|port| json!({"containerPort": port})).collect();
        let mounts: Vec<_> =
            mounts.iter().map(|path| json!({"name": "data", "mountPath": path})).collect();
        let mut made = json!({"name": name, "image": "x", "ports": ports, "volumeMounts": mounts});
        if is_native && name == "istio-proxy" {
            made["restartPolicy"] = "Always".into();
        }
        made
    })
}

fn containers_of(names: &'static [&'static str], least: usize) -> impl Strategy<Value = Value> {
    let chosen = subsequence(names.to_vec(), least..names.len());
    chosen
        .prop_flat_map(|names| names.into_iter().map(container).collect::<Vec<_>>())
        .prop_map(Value::from)
}

/// A pod, good or bad.
fn any_pod() -> impl Strategy<Value = Value> {
    let init = containers_of(&["migrate", "istio-init", "istio-proxy", "ratelease"], 0);
    let main = containers_of(&["app", "envoy", "web", "ratelease"], 0);
    let restart = select(vec!["Always", "OnFailure", "Never"]);
    (annotations(&ANNOTATIONS), init, main, restart, any::<bool>()).prop_map(
        |(annotations, init, main, restart, is_host)| {
            let mut pod = pod_of(annotations, init, main);
            pod["spec"]["restartPolicy"] = restart.into();
            pod["spec"]["hostNetwork"] = (is_host && restart == "Never").into();
            pod
        },
    )
}

/// A pod that is injected, and that Istio has not seen.
fn good_pod() -> impl Strategy<Value = Value> {
    let main = subsequence(vec!["app", "envoy", "web"], 1..4).prop_map(|names| {
        let made = names.into_iter().map(|name| json!({"name": name, "volumeMounts": []}));
        made.collect::<Vec<_>>().into()
    });
    let init = select(vec![json!([]), json!([{"name": "migrate"}]), Value::Null]);
    (annotations(&ANNOTATIONS[..GOOD]), init, main)
        .prop_map(|(annotations, init, main)| pod_of(annotations, init, main))
}

fn pod_of(annotations: Value, init: Value, main: Value) -> Value {
    json!({
        "metadata": {"name": "web", "annotations": annotations},
        "spec": {
            "initContainers": init,
            "containers": main,
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    })
}

/// The pod without what an injector adds.
fn stripped(mut pod: Value) -> Value {
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.remove(STATUS);
    }
    let keep = |list: &mut Value, is_kept: &dyn Fn(&Value) -> bool| {
        if let Some(items) = list.as_array_mut() {
            items.retain(is_kept);
        }
    };
    for list in LISTS {
        keep(&mut pod["spec"][list], &|it| it["name"] != CONTAINER);
        for it in pod["spec"][list].as_array_mut().into_iter().flatten() {
            let is_own = |name: &Value| name.as_str().is_some_and(|it| it.starts_with(CONTAINER));
            keep(&mut it["volumeMounts"], &|mount| !is_own(&mount["name"]));
            // No container had any before.
            it.as_object_mut().map(|it| it.remove("env"));
        }
    }
    let is_own = |it: &Value| it["name"].as_str().is_some_and(|name| name.starts_with(CONTAINER));
    keep(&mut pod["spec"]["volumes"], &|it| !is_own(it));
    pod
}

/// What the API server checks of the lists that were changed.
fn is_valid(pod: &Value) -> bool {
    let unique = |values: Vec<&Value>| {
        let texts: BTreeSet<_> = values.iter().map(ToString::to_string).collect();
        texts.len() == values.len()
    };
    let volumes: Vec<_> =
        pod["spec"]["volumes"].as_array().into_iter().flatten().map(|it| &it["name"]).collect();
    let all: Vec<_> = LISTS.iter().flat_map(|list| containers(pod, list)).collect();
    let is_mounted_well = |it: &Value| {
        unique(mounts(it).map(|mount| &mount["mountPath"]).collect())
            && mounts(it).all(|mount| volumes.contains(&&mount["name"]))
    };
    unique(volumes.clone())
        && unique(all.iter().map(|it| &it["name"]).collect())
        && all.iter().all(|it| is_mounted_well(it))
}

proptest! {
    #[test]
    fn a_second_injection_changes_nothing(pod in any_pod(), is_new in any::<bool>()) {
        let cluster = if is_new { NEW } else { OLD };
        let first = inject(&pod, &defaults(), cluster);
        let mut patched = pod;
        json_patch::patch(&mut patched, &first.patch).unwrap();
        prop_assert_eq!(&patched, &first.pod, "the patch makes the pod");
        let second = inject(&first.pod, &defaults(), cluster);
        prop_assert_eq!(second.patch.0.len(), 0, "{:?}", second.patch);
        prop_assert_eq!(second.pod, first.pod);
        if first.verdict == Verdict::Injected {
            prop_assert_eq!(second.verdict, Verdict::Kept);
        }
    }

    #[test]
    fn nothing_but_the_sidecar_is_added(pod in any_pod(), is_new in any::<bool>()) {
        let made = inject(&pod, &defaults(), if is_new { NEW } else { OLD });
        prop_assert_eq!(stripped(made.pod.clone()), stripped(pod.clone()));
        prop_assert_eq!(made.verdict == Verdict::Refused, !made.faults.is_empty());
        match made.verdict {
            Verdict::Injected => prop_assert!(is_valid(&made.pod), "{}", made.pod),
            Verdict::Refused => prop_assert_eq!(&made.pod["spec"], &pod["spec"]),
            Verdict::Kept | Verdict::OptedOut => {}
        }
    }

    #[test]
    fn istio_may_come_before_or_after(pod in good_pod()) {
        let first = inject(&pod, &defaults(), NEW);
        prop_assert_eq!(first.verdict, Verdict::Injected, "{:?}", first.faults);
        let again = inject(&with_istio(first.pod), &defaults(), NEW);
        let after = inject(&with_istio(pod), &defaults(), NEW);
        prop_assert_eq!(after.verdict, Verdict::Injected);
        let sorted = |pod: &Value| {
            let mut names = names(pod, "initContainers");
            names.sort();
            names
        };
        prop_assert_eq!(sorted(&again.pod), sorted(&after.pod));
        prop_assert_eq!(names(&again.pod, "containers"), names(&after.pod, "containers"));
        prop_assert_eq!(&again.pod["spec"]["volumes"], &after.pod["spec"]["volumes"]);
        let first_two = [names(&again.pod, "initContainers"), names(&after.pod, "initContainers")];
        for names in first_two {
            let at = |name: &str| names.iter().position(|it| it == name);
            prop_assert!(at("istio-proxy") < at("ratelease"), "{:?}", names);
        }
    }
}
