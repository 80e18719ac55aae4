//! Conditions that must hold after each step, and once nothing runs any more.
//!
//! The model knows of each start whether its pod *surely* holds something for it, and whether the
//! pod *may* hold something. The two differ while a pod has yet to notice an end without a message:
//! for [`NOTICED_MS`].

use std::time::Duration;

use ratelease_engine::algorithm::concurrency::SLOTS_TTL;
use ratelease_engine::counter::Counter;
use ratelease_engine::counter::HoldCounter;
use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::limiter::starts::LOOK_EVERY;
use ratelease_engine::store::StoreError;
use ratelease_engine::verdict::Code;

use tokio::time::sleep;

use super::pod::{Aside, Excess, Log, Pod};
use super::rules::{Charges, Version, probe, request};
use super::scene::{Scene, grace_ms};
use super::start::{AtEnvoy, Held, Stage, Start};
use super::tokens::Was;

/// A hold whose time, owner or signs of life have ended is released at the next look, which takes
/// half a second, and a turn of the runtime.
const NOTICED_MS: u64 = millis(LOOK_EVERY) + 120;

/// A pod that can reach Redis again states its slots within this time: an ask that hangs (100 ms),
/// a breaker that waits for its probe (twice 500 ms), a check of the key (200 ms), and the ask.
const STATED_MS: u64 = 1_500;

/// A pod that nothing disturbs states the slots that it gave up within this time: its next ask
/// leaves within a second.
const RETURNED_MS: u64 = 1_500;

/// After trouble, an ask that arrived too late may count for this long: the store forgets it with
/// its pod, if that has nothing more to say.
const RETURNED_LATE_MS: u64 = TTL_MS + RETURNED_MS;

/// The store keeps the slots of a silent pod for this long.
const TTL_MS: u64 = millis(SLOTS_TTL);

/// For how long trouble is looked back at.
const TROUBLE_MS: u64 = 6_000;

/// Three signs of life may be missed.
const SIGNS_MISSED: u64 = 3;

/// One sign of life may be late by a second.
const SIGN_LATE_MS: u64 = 1_000;

/// A sign of life is sent at most this long after it was due: with the next flush.
const FLUSHED_MS: u64 = 600;

#[allow(clippy::cast_possible_truncation, reason = "spans of seconds")]
const fn millis(span: Duration) -> u64 {
    span.as_millis() as u64
}

/// Bounds of the hits that a pod holds.
#[derive(Debug, Default, Clone, Copy)]
struct Bounds {
    /// Holds, surely and perhaps, and their hits.
    holds: (u64, u64),
    hits: (u64, u64),
    /// Slots that the store surely counts, and slots that it may count.
    slots: (u64, u64),
    /// Tokens that are counted for holds.
    tokens: u64,
}

impl Scene {
    /// Checks the pods after a step.
    pub fn check(&mut self) {
        for place in 0..self.pods.len() {
            if self.wrong.is_some() {
                return;
            }
            self.release_what_is_over(place);
            if let Err(what) = self.check_pod(place) {
                self.fault(format!("place {place}: {what}"));
            }
        }
        if let Err(what) = self.check_limit() {
            self.fault(what);
        }
    }

    /// Checks the conditions that change slowly.
    pub fn check_all(&mut self) {
        for place in 0..self.pods.len() {
            if let Err(what) = self.check_excess(place) {
                self.fault(format!("place {place}: {what}"));
            }
        }
        if let Err(what) = self.check_floor() {
            self.fault(what);
        }
    }

    /// Whether something may have released the hits that a start holds.
    pub fn may_be_released(&self, pod: &Pod, start: &Start) -> bool {
        let (now, lasts_ms) = (self.now(), self.script.terms.lasts_ms);
        let is_gone = { pod.owners.get(&start.owner) }
            .and_then(|owner| owner.left_ms)
            .is_some_and(|left_ms| now >= left_ms + grace_ms());
        let signs_ms = self.script.terms.signs_ms.unwrap_or(0);
        let has_signs = start.longest_ms > 0;
        let is_late = has_signs && now > start.seen_ms + signs_ms + FLUSHED_MS;
        start.is_unsure || is_gone || is_late || now >= start.seen_ms + lasts_ms
    }

