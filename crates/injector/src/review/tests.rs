//! Reviews and their answers.

use super::*;
use crate::inject::NativeSidecars;

const NEW: Cluster = Cluster { native_sidecars: NativeSidecars::OnAllNodes };

fn defaults() -> Defaults {
    Defaults::read(&["redis=redis:6379".into(), "rules=shop-rules".into()]).unwrap()
}

fn asked(object: Value) -> Value {
    json!({
        "apiVersion": VERSION,
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "shop",
            "operation": "CREATE",
            "object": object,
        },
    })
}

fn pod() -> Value {
    json!({"metadata": {"generateName": "web-"}, "spec": {"containers": [{"name": "envoy"}]}})
}

fn answered(review: &Value, reason: Reason) -> Answer {
    answer(review.to_string().as_bytes(), reason, &defaults(), NEW).unwrap()
}

/// The pod after the patch of an answer.
fn patched(mut pod: Value, answer: &Answer) -> Value {
    let Some(patch) = answer.review["response"]["patch"].as_str() else { return pod };
    assert_eq!(answer.review["response"]["patchType"], "JSONPatch");
    let patch: json_patch::Patch =
        serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

#[test]
fn a_new_pod_is_patched() {
    let answer = answered(&asked(pod()), Reason::Namespace);
    assert_eq!(answer.verdict, Some(Verdict::Injected));
    assert_eq!(answer.pod, "shop/web-");
    let response = &answer.review["response"];
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-1"), &json!(true)));
    assert_eq!(answer.review["apiVersion"], VERSION);
    assert_eq!(patched(pod(), &answer)["spec"]["initContainers"][0]["name"], "ratelease");
    let again = answered(&asked(patched(pod(), &answer)), Reason::Namespace);
    assert_eq!(again.verdict, Some(Verdict::Kept));
    assert!(again.review["response"]["patch"].is_null());
}

#[test]
fn a_dry_run_has_the_same_answer() {
    let mut review = asked(pod());
    review["request"]["dryRun"] = true.into();
    let dry = answered(&review, Reason::Namespace);
    assert!(dry.is_dry_run);
    assert_eq!(dry.review, answered(&asked(pod()), Reason::Namespace).review);
}

#[test]
fn a_faulty_pod_is_admitted_with_the_reason_in_a_warning() {
    let mut pod = pod();
    pod["metadata"]["annotations"] =
        json!({"ratelease.io/rules": "git:x", "ratelease.io/env": "x"});
    let answer = answered(&asked(pod.clone()), Reason::Namespace);
    assert_eq!(answer.review["response"]["allowed"], true);
    assert_eq!(answer.warnings.len(), 2);
    assert!(answer.warnings.iter().all(|it| it.starts_with("ratelease: not injected: ")));
    let after = patched(pod.clone(), &answer);
    assert_eq!(after["spec"], pod["spec"]);
    let status = after["metadata"]["annotations"][STATUS].as_str().unwrap();
    assert!(
        status.starts_with("not injected: ratelease.io/rules: unknown source of rules \"git\"")
    );
}

#[test]
fn a_pod_whose_namespace_has_no_label_gets_the_command_that_labels_it() {
    let answer = answered(&asked(pod()), Reason::PodAlone);
    assert_eq!(answer.verdict, Some(Verdict::Refused));
    let expected = "ratelease: not injected: namespace shop: has no label \
                    ratelease.io/injection=enabled; kubectl label namespace shop \
                    ratelease.io/injection=enabled";
    assert_eq!(answer.warnings, [expected]);
}

#[test]
fn what_is_no_new_pod_is_admitted_as_it_is() {
    for (field, value) in [
        ("operation", json!("UPDATE")),
        ("subResource", json!("ephemeralcontainers")),
        ("resource", json!({"group": "apps", "version": "v1", "resource": "deployments"})),
        ("resource", json!(7)),
    ] {
        let mut review = asked(pod());
        review["request"][field] = value;
        let answer = answered(&review, Reason::Namespace);
        let expected = json!({"uid": "u-1", "allowed": true});
        assert_eq!((answer.verdict, &answer.review["response"]), (None, &expected), "{field}");
    }
}

#[test]
fn another_version_is_answered_in_that_version() {
    let mut review = asked(pod());
    review["apiVersion"] = "admission.k8s.io/v1beta1".into();
    let answer = answered(&review, Reason::Namespace);
    assert_eq!(answer.review["apiVersion"], "admission.k8s.io/v1beta1");
    assert_eq!(answer.review["response"]["allowed"], true);
    let expected = "ratelease: not injected: the webhook: an AdmissionReview of \
                    admission.k8s.io/v1 is expected, this is admission.k8s.io/v1beta1; put \
                    \"admission.k8s.io/v1\" into admissionReviewVersions";
    assert_eq!(answer.warnings, [expected]);
}

#[test]
fn a_review_of_3_mb_is_admitted_without_the_sidecar() {
    let mut pod = pod();
    pod["metadata"]["annotations"] = json!({"big": "x".repeat(3_000_000)});
    let answer = answered(&asked(pod), Reason::Namespace);
    assert_eq!(answer.review["response"]["allowed"], true);
    assert!(answer.review["response"]["patch"].is_null());
    assert!(answer.warnings[0].contains("bytes, more than 524288; make it smaller"));
}

#[test]
fn what_has_no_uid_is_no_review() {
    for (body, expected) in [
        ("", "expected an AdmissionReview with a request: EOF"),
        ("[]", "expected an AdmissionReview with a request: "),
        (r#"{"apiVersion": "v1", "kind": "Pod"}"#, "expected an AdmissionReview with a request: "),
        (
            r#"{"apiVersion": "v1", "kind": "Pod", "request": {"uid": "1"}}"#,
            "expected kind AdmissionReview, found \"Pod\"",
        ),
    ] {
        let error = answer(body.as_bytes(), Reason::Namespace, &defaults(), NEW).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(answer(deep.as_bytes(), Reason::Namespace, &defaults(), NEW).is_err());
}

#[test]
fn what_a_client_sent_is_quoted_in_part() {
    let long = "x".repeat(100_000);
    for (field, value) in [("kind", json!(long)), ("request", json!({"uid": long}))] {
        let mut review = asked(pod());
        review[field] = value;
        let body = review.to_string();
        let error = answer(body.as_bytes(), Reason::Namespace, &defaults(), NEW).unwrap_err();
        assert!(error.len() < 200, "{}", error.len());
    }
    let mut review = asked(json!({"metadata": {"name": long}}));
    review["request"]["namespace"] = long.clone().into();
    for reason in [Reason::Namespace, Reason::PodAlone] {
        let answer = answered(&review, reason);
        assert!(answer.pod.len() < 200 && answer.review.to_string().len() < 2000);
    }
    review["apiVersion"] = long.into();
    assert!(answered(&review, Reason::Namespace).review.to_string().len() < 1000);
}

#[test]
fn a_pod_that_has_the_sidecar_stays_as_it_is_where_no_label_asks_for_it() {
    let injected = patched(pod(), &answered(&asked(pod()), Reason::Namespace));
    let again = answered(&asked(injected), Reason::PodAlone);
    assert_eq!(again.verdict, Some(Verdict::Kept));
    assert!(again.review["response"]["patch"].is_null() && again.warnings.is_empty());
}

#[test]
fn long_warnings_are_cut_at_a_character() {
    let cut = shortened(&"é".repeat(300));
    assert!(cut.len() <= WARNING_MAX && cut.ends_with("(annotation ratelease.io/status)"));
    assert_eq!(shortened("short"), "short");
}
