//! The limit of a key's tokens, its debt, and its suspension: stored in place where every key has
//! them, else in the cold state.

use std::time::Duration;

use ratelease_rules::{Allowance, Limit, Unit};

use super::KeyState;
use crate::store::StoreError;
use crate::time::Time;

/// A key under which the store holds another program's value is not asked for again for this long:
/// it is probed twice a second, as an unavailable shard is.
const SUSPENDED_FOR: Duration = Duration::from_millis(500);

/// Where to find the limit that a key's tokens were lent under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitSource {
    /// In the key's rule.
    Rule,
    /// It is an override's that the default store counts: a number of requests in a fixed window of
    /// one unit.
    Override(Unit),
    /// In the cold state: the rule has changed, and waiting requests asked under the old one; or it
    /// is an override's that another store counts.
    ColdState,
}

impl KeyState {
    /// The limit that the tokens were lent under.
    pub(super) fn limit(&self) -> Limit {
        let limit = match self.limit_source {
            LimitSource::Rule => self.limit_of_rule(),
            LimitSource::Override(_) => None,
            LimitSource::ColdState => {
                self.buffer.cold().and_then(|cold| cold.limit.as_deref().copied())
            }
        };
        let unit =
            if let LimitSource::Override(unit) = self.limit_source { unit } else { Unit::Second };
        limit.unwrap_or(Limit::fixed_window(self.requests, unit))
    }

    pub(super) fn set_limit(&mut self, limit: Limit) {
        let (mut apart, mut requests) = (None, 0);
        self.limit_source = if self.limit_of_rule() == Some(limit) {
            LimitSource::Rule
        } else if limit == Limit::fixed_window(limit.requests_per_unit, limit.unit) {
            requests = limit.requests_per_unit;
            LimitSource::Override(limit.unit)
        } else {
            apart = Some(limit);
            LimitSource::ColdState
        };
        self.requests = requests;
        if apart.is_some() {
            self.buffer.make_cold().limit = apart.map(Box::new);
        } else if let Some(cold) = self.buffer.cold_mut() {
            cold.limit = None;
            self.buffer.trim();
        }
    }

    pub(super) fn limit_of_rule(&self) -> Option<Limit> {
        match self.rule.as_ref()?.allowance {
            Allowance::Limited(limit) => Some(limit),
            Allowance::Unlimited => None,
        }
    }

    /// Notes that the store gave no grant, because of `error`.
    pub(super) fn suspend(&mut self, error: &StoreError, now: Time) {
        if *error == StoreError::ForeignValue {
            self.buffer.make_cold().suspended_until = now + SUSPENDED_FOR;
        }
    }

    /// Whether the store replied recently that it can have no count under this key.
    pub(super) fn is_suspended(&self, now: Time) -> bool {
        self.buffer.cold().is_some_and(|cold| now < cold.suspended_until)
    }

    /// Notes that the store has a count under this key.
    pub(super) fn resume(&mut self) {
        if let Some(cold) = self.buffer.cold_mut() {
            cold.suspended_until = Time::default();
        }
    }

    /// Hits that a failure mode has admitted and no lease has paid for yet.
    pub(super) fn debt(&self, now: Time) -> u64 {
        let due = self.buffer.cold().filter(|cold| now < cold.debt_until);
        due.map_or(0, |cold| cold.debt.into())
    }

    pub(super) fn set_debt(&mut self, hits: u64) {
        if let Some(cold) = self.buffer.cold_mut() {
            cold.debt = u32::try_from(hits).unwrap_or(u32::MAX);
            self.buffer.trim();
        }
    }
}
