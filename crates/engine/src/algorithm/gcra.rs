//! A rate represented by one point in time, which token bucket and leaky bucket share (GCRA, the
//! generic cell rate algorithm of ITU-T I.371).
//!
//! The state is the time at which all spent tokens are earned back, the *theoretical arrival time*.
//! The **debt** is the distance of that time from the present; `n` tokens add
//! `n · window / requests` to it. Debits round up and credits round down, so that rounding never
//! lends a token: each ask costs less than one tick too much.
//!
//! **A changed limit keeps the count.** A debt is a time, and a limit of another rate earns it back
//! in another time, so the state says under which limit it was written. The first ask under another
//! limit converts it, whether that lends tokens or not, since from then on the debt is earned back
//! at that limit's rate. A token bucket owes the same number of *tokens* as before: those that do
//! not fit into a smaller bucket are kept beside it, are paid after the rest, and fit again once a
//! larger limit asks. A token that is paid in part stays in the debt, which then exceeds the bucket
//! by less than a token: rounded down it would be leased twice, and rounded up it would never be
//! paid while limits alternate. The last slot that a leaky bucket has leased stays where it is, and
//! the next one follows it at the new distance. So nothing is forgotten. Limits may alternate on
//! one key: pods in the middle of a reload, or a rollout. Together they admit at most as much as a
//! bucket of the larger burst and the larger rate would. A limit that lends nothing, and one whose
//! largest debt is smaller than the state's, leaves the state in the terms of the limit that wrote
//! it: the debt is earned back at that rate, and costs are added to it at that rate.

use std::time::Duration;

use ratelease_rules::{AMOUNT_MAX, Limit, MAX_DELAY_MAX};

use super::{MICROS_PER_SECOND, Script, Token, counting, limit_of, window_seconds};
use crate::ask::Ask;

pub(super) static SCRIPT: Script = Script::new(include_str!("gcra.lua"));

/// After how many windows a bucket is full again.
pub(super) fn windows_to_fill(limit: Limit) -> Option<u64> {
    Some(limit.capacity().div_ceil(limit.requests_per_unit.max(1)).max(1))
}

/// τ in microseconds, at most [`TTL_US_MAX`], which is practically unlimited.
pub fn ttl_us(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX).min(TTL_US_MAX)
}

/// Some 143 years. Doubles represent it exactly, even with the present time added.
pub const TTL_US_MAX: u64 = 1 << 52;

/// The arguments of the script.
pub(super) fn arguments(ask: &Ask, _: u64) -> Vec<u64> {
    let pace = Pace::of(ask.limit);
    let (cost, part) = pace.token();
    let (room, room_part) = pace.room;
    let Pace { tick_ns, requests, tokens_max, debt_max, tokens_min, window_us, .. } = pace;
    super::arguments(
        ask,
        &[
            tick_ns,
            cost,
            part,
            requests,
            tokens_max,
            debt_max,
            room,
            room_part,
            tokens_min,
            window_us,
            pace.longest(),
            ttl_us(ask.ttl),
            pace.owed_max(),
        ],
    )
}

/// Reads the script's reply.
pub(super) fn moved(ask: &Ask, numbers: &[u64]) -> Option<(Pace, Moved)> {
    let &[tokens, now_unix_us, before, after] = numbers else { return None };
    let pace = Pace::of(ask.limit);
    let debited = match tokens {
        0 => before <= after,
        _ => tokens <= pace.left(before) && before.checked_add(pace.cost(tokens)) == Some(after),
    };
    let owed = pace.cost(ask.owed.min(TOKENS_MAX)).min(pace.owed_max());
    let debited = debited && (before >= owed || counting(ask.limit).token == Token::Slot);
    let moved = Moved { tokens, now_unix_us, before, after };
    (debited && after <= pace.owed_max()).then_some((pace, moved))
}

