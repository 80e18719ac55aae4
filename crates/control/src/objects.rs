//! **Rules as objects of Kubernetes**: follows the `RateLimitRules` of a cluster, publishes their
//! rules as the rules of their domains, and writes the result to each object's status.
//!
//! ```text
//! API server ─ list, watch ─▶ object ─▶ plan ─▶ draft and version ─▶ pods
//!        ▲                               └─▶ status ─┐    (the database: store, push)
//!        └──────────── at most 50 a second ──────────┘
//! ```
//! The database stays the one place where domains come together: an object's rules are the draft
//! and the published text of its domain. The row of the domain names the object, and the API does
//! not change it meanwhile. So the published rules outlive this process and the API server, and
//! versions, pods and rollouts know no objects. One replica follows the objects: the replica that
//! has the lock.
//!
//! `api_server` speaks with the API server. `queue` holds the changes that wait to be read,
//! `object` reads an object, `plan` decides what to publish, `status` makes the text of a status.
//! All but `api_server` are pure.
//!
//! Namespaces belong to tenants who need not trust each other. So the objects of the namespaces are
//! read, published and reported in turns, and each namespace has a limit of the time that it takes
//! and of the bytes that stay in the database.

mod api_server;
#[cfg(test)]
mod crd;
mod fault;
mod object;
mod object_status;
mod plan;
mod queue;
mod rollout;
mod status;
mod tries;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::StatusCode;
use jiff::Timestamp;
use kube::Client;
use ratelease_rules::Source;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

use self::api_server::{EVENTS_MAX, Event, Said, cluster, watch, write_statuses};
use self::fault::Faults;
use self::object::{ApiObject, Key, Object};
use self::object_status::Status;
use self::plan::{Change, Plan, Verdict, namespace_of, plan};
use self::queue::Queue;
use self::status::{Basis, Notice, Pods};
use self::tries::Tries;
use crate::api::publish::{
    ATTEMPTS_MAX, approve_in_place, domain_memory, publish_texts, replacements,
};
use crate::api::{App, Problem};
use crate::auth::Caller;
use crate::document::{Document, read};
use crate::push::PublishedSet;
use crate::settings::Scope;
use crate::store::{Author, DraftDomain, PublishedText, Replacement, StoreError, Write};
use crate::work::{self, heavy};

/// Maximum number of objects that are followed: twice the domains that may be published. Further
/// objects are not followed.
const OBJECTS_MAX: usize = 20_000;

/// Maximum number of objects of one namespace, so that it leaves room to others.
const OBJECTS_OF_NAMESPACE_MAX: usize = OBJECTS_MAX / 4;

/// Maximum bytes of all objects that are followed: of their rules, faults and statuses.
const BYTES_MAX: usize = 64 << 20;

/// Maximum bytes of the objects of one namespace, so that it leaves room to others.
const BYTES_OF_NAMESPACE_MAX: usize = BYTES_MAX / 4;

/// Pause until the objects are followed again.
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum time of the check of the lock. When it takes longer, another replica follows the
/// objects.
const CHECK_MAX: Duration = Duration::from_secs(10);

/// Maximum time of a tick. When it takes longer, another replica follows the objects.
const TICK_MAX: Duration = Duration::from_secs(30);

/// Maximum time of a publication in all its parts. When it takes longer, another replica follows
/// the objects.
const PUBLISH_MAX: Duration = Duration::from_secs(300);

/// How long objects are read until the tick, the lock and a publication have their turns.
const READ_MAX: Duration = Duration::from_millis(100);

/// Events that are received before objects are read.
const RECEIVED_MAX: usize = 500;

/// Interval at which statuses are compared, and a plan that failed is tried again.
const TICK: Duration = Duration::from_secs(1);

/// Maximum number of statuses that wait to be written.
const STATUSES_MAX: usize = 50;

/// Ticks after a status was handed over in which it is not written again. A status that differs
/// only in numbers of pods waits as long.
const STATUS_TICKS: u64 = 30;

/// Maximum number of statuses in a tick that differ only in their numbers of pods, so that other
/// statuses are written first.
const NUMBERS_MAX: usize = 10;

/// Maximum number of domains of one version, so that no publication takes long.
const BATCH_MAX: usize = 500;

/// Maximum bytes of one version, so that no publication takes long.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Refusals after which a publication stops: the remaining changes are published later.
const REFUSALS_MAX: usize = 8;

/// Ticks until the changes of a refused namespace are tried again. The wait doubles with each
/// further refusal, up to [`RETRY_TICKS_MAX`].
const RETRY_TICKS: u64 = 30;

/// Longest wait of a namespace that is refused again and again, in ticks.
const RETRY_TICKS_MAX: u64 = 600;

/// Ticks from a list of all objects until the next list that is needed only because there is room
/// again. A list of many objects takes a while, in which no change is seen, and one tenant can free
/// and take room again and again.
const LIST_TICKS: u64 = 600;

/// Bytes that the objects of a namespace may publish at once. The limit is needed because every
/// version is kept for good.
const KEPT_MAX: usize = 64 << 20;

/// Bytes that a namespace may publish in each tick once it has used [`KEPT_MAX`].
const KEPT_OF_TICK: usize = 4 << 10;

/// Bytes that each change costs besides the name of its domain and the text of its rules.
const KEPT_OF_CHANGE: usize = 1 << 10;

/// The id by which the objects take turns to write with the tokens. The id of a token is not empty.
const OBJECTS: &str = "";

/// Follows the objects of a cluster, and publishes what they say. It does not return.
pub async fn follow(client: Client, app: Arc<App>, scope: Scope) {
    app.objects.is_to_follow.store(true, Ordering::Relaxed);
    let mut last = String::new();
    loop {
        let why = match lead(&client, &app, &scope).await {
            Ok(()) => "the watch has ended".to_owned(),
            Err(error) => error.to_string(),
        };
        app.objects.reset();
        if why != last {
            warn!("objects are not followed: {why}; rules stay as they are");
            last = why;
        }
        sleep(PAUSE).await;
    }
}

