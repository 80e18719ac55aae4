//! How starts end: the tokens that they held go back to their key, or are charged.
//!
//! Hits that a failure mode admitted and that are owed stay counted, whatever the request costs: a
//! lease pays for them, and with which tokens is not known.

use std::sync::atomic::Ordering;

use ratelease_rules::SETTLE_KEY;
use ratelease_rules::key::HoldId;
use ratelease_rules::request::{Few, Request};

use super::key::Attempt;
use super::owners::{ClosedBy, Node, Origin, Owner, StartId};
use super::starts::{Beginning, Begun, End, Held, Hold, Sender, Settlement, Undone, Unspent};
use super::{Charge, Limiter, Resolved, Shared};
use crate::buffer::LeasedTokens;
use crate::time::Time;
use crate::verdict::AppliedLimit;

// === impl Limiter ===

impl Limiter {
    /// Notes that a connection from `origin` is open; returns the owner of the requests that its
    /// calls start.
    pub fn connect(&self, origin: Origin) -> Owner {
        self.shared.owners.connect(origin, self.shared.clock.now())
    }

    /// Notes that a connection of `owner` is closed. Once the client has closed the last one, and
    /// [`Options::start_grace`](super::Options::start_grace) has passed, the starts of the owner
    /// are released.
    pub fn disconnect(&self, owner: Owner, by: ClosedBy) {
        self.shared.owners.disconnect(owner, by, self.shared.clock.now());
    }

    /// Notes that the Envoy of this `node.id` has a stream of its access log open.
    pub fn connect_node(&self, id: &str) -> Node {
        self.shared.owners.connect_node(id, self.shared.clock.now())
    }

    /// Notes that a stream of the access log of `node` is closed.
    pub fn disconnect_node(&self, node: Node, by: ClosedBy) {
        self.shared.owners.disconnect_node(node, by, self.shared.clock.now());
    }

    /// Ends the request of this id, which has cost `cost` hits; `None` if that is not known.
    /// Returns whether a start of it is open. The end of an unknown one is remembered for some
    /// seconds, since it may come before its start.
    pub fn end_start(&self, id: &str, cost: Option<u64>, node: Node) -> bool {
        let Shared { starts, owners, clock, options, .. } = &*self.shared;
        let now = clock.now();
        owners.hear(node, now);
        let end = cost.map_or(End::Unknown, End::Cost);
        let ended = starts.end(options.hasher.request_id(id), end, now);
        self.shared.look_at_starts();
        let Some((of, held)) = ended else { return false };
        of.into_iter().for_each(|owner| owners.prove(owner));
        self.shared.end_holds(&held, end, now);
        true
    }

    /// Notes that the request of this id was denied, by the access log of `node`. The starts that
    /// other filters of that Envoy have made for it end.
    pub fn end_denied(&self, id: &str, node: Node) {
        let Shared { starts, owners, clock, options, .. } = &*self.shared;
        let now = clock.now();
        owners.hear(node, now);
        let held = starts.end_denied(options.hasher.request_id(id), now);
        self.shared.end_holds(&held, End::Charged, now);
    }

    /// Notes that the request of this id runs, by the access log of `node`. Returns whether a start
    /// of it is open.
    pub fn note_alive(&self, id: &str, node: Node) -> bool {
        let Shared { starts, owners, clock, options, .. } = &*self.shared;
        let now = clock.now();
        owners.hear(node, now);
        let owner = starts.note_sign(options.hasher.request_id(id), node, now);
        owner.inspect(|owner| owners.prove(*owner)).is_some()
    }

    /// Undoes a start whose answer has not reached its Envoy: all that it holds goes back. Where
    /// Envoys send their access logs, the cost of the request is charged all the same, if it ran.
    pub fn undo_start(&self, start: StartId) {
        let now = self.shared.clock.now();
        self.shared.undo_starts(start, now, |start, Undone { owner, held, .. }| {
            self.shared.keep_unanswered(start, *owner, held, now);
        });
    }
}

// === impl Shared ===

impl Shared {
    /// Wakes the task that looks at starts, if it sleeps since there were none.
    pub(super) fn look_at_starts(&self) {
        if !self.looks_at_starts.load(Ordering::Acquire) {
            self.held.notify_one();
        }
    }

