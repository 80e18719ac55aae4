//! The pods: they start, reload their rules, drain or crash.

use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::counter::{Counter, HoldCounter};
use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::verdict::Modes;
use ratelease_rules::Rules;
use ratelease_rules::key::KeyHasher;
use tokio::task::{JoinHandle, JoinSet};

use crate::ledger::Ledger;
use crate::network::Network;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::rule;
use crate::world::World;

/// The pods that take requests.
pub struct Fleet {
    world: Arc<World>,
    ledger: Arc<Ledger>,
    pods: Vec<Pod>,
    /// Pods started so far: a pod never returns under an old number.
    joined: u64,
    /// The newest rules, which new pods start with.
    rules: Arc<Rules>,
    /// Pods that drain; dropped with the run.
    leaving: JoinSet<()>,
}

/// A limiter with its maintenance task and the requests that it works on, all of which end with it.
pub struct Pod {
    pub id: u64,
    pub limiter: Limiter,
    pub network: Arc<Network>,
    pub requests: JoinSet<()>,
    rules: Arc<Rules>,
    /// Newer rules, and when this pod receives them, in milliseconds since the start.
    reloads: Vec<(u64, Arc<Rules>)>,
    upkeep: JoinHandle<()>,
}

/// Maximum number of pods at a time.
const PODS_MAX: usize = 1_000;

/// Maximum time for a pod to give everything back and leave.
const LEAVING_MAX: Duration = Duration::from_secs(30);

// === impl Fleet ===

impl Fleet {
    pub fn new(world: &Arc<World>, ledger: &Arc<Ledger>) -> Self {
        let (world, ledger) = (Arc::clone(world), Arc::clone(ledger));
        let rules = Arc::new(rule::load(&world.plan.rules));
        let (pods, leaving) = (Vec::new(), JoinSet::new());
        Self { world, ledger, pods, joined: 0, rules, leaving }
    }

    pub fn join(&mut self) {
        assert!(self.pods.len() < PODS_MAX, "a plan for too many pods");
        self.joined += 1;
        self.pods.push(Pod::start(&self.world, self.joined, &self.rules));
    }

    /// The pod at this place accepts no more requests, answers those it has, and gives back its
    /// tokens.
    pub fn leave(&mut self, place: usize) {
        if let Some(pod) = self.take_out(place) {
            self.see_off(pod);
        }
    }

    fn see_off(&mut self, mut pod: Pod) {
        self.ledger.forget_pod(pod.id);
        let ledger = Arc::clone(&self.ledger);
        self.leaving.spawn(async move {
            while pod.requests.join_next().await.is_some() {}
            pod.upkeep.abort();
            pod.limiter.close().await;
            ledger.check_left(pod.id);
        });
    }

    /// The pod at this place disappears. Asks that it sent are still under way.
    pub fn crash(&mut self, place: usize) {
        if let Some(pod) = self.take_out(place) {
            self.ledger.forget_pod(pod.id);
        }
    }

    /// Makes every pod leave. Returns once all have left, or the time for that is over.
    pub async fn leave_all(&mut self) {
        while !self.pods.is_empty() {
            let pod = self.pods.remove(0);
            self.see_off(pod);
        }
        let leaving = async { while self.leaving.join_next().await.is_some() {} };
        if tokio::time::timeout(LEAVING_MAX, leaving).await.is_err() {
            self.world.fault(format!("a pod took more than {LEAVING_MAX:?} to leave"));
        }
    }

    /// Removes a pod, unless it is the last one, which stays for the callers.
    fn take_out(&mut self, place: usize) -> Option<Pod> {
        (self.pods.len() > 1).then(|| self.pods.remove(place % self.pods.len()))
    }

