//! Gradual change: rules that some real pods enforce before the others.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{SOON, call, has_limit, spawn};
use crate::support::control::Control;
use crate::support::now;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::Connection;

/// Four pods.
const PODS: [&str; 4] = ["pod-0", "pod-1", "pod-2", "pod-3"];

/// How long all pods may take to go back after the hits that exceed the bound, on a machine that
/// also compiles. Reports come each second.
const BACK_MAX: Duration = Duration::from_secs(15);

/// A limit that no test reaches.
const FAR: u32 = 1_000_000;

/// A pod, and a connection to it.
struct Pod {
    pod: Ratelease,
    connection: Connection,
    is_chosen: bool,
    _dir: TempDir,
}

impl Pod {
    /// Sends a request. Returns whether it is denied.
    async fn denies(&self) -> bool {
        let reply = call(&self.connection, "shop", "user").await;
        reply.is_over_limit().unwrap_or_else(|| panic!("{reply:?}"))
    }
}

fn limit(requests: u32) -> Value {
    let rate_limit = json!({"unit": "year", "requests_per_unit": requests});
    json!({"domain": "shop", "entries": [{"key": "user"}], "rate_limit": rate_limit})
}

/// Publishes a limit, and makes one of 2, that all reach, the draft.
async fn prepare(control: &Control, published: u32) {
    let added = control.call("POST", "/v1/rules?publish=true", &limit(published)).await;
    let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
    let change = json!({"rate_limit": limit(2)["rate_limit"]});
    control.call("PUT", &path, &change).await;
}

/// Starts the pods, each of which counts by itself. None is chosen.
async fn pods(control: &Control) -> Vec<Pod> {
    let mut pods = Vec::new();
    let server = control.pods.to_string();
    let spawned = PODS.map(|id| {
        let env = [("CONFIG_GRPC_XDS_RATELEASE", "true"), ("CONFIG_GRPC_XDS_NODE_ID", id)];
        spawn(&server, &env)
    });
    for (pod, dir) in spawned {
        pod.ready().await;
        let connection = Connection::open(pod.grpc).await;
        pods.push(Pod { pod, connection, is_chosen: false, _dir: dir });
    }
    control.lists(PODS.len()).await;
    pods
}

/// Notes which of the pods the rollout has chosen: it draws them.
async fn note_chosen(control: &Control, pods: &mut [Pod]) {
    let list = control.call("GET", "/v1/pods", &Value::Null).await;
    let is_chosen = |id: &str| {
        let mut rows = list["pods"].as_array().unwrap().iter();
        rows.any(|it| it["node"] == id && it["rollouts"] == json!([1]))
    };
    for (id, pod) in PODS.iter().zip(pods) {
        pod.is_chosen = is_chosen(id);
    }
}

async fn rollout(control: &Control) -> Value {
    control.call("GET", "/v1/rollouts/1", &Value::Null).await
}

/// Waits until each pod runs the rollout's version, and reports. For half a minute after a control
/// plane is killed, the pods that it had are shown too, with the version that they had.
async fn all_run(control: &Control) {
    let run = async || {
        let shown = rollout(control).await;
        let is_ready = |group: &Value| {
            group["current"].as_u64().is_some_and(|it| it >= 2) && group["without_reports"] == 0
        };
        is_ready(&shown["pods"]["chosen"]) && is_ready(&shown["pods"]["others"])
    };
    control.process.until("two pods of each group", 2 * SOON, run).await;
}

