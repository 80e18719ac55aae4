//! The connections of one listener. A full pool closes the connection that has been idle longest
//! and accepts the new one, so that a crowd of idle connections cannot keep others out.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::time::Clock;
use tokio::sync::{Notify, futures::Notified, watch};
use tokio::time::timeout;
use tracing::warn;

/// Maximum number of connections of one listener. An Envoy opens one or a few for each of its
/// workers, so this many serve hundreds of Envoys.
pub const CONNECTIONS_MAX: usize = 4096;

/// One in this many of a pool's connections is kept free for new clients while others are asked to
/// go away.
const SPARE_DIVISOR: usize = 8;

/// A full pool closes at most one in this many of its connections at a time, if they were never
/// answered: where a crowd keeps it full, new clients are accepted in groups, and need not each
/// wait until another connection's thread has closed it.
const GROUP_DIVISOR: usize = 16;

/// A connection that is asked to go away to make room has this long to finish its calls.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Seconds without an answer after which a connection is asked to go away.
const IDLE_MAX: u32 = 600;

/// Maximum numbers of streams of one HTTP listener that wait for their clients. An incomplete
/// request takes some 3 KiB, and as much again as a task, and an answer that is not read some KiB.
/// A client that reads its answers has none, or one that is split in two.
const HTTP_PENDING_MAX: PendingMax = PendingMax { idle: 384, unfinished: 4 * 384, unread: 320 };

/// Maximum numbers of such streams of a gRPC listener. Four new connections of an Envoy may each
/// have 1024 calls whose messages find no room in the window that HTTP/2 begins with, until the
/// Envoy has read of a larger one. Of as many answers at once most fit into the window of a client.
/// A call without its message takes 3.3 KiB, and an answer that is not read 2.8 KiB, or 10 KiB if
/// it has 200 statuses.
const CALLS_PENDING_MAX: PendingMax = PendingMax { idle: 4096, unfinished: 4096, unread: 1024 };

/// Maximum number of requests of one listener that are handed on incomplete. Each takes some 12
/// KiB.
const INCOMPLETE_MAX: usize = 256;

/// Number of incomplete requests that each connection may have even when the listener has reached
/// [`INCOMPLETE_MAX`].
const INCOMPLETE_PER_CONNECTION: usize = 4;

/// Maximum number of streams of one connection that both ends keep open, such as access logs. An
/// Envoy opens one or a few for each of its workers, and a worker has a connection of its own.
const ENDLESS_PER_CONNECTION: usize = 16;

/// Maximum number of such streams of one listener. Each takes some 4 KiB.
const ENDLESS_MAX: usize = 1024;

/// Number of such streams that a connection may have even when the listener has the maximum.
const ENDLESS_FEW: usize = 2;

/// Counts the connections of a listener and makes room for new ones. A cheap handle: clones share
/// all state.
#[derive(Debug, Clone)]
pub struct OpenConnections(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    max: usize,
    members: Mutex<Members>,
    /// Number of connections accepted so far: the time by which idleness is compared.
    accepted: AtomicU64,
    refused: AtomicU64,
    evicted: AtomicU64,
    violations: AtomicU64,
    waiting: PendingTotals,
    incomplete: AtomicUsize,
    endless: AtomicUsize,
    /// Number of open connections that were never answered.
    unanswered: AtomicUsize,
    closed: Notify,
    is_nearly_full: AtomicBool,
    clock: Clock,
    use_by: UseBy,
    /// Maximum number of connections of one peer.
    of_peer_max: usize,
    /// Seconds without use after which a connection is asked to go away.
    idle_max: u32,
}

/// Why a connection is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolFull {
    /// There will be room as soon as a connection has ended that has to close at once.
    MakingRoom,
    /// No connection can be closed: all have requests in use.
    AllInUse,
}

/// The event that counts as the use of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UseBy {
    /// Any part of an answer.
    Answers,
    /// Requests that the server vouches for, such as those with a valid token.
    Requests,
    /// Requests of clients that the server cannot authenticate.
    AnyRequests,
}

