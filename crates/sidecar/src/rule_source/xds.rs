//! Rules from an xDS server: ADS, state of the world. The last good set stays in force whatever the
//! server does, and is kept in the snapshot.
//!
//! ```text
//! stream ─▶ resource: text ─▶ rule_set ─▶ pushed, watch: compile, put in force
//!    └◀──── accepted, or all faults ◀────────┘
//! ```
//! A stream has one type of resources: rule files, or Envoy's `RateLimitConfig`.
//!
//! `load_report` sends the server the hits of domains and hot keys, if it asks. The stream runs on
//! the thread of pages, and a thread that may block reads responses. Rules are compiled on the
//! thread of rules, as those of files are.

mod connect;
mod load_report;
mod pushed;
mod resource;
mod rule_set;
mod wire;

use std::collections::HashMap;
use std::error::Error;
use std::future::pending;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, stream};
use parking_lot::Mutex as SyncMutex;
use ratelease_cli::settings::{Xds, XdsRetry};
use ratelease_engine::rng::{fraction, next_u64};
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::{Options, Source, excerpt};
use ratelease_server::current_rules::CurrentRules;
use ratelease_server::hot_keys::HotKeys;
use ratelease_server::metrics::Meters;
use ratelease_server::metrics::counter::{Count, Counter};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Extensions, Request, Status, Streaming};
use tracing::{info, warn};

use super::memory::MemoryLeft;
use super::snapshot::Snapshot;
use super::watch::Watcher;
use crate::control_group::memory_limit;
use connect::{connect, innermost, warn_of_plaintext, with_hint};
use load_report::{LoadReporter, Reporting, report};
use pushed::pushed;
use resource::ResourceType;
use rule_set::{Answer, AnswerKind, RuleSet};
use wire::{DiscoveryRequest, DiscoveryResponse, MEMORY_KEY, Node, Struct};
use wire::{stream_aggregated_resources, text_value};

/// Pause after a panic.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// Follows an xDS server; dropping it ends that.
#[derive(Debug)]
pub struct XdsWatch {
    watcher: Watcher,
    stream: AbortHandle,
    status: XdsStatus,
}

// === impl XdsWatch ===

impl XdsWatch {
    /// Puts the rules of `snapshot` in force, if it has any, and starts to follow the server, on
    /// `runtime`. The server may ask for the hits that are `counted`, if it serves rules of
    /// ratelease's own type.
    ///
    /// # Errors
    /// Fails if the thread that compiles the rules cannot be started.
    pub fn start(
        settings: Xds,
        options: Options,
        published: &Arc<CurrentRules>,
        snapshot: Option<Arc<Snapshot>>,
        clock: Clock,
        counted: Option<(Meters, HotKeys)>,
        runtime: &Handle,
    ) -> io::Result<Self> {
        let wanted = match (settings.own_rules, settings.settles_own_hits) {
            (true, _) => ResourceType::Rules,
            (false, settles_own_hits) => ResourceType::RateLimitConfig { settles_own_hits },
        };
        let status = XdsStatus::new(&settings.server.to_string(), wanted, clock);
        let merges_domains = options.merge_domains;
        let memory = MemoryLeft::of_process();
        let (load, pusher) = pushed(options, memory.clone());
        let (watcher, wake, kept) = Watcher::spawn_pushed(load, Arc::clone(published), snapshot)?;
        let pusher = pusher(wake);
        let rules = RuleSet::new(wanted, merges_domains, pusher, memory, status.clone(), clock);
        let counted = counted.filter(|_| settings.own_rules);
        let loads = counted.map(|it| Arc::new(Mutex::new(LoadReporter::new(it, clock))));
        let client = Client { settings: Arc::new(settings), rules, status: status.clone(), loads };
        let stream = runtime.spawn(follow(client, kept)).abort_handle();
        Ok(Self { watcher, stream, status })
    }

    /// The state of the stream.
    pub fn status(&self) -> XdsStatus {
        self.status.clone()
    }

