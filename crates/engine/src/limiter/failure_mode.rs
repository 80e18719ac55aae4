//! Answers by the rule's failure mode, when the store cannot be asked, and where this pod has no
//! room.
//!
//! That a pod has no room for a further request or ask says nothing about the store, which may be
//! well. So no request then passes without being counted, and none ends in an error: `local` admits
//! the pod's part as a debt, if the key has an entry and tokens that can be owed, and all else is
//! denied ([`DecisionSource::Shed`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_rules::key::Key;
use ratelease_rules::{FailureMode, Limit};

use super::Shared;
use crate::algorithm::{Token, counting};
use crate::buffer::{LeasedTokens, Take};
use crate::counter::{Count, Counter};
use crate::lease::Reply;
use crate::limiter::key::{Attempt, KeyState, Noted, QuotaSnapshot};
use crate::limiter::resolve::Charge;
use crate::rng::mixed;
use crate::store::memory::MemoryStore;
use crate::store::{Ask, Grant, Return, StoreError};
use crate::time::{Clock, Time};
use crate::verdict::{AppliedLimit, DecisionSource};

/// The largest number of keys that a pod counts by itself: some 8 MiB. Beyond that, each new key
/// evicts a key whose window ends soonest, as the buffers do.
const KEYS_MAX: usize = 1 << 16;

/// Answers in place of the store, by the failure mode of each rule.
pub(super) struct FailureModes {
    /// This pod's number.
    pod: u64,
    clock: Clock,
    /// For `local`: the charges that this pod has admitted by itself, each key by its own
    /// algorithm.
    own: MemoryStore,
    clocks: Mutex<Clocks>,
    answers: [AtomicU64; FailureMode::ALL.len()],
    /// Hits that `allow` let pass and that no lease paid for.
    unmetered: AtomicU64,
}

/// The time of each shard when this pod's clock was started, in microseconds since the Unix epoch.
/// A window follows the clock of the shard that owns its key, and the clocks of two masters may
/// differ by more than a window.
struct Clocks {
    /// For a shard that has not replied yet.
    unknown: u64,
    /// By shard, at most [`crate::store::SHARDS_MAX`].
    known: HashMap<usize, u64>,
}

// === impl Shared ===

impl Shared {
    /// The answer to `charge` when the store gives none, because of `why`.
    pub(super) fn without_store(
        &self,
        charge: &Charge<'_>,
        now: Time,
        why: StoreError,
    ) -> Result<Attempt, StoreError> {
        let is_local = charge.failure_mode() == FailureMode::Local;
        let used_up = |state: &mut KeyState| state.used_up(charge, now).filter(|_| charge.spends());
        // `None` if the key has no state here, so that it cannot have a debt.
        let known = is_local.then(|| self.table.with_existing(charge.key(), used_up)).flatten();
        let limit = charge.applied.limit;
        let can_owe = known.is_some() && counting(limit).token.can_be_owed();
        match known {
            Some(Some(quota)) => Ok(self.failure_modes.deny(quota)),
            // A probe was shed: by the store's last reply the key is empty.
            _ if why == StoreError::Shed => Ok(Attempt::shed(charge)),
            _ if why.is_lack_of_room() && !can_owe => Ok(Attempt::shed(charge)),
            _ => self.answer_alone(charge, now, why),
        }
    }

    /// The answer to a refund when the store gives none, because of `why`. A `queued` refund may be
    /// on its way to the store, so it is not credited here as well. The refund `fails` only if no
    /// other part of its request would fail with it.
    pub(super) fn refund_without_store(
        &self,
        charge: &Charge<'_>,
        now: Time,
        why: StoreError,
        queued: bool,
        fails: bool,
    ) -> Result<Attempt, StoreError> {
        if why.is_lack_of_room() {
            return Ok(Attempt::shed(charge)); // no room is no outage
        }
        match charge.failure_mode() {
            FailureMode::Error if fails => Err(why),
            FailureMode::Local if !queued => self.answer_alone(charge, now, why),
            mode => Ok(FailureModes::pass(mode, charge)),
        }
    }

