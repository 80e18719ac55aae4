//! How many tokens to ask for. Pure: the demand is measured from times that are passed as
//! arguments.
//!
//! `G = max(min(max(min(λ·T, run/2), ε·L/n), φ·left/n, max), waiting, 1)`. Here λ is the pod's
//! demand, and T the time that a lease should last. `run` is the number of hits since the key was
//! last idle, and n the number of pods that draw on the key. `docs/decisions/0019` explains each
//! part of the formula, and which others were tried.

use std::num::NonZeroU8;
use std::time::Duration;

use ratelease_rules::LeaseTerms;

use crate::time::{CompactU64, Time};

/// ε: the fraction of a limit that may lie unspent in the whole fleet, whatever the demand.
pub const UNSPENT_ALLOWANCE: f64 = 0.005;

/// A token is held before a request wants it only while this pod's part of the remaining tokens is
/// at least this many. With fewer, other pods would miss the token when the count is empty.
const HELD_AHEAD_MIN: f64 = 1.5;

/// The expected length of a burst: demand that only the faster average has seen does not count as
/// demand of seconds yet.
const BURST: Duration = Duration::from_millis(250);

/// A lease is at most the hits since the key was last idle, divided by this. So the calls that
/// return the unspent tokens of a short burst are no more than the calls that its leases saved.
const RUN_PART: u64 = 2;

/// Leases are long, whatever part of the limit remains, while the total that pods like this one
/// would hold is no more than this fraction of the remaining tokens.
const HARMLESS_PART: f64 = 0.1;

/// For a key that weighs on its shard: the factor by which its leases last longer.
const RELIEF_SPAN: u32 = 4;

/// For a key that weighs on its shard: the factor by which its leases may be a larger part of the
/// remaining tokens.
const RELIEF_PART: f64 = 2.0;

/// T while more than half of the limit remains.
const SPAN_LONG: Duration = Duration::from_secs(2);

/// T while more than a fifth of the limit remains, and at most half.
const SPAN_MIDDLE: Duration = Duration::from_millis(250);

/// T while at most a fifth of the limit remains.
const SPAN_SHORT: Duration = Duration::from_millis(50);

/// The inputs that determine the size of a lease.
#[derive(Debug, Clone, Copy)]
pub struct LeaseSize {
    /// Hits a second over about the last second.
    pub demand: f64,
    /// Recent hits a second.
    pub burst: f64,
    /// Hits since the key was last idle; `None` if there were many.
    pub run: Option<u64>,
    /// Hits that wait for this lease.
    pub waiting: u64,
    /// The largest number of tokens that may be spent at once.
    pub limit: u64,
    /// The number of tokens that the store is thought to have left.
    pub left: u64,
    /// Tokens that come back each second; 0 for fixed windows, whose tokens come back all at once.
    pub inflow: f64,
    /// How long a lease may last: until its window ends, if that is known, or for its term.
    pub lasts: Option<Duration>,
    /// The time that an ask takes: a lease that lasts no longer is used up before the next one
    /// arrives.
    pub round_trip: Duration,
    /// Number of pods to share with, at least 1: all pods that may use the key or, once the fleet's
    /// draw has been observed, the reciprocal of this pod's part of it. Too small a number strands
    /// tokens, too large a number costs round trips.
    pub pods: f64,
    /// The key weighs on its shard, so it gets fewer and larger leases.
    pub relief: bool,
    /// φ and the largest size of one lease.
    pub terms: LeaseTerms,
}

// === impl LeaseSize ===

impl LeaseSize {
    /// The number of tokens to ask for; at least 1. Leases are long while much remains, and single
    /// tokens near the end.
    #[allow(clippy::cast_possible_truncation, reason = "saturates, and rounds down as meant")]
    pub fn tokens(&self) -> u64 {
        let ahead = self.by_demand().min(self.by_run()).max(self.unspent_allowance());
        let size = ahead.min(self.part_of_remaining()).min(self.terms.max as f64);
        // Waiting hits are spent at once, so tokens for them strand nothing. With one token at a
        // time, a queue would not be served within its wait.
        (size as u64).max(self.waiting).max(1)
    }