/// Makes sure that the database is of this cluster: objects that it lacks would take the rules of
/// another one along.
async fn check_cluster(client: &Client, app: &App, scope: &Scope) -> Result<(), StoreError> {
    let here = cluster(client).await.map_err(|why| {
        StoreError::Unavailable(format!("the API server does not say which cluster it is: {why}"))
    })?;
    let named = scope.cluster.as_deref();
    if named.is_some_and(|named| named != here) {
        let why = format!(
            "the API server is of the cluster {here}, and CONTROL_KUBERNETES_CLUSTER names another \
             one"
        );
        return Err(StoreError::Unavailable(why));
    }
    match app.store.cluster().await? {
        Some(known) if known == here => Ok(()),
        Some(known) if named.is_none() => {
            let why = format!(
                "the database has the rules of the cluster {known}, and the API server is of the \
                 cluster {here}: give each cluster a database of its own. If this cluster takes the \
                 place of that one, set CONTROL_KUBERNETES_CLUSTER={here}: then the rules of objects \
                 that it does not have are removed"
            );
            Err(StoreError::Unavailable(why))
        }
        _ => app.store.set_cluster(&here).await,
    }
}

/// Follows the objects while no other replica does.
async fn lead(client: &Client, app: &Arc<App>, scope: &Scope) -> Result<(), StoreError> {
    // Before the lock, which a replica of the right cluster may wait for.
    within(CHECK_MAX + CHECK_MAX, "the cluster", check_cluster(client, app, scope)).await??;
    let mut lead = app.store.lead().await?;
    within(CHECK_MAX + CHECK_MAX, "the cluster", check_cluster(client, app, scope)).await??;
    info!("following the RateLimitRules of the cluster");
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let (statuses, waiting) = mpsc::channel(STATUSES_MAX);
    let mut tasks = JoinSet::new(); // which end with it
    let mut follower = Follower::new(Arc::clone(app), scope.any_domain.clone());
    tasks.spawn(watch(client.clone(), sender, Arc::clone(&follower.list_again)));
    tasks.spawn(write_statuses(client.clone(), waiting));
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut done = Ok(());
        tokio::select! {
            biased;
            _ = tick.tick() => {
                within(CHECK_MAX, "the lock", lead.check()).await??;
                done = within(TICK_MAX, "a tick", follower.tick(&statuses)).await?;
                if statuses.is_closed() {
                    return Ok(());
                }
                // However long that took, events have their turn.
                tick.reset();
            }
            event = events.recv(), if !follower.is_behind() => {
                let Some(event) = event else { return Ok(()) };
                follower.note_event(event);
                // All events that wait are published together. Of several events of one object only
                // the newest counts.
                for _ in 1..RECEIVED_MAX {
                    let Ok(event) = events.try_recv() else { break };
                    follower.note_event(event);
                }
            }
            () = ready(()), if follower.is_due() || follower.is_ready() => {}
        }
        follower.read_waiting().await;
        if done.is_ok() && follower.is_due() {
            done = within(PUBLISH_MAX, "a publication", follower.publish_due()).await?;
        }
        follower.note(done);
    }
}

/// Waits at most `max` for `done`, which asks the database. `what` names it in the error.
async fn within<T>(
    max: Duration,
    what: &str,
    done: impl Future<Output = T>,
) -> Result<T, StoreError> {
    let silent = |_| StoreError::Unavailable(format!("{what} has taken more than {max:?}"));
    timeout(max, done).await.map_err(silent)
}

/// Objects, and how many there are.
#[derive(Default)]
struct Objects {
    by_key: BTreeMap<Key, Object>,
    size: Size,
    by_namespace: HashMap<String, Size>,
    /// Namespaces of which some were not read, or had no room: one that is not known may still be
    /// there.
    incomplete: BTreeSet<String>,
    /// Objects whose rules had no room, and the bytes that each object needs.
    too_large: BTreeMap<Key, usize>,
}

/// A number of objects, and the bytes of their rules, faults and statuses.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    objects: usize,
    bytes: usize,
}

// === impl Objects ===

impl Objects {
    fn insert(&mut self, object: Object) {
        self.remove(&object.key);
        let bytes = object.bytes();
        let of_namespace = self.by_namespace.entry(object.key.namespace.clone()).or_default();
        for size in [&mut self.size, of_namespace] {
            size.objects += 1;
            size.bytes += bytes;
        }
        self.by_key.insert(object.key.clone(), object);
    }

    fn remove(&mut self, key: &Key) {
        self.too_large.remove(key);
        let Some(object) = self.by_key.remove(key) else { return };
        let of_namespace = self.by_namespace.entry(key.namespace.clone()).or_default();
        for size in [&mut self.size, of_namespace] {
            size.objects -= 1;
            size.bytes -= object.bytes();
        }
        if of_namespace.objects == 0 {
            self.by_namespace.remove(&key.namespace);
        }
    }

    /// Whether there may be objects of a namespace that are not known.
    fn lacks_some_of(&self, namespace: &str) -> bool {
        self.incomplete.contains(namespace)
    }

    fn size_of(&self, namespace: &str) -> Size {
        self.by_namespace.get(namespace).copied().unwrap_or_default()
    }

    fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = &Object> {
        let first = Key { namespace: namespace.to_owned(), name: String::new() };
        self.by_key
            .range(first..)
            .map(|it| it.1)
            .take_while(move |it| it.key.namespace == namespace)
    }

    /// Whether there is room for one more object of a namespace.
    fn has_room(&self, namespace: &str) -> bool {
        self.size.objects < OBJECTS_MAX
            && self.size_of(namespace).objects < OBJECTS_OF_NAMESPACE_MAX
    }

    /// Whether there is room for so many bytes of a namespace.
    fn has_room_for(&self, namespace: &str, bytes: usize) -> bool {
        self.size.bytes + bytes <= BYTES_MAX
            && self.size_of(namespace).bytes + bytes <= BYTES_OF_NAMESPACE_MAX
    }

