//! The sidecar's limit of CPU beside the limits of the other containers.

use super::*;

/// The sidecar's limit of CPU in a pod whose containers have these limits.
fn limit_beside(limits: [Value; 3], annotations: &[(&str, &str)]) -> Value {
    let mut pod = pod(annotations);
    pod["spec"]["initContainers"] = json!([{"name": "migrate"}]);
    let places = ["/spec/initContainers/0", "/spec/containers/0", "/spec/containers/1"];
    for (place, limit) in places.into_iter().zip(limits) {
        let container = pod.pointer_mut(place).unwrap();
        container["resources"] = json!({"limits": {"cpu": limit, "memory": "1Gi"}});
    }
    let made = inject(&pod, &defaults(), NEW);
    assert_eq!(faults(&made), [""; 0]);
    let sidecar = &made.pod["spec"]["initContainers"][0];
    assert_eq!(sidecar["name"], CONTAINER);
    sidecar["resources"]["limits"]["cpu"].clone()
}

#[test]
fn the_sidecar_has_a_limit_of_cpu_if_all_other_containers_have_one() {
    let texts = |limits: [&str; 3]| limits.map(Value::from);
    assert_eq!(limit_beside(texts(["100m", "1", "500m"]), &[]), "200m");
    assert_eq!(limit_beside([json!(0.5), json!(1), json!("1")], &[]), "200m", "in a manifest");
    for at in 0..3 {
        let mut limits = texts(["1"; 3]);
        limits[at] = Value::Null;
        assert_eq!(limit_beside(limits, &[]), Value::Null, "the container {at} has none");
    }
}

#[test]
fn the_limit_is_between_the_request_and_the_largest_limit_of_the_others() {
    let others = || ["50m", "0.15", "100m"].map(Value::from);
    assert_eq!(limit_beside(others(), &[]), "0.15", "a LimitRange may have a maximum");
    assert_eq!(limit_beside(others(), &[("cpu-request", "160m")]), "160m");
    let large = ["1"; 3].map(Value::from);
    assert_eq!(limit_beside(large, &[("cpu-request", "300m")]), "300m");
}

#[test]
fn an_annotation_decides_whatever_the_others_have() {
    for (others, limit, expected) in [
        ([json!("1"), json!("1"), json!("1")], "2", json!("2")),
        ([json!("1"), json!("1"), json!("1")], "none", Value::Null),
        ([Value::Null, Value::Null, Value::Null], "100m", json!("100m")),
        ([json!("1"), json!("1"), json!("1")], "auto", json!("200m")),
    ] {
        assert_eq!(limit_beside(others, &[("cpu-limit", limit)]), expected, "{limit}");
    }
    let made = inject(&pod(&[("cpu-limit", "all")]), &defaults(), NEW);
    let expected = "ratelease.io/cpu-limit: expected a quantity above 0, such as 20m or 64Mi, auto \
                    or none, found \"all\"; correct ratelease.io/cpu-limit, or remove it";
    assert_eq!(faults(&made), [expected]);
}
