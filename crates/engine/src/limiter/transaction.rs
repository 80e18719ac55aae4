//! The effects of one request, as a transaction: they are computed first, applied once, or undone
//! completely.
//!
//! A charge takes its tokens at once, so that no other request can have them, and puts them back
//! into the buffer if the request is denied. Refunds are applied only once the request is known to
//! pass. A request that is dropped before its verdict puts back the tokens that it took, unless
//! refunds have been sent; its settlements count in any case.

use ratelease_rules::key::Key;
use ratelease_rules::request::{Few, Request};
use ratelease_rules::{FailureMode, Limit};
use tokio::time::timeout_at;

use super::key::{Attempt, KeyState, ReplyReceiver, Visit, answered};
use super::lease_policy::LeasePolicy;
use super::owners::{Owner, StartId};
use super::starts::{End, Held, Hold};
use super::{Charge, HeldBy, Resolved, Shared};
use crate::buffer::table::TableFull;
use crate::buffer::{LeasedTokens, Take};
use crate::store::StoreError;
use crate::time::Time;
use crate::verdict::{self, AppliedLimit, Code, Counted, DecisionSource, Status, Verdict};

/// The state of a request between its first charge and its verdict.
pub(super) struct Transaction<'a, 'r> {
    shared: &'a Shared,
    resolved: &'a [Resolved<'r>],
    /// When it began to take tokens.
    began: Time,
    /// One for each descriptor that `take_local` has come to; `None` where nothing is charged.
    attempts: Few<Option<Attempt>>,
    /// Charges that a failure mode admitted, and that no tokens have paid for.
    debts: Vec<Debt<'a, 'r>>,
    /// Refunds that have been applied, here or in the store.
    refunded: Vec<usize>,
    /// Whether no descriptor holds or settles anything, or has a slot until its request ends.
    /// `true` for nearly all requests.
    is_plain: bool,
    /// Settlements have been applied.
    settled: bool,
    /// Settlements whose hits had been charged before, with the number of those hits.
    covered: Few<(usize, u64)>,
    /// A refund has been queued, so the request stands whatever happens to it now.
    stands: bool,
    /// The failure mode answers with an error, which the caller may take for a pass.
    failed: bool,
    starts: Begun,
}

/// The starts of a request in the table of open starts.
struct Begun {
    /// Who asked.
    owner: Owner,
    /// Whether a candidate's rules decide.
    is_aside: bool,
    /// Whether the request was entered, or is not to be entered any more.
    is_entered: bool,
    /// One start for each id.
    starts: Few<StartId>,
    /// The descriptors that hold something.
    held: Few<usize>,
}

// === impl Transaction ===