    /// Whether an object has room for so many bytes in place of the one of its name: among those
    /// `listed` so far, and beside all that have room here, unless it is one of these.
    fn has_room_in_place(&self, listed: &Self, key: &Key, bytes: usize) -> bool {
        let is_free = |of: &Self| {
            let freed = of.by_key.get(key).map_or(0, Object::bytes);
            of.has_room_for(&key.namespace, bytes.saturating_sub(freed))
        };
        let has_some = self.by_key.contains_key(key) && !self.too_large.contains_key(key);
        is_free(listed) && (has_some || is_free(self))
    }

    /// Whether there is room for one that had none.
    fn has_room_again(&self) -> bool {
        self.incomplete.iter().any(|it| self.has_room(it))
            || self.too_large.iter().any(|(key, bytes)| self.has_room_for(&key.namespace, *bytes))
    }
}

/// State of the process that follows the objects: the cluster as it is known, and the actions
/// taken.
struct Follower {
    app: Arc<App>,
    any_domain: BTreeSet<String>,
    objects: Objects,
    /// Objects of the list that is under way; `None` if no list is.
    listed: Option<Objects>,
    /// Changes of objects that wait to be read.
    queue: Queue,
    /// When the process began to follow the objects; times are counted from then.
    begun: Instant,
    /// Whether all objects were listed once.
    is_complete: bool,
    /// Whether an object was deleted or shrank, perhaps unseen, since all objects were last listed
    /// because there was room.
    has_shrunk: bool,
    /// The tick from which on all objects may be listed again because there is room.
    list_after: u64,
    /// Has the watch list all objects again.
    list_again: Arc<Notify>,
    /// Whether the plan may have changed.
    is_due: bool,
    /// Whether the database refused the last attempt.
    is_failing: bool,
    /// The version that was published when the plan was made.
    planned: i64,
    domains: Domains,
    /// The rollouts of domains whose drafts are not published.
    tries: Tries,
    verdicts: BTreeMap<Key, Verdict>,
    /// The version and the pods for which all statuses are up to date; `None` if a status is not.
    told: Option<(i64, Pods)>,
    /// Domains whose publication was refused, why, and at which tick they are tried again.
    refusals: BTreeMap<String, (String, u64)>,
    /// Namespaces that were refused lately, and how long they wait. Others come first.
    waits: Waits,
    /// Bytes that namespaces have published, of those that they may at the moment.
    kept: BTreeMap<String, usize>,
    /// The basis from which each object's status was made.
    said: HashMap<Key, Basis>,
    /// Statuses that were handed to the writer, and at which tick.
    sent: BTreeMap<Key, (Status, u64)>,
    /// The last Event of each object.
    told_of: BTreeMap<Key, Notice>,
    /// The object whose status was handed over last: the next ones come first.
    last_sent: Option<Key>,
    ticks: u64,
}

/// The domains of the database, and the number of its last change that they have.
struct Domains {
    change: i64,
    by_name: BTreeMap<String, DraftDomain>,
}

/// The result of a publication: its domains, and the numbers of its first and last change.
struct Written {
    first: i64,
    last: i64,
    domains: Vec<DraftDomain>,
}

// === impl Domains ===

impl Domains {
    /// Takes over the result of a publication. If others have written since the domains were read,
    /// all domains are read again before the next plan; until then these count in the share of
    /// their namespace.
    fn note(&mut self, written: Written) {
        if written.first == self.change + 1 {
            self.change = written.last;
        }
        self.by_name.extend(written.domains.into_iter().map(|it| (it.name.clone(), it)));
    }

    /// Who publishes these changes: each namespace with all of its domains, which have a share of
    /// the memory of pods together. Those that may define any domain have no such bound.
    fn callers(&self, batch: &[Change], any_domain: &BTreeSet<String>) -> Vec<Caller> {
        let mut shares: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for change in batch.iter().filter(|it| !any_domain.contains(&it.namespace)) {
            shares.entry(&change.namespace).or_default().insert(&change.domain);
        }
        for domain in self.by_name.values() {
            let namespace = domain.owner.as_deref().map(namespace_of);
            if let Some(share) = namespace.and_then(|it| shares.get_mut(it)) {
                share.insert(&domain.name);
            }
        }
        let owned = |share: BTreeSet<&str>| share.into_iter().map(str::to_owned).collect();
        shares.into_values().map(|share| Caller::of_objects(Some(owned(share)))).collect()
    }
}

/// For how many ticks namespaces wait that were refused, and until which one.
#[derive(Default)]
struct Waits(BTreeMap<String, (u64, u64)>);

// === impl Waits ===

impl Waits {
    /// Notes that a namespace is refused at this tick. Returns the tick at which it is tried again.
    /// A further refusal while it waits is tried again at the same tick.
    fn refuse(&mut self, namespace: &str, tick: u64) -> u64 {
        let first = (RETRY_TICKS, tick + RETRY_TICKS);
        let (wait, until) = self.0.entry(namespace.to_owned()).or_insert(first);
        if *until <= tick {
            *wait = (*wait * 2).min(RETRY_TICKS_MAX);
            *until = tick + *wait;
        }
        *until
    }

    /// How long a namespace waits; 0 if it was not refused lately.
    fn of(&self, namespace: &str) -> u64 {
        self.0.get(namespace).map_or(0, |it| it.0)
    }

    /// Forgets those that were not refused for as long as they have waited.
    fn age(&mut self, tick: u64) {
        self.0.retain(|_, (wait, until)| *until + *wait > tick);
    }
}

// === impl Follower ===

impl Follower {
    #[allow(clippy::disallowed_methods, reason = "the edge: counts what objects cost")]
    fn new(app: Arc<App>, any_domain: BTreeSet<String>) -> Self {
        Self {
            app,
            queue: Queue::new(any_domain.clone()),
            begun: Instant::now(),
            any_domain,
            objects: Objects::default(),
            listed: None,
            is_complete: false,
            has_shrunk: false,
            list_after: 0,
            list_again: Arc::default(),
            is_due: false,
            is_failing: false,
            planned: 0,
            domains: Domains { change: -1, by_name: BTreeMap::new() },
            tries: Tries::default(),
            verdicts: BTreeMap::new(),
            told: None,
            refusals: BTreeMap::new(),
            waits: Waits::default(),
            kept: BTreeMap::new(),
            said: HashMap::new(),
            sent: BTreeMap::new(),
            told_of: BTreeMap::new(),
            last_sent: None,
            ticks: 0,
        }
    }

