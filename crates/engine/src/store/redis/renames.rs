//! Counts that move to the name under a new secret, while pods with either secret ask for them.
//!
//! ```text
//! a pod with both secrets: move.lua at the old name ─▶ begin.lua at the new name ─▶ its ask there
//! a pod with the old one:  its ask at the old name ─▶ RENAMED ─▶ the same way, told by the mark
//! ```
//! The two names lie on different masters, so no script can do all of it. The mark that `move.lua`
//! leaves closes the old name first, and keeps the count for the pod that begins the new one. After
//! that, tokens are debited under the new name only, whichever pod asks.
//!
//! A mark has to outlive what the count is under its new name, or a pod with the old secret would
//! begin another count beside it. So it lasts three times as long as a count can without an ask, a
//! lease of the next window included, and every pod that asks under the new name renews it.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_rules::Limit;
use ratelease_rules::key::Key;
use redis::Value;

use super::fault::{Elsewhere, Fault, Kind};
use super::{Call, RedisStore, Trip, millis};
use crate::algorithm::{Script, counting, window_seconds};
use crate::store::{Ask, Store};
use crate::time::Time;

static MOVE: Script = Script::new(include_str!("../move.lua"));
static BEGIN: Script = Script::new(include_str!("../begin.lua"));

/// Keys in each of two generations of what a pod remembers: 6 MiB for both. A key that is forgotten
/// costs its next ask two more trips.
const KEYS_MAX: usize = 1 << 16;

/// The least time that a count is taken to last, of which its mark lasts three times as long. Not
/// longer: a client that sends a new value with each request leaves so many marks.
const LASTS_MIN: Duration = Duration::from_secs(20);

/// The longest time for which a pod does not look at the old name again. A mark may be lost with the
/// data of its Redis, and a pod with the old secret then counts there until the next look.
const SETTLED_MAX: Duration = Duration::from_secs(10);

/// The time after which the last trace of slots has ended: their pods are forgotten sooner.
const SLOTS_LAST: Duration = Duration::from_secs(60);

/// Names that a key's count had may themselves have been left, by one secret after the other.
pub(super) const HOPS_MAX: usize = 3;

/// What a pod knows of keys whose counts move or have moved. Empty while no secret is replaced.
#[derive(Debug, Default)]
pub(super) struct Renames(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    recent: HashMap<Key, Rename>,
    /// What was recent before that was full.
    older: HashMap<Key, Rename>,
    /// Asks of this pod name the keys under the secret before.
    are_moved_here: bool,
}

/// A count that this pod knows under the key which leads here.
#[derive(Debug, Clone, Copy)]
struct Rename {
    way: Way,
    /// Until when the mark need not be renewed; `None` if this pod has not seen it.
    settled_until: Option<Time>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It comes from this key.
    From(Key),
    /// It has gone to this key.
    To(Key),
}

/// Where the next ask for a key goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// To the count of this key.
    Ask(Key),
    /// First the count is moved from the key `from`.
    Move { from: Key },
    /// The pod no longer knows where the count is.
    Unknown,
}

// === impl Renames ===

impl Renames {
    fn next(&self, ask: &Ask, now: Time) -> Next {
        let mut known = self.0.lock();
        known.are_moved_here |= ask.previous.is_some();
        if ask.pool.is_some() {
            return Next::Ask(ask.key); // its tokens were debited, whatever its name
        }
        let found = known.find(ask.key);
        if found.is_none()
            && let Some(from) = ask.previous
        {
            known.note(ask.key, Rename { way: Way::From(from), settled_until: None });
            return Next::Move { from };
        }
        match found {
            Some(it @ Rename { way: Way::To(to), .. }) if it.is_settled(now) => Next::Ask(to),
            Some(it @ Rename { way: Way::From(from), .. }) if !it.is_settled(now) => {
                Next::Move { from }
            }
            None if known.are_moved_here => Next::Unknown,
            _ => Next::Ask(ask.key),
        }
    }

    /// The name that the next ask visits besides that of its own key, as far as it is known.
    pub(super) fn other_name(&self, ask: &Ask, now: Time) -> Option<Key> {
        match self.next(ask, now) {
            Next::Ask(key) => (key != ask.key).then_some(key),
            Next::Move { from } => Some(from),
            Next::Unknown => None,
        }
    }

    /// Notes the way of a count, which is known to be settled until then.
    fn note(&self, key: Key, way: Way, settled_until: Option<Time>) {
        self.0.lock().note(key, Rename { way, settled_until });
    }
}

// === impl Rename ===

impl Rename {
    fn is_settled(self, now: Time) -> bool {
        self.settled_until.is_some_and(|until| now < until)
    }
}

// === impl Known ===

impl Known {
    fn find(&mut self, key: Key) -> Option<Rename> {
        if let Some(rename) = self.recent.get(&key) {
            return Some(*rename);
        }
        let rename = self.older.remove(&key)?;
        self.note(key, rename);
        Some(rename)
    }

    fn note(&mut self, key: Key, rename: Rename) {
        if self.recent.len() >= KEYS_MAX {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key, rename);
    }
}

// === impl RedisStore ===