/// The store's state of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The theoretical arrival time, in nanoseconds since the Unix epoch. Until the year 2262 it
    /// has 19 digits and 63 bits.
    pub tat_ns: u64,
    /// [`Pace::requests`] of the limit that wrote the state; 0 if that is not known, since version
    /// 0.2 did not store it. Then it counts as the asking limit's.
    pub requests: u64,
    /// Tokens owed beyond the bucket's capacity: they were leased under a larger limit. They are
    /// paid while the bucket is full.
    pub beyond: u64,
    /// Where tokens are owed beyond the bucket: [`Pace::tokens_max`] of the bucket that could not
    /// hold them. A larger one takes them back.
    ///
    /// Where none are owed beyond it: the tokens of a debt that exceeds an empty bucket's, since
    /// costs that had been incurred were owed; 0 for a smaller debt.
    pub capacity: u64,
}

/// A state as the limit that asks sees it.
#[derive(Debug, Clone, Copy, Default)]
struct Owed {
    /// In ticks.
    debt: u64,
    /// As [`State::beyond`].
    beyond: u64,
    /// As [`State::capacity`].
    capacity: u64,
    /// Whether the state has to be written again, since it is in the terms of another limit.
    converted: bool,
    /// Whether the state stays in the terms of another limit, since this one lends nothing or would
    /// cut the debt. Then `debt` is the largest one.
    is_kept: bool,
}

/// A rate and its largest debt, in whole ticks. The scripts receive these numbers: doubles are
/// exact below 2^53, and [`Pace::of`] picks the tick so that every debt stays well below that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Nanoseconds in a tick: 1, or 1000 if the capacity is above [`TICKS_MAX`] nanoseconds.
    pub tick_ns: u64,
    /// Ticks in the window.
    pub window: u64,
    /// Tokens earned in a window, at least 1.
    pub requests: u64,
    /// The most tokens that may be available at once; 0 if none ever is.
    pub tokens_max: u64,
    /// The largest debt: of an empty bucket, or of a leaky bucket whose last slot is leased.
    pub debt_max: u64,
    /// Room for tokens at a debt of 0: whole ticks, and parts of a tick, of which `requests` make
    /// one.
    pub room: (u64, u64),
    /// Tokens that are available as long as the debt does not exceed the room: 1 for a leaky
    /// bucket, whose slot begins at the room's end, 0 for a token bucket. The rest of the room
    /// holds the other tokens.
    pub tokens_min: u64,
    /// Length of the window in microseconds. All limits of one key have the same.
    pub window_us: u64,
}

/// The change of a debt in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// As [`Ask::want`](crate::store::Ask::want).
    pub want: u64,
    /// As [`Ask::need`](crate::store::Ask::need).
    pub need: u64,
    /// Whether a denial spends the tokens left.
    pub charge_denied: bool,
    /// As [`Ask::owed`](crate::store::Ask::owed).
    pub owed: u64,
    /// Tokens to credit first.
    pub back: u64,
}

/// The result of a step; a script replies with the same fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Tokens leased.
    pub tokens: u64,
    /// The store's time, in microseconds since the Unix epoch.
    pub now_unix_us: u64,
    /// The debt in ticks after the credit, and with the owed costs.
    pub before: u64,
    /// The debt in ticks after the step.
    pub after: u64,
}

/// Some 52 days in nanoseconds. A debt in nanoseconds stays below this, and with a second added to
/// it still far below 2^53.
pub const TICKS_MAX: u64 = 1 << 52;
/// A hundred years in microseconds, also below 2^53. Rules refuse a bucket that takes longer to
/// fill; if one gets here, its capacity is what that time fills.
pub const DEBT_MAX_US: u64 = 100 * 365 * 86_400 * MICROS_PER_SECOND;

// === impl Pace ===

impl Pace {
    /// The pace of a token bucket or leaky bucket.
    pub fn of(terms: Limit) -> Self {
        let fine = Self::in_ticks(terms, 1);
        if fine.debt_max <= TICKS_MAX { fine } else { Self::in_ticks(terms, 1_000) }
    }

