//! Messages that a pod reads, and the hits that it then holds by the model.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ratelease_engine::limiter::START_GRACE;
use ratelease_engine::limiter::owners::{ClosedBy, Origin, Owner};

use super::{Action, Scene};
use crate::ends::pod::{Aside, CallEnd, Log, Message, Presence, id_of};
use crate::ends::start::{Answer, AtEnvoy, Ended, Held, Stage, Start};
use crate::ends::tokens::Was;

impl Scene {
    pub fn take(&mut self, place: usize, message: Message) {
        let now = self.now();
        let Some(pod) = &mut self.pods[place] else { return };
        match message {
            Message::Open { conn, envoy } => {
                let owner = pod.limiter.connect(origin(envoy));
                pod.conns.insert(conn, owner);
                pod.owners.entry(owner).or_default().open += 1;
            }
            Message::Close { conn, by } => self.take_close(place, conn, by),
            Message::OpenLog { envoy } => {
                let node = pod.limiter.connect_node(&format!("envoy-{envoy}"));
                pod.logs.insert(envoy, Log { node, is_open: true, heard_ms: now, closed_ms: 0 });
                pod.has_logs = true;
            }
            Message::CloseLog { envoy, by } => {
                if let Some(log) = pod.logs.get_mut(&envoy).filter(|log| log.is_open) {
                    (log.is_open, log.closed_ms) = (false, now);
                    pod.limiter.disconnect_node(log.node, by);
                }
            }
            Message::Start { at, conn } => self.take_start(place, at, conn),
            Message::Reset { at } => self.take_reset(place, at),
            Message::End { at, end } => self.take_end(place, at, end),
            Message::Denied { at } => self.take_denied(place, at),
            Message::Signs { envoy, of } => self.take_signs(place, envoy, &of),
        }
    }

    fn take_close(&mut self, place: usize, conn: u64, by: ClosedBy) {
        let now = self.now();
        let Some(pod) = &mut self.pods[place] else { return };
        let number = pod.number;
        let Some(owner) = pod.conns.remove(&conn) else { return };
        let of_conn: Vec<_> = { pod.starts.iter().copied() }
            .filter(|at| self.starts[*at].conn == conn && self.starts[*at].is_at(number))
            .collect();
        for at in of_conn {
            let start = &self.starts[at];
            let is_read = !matches!(start.envoy, AtEnvoy::Waits);
            let unread = start.stage == Stage::Asking || !start.is_written() && !is_read;
            if unread {
                self.take_reset(place, at);
            }
        }
        let Some(pod) = &mut self.pods[place] else { return };
        pod.limiter.disconnect(owner, by);
        let presence = pod.owners.entry(owner).or_default();
        presence.open -= 1;
        if presence.open == 0 && by == ClosedBy::Client && presence.left_ms.is_none() {
            presence.left_ms = Some(now);
            let shared = pod.starts.iter().map(|at| &self.starts[*at].plan);
            let shared: Vec<_> = shared.filter(|it| it.is_shared).map(|it| it.id).collect();
            pod.tainted.extend(shared);
        }
    }

    fn take_start(&mut self, place: usize, at: usize, conn: u64) {
        let Some(pod) = &mut self.pods[place] else { return };
        let Some(owner) = pod.conns.get(&conn).copied() else { return };
        let is_its_reset = |it: &Message| matches!(it, Message::Reset { at: of } if *of == at);
        if pod.inbox.iter().any(is_its_reset) {
            self.starts[at].stage = Stage::Gone;
            return; // it is read with its reset, and not decided
        }
        let start = &mut self.starts[at];
        (start.pod, start.owner, start.stage) = (pod.number, owner, Stage::Asking);
        start.rule = pod.version.1;
        let has_slots = start.plan.slots == 0 || pod.version.0.is_watched();
        let has_tokens = start.plan.tokens == 0 || start.rule.is_watched();
        if start.plan.is_shared && !(has_slots && has_tokens) {
            // The start holds nothing, or hits of another count. So its end may be taken for the
            // end of another start.
            pod.tainted.insert(start.plan.id);
        }
        pod.starts.insert(at);
        let answer = pod.decide(at, &start.plan, owner, &self.keys, &self.outcomes);
        if let Some(answer) = answer {
            self.answer(at, answer);
        }
    }