    /// Whether to hold a token before a request wants it: if the demand will use it in time, and
    /// enough remains. Near the end each token is asked for by the request that spends it, so that
    /// none lies with one pod while another pod denies.
    pub fn may_hold_ahead(&self) -> bool {
        self.part_of_remaining() >= HELD_AHEAD_MIN && self.by_demand().min(self.by_run()) >= 1.0
    }

    /// λ·T.
    fn by_demand(&self) -> f64 {
        let span = self.span();
        let steady = self.demand * span.as_secs_f64();
        steady.max(self.burst * span.min(self.lengthened(BURST)).as_secs_f64())
    }

    /// The number of tokens that a run of this length may be expected to use.
    fn by_run(&self) -> f64 {
        self.run.map_or(f64::INFINITY, |run| (run / RUN_PART) as f64)
    }

    /// φ·remaining/n. The inflow until the next ask is shared too: a bucket that is kept empty has
    /// nothing left, but still serves its rate. Only the fraction φ of the bucket's capacity counts
    /// as inflow, or pods would hold ahead the tokens that the bucket needs for a burst.
    fn part_of_remaining(&self) -> f64 {
        let fraction = f64::from(self.terms.fraction);
        let inflow = self.inflow * SPAN_SHORT.as_secs_f64();
        let inflow = inflow.min(fraction * self.limit as f64);
        let relief = if self.relief { RELIEF_PART } else { 1.0 };
        let part = (relief * fraction).min(1.0).max(fraction);
        (part * self.left as f64 + inflow) / self.pods.max(1.0)
    }

    /// ε·L/n: the number of tokens that this pod may hold of an unused key. Where tokens come back
    /// by themselves, the tokens of a lease that ends unspent are lost, so the allowance is a part
    /// of the inflow during one lease.
    pub fn unspent_allowance(&self) -> f64 {
        let whole = match self.lasts {
            Some(lasts) if self.inflow > 0.0 => {
                (self.inflow * lasts.as_secs_f64()).min(self.limit as f64)
            }
            _ => self.limit as f64,
        };
        UNSPENT_ALLOWANCE * whole / self.pods.max(1.0)
    }

    /// The number of tokens for a pool, one of `pools`, from which `others` take leases like this
    /// one.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    pub fn for_pool(&self, others: f64, pools: NonZeroU8) -> u64 {
        let part = f64::from(self.terms.fraction) * self.left as f64 / f64::from(pools.get());
        (self.tokens() as f64 * others).min(part) as u64
    }

    /// The number of tokens held that the demand will use, or that may lie unspent.
    #[allow(clippy::cast_possible_truncation, reason = "saturates, and rounds down as meant")]
    pub fn in_use(&self) -> u64 {
        self.by_demand().max(self.unspent_allowance()).max(1.0) as u64
    }

    /// T: how long a lease should last, well within its end.
    fn span(&self) -> Duration {
        let span = match self.left {
            left if left > self.limit / 2 || self.is_harmless() => SPAN_LONG,
            left if left > self.limit / 5 => SPAN_MIDDLE,
            _ => SPAN_SHORT,
        };
        let span = self.lengthened(span.max(2 * self.round_trip));
        match self.lasts {
            // Half of its term: tokens that are unspent at the lease's end are lost.
            Some(lasts) if self.inflow > 0.0 => span.min(lasts / 2),
            Some(lasts) if self.is_harmless() => span.min(lasts),
            // A fraction of the rest of the window, so that the forecast improves towards the
            // window's end.
            Some(lasts) => span.min(lasts / 4),
            None => span,
        }
    }

    /// Whether long leases of this demand, by all pods, would be only a small part of the remaining
    /// tokens.
    fn is_harmless(&self) -> bool {
        let span = self.lasts.map_or(SPAN_LONG, |lasts| lasts.min(SPAN_LONG));
        let held = self.demand.max(self.burst) * span.as_secs_f64() * self.pods.max(1.0);
        held <= HARMLESS_PART * self.left as f64
    }

    fn lengthened(&self, span: Duration) -> Duration {
        if self.relief { RELIEF_SPAN * span } else { span }
    }
}

// === A pod's demand for one key, measured from times that are passed as arguments. Pure ===

/// Tokens are asked for ahead of demand only if the demand would use a token within this time: a
/// less used key would only strand the tokens that it holds.
const USED_WITHIN: Duration = Duration::from_millis(200);

