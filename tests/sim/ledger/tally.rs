//! Hits requested and admitted, by key and window of the store's clock.

use std::collections::HashMap;

use ratelease_engine::algorithm::{Token, counting};
use ratelease_rules::Limit;
use ratelease_rules::key::Key;

use crate::world;

#[derive(Default)]
pub struct Tally {
    pub counts: Counts,
    windows: HashMap<(Key, u64), Window>,
    refunds: HashMap<Key, u64>,
    limits: HashMap<Key, Limit>,
    flows: HashMap<Key, Flow>,
}

/// Number of requests by answer.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub requests: u64,
    pub admitted: u64,
    pub denied: u64,
    pub errors: u64,
    /// Number of requests that a failure mode answered.
    pub failure_modes: u64,
    /// Number of denied requests that one server would have admitted: they were among the first of
    /// their window.
    pub falsely_denied: u64,
}

/// Hits of one key, as callers see them.
#[derive(Debug, Default, Clone, Copy)]
pub struct Flow {
    /// Admitted with a lease's tokens.
    pub leased: u64,
    /// Admitted by a pod locally, because the store did not answer.
    pub alone: u64,
    /// Hits of requests that did not pass, after a wait at whose end `local` may have admitted
    /// them. A lease that paid for them before the request failed leaves them counted.
    pub undone: u64,
    /// Refunds of requests that were admitted.
    pub refunded: u64,
    /// Refunds of requests whose callers did not get the answer.
    pub unheard: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Window {
    /// The highest limit that applied to a request of it.
    highest: u64,
    offered: u64,
    /// Hits of requests that began and ended in this window.
    admitted: u64,
    /// Hits of requests that began or ended in another window.
    straddling: u64,
    /// Number of straddling hits that ended in this window.
    ended: u64,
}

/// Use of the windows whose demand exceeded the limit.
#[derive(Debug, Default, Clone)]
pub struct Use {
    pub windows: Vec<UseOfWindow>,
}

#[derive(Debug, Clone, Copy)]
pub struct UseOfWindow {
    pub tokens: u64,
    pub used: u64,
}

// === impl Tally ===

impl Tally {
    /// Records a request for `hits`. Returns the hits requested in the window so far, with these.
    pub fn offer(&mut self, key: Key, limit: Limit, hits: u64, wall_us: u64) -> u64 {
        self.limits.insert(key, limit);
        let window = self.window(key, number(limit, wall_us));
        window.highest = window.highest.max(limit.requests_per_unit);
        window.offered += hits;
        window.offered
    }

    pub fn refund(&mut self, key: Key, hits: u64) {
        *self.refunds.entry(key).or_default() += hits;
    }

    pub fn take_refund_back(&mut self, key: Key, hits: u64) {
        *self.refunds.entry(key).or_default() -= hits;
    }

    pub fn flow(&mut self, key: Key) -> &mut Flow {
        self.flows.entry(key).or_default()
    }

    /// Enters an admission that began at the first time and ended at the second. Returns an error
    /// for a fixed window with too many hits, as callers see it, whatever the store and the network
    /// report.
    pub fn admit(
        &mut self,
        key: Key,
        limit: Limit,
        hits: u64,
        wall_us: (u64, u64),
    ) -> Result<(), String> {
        let (first, last) = (number(limit, wall_us.0), number(limit, wall_us.1));
        if first != last {
            self.window(key, first).straddling += hits;
            let last = self.window(key, last);
            (last.straddling, last.ended) = (last.straddling + hits, last.ended + hits);
            return Ok(());
        }
        let refunds = self.refunds.get(&key).copied().unwrap_or_default();
        let window = self.window(key, first);
        let allowed = window.highest + refunds;
        window.admitted += hits;
        if counting(limit).token == Token::OfWindow && window.admitted > allowed {
            return Err(format!("{} admitted of {allowed} in window {first}", window.admitted));
        }
        Ok(())
    }

    /// Returns the tokens that are left of the limit over both windows, if `hits` would have fit
    /// into either.
    pub fn could_have_paid(
        &mut self,
        key: Key,
        limit: Limit,
        hits: u64,
        wall_us: (u64, u64),
    ) -> Option<u64> {
        if counting(limit).token != Token::OfWindow {
            return None;
        }
        let mut left = |wall_us| {
            let window = self.window(key, number(limit, wall_us));
            let spent = window.admitted + window.straddling;
            limit.requests_per_unit.checked_sub(spent + hits).map(|left| left + hits)
        };
        left(wall_us.0).zip(left(wall_us.1)).map(|(first, last)| first.min(last))
    }

    /// The use of every fixed window that lay entirely in the run and whose demand exceeded the
    /// limit, in the order of the windows.
    pub fn use_of(&self, from_us: u64, until_us: u64) -> Use {
        let mut made = Use::default();
        let mut windows: Vec<_> = self.windows.iter().collect();
        windows.sort_by_key(|((key, number), _)| (*number, *key));
        for ((key, number), window) in windows {
            let Some(limit) = self.limits.get(key) else { continue };
            let length_us = limit.window_seconds() * 1_000_000;
            let tokens = limit.requests_per_unit;
            let whole = number * length_us >= from_us && (number + 1) * length_us <= until_us;
            let over = window.offered >= tokens + tokens / 5;
            if whole && over && counting(*limit).token == Token::OfWindow {
                let used = window.admitted + window.ended;
                made.windows.push(UseOfWindow { tokens, used });
            }
        }
        made
    }

    fn window(&mut self, key: Key, number: u64) -> &mut Window {
        self.windows.entry((key, number)).or_default()
    }
}

// === impl Flow ===

impl Flow {
    /// Checks, once every pod has left, that the tokens that the store leased were admitted. A
    /// lease that came later may have paid for hits that a pod admitted locally. A refund may have
    /// found fewer hits spent than it gave back.
    pub fn check(&self, store: &world::Flow) -> Result<(), String> {
        let Self { leased, alone, undone, refunded, unheard } = *self;
        let world::Flow { lent, returned, pooled, lost, .. } = *store;
        let pooled = u64::try_from(pooled).unwrap_or(0);
        let accounted = leased + alone + undone + returned + lost + pooled;
        if lent > accounted {
            return Err(format!("{} tokens were lent that are nowhere", lent - accounted));
        }
        let known = lent + refunded + unheard;
        if leased + returned > known {
            return Err(format!("{} tokens more than were lent", leased + returned - known));
        }
        Ok(())
    }
}

fn number(limit: Limit, wall_us: u64) -> u64 {
    wall_us / (limit.window_seconds() * 1_000_000)
}