    fn in_ticks(terms: Limit, tick_ns: u64) -> Self {
        let ticks_per_us = 1_000 / tick_ns;
        let window_us = window_seconds(terms) * MICROS_PER_SECOND;
        let is_slotted = counting(terms).token == Token::Slot;
        let mut pace = Self {
            tick_ns,
            window: window_us * ticks_per_us,
            requests: limit_of(terms).max(1),
            tokens_max: 0,
            debt_max: 0,
            room: (0, 0),
            tokens_min: u64::from(is_slotted),
            window_us,
        };
        if terms.requests_per_unit == 0 {
            // A rate of zero: there is no debt, and there are never any tokens.
        } else if is_slotted {
            let delay_us = fit(terms.algorithm.max_delay().as_micros());
            pace.room = (delay_us * ticks_per_us, 0);
            // Slots are counted in 32 bits.
            pace.tokens_max = pace.earned(pace.room).min(u64::from(u32::MAX) - 1) + 1;
            pace.debt_max = pace.room.0 + pace.cost(1);
        } else {
            let most = pace.earned((DEBT_MAX_US.saturating_mul(ticks_per_us), 0));
            pace.tokens_max = terms.capacity().min(most).min(TOKENS_MAX);
            pace.room = pace.worth(pace.tokens_max);
            pace.debt_max = pace.cost(pace.tokens_max);
        }
        pace
    }

    /// Applies a move to the debt of `state` at `now_unix_us`. If nothing changes, the state stays
    /// as it is.
    pub fn step(&self, state: Option<State>, now_unix_us: u64, by: Move) -> (State, Moved) {
        let owed = state.map_or(Owed::default(), |state| self.owed(state, now_unix_us));
        let lends_nothing = by.want == 0 && by.need == 0 && by.owed == 0;
        let stays = |state: &State| lends_nothing && (owed.converted || state.is_excess());
        if let Some(state) = state.filter(|state| owed.is_kept || stays(state)) {
            let state = if lends_nothing { state } else { self.cut_in_place(state, now_unix_us) };
            return self.in_place(state, now_unix_us, by);
        }
        // Tokens that come back pay first for the tokens owed beyond this bucket.
        let beyond = owed.beyond.saturating_sub(by.back);
        let before = self.credited(owed.debt, by.back.saturating_sub(owed.beyond));
        let (before, beyond) = self.with_owed(before, beyond, by.owed);
        let left = self.left(before);
        let (tokens, spent) = if by.need <= left {
            let tokens = by.want.max(by.need).min(left);
            (tokens, tokens)
        } else {
            (0, if by.charge_denied { left } else { 0 })
        };
        let after = before.saturating_add(self.cost(spent));
        let is_changed = after != owed.debt || beyond != owed.beyond || owed.converted;
        let state = match state {
            Some(state) if !is_changed => state,
            None if after == 0 => self.state(0, Owed::default()),
            _ => self.state(self.tat_ns(now_unix_us, after), Owed { debt: after, beyond, ..owed }),
        };
        (state, Moved { tokens, now_unix_us, before, after })
    }

    /// The debt with costs that are owed: they may exceed a full bucket, unlike any lease. Then all
    /// that is owed is one debt.
    fn with_owed(&self, debt: u64, beyond: u64, owed: u64) -> (u64, u64) {
        let sum = debt.saturating_add(self.cost(owed.min(TOKENS_MAX)));
        if owed == 0 || sum <= self.longest() {
            return (sum, beyond);
        }
        (sum.saturating_add(self.cost(beyond)).min(self.owed_max()), 0)
    }

    /// The largest debt that costs which are owed can make, in ticks: [`TICKS_MAX`], or a full
    /// bucket if that is more. A debt that exceeds it is cut to it.
    fn owed_max(&self) -> u64 {
        self.longest().max(self.cost(TOKENS_MAX).min(TICKS_MAX))
    }

    /// The tokens of a debt that exceeds an empty bucket's, rounded up; 0 for a smaller one.
    fn excess(&self, debt: u64) -> u64 {
        if debt <= self.longest() {
            return 0;
        }
        self.earned((debt, 0)).saturating_add(1).min(TOKENS_MAX)
    }

