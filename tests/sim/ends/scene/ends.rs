//! The starts that an end ends when a pod reads it, and the costs that it charges.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use ratelease_engine::limiter::Resolved;
use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::store::StoreError;
use ratelease_engine::verdict::Code;

use super::Scene;
use super::pods::prove;
use crate::ends::pod::{Pod, id_of};
use crate::ends::rules::{Charges, request};
use crate::ends::script::{By, EndPlan};
use crate::ends::start::{Ended, Stage};
use crate::ends::tokens::Was;

/// The end of a denied start is expected within this time.
const DENIAL_MS: u64 = 1_000;

/// An end that comes by the log and by a call is counted once if one follows the other within this
/// time; perhaps it is within the second one.
const BOTH_MS: (u64, u64) = (5_000, 10_000);

impl Scene {
    pub fn take_end(&mut self, place: usize, at: usize, end: EndPlan) {
        let now = self.now();
        let Some(pod) = &mut self.pods[place] else { return };
        let start = &self.starts[at];
        let (id, cost) = (id_of(&start.plan), start.plan.cost);
        let cost = if start.denied_ms.is_some() { 0 } else { cost };
        let is_here = start.is_at(pod.number);
        match end.by {
            By::Log => {
                let known = start.plan.log_knows_cost.then_some(cost);
                let Some(log) = pod.logs.get_mut(&start.plan.envoy) else { return };
                log.heard_ms = now;
                let node = log.node;
                let is_known = pod.limiter.end_start(&id, known, node);
                self.tell(|| format!("    known: {is_known}"));
                self.end_by_log(place, at, known, is_known);
                let second = self.starts[at].other.filter(|at| self.starts[*at].conn > 0);
                second.into_iter().for_each(|at| self.end_by_log(place, at, known, is_known));
            }
            By::Call => {
                let slots = (start.plan.slots > 0).then_some(1);
                let tokens = (start.plan.tokens > 0).then_some(cost);
                let ended = request(&id, Charges { slots, tokens }, true);
                let conn = self.envoys[start.plan.envoy].conns.first();
                let owner = conn.and_then(|conn| pod.conns.get(conn)).copied();
                let owner = owner.unwrap_or(Owner::UNKNOWN);
                let (at_once, admit) = (pod.limiter.clock().now(), || Ok::<_, StoreError>(()));
                let decided = pod.limiter.decide(&pod.rules, &ended, at_once, None, owner, admit);
                pod.try_end(&id, Charges { slots, tokens }, owner);
                if !start.plan.is_shared {
                    pod.asides.remove(&at);
                }
                let mut cx = Context::from_waker(Waker::noop());
                let passes = match pin!(decided).poll(&mut cx) {
                    Poll::Ready(Ok(verdict)) => verdict.code == Code::Ok,
                    Poll::Ready(Err(_)) | Poll::Pending => false,
                };
                if !passes {
                    return self.fault(format!("the end of {at} waits, or is denied"));
                }
                self.end_by_call(place, at, cost, is_here);
            }
        }
    }

    /// Whether something may have released the hits that a start holds.
    pub fn was(&self, place: usize, at: usize, by: By) -> Was {
        let Some(pod) = &self.pods[place] else { return Was::Held };
        let start = &self.starts[at];
        match (self.may_be_released(pod, start), by) {
            (false, _) => Was::Held,
            (true, By::Call) => Was::PerhapsByCall,
            (true, By::Log) => Was::PerhapsByLog,
        }
    }

