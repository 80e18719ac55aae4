//! The state that the calls of a connection share: the service, the peer, and the owner of their
//! starts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ratelease_engine::limiter::owners::{ClosedBy, Origin, StartId};
use ratelease_listener::TurnHandle;

use super::answered_starts::AnsweredStarts;
use crate::service::{DecisionService, Owner, Peer};

/// The state that the calls of a connection share.
pub(super) struct CallContext {
    pub(super) service: DecisionService,
    pub(super) peer: Peer,
    pub(super) turn: TurnHandle,
    /// The starts whose answers may not have been read.
    pub(super) answered: Arc<AnsweredStarts>,
    origin: Origin,
    /// The owner of the starts, from the first call on that an Envoy makes.
    owner: OnceLock<Owner>,
    /// Whether the client has closed the connection, or is gone.
    is_left: AtomicBool,
}

// === impl CallContext ===

impl CallContext {
    pub(super) fn new(
        service: DecisionService,
        turn: TurnHandle,
        answered: Arc<AnsweredStarts>,
        origin: Origin,
    ) -> Self {
        let (owner, is_left) = (OnceLock::new(), AtomicBool::new(false));
        Self { service, peer: Peer::new(), turn, answered, origin, owner, is_left }
    }

    /// The owner of the starts of this connection. Calls for a verdict and access logs ask for it, and
    /// make the connection one of an Envoy; health checks do not.
    pub(super) fn owner(&self) -> Owner {
        *self.owner.get_or_init(|| self.service.starts().connect(self.origin))
    }

    /// Notes the end that has closed the connection.
    pub(super) fn note_closed(&self, by: ClosedBy) {
        self.is_left.store(by == ClosedBy::Client, Ordering::Relaxed);
    }

    /// The end that has closed the connection, once it is closed.
    pub(super) fn closed_by(&self) -> ClosedBy {
        match self.is_left.load(Ordering::Relaxed) {
            true => ClosedBy::Client,
            false => ClosedBy::Server,
        }
    }

    /// Watches the start of a call whose answer on `stream` was queued, or undoes it.
    pub(super) fn note_answer(&self, stream: u32, started: Option<StartId>, is_queued: bool) {
        match started {
            None => {}
            Some(start) if is_queued => self.answered.watch(stream, start),
            Some(start) => self.service.starts().undo(start),
        }
    }
}

impl Drop for CallContext {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.get() {
            self.service.starts().disconnect(*owner, self.closed_by());
        }
    }
}
