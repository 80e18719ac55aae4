//! The API server: lists and watches the objects, and writes their statuses.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event as CoreEvent;
use kube::api::{
    ApiResource, DynamicObject, GetParams, ListParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::core::Request;
use kube::{Client, Resource};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use serde_json::value::RawValue;
use thiserror::Error;
use tokio::sync::{Notify, mpsc};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, warn};

use super::object::{ApiObject, Key};
use super::object_status::Status;
use super::status::Notice;

/// Objects in a page of the list. Each may have 1.5 MiB.
const PAGE: u32 = 25;

/// Maximum number of events that wait to be handled.
pub const EVENTS_MAX: usize = 16;

/// Maximum time of a call of the API server.
const CALL_MAX: Duration = Duration::from_secs(20);

/// Seconds after which the API server ends a watch.
const WATCH_SECONDS: u32 = 60;

/// Silence after which a watch counts as lost: longer than the API server lets one live.
const WATCH_SILENCE_MAX: Duration = Duration::from_secs(75);

/// First pause before the API server is asked again. It doubles after each failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest pause before the API server is asked again.
const PAUSE_MAX: Duration = Duration::from_secs(16);

/// Pause between two writes of statuses.
const STATUS_PAUSE: Duration = Duration::from_millis(20);

/// The reason why the API server cannot be followed at the moment.
#[derive(Debug, Error)]
enum Lost {
    #[error("{0}")]
    Client(kube::Error),
    #[error(
        "it does not know the kind RateLimitRules: install its definition with `kubectl apply -f \
         deploy/helm/ratelease/crds` (Helm does so only when it installs the chart)"
    )]
    NoDefinition,
    #[error("it is silent")]
    Silent,
    /// All objects have to be listed again: the version to watch from is too old, or a new list was
    /// requested.
    #[error("its history has moved on")]
    Gone,
}

impl From<kube::Error> for Lost {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == StatusCode::GONE.as_u16() => Self::Gone,
            kube::Error::Api(status) if status.code == StatusCode::NOT_FOUND.as_u16() => {
                Self::NoDefinition
            }
            error => Self::Client(error),
        }
    }
}

/// An event that the API server reports.
pub enum Event {
    /// A list begins, of all objects.
    Begun,
    /// An object: of the list until that is complete, and then one that was added or has changed.
    Object(Box<ApiObject>),
    /// The list is complete.
    Complete,
    /// A watch has begun.
    Watching,
    Removed(Key),
    /// The API server is away.
    Lost,
}

/// The kind of the objects.
pub fn resource() -> ApiResource {
    ApiResource {
        group: "ratelease.io".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "ratelease.io/v1alpha1".to_owned(),
        kind: "RateLimitRules".to_owned(),
        plural: "ratelimitrules".to_owned(),
    }
}

/// The path of the objects of a namespace, or of all.
fn path(namespace: Option<&str>) -> String {
    DynamicObject::url_path(&resource(), namespace)
}

/// The namespace whose uid names a cluster: it is made with the cluster, and never again.
const CLUSTER: &str = "/api/v1/namespaces/kube-system";

/// The uid that names the cluster.
///
/// # Errors
///
/// Says in words why it is not known.
pub async fn cluster(client: &Client) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Namespace {
        metadata: NamespaceMeta,
    }
    #[derive(Deserialize)]
    struct NamespaceMeta {
        uid: String,
    }
    let request = http::Request::get(CLUSTER).body(Vec::new()).map_err(|it| it.to_string())?;
    match timeout(CALL_MAX, client.request::<Namespace>(request)).await {
        Ok(Ok(namespace)) => Ok(namespace.metadata.uid),
        Ok(Err(kube::Error::Api(status))) if status.code == StatusCode::FORBIDDEN.as_u16() => {
            let why = "it does not let this service account read the namespace kube-system, whose \
                       uid names the cluster: apply the ClusterRole of the chart";
            Err(why.to_owned())
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(Lost::Silent.to_string()),
    }
}

