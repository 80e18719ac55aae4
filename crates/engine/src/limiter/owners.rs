//! The Envoys that own the requests that they have started: by their connections, and by the
//! `node.id` in their access logs. Pure: `now` is an argument.
//!
//! An owner is all connections of one origin, from the first one until none is open. When the last
//! one was closed by its client, that Envoy is gone, unless something proves within the grace that
//! it lives: an end or a sign of life of a request that it started. A connection that comes back is
//! no proof, since a new Envoy may have made it: it belongs to a new owner. An owner that is proved
//! alive by then has the connections of the new one. A connection that this process closed proves
//! nothing either way, so its owner stays. A log that comes back is a new one in the same way.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use ratelease_rules::key::RequestId;

use crate::counter::HoldCounter;
use crate::time::Time;

/// The largest number of owners, and of nodes, that are known at a time. Those without connections
/// make room for others. A start of an unknown owner lives until its end, or for the time of its
/// rule.
const KNOWN_MAX: usize = 4096;

/// The largest number of owners that are remembered to be gone.
const GONE_MAX: usize = 4 * KNOWN_MAX;

/// How long an owner is remembered to be gone: as long as a call that it left may still ask for
/// leases, at least.
const GONE_REMEMBERED: Duration = Duration::from_secs(10);

/// Bytes of a `node.id` that count: a longer one is cut, so that a client cannot fill the memory.
const NODE_ID_BYTES_MAX: usize = 256;

/// The Envoy that a call came from, as far as its connections tell: a number of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(u32);

/// An Envoy that sends its access log, by the `node.id` of its bootstrap: a number of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(u32);

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A TCP connection from this address, whatever its port.
    Address(IpAddr),
    /// A Unix socket.
    Socket,
}

/// The end that closed a connection or a stream first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// The client, which may be gone.
    Client,
    /// This process: the client may be there, and come back when it needs to.
    Server,
}

/// Names a start, so that it can be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StartId {
    /// The request that it is of.
    pub(super) request: RequestId,
    /// The number of the start.
    pub(super) number: u32,
}

/// An open start, as far as it matters whether its Envoy is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartView {
    /// Who asked.
    pub owner: Owner,
    /// The Envoy that has logged it, once one has.
    pub node: Option<Node>,
    /// When its silence means that it has ended, if it has given signs of life.
    pub silence: Option<Silence>,
}

/// When the silence of a start means that it has ended, although no end came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// The last sign but one of those that are missed was due then: a log that has sent anything
    /// since would have sent it too.
    pub sign_due: Time,
    /// The start is over from then on.
    pub over: Time,
}

/// Why starts were ended without their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The time of the rule is over.
    Expired,
    /// Their Envoy is gone.
    OwnerGone,
    /// Their signs of life have stopped.
    Silent,
}

/// The owners and nodes that are known.
#[derive(Debug)]
pub(super) struct Owners {
    known: Mutex<Known>,
    /// Number of owners that may be gone: while it is 0, no lock is taken for a proof.
    may_be_gone: AtomicUsize,
    /// Whether nodes are known.
    has_nodes: AtomicBool,
    /// How long after its last connection an owner is gone.
    grace: Duration,
}

#[derive(Debug, Default)]
struct Known {
    /// The present owner of each origin.
    owners: HashMap<Origin, Owner, RandomState>,
    states: HashMap<Owner, State, RandomState>,
    /// Owners that are gone, and when that was noticed, the oldest first.
    gone: VecDeque<(Owner, Time)>,
    nodes: HashMap<Box<str>, Node, RandomState>,
    logs: HashMap<Node, Presence, RandomState>,
    last_owner: u32,
    last_node: u32,
}

/// The origin and the connections of an owner.
#[derive(Debug, Clone, Copy)]
struct State {
    origin: Origin,
    presence: Presence,
    /// The owner that has its connections, if it is alive and has none.
    follows: Option<Owner>,
}

/// Whether an Envoy is there.
#[derive(Debug, Clone, Copy, Default)]
struct Presence {
    /// Connections, or streams of its log, that are open.
    open: u32,
    /// When the last one was closed by the client.
    left: Option<Time>,
    /// When one was last opened or closed.
    changed: Time,
    /// When its log last sent anything.
    heard: Time,
}

