//! A fleet in churn: teams publish and roll out while replicas, PostgreSQL and pods are restarted.
//! No pod leaves a replica that is well, each pod has what the control plane says of it, and no
//! version that was acknowledged is lost.
//!
//! By default it is small and lasts some seconds. `RATELEASE_CHURN=full` is an hour of 20 pods, 280
//! played ones, 40 domains and 3 replicas; `RATELEASE_CHURN_SECONDS` sets another time.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// A database, a control plane, and calls of it.
#[allow(dead_code, unused_imports)] // the other tests use more of it
#[path = "control/support.rs"]
mod support;

/// Restarts of everything.
#[path = "churn/chaos.rs"]
mod chaos;
/// Pods that the test plays.
#[path = "churn/played.rs"]
mod played;
/// Pods that are processes.
#[path = "churn/pod.rs"]
mod pod;
/// The replicas, and the ways of pods to them.
#[path = "churn/route.rs"]
mod route;
/// Teams that publish and roll out.
#[path = "churn/team.rs"]
mod team;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use self::chaos::Chaos;
use self::played::Played;
use self::pod::Pod;
use self::route::Replicas;
use self::support::rng::Rng;
use self::support::{Place, now};
use self::team::Team;

/// Work stops so often, and what all pods have is compared.
const ROUND: Duration = Duration::from_secs(300);

/// Maximum time until all pods have the newest version, once work has stopped.
const SETTLED_MAX: Duration = Duration::from_secs(90);

/// The number of teams, each of which has its own part of the domains.
const TEAMS: usize = 2;

/// The sizes of a run.
#[derive(Debug, Clone, Copy)]
struct Scale {
    lasts: Duration,
    replicas: usize,
    pods: usize,
    played: usize,
    domains: usize,
    /// Mean pause of a team between two changes.
    pause: Duration,
    /// Mean pause between two restarts.
    calm: Duration,
}

/// All that runs.
struct Scene {
    scale: Scale,
    replicas: Arc<Replicas>,
    pods: Vec<Arc<Pod>>,
    played: Vec<Played>,
    teams: Vec<Team>,
    chaos: Chaos,
    /// The times that the fleet took to settle.
    settled: Vec<Duration>,
}

// === impl Scale ===

impl Scale {
    fn of_env() -> Self {
        let is_full = std::env::var_os("RATELEASE_CHURN").is_some_and(|it| it == "full");
        let seconds = std::env::var("RATELEASE_CHURN_SECONDS").ok();
        let seconds = seconds.map(|it| it.parse().expect("RATELEASE_CHURN_SECONDS is a number"));
        let small = Self {
            lasts: Duration::from_secs(seconds.unwrap_or(20)),
            replicas: 2,
            pods: 2,
            played: 12,
            domains: 6,
            pause: Duration::from_millis(300),
            calm: Duration::from_secs(3),
        };
        let full = Self {
            lasts: Duration::from_secs(seconds.unwrap_or(3600)),
            replicas: 3,
            pods: 20,
            played: 280,
            domains: 40,
            pause: Duration::from_secs(4),
            calm: Duration::from_secs(20),
        };
        if is_full { full } else { small }
    }
}

// === impl Scene ===

impl Scene {
    async fn set_up(scale: Scale, rng: &mut Rng) -> Self {
        LazyLock::force(&RATELEASE);
        let place = Place::postgres().await;
        let replicas = Arc::new(Replicas::start(&place, scale.replicas));
        let token = std::fs::read_to_string(place.token_file()).unwrap();
        let mut pods = Vec::new();
        for at in 0..scale.pods {
            pods.push(Pod::start(&format!("pod-{at:02}"), &replicas).await);
        }
        let mut played = Vec::new();
        for at in 0..scale.played {
            let name = format!("played-{at:03}");
            played.push(Played::begin(&name, &replicas, Rng::seeded(rng.next_u64())).await);
        }
        let team = |at| {
            let domains = (at..scale.domains).step_by(TEAMS).map(domain).collect();
            Team::new(domains, &replicas, &token, Rng::seeded(rng.next_u64()))
        };
        let teams = (0..TEAMS).map(team).collect();
        let rng = Rng::seeded(rng.next_u64());
        let chaos = Chaos::new(place, Arc::clone(&replicas), pods.clone(), scale.calm, rng);
        Self { scale, replicas, pods, played, teams, chaos, settled: Vec::new() }
    }