    /// Whether the pod has surely released it.
    fn is_released(&self, pod: &Pod, start: &Start) -> bool {
        let (now, lasts_ms) = (self.now(), self.script.terms.lasts_ms);
        let is_noticed = |since: u64| now >= since.max(pod.thawed_ms) + NOTICED_MS;
        if is_noticed(start.seen_ms + lasts_ms) {
            return true;
        }
        if start.plan.is_shared {
            return false; // another's end may have been taken for its own
        }
        let log = pod.logs.get(&start.plan.envoy).filter(|log| start.node == Some(log.node));
        let is_kept = log.is_some_and(|log| log.is_open || !is_noticed(log.closed_ms));
        let owner = pod.owners.get(&start.owner).filter(|owner| !owner.may_be_proved);
        let left_ms = owner.and_then(|owner| owner.left_ms);
        let is_gone = left_ms.is_some_and(|left_ms| is_noticed(left_ms + grace_ms()));
        is_gone && !is_kept && !start.is_unsure || start.silent_since.is_some_and(is_noticed)
    }

    /// Whether the signs of others say that a start has ended.
    fn is_silent(&self, pod: &Pod, start: &Start) -> bool {
        let over_ms = start.seen_ms + SIGNS_MISSED * start.longest_ms + SIGN_LATE_MS;
        let due_ms = start.seen_ms + (SIGNS_MISSED - 1) * start.longest_ms;
        // A log that was closed proves nothing, nor does the one that is opened then.
        let is_its_own = |log: &&Log| log.is_open && start.node == Some(log.node);
        let log = pod.logs.get(&start.plan.envoy).filter(is_its_own);
        // If two starts of a request are open, a sign of one says nothing of the interval of the
        // other's signs.
        start.longest_ms > 0
            && start.other.is_none()
            && self.now() >= over_ms
            && log.is_some_and(|log| log.heard_ms >= due_ms)
    }

    /// Notes the holds that have been released by now.
    fn release_what_is_over(&mut self, place: usize) {
        let Some(pod) = self.pods[place].as_ref().filter(|pod| !pod.gate.is_closed()) else {
            return;
        };
        let now = self.now();
        let has_orders = self.redis.has_orders(pod.number);
        let mut over = Vec::new();
        for at in &pod.starts {
            let start = &self.starts[*at];
            if start.stage == Stage::Gone || !start.is_at(pod.number) {
                over.push((*at, false));
            } else if start.stage == Stage::Answered && self.is_released(pod, start) {
                over.push((*at, true));
            }
        }
        let (lasts_ms, thawed_ms) = (self.script.terms.lasts_ms, pod.thawed_ms);
        let silent: Vec<_> = { pod.starts.iter().copied() }
            .filter(|at| self.is_silent(pod, &self.starts[*at]))
            .collect();
        silent.into_iter().for_each(|at| _ = self.starts[at].silent_since.get_or_insert(now));
        if let Some(pod) = &mut self.pods[place] {
            let over_ms = |it: &Aside| (it.seen_ms + lasts_ms).max(thawed_ms) + NOTICED_MS;
            pod.asides.retain(|_, aside| now < over_ms(aside));
        }
        let releases = self.script.terms.releases;
        for (at, is_released) in over {
            let start = &mut self.starts[at];
            if is_released && start.plan.is_shared {
                let id = start.plan.id;
                self.pods[place].iter_mut().for_each(|pod| _ = pod.tainted.insert(id));
            }
            let start = &mut self.starts[at];
            if is_released {
                (start.stage, start.slots) = (Stage::Gone, None);
                if let Some(held) = start.tokens.take() {
                    let is_shared = start.plan.is_shared;
                    match is_shared {
                        true if releases => {}
                        true if !held.is_watched => {}
                        true => self.tokens.count_perhaps(held.hits),
                        false => self.tokens.settle(held, None, Was::Held, releases),
                    }
                }
            }
            if let Some(pod) = &mut self.pods[place] {
                pod.starts.remove(&at);
            }
        }
        let Some(pod) = &self.pods[place] else { return };
        for at in pod.starts.clone().into_iter().filter(|_| !has_orders) {
            let start = &mut self.starts[at];
            let is_dropped = |held: &Held| held.is_of_before && held.is_watched;
            start.slots = start.slots.filter(|held| !is_dropped(held));
        }
    }

