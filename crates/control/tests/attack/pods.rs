//! Attacks on the port of pods, which asks for certificates. An honest pod connects again and again
//! beside them, and has to get what is published, and each change, in time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use discovery::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3 as discovery;
use envoy_types::pb::google::rpc::Status;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::papers::{Paper, Papers};
use crate::scene::{ATTACKED, Scene, allowed, is_full};
use crate::support::{Call, now, rule};

const RULES: &str = "type.googleapis.com/ratelease.config.v1.Rules";

/// Maximum time of an honest pod to connect and to have the rules, and of a change to reach it.
const CHANGE_MAX: Duration = Duration::from_secs(5);

/// The address of the attacker, which is not that of the honest pod.
const FOE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const HONEST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The port of pods with TLS, and certificates for it.
struct Tls {
    papers: Papers,
    foe: Paper,
    dir: TempDir,
}

/// A stream for rules.
struct Pod {
    requests: mpsc::Sender<DiscoveryRequest>,
    responses: Streaming<DiscoveryResponse>,
}

/// What attackers share.
#[derive(Clone)]
struct Foe {
    tls: Arc<Tls>,
    to: SocketAddr,
    sent: Arc<AtomicU64>,
}

// === impl Tls ===

impl Tls {
    fn new() -> Arc<Self> {
        let (papers, dir) = (Papers::new("localhost"), TempDir::new().unwrap());
        let foe = papers.another("foe.test");
        let texts = [("cert", &papers.server.cert), ("key", &papers.server.key)];
        for (name, text) in texts.into_iter().chain([("ca", &papers.root)]) {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        Arc::new(Self { papers, foe, dir })
    }

    async fn begin(&self, name: &str, attack: &str) -> Scene {
        let path = |file: &str| self.dir.path().join(file).display().to_string();
        let (cert, key, ca) = (path("cert"), path("key"), path("ca"));
        let flags = ["--pods-tls-cert", &cert, "--pods-tls-key", &key, "--pods-tls-client-ca", &ca];
        let scene = Scene::begin_with(name, attack, &flags).await;
        publish(&scene, 0).await;
        scene
    }

    fn endpoint(&self, from: IpAddr, to: SocketAddr) -> Endpoint {
        let paper = if from == FOE { &self.foe } else { &self.papers.client };
        let tls = ClientTlsConfig::new()
            .domain_name("localhost")
            .ca_certificate(Certificate::from_pem(&self.papers.root))
            .identity(Identity::from_pem(&paper.cert, &paper.key));
        let endpoint = Channel::from_shared(format!("https://{to}")).unwrap();
        endpoint.tls_config(tls).unwrap().local_address(Some(from))
    }
}

// === impl Pod ===

impl Pod {
    async fn open(channel: Channel, id: &str) -> Option<Self> {
        let client = AggregatedDiscoveryServiceClient::new(channel);
        let mut client = client.max_decoding_message_size(64 << 20);
        let (requests, waiting) = mpsc::channel(8);
        let node = Node { id: id.to_owned(), ..Node::default() };
        let first = DiscoveryRequest { node: Some(node), ..asking() };
        requests.send(first).await.ok()?;
        let responses = client.stream_aggregated_resources(ReceiverStream::new(waiting)).await;
        Some(Self { requests, responses: responses.ok()?.into_inner() })
    }

    async fn next(&mut self) -> Option<DiscoveryResponse> {
        self.responses.message().await.ok().flatten()
    }

    async fn answer(&self, response: &DiscoveryResponse, fault: Option<String>) -> Option<()> {
        let error_detail = fault.map(|message| Status { code: 3, message, details: Vec::new() });
        let request = DiscoveryRequest {
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            error_detail,
            ..asking()
        };
        self.requests.send(request).await.ok()
    }
}

fn asking() -> DiscoveryRequest {
    DiscoveryRequest { type_url: RULES.to_owned(), ..DiscoveryRequest::default() }
}

async fn publish(scene: &Scene, at: usize) {
    let rule = rule(ATTACKED, "change", &at.to_string(), 5);
    let call = Call::new("POST", "/v1/rules?publish=true").token(&scene.admin).json(&rule);
    let answer = call.to(scene.process.http).await.unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
}

/// An honest pod connects, has what is published, and then a change of it. The times of both.
async fn honest(tls: &Tls, scene: &Scene, at: usize) -> Option<[Duration; 2]> {
    let began = now();
    let endpoint = tls.endpoint(HONEST, scene.process.pods);
    let mut pod = Pod::open(endpoint.connect().await.ok()?, "honest").await?;
    let first = pod.next().await?;
    pod.answer(&first, None).await?;
    let connected = began.elapsed();
    publish(scene, at).await;
    let began = now();
    let change = pod.next().await?;
    pod.answer(&change, None).await?;
    Some([connected, began.elapsed()])
}

/// Attacks from so many tasks until an honest pod has connected again and again.
async fn attack<F: Future<Output = ()> + Send + 'static>(
    scene: &mut Scene,
    tls: &Arc<Tls>,
    (tasks, of_foe): (usize, impl Fn(Foe, usize) -> F),
) {
    let (to, sent) = (scene.process.pods, Arc::new(AtomicU64::new(0)));
    let foe = Foe { tls: Arc::clone(tls), to, sent: Arc::clone(&sent) };
    let mut foes = JoinSet::new();
    (0..tasks).for_each(|at| drop(foes.spawn(of_foe(foe.clone(), at))));
    let (end, mut at, mut slowest) = (now() + scene.lasts(), 0, [Duration::ZERO; 2]);
    let change_max = allowed(CHANGE_MAX);
    while now() < end || at == 0 {
        at += 1;
        let done = timeout(2 * change_max, honest(tls, scene, at)).await.ok().flatten();
        let fault = format!("an honest pod did not connect or have a change in {change_max:?}");
        let took = done.unwrap_or([2 * change_max; 2]);
        scene.row.holds(took.iter().all(|it| *it <= change_max), &fault);
        slowest = [slowest[0].max(took[0]), slowest[1].max(took[1])];
    }
    let [connected, changed] = slowest.map(|it| it.as_millis());
    scene.row.note(&format!(
        "{at} honest connections, rules after {connected} ms, a change after {changed} ms at most"
    ));
    scene.sent = sent.load(Ordering::Relaxed);
    foes.shutdown().await;
}

