//! A number of slots, each of which one request holds from its start to its end.
//!
//! The store keeps how many slots each pod has, in use and idle together. An ask states how many
//! its pod has ([`Slots`]), and the store takes that for the truth: it sets the pod's number and
//! adds the slots that it lends. So a repeated ask changes nothing. Slots of a lost reply come back
//! with the next ask. A pod gives slots back by stating fewer. A store that lost its state learns
//! it from the next asks. A pod that has not asked for [`SLOTS_TTL`] is forgotten, and its slots
//! are lent to others.
//!
//! Never more than the limit is lent in all, as long as pods ask in time and the store keeps its
//! state. After a limit was lowered or a state was lost, pods may state more slots than the limit.
//! These statements stand, since requests that run cannot be undone: nothing is lent until enough
//! of them have ended. An ask that arrives after a later one of the same pod is out of date: by
//! their numbers ([`Slots::order`]) the store knows it, changes nothing, and lends nothing. An ask
//! that leaves while others are out does not state the slots that those may bring. The store knows
//! which slots it has lent to them, and counts those that the pod has not received.
//!
//! # The time of a key
//!
//! Silence is measured in the time of the key, which runs by the server's clock, but in each ask by
//! 0 to [`SILENCE_MAX`]. Clocks of two masters differ, and a clock may be set. If it goes back, no
//! pod is forgotten before it was silent for [`SLOTS_TTL`], and none is kept longer than that after
//! the first ask. If it goes forward once, by less than [`KEPT`], a pod that asks every second is
//! still not forgotten, since the key's time has left it half of [`SLOTS_TTL`]. The price: where
//! all pods of a key fell silent, their slots come back half of [`SLOTS_TTL`] after the next ask. A
//! clock that goes forward by [`KEPT`] or more is the loss of a state: until all pods have asked
//! again, which takes a second, the limit may be lent once more.

use std::time::Duration;

use ratelease_rules::Limit;

use super::{Counting, MICROS_PER_SECOND, Script, Steps, Token, arguments};
use crate::ask::{Ask, Grant, Slots};

pub(super) static COUNTING: Counting = Counting {
    steps: Steps {
        step: |state, now_unix_us, ask| {
            let mut slots = match state {
                Some(super::State::Concurrency(slots)) => slots,
                _ => Box::default(),
            };
            let grant = step(&mut slots, now_unix_us, ask);
            (super::State::Concurrency(slots), grant)
        },
        script: &SCRIPT,
        arguments: |ask, _| {
            let times = [limit_of(ask.limit), millis(SLOTS_TTL), millis(KEPT)];
            let slots = ask.slots.map(|Slots { pod, held, order, since, received }| {
                let [held, received] = [held, received].map(|slots| slots.min(SLOTS_MAX));
                let halves = [pod >> 32, pod & u64::from(u32::MAX)];
                [halves[0], halves[1], held, order.into(), since.into(), received]
            });
            let own: Vec<u64> = times.into_iter().chain(slots.into_iter().flatten()).collect();
            arguments(&Ask { back: None, ..*ask }, &own)
        },
        reply,
    },
    token: Token::Permit,
    is_windowed: false,
    store_time_us: |_, grant| Some(grant.epoch),
    windows_kept: |_| None,
};

static SCRIPT: Script = Script::new(include_str!("concurrency.lua"));

/// After this silence a pod is forgotten. A pod that holds slots asks every second, so three of its
/// asks may be lost.
pub const SLOTS_TTL: Duration = Duration::from_secs(4);

/// The most that the time of a key runs from one ask to the next.
pub const SILENCE_MAX: Duration = Duration::from_secs(2);

/// How long a state is kept after its last ask: clocks may go forward by less than that. Pods that
/// stop in good order leave no state behind.
pub const KEPT: Duration = Duration::from_secs(60);

/// When a request that found no slot may try again. A slot is free when a request ends, which may
/// be at any time; this is the shortest time that `Retry-After` can say.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The largest number of pods that hold slots of one key; a further pod is lent nothing. Each asks
/// once a second, and an ask reads all of them, some 0.2 ms on the master: with 1000 pods a fifth
/// of its time. A pod that holds no slot is not kept.
const PODS_MAX: usize = 1_000;