    /// Teams work and parts are restarted for so long. Afterwards all of it stands still.
    async fn work(&mut self, lasts: Duration) {
        let is_over = AtomicBool::new(false);
        let pause = self.scale.pause;
        let end = async {
            sleep(lasts).await;
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        };
        let [one, two] = &mut self.teams[..] else { panic!("there are {TEAMS} teams") };
        tokio::join!(
            one.work(pause, &is_over),
            two.work(pause, &is_over),
            self.chaos.work(&is_over),
            end
        );
    }

    /// Waits until each pod is said to have the newest version, and compares what it has.
    async fn settle(&mut self) {
        let began = now();
        while let Err(what) = self.is_settled().await {
            assert!(began.elapsed() < SETTLED_MAX, "not settled after {SETTLED_MAX:?}: {what}");
            sleep(Duration::from_millis(200)).await;
        }
        self.settled.push(began.elapsed());
        let limits = self.limits();
        for pod in &self.pods {
            let of_pod = pod.limits().await.expect("the pod answers");
            if of_pod != limits {
                panic!("{}: {}", pod.name, self.explain(pod, &of_pod, &limits).await);
            }
        }
        for played in &self.played {
            assert_eq!(played.limits(), limits, "{}", played.name);
        }
    }

    /// The limits that differ, those of the pod a while later, and the state of rollouts and pods.
    async fn explain(
        &self,
        pod: &Pod,
        of_pod: &BTreeMap<String, u32>,
        limits: &BTreeMap<String, u32>,
    ) -> String {
        let state = async |path: &str| self.teams[0].get(path).await.unwrap_or_default();
        let rollouts = state("/v1/rollouts?open=true").await;
        let last = state("/v1/rollouts?limit=4").await;
        let versions = state("/v1/versions?limit=4").await;
        let pods = state("/v1/pods?limit=1000").await;
        let row = pods["pods"].as_array().into_iter().flatten().find(|it| it["node"] == pod.name);
        sleep(Duration::from_secs(5)).await;
        let later = pod.limits().await.unwrap_or_default();
        let differ: Vec<_> = limits
            .iter()
            .filter(|(domain, limit)| of_pod.get(*domain) != Some(limit))
            .map(|(domain, limit)| {
                let [first, second] = [of_pod, &later].map(|it| it.get(domain));
                format!("{domain}: {first:?}, then {second:?}, published is {limit}")
            })
            .collect();
        format!(
            "{differ:?}\nversion {}, pod {row:?}\nopen {rollouts}\nlast {last}\nversions {versions}",
            pods["version"]
        )
    }

    /// Whether the control plane says so of exactly these pods.
    async fn is_settled(&self) -> Result<(), String> {
        let list = self.teams[0].get("/v1/pods?limit=1000").await.ok_or("no answer")?;
        let of = |name: &str| list[name].clone();
        let expected: Vec<_> = self.names();
        let pods = of("pods");
        let pods = pods.as_array().ok_or("no pods")?;
        let mut named: Vec<_> = pods.iter().filter_map(|it| it["node"].as_str()).collect();
        named.sort_unstable();
        if named != expected {
            return Err(format!("{} pods of {}", named.len(), expected.len()));
        }
        let behind: Vec<_> = pods.iter().filter(|it| it["accepted"] != list["version"]).collect();
        if let Some(pod) = behind.first() {
            return Err(format!("{} pods behind {}: {pod}", behind.len(), list["version"]));
        }
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        let pods = self.pods.iter().map(|it| &*it.name);
        let mut names: Vec<_> = pods.chain(self.played.iter().map(|it| &*it.name)).collect();
        names.sort_unstable();
        names
    }

