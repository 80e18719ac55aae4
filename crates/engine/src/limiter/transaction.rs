//! The effects of one request, as a transaction: they are computed first, applied once, or undone
//! completely.
//!
//! Charges take their tokens when they are settled, so that no other request can have them, and
//! put them back into the buffer if the request is denied. Refunds are applied only once the
//! request is known to pass. A request that is dropped before its verdict puts back all that it
//! took.

mod place_in_queue;

use ratelease_rules::key::Key;
use ratelease_rules::request::Few;
use smallvec::smallvec;

use super::attempt::Attempt;
use super::resolve::{Charge, Resolved};
use super::wait::answered;
use super::{Request, Shared, StoreError, TableFull, Time, Verdict};
use crate::buffer::Take;
use crate::verdict::{self, Code, Counted, Status};
use place_in_queue::PlaceInQueue;

/// The state of a request between its first charge and its verdict.
pub(super) struct Transaction<'a, 'r> {
    shared: &'a Shared,
    resolved: &'a [Resolved<'r>],
    /// One for each descriptor; `None` where nothing is charged, or not yet.
    attempts: Few<Option<Attempt>>,
    /// Queue places of charges that a failure mode admitted: a lease that still arrives there pays
    /// for them, else a later lease of the key.
    debts: Vec<PlaceInQueue<'a, 'r>>,
    /// Refunds that have been applied, here or in the store.
    refunded: Vec<usize>,
    /// A refund has been queued, so the request stands whatever happens to it now.
    stands: bool,
}

// === impl Transaction ===

