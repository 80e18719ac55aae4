//! Compares the prediction of the stage `shadow` of a rollout with the share that the chosen pods
//! then deny: real pods that share a Redis Cluster, and the same load in each stage.
//!
//! The rows were tried before all pods counted for the stage, when it predicted 0 % where 30 % were
//! denied. Windows of a minute are scaled to 20 s, and limits and demand with them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use super::{SOON, spawn_with};
use crate::support::control::Control;
use crate::support::files::dir_of;
use crate::support::now;
use crate::support::process::leashed;
use crate::support::ratelease::{BINARY, Ratelease};
use crate::support::raw_grpc::{Connection, request_of_entry};
use crate::support::redis_cluster::Cluster;
use crate::support::rng::Rng;
use crate::support::windows::into_window;

/// Seconds of a window.
const WINDOW: u64 = 20;

/// The time of the load, which lies within a window.
const LOAD: Duration = Duration::from_secs(18);

/// The pods that share the load.
const PODS: usize = 10;

/// How many of a hundred pods are chosen.
const PERCENT: u32 = 30;

/// Keys of each domain.
const KEYS: u64 = 3;

/// Requests of each key within the load: 288 in 18 s, as 864 in 54 s.
const DEMAND: u64 = 288;

/// A row of the table: a domain, the limit that is published, the limit of the draft, and both for
/// a minute, as they were tried.
struct Row {
    domain: &'static str,
    published: u32,
    draft: u32,
    tried: &'static str,
}

const ROWS: [Row; 5] = [
    Row { domain: "row-a", published: 333_333, draft: 1, tried: "1 000 000 → 3" },
    Row { domain: "row-b", published: 333_333, draft: 10, tried: "1 000 000 → 30" },
    Row { domain: "row-c", published: 333_333, draft: 167, tried: "1 000 000 → 500" },
    Row { domain: "row-d", published: 667, draft: 200, tried: "2000 → 600" },
    Row { domain: "row-e", published: 667, draft: 400, tried: "2000 → 1200" },
];

/// The largest difference between the prediction and the share that is denied then.
const ERROR_MAX: f64 = 0.05;

struct Pod {
    pod: Ratelease,
    connection: Connection,
    node: String,
    _dir: TempDir,
}

/// Requests of a domain, and those that were denied.
type Tally = BTreeMap<(usize, bool), (u64, u64)>;

fn limit(requests: u32) -> Value {
    json!({"unit": "second", "unit_multiplier": WINDOW, "requests_per_unit": requests})
}

/// Publishes the first limit of each row, and makes the second one the draft.
async fn prepare(control: &Control) {
    for row in &ROWS {
        let (domain, entries) = (row.domain, json!([{"key": "user"}]));
        let rule =
            json!({"domain": domain, "entries": entries, "rate_limit": limit(row.published)});
        let added = control.call("POST", "/v1/rules?publish=true", &rule).await;
        let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
        control.call("PUT", &path, &json!({"rate_limit": limit(row.draft)})).await;
    }
}