    /// Ends it: the caller goes on while the threads end.
    pub fn stop(&self) {
        self.stream.abort();
        self.watcher.stop();
    }
}

/// Follows the server until the task is aborted. `kept` are the rules of the snapshot that are in
/// force.
async fn follow(mut client: Client, kept: oneshot::Receiver<Vec<Arc<Source>>>) {
    // An error means that the thread of rules has ended, and with it the process.
    client.rules.seed(&kept.await.unwrap_or_default());
    loop {
        // It returns only by a panic, after which the server must still be followed.
        let _ = AssertUnwindSafe(client.run()).catch_unwind().await;
        client.status.note_failure("internal error; see the log");
        sleep(PANIC_PAUSE).await;
    }
}

impl Drop for XdsWatch {
    fn drop(&mut self) {
        self.stop();
    }
}

// One stream after the other: requests, responses, and the waits between.

/// Maximum number of requests on their way to the server. A server that takes none of so many does
/// not read.
const REQUESTS_MAX: usize = 16;

/// Pause after each answer: rules change at most ten times a second, whatever the server sends.
const ANSWER_PAUSE: Duration = Duration::from_millis(100);

/// Pause before a set is refused that was refused before: many servers send it again at once.
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);

/// The name of this program in the node that is sent to the server.
const AGENT: &str = "ratelease";

/// A client of an xDS server.
#[derive(Debug)]
struct Client {
    settings: Arc<Xds>,
    rules: RuleSet,
    status: XdsStatus,
    /// What the server may ask for.
    loads: Option<Arc<Mutex<LoadReporter>>>,
}

/// Why a stream ended.
struct Ended {
    why: String,
    /// Whether a set of rules was accepted on it.
    was_useful: bool,
}

/// An open stream.
struct Open {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

// === impl Client ===

impl Client {
    /// Follows the server. It does not return.
    async fn run(&mut self) {
        warn_of_plaintext(&self.settings);
        let mut useless = 0;
        loop {
            let retry = self.settings.retry();
            let (why, wait) = match self.connect().await {
                Err(why) => (why, retry.connect),
                Ok(channel) => {
                    let Ended { why, was_useful } = self.follow(channel).await;
                    useless = if was_useful { 0 } else { useless + 1 };
                    (why, wait_after_stream(&retry, useless))
                }
            };
            if self.status.note_failure(&why) {
                let server = &self.settings.server;
                warn!("no rules from the xDS server {server}: {why}; the last ones stay in force");
            }
            self.meanwhile(None, sleep(jittered(wait, retry.jitter))).await;
        }
    }

