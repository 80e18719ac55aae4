//! A log of the time of every token leased: in any period of a window's length at most the limit is
//! leased, exactly.

use std::collections::VecDeque;
use std::time::Duration;

use ratelease_rules::Limit;

use super::{Counting, MICROS_PER_SECOND, Script, Steps, Token, arguments, window_us};
use crate::ask::{Ask, Grant, Return};

pub(super) static COUNTING: Counting = Counting {
    steps: Steps {
        step: |state, now_unix_us, ask| {
            let mut log = match state {
                Some(super::State::SlidingLog(log)) => log,
                _ => Box::default(),
            };
            let grant = step(&mut log, now_unix_us, ask);
            (super::State::SlidingLog(log), grant)
        },
        script: &SCRIPT,
        arguments: |ask, _| arguments(ask, &[limit_of(ask.limit), window_us(ask.limit)]),
        reply,
    },
    token: Token::Steady,
    is_windowed: false,
    store_time_us: |_, _| None, // its epoch may be corrected to the time of the newest entry
    windows_kept: |_| Some(1),
};

static SCRIPT: Script = Script::new(include_str!("sliding_log.lua"));

/// The store's state of one key: when each token was leased, in microseconds since the Unix epoch,
/// oldest first. At most `ENTRIES_MAX` entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    times: VecDeque<u64>,
}

/// The result of an ask; the script replies with the same fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// Tokens leased.
    pub tokens: u64,
    /// The store's time, in microseconds since the Unix epoch.
    pub now_unix_us: u64,
    /// The time that the tokens are logged under: the present, or the time of the newest entry if
    /// that is later, since a key's time does not run back.
    pub at: u64,
    /// Number of entries after the step.
    pub entries: u64,
    /// The newest entry; 0 if there is none.
    pub newest: u64,
    /// The entry that must leave before one more token is available; 0 if one is available.
    pub leaving: u64,
}

/// The largest number of entries of one key. Rules refuse a larger limit; if one gets here, it is
/// cut to this.
const ENTRIES_MAX: u64 = 10_000;

/// Applies `ask` at `now_unix_us` (microseconds since the epoch), as the contract of
/// [`Store`](crate::store::Store) says. Defined for every input: nothing overflows, nothing panics.
pub fn step(state: &mut State, now_unix_us: u64, ask: &Ask) -> Grant {
    let terms = ask.limit;
    let limit = limit_of(terms);
    state.forget(now_unix_us, window_us(terms));
    let at = state.newest().map_or(now_unix_us, |newest| newest.max(now_unix_us));
    if let Some(back) = ask.back {
        state.credit(back);
    }
    let left = limit.saturating_sub(state.entries());
    let (tokens, spent) = if ask.need <= left {
        let tokens = ask.want.max(ask.need).min(left);
        (tokens, tokens)
    } else {
        (0, if ask.charge_denied { left } else { 0 })
    };
    state.times.extend((0..spent).map(|_| at));
    let logged = Logged {
        tokens,
        now_unix_us,
        at,
        entries: state.entries(),
        newest: state.newest().unwrap_or(0),
        leaving: state.leaving(limit),
    };
    grant(ask, &logged)
}

/// The reply to the pod for the step `logged`.
pub fn grant(ask: &Ask, logged: &Logged) -> Grant {
    let terms = ask.limit;
    let limit = limit_of(terms);
    let window = Duration::from_micros(window_us(terms));
    let leaves_after = |time: u64| {
        let leaves = time.saturating_add(window_us(terms));
        Duration::from_micros(leaves.saturating_sub(logged.now_unix_us).max(1))
    };
    let left = limit.saturating_sub(logged.entries);
    Grant {
        tokens: logged.tokens,
        left,
        overdrawn: left == 0,
        epoch: logged.at,
        starts_after: Duration::ZERO,
        ends_after: window.min(ask.ttl),
        reset_after: match logged.entries {
            0 => Duration::from_micros(1),
            _ => leaves_after(logged.newest),
        },
        retry_after: match left {
            0 if limit == 0 => window,
            0 => leaves_after(logged.leaving),
            _ => Duration::ZERO,
        },
    }
}

/// Reads the script's reply.
fn reply(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, now_unix_us, at, entries, newest, leaving] = numbers else { return None };
    let limit = limit_of(ask.limit);
    let debited = tokens == 0 || (tokens <= entries && entries <= limit && newest == at);
    let lasts = now_unix_us.saturating_add(window_us(ask.limit));
    let in_order = leaving <= newest && newest <= at && (now_unix_us..=lasts).contains(&at);
    let logged = Logged { tokens, now_unix_us, at, entries, newest, leaving };
    (debited && in_order && entries <= ENTRIES_MAX).then(|| grant(ask, &logged))
}

/// The limit, cut to the number of entries that a log may hold.
fn limit_of(terms: Limit) -> u64 {
    terms.requests_per_unit.min(ENTRIES_MAX)
}

// === impl State ===

impl State {
    /// The time of the last token leased.
    pub fn newest(&self) -> Option<u64> {
        self.times.back().copied()
    }

    /// As [`super::State::ends_at`].
    pub(super) fn ends_at(&self, window_us: u64) -> u64 {
        self.newest()
            .map_or(0, |newest| newest.saturating_add(window_us).div_ceil(MICROS_PER_SECOND))
    }

    fn entries(&self) -> u64 {
        self.times.len() as u64
    }

    /// Drops the entries that are older than a window's length. Drops all entries if the newest
    /// lies more than a window ahead: the clock was set back, and nothing would be leased until it
    /// caught up.
    fn forget(&mut self, now_unix_us: u64, window_us: u64) {
        if self.newest().is_some_and(|newest| newest > now_unix_us.saturating_add(window_us)) {
            self.times.clear();
        }
        let gone = self.times.partition_point(|time| time.saturating_add(window_us) <= now_unix_us);
        self.times.drain(..gone);
        if self.times.is_empty() {
            self.times = VecDeque::new(); // frees the memory of a quiet key
        }
    }

    /// Removes returned tokens from the log. A lease takes back its own entries, so a late or
    /// repeated return finds none; a refund takes back the newest entries.
    fn credit(&mut self, back: Return) {
        let (from, until) = match back.epoch {
            Some(lent_at) => {
                let from = self.times.partition_point(|time| *time < lent_at);
                (from, self.times.partition_point(|time| *time <= lent_at))
            }
            None => (0, self.times.len()),
        };
        let tokens = usize::try_from(back.tokens).unwrap_or(usize::MAX).min(until - from);
        self.times.drain(until - tokens..until);
    }

    fn leaving(&self, limit: u64) -> u64 {
        let index =
            usize::try_from(limit).ok().and_then(|limit| self.times.len().checked_sub(limit));
        index.and_then(|index| self.times.get(index)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
