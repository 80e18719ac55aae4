//! Orders for single keys: how they are given, and how a pod follows them.
//!
//! ```text
//! ratectl ─▶ order.lua ─▶ stream rl:orders ─▶ XREAD BLOCK of each pod, on a connection of its own
//! ```
//! A stream keeps what a pod misses while it is not connected. Whenever a pod connects, it reads
//! all of the stream first, and so learns which keys are blocked.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ratelease_rules::key::Key;
use redis::{Cmd, Value};

use super::cluster::slot_of;
use super::connection::{Connection, Connector, Opened};
use super::context::count;
use super::fault::{Fault, Kind, LogOnce};
use super::renames::HOPS_MAX;
use super::settings::RedisKind;
use super::{Call, RedisStore, Servers, Trip, is_number, millis, text};
use crate::algorithm::Script;
use crate::backoff::Backoff;
use crate::order::{Follow, ORDERS_MAX, Order, Ordered, RESET_LASTS};
use crate::store::{Ask, StoreError};
use crate::time::{Clock, Time};

static ORDER: Script = Script::new(include_str!("../order.lua"));
static CLEAR: Script = Script::new(include_str!("../clear.lua"));

/// How long the server keeps an XREAD that finds nothing. So often a server that hangs is noticed
/// by a pod that asks it nothing else: before a replica takes over, which takes longer.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Time for the way of a reply, beside the time that the server is known to need.
const REPLY_MARGIN: Duration = Duration::from_millis(500);

/// Orders in one reply: each has five values, and a reply at most 1024.
const PAGE: usize = 100;

/// Waits between two attempts to follow, unless the store's own connection is replaced meanwhile.
/// The last one is long, since a server or a user that does not know streams refuses each time.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// The longest of these waits for a server that does not answer, which may do so again before the
/// store's own connection has found out.
const RETRY_AWAY: Duration = Duration::from_secs(1);

/// How often the slot map is read again while the server of the stream does not answer: a replica
/// may have taken over.
const LOOK_AROUND_EVERY: Duration = Duration::from_millis(200);

/// What a user that gives orders may do beside what a pod may.
const RIGHTS: &str = "+xadd +xrange +xlen +xdel +del +pexpireat";

/// The place of an entry in the stream: milliseconds, and a number within them.
type Place = (u64, u64);

// === impl RedisStore ===

impl RedisStore {
    fn orders_key(&self) -> String {
        format!("{}rl:orders", self.key_prefix)
    }

    /// Gives an order to all pods.
    pub(super) async fn give_order(&self, key: Key, order: Order) -> Result<(), StoreError> {
        let (kind, lasts) = match order {
            Order::Reset => (0, RESET_LASTS),
            Order::Block(lasts) => (1, lasts),
            Order::Lift => (2, RESET_LASTS),
        };
        let words = key.words().map(u64::from);
        let arguments = [&words[..], &[kind, millis(lasts), ORDERS_MAX as u64]].concat();
        let call = Call::new(&ORDER, self.orders_key(), arguments);
        let given = Trip::new(&call).result(self, is_number).await;
        given.map_err(|fault| self.with_rights(fault).into())
    }

    /// The fault of an order, with the rights of orders if the user lacks one.
    fn with_rights(&self, fault: Fault) -> Fault {
        if !fault.lacks_a_right() {
            return fault;
        }
        let user = self.context.settings.login.auth.username.as_deref().unwrap_or("default");
        let (prefix, why) = (&self.key_prefix, fault.text);
        let text = format!(
            "the user {user} lacks a right; on each node: ACL SETUSER {user} {RIGHTS} \
             ~{prefix}rl:*; {why}"
        );
        Fault::new(Kind::Denied, text)
    }

    /// Deletes the count that `ask` names, under each of its names.
    pub(super) async fn clear_count(&self, ask: &Ask) -> Result<(), StoreError> {
        self.clear_names(ask).await.map_err(|fault| self.with_rights(fault).into())
    }

    async fn clear_names(&self, ask: &Ask) -> Result<(), Fault> {
        // So that the name before, if there is one, has a mark from now on.
        self.key_of(ask).await?;
        let mut next = Some(ask.previous.unwrap_or(ask.key));
        for _ in 0..HOPS_MAX {
            let Some(key) = next.take() else { break };
            let name = Ask { key, ..*ask }.counter().in_store(&self.key_prefix);
            let call = Call::new(&CLEAR, name, Vec::new());
            next = Trip::new(&call).result(self, cleared).await?;
            if next.is_none() && ask.pool.is_some() && key != ask.key {
                next = Some(ask.key); // a pool leaves no mark
            }
        }
        Ok(())
    }

