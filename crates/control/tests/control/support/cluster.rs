//! A stand-in for a Kubernetes API server that serves one kind of object, and fails on request.
//! scripts/test-kubernetes makes the same calls of a real one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use axum::body::{Body, Bytes};
use axum::extract::{Path as At, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use axum::{Json, Router};
use futures_util::stream;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::wait_for;

const NAMESPACE: &str = "/api/v1/namespaces/kube-system";
const EVENTS: &str = "/api/v1/namespaces/{namespace}/events";
const EVENT: &str = "/api/v1/namespaces/{namespace}/events/{name}";
const LIST: &str = "/apis/ratelease.io/v1alpha1/ratelimitrules";
const STATUS: &str =
    "/apis/ratelease.io/v1alpha1/namespaces/{namespace}/ratelimitrules/{name}/status";

/// The server, which ends with this.
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    kubeconfig: PathBuf,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Content>,
    changed: watch::Sender<usize>,
}

/// What it has, and how it fails.
#[derive(Default)]
pub(crate) struct Content {
    pub(crate) objects: BTreeMap<String, Value>,
    /// A line of a watch for each version.
    events: Vec<String>,
    /// The first version that watches may begin after.
    oldest: usize,
    /// Lists and watches that began.
    pub(crate) lists: usize,
    pub(crate) watches: usize,
    /// Pages of lists that are answered before all further calls fail, and watches end.
    pub(crate) pages_left: Option<usize>,
    /// Writes of statuses, and whether they fail.
    pub(crate) statuses: usize,
    pub(crate) refuses_statuses: bool,
    /// The cluster that it is of.
    pub(crate) uid: &'static str,
    /// The Events of objects, by their names.
    pub(crate) told: BTreeMap<String, Value>,
    /// Whether the definition of the objects is missing.
    pub(crate) is_undefined: bool,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Cluster ===

impl Cluster {
    pub(crate) async fn start(dir: &Path) -> Self {
        let shared = Arc::<Shared>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route(LIST, get(list)).route(STATUS, patch(write_status));
        let routes = routes.route(NAMESPACE, get(namespace));
        let routes = routes.route(EVENTS, post(create_event));
        let routes = routes.route(EVENT, get(read_event).patch(patch_event));
        let routes = routes.with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        shared.state.lock().unwrap().uid = "one";
        let kubeconfig = dir.join("kubeconfig");
        std::fs::write(&kubeconfig, config(address).to_string()).unwrap();
        Self { shared, kubeconfig, task }
    }

    /// The environment of a process that follows it.
    pub(crate) fn env(&self) -> [(&'static str, String); 2] {
        let path = self.kubeconfig.display().to_string();
        [("KUBECONFIG", path), ("CONTROL_KUBERNETES_RULES", "true".to_owned())]
    }

    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        self.shared.state.lock().unwrap()
    }

    /// Makes or changes an object `NAMESPACE/NAME`. Those that are made first are older.
    pub(crate) fn apply(&self, key: &str, spec: &Value) {
        let mut content = self.content();
        let (namespace, name) = key.split_once('/').unwrap();
        let age = content.events.len();
        let mut object = content.objects.get(key).cloned().unwrap_or_else(|| {
            json!({"apiVersion": "ratelease.io/v1alpha1", "kind": "RateLimitRules", "metadata": {
                "namespace": namespace, "name": name, "uid": format!("{key}-{age}"),
                "generation": 0,
                "creationTimestamp": format!("2026-11-26T10:{:02}:{:02}Z", age / 60 % 60, age % 60),
            }})
        });
        object["spec"] = spec.clone();
        let fields = json!({"f:spec": {"f:descriptors": {}, "f:domain": {}}});
        object["metadata"]["managedFields"] = json!([{"manager": "test", "fieldsV1": fields}]);
        let generation = object["metadata"]["generation"].as_i64().unwrap();
        object["metadata"]["generation"] = (generation + 1).into();
        self.shared.put(&mut content, key, object);
    }

    pub(crate) fn delete(&self, key: &str) {
        let mut content = self.content();
        let object = content.objects.remove(key).unwrap();
        self.shared.note(&mut content, "DELETED", object);
    }

    /// Deletes an object without an event, as if it never was.
    #[allow(dead_code)] // of the tests of objects only
    pub(crate) fn delete_silently(&self, key: &str) {
        self.content().objects.remove(key).unwrap();
    }