    /// A look, or a pure return, at a state of another limit. The pod may have leased the tokens
    /// before it loaded the present limit, so the state stays in the terms of the limit that wrote
    /// it: otherwise its debt would be earned back at an old rate until the next request. A state
    /// of costs that exceeded a bucket stays too: a debt that fits into the pod's bucket may not
    /// fit into the present one.
    ///
    /// A state stays also at every ask under a limit that lends nothing, or that would cut the
    /// debt.
    fn in_place(&self, state: State, now_unix_us: u64, by: Move) -> (State, Moved) {
        let state = if by.back > 0 { self.credited_in_place(state, by.back) } else { state };
        let owes = by.owed > 0;
        let state = if owes { self.owing_in_place(state, now_unix_us, by.owed) } else { state };
        let debt = self.owed(state, now_unix_us).debt;
        (state, Moved { tokens: 0, now_unix_us, before: debt, after: debt })
    }

    /// The state with costs added at the rate of the limit that wrote it: all that is owed is one
    /// debt then.
    fn owing_in_place(&self, state: State, now_unix_us: u64, owed: u64) -> State {
        let rate = self.rate_of(state);
        let (us, beyond) = rate.ahead(state, now_unix_us);
        let (whole, parts) = rate.worth(owed.min(TOKENS_MAX).saturating_add(beyond));
        let us = us.saturating_add(whole).saturating_add(u64::from(parts > 0)).min(DEBT_MAX_US);
        let tat_ns = now_unix_us.saturating_add(us).saturating_mul(1_000);
        let capacity = rate.whole(us).saturating_add(1).min(TOKENS_MAX);
        State { tat_ns, requests: rate.requests, beyond: 0, capacity }
    }

    /// The state without the part of its debt that only the mistake of a clock explains.
    fn cut_in_place(&self, state: State, now_unix_us: u64) -> State {
        let most_ns = self.rate_of(state).most_us(state).saturating_mul(1_000);
        let latest_ns = now_unix_us.saturating_mul(1_000).saturating_add(most_ns);
        State { tat_ns: state.tat_ns.min(latest_ns), ..state }
    }

    /// The rate of the limit that wrote the state.
    fn rate_of(&self, state: State) -> Rate {
        let requests = if state.requests == 0 { self.requests } else { state.requests };
        Rate { requests, window_us: self.window_us }
    }

    fn credited_in_place(&self, state: State, back: u64) -> State {
        let rate = self.rate_of(state);
        let beyond = state.beyond;
        let credit_us = rate.worth(back.saturating_sub(beyond)).0;
        let tat_ns = state.tat_ns.saturating_sub(credit_us.saturating_mul(1_000));
        let pays_all_beyond = beyond > 0 && beyond <= back;
        State {
            tat_ns: tat_ns.max(EARLIEST_NS),
            requests: rate.requests,
            beyond: beyond.saturating_sub(back),
            capacity: if pays_all_beyond { 0 } else { state.capacity },
        }
    }

    /// The largest debt that is not the mistake of a clock. A leaky bucket's last slot may have
    /// been leased under a limit with a longer `max_delay`, and a smaller token bucket may owe a
    /// part of a token above its own.
    pub fn longest(&self) -> u64 {
        let delay = fit(MAX_DELAY_MAX.as_nanos()) / self.tick_ns;
        let most = if self.is_slotted() { self.room.0.max(delay) } else { self.debt_max };
        most.saturating_add(self.cost(1))
    }

    /// Tokens that are available with this debt.
    pub fn left(&self, debt: u64) -> u64 {
        match self.room.0.checked_sub(debt) {
            Some(ticks) => {
                let others = self.earned((ticks, self.room.1));
                self.tokens_min.saturating_add(others).min(self.tokens_max)
            }
            None => 0,
        }
    }

    /// The cost of `tokens` in ticks, rounded up.
    pub fn cost(&self, tokens: u64) -> u64 {
        let (ticks, parts) = self.worth(tokens);
        ticks.saturating_add(u64::from(parts > 0))
    }

    /// Ticks until a token is available: 0 if one is.
    pub fn until_token(&self, debt: u64) -> u64 {
        let most = match self.tokens_min {
            0 => self.worth(self.tokens_max.saturating_sub(1)).0,
            _ => self.room.0,
        };
        debt.saturating_sub(most)
    }

    /// The duration of this many ticks.
    pub fn span(&self, ticks: u64) -> Duration {
        Duration::from_nanos(ticks.saturating_mul(self.tick_ns))
    }

