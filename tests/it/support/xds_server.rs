//! An ADS server that a test controls: it sends sets, ends streams, and keeps the requests that it
//! receives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
use envoy_types::pb::google::protobuf::Any;
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use futures_util::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::collector::{Tls, acceptor, serve};
use super::papers::Papers;

/// The type of Envoy's rate limit service.
pub(crate) const CONFIG_TYPE: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The type of ratelease's own rule files.
pub(crate) const RULES_TYPE: &str = "type.googleapis.com/ratelease.config.v1.Rules";

/// Maximum time until the client answers.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Maximum size of a message that this server sends.
const MESSAGE_BYTES_MAX: usize = 128 << 20;

/// A server that listens until the test's runtime ends. Like go-control-plane, it sends its present
/// sets to a client that begins a stream.
#[derive(Clone)]
pub(crate) struct XdsServer {
    pub(crate) addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The present set of each type.
    sets: Vec<DiscoveryResponse>,
    requests: Vec<DiscoveryRequest>,
    streams: Vec<mpsc::UnboundedSender<DiscoveryResponse>>,
    begun: usize,
    /// Whether a set that is refused is sent again at once.
    resends: bool,
}

// === impl XdsServer ===

impl XdsServer {
    pub(crate) async fn start() -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into()).await
    }

    pub(crate) async fn start_at(addr: SocketAddr) -> Self {
        let (server, listener) = Self::bound(addr).await;
        serve(listener, server.routes());
        server
    }

    /// Starts one that requires client certificates.
    pub(crate) async fn tls(papers: &Papers) -> Self {
        let (server, tcp) = Self::bound(([127, 0, 0, 1], 0).into()).await;
        serve(Tls { tcp, acceptor: acceptor(papers) }, server.routes());
        server
    }

    async fn bound(addr: SocketAddr) -> (Self, TcpListener) {
        let listener = TcpListener::bind(addr).await.unwrap();
        let addr = listener.local_addr().unwrap();
        (Self { addr, state: Arc::default() }, listener)
    }

    fn routes(&self) -> axum::Router {
        let service = AggregatedDiscoveryServiceServer::new(self.clone());
        let service = service.max_encoding_message_size(MESSAGE_BYTES_MAX);
        Routes::new(service).into_axum_router()
    }

    /// Makes this the present set of its type, and sends it.
    pub(crate) fn set(&self, version: &str, resources: Vec<Any>) {
        self.set_of(CONFIG_TYPE, version, resources);
    }

    pub(crate) fn set_of(&self, type_url: &str, version: &str, resources: Vec<Any>) {
        let response = response(type_url, version, resources);
        let mut state = self.state.lock();
        state.sets.retain(|set| set.type_url != type_url);
        state.sets.push(response.clone());
        state.send(&response);
    }

    /// Sends a response of which nothing is kept.
    pub(crate) fn send(&self, response: &DiscoveryResponse) {
        self.state.lock().send(response);
    }

    /// Ends all streams.
    pub(crate) fn end_streams(&self) {
        self.state.lock().streams.clear();
    }

    /// From now on a set that is refused is sent again at once, as go-control-plane does while the
    /// version that is accepted is not that of its set.
    pub(crate) fn resend_refused(&self) {
        self.state.lock().resends = true;
    }

    /// Number of streams that were begun.
    pub(crate) fn streams(&self) -> usize {
        self.state.lock().begun
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<DiscoveryRequest> {
        self.state.lock().requests.clone()
    }

    /// Waits for the answer to the response with this nonce: the accepted version, and the reason
    /// of a refusal.
    pub(crate) async fn answer_to(&self, nonce: &str) -> (String, Option<(i32, String)>) {
        let answer = async {
            loop {
                let requests = self.requests();
                if let Some(found) = requests.into_iter().rfind(|it| it.response_nonce == nonce) {
                    let refusal = found.error_detail.map(|error| (error.code, error.message));
                    return (found.version_info, refusal);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let answer = tokio::time::timeout(ANSWER_MAX, answer).await;
        answer.unwrap_or_else(|_| panic!("no answer to {nonce} within {ANSWER_MAX:?}"))
    }

    /// Waits until the set of this version is accepted.
    pub(crate) async fn accepted(&self, version: &str) {
        assert_eq!(self.answer_to(&nonce(version)).await, (version.to_owned(), None));
    }
}

impl State {
    fn send(&mut self, response: &DiscoveryResponse) {
        self.streams.retain(|stream| stream.send(response.clone()).is_ok());
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for XdsServer {
    type StreamAggregatedResourcesStream = BoxStream<'static, Result<DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream =
        BoxStream<'static, Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut requests = request.into_inner();
        {
            let mut state = self.state.lock();
            state.begun += 1;
            state.streams.push(sender.clone());
        }
        let (state, sender) = (Arc::clone(&self.state), sender.downgrade());
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                let mut state = state.lock();
                let set = state.sets.iter().find(|set| set.type_url == request.type_url).cloned();
                let is_wanted = request.response_nonce.is_empty()
                    || state.resends && request.error_detail.is_some();
                if let Some(set) = set.filter(|_| is_wanted)
                    && let Some(sender) = sender.upgrade()
                {
                    // An error means that the stream has ended.
                    let _ = sender.send(set);
                }
                state.requests.push(request);
            }
        });
        let sent = stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|response| (Ok(response), receiver))
        });
        Ok(Response::new(sent.boxed()))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }
}

/// A set with the nonce of its version.
pub(crate) fn response(type_url: &str, version: &str, resources: Vec<Any>) -> DiscoveryResponse {
    DiscoveryResponse {
        version_info: version.to_owned(),
        type_url: type_url.to_owned(),
        nonce: nonce(version),
        resources,
        ..DiscoveryResponse::default()
    }
}

/// The nonce of a set.
pub(crate) fn nonce(version: &str) -> String {
    format!("nonce-{version}")
}

/// A resource of this name and domain, with a limit a year for each key.
pub(crate) fn config(name: &str, domain: &str, limits: &[(&str, u32)]) -> Any {
    const YEAR: i32 = 6;
    let descriptor = |(key, requests_per_unit): &(&str, u32)| {
        let requests_per_unit = *requests_per_unit;
        let policy = RateLimitPolicy { unit: YEAR, requests_per_unit, ..Default::default() };
        RateLimitDescriptor {
            key: (*key).to_owned(),
            rate_limit: Some(policy),
            ..Default::default()
        }
    };
    let descriptors = limits.iter().map(descriptor).collect();
    any(CONFIG_TYPE, &RateLimitConfig { name: name.into(), domain: domain.into(), descriptors })
}

pub(crate) fn any(type_url: &str, message: &impl Message) -> Any {
    Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }
}