    /// Sends a line that is no event that can be read.
    pub(crate) fn send_unreadable(&self) {
        self.shared.send(&mut self.content(), "{\"type\":\"ADDED\",\"object\":{\"metadata\":7}}");
    }

    /// Forgets all events: watches end, and must begin with a list.
    pub(crate) fn forget(&self) {
        let mut content = self.content();
        // A version that no watch has seen.
        content.events.push(String::new());
        content.oldest = content.events.len();
        self.shared.changed.send_replace(content.events.len());
    }

    /// The status and the reason of a condition, once it is about the present generation.
    pub(crate) async fn condition(&self, key: &str, kind: &str) -> (String, String) {
        let found = async || {
            let object = self.content().objects.get(key).cloned()?;
            let conditions = object["status"]["conditions"].as_array()?;
            let one = conditions.iter().find(|it| it["type"] == kind)?;
            let text = |name: &str| one[name].as_str().unwrap().to_owned();
            let is_new = one["observedGeneration"] == object["metadata"]["generation"];
            is_new.then(|| (text("status"), text("reason")))
        };
        wait_for(&format!("{kind} of {key}"), found).await
    }

    /// Waits until an object is accepted, or refused, for this reason.
    pub(crate) async fn await_accepted(&self, key: &str, reason: &str) {
        self.await_reason(key, "Accepted", reason).await;
    }

    /// Waits until a condition has this reason.
    pub(crate) async fn await_reason(&self, key: &str, kind: &str, reason: &str) {
        let what = format!("{key} is {reason}");
        wait_for(&what, async || (self.condition(key, kind).await.1 == reason).then_some(())).await;
    }

    /// The message of a condition; empty without one.
    #[allow(dead_code)] // of the tests of objects only
    pub(crate) fn message(&self, key: &str, kind: &str) -> String {
        let content = self.content();
        let conditions = content.objects[key]["status"]["conditions"].as_array();
        let found = conditions.into_iter().flatten().find(|it| it["type"] == kind);
        found.and_then(|it| it["message"].as_str()).unwrap_or_default().to_owned()
    }
}

// === impl Shared ===

impl Shared {
    fn put(&self, content: &mut Content, key: &str, object: Value) {
        let kind = if content.objects.contains_key(key) { "MODIFIED" } else { "ADDED" };
        content.objects.insert(key.to_owned(), object.clone());
        self.note(content, kind, object);
    }

    fn note(&self, content: &mut Content, kind: &str, mut object: Value) {
        let version = content.events.len() + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        self.send(content, &format!("{{\"type\":\"{kind}\",\"object\":{}}}", text(&object)));
    }

    fn send(&self, content: &mut Content, line: &str) {
        content.events.push(format!("{line}\n"));
        self.changed.send_replace(content.events.len());
    }
}

/// What stands for this many numbers in a list, which would take the test the time that it measures.
pub(crate) const NUMBERS: usize = 130_000;
pub(crate) const NUMBERS_NAME: &str = "many numbers";

/// The text of a value, in which `LEVELS levels` is that many lists: no value can be as deep. And
/// [`NUMBERS_NAME`] is a list of [`NUMBERS`].
fn text(value: &Value) -> String {
    static LIST: LazyLock<String> = LazyLock::new(|| format!("[1{}]", ",1".repeat(NUMBERS - 1)));
    let text = value.to_string().replace(&format!("\"{NUMBERS_NAME}\""), &LIST);
    [200, 9000].into_iter().fold(text, |text, levels| {
        let name = format!("\"{levels} levels\"");
        if !text.contains(&name) {
            return text;
        }
        let lists = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        text.replace(&name, &lists)
    })
}

fn config(address: SocketAddr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "test", "user": {"token": "test"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
}

fn failure(status: StatusCode) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "as the test says", "reason": "Test", "code": status.as_u16()});
    (status, Json(body)).into_response()
}

async fn namespace(State(shared): State<Arc<Shared>>) -> Response {
    let uid = shared.state.lock().unwrap().uid;
    Json(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"uid": uid}})).into_response()
}