impl<'a, 'r> Transaction<'a, 'r> {
    pub(super) fn new(shared: &'a Shared, resolved: &'a [Resolved<'r>]) -> Self {
        let attempts = smallvec![None; resolved.len()];
        Self { shared, resolved, attempts, debts: Vec::new(), refunded: Vec::new(), stands: false }
    }

    /// Charges every descriptor from the tokens held here, as far as they go, and previews the
    /// effect of refunds on their keys.
    pub(super) fn take_local(&mut self, now: Time) {
        for at in 0..self.resolved.len() {
            let Resolved::Charged(charge) = &self.resolved[at] else { continue };
            let attempt = match self.shared.attempt(charge, now) {
                Ok(attempt) => attempt,
                // Nothing is given back before the request is known to pass.
                Err(TableFull) if charge.refund => Attempt::unknown(charge),
                Err(TableFull) => Attempt::shed(charge),
            };
            self.attempts[at] = Some(attempt);
        }
    }

    /// Whether the request is denied already, whatever the store may reply for the other
    /// descriptors.
    pub(super) fn is_denied(&self) -> bool {
        verdict::code(&self.statuses(), self.shared.options.modes) == Code::OverLimit
    }

    /// Whether the store has to be asked.
    pub(super) fn is_short(&self) -> bool {
        self.attempts.iter().flatten().any(|attempt| !attempt.is_settled())
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
        let charges = self.short(|charge| !charge.refund);
        let mut failed = self.enter(charges, now, deadline).await;
        if failed.is_none() && !self.is_denied() {
            let refunds = self.short(|charge| charge.refund);
            failed = self.enter(refunds, now, deadline).await;
        }
        match failed {
            Some(error) if !self.is_denied() => Err(error),
            _ => Ok(()),
        }
    }

    /// When the request may pass, if it may, for those of its keys that hand out slots in time.
    pub(super) fn slot_after(&self, now: Time) -> Option<Time> {
        let slots = self.attempts.iter().flatten().filter_map(|attempt| attempt.slot_after(now));
        slots.max().filter(|_| !self.is_denied())
    }

    /// Makes the verdict. If it denies, what was taken for the other descriptors goes back;
    /// otherwise refunds are applied, and what was taken is spent.
    pub(super) fn conclude(mut self, request: &Request<'_>, now: Time) -> Verdict<'r> {
        let modes = self.shared.options.modes;
        let mut verdict = Verdict::new(request, self.statuses(), modes);
        if verdict.code == Code::OverLimit {
            let overdrawn = self.overdrawn();
            self.release(&overdrawn);
            verdict = Verdict::new(request, self.statuses(), modes);
        } else {
            self.apply_refunds(now);
            self.debts.drain(..).for_each(PlaceInQueue::settle_debt);
        }
        self.attempts.clear(); // what is still held is spent
        verdict
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
            let reply = entered.unwrap_or_else(|refused| answered(Err(refused)));
            queued.push((at, is_queued, PlaceInQueue::new(self.shared, charge, reply)));
        }
        for (at, is_queued, mut place) in queued {
            let charge = place.charge();
            match place.wait(deadline).await {
                Ok(attempt) => {
                    self.attempts[at] = Some(attempt.with_fitted(charge, self.attempts[at]));
                }
                Err(error) => {
                    let error = self.settle_without_store(at, charge, error, now, is_queued);
                    let admitted = self.attempts[at].filter(Attempt::is_admitted_by_failure_mode);
                    if error.is_none() && charge.spends() && admitted.is_some() {
                        self.debts.push(place);
                    }
                    failed = error.or(failed);
                }
            }
        }
        failed
    }

    /// Applies the failure mode to a charge for which the store has not replied, and which may be
    /// on its way to the store if it is `queued`. Returns the error, if that is the mode's answer.
    fn settle_without_store(
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

    /// The charges for which `wanted` returns true and that only the store can settle.
    fn short(&self, wanted: impl Fn(&Charge<'_>) -> bool) -> Vec<(usize, &'a Charge<'r>)> {
        let resolved = self.resolved.iter().zip(&self.attempts).enumerate();
        let short = resolved.filter_map(|(at, pair)| match pair {
            (Resolved::Charged(charge), Some(attempt)) if !attempt.is_settled() => {
                Some((at, charge))
            }
            _ => None,
        });
        short.filter(|(_, charge)| wanted(charge)).collect()
    }

    /// Gives back what the request refunds, unless it has gone to the store.
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
        let pairs = self.resolved.iter().zip(&self.attempts);
        pairs.map(|(resolved, attempt)| status(resolved, attempt.as_ref())).collect()
    }

    /// Keys that this request itself charged beyond their limit. What the request took from them
    /// before stays spent, as does all that is left of them: one charge of the same sum would have
    /// done that too.
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

    /// Gives back what was taken from keys other than `spent`.
    fn release(&mut self, spent: &[Key]) {
        self.debts.clear(); // each gives back what its lease may have brought
        for (resolved, attempt) in self.resolved.iter().zip(&mut self.attempts) {
            let (Resolved::Charged(charge), Some(attempt)) = (resolved, attempt) else { continue };
            if attempt.is_settled() && !charge.refund && !spent.contains(&charge.key()) {
                self.shared.undo(charge, attempt);
            }
        }
    }
}

impl Drop for Transaction<'_, '_> {
    /// Gives back what was taken, unless refunds have been sent: then the request stands, and its
    /// charges are spent even though its caller does not receive the answer.
    fn drop(&mut self) {
        if !self.stands {
            self.release(&[]);
        }
    }
}

/// The status of a descriptor. One for which the store was not asked counts as passing, with what
/// is known of it.
pub(super) fn status<'r>(resolved: &Resolved<'r>, attempt: Option<&Attempt>) -> Status<'r> {
    let charge = match resolved {
        Resolved::Free => return Status::FREE,
        Resolved::Unlimited => return Status::UNLIMITED,
        Resolved::Charged(charge) => charge,
    };
    let attempt = attempt.copied().unwrap_or_else(|| Attempt::unknown(charge));
    let Attempt { fitted, how, quota, .. } = attempt;
    let (key, hits, over) = (charge.key(), charge.hits, attempt.is_over());
    let counted = Counted { key, hits, fitted, over, how };
    Status::counted(charge.applied, counted, quota.remaining, quota.reset_after)
}

// === impl Attempt ===

impl Attempt {
    /// Adds what a denial by the store has spent: the tokens that were known `before` to remain. If
    /// those were enough for the charge, others had spent them meanwhile, and their number is
    /// unknown.
    fn with_fitted(self, charge: &Charge<'_>, before: Option<Attempt>) -> Self {
        let Some(Attempt { take: Take::Short, quota, .. }) = before else { return self };
        let spends = self.is_over() && charge.charge_denied() && quota.remaining < charge.hits;
        let fitted = if spends { u32::try_from(quota.remaining).unwrap_or(u32::MAX) } else { 0 };
        Self { fitted, ..self }
    }
}
