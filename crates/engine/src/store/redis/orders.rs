//! Orders for single keys: how they are given, and how they are written in the stream.
//!
//! ```text
//! ratectl ─▶ order.lua ─▶ stream rl:orders ─▶ following: XREAD BLOCK of each pod
//! ```

use std::time::Duration;

use ratelease_rules::DEFAULT_STORE;
use ratelease_rules::key::Key;
use redis::{Cmd, Value};

use super::fault::{Fault, Kind};
use super::renames::HOPS_MAX;
use super::{Call, RedisStore, Trip, millis, text};
use crate::algorithm::Script;
use crate::order::{
    Action, BLOCK_MAX, Blocked, Note, ORDERS_MAX, Order, Place, RESET_LASTS, StoreOrders,
};
use crate::store::{Ask, StoreError};

static ORDER: Script = Script::new(include_str!("../order.lua"));
static READ: Script = Script::new(include_str!("../orders.lua"));
static CLEAR: Script = Script::new(include_str!("../clear.lua"));

/// Entries that are read at once: far more than there are orders, and 1.2 MB at most.
pub(super) const READ_AT_ONCE: u64 = 4 * ORDERS_MAX as u64;

/// No order lasts half as long: an entry that says so is none. As in `order.lua`.
const LASTS_MAX: Duration = BLOCK_MAX.saturating_mul(2);

/// How long the stream is kept after its last order has ended. The server's clock may be set
/// forward by less without the loss of a block, and back without an order that pods take for an old
/// one.
const KEPT: Duration = Duration::from_secs(2 * 3_600);

/// The rights that orders need, beside the rights of every connection.
const RIGHTS: &str = "+xadd +xrange +xdel +del +pexpireat +time";

/// An entry of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) key: Key,
    pub(super) kind: EntryKind,
    /// When the order ends: the server's time in milliseconds since the Unix epoch.
    pub(super) ends_ms: u64,
    pub(super) note: Note,
}

/// Entries of the stream, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) entries: Vec<Entry>,
    /// The place of the last entry; `None` if there is none.
    pub(super) last: Option<Place>,
    /// Number of entries that are no orders.
    pub(super) skipped: u64,
}

/// The action that an entry orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    Reset,
    Block,
    Lift,
}

// === impl RedisStore ===

impl RedisStore {
    pub(super) fn orders_key(&self) -> String {
        format!("{}rl:orders", self.key_prefix)
    }

    /// Gives an order to all pods.
    pub(super) async fn give_order(&self, key: Key, order: &Order) -> Result<(), StoreError> {
        let arguments = arguments(key, order.action).to_vec();
        let by = order.note.by.as_bytes().to_vec();
        let call = Call { text: Some(by), ..Call::new(&ORDER, self.orders_key(), arguments) };
        let given = Trip::new(&call).result(self, placed).await;
        given.map_err(|fault| self.with_rights(fault).into())
    }

    /// Reads all orders.
    pub(super) async fn orders(&self) -> Result<StoreOrders, StoreError> {
        let arguments = vec![0, 0, READ_AT_ONCE];
        let call = Call { is_long: true, ..Call::new(&READ, self.orders_key(), arguments) };
        let read = |reply: &Value| orders(reply).ok_or_else(|| Fault::malformed(reply));
        let read = Trip::new(&call).result(self, read).await;
        read.map_err(|fault| self.with_rights(fault).into())
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
}

/// Reads the reply of `clear.lua`: the key to which the count has moved, if it has.
fn cleared(reply: &Value) -> Result<Option<Key>, Fault> {
    match reply {
        Value::Int(_) => Ok(None),
        _ => text(reply).and_then(Key::of_hex).map(Some).ok_or_else(|| Fault::malformed(reply)),
    }
}

/// The numbers that `order.lua` takes.
fn arguments(key: Key, action: Action) -> [u64; 8] {
    let (kind, lasts) = match action {
        Action::Reset => (0, RESET_LASTS),
        Action::Block(lasts) => (1, lasts),
        Action::Lift => (2, RESET_LASTS),
    };
    let [one, two, three, four] = key.words().map(u64::from);
    [one, two, three, four, kind, millis(lasts), ORDERS_MAX as u64, millis(KEPT)]
}

/// The command that reads the entries after a place.
pub(super) fn read_after(stream: &str, Place(millis, number): Place) -> Cmd {
    let mut command = redis::cmd("EVAL");
    let after = [millis, number.saturating_add(1), READ_AT_ONCE];
    command.arg(READ.text).arg(1).arg(stream).arg(&after);
    command
}

/// Reads the reply of [`READ`]: the server's time, in milliseconds since the Unix epoch, and the
/// entries.
pub(super) fn time_and_page(reply: &Value) -> Option<(u64, Page)> {
    let Value::Array(parts) = reply else { return None };
    let [time, Value::Array(entries)] = parts.as_slice() else { return None };
    Some((unix_ms(time)?, Page::of(entries)?))
}

fn orders(reply: &Value) -> Option<StoreOrders> {
    let (now_ms, Page { entries, last, .. }) = time_and_page(reply)?;
    let last = last.unwrap_or_default();
    let mut blocked: Vec<Blocked> = Vec::new();
    for Entry { key, kind, ends_ms, note, .. } in entries {
        if kind != EntryKind::Reset {
            blocked.retain(|block| block.key != key);
        }
        let lasts = Duration::from_millis(ends_ms.saturating_sub(now_ms));
        if kind == EntryKind::Block && !lasts.is_zero() {
            blocked.push(Blocked { key, lasts, note });
        }
    }
    Some(StoreOrders { store: DEFAULT_STORE.to_owned(), last, blocked })
}

/// Reads the reply to TIME, as milliseconds since the Unix epoch.
pub(super) fn unix_ms(reply: &Value) -> Option<u64> {
    let Value::Array(parts) = reply else { return None };
    let [seconds, micros] = parts.as_slice() else { return None };
    let number = |value: &Value| text(value)?.parse::<u64>().ok();
    Some(number(seconds)?.checked_mul(1_000)?.saturating_add(number(micros)? / 1_000))
}

/// Reads the reply of `order.lua` to a new order.
fn placed(reply: &Value) -> Result<(), Fault> {
    place(reply).map(drop).ok_or_else(|| Fault::malformed(reply))
}

/// The command that states a block once more, which lasts so long from now on, if its entry is
/// still there.
pub(super) fn statement(stream: &str, block: &Entry, lasts: Duration) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(ORDER.text).arg(1).arg(stream).arg(&arguments(block.key, Action::Block(lasts)));
    command.arg(&*block.note.by).arg(block.place.to_string()).arg(millis(block.note.given));
    command
}