    /// The limits that the teams know to be published, by domain.
    fn limits(&self) -> BTreeMap<String, u32> {
        self.teams.iter().flat_map(Team::limits).collect()
    }

    /// All versions are there: those that were acknowledged, and none is missing.
    async fn check_versions(&self) -> usize {
        let mut before = i64::MAX;
        let mut all = Vec::new();
        loop {
            let path = format!("/v1/versions?before={before}&limit=100");
            let page = self.teams[0].get(&path).await.expect("an answer");
            let page: Vec<i64> = numbers(&page["versions"]);
            let Some(last) = page.last() else { break };
            before = *last;
            all.extend(page);
        }
        all.reverse();
        let count = all.len();
        assert_eq!(all, (1..=i64::try_from(count).unwrap()).collect::<Vec<_>>());
        for version in self.teams.iter().flat_map(|team| &team.versions) {
            assert!(all.contains(version), "version {version} is lost");
        }
        count
    }

    fn report(&self, versions: usize) -> Value {
        let sum = |of: fn(&Team) -> usize| self.teams.iter().map(of).sum::<usize>();
        let settled = self.settled.iter().map(Duration::as_millis);
        json!({
            "seconds": self.scale.lasts.as_secs(),
            "pods": self.pods.len(), "played": self.played.len(),
            "domains": self.scale.domains, "replicas": self.scale.replicas,
            "versions": versions, "publications": sum(|it| it.publications),
            "rollouts_finished": sum(|it| it.finished), "rollouts_aborted": sum(|it| it.aborted),
            "refused": sum(|it| it.refused), "restarts": self.chaos.done,
            "connections": self.played.iter().map(Played::connections).sum::<u64>(),
            "sets": self.played.iter().map(Played::sets).sum::<u64>(),
            "settled_ms_max": settled.max(),
            "resident_mib": self.replicas.resident(),
            "load_average": std::fs::read_to_string("/proc/loadavg").unwrap().trim(),
        })
    }
}

fn domain(at: usize) -> String {
    format!("d{at:02}")
}

fn numbers(versions: &Value) -> Vec<i64> {
    let all = versions.as_array().expect("versions");
    all.iter().map(|it| it["version"].as_i64().expect("a number")).collect()
}

/// The program `ratelease`, which lies beside the control plane's. It is built once, before anything is
/// restarted: nothing is carried meanwhile.
static RATELEASE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::var_os("RATELEASE_BIN").map_or_else(built_ratelease, PathBuf::from));

fn built_ratelease() -> PathBuf {
    let control = Path::new(env!("CARGO_BIN_EXE_ratelease-control"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let profile = match control.parent().and_then(Path::file_name) {
        Some(name) if name != "debug" => name.to_str().expect("a profile"),
        _ => "dev",
    };
    let mut build = std::process::Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--locked", "--workspace", "--bin", "ratelease"]);
    build.args(["--profile", profile]).current_dir(root);
    assert!(build.status().expect("cargo runs").success(), "ratelease cannot be built");
    control.with_file_name("ratelease")
}

#[tokio::test]
async fn pods_stay_and_have_what_is_said_of_them_in_churn() {
    let scale = Scale::of_env();
    let mut rng = Rng::new();
    let mut scene = Scene::set_up(scale, &mut rng).await;
    for team in &mut scene.teams {
        team.publish_all().await;
    }
    scene.settle().await;
    let end = now() + scale.lasts;
    while now() < end {
        scene.work(ROUND.min(end.saturating_duration_since(now()))).await;
        scene.chaos.mend().await;
        let settled = timeout(2 * SETTLED_MAX, scene.settle()).await;
        settled.expect("it settles or says why not");
        println!("CHURN so far {}", scene.report(0));
    }
    let versions = scene.check_versions().await;
    println!("CHURN {}", scene.report(versions));
    let left = scene.replicas.left();
    assert!(left.is_empty(), "pods left replicas that are well: {left:?}");
}