    /// Whether there may be something to publish.
    fn is_due(&self) -> bool {
        self.is_complete && self.is_due
    }

    /// Whether there is something to read.
    fn is_ready(&self) -> bool {
        self.queue.is_ready(self.begun.elapsed())
    }

    /// Whether so much waits to be read that no more is to be received.
    fn is_behind(&self) -> bool {
        self.queue.is_full() && self.is_ready()
    }

    fn note_event(&mut self, event: Event) {
        match event {
            Event::Begun => {
                self.listed = Some(Objects::default());
                self.queue.begin_list();
            }
            Event::Object(object) => {
                self.add_waiting(Key::of(&object), queue::Change::Object(object));
            }
            Event::Removed(key) => self.add_waiting(key, queue::Change::Removed),
            Event::Complete => self.queue.end_list(),
            Event::Watching => {
                self.app.objects.is_connected.store(self.is_complete, Ordering::Relaxed);
            }
            Event::Lost => self.app.objects.is_connected.store(false, Ordering::Relaxed),
        }
    }

    fn add_waiting(&mut self, key: Key, change: queue::Change) {
        if let Some(lost) = self.queue.add(key, change) {
            warn!("too much waits to be read: {lost} is not followed until all are listed again");
            self.note_incomplete(lost.namespace);
        }
    }

    /// Notes that an object of a namespace is not known.
    fn note_incomplete(&mut self, namespace: String) {
        let known = self.listed.as_mut().unwrap_or(&mut self.objects);
        known.incomplete.insert(namespace);
    }

    /// Reads what waits, for a while.
    async fn read_waiting(&mut self) {
        let end = self.begun.elapsed() + READ_MAX;
        loop {
            let now = self.begun.elapsed();
            if self.queue.completes_list(now) {
                self.complete_list();
            }
            if now >= end {
                return;
            }
            let Some((key, change, completes)) = self.queue.next(now) else { return };
            match change {
                queue::Change::Removed => self.remove(&key),
                queue::Change::Object(object) => self.take_object(*object).await,
            }
            // The last missing object of a namespace releases the changes that waited for it.
            self.is_due |= completes;
            let done = self.begun.elapsed();
            self.queue.charge(&key.namespace, done.saturating_sub(now), done);
        }
    }

    fn complete_list(&mut self) {
        self.objects = self.listed.take().unwrap_or_default();
        self.sent.retain(|key, _| self.objects.by_key.contains_key(key));
        self.told_of.retain(|key, _| self.objects.by_key.contains_key(key));
        self.said.clear();
        // Objects that were deleted meanwhile have made room.
        self.refusals.clear();
        self.is_complete = true;
        self.has_shrunk = true; // some may have gone unseen
        self.list_after = self.ticks + LIST_TICKS;
        self.is_due = true;
        self.app.objects.is_connected.store(true, Ordering::Relaxed);
        info!(objects = self.objects.by_key.len(), "all objects are listed");
    }

    fn remove(&mut self, key: &Key) {
        let makes_room = self.is_published(key);
        self.objects.remove(key);
        if let Some(listed) = &mut self.listed {
            listed.remove(key);
        }
        self.sent.remove(key);
        self.told_of.remove(key);
        self.said.remove(key);
        self.is_due = true;
        self.has_shrunk = true;
        if makes_room {
            self.forget_refusals(&key.namespace);
        }
    }

    /// Adds an object to the list that is under way; without a list, to all objects. A refusal ends
    /// when the spec of the object has changed, so that the new spec is tried at once.
    async fn take_object(&mut self, object: ApiObject) {
        let key = Key::of(&object);
        let Some((object, lacking)) = self.read(object).await else {
            self.note_incomplete(key.namespace);
            return;
        };
        let former = self.objects.by_key.get(&key);
        if former.is_none_or(|it| !object.has_spec_of(it)) {
            self.has_shrunk |= former.is_some_and(|it| object.bytes() < it.bytes());
            let makes_room =
                former.is_some_and(|it| object.takes_less_than(it)) && self.is_published(&key);
            self.is_due = true;
            self.refusals.remove(&object.domain);
            if makes_room {
                self.forget_refusals(&key.namespace);
            }
        }
        self.said.remove(&key);
        let known = self.listed.as_mut().unwrap_or(&mut self.objects);
        known.insert(object);
        known.too_large.extend(lacking.map(|bytes| (key, bytes)));
    }

    /// Whether the database has the rules of an object, or will have them soon. Only the end of
    /// such an object makes room.
    fn is_published(&self, key: &Key) -> bool {
        let is_due = matches!(
            self.verdicts.get(key),
            Some(Verdict::Published | Verdict::Due | Verdict::RollingOut(_))
        );
        let domain = self.objects.by_key.get(key).map(|object| &object.domain);
        is_due && domain.is_some_and(|domain| !self.refusals.contains_key(domain))
    }

    /// Has all objects of a namespace tried again: one of it makes room.
    fn forget_refusals(&mut self, namespace: &str) {
        for object in self.objects.of_namespace(namespace) {
            self.refusals.remove(&object.domain);
        }
    }