fn place(value: &Value) -> Option<Place> {
    text(value).and_then(Place::parse)
}

// === impl Page ===

impl Page {
    /// Reads the reply to XREAD, which is nil if there is nothing.
    pub(super) fn of_reply(reply: &Value) -> Option<Self> {
        let streams = match reply {
            Value::Nil => return Some(Self::default()),
            Value::Array(streams) => streams,
            _ => return None,
        };
        let [Value::Array(stream)] = streams.as_slice() else { return None };
        let [_, Value::Array(entries)] = stream.as_slice() else { return None };
        Self::of(entries)
    }

    fn of(all: &[Value]) -> Option<Self> {
        let mut page = Self::default();
        for entry in all {
            let Value::Array(parts) = entry else { return None };
            let [place, fields] = parts.as_slice() else { return None };
            let place = self::place(place)?;
            page.last = page.last.max(Some(place));
            match Entry::read(place, fields) {
                Some(entry) => page.entries.push(entry),
                None => page.skipped += 1,
            }
        }
        Some(page)
    }

    /// Number of entries, also of those that are no orders.
    pub(super) fn len(&self) -> u64 {
        self.entries.len() as u64 + self.skipped
    }
}

// === impl Entry ===

impl Entry {
    /// Reads an order; `None` if the entry is none, or one of a kind that a newer version knows.
    fn read(place: Place, fields: &Value) -> Option<Self> {
        let Value::Array(fields) = fields else { return None };
        let [_, order] = fields.as_slice() else { return None };
        let mut words = text(order)?.splitn(5, ' ');
        let key = Key::of_hex(words.next()?)?;
        let kind = match words.next()? {
            "reset" => EntryKind::Reset,
            "block" => EntryKind::Block,
            "lift" => EntryKind::Lift,
            _ => return None,
        };
        let ends_ms: u64 = words.next()?.parse().ok()?;
        if ends_ms.saturating_sub(place.0) > millis(LASTS_MAX) {
            return None;
        }
        // The first versions that gave orders did not write when and by whom.
        let given = words.next().map_or(Some(place.0), |given| given.parse().ok())?;
        let note = Note::new(words.next().unwrap_or_default(), Duration::from_millis(given));
        Some(Self { place, key, kind, ends_ms, note })
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
    fn entries_of_the_stream_are_read_and_others_are_skipped() {
        use EntryKind::{Block, Lift, Reset};
        let key = Key::for_test(1);
        let hex: String = key.words().iter().map(|word| format!("{word:08x}")).collect();
        let place = Place(1_700_000_000_000, 3);
        let entry = |kind, ends_ms, by: &str, given_ms| {
            let note = Note::new(by, Duration::from_millis(given_ms));
            Entry { place, key, kind, ends_ms, note }
        };
        for (text, expected) in [
            (format!("{hex} reset 61000 1000 "), Some(entry(Reset, 61_000, "", 1_000))),
            (
                format!("{hex} block 1500 7 alice of ops"),
                Some(entry(Block, 1_500, "alice of ops", 7)),
            ),
            (format!("{hex} lift 61000 1 b"), Some(entry(Lift, 61_000, "b", 1))),
            (format!("{hex} block 1500"), Some(entry(Block, 1_500, "", place.0))),
            (format!("{hex} block 1500 x y"), None),
            (format!("{hex} burn 61000 1 b"), None),
            (format!("{hex} block"), None),
            (format!("{hex} block {} 1 b", place.0 + millis(LASTS_MAX) + 1), None),
            (format!("{hex} block {} 1 b", u64::MAX), None),
            ("00 block 1500".to_owned(), None),
            (String::new(), None),
        ] {
            let read = Page::of_reply(&reply(&text)).expect("entries with their places");
            assert_eq!((read.last, read.len()), (Some(place), 1), "{text}");
            assert_eq!(read.entries, Vec::from_iter(expected), "{text}");
        }
        assert_eq!(Page::of_reply(&Value::Nil), Some(Page::default()));
        assert_eq!(Page::of_reply(&Value::Okay), None);
    }
}
