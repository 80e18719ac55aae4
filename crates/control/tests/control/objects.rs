//! Rules that are objects of Kubernetes: what the API, other replicas and an API server that fails
//! do with them. scripts/test-kubernetes has those of a real API server, and their pods.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::pods::{Pod, RULES, channel, node};
use super::support::cluster::Cluster;
use super::support::{Call, Place, Process, Server, hourly, now, rule, wait_for};

/// After which what is refused is tried again in any case.
const FIRST_RETRY: Duration = Duration::from_secs(30);

fn spec(domain: &str, requests: u32) -> Value {
    json!({"domain": domain, "descriptors": [{"key": "user", "rate_limit": hourly(requests)}]})
}

/// A control plane that follows a cluster.
struct Scene {
    cluster: Cluster,
    place: Place,
    process: Process,
    token: String,
}

// === impl Scene ===

impl Scene {
    async fn begin(place: Place) -> Self {
        let cluster = Cluster::start(place.dir.path()).await;
        let process = Process::start_with(&place, &[], &cluster.env());
        let token = std::fs::read_to_string(place.token_file()).unwrap();
        Self { cluster, place, process, token }
    }

    async fn call(&self, call: Call<'_>) -> (u16, String) {
        let answer = call.token(&self.token).to(self.process.http).await.unwrap();
        (answer.status, answer.text)
    }

    /// The limit that is published for a domain, which has one rule; `None` without one.
    async fn published(&self, domain: &str) -> Option<u64> {
        let (_, versions) = self.call(Call::new("GET", "/v1/versions?limit=1")).await;
        let versions: Value = serde_json::from_str(&versions).unwrap();
        let version = versions["versions"][0]["version"].as_i64()?;
        let path = format!("/v1/export?domain={domain}&version={version}");
        let (status, text) = self.call(Call::new("GET", &path)).await;
        let line = text.lines().find_map(|it| it.trim().strip_prefix("requests_per_unit: "));
        line.filter(|_| status == 200)?.parse().ok()
    }

    async fn await_published(&self, domain: &str, limit: Option<u64>) {
        let is_there = async || (self.published(domain).await == limit).then_some(());
        wait_for(&format!("{limit:?} for {domain}"), is_there).await;
    }