/// The owners that are gone, and the logs that are there.
#[derive(Debug, Default)]
pub(super) struct Present {
    gone: HashSet<Owner, RandomState>,
    /// Nodes that have a log open, and when it last sent anything.
    logs: HashMap<Node, Time, RandomState>,
}

// === impl Owner ===

impl Owner {
    /// An unknown caller: a start lives until its end, or for the time of its rule.
    pub const UNKNOWN: Self = Self(0);

    /// The Envoy that this process is.
    pub const THIS_PROCESS: Self = Self(u32::MAX);

    /// Whether it sends an end for a start that was denied, as Envoy's filter does.
    pub(super) fn ends_what_was_denied(self) -> bool {
        self != Self::UNKNOWN
    }
}

// === impl Owners ===

impl Owners {
    /// No owners, which are gone `grace` after their last connections.
    pub(super) fn new(grace: Duration) -> Self {
        let (may_be_gone, has_nodes) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { known: Mutex::default(), may_be_gone, has_nodes, grace }
    }

    /// Notes that a connection from `origin` is open. Returns its owner.
    pub(super) fn connect(&self, origin: Origin, now: Time) -> Owner {
        let mut known = self.known.lock();
        if let Some(owner) = known.owners.get(&origin).copied()
            && let Some(State { presence, .. }) = known.states.get_mut(&owner)
            && presence.left.is_none()
        {
            (presence.open, presence.changed) = (presence.open + 1, now);
            return owner;
        }
        if known.states.len() >= KNOWN_MAX {
            self.forget_gone(&mut known, now);
            let Known { owners, states, gone, .. } = &mut *known;
            // One that may be gone is, from now on: its grace is short.
            let evicted = make_room(states, |state| &state.presence);
            let left = evicted.filter(|(_, state)| state.presence.left.is_some());
            left.inspect(|(owner, _)| note_gone(gone, *owner, now));
            owners.retain(|_, owner| states.contains_key(owner));
        }
        if known.states.len() >= KNOWN_MAX {
            return Owner::UNKNOWN;
        }
        known.last_owner = known.last_owner.wrapping_add(1).clamp(1, u32::MAX - 1);
        let owner = Owner(known.last_owner);
        known.owners.insert(origin, owner);
        let presence = Presence { open: 1, changed: now, ..Presence::default() };
        known.states.insert(owner, State { origin, presence, follows: None });
        owner
    }

    /// Notes that a connection of `owner` is closed.
    pub(super) fn disconnect(&self, owner: Owner, by: ClosedBy, now: Time) {
        let mut known = self.known.lock();
        let state = known.states.get_mut(&owner);
        let left = state.is_some_and(|state| state.presence.close(by, now));
        self.may_be_gone.fetch_add(usize::from(left), Ordering::Relaxed);
    }

    /// Notes that the Envoy of this `node.id` has a stream of its log open.
    pub(super) fn connect_node(&self, id: &str, now: Time) -> Node {
        let mut end = id.len().min(NODE_ID_BYTES_MAX);
        while !id.is_char_boundary(end) {
            end -= 1;
        }
        let id = id.get(..end).unwrap_or_default();
        let mut known = self.known.lock();
        let node = known.node_of(id, now);
        self.has_nodes.store(true, Ordering::Relaxed);
        if let Some(state) = known.logs.get_mut(&node) {
            state.open += 1;
            (state.changed, state.heard) = (now, now);
        }
        node
    }

    /// Notes that a stream of the log of `node` is closed.
    pub(super) fn disconnect_node(&self, node: Node, by: ClosedBy, now: Time) {
        let mut known = self.known.lock();
        if let Some(state) = known.logs.get_mut(&node) {
            state.close(by, now);
        }
    }

    /// Notes that the log of `node` has sent something.
    pub(super) fn hear(&self, node: Node, now: Time) {
        if let Some(state) = self.known.lock().logs.get_mut(&node) {
            state.heard = now;
        }
    }