/// One connection of a pool, for the server of the connection. Clones share it.
#[derive(Debug, Clone)]
pub struct ConnectionHandle {
    pool: OpenConnections,
    member: Arc<Member>,
}

/// Counts one connection until it is dropped.
#[derive(Debug)]
pub struct ConnectionGuard {
    handle: ConnectionHandle,
    waiting: PendingStreams,
}

/// Counts one request that was handed on incomplete, until it is dropped.
#[derive(Debug)]
pub struct IncompleteRequest(ConnectionHandle);

/// Counts one stream that may be quiet, until it is dropped.
#[derive(Debug)]
pub struct LongLivedStream(Arc<Member>);

/// Counts one stream that both ends keep open, until it is dropped.
#[derive(Debug)]
pub struct EndlessStream {
    handle: ConnectionHandle,
    _stream: LongLivedStream,
}

/// A request that the server vouches for: until it is dropped, its connection closes for no other
/// one, and only then the connection begins to be idle.
#[derive(Debug)]
pub struct RequestInUse {
    handle: ConnectionHandle,
    /// Whether both ends keep it open.
    is_stream: bool,
    _stream: LongLivedStream,
}

// === impl OpenConnections ===

impl OpenConnections {
    /// Creates a pool of at most `max` HTTP connections, and never more than [`CONNECTIONS_MAX`].
    pub fn new(max: usize) -> Self {
        Self::with_pending_max(max, HTTP_PENDING_MAX)
    }

    /// Like [`OpenConnections::new`], for gRPC.
    pub fn for_calls(max: usize) -> Self {
        Self::with_pending_max(max, CALLS_PENDING_MAX)
    }

    /// Like [`OpenConnections::new`], for clients who have to be known before they may keep a
    /// connection: only requests in use ([`ConnectionHandle::begin_request`]) count as its use, and
    /// one without use is asked to go away after `idle_max`. A full pool closes one that was never
    /// used if there is any, of the peer that has the most of these; else the one of the peer with
    /// the most that was used the longest ago. A peer that has `of_peer_max` is given no further
    /// one, if that is given.
    pub fn for_known_clients(max: usize, of_peer_max: Option<usize>, idle_max: Duration) -> Self {
        let of_peer_max = of_peer_max.unwrap_or(usize::MAX);
        Self::used_by(
            UseBy::Requests,
            idle_max,
            Pool { of_peer_max, ..Pool::new(max, HTTP_PENDING_MAX) },
        )
    }

    /// Like [`OpenConnections::for_known_clients`], for clients that the server cannot
    /// authenticate. The peer that has the most connections without a request in use loses one
    /// first, also if it made requests on them.
    pub fn for_any_clients(max: usize, idle_max: Duration) -> Self {
        Self::used_by(UseBy::AnyRequests, idle_max, Pool::new(max, HTTP_PENDING_MAX))
    }

    fn used_by(use_by: UseBy, idle_max: Duration, pool: Pool) -> Self {
        let idle_max = u32::try_from(idle_max.as_secs()).unwrap_or(u32::MAX);
        Self(Arc::new(Pool { use_by, idle_max, ..pool }))
    }

    fn with_pending_max(max: usize, pending_max: PendingMax) -> Self {
        Self(Arc::new(Pool::new(max.min(CONNECTIONS_MAX), pending_max)))
    }

    /// Number of open connections.
    pub fn count(&self) -> usize {
        self.0.members.lock().open.len()
    }

    /// Number of connections refused since the process began.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Number of connections asked to go away to make room for others.
    pub fn evicted(&self) -> u64 {
        self.0.evicted.load(Ordering::Relaxed)
    }

    /// Number of connections closed because their client exceeded a limit.
    pub fn violations(&self) -> u64 {
        self.0.violations.load(Ordering::Relaxed)
    }

