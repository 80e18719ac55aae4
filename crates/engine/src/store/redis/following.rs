//! How a pod follows the orders of one store: on a connection of its own, where it waits with
//! XREAD.
//!
//! A stream keeps the orders that a pod misses while it is not connected. Whenever a pod connects,
//! it reads all of the stream first, and so learns which keys are blocked.
//!
//! # Clocks that are set
//!
//! An entry says when its order ends by the clock of the server. A pod reads that clock with each
//! order, and counts the remaining time by its own. If the server's clock is set meanwhile, or a
//! replica with another clock takes over, the ends in the stream are wrong for pods that connect
//! from then on. The pods that knew the blocks before notice it: one of them states each block once
//! more, with the time that is left of it.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_rules::key::Key;
use redis::{Cmd, Value};
use tokio::sync::watch;

use super::cluster::slot_of;
use super::connection::{Connection, Connector, Opened};
use super::context::{StoreContext, count};
use super::fault::{Fault, Kind, LogOnce};
use super::orders::{
    Entry, EntryKind, Page, READ_AT_ONCE, read_after, statement, time_and_page, unix_ms,
};
use super::settings::RedisKind;
use super::{RedisStore, Servers, millis};
use crate::backoff::{Backoff, jittered};
use crate::order::{Action, Blocked, Follow, ORDERS_MAX, Order, Ordered, Place};
use crate::time::Time;

/// How long the server keeps an XREAD that finds nothing. So often a server that hangs is noticed
/// by a pod that asks it nothing else: before a replica takes over, which takes longer.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Time for the way of a reply, beside the time that the server is known to need.
const REPLY_MARGIN: Duration = Duration::from_millis(500);

/// Entries in one reply to XREAD: more than come at once.
const PAGE: usize = 100;

/// The largest number of pages that the whole stream is read in, of [`READ_AT_ONCE`] entries each.
/// Further entries are read as if they had just come.
const PAGES_MAX: usize = 8;

/// The first wait between two attempts to follow, unless the store's own connection is replaced
/// meanwhile.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// The longest wait between two attempts to follow. It is long, since a server or a user that does
/// not know streams refuses each time.
const RETRY_LAST: Duration = Duration::from_secs(10);

/// The longest wait for a server that does not answer, which may do so again before the store's own
/// connection has found out.
const RETRY_AWAY: Duration = Duration::from_secs(1);

/// How often the slot map is read again while the server of the stream does not answer: a replica
/// may have taken over.
const LOOK_AROUND_EVERY: Duration = Duration::from_millis(200);

/// A difference of the server's clock and the pod's that is a step: more than both drift apart
/// between two looks, and more than a block may be wrong by.
const STEP_MIN: Duration = Duration::from_secs(1);

/// A look at the server's clock that took longer says nothing about steps.
const LOOK_MAX: Duration = Duration::from_millis(500);

/// How long pods wait, at random, before they state blocks once more: the first one's statement
/// reaches the others meanwhile.
const STATED_WITHIN: Duration = Duration::from_secs(1);

// === impl RedisStore ===

impl RedisStore {
    /// Follows the orders, and says so in the store; never returns.
    pub(super) async fn follow(&self, follow: Follow<'_>) {
        let followed = watch::Sender::new(None);
        let register = self.register(follow, followed.subscribe());
        tokio::join!(self.follow_stream(Told::new(follow, followed)), register);
    }