    /// Length of the window.
    pub fn window(&self) -> Duration {
        self.span(self.window)
    }

    /// The worth of one token, in the form of [`Pace::room`].
    pub fn token(&self) -> (u64, u64) {
        self.worth(1)
    }

    /// Tokens that are earned in this many ticks and parts of a tick.
    fn earned(&self, (ticks, parts): (u64, u64)) -> u64 {
        let parts = u128::from(ticks) * u128::from(self.requests) + u128::from(parts);
        fit(parts / u128::from(self.window))
    }

    /// The worth of `tokens`, in whole ticks and parts of a tick.
    fn worth(&self, tokens: u64) -> (u64, u64) {
        let parts = u128::from(tokens) * u128::from(self.window);
        let requests = u128::from(self.requests);
        (fit(parts / requests), fit(parts % requests))
    }

    fn credited(&self, debt: u64, tokens: u64) -> u64 {
        // A credit of the whole capacity clears an empty bucket's debt, however it was rounded.
        if tokens > 0 && tokens >= self.tokens_max && debt <= self.debt_max {
            0
        } else {
            debt.saturating_sub(self.worth(tokens).0)
        }
    }

    /// The debt of `state` to this limit.
    fn owed(&self, state: State, now_unix_us: u64) -> Owed {
        let now_ns = now_unix_us.saturating_mul(1_000);
        let ahead = state.tat_ns.saturating_sub(now_ns);
        let requests = state.requests;
        let same = requests == 0 || requests == self.requests;
        // A started tick counts as a whole one.
        let debt = ahead.div_ceil(self.tick_ns);
        if self.is_slotted() {
            let debt = if same { debt } else { self.after_slots(requests, ahead) };
            let cut = debt.min(self.longest());
            let converted = cut > 0 && (!same || cut < debt);
            return Owed { debt: cut, converted, ..Owed::default() };
        }
        let rate = Rate { requests: requests.max(1), window_us: self.window_us };
        let (ahead_us, beyond) = rate.ahead(state, now_unix_us);
        let capacity = state.capacity;
        let is_excess = state.is_excess();
        let kept =
            Owed { debt: self.owed_max(), beyond, capacity, converted: false, is_kept: true };
        if self.tokens_max == 0 && (debt > 0 || beyond > 0) {
            return kept;
        }
        let most = if is_excess { self.longest_of(capacity) } else { self.longest() };
        if same && debt <= most && (beyond == 0 || capacity >= self.tokens_max) {
            return Owed { debt, beyond, capacity, ..Owed::default() };
        }
        let rate = if same { Rate { requests: self.requests, ..rate } } else { rate };
        if !is_excess {
            return self.tokens_owed(rate, ahead_us, beyond);
        }
        let owed = self.tokens_owed(rate, ahead_us, 0);
        let sum = owed.debt.saturating_add(self.cost(owed.beyond));
        if !same && sum > self.owed_max() { kept } else { self.excess_owed(owed) }
    }

    /// The largest debt of a state that says that so many tokens exceed the bucket.
    fn longest_of(&self, excess: u64) -> u64 {
        self.cost(excess).clamp(self.longest(), self.owed_max())
    }

    /// One debt of the same tokens, however large this limit's bucket is.
    fn excess_owed(&self, owed: Owed) -> Owed {
        let (debt, _) = self.with_owed(owed.debt, 0, owed.beyond);
        Owed { debt, beyond: 0, capacity: self.excess(debt), ..owed }
    }

    /// Puts the same tokens into this limit's bucket, as many as fit, and the others beyond it.
    fn tokens_owed(&self, rate: Rate, debt_us: u64, beyond: u64) -> Owed {
        let whole = rate.whole(debt_us).min(TOKENS_MAX);
        let part_us = debt_us.saturating_sub(rate.worth(whole).0);
        let part_us =
            fit((u128::from(part_us) * u128::from(rate.requests))
                .div_ceil(u128::from(self.requests)));
        let part = part_us.saturating_mul(self.ticks_per_us());
        let owed = beyond.saturating_add(whole).min(TOKENS_MAX);
        let held = self.tokens_max.min(owed);
        let debt = part.saturating_add(self.cost(held)).min(self.longest());
        let converted = owed > 0 || debt > 0;
        let (beyond, capacity) = (owed - held, self.tokens_max);
        Owed { debt, beyond, capacity, converted, is_kept: false }
    }