/// A page of a list.
#[derive(Deserialize)]
struct Page {
    metadata: PageMeta,
    items: Vec<ApiObject>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

/// Lists and watches the objects, and sends an event for each change until the receiver is gone. A
/// notification of `list_again` has it list all objects again. While the API server is away, it
/// repeats its request at intervals.
pub async fn watch(client: Client, events: mpsc::Sender<Event>, list_again: Arc<Notify>) {
    let mut version = None;
    let mut pause = PAUSE;
    while !events.is_closed() {
        let lost = match &mut version {
            None => match list(&client, &events).await {
                Ok(listed) => {
                    version = Some(listed);
                    pause = PAUSE;
                    continue;
                }
                Err(lost) => lost,
            },
            Some(version) => tokio::select! {
                watched = watch_from(&client, version, &events) => match watched {
                    Ok(()) => {
                        pause = PAUSE;
                        continue;
                    }
                    Err(lost) => lost,
                },
                () = list_again.notified() => Lost::Gone,
            },
        };
        if matches!(lost, Lost::Gone) {
            version = None;
        } else {
            warn!("the API server: {lost}; rules stay as they are. Asking again in {pause:?}");
            let _ = events.send(Event::Lost).await;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Lists all objects, page by page. Returns the version from which to watch.
async fn list(client: &Client, events: &mpsc::Sender<Event>) -> Result<String, Lost> {
    let _ = events.send(Event::Begun).await;
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let request = Request::new(path(None)).list(&params).map_err(kube::Error::BuildRequest)?;
        let page = timeout(CALL_MAX, client.request::<Page>(request)).await;
        let Page { metadata, items } = page.map_err(|_| Lost::Silent)??;
        for object in items {
            let _ = events.send(Event::Object(Box::new(object))).await;
        }
        if metadata.next.is_empty() {
            let _ = events.send(Event::Complete).await;
            return Ok(metadata.resource_version);
        }
        params.continue_token = Some(metadata.next);
    }
}

/// Watches the objects until the API server ends the watch, beginning at a version, which advances
/// with each event. An event that cannot be read is skipped, and all objects are listed again after
/// the watch.
async fn watch_from(
    client: &Client,
    version: &mut String,
    events: &mpsc::Sender<Event>,
) -> Result<(), Lost> {
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    let request = Request::new(path(None));
    let request = request.watch(&params, version).map_err(kube::Error::BuildRequest)?;
    let stream = timeout(CALL_MAX, client.request_events::<Box<RawValue>>(request)).await;
    let mut stream = pin!(stream.map_err(|_| Lost::Silent)??);
    let _ = events.send(Event::Watching).await;
    let mut skipped = 0_u64;
    loop {
        let next = timeout(WATCH_SILENCE_MAX, stream.next()).await.map_err(|_| Lost::Silent)?;
        let (seen, event) = match next.map(|event| event.and_then(read_event)) {
            None if skipped > 0 => return Err(Lost::Gone),
            None => return Ok(()),
            Some(Err(error)) if is_unreadable(&error) => {
                skipped += 1;
                warn!(skipped, "an event of the API server is skipped: {error}");
                continue;
            }
            Some(event) => event?,
        };
        if let Some(event) = event {
            let _ = events.send(event).await;
        }
        *version = seen;
    }
}

/// The version of an event, and the event for the follower; `None` if there is nothing to do.
fn read_event(event: WatchEvent<Box<RawValue>>) -> kube::Result<(String, Option<Event>)> {
    let decode = |object: Box<RawValue>| {
        serde_json::from_str::<ApiObject>(object.get()).map_err(kube::Error::SerdeError)
    };
    Ok(match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            let object = decode(object)?;
            (object.metadata.resource_version.clone(), Some(Event::Object(Box::new(object))))
        }
        WatchEvent::Deleted(object) => {
            let object = decode(object)?;
            let key = Key::of(&object);
            (object.metadata.resource_version, Some(Event::Removed(key)))
        }
        WatchEvent::Bookmark(mark) => (mark.metadata.resource_version, None),
        WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
    })
}

/// Whether an event cannot be read: the client takes one for a failure without a code.
fn is_unreadable(error: &kube::Error) -> bool {
    match error {
        kube::Error::SerdeError(_) => true,
        kube::Error::Api(status) => status.code == 0,
        _ => false,
    }
}

/// A status to write, and the Event to publish with it if it is news.
pub type Said = (Key, Status, Option<Notice>);

/// Writes statuses one after the other, with a pause between two, and Events. A failed status is
/// written again when it is compared again. A failed Event is not.
pub async fn write_statuses(client: Client, mut waiting: mpsc::Receiver<Said>) {
    let mut pause = interval(STATUS_PAUSE);
    pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while let Some((key, status, notice)) = waiting.recv().await {
        pause.tick().await;
        if let Some(notice) = notice {
            let told = timeout(CALL_MAX, tell(&client, &key, &notice)).await;
            let told = told.map_err(|_| Lost::Silent).and_then(|told| told.map_err(Lost::Client));
            if let Err(why) = told {
                debug!("the Event of {key} is not written: {why}");
            }
        }
        let done = timeout(CALL_MAX, write_status(&client, &key, &status)).await;
        match done {
            // The object may have been deleted.
            Ok(Err(kube::Error::Api(status))) if status.code == StatusCode::NOT_FOUND.as_u16() => {}
            Ok(Err(error)) => warn!("the status of {key} is not written: {error}"),
            Err(_) => warn!("the status of {key} is not written: the API server is silent"),
            Ok(Ok(())) => {}
        }
    }
}

/// The path of the Events of a namespace.
fn events(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/events")
}

/// Writes an Event of an object. If an earlier Event says the same of the object, that one counts
/// once more, so that an object has few Events, however often it changes.
async fn tell(client: &Client, key: &Key, notice: &Notice) -> kube::Result<()> {
    let Notice { kind, reason, message, .. } = notice;
    let name = notice.name(key);
    let request = Request::new(events(&key.namespace));
    let found = request.get(&name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    match client.request::<CoreEvent>(found).await {
        Ok(before) => {
            let count = before.count.unwrap_or_default().saturating_add(1);
            let patch = json!({"count": count, "lastTimestamp": now, "message": message});
            let patch = Patch::Merge(patch);
            let patch = request.patch(&name, &PatchParams::default(), &patch);
            let patch = patch.map_err(kube::Error::BuildRequest)?;
            client.request::<IgnoredAny>(patch).await.map(drop)
        }
        Err(kube::Error::Api(status)) if status.code == StatusCode::NOT_FOUND.as_u16() => {
            let resource = resource();
            let event = json!({
                "apiVersion": "v1", "kind": "Event", "type": kind,
                "metadata": {"namespace": key.namespace, "name": name},
                "involvedObject": {"apiVersion": resource.api_version, "kind": resource.kind,
                    "namespace": key.namespace, "name": key.name, "uid": notice.uid},
                "reason": reason, "message": message, "count": 1,
                "firstTimestamp": now, "lastTimestamp": now,
                "source": {"component": "ratelease-control"},
                "reportingComponent": "ratelease-control", "reportingInstance": "",
            });
            let body = event.to_string().into_bytes();
            let create = request.create(&PostParams::default(), body);
            let create = create.map_err(kube::Error::BuildRequest)?;
            client.request::<IgnoredAny>(create).await.map(drop)
        }
        Err(error) => Err(error),
    }
}

async fn write_status(client: &Client, key: &Key, status: &Status) -> kube::Result<()> {
    let patch = Patch::Merge(json!({"status": status}));
    let request = Request::new(path(Some(&key.namespace)))
        .patch_subresource("status", &key.name, &PatchParams::default(), &patch)
        .map_err(kube::Error::BuildRequest)?;
    client.request::<IgnoredAny>(request).await.map(drop)
}