    /// Reads an object. If there is no room for its rules, also returns the bytes that it needs.
    /// `None` if there is no room for the object at all. Most events are of a status alone.
    async fn read(&self, object: ApiObject) -> Option<(Object, Option<usize>)> {
        let key = Key::of(&object);
        let former = self.objects.by_key.get(&key);
        let known = self.listed.as_ref().unwrap_or(&self.objects);
        if former.is_none() && !known.has_room(&key.namespace) {
            warn!("there are too many objects: {key} is not followed");
            return None;
        }
        let lacking = former.and_then(|it| self.objects.too_large.get(&it.key));
        let mut object = match former.filter(|it| it.is_of(&object)) {
            Some(former)
                if lacking
                    .is_none_or(|bytes| !self.objects.has_room_in_place(known, &key, *bytes)) =>
            {
                let status = Status::read(object.status.as_deref());
                return Some((Object { status, ..former.clone() }, lacking.copied()));
            }
            _ => {
                let memory = domain_memory(&self.app);
                let read = heavy(move |_| Object::read(&object, memory)).await;
                read.inspect_err(|error| warn!("the object {key} is not read: {error}")).ok()?
            }
        };
        let bytes = object.bytes();
        if self.objects.has_room_in_place(known, &object.key, bytes) {
            return Some((object, None));
        }
        let why = "the objects of the namespace, or of all, are too large together; it is tried \
                   again when others shrink or go";
        object.rules = Err(Faults::one("spec", why));
        object.status = Status::default();
        Some((object, Some(bytes)))
    }

    /// Notes whether the due work was done. If it was not, the next tick does it.
    fn note(&mut self, done: Result<(), StoreError>) {
        match done {
            Ok(()) => self.is_failing = false,
            Err(error) => {
                self.is_due = false;
                if !std::mem::replace(&mut self.is_failing, true) {
                    warn!("{error}: objects are not published; rules stay as they are");
                }
            }
        }
    }

    /// Publishes the changes that the objects ask for and the database does not have yet. If there
    /// are many, it publishes a part of them.
    async fn publish_due(&mut self) -> Result<(), StoreError> {
        // The number is read first, so that a write after it is noticed at the next call.
        let change = self.app.store.last_change().await?;
        if change != self.domains.change {
            let domains = self.app.store.domains().await?.into_iter();
            let by_name = domains.map(|it| (it.name.clone(), it)).collect();
            self.domains = Domains { change, by_name };
        }
        self.tries = Tries::read(&self.app, &self.domains.by_name).await?;
        let due = self.due();
        self.is_due = !due.is_empty();
        self.publish_parts(&due).await
    }

