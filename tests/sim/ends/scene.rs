//! Plays a script: Envoys send the messages that their requests lead to, pods take them, and the
//! model keeps the hits that each start may hold.

mod ends;
mod envoys;
mod happenings;
mod pods;

use std::collections::BTreeMap;
use std::sync::Arc;

use ratelease_engine::limiter::{Charge, Resolved};
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::Limit;
use ratelease_rules::key::{Key, KeyHasher};
use ratelease_rules::request::Request;
use tokio::task::yield_now;
use tokio::time::sleep_until;

use super::Shown;
use super::pod::{Outcomes, Pod};
use super::rules::{CANDIDATE, Charges, Version, Versions, request};
use super::script::Event;
use super::script::{ENVOYS, EndPlan, Item, PLACES, Script, When};
use super::start::{Keys, Start};
use super::store::{Redis, Watched};
use super::tokens::Tokens;
use crate::rng::mix;

pub use self::pods::grace_ms;

/// Interval at which an Envoy sends the entries that it has logged.
const FLUSH_MS: u64 = 500;

/// How often everything is checked, beside after each step.
const TICK_MS: u64 = 100;

/// The secrets of keys, the first one and the one that replaces it.
const SECRETS: [&str; 2] = ["", "next"];

pub struct Scene {
    pub script: Script,
    pub redis: Arc<Redis>,
    pub pods: Vec<Option<Pod>>,
    pub envoys: Vec<Envoy>,
    pub starts: Vec<Start>,
    pub tokens: Tokens,
    pub versions: Versions,
    pub keys: Keys,
    outcomes: Arc<Outcomes>,
    agenda: BTreeMap<(u64, u64, u64), Action>,
    planned: u64,
    /// Pods and connections so far.
    joined: u64,
    connected: u64,
    version: Version,
    is_secret_replaced: bool,
    /// `true`: a key of tokens was reset, so its count says nothing of the tokens that were used.
    pub is_reset: bool,
    /// The slots of the candidate's rule.
    pub tried: (Key, Limit),
    pub shown: Shown,
    pub tells: bool,
    /// The first failure, and when it was found.
    pub wrong: Option<(u64, String)>,
}

/// An Envoy with its connections to the pod of its place.
#[derive(Debug, Default)]
pub struct Envoy {
    pub is_alive: bool,
    conns: Vec<u64>,
    has_log: bool,
}

/// An action of the run's plan.
#[derive(Debug, Clone)]
enum Action {
    Item(usize),
    Start(usize),
    Read(usize),
    Over(usize),
    Reset(usize),
    End(usize, EndPlan),
    Flush(usize),
    Reconnect(usize),
    ReviveEnvoy(usize),
    StartPod(usize),
    Thaw { place: usize, reads_first: bool },
    Apply(usize, Version),
    Tick,
}

// === impl Scene ===

impl Scene {
    pub fn new(script: Script, tells: bool) -> Self {
        let clock = Clock::start();
        let mut versions = Versions::new(script.terms);
        let (keys, watched) = watched(&mut versions);
        let tried = tried(&mut versions, watched.slots);
        let redis = Redis::new(clock, watched, tells);
        let mut scene = Self {
            redis,
            pods: (0..PLACES).map(|_| None).collect(),
            envoys: (0..ENVOYS).map(|_| Envoy { is_alive: true, ..Envoy::default() }).collect(),
            starts: Vec::new(),
            tokens: Tokens::default(),
            versions,
            keys,
            outcomes: Arc::default(),
            agenda: BTreeMap::new(),
            planned: 0,
            joined: 0,
            connected: 0,
            version: Version::default(),
            is_secret_replaced: false,
            is_reset: false,
            tried,
            shown: Shown::default(),
            tells,
            wrong: None,
            script,
        };
        (0..PLACES).for_each(|place| scene.start_pod(place));
        scene.plan_items();
        scene
    }

    fn plan_items(&mut self) {
        let items = std::mem::take(&mut self.script.items);
        for (at, Item { nth, at_ms, event }) in items.iter().enumerate() {
            let Event::Request(plan) = event else {
                self.plan(*at_ms, Action::Item(at));
                continue;
            };
            let start = self.starts.len();
            self.starts.push(Start::new(*nth, plan));
            self.plan(*at_ms, Action::Start(start));
            if let Some(second) = plan.of_second() {
                let (other, is_second) = (Some(start), true);
                self.starts[start].other = Some(start + 1);
                self.starts.push(Start { other, is_second, ..Start::new(*nth, &second) });
            }
            for end in &plan.ends {
                match end.when {
                    When::BeforeStart(ms) => {
                        self.plan(at_ms.saturating_sub(ms).max(1), Action::End(start, *end));
                    }
                    When::AfterStart(ms) => self.plan(at_ms + ms, Action::End(start, *end)),
                    When::AfterEnd(_) => {}
                }
            }
        }
        self.script.items = items;
        self.plan(TICK_MS, Action::Tick);
        if self.script.terms.signs_ms.is_some() {
            (0..ENVOYS).for_each(|envoy| self.plan(FLUSH_MS, Action::Flush(envoy)));
        }
    }