impl<'a, 'r> Transaction<'a, 'r> {
    /// A transaction of a request that `owner` has sent, or, if it `is_aside`, of a candidate's
    /// rules.
    pub(super) fn new(
        shared: &'a Shared,
        resolved: &'a [Resolved<'r>],
        owner: Owner,
        is_aside: bool,
    ) -> Self {
        let (starts, held) = (Few::new(), Few::new());
        Self {
            shared,
            resolved,
            began: Time::default(),
            attempts: Few::with_capacity(resolved.len()),
            debts: Vec::new(),
            refunded: Vec::new(),
            is_plain: true,
            settled: false,
            covered: Few::new(),
            stands: false,
            failed: false,
            starts: Begun { owner, is_aside, is_entered: false, starts, held },
        }
    }

    /// Charges every descriptor from the tokens held here, as far as they go, and previews the
    /// effect of refunds on their keys.
    pub(super) fn take_local(&mut self, request: &Request<'_>, now: Time) {
        self.began = now;
        for (at, resolved) in self.resolved.iter().enumerate() {
            let Resolved::Charged(charge) = resolved else {
                self.shared.end_without_rule(request, at, self.starts.owner, now);
                self.attempts.push(None);
                continue;
            };
            self.is_plain &= charge.is_plain();
            let attempt = match self.settle_hold(request, at, charge, now) {
                Some(attempt) => Ok(attempt),
                None => self.shared.attempt(charge, now),
            };
            let attempt = match attempt {
                Ok(attempt) => attempt,
                Err(TableFull) if charge.settles() => Attempt::settled(charge),
                // Nothing is given back before the request is known to pass.
                Err(TableFull) if charge.refund => Attempt::unknown(charge),
                Err(TableFull) => Attempt::shed(charge),
            };
            self.attempts.push(Some(attempt));
        }
    }

    /// Ends the hold of the request of a settlement. Returns the state of the key, if unused tokens
    /// went back to it.
    fn settle_hold(
        &mut self,
        request: &Request<'_>,
        at: usize,
        charge: &Charge<'_>,
        now: Time,
    ) -> Option<Attempt> {
        if !charge.settles() {
            return None;
        }
        let id = match charge.held {
            Some(HeldBy { id, .. }) => Some(id),
            None => self.shared.id_of_end(request, at).map(Some),
        };
        let Begun { owner, is_aside, .. } = self.starts;
        let (due, attempt) = self.shared.settle_hold(charge, id?, owner, !is_aside, now);
        self.covered.push((at, charge.hits - due));
        attempt
    }

    /// Whether the request is denied already, whatever the store may reply for the other
    /// descriptors.
    fn is_denied(&self) -> bool {
        verdict::code(&self.statuses(), self.shared.options.modes) == Code::OverLimit
    }

    /// Whether the store has to be asked.
    pub(super) fn has_to_ask(&self) -> bool {
        let is_short = self.attempts.iter().flatten().any(|attempt| !attempt.is_decided());
        is_short && !self.is_denied()
    }

    /// Queues for all missing leases at once and waits for them until `deadline`; then sends the
    /// refunds that no lease here can take, if the request still passes. Where the store does not
    /// answer for a key, the key's failure mode decides. If that mode is an error and another key
    /// denies, the request is denied, since a caller may treat an error as a pass.
    pub(super) async fn take_leased(
        &mut self,
        now: Time,
        deadline: Time,
    ) -> Result<(), StoreError> {
        if !self.begin(now) {
            return Ok(());
        }
        let charges = self.short(|charge| !charge.refund);
        let mut failed = self.enter(charges, now, deadline).await;
        if failed.is_none() && !self.is_denied() {
            let refunds = self.short(|charge| charge.refund);
            failed = self.enter(refunds, now, deadline).await;
        }
        match failed {
            Some(error) if !self.is_denied() => {
                self.failed = true;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Enters the request in the table of starts, unless it is there. Returns false if its end has
    /// come before it: then it takes nothing, and its cost is charged.
    fn begin(&mut self, now: Time) -> bool {
        if self.is_plain || std::mem::replace(&mut self.starts.is_entered, true) {
            return true;
        }
        let Begun { owner, is_aside, .. } = self.starts;
        match self.shared.begin_starts(self.resolved, owner, is_aside, now) {
            Ok(starts) => self.starts.starts = starts,
            Err(end) => {
                self.refuse_ended(end, now);
                return false;
            }
        }
        true
    }

    /// Denies the charges of a request that has ended: its answer is of no use any more.
    fn refuse_ended(&mut self, end: End, now: Time) {
        for (resolved, attempt) in self.resolved.iter().zip(&mut self.attempts) {
            let (Resolved::Charged(charge), Some(attempt)) = (resolved, attempt) else { continue };
            if charge.hold_id().is_some() {
                self.shared.undo(charge, attempt, self.began);
                *attempt = Attempt::shed(charge);
                self.shared.charge_end(charge, end, now);
            }
        }
    }

    /// Returns when the last slot begins that the request has taken, if it has to wait for one and
    /// nothing denies it.
    pub(super) fn slot_after(&self, now: Time) -> Option<Time> {
        let slots = self.attempts.iter().flatten().filter_map(|attempt| attempt.slot_after(now));
        slots.max().filter(|_| !self.is_denied())
    }

    /// Makes the verdict. If it denies, the tokens taken for the other descriptors are put back;
    /// otherwise refunds are applied, and the tokens taken are spent.
    pub(super) fn conclude(&mut self, request: &Request<'_>, now: Time) -> Verdict<'r> {
        let modes = self.shared.options.modes;
        self.settle(now);
        let mut verdict = Verdict::new(request, self.statuses(), modes);
        if verdict.code != Code::OverLimit
            && !self.is_plain
            && !(self.begin(now) && self.hold_slots())
        {
            verdict = Verdict::new(request, self.statuses(), modes);
        }
        if verdict.code == Code::OverLimit {
            let overdrawn = self.overdrawn();
            self.release(&overdrawn);
            verdict = Verdict::new(request, self.statuses(), modes);
        } else {
            self.apply_refunds(now);
            self.spend();
        }
        self.charge_costs(verdict.code == Code::OverLimit, now);
        if !self.is_plain {
            verdict.started = self.conclude_starts(verdict.code != Code::OverLimit, now);
        }
        self.attempts.clear(); // what is still held is spent
        verdict
    }

    /// Notes in the table of starts that the request passes or not. Returns the start that is open
    /// from now on.
    fn conclude_starts(&mut self, passes: bool, now: Time) -> Option<StartId> {
        let mut open: Option<(StartId, StartId)> = None; // the first, and the last
        for start in std::mem::take(&mut self.starts.starts) {
            let ended = match passes {
                true => self.shared.starts.conclude(start, now),
                false => self.shared.starts.forget(start).and_then(|(_, end)| {
                    Some((self.blank_holds(start), end?)) // what was taken has been put back
                }),
            };
            match ended {
                Some((held, end)) => self.shared.end_holds(&held, end, now),
                None if passes && self.shared.starts.is_open(start) => {
                    let (first, last) = open.unwrap_or((start, start));
                    self.shared.starts.link(last, start);
                    open = Some((first, start));
                }
                None => {}
            }
        }
        self.note_unheld(now);
        open.map(|(first, _)| first).filter(|_| !self.starts.held.is_empty())
    }

    /// Notes that nothing is held for the descriptors whose end is to come all the same.
    fn note_unheld(&self, now: Time) {
        let Begun { owner, is_aside, .. } = self.starts;
        if is_aside || !owner.ends_what_was_denied() {
            return;
        }
        for (at, resolved) in self.resolved.iter().enumerate() {
            if let Some(id) = resolved.hold_id().filter(|_| !self.starts.held.contains(&at)) {
                self.shared.starts.note_denied(id, now);
                self.shared.look_at_starts();
            }
        }
    }

    /// Returns the holds of a start that took nothing: its cost alone is to be charged.
    fn blank_holds(&self, start: StartId) -> Held {
        let charges = self.resolved.iter().filter_map(|resolved| match resolved {
            Resolved::Charged(charge) => Some(charge),
            Resolved::Free | Resolved::Unlimited => None,
        });
        let of_start = charges.filter_map(|charge| {
            let id = charge.hold_id().filter(|id| id.request == start.request)?;
            Some((id.descriptor, Hold { hits: 0, ..charge.hold(LeasedTokens::default(), 0)? }))
        });
        of_start.collect()
    }

    /// Removes the request from the table of starts: its caller gets no answer, and may let it pass
    /// all the same.
    fn abandon_starts(&mut self, now: Time) {
        for start in std::mem::take(&mut self.starts.starts) {
            let Some((_, ended)) = self.shared.starts.forget(start) else { continue };
            let held = self.blank_holds(start);
            match ended {
                Some(end) => self.shared.end_holds(&held, end, now),
                None if self.starts.is_aside => {}
                None => self.shared.keep_unanswered(start, self.starts.owner, &held, now),
            }
        }
        if self.failed {
            self.note_unheld(now);
        }
    }

    /// Notes that the request holds the tokens taken by the charge `at`. Returns whether it holds
    /// them; if not, slots have been put back.
    fn note_hold(
        &mut self,
        at: usize,
        charge: &Charge<'_>,
        taken: LeasedTokens,
        alone: u64,
    ) -> bool {
        let is_held = self.shared.hold(&self.starts.starts, charge, (taken, self.began), alone);
        if is_held {
            self.starts.held.push(at);
        }
        is_held
    }

    /// Spends the tokens taken: notes which of them the request holds, and which hits that failure
    /// modes admitted are owed.
    fn spend(&mut self) {
        self.hold();
        for Debt { at, charge, can_pay, owed_until } in std::mem::take(&mut self.debts) {
            let is_local = charge.failure_mode() == FailureMode::Local;
            if !is_local {
                // Only hits that `local` admitted are denied because the key is used up.
                let _ = self.shared.note_debt(charge, can_pay);
            }
            let alone = if is_local && owed_until.is_none() { charge.hits } else { 0 };
            self.note_hold(at, charge, LeasedTokens::default(), alone);
        }
    }

    /// Applies the settlements of the request, whatever becomes of it: their costs have been
    /// incurred.
    fn settle(&mut self, now: Time) {
        if self.is_plain || std::mem::replace(&mut self.settled, true) {
            return;
        }
        for (at, resolved) in self.resolved.iter().enumerate() {
            if let Resolved::Charged(charge) = resolved
                && charge.settles()
            {
                let due = charge.hits - self.covered(at);
                if due > 0 {
                    self.shared.settle(charge, due, now);
                }
            }
        }
    }

    /// Charges the costs that the verdict leaves uncharged, whole: all of them in a call that
    /// `is_denied`, and those that are over their limit in one that passes nevertheless.
    fn charge_costs(&self, is_denied: bool, now: Time) {
        for (resolved, attempt) in self.resolved.iter().zip(&self.attempts) {
            let (Resolved::Charged(charge), Some(attempt)) = (resolved, attempt) else { continue };
            if charge.is_cost() && (is_denied || attempt.is_over()) {
                self.shared.settle(charge, charge.hits, now);
            }
        }
    }

    /// Hits of the settlement `at` that had been charged before.
    fn covered(&self, at: usize) -> u64 {
        self.covered.iter().find(|(of, _)| *of == at).map_or(0, |(_, hits)| *hits)
    }

    /// Notes the slots that the request has from now on. One that cannot be noted could never come
    /// back, so its charge is denied. Returns whether all were noted.
    fn hold_slots(&mut self) -> bool {
        let mut are_all = true;
        for (at, resolved) in self.resolved.iter().enumerate() {
            let (Resolved::Charged(charge), Some(attempt)) = (resolved, self.attempts[at]) else {
                continue;
            };
            let tokens = attempt.taken();
            if !charge.is_of_slots() || tokens.tokens == 0 {
                continue;
            }
            if !self.note_hold(at, charge, tokens, 0) {
                self.attempts[at] = Some(Attempt::shed(charge));
                are_all = false;
            }
        }
        if !are_all && self.is_denied() {
            self.starts.held.clear();
        }
        are_all
    }

    /// Notes the tokens, other than slots, that the request holds from now on.
    fn hold(&mut self) {
        if self.is_plain {
            return;
        }
        for (at, resolved) in self.resolved.iter().enumerate() {
            if let (Resolved::Charged(charge), Some(attempt)) = (resolved, self.attempts[at])
                && charge.holds()
                && !charge.is_of_slots()
                && matches!(attempt.take, Take::Taken(_))
                && (!attempt.is_admitted_by_failure_mode() || attempt.taken().tokens > 0)
            {
                self.note_hold(at, charge, attempt.taken(), 0);
            }
        }
    }

    /// Queues `charges` for leases, and waits for those until `deadline`. Returns the last error
    /// that a failure mode produced because the store did not reply.
    async fn enter(
        &mut self,
        charges: Vec<(usize, &'a Charge<'r>)>,
        now: Time,
        deadline: Time,
    ) -> Option<StoreError> {
        let mut failed = None;
        let mut queued = Vec::with_capacity(charges.len());
        for (at, charge) in charges {
            if charge.refund {
                self.refunded.push(at);
            }
            let entered = self.shared.enqueue(charge, now);
            let is_queued = entered.is_ok();
            self.stands |= charge.refund && is_queued;
            queued.push((at, is_queued, PlaceInQueue::new(self.shared, charge, entered, now)));
        }
        for (at, is_queued, mut place) in queued {
            let charge = place.charge;
            match place.wait(deadline).await {
                Ok(attempt) => {
                    self.attempts[at] = Some(attempt.with_fitted(charge, self.attempts[at]));
                }
                Err(error) => {
                    let can_pay = place.may_be_paid_later;
                    let error = self.apply_failure_mode(at, charge, error, now, is_queued);
                    if error.is_none() {
                        self.note_debt(at, charge, can_pay);
                    }
                    failed = error.or(failed);
                }
            }
        }
        failed
    }

    /// Applies the failure mode to a charge for which the store has not replied, and which may be
    /// on its way to the store if it is `queued`. Returns the error, if that is the mode's answer.
    fn apply_failure_mode(
        &mut self,
        at: usize,
        charge: &Charge<'_>,
        error: StoreError,
        now: Time,
        queued: bool,
    ) -> Option<StoreError> {
        let attempt = if charge.refund {
            let fails = self.resolved.len() == 1; // else the rest of the request stands
            self.shared.refund_without_store(charge, now, error, queued, fails)
        } else {
            self.shared.without_store(charge, now, error)
        };
        match attempt {
            Ok(attempt) => {
                self.attempts[at] = Some(attempt);
                None
            }
            Err(error) => Some(error),
        }
    }

    /// Notes a charge that a failure mode has admitted, and whether a lease `can_pay` for it. Hits
    /// that `local` admits are owed at once, and the key is read once more: a reply that arrives
    /// from now on pays for the charge before others may have its tokens, and one that has just
    /// arrived may have left nothing. Hits that `allow` admits have no bound, so they are owed once
    /// their request passes.
    fn note_debt(&mut self, at: usize, charge: &'a Charge<'r>, can_pay: bool) {
        let admitted = self.attempts[at].filter(Attempt::is_admitted_by_failure_mode);
        // Slots that a failure mode admitted are in use: no lease has to pay for them.
        let is_unpaid = admitted.is_some_and(|it| it.taken().tokens == 0);
        if !charge.spends() || !is_unpaid {
            return;
        }
        let mut debt = Debt { at, charge, can_pay, owed_until: None };
        if charge.failure_mode() == FailureMode::Local {
            match self.shared.note_debt(charge, can_pay) {
                Ok(owed_until) => debt.owed_until = owed_until,
                Err(used_up) => {
                    self.attempts[at] = Some(used_up);
                    return;
                }
            }
        }
        self.debts.push(debt);
    }

    /// The charges for which `wanted` returns true and that only the store can decide.
    pub(super) fn short(
        &self,
        wanted: impl Fn(&Charge<'_>) -> bool,
    ) -> Vec<(usize, &'a Charge<'r>)> {
        let resolved = self.resolved.iter().zip(&self.attempts).enumerate();
        let short = resolved.filter_map(|(at, pair)| match pair {
            (Resolved::Charged(charge), Some(attempt)) if !attempt.is_decided() => {
                Some((at, charge))
            }
            _ => None,
        });
        short.filter(|(_, charge)| wanted(charge)).collect()
    }

    /// Credits the refunds of the request, unless they have gone to the store.
    fn apply_refunds(&mut self, now: Time) {
        for (at, resolved) in self.resolved.iter().enumerate() {
            if let Resolved::Charged(charge) = resolved
                && charge.refund
                && !self.refunded.contains(&at)
            {
                self.shared.refund(charge, now);
            }
        }
    }

    fn statuses(&self) -> Few<Status<'r>> {
        let mut statuses = Few::with_capacity(self.resolved.len());
        for (at, (resolved, attempt)) in self.resolved.iter().zip(&self.attempts).enumerate() {
            statuses.push(status(resolved, attempt.as_ref(), self.covered(at)));
        }
        statuses
    }

    /// Keys that this request itself charged beyond their limit. The tokens that the request took
    /// from them before stay spent, as do all their remaining tokens: one charge of the same sum
    /// would have done that too.
    fn overdrawn(&self) -> Vec<Key> {
        let pairs = self.resolved.iter().zip(&self.attempts);
        let overdrawn = pairs.filter_map(|pair| match pair {
            (Resolved::Charged(charge), Some(attempt)) => {
                (attempt.is_over() && charge.charge_denied()).then_some(charge.key())
            }
            _ => None,
        });
        overdrawn.collect()
    }

    /// Puts back the tokens taken from keys other than `spent`.
    fn release(&mut self, spent: &[Key]) {
        for Debt { at, charge, owed_until, .. } in std::mem::take(&mut self.debts) {
            let Some(until) = owed_until.filter(|_| !spent.contains(&charge.key())) else {
                continue;
            };
            self.shared.cancel_debt(charge, until);
            if let Some(attempt) = &mut self.attempts[at] {
                attempt.how = DecisionSource::Local; // only once
            }
        }
        for (resolved, attempt) in self.resolved.iter().zip(&mut self.attempts) {
            let (Resolved::Charged(charge), Some(attempt)) = (resolved, attempt) else { continue };
            if attempt.is_decided() && !charge.refund && !spent.contains(&charge.key()) {
                self.shared.undo(charge, attempt, self.began);
            }
        }
    }
}

impl Drop for Transaction<'_, '_> {
    /// Puts back the tokens taken, unless refunds have been sent: then the request stands, and its
    /// charges are spent even though its caller does not receive the answer. The other refunds of
    /// such a request are applied too.
    fn drop(&mut self) {
        if self.attempts.is_empty() && (self.is_plain || self.settled) {
            return; // the verdict was made, or nothing was taken
        }
        let now = self.shared.clock.now();
        self.settle(now);
        // The end of a request that stands has to find its hold.
        if self.stands && self.begin(now) && (self.hold_slots() || !self.is_denied()) {
            self.apply_refunds(now);
            self.spend();
            self.conclude_starts(true, now);
        } else {
            self.release(&[]);
            self.abandon_starts(now);
        }
    }
}

/// The status of a descriptor, of whose hits `covered` had been charged before. If the store was
/// not asked, the descriptor counts as passing, with the state of its key as far as known.
fn status<'r>(resolved: &Resolved<'r>, attempt: Option<&Attempt>, covered: u64) -> Status<'r> {
    let charge = match resolved {
        Resolved::Free => return Status::FREE,
        Resolved::Unlimited => return Status::UNLIMITED,
        Resolved::Charged(charge) => charge,
    };
    let attempt = attempt.copied().unwrap_or_else(|| Attempt::unknown(charge));
    let Attempt { fitted, how, quota, .. } = attempt;
    let hits = charge.hits.saturating_sub(covered);
    let counted = Counted { key: charge.key(), hits, fitted, over: attempt.is_over(), how };
    Status::counted(charge.applied, counted, quota.remaining, quota.reset_after)
}

// === impl Attempt ===

impl Attempt {
    /// Adds the tokens that a denial by the store has spent: those that were known `before` to
    /// remain. If they were enough for the charge, others had spent them meanwhile, and the number
    /// is unknown.
    fn with_fitted(self, charge: &Charge<'_>, before: Option<Attempt>) -> Self {
        let Some(Attempt { take: Take::Short, quota, .. }) = before else { return self };
        let spends = self.is_over() && charge.charge_denied() && quota.remaining < charge.hits;
        Self { fitted: if spends { quota.remaining } else { 0 }, ..self }
    }
}

// === A request's place in the queue for a key's next lease ===

/// A charge that a failure mode admitted, and that no tokens have paid for.
struct Debt<'a, 'r> {
    /// The index of the descriptor in the request.
    at: usize,
    charge: &'a Charge<'r>,
    /// A lease may pay for it, even if no ask is out.
    can_pay: bool,
    /// Until when the key owes it to the store, if it does already.
    owed_until: Option<Time>,
}

/// A place in a queue, or one that was refused. If dropped while it waits, it puts back a lease
/// that has just arrived.
pub(super) struct PlaceInQueue<'a, 'r> {
    shared: &'a Shared,
    charge: &'a Charge<'r>,
    /// When the place was taken.
    since: Time,
    reply: ReplyReceiver,
    /// The reply has not arrived yet, and still may.
    open: bool,
    /// Without a lease here, a later one may pay for the charge: no reply has come yet, or the
    /// charge did not reach the store for lack of room in this pod.
    may_be_paid_later: bool,
}

// === impl PlaceInQueue ===

impl<'a, 'r> PlaceInQueue<'a, 'r> {
    pub(super) fn new(
        shared: &'a Shared,
        charge: &'a Charge<'r>,
        entered: Result<ReplyReceiver, StoreError>,
        since: Time,
    ) -> Self {
        // Refused, since the ask that is out is overdue: its reply may still come.
        let is_overdue = matches!(entered, Err(StoreError::Unavailable));
        let reply = entered.unwrap_or_else(|refused| answered(Err(refused)));
        Self { shared, charge, since, reply, open: true, may_be_paid_later: is_overdue }
    }

    /// Waits for the outcome of the charge until `deadline`, and leaves the queue.
    async fn wait(&mut self, deadline: Time) -> Result<Attempt, StoreError> {
        let deadline = self.shared.clock.instant(deadline);
        let reply = match timeout_at(deadline, &mut self.reply).await {
            Ok(reply) => Some(reply.unwrap_or(Err(StoreError::TimedOut))),
            Err(_) => {
                self.reply.close();
                // A lease that arrives with the deadline still counts.
                self.reply.try_recv().ok()
            }
        };
        self.open = false;
        self.may_be_paid_later |= match &reply {
            None => true,
            Some(reply) => reply.as_ref().is_err_and(StoreError::is_lack_of_room),
        };
        reply.unwrap_or(Err(StoreError::TimedOut))
    }
}

impl Drop for PlaceInQueue<'_, '_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        self.reply.close();
        if let Ok(Ok(attempt)) = self.reply.try_recv() {
            self.shared.put_back(self.charge, attempt.taken(), self.since);
        }
    }
}

