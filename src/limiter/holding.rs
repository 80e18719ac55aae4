//! What one request has taken so far. Dropped before its end, it gives everything back.

use smallvec::smallvec;
use tokio::time::timeout_at;

use super::outcome::{Attempt, Entered, Settled, Standing};
use super::resolve::{Charge, Resolved};
use super::wait::Promise;
use super::{Request, Shared, StoreError, Time, Verdict};
use crate::key::Key;
use crate::request::Few;
use crate::verdict::{self, Code, Counted, How, Outcome, Trace};

/// The state of a request between its first charge and its verdict.
pub(super) struct Holding<'a, 'r> {
    shared: &'a Shared,
    resolved: &'a [Resolved<'r>],
    /// One a descriptor; `None` where nothing is charged, or not yet.
    attempts: Few<Option<Attempt>>,
}

/// A place in the queue for a key's next lease. Dropped, it gives back what arrives too late.
struct Queued<'a, 'r> {
    shared: &'a Shared,
    charge: &'a Charge<'r>,
    reply: Promise,
}

// === impl Holding ===

impl<'a, 'r> Holding<'a, 'r> {
    pub(super) fn new(shared: &'a Shared, resolved: &'a [Resolved<'r>]) -> Self {
        Self { shared, resolved, attempts: smallvec![None; resolved.len()] }
    }

    /// Charges every descriptor from the tokens held here, as far as they go.
    pub(super) fn take_local(&mut self, now: Time) -> Result<(), StoreError> {
        for (resolved, attempt) in self.resolved.iter().zip(&mut self.attempts) {
            if let Resolved::Charged(charge) = resolved {
                *attempt = Some(match self.shared.attempt(charge, now) {
                    Ok(attempt) => attempt,
                    Err(error) => Attempt::Settled(self.shared.without_store(charge, now, error)?),
                });
            }
        }
        Ok(())
    }

    /// Whether what is known so far denies the request, whatever the store may say of the rest.
    pub(super) fn is_denied(&self) -> bool {
        verdict::code(&self.outcomes(), self.shared.options.modes) == Code::OverLimit
    }

    /// Whether the store has to be asked.
    pub(super) fn is_short(&self) -> bool {
        self.attempts.iter().any(|attempt| matches!(attempt, Some(Attempt::Short(_))))
    }

    /// Queues for all missing leases at once and waits for them until `deadline`. Where the store
    /// does not answer for a key, its failure mode does; where that is an error and another key
    /// denies, the request is denied: an error may let it pass.
    pub(super) async fn take_leased(
        &mut self,
        now: Time,
        deadline: Time,
    ) -> Result<(), StoreError> {
        let mut queued = Vec::new();
        let mut words = Vec::new();
        for (at, charge) in self.short() {
            match self.shared.enter(charge, now) {
                Ok(Entered::Settled(settled)) => words.push((at, charge, Ok(settled))),
                Ok(Entered::Queued(reply)) => {
                    queued.push((at, Queued { shared: self.shared, charge, reply }));
                }
                Ok(Entered::Refused(error)) | Err(error) => words.push((at, charge, Err(error))),
            }
        }
        for (at, place) in queued {
            let charge = place.charge;
            let word = place.wait(deadline).await;
            words.push((at, charge, word.map(|settled| Settled { how: How::Leased, ..settled })));
        }
        let mut failed = None;
        for (at, charge, word) in words {
            let before = self.attempts[at];
            let settled = match word {
                Ok(settled) => Ok(settled.with_fitted(charge, before)),
                Err(error) => self.shared.without_store(charge, now, error),
            };
            match settled {
                Ok(settled) => self.attempts[at] = Some(Attempt::Settled(settled)),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if !self.is_denied() => Err(error),
            _ => Ok(()),
        }
    }

    /// When the request may pass, if it may, for those of its keys that hand out slots in time.
    pub(super) fn slot_after(&self, now: Time) -> Option<Time> {
        let taken = self.attempts.iter().filter_map(|attempt| match attempt {
            Some(Attempt::Settled(settled)) => Some(settled.taken.starts),
            _ => None,
        });
        taken.max().filter(|slot| *slot > now && !self.is_denied())
    }

    /// The verdict. If it denies, what was taken for the other descriptors goes back.
    pub(super) fn conclude(mut self, request: &Request<'_>) -> Verdict<'r> {
        let modes = self.shared.options.modes;
        let mut verdict = Verdict::new(request, &self.outcomes(), modes);
        if verdict.code == Code::OverLimit {
            let overdrawn = self.overdrawn();
            self.release(&overdrawn);
            verdict = Verdict::new(request, &self.outcomes(), modes);
        }
        self.attempts.clear(); // what is still held is spent
        verdict
    }

    fn short(&self) -> Vec<(usize, &'a Charge<'r>)> {
        let resolved = self.resolved.iter().zip(&self.attempts).enumerate();
        resolved
            .filter_map(|(at, pair)| match pair {
                (Resolved::Charged(charge), Some(Attempt::Short(_))) => Some((at, charge)),
                _ => None,
            })
            .collect()
    }

    fn outcomes(&self) -> Few<Outcome<'r>> {
        self.resolved.iter().zip(&self.attempts).map(|(r, a)| outcome(r, a.as_ref())).collect()
    }

    /// Keys that this request itself charged beyond their limit. What it took of them before stays
    /// spent, as all that is left of them: one charge of the same sum would have done that too.
    fn overdrawn(&self) -> Vec<Key> {
        let pairs = self.resolved.iter().zip(&self.attempts);
        let overdrawn = pairs.filter_map(|pair| match pair {
            (Resolved::Charged(charge), Some(Attempt::Settled(settled))) => {
                (settled.over && charge.charge_denied()).then_some(charge.key())
            }
            _ => None,
        });
        overdrawn.collect()
    }

    /// Gives back what was taken, of other keys than `spent`.
    fn release(&mut self, spent: &[Key]) {
        for (resolved, attempt) in self.resolved.iter().zip(&mut self.attempts) {
            let (Resolved::Charged(charge), Some(Attempt::Settled(settled))) = (resolved, attempt)
            else {
                continue;
            };
            if spent.contains(&charge.key()) {
                continue;
            }
            self.shared.undo(charge, settled);
        }
    }
}

impl Drop for Holding<'_, '_> {
    fn drop(&mut self) {
        self.release(&[]);
    }
}

/// A descriptor that nobody asked the store about counts as passing, with what is known of it.
pub(super) fn outcome<'r>(resolved: &Resolved<'r>, attempt: Option<&Attempt>) -> Outcome<'r> {
    let charge = match resolved {
        Resolved::Free => return Outcome::Free,
        Resolved::Unlimited => return Outcome::Unlimited,
        Resolved::Charged(charge) => charge,
    };
    let capacity = charge.applied.limit.capacity();
    let (over, fitted, how, standing) = match attempt {
        Some(Attempt::Settled(settled)) => {
            (settled.over, settled.fitted, settled.how, settled.standing)
        }
        Some(Attempt::Short(standing)) => (false, 0, How::Local, *standing),
        None => (false, 0, How::Local, Standing { remaining: capacity, reset_after: None }),
    };
    let trace = Trace { key: charge.key(), hits: charge.hits, fitted, over, how };
    let Standing { remaining, reset_after } = standing;
    Outcome::Counted(Counted { applied: charge.applied, trace, remaining, reset_after })
}