/// What the mark of a count says.
struct Moved {
    to: Key,
    /// What the count begins with there, and how long that lasts; empty if with nothing.
    value: Vec<u8>,
    lasts_ms: u64,
}

impl RedisStore {
    /// The key whose name the count of `ask` has at present, after it has been moved there if need be.
    pub(super) async fn key_of(&self, ask: &Ask) -> Result<Key, Fault> {
        match self.renames.next(ask, self.context.clock.now()) {
            Next::Ask(key) => Ok(key),
            Next::Unknown => {
                let text = "what its key was under the secret before is no longer known";
                let elsewhere = Some(Elsewhere::Unknown);
                Err(Fault { elsewhere, ..Fault::new(Kind::Refused, text) })
            }
            Next::Move { from } => {
                let until = self.settled_until(ask.limit);
                self.move_here(from, ask).await?;
                self.renames.note(ask.key, Way::From(from), Some(until));
                Ok(ask.key)
            }
        }
    }

    /// Moves the count of the key `from` to that of `ask`, also if it has been moved to another one
    /// before, by pods with another new secret.
    async fn move_here(&self, mut from: Key, ask: &Ask) -> Result<(), Fault> {
        for _ in 0..HOPS_MAX {
            match self.moved(ask, from, Some(ask.key)).await? {
                Some(to) if to != ask.key => from = to,
                _ => return Ok(()),
            }
        }
        Err(Fault::new(Kind::Renamed, "its count has been moved by too many secrets"))
    }

    /// Follows the count of `ask`, which is not at `key`; `None` if there is no mark any more.
    pub(super) async fn followed(&self, ask: &Ask, key: Key) -> Result<Option<Key>, Fault> {
        let until = self.settled_until(ask.limit);
        let Some(to) = self.moved(ask, key, None).await? else { return Ok(None) };
        if ask.previous.is_none() {
            self.renames.note(ask.key, Way::To(to), Some(until));
        }
        Ok(Some(to))
    }

    /// Moves the count of the key `from`, or only follows it, and begins it under its new name.
    async fn moved(&self, ask: &Ask, from: Key, to: Option<Key>) -> Result<Option<Key>, Fault> {
        let words = to.into_iter().flat_map(|to| to.words().map(u64::from));
        let arguments =
            [millis(lasts(ask.limit).saturating_mul(3))].into_iter().chain(words).collect();
        let name = from.in_store(&self.key_prefix);
        let call = Call { is_long: true, ..Call::new(&MOVE, name, arguments) };
        let at = |key| move |fault| self.at_name(ask, key, Elsewhere::Move, fault);
        let left = Trip::new(&call).result(self, moved).await.map_err(at(from))?;
        let is_followed = to.is_none() && ask.previous.is_none();
        let Some(Moved { to, value, lasts_ms }) = left else { return Ok(None) };
        if !value.is_empty() {
            if is_followed {
                // Known even if the count cannot be begun there.
                self.renames.note(ask.key, Way::To(to), None);
            }
            let name = to.in_store(&self.key_prefix);
            let call = Call { text: Some(value), ..Call::new(&BEGIN, name, vec![lasts_ms]) };
            Trip::new(&call).result(self, super::is_number).await.map_err(at(to))?;
        }
        Ok(Some(to))
    }

    /// The fault of a call at the name of `key`, told from one of the shard of `ask`: the lease client
    /// would take it for that shard's.
    pub(super) fn at_name(
        &self,
        ask: &Ask,
        key: Key,
        elsewhere: fn(Key) -> Elsewhere,
        fault: Fault,
    ) -> Fault {
        let is_elsewhere = key != ask.key && self.shard(&Ask { key, ..*ask }) != self.shard(ask);
        let elsewhere = is_elsewhere.then(|| elsewhere(key)).or(fault.elsewhere);
        Fault { elsewhere, ..fault }
    }

    fn settled_until(&self, limit: Limit) -> Time {
        self.context.clock.now() + lasts(limit).min(SETTLED_MAX)
    }
}

/// How long a count lasts without an ask, at least: a bucket until it is full, a window until it has
/// no effect.
fn lasts(limit: Limit) -> Duration {
    let Some(windows) = (counting(limit).windows_kept)(limit) else { return SLOTS_LAST };
    let window = limit.window_max().max(Duration::from_secs(window_seconds(limit)));
    let windows = u32::try_from(windows).unwrap_or(u32::MAX);
    window.saturating_mul(windows).clamp(LASTS_MIN, LASTS_MAX)
}

/// Ten years: no count that is used lasts longer without an ask.
const LASTS_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Reads the reply of `move.lua`.
fn moved(reply: &Value) -> Result<Option<Moved>, Fault> {
    let malformed = || Fault::malformed(reply);
    match reply {
        Value::Nil => Ok(None),
        Value::Array(parts) => match parts.as_slice() {
            [Value::BulkString(to), Value::BulkString(value), Value::Int(lasts)] => {
                let to = std::str::from_utf8(to).ok().and_then(Key::of_hex);
                let lasts_ms = u64::try_from(*lasts).map_err(|_| malformed())?;
                let to = to.ok_or_else(malformed)?;
                Ok(Some(Moved { to, value: value.clone(), lasts_ms }))
            }
            _ => Err(malformed()),
        },
        _ => Err(malformed()),
    }
}