    /// The debt after the last slot that was leased at another rate, which may lie further ahead
    /// than this limit lends slots.
    fn after_slots(&self, requests: u64, ahead_ns: u64) -> u64 {
        if ahead_ns == 0 {
            return 0;
        }
        let ticks = |us: u64| us.saturating_mul(self.ticks_per_us());
        let slot = ticks(self.window_us / requests.max(1));
        ticks(ahead_ns.div_ceil(1_000)).saturating_add(self.cost(1)).saturating_sub(slot)
    }

    fn is_slotted(&self) -> bool {
        self.tokens_min > 0
    }

    fn ticks_per_us(&self) -> u64 {
        1_000 / self.tick_ns
    }

    fn state(&self, tat_ns: u64, Owed { debt, beyond, capacity, .. }: Owed) -> State {
        let capacity = if beyond > 0 { capacity } else { self.excess(debt) };
        State { tat_ns, requests: self.requests, beyond, capacity }
    }

    fn tat_ns(&self, now_unix_us: u64, debt: u64) -> u64 {
        now_unix_us.saturating_mul(1_000).saturating_add(debt.saturating_mul(self.tick_ns))
    }
}

/// The rate that a state was written under, in microseconds, which count it well enough: a limit
/// changes rarely.
#[derive(Debug, Clone, Copy)]
struct Rate {
    requests: u64,
    window_us: u64,
}

/// Far in the past, and still of 19 digits.
const EARLIEST_NS: u64 = 1_000_000_000_000_000_000;

/// The most tokens that a bucket holds or owes.
const TOKENS_MAX: u64 = AMOUNT_MAX;

// === impl Rate ===

impl Rate {
    /// The time until the debt of a state of this rate is paid, in microseconds, and the tokens
    /// that are owed beyond the bucket: a bucket that is full pays them, by whole tokens.
    fn ahead(self, state: State, now_unix_us: u64) -> (u64, u64) {
        let now_ns = now_unix_us.saturating_mul(1_000);
        let ahead_us = state.tat_ns.saturating_sub(now_ns).div_ceil(1_000);
        let idle_us = now_ns.saturating_sub(state.tat_ns) / 1_000;
        let paid = if state.beyond > 0 { self.whole(idle_us) } else { 0 };
        (ahead_us.min(self.most_us(state)), state.beyond.saturating_sub(paid))
    }

    /// The longest debt of a state that is not the mistake of a clock, in microseconds.
    fn most_us(self, state: State) -> u64 {
        match state.capacity {
            excess @ 1.. if state.beyond == 0 => self.worth(excess).0.saturating_add(1),
            _ => DEBT_MAX_US,
        }
        .min(DEBT_MAX_US)
    }

    /// Whole tokens that are earned in this time.
    fn whole(self, us: u64) -> u64 {
        fit(u128::from(us) * u128::from(self.requests) / u128::from(self.window_us))
    }

    /// The worth of `tokens` in microseconds and parts of one.
    fn worth(self, tokens: u64) -> (u64, u64) {
        let parts = u128::from(tokens) * u128::from(self.window_us);
        let requests = u128::from(self.requests.max(1));
        (fit(parts / requests), fit(parts % requests))
    }
}

// === impl State ===

impl State {
    /// Whether costs made the debt exceed an empty bucket's.
    fn is_excess(&self) -> bool {
        self.beyond == 0 && self.capacity > 0
    }

    /// When everything is paid, in seconds since the Unix epoch, for a window of this length.
    pub fn ends_at(&self, window_seconds: u64) -> u64 {
        let beyond = u128::from(self.beyond) * u128::from(window_seconds);
        let beyond = fit(beyond.div_ceil(u128::from(self.requests).max(1)));
        let beyond = beyond.min(DEBT_MAX_US / MICROS_PER_SECOND);
        self.tat_ns.div_ceil(1_000_000_000).saturating_add(beyond)
    }
}

fn fit(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