    fn end_by_log(&mut self, place: usize, at: usize, cost: Option<u64>, is_known: bool) {
        let now = self.now();
        let was = self.was(place, at, By::Log);
        let releases = self.script.terms.releases;
        let Some(pod) = &mut self.pods[place] else { return };
        let (number, start) = (pod.number, &mut self.starts[at]);
        let is_here = start.is_at(number);
        if is_known {
            pod.asides.remove(&at);
            match start.other.is_none() || is_here {
                true => prove(&mut pod.owners, start, now),
                false => pod.may_be_proved(start.owner, false),
            }
        }
        if start.plan.is_shared {
            return self.end_shared_by_log(place, at, cost);
        }
        let lasts_ms = self.script.terms.lasts_ms;
        let blank_ms = start.blank_ms.take_if(|_| start.pod == number);
        let of_tokens = start.plan.tokens > 0;
        match start.stage {
            // The pod may not have entered the start yet. It finds the end when it does.
            Stage::Asking if is_here && is_known => {
                start.ended.get_or_insert(Ended::ByLog(cost));
                start.logged_ms = cost.filter(|_| start.rule.holds()).map(|_| now);
            }
            Stage::Answered if is_here && start.holds() => {
                start.stage = Stage::Gone;
                start.slots = None;
                start.logged_ms = cost.and(start.tokens).map(|_| now);
                if let Some(held) = start.tokens.take() {
                    let is_kept = cost.is_none() && !releases;
                    start.kept = is_kept.then_some((now, held.hits));
                    self.tokens.settle(held, cost, was, releases);
                    self.note_due(number, cost.unwrap_or(0).saturating_sub(held.hits));
                }
            }
            _ if blank_ms.is_some() => {
                start.logged_ms = cost.map(|_| now);
                let cost = cost.unwrap_or(0);
                match blank_ms.is_some_and(|since| now < since + lasts_ms) {
                    true => self.tokens.count_whole(cost),
                    false => self.tokens.count_perhaps(cost),
                }
                self.note_due(number, cost);
            }
            _ => {
                let cost = cost.filter(|_| of_tokens);
                pod.early.entry(start.plan.id).or_insert((cost, now));
            }
        }
    }

    /// Ends a request that shares its id. The end may be taken for the end of another request of
    /// that id, so nothing is sure of all of them, except that none holds for longer than its time.
    fn end_shared_by_log(&mut self, place: usize, at: usize, cost: Option<u64>) {
        let now = self.now();
        let Some(pod) = &mut self.pods[place] else { return };
        let number = pod.number;
        let id = self.starts[at].plan.id;
        pod.tainted.insert(id);
        pod.may_be_proved(Owner::UNKNOWN, true);
        self.shown.shared_by_log += 1;
        // The end may also have ended another start, which holds tokens, in place of one that holds
        // none.
        pod.early.entry(id).or_insert((cost, now));
        self.tokens.count_perhaps(cost.unwrap_or(0));
        self.note_due(number, cost.unwrap_or(0));
    }

    /// Takes an entry of the log for a request that one of its filters denied.
    pub fn take_denied(&mut self, place: usize, at: usize) {
        let now = self.now();
        let Some(pod) = &mut self.pods[place] else { return };
        let start = &mut self.starts[at];
        let Some(log) = pod.logs.get_mut(&start.plan.envoy) else { return };
        log.heard_ms = now;
        pod.limiter.end_denied(&id_of(&start.plan), log.node);
        if start.plan.is_shared {
            pod.tainted.insert(start.plan.id);
        } else if start.is_at(pod.number) && start.stage == Stage::Answered {
            (start.stage, start.slots) = (Stage::Gone, None);
            self.shown.freed_by_denials += 1;
        }
    }

    fn end_by_call(&mut self, place: usize, at: usize, cost: u64, is_here: bool) {
        let now = self.now();
        let was = self.was(place, at, By::Call);
        self.taint_by_call(place, at, is_here, was);
        let Some(pod) = &mut self.pods[place] else { return };
        let (number, start) = (pod.number, &mut self.starts[at]);
        let counts_whole = pod.version.1.is_watched();
        let of_tokens = start.plan.tokens > 0;
        if is_here && start.holds() {
            prove(&mut pod.owners, start, now);
        }
        let blank_ms = start.blank_ms.take_if(|_| start.pod == number);
        let was = match was {
            Was::Held if of_tokens && start.rule.is_watched() != counts_whole => {
                Was::HeldUnderAnother
            }
            // The call counts like an entry of the log: where nothing is held, nothing is counted
            // here.
            Was::PerhapsByCall if !counts_whole => Was::PerhapsByLog,
            was => was,
        };
        let is_whole = match start.stage {
            Stage::Asking if is_here && !start.plan.is_shared => {
                match start.ended {
                    Some(Ended::ByLog(_)) | None => start.ended = Some(Ended::ByCall),
                    Some(Ended::ByCall) => {}
                }
                true
            }
            Stage::Answered if is_here && start.plan.is_shared => true,
            Stage::Answered if is_here => self.settle_by_call(place, at, cost, was),
            Stage::Unsent if of_tokens => {
                pod.early.insert(start.plan.id, (None, now));
                true
            }
            _ if blank_ms.is_some() => true,
            _ => self.is_told_by_call_alone(place, at, cost),
        };
        if is_whole && of_tokens {
            self.count_by_call(place, at, cost);
        }
    }