    /// Replaces the rules; pods receive them one after the other.
    pub fn reload(&mut self, rules: &Arc<Rules>, rng: &mut Rng) {
        self.rules = Arc::clone(rules);
        let now_ms = self.world.millis();
        for pod in &mut self.pods {
            pod.reloads.push((now_ms + rng.below(Plan::RELOAD_MS), Arc::clone(rules)));
        }
    }

    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn pod(&mut self, place: usize) -> &mut Pod {
        let count = self.pods.len();
        &mut self.pods[place % count]
    }

    /// The pod of this number if it is present and no other one is to be asked, which is that at
    /// the place `elsewhere`.
    pub fn pod_of(&mut self, id: u64, elsewhere: Option<usize>) -> &mut Pod {
        let own = self.pods.iter().position(|pod| pod.id == id);
        self.pod(elsewhere.or(own).unwrap_or(0))
    }

    /// Number of times that a breaker of a present pod opened.
    pub fn breakers_opened(&self) -> u64 {
        self.pods.iter().map(|pod| count(&pod.limiter, Counter::BreakerOpened)).sum()
    }

    /// Checks that each pod's table is within its ceiling and that its tasks are running.
    pub fn inspect(&mut self) {
        let ceiling = self.world.plan.pod_bytes_max as u64;
        for pod in &mut self.pods {
            pod.forget_ended(&self.world);
            if pod.upkeep.is_finished() {
                self.world.fault(format!("the upkeep of pod {} ended", pod.id));
            }
            let bytes = count(&pod.limiter, Counter::BufferBytes);
            if bytes > ceiling {
                self.world.fault(format!("pod {} holds {bytes} bytes of {ceiling}", pod.id));
            }
            let held = [HoldCounter::InForce, HoldCounter::Hits, HoldCounter::NotKept];
            self.ledger.check_held(pod.id, held.map(|of| count(&pod.limiter, Counter::Holds(of))));
        }
    }
}

// === impl Pod ===

impl Pod {
    fn start(world: &Arc<World>, id: u64, rules: &Arc<Rules>) -> Self {
        let network = Arc::new(Network::new(world, id));
        let options = Options {
            start_grace: ratelease_engine::limiter::START_GRACE,
            wait_min: world.plan.wait_min,
            buffer_bytes_max: world.plan.pod_bytes_max,
            pod: id,
            name: Box::default(),
            hasher: KeyHasher::new(""),
            modes: Modes::default(),
            unix_start: Duration::from_micros(world.plan.wall_start_us),
            wait_max: world.plan.wait_max,
            pods_expected: world.plan.pods_expected,
        };
        let limiter = Limiter::new(Arc::clone(&network) as _, world.clock, options);
        let kept = limiter.clone();
        let upkeep = tokio::spawn(async move { kept.run().await });
        let (requests, rules) = (JoinSet::new(), Arc::clone(rules));
        Self { id, limiter, network, requests, rules, reloads: Vec::new(), upkeep }
    }

    /// Removes requests that have been answered.
    pub fn forget_ended(&mut self, world: &World) {
        while let Some(ended) = self.requests.try_join_next() {
            if let Err(error) = ended {
                world.fault(format!("a request to pod {}: {error}", self.id));
            }
        }
    }

    /// The rules of this pod at present.
    pub fn rules(&mut self, now_ms: u64) -> Arc<Rules> {
        while self.reloads.first().is_some_and(|(at_ms, _)| *at_ms <= now_ms) {
            self.rules = self.reloads.remove(0).1;
            let (limiter, rules) = (self.limiter.clone(), Arc::clone(&self.rules));
            // This task runs beside the requests, and ends with the pod.
            self.requests.spawn(async move { limiter.apply_rules(&rules).await });
        }
        Arc::clone(&self.rules)
    }
}

/// One of a limiter's counters.
fn count(limiter: &Limiter, counter: Counter) -> u64 {
    let counts = limiter.counts();
    counts.iter().find(|(other, _)| *other == counter).map(|pair| pair.1).unwrap()
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.upkeep.abort();
    }
}