    async fn restart(&mut self) {
        self.process.kill();
        self.process = Process::start_with(&self.place, &[], &self.cluster.env());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_the_draft_and_the_published_rules_of_its_domain() {
    let scene = Scene::begin(Place::sqlite()).await;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    scene.cluster.await_accepted("shop/limits", "Accepted").await;
    let (_, domains) = scene.call(Call::new("GET", "/v1/domains")).await;
    let domains: Value = serde_json::from_str(&domains).unwrap();
    let expected = json!([{"domain": "shop", "rules": 1, "is_changed": false,
        "object": "shop/limits", "approvals": 0}]);
    assert_eq!(domains["domains"], expected);
    let (_, versions) = scene.call(Call::new("GET", "/v1/versions")).await;
    assert!(versions.contains("\"reason\":\"RateLimitRules shop/limits\""), "{versions}");
    scene.cluster.delete("shop/limits");
    scene.await_published("shop", None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refusal_is_told_as_an_event_that_counts() {
    let scene = Scene::begin(Place::sqlite()).await;
    let faulty = |at: usize| json!({"domain": "shop", "descriptors": vec![json!({"key": ""}); at]});
    for at in 1..=2 {
        scene.cluster.apply("shop/limits", &faulty(at));
        wait_for("an Event", async || {
            let content = scene.cluster.content();
            content.told.values().any(|it| it["count"] == json!(at)).then_some(())
        })
        .await;
    }
    let content = scene.cluster.content();
    let told: Vec<_> = content.told.values().collect();
    let [event] = told[..] else { panic!("{told:?}") };
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("Invalid")));
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("spec.descriptors[1]"), "{message}");
    let of = &event["involvedObject"];
    assert_eq!((&of["kind"], &of["name"]), (&json!("RateLimitRules"), &json!("limits")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_changes_no_domain_of_an_object_until_objects_are_not_followed() {
    let mut scene = Scene::begin(Place::sqlite()).await;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    let calls = || {
        let file = b"domain: shop\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]\n";
        [
            Call::new("POST", "/v1/rules").json(&rule("shop", "user", "x", 9)),
            Call::new("POST", "/v1/import").body("application/yaml", file),
        ]
    };
    for call in calls() {
        let (status, text) = scene.call(call).await;
        assert_eq!(status, 409, "{text}");
        assert!(text.contains("RateLimitRules shop/limits"), "{text}");
    }
    // A roll back of all leaves it alone, and one that names it is refused.
    let bank = rule("bank", "user", "x", 9);
    let (status, text) = scene.call(Call::new("POST", "/v1/rules?publish=true").json(&bank)).await;
    assert_eq!(status, 201, "{text}");
    scene.cluster.apply("shop/limits", &spec("shop", 6));
    scene.await_published("shop", Some(6)).await;
    let back = |body: Value| Call::new("POST", "/v1/rollback").json(&body);
    let (status, text) = scene.call(back(json!({"version": 1, "domains": ["shop"]}))).await;
    assert_eq!(status, 409, "{text}");
    let (status, text) = scene.call(back(json!({"version": 1}))).await;
    assert!(status == 200 && text.contains("[\"bank\"]"), "{text}");
    assert_eq!(scene.published("shop").await, Some(6));
    // Without the setting the domain is the database's again with its first change.
    scene.process.kill();
    scene.process = Process::start(&scene.place, &[]);
    for call in calls() {
        let (status, text) = scene.call(call).await;
        assert!(status < 300, "{text}");
    }
    scene.restart().await;
    scene.cluster.await_accepted("shop/limits", "Conflicted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_fails_or_forgets_changes_nothing_until_all_is_listed() {
    let mut scene = Scene::begin(Place::sqlite()).await;
    let key = |at: usize| format!("shop/limits-{at}");
    for at in 0..60 {
        scene.cluster.apply(&key(at), &spec(&format!("shop.{at}"), 5));
    }
    for at in 0..60 {
        scene.cluster.await_accepted(&key(at), "Accepted").await;
    }
    // The second page of the next list fails, and all that follows.
    scene.cluster.content().pages_left = Some(1);
    scene.cluster.delete(&key(0));
    scene.await_published("shop.0", None).await;
    scene.cluster.forget();
    scene.restart().await;
    wait_for("a list", async || (scene.cluster.content().pages_left == Some(0)).then_some(()))
        .await;
    scene.cluster.delete(&key(1));
    scene.cluster.apply(&key(2), &spec("shop.2", 6));
    for at in 1..60 {
        assert_eq!(scene.published(&format!("shop.{at}")).await, Some(5), "{at}");
    }
    // The list is complete: what happened meanwhile is done.
    scene.cluster.content().pages_left = None;
    scene.await_published("shop.1", None).await;
    scene.await_published("shop.2", Some(6)).await;
    // A watch that is too old ends in a list too.
    let lists = scene.cluster.content().lists;
    scene.cluster.forget();
    wait_for("a list", async || (scene.cluster.content().lists > lists).then_some(())).await;
    scene.cluster.apply(&key(3), &spec("shop.3", 7));
    scene.await_published("shop.3", Some(7)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statuses_that_are_refused_hold_up_no_rules() {
    let scene = Scene::begin(Place::sqlite()).await;
    scene.cluster.content().refuses_statuses = true;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    wait_for("a status", async || (scene.cluster.content().statuses > 0).then_some(())).await;
    scene.cluster.apply("shop/limits", &spec("shop", 6));
    scene.await_published("shop", Some(6)).await;
    scene.cluster.content().refuses_statuses = false;
    scene.cluster.apply("shop/limits", &json!({"domain": "shop", "descriptors": [{}]}));
    scene.cluster.await_accepted("shop/limits", "Invalid").await;
    assert_eq!(scene.published("shop").await, Some(6));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_follows_the_objects_and_another_one_takes_over() {
    let mut scene = Scene::begin(Place::postgres().await).await;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    let second = Process::start_with(&scene.place, &[], &scene.cluster.env());
    scene.cluster.apply("shop/limits", &spec("shop", 6));
    scene.await_published("shop", Some(6)).await;
    assert_eq!(scene.cluster.content().lists, 1, "the second one does not follow them");
    scene.process.kill();
    scene.process = second;
    wait_for("a list", async || (scene.cluster.content().lists == 2).then_some(())).await;
    scene.cluster.apply("shop/limits", &spec("shop", 7));
    scene.await_published("shop", Some(7)).await;
}

/// A control plane whose namespaces have room for one object with 20 of these rules.
async fn begin_with_little_room() -> Scene {
    let place = Place::sqlite();
    let cluster = Cluster::start(place.dir.path()).await;
    let flags = ["--domain-bytes-max", "4000"];
    let process = Process::start_with(&place, &flags, &cluster.env());
    let token = std::fs::read_to_string(place.token_file()).unwrap();
    Scene { cluster, place, process, token }
}

fn large(domain: &str, count: usize) -> Value {
    let rule = |at| json!({"key": format!("{at:050}"), "rate_limit": hourly(5)});
    json!({"domain": domain, "descriptors": (0..count).map(rule).collect::<Vec<_>>()})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_has_used_its_share_is_refused_and_others_are_not() {
    let scene = begin_with_little_room().await;
    scene.cluster.apply("shop/first", &large("shop.1", 20));
    scene.cluster.await_accepted("shop/first", "Accepted").await;
    scene.cluster.apply("shop/second", &large("shop.2", 20));
    scene.cluster.apply("bank/limits", &spec("bank", 5));
    scene.cluster.await_accepted("shop/second", "Refused").await;
    scene.await_published("bank", Some(5)).await;
    scene.cluster.await_accepted("bank/limits", "Accepted").await;
    // It fits once it is smaller.
    scene.cluster.apply("shop/second", &large("shop.2", 2));
    scene.cluster.await_accepted("shop/second", "Accepted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_is_tried_when_an_object_of_its_namespace_shrinks_or_goes() {
    let scene = begin_with_little_room().await;
    let begun = now();
    scene.cluster.apply("shop/first", &large("shop.1", 20));
    scene.cluster.await_accepted("shop/first", "Accepted").await;
    // Its domain comes before the one that makes room.
    scene.cluster.apply("shop/second", &large("shop.0", 20));
    scene.cluster.await_accepted("shop/second", "Refused").await;
    scene.cluster.apply("shop/first", &large("shop.1", 2));
    scene.cluster.await_accepted("shop/second", "Accepted").await;
    scene.cluster.apply("shop/third", &large("shop.3", 20));
    scene.cluster.await_accepted("shop/third", "Refused").await;
    scene.cluster.delete("shop/second");
    scene.cluster.await_accepted("shop/third", "Accepted").await;
    assert!(begun.elapsed() < FIRST_RETRY, "it was tried as time passed: {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_nested_too_deep_stops_no_list_and_no_watch() {
    let mut scene = Scene::begin(Place::sqlite()).await;
    let deep = |levels: usize| json!({"domain": "shop", "descriptors": [{"key": format!("{levels} levels")}]});
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    // In a watch.
    for (levels, limit) in [(200, 6), (9000, 7)] {
        scene.cluster.apply("shop/limits", &deep(levels));
        scene.cluster.await_accepted("shop/limits", "Invalid").await;
        scene.cluster.apply("bank/limits", &spec("bank", limit));
        scene.await_published("bank", Some(u64::from(limit))).await;
    }
    // In a list.
    scene.restart().await;
    scene.cluster.apply("bank/limits", &spec("bank", 8));
    scene.await_published("bank", Some(8)).await;
    assert_eq!(scene.published("shop").await, Some(5), "what is in force stays");
    scene.cluster.apply("shop/limits", &spec("shop", 9));
    scene.await_published("shop", Some(9)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_after_an_event_that_cannot_be_read() {
    let scene = Scene::begin(Place::sqlite()).await;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    scene.cluster.send_unreadable();
    scene.cluster.apply("shop/limits", &spec("shop", 6));
    scene.await_published("shop", Some(6)).await;
    assert_eq!(scene.cluster.content().watches, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_too_long_for_an_index_is_refused_and_holds_up_no_others() {
    let scene = Scene::begin(Place::postgres().await).await;
    // Text that is hard to compress.
    let mut state = 1_u64;
    let long: String = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("{:08x}", state >> 32)
    })
    .take(1000)
    .collect();
    let descriptor = json!({"key": "user", "value": long, "rate_limit": hourly(5)});
    scene.cluster.apply("shop/limits", &json!({"domain": "shop", "descriptors": [descriptor]}));
    scene.cluster.apply("bank/limits", &spec("bank", 5));
    scene.await_published("bank", Some(5)).await;
    scene.cluster.await_accepted("shop/limits", "Refused").await;
    let call = Call::new("POST", "/v1/rules").json(&rule("of the database", "user", &long, 5));
    let (status, text) = scene.call(call).await;
    assert_eq!(status, 422, "{text}");
    assert!(text.contains("too long for an index") && text.contains("2700 bytes"), "{text}");
    scene.cluster.apply("shop/limits", &spec("shop", 6));
    scene.await_published("shop", Some(6)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_opens_again_counts_as_connected_without_a_list() {
    let scene = Scene::begin(Place::sqlite()).await;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    let await_connected = async |is_connected: u8| {
        let line = format!("ratelease_control_objects_connected {is_connected}");
        wait_for(&line, async || {
            let (_, text) = scene.call(Call::new("GET", "/metrics")).await;
            text.lines().any(|it| it == line).then_some(())
        })
        .await;
    };
    await_connected(1).await;
    scene.cluster.content().pages_left = Some(0);
    scene.cluster.apply("shop/limits", &spec("shop", 6));
    await_connected(0).await;
    scene.cluster.content().pages_left = None;
    await_connected(1).await;
    scene.await_published("shop", Some(6)).await;
    assert_eq!(scene.cluster.content().lists, 1);
}

/// A list without objects of another cluster, or of one that was made anew, removes no rules.
#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_on_the_database_changes_nothing_until_it_is_named() {
    let mut scene = Scene::begin(Place::sqlite()).await;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    scene.cluster.delete_silently("shop/limits");
    scene.cluster.content().uid = "two";
    scene.restart().await;
    scene.process.await_log("set CONTROL_KUBERNETES_CLUSTER=two").await;
    assert_eq!(scene.cluster.content().lists, 1, "its objects are not even read");
    assert_eq!(scene.published("shop").await, Some(5));
    scene.process.kill();
    let mut env = scene.cluster.env().to_vec();
    env.push(("CONTROL_KUBERNETES_CLUSTER", "two".to_owned()));
    scene.process = Process::start_with(&scene.place, &[], &env);
    scene.await_published("shop", None).await;
    // From now on it is the cluster of the database.
    scene.cluster.content().uid = "one";
    scene.restart().await;
    scene.process.await_log("set CONTROL_KUBERNETES_CLUSTER=one").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_definition_is_named_with_its_cure() {
    let place = Place::sqlite();
    let cluster = Cluster::start(place.dir.path()).await;
    cluster.content().is_undefined = true;
    let process = Process::start_with(&place, &[], &cluster.env());
    process.await_log("kubectl apply -f deploy/helm/ratelease/crds").await;
}

/// A [`Server`] has no objects to follow, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_say_which_replica_follows_objects() {
    let scene = Scene::begin(Place::sqlite()).await;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.cluster.apply("shop/other", &spec("bank", 5));
    let lines = [
        "ratelease_control_objects_connected 1",
        "ratelease_control_objects{state=\"accepted\"} 1",
        "ratelease_control_objects{state=\"refused\"} 1",
    ];
    wait_for("the metrics", async || {
        let (_, text) = scene.call(Call::new("GET", "/metrics")).await;
        lines.iter().all(|line| text.lines().any(|it| it == *line)).then_some(())
    })
    .await;
    let server: Server = Place::sqlite().serve().await;
    let text = server.get("/metrics").await.text;
    assert!(text.contains("ratelease_control_objects_connected 0"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_with_a_rollout_goes_to_some_pods_first() {
    let scene = Scene::begin(Place::sqlite()).await;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    let gradual = |requests: u32, steps: Value| {
        let mut spec = spec("shop", requests);
        spec["rollout"] = json!({"steps": steps});
        spec
    };
    let waits = json!([{"stage": "enforced", "percent": 50}]);
    scene.cluster.apply("shop/limits", &gradual(3, waits.clone()));
    scene.cluster.await_reason("shop/limits", "Programmed", "RollingOut").await;
    let message = scene.cluster.message("shop/limits", "Programmed");
    assert!(message.contains("rollout 1 is at step 1 of 1, enforced 50 %"), "{message}");
    assert!(message.contains("waits for a call of /advance"), "{message}");
    assert_eq!(scene.published("shop").await, Some(5), "it is not published");
    // Another change takes its place.
    scene.cluster.apply("shop/limits", &gradual(4, waits));
    let begun = async || {
        let message = scene.cluster.message("shop/limits", "Programmed");
        message.contains("rollout 2 is at step 1").then_some(())
    };
    wait_for("the second rollout", begun).await;
    let (_, first) = scene.call(Call::new("GET", "/v1/rollouts/1")).await;
    assert!(first.contains("\"stage\":\"aborted\""), "{first}");
    // A person takes the last step.
    let body = json!({"force": true});
    let (status, text) = scene.call(Call::new("POST", "/v1/rollouts/2/advance").json(&body)).await;
    assert_eq!(status, 200, "{text}");
    scene.await_published("shop", Some(4)).await;
    scene.cluster.await_accepted("shop/limits", "Accepted").await;
    // A change that was aborted is not tried again.
    scene.cluster.apply("shop/limits", &gradual(2, json!([{"percent": 50}])));
    scene.cluster.await_reason("shop/limits", "Programmed", "RollingOut").await;
    let (status, _) = scene.call(Call::new("POST", "/v1/rollouts/3/abort")).await;
    assert_eq!(status, 200);
    scene.cluster.await_reason("shop/limits", "Stalled", "RolledBack").await;
    assert_eq!(scene.published("shop").await, Some(4));
    // Without the field all pods get it.
    scene.cluster.apply("shop/limits", &spec("shop", 2));
    scene.await_published("shop", Some(2)).await;
    let mut faulty = spec("shop", 2);
    faulty["rollout"] = json!({"pods": {"percent": 0}});
    scene.cluster.apply("shop/limits", &faulty);
    scene.cluster.await_reason("shop/limits", "Accepted", "Invalid").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_refused_leaves_the_rollout_before_it_under_way() {
    let scene = begin_with_little_room().await;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    let gradual = |mut spec: Value| {
        spec["rollout"] = json!({"steps": [{"stage": "enforced", "percent": 50}]});
        spec
    };
    let stage = async |id: u8| {
        let (_, text) = scene.call(Call::new("GET", &format!("/v1/rollouts/{id}"))).await;
        serde_json::from_str::<Value>(&text).unwrap()["stage"].as_str().map(str::to_owned)
    };
    scene.cluster.apply("shop/limits", &gradual(spec("shop", 3)));
    scene.cluster.await_reason("shop/limits", "Programmed", "RollingOut").await;
    for refused in [gradual(large("shop", 60)), large("shop", 60)] {
        scene.cluster.apply("shop/limits", &refused);
        scene.cluster.await_accepted("shop/limits", "Refused").await;
        assert_eq!(stage(1).await.as_deref(), Some("enforced"));
        // The change before it is again what the object says.
        scene.cluster.apply("shop/limits", &gradual(spec("shop", 3)));
        scene.cluster.await_reason("shop/limits", "Programmed", "RollingOut").await;
    }
    let advance = Call::new("POST", "/v1/rollouts/1/advance").json(&json!({"force": true}));
    let (status, text) = scene.call(advance).await;
    assert_eq!(status, 200, "{text}");
    scene.await_published("shop", Some(3)).await;
    scene.cluster.await_accepted("shop/limits", "Accepted").await;
    // One that goes back to what is in force ends with that, and leaves no rollout.
    scene.cluster.apply("shop/limits", &gradual(spec("shop", 7)));
    scene.cluster.await_reason("shop/limits", "Programmed", "RollingOut").await;
    scene.cluster.apply("shop/limits", &gradual(spec("shop", 3)));
    wait_for("the end of the rollout", async || {
        (stage(2).await.as_deref() == Some("aborted")).then_some(())
    })
    .await;
    scene.cluster.await_reason("shop/limits", "Stalled", "Accepted").await;
    assert_eq!(scene.published("shop").await, Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_neither_ends_nor_tells_of_a_rollout_of_others() {
    let scene = Scene::begin(Place::sqlite()).await;
    scene.cluster.apply("shop/limits", &spec("shop", 5));
    scene.await_published("shop", Some(5)).await;
    let gradual = |requests: u32| {
        let mut spec = spec("shop", requests);
        spec["rollout"] = json!({"steps": [{"stage": "enforced", "percent": 50}]});
        spec
    };
    let post = async |path: &str, body: &Value| {
        let (status, text) = scene.call(Call::new("POST", path).json(body)).await;
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    scene.cluster.apply("shop/limits", &gradual(3));
    scene.cluster.await_reason("shop/limits", "Programmed", "RollingOut").await;
    assert_eq!(post("/v1/rollouts/1/abort", &json!({})).await.0, 200);
    scene.cluster.await_reason("shop/limits", "Stalled", "RolledBack").await;
    assert_eq!(post("/v1/rules", &rule("bank", "user", "x", 9)).await.0, 201);
    // The change of the object that was aborted is in no rollout that names no domains.
    let begin = json!({"pods": {"percent": 10}, "stage": "enforced"});
    let (status, rollout) = post("/v1/rollouts", &begin).await;
    assert_eq!((status, &rollout["domains"]), (201, &json!(["bank"])), "{rollout}");
    assert_eq!(post("/v1/rollouts/2/abort", &json!({})).await.0, 200);
    let mut both = begin.clone();
    both["domains"] = json!(["bank", "shop"]);
    let (status, rollout) = post("/v1/rollouts", &both).await;
    assert_eq!(status, 201, "{rollout}");
    scene.cluster.await_reason("shop/limits", "Programmed", "RollingOut").await;
    let message = scene.cluster.message("shop/limits", "Programmed");
    assert!(message.contains("rollout 3 is at step 1") && !message.contains("bank"), "{message}");
    scene.cluster.apply("shop/limits", &gradual(4));
    scene.cluster.await_accepted("shop/limits", "Refused").await;
    let (_, text) = scene.call(Call::new("GET", "/v1/rollouts/3")).await;
    assert!(text.contains("\"stage\":\"enforced\""), "{text}");
}

/// What kstatus says of objects, as lines `NAMESPACE/NAME STATUS: MESSAGE`: the library by which Flux
/// judges health. It is a part of the program that scripts/test makes of `tests/control_plane`.
fn kstatus(objects: &[Value]) -> Vec<String> {
    let program = std::env::var("CONTROL_PLANE_BIN")
        .expect("CONTROL_PLANE_BIN names tests/control_plane as built: run scripts/test");
    let mut command = Command::new(program);
    let command = command.arg("kstatus").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let input = serde_json::to_vec(objects).unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn flux_takes_no_object_that_is_refused_for_current() {
    let scene = begin_with_little_room().await;
    let cluster = &scene.cluster;
    let bank = rule("mine", "user", "x", 9);
    let (status, text) = scene.call(Call::new("POST", "/v1/rules?publish=true").json(&bank)).await;
    assert_eq!(status, 201, "{text}");
    cluster.apply("good/limits", &spec("good", 5));
    scene.await_published("good", Some(5)).await;
    let channel = channel(scene.process.pods).await;
    let mut pod = Pod::over(channel, node("one", "ratelease"), &[RULES]).await;
    let set = pod.next().await;
    pod.accept(&set).await;
    let programmed = async |expected: (&str, &str)| {
        let is = async || {
            let (status, reason) = cluster.condition("good/limits", "Programmed").await;
            ((&*status, &*reason) == expected).then_some(())
        };
        wait_for(&format!("Programmed {expected:?}"), is).await;
    };
    programmed(("True", "Programmed")).await;
    cluster.apply("invalid/limits", &json!({"domain": "invalid", "descriptors": [{}]}));
    cluster.apply("second/limits", &spec("good", 5));
    cluster.apply("mine/limits", &spec("mine", 5));
    cluster.apply("foreign/limits", &spec("elsewhere", 5));
    cluster.apply("large/limits", &large("large", 60));
    let reasons = [
        ("good", "Accepted"),
        ("invalid", "Invalid"),
        ("second", "DomainNotAllowed"),
        ("mine", "Conflicted"),
        ("foreign", "DomainNotAllowed"),
        ("large", "Refused"),
    ];
    for (namespace, reason) in reasons {
        cluster.await_accepted(&format!("{namespace}/limits"), reason).await;
    }
    let objects = || cluster.content().objects.values().cloned().collect::<Vec<_>>();
    let judged = kstatus(&objects());
    assert_eq!(judged.len(), reasons.len(), "{judged:?}");
    for line in &judged {
        let is_good = line.starts_with("good/limits ");
        let expected = if is_good { " Current: " } else { " Failed: " };
        assert!(line.contains(expected), "{line}");
    }
    // What the control plane accepts, and a pod refuses.
    cluster.apply("good/limits", &spec("good", 6));
    let set = pod.next().await;
    pod.refuse(&set, "no room").await;
    programmed(("False", "RefusedByPods")).await;
    let judged = kstatus(&objects());
    assert!(judged.iter().all(|line| !line.contains("Current")), "{judged:?}");
}