    /// Notes the effects that the end of one start of a shared id may have on the other starts of
    /// it.
    fn taint_by_call(&mut self, place: usize, at: usize, is_here: bool, was: Was) {
        let now = self.now();
        let Some(pod) = &mut self.pods[place] else { return };
        let start = &mut self.starts[at];
        let holds_all = (start.plan.slots == 0 || start.slots.is_some())
            && (start.plan.tokens == 0 || start.tokens.is_some());
        let is_its_first = is_here
            && start.stage == Stage::Answered
            && holds_all
            && was == Was::Held
            && !start.has_ended;
        let is_of_denied = { start.denied_ms }
            .is_some_and(|denied| now - denied <= DENIAL_MS && start.pod == pod.number);
        let is_of_denied = is_of_denied && !start.has_ended;
        start.has_ended = true;
        if !start.plan.is_shared {
            return;
        }
        if !is_its_first && !is_of_denied {
            pod.tainted.insert(start.plan.id);
        }
        // The end may have ended a start of another owner, and so proved that that owner lives.
        pod.owners.values_mut().for_each(|it| it.may_be_proved |= it.left_ms.is_some());
    }

    /// Ends a start by a call. Returns whether its whole cost has still to be counted.
    fn settle_by_call(&mut self, place: usize, at: usize, cost: u64, was: Was) -> bool {
        let releases = self.script.terms.releases;
        let Some(number) = self.pods[place].as_ref().map(|pod| pod.number) else { return false };
        let start = &mut self.starts[at];
        start.stage = Stage::Gone;
        start.slots = None;
        let Some(held) = start.tokens.take() else { return true };
        let due = cost.saturating_sub(held.hits);
        match held.is_watched {
            true => self.tokens.settle(held, Some(cost), was, releases),
            false => self.tokens.count_perhaps(due),
        }
        self.note_due(number, due);
        false
    }

    /// Whether the cost of a call that ends nothing is counted whole: no entry of the log has
    /// stated it.
    fn is_told_by_call_alone(&mut self, place: usize, at: usize, cost: u64) -> bool {
        let now = self.now();
        let Some(pod) = &self.pods[place] else { return false };
        let (number, is_watched) = (pod.number, pod.version.1.is_watched());
        let start = &mut self.starts[at];
        if let Some((kept_ms, hits)) = start.kept.take_if(|_| start.pod == number)
            && now < kept_ms + BOTH_MS.1
        {
            // The estimate stays, and the cost beyond it is charged.
            let due = if is_watched { cost.saturating_sub(hits) } else { 0 };
            self.tokens.count_whole(due);
            let is_sure = is_watched && now < kept_ms + BOTH_MS.0;
            self.tokens.count_perhaps(if is_sure { 0 } else { cost - due });
            self.note_due(number, due);
            return false;
        }
        let Some(logged) = start.logged_ms.filter(|_| start.pod == number) else { return true };
        if now >= logged + BOTH_MS.1 {
            return true;
        }
        start.logged_ms = None;
        if now >= logged + BOTH_MS.0 {
            self.tokens.count_perhaps(cost);
        }
        false
    }

    /// Counts the cost of a call that ends a start without a hold.
    fn count_by_call(&mut self, place: usize, at: usize, cost: u64) {
        let Some(pod) = &self.pods[place] else { return };
        let (number, plan) = (pod.number, &self.starts[at].plan);
        let is_tainted = plan.is_shared && pod.tainted.contains(&plan.id);
        match pod.version.1.is_watched() {
            true if !is_tainted => self.tokens.count_whole(cost),
            _ => self.tokens.count_perhaps(cost),
        }
        self.note_due(number, cost);
    }

    /// Idle tokens that a pod has leased.
    pub fn idle_tokens(&self, pod: &Pod) -> u64 {
        self.idle(pod, Charges { slots: None, tokens: Some(1) })
    }

    /// Idle slots that a pod has.
    pub fn idle_slots(&self, pod: &Pod) -> u64 {
        self.idle(pod, Charges { slots: Some(1), tokens: None })
    }

    pub fn idle(&self, pod: &Pod, charges: Charges) -> u64 {
        let rules = self.versions.present();
        let look = request("x", charges, false);
        let resolved = pod.limiter.resolve(rules, &look);
        match resolved.first() {
            Some(Resolved::Charged(charge)) => pod.limiter.view(charge).map_or(0, |it| it.tokens),
            _ => 0,
        }
    }
}