/// The beginning of the text that the script stores.
const MARK: &[u8] = b"slots2";
/// Bytes of each pod in that text.
const POD_BYTES: usize = 26;

/// The largest number of slots that a pod states.
const SLOTS_MAX: u64 = u32::MAX as u64;

/// The store's state of one key; empty where no pod holds a slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// The server's time of the last ask, in milliseconds since the Unix epoch.
    asked: u64,
    /// The key's time of it, in milliseconds since its state was made.
    at: u64,
    /// The pods that hold slots, the one that asked first last.
    pods: Vec<Pod>,
}

/// The slots of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pod {
    number: u64,
    /// From 1 to [`SLOTS_MAX`].
    slots: u64,
    /// [`Slots::order`] of its last ask.
    order: u32,
    /// Slots lent to it since the ask that its last one names as [`Slots::since`].
    lent: u64,
    /// The key's time of its last ask, in milliseconds.
    seen: u64,
}

/// A pod that holds slots of a key, as an operator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The number of the pod.
    pub pod: u64,
    /// The slots that it had at its last ask, in use and idle together.
    pub slots: u64,
    /// Time from its last ask to the last ask of any pod.
    pub silent: Duration,
}

/// The result of an ask; the script replies with the same fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Slots lent.
    pub tokens: u64,
    /// The store's time, in microseconds since the Unix epoch.
    pub now_unix_us: u64,
    /// Slots of all pods after the step; the limit or more if there is no room for the pod.
    pub held: u64,
    /// Number of pods that hold any.
    pub pods: u64,
    /// A later ask of the pod came first.
    pub is_late: bool,
}

/// Reads the text that the script stores: the pods that are not forgotten, those with the most
/// slots first. `None` if it is not one. A count that has moved to another name holds nothing here.
pub fn holders(state: &[u8]) -> Option<Vec<Holder>> {
    const NUMBERS: usize = 6 + 6;
    if state.starts_with(b"moved ") {
        return Some(Vec::new());
    }
    let (times, pods) = state.strip_prefix(MARK)?.split_at_checked(NUMBERS)?;
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
    let at = number(times.get(6..)?);
    let (pods, rest) = pods.as_chunks::<POD_BYTES>();
    rest.is_empty().then_some(())?;
    let holders = pods.iter().map(|pod| {
        let (name, slots, seen) = (&pod[..8], &pod[8..12], &pod[12..18]);
        let silent = Duration::from_millis(at.saturating_sub(number(seen)));
        Holder { pod: number(name), slots: number(slots), silent }
    });
    let mut holders: Vec<_> = holders.filter(|it| it.silent < SLOTS_TTL).collect();
    holders.sort_by_key(|it| (std::cmp::Reverse(it.slots), it.pod));
    Some(holders)
}

/// Applies `ask` at `now_unix_us` (microseconds since the epoch), as the contract of
/// [`Store`](crate::store::Store) says. Without [`Ask::slots`] it only looks. Defined for every
/// input: nothing overflows, nothing panics.
pub fn step(state: &mut State, now_unix_us: u64, ask: &Ask) -> Grant {
    let now = now_unix_us / 1_000;
    let at = state.time_of_key(now);
    let is_other = |pod: &&Pod| ask.slots.is_none_or(|slots| slots.pod != pod.number);
    let is_here = |pod: &&Pod| at.saturating_sub(pod.seen) < millis(SLOTS_TTL);
    let others: Vec<Pod> = state.pods.iter().filter(is_other).filter(is_here).copied().collect();
    let held = others.iter().fold(0, |sum: u64, pod| sum.saturating_add(pod.slots));
    let lent = Lent { tokens: 0, now_unix_us, held, pods: others.len() as u64, is_late: false };
    let Some(Slots { pod: number, held: stated, order, since, received }) = ask.slots else {
        return grant(ask, &lent);
    };
    let own = state.pods.iter().filter(is_here).find(|pod| pod.number == number);
    if let Some(own) = own.filter(|own| is_before(order, own.order)) {
        let held = held.saturating_add(own.slots);
        return grant(ask, &Lent { held, pods: lent.pods + 1, is_late: true, ..lent });
    }
    if others.len() >= PODS_MAX {
        return grant(ask, &Lent { held: held.max(limit_of(ask.limit)), ..lent });
    }
    // Slots that were lent, and are still on their way to the pod, are the pod's.
    let lent_then =
        own.filter(|own| since != order && !is_before(own.order, since)).map_or(0, |own| own.lent);
    let on_its_way = lent_then.saturating_sub(received.min(SLOTS_MAX));
    let stated = stated.min(SLOTS_MAX).saturating_add(on_its_way).min(SLOTS_MAX);
    let free = limit_of(ask.limit).saturating_sub(held).saturating_sub(stated);
    let tokens = if ask.need <= free { ask.want.max(ask.need).min(free) } else { 0 };
    let slots = stated + tokens;
    state.pods = others;
    if slots > 0 {
        // Slots that the pod has received were lent, even if the count was lost since.
        let lent = (lent_then.max(received.min(SLOTS_MAX)) + tokens).min(SLOTS_MAX);
        state.pods.push(Pod { number, slots, order, lent, seen: at });
    }
    (state.asked, state.at) = if state.pods.is_empty() { (0, 0) } else { (now, at) };
    grant(ask, &Lent { tokens, held: held + slots, pods: state.pods.len() as u64, ..lent })
}