/// A key is idle after a silence of this many of its mean gaps, within the bounds below. With
/// random arrivals, a continuing demand pauses this long once in e^4 = 55 gaps. With a shorter
/// silence, the tokens of a key of a few requests a second would go back and forth
/// (`docs/decisions`, 0019).
const IDLE_GAPS: f64 = 4.0;

const IDLE_MIN: Duration = USED_WITHIN;

const IDLE_MAX: Duration = Duration::from_secs(2);

/// Added to two round trips, for a batch that is already on its way and for the scheduler.
const ASK_AHEAD_MARGIN: Duration = Duration::from_millis(1);

/// Demand is measured over spans of at least this length.
const SPAN_MIN: Duration = Duration::from_millis(10);

/// Time constants of the two averages. The faster one detects the start of a burst, the slower one
/// remembers demand across a lull.
const FAST: Duration = Duration::from_millis(50);

const SLOW: Duration = Duration::from_secs(1);

/// This pod's demand for one key, in hits a second: two moving averages, of which the higher
/// counts. Twelve bytes, since each key has one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Demand {
    fast: Rate,
    slow: Rate,
    /// Hits since `since`, not yet in the averages.
    hits: CompactU64,
    /// Hits since the key was last idle, up to [`RUN_MAX`].
    run: u8,
    /// The number of pods that draw on the key, estimated from this pod's share of it.
    pods: Peers,
    /// In [`TICK`]s; 0 if nothing was noted yet. It wraps around every 13 days; a wrong measurement
    /// across the wrap is soon averaged away.
    since: u32,
}

/// A run of this many hits or more counts as endless.
const RUN_MAX: u8 = u8::MAX;

/// A number of pods, from 1, as a logarithm in eighths of an octave, plus one; 0 where it is
/// unknown.
#[derive(Debug, Clone, Copy, Default)]
struct Peers(u8);

/// Steps of [`Peers`] in an octave.
const PEERS_STEPS: f64 = 8.0;

/// The weight of the newest observation in the average number of pods that draw on a key: leases of
/// other pods come in bursts.
const PEERS_WEIGHT: f64 = 0.3;

/// 2^18 nanoseconds, about a quarter of a millisecond.
const TICK: Duration = Duration::from_nanos(1 << 18);

/// In [`TICK`]s, some 17 s: no overtaken thread is later than this.
const OVERTAKEN: u32 = 1 << 16;

/// Hits a second, in units of 1/64.
#[derive(Debug, Clone, Copy, Default)]
struct Rate(CompactU64);

const RATE_PARTS: f32 = 64.0;

// === impl Demand ===

impl Demand {
    /// Notes `hits` at `now`.
    pub fn note(&mut self, hits: u64, now: Time) {
        let span = self.span(now);
        let run = u8::try_from(hits).unwrap_or(RUN_MAX);
        let was_idle = span >= IDLE_MIN && self.is_idle(now);
        self.run = if was_idle { run } else { self.run.saturating_add(run) };
        self.hits = CompactU64::floor(self.hits.get().saturating_add(hits));
        if span < SPAN_MIN {
            return;
        }
        // A key's first hits have no span to divide by, since the time before them is not known.
        if self.since > 0 {
            let rate = self.hits.get() as f32 / span.as_secs_f32();
            self.fast.average_in(rate, weight(span, FAST));
            self.slow.average_in(rate, weight(span, SLOW));
        }
        (self.hits, self.since) = (CompactU64::default(), ticks(now));
    }

    /// Time since the last hits were noted: up to 10 ms too long, and never too short.
    pub fn idle_for(&self, now: Time) -> Duration {
        self.span(now) + TICK
    }

    /// Zero for a thread that read the clock before the last note and comes after it: threads
    /// overtake each other on the way to a key.
    fn span(&self, now: Time) -> Duration {
        let span = ticks(now).wrapping_sub(self.since);
        if span > u32::MAX - OVERTAKEN { Duration::ZERO } else { TICK * span }
    }

    /// Notes that the other pods drew `others` tokens in the `span` between two grants of this pod.
    /// The pod's own use in that span follows from its demand.
    pub fn note_draw(&mut self, others: u64, span: Duration) {
        let used = self.steady_rate() * span.as_secs_f64();
        if used > 0.0 {
            self.pods.average_in(1.0 + others as f64 / used);
        }
    }