    async fn follow_stream(&self, told: Told<'_>) {
        let slot = slot_of(self.orders_key().as_bytes());
        let mut outage = LogOnce::default();
        let mut retry = Backoff::new(RETRY_FIRST, RETRY_LAST);
        let mut known = Known::default();
        let mut is_away = false;
        loop {
            let link = self.link(slot).await;
            let begun = Following::begin(self, slot, &told, &mut known);
            let why = match self.unless_renewed(slot, &link, is_away, begun).await {
                Ok(mut following) => {
                    retry.reset();
                    if outage.ends() {
                        tracing::info!("orders for single keys are followed again");
                    }
                    let ended = async { Err(following.until_it_ends(&told, &mut known).await) };
                    let ended: Result<(), Fault> =
                        self.unless_renewed(slot, &link, false, ended).await;
                    ended.err().unwrap_or_else(renewed)
                }
                Err(fault) => fault,
            };
            // That a server is away is logged where its counts are missed.
            is_away = matches!(why.kind, Kind::Lost | Kind::NotSent | Kind::TimedOut);
            if !is_away && outage.begins() {
                let why = &why.text;
                tracing::warn!(
                    "orders for single keys are not followed: {why}; a reset takes longer to reach \
                     this pod, and a block does not reach it (it needs Redis 5, and the user +xread +xrange)"
                );
            }
            let wait = match link.strong_count() {
                0 => RETRY_LAST, // or once the store has a connection
                _ if is_away => retry.next_wait().min(RETRY_AWAY),
                _ => retry.next_wait(),
            };
            let waited = async {
                tokio::time::sleep(wait).await;
                Ok(())
            };
            // Either is a reason to begin again.
            let _ = self.unless_renewed(slot, &link, is_away, waited).await;
        }
    }

    /// The store's own connection to the owner of `slot`; nothing if there is none. Waits for the
    /// outcome of the first attempt to connect.
    async fn link(&self, slot: usize) -> Weak<Connection> {
        let connection = match &self.servers {
            Servers::One(link) => link.first_connection().await,
            Servers::Cluster(cluster) => cluster.owner(slot).await,
        };
        connection.map_or_else(|_| Weak::new(), |connection| Arc::downgrade(&connection))
    }

    /// Awaits `outcome`, unless the store gets another connection to the owner of `slot` than
    /// `link` meanwhile: the server was away, or another one owns the slot. If it `is_away`, the
    /// slot map is read again and again.
    async fn unless_renewed<T>(
        &self,
        slot: usize,
        link: &Weak<Connection>,
        is_away: bool,
        outcome: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let look_around = async {
            loop {
                self.mark_slots_stale();
                tokio::time::sleep(LOOK_AROUND_EVERY).await;
            }
        };
        let new_link = async {
            match &self.servers {
                Servers::One(own) => own.renewed(link).await,
                Servers::Cluster(cluster) => cluster.renewed(slot, link).await,
            }
        };
        tokio::select! {
            outcome = outcome => outcome,
            () = new_link => Err(renewed()),
            () = look_around, if is_away => Err(renewed()),
        }
    }

    /// How to reach the server of the stream.
    fn connector_of(&self, slot: usize) -> Result<Connector, Fault> {
        match (&self.servers, &self.context.settings.kind) {
            (Servers::Cluster(cluster), _) => {
                let owner = cluster.master(cluster.shard(slot));
                let unknown = || Fault::new(Kind::NotSent, "its owner is not known");
                owner.map(|owner| Connector::server(&self.context, owner)).ok_or_else(unknown)
            }
            (Servers::One(_), RedisKind::Sentinel { master }) => {
                Ok(Connector::master(&self.context, master))
            }
            (Servers::One(_), _) => Ok(Connector::first_server(&self.context)),
        }
    }
}

/// Why a connection that may still be open is given up.
fn renewed() -> Fault {
    Fault::new(Kind::Lost, "the store's own connection was replaced")
}

/// The follower, and how far it has followed.
struct Told<'a> {
    follow: Follow<'a>,
    /// The last order that was told, after each look at the stream.
    followed: watch::Sender<Option<Place>>,
    /// Orders that were read and not told yet: a connection may be given up between two of them,
    /// and the next one does not read them as new.
    pending: Mutex<VecDeque<Ordered>>,
}

// === impl Told ===

impl<'a> Told<'a> {
    fn new(follow: Follow<'a>, followed: watch::Sender<Option<Place>>) -> Self {
        Self { follow, followed, pending: Mutex::default() }
    }

    fn next(&self) -> Option<Ordered> {
        self.pending.lock().pop_front()
    }