    /// Whether any Envoy sends its log.
    pub(super) fn has_nodes(&self) -> bool {
        self.has_nodes.load(Ordering::Relaxed)
    }

    /// Notes a proof that `owner` lives: an end, or a sign of life, of a request that it started.
    pub(super) fn prove(&self, owner: Owner) {
        if self.may_be_gone.load(Ordering::Relaxed) > 0 {
            self.note_proof(&mut self.known.lock(), owner);
        }
    }

    /// Notes that a call of `by` has ended a request that `owner` started: a proof that it lives,
    /// if the call comes from where it was. An id that came again through another Envoy proves
    /// nothing.
    pub(super) fn prove_by(&self, owner: Owner, by: Owner) {
        if self.may_be_gone.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut known = self.known.lock();
        let origin = |of: Owner| known.states.get(&of).map(|state| state.origin);
        if origin(by).is_some_and(|of| origin(owner) == Some(of)) {
            self.note_proof(&mut known, owner);
        }
    }

    fn note_proof(&self, known: &mut Known, owner: Owner) {
        let Some(state) = known.states.get_mut(&owner) else { return };
        if state.presence.left.take().is_none() {
            return;
        }
        self.may_be_gone.fetch_sub(1, Ordering::Relaxed);
        if state.presence.open == 0 {
            let has_come_back = |present: &Owner| *present != owner;
            state.follows = known.owners.get(&state.origin).copied().filter(has_come_back);
        }
    }

    /// The owners that are gone, and the logs that are there.
    pub(super) fn present(&self, now: Time) -> Present {
        let mut known = self.known.lock();
        self.forget_gone(&mut known, now);
        let Known { states, nodes, logs, gone, .. } = &mut *known;
        states.retain(|_, state| !state.presence.is_idle(FORGOTTEN_AFTER, now));
        logs.retain(|_, state| !state.is_idle(FORGOTTEN_AFTER, now));
        nodes.retain(|_, node| logs.contains_key(node));
        self.has_nodes.store(!nodes.is_empty(), Ordering::Relaxed);
        let open = logs.iter().filter(|(_, state)| state.open > 0);
        Present {
            gone: gone.iter().map(|(owner, _)| *owner).collect(),
            logs: open.map(|(node, state)| (*node, state.heard)).collect(),
        }
    }

    /// Moves owners that are gone from those that are known to those that are gone.
    fn forget_gone(&self, known: &mut Known, now: Time) {
        let Known { owners, states, gone, .. } = known;
        while gone.pop_front_if(|(_, since)| now.since(*since) >= GONE_REMEMBERED).is_some() {}
        let has_left = |state: &State| state.has_left(self.grace, now);
        let left: Vec<_> = { states.iter().filter(|(_, state)| has_left(state)) }
            .map(|(owner, _)| *owner)
            .collect();
        let following = states.iter().filter_map(|(owner, state)| Some((*owner, state.follows?)));
        let mut following: Vec<_> = following.collect();
        for owner in left {
            states.remove(&owner);
            note_gone(gone, owner, now);
        }
        // An owner follows a later one, so that the latest come first.
        following.sort_unstable_by(|one, other| other.cmp(one));
        for (owner, of) in following {
            if !states.contains_key(&of) && states.remove(&owner).is_some() {
                note_gone(gone, owner, now);
            }
        }
        owners.retain(|_, owner| states.contains_key(owner));
        let may_be_gone = states.values().filter(|state| state.presence.left.is_some()).count();
        self.may_be_gone.store(may_be_gone, Ordering::Relaxed);
    }
}

/// Remembers that an owner is gone. The oldest one makes room.
fn note_gone(gone: &mut VecDeque<(Owner, Time)>, owner: Owner, now: Time) {
    if gone.len() >= GONE_MAX {
        gone.pop_front();
    }
    gone.push_back((owner, now));
}

