//! What a pod has of one type of resources, and the next response of it.

use std::sync::Arc;

use ratelease_listener::Peer;
use tracing::warn;

use super::connections::ConnectedPod;
use super::delivery::{Deliveries, Room, RoomWait, Unanswered};
use super::published::{PublishedDomain, PublishedSet};
use super::streams::Row;
use super::wire::{DiscoveryResponse, RULES_TYPE};

/// What a pod has of one type.
pub(super) struct Subscription {
    pub(super) row: Row,
    /// When the pod asked for it, in milliseconds since the Unix epoch.
    pub(super) since: i64,
    /// What the pod ran then.
    pub(super) running: Running,
    /// The number of the last response.
    pub(super) nonce: u64,
    /// The response that is not answered yet.
    pub(super) open: Option<Sent>,
    /// What was sent last: an identifier of the texts, and the version.
    pub(super) content: Option<(blake3::Hash, i64)>,
    /// Whether the pod refused the last response that it answered.
    pub(super) is_refused: bool,
    /// Whether the pod may have resources of the type from this stream: some were sent, and it has
    /// not answered an empty response since.
    pub(super) may_have_some: bool,
    /// While the next response waits for room.
    pub(super) waiting: Option<RoomWait>,
}

/// What a pod ran when it asked for rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    /// The version; 0 if the pod named none.
    pub(super) version: i64,
    /// How often the database had been asked for the last version.
    pub(super) polls: u64,
}

/// What a response needs on its way.
pub(super) struct Way<'w> {
    pub(super) room: Room,
    pub(super) pod: &'w ConnectedPod,
}

/// A response that is not answered yet.
pub(super) struct Sent {
    pub(super) version: i64,
    pub(super) is_empty: bool,
    pub(super) at: i64,
    pub(super) unanswered: Unanswered,
}

// === impl Running ===

impl Running {
    /// Whether the pod may run a newer version than this one, which is the last that this replica
    /// knows after this many polls. A replica that cannot ask the database may know an old one.
    /// What the database says after the pod has asked is true, whatever the pod says: its version
    /// may be one of another database. One poll may have begun before the pod asked.
    pub(super) fn may_be_newer(self, version: i64, polls: u64) -> bool {
        self.version > version && polls < self.polls.saturating_add(2)
    }
}

// === impl Subscription ===

impl Subscription {
    pub(super) fn new(row: Row, since: i64, running: Running) -> Self {
        Self {
            row,
            since,
            running,
            nonce: 0,
            open: None,
            content: None,
            is_refused: false,
            may_have_some: false,
            waiting: None,
        }
    }

    /// Notes the rollout that chose the pod, and the domains that it is limited to.
    pub(super) fn note_chosen(&mut self, rollout: i64, limited_to: Option<Arc<[String]>>) {
        self.row.change(|row| (row.chosen_by, row.domains) = (rollout, limited_to));
    }

    /// Notes that this version holds what the pod has.
    pub(super) fn note_same(&mut self, version: i64) {
        self.waiting = None;
        self.row.change(|row| {
            if row.refused == 0 {
                (row.sent, row.accepted) = (version, version);
            }
        });
    }

    /// Room for a response of this size; `None` while the response waits for it.
    pub(super) fn room(
        &mut self,
        deliveries: &Deliveries,
        peer: Peer,
        bytes: usize,
    ) -> Option<Room> {
        let waiting = self.waiting.take().filter(|it| it.is_for(bytes));
        let waiting = waiting.unwrap_or_else(|| deliveries.wait(peer, bytes));
        waiting.take().map_err(|waiting| self.waiting = Some(waiting)).ok()
    }

    /// Makes the next response, and notes that it is sent.
    pub(super) async fn response(
        &mut self,
        type_url: &'static str,
        set: &PublishedSet,
        domains: &[Arc<PublishedDomain>],
        way: Way<'_>,
    ) -> DiscoveryResponse {
        let (mut resources, mut faults) = (Vec::new(), Vec::new());
        for domain in domains {
            if type_url == RULES_TYPE {
                resources.push(domain.rules().clone());
                continue;
            }
            match domain.config().await {
                Ok(resource) => resources.push(resource),
                Err(why) => faults.push(why),
            }
        }
        self.nonce += 1;
        let PublishedSet { version, at, .. } = *set;
        // Domains that the type cannot say are not sent; `GET /v1/pods` shows which, and why.
        let fault = faults.join("\n");
        if !fault.is_empty() {
            let shown = ratelease_rules::excerpt(&fault);
            warn!(version, "a pod lacks rules: {shown}");
        }
        self.row.change(|row| (row.sent, row.fault, row.unanswered_at) = (version, fault, at));
        let response = DiscoveryResponse {
            version_info: version.to_string(),
            resources,
            type_url: type_url.to_owned(),
            nonce: self.nonce.to_string(),
        };
        let unanswered = way.room.deliver(&response, way.pod);
        way.pod.note_response();
        let is_empty = response.resources.is_empty();
        self.may_have_some |= !is_empty;
        self.open = Some(Sent { version, is_empty, at, unanswered });
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_keeps_a_newer_version_until_the_database_was_asked_after_it() {
        let running = Running { version: 7, polls: 3 };
        assert!(running.may_be_newer(6, 3) && running.may_be_newer(6, 4));
        assert!(!running.may_be_newer(6, 5), "the database says that there is no newer one");
        assert!(!running.may_be_newer(7, 3) && !running.may_be_newer(8, 3));
        assert!(!Running { version: 0, polls: 3 }.may_be_newer(1, 3));
    }
}
