//! A request's place in the queue for a key's next lease.

use tokio::time::timeout_at;

use crate::limiter::Shared;
use crate::limiter::attempt::Attempt;
use crate::limiter::resolve::Charge;
use crate::limiter::wait::ReplyReceiver;
use crate::store::StoreError;
use crate::time::Time;

/// A place in a queue. When dropped, it gives back a lease that arrives too late.
pub(super) struct PlaceInQueue<'a, 'r> {
    shared: &'a Shared,
    charge: &'a Charge<'r>,
    reply: ReplyReceiver,
    /// The reply has not arrived yet, and still may.
    open: bool,
}

// === impl PlaceInQueue ===

impl<'a, 'r> PlaceInQueue<'a, 'r> {
    pub(super) fn new(shared: &'a Shared, charge: &'a Charge<'r>, reply: ReplyReceiver) -> Self {
        Self { shared, charge, reply, open: true }
    }

    pub(super) fn charge(&self) -> &'a Charge<'r> {
        self.charge
    }

    /// Whether a lease may still arrive here.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Waits for the outcome of the charge until `deadline`. A lease may arrive later still, until
    /// the place is dropped.
    pub(super) async fn wait(&mut self, deadline: Time) -> Result<Attempt, StoreError> {
        let deadline = self.shared.clock.instant(deadline);
        let reply = match timeout_at(deadline, &mut self.reply).await {
            Ok(reply) => Some(reply.unwrap_or(Err(StoreError::TimedOut))),
            // A lease that arrives with the deadline still counts.
            Err(_) => self.reply.try_recv().ok(),
        };
        self.open = reply.is_none();
        reply.unwrap_or(Err(StoreError::TimedOut))
    }

    /// Handles a charge that the failure mode admitted and whose request passes. A lease that
    /// arrived meanwhile pays for the charge; one that is still out will.
    pub(super) fn settle_debt(mut self) {
        self.reply.close();
        self.open = false;
        match self.reply.try_recv() {
            Ok(Ok(attempt)) if attempt.taken().tokens > 0 => self.shared.return_charge(self.charge),
            Ok(_) => {}
            Err(_) => self.shared.note_debt(self.charge),
        }
    }
}

impl Drop for PlaceInQueue<'_, '_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        self.reply.close();
        if let Ok(Ok(attempt)) = self.reply.try_recv() {
            self.shared.put_back(self.charge, attempt.taken());
        }
    }
}
