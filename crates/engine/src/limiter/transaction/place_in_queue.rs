//! A request's place in the queue for a key's next lease.

use ratelease_rules::FailureMode;
use tokio::time::timeout_at;

use crate::limiter::Shared;
use crate::limiter::attempt::Attempt;
use crate::limiter::resolve::Charge;
use crate::limiter::wait::ReplyReceiver;
use crate::store::StoreError;
use crate::time::Time;

/// A place in a queue, or one that was refused. When dropped, it gives back a lease that arrives
/// too late.
pub(super) struct PlaceInQueue<'a, 'r> {
    shared: &'a Shared,
    charge: &'a Charge<'r>,
    reply: ReplyReceiver,
    /// The reply has not arrived yet, and still may.
    open: bool,
    /// The charge did not reach the store for lack of room in this pod.
    has_no_room: bool,
}

// === impl PlaceInQueue ===

impl<'a, 'r> PlaceInQueue<'a, 'r> {
    pub(super) fn new(shared: &'a Shared, charge: &'a Charge<'r>, reply: ReplyReceiver) -> Self {
        Self { shared, charge, reply, open: true, has_no_room: false }
    }

    pub(super) fn charge(&self) -> &'a Charge<'r> {
        self.charge
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
        let reply = reply.unwrap_or(Err(StoreError::TimedOut));
        self.has_no_room = reply.as_ref().is_err_and(StoreError::is_lack_of_room);
        reply
    }

    /// Handles a charge that a failure mode admitted and whose request passes. A lease that arrived
    /// meanwhile pays for the charge; else it is owed, if a lease can still pay for it.
    pub(super) fn settle_debt(mut self) {
        self.reply.close();
        self.open = false;
        match self.reply.try_recv() {
            Ok(Ok(attempt)) if attempt.taken().tokens > 0 => {
                if self.charge.failure_mode() == FailureMode::Local {
                    self.shared.return_charge(self.charge);
                }
            }
            _ => self.shared.note_debt(self.charge, self.has_no_room),
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
