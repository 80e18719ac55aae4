//! One stream after the other: requests, responses, and the waits between.

use std::error::Error;
use std::time::Duration;

use futures_util::stream;
use ratelease_cli::settings::{Xds, XdsRetry};
use ratelease_engine::rng::{fraction, next_u64};
use ratelease_engine::time::Clock;
use ratelease_rules::{Source, excerpt};
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until};
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Status, Streaming};
use tracing::{debug, info, warn};

use super::connect::{connect, innermost};
use super::pushed::Pusher;
use super::status::XdsStatus;
use super::subscription::{ResourceType, Subscription};
use super::wire::{
    self, AggregatedDiscoveryServiceClient, DiscoveryRequest, DiscoveryResponse, Kind, Node, Struct,
};

/// Requests on their way to the server. Each response is followed by one, and is awaited before the
/// next is read.
const REQUESTS_MAX: usize = 4;

/// What the server is told that this is.
const AGENT: &str = "ratelease";

/// A client of an xDS server.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) settings: Xds,
    pub(super) pusher: Pusher,
    pub(super) status: XdsStatus,
    pub(super) clock: Clock,
    pub(super) subscriptions: Vec<Subscription>,
}

/// Why a stream ended.
struct Ended {
    why: String,
    /// Whether a set of rules was accepted on it.
    was_useful: bool,
    /// Whether there was a stream at all.
    was_connected: bool,
}

/// The open stream.
struct Open {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

// === impl Client ===

impl Client {
    /// Subscribes to the types of the settings.
    pub(super) fn new(settings: Xds, pusher: Pusher, status: XdsStatus, clock: Clock) -> Self {
        let mut subscriptions = vec![Subscription::new(ResourceType::RateLimitConfig)];
        if settings.own_rules {
            subscriptions.push(Subscription::new(ResourceType::Rules));
        }
        Self { settings, pusher, status, clock, subscriptions }
    }

    /// Follows the server for ever.
    pub(super) async fn run(mut self) {
        let mut useless = 0;
        loop {
            let Ended { why, was_useful, was_connected } = self.follow().await;
            let server = &self.settings.server;
            if self.status.note_failure(&why) {
                warn!("no rules from the xDS server {server}: {why}; the last ones stay in force");
            }
            useless = if was_useful { 0 } else { useless + 1 };
            let wait = wait_of(&self.settings.retry, was_connected, useless);
            self.wait(wait).await;
        }
    }