async fn list(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    if query.contains_key("watch") {
        return follow(&shared, &query);
    }
    let mut content = shared.state.lock().unwrap();
    if content.is_undefined {
        return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    }
    if let Some(left) = &mut content.pages_left {
        if *left == 0 {
            return failure(StatusCode::INTERNAL_SERVER_ERROR);
        }
        *left -= 1;
    }
    // All pages are of the version of the first one: a watch from there has what they lack.
    let start = query.get("continue").map(|it| it.split_once('/').unwrap());
    let (first, version) = start.map_or((0, content.events.len()), |(first, version)| {
        (first.parse().unwrap(), version.parse().unwrap())
    });
    content.lists += usize::from(first == 0);
    let limit: usize = query["limit"].parse().unwrap();
    let items: Vec<_> = content.objects.values().skip(first).take(limit).cloned().collect();
    let next = first + items.len();
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if next < content.objects.len() {
        metadata["continue"] = format!("{next}/{version}").into();
    }
    let kind = "RateLimitRulesList";
    let version = "ratelease.io/v1alpha1";
    let list = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "items": items});
    ([(CONTENT_TYPE, "application/json")], text(&list)).into_response()
}

/// The events after a version, until they are forgotten.
fn follow(shared: &Arc<Shared>, query: &BTreeMap<String, String>) -> Response {
    let mut content = shared.state.lock().unwrap();
    if content.pages_left == Some(0) {
        return failure(StatusCode::INTERNAL_SERVER_ERROR);
    }
    content.watches += 1;
    drop(content);
    let after: usize = query["resourceVersion"].parse().unwrap();
    let from = (Arc::clone(shared), shared.changed.subscribe(), after);
    let events = stream::unfold(Some(from), |from| async move {
        let (shared, mut changed, after) = from?;
        loop {
            changed.borrow_and_update();
            let event = {
                let content = shared.state.lock().unwrap();
                if content.pages_left == Some(0) {
                    return None;
                }
                if after < content.oldest {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                        "status": "Failure", "reason": "Expired", "message": "too old",
                        "code": 410});
                    let line = format!("{}\n", json!({"type": "ERROR", "object": status}));
                    return Some((Ok::<_, Infallible>(Bytes::from(line)), None));
                }
                content.events.get(after).cloned()
            };
            match event {
                Some(event) => {
                    let next = Some((shared, changed, after + 1));
                    return Some((Ok(Bytes::from(event)), next));
                }
                None => changed.changed().await.ok()?,
            }
        }
    });
    Body::from_stream(events).into_response()
}

async fn read_event(
    State(shared): State<Arc<Shared>>,
    At((_, name)): At<(String, String)>,
) -> Response {
    match shared.state.lock().unwrap().told.get(&name) {
        Some(event) => Json(event.clone()).into_response(),
        None => failure(StatusCode::NOT_FOUND),
    }
}

async fn create_event(
    State(shared): State<Arc<Shared>>,
    At(namespace): At<String>,
    Json(event): Json<Value>,
) -> Response {
    // As an API server does.
    assert_eq!(event["involvedObject"]["namespace"], json!(namespace));
    let name = event["metadata"]["name"].as_str().unwrap().to_owned();
    shared.state.lock().unwrap().told.insert(name, event.clone());
    (StatusCode::CREATED, Json(event)).into_response()
}

async fn patch_event(
    State(shared): State<Arc<Shared>>,
    At((_, name)): At<(String, String)>,
    Json(patch): Json<Value>,
) -> Response {
    let mut content = shared.state.lock().unwrap();
    let event = content.told.get_mut(&name).unwrap();
    for (name, value) in patch.as_object().unwrap() {
        event[name] = value.clone();
    }
    Json(event.clone()).into_response()
}

async fn write_status(
    State(shared): State<Arc<Shared>>,
    At((namespace, name)): At<(String, String)>,
    Json(patch): Json<Value>,
) -> Response {
    let mut content = shared.state.lock().unwrap();
    content.statuses += 1;
    if content.refuses_statuses {
        return failure(StatusCode::INTERNAL_SERVER_ERROR);
    }
    let key = format!("{namespace}/{name}");
    let Some(mut object) = content.objects.get(&key).cloned() else {
        return failure(StatusCode::NOT_FOUND);
    };
    object["status"] = patch["status"].clone();
    shared.put(&mut content, &key, object.clone());
    ([(CONTENT_TYPE, "application/json")], text(&object)).into_response()
}
