//! Counts that move to the name under a new secret, while pods with either secret ask for them.
//!
//! ```text
//! a pod with both secrets: move.lua at the old name ─▶ begin.lua at the new name ─▶ its ask there
//! a pod with the old one:  its ask at the old name ─▶ RENAMED ─▶ the mark ─▶ begin.lua, its ask
//! ```
//! The two names lie on different masters, so no script can do all of it. The mark that `move.lua`
//! leaves closes the old name first, and keeps the count for the pod that begins the new one. After
//! that, tokens are debited under the new name only, whichever pod asks.
//!
//! A mark begins one count, once: `begin.lua` keeps the number of the mark in a key of its own
//! beside the count, which may become empty while the mark still keeps its former value.
//!
//! A mark has to outlive the count under its new name, or a pod with the old secret would begin
//! another count beside it. So it lasts three times as long as a count can without an ask, a lease
//! of the next window included, and every pod that asks under the new name renews it.
//!
//! # A secret that comes back
//!
//! The name under it may have a mark that leads to the name which the count leaves now: two marks
//! lead to each other. The later one leads to the count. It is the later one if the count that the
//! other one keeps has begun under its name before. If neither has, because a pod has ended between
//! its two steps, or because the numbers have expired with the counts, the one that keeps a count
//! leads to it. `begin.lua` replaces the other mark, if that is still the same.

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

/// Keys in each of the two generations that a pod remembers: 6 MiB for both. A key that is
/// forgotten costs its next ask two more trips.
const KEYS_MAX: usize = 1 << 16;

/// The least time that a count is taken to last, of which its mark lasts three times as long. Not
/// longer: a client that sends a new value with each request leaves so many marks.
const LASTS_MIN: Duration = Duration::from_secs(20);

/// The longest time for which a pod does not look at the old name again. A mark may be lost with
/// the data of its Redis, and a pod with the old secret then counts there until the next look.
const SETTLED_MAX: Duration = Duration::from_secs(10);

/// The key of the number of the mark that a count has begun with: its name, and this.
const BEGUN: &str = ":begun";

/// The number of no mark.
const NO_MARK: u64 = u64::MAX;

/// The time after which the last trace of slots has ended: their pods are forgotten sooner.
const SLOTS_LAST: Duration = Duration::from_secs(60);

/// The most names that an ask follows a count to. One secret after the other may have been left,
/// and while pods move counts in both directions, a count moves on as often as a pod first asks for
/// it.
pub(super) const HOPS_MAX: usize = 8;

/// A pod's knowledge of keys whose counts move or have moved. Empty while no secret is replaced.
#[derive(Debug, Default)]
pub(super) struct Renames(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    recent: HashMap<Key, Rename>,
    /// The former `recent`, once that was full.
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
    /// The count comes from this key.
    From(Key),
    /// The count has gone to this key.
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

    /// The other name that the next ask visits, besides the name of its own key, as far as it is
    /// known.
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

/// A mark: a count has left this name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    at: Key,
    to: Key,
    /// Different for each mark at one name.
    number: u64,
    /// The count, with which the new name begins; empty for none.
    value: Vec<u8>,
    /// Milliseconds until the count ends.
    lasts_ms: u64,
}

/// The result of a count's beginning.
#[derive(Debug, PartialEq, Eq)]
enum Begin {
    /// The name has a count, or had one that has become empty.
    Done,
    /// The count has left that name too, or did so before.
    Left {
        mark: Mark,
        /// Whether it had begun there before.
        has_begun: bool,
    },
}

// === impl Mark ===

impl Mark {
    /// Whether this mark leads to the count and not `other`, which leads back, if no count has
    /// begun with either: then one that keeps a count, and else the one at the lesser name.
    fn leads_before(&self, other: &Self) -> bool {
        let order = |mark: &Self| (mark.value.is_empty(), mark.at.words());
        order(self) < order(other)
    }
}