    /// Enters a start by `owner` for each id that `all` descriptors name.
    ///
    /// # Errors
    ///
    /// The request has ended already, in this way.
    pub(super) fn begin_starts(
        &self,
        all: &[Resolved<'_>],
        owner: Owner,
        is_aside: bool,
        now: Time,
    ) -> Result<Few<StartId>, End> {
        let mut begun = Few::<StartId>::new();
        for resolved in all {
            let Resolved::Charged(charge) = resolved else { continue };
            let Some(id) = charge.hold_id() else { continue };
            if begun.iter().any(|start| start.request == id.request) {
                continue;
            }
            let of_id = all.iter().filter_map(Resolved::hold_id);
            let of_id = of_id.filter(|other| other.request == id.request);
            let descriptors: Few<u64> = of_id.map(|id| id.descriptor).collect();
            let first = (charge.key(), charge.is_of_slots());
            let start = Beginning { descriptors: &descriptors, first, owner, is_aside };
            match self.starts.begin(id.request, start, now) {
                Begun::Open(start) => begun.push(start),
                Begun::Full => {}
                Begun::Ended(end) => {
                    begun.iter().for_each(|start| drop(self.starts.forget(*start)));
                    return Err(end);
                }
            }
        }
        if !begun.is_empty() {
            self.look_at_starts();
        }
        Ok(begun)
    }

    /// Notes that one of `begun` holds the tokens charged by `charge`, if its rule says so. The
    /// tokens `taken` have paid for the charge. This pod has admitted `alone` of its hits by
    /// itself, and they are not owed. The request began to take tokens at `since`. Returns whether
    /// it holds them; if not, slots have been put back.
    pub(super) fn hold(
        &self,
        begun: &[StartId],
        charge: &Charge<'_>,
        (taken, since): (LeasedTokens, Time),
        alone: u64,
    ) -> bool {
        let Some(hold) = charge.hold(taken, alone) else { return false };
        let id = charge.hold_id();
        if id.is_none() {
            self.starts.note_without_id();
        }
        let of = |id: HoldId| begun.iter().find(|start| start.request == id.request);
        let start = id.and_then(|id| Some((*of(id)?, id.descriptor)));
        let is_held =
            start.is_some_and(|(start, descriptor)| self.starts.hold(start, descriptor, hold));
        if !is_held && charge.is_of_slots() {
            self.put_back(charge, taken, since);
        }
        // After it was entered: a reset that comes now finds it in the table.
        if is_held && !charge.is_of_slots() && self.orders.was_reset_since(charge.key(), since) {
            self.starts.forget_key(charge.key());
        }
        is_held
    }

    /// Ends the hold of the request of a settlement, and gives back its unused tokens. Returns the
    /// hits that are still to be charged: all of them if it holds nothing.
    pub(super) fn settle_hold(
        &self,
        charge: &Charge<'_>,
        id: Option<HoldId>,
        by: Owner,
        remembers: bool,
        now: Time,
    ) -> (u64, Option<Attempt>) {
        // Slots cost nothing: all that the request has come back, and without any there is nothing
        // to do.
        let hits = if charge.is_of_slots() { 0 } else { charge.hits };
        let Some(id) = id else {
            self.starts.note_without_id();
            return (hits, None);
        };
        let settled = self.starts.settle(id, self.sender(by, remembers), now);
        self.look_at_starts();
        let (hold, owner) = match settled {
            Settlement::Of(hold, owner) => (hold, owner),
            Settlement::Counted => return (0, None),
            Settlement::Kept(kept) => return (hits.saturating_sub(kept), None),
            Settlement::OfNothing | Settlement::Unknown => return (hits, None),
        };
        self.owners.prove_by(owner, by);
        self.starts.note_settled(id.request, hold.hits, hits);
        let (unspent, due) = hold.settled(End::Cost(hits));
        (due, self.give_back_unspent(&unspent, now))
    }

    fn sender(&self, owner: Owner, remembers: bool) -> Sender {
        Sender { owner, remembers, is_logging: self.owners.has_nodes() }
    }

    /// Ends the hold of a request's descriptor that no rule limits any more, and charges the rest
    /// of its cost to the key and limit charged at its start.
    pub(super) fn end_without_rule(&self, request: &Request<'_>, at: usize, by: Owner, now: Time) {
        let Some(id) = self.id_of_end(request, at) else { return };
        let settled = self.starts.settle(id, self.sender(by, true), now);
        let Settlement::Of(hold, owner) = settled else { return };
        self.owners.prove_by(owner, by);
        let cost = request.hits(&request.descriptors[at]);
        self.starts.note_settled(id.request, hold.hits, cost);
        self.end_hold(&hold, End::Cost(cost), now);
    }

    /// The id that the descriptor `at` ends, if it is marked as an end: the id in the first of its
    /// entries which names an open start. The descriptor's rule is gone, or has no `hold` any more.
    pub(super) fn id_of_end(&self, request: &Request<'_>, at: usize) -> Option<HoldId> {
        let descriptor = request.descriptors.get(at)?;
        let [before @ .., last] = &descriptor.entries[..] else { return None };
        if last.key != SETTLE_KEY || descriptor.refund {
            return None;
        }
        let hasher = &self.options.hasher;
        let is_open = |id: &HoldId| self.starts.has(*id);
        // All entries are hashed only for a value that is the id of an open request.
        let names_request =
            |at: &usize| self.starts.has_request(hasher.request_id(before[*at].value));
        let levels = (0..before.len()).filter(names_request);
        let ids = levels.filter_map(|at| hasher.hold_id(request.domain, before, at));
        ids.into_iter().find(is_open)
    }

    /// Ends the starts of a candidate's rules.
    pub(super) fn end_aside(&self, start: Option<StartId>, now: Time) {
        if let Some(start) = start {
            self.undo_starts(start, now, |_, _| {});
        }
    }

    /// Gives back all that the starts of a call hold, of which `first` is one, and tells each.
    fn undo_starts(&self, first: StartId, now: Time, tell: impl Fn(StartId, &Undone)) {
        let mut next = Some(first);
        while let Some(start) = next {
            let Some(undone) = self.starts.undo(start, now) else { return };
            self.end_holds(&undone.held, End::Charged, now);
            tell(start, &undone);
            next = undone.next;
        }
    }

    /// Ends all that a start holds.
    pub(super) fn end_holds(&self, held: &Held, end: End, now: Time) {
        for (_, hold) in held {
            self.end_hold(hold, end, now);
        }
    }

    fn end_hold(&self, hold: &Hold, end: End, now: Time) {
        let (unspent, due) = hold.settled(end);
        self.give_back_unspent(&unspent, now);
        if due == 0 {
            return;
        }
        // By the rule that the key has by now, which may have another limit.
        let present = self.table.with_existing(hold.key, |state| state.bound_to());
        let (limit, rule) = present.unwrap_or_else(|| (hold.limit, hold.rule.clone()));
        let rare = hold.rare.clone().map(|rare| *rare).unwrap_or_default();
        let applied = AppliedLimit { limit, rule: rule.as_ref() };
        let charge = Charge::of_end(hold.key, rare.previous, rare.domain, applied, due);
        self.settle(&charge, due, now);
    }

    /// Charges a start whose end came before it with the cost that the end has told.
    pub(super) fn charge_end(&self, charge: &Charge<'_>, end: End, now: Time) {
        if let End::Cost(cost) = end
            && cost > 0
            && !charge.is_of_slots()
        {
            self.settle(charge, cost, now);
        }
    }

    /// Keeps a request that had no answer for the cost that its Envoy may log, if Envoys send logs.
    pub(super) fn keep_unanswered(&self, start: StartId, owner: Owner, held: &Held, now: Time) {
        if !self.owners.has_nodes() {
            return;
        }
        let costs = held.iter().filter(|(_, hold)| !hold.is_of_slots());
        let blank = |(descriptor, hold): &(u64, Hold)| {
            let taken = LeasedTokens { tokens: 0, ..hold.taken };
            (*descriptor, Hold { hits: 0, taken, alone: 0, ..hold.clone() })
        };
        self.starts.keep_unanswered(start, owner, costs.map(blank).collect(), now);
    }

    /// Puts back the tokens that a request held at `now` and did not use, or gives them back to the
    /// store if the key has another lease. Returns the state of the key after that, if it has one.
    pub(super) fn give_back_unspent(&self, unspent: &Unspent, now: Time) -> Option<Attempt> {
        let Unspent { key, limit, tokens, alone, .. } = *unspent;
        if tokens.tokens == 0 && alone == 0 {
            return None;
        }
        let is_of_old_count = || self.orders.was_reset_since(key, now);
        let taken_in = self.with_existing(key, None, now, |state, visit| {
            if tokens.tokens > 0 && (state.is_of_slots() || !is_of_old_count()) {
                state.take_in(unspent, visit);
            }
            state.watch(visit);
            let pods = if alone > 0 { self.pods.of(state.domain()) } else { 1 };
            (pods, state.preview_settlement(visit))
        });
        if taken_in.is_none() && tokens.tokens > 0 && !is_of_old_count() {
            self.lease_client.queue(unspent.returned()); // the key was evicted meanwhile
        }
        if alone > 0 {
            self.return_own(key, limit, alone, taken_in.map_or(1, |(pods, _)| pods));
        }
        taken_in.map(|(_, attempt)| attempt)
    }
}

// === impl Resolved ===

impl Resolved<'_> {
    /// The id under which the charge is held, if it is held.
    pub(super) fn hold_id(&self) -> Option<HoldId> {
        match self {
            Self::Charged(charge) => charge.hold_id(),
            Self::Free | Self::Unlimited => None,
        }
    }
}