impl Foe {
    fn note(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    async fn pod(&self, id: &str, window: u32) -> Option<Pod> {
        let endpoint = self.tls.endpoint(FOE, self.to).initial_stream_window_size(window);
        Pod::open(endpoint.connect().await.ok()?, id).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p1a_handshakes_that_do_not_go_on() {
    let tls = Tls::new();
    let scene = tls.begin("P1a", "handshakes that do not go on").await;
    // The head of a ClientHello that does not come.
    let half = async |foe: Foe, _| loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(FOE, 0)).unwrap();
        if let Ok(mut stream) = socket.connect(foe.to).await {
            let head = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
            foe.note(head.len());
            let _ = stream.write_all(&head).await;
            while stream.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
        }
        sleep(Duration::from_millis(20)).await;
    };
    let tasks = if is_full() { 600 } else { 300 };
    scene.attacked_by(async |scene: &mut Scene| attack(scene, &tls, (tasks, half)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2a_pods_that_do_not_read() {
    let tls = Tls::new();
    let scene = tls.begin("P2a", "pods that do not read").await;
    // A set of more than a megabyte, which is held for each stream until its pod has read it.
    let rule = |at| {
        let text = "a".repeat(60_000);
        format!("- {{key: k{at}, rate_limit: {{unlimited: true}}, metadata: {{a: {text}}}}}\n")
    };
    let rules: String = (0..20).map(rule).collect();
    let yaml = format!("domain: {ATTACKED}\ndescriptors:\n{rules}");
    let import = Call::new("POST", "/v1/import?publish=true").token(&scene.foe);
    let import = import.body("application/yaml", yaml.as_bytes());
    let answer = import.to(scene.process.http).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let deaf = async |foe: Foe, at| loop {
        let endpoint = foe.tls.endpoint(FOE, foe.to).initial_stream_window_size(65_535);
        let Ok(channel) = endpoint.connect().await else { continue };
        let mut streams = Vec::new();
        for stream in 0..4 {
            streams.push(Pod::open(channel.clone(), &format!("deaf-{at}-{stream}")).await);
            foe.note(300);
        }
        sleep(Duration::from_secs(3)).await;
    };
    let tasks = if is_full() { 64 } else { 32 };
    scene.attacked_by(async |scene: &mut Scene| attack(scene, &tls, (tasks, deaf)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p3a_requests_that_change_nothing_and_refusals_without_end() {
    let tls = Tls::new();
    let scene = tls.begin("P3a", "a flood of requests and of refusals").await;
    let flood = async |foe: Foe, at| loop {
        let Some(mut pod) = foe.pod(&format!("flood-{at}"), 1 << 20).await else { continue };
        let fault = "no ".repeat(20_000);
        let Some(first) = pod.next().await else { continue };
        while pod.answer(&first, Some(fault.clone())).await.is_some() {
            foe.note(fault.len());
            let stale = DiscoveryRequest { response_nonce: "0".to_owned(), ..asking() };
            for _ in 0..100 {
                foe.note(60);
                let _ = pod.requests.send(stale.clone()).await;
            }
        }
    };
    let tasks = if is_full() { 64 } else { 16 };
    scene.attacked_by(async |scene: &mut Scene| attack(scene, &tls, (tasks, flood)).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p4a_a_pod_of_many_names() {
    let tls = Tls::new();
    let scene = tls.begin("P4a", "a new id of a node with each stream").await;
    let names = async |foe: Foe, at| {
        for number in 0_u64.. {
            let id = format!("{at}-{number}-{}", "n".repeat(2000));
            foe.note(id.len());
            if let Some(mut pod) = foe.pod(&id, 1 << 20).await {
                pod.next().await;
            }
        }
    };
    let tasks = if is_full() { 64 } else { 16 };
    scene.attacked_by(async |scene: &mut Scene| attack(scene, &tls, (tasks, names)).await).await;
}