    pub(super) fn max(&self) -> usize {
        self.0.max
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(super) fn note_refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the peer at this address has as many connections as one may have.
    pub(super) fn has_all_of_peer(&self, address: Option<IpAddr>) -> bool {
        let members = self.0.members.lock();
        members.by_peer.get(&Peer::of(address)).is_some_and(|own| *own >= self.0.of_peer_max)
    }

    /// Admits a connection from this address. A full pool closes others for it.
    ///
    /// # Errors
    ///
    /// Fails if there is no room yet, and says whether there will be.
    pub fn admit(&self, address: Option<IpAddr>) -> Result<ConnectionGuard, PoolFull> {
        let mut members = self.0.members.lock();
        if members.open.len() >= self.0.max {
            return Err(self.make_room(&members));
        }
        let accepted = self.0.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let member = members.add(address, accepted);
        self.0.unanswered.fetch_add(1, Ordering::Relaxed);
        let spare = self.0.max / SPARE_DIVISOR;
        if members.open.len() > self.0.max - spare {
            self.evict(&members, Close::Gracefully);
            self.note_nearly_full();
        } else if members.open.len() <= self.0.max / 2 {
            self.0.is_nearly_full.store(false, Ordering::Relaxed);
        }
        let handle = ConnectionHandle { pool: self.clone(), member };
        Ok(ConnectionGuard { handle, waiting: PendingStreams::default() })
    }

    /// Resolves once a connection ends from now on, also before the first poll.
    pub(super) fn next_close(&self) -> Notified<'_> {
        self.0.closed.notified()
    }

    /// Closes connections of a full pool, and says whether any is closing: both under the lock of
    /// the members, since one that ends in between leaves room, and none would be seen closing.
    fn make_room(&self, members: &Members) -> PoolFull {
        let is_closing = |member: &Arc<Member>| *member.close.borrow() >= Close::Evicted;
        // Connections that were asked to go away, or else the next one, get no more time.
        let makes_room = self.close_group(members) > 0
            || self.evict(members, Close::Evicted)
            || members.open.values().any(is_closing);
        if makes_room { PoolFull::MakingRoom } else { PoolFull::AllInUse }
    }

    /// Closes a group of connections that were never answered, if they are half of all. Returns
    /// their number.
    fn close_group(&self, members: &Members) -> usize {
        if self.0.unanswered.load(Ordering::Relaxed) * 2 < members.open.len() {
            return 0;
        }
        let use_by = self.0.use_by;
        let group = members.unanswered((self.0.max / GROUP_DIVISOR).max(1), use_by);
        let closed = group.into_iter().filter(|it| it.evict(Close::Evicted, use_by)).count();
        self.0.evicted.fetch_add(closed as u64, Ordering::Relaxed);
        closed
    }