    fn answer_alone(
        &self,
        charge: &Charge<'_>,
        now: Time,
        why: StoreError,
    ) -> Result<Attempt, StoreError> {
        if let Some(attempt) = self.slots_alone(charge, now) {
            return Ok(attempt);
        }
        let shard = self.shard_of(charge.key(), charge.applied.limit);
        self.failure_modes.answer(charge, self.pods_of(charge), shard, now, why)
    }

    /// The answer to a charge of slots, where the mode admits any. `local` admits this pod's part
    /// of the limit, less the slots that are in use here; `allow` admits all. An admitted slot is
    /// in use until its request ends, as a slot that was leased.
    fn slots_alone(&self, charge: &Charge<'_>, now: Time) -> Option<Attempt> {
        let limit = charge.applied.limit;
        let mode = charge.failure_mode();
        if counting(limit).token != Token::Permit {
            return None;
        }
        let pods = self.pods_of(charge);
        let most = match mode {
            FailureMode::Local => self
                .failure_modes
                .part(charge.key(), limit, pods, now.since(Time::default()))
                .capacity(),
            FailureMode::Allow => u64::MAX,
            FailureMode::Deny | FailureMode::Error => return None,
        };
        self.failure_modes.answers[mode as usize].fetch_add(1, Ordering::Relaxed);
        let took = self.with_state(charge, now, 0, |state, visit| {
            let take = state.take_alone(charge.hits, most);
            state.watch(visit);
            take
        });
        let take = took.unwrap_or(Take::Denied);
        let left = if take == Take::Denied { 0 } else { most.min(limit.capacity()) };
        Some(Attempt { take, ..passed(mode, left) })
    }

    /// Notes that a failure mode has admitted `charge`: a lease that arrives pays for it if an ask
    /// for it is out, or if one `can_pay` in any case. Returns until when one may.
    ///
    /// # Errors
    ///
    /// The denial of the charge, which `local` had admitted: by a reply that came after the key was
    /// last looked at, the key is known to be used up.
    pub(super) fn note_debt(
        &self,
        charge: &Charge<'_>,
        can_pay: bool,
    ) -> Result<Option<Time>, Attempt> {
        let Charge { applied: AppliedLimit { limit, .. }, hits, .. } = *charge;
        let visit = self.visit(charge.key(), self.clock.now());
        let is_local = charge.failure_mode() == FailureMode::Local;
        let until = visit.now + self.debt_lasts(charge);
        let note = |state: &mut KeyState| match state.used_up(charge, visit.now) {
            Some(quota) if is_local => Err(quota),
            _ => Ok(state.note_debt(hits, until, can_pay, &visit)),
        };
        let noted = self.table.with_existing(charge.key(), note);
        let noted = noted.unwrap_or(Ok(Noted { is_owed: false, unpaid: hits, paid: 0 }));
        let Noted { is_owed, unpaid, paid } = match noted {
            Ok(noted) => noted,
            Err(quota) => {
                self.return_charge(charge);
                return Err(Attempt { quota, ..denied(FailureMode::Local) });
            }
        };
        if charge.failure_mode() == FailureMode::Allow {
            self.failure_modes.note_unmetered(unpaid);
        } else if paid > 0 {
            self.return_own(charge.key(), limit, paid, self.pods_of(charge));
        }
        Ok(is_owed.then_some(until))
    }

    /// Takes back the debt of a charge that `local` admitted and whose request does not pass,
    /// unless it has ended at `until`. The pod's own count has already got back the part that a
    /// lease has paid.
    pub(super) fn cancel_debt(&self, charge: &Charge<'_>, until: Time) {
        let now = self.clock.now();
        if now >= until {
            return;
        }
        let cancel = |state: &mut KeyState| state.cancel_debt(charge.hits, now);
        let unpaid = self.table.with_existing(charge.key(), cancel).unwrap_or(0);
        if unpaid > 0 {
            let limit = charge.applied.limit;
            self.return_own(charge.key(), limit, unpaid, self.pods_of(charge));
        }
    }