    /// Tells orders, and that no other order came before `last`. To hear of one may take a
    /// millisecond or two, so other tasks have their turn before the next one.
    async fn tell(&self, ordered: Vec<Ordered>, last: Place) {
        {
            let mut pending = self.pending.lock();
            // All blocks were read again: an older list of them says nothing more.
            if ordered.iter().any(|it| matches!(it, Ordered::Blocked(_))) {
                pending.retain(|it| !matches!(it, Ordered::Blocked(_)));
            }
            pending.extend(ordered);
        }
        while let Some(ordered) = self.next() {
            self.follow.hear(0, ordered);
            tokio::task::yield_now().await;
        }
        self.followed.send_replace(Some(last));
    }
}

/// A connection that waits for orders.
struct Following {
    connection: Opened,
    stream: String,
    /// The last order that was read.
    last: Place,
    context: Arc<StoreContext>,
    timeout: Duration,
    /// Whether the server has refused to have a block stated once more.
    may_not_state: bool,
    /// Whether entries were skipped that are no orders.
    has_skipped: bool,
}

// === impl Following ===

impl Following {
    /// Connects, and reads the orders that there are.
    async fn begin(
        store: &RedisStore,
        slot: usize,
        told: &Told<'_>,
        known: &mut Known,
    ) -> Result<Self, Fault> {
        let stream = store.orders_key();
        let connector = store.connector_of(slot)?;
        let context = &store.context;
        connector.limiters().again.pass(&context.clock).await;
        count(&context.counters.connects);
        let opened = connector.open_aside().await;
        let connection = opened.inspect_err(|_| count(&context.counters.connect_errors))?;
        let timeout = store.reply_time(slot) + REPLY_MARGIN;
        let mut following = Self {
            connection,
            stream,
            last: Place::default(),
            context: Arc::clone(context),
            timeout,
            may_not_state: false,
            has_skipped: false,
        };
        let entries = following.all().await?;
        let server = following.server_time().await?;
        told.tell(known.read(entries, &server), following.last).await;
        Ok(following)
    }

    /// Reads the whole stream, by a script that leaves out the fields of an entry which is too long
    /// for an order: XREAD would end the connection with each attempt.
    async fn all(&mut self) -> Result<Vec<Entry>, Fault> {
        let mut all = Vec::new();
        for _ in 0..PAGES_MAX {
            let reply = self.ask(&read_after(&self.stream, self.last), Duration::ZERO).await?;
            let (_, page) = time_and_page(&reply).ok_or_else(|| Fault::malformed(&reply))?;
            let is_last = page.len() < READ_AT_ONCE;
            all.extend(self.taken(page));
            if is_last {
                break;
            }
        }
        Ok(all)
    }

    /// Reports each order as it comes, until the connection ends.
    async fn until_it_ends(&mut self, told: &Told<'_>, known: &mut Known) -> Fault {
        loop {
            if let Err(fault) = self.next(told, known).await {
                return fault;
            }
        }
    }

    /// Waits for orders, and reports them. If the server's clock was set, has the blocks stated
    /// once more, unless another pod does so first.
    async fn next(&mut self, told: &Told<'_>, known: &mut Known) -> Result<(), Fault> {
        let wait = if known.is_apart { jittered(STATED_WITHIN) } else { WAIT_MAX };
        let entries = self.read(wait).await?;
        if entries.is_empty() && known.blocks.is_empty() {
            told.tell(Vec::new(), self.last).await;
            return Ok(());
        }
        let server = self.server_time().await?;
        let is_quiet = entries.is_empty();
        told.tell(known.hear(entries, &server), self.last).await;
        let apart = known.compare(&server);
        let states = known.is_apart && is_quiet;
        known.is_apart = !apart.is_empty() && !states && !self.may_not_state;
        if states {
            self.state(&apart).await?;
        }
        Ok(())
    }