// === Undoes the effects of requests that do not pass ===

impl Shared {
    /// Undoes a charge that is not spent after all, of a request that began at `since`.
    fn undo(&self, charge: &Charge<'_>, attempt: &mut Attempt, since: Time) {
        let taken = attempt.taken();
        if taken.tokens > 0 {
            attempt.take = Take::Taken(LeasedTokens::default()); // only once
            attempt.quota.remaining = attempt.quota.remaining.saturating_add(taken.tokens);
            self.put_back(charge, taken, since);
        } else if attempt.how == DecisionSource::Failure(FailureMode::Local) && !attempt.is_over() {
            attempt.how = DecisionSource::Local; // only once
            self.return_charge(charge);
        }
    }

    /// Takes back a charge that this pod admitted by itself and that is not spent after all, or
    /// that a lease has paid for.
    pub(super) fn return_charge(&self, charge: &Charge<'_>) {
        let pods = self.pods_of(charge);
        self.return_own(charge.key(), charge.applied.limit, charge.hits, pods);
    }

    /// Takes back hits that this pod admitted by itself, as one of `pods`, and that are not spent
    /// after all, or that a lease has paid for.
    pub(super) fn return_own(&self, key: Key, limit: Limit, hits: u64, pods: u32) {
        self.failure_modes.return_hits(key, limit, hits, pods, self.shard_of(key, limit));
    }

    /// Puts back tokens that were taken at `since` or later, and are not spent after all.
    pub(super) fn put_back(&self, charge: &Charge<'_>, taken: LeasedTokens, since: Time) {
        if taken.tokens == 0 {
            return;
        }
        let key = charge.key();
        let is_of_old_count = || self.orders.was_reset_since(key, since);
        let put_back = |state: &mut KeyState, visit: &mut Visit<'_>| {
            if state.is_of_slots() || !is_of_old_count() {
                state.put_back(taken, visit);
            }
        };
        let put_back = self.with_existing(key, None, self.clock.now(), put_back);
        if put_back.is_none() && !is_of_old_count() {
            // The key was evicted meanwhile.
            let AppliedLimit { limit, rule } = &charge.applied;
            let policy = LeasePolicy::of(*limit, rule.map(AsRef::as_ref), self.options.wait_min);
            policy.returning(key, taken).into_iter().for_each(|ask| self.lease_client.queue(ask));
        }
    }
}