    fn debt_lasts(&self, charge: &Charge<'_>) -> Duration {
        let limit = charge.applied.limit;
        self.failure_modes.debt_lasts(limit, self.shard_of(charge.key(), limit))
    }
}

// === impl FailureModes ===

impl FailureModes {
    /// `unix_start` is the time of day when `clock` was started. It is used until the shard's own
    /// time is known from its first grant.
    pub(super) fn new(clock: Clock, unix_start: Duration, pod: u64) -> Self {
        let unknown = micros(unix_start);
        let unix = move || unix_start.saturating_add(clock.now().since(Time::default()));
        let own = MemoryStore::new(Arc::new(unix), KEYS_MAX).giving_way();
        let clocks = Mutex::new(Clocks { unknown, known: HashMap::default() });
        Self { pod, clock, own, clocks, answers: Default::default(), unmetered: AtomicU64::new(0) }
    }

    /// The answer to `charge`, for which `shard` of the store gave no reply because of `why`.
    /// `pods` is the number of pods that share the limit.
    pub(super) fn answer(
        &self,
        charge: &Charge<'_>,
        pods: u32,
        shard: usize,
        now: Time,
        why: StoreError,
    ) -> Result<Attempt, StoreError> {
        let mode = charge.failure_mode();
        self.answers[mode as usize].fetch_add(1, Ordering::Relaxed);
        match mode {
            FailureMode::Local => Ok(self.admit(charge, pods, shard, now)),
            FailureMode::Allow => Ok(Self::pass(mode, charge)),
            FailureMode::Deny => Ok(if charge.refund { passed(mode, 0) } else { denied(mode) }),
            FailureMode::Error => Err(why),
        }
    }

    /// Notes hits that `allow` let pass and that no lease pays for.
    pub(super) fn note_unmetered(&self, hits: u64) {
        self.unmetered.fetch_add(hits, Ordering::Relaxed);
    }

    /// How long a charge of now counts against `limit`: for a fixed window until the window ends by
    /// the clock of `shard`, else until the limit is as if nothing had been charged.
    pub(super) fn debt_lasts(&self, limit: Limit, shard: usize) -> Duration {
        let fill = || limit.capacity().div_ceil(limit.requests_per_unit.max(1)).max(1);
        match counting(limit).token {
            Token::OfWindow => {
                let now = micros(self.unix_time(shard));
                let ends = limit.window_starts(limit.window_at(now).saturating_add(1));
                Duration::from_micros(ends.saturating_sub(now))
            }
            Token::Steady | Token::Slot | Token::Permit => {
                limit.window().saturating_mul(u32::try_from(fill()).unwrap_or(u32::MAX))
            }
        }
    }

    /// Lets `charge` pass without counting it.
    pub(super) fn pass(mode: FailureMode, charge: &Charge<'_>) -> Attempt {
        passed(mode, charge.applied.limit.capacity())
    }

    /// The key is known to be used up until its window ends, so no pod has a part of it.
    pub(super) fn deny(&self, quota: QuotaSnapshot) -> Attempt {
        self.answers[FailureMode::Local as usize].fetch_add(1, Ordering::Relaxed);
        Attempt { quota, ..denied(FailureMode::Local) }
    }

    /// Takes back hits that were admitted here and then not spent, or paid for by a lease.
    pub(super) fn return_hits(&self, key: Key, limit: Limit, hits: u64, pods: u32, shard: usize) {
        let unix = self.unix_time(shard);
        let back = Some(Return { tokens: hits, epoch: None });
        let ask = Ask { back, ..Ask::look(key, self.part(key, limit, pods, unix)) };
        // A key without room was denied, so it has nothing to return.
        let _ = self.own.take_at(&ask, unix);
    }