    /// Waits, and lets resources go that the server sends no longer.
    async fn wait(&mut self, wait: Duration) {
        let end = sleep(wait);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return,
                () = self.until_leaving() => self.let_go().await,
            }
        }
    }

    /// Follows the server until the stream ends.
    async fn follow(&mut self) -> Ended {
        let (mut was_useful, mut was_connected) = (false, false);
        let mut open = match self.open().await {
            Ok(open) => open,
            Err(why) => return Ended { why, was_useful, was_connected },
        };
        was_connected = true;
        self.status.note_stream();
        info!("connected to the xDS server {}", self.settings.server);
        loop {
            let response = tokio::select! {
                response = open.responses.message() => response,
                () = self.until_leaving() => {
                    self.let_go().await;
                    continue;
                }
            };
            let why = match response {
                Ok(Some(response)) => {
                    match self.answer(response).await {
                        Some((request, is_accepted)) => {
                            was_useful |= is_accepted;
                            if open.requests.send(request).await.is_ok() {
                                continue;
                            }
                        }
                        None => continue,
                    }
                    "the stream ended".to_owned()
                }
                Ok(None) => "the server ended the stream".to_owned(),
                Err(status) => reason(&status),
            };
            return Ended { why, was_useful, was_connected };
        }
    }

    async fn open(&mut self) -> Result<Open, String> {
        let channel = connect(&self.settings).await?;
        let mut client = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(self.settings.message_bytes_max);
        let (requests, waiting) = mpsc::channel(REQUESTS_MAX);
        let node = node(&self.settings);
        for subscription in &mut self.subscriptions {
            // There is room for all of them.
            let _ = requests.try_send(subscription.begin(node.clone()));
        }
        let outgoing = stream::unfold(waiting, |mut waiting| async move {
            waiting.recv().await.map(|request| (request, waiting))
        });
        let headers = MetadataMap::from_headers(self.settings.headers.clone());
        let request = Request::from_parts(headers, Extensions::default(), outgoing);
        let opened = client.stream_aggregated_resources(request).await;
        let responses = opened.map_err(|status| reason(&status))?;
        Ok(Open { requests, responses: responses.into_inner() })
    }

    /// Puts the rules of a response in force, or refuses it. Returns the request that tells the
    /// server, and whether it accepts; `None` for a response that nobody has asked for.
    async fn answer(&mut self, response: DiscoveryResponse) -> Option<(DiscoveryRequest, bool)> {
        let Some(at) = self.subscriptions.iter().position(|it| it.is_of(&response)) else {
            warn!(
                "the xDS server sent resources of the type {}, which was not asked for",
                excerpt(&response.type_url)
            );
            return None;
        };
        let subscription = self.subscriptions.get_mut(at)?;
        let version = excerpt(&response.version_info);
        let received = match subscription.receive(response) {
            Ok(received) => received,
            Err(faults) => {
                warn!(version, "resources refused: {}", faults.join("; "));
                return self.refuse(at, &faults);
            }
        };
        let subscription = self.subscriptions.get(at)?;
        let own: Vec<Source> = Subscription::sources_of(&received).cloned().collect();
        let leaving: Vec<Source> = subscription.sources_leaving(&received).cloned().collect();
        let others = self.subscriptions.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<Source> = others.flat_map(|(_, it)| it.sources()).cloned().collect();
        let mut with_leaving = !leaving.is_empty();
        let mut outcome = self.pusher.push([own.clone(), others.clone(), leaving].concat()).await;
        if outcome.is_err() && with_leaving {
            // They may contradict what took their place.
            with_leaving = false;
            outcome = self.pusher.push([own, others].concat()).await;
        }
        if let Err(faults) = outcome {
            return self.refuse(at, &faults);
        }
        debug!(version, "resources accepted");
        let now = self.clock.now();
        let subscription = self.subscriptions.get_mut(at)?;
        let request = subscription.accept(received, with_leaving, now);
        self.status.note_accepted(subscription.version());
        Some((request, true))
    }

    fn refuse(&self, at: usize, faults: &[String]) -> Option<(DiscoveryRequest, bool)> {
        self.status.note_refused(faults);
        self.subscriptions.get(at).map(|it| (it.refuse(faults), false))
    }

    /// Resolves when resources have to go that the server sends no longer.
    async fn until_leaving(&self) {
        match self.subscriptions.iter().filter_map(Subscription::leave_at).min() {
            Some(at) => sleep_until(self.clock.instant(at)).await,
            None => std::future::pending().await,
        }
    }

    /// Lets them go.
    async fn let_go(&mut self) {
        let now = self.clock.now();
        let mut has_changed = false;
        for subscription in &mut self.subscriptions {
            has_changed |= subscription.drop_leaving(now);
        }
        if has_changed {
            let sources = self.subscriptions.iter().flat_map(Subscription::sources).cloned();
            // Rules that are good with more resources may not be so without them; the log tells.
            let _ = self.pusher.push(sources.collect()).await;
        }
    }
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
    let text = |text: &str| wire::Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let fields = settings.node_metadata.iter().map(|(key, value)| (key.clone(), text(value)));
    let metadata =
        (!settings.node_metadata.is_empty()).then(|| Struct { fields: fields.collect() });
    Node {
        id: settings.node_id.clone(),
        metadata,
        user_agent_name: AGENT.to_owned(),
        ..Node::default()
    }
}

/// The wait after a stream, or an attempt, of which there were `useless` in a row.
fn wait_of(retry: &XdsRetry, was_connected: bool, useless: u32) -> Duration {
    let nominal = if was_connected {
        let doubled = retry.first.saturating_mul(2_u32.saturating_pow(useless.saturating_sub(1)));
        doubled.min(retry.last)
    } else {
        retry.connect
    };
    nominal.mul_f64(1.0 - f64::from(retry.jitter) * fraction(next_u64()))
}

#[cfg(test)]
mod tests;