    /// Follows the orders; never returns.
    pub(super) async fn follow(&self, follow: Follow<'_>) {
        let slot = slot_of(self.orders_key().as_bytes());
        let mut outage = LogOnce::default();
        let mut retry = Backoff::new(RETRY_FIRST, RETRY_LAST);
        let mut last = Place::default();
        let mut is_away = false;
        loop {
            let link = self.link(slot).await;
            let begun = Following::begin(self, slot, follow, &mut last);
            let why = match self.unless_renewed(slot, &link, is_away, begun).await {
                Ok(mut following) => {
                    retry.reset();
                    if outage.ends() {
                        tracing::info!("orders for single keys are followed again");
                    }
                    let ended = async { Err(following.until_it_ends(follow, &mut last).await) };
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
                     this pod, and a block does not reach it (Redis 5 and its user need +xread)"
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

/// A connection that waits for orders.
struct Following {
    connection: Opened,
    key: String,
    /// The server's time in milliseconds since the Unix epoch, when the pod's clock was at the
    /// second.
    server_ms: u64,
    at: Time,
    clock: Clock,
    timeout: Duration,
}

// === impl Following ===

impl Following {
    /// Connects, and reads the orders that there are: those after `last` are new.
    async fn begin(
        store: &RedisStore,
        slot: usize,
        follow: Follow<'_>,
        last: &mut Place,
    ) -> Result<Self, Fault> {
        let key = store.orders_key();
        let connector = store.connector_of(slot)?;
        let context = &store.context;
        connector.limiters().again.pass(&context.clock).await;
        count(&context.counters.connects);
        let opened = connector.open_aside().await;
        let connection = opened.inspect_err(|_| count(&context.counters.connect_errors))?;
        let timeout = store.reply_time(slot) + REPLY_MARGIN;
        let (clock, at) = (context.clock, context.clock.now());
        let mut following = Self { connection, key, server_ms: 0, at, clock, timeout };
        following.server_ms = following.time().await?;
        let blocked = following.all(follow, last).await?;
        follow(0, Ordered::Blocked(blocked));
        Ok(following)
    }

    /// Reads the whole stream: reports the resets that are new, and returns the keys that are
    /// blocked.
    async fn all(
        &self,
        follow: Follow<'_>,
        last: &mut Place,
    ) -> Result<Vec<(Key, Duration)>, Fault> {
        let mut blocked = Vec::new();
        let mut at = Place::default();
        for _ in 0..ORDERS_MAX.div_ceil(PAGE) + 1 {
            let entries = self.read(at, Duration::ZERO).await?;
            for (place, key, order) in &entries {
                if *order == Order::Reset && *place > *last {
                    follow(0, Ordered::Now(*key, *order));
                }
                note_blocked(&mut blocked, *key, *order);
                at = at.max(*place);
            }
            if entries.len() < PAGE {
                break;
            }
        }
        *last = at.max(*last);
        blocked.truncate(ORDERS_MAX);
        Ok(blocked)
    }

    /// Reports each order as it comes, until the connection ends.
    async fn until_it_ends(&mut self, follow: Follow<'_>, last: &mut Place) -> Fault {
        loop {
            match self.read(*last, WAIT_MAX).await {
                Ok(entries) => {
                    for (place, key, order) in entries {
                        follow(0, Ordered::Now(key, order));
                        *last = place.max(*last);
                    }
                }
                Err(fault) => return fault,
            }
        }
    }

    /// Reads orders after `after`, waiting for one for at most `wait`.
    async fn read(&self, after: Place, wait: Duration) -> Result<Vec<(Place, Key, Order)>, Fault> {
        let mut command = redis::cmd("XREAD");
        command.arg("COUNT").arg(PAGE);
        if !wait.is_zero() {
            command.arg("BLOCK").arg(millis(wait));
        }
        command.arg("STREAMS").arg(&self.key).arg(format!("{}-{}", after.0, after.1));
        let reply = self.ask(&command, wait).await?;
        let now_ms = self.server_ms.saturating_add(millis(self.clock.now().since(self.at)));
        orders(&reply, now_ms).ok_or_else(|| Fault::malformed(&reply))
    }

    /// The server's time, in milliseconds since the Unix epoch.
    async fn time(&self) -> Result<u64, Fault> {
        let reply = self.ask(&redis::cmd("TIME"), Duration::ZERO).await?;
        let part = |value: &Value| text(value)?.parse::<u64>().ok();
        let millis = match &reply {
            Value::Array(parts) => match parts.as_slice() {
                [seconds, micros] => part(seconds)
                    .and_then(|it| it.checked_mul(1000))
                    .zip(part(micros))
                    .map(|(millis, micros)| millis.saturating_add(micros / 1000)),
                _ => None,
            },
            _ => None,
        };
        millis.ok_or_else(|| Fault::malformed(&reply))
    }

    async fn ask(&self, command: &Cmd, wait: Duration) -> Result<Value, Fault> {
        let reply = tokio::time::timeout(wait + self.timeout, self.connection.ask(command)).await;
        reply.unwrap_or_else(|_| Err(Fault::timed_out()))
    }
}

/// Changes the keys that are blocked by an order that came after theirs: between the reads of two
/// pages a block may be lifted, or be ordered again.
fn note_blocked(blocked: &mut Vec<(Key, Duration)>, key: Key, order: Order) {
    if order != Order::Reset {
        blocked.retain(|(other, _)| *other != key);
    }
    if let Order::Block(lasts) = order {
        blocked.push((key, lasts));
    }
}

/// Reads the reply to XREAD, which is nil if there is nothing. Blocks that have ended are lifted.
fn orders(reply: &Value, now_ms: u64) -> Option<Vec<(Place, Key, Order)>> {
    let streams = match reply {
        Value::Nil => return Some(Vec::new()),
        Value::Array(streams) => streams,
        _ => return None,
    };
    let [Value::Array(stream)] = streams.as_slice() else { return None };
    let [_, Value::Array(entries)] = stream.as_slice() else { return None };
    entries.iter().map(|entry| order(entry, now_ms)).collect()
}

fn order(entry: &Value, now_ms: u64) -> Option<(Place, Key, Order)> {
    let Value::Array(parts) = entry else { return None };
    let [place, Value::Array(fields)] = parts.as_slice() else { return None };
    let (millis, number) = text(place)?.split_once('-')?;
    let place = (millis.parse().ok()?, number.parse().ok()?);
    let [_, order] = fields.as_slice() else { return None };
    let mut words = text(order)?.split(' ');
    let key = Key::of_hex(words.next()?)?;
    let kind = words.next()?;
    let left_ms = words.next()?.parse::<u64>().ok()?.saturating_sub(now_ms);
    let order = match kind {
        "reset" => Order::Reset,
        "block" if left_ms > 0 => Order::Block(Duration::from_millis(left_ms)),
        "block" | "lift" => Order::Lift,
        _ => return None,
    };
    Some((place, key, order))
}

/// Reads the reply of `clear.lua`: the key to which the count has moved, if it has.
fn cleared(reply: &Value) -> Result<Option<Key>, Fault> {
    match reply {
        Value::Int(_) => Ok(None),
        _ => text(reply).and_then(Key::of_hex).map(Some).ok_or_else(|| Fault::malformed(reply)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn reply(order: &str) -> Value {
        let entry = Value::Array(vec![
            bulk("1700000000000-3"),
            Value::Array(vec![bulk("order"), bulk(order)]),
        ]);
        Value::Array(vec![Value::Array(vec![bulk("rl:orders"), Value::Array(vec![entry])])])
    }

    #[test]
    fn an_order_is_read_with_the_time_that_is_left_and_nothing_else_is() {
        let key = Key::for_test(1);
        let hex: String = key.words().iter().map(|word| format!("{word:08x}")).collect();
        let read = |text: &str| orders(&reply(text), 1_000).map(|read| read[0]);
        let place = (1_700_000_000_000, 3);
        for (text, expected) in [
            (format!("{hex} reset 61000"), Some(Order::Reset)),
            (format!("{hex} block 1500"), Some(Order::Block(Duration::from_millis(500)))),
            (format!("{hex} block 1000"), Some(Order::Lift)),
            (format!("{hex} lift 61000"), Some(Order::Lift)),
            (format!("{hex} burn 61000"), None),
            (format!("{hex} block"), None),
            ("00 block 1500".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(read(&text), expected.map(|order| (place, key, order)), "{text}");
        }
        assert_eq!(orders(&Value::Nil, 0), Some(Vec::new()));
        assert_eq!(orders(&Value::Okay, 0), None);
    }

    #[test]
    fn a_block_that_is_lifted_or_ordered_again_while_others_are_read_counts_no_more() {
        let (long, short) = (Duration::from_secs(60), Duration::from_secs(1));
        let [one, two, three] = [1, 2, 3].map(Key::for_test);
        let mut blocked = Vec::new();
        for (key, order) in [
            (one, Order::Block(long)),
            (two, Order::Block(long)),
            (three, Order::Block(long)),
            (one, Order::Lift),
            (two, Order::Block(short)),
            (three, Order::Reset),
        ] {
            note_blocked(&mut blocked, key, order);
        }
        assert_eq!(blocked, [(three, long), (two, short)]);
    }
}