    /// For `local`: counts costs that have been incurred against this pod's part of the limit.
    pub(super) fn count_owed(&self, charge: &Charge<'_>, owed: u64, pods: u32, shard: usize) {
        let unix = self.unix_time(shard);
        let part = self.part(charge.key(), charge.applied.limit, pods, unix);
        let ask = Ask { owed, ..Ask::look(charge.key(), part) };
        // A key without room is denied anyway.
        let _ = self.own.take_at(&ask, unix);
    }

    /// Learns the store's time from a grant, so that windows here match the store's.
    pub(super) fn note_time(&self, reply: &Reply, grant: &Grant) {
        if reply.ask.pool.is_some() {
            return; // a pool keeps no time
        }
        let Some(store_us) = (counting(reply.ask.limit).store_time_us)(&reply.ask, grant) else {
            return;
        };
        let since_start = micros(reply.asked_at.since(Time::default()));
        self.clocks.lock().known.insert(reply.shard, store_us.saturating_sub(since_start));
    }

    /// The present time by the clock of `shard`, since the Unix epoch.
    fn unix_time(&self, shard: usize) -> Duration {
        let clocks = self.clocks.lock();
        let start = clocks.known.get(&shard).copied().unwrap_or(clocks.unknown);
        let since_start = self.clock.now().since(Time::default());
        since_start.saturating_add(Duration::from_micros(start))
    }

    pub(super) fn counts(&self) -> Vec<Count> {
        let answers = FailureMode::ALL.into_iter().map(|mode| {
            (Counter::FailureMode(mode), self.answers[mode as usize].load(Ordering::Relaxed))
        });
        let unmetered = (Counter::UnmeteredHits, self.unmetered.load(Ordering::Relaxed));
        answers.chain([unmetered]).collect()
    }

    /// This pod's part of a limit that `pods` share, in the present window. It is drawn at random
    /// so that the parts of all pods add up to the limit on average.
    fn part(&self, key: Key, limit: Limit, pods: u32, unix: Duration) -> Limit {
        // Slots are not used up, so a pod's part of them must not change.
        let window = limit.window_unit().map_or(0, |_| limit.window_at(micros(unix)));
        limit.part(pods, mixed(key.bits() ^ mixed(self.pod ^ mixed(window))))
    }

    /// For `local`: charges the pod's part of the limit, by the limit's own algorithm.
    fn admit(&self, charge: &Charge<'_>, pods: u32, shard: usize, now: Time) -> Attempt {
        let mode = FailureMode::Local;
        let hits = charge.hits;
        let key = charge.key();
        let unix = self.unix_time(shard);
        let own = Ask::look(key, self.part(key, charge.applied.limit, pods, unix));
        let ask = if charge.refund {
            Ask { back: Some(Return { tokens: hits, epoch: None }), ..own }
        } else {
            Ask { want: hits, need: hits, charge_denied: charge.charge_denied(), ..own }
        };
        let Ok(grant) = self.own.take_at(&ask, unix) else {
            return if charge.refund { passed(mode, 0) } else { denied(mode) };
        };
        let over = !charge.refund && if hits == 0 { grant.overdrawn } else { grant.tokens < hits };
        // For a leaky bucket, the time at which the slot begins; a look or a refund takes none.
        let starts = if charge.spends() { now + grant.starts_after } else { Time::default() };
        let slot = LeasedTokens { starts, ..LeasedTokens::default() };
        Attempt {
            take: if over { Take::Denied } else { Take::Taken(slot) },
            quota: QuotaSnapshot { remaining: grant.left, reset_after: Some(grant.resets_after()) },
            ..passed(mode, grant.left)
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn passed(mode: FailureMode, remaining: u64) -> Attempt {
    Attempt {
        take: Take::Taken(LeasedTokens::default()),
        fitted: 0,
        quota: QuotaSnapshot { remaining, reset_after: None },
        how: DecisionSource::Failure(mode),
    }
}

fn denied(mode: FailureMode) -> Attempt {
    Attempt { take: Take::Denied, ..passed(mode, 0) }
}