    pub fn hear_outcomes(&mut self) {
        for outcome in self.outcomes.take() {
            let Some(pod) = self.pod_of_mut(outcome.pod) else { continue };
            pod.forget_call(outcome.at);
            match outcome.answer {
                CallEnd::Answered(answer) => self.answer(outcome.at, answer),
                CallEnd::Failed => self.abandon(outcome.at, true),
                CallEnd::Dropped => self.abandon(outcome.at, false),
            }
        }
    }

    /// A pod has its verdict on a start.
    pub fn answer(&mut self, at: usize, answer: Answer) {
        let now = self.now();
        let releases = self.script.terms.releases;
        self.tell(|| format!("    {at} is answered: {answer:?}"));
        let has_orders = self.redis.has_orders(self.starts[at].pod);
        let number = self.starts[at].pod;
        self.note_aside(number, at, answer.aside);
        let start = &mut self.starts[at];
        self.shown.seconds += u64::from(start.is_second);
        (start.seen_ms, start.started) = (now, answer.started);
        let early = self.pods.iter_mut().flatten().find(|pod| pod.number == number);
        let early = early.and_then(|pod| pod.early.remove(&start.plan.id));
        if !answer.passes {
            start.stage = Stage::Gone;
            start.denied_ms = Some(now);
            if let Some((Some(cost), _)) = early {
                self.tokens.count_perhaps(cost);
            }
            if let Some(Ended::ByLog(Some(cost))) = start.ended {
                let is_counted = start.plan.tokens > 0 && start.rule.is_watched();
                self.tokens.count_whole(if is_counted { cost } else { 0 });
            }
        } else {
            start.stage = Stage::Answered;
            (start.slots, start.tokens) = (answer.slots, answer.tokens);
            for held in [&mut start.slots, &mut start.tokens].into_iter().flatten() {
                held.is_of_before |= has_orders;
            }
            let is_alone = start.tokens.is_some_and(|held| !held.is_leased);
            if start.plan.is_shared && is_alone {
                // The cost that an end of this id settles need not be counted.
                let (id, pods) = (start.plan.id, self.pods.iter_mut().flatten());
                pods.for_each(|pod| _ = pod.number == number && pod.tainted.insert(id));
            }
            match start.ended {
                None => {}
                Some(Ended::ByCall) => {
                    (start.slots, start.tokens) = (None, None);
                }
                Some(Ended::ByLog(cost)) => {
                    start.slots = None;
                    if let Some(held) = start.tokens.take() {
                        let Held { hits, .. } = held;
                        self.tokens.settle(held, cost, Was::Held, releases);
                        let due = cost.unwrap_or(0).saturating_sub(hits);
                        self.note_due(number, due);
                    }
                }
            }
            if self.starts[at].ended.is_some() {
                self.starts[at].stage = Stage::Gone;
            }
        }
        if self.starts[at].is_reset {
            return self.undo(at);
        }
        let read_ms = now + self.starts[at].plan.read_ms;
        self.plan(read_ms, Action::Read(at));
    }

    /// Candidate rules hold something for a start.
    fn note_aside(&mut self, number: u64, at: usize, (holds, hits): (u64, u64)) {
        let seen_ms = self.now();
        if holds > 0
            && let Some(pod) = self.pod_of_mut(number)
        {
            pod.asides.insert(at, Aside { holds, hits, seen_ms });
            self.shown.asides += 1;
        }
    }

    /// A start has no answer. Its Envoy may let it pass.
    fn abandon(&mut self, at: usize, failed: bool) {
        self.tell(|| format!("    {at} has no answer, failed: {failed}"));
        let start = &mut self.starts[at];
        let (number, of_tokens) = (start.pod, start.plan.tokens > 0);
        start.stage = Stage::Gone;
        match start.ended {
            Some(Ended::ByLog(Some(cost))) if of_tokens => self.tokens.count_perhaps(cost),
            Some(_) => {}
            None => self.keep_blank(number, at),
        }
        if failed {
            self.fail(at);
        }
    }