impl RedisStore {
    /// The key whose name the count of `ask` has at present, after it has been moved there if need
    /// be.
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
            match self.mark(ask, from, Some(ask.key)).await? {
                Some(mark) if mark.to != ask.key => {
                    self.begin(ask, &mark).await?;
                    from = mark.to;
                }
                Some(mark) => {
                    self.begin(ask, &mark).await?;
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
        Err(Fault::new(Kind::Renamed, "its count has been moved by too many secrets"))
    }

    /// Follows the count of `ask`, which is not at `key`, and was not at the key `before`; `None`
    /// if there is no mark any more.
    pub(super) async fn followed(
        &self,
        ask: &Ask,
        key: Key,
        before: Option<Key>,
    ) -> Result<Option<Key>, Fault> {
        let until = self.settled_until(ask.limit);
        let Some(mark) = self.mark(ask, key, None).await? else { return Ok(None) };
        let is_own = key == ask.key;
        if is_own {
            // Known even if the count cannot be begun there.
            self.renames.note(key, Way::To(mark.to), None);
        }
        let leads_back = [before, ask.previous].contains(&Some(mark.to));
        let to = if leads_back {
            self.lead_back(ask, mark).await?
        } else {
            self.begin(ask, &mark).await?
        };
        if is_own && to != key {
            self.renames.note(key, Way::To(to), Some(until));
        } else if let (true, Some(from)) = (is_own, ask.previous) {
            self.renames.note(key, Way::From(from), Some(until));
        }
        Ok(Some(to))
    }

    /// Begins the count of a mark under its new name, if the mark keeps one. Returns the key where
    /// the count is then, as far as the mark says.
    async fn begin(&self, ask: &Ask, mark: &Mark) -> Result<Key, Fault> {
        if mark.value.is_empty() {
            return Ok(mark.to);
        }
        match self.begin_once(ask, mark, NO_MARK).await? {
            Begin::Left { mark: other, .. } if other.to == mark.at => {
                self.lead_back(ask, mark.clone()).await
            }
            _ => Ok(mark.to),
        }
    }

    /// Follows a mark that leads to a name from which another one may lead back. Then the earlier
    /// of the two is replaced by the count. Returns the key where that is.
    async fn lead_back(&self, ask: &Ask, mut mark: Mark) -> Result<Key, Fault> {
        for _ in 0..HOPS_MAX {
            let (other, is_later) = match self.begin_once(ask, &mark, NO_MARK).await? {
                Begin::Left { mark: other, has_begun } if other.to == mark.at => (other, has_begun),
                _ => return Ok(mark.to),
            };
            let replaced = if is_later { mark.number } else { NO_MARK };
            let is_later = match self.begin_once(ask, &other, replaced).await? {
                Begin::Left { mark: now, has_begun } if now.to == other.at => {
                    mark = now;
                    has_begun
                }
                _ => return Ok(other.to),
            };
            let (first, second) = match is_later || mark.leads_before(&other) {
                true => (&mark, &other),
                false => (&other, &mark),
            };
            if self.begin_once(ask, first, second.number).await? == Begin::Done {
                return Ok(first.to);
            }
        }
        Err(Fault::new(Kind::Renamed, "the count moves back and forth between two names"))
    }

    /// Reads the mark at `from`, and makes it if there is none, where the count moves `to` another
    /// key.
    async fn mark(&self, ask: &Ask, from: Key, to: Option<Key>) -> Result<Option<Mark>, Fault> {
        let words = to.into_iter().flat_map(|to| to.words().map(u64::from));
        let arguments =
            [millis(lasts(ask.limit).saturating_mul(3))].into_iter().chain(words).collect();
        let name = from.in_store(&self.key_prefix);
        let call = Call { is_long: true, ..Call::new(&MOVE, name, arguments) };
        let read = |reply: &Value| match reply {
            Value::Nil => Ok(None),
            _ => mark(reply, from).map(|(mark, _)| Some(mark)),
        };
        let at = |fault| self.at_name(ask, from, Elsewhere::Move, fault);
        Trip::new(&call).result(self, read).await.map_err(at)
    }

    /// Begins the count of a mark under its new name. There it replaces the mark of this number.
    async fn begin_once(&self, ask: &Ask, mark: &Mark, replaces: u64) -> Result<Begin, Fault> {
        let Mark { to, number, ref value, lasts_ms, .. } = *mark;
        let name = to.in_store(&self.key_prefix);
        let call = Call {
            second_key: Some(format!("{name}{BEGUN}")),
            text: Some(value.clone()),
            is_long: true,
            ..Call::new(&BEGIN, name, vec![lasts_ms, number, replaces])
        };
        let read = |reply: &Value| match reply {
            Value::Int(_) => Ok(Begin::Done),
            _ => self::mark(reply, to).map(|(mark, has_begun)| Begin::Left { mark, has_begun }),
        };
        let at = |fault| self.at_name(ask, to, Elsewhere::Move, fault);
        Trip::new(&call).result(self, read).await.map_err(at)
    }

    /// The fault of a call at the name of `key`, told from one of the shard of `ask`: the lease
    /// client would take it for that shard's.
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

/// How long a count lasts without an ask, at least: a bucket until it is full, a window until it
/// has no effect.
fn lasts(limit: Limit) -> Duration {
    let Some(windows) = (counting(limit).windows_kept)(limit) else { return SLOTS_LAST };
    let window = limit.window_max().max(Duration::from_secs(window_seconds(limit)));
    let windows = u32::try_from(windows).unwrap_or(u32::MAX);
    window.saturating_mul(windows).clamp(LASTS_MIN, LASTS_MAX)
}

/// Ten years: no count that is used lasts longer without an ask.
const LASTS_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Reads a mark at the name of `at` from a reply of `move.lua`, or of `begin.lua`, which also says
/// whether the count had begun there before.
fn mark(reply: &Value, at: Key) -> Result<(Mark, bool), Fault> {
    let malformed = || Fault::malformed(reply);
    let Value::Array(parts) = reply else { return Err(malformed()) };
    let (parts, has_begun) = match parts.as_slice() {
        [parts @ .., Value::Int(has_begun)] if parts.len() == 4 => (parts, *has_begun == 1),
        parts => (parts, false),
    };
    let [
        Value::BulkString(to),
        Value::BulkString(number),
        Value::BulkString(value),
        Value::Int(lasts),
    ] = parts
    else {
        return Err(malformed());
    };
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| malformed());
    let to = Key::of_hex(text(to)?).ok_or_else(malformed)?;
    let number = text(number)?.parse().map_err(|_| malformed())?;
    let lasts_ms = u64::try_from(*lasts).map_err(|_| malformed())?;
    Ok((Mark { at, to, number, value: value.clone(), lasts_ms }, has_begun))
}