    /// The changes to publish first, of those that the objects ask for and the database does not
    /// have.
    fn due(&mut self) -> Vec<Change> {
        let Plan { mut changes, verdicts } =
            plan(&self.objects.by_key, &self.domains.by_name, &self.any_domain, &self.tries);
        self.verdicts = verdicts;
        self.told = None;
        changes.retain(|it| it.by.is_some() || !self.objects.lacks_some_of(&it.namespace));
        // An object that was not read yet may be the older one of two for a domain.
        changes.retain(|it| !self.queue.lacks_some_of(&it.namespace));
        for change in &changes {
            self.refuse_too_many(change);
        }
        let (refused, mut due): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|it| self.refusals.contains_key(&it.domain));
        // Namespaces without a refused change come first, so that a refused one does not hold up
        // the others. Namespaces take turns, and the changes of each that make room come first.
        let refused: BTreeSet<_> = refused.iter().map(|it| it.namespace.as_str()).collect();
        let published = Arc::clone(&self.app.published.borrow());
        due.sort_by_cached_key(|it| self.grows(it, &published));
        let turns = turns(due.iter().map(|it| &*it.namespace));
        let mut due: Vec<_> = due.into_iter().zip(turns).collect();
        due.sort_by_cached_key(|(it, turn)| {
            let is_refused = refused.contains(&*it.namespace);
            (self.waits.of(&it.namespace), is_refused, *turn)
        });
        let mut bytes = 0;
        let due = due.into_iter().map(|(it, _)| it).take(BATCH_MAX).take_while(|it| {
            let has_room = bytes < BATCH_BYTES_MAX;
            bytes += self.cost(it);
            has_room
        });
        due.collect()
    }

    /// Publishes changes as one version, or if some are refused as several.
    async fn publish_parts(&mut self, due: &[Change]) -> Result<(), StoreError> {
        // Namespaces that were refused lately come last, so that they hold up no others.
        let (others, refused) =
            due.split_at(due.partition_point(|it| self.waits.of(&it.namespace) == 0));
        let is_rolled_out = |it: &Change| self.object_of(it).is_some_and(|it| it.rollout.is_some());
        let parts = [refused, others]
            .map(|part| -> (Vec<_>, Vec<_>) { part.iter().cloned().partition(is_rolled_out) });
        let mut batches = Vec::new();
        for (gradual, at_once) in &parts {
            // Each rollout is of one object; the others come first.
            batches.extend(gradual.chunks(1));
            batches.push(at_once);
        }
        let mut refusals = 0;
        while let Some(batch) = batches.pop() {
            if batch.is_empty() {
                continue;
            }
            let began = self.begun.elapsed();
            let done = self.publish(batch).await;
            self.charge(batch, self.begun.elapsed().saturating_sub(began));
            let problem = match done {
                Ok(written) => {
                    self.note_published(batch, written);
                    continue;
                }
                Err(problem) => problem,
            };
            // Any other problem is that of some of these changes, which the others do not wait for.
            if problem.status == StatusCode::SERVICE_UNAVAILABLE.as_u16() {
                return Err(StoreError::Unavailable(problem.detail));
            }
            match batch {
                [one] => {
                    let until = self.waits.refuse(&one.namespace, self.ticks);
                    self.refusals.insert(one.domain.clone(), (why(problem), until));
                    refusals += 1;
                    if refusals >= REFUSALS_MAX {
                        break;
                    }
                }
                // One of the changes is refused. Halves find out which.
                many => {
                    let (first, second) = many.split_at(many.len() / 2);
                    batches.extend([second, first]);
                }
            }
        }
        Ok(())
    }

    /// Charges the namespaces of a batch for the time that it took, in proportion to its bytes.
    fn charge(&mut self, batch: &[Change], took: Duration) {
        let now = self.begun.elapsed();
        let all: usize = batch.iter().map(|it| self.cost(it)).sum();
        for change in batch {
            // Both numbers are below 2^32, and a share is at most 1.
            let share = self.cost(change) as f64 / all.max(1) as f64;
            self.queue.charge(&change.namespace, took.mul_f64(share), now);
        }
    }

    /// Notes the result of a publication, so that the database need not be read.
    fn note_published(&mut self, batch: &[Change], written: Written) {
        for change in batch {
            *self.kept.entry(change.namespace.clone()).or_default() += self.cost(change);
        }
        self.domains.note(written);
    }

    /// Whether the rules of a domain take more room after a change than the published ones do.
    fn grows(&self, change: &Change, published: &PublishedSet) -> bool {
        let before = published.domains.get(&change.domain).map_or(0, |it| it.text().len());
        let rules = self.object_of(change).and_then(|object| object.rules.as_ref().ok());
        rules.is_some_and(|rules| rules.text.len() > before)
    }

    fn object_of(&self, change: &Change) -> Option<&Object> {
        self.objects.by_key.get(change.by.as_ref()?)
    }

    /// Refuses a change whose namespace has published too much lately.
    fn refuse_too_many(&mut self, change: &Change) {
        let kept = self.kept.get(&change.namespace).copied().unwrap_or_default();
        let is_free = change.by.is_none() || self.any_domain.contains(&change.namespace);
        if is_free || kept + self.cost(change) <= KEPT_MAX {
            return;
        }
        let why = format!(
            "the objects of the namespace have published {} MiB lately, which are kept for good; \
             this change follows later, {} KiB a minute",
            kept >> 20,
            (60 * KEPT_OF_TICK) >> 10
        );
        self.refusals.entry(change.domain.clone()).or_insert((why, self.ticks + RETRY_TICKS));
    }

    /// Bytes that a change adds to the history.
    fn cost(&self, change: &Change) -> usize {
        KEPT_OF_CHANGE + self.object_of(change).map_or(0, Object::bytes_of_rules)
    }

    /// Publishes changes as one version.
    async fn publish(&self, batch: &[Change]) -> Result<Written, Problem> {
        let rules = batch.iter().map(|it| {
            let rules = self.object_of(it).and_then(|object| object.rules.as_ref().ok());
            let yaml = rules.filter(|it| it.hash.is_some()).map(|it| it.text.clone());
            let rules = rules.map_or(0, |it| it.count);
            PublishedText { domain: it.domain.clone(), changed: 0, yaml, rules }
        });
        let texts: Vec<_> = rules.collect();
        let callers = self.domains.callers(batch, &self.any_domain);
        let app = &self.app;
        let author = Author { name: Caller::of_objects(None).name, reason: reason(batch) };
        // The turn is given back when this ends.
        work::of_request(async {
            app.take_publisher_turn(&Caller::of_objects(None)).await?;
            // Open rollouts of these domains end with the write that is accepted. A refused write
            // leaves them alone.
            let ended = self.tries.open_of(batch.iter().map(|it| it.domain.as_str()));
            let terms = batch.first().and_then(|it| self.object_of(it)?.rollout.as_ref());
            if let ([change], [text], Some(terms), true) =
                (batch, &*texts, terms, app.store.last_version().await? > 0)
                && let Some(written) =
                    rollout::begin(app, &callers, (change, &ended), (text, terms)).await?
            {
                return Ok(written);
            }
            let documents = Arc::new(documents(&texts).await?);
            for _ in 0..ATTEMPTS_MAX {
                let replacements = replacements(app, &documents).await?;
                let approved = approve_in_place(app, &callers, &texts, &ended).await?;
                let mut write = app.store.begin_of_token(&author, OBJECTS).await?;
                write.of_objects();
                let first = write.number();
                let Some(texts) = replace(&mut write, batch, &replacements, &texts).await? else {
                    continue;
                };
                if !approved.is_current(&mut write).await? {
                    continue;
                }
                rollout::abort(&mut write, &ended).await?;
                let approved = approved.after_own(&mut write).await?;
                if publish_texts(&mut write, &texts, None, approved).await?.is_some() {
                    let names = batch.iter().map(|it| it.domain.clone()).collect();
                    let domains = write.domains(names).await?;
                    let last = write.number();
                    write.commit().await?;
                    app.wake_follower();
                    return Ok(Written { first, last, domains });
                }
            }
            Err(Problem::raced())
        })
        .await
    }

    /// Does the work of each second, and hands changed statuses to the writer.
    async fn tick(&mut self, writer: &mpsc::Sender<Said>) -> Result<(), StoreError> {
        self.ticks += 1;
        if !self.is_complete {
            return Ok(());
        }
        self.list_again_if_there_is_room();
        let set = Arc::clone(&self.app.published.borrow());
        self.age(set.version);
        let pods = Pods::new(&self.app.store.reserved().pod_versions().await?);
        if self.told.as_ref().is_some_and(|it| (it.0, &it.1) == (set.version, &pods)) {
            return Ok(());
        }
        let statuses = self.statuses(&set, &pods);
        self.told = statuses.is_empty().then_some((set.version, pods));
        for (key, status) in statuses {
            let notice = self.notice(&key, &status);
            if writer.try_send((key.clone(), status.clone(), notice.clone())).is_err() {
                break;
            }
            self.told_of.extend(notice.map(|it| (key.clone(), it)));
            self.sent.insert(key.clone(), (status, self.ticks));
            self.last_sent = Some(key);
        }
        Ok(())
    }

    /// The Event for a status, if it is news; `None` if the last Event of the object said it
    /// already.
    fn notice(&self, key: &Key, status: &Status) -> Option<Notice> {
        let object = self.objects.by_key.get(key)?;
        let notice = Notice::of(status, &object.uid)?;
        let told = self.told_of.get(key);
        told.is_none_or(|told| !notice.repeats(told)).then_some(notice)
    }

    /// Has all objects listed again if an object that had no room would have some now. The spec of
    /// such an object is not kept, so that it has to be listed.
    fn list_again_if_there_is_room(&mut self) {
        let may_list = self.has_shrunk && self.listed.is_none() && self.ticks >= self.list_after;
        if may_list && self.objects.has_room_again() {
            self.has_shrunk = false;
            self.list_after = self.ticks + LIST_TICKS;
            self.list_again.notify_one();
        }
    }

    /// Lowers the bytes that namespaces have published, and forgets refusals whose time has passed.
    /// If `version` is new, others may have changed the database, so that a new plan is due.
    fn age(&mut self, version: i64) {
        let ticks = self.ticks;
        self.kept.values_mut().for_each(|kept| *kept = kept.saturating_sub(KEPT_OF_TICK));
        self.kept.retain(|_, kept| *kept > 0);
        let refusals = self.refusals.len();
        self.refusals.retain(|_, (_, until)| *until > ticks);
        self.waits.age(ticks);
        self.queue.age(self.begun.elapsed());
        // A plan looks at all statuses again too.
        self.is_due |= self.is_failing
            || refusals != self.refusals.len()
            || ticks.is_multiple_of(RETRY_TICKS)
            || version != self.planned;
        self.planned = version;
    }

    /// The statuses to write. Statuses that mean something new come before statuses that only
    /// change numbers. Within both, namespaces take turns, beginning after the object whose status
    /// was handed over last.
    fn statuses(&mut self, set: &PublishedSet, pods: &Pods) -> Vec<(Key, Status)> {
        let (mut meaningful, mut numbers) = (Vec::new(), Vec::new());
        let mut accepted = 0;
        let now = Timestamp::now();
        for (key, verdict) in &self.verdicts {
            let Some(object) = self.objects.by_key.get(key) else { continue };
            let refused = self.refusals.get(&object.domain).map(|(why, _)| why.as_str());
            let is_accepted =
                matches!(verdict, Verdict::Published | Verdict::Due | Verdict::RollingOut(_));
            accepted += u64::from(is_accepted && refused.is_none());
            let basis = Basis::new(object, verdict, refused, set, pods);
            if self.said.get(key) == Some(&basis) {
                continue;
            }
            let sent = self.sent.get(key);
            let former = sent.map_or(&object.status, |(status, _)| status);
            let status = Status::new(object, &basis, former, now);
            if status == object.status {
                self.said.insert(key.clone(), basis);
                continue;
            }
            let is_waiting = sent.is_some_and(|(_, at)| *at + STATUS_TICKS > self.ticks);
            if is_waiting && status == *former {
                continue;
            }
            match status.differs_in_numbers_alone(former) {
                true if is_waiting => {}
                true => numbers.push((key.clone(), status)),
                false => meaningful.push((key.clone(), status)),
            }
        }
        let all = u64::try_from(self.verdicts.len()).unwrap_or(u64::MAX);
        self.app.objects.accepted.store(accepted, Ordering::Relaxed);
        self.app.objects.refused.store(all.saturating_sub(accepted), Ordering::Relaxed);
        for found in [&mut meaningful, &mut numbers] {
            let first = found.partition_point(|(key, _)| Some(key) <= self.last_sent.as_ref());
            found.rotate_left(first);
            let turns = turns(found.iter().map(|(key, _)| &*key.namespace));
            let mut turned: Vec<_> = std::mem::take(found).into_iter().zip(turns).collect();
            turned.sort_by_key(|it| it.1);
            found.extend(turned.into_iter().map(|it| it.0));
        }
        numbers.truncate(NUMBERS_MAX);
        meaningful.append(&mut numbers);
        meaningful
    }
}