    /// The number of pods that draw on the key, as if each drew as much as this one; `None` until
    /// that has been observed.
    pub fn pods(&self) -> Option<f64> {
        self.pods.get()
    }

    /// Hits a second: the higher of the two averages.
    pub fn rate(&self) -> f64 {
        self.steady_rate().max(self.burst_rate())
    }

    /// Hits a second over about the last second.
    pub fn steady_rate(&self) -> f64 {
        f64::from(self.slow.get())
    }

    /// Hits a second over the last few hundredths of a second.
    pub fn burst_rate(&self) -> f64 {
        f64::from(self.fast.get())
    }

    /// Hits since the key was last idle; `None` if there were 255 or more.
    pub fn run_length(&self) -> Option<u64> {
        (self.run < RUN_MAX).then_some(self.run.into())
    }

    /// Recent hits a second; demand that has moved to another pod is soon forgotten. A silence of a
    /// few mean gaps does not count yet.
    pub fn recent_rate(&self, now: Time) -> f64 {
        let span = self.span(now).max(SPAN_MIN);
        let rate = self.hits.get() as f32 / span.as_secs_f32();
        let fast = self.fast.get().max(self.slow.get());
        let gap = Duration::from_secs_f32(1.0 / fast.max(1.0));
        f64::from(fast + (rate - fast) * weight(span, FAST.max(2 * gap)))
    }

    /// The silence after which the key is idle.
    pub fn idle_after(&self) -> Duration {
        let gaps = IDLE_GAPS / self.steady_rate().max(f64::from(f32::EPSILON));
        Duration::try_from_secs_f64(gaps).unwrap_or(IDLE_MAX).clamp(IDLE_MIN, IDLE_MAX)
    }

    /// Whether the silence is so long that the tokens held will not be used soon.
    pub fn is_idle(&self, now: Time) -> bool {
        self.idle_for(now) >= self.idle_after()
    }

    /// Whether `tokens` will be used up before a lease asked for now could arrive.
    pub fn outruns(&self, tokens: u64, round_trip: Duration) -> bool {
        let horizon = (2 * round_trip + ASK_AHEAD_MARGIN).as_secs_f64();
        (tokens as f64) < self.rate() * horizon
    }

    /// Whether a token that is held is used soon, within a tenth of `window`. A token that is not
    /// may be missing at another pod.
    pub fn uses_soon(&self, window: Duration) -> bool {
        let within = USED_WITHIN.min(window / 10);
        self.rate() * within.as_secs_f64() >= 1.0
    }
}

#[allow(clippy::cast_possible_truncation, reason = "it is meant to begin again")]
fn ticks(now: Time) -> u32 {
    (now.nanos() / TICK.as_nanos() as u64) as u32
}

// === impl Rate ===

impl Rate {
    fn get(self) -> f32 {
        self.0.get() as f32 / RATE_PARTS
    }

    /// Rounds to the nearest value: an average that only rounded down would stay below the true
    /// rate.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    fn average_in(&mut self, rate: f32, weight: f32) {
        let average = self.get() + (rate - self.get()) * weight;
        let parts = (average * RATE_PARTS).round() as u64;
        let half = CompactU64::floor(parts).get() / 8_192;
        self.0 = CompactU64::floor(parts.saturating_add(half));
    }
}

// === impl Peers ===

impl Peers {
    fn get(self) -> Option<f64> {
        let steps = self.0.checked_sub(1)?;
        Some((f64::from(steps) / PEERS_STEPS).exp2())
    }

    /// Averages exponents, so that a pod that draws twice as much as another has the same weight as
    /// one that draws half as much.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped")]
    fn average_in(&mut self, pods: f64) {
        let seen = pods.max(1.0).log2();
        let exponent = self.get().map_or(seen, |known| {
            let known = known.log2();
            known + (seen - known) * PEERS_WEIGHT
        });
        let steps = (exponent * PEERS_STEPS).round().clamp(0.0, f64::from(u8::MAX - 1));
        self.0 = steps as u8 + 1;
    }
}

/// The weight of the newest `span` in an exponential average with this time constant.
fn weight(span: Duration, constant: Duration) -> f32 {
    1.0 - (-span.as_secs_f32() / constant.as_secs_f32()).exp()
}

#[cfg(test)]
mod tests;