/// Removes the one that has had no connection for the longest time, if there are too many, and
/// returns it.
fn make_room<K: Copy + Eq + Hash, V>(
    states: &mut HashMap<K, V, RandomState>,
    presence: impl Fn(&V) -> &Presence,
) -> Option<(K, V)> {
    if states.len() < KNOWN_MAX {
        return None;
    }
    let closed = states.iter().filter(|(_, state)| presence(state).open == 0);
    let longest = closed.min_by_key(|(_, state)| presence(state).changed).map(|(key, _)| *key);
    longest.and_then(|key| states.remove_entry(&key))
}

// === impl Known ===

impl Known {
    /// The number of the Envoy of this `node.id`: another one once its log was closed by it. An
    /// unknown one if there are too many.
    fn node_of(&mut self, id: &str, now: Time) -> Node {
        if let Some(node) = self.nodes.get(id) {
            match self.logs.get(node) {
                Some(log) if log.open > 0 || log.left.is_none() => return *node,
                _ => _ = self.logs.remove(node),
            }
        }
        make_room(&mut self.logs, |log| log);
        if self.logs.len() >= KNOWN_MAX {
            return Node::default();
        }
        let Self { nodes, logs, .. } = self;
        if nodes.len() >= KNOWN_MAX {
            nodes.retain(|_, node| logs.contains_key(node));
        }
        self.last_node = self.last_node.wrapping_add(1).max(1);
        let node = Node(self.last_node);
        self.nodes.insert(id.into(), node);
        self.logs.insert(node, Presence { changed: now, ..Presence::default() });
        node
    }
}

// === impl State ===

impl State {
    /// Whether the last connection was closed by the client so long ago.
    fn has_left(&self, grace: Duration, now: Time) -> bool {
        let Presence { open, left, .. } = self.presence;
        open == 0 && left.is_some_and(|left| now.since(left) >= grace)
    }
}

/// How long an owner or a node without any connection is remembered: as long as the longest time of
/// a rule, after which nothing that it started is left.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3_600);

// === impl Presence ===

impl Presence {
    /// Notes that one is closed. Returns whether the client may be gone since then.
    fn close(&mut self, by: ClosedBy, now: Time) -> bool {
        (self.open, self.changed) = (self.open.saturating_sub(1), now);
        let left = self.open == 0 && by == ClosedBy::Client && self.left.is_none();
        if left {
            self.left = Some(now);
        }
        left
    }

    fn is_idle(&self, lasts: Duration, now: Time) -> bool {
        self.open == 0 && now.since(self.changed) >= lasts
    }
}

// === impl Present ===

impl Present {
    /// Whether a start is over although its end has not come: its Envoy is gone, or its signs of
    /// life have stopped while the log sends others, or is gone itself.
    pub(super) fn cause(&self, start: &StartView, now: Time) -> Option<Cause> {
        let heard = start.node.and_then(|node| self.logs.get(&node));
        if self.gone.contains(&start.owner) && heard.is_none() {
            return Some(Cause::OwnerGone);
        }
        let is_silent = start.silence.is_some_and(|Silence { sign_due, over }| {
            over <= now && heard.is_some_and(|heard| *heard >= sign_due)
        });
        is_silent.then_some(Cause::Silent)
    }
}

// === impl Cause ===