    /// Plans an action. The seed decides the order of actions of the same millisecond.
    fn plan(&mut self, at_ms: u64, action: Action) {
        self.planned += 1;
        let of = match action {
            Action::Item(at) => self.script.items.get(at).map_or(0, |item| item.nth),
            Action::Start(at) | Action::Read(at) | Action::Over(at) => self.starts[at].nth,
            Action::Reset(at) | Action::End(at, _) => mix(self.starts[at].nth),
            _ => 0,
        };
        let rank = mix(self.script.seed ^ mix(at_ms ^ mix(of)));
        self.agenda.insert((at_ms, rank, self.planned), action);
    }

    pub fn now(&self) -> u64 {
        self.redis.now_ms()
    }

    /// Plays the planned actions until then, or until a check fails.
    pub async fn play(&mut self, until_ms: u64) {
        while let Some((&(at_ms, ..), _)) = self.agenda.first_key_value()
            && at_ms <= until_ms
            && self.wrong.is_none()
        {
            if self.now() < at_ms {
                let outcomes = Arc::clone(&self.outcomes);
                tokio::select! {
                    biased;
                    () = outcomes.wait() => {}
                    () = self.sleep_until(at_ms) => {}
                }
            } else if let Some((_, action)) = self.agenda.pop_first() {
                self.step(action).await;
            }
            self.settle_down().await;
            self.check();
        }
        self.sleep_until(until_ms).await;
        self.settle_down().await;
    }

    async fn sleep_until(&self, at_ms: u64) {
        let time = Time::from_nanos(at_ms * 1_000_000);
        sleep_until(self.redis.clock.instant(time)).await;
    }

    /// Lets the tasks run that a step has woken.
    async fn settle_down(&mut self) {
        for _ in 0..3 {
            yield_now().await;
        }
        self.hear_outcomes();
    }

    async fn step(&mut self, action: Action) {
        if !matches!(action, Action::Tick | Action::Flush(_)) {
            self.shown.steps += 1;
            self.tell(|| format!("{action:?}"));
        }
        match action {
            Action::Item(at) => {
                let event = self.script.items[at].event.clone();
                self.happen(self.script.items[at].nth, event);
            }
            Action::Start(at) => self.arrive(at),
            Action::Read(at) => self.read(at),
            Action::Over(at) => self.end_at_envoy(at),
            Action::Reset(at) => self.reset_stream(at),
            Action::End(at, end) => self.send_end(at, end),
            Action::Flush(envoy) => self.flush(envoy),
            Action::Reconnect(envoy) => self.connect(envoy),
            Action::ReviveEnvoy(envoy) => {
                self.envoys[envoy].is_alive = true;
                self.connect(envoy);
            }
            Action::StartPod(place) => self.start_pod(place),
            Action::Thaw { place, reads_first } => self.thaw(place, reads_first).await,
            Action::Apply(place, version) => self.apply(place, version),
            Action::Tick => {
                self.check_all();
                self.plan(self.now() + TICK_MS, Action::Tick);
            }
        }
    }

    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            println!("{:>7} ms  {}", self.now(), what());
        }
    }

    pub fn fault(&mut self, what: String) {
        let now = self.now();
        self.wrong.get_or_insert((now, what));
    }

    pub fn pod_of(&self, number: u64) -> Option<&Pod> {
        self.pods.iter().flatten().find(|pod| pod.number == number)
    }

    fn pod_of_mut(&mut self, number: u64) -> Option<&mut Pod> {
        self.pods.iter_mut().flatten().find(|pod| pod.number == number)
    }
}

/// The keys of the watched counts, under each secret.
fn watched(versions: &mut Versions) -> (Keys, Watched) {
    let rules = versions.get(Version::default());
    let both = request("x", Charges { slots: Some(1), tokens: Some(1) }, false);
    let of = |secret: &str| {
        let resolved = ratelease_engine::limiter::resolve(&rules, &both, &KeyHasher::new(secret));
        let keys = resolved.iter().map(|resolved| match resolved {
            Resolved::Charged(Charge { own, applied, .. }) => (*own, applied.limit),
            _ => panic!("a rule of the model is missing"),
        });
        keys.collect::<Vec<_>>()
    };
    let [first, second] = SECRETS.map(of);
    let keys = Keys { slots: [first[0].0, second[0].0], tokens: [first[1].0, second[1].0] };
    (keys, Watched { slots: first[0], tokens: first[1] })
}

/// The slots of the candidate's rule, by its first name. If the rules have no candidate, `others`.
fn tried(versions: &mut Versions, others: (Key, Limit)) -> (Key, Limit) {
    let rules = versions.get(Version::default());
    let both = request("x", Charges { slots: Some(1), tokens: None }, false);
    let tried = Request { domain: CANDIDATE, ..both };
    let resolved = ratelease_engine::limiter::resolve(&rules, &tried, &KeyHasher::new(SECRETS[0]));
    match resolved.first() {
        Some(Resolved::Charged(Charge { own, applied, .. })) => (*own, applied.limit),
        _ => others,
    }
}