    /// Asks one connection to close for another. Returns whether there is any.
    fn evict(&self, members: &Members, how: Close) -> bool {
        while let Some(member) = members.next_to_close(how, self.0.use_by) {
            if member.evict(how, self.0.use_by) {
                self.0.evicted.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    fn note_nearly_full(&self) {
        if !self.0.is_nearly_full.swap(true, Ordering::Relaxed) {
            let max = self.0.max;
            warn!(
                "a listener has nearly {max} connections, which is the maximum: those idle the \
                 longest are closed; raise the limit on open files if they are needed"
            );
        }
    }
}

impl Pool {
    fn new(max: usize, pending_max: PendingMax) -> Self {
        Self {
            max: max.max(1),
            members: Mutex::default(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            waiting: PendingTotals::new(pending_max),
            incomplete: AtomicUsize::new(0),
            endless: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
            closed: Notify::new(),
            is_nearly_full: AtomicBool::new(false),
            clock: Clock::start(),
            use_by: UseBy::Answers,
            of_peer_max: usize::MAX,
            idle_max: IDLE_MAX,
        }
    }
}

impl Default for OpenConnections {
    fn default() -> Self {
        Self::new(CONNECTIONS_MAX)
    }
}

// === impl ConnectionHandle ===

impl ConnectionHandle {
    /// Resolves once the connection should close, after its calls have finished.
    pub async fn close_requested(&self) {
        // The sender lives as long as `self`.
        let _ = self.member.close.subscribe().wait_for(|asked| *asked > Close::No).await;
    }

    /// Resolves once the connection has to be closed even if calls are in progress, and counts its
    /// seconds until then. The server of the connection polls this beside it.
    pub async fn run_until_closed(&self) {
        tokio::select! {
            () = self.close_deadline() => {}
            () = self.count_seconds() => {}
        }
    }

    /// Resolves once the connection has to be closed even if calls are in progress: `CLOSE_GRACE`
    /// after it was asked to go away, or at once if it has to make room immediately. A request that
    /// begins before this is polled calls that off: in a pool for known clients for as long as it
    /// takes, else for `CLOSE_GRACE`.
    async fn close_deadline(&self) {
        let mut asked = self.member.close.subscribe();
        let _ = asked.wait_for(|asked| *asked > Close::No).await;
        loop {
            let at_once = asked.wait_for(|asked| *asked >= Close::Evicted);
            let is_at_once = timeout(CLOSE_GRACE, at_once).await.is_ok();
            // A request may have begun just when its connection was asked to go away.
            if is_at_once || !self.has_request_in_use() {
                return;
            }
        }
    }

    fn has_request_in_use(&self) -> bool {
        self.pool.0.use_by == UseBy::Requests && self.member.long_lived.load(Ordering::Relaxed) > 0
    }

    /// Counts the seconds of the connection and asks it to go away once it was idle for too many
    /// of them; never returns.
    async fn count_seconds(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.member.second.fetch_add(1, Ordering::Relaxed);
            if self.member.idle_seconds() >= self.pool.0.idle_max
                && self.member.long_lived.load(Ordering::Relaxed) == 0
            {
                self.member.ask_to_close(Close::Gracefully);
            }
        }
    }

    /// Notes that the server begins to handle a request that it vouches for, in a pool that is
    /// [for known clients](OpenConnections::for_known_clients).
    pub fn begin_request(&self) -> RequestInUse {
        self.begin(false)
    }

    /// Notes that the server begins to handle a stream that both ends keep open, in a pool that is
    /// [for known clients](OpenConnections::for_known_clients). Its request is never complete.
    pub fn begin_stream(&self) -> RequestInUse {
        self.begin(true)
    }

    fn begin(&self, is_stream: bool) -> RequestInUse {
        self.member.long_lived.fetch_add(1, Ordering::Relaxed);
        self.member.streams.fetch_add(usize::from(is_stream), Ordering::Relaxed);
        self.member.keep_for_request();
        self.note_used();
        let stream = LongLivedStream(Arc::clone(&self.member));
        RequestInUse { handle: self.clone(), is_stream, _stream: stream }
    }

    /// Resolves once the connection has ended, and all that was held of it is dropped.
    pub async fn ended(&self) {
        let _ = self.member.close.subscribe().wait_for(|asked| *asked == Close::Ended).await;
    }

    /// Registers a stream of this connection that may be quiet; `None` if there are `max` already,
    /// besides those that both ends keep open.
    pub fn register_long_lived(&self, max: usize) -> Option<LongLivedStream> {
        let stream = LongLivedStream(Arc::clone(&self.member));
        let before = self.member.long_lived.fetch_add(1, Ordering::Relaxed);
        (before.saturating_sub(self.streams()) < max).then_some(stream)
    }

    /// Registers a stream of this connection that both ends keep open: it may be quiet, and its
    /// request is never complete. `None` if there are too many.
    pub fn register_endless(&self) -> Option<EndlessStream> {
        self.member.long_lived.fetch_add(1, Ordering::Relaxed);
        let own = self.member.streams.fetch_add(1, Ordering::Relaxed);
        let all = self.pool.0.endless.fetch_add(1, Ordering::Relaxed);
        let stream = LongLivedStream(Arc::clone(&self.member));
        let stream = EndlessStream { handle: self.clone(), _stream: stream };
        let has_room = own < ENDLESS_FEW || own < ENDLESS_PER_CONNECTION && all < ENDLESS_MAX;
        has_room.then_some(stream)
    }

    /// Whether this end has cut the connection off, because its client exceeded a limit or it has
    /// reached its maximum age.
    pub fn was_cut(&self) -> bool {
        self.member.was_cut.load(Ordering::Relaxed)
    }

    /// Records that this end cuts the connection off.
    pub(super) fn note_cut(&self) {
        self.member.was_cut.store(true, Ordering::Relaxed);
    }

    /// Registers an incomplete request of this connection; `None` if there are too many.
    pub fn register_incomplete(&self) -> Option<IncompleteRequest> {
        let request = IncompleteRequest(self.clone());
        let own = self.member.incomplete.fetch_add(1, Ordering::Relaxed);
        let all = self.pool.0.incomplete.fetch_add(1, Ordering::Relaxed);
        (own < INCOMPLETE_PER_CONNECTION || all < INCOMPLETE_MAX).then_some(request)
    }

    /// Closes the connection, even if calls are in progress.
    pub fn close(&self) {
        self.member.ask_to_close(Close::AtOnce);
    }

    /// The address of the client; `None` for one on a Unix socket.
    pub fn address(&self) -> Option<IpAddr> {
        self.member.address
    }

    /// The client of the connection.
    pub fn peer(&self) -> Peer {
        self.member.peer
    }

    /// How long ago the connection came or last sent part of an answer, in whole seconds.
    pub fn idle_time(&self) -> Duration {
        Duration::from_secs(self.member.idle_seconds().into())
    }

    /// Seconds since the connection was accepted.
    pub(super) fn age_seconds(&self) -> u32 {
        self.member.second.load(Ordering::Relaxed)
    }

    pub(super) fn long_lived_streams(&self) -> usize {
        self.member.long_lived.load(Ordering::Relaxed)
    }

    /// Number of streams that both ends keep open.
    pub(super) fn streams(&self) -> usize {
        self.member.streams.load(Ordering::Relaxed)
    }

    pub(super) fn clock(&self) -> &Clock {
        self.pool.clock()
    }

    /// Records that part of an answer was sent.
    pub(super) fn note_answer(&self) {
        if self.pool.0.use_by == UseBy::Answers {
            self.note_used();
        }
    }

    /// Records that the connection is used, by an answer or otherwise.
    pub fn note_used(&self) {
        self.leave_unanswered();
        let Member { last_answer, last_answer_second, .. } = &*self.member;
        last_answer.store(self.pool.0.accepted.load(Ordering::Relaxed), Ordering::Relaxed);
        last_answer_second.store(self.age_seconds(), Ordering::Relaxed);
    }

    /// Counts the connection no longer as one that was never answered.
    fn leave_unanswered(&self) {
        let was_answered = &self.member.was_answered;
        if !was_answered.load(Ordering::Relaxed) && !was_answered.swap(true, Ordering::Relaxed) {
            self.pool.0.unanswered.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn note_violation(&self) {
        self.pool.0.violations.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for IncompleteRequest {
    fn drop(&mut self) {
        self.0.member.incomplete.fetch_sub(1, Ordering::Relaxed);
        self.0.pool.0.incomplete.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for EndlessStream {
    fn drop(&mut self) {
        self.handle.member.streams.fetch_sub(1, Ordering::Relaxed);
        self.handle.pool.0.endless.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for RequestInUse {
    fn drop(&mut self) {
        self.handle.member.streams.fetch_sub(usize::from(self.is_stream), Ordering::Relaxed);
        self.handle.note_used();
    }
}

impl Drop for LongLivedStream {
    fn drop(&mut self) {
        self.0.long_lived.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl ConnectionGuard ===

impl ConnectionGuard {
    pub(super) fn handle(&self) -> &ConnectionHandle {
        &self.handle
    }

    /// Records how many streams wait for the client. Returns false if they are too many while all
    /// connections of the listener together have too many.
    pub(super) fn note_pending(&mut self, waiting: PendingStreams) -> bool {
        let before = std::mem::replace(&mut self.waiting, waiting);
        self.handle.pool.0.waiting.replace(before, waiting)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let pool = &self.handle.pool.0;
        pool.waiting.replace(self.waiting, PendingStreams::default());
        self.handle.leave_unanswered();
        pool.members.lock().remove(&self.handle.member);
        self.handle.member.ask_to_close(Close::Ended);
        pool.closed.notify_waiters();
    }
}

/// The open connections, by their numbers, which only grow.
#[derive(Debug, Default)]
struct Members {
    open: HashMap<u64, Arc<Member>>,
    by_peer: HashMap<Peer, usize>,
}

/// The client of a connection. Processes of one machine cannot be distinguished: an Envoy and an
/// attacker beside it have one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// On this machine.
    Local,
    /// On this machine, at an address of loopback other than the usual one: a process may use any
    /// number of them.
    OtherLocal,
    /// At this IPv4 address.
    Address(IpAddr),
    /// The network part of an IPv6 address: a host may use any number of addresses within it.
    Network(u64),
}

/// One connection.
#[derive(Debug)]
struct Member {
    number: u64,
    peer: Peer,
    address: Option<IpAddr>,
    /// Whether part of an answer was ever sent.
    was_answered: AtomicBool,
    /// The number of the newest connection when this one was accepted or last sent part of an
    /// answer.
    last_answer: AtomicU64,
    /// Age of the connection in seconds, as far as they are counted, and its age at the last
    /// answer.
    second: AtomicU32,
    last_answer_second: AtomicU32,
    /// Number of streams that may be quiet without a time limit.
    long_lived: AtomicUsize,
    /// Number of streams among `long_lived` that both ends keep open.
    streams: AtomicUsize,
    /// Number of requests that were handed on incomplete.
    incomplete: AtomicUsize,
    /// Whether this end has cut the connection off.
    was_cut: AtomicBool,
    close: watch::Sender<Close>,
}

/// Whether and how a connection has to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Close {
    No,
    /// After its calls have finished.
    Gracefully,
    /// At once, to make room for another one, unless a request begins before.
    Evicted,
    /// At once, whatever is in progress.
    AtOnce,
    /// The connection has closed.
    Ended,
}

/// Seconds without an answer after which a connection may be asked to go away for another. One that
/// is used more often would reconnect at once, and displace the next one.
const IDLE_MIN: u32 = 5;

// === impl Members ===

impl Members {
    fn add(&mut self, address: Option<IpAddr>, accepted: u64) -> Arc<Member> {
        let peer = Peer::of(address);
        let member = Arc::new(Member {
            number: accepted,
            peer,
            address,
            was_answered: AtomicBool::new(false),
            last_answer: AtomicU64::new(accepted),
            second: AtomicU32::new(0),
            last_answer_second: AtomicU32::new(0),
            long_lived: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            incomplete: AtomicUsize::new(0),
            was_cut: AtomicBool::new(false),
            close: watch::Sender::new(Close::No),
        });
        self.open.insert(accepted, Arc::clone(&member));
        *self.by_peer.entry(peer).or_default() += 1;
        member
    }

    fn remove(&mut self, member: &Member) {
        self.open.remove(&member.number);
        if let Some(count) = self.by_peer.get_mut(&member.peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&member.peer);
            }
        }
    }

    /// The connection to close for another: one that has not been asked to close this way yet, of
    /// the peer that has more than half of all connections if there is one; among these, the one
    /// that came or was last answered the longest ago. So a new connection has as long for its
    /// first request as it takes to fill the pool, and an Envoy that calls stays; one that is idle
    /// loses no call and reconnects.
    fn next_to_close(&self, how: Close, use_by: UseBy) -> Option<&Arc<Member>> {
        if use_by != UseBy::Answers {
            return self.next_unused(how, use_by);
        }
        let crowd = self.by_peer.iter().find(|(_, count)| **count * 2 > self.open.len());
        let is_of_crowd = |member: &Member| crowd.is_none_or(|(peer, _)| member.peer == *peer);
        let candidates = self.open.values().filter(|member| {
            let asked = *member.close.borrow();
            let is_idle = how > Close::Gracefully || member.idle_seconds() >= IDLE_MIN;
            asked < how && is_idle && (asked == Close::Gracefully || is_of_crowd(member))
        });
        candidates.min_by_key(|member| {
            let was_asked = *member.close.borrow() == Close::Gracefully;
            (!was_asked, member.last_answer.load(Ordering::Relaxed), member.number)
        })
    }

    /// The connection to close for another, of those without a request in use. The candidates are
    /// those that never had a request, if there are any; for [`UseBy::AnyRequests`] all of them. Of
    /// the peer with the most candidates, one that never had a request goes first, then the one
    /// that was used the longest ago.
    fn next_unused(&self, how: Close, use_by: UseBy) -> Option<&Arc<Member>> {
        let unused: Vec<_> = self
            .open
            .values()
            .filter(|member| {
                let is_idle = how > Close::Gracefully || member.idle_seconds() >= IDLE_MIN;
                let is_unused = member.long_lived.load(Ordering::Relaxed) == 0;
                *member.close.borrow() < how && is_idle && is_unused
            })
            .collect();
        let never_used = |member: &Member| !member.was_answered.load(Ordering::Relaxed);
        let is_any_new = unused.iter().any(|member| never_used(member));
        let candidates = unused
            .iter()
            .filter(|member| use_by == UseBy::AnyRequests || never_used(member) == is_any_new);
        let counts = counts_by_peer(candidates.clone().copied());
        let next = candidates.min_by_key(|member| {
            let used = member.last_answer.load(Ordering::Relaxed);
            (Reverse(counts.get(&member.peer)), !never_used(member), used, member.number)
        });
        next.copied()
    }

    /// Returns at most `most` connections that were never answered, the oldest first. Where use is
    /// by requests, the connections of the peer that has the most of them come first. Returns none
    /// while a connection that was asked to close at once still closes.
    fn unanswered(&self, most: usize, use_by: UseBy) -> Vec<&Arc<Member>> {
        let mut found = Vec::new();
        for member in self.open.values() {
            if *member.close.borrow() >= Close::Evicted {
                return Vec::new();
            }
            if !member.was_answered.load(Ordering::Relaxed) {
                found.push(member);
            }
        }
        let counts = match use_by {
            UseBy::Answers => HashMap::new(),
            UseBy::Requests | UseBy::AnyRequests => counts_by_peer(found.iter().copied()),
        };
        if found.len() > most {
            let order = |member: &&Arc<Member>| (Reverse(counts.get(&member.peer)), member.number);
            found.select_nth_unstable_by_key(most, order);
            found.truncate(most);
        }
        found
    }
}

/// The number of these connections that each peer has.
fn counts_by_peer<'m>(members: impl Iterator<Item = &'m Arc<Member>>) -> HashMap<Peer, usize> {
    let mut counts = HashMap::new();
    for member in members {
        *counts.entry(member.peer).or_default() += 1;
    }
    counts
}

// === impl Close ===

impl Close {
    /// Becomes `how` unless it is that, or sooner, already; returns whether it was not.
    fn raise(&mut self, how: Self) -> bool {
        let is_new = *self < how;
        *self = how.max(*self);
        is_new
    }
}

// === impl Member ===

impl Member {
    /// Seconds since the connection came or last sent part of an answer, as far as they are
    /// counted.
    fn idle_seconds(&self) -> u32 {
        let used = self.last_answer_second.load(Ordering::Relaxed);
        self.second.load(Ordering::Relaxed).saturating_sub(used)
    }

    /// Asks the connection to close for another one. Returns false if it had been asked to close
    /// this way, or sooner, before, or if it has a request in use that keeps it open.
    fn evict(&self, how: Close, use_by: UseBy) -> bool {
        self.close.send_if_modified(|asked| {
            // A request that begins afterwards finds the value that is written here.
            let is_kept = use_by != UseBy::Answers && self.long_lived.load(Ordering::Relaxed) > 0;
            !is_kept && asked.raise(how)
        })
    }

    /// Lets a request that has just begun finish, if the connection has to close for another one.
    fn keep_for_request(&self) {
        self.close.send_if_modified(|asked| {
            let is_evicted = *asked == Close::Evicted;
            if is_evicted {
                *asked = Close::Gracefully;
            }
            is_evicted
        });
    }

    /// Asks the connection to close; returns false if it had been asked to close this way, or
    /// sooner, before.
    fn ask_to_close(&self, how: Close) -> bool {
        self.close.send_if_modified(|asked| asked.raise(how))
    }
}

// === impl Peer ===

impl Peer {
    /// The client at this address; `None` for one on a Unix socket.
    pub fn of(address: Option<IpAddr>) -> Self {
        let Some(address) = address.map(|address| address.to_canonical()) else {
            return Self::Local;
        };
        match address {
            IpAddr::V4(v4) if v4.is_loopback() && v4 != Ipv4Addr::LOCALHOST => Self::OtherLocal,
            address if address.is_loopback() => Self::Local,
            IpAddr::V4(_) => Self::Address(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::Network(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
        }
    }
}

// The streams that wait, over all connections of a listener: they hold memory meanwhile.

/// Maximum numbers of the streams of a listener that wait for their clients, above which
/// connections that have many of them are closed.
#[derive(Debug, Clone, Copy)]
struct PendingMax {
    /// Incomplete requests while there is nothing to be read of their connections.
    idle: usize,
    /// All incomplete requests. The rest of those beyond `idle` may have been sent already: they
    /// last for a few turns.
    unfinished: usize,
    /// Answers that have begun and are not read.
    unread: usize,
}

/// Streams of one connection that wait for its client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PendingStreams {
    /// Requests that have begun and are incomplete, once everything sent has been read.
    pub(super) unfinished: usize,
    /// Requests that have begun and are incomplete, while there is more to be read.
    pub(super) arriving: usize,
    /// Answers that have begun and are not read.
    pub(super) unread: usize,
}

/// The streams that wait, over all connections.
#[derive(Debug)]
struct PendingTotals {
    idle: Total,
    unfinished: Total,
    unread: Total,
}

#[derive(Debug)]
struct Total {
    max: usize,
    count: AtomicUsize,
}

// === impl PendingTotals ===

impl PendingTotals {
    fn new(max: PendingMax) -> Self {
        Self {
            idle: Total::new(max.idle),
            unfinished: Total::new(max.unfinished),
            unread: Total::new(max.unread),
        }
    }

    /// Replaces the count of a connection, `before`, with `now`. Returns false if `now` is too many
    /// while all connections together have too many.
    fn replace(&self, before: PendingStreams, now: PendingStreams) -> bool {
        let unfinished = |of: PendingStreams| of.unfinished + of.arriving;
        let are_few = [
            self.idle.replace(before.unfinished, now.unfinished),
            self.unfinished.replace(unfinished(before), unfinished(now)),
            self.unread.replace(before.unread, now.unread),
        ];
        are_few == [true; 3]
    }

    #[cfg(test)]
    fn count(&self) -> PendingStreams {
        let count = |total: &Total| total.count.load(Ordering::Relaxed);
        let idle = count(&self.idle);
        PendingStreams {
            unfinished: idle,
            arriving: count(&self.unfinished) - idle,
            unread: count(&self.unread),
        }
    }
}

// === impl Total ===

impl Total {
    fn new(max: usize) -> Self {
        Self { max, count: AtomicUsize::new(0) }
    }

    fn replace(&self, before: usize, now: usize) -> bool {
        if now == before {
            // Most connections have none: they must not touch what all of them share.
            return now == 0 || now <= self.one_max(self.count.load(Ordering::Relaxed));
        }
        self.count.fetch_add(now, Ordering::Relaxed);
        let all = self.count.fetch_sub(before, Ordering::Relaxed) - before;
        now <= self.one_max(all)
    }

    /// Maximum for one connection while all connections together have `all`.
    fn one_max(&self, all: usize) -> usize {
        match all / self.max {
            0 => usize::MAX,
            1 => 32,
            2 | 3 => 8,
            _ => 2,
        }
    }
}

#[cfg(test)]
mod tests;
