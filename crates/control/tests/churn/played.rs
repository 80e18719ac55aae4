use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use discovery::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterStats, UpstreamLocalityStats};
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
use envoy_types::pb::envoy::service::load_stats::v3 as load_stats;
use load_stats::load_reporting_service_client::LoadReportingServiceClient;
use load_stats::{LoadStatsRequest, LoadStatsResponse};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

use crate::route::{Replicas, Route};
use crate::support::now;
use crate::support::rng::Rng;

const RULES: &str = "type.googleapis.com/ratelease.config.v1.Rules";

/// A pod leaves a server that has said nothing for so long, as ratelease does.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Pause between two reports, as the server asks for where no rollout is under way.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// A pod is restarted once in so long, on average.
const LIFE: Duration = Duration::from_secs(600);

/// A rule file as a resource.
#[derive(Clone, PartialEq, Message)]
struct Rules {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    yaml: String,
}

/// A pod that the test plays: it answers each set, and reports, as ratelease does.
pub(crate) struct Played {
    pub(crate) name: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The texts of the newest set, by domain.
    texts: Mutex<BTreeMap<String, String>>,
    connections: AtomicU64,
    sets: AtomicU64,
}

/// The streams of one connection.
struct Streams {
    requests: mpsc::Sender<DiscoveryRequest>,
    sets: Streaming<DiscoveryResponse>,
    reports: mpsc::Sender<LoadStatsRequest>,
    asked: Streaming<LoadStatsResponse>,
}

// === impl Played ===

impl Played {
    pub(crate) async fn begin(name: &str, replicas: &Arc<Replicas>, rng: Rng) -> Self {
        let route = Route::open(name, replicas).await;
        let state = Arc::new(State::default());
        let (of_task, name) = (Arc::clone(&state), name.to_owned());
        tokio::spawn(live(of_task, route, name.clone(), rng));
        Self { name, state }
    }

    /// The limit of each domain, by the newest set.
    pub(crate) fn limits(&self) -> BTreeMap<String, u32> {
        let texts = self.state.texts.lock();
        texts.iter().map(|(domain, text)| (domain.clone(), limit_of(text))).collect()
    }

    pub(crate) fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn sets(&self) -> u64 {
        self.state.sets.load(Ordering::Relaxed)
    }
}

/// The number behind `requests_per_unit`, of a text with one rule.
pub(crate) fn limit_of(text: &str) -> u32 {
    let (_, behind) = text.split_once("requests_per_unit").expect("a limit");
    let number = behind.trim_start_matches([':', '=', ' ']);
    let number: String = number.chars().take_while(char::is_ascii_digit).collect();
    number.parse().unwrap_or_else(|_| panic!("a limit in {text}"))
}

/// Connects, and again whenever the connection ends.
async fn live(state: Arc<State>, route: Arc<Route>, name: String, mut rng: Rng) {
    loop {
        if let Ok(streams) = Streams::open(&route, &name).await {
            route.is_restarting.store(false, Ordering::Relaxed);
            state.connections.fetch_add(1, Ordering::Relaxed);
            let life = LIFE.mul_f64(2.0 * rng.fraction());
            tokio::select! {
                _ = streams.serve(&state, &name) => {}
                () = sleep(life) => route.is_restarting.store(true, Ordering::Relaxed),
            }
        }
        sleep(Duration::from_secs_f64(0.1 + rng.fraction())).await;
    }
}

// === impl Streams ===

impl Streams {
    async fn open(route: &Route, name: &str) -> Result<Self, Status> {
        let unavailable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
        let url = format!("http://{}", route.address);
        let channel = Endpoint::from_shared(url).map_err(unavailable)?;
        let channel = channel.connect().await.map_err(unavailable)?;
        let (id, user_agent_name) = (name.to_owned(), "ratelease".to_owned());
        let node = Some(Node { id, user_agent_name, ..Node::default() });
        let (requests, of_server) = mpsc::channel(8);
        let (reports, of_reports) = mpsc::channel(8);
        let type_url = RULES.to_owned();
        let first = DiscoveryRequest { node: node.clone(), type_url, ..Default::default() };
        let _ = requests.send(first).await;
        let _ = reports.send(LoadStatsRequest { node, cluster_stats: Vec::new() }).await;
        let sets = AggregatedDiscoveryServiceClient::new(channel.clone())
            .max_decoding_message_size(64 << 20)
            .stream_aggregated_resources(ReceiverStream::new(of_server))
            .await?;
        let asked = LoadReportingServiceClient::new(channel)
            .stream_load_stats(ReceiverStream::new(of_reports))
            .await?;
        Ok(Self { requests, sets: sets.into_inner(), reports, asked: asked.into_inner() })
    }

    /// Answers until a stream ends, or the server is silent for too long.
    async fn serve(mut self, state: &State, name: &str) -> Option<()> {
        let mut silent = Instant::from(now()) + SILENCE_MAX;
        let mut report = Instant::from(now()) + REPORT_EVERY;
        loop {
            tokio::select! {
                set = self.sets.message() => {
                    let set = set.ok()??;
                    silent = Instant::from(now()) + SILENCE_MAX;
                    self.take(set, state).await?;
                }
                asked = self.asked.message() => {
                    asked.ok()??;
                    silent = Instant::from(now()) + SILENCE_MAX;
                }
                () = sleep_until(report) => {
                    report += REPORT_EVERY;
                    self.reports.send(hits(state)).await.ok()?;
                }
                () = sleep_until(silent) => {
                    println!("{name}: silent for {SILENCE_MAX:?}");
                    return None;
                }
            }
        }
    }

    /// Takes a set, and says so.
    async fn take(&self, set: DiscoveryResponse, state: &State) -> Option<()> {
        let rules = set.resources.iter().filter_map(|it| Rules::decode(&*it.value).ok());
        let of_domain = rules.filter(|it| !it.name.contains('@')).map(|it| (it.name, it.yaml));
        *state.texts.lock() = of_domain.collect();
        state.sets.fetch_add(1, Ordering::Relaxed);
        let answer = DiscoveryRequest {
            type_url: set.type_url,
            version_info: set.version_info,
            response_nonce: set.nonce,
            ..DiscoveryRequest::default()
        };
        self.requests.send(answer).await.ok()
    }
}

/// Hits of each domain since the last report, as many as a pod with some traffic has.
fn hits(state: &State) -> LoadStatsRequest {
    let texts = state.texts.lock();
    let of_domain = |domain: &String| ClusterStats {
        cluster_name: domain.clone(),
        upstream_locality_stats: vec![UpstreamLocalityStats {
            total_issued_requests: 10,
            ..Default::default()
        }],
        ..Default::default()
    };
    LoadStatsRequest { node: None, cluster_stats: texts.keys().map(of_domain).collect() }
}