    fn bounds(&self, pod: &Pod) -> Bounds {
        let mut bounds = Bounds::default();
        for start in pod.starts.iter().map(|at| &self.starts[*at]).filter(|it| it.holds()) {
            let is_tainted = start.plan.is_shared && pod.tainted.contains(&start.plan.id);
            let is_there = matches!(start.envoy, AtEnvoy::Runs);
            let is_sure = is_there && !is_tainted && !self.may_be_released(pod, start);
            for held in [start.slots, start.tokens].into_iter().flatten() {
                let counts_for_sure = is_sure && !held.is_of_before;
                bounds.holds.0 += u64::from(counts_for_sure);
                bounds.holds.1 += 1;
                bounds.hits.0 += if counts_for_sure { held.hits } else { 0 };
                bounds.hits.1 += held.hits;
            }
            let leased =
                |held: &Held| is_sure && held.is_leased && held.is_watched && !held.is_of_before;
            bounds.slots.0 += start.slots.filter(leased).map_or(0, |held| held.hits);
            bounds.slots.1 += start.slots.filter(|it| it.is_watched).map_or(0, |held| held.hits);
            bounds.tokens += start.tokens.filter(leased).map_or(0, |held| held.hits);
        }
        bounds.holds.1 += pod.asides.values().map(|aside| aside.holds).sum::<u64>();
        bounds.hits.1 += pod.asides.values().map(|aside| aside.hits).sum::<u64>();
        bounds
    }

    /// Checks that, where nothing fails, no more requests with ids of their own run than the limit
    /// allows, whatever clients do with the ids that they choose.
    pub fn check_limit(&self) -> Result<(), String> {
        if !self.script.is_calm() {
            return Ok(());
        }
        let pods = self.pods.iter().flatten();
        let running: u64 = pods.map(|pod| self.bounds(pod).slots.0).sum();
        match running <= self.script.terms.slots {
            true => Ok(()),
            false => Err(format!("{running} slots are used of {}", self.script.terms.slots)),
        }
    }

    /// Checks the table of a pod against the hits that its starts hold, and the store's count of
    /// its slots against the requests that run.
    fn check_pod(&self, place: usize) -> Result<(), String> {
        let Some(pod) = self.pods[place].as_ref() else { return Ok(()) };
        let bounds = self.bounds(pod);
        if !pod.gate.is_closed() {
            let (holds, hits) = pod.held();
            if !(bounds.holds.0..=bounds.holds.1).contains(&holds)
                || !(bounds.hits.0..=bounds.hits.1).contains(&hits)
            {
                return Err(format!("holds {holds} of {hits} hits, where {bounds:?} may be"));
            }
        }
        let slots = self.redis.slots_of(pod.number);
        if slots < bounds.slots.0 && self.is_to_be_stated(pod) {
            return Err(format!("the store counts {slots} slots, of {} that run", bounds.slots.0));
        }
        Ok(())
    }

    /// When something last kept the pod from stating its slots.
    fn disturbed_ms(&self, pod: &Pod) -> u64 {
        let now = self.now();
        let frozen_ms = if pod.gate.is_closed() { now } else { pod.thawed_ms };
        frozen_ms.max(self.redis.troubled_at(pod.place).unwrap_or(0))
    }

    /// Whether the store has to know all slots that the pod's requests have.
    fn is_to_be_stated(&self, pod: &Pod) -> bool {
        let now = self.now();
        let disturbed_ms = match self.redis.knows(pod.number) {
            Ok(asked_ms) if now < asked_ms + TTL_MS => return true,
            Ok(_) => self.disturbed_ms(pod),
            Err(unknown_ms) => self.disturbed_ms(pod).max(unknown_ms),
        };
        now > disturbed_ms + STATED_MS
    }

    /// Checks that the store does not count more slots of a pod for long than that has.
    fn check_excess(&mut self, place: usize) -> Result<(), String> {
        let Some(pod) = self.pods[place].as_ref() else { return Ok(()) };
        let (now, time) = (self.now(), self.redis.key_time_ms());
        let most = self.bounds(pod).slots.1 + self.idle_slots(pod);
        let counted = self.redis.slots_of(pod.number);
        let known = self.redis.knows(pod.number);
        let disturbed_ms = known.err().unwrap_or(0).max(self.disturbed_ms(pod));
        // Slots that the pod has stated since the trouble ended are not affected by it.
        let has_stated = known.is_ok_and(|asked_ms| asked_ms > disturbed_ms);
        let is_recent = now <= disturbed_ms + TROUBLE_MS;
        let is_disturbed = disturbed_ms > 0 && (is_recent || !has_stated);
        let began = Excess { since_ms: now, since_time_ms: time, is_disturbed };
        let excess = match pod.excess {
            _ if counted <= most => None,
            Some(excess) if disturbed_ms + 1 < now => {
                let is_disturbed = excess.is_disturbed || disturbed_ms > excess.since_ms;
                Some(Excess { is_disturbed, ..excess })
            }
            _ => Some(began),
        };
        if let Some(pod) = &mut self.pods[place] {
            pod.excess = excess;
        }
        let is_late = excess.is_some_and(|excess| match excess.is_disturbed {
            true => time > excess.since_time_ms + RETURNED_LATE_MS,
            false => now > excess.since_ms + RETURNED_MS,
        });
        if is_late {
            return Err(format!("the store counts {counted} slots of {most}, {excess:?}"));
        }
        Ok(())
    }