/// The reply to the pod for the step `lent`. No time is known at which the limit is as if nothing
/// had been charged: slots come back when requests end.
pub fn grant(ask: &Ask, lent: &Lent) -> Grant {
    let left = limit_of(ask.limit).saturating_sub(lent.held);
    Grant {
        tokens: lent.tokens,
        left,
        overdrawn: lent.held > limit_of(ask.limit),
        epoch: lent.now_unix_us,
        starts_after: Duration::ZERO,
        ends_after: SLOTS_TTL.min(ask.ttl),
        reset_after: Duration::ZERO,
        retry_after: if left == 0 { RETRY_AFTER } else { Duration::ZERO },
    }
}

/// Reads the script's reply.
fn reply(ask: &Ask, numbers: &[u64]) -> Option<Grant> {
    let &[tokens, now_unix_us, held, pods, late] = numbers else { return None };
    let stated = ask.slots.map_or(0, |slots| slots.held.min(SLOTS_MAX));
    let debited = tokens == 0
        || (ask.slots.is_some()
            && held <= limit_of(ask.limit)
            && stated.checked_add(tokens).is_some_and(|own| own <= held));
    let is_late = late == 1;
    let debited = debited && (held >= stated || pods >= PODS_MAX as u64 || is_late);
    let debited = debited && (tokens == 0 || !is_late);
    let counted = pods <= PODS_MAX as u64 && pods <= held && (pods > 0 || tokens == 0);
    let lent = Lent { tokens, now_unix_us, held, pods, is_late };
    (debited && counted).then(|| grant(ask, &lent))
}

/// The limit. Rules refuse more slots than a state can hold; if a limit of more gets here, it is
/// cut.
fn limit_of(terms: Limit) -> u64 {
    terms.requests_per_unit.min(SLOTS_MAX)
}

/// Whether an ask of this number was made before the other one. Numbers begin again at 0, so half
/// of them count as later.
fn is_before(order: u32, other: u32) -> bool {
    (1..1 << 31).contains(&other.wrapping_sub(order))
}

const fn millis(span: Duration) -> u64 {
    span.as_secs() * 1_000
}

// === impl State ===

impl State {
    /// As [`super::State::ends_at`].
    pub(super) fn ends_at(&self) -> u64 {
        if self.pods.is_empty() {
            return 0;
        }
        self.asked.saturating_add(millis(KEPT)).div_ceil(MICROS_PER_SECOND / 1_000)
    }

    /// The time of the key at `now`, in milliseconds by the server's clock. Forgets all pods if the
    /// state is too old.
    fn time_of_key(&mut self, now: u64) -> u64 {
        if self.pods.is_empty() || now >= self.asked.saturating_add(millis(KEPT)) {
            *self = Self::default();
            return 0;
        }
        let silence = now.saturating_sub(self.asked).min(millis(SILENCE_MAX));
        self.at.saturating_add(silence)
    }
}

#[cfg(test)]
mod tests;