// === impl Settled ===

impl Settled {
    /// With what a denial by the store has spent: what was known `before` to remain. Where that
    /// was enough for the charge, others had spent it meanwhile, and nobody knows how much.
    fn with_fitted(self, charge: &Charge<'_>, before: Option<Attempt>) -> Self {
        let Some(Attempt::Short(Standing { remaining, .. })) = before else { return self };
        let spends = self.over && charge.charge_denied() && remaining < charge.hits;
        let fitted = if spends { u32::try_from(remaining).unwrap_or(u32::MAX) } else { 0 };
        Self { fitted, ..self }
    }
}

// === impl Queued ===

impl Queued<'_, '_> {
    async fn wait(mut self, deadline: Time) -> Result<Settled, StoreError> {
        let deadline = self.shared.clock.instant(deadline);
        match timeout_at(deadline, &mut self.reply).await {
            Ok(reply) => reply.unwrap_or(Err(StoreError::TimedOut)),
            Err(_) => {
                self.reply.close();
                // A lease that arrives with the deadline still counts.
                self.reply.try_recv().unwrap_or(Err(StoreError::TimedOut))
            }
        }
    }
}

impl Drop for Queued<'_, '_> {
    fn drop(&mut self) {
        self.reply.close();
        if let Ok(Ok(settled)) = self.reply.try_recv() {
            self.shared.put_back(self.charge, settled.taken);
        }
    }
}