    /// A pod to which logs are sent keeps a start without answer, for its cost.
    fn keep_blank(&mut self, number: u64, at: usize) {
        let has_logs = self.pod_of(number).is_some_and(|pod| pod.has_logs);
        let start = &self.starts[at];
        let is_kept = has_logs && start.plan.tokens > 0 && start.rule.is_watched();
        self.starts[at].blank_ms = is_kept.then(|| self.now());
    }

    fn take_reset(&mut self, place: usize, at: usize) {
        let Some(pod) = &mut self.pods[place] else { return };
        let start = &mut self.starts[at];
        if start.pod != pod.number {
            return;
        }
        start.is_reset = true;
        match start.stage {
            Stage::Asking => pod.reset(at),
            Stage::Answered => self.undo(at),
            Stage::Unsent | Stage::Gone => {}
        }
    }

    /// An answer was not read: its start is undone.
    fn undo(&mut self, at: usize) {
        let start = &mut self.starts[at];
        let Some(started) = start.started.take() else { return };
        let number = start.pod;
        let was_gone = start.stage == Stage::Gone;
        start.stage = Stage::Gone;
        start.slots = None;
        let tokens = start.tokens.take();
        if let Some(pod) = self.pod_of(number) {
            pod.limiter.undo_start(started);
        }
        if was_gone {
            return;
        }
        let is_shared = self.starts[at].plan.is_shared;
        if let Some(pod) = self.pod_of_mut(number).filter(|_| !is_shared) {
            pod.asides.remove(&at);
        }
        // Hits that a failure mode admitted may stay counted.
        if let Some(Held { hits, is_leased: false, is_watched: true, .. }) = tokens {
            self.tokens.count_perhaps(hits);
        }
        self.keep_blank(number, at);
    }

    fn take_signs(&mut self, place: usize, envoy: usize, of: &[usize]) {
        let now = self.now();
        let Some(pod) = &mut self.pods[place] else { return };
        let Some(log) = pod.logs.get_mut(&envoy) else { return };
        log.heard_ms = now;
        let node = log.node;
        for at in of {
            let id = id_of(&self.starts[*at].plan);
            let is_known = pod.limiter.note_alive(&id, node);
            let plan_id = self.starts[*at].plan.id;
            for (of, aside) in &mut pod.asides {
                if self.starts[*of].plan.id == plan_id {
                    aside.seen_ms = now;
                }
            }
            // The start itself may be over. A start of the same id, or the candidate's, may be
            // known in its place.
            let owner = self.starts[*at].owner;
            let is_whole = self.starts[*at].holds() && !self.starts[*at].plan.is_shared;
            if is_known && !is_whole {
                pod.may_be_proved(owner, self.starts[*at].plan.is_shared);
            }
            for other in pod.starts.iter().copied() {
                let start = &mut self.starts[other];
                if start.plan.id == plan_id && start.holds() {
                    start.note_sign(node, now);
                    if is_known {
                        prove(&mut pod.owners, start, now);
                    }
                }
            }
        }
    }

    pub fn note_due(&mut self, number: u64, due: u64) {
        if let Some(pod) = self.pod_of_mut(number) {
            pod.due += due;
        }
    }
}

/// Notes that something proves that the owner of a start lives. If it may be gone already, nothing
/// is known.
pub fn prove(owners: &mut BTreeMap<Owner, Presence>, start: &mut Start, now: u64) {
    let Some(presence) = owners.get_mut(&start.owner) else { return };
    let Some(left_ms) = presence.left_ms else { return };
    if now >= left_ms + grace_ms() {
        start.is_unsure = true;
        presence.may_be_proved = true; // it is gone only once that was noticed
    } else {
        presence.left_ms = None;
    }
}

pub fn grace_ms() -> u64 {
    u64::try_from(START_GRACE.as_millis()).unwrap()
}

fn origin(envoy: usize) -> Origin {
    let last = u8::try_from(envoy).unwrap();
    Origin::Address(IpAddr::from([10, 0, 0, last]))
}