    /// Awaits `other`, and meanwhile does what is due: resources that the server no longer sends
    /// go, and a set that lacked memory is tried again. An open stream is sent what becomes of
    /// that.
    async fn meanwhile<T>(
        &mut self,
        requests: Option<&mpsc::Sender<DiscoveryRequest>>,
        other: impl Future<Output = T>,
    ) -> T {
        tokio::pin!(other);
        loop {
            tokio::select! {
                done = &mut other => return done,
                () = self.rules.until_due() => {
                    let request = self.rules.catch_up().await;
                    // A server that does not read is found by the next answer.
                    if let (Some(requests), Some(request)) = (requests, request) {
                        let _ = requests.try_send(request);
                    }
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<Channel, String> {
        let settings = Arc::clone(&self.settings);
        let channel = self.meanwhile(None, async move { connect(&settings).await }).await?;
        self.status.note_stream();
        info!("connected to the xDS server {}", self.settings.server);
        Ok(channel)
    }

    /// Reports hits on this channel until the result is dropped, if the server asks for them.
    fn report(&self, channel: Channel) -> Option<Reporting> {
        let settings = Arc::clone(&self.settings);
        let node = node(&self.settings);
        let reporter = Arc::clone(self.loads.as_ref()?);
        let task = tokio::spawn(report(channel, settings, node, reporter));
        Some(Reporting(task.abort_handle()))
    }

    /// Follows the server until the stream ends.
    async fn follow(&mut self, channel: Channel) -> Ended {
        let mut was_useful = false;
        let first = self.rules.begin(node(&self.settings));
        let opening = open(channel.clone(), first, Arc::clone(&self.settings));
        // Many servers send nothing, headers included, before their first set.
        let mut open = match self.meanwhile(None, opening).await {
            Ok(open) => open,
            Err(why) => return Ended { why: with_hint(why, &self.settings), was_useful },
        };
        let _reporting = self.report(channel);
        loop {
            let requests = Some(&open.requests);
            let response = self.meanwhile(requests, open.responses.message()).await;
            let why = match response {
                Ok(Some(response)) => {
                    let Some(Answer { request, kind }) = self.rules.take(response).await else {
                        sleep(ANSWER_PAUSE).await;
                        continue;
                    };
                    if kind == AnswerKind::RefusedAgain {
                        // Nothing is done meanwhile that the refusal would then contradict.
                        sleep(REFUSAL_PAUSE).await;
                    }
                    was_useful |= kind == AnswerKind::Accepted;
                    if open.requests.try_send(request).is_ok() {
                        sleep(ANSWER_PAUSE).await;
                        continue;
                    }
                    "the server does not read".to_owned()
                }
                Ok(None) => "the server ended the stream".to_owned(),
                Err(status) => reason(&status),
            };
            return Ended { why, was_useful };
        }
    }
}

/// Opens a stream that begins with this request.
async fn open(
    channel: Channel,
    first: DiscoveryRequest,
    settings: Arc<Xds>,
) -> Result<Open, String> {
    let (requests, waiting) = mpsc::channel(REQUESTS_MAX);
    let _ = requests.try_send(first); // there is room for it
    let outgoing = stream::unfold(waiting, |mut waiting| async move {
        match waiting.recv().await {
            Some(request) => Some((request, waiting)),
            // The stream is ended by dropping it.
            None => pending().await,
        }
    });
    let headers = MetadataMap::from_headers(settings.headers.clone());
    let request = Request::from_parts(headers, Extensions::default(), outgoing);
    let opened = stream_aggregated_resources(channel, request, settings.message_bytes_max).await;
    let responses = opened.map_err(|status| reason(&status))?;
    Ok(Open { requests, responses })
}

/// Why a stream failed: what broke the connection, or what the server says.
fn reason(status: &Status) -> String {
    match status.source() {
        Some(source) => innermost(source),
        None => format!("{:?}: {}", status.code(), excerpt(status.message())),
    }
}

/// How this process presents itself.
fn node(settings: &Xds) -> Node {
    let memory = memory_limit().map(|bytes| (MEMORY_KEY.to_owned(), bytes.to_string()));
    let metadata = memory.into_iter().chain(settings.node_metadata.clone());
    let fields: HashMap<_, _> = metadata.map(|(key, value)| (key, text_value(&value))).collect();
    let metadata = (!fields.is_empty()).then_some(Struct { fields });
    Node {
        id: settings.node_id.clone(),
        metadata,
        user_agent_name: AGENT.to_owned(),
        ..Node::default()
    }
}

/// The wait after a stream that ended, of which `useless` in a row brought no set.
fn wait_after_stream(retry: &XdsRetry, useless: u32) -> Duration {
    let doubled = retry.first.saturating_mul(2_u32.saturating_pow(useless.saturating_sub(1)));
    doubled.min(retry.last)
}

fn jittered(wait: Duration, jitter: f32) -> Duration {
    wait.mul_f64(1.0 - f64::from(jitter) * fraction(next_u64()))
}

// The state of the stream, for the pages and the metrics.

/// Maximum bytes of the text of a refusal that are kept.
const REFUSAL_BYTES_MAX: usize = 2048;

/// Maximum number of different reasons that are logged until a set is accepted.
const LOGGED_MAX: usize = 8;

/// The state of the stream. A cheap handle: clones share it.
#[derive(Debug, Clone)]
pub struct XdsStatus {
    clock: Clock,
    server: Arc<str>,
    wanted: ResourceType,
    state: Arc<SyncMutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    is_connected: bool,
    streams: u64,
    failures: u64,
    last_failure: Option<String>,
    /// The reasons that were logged since a set was accepted.
    logged: Vec<String>,
    version: String,
    accepted: u64,
    accepted_at: Option<Time>,
    refused: u64,
    refused_at: Option<Time>,
    last_refusal: Option<String>,
}

// === impl State ===

impl State {
    /// Notes why there are no new rules. Returns whether the reason was not logged since a set was
    /// accepted.
    fn note_reason(&mut self, why: &str) -> bool {
        self.last_failure = Some(why.to_owned());
        let is_new = self.logged.len() < LOGGED_MAX && !self.logged.iter().any(|it| it == why);
        if is_new {
            self.logged.push(why.to_owned());
        }
        is_new
    }
}

// === impl XdsStatus ===

impl XdsStatus {
    fn new(server: &str, wanted: ResourceType, clock: Clock) -> Self {
        Self { clock, server: server.into(), wanted, state: Arc::default() }
    }

    fn note_stream(&self) {
        let mut state = self.state.lock();
        state.is_connected = true;
        state.streams += 1;
    }

    /// Records the end of a stream, or an attempt that failed. Returns whether the reason is
    /// another one than the last.
    fn note_failure(&self, why: &str) -> bool {
        let mut state = self.state.lock();
        state.is_connected = false;
        state.failures += 1;
        state.note_reason(why)
    }

    /// Records a response of a type that was not asked for, and warns of it.
    fn note_unasked(&self, type_url: &str) {
        let name = |url: &str| excerpt(url.rsplit('/').next().unwrap_or_default());
        let (sent, wanted) = (name(type_url), name(self.wanted.url()));
        let why = format!(
            "the server sent resources of the type {sent}, which are ignored: this pod asks for \
             {wanted} alone (CONFIG_GRPC_XDS_RATELEASE chooses the type)"
        );
        if self.state.lock().note_reason(&why) {
            warn!("the xDS server {}: {why}", self.server);
        }
    }

    fn note_accepted(&self, version: &str) {
        let mut state = self.state.lock();
        state.accepted += 1;
        state.accepted_at = Some(self.clock.now());
        state.version = excerpt(version);
        state.last_failure = None;
        state.logged.clear();
    }

    fn note_refused(&self, faults: &[String]) {
        let mut text = faults.join("\n");
        text.truncate(text.floor_char_boundary(REFUSAL_BYTES_MAX));
        let mut state = self.state.lock();
        state.refused += 1;
        state.refused_at = Some(self.clock.now());
        state.last_refusal = Some(text);
    }

    /// The state as JSON, for `/status`.
    pub fn json(&self) -> Value {
        let state = self.state.lock();
        let age = |at: Option<Time>| at.map(|at| self.clock.now().since(at).as_secs_f64());
        json!({
            "server": *self.server,
            "type": self.wanted.url(),
            "connected": state.is_connected,
            "streams": state.streams,
            "failures": state.failures,
            "last_failure": state.last_failure,
            "version": state.version,
            "accepted": state.accepted,
            "accepted_seconds_ago": age(state.accepted_at),
            "refused": state.refused,
            "refused_seconds_ago": age(state.refused_at),
            "last_refusal": state.last_refusal,
        })
    }

    /// Event counts since the process began, and present levels.
    pub fn counts(&self) -> Vec<Count> {
        let state = self.state.lock();
        vec![
            (Counter::XdsConnected, u64::from(state.is_connected)),
            (Counter::XdsStreams, state.streams),
            (Counter::XdsFailures, state.failures),
            (Counter::XdsAccepted, state.accepted),
            (Counter::XdsRefused, state.refused),
        ]
    }
}

#[cfg(test)]
mod tests;
