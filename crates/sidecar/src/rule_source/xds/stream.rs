//! One stream after the other: requests, responses, and the waits between.

use std::collections::HashMap;
use std::error::Error;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use ratelease_cli::settings::{Xds, XdsRetry};
use ratelease_engine::rng::{fraction, next_u64};
use ratelease_rules::excerpt;
use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Extensions, Request, Status, Streaming};
use tracing::{info, warn};

use super::connect::{connect, innermost, warn_of_plaintext, with_hint};
use super::discovery::stream_aggregated_resources;
use super::load_report::{LoadReporter, Reporting, report};
use super::rule_set::{Answer, AnswerKind, RuleSet};
use super::status::XdsStatus;
use super::wire::{DiscoveryRequest, DiscoveryResponse, MEMORY_KEY, Node, Struct, text_value};
use crate::rule_source::memory;

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
pub(super) struct Client {
    pub(super) settings: Arc<Xds>,
    pub(super) rules: RuleSet,
    pub(super) status: XdsStatus,
    /// What the server may ask for.
    pub(super) loads: Option<Arc<Mutex<LoadReporter>>>,
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
    pub(super) async fn run(&mut self) {
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
                    for request in self.rules.catch_up().await {
                        // A server that does not read is found by the next answer.
                        if let Some(requests) = requests {
                            let _ = requests.try_send(request);
                        }
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
        let (settings, node) = (Arc::clone(&self.settings), node(&self.settings));
        let reporter = Arc::clone(self.loads.as_ref()?);
        let task = tokio::spawn(report(channel, settings, node, reporter));
        Some(Reporting(task.abort_handle()))
    }

    /// Follows the server until the stream ends.
    async fn follow(&mut self, channel: Channel) -> Ended {
        let mut was_useful = false;
        let requests = self.rules.begin(&node(&self.settings));
        let opening = open(channel.clone(), requests, Arc::clone(&self.settings));
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
                    let Some(Answer { requests: answers, kind }) = self.rules.take(response).await
                    else {
                        sleep(ANSWER_PAUSE).await;
                        continue;
                    };
                    if kind == AnswerKind::RefusedAgain {
                        // Nothing is done meanwhile that the refusal would then contradict.
                        sleep(REFUSAL_PAUSE).await;
                    }
                    was_useful |= matches!(kind, AnswerKind::Accepted | AnswerKind::AcceptedFirst);
                    if answers.into_iter().all(|it| open.requests.try_send(it).is_ok()) {
                        // The first sets of all types are put in force together, at once.
                        if kind != AnswerKind::AcceptedFirst {
                            sleep(ANSWER_PAUSE).await;
                        }
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

/// Opens a stream that begins with these requests.
async fn open(
    channel: Channel,
    first: Vec<DiscoveryRequest>,
    settings: Arc<Xds>,
) -> Result<Open, String> {
    let (requests, waiting) = mpsc::channel(REQUESTS_MAX);
    for request in first {
        // There is room for all of them.
        let _ = requests.try_send(request);
    }
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
    let memory = memory::limit_of_process().map(|bytes| (MEMORY_KEY.to_owned(), bytes.to_string()));
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

#[cfg(test)]
mod tests;