impl Cause {
    pub(super) fn counter(self) -> HoldCounter {
        match self {
            Self::Expired => HoldCounter::Expired,
            Self::OwnerGone => HoldCounter::OwnerGone,
            Self::Silent => HoldCounter::Silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(3);

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn loopback() -> Origin {
        Origin::Address(IpAddr::from([127, 0, 0, 1]))
    }

    fn of(owner: Owner) -> StartView {
        StartView { owner, node: None, silence: None }
    }

    fn is_gone(owners: &Owners, owner: Owner, now: Time) -> bool {
        owners.present(now).cause(&of(owner), now) == Some(Cause::OwnerGone)
    }

    #[test]
    fn an_owner_is_gone_a_grace_after_its_last_connection_closed() {
        let owners = Owners::new(GRACE);
        let owner = owners.connect(loopback(), at(0));
        assert_eq!(owners.connect(loopback(), at(0)), owner, "of whatever port");
        owners.disconnect(owner, ClosedBy::Client, at(0));
        assert!(!is_gone(&owners, owner, at(60_000)), "one is open");
        owners.disconnect(owner, ClosedBy::Client, at(60_000));
        assert!(!is_gone(&owners, owner, at(62_999)));
        assert!(is_gone(&owners, owner, at(63_000)));
    }

    #[test]
    fn an_envoy_that_comes_back_at_once_is_another_owner() {
        let owners = Owners::new(GRACE);
        let before = owners.connect(loopback(), at(0));
        owners.disconnect(before, ClosedBy::Client, at(0));
        let after = owners.connect(loopback(), at(0));
        assert_ne!(before, after);
        assert!(is_gone(&owners, before, at(3_000)));
        assert!(!is_gone(&owners, after, at(9_000)));
    }

    #[test]
    fn an_end_proves_that_an_owner_without_connections_lives() {
        let owners = Owners::new(GRACE);
        let owner = owners.connect(loopback(), at(0));
        owners.disconnect(owner, ClosedBy::Client, at(0));
        owners.prove(owner);
        assert!(!is_gone(&owners, owner, at(9_000)));
        assert_eq!(owners.connect(loopback(), at(0)), owner, "it has connected again");
    }

    #[test]
    fn a_connection_that_this_process_closed_proves_nothing() {
        let owners = Owners::new(GRACE);
        let owner = owners.connect(Origin::Socket, at(0));
        owners.disconnect(owner, ClosedBy::Server, at(0));
        assert!(!is_gone(&owners, owner, at(9_000)));
        assert_eq!(owners.connect(Origin::Socket, at(0)), owner);
        assert_ne!(owners.connect(loopback(), at(0)), owner, "of another origin");
    }

    #[test]
    fn a_start_is_silent_once_signs_of_others_came_without_its_own() {
        let owners = Owners::new(GRACE);
        let node = owners.connect_node("envoy", at(0));
        let owner = owners.connect(loopback(), at(0));
        let silence = Some(Silence { sign_due: at(30_000), over: at(41_000) });
        let start = StartView { owner, node: Some(node), silence };
        let cause = |now| owners.present(now).cause(&start, now);
        owners.hear(node, at(29_999));
        assert_eq!(cause(at(60_000)), None, "nothing was heard of others");
        owners.hear(node, at(30_000));
        assert_eq!(cause(at(40_000)), None);
        assert_eq!(cause(at(41_000)), Some(Cause::Silent));
    }

    #[test]
    fn an_open_log_keeps_the_starts_of_an_owner_without_connections() {
        let owners = Owners::new(GRACE);
        let node = owners.connect_node("envoy", at(0));
        let owner = owners.connect(Origin::Socket, at(0));
        let start = StartView { node: Some(node), ..of(owner) };
        owners.disconnect(owner, ClosedBy::Client, at(0));
        assert_eq!(owners.present(at(3_000)).cause(&start, at(3_000)), None);
        owners.disconnect_node(node, ClosedBy::Client, at(3_000));
        let cause = owners.present(at(3_000)).cause(&start, at(3_000));
        assert_eq!(cause, Some(Cause::OwnerGone));
    }

    #[test]
    fn a_proof_from_elsewhere_proves_nothing() {
        let owners = Owners::new(GRACE);
        let owner = owners.connect(loopback(), at(0));
        let other = owners.connect(Origin::Socket, at(0));
        owners.disconnect(owner, ClosedBy::Client, at(0));
        owners.prove_by(owner, other);
        owners.prove_by(owner, Owner::UNKNOWN);
        assert!(is_gone(&owners, owner, at(3_000)));
    }

    #[test]
    fn an_owner_that_has_connected_again_is_gone_with_its_new_connections() {
        let owners = Owners::new(GRACE);
        let before = owners.connect(loopback(), at(0));
        owners.disconnect(before, ClosedBy::Client, at(0));
        let after = owners.connect(loopback(), at(100));
        owners.prove_by(before, after);
        owners.disconnect(after, ClosedBy::Client, at(60_000));
        let last = owners.connect(loopback(), at(60_000));
        assert!(!is_gone(&owners, before, at(60_000)), "it follows one that may be alive");
        owners.prove(after);
        assert!(!is_gone(&owners, before, at(99_000)));
        owners.disconnect(last, ClosedBy::Client, at(99_000));
        for owner in [before, after, last] {
            assert!(!is_gone(&owners, owner, at(101_999)));
        }
        let present = owners.present(at(102_000));
        for owner in [before, after, last] {
            assert_eq!(present.cause(&of(owner), at(102_000)), Some(Cause::OwnerGone));
        }
    }

    #[test]
    fn a_log_that_its_envoy_closed_keeps_no_starts() {
        let owners = Owners::new(GRACE);
        let node = owners.connect_node("envoy", at(0));
        owners.disconnect_node(node, ClosedBy::Server, at(0));
        assert_eq!(owners.connect_node("envoy", at(0)), node, "this process closed it");
        let owner = owners.connect(loopback(), at(0));
        owners.disconnect(owner, ClosedBy::Client, at(0));
        owners.disconnect_node(node, ClosedBy::Client, at(0));
        assert_ne!(owners.connect_node("envoy", at(0)), node);
        let start = StartView { node: Some(node), ..of(owner) };
        let cause = owners.present(at(3_000)).cause(&start, at(3_000));
        assert_eq!(cause, Some(Cause::OwnerGone));
    }

    #[test]
    fn peers_that_are_gone_make_room_for_others() {
        let owners = Owners::new(GRACE);
        for n in 0..2 * u32::try_from(KNOWN_MAX).unwrap() {
            let owner = owners.connect(Origin::Address(IpAddr::from(n.to_be_bytes())), at(0));
            assert_ne!(owner, Owner::UNKNOWN);
            let by = if n % 2 == 0 { ClosedBy::Client } else { ClosedBy::Server };
            owners.disconnect(owner, by, at(u64::from(n)));
            let node = owners.connect_node(&n.to_string(), at(0));
            assert_ne!(node, Node::default());
            owners.disconnect_node(node, by, at(u64::from(n)));
        }
        let known = owners.known.lock();
        assert!(known.states.len() <= KNOWN_MAX && known.gone.len() <= GONE_MAX);
        assert!(known.nodes.len() <= KNOWN_MAX && known.logs.len() <= KNOWN_MAX);
        assert!(known.owners.len() <= KNOWN_MAX);
    }

    #[test]
    fn an_owner_that_others_push_out_is_gone_at_once() {
        let owners = Owners::new(GRACE);
        let owner = owners.connect(Origin::Socket, at(0));
        owners.disconnect(owner, ClosedBy::Client, at(0));
        for n in 0..u32::try_from(KNOWN_MAX).unwrap() {
            let other = owners.connect(Origin::Address(IpAddr::from(n.to_be_bytes())), at(1));
            owners.disconnect(other, ClosedBy::Client, at(1));
        }
        assert!(is_gone(&owners, owner, at(1)));
    }

    #[test]
    fn an_envoy_that_connects_anew_thousands_of_times_is_gone_with_its_last_connection() {
        let owners = Owners::new(GRACE);
        let mut all = vec![owners.connect(loopback(), at(0))];
        for _ in 1..KNOWN_MAX {
            let before = *all.last().unwrap();
            owners.disconnect(before, ClosedBy::Client, at(0));
            let after = owners.connect(loopback(), at(0));
            owners.prove_by(before, after);
            all.push(after);
        }
        assert!(!is_gone(&owners, all[0], at(9_000)));
        owners.disconnect(*all.last().unwrap(), ClosedBy::Client, at(9_000));
        let present = owners.present(at(12_000));
        assert!(all.iter().all(|owner| present.gone.contains(owner)), "in one look");
    }

    #[test]
    fn owners_and_nodes_are_bounded() {
        let owners = Owners::new(GRACE);
        for n in 0..2 * u32::try_from(KNOWN_MAX).unwrap() {
            owners.connect(Origin::Address(IpAddr::from(n.to_be_bytes())), at(0));
            owners.connect_node(&n.to_string(), at(0));
        }
        let known = owners.known.lock();
        assert_eq!((known.states.len(), known.nodes.len()), (KNOWN_MAX, KNOWN_MAX));
    }
}