/// Sends requests until the hits of both groups are as `is` wants them. Returns the rollout, and
/// the number of requests to the chosen pods.
async fn hits(control: &Control, pods: &[Pod], is: impl Fn(&Value) -> bool) -> (Value, u64) {
    let (end, mut sent) = (now() + 2 * SOON, 0);
    loop {
        for pod in pods {
            pod.denies().await;
            sent += u64::from(pod.is_chosen);
        }
        let shown = rollout(control).await;
        if is(&shown["domains"][0]) {
            return (shown, sent);
        }
        assert!(now() < end, "hits that are not reported: {shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until no pod denies. Returns when that was.
async fn none_denies(pods: &[Pod]) -> Instant {
    for pod in pods {
        let passes = async || !pod.denies().await;
        pod.pod.process.until("a request that passes", SOON, passes).await;
    }
    now()
}

#[tokio::test]
async fn exactly_the_chosen_pods_enforce_a_rollout_and_all_go_back_above_its_bound() {
    let control = Control::start().await;
    prepare(&control, FAR).await;
    let mut pods = pods(&control).await;
    let body = json!({"pods": {"percent": 50}, "bound": {"denied_share": 0.5, "hits_min": 40}});
    control.call("POST", "/v1/rollouts?reason=tighter", &body).await;
    all_run(&control).await;
    note_chosen(&control, &mut pods).await;
    assert_eq!(pods.iter().filter(|it| it.is_chosen).count(), 2);
    let is_counted = |domain: &Value| {
        let count = |group: &str, name: &str| domain[group][name].as_u64().unwrap();
        count("chosen", "shadow_denied") > 0 && count("others", "hits") > 0
    };
    let (shown, sent) = hits(&control, &pods, is_counted).await;
    let domain = &shown["domains"][0];
    assert_eq!((&domain["chosen"]["denied"], &domain["others"]["denied"]), (&json!(0), &json!(0)));
    assert_eq!(domain["others"]["shadow_denied"], 0, "{shown}");
    assert!(domain["chosen"]["hits"].as_u64().unwrap() <= sent, "{sent}: {shown}");

    // The control plane is killed and comes back: the rollout goes on, and no hit counts twice.
    let control = control.restart().await;
    all_run(&control).await;
    let before = rollout(&control).await["domains"][0]["chosen"]["hits"].as_u64().unwrap();
    let more = |domain: &Value| domain["chosen"]["hits"].as_u64().unwrap() > before;
    let (shown, sent_later) = hits(&control, &pods, more).await;
    let total = shown["domains"][0]["chosen"]["hits"].as_u64().unwrap();
    assert!(total <= sent + sent_later, "{total} of {sent} and {sent_later}: {shown}");

    let body = json!({"stage": "enforced", "force": true});
    control.call("POST", "/v1/rollouts/1/advance", &body).await;
    all_run(&control).await;
    for pod in &pods {
        let denied = [pod.denies().await, pod.denies().await, pod.denies().await];
        assert_eq!(denied[2], pod.is_chosen, "{denied:?}");
    }
    // Above the bound: all go back.
    let mut denied = 0;
    let end = now() + 2 * SOON;
    let began = now();
    while rollout(&control).await["stage"] == "enforced" {
        for pod in pods.iter().filter(|it| it.is_chosen) {
            denied += u32::from(pod.denies().await);
        }
        assert!(now() < end, "{denied} hits were denied, and the rollout goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let rolled_back = now();
    let back = none_denies(&pods).await;
    eprintln!(
        "{denied} hits were denied: rolled back after {:?}, all pods back {:?} later",
        rolled_back - began,
        back - rolled_back
    );
    assert!(back - began < BACK_MAX, "{:?}", back - began);
    let shown = rollout(&control).await;
    assert_eq!(shown["stage"], "rolled_back", "{shown}");
    assert_eq!(shown["steps"][2]["author"], "rollout", "{shown}");
    for pod in pods {
        assert_eq!(pod.pod.count("xds_refused"), 0);
        assert_eq!(pod.pod.stop().await, 0);
    }
}

#[tokio::test]
async fn in_shadow_the_limit_in_force_still_denies_and_the_draft_only_counts() {
    const LIMIT: u32 = 1000;
    let control = Control::start().await;
    prepare(&control, LIMIT).await;
    let env = [("CONFIG_GRPC_XDS_RATELEASE", "true")];
    let (pod, dir) = spawn(&control.pods.to_string(), &env);
    pod.ready().await;
    let connection = Connection::open(pod.grpc).await;
    let pod = Pod { pod, connection, is_chosen: true, _dir: dir };
    control.call("POST", "/v1/rollouts", &json!({"pods": {"percent": 100}})).await;
    let is_current = async || {
        let chosen = rollout(&control).await["pods"]["chosen"].clone();
        chosen["current"] == 1 && chosen["without_reports"] == 0
    };
    control.process.until("the pod in shadow", 2 * SOON, is_current).await;
    // Reports count from the second one of the step on.
    let pods = [pod];
    let is_counted = |domain: &Value| domain["chosen"]["hits"].as_u64().unwrap() > 0;
    let (_, sent) = hits(&control, &pods, is_counted).await;
    assert!(sent < u64::from(LIMIT), "all of these passed: {sent}");
    let [pod] = pods;
    let mut passed = sent;
    for _ in sent..u64::from(2 * LIMIT) {
        passed += u64::from(!pod.denies().await);
    }
    assert_eq!(passed, u64::from(LIMIT), "the limit in force, no more and no less");
    let has_all = async || rollout(&control).await["domains"][0]["chosen"]["denied"] == LIMIT;
    control.process.until("all denials", 2 * SOON, has_all).await;
    let shown = rollout(&control).await;
    let chosen = &shown["domains"][0]["chosen"];
    // Two pass, and those are left out that came while the store was asked.
    let would_be = chosen["shadow_denied"].as_u64().unwrap();
    eprintln!("{would_be} of {} hits would be denied", 2 * LIMIT);
    assert!((u64::from(LIMIT)..=u64::from(2 * LIMIT) - 2).contains(&would_be), "{shown}");
    assert_eq!(pod.pod.count("xds_refused"), 0);
    assert_eq!(pod.pod.stop().await, 0);
}

#[tokio::test]
async fn a_rollout_goes_to_all_pods_and_one_that_joins_belongs_to_its_group() {
    let control = Control::start().await;
    prepare(&control, FAR).await;
    let label = json!({"label": {"key": "zone", "value": "a"}});
    let body = json!({"pods": label, "stage": "enforced"});
    control.call("POST", "/v1/rollouts", &body).await;
    let server = control.pods.to_string();
    let mut pods = Vec::new();
    for zone in ["zone=a", "zone=b"] {
        let env = [("CONFIG_GRPC_XDS_RATELEASE", "true"), ("CONFIG_GRPC_XDS_NODE_METADATA", zone)];
        let (pod, dir) = spawn(&server, &env);
        pod.ready().await;
        let connection = Connection::open(pod.grpc).await;
        pods.push(Pod { pod, connection, is_chosen: zone == "zone=a", _dir: dir });
    }
    for pod in &pods {
        // Rule files come after the empty set of the other type.
        let is_limited = async || has_limit(&pod.connection, "shop", "user").await;
        pod.pod.process.until("limiting users", SOON, is_limited).await;
        let denied = [pod.denies().await, pod.denies().await, pod.denies().await];
        assert_eq!(denied[2], pod.is_chosen, "{denied:?}");
    }
    let body = json!({"stage": "all", "force": true}); // the pods have just connected
    control.call("POST", "/v1/rollouts/1/advance", &body).await;
    for pod in &pods {
        let denies = async || pod.denies().await;
        pod.pod.process.until("a request that is denied", SOON, denies).await;
    }
    for pod in pods {
        assert_eq!(pod.pod.stop().await, 0);
    }
}