    /// Has each of these blocks stated once more, with the time that is left of it.
    async fn state(&mut self, blocks: &[(Entry, Duration)]) -> Result<(), Fault> {
        for (block, left) in blocks {
            match self.ask(&statement(&self.stream, block, *left), Duration::ZERO).await {
                Ok(_) => {}
                Err(fault) if matches!(fault.kind, Kind::Denied | Kind::Refused) => {
                    self.may_not_state = true;
                    let why = fault.text;
                    tracing::warn!(
                        "the clock of Redis was set, and blocks of keys cannot be stated once \
                         more: {why}; pods that connect from now on may take them for longer or \
                         shorter (the user needs +xadd +xrange +xdel)"
                    );
                    break;
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }

    /// Reads orders after the last one, waiting for one for at most `wait`.
    async fn read(&mut self, wait: Duration) -> Result<Vec<Entry>, Fault> {
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(PAGE);
        if !wait.is_zero() {
            command.arg("BLOCK").arg(millis(wait).max(1));
        }
        command.arg("STREAMS").arg(&self.stream).arg(self.last.to_string());
        let reply = self.ask(&command, wait).await?;
        let page = Page::of_reply(&reply).ok_or_else(|| Fault::malformed(&reply))?;
        Ok(self.taken(page))
    }

    /// The orders of a page, after which the next one is read. Others are counted.
    fn taken(&mut self, page: Page) -> Vec<Entry> {
        let Page { entries, last, skipped } = page;
        self.last = last.map_or(self.last, |last| self.last.max(last));
        self.context.counters.orders_skipped.fetch_add(skipped, Ordering::Relaxed);
        if skipped > 0 && !std::mem::replace(&mut self.has_skipped, true) {
            let stream = &self.stream;
            tracing::warn!(
                "{skipped} entries of the stream {stream} are no orders, or are of a newer version, \
                 and are skipped; ratelease_redis_orders_skipped_total counts them"
            );
        }
        entries
    }

    async fn server_time(&self) -> Result<ServerTime, Fault> {
        let clock = self.context.clock;
        let at = clock.now();
        let reply = self.ask(&redis::cmd("TIME"), Duration::ZERO).await?;
        let unix_ms = unix_ms(&reply).ok_or_else(|| Fault::malformed(&reply))?;
        Ok(ServerTime { unix_ms, at, took: clock.now().since(at) })
    }

    async fn ask(&self, command: &Cmd, wait: Duration) -> Result<Value, Fault> {
        let _limit = self.connection.await_long_reply();
        let reply = tokio::time::timeout(wait + self.timeout, self.connection.ask(command)).await;
        reply.unwrap_or_else(|_| Err(Fault::timed_out()))
    }
}

/// A look at the server's clock.
#[derive(Debug, Clone, Copy)]
struct ServerTime {
    /// Milliseconds since the Unix epoch.
    unix_ms: u64,
    /// The pod's time before the look.
    at: Time,
    took: Duration,
}

// === impl ServerTime ===

impl ServerTime {
    /// The time from now until `ends_ms` by the server's clock.
    fn until(&self, ends_ms: u64) -> Duration {
        Duration::from_millis(ends_ms.saturating_sub(self.unix_ms))
    }
}

// === A pod's knowledge of the stream, whatever connection it has ===

/// The orders of one store that a pod has heard.
#[derive(Debug, Default)]
struct Known {
    /// The last blocks of their keys, also those that have ended, as long as they are in the
    /// stream.
    blocks: Vec<KnownBlock>,
    /// The resets that were read, the newest first.
    resets: VecDeque<(Place, Key)>,
    /// Whether the stream was read before.
    has_read: bool,
    /// Whether the last look found that the server's clock was set.
    is_apart: bool,
}

#[derive(Debug, Clone)]
struct KnownBlock {
    entry: Entry,
    /// When it ends by the pod's clock.
    ends: Time,
}

// === impl Known ===

impl Known {
    /// Learns the whole stream. Returns the orders to report: the resets that are new, and which
    /// keys are blocked. A pod that has just started holds no tokens that a reset of long ago
    /// concerns.
    fn read(&mut self, entries: Vec<Entry>, server: &ServerTime) -> Vec<Ordered> {
        let former = std::mem::take(&mut self.blocks);
        let is_first = !std::mem::replace(&mut self.has_read, true);
        let mut ordered = Vec::new();
        for entry in entries {
            let has_ended = server.until(entry.ends_ms).is_zero();
            match entry.kind {
                EntryKind::Reset => {
                    let reset = self.reset(entry).filter(|_| !is_first || !has_ended);
                    ordered.extend(reset);
                }
                EntryKind::Lift => self.blocks.retain(|block| block.entry.key != entry.key),
                EntryKind::Block => {
                    let is_it = |it: &&KnownBlock| {
                        (it.entry.place, it.entry.key) == (entry.place, entry.key)
                    };
                    let ends = former.iter().find(is_it).map(|known| known.ends);
                    let ends = ends.unwrap_or(server.at + server.until(entry.ends_ms));
                    self.put(KnownBlock { entry, ends });
                }
            }
        }
        let blocked = self.blocks.iter().filter_map(|it| {
            let (key, lasts) = (it.entry.key, it.ends.since(server.at));
            let note = it.entry.note.clone();
            (!lasts.is_zero()).then_some(Blocked { key, lasts, note })
        });
        ordered.push(Ordered::Blocked(blocked.collect()));
        self.is_apart = !self.compare(server).is_empty();
        ordered
    }

    /// Learns new entries of the stream, and returns the orders that are to be reported.
    fn hear(&mut self, entries: Vec<Entry>, server: &ServerTime) -> Vec<Ordered> {
        entries.into_iter().filter_map(|entry| self.hear_one(entry, server)).collect()
    }

    fn hear_one(&mut self, entry: Entry, server: &ServerTime) -> Option<Ordered> {
        let (key, note) = (entry.key, entry.note.clone());
        let action = match entry.kind {
            EntryKind::Reset => return self.reset(entry),
            EntryKind::Lift => {
                self.blocks.retain(|block| block.entry.key != key);
                Action::Lift
            }
            EntryKind::Block => {
                let lasts = server.until(entry.ends_ms);
                let ends = server.at + lasts;
                let before = self.put(KnownBlock { entry, ends });
                let is_statement = |before: KnownBlock| {
                    before.entry.note == note && !is_step(before.ends.max(server.at), ends)
                };
                if before.is_some_and(is_statement) {
                    return None;
                }
                if lasts.is_zero() { Action::Lift } else { Action::Block(lasts) }
            }
        };
        Some(Ordered::Now(key, Order { action, note }))
    }

    /// The order of a reset that was not reported yet.
    fn reset(&mut self, Entry { place, key, note, .. }: Entry) -> Option<Ordered> {
        if self.resets.contains(&(place, key)) {
            return None;
        }
        self.resets.truncate(ORDERS_MAX - 1);
        self.resets.push_front((place, key));
        Some(Ordered::Now(key, Order { action: Action::Reset, note }))
    }

    /// Notes a block in place of the former one of its key, which is returned.
    fn put(&mut self, block: KnownBlock) -> Option<KnownBlock> {
        let at = self.blocks.iter().position(|it| it.entry.key == block.entry.key);
        let former = at.map(|at| self.blocks.remove(at));
        if self.blocks.len() < ORDERS_MAX {
            self.blocks.push(block);
        }
        former
    }

    /// The blocks whose ends in the stream differ from their true ends by a step of the server's
    /// clock, with the time that is left of each. The others follow that clock, so that two clocks
    /// which drift apart are no step.
    fn compare(&mut self, server: &ServerTime) -> Vec<(Entry, Duration)> {
        let mut apart = Vec::new();
        if server.took > LOOK_MAX {
            return apart;
        }
        for block in &mut self.blocks {
            let by_server = server.at + server.until(block.entry.ends_ms);
            let left = block.ends.since(server.at);
            if is_step(by_server, block.ends.max(server.at)) {
                apart.push((block.entry.clone(), left));
            } else if !left.is_zero() {
                block.ends = by_server;
            }
        }
        apart
    }
}

fn is_step(one: Time, other: Time) -> bool {
    one.since(other).max(other.since(one)) > STEP_MIN
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::order::Follower;

    /// A follower that notes how often another task had its turn before each order.
    struct Slow<'a> {
        turns: &'a AtomicUsize,
        seen: Mutex<Vec<usize>>,
    }

    impl Follower for Slow<'_> {
        fn hear(&self, _: usize, _: Ordered) {
            self.seen.lock().push(self.turns.load(Ordering::Relaxed));
        }
    }

    /// The next connection does not read them as new.
    #[tokio::test]
    async fn orders_of_a_batch_that_was_given_up_are_told_with_the_next_one() {
        let turns = AtomicUsize::new(0);
        let slow = Slow { turns: &turns, seen: Mutex::default() };
        let told = Told::new(&slow, watch::Sender::new(None));
        let resets = (1..4).map(|n| Ordered::Now(key(n), Order::new(Action::Reset, "alice")));
        let mut tells = Box::pin(told.tell(resets.collect(), Place(1, 2)));
        assert!(futures_util::poll!(&mut tells).is_pending());
        drop(tells);
        assert_eq!((slow.seen.lock().len(), *told.followed.borrow()), (1, None));
        told.tell(Vec::new(), Place(1, 3)).await;
        assert_eq!((slow.seen.lock().len(), *told.followed.borrow()), (3, Some(Place(1, 3))));
    }

    #[tokio::test]
    async fn orders_of_a_batch_leave_turns_to_other_tasks() {
        let turns = AtomicUsize::new(0);
        let slow = Slow { turns: &turns, seen: Mutex::default() };
        let told = Told::new(&slow, watch::Sender::new(None));
        let reset = || Ordered::Now(key(1), Order::new(Action::Reset, "alice"));
        let others = async {
            loop {
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = others => unreachable!("it never ends"),
            () = told.tell((0..5).map(|_| reset()).collect(), Place(1, 2)) => {}
        }
        assert_eq!(*slow.seen.lock(), [1, 2, 3, 4, 5]);
        assert_eq!(*told.followed.borrow(), Some(Place(1, 2)));
    }
    use crate::order::Note;

    const NOW: Time = Time::from_nanos(1_000_000_000);

    /// The server's time at `NOW`, in milliseconds since the Unix epoch.
    const NOW_MS: u64 = 1_700_000_000_000;

    /// A minute: the time that a block lasts.
    const MINUTE: Duration = Duration::from_secs(60);

    /// A minute in milliseconds.
    const MINUTE_MS: u64 = 60_000;

    fn key(n: u64) -> Key {
        Key::for_test(n)
    }

    /// A block that lasts for a minute by the server's clock, or another order.
    fn entry(number: u64, kind: EntryKind, n: u64) -> Entry {
        let place = Place(NOW_MS, number);
        let note = Note::new("alice", Duration::from_millis(n));
        Entry { place, key: key(n), kind, ends_ms: NOW_MS + MINUTE_MS, note }
    }

    fn block(number: u64, n: u64) -> Entry {
        entry(number, EntryKind::Block, n)
    }

    /// The server's clock when the pod's is `later` than [`NOW`], if it was set by `step_ms`.
    fn server(later: Duration, step_ms: i64) -> ServerTime {
        let unix_ms = NOW_MS.saturating_add_signed(step_ms) + millis(later);
        ServerTime { unix_ms, at: NOW + later, took: Duration::from_millis(1) }
    }

    fn blocked(ordered: &[Ordered]) -> Vec<(Key, Duration)> {
        let [.., Ordered::Blocked(keys)] = ordered else { panic!("{ordered:?}") };
        keys.iter().map(|blocked| (blocked.key, blocked.lasts)).collect()
    }

    fn at_once(step_ms: i64) -> ServerTime {
        server(Duration::ZERO, step_ms)
    }

    #[test]
    fn the_last_order_of_each_key_counts() {
        use EntryKind::{Block, Lift, Reset};
        let mut known = Known::default();
        let entries = [(Block, 1), (Block, 2), (Block, 3), (Lift, 1), (Block, 2), (Reset, 3)];
        let entries = (0..).zip(entries).map(|(at, (kind, n))| entry(at, kind, n)).collect();
        let ordered = known.read(entries, &at_once(0));
        assert_eq!(blocked(&ordered), [(key(3), MINUTE), (key(2), MINUTE)]);
        assert!(matches!(&ordered[0], Ordered::Now(reset, Order { action: Action::Reset, .. })
            if *reset == key(3)));
        let lifted = known.hear(vec![entry(7, Lift, 2)], &at_once(0));
        assert!(matches!(&lifted[..], [Ordered::Now(_, Order { action: Action::Lift, .. })]));
        assert_eq!(known.blocks.len(), 1);
    }

    #[test]
    fn a_reset_is_reported_once_and_an_old_one_not_to_a_new_pod() {
        let reset = |at| entry(at, EntryKind::Reset, 1);
        let ended = server(2 * MINUTE, 0);
        let mut known = Known::default();
        assert_eq!(known.read(vec![reset(1)], &ended).len(), 1, "only the blocks");
        assert_eq!(known.hear(vec![reset(2)], &ended).len(), 1);
        // The stream was lost, and a server whose clock is behind has another one.
        let ordered = known.read(vec![reset(0), reset(2)], &ended);
        assert_eq!(ordered.len(), 2, "{ordered:?}");
    }

    #[test]
    fn a_block_keeps_its_end_when_the_clock_of_the_server_is_set() {
        for step_ms in [-20, 20].map(|minutes| minutes * MINUTE_MS.cast_signed()) {
            let mut known = Known::default();
            known.read(vec![block(1, 1)], &at_once(0));
            // Connected again, and while connected.
            let ordered = known.read(vec![block(1, 1)], &server(MINUTE / 4, step_ms));
            assert_eq!(blocked(&ordered), [(key(1), MINUTE * 3 / 4)], "{step_ms}");
            assert!(known.is_apart);
            let apart = known.compare(&server(MINUTE / 2, step_ms));
            assert_eq!(apart, [(block(1, 1), MINUTE / 2)], "{step_ms}");
            // The statement of another pod changes nothing.
            let ends_ms = NOW_MS.saturating_add_signed(step_ms) + MINUTE_MS;
            let stated = Entry { ends_ms, ..block(2, 1) };
            let heard = known.hear(vec![stated], &server(MINUTE / 2, step_ms));
            assert_eq!(heard, [], "{step_ms}");
            assert_eq!(known.compare(&server(MINUTE / 2, step_ms)), [], "{step_ms}");
        }
    }

    #[test]
    fn a_block_that_has_ended_stays_ended_when_the_clock_is_set_back() {
        let mut known = Known::default();
        known.read(vec![block(1, 1)], &at_once(0));
        let later = server(2 * MINUTE, -20 * MINUTE_MS.cast_signed());
        assert_eq!(known.compare(&later), [(block(1, 1), Duration::ZERO)]);
        assert_eq!(blocked(&known.read(vec![block(1, 1)], &later)), []);
    }

    #[test]
    fn clocks_that_drift_apart_and_slow_looks_are_no_step() {
        let mut known = Known::default();
        known.read(vec![block(1, 1)], &at_once(0));
        for looks in 1..=20_i64 {
            assert_eq!(known.compare(&at_once(looks * 500)), [], "{looks}");
        }
        let slow = ServerTime { took: 2 * LOOK_MAX, ..at_once(-60_000) };
        assert_eq!(known.compare(&slow), []);
        assert_eq!(known.compare(&at_once(-60_000)).len(), 1);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut known = Known::default();
        let most = ORDERS_MAX as u64;
        let entries = (0..2 * most).flat_map(|n| [block(n, n), entry(n, EntryKind::Reset, n)]);
        known.read(entries.collect(), &at_once(0));
        assert_eq!((known.blocks.len(), known.resets.len()), (ORDERS_MAX, ORDERS_MAX));
    }
}