/// The turn of each of these namespaces: 0 for the first time that one is named, 1 for the second.
fn turns<'n>(namespaces: impl Iterator<Item = &'n str>) -> Vec<usize> {
    let mut named: HashMap<&str, usize> = HashMap::new();
    let mut turn = |namespace: &'n str| {
        let turn = named.entry(namespace).or_default();
        *turn += 1;
        *turn - 1
    };
    namespaces.map(&mut turn).collect()
}

/// The documents of texts; without rules if there is no text.
async fn documents(texts: &[PublishedText]) -> Result<Vec<Document>, Problem> {
    let texts = texts.to_vec();
    let all = heavy(move |_| {
        let document = |text: PublishedText| {
            let PublishedText { domain, yaml, .. } = text;
            let Some(yaml) = yaml else { return Ok(Document { domain, ..Document::default() }) };
            let source = Source { name: domain, text: yaml.into_bytes() };
            read(&[source]).map(|mut documents| documents.pop().unwrap_or_default())
        };
        texts.into_iter().map(document).collect::<Result<Vec<_>, _>>()
    });
    Ok(all.await??)
}

/// Makes the drafts of domains what objects say, and notes which object defines each. Returns the
/// texts with the number of the last change of each draft; `None` if one changed since it was
/// compared.
async fn replace(
    write: &mut Write,
    batch: &[Change],
    replacements: &[Replacement],
    texts: &[PublishedText],
) -> Result<Option<Vec<PublishedText>>, Problem> {
    let mut replaced = Vec::new();
    for ((change, replacement), text) in batch.iter().zip(replacements).zip(texts) {
        match write.replace(replacement).await {
            Err(StoreError::Moved(_)) => return Ok(None),
            done => done?,
        };
        let owner = change.by.as_ref().map(Key::to_string);
        write.set_owner(&change.domain, owner.as_deref()).await?;
        let (_, changed) = write.draft_state(&change.domain).await?;
        replaced.push(PublishedText { changed, ..text.clone() });
    }
    write.check_all_drafts().await?;
    Ok(Some(replaced))
}

/// The reason why a publication was refused, in one text.
fn why(problem: Problem) -> String {
    let first = problem.errors.into_iter().next();
    let first = first.map(|it| format!(": {}: {}", it.field, it.message)).unwrap_or_default();
    format!("{}{first}", problem.detail)
}