    /// Checks that tokens which are surely used or held are counted.
    fn check_floor(&self) -> Result<(), String> {
        let held: u64 = self.pods.iter().flatten().map(|pod| self.bounds(pod).tokens).sum();
        let flow = self.redis.flow();
        let least = (self.tokens.floor + held).saturating_sub(flow.forgotten);
        let counted = self.redis.tokens();
        if counted < least {
            return Err(format!("{counted} tokens are counted, of {least} used or held"));
        }
        Ok(())
    }
}

// === Once nothing runs any more ===

impl Scene {
    /// Checks that no pod holds anything, and waits until the store has forgotten pods that are
    /// gone.
    pub fn check_idle(&mut self) {
        for place in 0..self.pods.len() {
            let Some(pod) = &self.pods[place] else { continue };
            let (holds, hits) = pod.held();
            let bytes = pod.count(Counter::Holds(HoldCounter::Bytes));
            let panics = pod.count(Counter::LeasePanics);
            if holds + hits + bytes + panics > 0 {
                self.fault(format!(
                    "place {place} is idle: {holds} holds of {hits} hits take {bytes} bytes; \
                     {panics} panics"
                ));
            }
        }
    }

    /// Checks that all slots are free: as many requests pass as the limit allows.
    pub async fn check_room(&mut self) {
        let slots = self.redis.slots();
        if slots > 0 {
            return self.fault(format!("{slots} slots are in use by nobody"));
        }
        let tried = self.redis.slots_by(self.tried);
        if tried > 0 {
            return self.fault(format!("{tried} slots of a candidate are in use by nobody"));
        }
        let rules = self.versions.get(Version::default());
        let Some(pod) = &self.pods[0] else { return };
        let limiter = pod.limiter.clone();
        let mut passed = 0;
        for n in 0..=self.script.terms.slots {
            let id = format!("room-{n}");
            let start = request(&id, Charges { slots: Some(1), tokens: None }, false);
            let admit = || Ok::<_, StoreError>(());
            let now = limiter.clock().now();
            let decided = limiter.decide(&rules, &start, now, None, Owner::UNKNOWN, admit).await;
            passed += u64::from(decided.is_ok_and(|verdict| verdict.code == Code::Ok));
        }
        if passed != self.script.terms.slots {
            let slots = self.script.terms.slots;
            self.fault(format!("{passed} requests pass where {slots} slots are free"));
        }
    }

    /// Lets each pod ask Redis: a breaker that is open closes only by an ask.
    async fn close_breakers(&mut self) {
        let rules = self.versions.get(Version::default());
        for limiter in self.pods.iter().flatten().map(|pod| pod.limiter.clone()) {
            for _ in 0..3 {
                let admit = || Ok::<_, StoreError>(());
                let now = limiter.clock().now();
                // The verdict on the probe does not matter.
                let _ = limiter.decide(&rules, &probe(), now, None, Owner::UNKNOWN, admit).await;
                sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Ends all pods in good order, and checks the count of tokens.
    pub async fn close(&mut self) {
        self.close_breakers().await;
        for at in 0..self.starts.len() {
            // A hold that is left now belongs to a pod that is gone.
            if let Some(held) = self.starts[at].tokens.take() {
                self.tokens.strand(held);
            }
        }
        for pod in &mut self.pods {
            let Some(pod) = pod.take() else { continue };
            pod.into_limiter().close().await;
        }
        let counted = self.redis.tokens();
        let flow = self.redis.flow();
        let lost = flow.lent - flow.delivered + (flow.sent_back - flow.taken_back);
        let least = match self.is_reset {
            true => 0,
            false => self.tokens.least.saturating_sub(flow.forgotten),
        };
        let most = self.tokens.most + lost + flow.owed_unheard + flow.remembered;
        if counted < least || counted > most {
            self.fault(format!(
                "{counted} tokens are counted where {least} to {most} were used: {:?}, {flow:?}",
                self.tokens
            ));
        }
    }
}