async fn pods(control: &Control) -> Vec<Pod> {
    let places = Cluster::shared().places();
    let nodes: Vec<_> = places.iter().map(ToString::to_string).collect();
    let (nodes, server) = (nodes.join(","), control.pods.to_string());
    let spawned = (0..PODS).map(|at| {
        let node = format!("pod-{at}");
        let dir = dir_of(&[]);
        let binary = std::env::var_os("RATELEASE_BIN").unwrap_or_else(|| BINARY.into());
        let mut command = leashed(binary);
        command.args(["serve", "--rules"]).arg(dir.path());
        let env = [
            ("CONFIG_GRPC_XDS_RATELEASE", "true"),
            ("CONFIG_GRPC_XDS_NODE_ID", &*node),
            ("REDIS_TYPE", "cluster"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", &*nodes),
        ];
        (spawn_with(command, &server, &env), dir, node.clone())
    });
    let mut pods = Vec::new();
    for (pod, dir, node) in spawned.collect::<Vec<_>>() {
        pod.ready().await;
        let connection = Connection::open(pod.grpc).await;
        pods.push(Pod { pod, connection, node, _dir: dir });
    }
    pods
}

/// Waits until all pods run the step that the rollout is at, and report. Returns which are chosen.
async fn chosen(control: &Control, pods: &[Pod]) -> Vec<bool> {
    let run = async || {
        let shown = control.call("GET", "/v1/rollouts/1", &Value::Null).await;
        let (chosen, others) = (&shown["pods"]["chosen"], &shown["pods"]["others"]);
        let all = [chosen, others].map(|it| it["current"].as_u64().unwrap_or_default());
        all[0] + all[1] == PODS as u64
            && chosen["without_reports"] == 0
            && chosen["connected"] == u64::from(PERCENT) * PODS as u64 / 100
    };
    control.process.until("all pods at the step", 2 * SOON, run).await;
    let list = control.call("GET", "/v1/pods", &Value::Null).await;
    let is_chosen = |it: &&Value| it["rollouts"] == json!([1]);
    let listed = list["pods"].as_array().unwrap().iter().filter(is_chosen);
    let nodes: BTreeSet<_> = listed.filter_map(|it| it["node"].as_str()).collect();
    pods.iter().map(|it| nodes.contains(&*it.node)).collect()
}

/// Waits until shortly after the next window has begun.
async fn next_window() {
    let window = Duration::from_secs(WINDOW);
    sleep(window - into_window(window) + Duration::from_millis(500)).await;
}

/// Sends the demand of all rows with keys of a stage, evenly over a window, each request to any pod: to
/// the same ones in each stage, so that chance makes no difference between them.
async fn load(pods: &[Pod], is_chosen: &[bool], stage: &str, seed: u64) -> Tally {
    next_window().await;
    let mut rng = Rng::seeded(seed);
    let requests = ROWS.len() as u64 * KEYS * DEMAND;
    let began = now();
    let mut calls = JoinSet::new();
    for number in 0..requests {
        let due = LOAD * u32::try_from(number).unwrap() / u32::try_from(requests).unwrap();
        sleep_until((began + due).into()).await;
        let row = usize::try_from(number).unwrap() % ROWS.len();
        let key = format!("{stage}-{}", (number / ROWS.len() as u64) % KEYS);
        let pod = usize::try_from(rng.below(PODS as u64)).unwrap();
        let (connection, is_chosen) = (pods[pod].connection.clone(), is_chosen[pod]);
        calls.spawn(async move {
            let reply = connection.call(&request_of_entry(ROWS[row].domain, "user", &key)).await;
            (row, is_chosen, reply.is_over_limit().unwrap_or_else(|| panic!("{reply:?}")))
        });
    }
    let mut tally = Tally::new();
    while let Some(done) = calls.join_next().await {
        let (row, is_chosen, is_denied) = done.unwrap();
        let (hits, denied) = tally.entry((row, is_chosen)).or_default();
        (*hits, *denied) = (*hits + 1, *denied + u64::from(is_denied));
    }
    assert!(began.elapsed() < Duration::from_secs(WINDOW), "the load is in one window");
    tally
}

#[expect(clippy::cast_precision_loss, reason = "a share needs few digits")]
fn share((hits, denied): (u64, u64)) -> f64 {
    denied as f64 / hits as f64
}

/// The prediction for a domain once the stage has counted so many hits on the chosen pods. Reports
/// come each second.
async fn said(control: &Control, domain: &str, hits: u64) -> f64 {
    let chosen = async || {
        let shown = control.call("GET", "/v1/rollouts/1", &Value::Null).await;
        let domains = shown["domains"].as_array().unwrap();
        domains.iter().find(|it| it["domain"] == domain).unwrap()["chosen"].clone()
    };
    let is_counted = async || chosen().await["hits"].as_u64().unwrap() >= hits;
    control.process.until("all hits of the stage", 2 * SOON, is_counted).await;
    chosen().await["shadow_denied_share"].as_f64().unwrap()
}

#[tokio::test]
async fn the_shadow_stage_says_what_the_chosen_pods_then_deny() {
    let seed = Rng::new().seed();
    let control = Control::start().await;
    prepare(&control).await;
    let pods = pods(&control).await;
    control.lists(PODS).await;
    let body = json!({"pods": {"percent": PERCENT}});
    control.call("POST", "/v1/rollouts", &body).await;
    let is_chosen = chosen(&control, &pods).await;
    // Hits before the window has turned are no evidence.
    sleep(Duration::from_secs(WINDOW + 1)).await;

    let counted = load(&pods, &is_chosen, "shadow", seed).await;
    let mut shadows = Vec::new();
    for (row, Row { domain, .. }) in ROWS.iter().enumerate() {
        shadows.push(said(&control, domain, counted[&(row, true)].0).await);
        assert_eq!(counted[&(row, true)].1, 0, "the published limit is in force");
    }
    eprintln!("the stage says {shadows:.3?}");
    let step = json!({"stage": "enforced", "force": true});
    control.call("POST", "/v1/rollouts/1/advance", &step).await;
    assert_eq!(chosen(&control, &pods).await, is_chosen, "the same pods");
    let enforced = load(&pods, &is_chosen, "enforced", seed).await;
    control.call("POST", "/v1/rollouts/1/advance", &json!({"stage": "all", "force": true})).await;
    all_deny(&pods).await;
    let all = load(&pods, &is_chosen, "all", seed).await;

    let mut far = Vec::<&str>::new();
    eprintln!("published → draft a minute | shadow | enforced | all pods");
    for (row, Row { tried, .. }) in ROWS.iter().enumerate() {
        let (shadow, enforced) = (shadows[row], share(enforced[&(row, true)]));
        let of = |is_chosen| all[&(row, is_chosen)];
        let all = share((of(true).0 + of(false).0, of(true).1 + of(false).1));
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        eprintln!("{tried} | {} | {} | {}", percent(shadow), percent(enforced), percent(all));
        far.extend(((shadow - enforced).abs() > ERROR_MAX).then_some(tried));
    }
    assert!(far.is_empty(), "the shadow is more than 5 points from what is denied: {far:?}");
    for pod in pods {
        assert_eq!(pod.pod.count("xds_refused"), 0);
    }
}

/// Waits until each pod has the draft of the first row.
async fn all_deny(pods: &[Pod]) {
    for pod in pods {
        let request = request_of_entry(ROWS[0].domain, "user", "probe");
        let denies = async || pod.connection.call(&request).await.is_over_limit() == Some(true);
        pod.pod.process.until("denying by the draft", 2 * SOON, denies).await;
    }
}