/// The reason that history shows for a version of these changes.
fn reason(batch: &[Change]) -> String {
    let first = batch.first().map(|it| match &it.by {
        Some(key) => format!("RateLimitRules {key}"),
        None => {
            format!("the object of the domain '{}' is gone", ratelease_rules::excerpt(&it.domain))
        }
    });
    match batch.len().saturating_sub(1) {
        0 => first.unwrap_or_default(),
        more => format!("{}, and {more} more", first.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_refused_again_waits_twice_as_long_up_to_ten_minutes() {
        let mut waits = Waits::default();
        let mut tick = 0;
        let mut waited = Vec::new();
        for _ in 0..7 {
            let until = waits.refuse("shop", tick);
            // A refusal during the wait does not make the wait longer.
            assert_eq!(waits.refuse("shop", until - 1), until);
            waited.push(until - tick);
            tick = until;
            waits.age(tick);
        }
        assert_eq!(waited, [30, 60, 120, 240, 480, 600, 600]);
        assert_eq!((waits.of("shop"), waits.of("bank")), (600, 0));
        waits.age(tick + 600);
        assert_eq!(waits.of("shop"), 0);
    }

    #[test]
    fn each_namespace_has_its_first_turn_before_another_has_its_second() {
        assert_eq!(turns(["shop", "evil", "evil", "bank", "evil"].into_iter()), [0, 0, 1, 0, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_database_does_not_answer_ends() {
        let found = within(CHECK_MAX, "the lock", std::future::pending::<()>()).await;
        let error = found.unwrap_err().to_string();
        assert!(error.contains("the lock has taken more than 10s"), "{error}");
    }

    fn domain(name: &str, hash: &str) -> DraftDomain {
        DraftDomain {
            name: name.to_owned(),
            changed: 5,
            rules: 1,
            is_changed: false,
            changed_at: None,
            changed_by: Vec::new(),
            approvals: 0,
            owner: Some("shop/limits".to_owned()),
            hash: Some(hash.to_owned()),
        }
    }

    #[test]
    fn all_domains_are_read_again_if_others_have_written_too() {
        let by_name = BTreeMap::from([("shop".to_owned(), domain("shop", "a"))]);
        let mut domains = Domains { change: 7, by_name };
        let written = |first| Written { first, last: 12, domains: vec![domain("shop", "b")] };
        domains.note(written(9));
        assert_eq!(domains.change, 7, "all are read again");
        domains.note(written(8));
        assert_eq!((domains.change, &domains.by_name["shop"].hash), (12, &Some("b".to_owned())));
    }

    #[test]
    fn what_was_written_counts_in_the_share_of_its_namespace_though_others_have_written_too() {
        let mut domains = Domains { change: 7, by_name: BTreeMap::new() };
        let change = |domain: &str| Change {
            domain: domain.to_owned(),
            by: None,
            namespace: "shop".to_owned(),
        };
        // The first half of a batch, after others have written.
        domains.note(Written { first: 9, last: 12, domains: vec![domain("shop.1", "a")] });
        let share = |any_domain| {
            let callers = domains.callers(&[change("shop.2")], &any_domain);
            callers.into_iter().map(|it| it.domains().unwrap().to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(share(BTreeSet::new()), [["shop.1", "shop.2"]]);
        assert!(share(BTreeSet::from(["shop".to_owned()])).is_empty());
    }

    /// An object whose rules have so many bytes, with its domain.
    fn object(key: &str, bytes: usize) -> Object {
        let (namespace, name) = key.split_once('/').unwrap();
        let text = "x".repeat(bytes - name.len());
        Object {
            key: Key { namespace: namespace.to_owned(), name: name.to_owned() },
            uid: String::new(),
            created: 1,
            generation: 1,
            domain: name.to_owned(),
            rollout: None,
            rules: Ok(object::Rules { text, hash: None, count: 1 }),
            status: Status::default(),
        }
    }

    #[test]
    fn one_that_had_no_room_has_some_again_when_enough_of_others_is_gone() {
        let mut objects = Objects::default();
        let sizes = [BYTES_OF_NAMESPACE_MAX - 1000, 400, 500];
        for (at, bytes) in sizes.into_iter().enumerate() {
            objects.insert(object(&format!("shop/{at}"), bytes));
        }
        let late = object("shop/late", 600);
        assert!(!objects.has_room_for("shop", late.bytes()) && objects.has_room_for("bank", 600));
        objects.too_large.insert(late.key, 600);
        assert!(!objects.has_room_again());
        objects.remove(&Key { namespace: "shop".to_owned(), name: "1".to_owned() });
        assert!(!objects.has_room_again(), "it still lacks some");
        objects.remove(&Key { namespace: "shop".to_owned(), name: "2".to_owned() });
        assert!(objects.has_room_again());
        objects.remove(&Key { namespace: "shop".to_owned(), name: "late".to_owned() });
        assert!(!objects.has_room_again(), "it is gone");
    }

    #[test]
    fn in_a_list_one_that_had_no_room_takes_none_of_those_that_have() {
        let mut objects = Objects::default();
        objects.insert(object("shop/a", 1));
        objects.too_large.insert(object("shop/a", 1).key, 600);
        objects.insert(object("shop/b", BYTES_OF_NAMESPACE_MAX - 500));
        let (a, b) = (object("shop/a", 1).key, object("shop/b", 1).key);
        let mut listed = Objects::default();
        assert!(!objects.has_room_in_place(&listed, &a, 600), "{b:?} is to come");
        assert!(objects.has_room_in_place(&listed, &a, 400));
        assert!(objects.has_room_in_place(&listed, &b, BYTES_OF_NAMESPACE_MAX - 400), "it grows");
        listed.insert(object("shop/b", BYTES_OF_NAMESPACE_MAX - 700));
        assert!(!objects.has_room_in_place(&listed, &a, 600), "it has shrunk in the list alone");
        assert!(listed.has_room_in_place(&listed, &a, 600));
    }

    #[test]
    fn only_a_namespace_that_lacks_some_may_have_more() {
        let mut objects = Objects::default();
        objects.incomplete.insert("shop".to_owned());
        assert!(objects.lacks_some_of("shop") && !objects.lacks_some_of("bank"));
    }
}
