//! Events that befall pods, Envoys and Redis.

use ratelease_engine::limiter::owners::ClosedBy;
use ratelease_rules::key::KeyHasher;

use super::{Action, SECRETS, Scene};
use crate::ends::pod::Pod;
use crate::ends::rules::Version;
use crate::ends::script::{ENVOYS, Event, PLACES};
use crate::ends::start::{AtEnvoy, Held, Stage};
use crate::rng::Rng;

impl Scene {
    pub fn happen(&mut self, nth: u64, event: Event) {
        let now = self.now();
        match event {
            Event::Request(_) => {}
            Event::Trouble { place, trouble, lasts_ms } => {
                self.redis.trouble(place, trouble, lasts_ms);
            }
            Event::FailOver { lost_ms } => self.redis.fail_over(lost_ms),
            Event::CloseConnections { envoy, by_client, back_ms } => {
                self.close_all(envoy, by(by_client));
                self.plan(now + back_ms, Action::Reconnect(envoy));
            }
            Event::CloseOne { envoy, by_client } => {
                if let Some(conn) = self.envoys[envoy].conns.pop() {
                    self.close_one(envoy, conn, by(by_client));
                }
            }
            Event::KillEnvoy { envoy, back_ms } => self.kill_envoy(envoy, back_ms),
            Event::KillPod { place, back_ms } => self.kill_pod(place, back_ms),
            Event::Freeze { place, lasts_ms, reads_first } => {
                if let Some(pod) = self.pods[place].as_ref().filter(|pod| !pod.gate.is_closed()) {
                    pod.gate.close();
                    self.plan(now + lasts_ms, Action::Thaw { place, reads_first });
                }
            }
            Event::Rules { slots, tokens, within_ms } => {
                self.version = (slots, tokens);
                let mut rng = Rng::new(self.script.seed, &[21, nth]);
                for place in 0..PLACES {
                    let delay = rng.below(within_ms);
                    self.plan(now + delay, Action::Apply(place, self.version));
                }
            }
            Event::Reset { of_slots } => self.reset_key(of_slots),
            Event::Block { of_slots, lasts_ms } => {
                let keys = if of_slots { self.keys.slots } else { self.keys.tokens };
                self.redis.block(&keys, lasts_ms);
            }
            Event::ReplaceSecret => self.is_secret_replaced = true,
        }
    }

    pub fn start_pod(&mut self, place: usize) {
        if self.pods[place].is_some() {
            return;
        }
        self.joined += 1;
        let hasher = match self.is_secret_replaced {
            true => KeyHasher::new(SECRETS[1]).replacing(SECRETS[0]),
            false => KeyHasher::new(SECRETS[0]),
        };
        let rules = self.versions.get(self.version);
        let (number, version) = (self.joined, self.version);
        let seed = self.script.seed;
        let pod = Pod::start(&self.redis, (number, place), hasher, (version, rules), seed);
        self.pods[place] = Some(pod);
        (0..ENVOYS).filter(|envoy| envoy % PLACES == place).for_each(|envoy| self.connect(envoy));
    }

    /// The pod disappears. Requests that run at its Envoys run on, and nothing counts them.
    fn kill_pod(&mut self, place: usize, back_ms: u64) {
        let Some(pod) = self.pods[place].take() else { return };
        let now = self.now();
        // Tokens that the pod had leased stay counted. Costs that it had not reported yet are
        // forgotten.
        let tokens = self.idle_tokens(&pod);
        let reported = self.redis.flow().owed.get(&pod.number).copied().unwrap_or(0);
        self.tokens.most += tokens;
        self.tokens.least = self.tokens.least.saturating_sub(pod.due.saturating_sub(reported));
        for at in pod.starts.clone() {
            self.strand(&pod, at);
        }
        drop(pod);
        for envoy in (0..ENVOYS).filter(|envoy| envoy % PLACES == place) {
            self.envoys[envoy].conns.clear();
            self.envoys[envoy].has_log = false;
            self.fail_waiting(envoy, |_| true);
        }
        self.plan(now + back_ms, Action::StartPod(place));
    }

    /// Loses a start with its pod: the hits that it holds stay counted.
    pub fn strand(&mut self, pod: &Pod, at: usize) {
        let may_be_released = self.may_be_released(pod, &self.starts[at]);
        let comes_back = may_be_released && self.script.terms.releases;
        let start = &mut self.starts[at];
        start.stage = Stage::Gone;
        start.slots = None;
        match start.tokens.take() {
            Some(Held { is_watched: false, .. }) | None => {}
            // The end of this start may have settled another start of its id.
            Some(Held { hits, .. }) if start.plan.is_shared || comes_back => {
                self.tokens.count_perhaps(hits);
            }
            Some(held) => self.tokens.strand(held),
        }
    }

    /// Ends an Envoy and its requests, of whose end no message is sent.
    fn kill_envoy(&mut self, envoy: usize, back_ms: u64) {
        if !self.envoys[envoy].is_alive {
            return;
        }
        self.envoys[envoy].is_alive = false;
        for start in self.starts.iter_mut().filter(|start| start.plan.envoy == envoy) {
            let is_there = matches!(start.envoy, AtEnvoy::Waits) && start.stage != Stage::Unsent;
            if is_there || matches!(start.envoy, AtEnvoy::Runs | AtEnvoy::RunsOn) {
                start.envoy = AtEnvoy::Dead;
            }
        }
        self.close_all(envoy, ClosedBy::Client);
        self.plan(self.now() + back_ms, Action::ReviveEnvoy(envoy));
    }

    pub async fn thaw(&mut self, place: usize, reads_first: bool) {
        let now = self.now();
        let Some(pod) = self.pods[place].as_mut().filter(|pod| pod.gate.is_closed()) else {
            return;
        };
        pod.thawed_ms = now;
        pod.gate.open();
        let number = pod.number;
        if !reads_first {
            self.settle_down().await;
        }
        while let Some(pod) = self.pod_of_mut(number)
            && let Some(message) = pod.inbox.pop_front()
        {
            self.take(place, message);
        }
    }

    pub fn apply(&mut self, place: usize, version: Version) {
        let rules = self.versions.get(version);
        if let Some(pod) = &mut self.pods[place] {
            pod.apply(version, &rules);
        }
    }

    fn reset_key(&mut self, of_slots: bool) {
        let keys = if of_slots { self.keys.slots } else { self.keys.tokens };
        self.is_reset |= !of_slots;
        self.redis.reset(&keys);
        // From now on nothing that was begun before counts for sure: a pod learns of it at once, or
        // once it runs again.
        for start in self.starts.iter_mut().filter(|it| it.stage != Stage::Gone) {
            let held = if of_slots { &mut start.slots } else { &mut start.tokens };
            if let Some(held) = held {
                held.is_of_before = true;
            }
            let is_asking = start.stage == Stage::Asking;
            start.is_unsure |= of_slots && is_asking;
            self.shown.resets_of_asking += u64::from(is_asking);
        }
    }

    /// Everything works again.
    pub fn restore(&mut self) {
        self.version = Version::default();
        for place in 0..PLACES {
            self.apply(place, self.version);
        }
    }
}

pub fn by(by_client: bool) -> ClosedBy {
    if by_client { ClosedBy::Client } else { ClosedBy::Server }
}
